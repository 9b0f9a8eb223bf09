//! Disks of an older driver, `rds.csi.srvlab.io`, in the directory that [`Settings::take_over`](super::Settings) names.
//!
//! That driver exports a volume from its first day to its last, under one name and to anybody. So who is in is not known, and as long as such a
//! disk is exported it is left exactly as it is: nobody is cut off, nobody let in beside. Once somebody has switched it off on the device, whoever
//! asks here for a change of that very volume has it taken over first: one command gives it the name of a volume to which nobody is
//! let in, and nobody as the host that may connect. From then on it is a volume of ours.
//!
//! It is seen only by who looks for it by its slot. It is in no list.

use super::command::{Find, Property, remove_file, set};
use super::device::{Device, Slot, TRIES, Trouble, in_vain};
use super::disk::Disk;
use super::fault::Fault;
use super::name::{self, Names, called};
use crate::{Item, ProvisionError, TargetError};
use bowline_core::{Epoch, VolumeId};

const PREFIX: &str = "nqn.2000-02.com.mikrotik:";

/// A disk of an older driver, in the state in which it was seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Older {
    volume: VolumeId,
    slot: String,
    nqn: String,
    export: bool,
}

/// It is still exported, so somebody may be writing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StillExported {
    slot: String,
    nqn: String,
}

impl StillExported {
    fn let_go(&self) -> String {
        format!("/disk set [find {}] {}", Property::Slot(&self.slot), Property::Export(false))
    }
}

impl From<StillExported> for TargetError {
    fn from(still: StillExported) -> Self {
        let StillExported { slot, nqn } = &still;
        let error = format!(
            "volume {slot} is a disk of an older driver that is still exported as {nqn}: whoever uses it may be writing, so nobody else \
             is let in; when its pods are gone, let go of it on the device: {}",
            still.let_go()
        );
        Self::Refused { error }
    }
}

impl From<StillExported> for ProvisionError {
    fn from(still: StillExported) -> Self {
        let by = format!(
            "somebody to whom an older driver exports it as {} (when its pods are gone, let go of it on the device: {})",
            still.nqn,
            still.let_go()
        );
        Self::InUse { by }
    }
}

impl Names {
    /// The disk as that of an older driver, if it is one: named in every way exactly as that driver would.
    pub(super) fn older(&self, disk: &Disk) -> Result<Option<Older>, Fault> {
        let Some(Item::Volume(volume)) = name::item_in(&disk.slot) else { return Ok(None) };
        let nqn = disk.nqn();
        if !disk.is_file() || nqn != format!("{PREFIX}{}", disk.slot) {
            return Ok(None);
        }
        let Some(file) = self.older_file(&disk.slot) else { return Ok(None) };
        if disk.path()?.trim_start_matches('/') != file {
            return Ok(None);
        }
        Ok(Some(Older { volume, slot: disk.slot.clone(), nqn, export: disk.export()? }))
    }

    /// Where an older driver has the file of a volume, without a slash before it.
    pub(super) fn older_file(&self, slot: &str) -> Option<String> {
        self.take_over.as_ref().map(|directory| format!("{directory}/{slot}.img"))
    }
}

impl Older {
    /// The command that makes it ours. The port is ours, too: nodes are told one for all volumes.
    fn take_over(&self, device: &Device) -> Result<String, StillExported> {
        let Self { volume, slot, nqn, export } = self;
        if *export {
            return Err(StillExported { slot: slot.clone(), nqn: nqn.clone() });
        }
        let closed = device.names.closed(volume, Epoch::default());
        let mut properties = vec![Property::ServerNqn(&closed), Property::Port(device.port)];
        properties.extend(device.nobody());
        Ok(set(&Find { slot, nqn, also: &[Property::Export(false)] }, &properties))
    }
}

impl Device {
    /// What is in a slot in which something shall be changed. What an older driver left there is ours then, with nobody let in.
    pub(super) async fn own<E>(&self, slot: &str) -> Result<Slot, E>
    where
        E: From<StillExported> + From<Trouble>,
    {
        let mut last = None;
        for _ in 0..TRIES {
            let disk = self.disk_in(slot).await?;
            let Some(older) = self.older(disk.as_ref())? else { return Ok(self.understand(slot, disk)?) };
            let command = older.take_over(self)?;
            tracing::info!(slot, "taking over a disk of an older driver");
            last = self.try_send(&command).await?;
        }
        Err(in_vain(last).into())
    }

    /// A disk as that of an older driver.
    pub(super) fn older(&self, disk: Option<&Disk>) -> Result<Option<Older>, Trouble> {
        Ok(disk.map(|disk| self.names.older(disk)).transpose()?.flatten())
    }

    /// Refuses to delete what has its file where none would be removed: that of an older driver, when the setting is not there any
    /// more.
    pub(super) fn check_file(&self, item: &Item, disk: &Disk) -> Result<(), ProvisionError> {
        let path = disk.path().map_err(Trouble::from)?;
        let is_older =
            self.names.older_file(&disk.slot).is_some_and(|file| file == path.trim_start_matches('/'));
        if is_older || self.names.owner(&path).is_some_and(|(of, _)| of == *item) {
            return Ok(());
        }
        let what = called(item);
        Err(ProvisionError::Refused {
            error: format!(
                "the file of {what}, {path}, lies neither in the directory of this target nor in that of an older driver that it takes \
                 over, so it would stay behind; set take-over to where it lies"
            ),
        })
    }

    /// Removes the file of a volume that was taken over, when its disk is gone. Only for one that is to be deleted.
    pub(super) async fn remove_older_file(&self, item: &Item, slot: &str) -> Result<(), ProvisionError> {
        let (Item::Volume(_), Some(name)) = (item, self.names.older_file(slot)) else { return Ok(()) };
        let mut last = None;
        for _ in 0..TRIES {
            if self.files(&name).await?.iter().all(|file| file.name != name) {
                return Ok(());
            }
            last = self.try_send(&remove_file(&name)).await?;
        }
        Err(in_vain(last).into())
    }
}
