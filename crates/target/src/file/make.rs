//! Making volumes, empty or from what is there.

use super::Inner;
use super::busy::Deed;
use super::directory::{Claim, Fault, called, now};
use super::mark::{Begun, Mark};
use super::name::Part;
use super::record::{Phase, SnapshotRecord, VolumeRecord};
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
    nature: Nature,
}

enum Nature {
    /// A volume: somebody may be writing to it, also from elsewhere.
    Live { elsewhere: Option<String> },
    /// It never changes.
    Snapshot(SnapshotRecord),
}

impl Origin {
    fn snapshot(&self) -> Option<&SnapshotRecord> {
        match &self.nature {
            Nature::Live { .. } => None,
            Nature::Snapshot(record) => Some(record),
        }
    }
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
        let locks = self.lock_all(&claims, Deed::Copy).map_err(|fault| self.told(fault, order.size))?;
        let made = self.create_locked(order, &item, progress);
        self.unlock(locks);
        made
    }

    fn create_locked(
        &self,
        order: &NewVolume,
        item: &Item,
        progress: &Progress,
    ) -> Result<u64, ProvisionError> {
        let told = |fault| self.told(fault, order.size);
        let mut unfinished = None;
        match self.directory.volume(item).map_err(told)? {
            // Nobody was told that it is there: what is not as it is ordered now is begun anew.
            Some(record) if record.phase == Phase::Making => {
                unfinished = Some(record).filter(|record| record.difference(order).is_none());
            }
            Some(record) => {
                if let Some(difference) = record.difference(order) {
                    return Err(ProvisionError::Different { what: called(item), difference });
                }
                match record.phase {
                    Phase::Ready => {
                        self.directory.open_volume(item, &record, false).map_err(told)?;
                        return Ok(record.size);
                    }
                    Phase::Making | Phase::Deleting => {
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
            self.make(order, unfinished, origin.as_ref(), progress)
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
                let nature = Nature::Live { elsewhere: self.remote_writer(&record) };
                Origin { file, size: record.size, nature }
            }
            Some(Source::Snapshot(id)) => {
                let item = Item::Snapshot(id.clone());
                let record = self.directory.snapshot(&item).map_err(told)?;
                let record =
                    record.filter(|record| record.phase == Phase::Ready).ok_or_else(|| unknown(&item))?;
                let file = self.directory.open_data(&item, &[record.size], false).map_err(told)?;
                Origin { file, size: record.size, nature: Nature::Snapshot(record) }
            }
        };
        if origin.size > order.size {
            let (has, wanted) = (origin.size, order.size);
            let error = format!("what it is made from has {has} bytes, which do not fit into {wanted}");
            return Err(ProvisionError::Refused { error });
        }
        Ok(Some(origin))
    }

    /// Makes it, or goes on with what an earlier process left of the same order, if that can be.
    fn make(
        &self,
        order: &NewVolume,
        unfinished: Option<VolumeRecord>,
        origin: Option<&Origin>,
        progress: &Progress,
    ) -> Result<(), ProvisionError> {
        let told = |fault| self.told(fault, order.size);
        let item = &Item::Volume(order.volume.clone());
        let went_on = unfinished.and_then(|record| {
            let origin = origin?;
            let begun = self.directory.begun(item, &record, origin.snapshot()?, &origin.file)?;
            Some((record, begun))
        });
        let (mut record, begun) = match went_on {
            Some((record, begun)) => (record, Some(begun)),
            None => {
                let writer = self.directory.writer.id();
                (VolumeRecord::new(&self.directory.installation, order, now(), writer), None)
            }
        };
        self.directory.write(item, &record).map_err(told)?;
        let Begun { part, place, mut mark } = match begun {
            Some(begun) => {
                self.directory.make_places(item).map_err(told)?;
                begun
            }
            None => self.begin(item, &record, origin).map_err(told)?,
        };
        let path = self.directory.path(item, place);
        let fault = |error| told(Fault::io(&path, error));
        if let Some(origin) = origin {
            progress.expect(file::allocated(&origin.file.metadata().map_err(fault)?));
            let still = match &origin.nature {
                Nature::Live { elsewhere } => {
                    self.hold_still(&[&origin.file], elsewhere.iter().cloned().collect())?
                }
                Nature::Snapshot(_) => Still::default(),
            };
            self.fill((&origin.file, origin.size), (&part, &path), &still, mark.as_mut(), progress)?;
            still.thaw()?;
        }
        part.set_len(order.size).map_err(fault)?;
        pass("target.part-sync.before");
        part.sync_all().map_err(fault)?;
        pass("target.part-sync.after");
        if place == Part::Partial {
            self.directory.put(item).map_err(told)?;
        }
        self.directory.sync().map_err(told)?;
        record.phase = Phase::Ready;
        self.directory.write(item, &record).map_err(told)?;
        // On what is whole it says nothing any more, so one that stays does not matter.
        let _ = mark.filter(|mark| mark.offset > 0).map(|_| file::remove_mark(&part));
        Ok(())
    }

    /// A new file for the bytes of a volume whose record is stored. Whatever there was before goes.
    fn begin(&self, item: &Item, record: &VolumeRecord, origin: Option<&Origin>) -> Result<Begun, Fault> {
        let place = Part::Partial;
        self.directory.remove(item, Part::Partial)?;
        self.directory.remove(item, Part::Data)?;
        self.directory.make_places(item)?;
        let path = self.directory.path(item, place);
        let fault = |error| Fault::io(&path, error);
        pass("target.part.before");
        let part = file::create_new(&path).map_err(fault)?;
        pass("target.part.after");
        let labelled = file::set_label(&part, &self.directory.label(item)).map_err(fault)?;
        let mark = match origin.and_then(|origin| Some((origin.snapshot()?, &origin.file))) {
            Some((snapshot, source)) if labelled => {
                let (copy, source) = (part.metadata().map_err(fault)?, source.metadata().map_err(fault)?);
                Some(Mark::new(record, &copy, snapshot, &source))
            }
            Some(_) | None => None,
        };
        Ok(Begun { part, place, mark })
    }
}
