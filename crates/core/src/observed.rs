use jiff::SignedDuration;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

use crate::{Epoch, Export, NodeId, TargetId, TicketId, Timestamp};

/// What is known of the world around one volume at the moment of a decision. What is not in here is not known, and
/// what is not known never ends a hold.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Observed {
    /// The volume itself.
    pub volume: VolumeFacts,
    /// Whether the target's own list was compared with the ledger since this process began.
    pub contact: Contact,
    /// Nodes of which something is known. A node that is not listed counts as ready: ignorance fences nobody.
    pub nodes: BTreeMap<NodeId, NodeFacts>,
    /// Tickets of which something is known beyond what they say themselves.
    pub tickets: BTreeMap<TicketId, TicketFacts>,
    /// The target's latest answer for each node; it counts only for the hold with the same epoch.
    pub answers: BTreeMap<NodeId, Answer>,
    /// The target's own list of whom it lets in, if it was just asked. One that is out of date does no harm: it
    /// only makes the engine ask again.
    pub exports: Option<BTreeMap<Epoch, Export>>,
}

impl Observed {
    /// A volume of which only its own facts are known, on a target that was compared and agrees.
    pub fn new(volume: VolumeFacts) -> Self {
        Self {
            volume,
            contact: Contact::Compared,
            nodes: BTreeMap::new(),
            tickets: BTreeMap::new(),
            answers: BTreeMap::new(),
            exports: None,
        }
    }
}

/// What is known of a volume itself.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct VolumeFacts {
    /// Where its bytes live.
    pub target: TargetId,
    /// Its data cannot be used; why, for people. It must be detached before it can be repaired.
    pub fault: Option<String>,
    /// Somebody asked to delete it. Nobody new is let in.
    pub deleting: bool,
    /// Set if it may move between two nodes while both have it, and for how long at most.
    pub migratable: Option<MigrationTimeout>,
    /// Where its share is served, once that is published.
    pub share: Option<String>,
}

impl VolumeFacts {
    /// A healthy volume on `target`, neither migratable nor shared.
    pub fn new(target: TargetId) -> Self {
        Self { target, fault: None, deleting: false, migratable: None, share: None }
    }
}

/// How long both nodes of a live migration may have the volume: 30 to 3600 seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u16", into = "u16")]
pub struct MigrationTimeout(u16);

impl MigrationTimeout {
    /// A time-out of this many seconds, if it is within bounds.
    pub fn from_seconds(seconds: u16) -> Result<Self, String> {
        if (30..=3600).contains(&seconds) {
            Ok(Self(seconds))
        } else {
            Err(format!("migrationTimeoutSeconds is {seconds}; it must be between 30 and 3600"))
        }
    }

    pub(crate) fn after(self, since: Timestamp) -> Timestamp {
        since.saturating_add(SignedDuration::from_secs(self.0.into())).unwrap_or(Timestamp::MAX)
    }
}

impl Default for MigrationTimeout {
    fn default() -> Self {
        Self(300)
    }
}

impl TryFrom<u16> for MigrationTimeout {
    type Error = String;
    fn try_from(seconds: u16) -> Result<Self, String> {
        Self::from_seconds(seconds)
    }
}

impl From<MigrationTimeout> for u16 {
    fn from(timeout: MigrationTimeout) -> u16 {
        timeout.0
    }
}

/// Whether the target has been heard since this process began.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Contact {
    /// Its list of exports was compared with the ledger. Grants may follow.
    Compared,
    /// Not yet: nobody new is let in before it is known whom the target lets in already.
    NotCompared {
        /// Since when it is being asked.
        since: Timestamp,
        /// What it said, or why it could not be heard.
        error: String,
    },
}

/// What is known of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct NodeFacts {
    /// Whether it can be used.
    pub state: NodeState,
    /// How many more volumes it can take, and out of how many; unset where there is no limit.
    pub room: Option<Room>,
    /// Somebody asked to cut it off from this volume: it is fenced, not released, once no ticket wants it there.
    pub forced: bool,
}

/// The attach limit of a node, as far as other volumes have used it up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Room {
    /// How many more volumes fit.
    pub free: u32,
    /// How many it can have in all.
    pub limit: u32,
}

/// Whether a node can be used. Nothing here proves that the node has stopped writing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum NodeState {
    /// It reports and can take volumes.
    #[default]
    Ready,
    /// It does not report. What it has it keeps, new volumes it does not get.
    NotReady {
        /// Since when.
        since: Timestamp,
    },
    /// Somebody declared it out of service: what it has is taken from it.
    OutOfService {
        /// Since when.
        since: Timestamp,
    },
    /// It was removed from the cluster: what it has is taken from it.
    Gone {
        /// Since when.
        since: Timestamp,
    },
}

/// What is known of a ticket beyond what it says itself. Counts only for the ticket with the same generation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TicketFacts {
    /// Which filing of the ticket this is about.
    pub generation: u64,
    /// It is proven that the owner no longer exists or no longer needs it.
    pub owner_gone: bool,
    /// The work it was filed for has been done (a clone that has finished copying).
    pub copied: bool,
}

/// What the target said of one node's grant.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Answer {
    /// Which grant it is about.
    pub epoch: Epoch,
    /// What it said.
    pub outcome: Outcome,
}

/// The result of asking a target to let a node in or to shut it out.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The node is in.
    Allowed,
    /// Proof: this epoch reaches nothing, and never will again.
    Gone {
        /// The newest epoch the target has seen for this volume.
        highest: Epoch,
    },
    /// The target said no, and why.
    Refused {
        /// Its words.
        error: String,
    },
    /// The target could not shut the node out because something there still uses the volume.
    InUse {
        /// The mount or process that does.
        by: String,
    },
    /// No answer. It proves nothing.
    Silent {
        /// Since when.
        since: Timestamp,
        /// What was seen instead of an answer.
        error: String,
    },
}
