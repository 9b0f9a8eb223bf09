//! A socket of a machine, here: whoever connects is connected there.

use super::Vm;
use super::machine::Power;
use bowline_vmtool::frame::Kind;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

impl Vm {
    /// A socket on this machine that leads to one of that machine, also after it was booted again.
    pub fn relay(&self, socket: &str) -> PathBuf {
        let local = self.directory().join(format!("relay{}", socket.replace('/', "-")));
        let listener = UnixListener::bind(&local).unwrap();
        let (power, socket) = (Arc::clone(self.power()), socket.to_owned());
        thread::spawn(move || {
            for caller in listener.incoming().map_while(Result::ok) {
                let Ok(said) = caller.try_clone() else { continue };
                connect(&power, &socket, caller, said, |caller| caller.shutdown(Shutdown::Both));
            }
        });
        local
    }

    /// An address on this machine that leads to a port of that machine.
    pub fn relay_port(&self, port: u16) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let local = listener.local_addr().unwrap();
        let (power, place) = (Arc::clone(self.power()), format!("{}:{port}", self.address()));
        thread::spawn(move || {
            for caller in listener.incoming().map_while(Result::ok) {
                let Ok(said) = caller.try_clone() else { continue };
                connect(&power, &place, caller, said, |caller| caller.shutdown(Shutdown::Both));
            }
        });
        local
    }
}

fn connect<S: Read + Write + Send + 'static>(
    power: &Mutex<Power>,
    place: &str,
    mut caller: S,
    mut said: S,
    close: fn(&S) -> io::Result<()>,
) {
    // Nobody is there without power, and that is what the caller sees.
    let Some(port) =
        power.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(|(_, port)| port.clone())
    else {
        return;
    };
    let running = port.start(&["vmtool", "relay", place]);
    let handle = running.handle();
    thread::spawn(move || {
        let mut buffer = vec![0; 16 << 10];
        while let Ok(length @ 1..) = said.read(&mut buffer) {
            handle.write(&buffer[..length]);
        }
        handle.close();
    });
    thread::spawn(move || {
        for frame in running.frames() {
            let is_well = match frame.kind {
                Kind::Output => caller.write_all(&frame.bytes).is_ok(),
                Kind::Ended => false,
                _ => true,
            };
            if !is_well {
                break;
            }
        }
        let _ = close(&caller);
    });
}
