use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

use crate::{Condition, schema};

/// Storage that holds volumes, and the agent through which it is reached. The object is named by the target's id.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[kube(
    group = "bowline.storage",
    version = "v1beta1",
    kind = "Target",
    plural = "targets",
    shortname = "bvt",
    category = "bowline",
    status = "TargetStatus",
    derive = "PartialEq",
    doc = "Storage that holds volumes, and the agent through which it is reached. Named by the target's id.",
    validation = Rule::new("size(self.metadata.name) <= 63").message("a target's name has 63 characters at most"),
    printcolumn(name = "Kind", type_ = "string", json_path = ".spec.kind"),
    printcolumn(name = "Reachable", type_ = "string", json_path = ".status.conditions[?(@.type==\"Reachable\")].status"),
    printcolumn(name = "Free", type_ = "string", json_path = ".status.free"),
    printcolumn(name = "Capacity", type_ = "string", json_path = ".status.capacity"),
    printcolumn(name = "Accepts", type_ = "string", json_path = ".status.conditions[?(@.type==\"AcceptsVolumes\")].reason", priority = "1"),
    printcolumn(name = "Clock", type_ = "string", json_path = ".status.conditions[?(@.type==\"ClockAgrees\")].reason", priority = "1"),
    printcolumn(name = "Exports", type_ = "string", json_path = ".status.conditions[?(@.type==\"ExportsShown\")].reason", priority = "1"),
    printcolumn(name = "Version", type_ = "string", json_path = ".status.version", priority = "1"),
    printcolumn(name = "Draining", type_ = "boolean", json_path = ".spec.drain", priority = "1"),
    printcolumn(name = "Address", type_ = "string", json_path = ".spec.address", priority = "1"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("self.kind == oldSelf.kind").message("kind cannot be changed"),
    validation = Rule::new("has(self.topology) == has(oldSelf.topology) && (!has(self.topology) || self.topology == oldSelf.topology)").message("topology cannot be changed: it is in the volumes that were made there")
)]
pub struct TargetSpec {
    /// What it is.
    pub kind: TargetKind,
    /// Where its agent listens: host:port.
    #[schemars(length(min = 3, max = 300), regex(pattern = r"^.+:[0-9]{1,5}$"))]
    pub address: String,
    /// From where it can be reached, besides what its agent says: every segment must fit. Empty, and its agent says nothing: from
    /// everywhere.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "topology")]
    pub topology: BTreeMap<String, String>,
    /// Whether nothing new is made here.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub drain: bool,
}

/// The kinds of storage there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum TargetKind {
    /// Sparse files in one directory, for nodes of the same machine.
    File,
    /// Sparse files that a Linux machine exports over NVMe/TCP.
    Nvmet,
    /// Files of a MikroTik ROSE Data Server, which exports them over NVMe/TCP.
    Rds,
}

impl TargetKind {
    /// As an agent says it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Nvmet => "nvmet",
            Self::Rds => "rds",
        }
    }
}

/// What is known of a target, for people.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TargetStatus {
    /// How many bytes it can hold, as people write sizes.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub capacity: String,
    /// How many of them can still be promised.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub free: String,
    /// The version of its agent.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub version: String,
    /// What tells its storage from any other of the same name, since it was first connected. An agent over other storage is refused, until
    /// somebody empties this.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub installation: String,
    /// Volumes on it that no record knows of, while they are looked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = TargetStatus::MOST_ORPHANS))]
    pub orphans: Vec<OrphanStatus>,
    /// `Reachable`, `Compatible`, `ClockAgrees`, `AcceptsVolumes` and `ExportsShown`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
}

/// A volume that no record knows of.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OrphanStatus {
    /// Which it is.
    pub volume: String,
    /// Since when that is known.
    pub first_seen: String,
}

impl TargetStatus {
    /// How many orphans can be named.
    pub const MOST_ORPHANS: usize = 1000;
    /// The type of the condition that says whether the target's agent answers.
    pub const REACHABLE: &'static str = "Reachable";
    /// The type of the condition that says whether the controller understands the target's agent.
    pub const COMPATIBLE: &'static str = "Compatible";
    /// The type of the condition that says whether the agent's clock is right, as far as the controller's is.
    pub const CLOCK_AGREES: &'static str = "ClockAgrees";
    /// The type of the condition that says whether new volumes can be made there.
    pub const ACCEPTS_VOLUMES: &'static str = "AcceptsVolumes";
    /// The type of the condition that says whether the agent shows to nodes all that its records let in.
    pub const EXPORTS_SHOWN: &'static str = "ExportsShown";
}

fn topology(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({
        "type": "object",
        "maxProperties": 16,
        "additionalProperties": { "type": "string", "maxLength": 63 }
    })
}
