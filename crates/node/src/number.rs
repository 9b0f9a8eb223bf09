//! Numbers of disks that are gone. A workload was shown a raw volume as a device number; where nobody holds the disk, the kernel gives its number to the
//! next one, and what the workload opens then is that.

use crate::answer::Fault;
use crate::devices::{Device, Devices};
use crate::node::ThisNode;
use crate::seen::node_at;
use crate::staging::Record;
use bowline_core::VolumeId;
use bowline_host::mountinfo::{Mount, MountTable};
use std::path::PathBuf;

impl ThisNode {
    /// Takes a device that was just connected away again if a workload would see it as another volume's. What the workload sees is not taken from it
    /// instead: with nothing mounted there, it would write to the node's own disk.
    pub(crate) fn refuse_if_seen(
        &self,
        devices: &dyn Devices,
        table: &MountTable,
        record: &Record,
        device: &Device,
    ) -> Result<(), Fault> {
        let Some((path, other)) = self.seen_as_anothers(table, record, device) else { return Ok(()) };
        let Record { volume, epoch, .. } = record;
        let said = format!(
            "the disk of volume {volume} has the number ({}) of one of volume {other} that is gone, and would be seen as that at {}; \
             unpublish volume {other} there first",
            device.number,
            path.display()
        );
        Err(Fault::Unreachable(match devices.disconnect(volume, &self.id, *epoch) {
            Ok(()) => said,
            Err(error) => format!("{said}; it could not be disconnected: {error}"),
        }))
    }

    fn seen_as_anothers(
        &self,
        table: &MountTable,
        record: &Record,
        device: &Device,
    ) -> Option<(PathBuf, VolumeId)> {
        // Only nodes of /dev are asked what they are: what else is mounted may be a share that does not answer.
        let (dev, _) = table.covering(&device.path)?;
        let shows_number = |mount: &&Mount| {
            mount.device == dev.device
                && !record.published.contains(&mount.at)
                && node_at(&mount.at) == Some(device.number)
        };
        let seen: Vec<_> = table.iter().filter(shows_number).map(|mount| &mount.at).collect();
        if seen.is_empty() {
            return None;
        }
        let others = self.state.volumes().unwrap_or_default().into_iter();
        others.filter(|other| *other != record.volume).find_map(|other| {
            let shown = self.state.load(&other).ok().flatten()?.published;
            Some((shown.into_iter().find(|path| seen.contains(&path))?, other))
        })
    }
}
