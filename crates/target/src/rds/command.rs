//! Commands, word by word. Text goes between quotes, so that nothing in it becomes a second parameter; sizes lose nothing; and
//! whatever changes a disk says which state of it is meant.

use super::number::exactly;
use super::quote::quote;
use std::fmt;

/// One thing that a disk has, as it is set and as it is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Property<'a> {
    /// What the disk is called.
    Slot(&'a str),
    /// Where its file lies.
    FilePath(&'a str),
    /// How long its file is.
    FileSize(u64),
    /// How many bytes it has. To look for only.
    Size(u64),
    /// Whether it can be reached over NVMe/TCP.
    Export(bool),
    /// At which port.
    Port(u16),
    /// Under which name.
    ServerNqn(&'a str),
    /// By which host and no other; by all if it is empty.
    AllowHost(&'a str),
}

/// What the device calls the host that may connect. Older firmware does not know it.
pub const ALLOW_HOST: &str = "nvme-tcp-server-allow-host-name";
/// What it calls the name under which a disk is exported.
pub const SERVER_NQN: &str = "nvme-tcp-server-nqn";
/// Whether a disk is exported.
pub const EXPORT: &str = "nvme-tcp-export";

impl fmt::Display for Property<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Slot(slot) => write!(f, "slot={}", quote(slot)),
            Self::FilePath(path) => write!(f, "file-path={}", quote(path)),
            Self::FileSize(bytes) => write!(f, "file-size={}", exactly(*bytes)),
            Self::Size(bytes) => write!(f, "size={bytes}"),
            Self::Export(on) => write!(f, "{EXPORT}={}", if *on { "yes" } else { "no" }),
            Self::Port(port) => write!(f, "nvme-tcp-server-port={port}"),
            Self::ServerNqn(nqn) => write!(f, "{SERVER_NQN}={}", quote(nqn)),
            Self::AllowHost(nqn) => write!(f, "{ALLOW_HOST}={}", quote(nqn)),
        }
    }
}

/// A disk in one state. A command about it finds nothing once the disk is in another, however late the command comes and whoever has
/// sent it: the name of the export carries the epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Find<'a> {
    /// What it is called.
    pub slot: &'a str,
    /// The name of its export now.
    pub nqn: &'a str,
    /// What else must be so.
    pub also: &'a [Property<'a>],
}

impl fmt::Display for Find<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[find {} {}", Property::Slot(self.slot), Property::ServerNqn(self.nqn))?;
        self.also.iter().try_for_each(|property| write!(f, " {property}"))?;
        f.write_str("]")
    }
}

/// Properties with spaces before them.
struct Words<'a>(&'a [Property<'a>]);

impl fmt::Display for Words<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|property| write!(f, " {property}"))
    }
}

/// Shows the disk in a slot.
pub fn print_slot(slot: &str) -> String {
    format!("/disk print detail where {}", Property::Slot(slot))
}

/// Shows the disk of a pool.
pub fn print_pool(mount_point: &str) -> String {
    format!("/disk print detail where mount-point={}", quote(mount_point))
}

/// Shows all disks. Without a condition, so that a device that reads one otherwise than meant does not show an empty list.
pub fn print_all() -> String {
    "/disk print detail".to_owned()
}

/// Shows the files whose names have this in them, and perhaps others: the device takes it for a pattern.
pub fn print_files(with: &str) -> String {
    format!("/file print detail where name~{}", quote(with))
}

/// Makes a disk over a new file.
pub fn add(properties: &[Property<'_>]) -> String {
    format!("/disk add type=file{}", Words(properties))
}

/// Makes a disk over a copy of another one's file.
pub fn copy(source: &Find<'_>, properties: &[Property<'_>]) -> String {
    format!("/disk add type=file copy-from={source}{}", Words(properties))
}

/// Changes a disk.
pub fn set(disk: &Find<'_>, properties: &[Property<'_>]) -> String {
    format!("/disk set {disk}{}", Words(properties))
}

/// Removes a disk; its file stays.
pub fn remove(disk: &Find<'_>) -> String {
    format!("/disk remove {disk}")
}

/// Removes a file.
pub fn remove_file(name: &str) -> String {
    format!("/file remove [find name={}]", quote(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_look_like_this() {
        let disk = Find { slot: "pvc-1", nqn: "nqn.x:pvc-1:c3", also: &[Property::Export(false)] };
        insta::assert_snapshot!([
            print_slot("pvc-1"),
            print_pool("storage-pool"),
            print_all(),
            print_files("storage-pool/bowline/pvc-1."),
            add(&[
                Property::FilePath("/storage-pool/bowline/pvc-1.img"),
                Property::FileSize(3 << 29),
                Property::Slot("pvc-1"),
                Property::Export(false),
                Property::Port(4420),
                Property::ServerNqn("nqn.x:pvc-1:c0"),
            ]),
            copy(&disk, &[Property::FilePath("/storage-pool/bowline/snap-1.img"), Property::Slot("snap-1")]),
            set(&disk, &[Property::ServerNqn("nqn.x:pvc-1:e4"), Property::AllowHost("nqn.h"), Property::Export(true)]),
            remove(&disk),
            remove_file("storage-pool/bowline/pvc-1.img"),
        ].join("\n"), @r#"
        /disk print detail where slot="pvc-1"
        /disk print detail where mount-point="storage-pool"
        /disk print detail
        /file print detail where name~"storage-pool/bowline/pvc-1."
        /disk add type=file file-path="/storage-pool/bowline/pvc-1.img" file-size=1536M slot="pvc-1" nvme-tcp-export=no nvme-tcp-server-port=4420 nvme-tcp-server-nqn="nqn.x:pvc-1:c0"
        /disk add type=file copy-from=[find slot="pvc-1" nvme-tcp-server-nqn="nqn.x:pvc-1:c3" nvme-tcp-export=no] file-path="/storage-pool/bowline/snap-1.img" slot="snap-1"
        /disk set [find slot="pvc-1" nvme-tcp-server-nqn="nqn.x:pvc-1:c3" nvme-tcp-export=no] nvme-tcp-server-nqn="nqn.x:pvc-1:e4" nvme-tcp-server-allow-host-name="nqn.h" nvme-tcp-export=yes
        /disk remove [find slot="pvc-1" nvme-tcp-server-nqn="nqn.x:pvc-1:c3" nvme-tcp-export=no]
        /file remove [find name="storage-pool/bowline/pvc-1.img"]
        "#);
    }

    #[test]
    fn a_space_in_a_path_became_a_second_parameter() {
        let path = "/storage pool/a slot=other nvme-tcp-export=yes.img";
        let command = add(&[Property::FilePath(path), Property::Slot("pvc-1")]);
        assert_eq!(
            command,
            r#"/disk add type=file file-path="/storage pool/a slot=other nvme-tcp-export=yes.img" slot="pvc-1""#
        );
        let hostile = "x\" nvme-tcp-export=yes; /disk remove [find] # $y";
        assert_eq!(
            print_slot(hostile),
            r#"/disk print detail where slot="x\" nvme-tcp-export=yes; /disk remove \5Bfind\5D # \$y""#
        );
    }
}
