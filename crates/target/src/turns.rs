//! One piece of work at a time on one thing, in the order in which it was asked for.
//!
//! A call whose caller hangs up is carried on. It must not land after what was asked for later: a volume or a snapshot that
//! was deleted would come back, and nobody would know of it.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{Mutex as Turn, OwnedMutexGuard};

/// Whose turn it is, by what the work is about.
#[derive(Debug)]
pub(crate) struct Turns<K>(Mutex<HashMap<K, Arc<Turn<()>>>>);

impl<K> Default for Turns<K> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Clone + Eq + Hash> Turns<K> {
    /// Waits for everything that was asked for this before. The guard goes with the work, not with the caller.
    pub(crate) async fn take(&self, key: &K) -> OwnedMutexGuard<()> {
        let turn = {
            let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            all.retain(|_, turn| Arc::strong_count(turn) > 1);
            Arc::clone(all.entry(key.clone()).or_default())
        };
        turn.lock_owned().await
    }

    /// As [`Self::take`], for whoever asks again rather than wait for what may take hours.
    pub(crate) async fn take_soon(&self, key: &K, patience: Duration) -> Option<OwnedMutexGuard<()>> {
        tokio::time::timeout(patience, self.take(key)).await.ok()
    }
}
