//! What is remembered of volumes, snapshots, groups and nodes: one record each, under the slot of its name.

use bowline_core::{
    AccessMode, Content, FsType, GroupSnapshotId, MigrationTimeout, NodeId, SnapshotId, TargetId, Timestamp,
    VolumeId,
};
use serde::{Deserialize, Serialize};

/// A volume, from the moment it was asked for until nothing of it is left.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Volume {
    /// Its id.
    pub id: VolumeId,
    /// What it was asked for as; unique among volumes.
    pub name: String,
    /// Where its bytes are.
    pub target: TargetId,
    /// How many bytes it has; while it is `Creating`, how many it will have.
    pub size: u64,
    /// The filesystem it gets when it is first mounted.
    pub fs: FsType,
    /// Every way in which it was asked to be usable.
    pub uses: Vec<Use>,
    /// What it held from the start.
    pub source: Option<Source>,
    /// What can be changed later.
    #[serde(default)]
    pub settings: Settings,
    /// When it was asked for.
    pub created_at: Timestamp,
    /// How far it has come.
    pub state: VolumeState,
}

/// A way in which a volume may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Use {
    /// By whom at once.
    pub access: AccessMode,
    /// As what.
    pub content: Content,
}

/// What a volume held from the start.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Source {
    /// What a snapshot holds.
    Snapshot(SnapshotId),
    /// What another volume held then.
    Volume(VolumeId),
}

/// What can be changed about a volume while it exists: the mutable parameters of CSI.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Settings {
    /// `migratable`: it may move between two nodes while both have it, for this long at most.
    pub migratable: Option<MigrationTimeout>,
    /// `deletionProtection`: it cannot be deleted.
    pub deletion_protection: bool,
    /// `discard`: what is deleted in its filesystem is given back to the storage at once.
    pub discard: bool,
}

/// How far a volume has come.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "is", deny_unknown_fields)]
pub enum VolumeState {
    /// Its name is taken, its bytes are being made. Whoever finds it so completes it.
    Creating,
    /// It can be used.
    Ready,
    /// It is being made larger. Whoever finds it so completes it.
    Growing {
        /// How many bytes it will have.
        to: u64,
    },
    /// It is being removed. Whoever finds it so completes that.
    Deleting,
}

/// A snapshot of one volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Snapshot {
    /// Its id.
    pub id: SnapshotId,
    /// What it was asked for as; unique among snapshots.
    pub name: String,
    /// Of which volume; that may be gone by now.
    pub volume: VolumeId,
    /// Where its bytes are.
    pub target: TargetId,
    /// The group it was taken with.
    pub group: Option<GroupSnapshotId>,
    /// When it was asked for.
    pub created_at: Timestamp,
    /// How far it has come.
    pub state: SnapshotState,
}

/// How far a snapshot has come.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "is", deny_unknown_fields)]
pub enum SnapshotState {
    /// Its name is taken. It is not taken by whoever finds it so later: it would not be the moment that was asked for.
    Taking,
    /// It can be used.
    Ready {
        /// How many bytes a volume made from it needs at least.
        size: u64,
        /// The moment whose bytes it holds.
        taken_at: Timestamp,
    },
    /// It is being removed. Whoever finds it so completes that.
    Deleting,
}

/// Snapshots that were taken together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Group {
    /// Its id.
    pub id: GroupSnapshotId,
    /// What it was asked for as; unique among groups.
    pub name: String,
    /// Its snapshots, in the order of the volumes they were asked for.
    pub snapshots: Vec<SnapshotId>,
    /// When it was asked for.
    pub created_at: Timestamp,
    /// How far it has come; `Ready`'s size is the sum of its snapshots'.
    pub state: SnapshotState,
}

/// A node that may ask for volumes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Node {
    /// Its id.
    pub id: NodeId,
    /// How many volumes it can have at once.
    pub limit: Option<u32>,
    /// Set while somebody declares it out of service: what it has is taken from it.
    #[serde(default)]
    pub out_of_service: Option<Timestamp>,
    /// When it became known.
    pub added_at: Timestamp,
}
