//! The machine's end of the serial port: runs what the lab asks for, many commands at once.

use crate::frame::{Frame, Kind};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// The name that the lab gives the port.
pub const PORT: &str = "lab";

type Port = Arc<Mutex<File>>;

/// A command that runs, as the lab can still reach it.
struct Running {
    group: u32,
    input: Option<Sender<Vec<u8>>>,
}

/// Serves the lab until the port is gone.
///
/// # Errors
/// If there is no such port, or it fails.
pub fn serve() -> io::Result<()> {
    let path = find_port()?;
    let mut from = File::options().read(true).write(true).open(path)?;
    let port: Port = Arc::new(Mutex::new(from.try_clone()?));
    say(&port, &Frame::new(0, Kind::Hello, []));
    let mut running: HashMap<u32, Running> = HashMap::new();
    loop {
        let frame = Frame::read(&mut from)?;
        match frame.kind {
            Kind::Run => match run(&port, frame.command, &frame.bytes) {
                Ok(started) => drop(running.insert(frame.command, started)),
                Err(error) => {
                    say(&port, &Frame::new(frame.command, Kind::Complaint, format!("vmtool: {error}\n")));
                    say(&port, &Frame::new(frame.command, Kind::Ended, [127]));
                }
            },
            Kind::Input => {
                let input = running.get(&frame.command).and_then(|command| command.input.as_ref());
                // One that does not read any more, or has ended.
                let _ = input.map(|input| input.send(frame.bytes));
            }
            Kind::InputEnd => {
                if let Some(command) = running.get_mut(&frame.command) {
                    command.input = None;
                }
            }
            Kind::Signal => {
                let signal = String::from_utf8_lossy(&frame.bytes).into_owned();
                if let Some(command) = running.get(&frame.command) {
                    let group = format!("-{}", command.group);
                    let _ = Command::new("kill").arg(format!("-{signal}")).arg(group).status();
                }
            }
            Kind::Hello | Kind::Output | Kind::Complaint | Kind::Ended => {}
        }
    }
}

/// The device of the port.
fn find_port() -> io::Result<PathBuf> {
    for entry in fs::read_dir("/sys/class/virtio-ports")? {
        let entry = entry?;
        if fs::read_to_string(entry.path().join("name")).is_ok_and(|name| name.trim() == PORT) {
            return Ok(PathBuf::from("/dev").join(entry.file_name()));
        }
    }
    Err(io::Error::new(io::ErrorKind::NotFound, format!("no virtio port is called {PORT}")))
}

/// The lab hears it, or is gone; then nobody is there to be told.
fn say(port: &Port, frame: &Frame) {
    let _ = frame.write(&mut *port.lock().unwrap_or_else(PoisonError::into_inner));
}

fn run(port: &Port, command: u32, words: &[u8]) -> io::Result<Running> {
    let mut words = words.split(|byte| *byte == 0).map(OsStr::from_bytes);
    let mut child = Command::new(words.next().unwrap_or_default())
        .args(words)
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let group = child.id();
    let (input, inbox) = channel();
    if let Some(stdin) = child.stdin.take() {
        thread::spawn(move || feed(stdin, &inbox));
    }
    let port = Arc::clone(port);
    thread::spawn(move || watch(&port, command, child));
    Ok(Running { group, input: Some(input) })
}

fn feed(mut stdin: impl Write, inbox: &Receiver<Vec<u8>>) {
    for bytes in inbox {
        if stdin.write_all(&bytes).is_err() {
            return;
        }
    }
}

/// Says what a command writes, and then how it ended.
fn watch(port: &Port, command: u32, mut child: Child) {
    let copies = [
        child.stdout.take().map(|out| copy(port, command, Kind::Output, out)),
        child.stderr.take().map(|err| copy(port, command, Kind::Complaint, err)),
    ];
    let status = child.wait();
    for copy in copies.into_iter().flatten() {
        let _ = copy.join();
    }
    // As a shell tells it: 128 and the signal.
    let code = status.map_or(255, |status| {
        status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(255)
    });
    say(port, &Frame::new(command, Kind::Ended, [u8::try_from(code).unwrap_or(255)]));
}

fn copy(
    port: &Port,
    command: u32,
    kind: Kind,
    mut from: impl Read + Send + 'static,
) -> thread::JoinHandle<()> {
    let port = Arc::clone(port);
    thread::spawn(move || {
        let mut buffer = vec![0; 16 << 10];
        loop {
            match from.read(&mut buffer) {
                Ok(0) => return,
                Ok(length) => say(&port, &Frame::new(command, kind, &buffer[..length])),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => thread::sleep(Duration::ZERO),
                Err(_) => return,
            }
        }
    })
}
