//! Growing a mounted filesystem to the size of its device.

use crate::check::CheckError;
use crate::command::CommandError;
use crate::device::{BlockDevice, DeviceError};
use crate::doctor::CAP_SYS_RESOURCE;
use crate::format::{FsType, unused};
use crate::host::Host;
use crate::mount::Change;
use crate::path::Place;
use bowline_failpoint::pass;
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
        pass("host.grow.before");
        self.programs.run("resize2fs", &[device.as_os_str()])?;
        pass("host.grow.after");
        Ok(Change::Made)
    }

    /// How many bytes of a device that is not mounted lie behind its filesystem, if they are worth growing it for.
    pub fn room_to_grow(&self, device: &Path) -> Result<u64, DeviceError> {
        Ok(Some(unused(device)?).filter(|bytes| *bytes >= WORTHWHILE).unwrap_or_default())
    }

    /// Whether this process may grow a filesystem while it is mounted: for ext4 the kernel wants CAP_SYS_RESOURCE.
    pub fn may_grow_mounted(&self, fs: FsType) -> bool {
        fs != FsType::Ext4 || self.is_capable(CAP_SYS_RESOURCE)
    }

    /// Grows the filesystem of a device that is mounted at a place. One that has its size already is left alone.
    pub fn grow(&self, fs: FsType, device: &Path, mounted: &Place) -> Result<(), CommandError> {
        let at = mounted.path().as_os_str();
        pass("host.grow.before");
        let grown = match fs {
            FsType::Ext4 => self.programs.run("resize2fs", &[device.as_os_str()]),
            FsType::Xfs => self.programs.run("xfs_growfs", &[at]),
            FsType::Btrfs => {
                self.programs.run("btrfs", &["filesystem".as_ref(), "resize".as_ref(), "max".as_ref(), at])
            }
        };
        grown?;
        pass("host.grow.after");
        Ok(())
    }
}
