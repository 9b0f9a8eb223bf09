//! Who uses a device: mounts, in every namespace that can be seen, and processes. In words, for people.

use crate::device::DeviceNumber;
use crate::doctor::PROGRAMS;
use crate::host::Host;
use crate::mountinfo::{MountTable, escape};
use rustix::fs::{AtFlags, CWD, FileType, StatxFlags, statx};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

/// One user of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Holder {
    /// It is mounted.
    Mount {
        /// Where, in that process's view.
        at: PathBuf,
        /// A process that sees it, if it is not in our namespace.
        seen_by: Option<(u32, String)>,
    },
    /// A process has it open.
    Process {
        /// Which.
        pid: u32,
        /// The name of its program.
        name: String,
    },
    /// Another device lies on it (device-mapper, md).
    Device(String),
    /// It is mounted where this process cannot look: the kernel has a filesystem of this type on it.
    Elsewhere(&'static str),
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mount { at, seen_by: None } => write!(f, "mounted at {}", escape(at.as_os_str())),
            Self::Mount { at, seen_by: Some((pid, name)) } => {
                write!(f, "mounted at {} as process {pid} ({name}) sees it", escape(at.as_os_str()))
            }
            Self::Process { pid, name } => write!(f, "open in process {pid} ({name})"),
            Self::Device(name) => write!(f, "part of the device {name}"),
            Self::Elsewhere(kind) => write!(f, "mounted as {kind} where it cannot be seen from here"),
        }
    }
}

/// How many holders a sentence names.
const NAMED: usize = 5;

impl Host {
    /// Who uses a device, as far as this process may see.
    pub fn holders(&self, device: DeviceNumber) -> Vec<Holder> {
        let mut holders = Vec::new();
        if let Ok(table) = self.mounts() {
            holders.extend(self.mounts_of(&table, device, None));
        }
        for (pid, process) in self.other_namespaces() {
            if let Ok(table) = MountTable::read(&process.join("mountinfo")) {
                holders.extend(self.mounts_of(&table, device, Some((pid, name_of(&process)))));
            }
        }
        for (pid, process) in self.processes() {
            if has_open(&process, device) {
                holders.push(Holder::Process { pid, name: name_of(&process) });
            }
        }
        let above = self.roots.sys.join(format!("dev/block/{device}/holders"));
        let above = std::fs::read_dir(above).into_iter().flatten().flatten();
        holders.extend(above.map(|entry| Holder::Device(entry.file_name().to_string_lossy().into_owned())));
        if holders.is_empty() {
            holders.extend(self.filesystem_on(device).map(Holder::Elsewhere));
        }
        holders
    }

    /// Whether one of the programs that are run here on devices has a device open.
    pub fn is_in_a_programs_hands(&self, device: DeviceNumber) -> bool {
        let is_ours = |process: &Path| {
            let name = name_of(process);
            PROGRAMS.iter().any(|(program, ..)| *program == name)
        };
        self.processes().any(|(_, process)| is_ours(&process) && has_open(&process, device))
    }

    /// The filesystem that the kernel has mounted from a device, in whichever namespace, for those that say so.
    fn filesystem_on(&self, device: DeviceNumber) -> Option<&'static str> {
        let sys = &self.roots.sys;
        let name = std::fs::read_link(sys.join(format!("dev/block/{device}"))).ok()?;
        let name = name.file_name()?;
        ["ext4", "xfs"].into_iter().find(|kind| sys.join("fs").join(kind).join(name).exists())
    }

    fn mounts_of<'a>(
        &'a self,
        table: &'a MountTable,
        device: DeviceNumber,
        seen_by: Option<(u32, String)>,
    ) -> impl Iterator<Item = Holder> + 'a {
        table
            .of_device(device, |node| self.node_number(node))
            .map(move |mount| Holder::Mount { at: mount.at.clone(), seen_by: seen_by.clone() })
    }

    /// One process for every mount namespace that is not ours.
    pub(crate) fn other_namespaces(&self) -> Vec<(u32, PathBuf)> {
        let mut namespaces = BTreeSet::from_iter(self.namespace(&self.roots.proc.join("thread-self")));
        let mut is_new =
            |(_, process): &(u32, PathBuf)| self.namespace(process).is_some_and(|one| namespaces.insert(one));
        self.processes().filter(|found| is_new(found)).collect()
    }

    fn namespace(&self, process: &Path) -> Option<OsString> {
        std::fs::read_link(process.join("ns/mnt")).ok().map(PathBuf::into_os_string)
    }

    fn processes(&self) -> impl Iterator<Item = (u32, PathBuf)> {
        let entries = std::fs::read_dir(&self.roots.proc).into_iter().flatten().flatten();
        entries.filter_map(|entry| Some((entry.file_name().to_str()?.parse().ok()?, entry.path())))
    }

    /// Who uses a device, in one sentence.
    pub fn users_of_device(&self, device: DeviceNumber) -> String {
        let holders = self.holders(device);
        if holders.is_empty() {
            return "by something that cannot be seen from here".to_owned();
        }
        sentence(&holders.iter().map(ToString::to_string).collect::<Vec<_>>())
    }

    /// Processes that keep a mount from being unmounted: by an open file, their directory or their root.
    pub(crate) fn users_of_mount(&self, path: &Path) -> String {
        let uses = |process: &Path| {
            let open = std::fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
            let links = open.map(|entry| entry.path()).chain([process.join("cwd"), process.join("root")]);
            links.filter_map(|link| std::fs::read_link(link).ok()).any(|target| target.starts_with(path))
        };
        let users = self.processes().filter(|(_, process)| uses(process));
        let users: Vec<_> =
            users.map(|(pid, process)| format!("used by process {pid} ({})", name_of(&process))).collect();
        if users.is_empty() {
            "by something that cannot be seen from here".to_owned()
        } else {
            sentence(&users)
        }
    }
}

fn sentence(parts: &[String]) -> String {
    let named = parts.iter().take(NAMED).cloned().collect::<Vec<_>>().join(", ");
    let more = parts.len().saturating_sub(NAMED);
    if more == 0 { named } else { format!("{named} and {more} more") }
}

fn name_of(process: &Path) -> String {
    let name = std::fs::read(process.join("comm")).unwrap_or_default();
    String::from_utf8_lossy(&name).trim_end().chars().flat_map(char::escape_debug).collect()
}

fn has_open(process: &Path, device: DeviceNumber) -> bool {
    let open = std::fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
    open.into_iter().any(|entry| {
        // Without asking a server: the other descriptors may be files on a share that does not answer.
        let flags = AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT;
        statx(CWD, entry.path(), flags, StatxFlags::TYPE).is_ok_and(|stat| {
            FileType::from_raw_mode(stat.stx_mode.into()) == FileType::BlockDevice
                && DeviceNumber { major: stat.stx_rdev_major, minor: stat.stx_rdev_minor } == device
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::Programs;
    use crate::host::Roots;
    use std::fs;

    /// A recorded machine: our own table, a process in another namespace, and a device on top.
    #[test]
    fn users_are_found_in_every_namespace_and_named_for_people() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let process = |name: &str, namespace: &str, mounts: &str| {
            fs::create_dir_all(at(&format!("proc/{name}/ns"))).unwrap();
            fs::create_dir_all(at(&format!("proc/{name}/fd"))).unwrap();
            std::os::unix::fs::symlink(namespace, at(&format!("proc/{name}/ns/mnt"))).unwrap();
            fs::write(at(&format!("proc/{name}/mountinfo")), mounts).unwrap();
            fs::write(at(&format!("proc/{name}/comm")), "post\tgres\n").unwrap();
        };
        let ours = "30 1 7:3 / /mnt/a\\040b rw - ext4 /dev/loop3 rw\n";
        process("thread-self", "mnt:[1]", ours);
        process("41", "mnt:[1]", ours);
        process("42", "mnt:[2]", "31 1 7:3 / /data rw - ext4 /dev/loop3 rw\n");
        process("43", "mnt:[2]", "31 1 7:3 / /data rw - ext4 /dev/loop3 rw\n");
        process("44", "mnt:[3]", "this is not a table\n");
        fs::create_dir_all(at("sys/dev/block/7:3/holders/dm-0")).unwrap();
        let roots = Roots { proc: at("proc"), sys: at("sys"), dev: at("dev") };
        let host = Host::new(roots, Programs::default());

        let said: Vec<_> = host.holders("7:3".parse().unwrap()).iter().map(ToString::to_string).collect();
        assert_eq!(said.len(), 3, "each namespace once: {said:?}");
        assert_eq!(said[0], r"mounted at /mnt/a\040b");
        let process = said[1].trim_start_matches("mounted at /data as process 4").to_owned();
        assert!(
            ["2 (post\\tgres) sees it", "3 (post\\tgres) sees it"].contains(&process.as_str()),
            "{said:?}"
        );
        assert_eq!(said[2], "part of the device dm-0");
        assert_eq!(
            host.users_of_device("7:4".parse().unwrap()),
            "by something that cannot be seen from here"
        );
    }

    /// As in a container, or on another node that shares the kernel: nobody's mounts can be seen, and the filesystem can.
    #[test]
    fn a_filesystem_that_is_mounted_out_of_sight_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::create_dir_all(at("sys/dev/block")).unwrap();
        std::os::unix::fs::symlink("../../devices/virtual/block/loop3", at("sys/dev/block/7:3")).unwrap();
        let host = Host::new(Roots { proc: at("proc"), sys: at("sys"), dev: at("dev") }, Programs::default());
        let device = "7:3".parse().unwrap();
        assert_eq!(host.holders(device), []);
        for kind in ["xfs", "ext4"] {
            fs::create_dir_all(at(&format!("sys/fs/{kind}/loop3"))).unwrap();
            let said = format!("mounted as {kind} where it cannot be seen from here");
            assert_eq!(host.users_of_device(device), said);
        }
        fs::create_dir_all(at("sys/devices/virtual/block/loop3/holders/dm-0")).unwrap();
        assert_eq!(host.users_of_device(device), "part of the device dm-0", "what can be seen says more");
    }

    #[test]
    fn a_long_list_is_cut() {
        let many: Vec<_> = (0..8).map(|index| index.to_string()).collect();
        assert_eq!(sentence(&many), "0, 1, 2, 3, 4 and 3 more");
    }
}
