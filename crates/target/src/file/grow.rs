//! Making volumes larger.

use super::Inner;
use super::busy::Deed;
use super::directory::{Fault, called};
use super::name::Part;
use super::record::{Phase, VolumeRecord};
use crate::{Item, ProvisionError};
use bowline_core::VolumeId;
use bowline_failpoint::pass;

impl Inner {
    pub(super) fn grow(&self, volume: &VolumeId, size: u64) -> Result<u64, ProvisionError> {
        let item = Item::Volume(volume.clone());
        let told = |fault| self.told(fault, size);
        let unknown = || ProvisionError::Unknown { what: called(&item) };
        let alone = self.alone(volume, Deed::Grow).map_err(|error| self.not_alone(error, size))?;
        let _alone = alone.ok_or_else(unknown)?;
        let record = self.directory.volume(&item).map_err(told)?;
        let mut record = record.filter(|record| record.phase == Phase::Ready).ok_or_else(unknown)?;
        // One that a fault stopped is completed first, whatever is asked for now.
        if record.growing.is_some() {
            self.finish_growth(&item, &mut record).map_err(told)?;
        }
        if size <= record.size {
            return self.told_growth(&item, &record);
        }
        self.check_size(size)?;
        self.directory.open_volume(&item, &record, false).map_err(told)?;
        let seen =
            self.room.look(&self.directory).map_err(|error| told(Fault::io(&self.directory.path, error)))?;
        let promised = self.room.promise(&[(item.clone(), size)], seen);
        promised.map_err(|available| ProvisionError::NoRoom { needed: size, available })?;
        record.growing = Some(size);
        let grown =
            self.directory.write(&item, &record).and_then(|()| self.finish_growth(&item, &mut record));
        if let Err(fault) = grown {
            // As far as it came: the record says.
            let promised =
                self.directory.volume(&item).ok().flatten().map_or(size, |record| record.promised());
            self.room.set(&item, promised);
            return Err(told(fault));
        }
        self.told_growth(&item, &record)
    }

    /// Tells everybody who is let in how many bytes there are now.
    fn told_growth(&self, item: &Item, record: &VolumeRecord) -> Result<u64, ProvisionError> {
        let file = self.directory.path(item, Part::Data);
        for shown in record.exports.open().keys().filter_map(|epoch| record.shown(*epoch, &file)) {
            self.exporter.grown(&shown).map_err(|error| ProvisionError::Unreachable { error })?;
        }
        Ok(record.size)
    }

    /// Gives the file the size that its record promises.
    pub(super) fn finish_growth(&self, item: &Item, record: &mut VolumeRecord) -> Result<(), Fault> {
        let Some(size) = record.growing else { return Ok(()) };
        let path = self.directory.path(item, Part::Data);
        let fault = |error| Fault::io(&path, error);
        let file = self.directory.open_volume(item, record, true)?;
        pass("target.extend.before");
        file.set_len(size).map_err(fault)?;
        file.sync_all().map_err(fault)?;
        pass("target.extend.after");
        let grown = VolumeRecord { size, growing: None, ..record.clone() };
        self.directory.write(item, &grown)?;
        *record = grown;
        Ok(())
    }
}
