//! Mount options that may come from outside, and what each means to the kernel.
//!
//! A list of what is allowed, never of what is forbidden. `nosuid` and `nodev` are always on: a volume's content is
//! its user's, and a setuid program or a device node in it would be theirs on the node as well.

use crate::format::FsType;
use crate::mountinfo::{Mount, Options};
use rustix::mount::MountAttrFlags;
use std::ffi::OsStr;
use std::fmt;

/// Why an option is not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OptionError {
    /// It would give a volume's content power over the node.
    #[error("the mount option `{0}` is never allowed: volumes are mounted nosuid and nodev")]
    Refused(String),
    /// Not on the list for this filesystem.
    #[error("the mount option `{option}` is not allowed for {fs}; allowed are {}", allowed(*fs))]
    Unknown {
        /// The option, cut to a bounded length.
        option: String,
        /// For which filesystem.
        fs: FsType,
    },
    /// Two that contradict each other.
    #[error("the mount options `{0}` and `{1}` contradict each other")]
    Contradiction(&'static str, &'static str),
    /// Skipping the log on a filesystem that is then written to destroys it.
    #[error("the mount option `norecovery` needs `ro`")]
    NeedsReadOnly,
}

/// What an option is for the kernel.
#[derive(Clone, Copy)]
enum Meaning {
    ReadOnly,
    ReadWrite,
    /// Of the mount alone.
    Mount(MountAttrFlags),
    /// Of the filesystem: a flag, or a key with a value.
    Flag,
    Value(&'static str, &'static str),
    /// What is so anyway.
    Always,
}

use Meaning::{Always, Flag, ReadOnly, ReadWrite, Value};

const ANY: &[(&str, Meaning)] = &[
    ("ro", ReadOnly),
    ("rw", ReadWrite),
    ("defaults", Always),
    ("nosuid", Always),
    ("nodev", Always),
    ("noexec", Meaning::Mount(MountAttrFlags::MOUNT_ATTR_NOEXEC)),
    ("noatime", Meaning::Mount(MountAttrFlags::MOUNT_ATTR_NOATIME)),
    ("relatime", Always),
    ("strictatime", Meaning::Mount(MountAttrFlags::MOUNT_ATTR_STRICTATIME)),
    ("nodiratime", Meaning::Mount(MountAttrFlags::MOUNT_ATTR_NODIRATIME)),
    ("sync", Flag),
    ("dirsync", Flag),
    ("lazytime", Flag),
];

const EXT4: &[(&str, Meaning)] = &[
    ("discard", Flag),
    ("nodiscard", Flag),
    ("norecovery", Flag),
    ("errors=remount-ro", Value("errors", "remount-ro")),
    ("data=ordered", Value("data", "ordered")),
    ("data=journal", Value("data", "journal")),
];

const XFS: &[(&str, Meaning)] =
    &[("discard", Flag), ("nodiscard", Flag), ("norecovery", Flag), ("nouuid", Flag), ("inode64", Flag)];

const BTRFS: &[(&str, Meaning)] = &[
    ("discard", Flag),
    ("nodiscard", Flag),
    ("discard=async", Value("discard", "async")),
    ("compress=zstd", Value("compress", "zstd")),
    ("compress=lzo", Value("compress", "lzo")),
    ("compress=zlib", Value("compress", "zlib")),
];

fn own(fs: FsType) -> &'static [(&'static str, Meaning)] {
    match fs {
        FsType::Ext4 => EXT4,
        FsType::Xfs => XFS,
        FsType::Btrfs => BTRFS,
    }
}

/// The options that are allowed for a filesystem, for people.
pub fn allowed(fs: FsType) -> String {
    ANY.iter().chain(own(fs)).map(|(name, _)| *name).collect::<Vec<_>>().join(", ")
}

/// How a filesystem is mounted. Always `nosuid,nodev`.
#[derive(Clone, PartialEq, Eq)]
pub struct MountOptions {
    pub(crate) fs: FsType,
    pub(crate) read_only: bool,
    pub(crate) attributes: MountAttrFlags,
    pub(crate) flags: Vec<&'static str>,
    pub(crate) values: Vec<(&'static str, &'static str)>,
}

impl fmt::Debug for MountOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MountOptions")
            .field("fs", &self.fs)
            .field("options", &self.shown())
            .field("flags", &self.flags)
            .field("values", &self.values)
            .finish()
    }
}

/// What the kernel calls the attributes in mountinfo.
const SHOWN: &[(MountAttrFlags, &str)] = &[
    (MountAttrFlags::MOUNT_ATTR_NOSUID, "nosuid"),
    (MountAttrFlags::MOUNT_ATTR_NODEV, "nodev"),
    (MountAttrFlags::MOUNT_ATTR_NOEXEC, "noexec"),
    (MountAttrFlags::MOUNT_ATTR_NOATIME, "noatime"),
    (MountAttrFlags::MOUNT_ATTR_NODIRATIME, "nodiratime"),
];

impl MountOptions {
    /// A filesystem's defaults.
    pub fn new(fs: FsType) -> Self {
        let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
        Self { fs, read_only: false, attributes, flags: Vec::new(), values: Vec::new() }
    }

    /// From the strings of a request; each may hold several, separated by commas.
    pub fn parse<'a>(fs: FsType, strings: impl IntoIterator<Item = &'a str>) -> Result<Self, OptionError> {
        let mut options = Self::new(fs);
        let (mut writable, mut strict) = (false, false);
        for word in strings.into_iter().flat_map(|string| string.split(',')).filter(|word| !word.is_empty()) {
            if matches!(word, "suid" | "dev") {
                return Err(OptionError::Refused(word.to_owned()));
            }
            let known = ANY.iter().chain(own(fs)).find(|(name, _)| *name == word);
            let (name, meaning) = known.ok_or_else(|| OptionError::Unknown {
                option: word.chars().take(80).flat_map(char::escape_debug).collect(),
                fs,
            })?;
            match *meaning {
                ReadOnly => options.read_only = true,
                ReadWrite => writable = true,
                Meaning::Mount(attribute) => {
                    strict |= *name == "strictatime";
                    options.attributes |= attribute;
                }
                Flag if !options.flags.contains(name) => options.flags.push(name),
                Value(key, value) if !options.values.contains(&(key, value)) => {
                    options.values.push((key, value));
                }
                Flag | Value(..) | Always => {}
            }
        }
        options.consistent(writable, strict)
    }

    fn consistent(self, writable: bool, strict: bool) -> Result<Self, OptionError> {
        let has = |flag| self.flags.contains(&flag);
        if self.read_only && writable {
            return Err(OptionError::Contradiction("ro", "rw"));
        }
        if has("discard") && has("nodiscard") {
            return Err(OptionError::Contradiction("discard", "nodiscard"));
        }
        if strict && self.attributes.contains(MountAttrFlags::MOUNT_ATTR_NOATIME) {
            return Err(OptionError::Contradiction("noatime", "strictatime"));
        }
        if has("norecovery") && !self.read_only {
            return Err(OptionError::NeedsReadOnly);
        }
        Ok(self)
    }

    /// The same, but read-only.
    #[must_use]
    pub fn read_only(mut self) -> Self {
        self.read_only = true;
        self
    }

    /// How mountinfo will show the mount's own options; the order is the kernel's.
    pub(crate) fn shown(&self) -> Vec<&'static str> {
        shown(self.read_only, self.attributes)
    }
}

/// `ro` or `rw`, and the attributes that mountinfo shows for every filesystem alike.
pub(crate) fn shown(read_only: bool, attributes: MountAttrFlags) -> Vec<&'static str> {
    let attributes = SHOWN.iter().filter(|(flag, _)| attributes.contains(*flag)).map(|(_, name)| *name);
    std::iter::once(if read_only { "ro" } else { "rw" }).chain(attributes).collect()
}

/// How mountinfo shows a copy of a mount that was given more attributes: it keeps those of the original.
pub(crate) fn inherited(
    from: Option<&Mount>,
    read_only: bool,
    attributes: MountAttrFlags,
) -> Vec<&'static str> {
    let had = |name: &str| from.is_some_and(|mount| mount.has(name));
    let kept = SHOWN.iter().filter(|(_, name)| *name != "nodev" && had(name)).map(|(flag, _)| *flag);
    shown(read_only || had("ro"), kept.fold(attributes, MountAttrFlags::union))
}

/// The options among mountinfo's that [`shown`] would name.
pub(crate) fn comparable(options: &Options) -> Vec<&str> {
    let named =
        |option: &&str| matches!(*option, "ro" | "rw") || SHOWN.iter().any(|(_, name)| name == option);
    options.iter().filter_map(OsStr::to_str).filter(named).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_taken_from_the_list_only() {
        use FsType::{Btrfs, Ext4, Xfs};
        for (fs, given, expected) in [
            (Ext4, &["ro"][..], Ok("ro,nosuid,nodev|")),
            (Ext4, &["noatime,discard", "", "discard"], Ok("rw,nosuid,nodev,noatime|discard")),
            (Ext4, &["errors=remount-ro"], Ok("rw,nosuid,nodev|errors=remount-ro")),
            (Xfs, &["nouuid", "noexec"], Ok("rw,nosuid,nodev,noexec|nouuid")),
            (Btrfs, &["compress=zstd", "discard=async"], Ok("rw,nosuid,nodev|compress=zstd,discard=async")),
            (Xfs, &["norecovery", "ro"], Ok("ro,nosuid,nodev|norecovery")),
            (Xfs, &["norecovery"], Err("the mount option `norecovery` needs `ro`")),
            (Ext4, &["suid"], Err("`suid` is never allowed")),
            (Ext4, &["ro,dev"], Err("`dev` is never allowed")),
            (Ext4, &["nouuid"], Err("`nouuid` is not allowed for ext4; allowed are ro, rw,")),
            (Xfs, &["logdev=/dev/sda"], Err("`logdev=/dev/sda` is not allowed for xfs")),
            (Ext4, &["ro\n"], Err("`ro\\n` is not allowed")),
            (Ext4, &["ro", "rw"], Err("`ro` and `rw` contradict")),
            (Ext4, &["discard,nodiscard"], Err("contradict")),
            (Ext4, &["noatime", "strictatime"], Err("contradict")),
            (Ext4, &["RO"], Err("`RO` is not allowed")),
        ] {
            let parsed = MountOptions::parse(fs, given.iter().copied());
            match (parsed, expected) {
                (Ok(options), Ok(expected)) => {
                    let values = options.values.iter().map(|(key, value)| format!("{key}={value}"));
                    let of_fs: Vec<_> = options.flags.iter().map(ToString::to_string).chain(values).collect();
                    assert_eq!(format!("{}|{}", options.shown().join(","), of_fs.join(",")), expected);
                }
                (Err(error), Err(expected)) => {
                    assert!(error.to_string().contains(expected), "{given:?}: {error}");
                }
                (parsed, expected) => panic!("{given:?}: {parsed:?} instead of {expected:?}"),
            }
        }
    }
}
