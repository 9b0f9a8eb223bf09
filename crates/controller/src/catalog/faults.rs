//! What is wrong with volumes, as their targets see it: told to the engine, so that nobody is let in to bytes that are not
//! there, and taken back when the target says that they are well.

use bowline_core::{TargetId, VolumeId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Weak;
use tokio::sync::broadcast;

use super::storage::unanswered;
use super::{Catalog, Inner, lock};
use crate::failure::{Failure, Why};
use crate::record::Volume;

impl Catalog {
    /// What is known to be wrong with volumes, without a question to anybody.
    pub fn faults(&self) -> BTreeMap<VolumeId, String> {
        lock(&self.inner.faults).iter().map(|(volume, fault)| (volume.clone(), fault.clone())).collect()
    }
}

impl Inner {
    /// Tells the engine what is known of a volume.
    pub(crate) fn observe(&self, volume: &Volume) {
        let fault = lock(&self.faults).get(&volume.id).cloned();
        let facts = bowline_core::VolumeFacts { fault, ..volume.facts() };
        self.engine.observe_volume(&volume.id, facts);
    }

    /// Asks the target what is wrong with a volume that can be used; the engine is told if that has changed. A target that
    /// does not answer says nothing, neither that it is ill nor that it is well.
    pub(crate) async fn look(&self, volume: &Volume) -> Result<Option<String>, Failure> {
        let target = self.target(&volume.target)?;
        let wait = self.settings.ask_timeout;
        let stored = tokio::time::timeout(wait, target.volume(&volume.id)).await;
        let silent = |_| Failure::new(Why::Unreachable, format!("no answer within {wait:?}"));
        let stored = stored.map_err(silent)?.map_err(|error| unanswered(&error))?;
        let fault = match stored {
            Some(stored) => stored.fault,
            None => Some(format!("its bytes are not on target {}", volume.target)),
        };
        // Read again: what is being deleted by now has no bytes, and that is no fault.
        let Ok(volume) = self.volume(&volume.id).await else { return Ok(fault) };
        if !volume.is_usable() {
            return Ok(None);
        }
        let before = {
            let mut faults = lock(&self.faults);
            match &fault {
                Some(fault) => faults.insert(volume.id.clone(), fault.clone()),
                None => faults.remove(&volume.id),
            }
        };
        if before != fault {
            self.observe(&volume);
            let (reason, sentence) = match &fault {
                Some(fault) => ("Faulted", format!("Volume {:?} cannot be used: {fault}.", volume.name)),
                None => ("Repaired", format!("Volume {:?} is well again.", volume.name)),
            };
            self.tell(Some(&volume.id), reason, sentence);
        }
        Ok(fault)
    }

    /// Looks whether a volume that was ill still is, before somebody is refused for that.
    pub(crate) async fn look_again(&self, volume: &Volume) {
        let was_ill = lock(&self.faults).contains_key(&volume.id);
        if was_ill && let Err(failure) = self.look(volume).await {
            tracing::warn!(volume = %volume.id, failure = failure.sentence, "it is not known whether it is well again");
        }
    }

    /// Looks at a volume, if it can be used. Tells whether its target answered.
    async fn look_at(&self, id: &VolumeId) -> bool {
        let looked = match self.volume(id).await {
            Ok(volume) if volume.is_usable() => self.look(&volume).await.map(|_| ()),
            Ok(_) | Err(Failure { why: Why::Unknown, .. }) => Ok(()),
            Err(failure) => Err(failure),
        };
        if let Err(failure) = &looked {
            tracing::debug!(volume = %id, failure = failure.sentence, "it is not known whether it is well");
        }
        looked.is_ok()
    }

    /// Looks at every volume that can be used, of one target or of all, one after the other: targets have other work. One
    /// that does not answer is not asked about its other volumes.
    pub(crate) async fn look_at_all(&self, of: Option<&TargetId>) {
        let mut volumes: Vec<(VolumeId, TargetId)> = Vec::new();
        let all = self.shelf.for_each(|_, volume: Volume| {
            if volume.is_usable() && of.is_none_or(|of| *of == volume.target) {
                volumes.push((volume.id, volume.target));
            }
        });
        if let Err(failure) = all.await {
            tracing::warn!(failure = failure.sentence, "the volumes were not looked at");
            return;
        }
        let mut silent = BTreeSet::new();
        for (id, target) in volumes {
            if !silent.contains(&target) && !self.look_at(&id).await {
                silent.insert(target);
            }
            if self.operations.is_closed() {
                return;
            }
        }
    }
}

/// A target that refuses to let a node in may have a reason that is worth knowing.
pub(crate) async fn look_when_refused(catalog: Weak<Inner>, mut refusals: broadcast::Receiver<VolumeId>) {
    loop {
        let heard = refusals.recv().await;
        let Some(inner) = catalog.upgrade() else { return };
        match heard {
            Ok(volume) => drop(inner.look_at(&volume).await),
            // They are refused again, and looked at then.
            Err(broadcast::error::RecvError::Lagged(_)) => {}
            Err(broadcast::error::RecvError::Closed) => return,
        }
    }
}

/// At the start and then as often as targets are compared; those that are ill more often, because somebody may wait.
pub(crate) async fn look_for_ever(catalog: Weak<Inner>) {
    let mut next = tokio::time::Instant::now();
    loop {
        let Some(inner) = catalog.upgrade().filter(|inner| !inner.operations.is_closed()) else { return };
        if tokio::time::Instant::now() >= next {
            next += inner.settings.compare_every;
            inner.look_at_all(None).await;
        } else {
            let ill: Vec<VolumeId> = lock(&inner.faults).keys().cloned().collect();
            for volume in ill {
                inner.look_at(&volume).await;
            }
        }
        let pause = inner.settings.longest_pause;
        drop(inner);
        tokio::time::sleep(pause).await;
    }
}
