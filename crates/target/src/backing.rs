//! What a node on the same machine may know of a volume's file.

use bowline_core::{Epoch, NodeId, VolumeId};
use std::path::{Path, PathBuf};

/// Why a node does not get at a volume's file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BackingError {
    /// There is no such volume here.
    #[error("volume {0} is not on this target")]
    Unknown(VolumeId),
    /// The node is not let in at that epoch: never was, or not any more.
    #[error("node {node} is not let in to volume {volume} at epoch {epoch}")]
    NotGranted {
        /// The volume.
        volume: VolumeId,
        /// The node.
        node: NodeId,
        /// The epoch it named.
        epoch: Epoch,
    },
    /// What is stored cannot be read.
    #[error("{error}")]
    Unreadable {
        /// What was seen.
        error: String,
    },
}

/// Targets whose volumes are files on the node's own machine. Blocks.
pub trait BackingFiles: Send + Sync + 'static {
    /// Calls `attach` with the volume's file, and whether the node may write, if the node is let in at that epoch. No
    /// revocation is confirmed between the look at the grant and the return of `attach`: whatever device `attach` makes is
    /// seen by every later one.
    fn with_grant(
        &self,
        volume: &VolumeId,
        node: &NodeId,
        epoch: Epoch,
        attach: &mut dyn FnMut(&Path, bool),
    ) -> Result<(), BackingError>;

    /// Where a volume's file is, whoever is let in: to find and detach devices of it. `None` if there is none.
    fn backing(&self, volume: &VolumeId) -> Result<Option<PathBuf>, BackingError>;
}
