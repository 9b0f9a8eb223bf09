//! How a volume is to be used.

use crate::field::{At, InvalidField, Problem};
use crate::id::STRING_BYTES;
use crate::wire;
use crate::wire::volume_capability::access_mode::Mode;
use crate::wire::volume_capability::{self as wire_capability, AccessType};
use bowline_core::{AccessMode, Content};
use std::fmt;

/// The limit of CSI for all mount flags together.
const FLAGS_BYTES: usize = 4096;

/// How a volume is to be used: by whom at once, and as what.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct VolumeCapability {
    /// How many nodes and workloads may use it, and which of them write.
    pub mode: AccessMode,
    /// As a device or as a filesystem.
    pub access: Access,
}

/// What the workload gets to see.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// A raw block device.
    Block,
    /// A mounted filesystem.
    Mount(Mount),
}

/// How a filesystem is to be mounted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Mount {
    /// Which filesystem; the driver chooses if not given.
    pub fs_type: Option<FsType>,
    /// Options for the mount.
    pub flags: MountFlags,
    /// The group that is to own the files.
    pub group: Option<u32>,
}

impl VolumeCapability {
    /// What the workload sees, in the words of the ledger.
    pub fn content(&self) -> Content {
        match self.access {
            Access::Block => Content::Block,
            Access::Mount(_) => Content::Filesystem,
        }
    }

    pub(crate) fn parse(at: At<'_>, capability: wire::VolumeCapability) -> Result<Self, InvalidField> {
        let access = match at.child("access_type").required(capability.access_type)? {
            AccessType::Block(_) => Access::Block,
            AccessType::Mount(mount) => Access::Mount(Mount::parse(at.child("mount"), mount)?),
        };
        let at_mode = at.child("access_mode");
        let mode = access_mode(at_mode.child("mode"), at_mode.required(capability.access_mode)?.mode)?;
        Ok(Self { mode, access })
    }

    pub(crate) fn parse_optional(
        capability: Option<wire::VolumeCapability>,
    ) -> Result<Option<Self>, InvalidField> {
        capability.map(|capability| Self::parse(At::field("volume_capability"), capability)).transpose()
    }

    pub(crate) fn parse_required(capability: Option<wire::VolumeCapability>) -> Result<Self, InvalidField> {
        At::field("volume_capability").required(Self::parse_optional(capability)?)
    }

    pub(crate) fn parse_each(capabilities: Vec<wire::VolumeCapability>) -> Result<Vec<Self>, InvalidField> {
        let at = At::field("volume_capabilities");
        let capabilities = capabilities.into_iter().enumerate();
        capabilities.map(|(index, capability)| Self::parse(at.entry(index), capability)).collect()
    }

    pub(crate) fn parse_some(capabilities: Vec<wire::VolumeCapability>) -> Result<Vec<Self>, InvalidField> {
        if capabilities.is_empty() {
            return Err(At::field("volume_capabilities").is(Problem::Missing));
        }
        Self::parse_each(capabilities)
    }
}

fn access_mode(at: At<'_>, value: i32) -> Result<AccessMode, InvalidField> {
    match Mode::try_from(value) {
        Ok(Mode::SingleNodeWriter) => Ok(AccessMode::SingleNodeWriter),
        Ok(Mode::SingleNodeReaderOnly) => Ok(AccessMode::SingleNodeReaderOnly),
        Ok(Mode::SingleNodeSingleWriter) => Ok(AccessMode::SingleNodeSingleWriter),
        Ok(Mode::SingleNodeMultiWriter) => Ok(AccessMode::SingleNodeMultiWriter),
        Ok(Mode::MultiNodeReaderOnly) => Ok(AccessMode::MultiNodeReaderOnly),
        Ok(Mode::MultiNodeSingleWriter) => Ok(AccessMode::MultiNodeSingleWriter),
        Ok(Mode::MultiNodeMultiWriter) => Ok(AccessMode::MultiNodeMultiWriter),
        Ok(Mode::Unknown) | Err(_) => Err(at.is(Problem::UnknownValue { value })),
    }
}

impl Mount {
    fn parse(at: At<'_>, mount: wire_capability::MountVolume) -> Result<Self, InvalidField> {
        let group = match mount.volume_mount_group.as_str() {
            "" => None,
            // The kubelet sends the number of the pod's fsGroup; a name would mean different groups on different nodes.
            digits => Some(digits.parse().ok().filter(|_| !digits.starts_with('+')).ok_or_else(|| {
                at.child("volume_mount_group").is(Problem::Form("is not the number of a group"))
            })?),
        };
        Ok(Self {
            fs_type: FsType::parse(at.child("fs_type"), mount.fs_type)?,
            flags: MountFlags::parse(at.child("mount_flags"), mount.mount_flags)?,
            group,
        })
    }
}

/// The name of a filesystem, for example `ext4`. Cannot be read as an option or a path when it becomes part of a
/// command; whether the driver has such a filesystem is another question.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FsType(String);

impl FsType {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    fn parse(at: At<'_>, value: String) -> Result<Option<Self>, InvalidField> {
        at.at_most(STRING_BYTES, value.len())?;
        let rule = "allowed are ASCII letters, digits, '.', '_' and '-'";
        at.only(&value, rule, |c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-'))?;
        if value.starts_with(['.', '_', '-']) {
            return Err(at.is(Problem::Form("must begin with a letter or a digit")));
        }
        Ok(Some(Self(value)).filter(|fs_type| !fs_type.0.is_empty()))
    }
}

impl fmt::Display for FsType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// Options for a mount, in the order given. CSI lets them hold sensitive things (a password for a share), so they can
/// be used but not shown.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct MountFlags(Vec<String>);

impl MountFlags {
    /// Every flag. Whoever takes them out answers for them.
    pub fn expose(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn parse(at: At<'_>, flags: Vec<String>) -> Result<Self, InvalidField> {
        at.at_most(FLAGS_BYTES, flags.iter().map(String::len).sum())?;
        for (index, flag) in flags.iter().enumerate() {
            if flag.is_empty() {
                return Err(at.entry(index).is(Problem::Missing));
            }
            // Told without the character: it may be part of a password.
            if flag.chars().any(char::is_control) {
                return Err(at.entry(index).is(Problem::Form("contains a control character")));
            }
        }
        Ok(Self(flags))
    }
}

impl fmt::Debug for MountFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} hidden", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wire_mount(fs_type: &str, flags: &[&str], group: &str) -> AccessType {
        AccessType::Mount(wire_capability::MountVolume {
            fs_type: fs_type.to_owned(),
            mount_flags: flags.iter().map(ToString::to_string).collect(),
            volume_mount_group: group.to_owned(),
        })
    }

    fn parse(access_type: Option<AccessType>, mode: i32) -> Result<VolumeCapability, String> {
        let access_mode = Some(wire_capability::AccessMode { mode });
        let capability = wire::VolumeCapability { access_type, access_mode };
        VolumeCapability::parse_required(Some(capability)).map_err(|error| error.to_string())
    }

    #[test]
    fn every_access_mode_of_the_contract_is_one_of_ours() {
        let block = || Some(AccessType::Block(wire_capability::BlockVolume {}));
        let modes: Vec<AccessMode> = (1..=7).map(|mode| parse(block(), mode).unwrap().mode).collect();
        assert_eq!(
            modes,
            [
                AccessMode::SingleNodeWriter,
                AccessMode::SingleNodeReaderOnly,
                AccessMode::MultiNodeReaderOnly,
                AccessMode::MultiNodeSingleWriter,
                AccessMode::MultiNodeMultiWriter,
                AccessMode::SingleNodeSingleWriter,
                AccessMode::SingleNodeMultiWriter,
            ]
        );
        for mode in [0, 8, -1, i32::MAX] {
            assert_eq!(
                parse(block(), mode).unwrap_err(),
                format!("volume_capability.access_mode.mode is {mode}; that is none of its known values")
            );
        }
    }

    #[test]
    fn a_mount_has_a_filesystem_flags_and_a_group() {
        let capability = parse(Some(wire_mount("ext4", &["ro", "password=hunter2"], "1000")), 1).unwrap();
        assert_eq!(capability.content(), Content::Filesystem);
        assert!(!format!("{capability:?}").contains("hunter2"));
        let Access::Mount(mount) = capability.access else { panic!("it is a mount") };
        assert_eq!(mount.fs_type.unwrap().as_str(), "ext4");
        assert_eq!(mount.flags.expose().collect::<Vec<_>>(), ["ro", "password=hunter2"]);
        assert_eq!(mount.group, Some(1000));
        let nothing = parse(Some(wire_mount("", &[], "")), 1).unwrap();
        assert_eq!(nothing.access, Access::Mount(Mount::default()));
    }

    #[test]
    fn what_is_wrong_with_a_capability_is_told_by_its_path() {
        let long = "x".repeat(4097);
        for (access, why) in [
            (None, "volume_capability.access_type is required"),
            (
                Some(wire_mount("ext4;reboot", &[], "")),
                "volume_capability.mount.fs_type contains ';'; allowed are ASCII letters, digits, '.', '_' and '-'",
            ),
            (
                Some(wire_mount("-V", &[], "")),
                "volume_capability.mount.fs_type must begin with a letter or a digit",
            ),
            (Some(wire_mount("", &["ro", ""], "")), "volume_capability.mount.mount_flags[1] is required"),
            (
                Some(wire_mount("", &["a\0"], "")),
                "volume_capability.mount.mount_flags[0] contains a control character",
            ),
            (
                Some(wire_mount("", &[&long], "")),
                "volume_capability.mount.mount_flags has 4097 bytes; at most 4096 are allowed",
            ),
            (
                Some(wire_mount("", &[], "wheel")),
                "volume_capability.mount.volume_mount_group is not the number of a group",
            ),
            (
                Some(wire_mount("", &[], "4294967296")),
                "volume_capability.mount.volume_mount_group is not the number of a group",
            ),
        ] {
            assert_eq!(parse(access, 1).unwrap_err(), why);
        }
        let error = VolumeCapability::parse_some(vec![wire::VolumeCapability::default()]).unwrap_err();
        assert_eq!(error.to_string(), "volume_capabilities[0].access_type is required");
        assert_eq!(
            VolumeCapability::parse_some(vec![]).unwrap_err().to_string(),
            "volume_capabilities is required"
        );
    }
}
