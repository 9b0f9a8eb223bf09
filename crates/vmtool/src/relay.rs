//! Carries a connection from the lab to a socket of this machine: what comes in goes there, what comes back goes out.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::thread;

/// Until both ends have said all. A place is a path, or an address with its port.
///
/// # Errors
/// If nobody listens, or the connection breaks.
pub fn relay(place: &str) -> io::Result<()> {
    if place.starts_with('/') {
        let stream = UnixStream::connect(place)?;
        let there = stream.try_clone()?;
        carry(stream, there, |there| there.shutdown(Shutdown::Write))
    } else {
        let stream = TcpStream::connect(place)?;
        stream.set_nodelay(true)?;
        let there = stream.try_clone()?;
        carry(stream, there, |there| there.shutdown(Shutdown::Write))
    }
}

fn carry<S: Read + Write + Send + 'static>(
    mut stream: S,
    mut there: S,
    close: fn(&S) -> io::Result<()>,
) -> io::Result<()> {
    thread::spawn(move || {
        let _ = pump(&mut io::stdin(), &mut there);
        let _ = close(&there);
    });
    pump(&mut stream, &mut io::stdout())
}

/// Everything at once: an answer must not wait for the next.
fn pump(from: &mut impl Read, to: &mut impl Write) -> io::Result<()> {
    let mut buffer = vec![0; 16 << 10];
    loop {
        match from.read(&mut buffer)? {
            0 => return Ok(()),
            length => to.write_all(&buffer[..length]).and_then(|()| to.flush())?,
        }
    }
}
