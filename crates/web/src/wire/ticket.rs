use bowline_core::{AccessMode, Content, Owner, TicketId, TicketKind, Timestamp, Verdict};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Somebody's wish that a volume be usable on a node, its place in the queue, and what it is told.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Ticket {
    /// Its place in the queue of its volume: 1 goes first.
    pub rank: u32,
    /// Names it within its volume.
    #[schema(value_type = String)]
    pub id: TicketId,
    /// The beginning of its id that no other ticket of the volume has.
    pub short_id: String,
    /// The volume's name.
    pub volume: String,
    /// Who files it.
    #[serde(rename = "type")]
    #[schema(value_type = String, example = "bowline-api")]
    pub kind: TicketKind,
    /// The greater goes first.
    pub priority: u16,
    /// Where the volume is wanted.
    pub node: String,
    /// By whom at once.
    #[schema(value_type = String, example = "single-node-writer")]
    pub access: AccessMode,
    /// As what.
    #[schema(value_type = String, example = "filesystem")]
    pub content: Content,
    /// Whether it only reads.
    pub read_only: bool,
    /// What for, in the words of whoever filed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// When it was filed.
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    /// Who must still want it.
    #[schema(value_type = OwnerFields)]
    pub owner: Owner,
    /// Whether it has what it asked for.
    pub satisfied: bool,
    /// What it is told.
    #[schema(value_type = VerdictFields)]
    pub verdict: Verdict,
    /// That in a few words.
    pub phrase: String,
    /// That in one or two sentences.
    pub sentence: String,
    /// What would change it; not there if it has what it asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remedy: Option<Remedy>,
}

/// What would change a verdict.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Remedy {
    /// In one sentence.
    pub sentence: String,
    /// What to type for it; any one of them will do.
    pub commands: Vec<String>,
}

/// Who must still want a ticket for it to stay.
#[derive(ToSchema)]
#[allow(dead_code, reason = "describes bowline_core::Owner")]
#[schema(rename_all = "camelCase")]
pub struct OwnerFields {
    /// `withdrawn`: until somebody withdraws it. `expires`: until `at`. `objectGone`: as long as `object` exists.
    until: String,
    /// When it is forgotten.
    #[schema(value_type = Option<String>, format = DateTime)]
    at: Option<String>,
    /// The object, as a person would look for it.
    object: Option<String>,
}

/// What a ticket's owner is told: that it has what it asked for, or the one reason why not. Which fields are there
/// follows from the reason; docs/why.md lists them all.
#[derive(ToSchema)]
#[allow(dead_code, reason = "describes bowline_core::Verdict")]
#[schema(rename_all = "camelCase")]
pub struct VerdictFields {
    /// The name of the verdict.
    #[schema(example = "HeldElsewhere")]
    reason: String,
    /// The node it is about.
    node: Option<String>,
    /// The ticket, mount or process in the way.
    by: Option<String>,
    /// The type of that ticket.
    kind: Option<String>,
    /// Since when.
    #[schema(value_type = Option<String>, format = DateTime)]
    since: Option<String>,
    /// The number of the grant.
    epoch: Option<u64>,
    /// The target that was asked.
    target: Option<String>,
    /// What it said, or what was seen instead of an answer.
    error: Option<String>,
    /// Why a node is fenced and not released.
    why: Option<String>,
    /// What does not go together about two tickets.
    clash: Option<String>,
    /// The node a volume moves from.
    from: Option<String>,
    /// The node a volume moves to.
    to: Option<String>,
    /// How many volumes the node can have.
    limit: Option<u32>,
    /// Where a share is served.
    endpoint: Option<String>,
    /// What is wrong with the volume.
    fault: Option<String>,
}

/// Tickets, volume by volume, each queue in its order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Tickets {
    /// The tickets.
    pub tickets: Vec<Ticket>,
    /// Pass it as `after` to go on with further volumes; not there after the last page.
    pub next: Option<String>,
}

/// Why a volume is where it is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Why {
    /// The volume's id.
    pub id: String,
    /// The volume's name.
    pub volume: String,
    /// One word: `detached`, `attaching`, `attached`, `detaching`, `faulted` or `deleting`.
    pub state: String,
    /// The newest epoch ever granted.
    pub epoch: u64,
    /// Every node that might still reach the bytes.
    pub holds: Vec<Hold>,
    /// Every wish, in the order of the queue.
    pub tickets: Vec<Ticket>,
}

/// A node that might still reach the bytes, and what the target said of it last.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Hold {
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
    /// Why it is fenced and not released.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fenced_because: Option<String>,
    /// What the target said last, if it is not done yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_said: Option<String>,
}

/// How long a ticket stays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub enum Until {
    /// Until somebody withdraws it.
    #[default]
    Removed,
    /// For this many seconds; asking again begins anew.
    Seconds(u32),
}

/// What an attach waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub enum WaitFor {
    /// Until it is attached, or it is known that it will not be before somebody else does something.
    #[default]
    Verdict,
    /// Until it is attached, in the queue as long as it takes.
    Attached,
}

/// A ticket to be filed. Asking again with the same ticket and node means the same ticket.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NewTicket {
    /// Where the volume is wanted.
    pub node: String,
    /// What the ticket is called after `bowline-api-`; the node's name if not given.
    #[serde(default)]
    pub name: Option<String>,
    /// Whether it only reads.
    #[serde(default)]
    pub read_only: bool,
    /// How long it stays.
    #[serde(default)]
    pub until: Until,
    /// What for, at most 256 bytes.
    #[serde(default)]
    pub reason: Option<String>,
    /// How many seconds to wait; the ticket stays beyond.
    #[serde(default)]
    pub wait_seconds: Option<u32>,
    /// What to wait for.
    #[serde(default)]
    pub wait_for: WaitFor,
}

/// What became of a ticket that was filed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Attached {
    /// The ticket.
    #[schema(value_type = String)]
    pub ticket: TicketId,
    /// Where the volume is wanted.
    pub node: String,
    /// Whether the node is in: durable, and confirmed by the target. If not, work goes on and the ticket stays.
    pub attached: bool,
    /// How far it has come, if that is known.
    #[schema(value_type = Option<VerdictFields>)]
    pub verdict: Option<Verdict>,
    /// That in one or two sentences.
    pub sentence: Option<String>,
    /// What the node needs to know.
    pub context: std::collections::BTreeMap<String, String>,
}
