//! Giving a volume's files to a group: the `fsGroup` of a workload.
//!
//! The root of a volume is changed last, so a walk that was interrupted is done again, and one that is done is not.
//! Nothing is followed: every file is opened beneath the volume's root without symlinks and without crossing into
//! another mount, and changed through that handle.

use crate::host::Host;
use crate::mount::Change;
use crate::path::{Place, PlaceError};
use bowline_failpoint::pass;
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Gid, Mode, OFlags, ResolveFlags, Stat, chmodat, chownat, fstat, openat2,
};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// No symlinks, no way out, and no other mount. A symlink at the end is itself, by `O_NOFOLLOW` with `O_PATH`.
const WITHIN: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS)
    .union(ResolveFlags::NO_XDEV);

/// What the group may do with a directory: everything, and what is made in it is the group's too.
const DIRECTORY: u32 = 0o2070;
/// And with a file.
const FILE: u32 = 0o060;

impl Host {
    /// Lets a group read and write everything in the filesystem that is mounted at a place. A root that is the group's
    /// already says that this was done.
    pub fn give_to_group(&self, place: &Place, group: u32) -> Result<Change, PlaceError> {
        let root = OwnedFd::from(place.open_directory()?);
        let fault = |error: Errno| PlaceError::Io { path: place.path().to_owned(), error: error.into() };
        let stat = fstat(&root).map_err(fault)?;
        if stat.st_gid == group && stat.st_mode & DIRECTORY == DIRECTORY {
            return Ok(Change::Nothing);
        }
        pass("host.group.before");
        let mut directories = vec![PathBuf::new()];
        while let Some(directory) = directories.pop() {
            let at =
                |error: Errno| PlaceError::Io { path: place.path().join(&directory), error: error.into() };
            let listing = match open_within(&root, &directory, OFlags::RDONLY | OFlags::DIRECTORY) {
                // Gone, or another mount: none of ours.
                Err(Errno::NOENT | Errno::NOTDIR | Errno::XDEV | Errno::LOOP) => continue,
                other => other.map_err(at)?,
            };
            for entry in Dir::read_from(&listing).map_err(at)? {
                let entry = entry.map_err(at)?;
                let name = entry.file_name().to_bytes();
                if matches!(name, b"." | b"..") {
                    continue;
                }
                let path = directory.join(OsStr::from_bytes(name));
                let file = match open_within(&root, &path, OFlags::PATH | OFlags::NOFOLLOW) {
                    Err(Errno::NOENT | Errno::XDEV) => continue,
                    other => other.map_err(at)?,
                };
                let stat = fstat(&file).map_err(at)?;
                give(&file, &stat, group).map_err(at)?;
                if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
                    directories.push(path);
                }
            }
        }
        give(&root, &stat, group).map_err(fault)?;
        pass("host.group.after");
        Ok(Change::Made)
    }
}

fn open_within(root: &OwnedFd, path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    for _ in 0..64 {
        match openat2(root, path, flags | OFlags::CLOEXEC, Mode::empty(), WITHIN) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            other => return other,
        }
    }
    Err(Errno::AGAIN)
}

fn give(file: impl AsFd, stat: &Stat, group: u32) -> Result<(), Errno> {
    if stat.st_gid != group {
        chownat(
            &file,
            "",
            None,
            Some(Gid::from_raw(group)),
            AtFlags::EMPTY_PATH | AtFlags::SYMLINK_NOFOLLOW,
        )?;
    }
    let bits = match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => DIRECTORY,
        FileType::RegularFile => FILE,
        // A symlink has no rights of its own; pipes, sockets and devices are their makers'.
        FileType::Symlink
        | FileType::Fifo
        | FileType::Socket
        | FileType::CharacterDevice
        | FileType::BlockDevice
        | FileType::Unknown => return Ok(()),
    };
    if stat.st_mode & bits == bits && stat.st_gid == group {
        return Ok(());
    }
    // A handle that was opened with O_PATH cannot be given to fchmod; its entry in /proc leads to the file itself.
    let through = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
    // chown takes setuid and setgid away from files, and they stay away.
    let kept = match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => stat.st_mode & 0o7777,
        _ => stat.st_mode & 0o1777,
    };
    chmodat(CWD, through, Mode::from_raw_mode(kept | bits), AtFlags::empty())
}
