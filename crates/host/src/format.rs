//! "Is it formatted?", with three answers, and making a filesystem where the answer is a proven no.
//!
//! **Guarantees.** Only a device that is [`State::Blank`] is formatted, looked at immediately before with the device
//! opened exclusively; mkfs runs without its "force" flag and looks for itself once more. What is there and is not
//! understood is never blank.
//!
//! **Half-made filesystems.** A mkfs that was killed leaves a device that is not blank. Two things tell:
//!
//! 1. The filesystem itself. mkfs.xfs sets a flag first and clears it last, mkfs.btrfs writes another magic until
//!    its last write, mkfs.ext4 writes its superblock last: these are [`State::Unclear`], never `Formatted`.
//! 2. The caller. After a loss of power the writes may not have arrived in order, so mkfs is finished only when the
//!    caller says so. It chooses a [`Making`] with a fresh UUID and stores it durably *before* [`Host::make`], and
//!    stores that it was made *after*. Where it finds the first without the second, it calls [`Host::settle`],
//!    which checks the whole filesystem, and erases what is left of that very mkfs. This is not a guess: the record
//!    proves that the device was blank when it began and that nobody was given it since.

use crate::check::CheckError;
use crate::command::CommandError;
use crate::device::{BlockDevice, DeviceError, Open};
use crate::direct::{Direct, first_byte};
use crate::host::Host;
use crate::signature::{HEAD, PAGE, Sample, TAIL, pages, signatures};
use crate::superblock::{Flaw, Found, superblock_within, superblocks};
pub use bowline_core::{FsType, UnknownFsType};
use bowline_failpoint::pass;
use std::fmt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// A filesystem's own id.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FsUuid([u8; 16]);

impl FsUuid {
    /// From its bytes, as the filesystem stores them.
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// Its bytes.
    pub fn to_bytes(self) -> [u8; 16] {
        self.0
    }
}

impl fmt::Display for FsUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, byte) in self.0.iter().enumerate() {
            let dash = if matches!(index, 4 | 6 | 8 | 10) { "-" } else { "" };
            write!(f, "{dash}{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for FsUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// A text that is not a UUID in its usual form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a UUID")]
pub struct NotAUuid;

impl FromStr for FsUuid {
    type Err = NotAUuid;
    fn from_str(text: &str) -> Result<Self, NotAUuid> {
        let digits: String = text.chars().filter(|c| *c != '-').collect();
        let mut bytes = [0; 16];
        for (index, byte) in bytes.iter_mut().enumerate() {
            let pair = digits.get(2 * index..2 * index + 2).ok_or(NotAUuid)?;
            *byte = u8::from_str_radix(pair, 16).map_err(|_| NotAUuid)?;
        }
        let uuid = Self(bytes);
        if uuid.to_string().eq_ignore_ascii_case(text) { Ok(uuid) } else { Err(NotAUuid) }
    }
}

/// Is it formatted?
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum State {
    /// Yes.
    #[error("it has a filesystem {fs} ({uuid})")]
    Formatted {
        /// With this.
        fs: FsType,
        /// The one with this id.
        uuid: FsUuid,
    },
    /// No: its beginning and its end read as zero, and so do pages all over it.
    #[error("it is blank")]
    Blank,
    /// It cannot be told, so it is left alone.
    #[error("{0}")]
    Unclear(Unclear),
}

/// Why it cannot be told.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unclear {
    /// Something that Bowline does not make.
    #[error("it has {0} on it")]
    SomethingElse(&'static str),
    /// A filesystem, and something else beside it.
    #[error("it has a filesystem {fs} and also {other} on it")]
    Several {
        /// The filesystem.
        fs: FsType,
        /// What is beside it.
        other: &'static str,
    },
    /// A filesystem that is not whole.
    #[error("its filesystem {fs} {flaw}")]
    Flawed {
        /// Which.
        fs: FsType,
        /// What is wrong with it.
        flaw: Flaw,
    },
    /// Bytes that mean nothing to us.
    #[error("it has data at byte {at} that belongs to nothing known")]
    Unknown {
        /// The first of them.
        at: u64,
    },
    /// No bytes at all.
    #[error("it has no size")]
    Empty,
}

/// What a sample of a device says.
pub fn examine(sample: &Sample) -> State {
    let found = superblocks(sample);
    let others = signatures(sample);
    match found.first() {
        Some(Found::Whole(block)) => {
            let outside = |at: u64| at < block.start || at >= block.end;
            match others.iter().find(|(at, _)| outside(*at)) {
                Some((_, other)) => State::Unclear(Unclear::Several { fs: block.fs, other }),
                None => State::Formatted { fs: block.fs, uuid: block.uuid },
            }
        }
        Some(Found::Flawed(fs, _, flaw)) => State::Unclear(Unclear::Flawed { fs: *fs, flaw: *flaw }),
        Some(Found::Relative(name, _)) => State::Unclear(Unclear::SomethingElse(name)),
        None => match (others.first(), sample.first_byte()) {
            (Some((_, name)), _) => State::Unclear(Unclear::SomethingElse(name)),
            (None, Some(at)) => State::Unclear(Unclear::Unknown { at }),
            (None, None) if sample.size() == 0 => State::Unclear(Unclear::Empty),
            (None, None) => State::Blank,
        },
    }
}

/// Looks at a device that nobody has to himself just now.
pub fn probe(device: &Path) -> Result<State, DeviceError> {
    Probed::new(device).map(|probed| probed.state)
}

/// A device that was looked at, and that nobody else can have to himself until this is dropped.
#[derive(Debug)]
pub struct Probed {
    state: State,
    /// It is blank, and its storage says so of every byte.
    is_all_blank: bool,
    device: BlockDevice,
}

impl Probed {
    /// Looks at a device, and keeps it.
    pub fn new(device: &Path) -> Result<Self, DeviceError> {
        let device = BlockDevice::open(device, Open::ReadAlone)?;
        let state = examine(&telling(&device)?);
        Ok(Self { state, is_all_blank: false, device })
    }

    /// The same for a device of which its target says that it was blank, and which nobody has used since: whether that is so where
    /// filesystems have their superblocks is enough. One that is not blank there is looked at like any other.
    pub fn unused(device: &Path) -> Result<Self, DeviceError> {
        let device = BlockDevice::open(device, Open::ReadAlone)?;
        let beginning = FsType::ALL.map(superblock_within).into_iter().max().unwrap_or(SUPERBLOCKS);
        let is_all_blank = examine(&sample(&device, beginning, 0)?) == State::Blank;
        let state = if is_all_blank { State::Blank } else { examine(&telling(&device)?) };
        Ok(Self { state, is_all_blank, device })
    }

    /// What it is.
    pub fn state(&self) -> &State {
        &self.state
    }
}

/// How much of a device lies behind its filesystem.
pub(crate) fn unused(device: &Path) -> Result<u64, DeviceError> {
    let sample = sample(&BlockDevice::open(device, Open::ReadAlone)?, SUPERBLOCKS, 0)?;
    Ok(match superblocks(&sample).first() {
        Some(Found::Whole(block)) => sample.size().saturating_sub(block.end),
        _ => 0,
    })
}

/// As much of a device as tells what it is. Where a filesystem is, what lies in it is its own, and need not be read; that a device is
/// blank takes its beginning, its end and pages all over it.
fn telling(device: &BlockDevice) -> Result<Sample, DeviceError> {
    let first = sample(device, SUPERBLOCKS, 0)?;
    match superblocks(&first).first() {
        Some(Found::Whole(block)) if block.end >= first.size() => Ok(first),
        Some(Found::Whole(block)) if block.end >= HEAD => more(device, &first, SUPERBLOCKS, TAIL),
        _ => everywhere(device, &first),
    }
}

/// How many pages are asked for at a time: each is a way there and back, which several can share.
const AT_ONCE: usize = 4;

fn everywhere(device: &BlockDevice, first: &Sample) -> Result<Sample, DeviceError> {
    let fault = |error| DeviceError::io(&device.path, error);
    let (reader, places) = (Direct::new(&device.file), pages(first.size()));
    std::thread::scope(|scope| {
        let mut lanes = Vec::new();
        for lane in places.chunks(places.len().div_ceil(AT_ONCE).max(1)) {
            let read = || reader.read_pages(lane, PAGE);
            lanes.push(std::thread::Builder::new().spawn_scoped(scope, read).map_err(fault)?);
        }
        let ends = more(device, first, HEAD, TAIL);
        let mut found = Vec::new();
        for lane in lanes {
            let ended = |_| fault(std::io::Error::other("a look at it ended early"));
            found.extend(lane.join().map_err(ended)?.map_err(fault)?);
        }
        Ok(ends?.with_pages(found))
    })
}

fn sample(device: &BlockDevice, head: u64, tail: u64) -> Result<Sample, DeviceError> {
    more(device, &Sample::new(device.size()?, vec![], vec![]), head, tail)
}

/// The same device with more of its beginning, and this much of its end.
fn more(device: &BlockDevice, known: &Sample, head: u64, tail: u64) -> Result<Sample, DeviceError> {
    let (size, reader) = (known.size(), Direct::new(&device.file));
    let part = |known: &[u8], from: u64, length: u64| {
        let mut bytes = vec![0; usize::try_from(length).unwrap_or_default()];
        let kept = known.len().min(bytes.len());
        let (old, new) = bytes.split_at_mut(kept);
        if first_byte(known).is_some() {
            old.copy_from_slice(known.get(..old.len()).unwrap_or_default());
        }
        let from = from + old.len() as u64;
        reader.read_sparse(new, from).map_err(|error| DeviceError::io(&device.path, error))?;
        Ok(bytes)
    };
    let tail = size.min(tail);
    Ok(Sample::new(size, part(known.head(), 0, size.min(head))?, part(&[], size - tail, tail)?))
}

/// As much of the beginning as has the superblock of every filesystem that is made here.
const SUPERBLOCKS: u64 = 128 << 10;

/// A filesystem to be made. Stored durably by the caller before it is begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Making {
    /// Which.
    pub fs: FsType,
    /// Chosen anew for each device, so that what is found later is provably this one.
    pub uuid: FsUuid,
}

/// Why there is no filesystem, or none that may be used.
#[derive(Debug, thiserror::Error)]
pub enum MakeError {
    /// The device.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// It is not blank; it was not touched.
    #[error("{} is not formatted: {state}", device.display())]
    NotBlank {
        /// Which device.
        device: PathBuf,
        /// What it is.
        state: State,
    },
    /// What is there is not what the record began; it was not touched.
    #[error("{} is left alone: {state}, which is not what was being made", device.display())]
    NotOurs {
        /// Which device.
        device: PathBuf,
        /// What it is.
        state: State,
    },
    /// mkfs.
    #[error(transparent)]
    Command(#[from] CommandError),
    /// The check of what was found.
    #[error(transparent)]
    Check(#[from] CheckError),
    /// mkfs says that it succeeded, and the device says otherwise.
    #[error("{} is not as its mkfs left it: {state}", device.display())]
    Unfinished {
        /// Which device.
        device: PathBuf,
        /// What it is.
        state: State,
    },
}

/// How an interrupted making ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settled {
    /// The filesystem is whole.
    Made,
    /// The device is blank: it had not begun, or what was there of it is erased. Make it anew.
    Blank,
}

impl Host {
    /// Makes a filesystem on a blank device, and says so only when it is on the device and whole.
    pub fn make(&self, device: &Path, making: &Making) -> Result<(), MakeError> {
        self.make_on(Probed::new(device)?, making)
    }

    /// The same on a device that was looked at, and kept since.
    pub fn make_on(&self, probed: Probed, making: &Making) -> Result<(), MakeError> {
        let Probed { state, is_all_blank, device: held } = probed;
        let device = &held.path.clone();
        match state {
            State::Blank => {}
            state => return Err(MakeError::NotBlank { device: device.clone(), state }),
        }
        // No force flags: each mkfs then looks for signatures itself. No discard: the device is blank.
        let uuid = making.uuid.to_string();
        let xfs_uuid = format!("uuid={uuid}");
        // What an ext4 keeps of a journal must read as zero; where it does, writing zeros would only take room at the storage.
        let ext4 = if is_all_blank { "nodiscard,lazy_journal_init=1" } else { "nodiscard" };
        let (program, args): (_, &[&str]) = match making.fs {
            // Without blocks kept for root: a volume is its user's alone.
            FsType::Ext4 => ("mkfs.ext4", &["-q", "-m", "0", "-E", ext4, "-U", &uuid]),
            FsType::Xfs => ("mkfs.xfs", &["-q", "-K", "-m", &xfs_uuid]),
            FsType::Btrfs => ("mkfs.btrfs", &["-q", "-K", "-U", &uuid]),
        };
        let mut args: Vec<_> = args.iter().map(AsRef::as_ref).collect();
        args.push(device.as_os_str());
        // Open all along, because a failed write is told once to everybody who has the device open, and to nobody
        // who opens it later: mkfs.btrfs ends with "yes" on a disk that was full.
        let witness = BlockDevice::open(device, Open::Read)?;
        drop(held);
        BlockDevice::await_free(device)?;
        pass("host.make.before");
        self.programs.run(program, &args)?;
        pass("host.make.after");
        witness.file.sync_all().map_err(|error| DeviceError::io(device, error))?;
        let open = BlockDevice::open(device, Open::ReadAlone)?;
        // Only where its superblock is: all else was blank before, and is its mkfs's own.
        match examine(&sample(&open, superblock_within(making.fs), 0)?) {
            State::Formatted { fs, uuid } if fs == making.fs && uuid == making.uuid => Ok(()),
            state => Err(MakeError::Unfinished { device: device.to_owned(), state }),
        }
    }

    /// Ends a making that was begun and not recorded as done. See the top of this page for who may ask for this.
    pub fn settle(&self, device: &Path, making: &Making) -> Result<Settled, MakeError> {
        match probe(device)? {
            State::Blank => return Ok(Settled::Blank),
            State::Formatted { fs, uuid } if fs == making.fs && uuid == making.uuid => {
                if self.is_whole(device, fs)? {
                    return Ok(Settled::Made);
                }
            }
            State::Unclear(Unclear::Flawed { fs, flaw: Flaw::HalfMade | Flaw::Checksum })
                if fs == making.fs => {}
            State::Unclear(Unclear::Unknown { .. }) => {}
            state => return Err(MakeError::NotOurs { device: device.to_owned(), state }),
        }
        pass("host.settle.before");
        erase(device)?;
        pass("host.settle.after");
        Ok(Settled::Blank)
    }
}

/// Makes the sampled parts of a device read as zero.
fn erase(device: &Path) -> Result<(), DeviceError> {
    let open = BlockDevice::open(device, Open::WriteAlone)?;
    let size = open.size()?;
    let zeros = vec![0; 1 << 20];
    let head = (0..size.min(HEAD)).step_by(zeros.len()).map(|at| (at, zeros.len() as u64));
    let pages = pages(size).into_iter().map(|at| (at, PAGE));
    for (at, length) in head.chain(pages).chain([(size.saturating_sub(TAIL), TAIL)]) {
        let length = usize::try_from(length.min(size - at)).unwrap_or_default();
        let part = zeros.get(..length).unwrap_or_default();
        open.file.write_all_at(part, at).map_err(|error| DeviceError::io(device, error))?;
    }
    open.file.sync_all().map_err(|error| DeviceError::io(device, error))
}

#[cfg(test)]
#[path = "format_tests.rs"]
mod tests;
