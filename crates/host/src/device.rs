//! Block devices and their numbers.

use crate::command::no_starts;
use crate::ioctl;
use bowline_failpoint::pass;
use rustix::fs::{FileType, Mode, OFlags, fstat, open};
use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

/// `major:minor`: which device, whatever its node is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceNumber {
    /// Which driver.
    pub major: u32,
    /// Which of its devices.
    pub minor: u32,
}

impl DeviceNumber {
    /// From `st_dev` or `st_rdev`.
    pub fn from_stat(number: u64) -> Self {
        Self { major: rustix::fs::major(number), minor: rustix::fs::minor(number) }
    }

    /// From the way the kernel writes device numbers into its own structures (`huge_encode_dev`), which for
    /// large majors is not the way `stat` does.
    pub(crate) fn from_kernel(number: u64) -> Self {
        let low = |value: u64| u32::try_from(value & 0xFFFF_FFFF).unwrap_or_default();
        Self {
            major: low((number & 0xF_FF00) >> 8),
            minor: low((number & 0xFF) | ((number >> 12) & 0xF_FF00)),
        }
    }
}

impl fmt::Display for DeviceNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.major, self.minor)
    }
}

/// A text that is not `major:minor`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a device number of the form major:minor")]
pub struct NotADeviceNumber;

impl FromStr for DeviceNumber {
    type Err = NotADeviceNumber;
    fn from_str(text: &str) -> Result<Self, NotADeviceNumber> {
        let part = |text: &str| {
            let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
            if digits { text.parse().map_err(|_| NotADeviceNumber) } else { Err(NotADeviceNumber) }
        };
        let (major, minor) = text.split_once(':').ok_or(NotADeviceNumber)?;
        Ok(Self { major: part(major)?, minor: part(minor)? })
    }
}

/// Why a device cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// The kernel said no.
    #[error("{}: {error}", device.display())]
    Io {
        /// Which device.
        device: PathBuf,
        /// What it said.
        #[source]
        error: io::Error,
    },
    /// Something has the device for itself: a mount in any namespace, a running mkfs, swap.
    #[error("{} is in use", device.display())]
    Busy {
        /// Which device.
        device: PathBuf,
    },
    /// There is something else where the device should be.
    #[error("{} is not a block device", device.display())]
    NotABlockDevice {
        /// Which path.
        device: PathBuf,
    },
    /// The node is one of another device: names move.
    #[error("{} is device {found}, not {expected}", device.display())]
    OtherDevice {
        /// Which path.
        device: PathBuf,
        /// What it is.
        found: DeviceNumber,
        /// What was looked for.
        expected: DeviceNumber,
    },
}

impl DeviceError {
    pub(crate) fn io(device: &Path, error: impl Into<io::Error>) -> Self {
        Self::Io { device: device.to_owned(), error: error.into() }
    }
}

/// How a device is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Open {
    Read,
    /// For this process alone: the kernel refuses while the device is mounted, in whatever namespace, or
    /// opened like this by another.
    ReadAlone,
    WriteAlone,
}

/// The last of the pauses, each twice the one before: a quarter of a second in all.
const LONGEST_PAUSE: Duration = Duration::from_millis(128);

/// An open block device.
#[derive(Debug)]
pub(crate) struct BlockDevice {
    pub(crate) file: File,
    pub(crate) path: PathBuf,
    pub(crate) number: DeviceNumber,
}

impl BlockDevice {
    /// Opens a device. A busy one is tried again for a moment: see [`no_starts`] for who may have it that long.
    pub(crate) fn open(path: &Path, how: Open) -> Result<Self, DeviceError> {
        let mut pause = Duration::from_millis(1);
        loop {
            match Self::open_now(path, how) {
                Err(DeviceError::Busy { .. }) if pause <= LONGEST_PAUSE => std::thread::sleep(pause),
                other => return other,
            }
            pause *= 2;
        }
    }

    /// Waits until nobody, not even a process that is just being started here, has a device exclusively, so that the
    /// program that is started next can.
    pub(crate) fn await_free(path: &Path) -> Result<(), DeviceError> {
        let _alone = no_starts();
        Self::open(path, Open::ReadAlone).map(drop)
    }

    fn open_now(path: &Path, how: Open) -> Result<Self, DeviceError> {
        let flags = OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let flags = flags
            | match how {
                Open::Read => OFlags::RDONLY,
                Open::ReadAlone => OFlags::RDONLY | OFlags::EXCL,
                Open::WriteAlone => OFlags::RDWR | OFlags::EXCL,
            };
        let opened = match open(path, flags, Mode::empty()) {
            Err(rustix::io::Errno::BUSY) => Err(DeviceError::Busy { device: path.to_owned() }),
            other => other.map_err(|error| DeviceError::io(path, error)),
        }?;
        let stat = fstat(&opened).map_err(|error| DeviceError::io(path, error))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::BlockDevice {
            return Err(DeviceError::NotABlockDevice { device: path.to_owned() });
        }
        let number = DeviceNumber::from_stat(stat.st_rdev);
        Ok(Self { file: File::from(opened), path: path.to_owned(), number })
    }

    pub(crate) fn size(&self) -> Result<u64, DeviceError> {
        ioctl::device_size(&self.file).map_err(|error| DeviceError::io(&self.path, error))
    }
}

/// A device that is kept open, by nobody alone. The kernel gives name and number of a disk to another when the last who has it open lets go, and not
/// before, also where the disk itself is gone.
#[derive(Debug)]
pub struct Kept(BlockDevice);

impl Kept {
    /// Whatever device has this node now.
    pub fn open(device: &Path) -> Result<Self, DeviceError> {
        BlockDevice::open(device, Open::Read).map(Self)
    }

    /// Which device it is.
    pub fn number(&self) -> DeviceNumber {
        self.0.number
    }
}

/// The size of a block device in bytes: what a block volume's statistics report.
pub fn size(device: &Path) -> Result<u64, DeviceError> {
    BlockDevice::open(device, Open::Read)?.size()
}

/// Reads the beginning of a device from the device itself, not from memory: does it answer?
pub fn answers(device: &Path) -> Result<(), DeviceError> {
    const LENGTH: usize = 4096;
    let flags = OFlags::RDONLY | OFlags::DIRECT | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = open(device, flags, Mode::empty()).map_err(|error| DeviceError::io(device, error))?;
    // Direct reads want memory at a multiple of the device's block size.
    let mut memory = vec![0; 2 * LENGTH];
    let start = memory.as_ptr().align_offset(LENGTH);
    let buffer = memory.get_mut(start..start + LENGTH).unwrap_or_default();
    File::from(file).read_exact_at(buffer, 0).map_err(|error| DeviceError::io(device, error))
}

/// Whether a block device refuses writes.
pub fn is_read_only(device: &Path) -> Result<bool, DeviceError> {
    let open = BlockDevice::open(device, Open::Read)?;
    ioctl::device_read_only(&open.file).map_err(|error| DeviceError::io(device, error))
}

/// Makes a block device refuse writes from now on, and says so only when it does. The node must be this device's.
pub fn refuse_writes(device: &Path, number: DeviceNumber) -> Result<(), DeviceError> {
    let open = BlockDevice::open(device, Open::Read)?;
    if open.number != number {
        let (device, found) = (device.to_owned(), open.number);
        return Err(DeviceError::OtherDevice { device, found, expected: number });
    }
    let fault = |error: rustix::io::Errno| DeviceError::io(device, error);
    pass("host.refuse-writes.before");
    ioctl::refuse_writes(&open.file).map_err(fault)?;
    pass("host.refuse-writes.after");
    match ioctl::device_read_only(&open.file).map_err(fault)? {
        true => Ok(()),
        false => Err(DeviceError::io(device, io::Error::other("it still takes writes"))),
    }
}

/// Which device a node is.
pub fn number(device: &Path) -> Result<DeviceNumber, DeviceError> {
    BlockDevice::open(device, Open::Read).map(|open| open.number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_they_are_written() {
        for (text, expected) in [
            ("7:3", Some(DeviceNumber { major: 7, minor: 3 })),
            ("0:4294967295", Some(DeviceNumber { major: 0, minor: u32::MAX })),
            ("7", None),
            ("7:", None),
            (":3", None),
            ("+7:3", None),
            ("7:3:1", None),
            ("7:4294967296", None),
        ] {
            assert_eq!(text.parse::<DeviceNumber>().ok(), expected, "{text}");
        }
        assert_eq!(DeviceNumber { major: 259, minor: 70_000 }.to_string(), "259:70000");
    }

    #[test]
    fn the_kernels_own_encoding_equals_stats_for_small_majors_and_large_minors() {
        for (major, minor) in [(7, 3), (259, 0), (8, 255), (8, 256), (4095, 1_048_575)] {
            let number = rustix::fs::makedev(major, minor);
            assert_eq!(DeviceNumber::from_stat(number), DeviceNumber { major, minor });
            assert_eq!(DeviceNumber::from_kernel(number), DeviceNumber { major, minor });
        }
    }

    #[test]
    fn a_file_is_not_taken_for_a_device() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(matches!(size(file.path()), Err(DeviceError::NotABlockDevice { .. })));
    }
}
