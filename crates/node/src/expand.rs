//! `NodeExpandVolume` and `NodeGetVolumeStats`: how large a volume is, seen from a workload.

use crate::answer::Fault;
use crate::devices::Device;
use crate::event::Event;
use crate::node::ThisNode;
use crate::staging::{Content, Phase, Record};
use bowline_core::VolumeId;
use bowline_csi::AbsolutePath;
use bowline_csi::node::{NodeExpand, VolumeStats};
use bowline_host::path::{Place, PlaceError};
use bowline_host::usage::{Usage, usage};

const PATH: &str = "volume_path";

/// How full a volume is.
pub(crate) enum Fill {
    Filesystem(Usage),
    Block { bytes: u64 },
}

impl ThisNode {
    /// How full it is, and whether some of its connections are lost.
    pub(crate) fn stats(&self, request: &VolumeStats) -> Result<(Fill, bool), Fault> {
        let (record, place, device) = self.at_path(&request.volume, &request.path)?;
        // Without a way to the storage, whoever asks the device waits as long as the kernel hopes for one.
        let grant = record.grant();
        let devices = self.devices_of(&record.target, &grant)?;
        let lost = devices.reaches(&grant)?;
        // A filesystem tells from memory how full it is, whatever became of its device.
        let over = [(devices, device.epoch)];
        self.watched(&record.volume, &over, || bowline_host::device::answers(&device.path))?;
        let fill = match record.content {
            Content::Filesystem { .. } => {
                Fill::Filesystem(usage(&place).map_err(|error| Fault::place(PATH, &error))?)
            }
            Content::Block => Fill::Block { bytes: bowline_host::device::size(&device.path)? },
        };
        let is_short = lost.is_some();
        if let Some(why) = lost {
            self.tell(&record.volume, &Event::PathLost { why });
        }
        Ok((fill, is_short))
    }

    pub(crate) fn expand(&self, request: &NodeExpand) -> Result<u64, Fault> {
        let volume = &request.volume;
        let (record, _, device) = self.at_path(volume, &request.path)?;
        let grant = record.grant();
        let at_least = request.capacity.as_ref().map_or(0, bowline_csi::CapacityRange::required);
        let devices = self.devices_of(&record.target, &grant)?;
        let size = devices.refresh(&grant, &device, at_least)?;
        if let Some(range) = request.capacity.filter(|range| !range.contains(size)) {
            let limit = range.limit().map_or("any number of".to_owned(), |limit| limit.to_string());
            return Err(Fault::Size(format!(
                "volume {volume} has {size} bytes; between {} and {limit} bytes were asked for",
                range.required()
            )));
        }
        if let Content::Filesystem { fs, .. } = record.content {
            let gone = || Fault::Unreachable(format!("{} cannot be reached", record.path.display()));
            let staging = self.recorded_place(&record.path).ok_or_else(gone)?;
            let table = self.host.mounts()?;
            if table.top(&record.path).is_some_and(bowline_host::mountinfo::Mount::is_read_only) {
                return Err(Fault::NotReady(format!(
                    "volume {volume} is mounted read-only; it grows when it is next staged for writing"
                )));
            }
            let grow = || self.host.grow(fs, &device.path, &staging);
            if let Err(error) = self.watched(volume, &[(devices, device.epoch)], grow) {
                if !self.host.may_grow_mounted(fs) {
                    return Err(Fault::NotReady(format!(
                        "the {fs} of volume {volume} cannot grow while it is mounted, because this process has no \
                         CAP_SYS_RESOURCE; it grows when the volume is next staged ({error})"
                    )));
                }
                return Err(Fault::command(&error));
            }
        }
        tracing::info!(%volume, size, "grown");
        Ok(size)
    }

    /// A staged volume at one of its paths, with the device that is seen there.
    fn at_path(&self, volume: &VolumeId, path: &AbsolutePath) -> Result<(Record, Place, Device), Fault> {
        let unknown = || Fault::Unknown(format!("volume {volume} is not at {PATH} on this node"));
        let record =
            self.state.load(volume)?.filter(|record| record.phase == Phase::Staged).ok_or_else(unknown)?;
        let place = self.try_place(path).map_err(|error| match error {
            PlaceError::Outside { .. } | PlaceError::NoParent { .. } => unknown(),
            error => Fault::place(PATH, &error),
        })?;
        let at = place.path();
        let is_known = at == record.path || record.published.iter().any(|published| published == at);
        let device = match self.look(&record) {
            Ok(device) => device,
            Err(stale) if is_known => {
                self.tell(volume, &Event::StaleMount { why: stale.to_string() });
                return Err(stale);
            }
            Err(_) => return Err(unknown()),
        };
        let table = self.host.mounts()?;
        let shown = table.top(at).is_some_and(|top| self.shows(top, &device));
        let staged_block = at == record.path && record.content == Content::Block;
        if shown || staged_block { Ok((record, place, device)) } else { Err(unknown()) }
    }
}
