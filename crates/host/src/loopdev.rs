//! Loop devices: a file as a block device.
//!
//! **Identity.** A device is found again by its backing file (`st_dev` and `st_ino`) and the [`Tag`] it carries, both
//! asked of the kernel through the open device, never by its name: `/dev/loop3` is somebody else's a moment later.
//!
//! **Guarantees.** [`Host::attach`] twice is one device. [`Host::detach`] succeeds only when no device is bound to
//! the file with that tag any more; a device that is mounted anywhere, or that somebody has open for himself, is not
//! touched. Devices are never set to vanish by themselves, have no partitions, and a read-only one is read-only in
//! the kernel, not by convention.

use crate::device::{BlockDevice, DeviceError, DeviceNumber, Open, is_read_only};
use crate::host::Host;
use crate::ioctl::{self, LO_FLAGS_AUTOCLEAR, LO_FLAGS_DIRECT_IO, LO_FLAGS_READ_ONLY, LoopInfo};
use crate::mountinfo::MountTable;
use crate::tag::Tag;
use bowline_failpoint::pass;
use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, fstat, open, statat};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Which file, whatever it is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileIdentity {
    /// The device of its filesystem.
    pub device: DeviceNumber,
    /// Its number there.
    pub inode: u64,
}

impl FileIdentity {
    /// Of an open file.
    pub fn of(file: &File) -> io::Result<Self> {
        let stat = fstat(file)?;
        Ok(Self { device: DeviceNumber::from_stat(stat.st_dev), inode: stat.st_ino })
    }
}

/// A loop device that is bound to a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoopDevice {
    /// Its node. Good while the volume is locked; resolve it again after that.
    pub path: PathBuf,
    /// Its device number.
    pub number: DeviceNumber,
    /// Its backing file.
    pub backing: FileIdentity,
    /// The backing file's path as the kernel knows it now; for people.
    pub backing_path: PathBuf,
    /// What it is for, if it is ours.
    pub tag: Option<Tag>,
    /// Whether the kernel refuses writes.
    pub read_only: bool,
    /// Whether it goes around the page cache.
    pub direct_io: bool,
    /// Whether it vanishes with its last user: it is being detached.
    pub vanishing: bool,
}

/// Why a loop device is not as asked for.
#[derive(Debug, thiserror::Error)]
pub enum LoopError {
    /// The device or its control node.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The backing file.
    #[error("{}: {error}", path.display())]
    Backing {
        /// Which file.
        path: PathBuf,
        /// What the kernel said.
        #[source]
        error: io::Error,
    },
    /// The backing file is no file.
    #[error("{} is not a regular file", path.display())]
    NotAFile {
        /// Its path.
        path: PathBuf,
    },
    /// The list of devices.
    #[error("the loop devices cannot be listed: {0}")]
    List(#[source] io::Error),
    /// It is attached for this grant already, in another way.
    #[error("{} is attached {}; wanted: {}", device.display(), access(!wanted_read_only), access(*wanted_read_only))]
    Differs {
        /// The device.
        device: PathBuf,
        /// What was asked for.
        wanted_read_only: bool,
    },
    /// It is still in use; it stays attached.
    #[error("{} is still in use: {by}", device.display())]
    InUse {
        /// The device.
        device: PathBuf,
        /// By what, for people.
        by: String,
    },
    /// Others took every device that was free.
    #[error("no free loop device was to be had in {0} attempts")]
    NoneFree(u32),
}

fn access(read_only: bool) -> &'static str {
    if read_only { "read-only" } else { "writable" }
}

const ATTEMPTS: u32 = 64;

/// How long a device may linger after it was let go, because somebody (a listing, udev) is just looking at it.
const LINGER: Duration = Duration::from_secs(2);

impl Host {
    /// The device of a grant, attached if it is not yet. The file is opened for writing unless `read_only`.
    pub fn attach(&self, backing: &Path, tag: &Tag, read_only: bool) -> Result<LoopDevice, LoopError> {
        let file = open_backing(backing, read_only)?;
        let fault = |error: io::Error| LoopError::Backing { path: backing.to_owned(), error };
        let identity = FileIdentity::of(&file).map_err(fault)?;
        if let Some(found) = self.find_loop(identity, tag)?.into_iter().find(|found| !found.vanishing) {
            if found.read_only != read_only {
                return Err(LoopError::Differs { device: found.path, wanted_read_only: read_only });
            }
            return Ok(found);
        }
        let how = if read_only { How::ReadOnly } else { How::Writable };
        for attempt in 0..ATTEMPTS {
            // Others may look for a free one at the same time, and the kernel tells them all the same number.
            std::thread::sleep(Duration::from_millis(u64::from(attempt.min(10))));
            let path = self.free_loop()?;
            pass("host.attach.before");
            match configure(&path, &file, tag, how) {
                Ok(()) => pass("host.attach.after"),
                // Taken by another between the question and the deed.
                Err(Errno::BUSY) => continue,
                Err(error) => return Err(DeviceError::io(&path, error).into()),
            }
            if let Some(device) = self.loop_at(&path)?.filter(|found| found.is(identity, tag)) {
                return Ok(device);
            }
        }
        Err(LoopError::NoneFree(ATTEMPTS))
    }

    /// Puts a read-only device between a file and somebody who opens what he is given for writing: he opens the device
    /// while it is bound to nothing, in `open`, and then it is bound, read-only in the kernel. It goes when he closes it.
    ///
    /// `open` is called again, with another device, if somebody else took the one it was called with.
    pub fn attach_read_only_behind(
        &self,
        backing: &Path,
        tag: &Tag,
        open: &mut dyn FnMut(&Path) -> io::Result<()>,
    ) -> Result<(), LoopError> {
        let file = open_backing(backing, true)?;
        for _ in 0..ATTEMPTS {
            let Some(path) = self.writable_free_loop()? else { continue };
            open(&path).map_err(|error| DeviceError::Io { device: path.clone(), error })?;
            pass("host.attach-behind.before");
            match configure(&path, &file, tag, How::ReadOnlyBehind) {
                Ok(()) => {
                    pass("host.attach-behind.after");
                    return Ok(());
                }
                Err(Errno::BUSY) => {}
                Err(error) => return Err(DeviceError::io(&path, error).into()),
            }
        }
        Err(LoopError::NoneFree(ATTEMPTS))
    }

    /// The device of [`Self::attach_read_only_behind`], if there is one.
    pub fn read_only_loop(&self, backing: &Path, tag: &Tag) -> Result<Option<LoopDevice>, LoopError> {
        let fault = |error: io::Error| LoopError::Backing { path: backing.to_owned(), error };
        let identity = FileIdentity::of(&open_backing(backing, true)?).map_err(fault)?;
        Ok(self.find_loop(identity, tag)?.into_iter().find(|found| found.read_only))
    }

    fn free_loop(&self) -> Result<PathBuf, LoopError> {
        let (control, path) = self.loop_control()?;
        let number = ioctl::loop_free(&control).map_err(|error| DeviceError::io(&path, error))?;
        Ok(self.roots.dev.join(format!("loop{number}")))
    }

    /// A free device that can be opened for writing, if the first that is free can. One that was bound read-only stays
    /// read-only when it is bound to nothing (Linux 6.1 … 6.18), and the kernel does not open it for writing: it is removed, and
    /// the kernel makes another.
    fn writable_free_loop(&self) -> Result<Option<PathBuf>, LoopError> {
        let (control, path) = self.loop_control()?;
        let number = ioctl::loop_free(&control).map_err(|error| DeviceError::io(&path, error))?;
        let device = self.roots.dev.join(format!("loop{number}"));
        if !is_read_only(&device)? {
            return Ok(Some(device));
        }
        match ioctl::loop_remove(&control, number) {
            Ok(()) => {}
            // Somebody took it, or looks at it.
            Err(Errno::BUSY | Errno::NODEV) => std::thread::sleep(Duration::from_millis(5)),
            Err(error) => return Err(DeviceError::io(&device, error).into()),
        }
        Ok(None)
    }

    fn loop_control(&self) -> Result<(OwnedFd, PathBuf), LoopError> {
        let path = self.roots.dev.join("loop-control");
        match open(&path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) {
            Ok(control) => Ok((control, path)),
            Err(error) => Err(DeviceError::io(&path, error).into()),
        }
    }

    /// Every loop device that is bound to a file.
    pub fn loops(&self) -> Result<Vec<LoopDevice>, LoopError> {
        let mut devices = Vec::new();
        for name in self.bound_loops().map_err(LoopError::List)? {
            devices.extend(self.loop_at(&self.roots.dev.join(name))?);
        }
        devices.sort_by_key(|device| device.number);
        Ok(devices)
    }

    /// Their names. Unbound devices are not opened, which keeps out of the way of others.
    fn bound_loops(&self) -> io::Result<Vec<String>> {
        // Where loop devices are themselves, and not where links lead to them: they are looked at in every detach, and there may be many.
        let directory = self.roots.sys.join("devices/virtual/block");
        let all = match open(&directory, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        {
            Ok(all) => all,
            // None of that kind, where there is a list of all.
            Err(Errno::NOENT) => return self.roots.sys.join("block").metadata().map(|_| Vec::new()),
            Err(error) => return Err(error.into()),
        };
        let mut names = Vec::new();
        for entry in Dir::read_from(&all)? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            if name.strip_prefix("loop").is_none_or(|number| number.parse::<u32>().is_err()) {
                continue;
            }
            match statat(&all, format!("{name}/loop"), AtFlags::empty()) {
                Ok(_) => names.push(name),
                // Unbound, or gone.
                Err(Errno::NOENT) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(names)
    }

    /// The devices of one grant: one, unless something went wrong before.
    pub fn find_loop(&self, backing: FileIdentity, tag: &Tag) -> Result<Vec<LoopDevice>, LoopError> {
        Ok(self.loops()?.into_iter().filter(|device| device.is(backing, tag)).collect())
    }

    /// Every device that can reach a file's bytes, whoever made it and whatever it is for.
    pub fn loops_of(&self, backing: FileIdentity) -> Result<Vec<LoopDevice>, LoopError> {
        Ok(self.loops()?.into_iter().filter(|device| device.backing == backing).collect())
    }

    fn loop_at(&self, path: &Path) -> Result<Option<LoopDevice>, LoopError> {
        let device = match BlockDevice::open(path, Open::Read) {
            Ok(device) => device,
            Err(DeviceError::Io { error, .. })
                if matches!(error.raw_os_error(), Some(libc::ENXIO | libc::ENOENT | libc::ENODEV)) =>
            {
                return Ok(None);
            }
            Err(error) => return Err(error.into()),
        };
        match ioctl::loop_status(&device.file) {
            Ok(info) => Ok(Some(self.described(&device, &info))),
            Err(Errno::NXIO) => Ok(None),
            Err(error) => Err(DeviceError::io(path, error).into()),
        }
    }

    fn described(&self, device: &BlockDevice, info: &LoopInfo) -> LoopDevice {
        let sys = self.roots.sys.join(format!("dev/block/{}/loop/backing_file", device.number));
        let mut backing_path = std::fs::read(sys).unwrap_or_default();
        if backing_path.last() == Some(&b'\n') {
            backing_path.pop();
        }
        LoopDevice {
            path: device.path.clone(),
            number: device.number,
            backing: FileIdentity { device: DeviceNumber::from_kernel(info.device), inode: info.inode },
            backing_path: std::ffi::OsString::from_vec(backing_path).into(),
            tag: Tag::from_field(&info.file_name),
            read_only: info.flags & LO_FLAGS_READ_ONLY != 0,
            direct_io: info.flags & LO_FLAGS_DIRECT_IO != 0,
            vanishing: info.flags & LO_FLAGS_AUTOCLEAR != 0,
        }
    }

    /// Detaches every device of a grant. Nothing attached is fine.
    pub fn detach(&self, backing: FileIdentity, tag: &Tag) -> Result<(), LoopError> {
        for device in self.find_loop(backing, tag)? {
            self.detach_one(&device, backing, tag)?;
        }
        Ok(())
    }

    fn detach_one(&self, device: &LoopDevice, backing: FileIdentity, tag: &Tag) -> Result<(), LoopError> {
        let still = |device: LoopDevice| device.is(backing, tag);
        let deadline = Instant::now() + LINGER;
        let mut pause = Duration::from_millis(1);
        loop {
            // Exclusively: a device that is mounted, in whatever namespace, or formatted just now, refuses this.
            match BlockDevice::open(&device.path, Open::ReadAlone) {
                // Held open until it is cleared, so nobody mounts it in between.
                Ok(open) => match ioctl::loop_status(&open.file) {
                    Ok(info) if still(self.described(&open, &info)) => {
                        pass("host.detach.before");
                        match ioctl::loop_clear(&open.file) {
                            Ok(()) | Err(Errno::NXIO) => pass("host.detach.after"),
                            Err(error) => return Err(DeviceError::io(&device.path, error).into()),
                        }
                    }
                    Ok(_) | Err(Errno::NXIO) => return Ok(()),
                    Err(error) => return Err(DeviceError::io(&device.path, error).into()),
                },
                // A mount stays; a process that is just being started, or a mkfs at its end, goes.
                Err(DeviceError::Busy { .. }) if !self.is_mounted(device) => {}
                Err(DeviceError::Busy { .. }) => return Err(self.in_use(device)),
                Err(error) => {
                    return if self.loop_at(&device.path)?.is_some_and(still) {
                        Err(error.into())
                    } else {
                        Ok(())
                    };
                }
            }
            // With other users the kernel answers "done" and means "when the last of them is gone".
            if !self.loop_at(&device.path)?.is_some_and(still) {
                return Ok(());
            }
            if Instant::now() >= deadline {
                return Err(self.in_use(device));
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(100));
        }
    }

    fn is_mounted(&self, device: &LoopDevice) -> bool {
        let mounted = |table: MountTable| {
            table.of_device(device.number, |node| self.node_number(node)).next().is_some()
        };
        self.mounts().is_ok_and(mounted)
    }

    fn in_use(&self, device: &LoopDevice) -> LoopError {
        LoopError::InUse { device: device.path.clone(), by: self.users_of_device(device.number) }
    }

    /// Takes over the size of a backing file that has grown, and says what it is now.
    pub fn refresh_size(&self, device: &LoopDevice) -> Result<u64, LoopError> {
        let open = BlockDevice::open(&device.path, Open::Read)?;
        let fault = |error: Errno| DeviceError::io(&device.path, error);
        let now = self.described(&open, &ioctl::loop_status(&open.file).map_err(fault)?);
        if now.backing != device.backing || now.tag != device.tag {
            let (path, found, expected) = (device.path.clone(), now.backing.device, device.backing.device);
            return Err(DeviceError::OtherDevice { device: path, found, expected }.into());
        }
        pass("host.refresh.before");
        ioctl::loop_set_capacity(&open.file).map_err(fault)?;
        pass("host.refresh.after");
        Ok(open.size()?)
    }
}

impl LoopDevice {
    fn is(&self, backing: FileIdentity, tag: &Tag) -> bool {
        self.backing == backing && self.tag.as_ref() == Some(tag)
    }
}

fn open_backing(path: &Path, read_only: bool) -> Result<File, LoopError> {
    let access = if read_only { OFlags::RDONLY } else { OFlags::RDWR };
    let flags = access | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let fault = |error: Errno| LoopError::Backing { path: path.to_owned(), error: error.into() };
    let file = open(path, flags, Mode::empty()).map_err(fault)?;
    let stat = fstat(&file).map_err(fault)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(LoopError::NotAFile { path: path.to_owned() });
    }
    Ok(File::from(file))
}

/// How a device is bound to its file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    Writable,
    ReadOnly,
    /// Read-only, and gone with whoever had it open before it was bound. He has seen blocks of 512 bytes, and goes by that.
    ReadOnlyBehind,
}

fn configure(path: &Path, file: &File, tag: &Tag, how: How) -> Result<(), Errno> {
    let access = if how == How::Writable { OFlags::RDWR } else { OFlags::RDONLY };
    let device = open(path, access | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::empty())?;
    let (flags, block) = match how {
        How::Writable => (0, ioctl::BLOCK_SIZE),
        How::ReadOnly => (LO_FLAGS_READ_ONLY, ioctl::BLOCK_SIZE),
        How::ReadOnlyBehind => (LO_FLAGS_READ_ONLY | LO_FLAGS_AUTOCLEAR, 512),
    };
    let info = |flags| LoopInfo { flags, file_name: tag.to_field(), ..LoopInfo::EMPTY };
    // Kernels drop the wish for direct I/O where the file's filesystem cannot (tmpfs), or refuse it.
    match ioctl::loop_configure(&device, file, block, info(flags | LO_FLAGS_DIRECT_IO)) {
        Err(Errno::INVAL) => ioctl::loop_configure(&device, file, block, info(flags)),
        other => other,
    }
}
