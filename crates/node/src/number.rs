//! Numbers of disks that are gone. A workload was shown a raw volume as a device number; where nobody holds the disk, the kernel gives its number to the
//! next one, and what the workload opens then is that.

use crate::answer::Fault;
use crate::devices::{Device, Devices, DevicesError};
use crate::event::Event;
use crate::node::ThisNode;
use crate::seen::{is_node_of, node_at};
use crate::staging::Record;
use bowline_core::VolumeId;
use bowline_host::device::refuse_writes;
use bowline_host::mountinfo::{Mount, MountTable};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

impl ThisNode {
    /// Connects the device of a record's grant, and says what is mounted since. A device that a workload would see as another volume's is taken away
    /// again at once.
    pub(crate) fn connect(
        &self,
        devices: &dyn Devices,
        record: &Record,
    ) -> Result<(Device, MountTable), Fault> {
        let grant = record.grant();
        let is_wanted = |device: &Device| {
            let table = self.host.mounts();
            table.is_ok_and(|table| self.seen_as_anothers(&table, record, device).is_none())
        };
        let connected = devices.connect_while(&grant, &is_wanted);
        if let Err(DevicesError::Orphaned(_)) = connected {
            self.tell(&record.volume, &Event::OrphanCleaned { epoch: record.epoch });
        }
        let table = self.host.mounts()?;
        // A connect that failed may have made a disk all the same, or make it a moment after its time is over.
        let there =
            connected.as_ref().map_or_else(|_| devices.get(&grant).ok().flatten(), |one| Some(one.clone()));
        if let Some(device) = there {
            self.refuse_if_seen(devices, &table, record, &device)?;
        }
        Ok((connected?, table))
    }

    /// What the workload sees is not taken from it instead: with nothing mounted there, it would write to the node's own disk.
    fn refuse_if_seen(
        &self,
        devices: &dyn Devices,
        table: &MountTable,
        record: &Record,
        device: &Device,
    ) -> Result<(), Fault> {
        let Some((path, other)) = self.seen_as_anothers(table, record, device) else { return Ok(()) };
        let Record { volume, epoch, .. } = record;
        if let Some(other) = &other {
            self.tell(other, &Event::GoneDiskSeen { at: path.clone(), by: volume.clone() });
        }
        let (whose, what) = match other {
            Some(other) => (format!("one of volume {other}"), format!("volume {other}")),
            None => ("one".to_owned(), "what is published".to_owned()),
        };
        let said = format!(
            "the disk of volume {volume} has the number ({}) of {whose} that is gone, and would be seen as that at {}; \
             unpublish {what} there first",
            device.number,
            path.display()
        );
        let Err(error) = devices.disconnect(volume, &self.id, *epoch) else {
            return Err(Fault::Unreachable(said));
        };
        // Somebody has opened it meanwhile. That it is read cannot be helped.
        let still = match refuse_writes(&device.path, device.number) {
            Ok(()) => "it refuses writes since",
            Err(_) => "it takes writes",
        };
        Err(Fault::Unreachable(format!("{said}; it could not be disconnected, and {still}: {error}")))
    }

    /// Where a workload would see a device as what it is not, and as which volume's, if a record says so.
    fn seen_as_anothers(
        &self,
        table: &MountTable,
        record: &Record,
        device: &Device,
    ) -> Option<(PathBuf, Option<VolumeId>)> {
        // Only nodes of /dev are asked what they are: what else is mounted may be a share that does not answer. Of those, one that is there and has
        // another name has another number; where a node has hundreds of raw volumes, nearly all do.
        let (dev, _) = table.covering(&device.path)?;
        let name = device.path.file_name();
        let shows_number = |mount: &&Mount| {
            mount.device == dev.device
                && (Path::new(&mount.root).file_name() == name
                    || mount.root.as_bytes().ends_with(b"//deleted"))
                && !record.published.contains(&mount.at)
                && node_at(&mount.at) == Some(device.number)
        };
        let seen: Vec<_> = table.iter().filter(shows_number).collect();
        if seen.is_empty() {
            return None;
        }
        let others = self.state.volumes().unwrap_or_default().into_iter();
        let claimed = others.filter(|other| *other != record.volume).find_map(|other| {
            let shown = self.state.load(&other).ok().flatten()?.published;
            let path = shown.into_iter().find(|path| seen.iter().any(|mount| mount.at == *path))?;
            Some((path, Some(other)))
        });
        // The node of a disk that is gone is nobody's but that one's, whether a record of it can be read here or not.
        let is_gone = |mount: &&&Mount| !is_node_of(mount, device);
        claimed.or_else(|| Some((seen.iter().find(is_gone)?.at.clone(), None)))
    }
}
