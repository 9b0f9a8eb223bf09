use bowline_controller as catalog;
use bowline_core::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A snapshot of one volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Snapshot {
    /// Its id, for ever and everywhere.
    pub id: String,
    /// What it was asked for as.
    pub name: String,
    /// The id of its volume; that may be gone by now.
    pub volume: String,
    /// Where its bytes are.
    pub target: String,
    /// The group it was taken with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// When it was asked for.
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    /// How far it has come.
    pub state: SnapshotState,
    /// How many bytes a volume made from it needs at least.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// The moment whose bytes it holds.
    #[schema(value_type = Option<String>, format = DateTime)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub taken_at: Option<Timestamp>,
}

/// How far a snapshot has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub enum SnapshotState {
    /// Its name is taken.
    Taking,
    /// It can be used.
    Ready,
    /// It is being removed.
    Deleting,
}

impl SnapshotState {
    /// The word for people.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Taking => "taking",
            Self::Ready => "ready",
            Self::Deleting => "deleting",
        }
    }

    fn split(state: &catalog::SnapshotState) -> (Self, Option<u64>, Option<Timestamp>) {
        match state {
            catalog::SnapshotState::Taking => (Self::Taking, None, None),
            catalog::SnapshotState::Ready { size, taken_at } => (Self::Ready, Some(*size), Some(*taken_at)),
            catalog::SnapshotState::Deleting => (Self::Deleting, None, None),
        }
    }
}

impl From<catalog::Snapshot> for Snapshot {
    fn from(snapshot: catalog::Snapshot) -> Self {
        let catalog::Snapshot { id, name, volume, target, group, created_at, state } = snapshot;
        let (state, size, taken_at) = SnapshotState::split(&state);
        Self {
            id: id.into(),
            name,
            volume: volume.into(),
            target: target.into(),
            group: group.map(Into::into),
            created_at,
            state,
            size,
            taken_at,
        }
    }
}

/// Snapshots, a page at a time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Snapshots {
    /// The snapshots.
    pub snapshots: Vec<Snapshot>,
    /// Pass it as `after` to go on; not there after the last page.
    pub next: Option<String>,
}

/// A snapshot to be taken, or a group: asking again with the same name means the same one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NewSnapshot {
    /// Its name.
    pub name: String,
    /// Of which volumes, by name or id: one for a snapshot, any number for a group, taken at one moment.
    pub volumes: Vec<String>,
    /// How many seconds to wait for it.
    #[serde(default)]
    pub wait_seconds: Option<u32>,
}

/// Snapshots that were taken together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Group {
    /// Its id.
    pub id: String,
    /// What it was asked for as.
    pub name: String,
    /// When it was asked for.
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    /// How far it has come.
    pub state: SnapshotState,
    /// Its snapshots, in the order of the volumes they were asked for.
    pub snapshots: Vec<Snapshot>,
}

impl From<(catalog::Group, Vec<catalog::Snapshot>)> for Group {
    fn from((group, snapshots): (catalog::Group, Vec<catalog::Snapshot>)) -> Self {
        let (state, _, _) = SnapshotState::split(&group.state);
        Self {
            id: group.id.into(),
            name: group.name,
            created_at: group.created_at,
            state,
            snapshots: snapshots.into_iter().map(Into::into).collect(),
        }
    }
}
