//! How full a mounted filesystem is.

use crate::path::{Place, PlaceError};
use rustix::fs::fstatvfs;

/// How full a filesystem is, in bytes and in inodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Bytes.
    pub bytes: Amount,
    /// Inodes; all zero where the filesystem has no fixed number of them (btrfs).
    pub inodes: Amount,
}

/// How much of something there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Amount {
    /// In all.
    pub total: u64,
    /// For users to take; less than `total - used` where some is kept for root.
    pub available: u64,
    /// Taken.
    pub used: u64,
}

/// Of the filesystem that is seen at a place. The caller makes sure first that it is the volume's.
pub fn usage(place: &Place) -> Result<Usage, PlaceError> {
    let directory = place.open_directory()?;
    let stat = fstatvfs(&directory)
        .map_err(|error| PlaceError::Io { path: place.path().to_owned(), error: error.into() })?;
    let bytes = |blocks: u64| blocks.saturating_mul(stat.f_frsize);
    Ok(Usage {
        bytes: Amount {
            total: bytes(stat.f_blocks),
            available: bytes(stat.f_bavail),
            used: bytes(stat.f_blocks.saturating_sub(stat.f_bfree)),
        },
        inodes: Amount {
            total: stat.f_files,
            available: stat.f_favail,
            used: stat.f_files.saturating_sub(stat.f_ffree),
        },
    })
}
