//! `NodeGetVolumeHealth` and `NodeGetStorageHealth`.

use crate::answer::Fault;
use crate::node::ThisNode;
use crate::staging::{Content, Phase};
use bowline_csi::node::NodeVolumeHealth;

/// What is wrong with a volume here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ailment {
    /// Workloads cannot use it.
    Inaccessible { reason: &'static str, message: String },
    /// They can, but not as they should.
    Degraded { reason: &'static str, message: String },
}

impl ThisNode {
    pub(crate) fn volume_health(&self, request: &NodeVolumeHealth) -> Result<Vec<Ailment>, Fault> {
        let volume = &request.volume;
        let unknown = || Fault::Unknown(format!("volume {volume} is not staged on this node"));
        let record =
            self.state.load(volume)?.filter(|record| record.phase == Phase::Staged).ok_or_else(unknown)?;
        let device = match self.look(&record) {
            Ok(device) => device,
            Err(stale) => {
                self.metrics.stale_mount();
                let message = stale.to_string();
                return Ok(vec![Ailment::Inaccessible { reason: "StaleMount", message }]);
            }
        };
        let table = self.host.mounts()?;
        let mut ailments = Vec::new();
        if let Err(error) = bowline_host::device::answers(&device.path) {
            ailments.push(Ailment::Inaccessible { reason: "DeviceFailed", message: error.to_string() });
        }
        if let Some(top) = table.top(&record.path)
            && matches!(record.content, Content::Filesystem { .. })
            && top.super_has("ro")
            && !top.has("ro")
        {
            let message = format!("the filesystem of volume {volume} refuses writes after an error");
            ailments.push(Ailment::Degraded { reason: "FilesystemReadOnly", message });
        }
        if let Some(path) = &request.publish_path {
            let top = self.try_place(path).ok().and_then(|place| table.top(place.path()));
            if !top.is_some_and(|top| self.shows(top, &device)) {
                let message = format!("volume {volume} is not at volume_publish_path");
                ailments.push(Ailment::Inaccessible { reason: "NotPublished", message });
            }
        }
        Ok(ailments)
    }

    /// The targets that this node cannot get devices of, with the reason.
    pub(crate) fn storage_health(&self) -> Vec<String> {
        let checks = self.devices.iter().map(|(target, devices)| (target, devices.check()));
        checks.filter_map(|(target, check)| Some(format!("target {target}: {}", check.err()?))).collect()
    }
}
