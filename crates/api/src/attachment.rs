use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

use crate::{Condition, HoldRecord, MigrationRecord, TicketRecord, schema};

/// Who wants a volume, and who has it. The object is named by the volume's id.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[kube(
    group = "bowline.storage",
    version = "v1beta1",
    kind = "VolumeAttachment",
    plural = "volumeattachments",
    shortname = "bva",
    category = "bowline",
    status = "VolumeAttachmentStatus",
    derive = "PartialEq",
    doc = "Who wants a volume, and who has it. Named by the volume's id. The status is the ledger: it is written by Bowline alone.",
    printcolumn(name = "State", type_ = "string", json_path = ".status.state"),
    printcolumn(name = "Node", type_ = "string", json_path = ".status.currentNodeID"),
    printcolumn(name = "Ticket", type_ = "string", json_path = ".status.currentTicket"),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.reason"),
    printcolumn(name = "Epoch", type_ = "integer", json_path = ".status.epoch", priority = "1"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.volume == oldSelf.volume").message("volume cannot be changed"))]
pub struct VolumeAttachmentSpec {
    /// The volume: the name of its Volume object.
    #[schemars(length(min = 1, max = 253))]
    pub volume: String,
    /// Wishes that the volume be usable on a node, each under its own id. Whoever writes one applies that one key.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::attachment_tickets")]
    pub attachment_tickets: BTreeMap<String, AttachmentTicket>,
}

/// Somebody's wish that a volume be usable on a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new(
    "(has(self.generation) ? self.generation : 0) > (has(oldSelf.generation) ? oldSelf.generation : 0) || (self.type == oldSelf.type && self.nodeID == oldSelf.nodeID && has(self.parameters) == has(oldSelf.parameters) && (!has(self.parameters) || self.parameters == oldSelf.parameters))"
).message("a ticket's type, nodeID and parameters cannot be changed; raise its generation to file it anew"))]
pub struct AttachmentTicket {
    /// Names it within its volume; equals its key.
    #[schemars(schema_with = "schema::ticket_id")]
    pub id: String,
    /// Who files it; decides its priority and whom it may interrupt.
    #[serde(rename = "type")]
    #[schemars(schema_with = "schema::ticket_type")]
    pub kind: String,
    /// The node where the volume is wanted.
    #[serde(rename = "nodeID")]
    #[schemars(schema_with = "schema::node_id")]
    pub node_id: String,
    /// More about it: access, content, readOnly, disableFrontend, reason.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "parameters")]
    pub parameters: BTreeMap<String, String>,
    /// Raised to file the same id anew.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::count")]
    pub generation: Option<u64>,
    /// When it was filed; of two with the same priority the older goes first. When Bowline first saw it, if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::moment")]
    pub created_at: Option<String>,
}

fn parameters(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({
        "type": "object",
        "maxProperties": 16,
        "additionalProperties": { "type": "string", "maxLength": 1024 }
    })
}

/// The ledger of a volume, and what it means for people.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VolumeAttachmentStatus {
    /// The version of the record; without it there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::count")]
    pub record_version: Option<u64>,
    /// The newest epoch ever granted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::count")]
    pub epoch: Option<u64>,
    /// Every wish, by id.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tickets: BTreeMap<String, TicketRecord>,
    /// Every node that might still reach the bytes.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub holds: BTreeMap<String, HoldRecord>,
    /// The live migration under way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub migration: Option<MigrationRecord>,

    /// For people: detached, attaching, attached or detaching; while somebody waits for it also faulted or deleting.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub state: String,
    /// For people: the node that has the volume, or the one that is being let in or shut out.
    #[serde(rename = "currentNodeID", default, skip_serializing_if = "String::is_empty")]
    pub current_node_id: String,
    /// For people: the ticket that has it, or else the one that goes first.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub current_ticket: String,
    /// For people: in a word, what became of that ticket.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// For people: what became of each ticket.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub attachment_ticket_statuses: BTreeMap<String, TicketStatus>,
    /// For people: `Attached`, whether the current ticket has the volume, and why not. Not there if there is none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
}

/// What became of a ticket.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TicketStatus {
    /// Whether it has what it asked for.
    pub satisfied: bool,
    /// Which filing this is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::count")]
    pub generation: Option<u64>,
    /// Why, or why not.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
}
