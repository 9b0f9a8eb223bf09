//! Files that hold volumes: shared and sparse copies, holes, writes that last, and locks between processes.

use rustix::fs::{
    FallocateFlags, Mode, OFlags, SeekFrom, XattrFlags, fallocate, fcntl_getfl, fcntl_setfl, fgetxattr,
    fremovexattr, fsetxattr, fstat, ftruncate, ioctl_ficlone, open, seek, statfs, statvfs,
};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::usage::Amount;

/// What became of the wish to share a file's blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reflink {
    /// The new file has the old one's bytes, and both share their blocks until one of them changes.
    Shared,
    /// This filesystem, or this pair of files, cannot; nothing was changed.
    Unsupported,
}

/// Gives a new, empty file the bytes and the length of another at one moment, without copying (`FICLONE`).
pub fn reflink(from: &File, to: &File) -> io::Result<Reflink> {
    match ioctl_ficlone(to, from) {
        Ok(()) => Ok(Reflink::Shared),
        // ioctl_ficlone(2): no such operation, not the same filesystem, or files that cannot share.
        Err(Errno::OPNOTSUPP | Errno::NOTTY | Errno::XDEV | Errno::INVAL | Errno::NOSYS) => {
            Ok(Reflink::Unsupported)
        }
        Err(error) => Err(error.into()),
    }
}

/// The first stretch of data at or after an offset, as start and end.
fn next_data(file: &File, from: u64) -> io::Result<Option<(u64, u64)>> {
    let start = match seek(file, SeekFrom::Data(from)) {
        Ok(start) => start,
        Err(Errno::NXIO) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    Ok(Some((start, seek(file, SeekFrom::Hole(start))?)))
}

/// Whether all of a file reads as zero because nothing is stored of it. One that stores zeros, and one on a filesystem that cannot tell, is
/// none.
pub fn is_all_hole(file: &File) -> io::Result<bool> {
    Ok(next_data(file, 0)?.is_none())
}

/// How many of the first `length` bytes a copy that leaves out the holes has to carry.
pub fn data_bytes(file: &File, length: u64) -> io::Result<u64> {
    let (mut at, mut bytes) = (0, 0);
    while let Some((start, end)) = next_data(file, at)?.filter(|(start, _)| *start < length) {
        bytes += end.min(length).saturating_sub(start);
        at = end.max(start + 1);
    }
    Ok(bytes)
}

/// Copies a span of bytes into a file that is all hole there, and leaves holes where there are holes. `copied` hears of
/// every piece: where it ends, and how long it is. What it fails with ends the copy.
pub fn copy_sparse(
    from: &File,
    to: &File,
    span: Range<u64>,
    copied: &mut dyn FnMut(u64, u64) -> io::Result<()>,
) -> io::Result<()> {
    let mut piece = vec![0; 1 << 20];
    let mut at = span.start;
    while let Some((start, end)) = next_data(from, at)?.filter(|(start, _)| *start < span.end) {
        let end = end.min(span.end);
        at = start;
        while at < end {
            let wanted = usize::try_from(end - at).unwrap_or(usize::MAX).min(piece.len());
            let Some(buffer) = piece.get_mut(..wanted) else { break };
            let read = from.read_at(buffer, at)?;
            let Some(data) = buffer.get(..read).filter(|data| !data.is_empty()) else {
                return Err(io::ErrorKind::UnexpectedEof.into());
            };
            to.write_all_at(data, at)?;
            at += data.len() as u64;
            copied(at, data.len() as u64)?;
        }
    }
    Ok(())
}

/// Gives the room of a stretch of a file back; it reads as zeros then.
pub fn punch_hole(file: &File, offset: u64, length: u64) -> io::Result<()> {
    Ok(fallocate(file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, length)?)
}

/// How many bytes of room a file takes up. Blocks that it shares with others count in each of them.
pub fn allocated(metadata: &fs::Metadata) -> u64 {
    metadata.blocks().saturating_mul(512)
}

/// How full the filesystem is that a directory lies in.
pub fn space(directory: &Path) -> io::Result<Amount> {
    let stat = statvfs(directory)?;
    let bytes = |blocks: u64| blocks.saturating_mul(stat.f_frsize);
    Ok(Amount {
        total: bytes(stat.f_blocks),
        available: bytes(stat.f_bavail),
        used: bytes(stat.f_blocks.saturating_sub(stat.f_bfree)),
    })
}

/// The longest file that a directory's filesystem and this process's limits allow, in steps of `multiple` bytes. It is
/// tried out, for no kernel interface tells.
pub fn longest(directory: &Path, multiple: u64) -> io::Result<u64> {
    let file = nameless(directory)?;
    // Beyond its limit a process is not told, but killed (SIGXFSZ).
    let limit = getrlimit(Resource::Fsize).current.unwrap_or(u64::MAX).min(i64::MAX.unsigned_abs());
    let (mut good, mut bad) = (0, limit / multiple + 1);
    while bad - good > 1 {
        let middle = good + (bad - good) / 2;
        match ftruncate(&file, middle * multiple) {
            Ok(()) => good = middle,
            Err(_) => bad = middle,
        }
    }
    Ok(good * multiple)
}

/// What the filesystem of a directory can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abilities {
    /// Files can share blocks.
    pub reflink: bool,
    /// Files can be read and written past the page cache.
    pub direct: bool,
}

/// Tries what the filesystem of a directory can do. Nothing is left there.
pub fn abilities(directory: &Path) -> io::Result<Abilities> {
    let (from, to) = (nameless(directory)?, nameless(directory)?);
    FileExt::write_all_at(&from, &[1; 4096], 0)?;
    let reflink = matches!(reflink(&from, &to)?, Reflink::Shared);
    let direct = fcntl_getfl(&from).and_then(|flags| fcntl_setfl(&from, flags | OFlags::DIRECT)).is_ok();
    Ok(Abilities { reflink, direct })
}

/// Filesystems that one kernel has for itself, by the number that statfs(2) gives them: ext2 to 4, xfs, btrfs, f2fs, bcachefs, zfs, tmpfs, overlay.
const LOCAL: [i64; 8] =
    [0xEF53, 0x5846_5342, 0x9123_683E, 0xF2F5_2010, 0xCA45_1A4E, 0x2FC1_2FC1, 0x0102_1994, 0x794C_7630];

/// Whether no other machine can have the filesystem of a directory, too. What is not known to be so may be on a network.
pub fn is_local(directory: &Path) -> io::Result<bool> {
    // The numbers are 32 bits wide; some kernels' types for them are signed.
    Ok(LOCAL.contains(&(statfs(directory)?.f_type as i64 & 0xFFFF_FFFF)))
}

/// A file that goes with its last user.
fn nameless(directory: &Path) -> io::Result<File> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    match open(directory, flags, Mode::RUSR | Mode::WUSR) {
        Ok(file) => Ok(File::from(file)),
        // Not every filesystem has files without a name.
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => {
            let probe = directory.join("longest.probe");
            remove(&probe)?;
            let file = create_new(&probe)?;
            remove(&probe)?;
            Ok(file)
        }
        Err(error) => Err(error.into()),
    }
}

/// A new file for its owner alone; one that is there already is an error.
pub fn create_new(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path)
}

/// Opens a regular file, and nothing that a symlink points to.
pub fn open_file(path: &Path, write: bool) -> io::Result<File> {
    let access = if write { OFlags::RDWR } else { OFlags::RDONLY };
    let file = open(path, access | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK, Mode::empty())?;
    let file = File::from(file);
    if !file.metadata()?.is_file() {
        return Err(io::Error::other(format!("{} is not a regular file", path.display())));
    }
    Ok(file)
}

/// Makes renames and removals in a directory last.
pub fn sync_directory(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

/// Writes a file under its name at once or not at all, and durably. `draft` is beside it, and nobody else's.
pub fn write_whole(path: &Path, draft: &Path, bytes: &[u8]) -> io::Result<()> {
    let into_place = || {
        remove(draft)?;
        let mut file = create_new(draft)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(draft, path)
    };
    into_place().inspect_err(|_| {
        // What failed is told; that its remains could not be removed adds nothing.
        let _ = remove(draft);
    })?;
    sync_directory(path.parent().unwrap_or(Path::new("/")))
}

/// Removes a file; says whether it was there.
pub fn remove(path: &Path) -> io::Result<bool> {
    match fs::remove_file(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Where a file's label is: it goes with the file when that is renamed or restored, unlike its name.
const LABEL: &str = "user.bowline";

/// Writes a label onto a file; says whether its filesystem keeps labels.
pub fn set_label(file: &File, label: &str) -> io::Result<bool> {
    match fsetxattr(file, LABEL, label.as_bytes(), XattrFlags::empty()) {
        Ok(()) => Ok(true),
        Err(Errno::OPNOTSUPP) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// A file's label, if it has one.
pub fn label(file: &File) -> io::Result<Option<String>> {
    let mut bytes = [0; 1024];
    match fgetxattr(file, LABEL, &mut bytes) {
        Ok(length) => Ok(Some(String::from_utf8_lossy(bytes.get(..length).unwrap_or_default()).into_owned())),
        Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Where it is noted how far a file has come that is not whole yet.
const MARK: &str = "user.bowline.mark";

/// Notes on a file how far it has come. It lasts with the next sync of the file, and is never half written.
pub fn set_mark(file: &File, mark: &[u8]) -> io::Result<()> {
    Ok(fsetxattr(file, MARK, mark, XattrFlags::empty())?)
}

/// What is noted on a file, if anything is.
pub fn mark(file: &File) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = vec![0; 4096];
    match fgetxattr(file, MARK, &mut bytes) {
        Ok(length) => {
            bytes.truncate(length);
            Ok(Some(bytes))
        }
        Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Takes a note from a file; one that is not there is taken.
pub fn remove_mark(file: &File) -> io::Result<()> {
    match fremovexattr(file, MARK) {
        Ok(()) | Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Who may hold a lock beside us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// Others who share it too.
    Shared,
    /// Nobody.
    Alone,
}

/// A lock on a path, between threads and between processes (`flock`). Given back when dropped, and by the kernel when
/// the process ends.
#[derive(Debug)]
pub struct PathLock {
    /// The file that is locked.
    pub file: File,
    path: PathBuf,
}

impl PathLock {
    /// Waits for the lock. The file is made if `make`; without that, there is nothing to lock where it is missing.
    pub fn wait(path: &Path, sharing: Sharing, make: bool) -> io::Result<Option<Self>> {
        loop {
            let Some(file) = lock_file(path, make)? else { return Ok(None) };
            match sharing {
                Sharing::Shared => file.lock_shared()?,
                Sharing::Alone => file.lock()?,
            }
            if is_at(&file, path)? {
                return Ok(Some(Self { file, path: path.to_owned() }));
            }
        }
    }

    /// Takes the lock alone, at once or not at all: then the file comes back, to see what it says about its holder.
    pub fn take(path: &Path) -> io::Result<Result<Self, File>> {
        loop {
            let Some(file) = lock_file(path, true)? else { continue };
            match file.try_lock() {
                Ok(()) if is_at(&file, path)? => return Ok(Ok(Self { file, path: path.to_owned() })),
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Ok(Err(file)),
                Err(TryLockError::Error(error)) => return Err(error),
            }
        }
    }

    /// Removes the locked file. Whoever waits for it looks at the path again, and finds it gone.
    pub fn remove(self) -> io::Result<()> {
        remove(&self.path).map(|_| ())
    }
}

fn lock_file(path: &Path, make: bool) -> io::Result<Option<File>> {
    let made = if make { OFlags::CREATE } else { OFlags::empty() };
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK | made;
    match open(path, flags, Mode::RUSR | Mode::WUSR) {
        Ok(file) => Ok(Some(File::from(file))),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Whether the path still leads to this file: a lock on one that was removed meanwhile locks nothing.
fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    let ours = fstat(file)?;
    match fs::symlink_metadata(path) {
        Ok(there) => Ok(there.dev() == ours.st_dev && there.ino() == ours.st_ino),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
#[path = "file_tests.rs"]
mod tests;
