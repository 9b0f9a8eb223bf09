//! Images for the cluster lab, made of programs of this machine.

use super::programs::{project, tools};
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The image of test pods and of their sandboxes.
pub const BUSYBOX: &str = "docker.io/library/busybox:lab";

/// What the node plugin runs to make, check and grow filesystems.
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
                pack(&name, "lab/Containerfile", &[format!("{}=/{program}", file.display())])
            })
            .collect()
    }
}

/// Packs an image unless the very same was packed before.
fn pack(name: &str, containerfile: &str, programs: &[String]) -> Image {
    let project = project();
    let script = project.join("lab/pack.sh");
    let mut digest = Digest::default();
    for file in [&script, &project.join(containerfile)] {
        digest.file(file);
    }
    for program in programs {
        digest.text(program);
        if let Some((from, _)) = program.split_once('=') {
            digest.file(Path::new(from));
        }
    }
    let short: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    let archives = cache().join("images");
    fs::create_dir_all(&archives).unwrap();
    let archive = archives.join(format!("{short}-{:016x}.tar", digest.0));
    // Two tests that want the same image: the second finds it made.
    let lock = fs::File::create(archives.join(format!("{short}.lock"))).unwrap();
    lock.lock().unwrap();
    if !archive.exists() {
        let old = fs::read_dir(&archives).unwrap().map(|entry| entry.unwrap().path());
        for old in old.filter(|path| is_older(path, &short)) {
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

/// Whether a file is an archive of this image, of whatever content.
fn is_older(path: &Path, short: &str) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    name.strip_prefix(short).is_some_and(|rest| rest.len() == "-0123456789abcdef.tar".len())
}

/// What is built and may be thrown away, outside the tree.
pub(super) fn cache() -> PathBuf {
    let home = || PathBuf::from(std::env::var_os("HOME").unwrap_or_else(|| "/root".into())).join(".cache");
    std::env::var_os("XDG_CACHE_HOME").map_or_else(home, PathBuf::from).join("bowline")
}

/// FNV-1a: finds out whether something changed, not whether somebody lies.
struct Digest(u64);

impl Default for Digest {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Digest {
    fn bytes(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    fn text(&mut self, text: &str) {
        self.bytes(text.as_bytes());
        self.bytes(&[0]);
    }

    fn file(&mut self, path: &Path) {
        let mut file = fs::File::open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let mut buffer = vec![0; 1 << 20];
        loop {
            match file.read(&mut buffer).unwrap() {
                0 => break,
                length => self.bytes(&buffer[..length]),
            }
        }
    }
}
