//! Mounting and unmounting, idempotent against a caller that asks again.
//!
//! **Guarantees.** What is mounted equally already is left alone, mounts never stack, and where something else is
//! mounted the error names it. A mount has all its attributes before anybody can see it: it is made detached
//! (`fsopen`, `open_tree`), given its attributes, and only then attached to a file descriptor that was resolved
//! without symlinks (Linux 5.12).
//!
//! **Caveats.** Options of the filesystem itself (`discard`, …) are not compared with those of an existing mount:
//! kernels do not show defaults, and all mounts of a filesystem share them anyway.

use crate::command::no_starts;
use crate::device::{BlockDevice, DeviceError, DeviceNumber, Open};
use crate::host::Host;
use crate::ioctl;
use crate::mountinfo::{Mount, MountInfoError, MountTable};
use crate::options::{self, MountOptions};
use crate::path::{Kind, Place, PlaceError};
use bowline_failpoint::pass;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{AtFlags, FileType, statat};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags,
    UnmountFlags, fsconfig_create, fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, mount_change,
    move_mount, open_tree, unmount,
};
use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};

/// Why something is not mounted.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The path.
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// The mount table.
    #[error(transparent)]
    Table(#[from] MountInfoError),
    /// The device.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// Something else is mounted there; nothing was changed.
    #[error("{} already has something else mounted: {found}; wanted: {wanted}", path.display())]
    Occupied {
        /// Where.
        path: PathBuf,
        /// What is there.
        found: String,
        /// What should be.
        wanted: String,
    },
    /// The right thing is mounted there, but not in the right way; nothing was changed.
    #[error("{} is mounted {found}; wanted: {wanted}", path.display())]
    Differs {
        /// Where.
        path: PathBuf,
        /// How it is mounted.
        found: String,
        /// How it should be.
        wanted: String,
    },
    /// A read-only mount of a device node does not keep anybody from writing to the device.
    #[error("{} must be read-only, but the device can be written", device.display())]
    Writable {
        /// Which device.
        device: PathBuf,
    },
    /// The kernel said no.
    #[error("{} cannot be {what}: {error}{}", path.display(), because(said))]
    Kernel {
        /// Which path.
        path: PathBuf,
        /// What was tried.
        what: &'static str,
        /// Its answer.
        #[source]
        error: io::Error,
        /// What it said beyond that.
        said: String,
    },
}

fn because(said: &str) -> String {
    if said.is_empty() { String::new() } else { format!(" ({said})") }
}

fn kernel(path: &Path, what: &'static str, error: impl Into<io::Error>) -> MountError {
    MountError::Kernel { path: path.to_owned(), what, error: error.into(), said: String::new() }
}

/// Whether something had to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It was so already.
    Nothing,
    /// It is so now.
    Made,
}

/// When an unmount may leave the filesystem to its last user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unmount {
    /// Fail while something uses it.
    WhenUnused,
    /// Take it out of sight now; it ends when its last user lets go. Access is *not* gone then.
    Lazily,
}

impl Host {
    /// Mounts the filesystem of a device on a directory.
    pub fn mount(&self, device: &Path, place: &Place, options: &MountOptions) -> Result<Change, MountError> {
        let number = BlockDevice::open(device, Open::Read)?.number;
        let table = self.mounts_at(place)?;
        if let Some(top) = table.top(place.path()) {
            let same = self.is_mount_of(top, number) && top.fs_type == options.fs.name() && top.root == "/";
            let wanted = || format!("{} {} ({number})", options.fs, device.display());
            return already(place, top, same, wanted, &options.shown());
        }
        place.ensure_directory()?;
        pass("host.mount.before");
        let mounted = match detached_filesystem(device, options) {
            // A process that is just being started here may still have the device; see `no_starts`.
            Err(MountError::Kernel { error, .. }) if error.kind() == io::ErrorKind::ResourceBusy => {
                BlockDevice::await_free(device)?;
                detached_filesystem(device, options)?
            }
            other => other?,
        };
        let change = attach(&mounted, place)?;
        pass("host.mount.after");
        Ok(change)
    }

    /// Makes a directory, usually where a volume is mounted, visible at a second place.
    pub fn bind(&self, source: &Place, target: &Place, read_only: bool) -> Result<Change, MountError> {
        let table = self.mounts_at(target)?;
        let tree = source.handle()?;
        let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
        if let Some(top) = table.top(target.path()) {
            let covering = table.covering(source.path());
            let same = covering.as_ref().is_some_and(|(mount, root)| {
                mount.device == top.device && mount.fs_type == top.fs_type && *root == Path::new(&top.root)
            });
            let from = covering.map(|(mount, _)| mount);
            let wanted = || format!("{}, bound", source.path().display());
            return already(target, top, same, wanted, &options::inherited(from, read_only, attributes));
        }
        match source.kind()? {
            Kind::Directory => target.ensure_directory()?,
            found => {
                let path = source.path().to_owned();
                return Err(PlaceError::Kind { path, found, expected: Kind::Directory }.into());
            }
        }
        pass("host.bind.before");
        let copy = detached_copy(tree, source.path(), read_only, attributes)?;
        let change = attach(&copy, target)?;
        pass("host.bind.after");
        Ok(change)
    }

    /// Makes a block device visible as a file: block mode. A read-only one must be so by itself.
    pub fn bind_device(&self, device: &Path, target: &Place, read_only: bool) -> Result<Change, MountError> {
        let open = BlockDevice::open(device, Open::Read)?;
        let refuses_writes =
            ioctl::device_read_only(&open.file).map_err(|error| DeviceError::io(device, error))?;
        if read_only && !refuses_writes {
            return Err(MountError::Writable { device: device.to_owned() });
        }
        // Not `nodev`: that would keep everybody from opening the very device this mount is for.
        let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC;
        let table = self.mounts_at(target)?;
        if let Some(top) = table.top(target.path()) {
            let found = device_at(target)?;
            let wanted = || format!("the device {} ({})", device.display(), open.number);
            let from = table.covering(device).map(|(mount, _)| mount);
            let options = options::inherited(from, read_only, attributes);
            return already(target, top, found == Some(open.number), wanted, &options);
        }
        target.ensure_file()?;
        let node = rustix::fs::open(
            device,
            rustix::fs::OFlags::PATH | rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::CLOEXEC,
            rustix::fs::Mode::empty(),
        );
        let node = node.map_err(|error| DeviceError::io(device, error))?;
        pass("host.bind-device.before");
        let copy = detached_copy(node, device, read_only, attributes)?;
        let change = attach(&copy, target)?;
        pass("host.bind-device.after");
        Ok(change)
    }

    /// What is mounted on the machine, if anything is at this place; otherwise nothing. There may be hundreds of mounts, and for most calls none is here.
    fn mounts_at(&self, place: &Place) -> Result<MountTable, MountInfoError> {
        if place.may_be_mount_point() { self.mounts() } else { Ok(MountTable::default()) }
    }

    /// Unmounts every layer at a place. Nothing mounted there is fine.
    pub fn unmount(&self, place: &Place, how: Unmount) -> Result<Change, MountError> {
        let path = place.path();
        let layers = self.mounts()?.at(path).count();
        let flags = UnmountFlags::NOFOLLOW
            | match how {
                Unmount::WhenUnused => UnmountFlags::empty(),
                Unmount::Lazily => UnmountFlags::DETACH,
            };
        for _ in 0..layers {
            pass("host.unmount.before");
            // Through the parent's descriptor: one on the place itself would pin the mount.
            let unmount = || unmount(place.through_parent(), flags);
            // A file that was just closed may be open a moment longer, in a program that is being started. That is waited for, and no more: the last
            // unmount writes back what is dirty, for as long as a dead disk likes, and no program could be started meanwhile.
            let done = match unmount() {
                Err(Errno::BUSY) => {
                    drop(no_starts());
                    unmount()
                }
                other => other,
            };
            match done {
                // Somebody else unmounted a layer meanwhile; what is left is looked at below.
                Ok(()) | Err(Errno::INVAL | Errno::NOENT) => pass("host.unmount.after"),
                Err(error) => {
                    let said = if error == Errno::BUSY { self.users_of_mount(path) } else { String::new() };
                    let path = path.to_owned();
                    return Err(MountError::Kernel { path, what: "unmounted", error: error.into(), said });
                }
            }
        }
        if let Some(top) = self.mounts()?.top(path) {
            let error = io::Error::other(format!("{} is still there", top.describe()));
            return Err(kernel(path, "unmounted", error));
        }
        Ok(if layers == 0 { Change::Nothing } else { Change::Made })
    }

    /// Unmounts every layer at a place and removes the empty directory or file that is left.
    pub fn unmount_and_remove(&self, place: &Place, how: Unmount) -> Result<Change, MountError> {
        let change = self.unmount(place, how)?;
        place.remove()?;
        Ok(change)
    }

    /// Whether a mount's filesystem lies on a device.
    pub fn is_mount_of(&self, mount: &Mount, device: DeviceNumber) -> bool {
        mount.device == device
            || (mount.device.major == 0 && self.node_number(Path::new(&mount.source)) == Some(device))
    }

    /// Whether the disk under a mount is provably gone. A filesystem keeps name and number of its disk beyond that disk's end, so whatever has them
    /// is still that one.
    pub fn has_lost_its_disk(&self, mount: &Mount) -> bool {
        let disks = self.roots.sys.join("dev/block");
        let disk = match mount.device.major {
            // btrfs has a number of its own.
            0 => self.node(Path::new(&mount.source)),
            _ => Some(disks.join(mount.device.to_string())),
        };
        let is_gone = |disk: PathBuf| {
            disk.symlink_metadata().is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
        };
        // Where no disk is to be seen at all, nothing is proven.
        disks.is_dir() && disk.is_some_and(is_gone)
    }
}

/// Gives the calling thread, and the threads it starts from now on, mounts of their own: what they mount from now on is
/// seen by nobody else and ends with them. For tests of several nodes on one machine, which then leave nothing behind.
pub fn own_mounts() -> io::Result<()> {
    ioctl::own_mount_namespace()?;
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    Ok(())
}

/// What to say where something is mounted already.
fn already(
    place: &Place,
    top: &Mount,
    same: bool,
    wanted: impl Fn() -> String,
    options: &[&str],
) -> Result<Change, MountError> {
    let path = place.path().to_owned();
    if !same {
        return Err(MountError::Occupied { path, found: top.describe(), wanted: wanted() });
    }
    let found = options::comparable(&top.options);
    // A filesystem that went read-only by itself (an error on its device) is not the writable one asked for.
    let lost_writes = options.contains(&"rw") && top.is_read_only();
    let equal = found.len() == options.len() && options.iter().all(|option| found.contains(option));
    if equal && !lost_writes {
        return Ok(Change::Nothing);
    }
    let found = if lost_writes && equal { "read-only by its filesystem".to_owned() } else { found.join(",") };
    Err(MountError::Differs { path, found, wanted: options.join(",") })
}

/// Which device is seen at a place.
fn device_at(place: &Place) -> Result<Option<DeviceNumber>, MountError> {
    let stat = statat(place.handle()?, "", AtFlags::EMPTY_PATH)
        .map_err(|error| kernel(place.path(), "looked at", error))?;
    let is_device = FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice;
    Ok(is_device.then(|| DeviceNumber::from_stat(stat.st_rdev)))
}

fn detached_filesystem(device: &Path, options: &MountOptions) -> Result<OwnedFd, MountError> {
    let context = fsopen(options.fs.name(), FsOpenFlags::FSOPEN_CLOEXEC)
        .map_err(|error| kernel(device, "mounted", error))?;
    let configure = || {
        fsconfig_set_string(&context, "source", device)?;
        if options.read_only {
            fsconfig_set_flag(&context, "ro")?;
        }
        for flag in &options.flags {
            fsconfig_set_flag(&context, *flag)?;
        }
        for (key, value) in &options.values {
            fsconfig_set_string(&context, *key, *value)?;
        }
        fsconfig_create(&context)?;
        let read_only =
            if options.read_only { MountAttrFlags::MOUNT_ATTR_RDONLY } else { MountAttrFlags::empty() };
        fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, options.attributes | read_only)
    };
    configure().map_err(|error: Errno| MountError::Kernel {
        path: device.to_owned(),
        what: "mounted",
        error: error.into(),
        said: messages(&context),
    })
}

/// What the kernel wrote about a filesystem context: one message per read, `e`, `w` or `i` and a space first.
fn messages(context: &OwnedFd) -> String {
    let mut said = Vec::new();
    let mut buffer = [0; 1024];
    while let Ok(length) = rustix::io::read(context, &mut buffer) {
        if length == 0 || said.len() == 16 {
            break;
        }
        let text = String::from_utf8_lossy(buffer.get(..length).unwrap_or_default()).trim().to_owned();
        said.push(text.get(2..).map_or(text.clone(), str::to_owned));
    }
    said.join("; ")
}

fn detached_copy(
    of: impl AsFd,
    path: &Path,
    read_only: bool,
    attributes: MountAttrFlags,
) -> Result<OwnedFd, MountError> {
    let flags =
        OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    let copy = open_tree(of, "", flags).map_err(|error| kernel(path, "bound", error))?;
    let read_only = if read_only { MountAttrFlags::MOUNT_ATTR_RDONLY } else { MountAttrFlags::empty() };
    // A device's node is copied from /dev, whose attributes would come along.
    let clear = MountAttrFlags::MOUNT_ATTR_NODEV & !attributes;
    let (set, clear) = ((attributes | read_only).bits(), clear.bits());
    ioctl::set_mount_attributes(&copy, u64::from(set), u64::from(clear))
        .map_err(|error| kernel(path, "bound", error))?;
    Ok(copy)
}

fn attach(mounted: &OwnedFd, place: &Place) -> Result<Change, MountError> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(mounted, OsStr::new(""), place.handle()?, OsStr::new(""), flags)
        .map_err(|error| kernel(place.path(), "mounted on", error))?;
    Ok(Change::Made)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::Programs;
    use crate::host::Roots;
    use std::fs;

    #[test]
    fn a_disk_is_gone_only_where_disks_are_to_be_seen_and_it_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let host = Host::new(Roots { proc: at("proc"), sys: at("sys"), dev: at("dev") }, Programs::default());
        let table = b"30 1 7:3 / /a rw - ext4 /dev/loop3 rw\n\
                      31 1 7:4 / /b rw - ext4 /dev/loop4 rw\n\
                      32 1 0:50 / /c rw - btrfs /dev/loop5 rw\n\
                      33 1 0:51 / /d rw - btrfs /dev/loop6 rw\n\
                      34 1 0:52 / /e rw - tmpfs none rw\n";
        let table = MountTable::parse(table).unwrap();
        let gone = || {
            let gone = table.iter().filter(|mount| host.has_lost_its_disk(mount));
            gone.map(|mount| mount.at.display().to_string()).collect::<Vec<_>>()
        };
        assert_eq!(gone(), [""; 0], "nothing is seen at all");
        fs::create_dir_all(at("sys/dev/block/7:3")).unwrap();
        fs::create_dir(at("dev")).unwrap();
        fs::write(at("dev/loop5"), "").unwrap();
        assert_eq!(gone(), ["/b", "/d"]);
    }
}
