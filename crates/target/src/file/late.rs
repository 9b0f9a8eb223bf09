//! Records that a disk does not take in time.
//!
//! **Guarantees.** Whoever has one stored waits for a moment and no longer, whatever the disk does. A record that is late keeps its volume's lock until it is
//! written, so nothing is stored past it; until then [`Late::told`] says so. Commands about one volume come one after the other, so only a
//! late one is ever found under way.

use crate::TargetError;
use bowline_core::VolumeId;
use bowline_host::file::PathLock;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};

type Running = BTreeMap<VolumeId, Instant>;

#[derive(Debug)]
pub(super) struct Late {
    running: Arc<Mutex<Running>>,
    patience: Duration,
}

/// One write that is under way, until it is dropped.
struct Write {
    volume: VolumeId,
    running: Arc<Mutex<Running>>,
    _lock: Arc<PathLock>,
}

impl Drop for Write {
    fn drop(&mut self) {
        lock(&self.running).remove(&self.volume);
    }
}

fn lock(running: &Mutex<Running>) -> MutexGuard<'_, Running> {
    running.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Late {
    pub(super) fn new(patience: Duration) -> Self {
        Self { running: Arc::default(), patience }
    }

    /// Stores something with a volume's lock, and waits for it in vain if the disk does not take it.
    pub(super) fn store(
        &self,
        volume: &VolumeId,
        held: &Arc<PathLock>,
        store: impl FnOnce() + Send + 'static,
    ) {
        lock(&self.running).insert(volume.clone(), Instant::now());
        let running = Arc::clone(&self.running);
        let write = Write { volume: volume.clone(), running, _lock: Arc::clone(held) };
        let (done, stored) = mpsc::channel::<()>();
        let work = move || {
            store();
            drop(write);
            drop(done);
        };
        if let Err(error) = std::thread::Builder::new().name("record".to_owned()).spawn(work) {
            tracing::warn!(%volume, %error, "no thread for a record; it is not stored");
            return;
        }
        // Nothing is ever sent: its end is what is waited for.
        let _ = stored.recv_timeout(self.patience);
    }

    /// What to say of a volume whose disk has not taken a record yet.
    pub(super) fn told(&self, volume: &VolumeId) -> Option<TargetError> {
        let since = lock(&self.running).get(volume)?.elapsed().as_secs();
        tracing::error!(%volume, seconds = since, "its disk does not take a record");
        let error = format!(
            "the disk under volume {volume} has not taken the record of who is shut out for {since} s; until it has, that is not \
             proven, and nobody else is let in"
        );
        Some(TargetError::Refused { error })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bowline_host::file::Sharing;

    #[test]
    fn a_record_that_a_disk_does_not_take_is_told_and_keeps_its_lock() {
        let place = tempfile::tempdir().unwrap();
        let (path, volume) = (place.path().join("lock"), VolumeId::new("v").unwrap());
        let taken = || PathLock::take(&path).unwrap().is_err();
        let late = Late::new(Duration::from_millis(20));
        let held = Arc::new(PathLock::wait(&path, Sharing::Alone, true).unwrap().unwrap());
        let (heal, healed) = mpsc::channel::<()>();
        late.store(&volume, &held, move || {
            let _ = healed.recv();
        });
        drop(held);
        let Some(TargetError::Refused { error }) = late.told(&volume) else { panic!("not told") };
        assert!(error.starts_with("the disk under volume v has not taken the record"), "{error}");
        assert!(late.told(&VolumeId::new("w").unwrap()).is_none());
        assert!(taken(), "nothing is stored past it");
        drop(heal);
        // Whoever waits for the lock gets it when the record is written.
        let held = Arc::new(PathLock::wait(&path, Sharing::Alone, true).unwrap().unwrap());

        let patient = Late::new(Duration::from_secs(60));
        patient.store(&volume, &held, || {});
        assert!(patient.told(&volume).is_none());
        patient.store(&volume, &held, || panic!("a write that ends early is one that is not under way"));
        assert!(patient.told(&volume).is_none());
    }
}
