//! The paths that requests name, and how they are reached without being led astray.
//!
//! A request's path is text from outside. It is parsed once ([`RequestPath`]) and then only ever resolved below a
//! directory that this process was told to work in ([`Base`]): the base's own path may contain symlinks, what
//! lies below may not, in no component and at no moment. The last component is handled through its parent's
//! file descriptor ([`Place`]), so nobody can swap it between the look and the deed.

use bowline_failpoint::pass;
use rustix::fd::OwnedFd;
use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, ResolveFlags, StatxAttributes, StatxFlags, mkdirat, openat2, statat,
    statx, unlinkat,
};
use rustix::io::Errno;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

/// Why a text is not a path that a request may name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestPathError {
    /// Nothing was given.
    #[error("the path is empty")]
    Empty,
    /// It would depend on where this process happens to be.
    #[error("the path {0:?} is not absolute")]
    Relative(String),
    /// It climbs.
    #[error("the path {0:?} contains `..`")]
    Dots(String),
    /// The whole file system is nobody's target.
    #[error("the path is `/`")]
    Root,
    /// A NUL, newline or other control character.
    #[error("the path {0:?} contains a control character")]
    Control(String),
    /// Longer than the kernel takes.
    #[error("the path, or a name in it, is too long ({0} bytes)")]
    TooLong(usize),
}

/// An absolute path without `.`, `..`, doubled or trailing slashes and control characters.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RequestPath(PathBuf);

impl RequestPath {
    /// The path, if `text` can be one.
    pub fn parse(text: &str) -> Result<Self, RequestPathError> {
        let shown = || text.chars().take(80).collect::<String>();
        // PATH_MAX and NAME_MAX of Linux, the terminating NUL counted.
        if text.len() > 4095 {
            return Err(RequestPathError::TooLong(text.len()));
        }
        if text.is_empty() {
            return Err(RequestPathError::Empty);
        }
        if text.chars().any(char::is_control) {
            return Err(RequestPathError::Control(shown()));
        }
        let rest = text.strip_prefix('/').ok_or_else(|| RequestPathError::Relative(shown()))?;
        let mut path = PathBuf::from("/");
        for name in rest.split('/').filter(|name| !name.is_empty() && *name != ".") {
            if name == ".." {
                return Err(RequestPathError::Dots(shown()));
            }
            if name.len() > 255 {
                return Err(RequestPathError::TooLong(name.len()));
            }
            path.push(name);
        }
        if path == Path::new("/") {
            return Err(RequestPathError::Root);
        }
        Ok(Self(path))
    }

    /// As a path.
    pub fn as_path(&self) -> &Path {
        &self.0
    }
}

/// Why a place could not be reached or changed.
#[derive(Debug, thiserror::Error)]
pub enum PlaceError {
    /// It lies elsewhere.
    #[error("{} is not below {}", path.display(), base.display())]
    Outside {
        /// What was asked for.
        path: PathBuf,
        /// Where it should be.
        base: PathBuf,
    },
    /// A symlink on the way or at the end, or a way out of the base.
    #[error("{}: there is a symlink in the path", path.display())]
    Symlink {
        /// The path.
        path: PathBuf,
    },
    /// Something of another kind is there.
    #[error("{} is {found}, not {expected}", path.display())]
    Kind {
        /// The path.
        path: PathBuf,
        /// What it is.
        found: Kind,
        /// What it should be.
        expected: Kind,
    },
    /// It has content, so it is not ours to remove.
    #[error("{} is not empty", path.display())]
    NotEmpty {
        /// The path.
        path: PathBuf,
    },
    /// Something is still mounted there.
    #[error("{} is still a mount point", path.display())]
    MountPoint {
        /// The path.
        path: PathBuf,
    },
    /// The directory it should be in does not exist.
    #[error("the directory of {} does not exist", path.display())]
    NoParent {
        /// The path.
        path: PathBuf,
    },
    /// The kernel said no.
    #[error("{}: {error}", path.display())]
    Io {
        /// The path.
        path: PathBuf,
        /// What it said.
        #[source]
        error: io::Error,
    },
}

/// What is at a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Nothing.
    Missing,
    /// A directory.
    Directory,
    /// A regular file.
    File,
    /// A symlink, which is never followed.
    Symlink,
    /// A block device, as a bind mount of one shows it.
    BlockDevice,
    /// A socket, a pipe, ….
    Other,
}

impl std::fmt::Display for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Missing => "missing",
            Self::Directory => "a directory",
            Self::File => "a file",
            Self::Symlink => "a symlink",
            Self::BlockDevice => "a block device",
            Self::Other => "neither file nor directory",
        })
    }
}

/// A directory below which requests may name paths.
#[derive(Debug)]
pub struct Base {
    named: PathBuf,
    real: PathBuf,
    fd: OwnedFd,
}

/// No symlinks of either sort, and no way out of the base.
const BELOW: ResolveFlags =
    ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);

impl Base {
    /// Opens the directory. Its own path comes from the configuration and may lead through symlinks.
    pub fn open(path: &Path) -> Result<Self, PlaceError> {
        let io = |error: io::Error| PlaceError::Io { path: path.to_owned(), error };
        let real = path.canonicalize().map_err(io)?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let fd = rustix::fs::open(&real, flags, Mode::empty()).map_err(|error| io(error.into()))?;
        Ok(Self { named: path.to_owned(), real, fd })
    }

    /// The place a request names. Its directory must exist, itself it need not.
    pub fn place(&self, path: &RequestPath) -> Result<Place, PlaceError> {
        let below = path.as_path().strip_prefix(&self.named);
        let below = below.or_else(|_| path.as_path().strip_prefix(&self.real)).ok();
        let named = below.and_then(|below| Some((below, below.file_name()?)));
        let (below, name) = named.ok_or_else(|| PlaceError::Outside {
            path: path.as_path().to_owned(),
            base: self.named.clone(),
        })?;
        let real = self.real.join(below);
        let parent = below.parent().filter(|parent| !parent.as_os_str().is_empty());
        let parent = resolve(&self.fd, parent.unwrap_or(Path::new(".")), OFlags::DIRECTORY)
            .map_err(|errno| place_error(&real, errno))?;
        Ok(Place { parent, name: name.to_owned(), real })
    }
}

fn resolve(base: &OwnedFd, path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    // Without O_NOFOLLOW: together with O_PATH it would open a symlink at the end itself, and not refuse it.
    let flags = flags | OFlags::PATH | OFlags::CLOEXEC;
    // openat2(2): EAGAIN where a rename elsewhere made it impossible to prove that the path stayed below.
    for _ in 0..64 {
        match openat2(base, path, flags, Mode::empty(), BELOW) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            other => return other,
        }
    }
    Err(Errno::AGAIN)
}

fn place_error(path: &Path, errno: Errno) -> PlaceError {
    let path = path.to_owned();
    match errno {
        Errno::LOOP | Errno::XDEV => PlaceError::Symlink { path },
        Errno::NOENT | Errno::NOTDIR => PlaceError::NoParent { path },
        Errno::NOTEMPTY | Errno::EXIST => PlaceError::NotEmpty { path },
        Errno::BUSY => PlaceError::MountPoint { path },
        other => PlaceError::Io { path, error: other.into() },
    }
}

/// One name in one open directory.
#[derive(Debug)]
pub struct Place {
    parent: OwnedFd,
    name: OsString,
    real: PathBuf,
}

impl Place {
    /// Its path without any symlink: the one mountinfo shows.
    pub fn path(&self) -> &Path {
        &self.real
    }

    /// A path that leads to it through the open directory, whatever happens to the directories above. For
    /// system calls that take no file descriptor; to be used without following a symlink at its end.
    pub(crate) fn through_parent(&self) -> PathBuf {
        let mut path = PathBuf::from("/proc/self/fd").join(self.parent.as_raw_fd().to_string());
        path.push(&self.name);
        path
    }

    /// What is there now; what is mounted there, if something is.
    pub fn kind(&self) -> Result<Kind, PlaceError> {
        let stat = match statat(&self.parent, &self.name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => return Ok(Kind::Missing),
            // An xfs whose device is gone does not even say what its root is. That it can be passed through says it.
            Err(Errno::IO) if self.is_passable() => return Ok(Kind::Directory),
            other => other.map_err(|errno| place_error(&self.real, errno))?,
        };
        Ok(match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => Kind::Directory,
            FileType::RegularFile => Kind::File,
            FileType::Symlink => Kind::Symlink,
            FileType::BlockDevice => Kind::BlockDevice,
            FileType::Fifo | FileType::Socket | FileType::CharacterDevice | FileType::Unknown => Kind::Other,
        })
    }

    /// Whether something is mounted at this very place. Where that cannot be told, it may be (before Linux 5.8, or where the filesystem does not answer).
    pub(crate) fn may_be_mount_point(&self) -> bool {
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT;
        match statx(&self.parent, &self.name, flags, StatxFlags::empty()) {
            Ok(stat) if stat.stx_attributes_mask.contains(StatxAttributes::MOUNT_ROOT) => {
                stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT)
            }
            Ok(_) => true,
            Err(errno) => errno != Errno::NOENT,
        }
    }

    /// Whether it is a directory, found out without asking its filesystem anything.
    fn is_passable(&self) -> bool {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        rustix::fs::openat(&self.parent, &self.name, flags, Mode::empty()).is_ok()
    }

    fn refuse(&self, found: Kind, expected: Kind) -> PlaceError {
        match found {
            Kind::Symlink => PlaceError::Symlink { path: self.real.clone() },
            found => PlaceError::Kind { path: self.real.clone(), found, expected },
        }
    }

    /// Makes it a directory if nothing is there.
    pub fn ensure_directory(&self) -> Result<(), PlaceError> {
        pass("host.directory.before");
        match mkdirat(&self.parent, &self.name, Mode::from_raw_mode(0o750)) {
            Ok(()) => {
                pass("host.directory.after");
                Ok(())
            }
            Err(Errno::EXIST) => match self.kind()? {
                Kind::Directory => Ok(()),
                found => Err(self.refuse(found, Kind::Directory)),
            },
            Err(errno) => Err(place_error(&self.real, errno)),
        }
    }

    /// Makes it an empty file if nothing is there. A block device mounted there is as good.
    pub fn ensure_file(&self) -> Result<(), PlaceError> {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        pass("host.file.before");
        match openat2(&self.parent, &self.name, flags, Mode::from_raw_mode(0o640), BELOW) {
            Ok(_) => {
                pass("host.file.after");
                Ok(())
            }
            Err(Errno::EXIST) => match self.kind()? {
                Kind::File | Kind::BlockDevice => Ok(()),
                found => Err(self.refuse(found, Kind::File)),
            },
            Err(errno) => Err(place_error(&self.real, errno)),
        }
    }

    /// A handle on what is there, the top of what is mounted there included. It pins a mount while it lives.
    pub(crate) fn handle(&self) -> Result<OwnedFd, PlaceError> {
        match resolve(&self.parent, Path::new(&self.name), OFlags::empty()) {
            Ok(fd) => Ok(fd),
            Err(Errno::NOENT) => {
                Err(PlaceError::Io { path: self.real.clone(), error: io::ErrorKind::NotFound.into() })
            }
            Err(errno) => Err(place_error(&self.real, errno)),
        }
    }

    /// Opens the directory, for statistics and the like.
    pub fn open_directory(&self) -> Result<File, PlaceError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let opened = openat2(&self.parent, &self.name, flags, Mode::empty(), BELOW);
        match opened {
            Ok(fd) => Ok(File::from(fd)),
            Err(Errno::NOENT | Errno::NOTDIR) => Err(self.refuse(self.kind()?, Kind::Directory)),
            Err(errno) => Err(place_error(&self.real, errno)),
        }
    }

    /// Removes an empty directory or an empty file; nothing there is fine. Never more than that: through a
    /// mount that was overlooked, a recursive delete erases the volume.
    pub fn remove(&self) -> Result<(), PlaceError> {
        let flags = match self.kind()? {
            Kind::Missing => return Ok(()),
            Kind::Directory => AtFlags::REMOVEDIR,
            Kind::File => {
                let stat = statat(&self.parent, &self.name, AtFlags::SYMLINK_NOFOLLOW);
                if stat.map_err(|errno| place_error(&self.real, errno))?.st_size != 0 {
                    return Err(PlaceError::NotEmpty { path: self.real.clone() });
                }
                AtFlags::empty()
            }
            Kind::BlockDevice => return Err(PlaceError::MountPoint { path: self.real.clone() }),
            found @ (Kind::Symlink | Kind::Other) => return Err(self.refuse(found, Kind::Directory)),
        };
        pass("host.remove.before");
        match unlinkat(&self.parent, &self.name, flags) {
            Ok(()) | Err(Errno::NOENT) => {
                pass("host.remove.after");
                Ok(())
            }
            Err(errno) => Err(place_error(&self.real, errno)),
        }
    }
}

#[cfg(test)]
#[path = "path_tests.rs"]
mod tests;
