//! `NodeGetVolumeHealth` and `NodeGetStorageHealth`.

use crate::answer::Fault;
use crate::event::Event;
use crate::node::ThisNode;
use crate::staging::{Content, Phase};
use bowline_csi::node::NodeVolumeHealth;
use std::collections::BTreeSet;

/// What is wrong with a volume here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ailment {
    /// Workloads cannot use it.
    Inaccessible { reason: &'static str, message: String },
    /// They can, but not as they should.
    Degraded { reason: &'static str, message: String },
}

const PATH_LOST: &str = "PathLost";

impl Ailment {
    pub(crate) fn is_lost_path(&self) -> bool {
        matches!(self, Self::Degraded { reason: PATH_LOST, .. })
    }
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
                self.tell(volume, &Event::StaleMount { why: stale.to_string() });
                let message = stale.to_string();
                return Ok(vec![Ailment::Inaccessible { reason: "StaleMount", message }]);
            }
        };
        let table = self.host.mounts()?;
        let mut ailments = Vec::new();
        let grant = record.grant();
        let devices = self.devices_of(&record.target, &grant)?;
        match devices.reaches(&grant) {
            // Asking the device would keep the asker waiting.
            Err(error) => {
                ailments.push(Ailment::Inaccessible { reason: "NotConnected", message: error.to_string() });
            }
            Ok(lost) => {
                if let Some(message) = lost {
                    self.tell(volume, &Event::PathLost { why: message.clone() });
                    ailments.push(Ailment::Degraded { reason: PATH_LOST, message });
                }
                let over = [(devices, device.epoch)];
                let answers = || bowline_host::device::answers(&device.path);
                if let Err(error) = self.watched(volume, &over, answers) {
                    let message = error.to_string();
                    ailments.push(Ailment::Inaccessible { reason: "DeviceFailed", message });
                }
            }
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
        let checks = self.devices.iter().map(|(target, devices)| (target.clone(), devices.check()));
        // What comes over the fabric is missed only where something is to come from there.
        let volumes = self.state.volumes().unwrap_or_default();
        let records = volumes.iter().filter_map(|volume| self.state.load(volume).ok().flatten());
        let over_fabric: BTreeSet<_> =
            records.filter(|record| record.fabric.is_some()).map(|record| record.target).collect();
        let checks = checks.chain(over_fabric.into_iter().map(|target| (target, self.fabric.check())));
        checks.filter_map(|(target, check)| Some(format!("target {target}: {}", check.err()?))).collect()
    }
}
