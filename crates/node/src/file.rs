//! Volumes that are files on this machine: a loop device per grant.

use crate::devices::{Device, Devices, DevicesError, Grant};
use bowline_core::{Epoch, NodeId, VolumeId};
use bowline_host::loopdev::{FileIdentity, LoopDevice, LoopError};
use bowline_host::{Host, Tag};
use bowline_target::{BackingError, BackingFiles};
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

/// Loop devices over the files of a target on the same machine.
pub struct FileDevices {
    host: Arc<Host>,
    files: Arc<dyn BackingFiles>,
}

impl std::fmt::Debug for FileDevices {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FileDevices").finish_non_exhaustive()
    }
}

impl FileDevices {
    /// Devices of these files.
    pub fn new(host: Arc<Host>, files: Arc<dyn BackingFiles>) -> Self {
        Self { host, files }
    }

    /// The devices of a volume on this node: those that carry its tag over its file. A device over a file that was
    /// deleted is one too: a data directory was restored, or cleaned up by hand, and the old device can hold a mount.
    fn loops(&self, volume: &VolumeId, node: &NodeId) -> Result<Vec<(Tag, LoopDevice)>, DevicesError> {
        let file = self.files.backing(volume).map_err(|error| backing_error(&error))?;
        let file = match file.map(|file| File::open(&file).and_then(|file| FileIdentity::of(&file))) {
            None => None,
            Some(Err(error)) if error.kind() == std::io::ErrorKind::NotFound => None,
            Some(identity) => Some(identity.map_err(|error| {
                DevicesError::Unreachable(format!("the file of volume {volume}: {error}"))
            })?),
        };
        let ours = Tag::new(volume, node, Epoch::default());
        let is_volumes = |device: &LoopDevice| {
            Some(device.backing) == file
                || device.backing_path.as_os_str().as_bytes().ends_with(b" (deleted)")
        };
        let loops = self.host.loops().map_err(|error| loop_error(&error))?.into_iter().filter(is_volumes);
        let tagged =
            loops.filter_map(|device| Some((device.tag.filter(|tag| tag.same_owner(&ours))?, device)));
        Ok(tagged.collect())
    }
}

fn loop_error(error: &LoopError) -> DevicesError {
    let said = error.to_string();
    match error {
        LoopError::InUse { .. } => DevicesError::InUse(said),
        LoopError::Differs { .. } | LoopError::NotAFile { .. } => DevicesError::NotGranted(said),
        LoopError::Device(_) | LoopError::Backing { .. } | LoopError::List(_) | LoopError::NoneFree(_) => {
            DevicesError::Unreachable(said)
        }
    }
}

fn backing_error(error: &BackingError) -> DevicesError {
    let said = error.to_string();
    match error {
        BackingError::Unknown(_) => DevicesError::UnknownVolume(said),
        BackingError::NotGranted { .. } => DevicesError::NotGranted(said),
        BackingError::Unreadable { .. } => DevicesError::Unreachable(said),
    }
}

fn device(tag: Tag, found: &LoopDevice) -> Device {
    let LoopDevice { path, number, read_only, .. } = found;
    Device {
        path: path.clone(),
        number: *number,
        epoch: tag.epoch(),
        read_only: *read_only,
        was_blank: false,
    }
}

impl Devices for FileDevices {
    fn identity(&self, grant: &Grant) -> String {
        Tag::new(&grant.volume, &grant.node, grant.epoch).to_string()
    }

    fn connect(&self, grant: &Grant) -> Result<Device, DevicesError> {
        let tag = Tag::new(&grant.volume, &grant.node, grant.epoch);
        let mut attached = None;
        let mut attach = |file: &std::path::Path, write: bool| {
            attached = Some(if grant.write && !write {
                let Grant { volume, node, epoch, .. } = grant;
                Err(DevicesError::NotGranted(format!(
                    "node {node} may only read volume {volume} at epoch {epoch}"
                )))
            } else {
                self.host.attach(file, &tag, !grant.write).map_err(|error| loop_error(&error))
            });
        };
        self.files
            .with_grant(&grant.volume, &grant.node, grant.epoch, &mut attach)
            .map_err(|error| backing_error(&error))?;
        let none = || DevicesError::Unreachable(format!("the target did not hand out {}", grant.volume));
        attached.ok_or_else(none)?.map(|found| device(tag, &found))
    }

    fn find(&self, volume: &VolumeId, node: &NodeId) -> Result<Vec<Device>, DevicesError> {
        Ok(self.loops(volume, node)?.iter().map(|(tag, found)| device(*tag, found)).collect())
    }

    fn disconnect(&self, volume: &VolumeId, node: &NodeId, epoch: Epoch) -> Result<(), DevicesError> {
        for (tag, found) in self.loops(volume, node)? {
            if tag.epoch() == epoch {
                self.host.detach(found.backing, &tag).map_err(|error| loop_error(&error))?;
            }
        }
        Ok(())
    }

    fn refresh(&self, grant: &Grant, device: &Device, _: u64) -> Result<u64, DevicesError> {
        let Grant { volume, node, .. } = grant;
        let found = self.loops(volume, node)?.into_iter();
        let found = found.map(|(_, found)| found).find(|found| found.number == device.number);
        let gone = || DevicesError::Unreachable(format!("the device of volume {volume} is gone"));
        self.host.refresh_size(&found.ok_or_else(gone)?).map_err(|error| loop_error(&error))
    }

    fn check(&self) -> Result<(), DevicesError> {
        self.host.loops().map(drop).map_err(|error| loop_error(&error))
    }
}
