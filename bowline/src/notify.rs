//! Telling systemd how far we are: `sd_notify`, as its manual page describes the protocol.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// What is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Everything was read back, and every socket answers.
    Ready,
    /// It is about to end.
    Stopping,
}

/// Tells whoever started us, if it wants to be told (`NOTIFY_SOCKET`).
pub fn notify(state: State) -> io::Result<()> {
    match std::env::var_os("NOTIFY_SOCKET") {
        Some(socket) => notify_at(&socket, state),
        None => Ok(()),
    }
}

fn notify_at(socket: &OsStr, state: State) -> io::Result<()> {
    // A name that begins with @ is no file.
    let address = match socket.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(socket)?,
    };
    let text = match state {
        State::Ready => "READY=1\n",
        State::Stopping => "STOPPING=1\n",
    };
    UnixDatagram::unbound()?.send_to_addr(text.as_bytes(), &address).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readiness_arrives_at_a_file_and_at_an_abstract_name() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("notify");
        let name = format!("bowline-test-{}", std::process::id());
        let by_name = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        let by_file = UnixDatagram::bind(&file).unwrap();
        for (socket, address) in [(by_file, file.into_os_string()), (by_name, format!("@{name}").into())] {
            notify_at(&address, State::Ready).unwrap();
            notify_at(&address, State::Stopping).unwrap();
            for expected in ["READY=1\n", "STOPPING=1\n"] {
                let mut buffer = [0; 64];
                let length = socket.recv(&mut buffer).unwrap();
                assert_eq!(&buffer[..length], expected.as_bytes());
            }
        }
    }
}
