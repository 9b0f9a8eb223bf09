//! Making volumes, empty or from what is there.

use super::Inner;
use super::directory::{Claim, Fault, called, now};
use super::name::Part;
use super::record::{Phase, VolumeRecord};
use super::still::Still;
use crate::{Item, NewVolume, Progress, ProvisionError, Source};
use bowline_failpoint::pass;
use bowline_host::file;
use std::collections::BTreeMap;
use std::fs::File;

/// Where a new volume's bytes come from.
struct Origin {
    file: File,
    size: u64,
    /// Whether somebody may be writing to it.
    live: bool,
    /// Who, from elsewhere.
    elsewhere: Option<String>,
}

impl Inner {
    pub(super) fn create(&self, order: &NewVolume, progress: &Progress) -> Result<u64, ProvisionError> {
        self.check_size(order.size)?;
        let item = Item::Volume(order.volume.clone());
        let mut claims = BTreeMap::new();
        match &order.source {
            Some(Source::Volume(id)) => claims.insert(Item::Volume(id.clone()), Claim::Alone),
            Some(Source::Snapshot(id)) => claims.insert(Item::Snapshot(id.clone()), Claim::Shared),
            None => None,
        };
        if claims.contains_key(&item) {
            return Err(ProvisionError::Refused {
                error: format!("{} cannot be made from itself", called(&item)),
            });
        }
        claims.insert(item.clone(), Claim::New);
        let locks = self.directory.lock_all(&claims).map_err(|fault| self.told(fault, order.size))?;
        let made = self.create_locked(order, &item, progress);
        self.directory.unlock(locks);
        made
    }

    fn create_locked(
        &self,
        order: &NewVolume,
        item: &Item,
        progress: &Progress,
    ) -> Result<u64, ProvisionError> {
        let told = |fault| self.told(fault, order.size);
        match self.directory.volume(item).map_err(told)? {
            Some(record) => {
                if let Some(difference) = record.difference(order) {
                    return Err(ProvisionError::Different { what: called(item), difference });
                }
                match record.phase {
                    Phase::Making => {}
                    Phase::Ready => {
                        self.directory.open_volume(item, &record, false).map_err(told)?;
                        return Ok(record.size);
                    }
                    Phase::Deleting => {
                        return Err(ProvisionError::Refused {
                            error: format!("{} is being deleted", called(item)),
                        });
                    }
                }
            }
            None if self.directory.exists(item, Part::Data).map_err(told)? => {
                return Err(ProvisionError::Damaged {
                    what: called(item),
                    error: "its record is missing".to_owned(),
                });
            }
            None => {}
        }
        let made = self.origin(order).and_then(|origin| {
            let seen = self
                .room
                .look(&self.directory)
                .map_err(|error| told(Fault::io(&self.directory.path, error)))?;
            let promised = self.room.promise(&[(item.clone(), order.size)], seen);
            promised.map_err(|available| ProvisionError::NoRoom { needed: order.size, available })?;
            self.make(order, item, origin.as_ref(), progress)
        });
        made.map(|()| order.size).map_err(|error| self.clear(item, error))
    }

    /// Takes back what was begun, and says why it had to be. What cannot be taken back now is by the next start, and
    /// must not be told as if nothing were left.
    fn clear(&self, item: &Item, error: ProvisionError) -> ProvisionError {
        match self.erase(item) {
            Ok(()) => {
                self.room.forget(item);
                error
            }
            Err(fault) => ProvisionError::Unreachable { error: format!("{error}; it is half made: {fault}") },
        }
    }

    fn origin(&self, order: &NewVolume) -> Result<Option<Origin>, ProvisionError> {
        let told = |fault| self.told(fault, order.size);
        let unknown = |item: &Item| ProvisionError::Unknown { what: called(item) };
        let origin = match &order.source {
            None => return Ok(None),
            Some(Source::Volume(id)) => {
                let item = Item::Volume(id.clone());
                let record = self.directory.volume(&item).map_err(told)?;
                let record =
                    record.filter(|record| record.phase == Phase::Ready).ok_or_else(|| unknown(&item))?;
                let file = self.directory.open_volume(&item, &record, false).map_err(told)?;
                Origin { file, size: record.size, live: true, elsewhere: self.remote_writer(&record) }
            }
            Some(Source::Snapshot(id)) => {
                let item = Item::Snapshot(id.clone());
                let record = self.directory.snapshot(&item).map_err(told)?;
                let record =
                    record.filter(|record| record.phase == Phase::Ready).ok_or_else(|| unknown(&item))?;
                let file = self.directory.open_data(&item, &[record.size], false).map_err(told)?;
                Origin { file, size: record.size, live: false, elsewhere: None }
            }
        };
        if origin.size > order.size {
            let (has, wanted) = (origin.size, order.size);
            let error = format!("what it is made from has {has} bytes, which do not fit into {wanted}");
            return Err(ProvisionError::Refused { error });
        }
        Ok(Some(origin))
    }

    fn make(
        &self,
        order: &NewVolume,
        item: &Item,
        origin: Option<&Origin>,
        progress: &Progress,
    ) -> Result<(), ProvisionError> {
        let told = |fault| self.told(fault, order.size);
        let mut record =
            VolumeRecord::new(&self.directory.installation, order, now(), self.directory.writer.id());
        self.directory.write(item, &record).map_err(told)?;
        self.directory.remove(item, Part::Partial).map_err(told)?;
        self.directory.remove(item, Part::Data).map_err(told)?;
        self.directory.make_places(item).map_err(told)?;
        let path = self.directory.path(item, Part::Partial);
        let fault = |error| told(Fault::io(&path, error));
        pass("target.part.before");
        let part = file::create_new(&path).map_err(fault)?;
        pass("target.part.after");
        if let Some(origin) = origin {
            progress.expect(file::allocated(&origin.file.metadata().map_err(fault)?));
            let elsewhere = origin.elsewhere.iter().cloned().collect();
            let still =
                if origin.live { self.hold_still(&[&origin.file], elsewhere)? } else { Still::default() };
            self.fill((&origin.file, origin.size), (&part, &path), &still, progress)?;
            still.thaw()?;
        }
        part.set_len(order.size).map_err(fault)?;
        file::set_label(&part, &self.directory.label(item)).map_err(fault)?;
        pass("target.part-sync.before");
        part.sync_all().map_err(fault)?;
        pass("target.part-sync.after");
        self.directory.put(item).map_err(told)?;
        self.directory.sync().map_err(told)?;
        record.phase = Phase::Ready;
        self.directory.write(item, &record).map_err(told)
    }
}
