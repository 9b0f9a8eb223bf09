use bowline_controller as catalog;
use bowline_core::{AccessMode, Content, FsType, SnapshotId, Timestamp, VolumeId};
use serde::{Deserialize, Deserializer, Serialize};
use utoipa::ToSchema;

/// A volume.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Volume {
    /// Its id, for ever and everywhere.
    #[schema(value_type = String)]
    pub id: VolumeId,
    /// What it was asked for as.
    pub name: String,
    /// Where its bytes are.
    pub target: String,
    /// How many bytes it has.
    pub size: u64,
    /// The filesystem it gets when it is first mounted.
    #[schema(value_type = String, example = "ext4")]
    pub fs: FsType,
    /// Every way in which it may be used.
    pub uses: Vec<Use>,
    /// What it held from the start.
    pub source: Option<Source>,
    /// What can be changed later.
    pub settings: Settings,
    /// When it was asked for.
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    /// How far it has come.
    pub state: VolumeState,
    /// While it grows: how many bytes it will have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub growing_to: Option<u64>,
    /// While it is made by copying: how far that is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
    /// Who may reach it; not there while that is not known.
    pub attachment: Option<Attachment>,
    /// What is wrong with it, as its target sees it. Looked for only when one volume is asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
}

/// How far a volume has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub enum VolumeState {
    /// Its bytes are being made.
    Creating,
    /// It can be used.
    Ready,
    /// It is being made larger.
    Growing,
    /// It is being removed.
    Deleting,
}

impl VolumeState {
    /// The word for people.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Creating => "creating",
            Self::Ready => "ready",
            Self::Growing => "growing",
            Self::Deleting => "deleting",
        }
    }
}

/// Bytes copied, and bytes in all (0 while that is not known).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Progress {
    /// Bytes copied.
    pub done: u64,
    /// Bytes in all.
    pub total: u64,
}

/// A way in which a volume may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Use {
    /// By whom at once.
    #[schema(value_type = String, example = "single-node-writer")]
    pub access: AccessMode,
    /// As what.
    #[schema(value_type = String, example = "filesystem")]
    pub content: Content,
}

impl From<catalog::Use> for Use {
    fn from(one: catalog::Use) -> Self {
        Self { access: one.access, content: one.content }
    }
}

impl From<Use> for catalog::Use {
    fn from(one: Use) -> Self {
        Self { access: one.access, content: one.content }
    }
}

/// What a volume held from the start. In an order, a name or an id; in an answer, the id.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub enum Source {
    /// What a snapshot holds.
    Snapshot(String),
    /// What another volume held then.
    Volume(String),
}

impl From<catalog::Source> for Source {
    fn from(source: catalog::Source) -> Self {
        match source {
            catalog::Source::Snapshot(id) => Self::Snapshot(SnapshotId::into(id)),
            catalog::Source::Volume(id) => Self::Volume(VolumeId::into(id)),
        }
    }
}

/// What can be changed about a volume while it exists.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Settings {
    /// For how many seconds two nodes may have it while it moves between them (30 to 3600); not there: never.
    pub migratable: Option<u16>,
    /// It cannot be deleted.
    pub deletion_protection: bool,
    /// What is deleted in its filesystem is given back to the storage at once.
    pub discard: bool,
}

impl From<catalog::Settings> for Settings {
    fn from(settings: catalog::Settings) -> Self {
        let catalog::Settings { migratable, deletion_protection, discard } = settings;
        Self { migratable: migratable.map(u16::from), deletion_protection, discard }
    }
}

/// Who may reach a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Attachment {
    /// One word: `detached`, `attaching`, `attached`, `detaching`, `faulted` or `deleting`.
    pub state: String,
    /// Every node that might still reach the bytes.
    pub holders: Vec<Holder>,
}

/// A node that might still reach the bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Holder {
    /// Which node.
    pub node: String,
    /// One word: `granting`, `held`, `releasing` or `fencing`.
    pub phase: String,
    /// The number of the grant.
    pub epoch: u64,
    /// Since when it is in this phase.
    #[schema(value_type = String, format = DateTime)]
    pub since: Timestamp,
    /// Whether it may write.
    pub write: bool,
}

/// Volumes, a page at a time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Volumes {
    /// The volumes.
    pub volumes: Vec<Volume>,
    /// Pass it as `after` to go on; not there after the last page.
    pub next: Option<String>,
}

/// A volume to be made. Asking again with the same name means the same volume.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NewVolume {
    /// Its name.
    pub name: String,
    /// Bytes, at least; not there: 1 GiB, or as many as the source has.
    #[serde(default)]
    pub size: Option<u64>,
    /// Bytes, at most.
    #[serde(default)]
    pub limit: Option<u64>,
    /// The filesystem: `ext4` if not given.
    #[serde(default)]
    #[schema(value_type = Option<String>, example = "ext4")]
    pub fs: Option<FsType>,
    /// Every way in which it must be usable; not there: written by one node, as a filesystem.
    #[serde(default)]
    pub uses: Vec<Use>,
    /// What it holds from the start.
    #[serde(default)]
    pub source: Option<Source>,
    /// What can be changed later.
    #[serde(default)]
    pub settings: Settings,
    /// How many seconds to wait for it; the work goes on beyond.
    #[serde(default)]
    pub wait_seconds: Option<u32>,
}

/// A volume is to be made larger.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Grow {
    /// Bytes, at least.
    pub size: u64,
    /// Bytes, at most.
    #[serde(default)]
    pub limit: Option<u64>,
    /// How many seconds to wait for it; the work goes on beyond.
    #[serde(default)]
    pub wait_seconds: Option<u32>,
}

/// A change of a volume's settings; what is not there stays as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Change {
    /// For how many seconds two nodes may have it while it moves between them (30 to 3600); `null`: never.
    #[serde(deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u16>)]
    pub migratable: Option<Option<u16>>,
    /// It cannot be deleted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deletion_protection: Option<bool>,
    /// What is deleted in its filesystem is given back to the storage at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub discard: Option<bool>,
}

/// Tells `null` from a field that is not there.
fn given<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Option<u16>>, D::Error> {
    Option::deserialize(from).map(Some)
}
