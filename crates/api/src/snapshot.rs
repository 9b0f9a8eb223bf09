use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Condition, Progress, schema};

/// What a volume held at one moment.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[kube(
    group = "bowline.storage",
    version = "v1beta1",
    kind = "Snapshot",
    plural = "snapshots",
    shortname = "bvs",
    category = "bowline",
    status = "SnapshotStatus",
    derive = "PartialEq",
    doc = "What a volume held at one moment. The status is its record: it is written by Bowline alone.",
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Volume", type_ = "string", json_path = ".spec.volume"),
    printcolumn(name = "Size", type_ = "string", json_path = ".status.capacity"),
    printcolumn(name = "Taken", type_ = "date", json_path = ".status.state.takenAt"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self == oldSelf").message("a snapshot cannot be changed: take another one"))]
pub struct SnapshotSpec {
    /// What it was asked for as; unique among snapshots. The object is named so, or by a digest of it.
    #[schemars(length(min = 1, max = 1024))]
    pub name: String,
    /// Of which volume: the name of its Volume object, or its id.
    #[schemars(length(min = 1, max = 253))]
    pub volume: String,
}

/// The record of a snapshot, and what it means for people.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotStatus {
    /// The version of the record; without it there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::count")]
    pub record_version: Option<u64>,
    /// Its id.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub id: String,
    /// What it was asked for as.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// The id of the volume it was taken of, which may be gone by now.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub volume: String,
    /// Where its bytes are.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub target: String,
    /// The id of the group it was taken with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "group")]
    pub group: Option<String>,
    /// When it was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::moment")]
    pub created_at: Option<String>,
    /// How far it has come.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<Progress>,

    /// For people: Taking, Ready or Deleting.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub phase: String,
    /// For people: how large a volume made from it is at least.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub capacity: String,
    /// For people: whether it can be used (`Ready`), and if not, why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
}

fn group(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({ "type": "string", "nullable": true })
}
