//! A socket of a machine, here: whoever connects is connected there.

use super::Vm;
use super::port::Port;
use bowline_vmtool::frame::Kind;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;

impl Vm {
    /// A socket on this machine that leads to one of that machine, also after it was booted again.
    pub fn relay(&self, socket: &str) -> PathBuf {
        let local = self.directory().join(format!("relay{}", socket.replace('/', "-")));
        let listener = UnixListener::bind(&local).unwrap();
        let (power, socket) = (Arc::clone(self.power()), socket.to_owned());
        thread::spawn(move || {
            for caller in listener.incoming().map_while(Result::ok) {
                let power = power.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                // Nobody is there without power, and that is what the caller sees.
                if let Some((_, port)) = power.as_ref() {
                    connect(port, &socket, caller);
                }
            }
        });
        local
    }
}

fn connect(port: &Port, socket: &str, mut caller: UnixStream) {
    let running = port.start(&["vmtool", "relay", socket]);
    let handle = running.handle();
    let Ok(mut said) = caller.try_clone() else { return };
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
        let _ = caller.shutdown(Shutdown::Both);
    });
}
