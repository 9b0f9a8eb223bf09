//! One machine, as seen from one node: where its kernel's files are, and how its programs are run.

use crate::command::Programs;
use crate::device::DeviceNumber;
use crate::mountinfo::{MountInfoError, MountTable};
use rustix::fs::{FileType, stat};
use std::path::{Path, PathBuf};
use std::{fs, io};

/// Where the kernel's files are. Injected, so that several nodes can run on one machine, and on recorded files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Roots {
    /// `/proc`.
    pub proc: PathBuf,
    /// `/sys`.
    pub sys: PathBuf,
    /// `/dev`.
    pub dev: PathBuf,
}

impl Default for Roots {
    fn default() -> Self {
        Self { proc: "/proc".into(), sys: "/sys".into(), dev: "/dev".into() }
    }
}

/// One machine's kernel. Everything here blocks: call it from a thread that may, one operation at a time per volume.
#[derive(Clone, Debug, Default)]
pub struct Host {
    /// Where the kernel's files are.
    pub roots: Roots,
    /// How programs are run.
    pub programs: Programs,
}

impl Host {
    /// A machine with its files at these roots.
    pub fn new(roots: Roots, programs: Programs) -> Self {
        Self { roots, programs }
    }

    /// What is mounted now, as the calling thread sees it: threads may live in different mount namespaces.
    pub fn mounts(&self) -> Result<MountTable, MountInfoError> {
        MountTable::read(&self.roots.proc.join("thread-self/mountinfo"))
    }

    /// What tells this start of this kernel from every other one, in every container that it runs.
    pub fn boot(&self) -> io::Result<String> {
        let said = fs::read_to_string(self.roots.proc.join("sys/kernel/random/boot_id"))?;
        match said.trim() {
            "" => Err(io::Error::new(io::ErrorKind::InvalidData, "the kernel's boot_id is empty")),
            id => Ok(id.to_owned()),
        }
    }

    /// Which block device a node is, if it is one.
    pub(crate) fn node_number(&self, node: &Path) -> Option<DeviceNumber> {
        let stat = stat(self.node(node)?).ok()?;
        let is_device = FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice;
        is_device.then(|| DeviceNumber::from_stat(stat.st_rdev))
    }

    /// Where a node is, if it lies in /dev: the source of a mount can be any text, a path on a dead network share included.
    pub(crate) fn node(&self, node: &Path) -> Option<PathBuf> {
        let below = node.strip_prefix("/dev").or_else(|_| node.strip_prefix(&self.roots.dev)).ok()?;
        Some(self.roots.dev.join(below))
    }
}
