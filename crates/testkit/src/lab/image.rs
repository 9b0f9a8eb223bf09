//! Images for the cluster lab, made of programs of this machine.

use super::programs::{installed, project, tools};
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The image of test pods and of their sandboxes.
pub const BUSYBOX: &str = "docker.io/library/busybox:lab";

/// What the node plugin runs to make, check and grow filesystems, what that reads, and what an agent loads modules with.
const FILESYSTEMS: &[&str] = &[
    "mkfs.ext4",
    "e2fsck",
    "resize2fs",
    "mkfs.xfs",
    "xfs_repair",
    "xfs_growfs",
    "mkfs.btrfs",
    "btrfs",
    "blkid",
    "modprobe",
    "/etc/mke2fs.conf",
];

/// The upstream sidecars and the tool that makes each.
const SIDECARS: &[(&str, &str)] =
    &[("csi-provisioner", "provisioner"), ("csi-resizer", "resizer"), ("csi-snapshotter", "snapshotter")];

/// A file with an image, and the name that the image has in it.
#[derive(Clone, Debug)]
pub struct Image {
    /// Such as `docker.io/library/bowline:0.1.0`.
    pub name: String,
    /// For `ctr images import` and `docker load`.
    pub archive: PathBuf,
}

impl Image {
    /// The busybox of test pods.
    pub fn busybox() -> Self {
        pack(BUSYBOX, "lab/busybox.Containerfile", &["/bin/busybox=/bin/busybox".to_owned()])
    }

    /// Bowline itself, of a built program. The name is the one that the chart asks for.
    pub fn bowline(binary: &Path) -> Self {
        let mut programs = vec![format!("{}=/usr/bin/bowline", binary.display())];
        programs.extend(FILESYSTEMS.iter().map(ToString::to_string));
        let name = concat!("docker.io/library/bowline:", env!("CARGO_PKG_VERSION"));
        pack(name, "deploy/Containerfile", &programs)
    }

    /// The upstream sidecars, under the names that the chart asks for.
    pub fn sidecars() -> Vec<Self> {
        let values = fs::read_to_string(project().join("deploy/chart/values.yaml")).unwrap_or_default();
        SIDECARS
            .iter()
            .map(|(program, tool)| {
                let names = values.lines().filter_map(|line| line.trim().strip_prefix("image: "));
                let chosen = names.map(str::trim).find(|name| name.contains(&format!("/{program}:")));
                let name = chosen.map_or_else(|| format!("docker.io/library/{program}:lab"), str::to_owned);
                let file = tools(tool).join(program);
                pack(&name, "lab/sidecar.Containerfile", &[format!("{}=/sidecar", file.display())])
            })
            .collect()
    }
}

/// Packs an image unless the very same was packed before.
fn pack(name: &str, containerfile: &str, programs: &[String]) -> Image {
    let project = project();
    let script = project.join("lab/pack.sh");
    let sources = programs.iter().map(|program| match program.split_once('=') {
        Some((from, _)) => PathBuf::from(from),
        None if program.starts_with('/') => PathBuf::from(program),
        None => installed(program),
    });
    let mut files: Vec<PathBuf> = sources.collect();
    files.extend([script.clone(), project.join("lab/collect.sh"), project.join(containerfile)]);
    let short: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    let archives = cache().join("images");
    fs::create_dir_all(&archives).unwrap();
    let archive = archives.join(format!("{short}-{:016x}.tar", digest(&files, programs)));
    // Two tests that want the same image: the second finds it made.
    let lock = fs::File::create(archives.join(format!("{short}.lock"))).unwrap();
    lock.lock().unwrap();
    if !archive.exists() {
        let old = fs::read_dir(&archives).unwrap().map(|entry| entry.unwrap().path());
        for old in old.filter(|path| is_old(path, &short)) {
            let _ = fs::remove_file(old);
        }
        let output = Command::new("sh")
            .arg(script)
            .arg(project.join(containerfile))
            .arg(name)
            .arg(&archive)
            .args(programs)
            .output()
            .unwrap();
        assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    }
    Image { name: name.to_owned(), archive }
}

/// Whether a file is an archive of this image that nobody is about to use: one hour old.
fn is_old(path: &Path, short: &str) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let is_archive = name.strip_prefix(short).is_some_and(|rest| rest.len() == "-0123456789abcdef.tar".len());
    let age = fs::metadata(path).ok().and_then(|data| data.modified().ok()?.elapsed().ok());
    is_archive && age.is_some_and(|age| age > Duration::from_secs(3600))
}

/// What is built and may be thrown away, outside the tree.
pub(crate) fn cache() -> PathBuf {
    let home = || PathBuf::from(std::env::var_os("HOME").expect("HOME is set")).join(".cache");
    std::env::var_os("XDG_CACHE_HOME").map_or_else(home, PathBuf::from).join("bowline")
}

/// Tells whether something changed since an image was packed: the contents of these files, and these words.
fn digest(files: &[PathBuf], words: &[String]) -> u64 {
    let output = Command::new("sha256sum").args(files).output().unwrap();
    assert!(output.status.success(), "sha256sum: {}", String::from_utf8_lossy(&output.stderr));
    let mut hasher = DefaultHasher::new();
    (output.stdout, words).hash(&mut hasher);
    hasher.finish()
}
