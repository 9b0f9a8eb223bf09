//! The Target port: the storage that holds volumes, and the only place where access is really given and taken.

use async_trait::async_trait;
use bowline_core::{Epoch, Export, Mode, NeverAgain, NodeId, Outcome, TargetId, Timestamp, VolumeId};
use std::collections::BTreeMap;

mod abreast;
pub mod agent;
mod backing;
pub mod context;
#[cfg(feature = "contract")]
pub mod contract;
pub mod file;
pub mod nvmet;
mod provision;
pub mod rds;
mod turns;

pub use backing::{BackingError, BackingFiles};
pub use context::{ContextError, GrantContext, NvmeContext};
pub use provision::{
    Capacity, Cut, FILE, Item, NVMET, NewVolume, Progress, Provision, ProvisionError, RDS, Sizes, Source,
    StoredSnapshot, StoredVolume,
};

/// One node to be let in to one volume.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Grant {
    /// Which volume.
    pub volume: VolumeId,
    /// Whom.
    pub node: NodeId,
    /// The grant's own number; the target exports the volume once per epoch.
    pub epoch: Epoch,
    /// What the node may do.
    pub mode: Mode,
    /// Beside which other grant it may stand although their modes do not go together: that of the other node of a live migration.
    pub beside: Option<Epoch>,
}

/// One node to be shut out of everything it was granted up to an epoch.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Revocation {
    /// Which volume.
    pub volume: VolumeId,
    /// Whom.
    pub node: NodeId,
    /// The newest grant it covers.
    pub epoch: Epoch,
    /// Whether the node may be alive and using the volume.
    pub fence: bool,
}

/// Why a target did not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TargetError {
    /// The epoch was closed before: proof that it reaches nothing and never will again.
    #[error(transparent)]
    NeverAgain(#[from] NeverAgain),
    /// The target said no.
    #[error("{error}")]
    Refused {
        /// Its words.
        error: String,
    },
    /// Something on the node still uses the volume.
    #[error("{by} still uses it")]
    InUse {
        /// The mount or process.
        by: String,
    },
    /// No answer; the command may have been carried out, or may be later.
    #[error("{error}")]
    Unreachable {
        /// What was seen instead of an answer.
        error: String,
    },
}

impl TargetError {
    /// What it means for the ledger.
    pub fn outcome(self, now: Timestamp) -> Outcome {
        match self {
            Self::NeverAgain(NeverAgain { highest }) => Outcome::Gone { highest },
            Self::Refused { error } => Outcome::Refused { error },
            Self::InUse { by } => Outcome::InUse { by },
            Self::Unreachable { error } => Outcome::Silent { since: now, error },
        }
    }
}

/// Whom a target lets in to one volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    /// Which volume.
    pub volume: VolumeId,
    /// Who is let in, by epoch.
    pub exports: BTreeMap<Epoch, Export>,
}

/// A part of a target's list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// Volumes with at least one export, by id.
    pub listings: Vec<Listing>,
    /// Where the next page starts (pass it as `after`); `None` when this was the last one.
    pub next: Option<VolumeId>,
}

/// The storage that holds volumes.
///
/// # Guarantees that every adapter gives
/// - What [`bowline_core::Exports`] promises, durably: an epoch once revoked is never let in again, in whatever order
///   commands arrive, however often, and whoever sends them.
/// - `revoke` returns `Ok`, and `allow` says [`NeverAgain`], only when the node can no longer reach the bytes through that
///   epoch and nothing of it is still on its way: not while a revocation of it is still draining.
/// - Commands for one volume do not disturb another.
#[async_trait]
pub trait Target: Send + Sync + 'static {
    /// Its name.
    fn id(&self) -> &TargetId;

    /// Lets a node in. Again for the same grant changes nothing.
    async fn allow(&self, grant: &Grant) -> Result<(), TargetError>;

    /// Shuts a node out, and proves it.
    async fn revoke(&self, revocation: &Revocation) -> Result<NeverAgain, TargetError>;

    /// Whom it lets in now, volume by volume, from the one after `after`, at most `limit` volumes.
    async fn exports(&self, after: Option<&VolumeId>, limit: usize) -> Result<Page, TargetError>;

    /// What the node needs to know to use this grant. Follows from the grant alone, so that a repeated question
    /// gets the same answer without asking the storage.
    fn context(&self, grant: &Grant) -> BTreeMap<String, String>;
}
