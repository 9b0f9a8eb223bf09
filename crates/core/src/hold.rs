use serde::{Deserialize, Serialize};
use std::fmt;

use crate::{Epoch, Mode, Timestamp};

/// A node that *might still reach the bytes*. Where a node has no hold, access is proven gone.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Hold {
    /// The epoch of the grant: the target's export for this hold carries it.
    pub epoch: Epoch,
    /// What the grant lets the node do.
    pub mode: Mode,
    /// Since when it is in this phase.
    pub since: Timestamp,
    /// Where it stands between being let in and being proven out.
    #[serde(flatten)]
    pub phase: Phase,
}

/// The life of a hold. It ends, in every phase, only by the target's proof that the access is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "phase", rename_all = "camelCase")]
pub enum Phase {
    /// The target is asked to let the node in; it may already have done so.
    Granting,
    /// The target has confirmed that the node is in.
    Held,
    /// The target is asked to shut the node out; nobody on the node needs it any more.
    Releasing,
    /// The target is asked to shut the node out; the node may be alive and writing.
    Fencing {
        /// Why it cannot simply be released.
        why: FenceReason,
    },
}

/// Why a node is fenced instead of released.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum FenceReason {
    /// The node does not report; nobody knows what it does.
    NodeSilent,
    /// Somebody declared the node out of service.
    NodeOutOfService,
    /// The node was removed from the cluster; its kernel may still run.
    NodeGone,
    /// Somebody asked for a forced detach.
    Forced,
    /// The target lets the node in, but no ledger entry says so.
    Unrecorded,
}

impl Hold {
    /// A new grant, not yet confirmed.
    pub fn granting(epoch: Epoch, mode: Mode, now: Timestamp) -> Self {
        Self { epoch, mode, since: now, phase: Phase::Granting }
    }

    /// Whether the node is meant to be in (being let in, or in).
    pub fn is_open(&self) -> bool {
        match self.phase {
            Phase::Granting | Phase::Held => true,
            Phase::Releasing | Phase::Fencing { .. } => false,
        }
    }

    /// The same grant in another phase; a phase it is already in keeps its beginning.
    #[must_use]
    pub(crate) fn turned(self, phase: Phase, now: Timestamp) -> Self {
        let since = if self.phase == phase { self.since } else { now };
        Self { phase, since, ..self }
    }
}

impl fmt::Display for FenceReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NodeSilent => "the node does not report",
            Self::NodeOutOfService => "the node was declared out of service",
            Self::NodeGone => "the node was removed from the cluster",
            Self::Forced => "a forced detach was asked for",
            Self::Unrecorded => "the target let it in, but the ledger does not know why",
        })
    }
}
