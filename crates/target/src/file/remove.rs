//! Deleting volumes and snapshots.

use super::Inner;
use super::busy::Deed;
use super::directory::{Fault, called};
use super::name::Part;
use super::record::{Phase, Record};
use crate::{Item, ProvisionError};
use bowline_core::{SnapshotId, VolumeId};
use bowline_host::file::{self, Sharing};
use std::io;

impl Inner {
    pub(super) fn delete(&self, volume: &VolumeId) -> Result<(), ProvisionError> {
        let item = Item::Volume(volume.clone());
        let told = |fault| self.told(fault, 0);
        let alone = self.alone(volume, Deed::Delete).map_err(|error| self.not_alone(error, 0))?;
        let Some(alone) = alone else { return Ok(()) };
        let record = self.directory.volume(&item).map_err(told)?;
        if let Some(mut record) = record {
            if let Some((epoch, export)) = record.reach().first_key_value() {
                return Err(ProvisionError::InUse { by: format!("node {} at epoch {epoch}", export.node) });
            }
            self.refuse_if_attached(&item)?;
            let already = record.phase == Phase::Deleting;
            record.phase = Phase::Deleting;
            self.finish_deletion(&item, &record, already)?;
        } else {
            self.refuse_if_orphan(&item)?;
        }
        self.gone(&item, alone.lock)
    }

    pub(super) fn delete_snapshot(&self, snapshot: &SnapshotId) -> Result<(), ProvisionError> {
        let item = Item::Snapshot(snapshot.clone());
        let told = |fault| self.told(fault, 0);
        self.settle_unfinished()?;
        let Some(lock) = self.directory.lock(&item, Sharing::Alone, false).map_err(told)? else {
            return self.refuse_if_unfinished(std::slice::from_ref(snapshot));
        };
        self.refuse_if_unfinished(std::slice::from_ref(snapshot))?;
        let record = self.directory.snapshot(&item).map_err(told)?;
        if let Some(mut record) = record {
            self.refuse_if_attached(&item)?;
            let already = record.phase == Phase::Deleting;
            record.phase = Phase::Deleting;
            self.finish_deletion(&item, &record, already)?;
        } else {
            self.refuse_if_orphan(&item)?;
        }
        self.gone(&item, lock)
    }

    fn finish_deletion<R: Record>(
        &self,
        item: &Item,
        record: &R,
        already: bool,
    ) -> Result<(), ProvisionError> {
        let told = |fault| self.told(fault, 0);
        if !already {
            self.directory.write_pressing(item, record).map_err(told)?;
        }
        self.erase(item).map_err(told)
    }

    /// Removes the bytes, then the record, durably.
    pub(super) fn erase(&self, item: &Item) -> Result<(), Fault> {
        self.directory.remove(item, Part::Partial)?;
        self.directory.remove(item, Part::Data)?;
        self.directory.remove(item, Part::Recent)?;
        self.directory.sync()?;
        self.directory.remove(item, Part::Record)?;
        self.directory.remove(item, Part::Draft)?;
        self.directory.sync()
    }

    fn gone(&self, item: &Item, lock: file::PathLock) -> Result<(), ProvisionError> {
        self.room.forget(item);
        lock.remove().map_err(|error| self.told(Fault::io(&self.directory.path(item, Part::Lock), error), 0))
    }

    /// Bytes without a record may be anybody's: people decide about them.
    fn refuse_if_orphan(&self, item: &Item) -> Result<(), ProvisionError> {
        if self.directory.exists(item, Part::Data).map_err(|fault| self.told(fault, 0))? {
            let path = self.directory.path(item, Part::Data);
            let error = format!("its record is missing; restore it, or remove {} yourself", path.display());
            return Err(ProvisionError::Damaged { what: called(item), error });
        }
        Ok(())
    }

    pub(super) fn refuse_if_attached(&self, item: &Item) -> Result<(), ProvisionError> {
        let path = self.directory.path(item, Part::Data);
        let file = match file::open_file(&path, false) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            other => other.map_err(|error| self.told(Fault::io(&path, error), 0))?,
        };
        match self.devices_of(&[&file])?.first() {
            None => Ok(()),
            Some(device) => Err(ProvisionError::InUse { by: self.user(device) }),
        }
    }
}
