use serde::{Deserialize, Serialize};
use std::fmt;

use crate::{Epoch, FenceReason, NodeId, TargetId, Ticket, TicketId, TicketKind, Timestamp};

/// What a ticket's owner is told: that it has what it asked for, or the one reason why not.
///
/// The same value becomes the condition, the gRPC message, the event and the line of `bowline why`; its
/// sentence is written once, in [`Verdict::sentence`].
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "reason", rename_all_fields = "camelCase")]
pub enum Verdict {
    /// The node is in: the target has confirmed it.
    Satisfied {
        /// Which node.
        node: NodeId,
        /// At which epoch.
        epoch: Epoch,
        /// Since when.
        since: Timestamp,
    },
    /// The volume is shared, and its share is served.
    Shared {
        /// Where.
        endpoint: String,
    },
    /// The target is being asked to let the node in.
    Granting {
        /// Which target.
        target: TargetId,
        /// Which node.
        node: NodeId,
        /// Since when.
        since: Timestamp,
    },
    /// Another node (or an earlier grant of the same one) is being shut out first.
    WaitingForRelease {
        /// Which node.
        node: NodeId,
        /// Since when.
        since: Timestamp,
    },
    /// A node that may be writing is being shut out first.
    Fencing {
        /// Which node.
        node: NodeId,
        /// Since when.
        since: Timestamp,
        /// Why it is not simply released.
        why: FenceReason,
    },
    /// A node cannot be shut out because something there still uses the volume.
    StillInUse {
        /// Which node.
        node: NodeId,
        /// The mount or process.
        by: String,
        /// Since when it is being shut out.
        since: Timestamp,
    },
    /// The target does not answer.
    TargetUnreachable {
        /// Which target.
        target: TargetId,
        /// The node it was asked about.
        node: NodeId,
        /// Since when it is silent.
        since: Timestamp,
        /// What was seen instead of an answer.
        error: String,
    },
    /// The target said no.
    TargetRefused {
        /// Which target.
        target: TargetId,
        /// The node it was asked about.
        node: NodeId,
        /// Its words.
        error: String,
    },
    /// It is not yet known whom the target lets in.
    TargetNotCompared {
        /// Which target.
        target: TargetId,
        /// Since when it is being asked.
        since: Timestamp,
        /// Why it is not known.
        error: String,
    },
    /// Another node has the volume and may keep it.
    HeldElsewhere {
        /// Which node.
        node: NodeId,
        /// For which ticket.
        by: TicketId,
        /// Since when.
        since: Timestamp,
    },
    /// A ticket that goes first was chosen.
    Outranked {
        /// Where it wants the volume.
        node: NodeId,
        /// Which ticket.
        by: TicketId,
        /// Of which type.
        kind: TicketKind,
    },
    /// It had the volume, and a workload on another node takes it.
    Interrupted {
        /// Where the workload is.
        node: NodeId,
        /// Its ticket.
        by: TicketId,
        /// Of which type.
        kind: TicketKind,
    },
    /// Another ticket on the same node has the volume in a way that does not suit this one.
    #[serde(rename = "AttachedWithIncompatibleParameters")]
    IncompatibleParameters {
        /// The node.
        node: NodeId,
        /// The other ticket.
        by: TicketId,
        /// What does not go together.
        clash: Clash,
    },
    /// Two nodes of a live migration have it; there is never a third.
    Migrating {
        /// The old node.
        from: NodeId,
        /// The new node.
        to: NodeId,
        /// Since when.
        since: Timestamp,
    },
    /// The live migration to this node took too long.
    MigrationTimedOut {
        /// The node that has it.
        from: NodeId,
        /// Its ticket.
        by: TicketId,
        /// When the migration began.
        since: Timestamp,
    },
    /// The node does not report, so nothing new is given to it.
    NodeNotReady {
        /// Which node.
        node: NodeId,
        /// Since when.
        since: Timestamp,
    },
    /// The node was declared out of service.
    NodeOutOfService {
        /// Which node.
        node: NodeId,
        /// Since when.
        since: Timestamp,
    },
    /// The node was removed from the cluster.
    NodeGone {
        /// Which node.
        node: NodeId,
        /// Since when.
        since: Timestamp,
    },
    /// The node has as many volumes as it can take.
    NodeFull {
        /// Which node.
        node: NodeId,
        /// How many that is.
        limit: u32,
    },
    /// The share in front of the volume is not served yet.
    WaitingForShare,
    /// The volume's data cannot be used.
    VolumeFaulted {
        /// What is wrong with it.
        fault: String,
    },
    /// The volume is being deleted.
    Deleting,
}

/// What does not go together about two tickets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Clash {
    /// They want it on different nodes, and their access modes do not allow that.
    OtherNode,
    /// One of them wants to be the only workload that writes.
    SoleWriter,
    /// One needs `disableFrontend`, the other its opposite.
    Frontend,
    /// It is granted for reading, and the other wants to write.
    ReadOnly,
    /// They would share it with other nodes in different ways.
    Sharing,
}

impl Verdict {
    /// Whether the ticket has what it asked for.
    pub fn is_satisfied(&self) -> bool {
        matches!(self, Self::Satisfied { .. } | Self::Shared { .. })
    }

    /// Whether it will stay as it is until somebody else does something. While it is not settled, the engine is
    /// still at work on it, and a caller does well to wait.
    pub fn is_settled(&self) -> bool {
        match self {
            Self::Satisfied { .. }
            | Self::Shared { .. }
            | Self::HeldElsewhere { .. }
            | Self::Outranked { .. }
            | Self::Interrupted { .. }
            | Self::IncompatibleParameters { .. }
            | Self::Migrating { .. }
            | Self::MigrationTimedOut { .. }
            | Self::NodeNotReady { .. }
            | Self::NodeOutOfService { .. }
            | Self::NodeGone { .. }
            | Self::NodeFull { .. }
            | Self::VolumeFaulted { .. }
            | Self::Deleting => true,
            Self::Granting { .. }
            | Self::WaitingForRelease { .. }
            | Self::Fencing { .. }
            | Self::StillInUse { .. }
            | Self::TargetUnreachable { .. }
            | Self::TargetRefused { .. }
            | Self::TargetNotCompared { .. }
            | Self::WaitingForShare => false,
        }
    }

    /// Its name: the reason of a condition or event, the label of a metric.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Satisfied { .. } => "Satisfied",
            Self::Shared { .. } => "Shared",
            Self::Granting { .. } => "Granting",
            Self::WaitingForRelease { .. } => "WaitingForRelease",
            Self::Fencing { .. } => "Fencing",
            Self::StillInUse { .. } => "StillInUse",
            Self::TargetUnreachable { .. } => "TargetUnreachable",
            Self::TargetRefused { .. } => "TargetRefused",
            Self::TargetNotCompared { .. } => "TargetNotCompared",
            Self::HeldElsewhere { .. } => "HeldElsewhere",
            Self::Outranked { .. } => "Outranked",
            Self::Interrupted { .. } => "Interrupted",
            // The name under which people already know it.
            Self::IncompatibleParameters { .. } => "AttachedWithIncompatibleParameters",
            Self::Migrating { .. } => "Migrating",
            Self::MigrationTimedOut { .. } => "MigrationTimedOut",
            Self::NodeNotReady { .. } => "NodeNotReady",
            Self::NodeOutOfService { .. } => "NodeOutOfService",
            Self::NodeGone { .. } => "NodeGone",
            Self::NodeFull { .. } => "NodeFull",
            Self::WaitingForShare => "WaitingForShare",
            Self::VolumeFaulted { .. } => "VolumeFaulted",
            Self::Deleting => "Deleting",
        }
    }

    /// What it means for `ticket`, in one or two sentences for people: who is in the way, and what would change
    /// that.
    pub fn sentence(&self, ticket: &Ticket) -> String {
        let Ticket { id, node: here, .. } = ticket;
        match self {
            Self::Satisfied { node, epoch, since } => {
                format!("{id} has the volume on {node} since {} (epoch {epoch}).", at(since))
            }
            Self::Shared { endpoint } => {
                format!("{id} uses the volume on {here} through its share at {endpoint}.")
            }
            Self::Granting { target, node, since } => {
                format!(
                    "{id} waits for target {target} to let {node} in, asked since {}. Nothing else is in the way.",
                    at(since)
                )
            }
            Self::WaitingForRelease { node, since } => format!(
                "{id} on {here} is next: {node} is being shut out at the target since {}. It gets the volume as soon as the target confirms that.",
                at(since)
            ),
            Self::Fencing { node, since, why } => format!(
                "{id} on {here} is next: {node} is being fenced at the target since {} because {why}. It gets the volume as soon as the target proves that {node} can no longer reach it.",
                at(since)
            ),
            Self::StillInUse { node, by, since } => format!(
                "{id} on {here} is next, but {node} cannot be shut out since {}: {by} still uses the volume there. End that, and it goes on by itself.",
                at(since)
            ),
            Self::TargetUnreachable { target, node, since, error } => format!(
                "{id} on {here} waits: target {target} does not answer since {} when asked about {node} ({error}). It goes on when the target answers; until then nobody else is let in.",
                at(since)
            ),
            Self::TargetRefused { target, node, error } => format!(
                "{id} on {here} waits: target {target} refused when asked about {node}: {error}. It is asked again; the cause must be mended at the target."
            ),
            Self::TargetNotCompared { target, since, error } => format!(
                "{id} on {here} waits since {}: it is not known yet whom target {target} lets in ({error}). It goes on when the target has been asked.",
                at(since)
            ),
            Self::HeldElsewhere { node, by, since } => format!(
                "{id} on {here} waits: {node} has the volume for {by} since {}. It is its turn when {by} is withdrawn, or when {node} is declared out of service.",
                at(since)
            ),
            Self::Outranked { node, by, kind } => format!(
                "{id} on {here} waits: {by} on {node} goes first ({kind}, priority {}). It is its turn when {by} is withdrawn.",
                kind.priority()
            ),
            Self::Interrupted { node, by, kind } => format!(
                "{id} on {here} was interrupted: {by} ({kind}) needs the volume on {node}. It is its turn again when {by} is withdrawn."
            ),
            Self::IncompatibleParameters { node, by, clash } => format!(
                "{id} cannot have the volume on {here} beside {by} on {node}: {clash}. It is its turn when {by} is withdrawn."
            ),
            Self::Migrating { from, to, since } => format!(
                "{id} on {here} waits: the volume moves from {from} to {to} since {}, and a third node is never let in. It goes on when that is confirmed or rolled back.",
                at(since)
            ),
            Self::MigrationTimedOut { from, by, since } => format!(
                "{id} on {here} was refused: the live migration from {from}, begun {}, took too long. It gets the volume when {by} is withdrawn; to try again, withdraw and file {id} anew.",
                at(since)
            ),
            Self::NodeNotReady { node, since } => format!(
                "{id} waits: node {node} does not report since {}. It goes on when the node is ready.",
                at(since)
            ),
            Self::NodeOutOfService { node, since } => format!(
                "{id} waits: node {node} was declared out of service at {}. It goes on when that is taken back.",
                at(since)
            ),
            Self::NodeGone { node, since } => format!(
                "{id} waits: node {node} was removed from the cluster at {}. Withdraw the ticket, or bring the node back.",
                at(since)
            ),
            Self::NodeFull { node, limit } => format!(
                "{id} waits: node {node} has {limit} volumes, as many as it can take. It goes on when one of them is detached."
            ),
            Self::WaitingForShare => {
                format!(
                    "{id} on {here} waits for the server of the shared volume. It goes on when the share's address is published."
                )
            }
            Self::VolumeFaulted { fault } => format!(
                "{id} on {here} waits: the volume is faulted ({fault}) and must stay detached. It goes on when the volume is repaired."
            ),
            Self::Deleting => format!(
                "{id} on {here} is refused: the volume is being deleted. Nobody new is let in; withdraw the ticket."
            ),
        }
    }
}

fn at(time: &Timestamp) -> String {
    format!("{time:.0}")
}

impl fmt::Display for Clash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OtherNode => "their access modes allow one node only",
            Self::SoleWriter => "one of them asks to be the only workload that writes",
            Self::Frontend => "they disagree about disableFrontend",
            Self::ReadOnly => "it is granted for reading only",
            Self::Sharing => "they would share it with other nodes in different ways",
        })
    }
}
