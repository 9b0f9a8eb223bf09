//! The lab's end of a machine's serial port: commands that run in the machine, many at once.

use bowline_vmtool::frame::{Frame, Kind, LONGEST};
use std::collections::HashMap;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// How long a command may take before the test says which it waited for.
pub const PATIENCE: Duration = Duration::from_secs(120);

type Commands = Arc<Mutex<HashMap<u32, Sender<Frame>>>>;

/// A machine that can be asked to run things.
#[derive(Clone)]
pub(super) struct Port {
    machine: Arc<str>,
    out: Arc<Mutex<UnixStream>>,
    commands: Commands,
    next: Arc<Mutex<u32>>,
}

impl Port {
    /// Waits until the machine says that it is up; nothing if it ends or the time is over.
    pub(super) fn accept(
        machine: &str,
        listener: &UnixListener,
        until: Instant,
        is_alive: impl Fn() -> bool,
    ) -> Option<Self> {
        listener.set_nonblocking(true).unwrap();
        let stream = loop {
            match listener.accept() {
                Ok((stream, _)) => break stream,
                Err(_) if is_alive() && Instant::now() < until => thread::sleep(Duration::from_millis(20)),
                Err(_) => return None,
            }
        };
        stream.set_nonblocking(false).unwrap();
        let out = Arc::new(Mutex::new(stream.try_clone().unwrap()));
        let port = Self { machine: machine.into(), out, commands: Commands::default(), next: Arc::default() };
        let (hello, greeting) = channel();
        port.commands.lock().unwrap().insert(0, hello);
        let commands = Arc::clone(&port.commands);
        thread::spawn(move || hear(stream, &commands));
        while Instant::now() < until {
            match greeting.recv_timeout(Duration::from_millis(200)) {
                Ok(_) => return Some(port),
                Err(RecvTimeoutError::Timeout) if is_alive() => {}
                Err(_) => return None,
            }
        }
        None
    }

    fn say(&self, frame: &Frame) {
        // A machine without power hears nothing; the command's end tells.
        let _ = frame.write(&mut *self.out.lock().unwrap());
    }

    /// Starts a command.
    pub(super) fn start(&self, words: &[&str]) -> Running {
        let command = {
            let mut next = self.next.lock().unwrap();
            *next += 1;
            *next
        };
        let (events, inbox) = channel();
        self.commands.lock().unwrap().insert(command, events);
        self.say(&Frame::new(command, Kind::Run, words.join("\0")));
        let handle = Handle { port: self.clone(), command };
        Running { handle, line: words.join(" "), inbox, ended: Ended::default(), is_over: false }
    }
}

/// Gives every command what is said about it. When the machine loses its power, all commands have ended.
fn hear(mut stream: UnixStream, commands: &Commands) {
    while let Ok(frame) = Frame::read(&mut stream) {
        let mut commands = commands.lock().unwrap();
        let (command, is_over) = (frame.command, matches!(frame.kind, Kind::Ended | Kind::Hello));
        let _ = commands.get(&command).map(|events| events.send(frame));
        if is_over {
            commands.remove(&command);
        }
    }
    commands.lock().unwrap().clear();
}

/// How a command ended and what it wrote.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ended {
    /// Its exit code; none if the machine ended first.
    pub code: Option<u8>,
    /// What it wrote.
    pub out: String,
    /// What it complained.
    pub err: String,
}

/// The way to a command that runs in a machine.
#[derive(Clone)]
pub(super) struct Handle {
    port: Port,
    command: u32,
}

impl Handle {
    pub(super) fn write(&self, bytes: &[u8]) {
        for part in bytes.chunks(LONGEST) {
            self.port.say(&Frame::new(self.command, Kind::Input, part));
        }
    }

    pub(super) fn close(&self) {
        self.port.say(&Frame::new(self.command, Kind::InputEnd, []));
    }

    pub(super) fn signal(&self, signal: &str) {
        self.port.say(&Frame::new(self.command, Kind::Signal, signal));
    }
}

/// A command that runs in a machine.
pub struct Running {
    handle: Handle,
    line: String,
    inbox: Receiver<Frame>,
    ended: Ended,
    is_over: bool,
}

impl Running {
    /// Gives it something to read.
    pub fn write(&self, bytes: &[u8]) {
        self.handle.write(bytes);
    }

    /// Lets it know that nothing more comes to read.
    pub fn close(&self) {
        self.handle.close();
    }

    /// Sends it, and what it started, a signal such as `KILL`.
    pub fn signal(&self, signal: &str) {
        self.handle.signal(signal);
    }

    pub(super) fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// All that is said about it, for somebody else to hear.
    pub(super) fn frames(self) -> Receiver<Frame> {
        self.inbox
    }

    /// Takes what is said about it, until there is enough; whether there was in time.
    fn hear_until(&mut self, until: Instant, mut is_enough: impl FnMut(&Ended) -> bool) -> bool {
        while !self.is_over && !is_enough(&self.ended) {
            match self.inbox.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(frame) => self.take(&frame),
                Err(RecvTimeoutError::Disconnected) => self.is_over = true,
                Err(RecvTimeoutError::Timeout) => return false,
            }
        }
        true
    }

    fn take(&mut self, frame: &Frame) {
        let text = || String::from_utf8_lossy(&frame.bytes);
        match frame.kind {
            Kind::Output => self.ended.out.push_str(&text()),
            Kind::Complaint => self.ended.err.push_str(&text()),
            Kind::Ended => {
                self.ended.code = frame.bytes.first().copied();
                self.is_over = true;
            }
            Kind::Hello | Kind::Run | Kind::Input | Kind::InputEnd | Kind::Signal => {}
        }
    }

    /// What it wrote until now.
    pub fn so_far(&mut self) -> &Ended {
        while let Ok(frame) = self.inbox.try_recv() {
            self.take(&frame);
        }
        &self.ended
    }

    /// Waits until what it wrote contains something.
    pub fn wait_until(&mut self, what: &str, patience: Duration, is_there: impl Fn(&str) -> bool) -> &Ended {
        let in_time = self.hear_until(Instant::now() + patience, |ended| is_there(&ended.out));
        assert!(
            in_time && is_there(&self.ended.out),
            "{}: waited {patience:?} for {what}: {:?}",
            self.name(),
            self.ended
        );
        &self.ended
    }

    /// How it ended; none if it still runs then.
    pub fn wait_for(&mut self, patience: Duration) -> Option<Ended> {
        self.hear_until(Instant::now() + patience, |_| false);
        self.is_over.then(|| self.ended.clone())
    }

    /// Waits for its end.
    pub fn wait(&mut self) -> Ended {
        let ended = self.wait_for(PATIENCE);
        ended.unwrap_or_else(|| panic!("{}: waited {PATIENCE:?} for its end: {:?}", self.name(), self.ended))
    }

    /// Waits for its end, which must be a good one; what it wrote.
    pub fn succeed(&mut self) -> String {
        let ended = self.wait();
        assert_eq!(ended.code, Some(0), "{}: {}{}", self.name(), ended.err, ended.out);
        ended.out
    }

    fn name(&self) -> String {
        format!("`{}` on {}", self.line, self.handle.port.machine)
    }
}
