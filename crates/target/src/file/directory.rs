//! One directory of volumes: its files, records and locks. Shared by the target and by nodes on the same machine.

use super::name::{Part, Stem};
use super::recent::Writer;
use super::record::{self, CutRecord, DirectoryRecord, Phase, Record, SnapshotRecord, VolumeRecord};
use crate::Item;
use bowline_core::{SnapshotId, Timestamp};
use bowline_failpoint::pass;
use bowline_host::file::{self, PathLock, Sharing};
use std::fmt;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Why something in the directory could not be read or changed.
#[derive(Debug)]
pub(super) enum Fault {
    /// The kernel said no.
    Io { path: PathBuf, error: io::Error },
    /// What is there makes no sense.
    Damaged { what: String, error: String },
}

impl Fault {
    pub(super) fn io(path: &Path, error: io::Error) -> Self {
        Self::Io { path: path.to_owned(), error }
    }

    /// Whether the disk is full.
    pub(super) fn is_full(&self) -> bool {
        use io::ErrorKind::{QuotaExceeded, StorageFull};
        matches!(self, Self::Io { error, .. } if matches!(error.kind(), StorageFull | QuotaExceeded))
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io { path, error } => write!(f, "{}: {error}", path.display()),
            Self::Damaged { what, error } => write!(f, "{what} is damaged: {error}"),
        }
    }
}

/// What people call an item.
pub(super) fn called(item: &Item) -> String {
    match item {
        Item::Volume(id) => format!("volume {id}"),
        Item::Snapshot(id) => format!("snapshot {id}"),
    }
}

/// The moment it is.
pub(crate) fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let seconds = i64::try_from(since.as_secs()).unwrap_or(i64::MAX);
    Timestamp::new(seconds, i32::try_from(since.subsec_nanos()).unwrap_or_default()).unwrap_or(Timestamp::MAX)
}

/// How an item is locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Claim {
    /// It need not be there yet.
    New,
    /// It is there, and nobody else may use it meanwhile.
    Alone,
    /// It is there, and must stay.
    Shared,
}

#[derive(Clone, Debug)]
pub(super) struct Directory {
    pub(super) path: PathBuf,
    pub(super) installation: String,
    pub(super) writer: Writer,
}

impl Directory {
    pub(super) fn record_of(path: &Path) -> PathBuf {
        path.join("directory.json")
    }

    /// The record of the directory itself, if it has one.
    pub(super) fn identity(path: &Path) -> Result<Option<DirectoryRecord>, Fault> {
        read_file(&Self::record_of(path), "the directory's record")
    }

    /// Whether this is still the directory that was opened, and not an empty mount point in its place.
    pub(super) fn is_here(&self) -> Result<bool, Fault> {
        Ok(Self::identity(&self.path)?.is_some_and(|found| found.installation == self.installation))
    }

    pub(super) fn path(&self, item: &Item, part: Part) -> PathBuf {
        self.path.join(Stem::of(item).file(part))
    }

    fn cut_path(&self, first: &SnapshotId, part: Part) -> PathBuf {
        self.path.join(Stem::of_cut(first).file(part))
    }

    /// Reads a record, and makes sure that it is about what its file is named for, and from this directory.
    pub(super) fn read<R: Record>(&self, item: &Item) -> Result<Option<R>, Fault> {
        let found: Option<R> =
            read_file(&self.path(item, Part::Record), &format!("the record of {}", called(item)))?;
        let Some(found) = found else { return Ok(None) };
        let damaged =
            |error: String| Fault::Damaged { what: format!("the record of {}", called(item)), error };
        if found.item().as_ref() != Some(item) {
            let other = found.item().map_or_else(|| "nothing".to_owned(), |other| called(&other));
            return Err(damaged(format!("it is about {other}")));
        }
        if found.installation() != self.installation {
            let (theirs, ours) = (found.installation(), &self.installation);
            return Err(damaged(format!("it belongs to the directory {theirs}, and this is {ours}")));
        }
        Ok(Some(found))
    }

    pub(super) fn snapshot(&self, item: &Item) -> Result<Option<SnapshotRecord>, Fault> {
        self.read(item)
    }

    /// Stores a record durably.
    pub(super) fn write<R: Record>(&self, item: &Item, record: &R) -> Result<(), Fault> {
        let written = write_file(&self.path(item, Part::Record), &self.path(item, Part::Draft), record);
        // It may be there all the same, and be gone after a loss of power.
        written.inspect_err(|_| self.writer.renew())
    }

    /// Stores what must be stored also on a full disk: that somebody is out, or that something goes.
    pub(super) fn write_pressing<R: Record>(&self, item: &Item, record: &R) -> Result<(), Fault> {
        let written = self.write(item, record);
        if !written.as_ref().is_err_and(Fault::is_full) {
            return written;
        }
        let path = self.spare();
        // Emptied, not removed: xfs gives the room of a removed file back only some time later.
        let emptied = file::open_file(&path, true).and_then(|spare| spare.set_len(0));
        emptied.map_err(|error| Fault::io(&path, error))?;
        let written = self.write(item, record);
        self.keep_spare();
        written
    }

    fn spare(&self) -> PathBuf {
        self.path.join("directory.spare")
    }

    /// Keeps some room for records that must be written when there is none.
    pub(super) fn keep_spare(&self) {
        let path = self.spare();
        let kept = match file::create_new(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => file::open_file(&path, true),
            other => other,
        }
        .and_then(|spare| {
            let length = usize::try_from(spare.metadata()?.len()).unwrap_or(SPARE);
            let missing = vec![1; SPARE.saturating_sub(length)];
            FileExt::write_all_at(&spare, &missing, length as u64)
        });
        if let Err(error) = kept {
            tracing::warn!(path = %path.display(), %error, "no room is kept for records on a full disk");
        }
    }

    pub(super) fn read_cut(&self, first: &SnapshotId) -> Result<Option<CutRecord>, Fault> {
        read_file(&self.cut_path(first, Part::Record), &format!("the record of the cut of {first}"))
    }

    pub(super) fn write_cut(&self, first: &SnapshotId, record: &CutRecord) -> Result<(), Fault> {
        write_file(&self.cut_path(first, Part::Record), &self.cut_path(first, Part::Draft), record)
    }

    pub(super) fn remove_cut(&self, first: &SnapshotId) -> Result<(), Fault> {
        let path = self.cut_path(first, Part::Record);
        pass("target.cut-remove.before");
        file::remove(&path).map_err(|error| Fault::io(&path, error))?;
        pass("target.cut-remove.after");
        self.sync()
    }

    pub(super) fn remove(&self, item: &Item, part: Part) -> Result<(), Fault> {
        let path = self.path(item, part);
        pass("target.remove.before");
        file::remove(&path).map_err(|error| Fault::io(&path, error))?;
        pass("target.remove.after");
        Ok(())
    }

    /// Puts whole bytes in their place; the directory is still to be synced.
    pub(super) fn put(&self, item: &Item) -> Result<(), Fault> {
        let (from, to) = (self.path(item, Part::Partial), self.path(item, Part::Data));
        pass("target.rename.before");
        fs::rename(&from, &to).map_err(|error| Fault::io(&from, error))?;
        pass("target.rename.after");
        Ok(())
    }

    pub(super) fn sync(&self) -> Result<(), Fault> {
        file::sync_directory(&self.path).map_err(|error| Fault::io(&self.path, error))?;
        pass("target.directory-sync.after");
        Ok(())
    }

    /// Waits for the lock of one item. Without `make`, there is nothing to lock where there is no record.
    pub(super) fn lock(&self, item: &Item, sharing: Sharing, make: bool) -> Result<Option<PathLock>, Fault> {
        let path = self.path(item, Part::Lock);
        let fault = |error| Fault::io(&path, error);
        loop {
            if let Some(lock) = PathLock::wait(&path, sharing, make).map_err(fault)? {
                return Ok(Some(lock));
            }
            // A restored directory may have come without its locks.
            if !self.exists(item, Part::Record)? && !self.exists(item, Part::Data)? {
                return Ok(None);
            }
            if let Some(lock) = PathLock::wait(&path, sharing, true).map_err(fault)? {
                return Ok(Some(lock));
            }
        }
    }

    /// Gives a lock back, and removes that of an item of which nothing is left.
    pub(super) fn unlock(&self, item: &Item, lock: PathLock) {
        let gone = |part| self.exists(item, part).is_ok_and(|exists| !exists);
        if gone(Part::Record) && gone(Part::Data) {
            // A lock that stays is cleared away by the next start.
            let _ = lock.remove();
        }
    }

    pub(super) fn exists(&self, item: &Item, part: Part) -> Result<bool, Fault> {
        let path = self.path(item, part);
        match fs::symlink_metadata(&path) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(Fault::io(&path, error)),
        }
    }

    /// What the bytes of an item are labelled with.
    pub(super) fn label(&self, item: &Item) -> String {
        format!("{} of {}", called(item), self.installation)
    }

    /// Opens the bytes of a volume, and makes sure that they are its own and whole.
    pub(super) fn open_volume(&self, item: &Item, record: &VolumeRecord, write: bool) -> Result<File, Fault> {
        let sizes = [record.size, record.growing.unwrap_or(record.size)];
        self.open_data(item, &sizes, write)
    }

    pub(super) fn open_data(&self, item: &Item, sizes: &[u64], write: bool) -> Result<File, Fault> {
        let path = self.path(item, Part::Data);
        let damaged = |error: String| Fault::Damaged { what: called(item), error };
        let file = match file::open_file(&path, write) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(damaged(format!("its file {} is missing", path.display())));
            }
            other => other.map_err(|error| Fault::io(&path, error))?,
        };
        let found = file.metadata().map_err(|error| Fault::io(&path, error))?.len();
        if !sizes.contains(&found) {
            let size = sizes.first().copied().unwrap_or_default();
            return Err(damaged(format!("its file has {found} bytes, and its record says {size}")));
        }
        // Backups may drop labels; one that is there must be right.
        match file::label(&file).map_err(|error| Fault::io(&path, error))? {
            Some(label) if label != self.label(item) => {
                Err(damaged(format!("its file is labelled as that of {label}")))
            }
            Some(_) | None => Ok(file),
        }
    }

    /// What is wrong with a volume, and how much room it takes. Looks again when something changed meanwhile.
    pub(super) fn examine(&self, item: &Item) -> Result<Option<(VolumeRecord, u64, Option<String>)>, Fault> {
        loop {
            let Some(record) = self.volume(item)?.filter(|record| record.phase == Phase::Ready) else {
                return Ok(None);
            };
            let opened = self.open_volume(item, &record, false);
            match opened.and_then(|file| file.metadata().map_err(|error| Fault::io(&self.path, error))) {
                Ok(metadata) => return Ok(Some((record, file::allocated(&metadata), None))),
                Err(fault) => {
                    if self.volume(item)?.as_ref() == Some(&record) {
                        return Ok(Some((record, self.allocated(item), Some(fault.to_string()))));
                    }
                }
            }
        }
    }

    /// How much room the bytes of an item take; nothing if they are not there.
    pub(super) fn allocated(&self, item: &Item) -> u64 {
        let bytes =
            |part| fs::symlink_metadata(self.path(item, part)).map_or(0, |found| file::allocated(&found));
        bytes(Part::Data) + bytes(Part::Partial)
    }

    /// How long the bytes of an item are; nothing if they are not there.
    pub(super) fn length(&self, item: &Item) -> u64 {
        fs::symlink_metadata(self.path(item, Part::Data)).map_or(0, |found| found.len())
    }
}

/// Enough for a record and its draft, and for what the filesystem needs to write them.
const SPARE: usize = 256 << 10;

/// More than any record is long: a ledger of exports has at most a few dozen entries.
const LONGEST: u64 = 16 << 20;

fn read_file<R: Record>(path: &Path, what: &str) -> Result<Option<R>, Fault> {
    let damaged = |error: String| Fault::Damaged { what: what.to_owned(), error };
    let file = match file::open_file(path, false) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other.map_err(|error| Fault::io(path, error))?,
    };
    // As long as nearly all are: read at once.
    let mut bytes = Vec::with_capacity(1024);
    io::Read::read_to_end(&mut io::Read::take(file, LONGEST), &mut bytes)
        .map_err(|error| Fault::io(path, error))?;
    record::decode(&bytes).map(Some).map_err(damaged)
}

pub(super) fn write_file<R: Record>(path: &Path, draft: &Path, record: &R) -> Result<(), Fault> {
    let bytes = record::encode(record).map_err(|error| Fault::io(path, io::Error::other(error)))?;
    pass("target.record.before");
    file::write_whole(path, draft, &bytes).map_err(|error| Fault::io(path, error))?;
    pass("target.record.after");
    Ok(())
}
