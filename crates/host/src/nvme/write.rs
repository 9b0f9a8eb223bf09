//! Writes to files of the kernel that may take a minute: in a process of their own, which can be given up on.
//!
//! A connect that is caught by a fence hangs until the kernel's own time is over, and holds a mutex that every other
//! connect on the machine wants. So does the deletion of a controller whose target does not answer. Neither can be
//! interrupted; a thread that waits could not be left behind when the program ends, a process can.

use crate::command::{CommandError, Programs};
use rustix::fs::{Mode, OFlags, open};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Where connects are written to.
pub(super) const FABRICS: &str = "nvme-fabrics";

/// The files that the child writes to, and no others.
const FILES: [&str; 3] = [FABRICS, "delete_controller", "rescan_controller"];

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
    /// The process that should write could not be run.
    #[error(transparent)]
    Child(CommandError),
}

impl WriteError {
    /// The number of the kernel's answer, if it gave one.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::Refused { error, .. } => error.raw_os_error(),
            Self::TimedOut { .. } | Self::Child(_) => None,
        }
    }
}

/// Writes a command to a file of the kernel, within bounds, and brings back what it answers.
pub trait Kernel: Send + Sync + 'static {
    /// One write, one answer.
    fn write(&self, file: &Path, text: &str, limit: Duration) -> Result<String, WriteError>;
}

/// The real kernel, through a child process: a program that ends in [`child`].
#[derive(Clone, Debug)]
pub struct Child {
    /// Which program.
    pub program: PathBuf,
    /// What it is told before file and text.
    pub args: Vec<OsString>,
}

impl Kernel for Child {
    fn write(&self, file: &Path, text: &str, limit: Duration) -> Result<String, WriteError> {
        let mut args: Vec<&OsStr> = self.args.iter().map(AsRef::as_ref).collect();
        args.extend([file.as_os_str(), OsStr::new(text)]);
        let ran = Programs::default().run_file(&self.program, "the writer to the kernel", &args, limit);
        match ran {
            Ok(finished) if finished.code == 0 => Ok(finished.stdout),
            Ok(finished) => match finished.stderr.trim().strip_prefix("errno ").map(str::parse) {
                Some(Ok(number)) => {
                    let error = io::Error::from_raw_os_error(number);
                    Err(WriteError::Refused { file: file.to_owned(), error })
                }
                _ => {
                    let program = "the writer to the kernel".to_owned();
                    Err(WriteError::Child(CommandError::Failed { program, finished }))
                }
            },
            Err(CommandError::TimedOut { .. } | CommandError::Stuck { .. }) => {
                Err(WriteError::TimedOut { file: file.to_owned(), limit })
            }
            Err(error) => Err(WriteError::Child(error)),
        }
    }
}

/// What the child does; its exit code.
pub fn child(file: &Path, text: &str) -> u8 {
    match write_here(file, text) {
        Ok(answer) => u8::from(io::stdout().write_all(answer.as_bytes()).is_err()),
        Err(error) => {
            let number = error.raw_os_error();
            let said = number.map_or_else(|| error.to_string(), |number| format!("errno {number}"));
            let _ = io::stderr().write_all(said.as_bytes());
            1
        }
    }
}

fn write_here(file: &Path, text: &str) -> io::Result<String> {
    let name = file.file_name().and_then(OsStr::to_str).unwrap_or_default();
    if !FILES.contains(&name) {
        return Err(io::Error::other(format!("{} is not a file for this", file.display())));
    }
    let answers = name == FABRICS;
    let access = if answers { OFlags::RDWR } else { OFlags::WRONLY };
    let mut file = File::from(open(file, access | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::empty())?);
    if answers {
        // One at a time on the whole machine, also with other nodes on it.
        file.lock()?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    fn shell(script: &str) -> Child {
        Child { program: "/bin/sh".into(), args: vec!["-c".into(), script.into()] }
    }

    #[test]
    fn a_write_that_hangs_is_given_up() {
        let began = Instant::now();
        let limit = Duration::from_millis(50);
        let error = shell("sleep 60").write(Path::new("/dev/nvme-fabrics"), "nqn=x", limit).unwrap_err();
        assert!(matches!(error, WriteError::TimedOut { .. }), "{error}");
        assert_eq!(error.errno(), None, "it may still happen");
        assert!(began.elapsed() < Duration::from_secs(5));
    }

    #[test]
    fn the_kernels_answer_comes_back() {
        let limit = Duration::from_secs(30);
        let file = Path::new("/dev/nvme-fabrics");
        let said = shell("printf '%s %s' \"$0\" \"$1\"").write(file, "nqn=x", limit).unwrap();
        assert_eq!(said, "/dev/nvme-fabrics nqn=x");
        let refused = shell("printf 'errno 114' >&2; exit 1").write(file, "", limit).unwrap_err();
        assert_eq!(refused.errno(), Some(libc::EALREADY));
        let broken = shell("echo no >&2; exit 7").write(file, "", limit).unwrap_err();
        assert!(matches!(&broken, WriteError::Child(_)) && broken.to_string().contains("no"), "{broken}");
    }

    #[test]
    fn only_files_that_are_meant_are_written_to() {
        let dir = tempfile::tempdir().unwrap();
        for (name, there, written) in
            [("nvme-fabrics", true, true), ("delete_controller", true, true), ("passwd", true, false)]
        {
            let file = dir.path().join(name);
            std::fs::write(&file, "").unwrap();
            assert_eq!(write_here(&file, "text").is_ok(), written, "{name}");
            assert_eq!(std::fs::read_to_string(&file).unwrap() == "text", written && there, "{name}");
        }
        let gone = write_here(&dir.path().join("rescan_controller"), "1").unwrap_err();
        assert_eq!(gone.raw_os_error(), Some(libc::ENOENT));
    }
}
