//! External programs: mkfs, fsck, resize.
//!
//! **Guarantees.** Arguments are a vector, there is no shell. The environment is `PATH`, `LC_ALL=C` and
//! `BLKID_FILE=/dev/null`: mkfs.btrfs asks libblkid whether its UUID is free, and libblkid would believe what its file of
//! all devices said seconds ago, also of a device that was erased since. The
//! program leads a process group of its own; when its time is over, or when it has ended, the whole group gets
//! SIGKILL before the leader is reaped, so nothing it started outlives it. Its output is kept up to a bound.
//!
//! **Blocking, on purpose.** [`Programs::run`] is called on a thread that may block. A caller whose future is
//! dropped stops waiting, but the thread goes on, with whatever lock it holds, until the program has ended or was
//! killed: a volume is never unlocked with a mkfs on it. No thread is spent on watching: one `poll` waits for
//! output, the end (a pidfd, Linux 5.3) and the deadline.
//!
//! **Caveats.** A process in an uninterruptible wait survives SIGKILL until its device answers. After
//! [`PATIENCE`] that is reported as [`CommandError::Stuck`] and a thread stays behind to reap it. If this
//! process itself is killed, a program goes on: it has its device open exclusively, so whoever comes next finds
//! the device busy, and then finds what the program left (see [`crate::format`]).

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How much of each of stdout and stderr is kept: the end, where the reason is.
pub const KEPT: usize = 8 << 10;

/// How long a killed process may take to go away.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// Where programs are looked for, and how long they may run.
#[derive(Clone, Debug)]
pub struct Programs {
    /// Directories, searched in order; also the programs' `PATH`.
    pub path: Vec<PathBuf>,
    /// After this, a program and all it started are killed.
    pub time_limit: Duration,
}

impl Default for Programs {
    fn default() -> Self {
        let path = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];
        Self { path: path.iter().map(PathBuf::from).collect(), time_limit: Duration::from_mins(10) }
    }
}

/// Held while a process is started.
static STARTING: Mutex<()> = Mutex::new(());

/// Keeps this process from starting another while the guard lives.
///
/// Between fork and exec a new process has a copy of every file descriptor, also of a device that is open
/// exclusively: the device stays busy a moment longer than its owner thinks. When a start is over, the exec has been
/// done.
pub(crate) fn no_starts() -> MutexGuard<'static, ()> {
    STARTING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A program that ended by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finished {
    /// Its exit code.
    pub code: i32,
    /// The end of what it wrote to stdout.
    pub stdout: String,
    /// The end of what it wrote to stderr.
    pub stderr: String,
}

/// Why a program did not do its work.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// It is not installed.
    #[error("the program {program} is not installed")]
    Missing {
        /// Its name.
        program: String,
    },
    /// It could not be started or watched.
    #[error("{program} could not be run: {error}")]
    Start {
        /// Its name.
        program: String,
        /// What the kernel said.
        #[source]
        error: io::Error,
    },
    /// It ended with a code that says that it failed.
    #[error("{program} failed with exit code {}: {}", finished.code, words(finished))]
    Failed {
        /// Its name.
        program: String,
        /// How it ended.
        finished: Finished,
    },
    /// It was ended by a signal that did not come from here.
    #[error("{program} was killed by signal {signal}: {stderr}")]
    Killed {
        /// Its name.
        program: String,
        /// The signal.
        signal: i32,
        /// The end of what it wrote to stderr.
        stderr: String,
    },
    /// Its time was over; it and all it started were killed, and it is gone.
    #[error("{program} was killed after {} s: {stderr}", limit.as_secs_f32())]
    TimedOut {
        /// Its name.
        program: String,
        /// The time it had.
        limit: Duration,
        /// The end of what it wrote to stderr.
        stderr: String,
    },
    /// Its time was over, it was killed, and is still there: it waits for a device.
    #[error("{program} (process {pid}) was killed and does not end; its device does not answer")]
    Stuck {
        /// Its name.
        program: String,
        /// Its process.
        pid: u32,
    },
}

fn words(finished: &Finished) -> &str {
    let said = [finished.stderr.trim(), finished.stdout.trim()];
    said.into_iter().find(|text| !text.is_empty()).unwrap_or("it said nothing")
}

impl Programs {
    /// Where a program is.
    pub fn find(&self, program: &str) -> Option<PathBuf> {
        self.path.iter().map(|directory| directory.join(program)).find(|file| file.is_file())
    }

    /// Runs a program to its end; any exit code but 0 is an error.
    pub fn run<A: AsRef<OsStr>>(&self, program: &str, args: &[A]) -> Result<Finished, CommandError> {
        let finished = self.run_any(program, args)?;
        if finished.code == 0 {
            return Ok(finished);
        }
        Err(CommandError::Failed { program: program.to_owned(), finished })
    }

    /// Runs a program to its end, for programs whose exit code is more than yes or no.
    pub fn run_any<A: AsRef<OsStr>>(&self, program: &str, args: &[A]) -> Result<Finished, CommandError> {
        let file = self.find(program).ok_or_else(|| CommandError::Missing { program: program.to_owned() })?;
        self.run_file(&file, program, args, self.time_limit)
    }

    /// Runs a program that is not looked for, for as long as it may take; `program` is what errors call it.
    fn run_file<A: AsRef<OsStr>>(
        &self,
        file: &Path,
        program: &str,
        args: &[A],
        limit: Duration,
    ) -> Result<Finished, CommandError> {
        let path: Vec<OsString> =
            self.path.iter().map(|directory| directory.clone().into_os_string()).collect();
        let starting = no_starts();
        let child = Command::new(file)
            .args(args)
            .env_clear()
            .env("PATH", path.join(OsStr::new(":")))
            .env("LC_ALL", "C")
            .env("BLKID_FILE", "/dev/null")
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn();
        drop(starting);
        let start = |error| CommandError::Start { program: program.to_owned(), error };
        let run = Run::new(child.map_err(start)?, program);
        run.finish(limit)
    }
}

/// A running program. Dropped early (a panic), it is killed and reaped all the same.
struct Run<'a> {
    program: &'a str,
    child: Option<Child>,
    stdout: Tail,
    stderr: Tail,
}

enum End {
    Exited,
    TimeOver,
}

impl<'a> Run<'a> {
    fn new(mut child: Child, program: &'a str) -> Self {
        let stdout = Tail::new(child.stdout.take().map(OwnedFd::from));
        let stderr = Tail::new(child.stderr.take().map(OwnedFd::from));
        Self { program, child: Some(child), stdout, stderr }
    }

    fn finish(mut self, limit: Duration) -> Result<Finished, CommandError> {
        let program = self.program.to_owned();
        let end = self.watch(limit).map_err(|error| CommandError::Start { program, error })?;
        let program = self.program.to_owned();
        self.kill();
        let status = match (self.reap(), end) {
            (None, _) => return Err(self.stuck()),
            (Some(_), End::TimeOver) => {
                return Err(CommandError::TimedOut { program, limit, stderr: self.stderr.text() });
            }
            (Some(status), End::Exited) => status,
        };
        // What was written before the end is in the pipes still; nobody is left who could write more.
        while self.stdout.read() | self.stderr.read() {}
        let (stdout, stderr) = (self.stdout.text(), self.stderr.text());
        match status.code() {
            Some(code) => Ok(Finished { code, stdout, stderr }),
            None => {
                let signal = status.signal().unwrap_or_default();
                Err(CommandError::Killed { program, signal, stderr })
            }
        }
    }

    fn pid(&self) -> Option<Pid> {
        self.child.as_ref().and_then(|child| Pid::from_raw(i32::try_from(child.id()).ok()?))
    }

    fn watch(&mut self, limit: Duration) -> io::Result<End> {
        let deadline = Instant::now() + limit;
        let ended = pidfd_open(self.pid().ok_or(Errno::SRCH)?, PidfdFlags::empty())?;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(End::TimeOver);
            }
            let pipes = [self.stdout.pipe.as_ref(), self.stderr.pipe.as_ref()];
            let mut fds: Vec<PollFd<'_>> = std::iter::once(&ended)
                .chain(pipes.into_iter().flatten())
                .map(|fd| PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN))
                .collect();
            match poll(&mut fds, Timespec::try_from(left).ok().as_ref()) {
                Err(Errno::INTR) => continue,
                other => other?,
            };
            let exited = fds.first().is_some_and(|fd| !fd.revents().is_empty());
            drop(fds);
            self.stdout.read();
            self.stderr.read();
            if exited {
                return Ok(End::Exited);
            }
        }
    }

    /// The leader is not reaped yet, so its number is still that of its group and of no other.
    fn kill(&self) {
        if let Some(group) = self.pid() {
            let _ = kill_process_group(group, Signal::KILL);
        }
    }

    fn reap(&mut self) -> Option<ExitStatus> {
        let ended = self.pid().and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok())?;
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Ok(Some(status)) = self.child.as_mut()?.try_wait() {
                self.child = None;
                return Some(status);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            let mut fds = [PollFd::new(&ended, PollFlags::IN)];
            let _ = poll(&mut fds, Timespec::try_from(left).ok().as_ref());
        }
    }

    fn stuck(&mut self) -> CommandError {
        let program = self.program.to_owned();
        let Some(mut child) = self.child.take() else { return CommandError::Stuck { program, pid: 0 } };
        let pid = child.id();
        drop(std::thread::Builder::new().name(format!("reap-{pid}")).spawn(move || child.wait()));
        CommandError::Stuck { program, pid }
    }
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
        if self.child.is_some() {
            self.kill();
            if self.reap().is_none() {
                self.stuck();
            }
        }
    }
}

/// The last [`KEPT`] bytes that came out of a pipe.
struct Tail {
    pipe: Option<OwnedFd>,
    bytes: Vec<u8>,
    cut: bool,
}

impl Tail {
    fn new(pipe: Option<OwnedFd>) -> Self {
        let pipe = pipe.filter(|fd| rustix::io::ioctl_fionbio(fd, true).is_ok());
        Self { pipe, bytes: Vec::new(), cut: false }
    }

    /// Takes what is there; false when there is nothing.
    fn read(&mut self) -> bool {
        let Some(pipe) = &self.pipe else { return false };
        let mut buffer = [0; 4096];
        match rustix::io::read(pipe, &mut buffer) {
            Ok(0) => self.pipe = None,
            Ok(length) => {
                self.bytes.extend(buffer.iter().take(length));
                let excess = self.bytes.len().saturating_sub(KEPT);
                self.cut |= excess > 0;
                self.bytes.drain(..excess);
                return true;
            }
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(_) => self.pipe = None,
        }
        false
    }

    fn text(&self) -> String {
        let text = String::from_utf8_lossy(&self.bytes);
        format!("{}{}", if self.cut { "…" } else { "" }, text.trim_end())
    }
}

#[cfg(test)]
#[path = "command_tests.rs"]
mod tests;
