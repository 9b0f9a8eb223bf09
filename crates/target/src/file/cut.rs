//! Snapshots: of one volume or of several, all at one moment, all or none.
//!
//! The record of the cut is what decides. While it says "not taken", nothing of it counts and the next start clears it
//! away; once it says "taken", every snapshot of it gets its place and its record, after a crash by the next start.

use super::Inner;
use super::busy::Deed;
use super::directory::{Claim, Fault, called, now};
use super::name::Part;
use super::record::{CutRecord, Phase, SnapshotRecord};
use crate::{Cut, Item, Progress, ProvisionError, StoredSnapshot};
use bowline_core::SnapshotId;
use bowline_failpoint::pass;
use bowline_host::file;
use std::collections::BTreeMap;
use std::fs::{File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::sync::{MutexGuard, PoisonError};

/// A volume that is about to be copied.
struct Sitter {
    file: File,
    record: SnapshotRecord,
    /// Who may write to it from elsewhere.
    elsewhere: Option<String>,
}

fn item_of(snapshot: &SnapshotId) -> Item {
    Item::Snapshot(snapshot.clone())
}

/// The snapshot that a cut is called by.
pub(super) fn first_of(cut: &CutRecord) -> Option<&SnapshotId> {
    cut.snapshots.iter().map(|record| &record.snapshot).min()
}

impl Inner {
    pub(super) fn snapshot(
        &self,
        cuts: &[Cut],
        progress: &Progress,
    ) -> Result<Vec<StoredSnapshot>, ProvisionError> {
        self.settle_unfinished()?;
        let mut claims = BTreeMap::new();
        for cut in cuts {
            claims.insert(Item::Volume(cut.volume.clone()), Claim::Alone);
            if claims.insert(item_of(&cut.snapshot), Claim::New).is_some() {
                let error = format!("snapshot {} is asked for twice", cut.snapshot);
                return Err(ProvisionError::Refused { error });
            }
        }
        let locks = self.lock_all(&claims, Deed::Snapshot).map_err(|fault| self.told(fault, 0))?;
        let taken = self.snapshot_locked(cuts, progress);
        self.unlock(locks);
        taken
    }

    fn snapshot_locked(
        &self,
        cuts: &[Cut],
        progress: &Progress,
    ) -> Result<Vec<StoredSnapshot>, ProvisionError> {
        let ids: Vec<SnapshotId> = cuts.iter().map(|cut| cut.snapshot.clone()).collect();
        self.refuse_if_unfinished(&ids)?;
        if let Some(taken) = self.taken_before(cuts)? {
            return Ok(taken);
        }
        let sitters = cuts.iter().map(|cut| self.sitter(cut)).collect::<Result<Vec<_>, _>>()?;
        let Some(first) = ids.iter().min() else { return Ok(Vec::new()) };
        let wanted: Vec<_> =
            sitters.iter().map(|sitter| (item_of(&sitter.record.snapshot), sitter.record.promised)).collect();
        let needed = wanted.iter().fold(0_u64, |sum, (_, bytes)| sum.saturating_add(*bytes));
        let seen = self.room.look(&self.directory);
        let seen = seen.map_err(|error| self.told(Fault::io(&self.directory.path, error), needed))?;
        let promised = self.room.promise(&wanted, seen);
        promised.map_err(|available| ProvisionError::NoRoom { needed, available })?;
        let cut = self.take(first, &sitters, progress).map_err(|error| self.take_back(first, &ids, error))?;
        self.settle(&cut).map_err(|fault| {
            self.unfinished().push(cut.clone());
            ProvisionError::Unreachable { error: fault.to_string() }
        })?;
        cut.snapshots.iter().map(|record| Ok(self.described(record))).collect()
    }

    /// The snapshots, if they are all there already and are what is asked for.
    fn taken_before(&self, cuts: &[Cut]) -> Result<Option<Vec<StoredSnapshot>>, ProvisionError> {
        let mut found = Vec::new();
        let mut missing = None;
        for cut in cuts {
            let item = item_of(&cut.snapshot);
            let told = |fault| self.told(fault, 0);
            let different = |difference| ProvisionError::Different { what: called(&item), difference };
            match self.directory.snapshot(&item).map_err(told)? {
                None if self.directory.exists(&item, Part::Data).map_err(told)? => {
                    let error = "its record is missing".to_owned();
                    return Err(ProvisionError::Damaged { what: called(&item), error });
                }
                None => missing = Some(&cut.snapshot),
                Some(record) if record.phase != Phase::Ready => {
                    return Err(ProvisionError::Refused {
                        error: format!("{} is being deleted", called(&item)),
                    });
                }
                Some(record) if record.volume != cut.volume => {
                    return Err(different(format!("it is of volume {}", record.volume)));
                }
                Some(record) if record.name != cut.name => {
                    return Err(different(format!("its name is {:?}", record.name)));
                }
                Some(record) => found.push(record),
            }
        }
        match (found.first(), missing) {
            (_, None) => Ok(Some(found.iter().map(|record| self.described(record)).collect())),
            (None, Some(_)) => Ok(None),
            (Some(there), Some(missing)) => Err(ProvisionError::Different {
                what: format!("snapshot {}", there.snapshot),
                difference: format!("it was taken at a moment of its own, without snapshot {missing}"),
            }),
        }
    }

    fn sitter(&self, cut: &Cut) -> Result<Sitter, ProvisionError> {
        let item = Item::Volume(cut.volume.clone());
        let told = |fault| self.told(fault, 0);
        let record =
            self.directory.volume(&item).map_err(told)?.filter(|record| record.phase == Phase::Ready);
        let volume = record.ok_or_else(|| ProvisionError::Unknown { what: called(&item) })?;
        let file = self.directory.open_volume(&item, &volume, false).map_err(told)?;
        let record = SnapshotRecord {
            installation: self.directory.installation.clone(),
            snapshot: cut.snapshot.clone(),
            name: cut.name.clone(),
            phase: Phase::Ready,
            volume: cut.volume.clone(),
            size: volume.size,
            promised: self.directory.allocated(&item),
            taken_at: now(),
        };
        Ok(Sitter { file, record, elsewhere: self.remote_writer(&volume) })
    }

    /// Takes them all, up to the moment at which they count. An error means that none of them does.
    fn take(
        &self,
        first: &SnapshotId,
        sitters: &[Sitter],
        progress: &Progress,
    ) -> Result<CutRecord, ProvisionError> {
        let needed = sitters.iter().fold(0_u64, |sum, sitter| sum.saturating_add(sitter.record.promised));
        let told = |fault| self.told(fault, needed);
        let records = sitters.iter().map(|sitter| sitter.record.clone()).collect();
        let installation = self.directory.installation.clone();
        let mut cut = CutRecord { installation, taken: false, snapshots: records };
        self.directory.write_cut(first, &cut).map_err(told)?;
        let mut parts = Vec::new();
        let mut total = 0;
        for sitter in sitters {
            let item = item_of(&sitter.record.snapshot);
            let path = self.directory.path(&item, Part::Partial);
            let fault = |error| told(Fault::io(&path, error));
            file::remove(&path).map_err(fault)?;
            parts.push((file::create_new(&path).map_err(fault)?, path.clone()));
            total += file::allocated(&sitter.file.metadata().map_err(fault)?);
        }
        progress.expect(total);
        let files: Vec<&File> = sitters.iter().map(|sitter| &sitter.file).collect();
        let elsewhere = sitters.iter().filter_map(|sitter| sitter.elsewhere.clone()).collect();
        let still = self.hold_still(&files, elsewhere)?;
        let moment = now();
        for (sitter, (part, path)) in sitters.iter().zip(&parts) {
            self.fill((&sitter.file, sitter.record.size), (part, path), &still, None, progress)?;
        }
        still.thaw()?;
        for (record, (part, path)) in cut.snapshots.iter_mut().zip(&parts) {
            let fault = |error| told(Fault::io(path, error));
            let item = item_of(&record.snapshot);
            // The file may be ahead of its record, by a growth that a fault stopped.
            part.set_len(record.size).map_err(fault)?;
            file::set_label(part, &self.directory.label(&item)).map_err(fault)?;
            part.set_permissions(Permissions::from_mode(0o400)).map_err(fault)?;
            pass("target.part-sync.before");
            part.sync_all().map_err(fault)?;
            pass("target.part-sync.after");
            record.taken_at = moment;
            record.promised = part.metadata().map(|found| file::allocated(&found)).map_err(fault)?;
            self.room.set(&item, record.promised);
        }
        self.directory.sync().map_err(told)?;
        cut.taken = true;
        match self.directory.write_cut(first, &cut) {
            Ok(()) => Ok(cut),
            // The answer was lost, maybe not the write: settling finds out what it takes to make it last.
            Err(_) if self.directory.read_cut(first).is_ok_and(|found| found.as_ref() == Some(&cut)) => {
                Ok(cut)
            }
            Err(fault) => Err(told(fault)),
        }
    }

    /// Clears away a cut that was not taken, and says why it was not.
    fn take_back(&self, first: &SnapshotId, ids: &[SnapshotId], error: ProvisionError) -> ProvisionError {
        ids.iter().for_each(|id| self.room.forget(&item_of(id)));
        let removed = ids.iter().try_for_each(|id| self.directory.remove(&item_of(id), Part::Partial));
        match removed.and_then(|()| self.directory.remove_cut(first)) {
            Ok(()) => error,
            Err(fault) => ProvisionError::Unreachable { error: format!("{error}; it is half made: {fault}") },
        }
    }

    /// Gives every snapshot of a cut that is taken its place and its record.
    pub(super) fn settle(&self, cut: &CutRecord) -> Result<(), Fault> {
        for record in &cut.snapshots {
            let item = item_of(&record.snapshot);
            if self.directory.exists(&item, Part::Record)? {
                continue;
            }
            if self.directory.exists(&item, Part::Partial)? {
                self.directory.put(&item)?;
                self.directory.sync()?;
            }
            self.directory.write_pressing(&item, record)?;
            self.room.set(&item, record.promised);
        }
        first_of(cut).map_or(Ok(()), |first| self.directory.remove_cut(first))
    }

    fn unfinished(&self) -> MutexGuard<'_, Vec<CutRecord>> {
        self.unfinished.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Completes what could not be completed when it was taken. Rare, so the list stays locked meanwhile.
    pub(super) fn settle_unfinished(&self) -> Result<(), ProvisionError> {
        let mut unfinished = self.unfinished();
        while let Some(cut) = unfinished.last() {
            self.settle(cut).map_err(|fault| ProvisionError::Unreachable { error: fault.to_string() })?;
            unfinished.pop();
        }
        Ok(())
    }

    pub(super) fn remember_unfinished(&self, cut: CutRecord) {
        self.unfinished().push(cut);
    }

    pub(super) fn refuse_if_unfinished(&self, ids: &[SnapshotId]) -> Result<(), ProvisionError> {
        let unfinished = self.unfinished();
        let mut records = unfinished.iter().flat_map(|cut| &cut.snapshots);
        match records.find(|record| ids.contains(&record.snapshot)) {
            None => Ok(()),
            Some(record) => {
                let error = format!("snapshot {} is taken, but not settled yet; ask again", record.snapshot);
                Err(ProvisionError::Unreachable { error })
            }
        }
    }

    fn described(&self, record: &SnapshotRecord) -> StoredSnapshot {
        let opened = self.directory.open_data(&item_of(&record.snapshot), &[record.size], false);
        StoredSnapshot {
            volume: record.volume.clone(),
            size: record.size,
            taken_at: record.taken_at,
            fault: opened.err().map(|fault| fault.to_string()),
        }
    }

    pub(super) fn stored_snapshot(
        &self,
        snapshot: &SnapshotId,
    ) -> Result<Option<StoredSnapshot>, ProvisionError> {
        self.settle_unfinished()?;
        loop {
            let read = || self.directory.snapshot(&item_of(snapshot)).map_err(|fault| self.told(fault, 0));
            let Some(record) = read()?.filter(|record| record.phase == Phase::Ready) else { return Ok(None) };
            let described = self.described(&record);
            // What seems ill may just have been deleted.
            if described.fault.is_none() || read()?.as_ref() == Some(&record) {
                return Ok(Some(described));
            }
        }
    }
}
