//! What this machine can do, and what is missing for what.

use crate::file::{Abilities, abilities};
use crate::format::FsType;
use crate::host::Host;
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;
use rustix::mount::{FsOpenFlags, fsopen};
use std::fmt;
use std::io::{self, ErrorKind};
use std::path::Path;

/// One thing that was looked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What.
    pub what: String,
    /// What it is for.
    pub needed_for: &'static str,
    /// Whether it is there.
    pub state: Presence,
}

/// Whether something is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Presence {
    /// It is; with its version or place where that says more.
    Present(String),
    /// It is not, and why it is thought so.
    Missing(String),
}

impl Finding {
    /// Whether it is there.
    pub fn is_present(&self) -> bool {
        matches!(self.state, Presence::Present(_))
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.state {
            Presence::Present(how) => write!(f, "ok       {} ({how})", self.what),
            Presence::Missing(why) => {
                write!(f, "missing  {} ({why}); needed for {}", self.what, self.needed_for)
            }
        }
    }
}

/// Program, package on Debian, what it is for.
pub(crate) const PROGRAMS: &[(&str, &str, &str)] = &[
    ("mkfs.ext4", "e2fsprogs", "ext4 volumes"),
    ("e2fsck", "e2fsprogs", "ext4 volumes"),
    ("resize2fs", "e2fsprogs", "growing ext4 volumes"),
    ("mkfs.xfs", "xfsprogs", "xfs volumes"),
    ("xfs_repair", "xfsprogs", "xfs volumes whose mkfs was interrupted"),
    ("xfs_growfs", "xfsprogs", "growing xfs volumes"),
    ("mkfs.btrfs", "btrfs-progs", "btrfs volumes"),
    ("btrfs", "btrfs-progs", "btrfs volumes"),
];

/// Files of the kernel in `/dev`: path, name, what it is for.
const FILES: &[(&str, &str, &str)] =
    &[LOOPS, ("fuse", "FUSE", "S3 mounts"), ("nvme-fabrics", "NVMe over fabrics", "volumes over NVMe/TCP")];

/// The first of them.
const LOOPS: (&str, &str, &str) = ("loop-control", "loop devices", "volumes of the file target");

/// What a machine needs that exports volumes over NVMe/TCP, and the modules that bring it.
const NVME_TARGET: &str = "serving volumes over NVMe/TCP from this machine";
const NVME_MODULES: [&str; 4] = ["configfs", "nvmet", "nvmet-tcp", "loop"];

/// The bit of the right to grow ext4 while it is mounted.
pub(crate) const CAP_SYS_RESOURCE: u32 = 24;

/// Bit, name, what it lets us do, what for. The kernel asks for the second one when ext4 is grown (`ext4_resize_begin`).
const CAPABILITIES: &[(u32, &str, &str, &str)] = &[
    (21, "CAP_SYS_ADMIN", "the right to mount", "mounting volumes"),
    (
        CAP_SYS_RESOURCE,
        "CAP_SYS_RESOURCE",
        "the right to grow ext4 while it is mounted",
        "growing ext4 volumes that are in use",
    ),
];

/// What a disk over several connections is called here.
const MULTIPATH: &str = "native NVMe multipath";

impl Host {
    /// Looks for everything Bowline uses on a machine. Changes nothing.
    pub fn probe_machine(&self) -> Vec<Finding> {
        let mut findings = vec![self.release((5, 12), "mounting volumes"), resolution(), mount_calls()];
        findings.extend(CAPABILITIES.iter().map(|(bit, name, what, needed_for)| {
            let present = self.is_capable(*bit).then(|| (*name).to_owned());
            finding(what, needed_for, present, &format!("this process has no {name}"))
        }));
        findings.extend(FILES.iter().map(|file| self.device_file(file)));
        findings.extend(self.nvme());
        findings.extend(self.probe_nvme_target());
        findings.extend(FsType::ALL.map(|fs| self.filesystem(fs)));
        findings.extend(PROGRAMS.iter().map(|(program, package, needed_for)| {
            let place = self.programs.find(program).map(|file| file.display().to_string());
            finding(program, needed_for, place, &format!("the Debian package {package} has it"))
        }));
        findings
    }

    /// A host name of its own is not among them: it comes with each grant.
    fn nvme(&self) -> [Finding; 2] {
        let module = |name: &str| self.roots.sys.join("module").join(name);
        let tcp = module("nvme_tcp").exists().then(|| "loaded".to_owned());
        let why = "the module nvme_tcp is not loaded; modprobe nvme_tcp";
        let multipath = std::fs::read_to_string(module("nvme_core").join("parameters/multipath"));
        let multipath = multipath.unwrap_or_default();
        let on = (multipath.trim() == "Y").then(|| "nvme_core.multipath=Y".to_owned());
        let off = "without it one of a target's addresses is used; boot with nvme_core.multipath=Y";
        [
            finding("NVMe over TCP", "volumes over NVMe/TCP", tcp, why),
            finding(MULTIPATH, "several addresses of a target over NVMe/TCP", on, off),
        ]
    }

    fn device_file(&self, (path, what, needed_for): &(&str, &str, &'static str)) -> Finding {
        let file = self.roots.dev.join(path);
        let present = file.exists().then(|| file.display().to_string());
        finding(what, needed_for, present, "the kernel does not offer it")
    }

    /// Looks for what a machine needs that exports volumes over NVMe/TCP. Changes nothing.
    pub fn probe_nvme_target(&self) -> Vec<Finding> {
        let place = self.roots.sys.join("kernel/config");
        let mounted = self.mounts().is_ok_and(|table| table.iter().any(|mount| mount.at == place));
        let shown = |path: std::path::PathBuf, is: bool| is.then(|| path.display().to_string());
        let (tree, tcp) = (place.join("nvmet"), self.roots.sys.join("module/nvmet_tcp"));
        let rows = [
            ("configfs", shown(place.clone(), mounted || tree.exists()), {
                format!("it is not mounted; mount -t configfs none {}", place.display())
            }),
            ("the NVMe target", shown(tree.clone(), tree.exists()), {
                "the module nvmet is not loaded; modprobe nvmet".to_owned()
            }),
            ("the NVMe target over TCP", shown(tcp.clone(), tcp.exists()), {
                "the module nvmet_tcp is not loaded; modprobe nvmet-tcp".to_owned()
            }),
        ];
        let rows = rows.map(|(what, present, why)| finding(what, NVME_TARGET, present, &why));
        // What a fence rests on was only seen from this one on.
        [self.release((6, 1), NVME_TARGET)].into_iter().chain(rows).collect()
    }

    /// Loads what [`Self::probe_nvme_target`] misses, and the loop devices that nodes need who may only read, as far as this machine
    /// lets it, and says what is there then.
    pub fn load_nvme_target(&self) -> Vec<Finding> {
        let look = || {
            let mut found = self.probe_nvme_target();
            found.push(self.device_file(&LOOPS));
            found
        };
        let found = look();
        if found.iter().all(Finding::is_present) {
            return found;
        }
        for module in NVME_MODULES {
            // What did not work is seen below; a kernel may have it without a module.
            let _ = self.programs.run("modprobe", &[module]);
        }
        look()
    }

    fn release(&self, (major, minor): (u32, u32), needed_for: &'static str) -> Finding {
        let release =
            std::fs::read_to_string(self.roots.proc.join("sys/kernel/osrelease")).unwrap_or_default();
        let release = release.trim();
        let mut numbers = release.split(['.', '-']).map(str::parse::<u32>);
        let version = (numbers.next().and_then(Result::ok), numbers.next().and_then(Result::ok));
        let new_enough = version >= (Some(major), Some(minor));
        let why = format!("this is {release:?}");
        finding(&format!("Linux {major}.{minor}"), needed_for, new_enough.then(|| release.to_owned()), &why)
    }

    pub(crate) fn is_capable(&self, bit: u32) -> bool {
        let status = std::fs::read_to_string(self.roots.proc.join("self/status")).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
        let effective = line.and_then(|line| u64::from_str_radix(line.trim(), 16).ok()).unwrap_or_default();
        effective & (1 << bit) != 0
    }

    /// /proc/filesystems lists what is there now; a module that can be loaded comes with the first mount.
    fn filesystem(&self, fs: FsType) -> Finding {
        let needed_for = match fs {
            FsType::Ext4 => "ext4 volumes",
            FsType::Xfs => "xfs volumes",
            FsType::Btrfs => "btrfs volumes",
        };
        let known = std::fs::read_to_string(self.roots.proc.join("filesystems")).unwrap_or_default();
        let built_in = known.lines().any(|line| line.split_whitespace().last() == Some(fs.name()));
        let release =
            std::fs::read_to_string(self.roots.proc.join("sys/kernel/osrelease")).unwrap_or_default();
        let module = format!("/lib/modules/{}/kernel/fs/{fs}", release.trim());
        let present = if built_in {
            Some("in the kernel".to_owned())
        } else {
            Path::new(&module).exists().then(|| "as a module".to_owned())
        };
        finding(&format!("the filesystem {fs}"), needed_for, present, "the kernel does not have it")
    }
}

/// Looks for what a directory needs whose volumes are exported over NVMe/TCP. Leaves nothing there.
pub fn probe_nvme_directory(directory: &Path) -> [Finding; 2] {
    in_directory(directory, &abilities(directory))
}

fn in_directory(directory: &Path, found: &io::Result<Abilities>) -> [Finding; 2] {
    let row = |what: &str, has: fn(&Abilities) -> bool, why: &str| {
        let there = Some(directory.display().to_string());
        let (present, why) = match found {
            Ok(found) => (there.filter(|_| has(found)), why.to_owned()),
            // There are volumes, so it was tried once, and whoever is in must be shut out also then.
            Err(error) if matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded) => {
                (Some("not tried: the disk is full".to_owned()), String::new())
            }
            Err(error) => (None, error.to_string()),
        };
        finding(&format!("{what} in {}", directory.display()), NVME_TARGET, present, &why)
    };
    [
        row(
            "direct I/O",
            |found| found.direct,
            "its filesystem has none (O_DIRECT), so what a node was told is written might not be; use xfs or btrfs",
        ),
        row(
            "shared blocks",
            |found| found.reflink,
            "its filesystem has none (reflink), so nothing could be copied while a node writes; use xfs or btrfs",
        ),
    ]
}

fn finding(what: &str, needed_for: &'static str, present: Option<String>, why: &str) -> Finding {
    let state = present.map_or_else(|| Presence::Missing(why.to_owned()), Presence::Present);
    Finding { what: what.to_owned(), needed_for, state }
}

fn resolution() -> Finding {
    let tried = openat2(CWD, "/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), ResolveFlags::NO_SYMLINKS);
    let present = tried.is_ok().then(|| "openat2".to_owned());
    finding("paths without symlinks", "every path of a request", present, "openat2 does not work here")
}

fn mount_calls() -> Finding {
    // Asked for a filesystem that cannot exist: "no such filesystem" means that the call itself is there.
    let tried = fsopen("bowline-none", FsOpenFlags::FSOPEN_CLOEXEC);
    let present = matches!(tried, Ok(_) | Err(Errno::NODEV)).then(|| "fsopen".to_owned());
    let why = match tried {
        Err(Errno::PERM) => "this process may not mount".to_owned(),
        Err(error) => error.to_string(),
        Ok(_) => String::new(),
    };
    finding("the mount calls", "mounting volumes", present, &why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_must_have_direct_writes_and_shared_blocks() {
        let told = |found: io::Result<Abilities>| {
            in_directory(Path::new("/srv"), &found).map(|finding| finding.to_string())
        };
        let of = |reflink, direct| told(Ok(Abilities { reflink, direct }));
        assert_eq!(
            of(true, true),
            ["ok       direct I/O in /srv (/srv)", "ok       shared blocks in /srv (/srv)"]
        );
        let [direct, shared] = of(false, false);
        assert!(
            direct.starts_with("missing  direct I/O in /srv (its filesystem has none (O_DIRECT)"),
            "{direct}"
        );
        assert!(
            shared.starts_with("missing  shared blocks in /srv (its filesystem has none (reflink)"),
            "{shared}"
        );
        assert!(shared.ends_with("; needed for serving volumes over NVMe/TCP from this machine"), "{shared}");
        let gone = told(Err(ErrorKind::NotFound.into()));
        assert!(gone.iter().all(|line| line.starts_with("missing")), "{gone:?}");
    }

    /// An agent that did not start on a full disk could shut nobody out.
    #[test]
    fn a_full_disk_on_which_it_cannot_be_tried_lacks_nothing() {
        assert!(
            in_directory(Path::new("/srv"), &Err(ErrorKind::StorageFull.into()))
                .iter()
                .all(Finding::is_present)
        );
    }
}
