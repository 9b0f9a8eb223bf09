//! What is remembered of volumes, snapshots, groups and nodes: one record each, under the slot of its name.

use bowline_core::{
    AccessMode, Content, FsType, GroupSnapshotId, MigrationTimeout, NodeId, SnapshotId, TargetId, Timestamp,
    VolumeFacts, VolumeId,
};
use bowline_store::{Kind, Record, RecordError};
use serde::{Deserialize, Serialize};
use serde_json::Value;

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
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", tag = "is", deny_unknown_fields)]
pub enum SnapshotState {
    /// Its name is taken. It is not taken by whoever finds it so later: it would not be the moment that was asked for.
    Taking,
    /// It can be used.
    Ready {
        /// How many bytes a volume made from it needs at least.
        size: u64,
        /// The moment whose bytes it holds.
        #[serde(alias = "taken_at")]
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

/// A record's `upgrade` while there is one version only.
fn no_such_version<T>(kind: Kind, from: u32) -> Result<T, RecordError> {
    Err(RecordError::Shape { kind, version: from, reason: "there is no such version".to_owned() })
}

macro_rules! record {
    ($($name:ident),*) => {
        $(impl Record for $name {
            const KIND: Kind = Kind::$name;
            const VERSION: u32 = 1;

            fn upgrade(from: u32, _: Value) -> Result<Value, RecordError> {
                no_such_version(Self::KIND, from)
            }
        })*
    };
}

record!(Volume, Snapshot, Group, Node);

impl Volume {
    /// What the engine is to know of it.
    pub(crate) fn facts(&self) -> VolumeFacts {
        VolumeFacts {
            deleting: self.state == VolumeState::Deleting,
            migratable: self.settings.migratable,
            ..VolumeFacts::new(self.target.clone())
        }
    }

    /// The volume's state, in a word.
    pub(crate) fn stage(&self) -> &'static str {
        match self.state {
            VolumeState::Creating => "being made",
            VolumeState::Ready => "ready",
            VolumeState::Growing { .. } => "growing",
            VolumeState::Deleting => "being deleted",
        }
    }

    /// How many bytes it has, or may have already while it grows.
    pub(crate) fn most(&self) -> u64 {
        match self.state {
            VolumeState::Growing { to } => self.size.max(to),
            VolumeState::Creating | VolumeState::Ready | VolumeState::Deleting => self.size,
        }
    }

    /// Whether nodes may be let in to it.
    pub(crate) fn is_usable(&self) -> bool {
        match self.state {
            VolumeState::Ready | VolumeState::Growing { .. } => true,
            VolumeState::Creating | VolumeState::Deleting => false,
        }
    }
}

impl Snapshot {
    /// How many bytes a volume made from it needs, and the moment it holds; `None` unless it is ready.
    pub fn taken(&self) -> Option<(u64, Timestamp)> {
        self.state.taken()
    }
}

impl SnapshotState {
    /// The size and the moment of a snapshot that is ready.
    pub fn taken(&self) -> Option<(u64, Timestamp)> {
        match self {
            Self::Ready { size, taken_at } => Some((*size, *taken_at)),
            Self::Taking | Self::Deleting => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bowline_store::record;

    #[test]
    fn records_are_as_documented_and_strict() {
        let bytes = r#"{"version":1,"record":{"id":"a-1","name":"pvc-1","target":"file","size":1048576,"fs":"ext4","uses":[{"access":"single-node-writer","content":"filesystem"}],"source":{"snapshot":"s-1"},"settings":{"migratable":300,"deletionProtection":true,"discard":false},"createdAt":"2026-01-01T12:00:00Z","state":{"is":"growing","to":2097152}}}"#;
        let volume: Volume = record::decode(bytes.as_bytes()).unwrap();
        assert_eq!(volume.state, VolumeState::Growing { to: 2_097_152 });
        assert_eq!(String::from_utf8(record::encode(&volume).unwrap()).unwrap(), bytes);
        for (from, to, named) in [
            ("\"size\":1048576", "\"size\":-1", "size: "),
            ("\"file\"", "\"a/b\"", "target: "),
            ("\"migratable\":300", "\"migratable\":3", "settings.migratable: "),
            ("\"growing\",\"to\":2097152", "\"shrinking\"", "state"),
            ("\"size\"", "\"sise\"", "sise"),
        ] {
            let error = record::decode::<Volume>(bytes.replace(from, to).as_bytes()).unwrap_err().to_string();
            assert!(error.contains(named), "{error}");
        }
        let newer = record::decode::<Node>(br#"{"version":2,"record":{}}"#).unwrap_err();
        assert!(matches!(newer, RecordError::Newer { .. }), "{newer}");
    }
}
