//! Growing a mounted filesystem to the size of its device.

use crate::check::CheckError;
use crate::command::CommandError;
use crate::device::{BlockDevice, DeviceError};
use crate::format::{FsType, unused};
use crate::host::Host;
use crate::mount::Change;
use crate::path::Place;
use std::path::Path;

/// Why a filesystem was not grown before it was mounted.
#[derive(Debug, thiserror::Error)]
pub enum GrowError {
    /// The device.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// It has errors; it was not touched.
    #[error(transparent)]
    Check(#[from] CheckError),
    /// The program.
    #[error(transparent)]
    Command(#[from] CommandError),
}

/// Less than this is not worth a full check: filesystems leave a remainder that is too small for them.
const WORTHWHILE: u64 = 16 << 20;

impl Host {
    /// Grows a filesystem that is not mounted, where it can be grown so: ext4. The others are grown after they are
    /// mounted, by [`Host::grow`].
    pub fn grow_before_mount(&self, fs: FsType, device: &Path) -> Result<Change, GrowError> {
        if fs != FsType::Ext4 || unused(device)? < WORTHWHILE {
            return Ok(Change::Nothing);
        }
        // resize2fs wants a filesystem that was checked in full since it was last mounted.
        self.check_fully(device)?;
        BlockDevice::await_free(device)?;
        self.programs.run("resize2fs", &[device.as_os_str()])?;
        Ok(Change::Made)
    }

    /// Grows the filesystem of a device that is mounted at a place. One that has its size already is left alone.
    pub fn grow(&self, fs: FsType, device: &Path, mounted: &Place) -> Result<(), CommandError> {
        let at = mounted.path().as_os_str();
        match fs {
            FsType::Ext4 => self.programs.run("resize2fs", &[device.as_os_str()]),
            FsType::Xfs => self.programs.run("xfs_growfs", &[at]),
            FsType::Btrfs => {
                self.programs.run("btrfs", &["filesystem".as_ref(), "resize".as_ref(), "max".as_ref(), at])
            }
        }
        .map(drop)
    }
}
