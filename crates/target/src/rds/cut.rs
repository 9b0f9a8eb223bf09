//! Snapshots.
//!
//! A snapshot is a copy of a volume to which nobody is let in. The device copies one file at a time; that all copies are of one moment
//! follows from nobody having been let in to any of the volumes between a look before the first and one after the last.
//! Their names say the moment, and that they may not be whole; when all of them are, they are renamed. So if one of them has been
//! renamed, the others with the same moment are whole, too.

use super::command::{self, Find, Property};
use super::device::{Device, Slot, Trouble, in_vain};
use super::make::{Origin, foreign, refused};
use super::name::{self, Mark, called, digest_of_cut};
use crate::{Cut, Item, ProvisionError, StoredSnapshot};
use bowline_core::{SnapshotId, Timestamp};
use std::collections::BTreeSet;

/// What there is of a snapshot already.
#[derive(Debug)]
enum Found {
    Nothing,
    /// A copy that may not be whole.
    Begun(Timestamp),
    Whole(StoredSnapshot),
}

/// One of the snapshots to be taken.
struct Wanted<'a> {
    cut: &'a Cut,
    slot: String,
    digest: String,
    found: Found,
}

/// The slots of snapshots; none twice.
pub(super) fn slots(cuts: &[Cut]) -> Result<BTreeSet<String>, ProvisionError> {
    let slots = cuts.iter().map(|cut| name::slot(&Item::Snapshot(cut.snapshot.clone())).map_err(refused));
    let slots = slots.collect::<Result<BTreeSet<_>, _>>()?;
    if slots.len() < cuts.len() {
        return Err(refused("a snapshot is asked for twice".to_owned()));
    }
    Ok(slots)
}

impl Device {
    pub(super) async fn snapshot(
        &self,
        cuts: &[Cut],
        now: Timestamp,
    ) -> Result<Vec<StoredSnapshot>, ProvisionError> {
        let mut wanted = Vec::new();
        for cut in cuts {
            wanted.push(self.wanted(cut).await?);
        }
        let moments: BTreeSet<Timestamp> = wanted.iter().filter_map(Wanted::whole_at).collect();
        let mut moments = moments.into_iter();
        match (moments.next(), moments.next()) {
            (None, _) => self.take(&wanted, now).await?,
            (Some(moment), None) => {
                let apart = wanted.iter().find(|one| !one.is_of(moment));
                apart.map_or(Ok(()), |one| Err(not_one_moment(one.cut)))?;
                self.finish(&wanted, moment).await?;
            }
            (Some(_), Some(_)) => {
                return Err(wanted.first().map_or(in_vain(None).into(), |one| not_one_moment(one.cut)));
            }
        }
        let mut taken = Vec::new();
        for cut in cuts {
            let stored = self.stored_snapshot(&cut.snapshot).await?;
            taken.push(stored.ok_or_else(|| ProvisionError::from(in_vain(None)))?);
        }
        Ok(taken)
    }

    async fn wanted<'a>(&self, cut: &'a Cut) -> Result<Wanted<'a>, ProvisionError> {
        let item = Item::Snapshot(cut.snapshot.clone());
        let slot = name::slot(&item).map_err(refused)?;
        let digest = digest_of_cut(cut);
        let (found, path) = match self.look(&slot).await? {
            Slot::Empty => (Found::Nothing, None),
            Slot::Foreign => return Err(foreign(&slot)),
            Slot::Ours(disk, seen) => {
                let path = disk.path().map_err(Trouble::from)?;
                let found = match seen.mark {
                    Mark::Snapshot(volume, taken_at) => {
                        let size = disk.bytes().map_err(Trouble::from)?;
                        Found::Whole(StoredSnapshot { volume, size, taken_at, fault: None })
                    }
                    Mark::Making(moment) => Found::Begun(moment),
                    Mark::Closed(_) | Mark::Granted(..) => return Err(foreign(&slot)),
                };
                (found, Some(path))
            }
        };
        let is_this = path.is_none_or(|path| self.names.owner(&path) == Some((item.clone(), digest.clone())));
        if matches!(found, Found::Whole(_)) && !is_this {
            let difference = "it was taken under another name or of another volume".to_owned();
            return Err(ProvisionError::Different { what: called(&item), difference });
        }
        Ok(Wanted { cut, slot, digest, found })
    }

    /// Takes all of them anew.
    async fn take(&self, wanted: &[Wanted<'_>], moment: Timestamp) -> Result<(), ProvisionError> {
        for one in wanted.iter().filter(|one| matches!(one.found, Found::Begun(_))) {
            self.erase_slot(&one.slot).await?;
        }
        let mut origins = Vec::new();
        for one in wanted {
            origins.push(self.still(&Item::Volume(one.cut.volume.clone())).await?);
        }
        let sizes = origins.iter().map(|origin| origin.disk.bytes()).collect::<Result<Vec<_>, _>>();
        let needed = sizes.map_err(Trouble::from)?.into_iter().fold(0_u64, u64::saturating_add);
        self.needs(needed).await?;
        match self.copy_all(wanted, &origins, moment, needed).await {
            Ok(()) => self.finish(wanted, moment).await,
            Err(error) => Err(self.clear(wanted, error).await),
        }
    }

    /// Takes back what was begun, and says why it had to be. What cannot be taken back now must not be told as if nothing were
    /// left.
    async fn clear(&self, wanted: &[Wanted<'_>], error: ProvisionError) -> ProvisionError {
        for one in wanted {
            if let Err(left) = self.erase_slot(&one.slot).await {
                return ProvisionError::Unreachable { error: format!("{error}; it is half made: {left}") };
            }
        }
        error
    }

    async fn copy_all(
        &self,
        wanted: &[Wanted<'_>],
        origins: &[Origin],
        moment: Timestamp,
        needed: u64,
    ) -> Result<(), ProvisionError> {
        for (one, origin) in wanted.iter().zip(origins) {
            let (path, nqn) =
                (self.names.path(&one.slot, &one.digest), self.names.making(&one.cut.volume, moment));
            if let Some(trouble) = self.copy(origin, &one.slot, &path, &nqn, needed).await? {
                // A file without its disk goes with what is cleared away; the next attempt finds none.
                return Err(in_vain(Some(trouble)).into());
            }
        }
        for origin in origins {
            if !self.is_still(origin).await? {
                let by = format!("somebody who was let in to {} meanwhile", called(&origin.seen.item));
                return Err(ProvisionError::InUse { by });
            }
        }
        Ok(())
    }

    /// Says of all that they are whole.
    async fn finish(&self, wanted: &[Wanted<'_>], moment: Timestamp) -> Result<(), ProvisionError> {
        for one in wanted.iter().filter(|one| !matches!(one.found, Found::Whole(_))) {
            let volume = &one.cut.volume;
            let (begun, whole) = (self.names.making(volume, moment), self.names.snapshot(volume, moment));
            let find = Find { slot: &one.slot, nqn: &begun, also: &[] };
            self.try_send(&command::set(&find, &[Property::ServerNqn(&whole)])).await?;
        }
        Ok(())
    }

    pub(super) async fn stored_snapshot(
        &self,
        snapshot: &SnapshotId,
    ) -> Result<Option<StoredSnapshot>, ProvisionError> {
        let Ok(slot) = name::slot(&Item::Snapshot(snapshot.clone())) else { return Ok(None) };
        match self.look(&slot).await? {
            Slot::Ours(disk, seen) => {
                let Mark::Snapshot(volume, taken_at) = seen.mark else { return Ok(None) };
                let size = disk.bytes().map_err(Trouble::from)?;
                Ok(Some(StoredSnapshot { volume, size, taken_at, fault: None }))
            }
            Slot::Empty if !self.is_empty(&slot).await? => Err(in_vain(None).into()),
            Slot::Empty | Slot::Foreign => Ok(None),
        }
    }
}

impl Wanted<'_> {
    fn whole_at(&self) -> Option<Timestamp> {
        match &self.found {
            Found::Whole(stored) => Some(stored.taken_at),
            Found::Nothing | Found::Begun(_) => None,
        }
    }

    fn is_of(&self, moment: Timestamp) -> bool {
        match &self.found {
            Found::Nothing => false,
            Found::Begun(at) => *at == moment,
            Found::Whole(stored) => stored.taken_at == moment,
        }
    }
}

fn not_one_moment(cut: &Cut) -> ProvisionError {
    ProvisionError::Different {
        what: called(&Item::Snapshot(cut.snapshot.clone())),
        difference: "it is not of the same moment as the others that were asked for with it".to_owned(),
    }
}
