//! What happens to volumes on this node without anybody asking for it: counted, told in the log with a `reason` that programs can look for, and told
//! to whoever writes it where people look: in Kubernetes, an event of the Volume.
//!
//! Nobody waits for that, and nothing depends on it. What keeps a workload waiting, the kubelet tells its pod (`FailedMount`, with the sentence of the
//! error); that a volume is ill, it learns from `NodeGetVolumeHealth`.

use crate::node::ThisNode;
use bowline_core::{Epoch, VolumeId};
use std::path::PathBuf;

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
    /// Some of its connections do not work; the others do.
    PathLost { why: String },
    /// Connections that counted as live were reset, because something waited long for the device.
    Reset { epoch: Epoch, connections: usize },
    /// Its disk is gone, a workload still sees the number of that, and the disk of another volume got it.
    GoneDiskSeen { at: PathBuf, by: VolumeId },
}

/// The same, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    /// To which volume.
    pub volume: VolumeId,
    /// What, in one word.
    pub reason: &'static str,
    /// In one sentence.
    pub message: String,
    /// Whether somebody should look.
    pub is_warning: bool,
}

impl Event {
    fn reason(&self) -> &'static str {
        match self {
            Self::StaleMount { .. } => "StaleMountDetected",
            Self::Remounted { .. } => "RemountSucceeded",
            Self::RemountFailed { .. } => "RemountFailed",
            Self::OrphanCleaned { .. } => "OrphanCleaned",
            Self::PathLost { .. } => "PathLost",
            Self::Reset { .. } => "ConnectionReset",
            Self::GoneDiskSeen { .. } => "GoneDiskSeen",
        }
    }

    fn message(&self) -> String {
        match self {
            Self::StaleMount { why } => format!("found a stale mount: {why}"),
            Self::Remounted { attempt } => format!("mounted a stale volume again (attempt {attempt})"),
            Self::RemountFailed { attempt, why } => {
                format!("a stale volume could not be mounted again (attempt {attempt}): {why}")
            }
            Self::OrphanCleaned { epoch } => {
                format!("took down a connection without a device (epoch {epoch})")
            }
            Self::PathLost { why } => why.clone(),
            Self::Reset { epoch, connections } => {
                format!(
                    "reset {connections} connections that count as live: something waits long for the device (epoch {epoch})"
                )
            }
            Self::GoneDiskSeen { at, by } => format!(
                "its disk is gone, and is still shown at {}, where the disk of volume {by} would be seen instead: no volume that gets its \
                 number is staged on this node until that is unpublished",
                at.display()
            ),
        }
    }

    fn is_warning(&self) -> bool {
        !matches!(self, Self::Remounted { .. })
    }
}

impl ThisNode {
    pub(crate) fn tell(&self, volume: &VolumeId, event: &Event) {
        let reason = event.reason();
        match event {
            Event::StaleMount { why } => {
                self.metrics.stale_mount();
                tracing::warn!(reason, %volume, why, "found a stale mount");
            }
            Event::Remounted { attempt } => {
                self.metrics.remount("success");
                tracing::info!(reason, %volume, attempt, "mounted a stale volume again");
            }
            Event::RemountFailed { attempt, why } => {
                self.metrics.remount("failure");
                tracing::warn!(reason, %volume, attempt, why, "a stale volume could not be mounted again");
            }
            Event::OrphanCleaned { epoch } => {
                self.metrics.orphan();
                tracing::warn!(reason, %volume, %epoch, "took down a connection without a device");
            }
            Event::PathLost { why } => {
                tracing::warn!(reason, %volume, why, "some of its connections are lost");
            }
            Event::Reset { epoch, connections } => {
                self.metrics.reset();
                tracing::warn!(reason, %volume, %epoch, connections, "reset connections that count as live");
            }
            Event::GoneDiskSeen { at, by } => {
                let at = at.display();
                tracing::warn!(reason, %volume, %at, %by, "a disk that is gone keeps another volume off this node");
            }
        }
        let (message, is_warning) = (event.message(), event.is_warning());
        let told = Told { volume: volume.clone(), reason, message, is_warning };
        // Where too much happens at once, the log has it.
        drop(self.events.as_ref().map(|events| events.try_send(told)));
    }
}
