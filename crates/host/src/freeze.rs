//! Holding a filesystem still while its volume is copied.
//!
//! **Caveat.** A freeze outlives the process that asked for it. Whoever starts again after a crash calls [`thaw`] on
//! every volume it finds mounted before it does anything else with it.

use crate::device::DeviceNumber;
use crate::host::Host;
use crate::ioctl;
use crate::mountinfo::{MountInfoError, MountTable};
use crate::path::{Place, PlaceError};
use bowline_failpoint::pass;
use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags, open, statx};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

/// Why a filesystem is not frozen, or not thawed.
#[derive(Debug, thiserror::Error)]
pub enum FreezeError {
    /// The path.
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// Somebody else froze it, and will thaw it without asking us.
    #[error("the filesystem at {} is frozen already", path.display())]
    Already {
        /// Where.
        path: PathBuf,
    },
    /// The kernel said no.
    #[error("the filesystem at {} cannot be {what}: {error}", path.display())]
    Kernel {
        /// Where.
        path: PathBuf,
        /// What was tried.
        what: &'static str,
        /// Its answer.
        #[source]
        error: io::Error,
    },
}

/// A filesystem at rest: everything written is on its device, and writers wait. Thawed when dropped.
#[derive(Debug)]
pub struct Frozen {
    directory: Option<File>,
    path: PathBuf,
}

/// Thaws what a crash left frozen; says whether it was.
pub fn thaw(place: &Place) -> Result<bool, FreezeError> {
    let directory = place.open_directory()?;
    pass("host.thaw.before");
    match ioctl::thaw(directory) {
        Ok(()) => {
            pass("host.thaw.after");
            Ok(true)
        }
        Err(Errno::INVAL) => Ok(false),
        Err(error) => {
            Err(FreezeError::Kernel { path: place.path().to_owned(), what: "thawed", error: error.into() })
        }
    }
}

/// A place at which the filesystem of a device is mounted, in whatever namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mounted {
    /// Where, as the namespace it is in calls it.
    pub at: PathBuf,
    /// The way there from here.
    path: PathBuf,
    /// The kernel's number for the mount.
    id: u64,
}

impl Host {
    /// Where the filesystem of a device is mounted, in our namespace and in those of all processes that can be seen. A
    /// device that is bind-mounted as a device is not in the list: no filesystem of it is mounted by that.
    pub fn mounted(&self, device: DeviceNumber) -> Result<Vec<Mounted>, MountInfoError> {
        let mut found = Vec::new();
        let mut collect = |table: &MountTable, root: &Path| {
            for mount in table.of_device(device, |node| self.node_number(node)) {
                let below = mount.at.strip_prefix("/").unwrap_or(&mount.at);
                found.push(Mounted { at: mount.at.clone(), path: root.join(below), id: mount.id });
            }
        };
        collect(&self.mounts()?, Path::new("/"));
        for (_, process) in self.other_namespaces() {
            // A process that ended meanwhile sees nothing.
            if let Ok(table) = MountTable::read(&process.join("mountinfo")) {
                collect(&table, &process.join("root"));
            }
        }
        Ok(found)
    }
}

impl Mounted {
    fn open(&self) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let file = open(&self.path, flags, Mode::empty())?;
        let stat = statx(&file, "", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID)?;
        if stat.stx_mnt_id != self.id {
            return Err(io::Error::other("something else is mounted over it"));
        }
        Ok(File::from(file))
    }

    fn fault(&self, what: &'static str, error: impl Into<io::Error>) -> FreezeError {
        FreezeError::Kernel { path: self.at.clone(), what, error: error.into() }
    }

    /// Freezes the filesystem.
    pub fn freeze(&self) -> Result<Frozen, FreezeError> {
        let file = self.open().map_err(|error| self.fault("frozen", error))?;
        match ioctl::freeze(&file) {
            Ok(()) => Ok(Frozen { directory: Some(file), path: self.at.clone() }),
            Err(Errno::BUSY) => Err(FreezeError::Already { path: self.at.clone() }),
            Err(error) => Err(self.fault("frozen", error)),
        }
    }

    /// Thaws what a crash left frozen; says whether it was.
    pub fn thaw(&self) -> Result<bool, FreezeError> {
        match ioctl::thaw(self.open().map_err(|error| self.fault("thawed", error))?) {
            Ok(()) => Ok(true),
            Err(Errno::INVAL) => Ok(false),
            Err(error) => Err(self.fault("thawed", error)),
        }
    }
}

impl Frozen {
    /// Lets writers go on, and says so if that failed. A filesystem that somebody else thawed meanwhile was not at
    /// rest all the time, so that is a failure too.
    pub fn thaw(mut self) -> Result<(), FreezeError> {
        let Some(directory) = self.directory.take() else { return Ok(()) };
        pass("host.thaw.before");
        ioctl::thaw(&directory).map_err(|error| FreezeError::Kernel {
            path: self.path.clone(),
            what: "thawed",
            error: error.into(),
        })?;
        pass("host.thaw.after");
        Ok(())
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        if let Some(directory) = &self.directory {
            let _ = ioctl::thaw(directory);
        }
    }
}
