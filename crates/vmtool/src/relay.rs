//! Carries a connection from the lab to a socket of this machine: what comes in goes there, what comes back goes out.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;

/// Until both ends have said all.
///
/// # Errors
/// If nobody listens, or the connection breaks.
pub fn relay(socket: &Path) -> io::Result<()> {
    let stream = UnixStream::connect(socket)?;
    let there = stream.try_clone()?;
    thread::spawn(move || {
        let _ = pump(&mut io::stdin(), &mut &there);
        let _ = there.shutdown(Shutdown::Write);
    });
    pump(&mut &stream, &mut io::stdout())
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
