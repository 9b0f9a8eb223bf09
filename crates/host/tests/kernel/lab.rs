//! A directory with volumes and mount points, of which nothing is left when it goes, also on a panic.

use bowline_core::{Epoch, NodeId, VolumeId};
use bowline_host::doctor::Finding;
use bowline_host::format::{FsType, FsUuid, Making};
use bowline_host::loopdev::{FileIdentity, LoopDevice};
use bowline_host::path::{Base, Place, RequestPath};
use bowline_host::{Host, Tag};
use rustix::mount::{MountPropagationFlags, UnmountFlags, mount_change, unmount};
use rustix::thread::{UnshareFlags, unshare_unsafe};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// What the doctor calls it.
const GROW_EXT4: &str = "the right to grow ext4 while it is mounted";

pub(crate) struct Lab {
    pub(crate) host: Host,
    base: Base,
    dir: tempfile::TempDir,
}

/// Says that a test did not run: on its output, and in the summary that `make test` shows at its end.
#[allow(clippy::print_stdout, reason = "that is what it is for")]
fn not_run(why: &str) {
    let line =
        format!("not run: {} ({why})", std::thread::current().name().unwrap_or("a test of crates/host"));
    println!("{line}");
    if let Some(path) = std::env::var_os("BOWLINE_SUMMARY") {
        let mut file = File::options().create(true).append(true).open(path).unwrap();
        file.write_all(format!("{line}\n").as_bytes()).unwrap();
    }
}

impl Lab {
    /// A lab in which these filesystems can be made, or nothing if this machine cannot.
    pub(crate) fn new(needs: &[FsType]) -> Option<Self> {
        let host = Host::default();
        let findings = host.probe_machine();
        let optional = [
            "FUSE",
            "NVMe over fabrics",
            "NVMe over TCP",
            "native NVMe multipath",
            "configfs",
            "the NVMe target",
            "the NVMe target over TCP",
            GROW_EXT4,
        ];
        let other = |text: &str| FsType::ALL.iter().any(|fs| !needs.contains(fs) && text.contains(fs.name()));
        let missing = findings.iter().filter(|finding| {
            !finding.is_present() && !optional.contains(&finding.what.as_str()) && !other(finding.needed_for)
        });
        let missing: Vec<_> = missing.map(|finding| finding.what.clone()).collect();
        if !missing.is_empty() {
            not_run(&format!("missing: {}", missing.join(", ")));
            return None;
        }
        private_mounts();
        let dir = tempfile::Builder::new().prefix("bowline-host-").tempdir().unwrap();
        let base = Base::open(dir.path()).unwrap();
        Some(Self { host, base, dir })
    }

    /// Whether a filesystem can be grown while it is mounted; says so where it cannot.
    pub(crate) fn grows_mounted(&self, fs: FsType) -> bool {
        let missing = |finding: &Finding| finding.what == GROW_EXT4 && !finding.is_present();
        if fs == FsType::Ext4 && self.host.probe_machine().iter().any(missing) {
            not_run("the part that grows ext4 while it is mounted: missing: CAP_SYS_RESOURCE");
            return false;
        }
        true
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().canonicalize().unwrap().join(name)
    }

    pub(crate) fn place(&self, name: &str) -> Place {
        self.base.place(&RequestPath::parse(self.path(name).to_str().unwrap()).unwrap()).unwrap()
    }

    /// A sparse file.
    pub(crate) fn file(&self, name: &str, size: u64) -> PathBuf {
        let path = self.path(name);
        let file = File::options().create(true).truncate(false).write(true).open(&path).unwrap();
        file.set_len(size).unwrap();
        path
    }

    pub(crate) fn attach(&self, file: &Path, tag: &Tag) -> LoopDevice {
        self.host.attach(file, tag, false).unwrap()
    }

    /// A blank device of its own.
    pub(crate) fn device(&self, name: &str, size: u64) -> LoopDevice {
        self.attach(&self.file(name, size), &tag(&name.replace('/', "-"), 1))
    }

    /// A device with a filesystem on it.
    pub(crate) fn formatted(&self, name: &str, fs: FsType) -> LoopDevice {
        let device = self.device(name, smallest(fs));
        self.host.make(&device.path, &making(fs)).unwrap();
        device
    }
}

/// The mounts of a test are seen by its thread alone, and end with it, whatever happens.
#[allow(unsafe_code, reason = "there is no safe unshare")]
fn private_mounts() {
    // SAFETY: of what this call could take apart, only the mount namespace is asked for; no file descriptors.
    unsafe { unshare_unsafe(UnshareFlags::NEWNS) }.unwrap();
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC).unwrap();
}

impl Drop for Lab {
    fn drop(&mut self) {
        let dir = self.path("");
        // Before the unmounts: a file on a filesystem that was taken out of sight has another path.
        let ours = |device: &LoopDevice| device.backing_path.starts_with(&dir);
        let devices: Vec<_> = self.host.loops().unwrap().into_iter().filter(ours).collect();
        let table = self.host.mounts().unwrap();
        for mount in table.iter().rev().filter(|mount| mount.at.starts_with(&dir)) {
            let _ = unmount(&mount.at, UnmountFlags::DETACH);
        }
        for device in devices {
            let detached = device.tag.map(|tag| self.host.detach(device.backing, &tag));
            assert!(matches!(detached, None | Some(Ok(()))) || std::thread::panicking(), "{detached:?}");
        }
    }
}

pub(crate) fn tag(volume: &str, epoch: u64) -> Tag {
    Tag::new(&VolumeId::new(volume).unwrap(), &NodeId::new("node-a").unwrap(), Epoch::new(epoch))
}

pub(crate) fn identity(file: &Path) -> FileIdentity {
    FileIdentity::of(&File::open(file).unwrap()).unwrap()
}

/// Each with a UUID of its own: the kernel takes two btrfs with the same one for one filesystem.
pub(crate) fn making(fs: FsType) -> Making {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let mut uuid = *b"bowline-\0\0\0\0\0\0\0\0";
    uuid[8..12].copy_from_slice(&std::process::id().to_be_bytes());
    uuid[12..].copy_from_slice(&NEXT.fetch_add(1, Ordering::Relaxed).to_be_bytes());
    Making { fs, uuid: FsUuid::from_bytes(uuid) }
}

/// What the mkfs of Debian 12 accepts: 300 MB for xfs.
pub(crate) fn smallest(fs: FsType) -> u64 {
    match fs {
        FsType::Ext4 => 32 << 20,
        FsType::Xfs => 320 << 20,
        FsType::Btrfs => 256 << 20,
    }
}
