use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// A filesystem that a volume can hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FsType {
    /// ext4.
    Ext4,
    /// xfs.
    Xfs,
    /// btrfs, on one device.
    Btrfs,
}

impl FsType {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Ext4, Self::Xfs, Self::Btrfs];

    /// The kernel's name for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
            Self::Btrfs => "btrfs",
        }
    }
}

impl fmt::Display for FsType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A name that is none of theirs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the filesystem {0:?} is not one of ext4, xfs, btrfs")]
pub struct UnknownFsType(String);

impl FromStr for FsType {
    type Err = UnknownFsType;
    fn from_str(name: &str) -> Result<Self, UnknownFsType> {
        let known = Self::ALL.into_iter().find(|fs| fs.name() == name);
        known.ok_or_else(|| UnknownFsType(name.chars().take(40).collect()))
    }
}
