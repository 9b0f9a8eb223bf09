//! What happens to volumes on this node without anybody asking for it: counted, and told in the log with a `reason` that
//! programs can look for.
//!
//! A node has no rights to write to Kubernetes. What keeps a workload waiting, the kubelet tells its pod (`FailedMount`, with
//! the sentence of the error); that a volume is ill, it learns from `NodeGetVolumeHealth`.

use crate::node::ThisNode;
use bowline_core::{Epoch, VolumeId};

/// Something that happened to a volume.
pub(crate) enum Event {
    /// What is mounted is not the volume any more.
    StaleMount { why: String },
    /// It was mounted again.
    Remounted { attempt: u32 },
    /// It could not be mounted again.
    RemountFailed { attempt: u32, why: String },
    /// A connection without a usable device was taken down.
    OrphanCleaned { epoch: Epoch },
    /// Connections that counted as live, and over which nothing came for long, were reset.
    Reset { epoch: Epoch, connections: usize },
}

impl ThisNode {
    pub(crate) fn tell(&self, volume: &VolumeId, event: &Event) {
        match event {
            Event::StaleMount { why } => {
                self.metrics.stale_mount();
                tracing::warn!(reason = "StaleMountDetected", %volume, why, "found a stale mount");
            }
            Event::Remounted { attempt } => {
                self.metrics.remount("success");
                tracing::info!(reason = "RemountSucceeded", %volume, attempt, "mounted a stale volume again");
            }
            Event::RemountFailed { attempt, why } => {
                self.metrics.remount("failure");
                tracing::warn!(reason = "RemountFailed", %volume, attempt, why, "a stale volume could not be mounted again");
            }
            Event::OrphanCleaned { epoch } => {
                self.metrics.orphan();
                tracing::warn!(reason = "OrphanCleaned", %volume, %epoch, "took down a connection without a device");
            }
            Event::Reset { epoch, connections } => {
                self.metrics.reset();
                tracing::warn!(reason = "ConnectionReset", %volume, %epoch, connections, "reset connections that only seem to work");
            }
        }
    }
}
