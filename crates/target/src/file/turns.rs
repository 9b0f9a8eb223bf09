//! One creation or deletion of a volume at a time, in the order in which they were asked for.
//!
//! A call whose caller hangs up is carried on. It must not land after what was asked for later: a volume that was deleted
//! would come back, and nobody would know of it.

use bowline_core::VolumeId;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{Mutex as Turn, OwnedMutexGuard};

#[derive(Debug, Default)]
pub(super) struct Turns(Mutex<HashMap<VolumeId, Arc<Turn<()>>>>);

impl Turns {
    /// Waits for everything that was asked for this volume before. The guard goes with the work, not with the caller.
    pub(super) async fn take(&self, volume: &VolumeId) -> OwnedMutexGuard<()> {
        let turn = {
            let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            all.retain(|_, turn| Arc::strong_count(turn) > 1);
            Arc::clone(all.entry(volume.clone()).or_default())
        };
        turn.lock_owned().await
    }
}
