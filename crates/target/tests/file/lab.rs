//! A directory with filesystems of its own, in a process with mounts of its own, of which nothing is left.

use bowline_core::{Epoch, Mode, NodeId, Share, SnapshotId, TargetId, VolumeId};
use bowline_host::loopdev::{FileIdentity, LoopDevice};
use bowline_host::{Host, Tag};
use bowline_target::contract::provision::Bytes;
use bowline_target::file::{FileTarget, OpenError, Policy, Settings, Shelf};
use bowline_target::{
    BackingError, BackingFiles, Cut, Grant, NewVolume, Progress, Provision, ProvisionError, Revocation,
    Source, StoredSnapshot,
};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use tokio::runtime::Runtime;

/// Names the lab's directory in the process that has mounts of its own.
const LAB: &str = "BOWLINE_FILE_LAB";
pub(crate) const MIB: u64 = 1 << 20;

pub(crate) struct Lab {
    pub(crate) dir: PathBuf,
    pub(crate) host: Host,
    pub(crate) runtime: Runtime,
}

/// Runs a test once more, in a process whose mounts nobody else sees.
pub(crate) fn lab(name: &str, programs: &[&str], test: impl FnOnce(&Lab)) {
    if let Some(dir) = std::env::var_os(LAB) {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let lab = Lab { dir: dir.into(), host: Host::default(), runtime };
        test(&lab);
        drop(lab);
        say(&format!("ran {name}"));
        return;
    }
    let host = Host::default();
    let missing = programs.iter().find(|program| host.programs.find(program).is_none());
    let private = Command::new("unshare").args(["-m", "true"]).status().is_ok_and(|status| status.success());
    if missing.is_some() || !private || host.loops().is_err() {
        let why =
            missing.map_or("needs root and loop devices".to_owned(), |program| format!("missing: {program}"));
        not_run(&format!("not run: {name} ({why})"));
        return;
    }
    let dir = tempfile::Builder::new().prefix("bowline-file-").tempdir().unwrap();
    let path = dir.path().canonicalize().unwrap();
    let output = Command::new("unshare")
        .args(["-m", "--propagation", "private"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env(LAB, &path)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains(&format!("ran {name}")), "{text}");
    let left: Vec<_> =
        host.loops().unwrap().into_iter().filter(|d| d.backing_path.starts_with(&path)).collect();
    assert_eq!(left, [], "loop devices were left behind");
}

#[allow(clippy::print_stdout, reason = "the parent process reads it")]
pub(crate) fn say(line: &str) {
    println!("{line}");
}

fn not_run(line: &str) {
    say(line);
    if let Some(path) = std::env::var_os("BOWLINE_SUMMARY") {
        let mut file = File::options().create(true).append(true).open(path).unwrap();
        file.write_all(format!("{line}\n").as_bytes()).unwrap();
    }
}

pub(crate) fn run(program: &str, args: &[&dyn AsRef<std::ffi::OsStr>]) {
    let args = args.iter().map(AsRef::as_ref);
    let output = Command::new(program).args(args).output().unwrap();
    assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
}

pub(crate) fn volume(id: &str) -> VolumeId {
    VolumeId::new(id).unwrap()
}

pub(crate) fn node(id: &str) -> NodeId {
    NodeId::new(id).unwrap()
}

pub(crate) fn grant(id: &str, to: &str, epoch: u64) -> Grant {
    let mode = Mode { write: true, frontend: true, share: Share::Writers };
    Grant { volume: volume(id), node: node(to), epoch: Epoch::new(epoch), mode, beside: None }
}

pub(crate) fn revocation(id: &str, from: &str, epoch: u64) -> Revocation {
    Revocation { volume: volume(id), node: node(from), epoch: Epoch::new(epoch), fence: true }
}

pub(crate) fn order(id: &str, size: u64, source: Option<Source>) -> NewVolume {
    NewVolume { volume: volume(id), name: format!("the {id}"), size, source }
}

pub(crate) fn snapshot(id: &str) -> SnapshotId {
    SnapshotId::new(id).unwrap()
}

pub(crate) fn cut(id: &str, of: &str) -> Cut {
    Cut { snapshot: snapshot(id), name: format!("the {id}"), volume: volume(of) }
}

pub(crate) fn open(dir: &Path, policy: Policy) -> Result<FileTarget, OpenError> {
    let id = TargetId::new("file").unwrap();
    let settings = Settings { id, directory: dir.to_owned(), host_name: "here".to_owned(), policy };
    FileTarget::open(settings, Host::default())
}

/// Lets tests promise as much as they like.
pub(crate) const GENEROUS: Policy = Policy { overcommit: 1_000_000, reserve: 0 };

impl Lab {
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    pub(crate) fn directory(&self, name: &str) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(&path).unwrap();
        path
    }

    /// A new filesystem, mounted.
    pub(crate) fn scratch(&self, fs_type: &str, mib: u64) -> PathBuf {
        let at = self.directory(&format!("on-{fs_type}"));
        if matches!(fs_type, "tmpfs" | "ramfs") {
            run("mount", &[&"-t", &fs_type, &"-o", &format!("size={mib}m"), &fs_type, &at]);
            return at;
        }
        let image = self.path(&format!("{fs_type}.img"));
        File::create(&image).unwrap().set_len(mib * MIB).unwrap();
        run(&format!("mkfs.{fs_type}"), &[&"-q", &image]);
        run("mount", &[&"-o", &"loop", &image, &at]);
        at
    }

    pub(crate) fn open(&self, dir: &Path) -> FileTarget {
        open(dir, GENEROUS).unwrap()
    }

    pub(crate) fn create(&self, target: &FileTarget, order: &NewVolume) -> Result<u64, ProvisionError> {
        self.runtime.block_on(target.create(order, &Progress::default()))
    }

    pub(crate) fn snapshot(
        &self,
        target: &FileTarget,
        cuts: &[Cut],
    ) -> Result<Vec<StoredSnapshot>, ProvisionError> {
        self.runtime.block_on(target.snapshot(cuts, &Progress::default()))
    }

    /// Attaches a volume as a node does.
    pub(crate) fn attach(
        &self,
        files: &dyn BackingFiles,
        id: &str,
        to: &str,
        epoch: u64,
    ) -> Result<LoopDevice, BackingError> {
        let tag = Tag::new(&volume(id), &node(to), Epoch::new(epoch));
        let mut device = None;
        files.with_grant(&volume(id), &node(to), Epoch::new(epoch), &mut |path, write| {
            device = Some(self.host.attach(path, &tag, !write).unwrap());
        })?;
        Ok(device.unwrap())
    }

    pub(crate) fn detach(&self, device: &LoopDevice) {
        self.host.detach(device.backing, &device.tag.unwrap()).unwrap();
    }

    /// Lets a node in, attaches, and mounts a new ext4.
    pub(crate) fn mounted(
        &self,
        target: &FileTarget,
        dir: &Path,
        id: &str,
        format: bool,
    ) -> (LoopDevice, PathBuf) {
        use bowline_target::Target;
        self.runtime.block_on(target.allow(&grant(id, "a", 1))).unwrap();
        let device = self.attach(&Shelf::open(dir, &self.host).unwrap(), id, "a", 1).unwrap();
        if format {
            run("mkfs.ext4", &[&"-q", &device.path]);
        }
        let at = self.directory(&format!("mnt-{id}"));
        run("mount", &[&"-o", &"discard", &device.path, &at]);
        (device, at)
    }

    pub(crate) fn unmounted(&self, target: &FileTarget, id: &str, (device, at): &(LoopDevice, PathBuf)) {
        use bowline_target::Target;
        run("umount", &[at]);
        self.detach(device);
        self.runtime.block_on(target.revoke(&revocation(id, "a", 1))).unwrap();
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        let failed = std::thread::panicking();
        let devices: Vec<_> = self
            .host
            .loops()
            .unwrap()
            .into_iter()
            .filter(|d| d.backing_path.starts_with(&self.dir))
            .collect();
        for _ in 0..2 {
            let table = self.host.mounts().unwrap();
            for mount in table.iter().rev().filter(|mount| mount.at.starts_with(&self.dir)) {
                let _ = Command::new("fsfreeze").arg("-u").arg(&mount.at).output();
                let _ = Command::new("umount").arg(&mount.at).output();
            }
            for device in &devices {
                let _ = device.tag.map(|tag| self.host.detach(device.backing, &tag));
            }
        }
        let table = self.host.mounts().unwrap();
        let left = table.iter().filter(|mount| mount.at.starts_with(&self.dir)).count();
        assert!(failed || left == 0, "{left} mounts were left behind");
    }
}

/// A volume's bytes through its file.
pub(crate) struct Raw<'a>(pub(crate) &'a FileTarget);

impl Bytes for Raw<'_> {
    fn write(&self, volume: &VolumeId, offset: u64, bytes: &[u8]) {
        let path = self.0.backing(volume).unwrap().unwrap();
        File::options().write(true).open(path).unwrap().write_all_at(bytes, offset).unwrap();
    }
    fn read(&self, volume: &VolumeId, offset: u64, length: usize) -> Vec<u8> {
        let path = self.0.backing(volume).unwrap().unwrap();
        let mut bytes = vec![0; length];
        File::open(path).unwrap().read_exact_at(&mut bytes, offset).unwrap();
        bytes
    }
}

/// The files of a directory.
pub(crate) fn listed(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// What an empty directory of volumes has in it.
pub(crate) const EMPTY: [&str; 3] = ["directory.json", "directory.lock", "directory.spare"];

pub(crate) fn identity(path: &Path) -> FileIdentity {
    FileIdentity::of(&File::open(path).unwrap()).unwrap()
}
