//! Grants that were taken away without their record: what shows volumes again by their records must leave these out.
//!
//! A node that finds its export again, and loses it a second time while its kernel reconnects, may not notice that (Linux 6.1), and hang.

use crate::Revocation;
use bowline_core::{Epoch, NodeId, VolumeId};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Up to which epoch each node was cut off. No grant comes back below it.
#[derive(Debug, Default)]
pub(super) struct CutOff(Mutex<BTreeMap<(VolumeId, NodeId), Epoch>>);

impl CutOff {
    fn all(&self) -> MutexGuard<'_, BTreeMap<(VolumeId, NodeId), Epoch>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn note(&self, revocation: &Revocation) {
        let Revocation { volume, node, epoch, fence: _ } = revocation;
        let mut all = self.all();
        let known = all.entry((volume.clone(), node.clone())).or_insert(*epoch);
        *known = (*known).max(*epoch);
    }

    pub(super) fn has(&self, volume: &VolumeId, node: &NodeId, epoch: Epoch) -> bool {
        self.all().get(&(volume.clone(), node.clone())).is_some_and(|up_to| epoch <= *up_to)
    }

    /// Its record says so now.
    pub(super) fn forget(&self, revocation: &Revocation) {
        let Revocation { volume, node, epoch, fence: _ } = revocation;
        let key = (volume.clone(), node.clone());
        let mut all = self.all();
        if all.get(&key).is_some_and(|up_to| up_to <= epoch) {
            all.remove(&key);
        }
    }
}
