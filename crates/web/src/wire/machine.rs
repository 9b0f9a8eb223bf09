use bowline_controller as catalog;
use bowline_core::{Timestamp, VolumeId};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Event {
    /// When.
    #[schema(value_type = String, format = DateTime)]
    pub at: Timestamp,
    /// The id of the volume it happened to.
    #[schema(value_type = Option<String>)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume: Option<VolumeId>,
    /// What, in one word.
    #[schema(example = "Attached")]
    pub reason: String,
    /// The sentence for people.
    pub message: String,
}

impl From<catalog::Event> for Event {
    fn from(event: catalog::Event) -> Self {
        let catalog::Event { at, volume, reason, message } = event;
        Self { at, volume, reason, message }
    }
}

/// What happened, newest last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Events {
    /// The events.
    pub events: Vec<Event>,
}

/// How much room there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Capacity {
    /// Bytes in all.
    pub total: u64,
    /// Bytes that nothing takes up now.
    pub free: u64,
    /// Bytes promised to volumes, whether they are taken up yet or not.
    pub promised: u64,
    /// The largest sum of sizes that new volumes may have now.
    pub available: u64,
}

impl From<catalog::Capacity> for Capacity {
    fn from(capacity: catalog::Capacity) -> Self {
        let catalog::Capacity { total, free, promised, available } = capacity;
        Self { total, free, promised, available }
    }
}

/// What was found out about the machine and the data directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Doctor {
    /// The version of the process that answers.
    pub version: String,
    /// The node it runs on.
    pub node: String,
    /// What was looked for.
    pub findings: Vec<Finding>,
    /// Where records and storage disagree; not there while it is not known.
    pub drift: Option<Drift>,
}

/// One thing that was looked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    /// What.
    pub what: String,
    /// What it is for.
    pub needed_for: String,
    /// Whether it is there.
    pub present: bool,
    /// Its version or place, or why it is thought to be missing.
    pub detail: String,
    /// Whether nothing works without it.
    pub required: bool,
}

/// Volumes on targets that no record knows of.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Orphans {
    /// All of them, the oldest first.
    pub orphans: Vec<Orphan>,
}

/// A volume on a target that no record knows of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Orphan {
    /// Where it is.
    pub target: String,
    /// Which it is.
    pub volume: String,
    /// Since when that is known.
    pub first_seen: String,
    /// Whether its time is over: it is deleted in one of the next runs, where that is asked for.
    pub ripe: bool,
}

impl From<catalog::Orphan> for Orphan {
    fn from(orphan: catalog::Orphan) -> Self {
        let catalog::Orphan { target, volume, first_seen, ripe, .. } = orphan;
        Self {
            target: target.to_string(),
            volume: volume.to_string(),
            first_seen: format!("{first_seen:.0}"),
            ripe,
        }
    }
}

/// Where records and storage disagree.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Drift {
    /// Stored on a target, and no record knows it.
    pub unknown: Vec<String>,
    /// In a record, and not on its target.
    pub missing: Vec<String>,
}

impl From<catalog::Drift> for Drift {
    fn from(drift: catalog::Drift) -> Self {
        let said = |item: catalog::Item| match item {
            catalog::Item::Volume(id) => format!("volume {id}"),
            catalog::Item::Snapshot(id) => format!("snapshot {id}"),
        };
        Self {
            unknown: drift.unknown.into_iter().map(said).collect(),
            missing: drift.missing.into_iter().map(said).collect(),
        }
    }
}
