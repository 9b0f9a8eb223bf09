//! Holding a filesystem still while its volume is copied.
//!
//! **Caveat.** A freeze outlives the process that asked for it. Whoever starts again after a crash calls [`thaw`] on
//! every volume it finds mounted before it does anything else with it.

use crate::ioctl;
use crate::path::{Place, PlaceError};
use bowline_failpoint::pass;
use rustix::io::Errno;
use std::fs::File;
use std::path::PathBuf;

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
        error: std::io::Error,
    },
}

/// A filesystem at rest: everything written is on its device, and writers wait. Thawed when dropped.
#[derive(Debug)]
pub struct Frozen {
    directory: Option<File>,
    path: PathBuf,
}

/// Freezes the filesystem mounted at a place.
pub fn freeze(place: &Place) -> Result<Frozen, FreezeError> {
    let directory = place.open_directory()?;
    let path = place.path().to_owned();
    pass("host.freeze.before");
    match ioctl::freeze(&directory) {
        Ok(()) => {
            pass("host.freeze.after");
            Ok(Frozen { directory: Some(directory), path })
        }
        Err(Errno::BUSY) => Err(FreezeError::Already { path }),
        Err(error) => Err(FreezeError::Kernel { path, what: "frozen", error: error.into() }),
    }
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
