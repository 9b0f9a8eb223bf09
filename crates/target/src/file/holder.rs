//! Who has a directory of volumes: one process, and the kernel that it runs on.
//!
//! That a node is out is proven by looking at the devices of that kernel, so only nodes on the very same one may attach files of the directory,
//! and no other kernel may have devices on them from an earlier time. Both are kept here; `directory.lock` says who has it.

use super::directory::now;
use super::start::OpenError;
use bowline_host::Host;
use bowline_host::file::PathLock;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

fn place_in(directory: &Path) -> PathBuf {
    directory.join("directory.lock")
}

/// What a kernel is called in the file. In a line of its own: the first one is for people.
const KERNEL: &str = "kernel ";

fn kernel_in(text: &str) -> Option<&str> {
    text.lines().find_map(|line| line.strip_prefix(KERNEL)).filter(|kernel| !kernel.is_empty())
}

/// A directory that this process alone has, as it was found.
pub(super) struct Held {
    pub(super) lock: PathLock,
    /// Whether somebody had it before on another kernel, or on an earlier start of this one, as far as is known.
    pub(super) was_elsewhere: bool,
}

pub(super) fn take(directory: &Path, host: &Host) -> Result<Held, OpenError> {
    let place = place_in(directory);
    let io = |error: io::Error| OpenError::io(&place, &error);
    match PathLock::take(&place).map_err(io)? {
        Ok(lock) => {
            let kernel = host.boot().map_err(io)?;
            let text = read(&lock.file).map_err(io)?;
            let is_same = kernel_in(&text).is_some_and(|before| before == kernel);
            // An earlier Bowline did not say on which kernel it was.
            Ok(Held { lock, was_elsewhere: !text.trim().is_empty() && !is_same })
        }
        Err(held) => {
            let text = read(&held).unwrap_or_default();
            let named = text.lines().next().filter(|line| !line.is_empty());
            let holder = named.unwrap_or("another process").to_owned();
            Err(OpenError::Locked { path: directory.to_owned(), holder })
        }
    }
}

impl Held {
    /// Says who has it now. From then on nodes of this kernel attach files of it, and those of another one do not.
    pub(super) fn say(&self, host: &Host) -> io::Result<()> {
        let program = std::env::args_os().next().unwrap_or_default();
        let program = Path::new(&program).file_name().unwrap_or_default().to_string_lossy().into_owned();
        let text =
            format!("pid {} ({program}), since {}\n{KERNEL}{}\n", std::process::id(), now(), host.boot()?);
        // Over what is there, and shortened only then: that needs no room on a full disk.
        self.lock.file.write_all_at(text.as_bytes(), 0)?;
        self.lock.file.set_len(text.len() as u64)?;
        // Over a network, what another machine reads is not what was written here until then.
        self.lock.file.sync_all()
    }
}

/// Why a node must not attach files of a directory, or nothing.
pub(super) fn elsewhere(directory: &Path, host: &Host) -> io::Result<Option<String>> {
    let text = read(&File::open(place_in(directory))?)?;
    Ok(match (kernel_in(&text), host.boot()?) {
        (Some(theirs), ours) if theirs == ours => None,
        (Some(_), _) => {
            Some("its target is on another machine, or was not started since this one was".to_owned())
        }
        (None, _) => {
            Some("its target does not say on which machine it is; it has to be started anew".to_owned())
        }
    })
}

fn read(mut file: &File) -> io::Result<String> {
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
