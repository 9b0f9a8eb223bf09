use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Condition, Progress, schema};

/// Snapshots that were taken together.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[kube(
    group = "bowline.storage",
    version = "v1beta1",
    kind = "SnapshotGroup",
    plural = "snapshotgroups",
    shortname = "bvg",
    category = "bowline",
    status = "SnapshotGroupStatus",
    derive = "PartialEq",
    doc = "Snapshots that were taken together. The status is its record: it is written by Bowline alone.",
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Size", type_ = "string", json_path = ".status.capacity"),
    printcolumn(name = "Taken", type_ = "date", json_path = ".status.state.takenAt"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self == oldSelf").message("a group of snapshots cannot be changed: take another one"))]
pub struct SnapshotGroupSpec {
    /// What it was asked for as; unique among groups. The object is named so, or by a digest of it.
    #[schemars(length(min = 1, max = 1024))]
    pub name: String,
    /// Of which volumes: the names of their Volume objects, or their ids. Empty on an object that Bowline made itself.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256), inner(length(min = 1, max = 253)))]
    pub volumes: Vec<String>,
}

/// The record of a group, and what it means for people.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotGroupStatus {
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
    /// The ids of its snapshots, in the order of the volumes they were asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub snapshots: Vec<String>,
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
    /// For people: the sum of its snapshots' sizes.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub capacity: String,
    /// For people: whether it can be used (`Ready`), and if not, why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
}
