//! Writes to files of the kernel that may take a minute: in another process, which can be given up on.
//!
//! A connect that is caught by a fence hangs until the kernel's own time is over, and holds a mutex that every other
//! connect on the machine wants. So does the deletion of a controller whose target does not answer, and its reset. None of them
//! can be interrupted.

use crate::helper::{Helper, HelperError};
use rustix::fs::{Mode, OFlags, open};
use std::ffi::OsStr;
use std::fs::{File, TryLockError};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Where connects are written to.
pub(super) const FABRICS: &str = "nvme-fabrics";

/// The files that are written to, and no others.
const FILES: [&str; 4] = [FABRICS, "delete_controller", "rescan_controller", "reset_controller"];

/// Why a write was not done, or not to the end.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// The kernel said no.
    #[error("{}: {error}", file.display())]
    Refused {
        /// Which file.
        file: PathBuf,
        /// What it said.
        #[source]
        error: io::Error,
    },
    /// It took too long. What it asked for may still happen.
    #[error("{} did not answer within {} s; what it was asked for may still happen", file.display(), limit.as_secs_f32())]
    TimedOut {
        /// Which file.
        file: PathBuf,
        /// The time it had.
        limit: Duration,
    },
    /// The process that should write has not answered.
    #[error("{}: {error}", file.display())]
    Helper {
        /// Which file.
        file: PathBuf,
        /// What became of it.
        #[source]
        error: HelperError,
    },
}

impl WriteError {
    /// The number of the kernel's answer, if it gave one.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::Refused { error, .. } => error.raw_os_error(),
            Self::TimedOut { .. } | Self::Helper { .. } => None,
        }
    }
}

/// Writes a command to a file of the kernel, within bounds, and brings back what it answers.
pub trait Kernel: Send + Sync + 'static {
    /// One write, one answer.
    fn write(&self, file: &Path, text: &str, limit: Duration) -> Result<String, WriteError>;

    /// Whether anybody listens at an address.
    fn answers(&self, address: SocketAddr, limit: Duration) -> io::Result<()>;
}

/// The real kernel, through a process whose work is [`write_for`].
impl Kernel for Helper {
    fn write(&self, file: &Path, text: &str, limit: Duration) -> Result<String, WriteError> {
        let within = limit.as_millis().to_string();
        let answer = match self.ask(&[&within, &file.to_string_lossy(), text], Some(limit)) {
            Ok(answer) => answer,
            Err(HelperError::TimedOut(limit)) => {
                return Err(WriteError::TimedOut { file: file.to_owned(), limit });
            }
            Err(error) => return Err(WriteError::Helper { file: file.to_owned(), error }),
        };
        let refused = |error| Err(WriteError::Refused { file: file.to_owned(), error });
        match answer.split_once(' ') {
            Some((DONE, answer)) => Ok(answer.to_owned()),
            Some((ERRNO, number)) => match number.parse() {
                Ok(number) => refused(io::Error::from_raw_os_error(number)),
                Err(_) => refused(io::Error::other(format!("error {number}"))),
            },
            _ => refused(io::Error::other(answer)),
        }
    }

    fn answers(&self, address: SocketAddr, limit: Duration) -> io::Result<()> {
        TcpStream::connect_timeout(&address, limit).map(drop)
    }
}

/// The kernel took it; its answer follows.
const DONE: &str = "done";
/// It said no; the number of its error follows.
const ERRNO: &str = "errno";

/// What such a process does: the time that it may take to begin, the file, and what is written.
pub fn write_for(words: &[&str]) -> String {
    let [within, file, text] = words else { return "it was not said what to write".to_owned() };
    let Ok(within) = within.parse().map(Duration::from_millis) else {
        return format!("{within} is no time");
    };
    match write_here(Path::new(file), text, within) {
        Ok(answer) => format!("{DONE} {}", answer.trim_end()),
        Err(error) => match error.raw_os_error() {
            Some(number) => format!("{ERRNO} {number}"),
            None => error.to_string(),
        },
    }
}

fn write_here(file: &Path, text: &str, within: Duration) -> io::Result<String> {
    let name = file.file_name().and_then(OsStr::to_str).unwrap_or_default();
    if !FILES.contains(&name) {
        return Err(io::Error::other(format!("{} is not a file for this", file.display())));
    }
    let answers = name == FABRICS;
    let access = if answers { OFlags::RDWR } else { OFlags::WRONLY };
    let mut file = File::from(open(file, access | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::empty())?);
    if answers {
        // One at a time on the whole machine, also with other nodes on it. Who asked for this has given up when its time is over.
        lock(&file, Instant::now() + within)?;
    }
    // In one piece: each write is a command.
    let written = file.write(text.as_bytes())?;
    if written < text.len() {
        return Err(io::Error::other("the kernel took half of it"));
    }
    let mut answer = vec![0; if answers { 4096 } else { 0 }];
    let length = if answers { file.read(&mut answer)? } else { 0 };
    answer.truncate(length);
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

fn lock(file: &File, until: Instant) -> io::Result<()> {
    let mut pause = Duration::from_millis(1);
    loop {
        match file.try_lock() {
            Err(TryLockError::WouldBlock) if Instant::now() < until => std::thread::sleep(pause),
            Err(TryLockError::WouldBlock) => return Err(io::Error::from_raw_os_error(libc::ETIMEDOUT)),
            Err(TryLockError::Error(error)) => return Err(error),
            Ok(()) => return Ok(()),
        }
        pause = (pause * 2).min(Duration::from_millis(20));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(30);

    #[test]
    fn the_kernels_answer_comes_back() {
        let file = Path::new("/dev/nvme-fabrics");
        let answers = |said: &str| {
            let script = format!("read line; printf '1\\t{said}\\n'; cat >/dev/null");
            Helper::new("/bin/sh", ["-c", &script]).write(file, "nqn=x", LONG)
        };
        assert_eq!(answers("done instance=0,cntlid=1").unwrap(), "instance=0,cntlid=1");
        assert_eq!(answers("done ").unwrap(), "");
        assert_eq!(answers("errno 114").unwrap_err().errno(), Some(libc::EALREADY));
        for odd in ["errno x", "no such luck", "", "done"] {
            let refused = answers(odd).unwrap_err();
            assert!(matches!(refused, WriteError::Refused { .. }), "{odd}: {refused}");
            assert_eq!(refused.errno(), None, "{odd}");
        }
        let late = Helper::new("/bin/cat", [""; 0]).write(file, "x", Duration::from_millis(20)).unwrap_err();
        assert!(late.errno().is_none() && late.to_string().contains("/dev/nvme-fabrics"), "{late}");
    }

    #[test]
    fn only_files_that_are_meant_are_written_to() {
        let dir = tempfile::tempdir().unwrap();
        let write =
            |name: &str, text: &str| write_for(&["30000", dir.path().join(name).to_str().unwrap(), text]);
        for (name, written) in [
            ("nvme-fabrics", true),
            ("delete_controller", true),
            ("reset_controller", true),
            ("passwd", false),
        ] {
            let file = dir.path().join(name);
            std::fs::write(&file, "").unwrap();
            assert_eq!(write(name, "text").starts_with("done "), written, "{name}");
            assert_eq!(std::fs::read_to_string(&file).unwrap() == "text", written, "{name}");
        }
        assert_eq!(write("rescan_controller", "1"), format!("errno {}", libc::ENOENT));
        for words in [&[][..], &["1", "/dev/nvme-fabrics"], &["soon", "/dev/nvme-fabrics", "x"]] {
            assert!(!write_for(words).starts_with("done"), "{words:?}");
        }
    }

    #[test]
    fn a_connect_that_was_given_up_while_another_was_under_way_is_not_made_later() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FABRICS);
        std::fs::write(&path, "").unwrap();
        let other = File::open(&path).unwrap();
        other.lock().unwrap();
        let late = write_here(&path, "nqn=x", Duration::from_millis(20)).unwrap_err();
        assert_eq!(late.raw_os_error(), Some(libc::ETIMEDOUT));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "");
        drop(other);
        write_here(&path, "nqn=x", LONG).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "nqn=x");
    }
}
