//! `NodeUnpublishVolume`: hide a volume from one workload.

use crate::answer::Fault;
use crate::node::ThisNode;
use bowline_csi::node::Unpublish;
use bowline_host::mount::{MountError, Unmount};
use bowline_host::mountinfo::Mount;
use bowline_host::path::PlaceError;

const TARGET: &str = "target_path";

impl ThisNode {
    /// Unmounts every layer and removes the empty directory or file that is left; never more. What is mounted there and
    /// is not this volume stays.
    pub(crate) fn unpublish(&self, request: &Unpublish) -> Result<(), Fault> {
        let volume = &request.volume;
        let target = match self.try_place(&request.target_path) {
            Ok(target) => target,
            Err(PlaceError::NoParent { .. }) => return Ok(()),
            Err(error) => return Err(Fault::place(TARGET, &error)),
        };
        let path = target.path().to_owned();
        let record = self.usable_record(volume);
        let table = self.host.mounts()?;
        let mut over = Vec::new();
        if table.is_mount_point(&path) {
            let mut found = Vec::new();
            for devices in self.all_devices() {
                found.extend(devices.find(volume, &self.id)?.into_iter().map(|device| (devices, device)));
            }
            over.extend(found.iter().map(|(devices, device)| (*devices, device.epoch)));
            let is_ours = |mount: &&Mount| {
                found.iter().any(|(_, device)| self.shows(mount, device))
                    || record.as_ref().is_some_and(|record| self.is_claimed(&table, mount, record))
            };
            if let Some(other) = table.at(&path).find(|mount| !is_ours(mount)) {
                let said = format!("{} is not volume {volume}; nothing was unmounted", other.describe());
                return Err(Fault::Broken(said));
            }
        }
        // Where the staging path is not mounted any more, this is what flushes.
        let unmounted = || self.host.unmount_and_remove(&target, Unmount::WhenUnused);
        self.watched(volume, &over, unmounted).map_err(|error| match error {
            MountError::Kernel { .. } => Fault::Unreachable(error.to_string()),
            other => Fault::mount(TARGET, &other),
        })?;
        if let Some(mut record) = record
            && record.published.contains(&path)
        {
            record.published.retain(|published| *published != path);
            self.state.note(&record)?;
        }
        tracing::info!(%volume, "unpublished");
        Ok(())
    }
}
