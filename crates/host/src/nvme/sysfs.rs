//! What the kernel says about NVMe in sysfs, below an injected root. Reads only.
//!
//! ```text
//! class/nvme-subsystem/nvme-subsys2 -> …    a symlink, like every entry of a class
//!     subsysnqn                             what identifies it
//!     nvme5 -> …                            a controller: one connection. Its number is its own
//!     nvme2n1/                              native multipath: the disk, over all its controllers
//! …/nvme5
//!     state, address, hostnqn, subsysnqn
//!     nvme2c5n1/                            native multipath: one path to the disk, hidden, never used
//!     nvme5n1/                              without it: the disk itself
//! ```
//!
//! Everything can vanish between two reads; what has vanished is left out.

use crate::device::DeviceNumber;
use rustix::fs::{Mode, OFlags, RawDir};
use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::fs::{self, DirEntry};
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Where every subsystem has an entry.
const CLASS: &str = "class/nvme-subsystem";

/// A subsystem that this machine knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subsystem {
    /// Its NQN.
    pub nqn: String,
    /// Its connections. None left, and it still there: somebody has a disk of it open that is gone.
    pub controllers: Vec<Controller>,
    /// Its disks that can be opened.
    pub namespaces: Vec<Namespace>,
}

/// One connection to a subsystem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Controller {
    /// Its directory.
    pub(super) directory: PathBuf,
    /// What it is doing.
    pub state: ControllerState,
    /// Where it leads, as it was told when it was made.
    pub address: Option<Address>,
    /// As whom it logged in; empty where the kernel does not say.
    pub host_nqn: String,
}

/// Where a controller leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// The address.
    pub traddr: String,
    /// The port.
    pub trsvcid: String,
}

/// What a controller is doing, in the kernel's words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControllerState {
    /// It is being made.
    New,
    /// It works.
    Live,
    /// It begins anew.
    Resetting,
    /// Its connection is lost, and it tries to get another.
    Connecting,
    /// It is going away.
    Deleting,
    /// It is of no more use.
    Dead,
    /// Another word.
    Other(String),
}

impl std::fmt::Display for ControllerState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::New => "new",
            Self::Live => "live",
            Self::Resetting => "resetting",
            Self::Connecting => "connecting",
            Self::Deleting => "deleting",
            Self::Dead => "dead",
            Self::Other(word) => word,
        })
    }
}

impl ControllerState {
    fn parse(word: &str) -> Self {
        match word {
            "new" => Self::New,
            "live" => Self::Live,
            "resetting" => Self::Resetting,
            "connecting" => Self::Connecting,
            "deleting" | "deleting (no IO)" => Self::Deleting,
            "dead" => Self::Dead,
            other => Self::Other(other.chars().take(40).collect()),
        }
    }
}

/// A disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Namespace {
    /// What it is called now. Good for a moment: names are given to others.
    pub name: String,
    /// Its device number.
    pub number: DeviceNumber,
    /// Its UUID, in small letters.
    pub uuid: Option<String>,
    /// Whether the kernel refuses writes.
    pub read_only: bool,
}

/// Why sysfs could not be read.
#[derive(Debug, thiserror::Error)]
#[error("{}: {error}", path.display())]
pub struct SysfsError {
    /// Which file.
    pub path: PathBuf,
    /// What the kernel said.
    #[source]
    pub error: io::Error,
}

/// The NQN of every subsystem that was seen, by the inode number of its entry, so that a look at one reads nothing of the others: there may be hundreds.
/// An NQN never changes while the subsystem is there; sysfs counts inode numbers in 64 bits and gives none out twice, and the listing tells them.
#[derive(Debug, Default)]
pub(super) struct Seen(Mutex<HashMap<u64, Entry>>);

/// The entry of a subsystem in its class.
#[derive(Clone, Debug)]
struct Entry {
    name: OsString,
    nqn: String,
}

impl Seen {
    /// The subsystems whose NQN is wanted. Of all others, nothing but the NQN is read, and that once.
    pub(super) fn subsystems(
        &self,
        sys: &Path,
        wanted: impl Fn(&str) -> bool,
    ) -> Result<Vec<Subsystem>, SysfsError> {
        let class = sys.join(CLASS);
        let mut found = Vec::new();
        // What is wanted is read all the same: it may have gone meanwhile.
        for (inode, name) in self.unknown_or(&class, &wanted)? {
            let directory = class.join(&name);
            let Some(nqn) = attribute(&directory, "subsysnqn")? else { continue };
            self.map().insert(inode, Entry { name, nqn: nqn.clone() });
            if wanted(&nqn) {
                found.push(subsystem(&directory, nqn)?);
            }
        }
        found.sort_by(|one, other| one.nqn.cmp(&other.nqn));
        Ok(found)
    }

    /// The subsystem of that NQN, where it was last time, if it is still there and connected. Lists nothing.
    pub(super) fn connected(&self, sys: &Path, nqn: &str) -> Result<Option<Subsystem>, SysfsError> {
        let names: Vec<_> = {
            let map = self.map();
            map.values().filter(|entry| entry.nqn == nqn).map(|entry| entry.name.clone()).collect()
        };
        for name in names {
            let directory = sys.join(CLASS).join(name);
            if attribute(&directory, "subsysnqn")?.as_deref() == Some(nqn) {
                let found = subsystem(&directory, nqn.to_owned())?;
                if !found.controllers.is_empty() {
                    return Ok(Some(found));
                }
            }
        }
        Ok(None)
    }

    /// The entries that are not known as those of subsystems that are not wanted. Forgets those that are not there any more.
    fn unknown_or(
        &self,
        class: &Path,
        wanted: impl Fn(&str) -> bool,
    ) -> Result<Vec<(u64, OsString)>, SysfsError> {
        let mut there = HashSet::new();
        let mut left = Vec::new();
        each(class, |inode, name| {
            there.insert(inode);
            if self.map().get(&inode).is_none_or(|entry| wanted(&entry.nqn)) {
                left.push((inode, name.to_owned()));
            }
        })?;
        let mut map = self.map();
        if map.len() > there.len() {
            map.retain(|inode, _| there.contains(inode));
        }
        Ok(left)
    }

    fn map(&self) -> MutexGuard<'_, HashMap<u64, Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Tells number and name of every entry of a directory; of one that is not there, none.
fn each(directory: &Path, mut tell: impl FnMut(u64, &OsStr)) -> Result<(), SysfsError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut list = || -> io::Result<()> {
        let opened = rustix::fs::open(directory, flags, Mode::empty())?;
        let mut buffer = [MaybeUninit::uninit(); 8192];
        let mut entries = RawDir::new(opened, &mut buffer);
        while let Some(entry) = entries.next() {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." {
                tell(entry.ino(), OsStr::from_bytes(name));
            }
        }
        Ok(())
    };
    match list() {
        Err(error) if !is_gone(&error) => Err(SysfsError { path: directory.to_owned(), error }),
        _ => Ok(()),
    }
}

fn subsystem(directory: &Path, nqn: String) -> Result<Subsystem, SysfsError> {
    let (mut controllers, mut namespaces) = (Vec::new(), Vec::new());
    for entry in entries(directory)? {
        let name = entry.file_name().to_string_lossy().into_owned();
        match Name::parse(&name) {
            Some(Name::Controller) => {
                let directory = entry.path();
                // The link may lead to a controller that is gone, and by now to another one of the same number.
                if attribute(&directory, "subsysnqn")?.as_deref() != Some(&nqn) {
                    continue;
                }
                controllers.extend(controller(&directory)?);
                for entry in entries(&directory)? {
                    namespaces.extend(namespace(&entry)?);
                }
            }
            Some(Name::Disk) => namespaces.extend(namespace(&entry)?),
            Some(Name::Path) | None => {}
        }
    }
    controllers.sort_by(|one, other| one.directory.cmp(&other.directory));
    namespaces.sort_by_key(|namespace| namespace.number);
    Ok(Subsystem { nqn, controllers, namespaces })
}

fn controller(directory: &Path) -> Result<Option<Controller>, SysfsError> {
    let Some(state) = attribute(directory, "state")? else { return Ok(None) };
    let address = attribute(directory, "address")?.unwrap_or_default();
    Ok(Some(Controller {
        directory: directory.to_owned(),
        state: ControllerState::parse(&state),
        address: Address::parse(&address),
        host_nqn: attribute(directory, "hostnqn")?.unwrap_or_default(),
    }))
}

impl Address {
    /// From `traddr=…,trsvcid=…,…`.
    pub fn parse(text: &str) -> Option<Self> {
        let value = |key: &str| text.split(',').find_map(|word| word.strip_prefix(key)?.strip_prefix('='));
        Some(Self { traddr: value("traddr")?.to_owned(), trsvcid: value("trsvcid")?.to_owned() })
    }
}

/// The disk whose directory this is, if it is one: links to one are not.
fn namespace(entry: &DirEntry) -> Result<Option<Namespace>, SysfsError> {
    let name = entry.file_name().to_string_lossy().into_owned();
    let is_disk = Name::parse(&name) == Some(Name::Disk) && entry.file_type().is_ok_and(|kind| kind.is_dir());
    if !is_disk {
        return Ok(None);
    }
    let directory = entry.path();
    let number = attribute(&directory, "dev")?.and_then(|text| text.parse().ok());
    let Some(number) = number else { return Ok(None) };
    let read_only = attribute(&directory, "ro")?.is_some_and(|text| text == "1");
    Ok(Some(Namespace { name, number, uuid: uuid(&directory)?, read_only }))
}

/// A namespace's UUID; newer kernels have `uuid`, all have it in `wwid` unless the namespace has none.
pub(super) fn uuid(directory: &Path) -> Result<Option<String>, SysfsError> {
    if let Some(uuid) = attribute(directory, "uuid")? {
        return Ok(Some(uuid.to_ascii_lowercase()));
    }
    let wwid = attribute(directory, "wwid")?;
    Ok(wwid.and_then(|wwid| Some(wwid.strip_prefix("uuid.")?.to_ascii_lowercase())))
}

/// What a name in the directory of a subsystem or a controller stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Name {
    /// `nvme5`.
    Controller,
    /// `nvme2n1`.
    Disk,
    /// `nvme2c5n1`: hidden below its disk.
    Path,
}

impl Name {
    pub(super) fn parse(name: &str) -> Option<Self> {
        let number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let rest = name.strip_prefix("nvme")?;
        match rest.split_once('n') {
            None => number(rest).then_some(Self::Controller),
            Some((before, disk)) if number(disk) => match before.split_once('c') {
                None => number(before).then_some(Self::Disk),
                Some((subsystem, controller)) => {
                    (number(subsystem) && number(controller)).then_some(Self::Path)
                }
            },
            Some(_) => None,
        }
    }
}

/// A file of one line; `None` if it, or whatever it belongs to, is gone.
pub(super) fn attribute(directory: &Path, name: &str) -> Result<Option<String>, SysfsError> {
    let path = directory.join(name);
    match fs::read(&path) {
        Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).trim().to_owned())),
        Err(error) if is_gone(&error) => Ok(None),
        Err(error) => Err(SysfsError { path, error }),
    }
}

fn entries(directory: &Path) -> Result<Vec<DirEntry>, SysfsError> {
    let fault = |error| SysfsError { path: directory.to_owned(), error };
    let listed = match fs::read_dir(directory) {
        Err(error) if is_gone(&error) => return Ok(Vec::new()),
        other => other.map_err(fault)?,
    };
    listed.collect::<Result<_, _>>().map_err(fault)
}

/// The kernel answers so where something is being taken apart, and where a kernel does not have it at all.
pub(super) fn is_gone(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENODEV | libc::ENXIO | libc::ENOTDIR))
}
