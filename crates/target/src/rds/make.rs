//! Making, growing and deleting.

use super::command::{self, Find, Property};
use super::device::{Device, Slot, TRIES, Trouble, in_vain};
use super::disk::Disk;
use super::fault::Fault;
use super::name::{self, Mark, NOBODY, Seen, called, digest_of_order};
use super::{MULTIPLE, SIZES};
use crate::{Item, NewVolume, ProvisionError, Sizes, Source, StoredVolume};
use bowline_core::{Epoch, Timestamp, VolumeId};

pub(super) fn refused(error: String) -> ProvisionError {
    ProvisionError::Refused { error }
}

pub(super) fn foreign(slot: &str) -> ProvisionError {
    refused(format!("slot {slot} of the device is taken by a disk that is not Bowline's"))
}

fn check_size(size: u64) -> Result<(), ProvisionError> {
    let Sizes { minimum, maximum, .. } = SIZES;
    if size < minimum || size > maximum {
        return Err(refused(format!("a volume has {minimum} to {maximum} bytes here, not {size}")));
    }
    if !size.is_multiple_of(MULTIPLE) {
        return Err(refused(format!("the size must be a multiple of {MULTIPLE} bytes; {size} is not")));
    }
    Ok(())
}

/// A disk from which a copy is made.
pub(super) struct Origin {
    pub(super) disk: Disk,
    pub(super) seen: Seen,
}

impl Device {
    /// What every new disk is told besides: that nobody is let in.
    fn shut<'a>(&'a self, slot: &'a str, path: &'a str, nqn: &'a str) -> Vec<Property<'a>> {
        let mut properties = vec![
            Property::FilePath(path),
            Property::Slot(slot),
            Property::Export(false),
            Property::Port(self.port),
            Property::ServerNqn(nqn),
        ];
        properties.extend(self.nobody());
        properties
    }

    /// Nobody as the one who may connect, where the firmware knows of that.
    pub(super) fn nobody(&self) -> Option<Property<'static>> {
        match self.guarantee {
            super::Guarantee::OneHost => Some(Property::AllowHost(NOBODY)),
            super::Guarantee::OnOrOff => None,
        }
    }

    /// Refuses what does not fit. Files take up their whole size from the start, or will.
    pub(super) async fn needs(&self, needed: u64) -> Result<(), ProvisionError> {
        let (_, available) = self.room().await?;
        if needed > available { Err(ProvisionError::NoRoom { needed, available }) } else { Ok(()) }
    }

    async fn full(&self, needed: u64) -> ProvisionError {
        let available = self.room().await.map_or(0, |(_, free)| free);
        ProvisionError::NoRoom { needed, available: available.min(needed.saturating_sub(1)) }
    }

    pub(super) async fn create(&self, order: &NewVolume) -> Result<u64, ProvisionError> {
        check_size(order.size)?;
        let item = Item::Volume(order.volume.clone());
        let slot = name::slot(&item).map_err(refused)?;
        let digest = digest_of_order(order);
        let mut last = None;
        for _ in 0..TRIES {
            match self.look(&slot).await? {
                Slot::Foreign => return Err(foreign(&slot)),
                Slot::Ours(disk, seen) => match seen.mark {
                    // From an earlier attempt, of which nobody knows how far it came.
                    Mark::Making(_) => {
                        self.erase_slot(&slot).await?;
                        continue;
                    }
                    _ => return self.made(order, &item, &disk, &digest),
                },
                Slot::Empty => {}
            }
            let origin = self.origin(order).await?;
            self.needs(order.size).await?;
            let path = self.names.path(&slot, &digest);
            last = match &origin {
                None => self.add(order, &slot, &path).await?,
                Some(origin) => self.clone_from(order, origin, &slot, &path).await?,
            };
            if matches!(last, Some(Trouble::Fault(Fault::Exists))) && self.is_empty(&slot).await? {
                // A file without its disk: left by an earlier attempt of this very order.
                self.remove_files(&item, &slot).await?;
            }
        }
        Err(in_vain(last).into())
    }

    /// Whether what is there is what was asked for.
    fn made(&self, order: &NewVolume, item: &Item, disk: &Disk, digest: &str) -> Result<u64, ProvisionError> {
        let (path, size) = (disk.path().map_err(Trouble::from)?, disk.bytes().map_err(Trouble::from)?);
        let what = || called(item);
        if self.names.owner(&path) != Some((item.clone(), digest.to_owned())) {
            let difference =
                format!("it was made with another name or size or from something else, as {path}");
            return Err(ProvisionError::Different { what: what(), difference });
        }
        if size < order.size {
            let error = format!("it has {size} bytes instead of {}", order.size);
            return Err(ProvisionError::Damaged { what: what(), error });
        }
        Ok(size)
    }

    async fn add(
        &self,
        order: &NewVolume,
        slot: &str,
        path: &str,
    ) -> Result<Option<Trouble>, ProvisionError> {
        let nqn = self.names.closed(&order.volume, Epoch::default());
        let mut properties = self.shut(slot, path, &nqn);
        properties.insert(1, Property::FileSize(order.size));
        match self.try_send(&command::add(&properties)).await {
            Err(Trouble::Fault(Fault::NoSpace)) => Err(self.full(order.size).await),
            other => Ok(other?),
        }
    }

    /// What the new volume is made from, if nobody can write to it now.
    async fn origin(&self, order: &NewVolume) -> Result<Option<Origin>, ProvisionError> {
        let item = match &order.source {
            None => return Ok(None),
            Some(Source::Volume(id)) => Item::Volume(id.clone()),
            Some(Source::Snapshot(id)) => Item::Snapshot(id.clone()),
        };
        let origin = self.still(&item).await?;
        let (has, wanted) = (origin.disk.bytes().map_err(Trouble::from)?, order.size);
        if has > wanted {
            return Err(refused(format!(
                "what it is made from has {has} bytes, which do not fit into {wanted}"
            )));
        }
        Ok(Some(origin))
    }

    /// Something whole to which nobody can write now. The device copies byte by byte: of what is written meanwhile, the copy would
    /// have one part from before and one from after.
    pub(super) async fn still(&self, item: &Item) -> Result<Origin, ProvisionError> {
        let unknown = || ProvisionError::Unknown { what: called(item) };
        let slot = name::slot(item).map_err(|_| unknown())?;
        let (disk, seen) = match self.own::<ProvisionError>(&slot).await? {
            Slot::Ours(disk, seen) => (disk, seen),
            Slot::Foreign => return Err(unknown()),
            Slot::Empty if self.is_empty(&slot).await? => return Err(unknown()),
            Slot::Empty => return Err(in_vain(None).into()),
        };
        match &seen.mark {
            Mark::Making(_) => Err(unknown()),
            Mark::Granted(_, export) if seen.export => {
                let by =
                    format!("node {} (this device cannot copy what may be written meanwhile)", export.node);
                Err(ProvisionError::InUse { by })
            }
            Mark::Closed(_) | Mark::Granted(..) | Mark::Snapshot(..) if seen.export => {
                Err(ProvisionError::InUse { by: "an export that nobody was granted".to_owned() })
            }
            Mark::Closed(_) | Mark::Granted(..) | Mark::Snapshot(..) => Ok(Origin { disk: *disk, seen }),
        }
    }

    /// Makes a volume from a copy. Its name says that it may not be whole until it is.
    async fn clone_from(
        &self,
        order: &NewVolume,
        origin: &Origin,
        slot: &str,
        path: &str,
    ) -> Result<Option<Trouble>, ProvisionError> {
        let nqn = self.names.making(&order.volume, Timestamp::UNIX_EPOCH);
        if let Some(trouble) = self.copy(origin, slot, path, &nqn, order.size).await? {
            return Ok(Some(trouble));
        }
        if !self.is_still(origin).await? {
            self.erase_slot(slot).await?;
            let by = format!("somebody who was let in to {} meanwhile", called(&origin.seen.item));
            return Err(ProvisionError::InUse { by });
        }
        let has = origin.disk.bytes().map_err(Trouble::from)?;
        if has < order.size {
            let small = Find { slot, nqn: &nqn, also: &[Property::Size(has)] };
            let larger = command::set(&small, &[Property::FileSize(order.size)]);
            match self.send(&larger).await {
                Err(Trouble::Fault(Fault::NoSpace)) => {
                    self.erase_slot(slot).await?;
                    return Err(self.full(order.size).await);
                }
                other => other?,
            }
            match self.look(slot).await? {
                Slot::Ours(disk, _) if disk.bytes().map_err(Trouble::from)? == order.size => {}
                _ => return Err(in_vain(None).into()),
            }
        }
        let whole = self.names.closed(&order.volume, Epoch::default());
        let making = Find { slot, nqn: &nqn, also: &[] };
        let ready = command::set(&making, &[Property::ServerNqn(&whole)]);
        Ok(self.try_send(&ready).await?)
    }

    /// Sends the command that makes a copy. Only its answer says that the copy is whole.
    pub(super) async fn copy(
        &self,
        origin: &Origin,
        slot: &str,
        path: &str,
        nqn: &str,
        size: u64,
    ) -> Result<Option<Trouble>, ProvisionError> {
        let copy = command::copy(&origin.seen.find_off(), &self.shut(slot, path, nqn));
        match self.send(&copy).await {
            Ok(()) => Ok(None),
            Err(Trouble::Fault(Fault::NoSpace)) => {
                self.erase_slot(slot).await?;
                Err(self.full(size).await)
            }
            // There is something of the name; whoever looks sees what.
            Err(trouble @ Trouble::Fault(Fault::Exists)) => Ok(Some(trouble)),
            Err(Trouble::Fault(Fault::NoSuchItem)) => {
                let by = format!("somebody who changed {} meanwhile", called(&origin.seen.item));
                Err(ProvisionError::InUse { by })
            }
            Err(trouble) => Err(trouble.into()),
        }
    }

    /// Whether nobody can have written to it since: every grant changes its name.
    pub(super) async fn is_still(&self, origin: &Origin) -> Result<bool, ProvisionError> {
        Ok(matches!(self.look(&origin.seen.slot).await?, Slot::Ours(_, now) if now == origin.seen))
    }

    pub(super) async fn grow(&self, volume: &VolumeId, size: u64) -> Result<u64, ProvisionError> {
        check_size(size)?;
        let item = Item::Volume(volume.clone());
        let unknown = || ProvisionError::Unknown { what: called(&item) };
        let slot = name::slot(&item).map_err(|_| unknown())?;
        let mut last = None;
        for _ in 0..TRIES {
            let (disk, seen) = match self.own::<ProvisionError>(&slot).await? {
                Slot::Ours(disk, seen) if !matches!(seen.mark, Mark::Making(_)) => (disk, seen),
                Slot::Empty if !self.is_empty(&slot).await? => continue,
                Slot::Ours(..) | Slot::Empty | Slot::Foreign => return Err(unknown()),
            };
            let has = disk.bytes().map_err(Trouble::from)?;
            if has >= size {
                return Ok(has);
            }
            self.needs(size - has).await?;
            // The old size is part of what is looked for: a late command would make it smaller again.
            let old = Find { slot: &seen.slot, nqn: &seen.nqn, also: &[Property::Size(has)] };
            last = match self.try_send(&command::set(&old, &[Property::FileSize(size)])).await {
                Err(Trouble::Fault(Fault::NoSpace)) => return Err(self.full(size - has).await),
                other => other?,
            };
        }
        Err(in_vain(last).into())
    }

    pub(super) async fn volume(&self, volume: &VolumeId) -> Result<Option<StoredVolume>, ProvisionError> {
        let Ok(slot) = name::slot(&Item::Volume(volume.clone())) else { return Ok(None) };
        let stored = |disk: &Disk| {
            let size = disk.bytes().map_err(Trouble::from)?;
            Ok(Some(StoredVolume { size, allocated: size, fault: None }))
        };
        let disk = self.disk_in(&slot).await?;
        if let Some(disk) = &disk
            && self.older(Some(disk))?.is_some()
        {
            return stored(disk);
        }
        match self.understand(&slot, disk)? {
            Slot::Ours(disk, seen) if !matches!(seen.mark, Mark::Making(_)) => stored(&disk),
            Slot::Empty if !self.is_empty(&slot).await? => Err(in_vain(None).into()),
            Slot::Ours(..) | Slot::Empty | Slot::Foreign => Ok(None),
        }
    }

    /// Deletes a volume or snapshot: first the disk, then its file. Either may be gone already.
    pub(super) async fn delete(&self, item: &Item) -> Result<(), ProvisionError> {
        // What cannot be named here never was.
        let Ok(slot) = name::slot(item) else { return Ok(()) };
        for _ in 0..TRIES {
            match self.own::<ProvisionError>(&slot).await? {
                Slot::Ours(disk, seen) => {
                    self.check_file(item, &disk)?;
                    if let Some((epoch, export)) = seen.lets_in(&self.names, self.guarantee) {
                        let by = format!("node {} (let in at epoch {epoch})", export.node);
                        return Err(ProvisionError::InUse { by });
                    }
                    self.erase(&seen).await?;
                }
                Slot::Foreign => return Err(foreign(&slot)),
                Slot::Empty if self.is_empty(&slot).await? => {
                    self.remove_files(item, &slot).await?;
                    return self.remove_older_file(item, &slot).await;
                }
                Slot::Empty => {}
            }
        }
        Err(in_vain(None).into())
    }

    /// Removes a disk to which nobody is let in.
    async fn erase(&self, seen: &Seen) -> Result<(), ProvisionError> {
        if seen.export {
            self.try_send(&seen.switch_off()).await?;
        }
        self.try_send(&command::remove(&seen.find_off())).await?;
        Ok(())
    }

    /// Removes a copy that was begun, and its file.
    pub(super) async fn erase_slot(&self, slot: &str) -> Result<(), ProvisionError> {
        for _ in 0..TRIES {
            match self.look(slot).await? {
                Slot::Ours(_, seen) if matches!(seen.mark, Mark::Making(_)) => self.erase(&seen).await?,
                Slot::Empty if self.is_empty(slot).await? => {
                    let item = name::item_in(slot);
                    return match item {
                        Some(item) => self.remove_files(&item, slot).await,
                        None => Ok(()),
                    };
                }
                Slot::Empty => {}
                Slot::Ours(..) | Slot::Foreign => return Ok(()),
            }
        }
        Err(in_vain(None).into())
    }

    /// Removes the files of what has no disk any more.
    async fn remove_files(&self, item: &Item, slot: &str) -> Result<(), ProvisionError> {
        for _ in 0..TRIES {
            let files = self.files(&self.names.files_of(slot)).await?;
            let mut left =
                files.iter().filter(|file| self.names.owner(&file.name).is_some_and(|(of, _)| of == *item));
            let Some(file) = left.next() else { return Ok(()) };
            self.try_send(&command::remove_file(&file.name)).await?;
        }
        Err(in_vain(None).into())
    }
}
