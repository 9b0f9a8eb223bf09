//! One process of a lab, ended by its own id.

use super::wait_for;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

/// How long a process has to end after it was asked.
const GRACE: Duration = Duration::from_secs(20);

type Order = (Command, Sender<std::io::Result<Child>>);

/// The kernel ends a child when the *thread* that started it ends. Tests start labs in threads that end before the lab does, so
/// one thread that lives as long as this process starts them all.
static STARTER: OnceLock<Mutex<Sender<Order>>> = OnceLock::new();

fn spawn(command: Command) -> std::io::Result<Child> {
    let starter = STARTER.get_or_init(|| {
        let (orders, inbox) = channel::<Order>();
        std::thread::Builder::new()
            .name("lab".into())
            .spawn(move || {
                for (mut command, answer) in inbox {
                    let _ = answer.send(command.spawn());
                }
            })
            .unwrap();
        Mutex::new(orders)
    });
    let (answer, child) = channel();
    starter.lock().unwrap().send((command, answer)).unwrap();
    child.recv().unwrap()
}

/// Where processes run: their logs, and what a command line begins with to get there.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) logs: PathBuf,
    pub(crate) enter: Vec<String>,
}

impl Place {
    pub(crate) fn new(logs: &Path) -> Self {
        fs::create_dir_all(logs).unwrap();
        Self { logs: logs.to_owned(), enter: vec![] }
    }

    /// Starts a program. Its output goes to the log of its name.
    pub(crate) fn start(&self, name: &str, program: &Path, arguments: &[String]) -> Process {
        self.start_with(name, program, arguments, &[])
    }

    pub(crate) fn start_with(
        &self,
        name: &str,
        program: &Path,
        arguments: &[String],
        variables: &[(&str, &str)],
    ) -> Process {
        let log = self.logs.join(format!("{name}.log"));
        let file = File::options().create(true).append(true).open(&log).unwrap();
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]).args(&self.enter).arg(program).args(arguments);
        command.envs(variables.iter().copied());
        command.stdin(Stdio::null()).stdout(file.try_clone().unwrap()).stderr(file);
        let child = spawn(command).unwrap_or_else(|error| panic!("setpriv does not start: {error}"));
        Process { name: name.to_owned(), log, child: Mutex::new(child) }
    }
}

/// A running program of a lab. It ends when this goes.
#[derive(Debug)]
pub struct Process {
    name: String,
    log: PathBuf,
    child: Mutex<Child>,
}

impl Process {
    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.lock().unwrap().id()
    }

    /// How it ended, or nothing while it runs.
    pub fn ended(&self) -> Option<ExitStatus> {
        self.child.lock().unwrap().try_wait().unwrap()
    }

    /// The end of what it wrote.
    pub fn log(&self) -> String {
        let text = String::from_utf8_lossy(&fs::read(&self.log).unwrap_or_default()).into_owned();
        text[text.ceil_char_boundary(text.len().saturating_sub(8000))..].to_owned()
    }

    /// Panics with its log if it ended.
    pub fn assert_running(&self) {
        if let Some(status) = self.ended() {
            panic!("{} ended with {status}:\n{}", self.name, self.log());
        }
    }

    /// Sends it a signal, such as `STOP` or `CONT`.
    pub fn signal(&self, signal: &str) {
        crate::world::run("kill", [&format!("-{signal}"), &self.pid().to_string()]);
    }

    /// The end that nobody is told of.
    pub fn kill(self) {
        drop(self);
    }

    /// The end that it is asked for.
    pub fn stop(self) -> ExitStatus {
        if self.ended().is_none() {
            self.signal("TERM");
        }
        wait_for(&format!("the end of {}", self.name), GRACE, || self.ended())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let mut child = self.child.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let _ = child.kill();
        let _ = child.wait();
    }
}
