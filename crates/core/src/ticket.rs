use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::fmt;
use std::str::FromStr;

use crate::{Mode, NodeId, Share, TicketId, Timestamp};

/// Somebody's wish that a volume be usable on a node.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Ticket {
    /// Names it within its volume.
    pub id: TicketId,
    /// Who files it; decides its priority and whom it may interrupt.
    #[serde(rename = "type")]
    pub kind: TicketKind,
    /// Where the volume is wanted.
    #[serde(rename = "nodeID")]
    pub node: NodeId,
    /// How it is meant to be used.
    pub access: AccessMode,
    /// What the workload sees.
    pub content: Content,
    /// Whether it only reads, whatever the access mode would allow.
    #[serde(default)]
    pub read_only: bool,
    /// Whether a workload on the node shall see it.
    #[serde(rename = "disableFrontend", default)]
    pub frontend: Frontend,
    /// Counts how often this id was filed anew; what was said of an earlier one does not count for this one.
    pub generation: u64,
    /// When it was first filed; of two with the same priority the older goes first.
    pub created_at: Timestamp,
    /// Who must still want it.
    pub owner: Owner,
    /// What for, in the words of whoever filed it; chooses nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// The twelve kinds of ticket. There is no thirteenth: an unknown one is rejected where it is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TicketKind {
    /// A pod needs the volume (CSI ControllerPublish, or a Kubernetes VolumeAttachment).
    CsiAttacher,
    /// A person or a program asked through Bowline's own API.
    BowlineApi,
    /// A snapshot is to be taken or removed.
    SnapshotController,
    /// A backup is being made.
    BackupController,
    /// A volume is being copied into another.
    VolumeCloneController,
    /// A faulted volume is being repaired.
    SalvageController,
    /// The server of a shared volume needs it.
    ShareManagerController,
    /// A backup is being written back.
    VolumeRestoreController,
    /// The volume moves to another target.
    VolumeEvictionController,
    /// The volume grows.
    VolumeExpansionController,
    /// The volume is exported as an image.
    BimDsController,
    /// A mirror is being completed.
    VolumeRebuildingController,
}

impl TicketKind {
    /// Every kind, in the order above.
    pub const ALL: [TicketKind; 12] = [
        Self::CsiAttacher,
        Self::BowlineApi,
        Self::SnapshotController,
        Self::BackupController,
        Self::VolumeCloneController,
        Self::SalvageController,
        Self::ShareManagerController,
        Self::VolumeRestoreController,
        Self::VolumeEvictionController,
        Self::VolumeExpansionController,
        Self::BimDsController,
        Self::VolumeRebuildingController,
    ];

    /// Restoring data comes before the user's workload, and that before snapshots and backups.
    pub fn priority(self) -> u16 {
        match self {
            Self::VolumeRestoreController | Self::VolumeExpansionController => 2000,
            Self::BowlineApi => 1000,
            Self::CsiAttacher | Self::SalvageController | Self::ShareManagerController => 900,
            Self::SnapshotController
            | Self::BackupController
            | Self::VolumeCloneController
            | Self::VolumeEvictionController
            | Self::BimDsController
            | Self::VolumeRebuildingController => 800,
        }
    }

    /// Whether a user's work depends on it, so that nothing may take the volume from under it.
    pub fn is_workload(self) -> bool {
        match self {
            Self::CsiAttacher | Self::BowlineApi | Self::ShareManagerController => true,
            Self::SnapshotController
            | Self::BackupController
            | Self::VolumeCloneController
            | Self::SalvageController
            | Self::VolumeRestoreController
            | Self::VolumeEvictionController
            | Self::VolumeExpansionController
            | Self::BimDsController
            | Self::VolumeRebuildingController => false,
        }
    }

    /// Whether a ticket of this kind that has the volume gives it up for `challenger`. `copied` tells
    /// that its own work is done (a clone that has finished copying).
    ///
    /// Priority alone takes nothing away: this is the whole list of interruptions.
    pub fn yields_to(self, challenger: TicketKind, copied: bool) -> bool {
        match self {
            Self::SnapshotController | Self::BackupController => challenger.is_workload(),
            Self::VolumeCloneController => copied && challenger.is_workload(),
            Self::VolumeRebuildingController => challenger.priority() > self.priority(),
            Self::CsiAttacher
            | Self::BowlineApi
            | Self::ShareManagerController
            | Self::SalvageController
            | Self::VolumeRestoreController
            | Self::VolumeEvictionController
            | Self::VolumeExpansionController
            | Self::BimDsController => false,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::CsiAttacher => "csi-attacher",
            Self::BowlineApi => "bowline-api",
            Self::SnapshotController => "snapshot-controller",
            Self::BackupController => "backup-controller",
            Self::VolumeCloneController => "volume-clone-controller",
            Self::SalvageController => "salvage-controller",
            Self::ShareManagerController => "share-manager-controller",
            Self::VolumeRestoreController => "volume-restore-controller",
            Self::VolumeEvictionController => "volume-eviction-controller",
            Self::VolumeExpansionController => "volume-expansion-controller",
            Self::BimDsController => "bim-ds-controller",
            Self::VolumeRebuildingController => "volume-rebuilding-controller",
        }
    }
}

impl fmt::Display for TicketKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A text that is none of the allowed values. Names the field, the text and the allowed values.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} is {value:?}; it must be one of {allowed}")]
pub struct ParseError {
    field: &'static str,
    value: String,
    allowed: String,
}

impl FromStr for TicketKind {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        Self::ALL.into_iter().find(|kind| kind.name() == text).ok_or_else(|| ParseError {
            field: "ticket type",
            value: text.chars().take(80).collect(),
            allowed: Self::ALL.map(Self::name).join(", "),
        })
    }
}

/// The CSI access modes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AccessMode {
    /// Read-write on one node; any number of workloads there.
    SingleNodeWriter,
    /// Read-only on one node.
    SingleNodeReaderOnly,
    /// Read-write by one workload on one node.
    SingleNodeSingleWriter,
    /// Read-write by several workloads on one node.
    SingleNodeMultiWriter,
    /// Read-only on many nodes.
    MultiNodeReaderOnly,
    /// Many nodes, one of which writes.
    MultiNodeSingleWriter,
    /// Many nodes that write: raw block, or a filesystem behind a share.
    MultiNodeMultiWriter,
}

impl AccessMode {
    /// Every access mode.
    pub const ALL: [AccessMode; 7] = [
        Self::SingleNodeWriter,
        Self::SingleNodeReaderOnly,
        Self::SingleNodeSingleWriter,
        Self::SingleNodeMultiWriter,
        Self::MultiNodeReaderOnly,
        Self::MultiNodeSingleWriter,
        Self::MultiNodeMultiWriter,
    ];

    fn writes(self) -> bool {
        match self {
            Self::SingleNodeReaderOnly | Self::MultiNodeReaderOnly => false,
            Self::SingleNodeWriter
            | Self::SingleNodeSingleWriter
            | Self::SingleNodeMultiWriter
            | Self::MultiNodeSingleWriter
            | Self::MultiNodeMultiWriter => true,
        }
    }

    fn share(self, content: Content) -> Share {
        match self {
            Self::SingleNodeWriter
            | Self::SingleNodeReaderOnly
            | Self::SingleNodeSingleWriter
            | Self::SingleNodeMultiWriter => Share::Nobody,
            Self::MultiNodeReaderOnly => Share::Readers,
            Self::MultiNodeSingleWriter => Share::OneWriter,
            // Two kernels that mount one filesystem read-write destroy it; such a volume is shared by a
            // server on one node, and that server's own hold is alone.
            Self::MultiNodeMultiWriter => match content {
                Content::Block => Share::Writers,
                Content::Filesystem => Share::Nobody,
            },
        }
    }
}

/// What a workload sees of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Content {
    /// A raw block device.
    Block,
    /// A mounted filesystem.
    Filesystem,
}

/// The parameter `disableFrontend`: whether workloads on the node see the volume while this ticket has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Frontend {
    /// `false` or absent: workloads see it.
    #[default]
    #[serde(rename = "false")]
    On,
    /// `true`: only the controller that filed the ticket works on it.
    #[serde(rename = "true")]
    Off,
    /// `any`: either will do.
    #[serde(rename = "any")]
    Any,
}

impl Frontend {
    /// Reads the parameter `disableFrontend`.
    pub fn from_parameter(value: Option<&str>) -> Result<Self, ParseError> {
        match value {
            None | Some("false") => Ok(Self::On),
            Some("true") => Ok(Self::Off),
            Some("any") => Ok(Self::Any),
            Some(other) => Err(ParseError {
                field: "disableFrontend",
                value: other.chars().take(80).collect(),
                allowed: "true, false, any".to_owned(),
            }),
        }
    }

    pub(crate) fn accepts(self, frontend: bool) -> bool {
        match self {
            Self::On => frontend,
            Self::Off => !frontend,
            Self::Any => true,
        }
    }

    pub(crate) fn clashes(self, other: Self) -> bool {
        matches!((self, other), (Self::On, Self::Off) | (Self::Off, Self::On))
    }
}

/// Who must still want a ticket for it to stay. There is no ticket without one.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", tag = "until", deny_unknown_fields)]
pub enum Owner {
    /// An object, for as long as it exists: it is forgotten only on proof that the object is gone.
    ObjectGone {
        /// The object, as a person would look for it.
        object: String,
    },
    /// Whoever filed it must renew it before this moment.
    Expires {
        /// When it is forgotten.
        at: Timestamp,
    },
    /// Until somebody withdraws it.
    Withdrawn,
}

/// The place of a ticket in the queue: the smaller goes first. Total, because ids differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rank<'a>(Reverse<u16>, Timestamp, &'a TicketId);

impl Ticket {
    /// Its place in the queue: priority, then age, then id.
    pub fn rank(&self) -> Rank<'_> {
        Rank(Reverse(self.kind.priority()), self.created_at, &self.id)
    }

    /// What a grant for this ticket alone would let its node do.
    pub fn mode(&self) -> Mode {
        Mode {
            write: self.access.writes() && !self.read_only,
            frontend: self.frontend != Frontend::Off,
            share: self.access.share(self.content),
        }
    }

    /// Whether a grant in `mode` is what this ticket asked for.
    pub fn is_served_by(&self, mode: Mode) -> bool {
        let wanted = self.mode();
        // Two tickets that would share it in different ways are never chosen together on one node, so neither may
        // pass for having what was granted to the other.
        let shared_alike = mode.share == wanted.share;
        (mode.write || !wanted.write) && self.frontend.accepts(mode.frontend) && shared_alike
    }

    /// Whether it wants the share in front of the volume, not the volume itself.
    pub fn wants_share(&self) -> bool {
        self.access == AccessMode::MultiNodeMultiWriter
            && self.content == Content::Filesystem
            && matches!(self.kind, TicketKind::CsiAttacher | TicketKind::BowlineApi)
    }

    /// Whether no second workload may use the volume beside this one, not even on the same node.
    pub fn wants_to_be_sole_writer(&self) -> bool {
        self.access == AccessMode::SingleNodeSingleWriter && self.kind.is_workload()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_keeps_its_name_and_priority() {
        let listed = TicketKind::ALL.map(|kind| (kind.to_string(), kind.priority()));
        let expected = [
            ("csi-attacher", 900),
            ("bowline-api", 1000),
            ("snapshot-controller", 800),
            ("backup-controller", 800),
            ("volume-clone-controller", 800),
            ("salvage-controller", 900),
            ("share-manager-controller", 900),
            ("volume-restore-controller", 2000),
            ("volume-eviction-controller", 800),
            ("volume-expansion-controller", 2000),
            ("bim-ds-controller", 800),
            ("volume-rebuilding-controller", 800),
        ];
        assert_eq!(listed, expected.map(|(name, priority)| (name.to_owned(), priority)));
        for kind in TicketKind::ALL {
            assert_eq!(kind.name().parse(), Ok(kind));
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.name(), "serde and Display agree");
        }
    }

    #[test]
    fn an_unknown_type_is_rejected_not_priority_zero() {
        let error = "longhorn-ui".parse::<TicketKind>().unwrap_err().to_string();
        assert!(
            error.starts_with("ticket type is \"longhorn-ui\"; it must be one of csi-attacher, "),
            "{error}"
        );
        assert!(serde_json::from_str::<TicketKind>("\"longhorn-ui\"").is_err());
    }

    #[test]
    fn every_pair_of_kinds_interrupts_exactly_as_listed() {
        use TicketKind::*;
        let workloads = [CsiAttacher, BowlineApi, ShareManagerController];
        for holder in TicketKind::ALL {
            for challenger in TicketKind::ALL {
                let for_workloads = matches!(holder, SnapshotController | BackupController);
                let for_anything_better = holder == VolumeRebuildingController;
                let expected = (for_workloads && workloads.contains(&challenger))
                    || (for_anything_better && challenger.priority() > 800);
                assert_eq!(holder.yields_to(challenger, false), expected, "{holder} for {challenger}");
                let when_copied =
                    expected || (holder == VolumeCloneController && workloads.contains(&challenger));
                assert_eq!(holder.yields_to(challenger, true), when_copied, "{holder} for {challenger}");
            }
        }
    }

    #[test]
    fn disable_frontend_is_true_false_or_any() {
        for (text, expected) in [
            (None, Ok(Frontend::On)),
            (Some("false"), Ok(Frontend::On)),
            (Some("true"), Ok(Frontend::Off)),
            (Some("any"), Ok(Frontend::Any)),
        ] {
            assert_eq!(Frontend::from_parameter(text), expected);
        }
        let error = Frontend::from_parameter(Some("yes")).unwrap_err().to_string();
        assert_eq!(error, "disableFrontend is \"yes\"; it must be one of true, false, any");
    }
}
