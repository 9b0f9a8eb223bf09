//! What a ledger and its like look like in a status: the same fields as their records, as plain values. They are read
//! leniently here, so that one bad object does not hide the others; whoever decides by them reads the record itself.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use crate::schema;

/// A ticket in the ledger.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TicketRecord {
    /// Names it within its volume.
    #[schemars(schema_with = "schema::ticket_id")]
    pub id: String,
    /// Who files it.
    #[serde(rename = "type")]
    #[schemars(schema_with = "schema::ticket_type")]
    pub kind: String,
    /// Where the volume is wanted.
    #[serde(rename = "nodeID")]
    #[schemars(schema_with = "schema::node_id")]
    pub node_id: String,
    /// How it is meant to be used.
    #[schemars(schema_with = "schema::access")]
    pub access: String,
    /// What the workload sees.
    #[schemars(schema_with = "schema::content")]
    pub content: String,
    /// Whether it only reads.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub read_only: bool,
    /// `true`, `false` or `any`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(schema_with = "frontend")]
    pub disable_frontend: String,
    /// Counts how often this id was filed anew.
    #[schemars(schema_with = "schema::count")]
    pub generation: u64,
    /// When it was first filed.
    #[schemars(schema_with = "schema::moment")]
    pub created_at: String,
    /// Who must still want it.
    pub owner: OwnerRecord,
    /// What for, in the words of whoever filed it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
}

/// Who must still want a ticket.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OwnerRecord {
    /// Until when it stays.
    #[schemars(schema_with = "until")]
    pub until: String,
    /// The object whose end ends it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub object: String,
    /// When it is forgotten.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::moment")]
    pub at: Option<String>,
}

/// A node that might still reach the bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HoldRecord {
    /// The epoch of the grant.
    #[schemars(schema_with = "schema::count")]
    pub epoch: u64,
    /// What the grant lets the node do.
    pub mode: ModeRecord,
    /// Since when it is in this phase.
    #[schemars(schema_with = "schema::moment")]
    pub since: String,
    /// Where it stands between being let in and being proven out.
    #[schemars(schema_with = "phase")]
    pub phase: String,
    /// Why it is fenced and not simply released.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(schema_with = "why")]
    pub why: String,
}

/// What a grant lets a node do.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ModeRecord {
    /// Whether it may write.
    pub write: bool,
    /// Whether workloads on the node get to see it.
    pub frontend: bool,
    /// Which other nodes may be let in beside it.
    #[schemars(schema_with = "share")]
    pub share: String,
}

/// A live migration under way.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MigrationRecord {
    /// The ticket that had the volume before.
    #[schemars(schema_with = "schema::ticket_id")]
    pub from: String,
    /// Which filing of it.
    #[schemars(schema_with = "schema::count")]
    pub from_generation: u64,
    /// The ticket that shall have it afterwards.
    #[schemars(schema_with = "schema::ticket_id")]
    pub to: String,
    /// Which filing of it.
    #[schemars(schema_with = "schema::count")]
    pub to_generation: u64,
    /// When the second node was let in.
    #[schemars(schema_with = "schema::moment")]
    pub since: String,
}

/// How far a volume, a snapshot or a group has come.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Progress {
    /// In a word.
    #[schemars(schema_with = "progress")]
    pub is: String,
    /// How many bytes a growing volume will have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::count")]
    pub to: Option<u64>,
    /// How many bytes a volume made from a snapshot needs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::count")]
    pub size: Option<u64>,
    /// The moment whose bytes a snapshot holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::moment")]
    pub taken_at: Option<String>,
}

fn progress(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "enum": ["creating", "taking", "ready", "growing", "deleting"] })
}

fn frontend(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "enum": ["false", "true", "any"] })
}

fn until(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "enum": ["objectGone", "expires", "withdrawn"] })
}

fn phase(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "enum": ["granting", "held", "releasing", "fencing"] })
}

fn why(_: &mut SchemaGenerator) -> Schema {
    let words = ["nodeSilent", "nodeOutOfService", "nodeGone", "forced", "unrecorded"];
    json_schema!({ "type": "string", "enum": words })
}

fn share(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "enum": ["nobody", "readers", "one-writer", "writers"] })
}
