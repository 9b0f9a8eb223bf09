//! What the records let in is shown again after a start, and what could not be shown then, or not everywhere, later.
//!
//! Nobody else asks for that: a controller whose grant is stored has no reason to ask again, and both sides agree on a list that the kernel
//! does not serve. An address at which it is to listen may come later than this process, for one.

use super::access::Showing;
use super::directory::{Fault, called};
use super::exporter::Grants;
use super::name::Part;
use super::record::{Phase, VolumeRecord};
use super::{FileTarget, Inner, OpenError, elsewhere};
use crate::abreast::abreast;
use crate::{Item, TargetError};
use bowline_core::VolumeId;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{MutexGuard, PoisonError};

/// How many volumes are shown at once at a start.
const AT_ONCE: usize = 16;

/// Volumes that are not shown to everybody who is let in, and why.
type Missing = BTreeMap<VolumeId, String>;

impl FileTarget {
    /// What is not shown to everybody whom its record lets in, or not everywhere, and why.
    pub fn missing(&self) -> BTreeMap<VolumeId, String> {
        self.inner.missing().clone()
    }

    /// Tries once more to show that, and says what is still missing.
    pub async fn show_missing(&self) -> BTreeMap<VolumeId, String> {
        let inner = self.inner.clone();
        let tried = tokio::task::spawn_blocking(move || inner.show_missing()).await;
        tried.unwrap_or_else(|error| {
            tracing::error!(%error, "what is missing was not shown");
            self.missing()
        })
    }
}

impl Inner {
    /// Denies by default: takes away whatever is shown and in no record, and then shows again what is in one.
    pub(super) fn show_again<'a>(&self, items: impl Iterator<Item = &'a Item>) -> Result<(), OpenError> {
        if !self.exporter.is_remote() {
            return Ok(());
        }
        let (mut volumes, mut records) = (Vec::new(), Vec::new());
        for item in items {
            let Item::Volume(volume) = item else { continue };
            volumes.push(volume);
            match self.directory.volume(item) {
                Ok(Some(mut record)) if record.phase == Phase::Ready => {
                    self.miss_elsewhere(item, &mut record);
                    records.push((item, self.directory.path(item, Part::Data), record));
                }
                Ok(_) => {}
                // One that cannot be read lets nobody in.
                Err(fault @ Fault::Damaged { .. }) => tracing::warn!(%volume, %fault, "not shown to anybody"),
                Err(fault @ Fault::Io { .. }) => self.miss(volume, fault.to_string()),
            }
        }
        let open = records.iter().flat_map(|(_, file, record)| {
            record.exports.open().keys().filter_map(|epoch| record.shown(*epoch, file))
        });
        let kept = self.exporter.keep_only(&open.collect::<Vec<_>>(), &volumes);
        let left = kept.map_err(|error| OpenError::Export { error: error.to_string() })?;
        for (volume, error) in left {
            let why = format!("what no record names is not proven gone: {error}");
            self.missing().entry(volume.clone()).or_insert(why);
            self.unproven().insert(volume);
        }
        // Side by side: one whose disk does not answer keeps the others from nothing, and callers are answered when all are through.
        abreast(records, AT_ONCE, |(item, _, record)| {
            for epoch in record.exports.open().keys() {
                let shown = self.show(item, &record, *epoch, Showing::Again);
                if let Some(why) = shown.unwrap_or_else(|error| Some(error.to_string())) {
                    tracing::warn!(item = called(item), %epoch, why, "not shown to whom it lets in");
                    self.miss(&record.volume, why);
                }
            }
        });
        Ok(())
    }

    /// Takes away what was shown of a volume at the start and no record names, if that is not proven gone. Whoever calls has the volume alone.
    pub(super) fn prove_gone(&self, record: &VolumeRecord) -> Result<(), TargetError> {
        if !self.unproven().contains(&record.volume) {
            return Ok(());
        }
        self.exporter.close(&record.volume, &record.reach(), &Grants::new())?;
        self.unproven().remove(&record.volume);
        Ok(())
    }

    fn unproven(&self) -> MutexGuard<'_, BTreeSet<VolumeId>> {
        self.unproven.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes what is exported over other bytes, and tells it, with what else is closed and listed. It is taken away with all that no record lets in.
    fn miss_elsewhere(&self, item: &Item, record: &mut VolumeRecord) {
        let mut words = elsewhere::draining(record);
        for epoch in record.exports.open().keys().copied().collect::<Vec<_>>() {
            match self.close_elsewhere(item, record, epoch) {
                Ok(closed) => words = closed.map(|closed| closed.words()).or(words),
                Err(error) => words = Some(error.to_string()),
            }
        }
        if let Some(words) = words {
            self.miss(&record.volume, words);
        }
    }

    fn show_missing(&self) -> Missing {
        // Not with the list locked: a disk may take its time.
        let tried: Vec<VolumeId> = self.missing().keys().cloned().collect();
        for volume in tried {
            match self.show_volume(&volume) {
                Ok(true) => tracing::info!(%volume, "shown to whom it lets in"),
                // Why it is closed was told when it was.
                Ok(false) => {}
                Err(error) => self.miss(&volume, error.to_string()),
            }
        }
        self.missing().clone()
    }

    /// Shows a volume to everybody whom its record lets in now: since the start, somebody may have been shut out. Says whether that is everybody whom
    /// it lists; then nothing is missing, and that is noted while nobody else can be let in, of whom something may be missing, too.
    fn show_volume(&self, volume: &VolumeId) -> Result<bool, TargetError> {
        let item = Item::Volume(volume.clone());
        let unreachable = |fault: Fault| TargetError::Unreachable { error: fault.to_string() };
        self.stuck(volume)?;
        let alone = self.alone_for_access(volume)?;
        let record = self.directory.volume(&item).map_err(unreachable)?;
        let record = record.filter(|record| record.phase == Phase::Ready);
        let (Some(_alone), Some(mut record)) = (alone, record) else {
            self.missing().remove(volume);
            return Ok(true);
        };
        self.prove_gone(&record)?;
        let mut shown = Vec::new();
        for epoch in record.exports.open().keys().copied().collect::<Vec<_>>() {
            // All of them are tried before one that cannot be shown is told.
            let closed = self.close_elsewhere(&item, &mut record, epoch);
            shown.push(closed.and_then(|closed| match closed {
                None => match self.show(&item, &record, epoch, Showing::Again) {
                    Ok(Some(error)) => Err(TargetError::Unreachable { error }),
                    other => other.map(drop),
                },
                Some(closed) => {
                    self.shut_out(&item, &record, &closed.node, closed.epoch)?;
                    Err(TargetError::Refused { error: closed.words() })
                }
            }));
        }
        shown.into_iter().collect::<Result<(), _>>()?;
        if record.draining.is_empty() {
            self.missing().remove(volume);
        }
        Ok(record.draining.is_empty())
    }

    pub(super) fn miss(&self, volume: &VolumeId, why: String) {
        self.missing().insert(volume.clone(), why);
    }

    fn missing(&self) -> MutexGuard<'_, Missing> {
        self.missing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
