//! Records that a disk does not take in time.
//!
//! **Guarantees.** Whoever has one stored waits for a moment and no longer, whatever the disk does. A record that is late keeps its volume's lock until it is
//! written, so nothing is stored past it; until then [`Late::told`] says so. Commands about one volume may come together: whoever finds a
//! record of another one under way waits for the lock, and only one that is late is told.

use crate::TargetError;
use bowline_core::VolumeId;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};

/// What is under way, by numbers that nothing else had: each write takes itself out, and no other.
#[derive(Debug, Default)]
struct Running {
    next: u64,
    writes: BTreeMap<u64, (VolumeId, Instant)>,
}

#[derive(Debug)]
pub(super) struct Late {
    running: Arc<Mutex<Running>>,
    patience: Duration,
}

/// One write that is under way, until it is dropped.
struct Write<L> {
    number: u64,
    running: Arc<Mutex<Running>>,
    _lock: Arc<L>,
}

impl<L> Drop for Write<L> {
    fn drop(&mut self) {
        lock(&self.running).writes.remove(&self.number);
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
    pub(super) fn store<L: Send + Sync + 'static>(
        &self,
        volume: &VolumeId,
        held: &Arc<L>,
        store: impl FnOnce() + Send + 'static,
    ) {
        let write = self.begin(volume, held);
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

    fn begin<L>(&self, volume: &VolumeId, held: &Arc<L>) -> Write<L> {
        let mut running = lock(&self.running);
        let number = running.next;
        running.next += 1;
        running.writes.insert(number, (volume.clone(), Instant::now()));
        Write { number, running: Arc::clone(&self.running), _lock: Arc::clone(held) }
    }

    /// What to say of a volume whose disk has not taken a record in time, in words that stay the same.
    pub(super) fn told(&self, volume: &VolumeId) -> Option<TargetError> {
        let longest = {
            let running = lock(&self.running);
            let of_volume = running.writes.values().filter(|(of, _)| of == volume);
            of_volume.map(|(_, since)| since.elapsed()).max()
        };
        let since = longest.filter(|since| *since >= self.patience)?.as_secs();
        tracing::error!(%volume, seconds = since, "its disk does not take a record");
        let error = format!(
            "the disk under volume {volume} has not taken the record of who is shut out for more than {:?}; until it has, that is \
             not proven, and nobody else is let in",
            self.patience
        );
        Some(TargetError::Refused { error })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bowline_host::file::{PathLock, Sharing};

    /// Longer than any test takes.
    const PATIENT: Duration = Duration::from_secs(3600);

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
        let words =
            "the disk under volume v has not taken the record of who is shut out for more than 20ms; ";
        assert!(error.starts_with(words), "{error}");
        assert!(late.told(&VolumeId::new("w").unwrap()).is_none());
        assert!(taken(), "nothing is stored past it");
        drop(heal);
        // Whoever waits for the lock gets it when the record is written.
        let held = Arc::new(PathLock::wait(&path, Sharing::Alone, true).unwrap().unwrap());

        let patient = Late::new(PATIENT);
        patient.store(&volume, &held, || {});
        assert!(patient.told(&volume).is_none());
        patient.store(&volume, &held, || panic!("a write that ends early is one that is not under way"));
        assert!(patient.told(&volume).is_none());
    }

    /// What a second command about the same volume saw, which came while the first one stored its own.
    #[test]
    fn a_record_that_is_just_being_written_is_not_told_as_one_that_a_disk_does_not_take() {
        let place = tempfile::tempdir().unwrap();
        let volume = VolumeId::new("v").unwrap();
        let held = PathLock::wait(&place.path().join("lock"), Sharing::Alone, true).unwrap().unwrap();
        let held = Arc::new(held);
        let patient = Late::new(PATIENT);
        let (go_on, told_to) = mpsc::channel::<()>();
        std::thread::scope(|threads| {
            let (begun, has_begun) = mpsc::channel::<()>();
            let (patient, volume, held) = (&patient, &volume, &held);
            threads.spawn(move || {
                patient.store(volume, held, move || {
                    begun.send(()).unwrap();
                    let _ = told_to.recv();
                });
            });
            has_begun.recv().unwrap();
            assert!(patient.told(volume).is_none(), "it has time left");
            drop(go_on);
        });
    }

    #[test]
    fn of_two_records_of_one_volume_the_end_of_one_does_not_hide_that_the_other_is_late() {
        let place = tempfile::tempdir().unwrap();
        let volume = VolumeId::new("v").unwrap();
        let held = PathLock::wait(&place.path().join("lock"), Sharing::Alone, true).unwrap().unwrap();
        let held = Arc::new(held);
        let late = Late::new(Duration::ZERO);
        let (first, second) = (late.begin(&volume, &held), late.begin(&volume, &held));
        drop(second);
        assert!(late.told(&volume).is_some());
        drop(first);
        assert!(late.told(&volume).is_none());
    }
}
