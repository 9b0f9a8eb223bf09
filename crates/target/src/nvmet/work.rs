//! Work in the kernel that may not come back for as long as a disk does not answer.
//!
//! Each piece of work is about one subsystem and runs in a thread of its own. Whoever asks for it waits for a while and is then told
//! that it is not done; the work goes on, and whoever asks again joins it. A fence that has not come back is never taken for one
//! that has.

use crate::TargetError;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What became of a piece of work: what of it could not be done, if the rest could.
pub(super) type Done<E> = Result<Option<String>, E>;

/// What is being done to a subsystem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Deed {
    Show,
    Hide,
}

/// One piece of work that is under way.
#[derive(Debug)]
pub(super) struct Job {
    /// For people.
    volume: String,
    deed: Deed,
    since: Instant,
    drains: AtomicBool,
    ended: Mutex<Option<Done<String>>>,
    bell: Condvar,
}

impl Job {
    /// Says that the work waits for what is in flight, or does not any more.
    pub(super) fn drains(&self, drains: bool) {
        self.drains.store(drains, Ordering::Relaxed);
    }

    fn wait(&self, until: Instant) -> Option<Done<String>> {
        let mut ended = lock(&self.ended);
        loop {
            if let Some(ended) = ended.as_ref() {
                return Some(ended.clone());
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            let waited = self.bell.wait_timeout(ended, left);
            ended = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// All the work that is under way, by subsystem.
#[derive(Clone, Debug)]
pub(super) struct Work {
    running: Arc<Mutex<BTreeMap<String, Arc<Job>>>>,
    patience: Duration,
}

impl Work {
    pub(super) fn new(patience: Duration) -> Self {
        Self { running: Arc::default(), patience }
    }

    /// Whether something is being done to this subsystem.
    pub(super) fn is_busy(&self, subsystem: &str) -> bool {
        lock(&self.running).contains_key(subsystem)
    }

    /// Whether it is being taken away.
    pub(super) fn is_hiding(&self, subsystem: &str) -> bool {
        lock(&self.running).get(subsystem).is_some_and(|job| job.deed == Deed::Hide)
    }

    /// What to say of a volume whose disk is known not to finish what is in flight, and does not do so now.
    pub(super) fn stuck(&self, volume: &str) -> Option<TargetError> {
        let is_of_it = |job: &&Arc<Job>| job.volume == volume && self.is_stuck(job);
        let job = lock(&self.running).values().find(is_of_it).map(Arc::clone)?;
        let ended = job.wait(Instant::now() + self.patience);
        ended.is_none().then(|| self.told(&job))
    }

    fn is_stuck(&self, job: &Job) -> bool {
        job.drains.load(Ordering::Relaxed) && job.since.elapsed() >= self.patience
    }

    /// Does it, or joins whoever does, and waits for its end as long as there is patience.
    pub(super) fn run<E: Display>(
        &self,
        subsystem: &str,
        volume: &str,
        deed: Deed,
        work: impl FnOnce(&Job) -> Done<E> + Send + 'static,
    ) -> Done<TargetError> {
        let until = Instant::now() + self.patience;
        let job = loop {
            let mut running = lock(&self.running);
            let Some(job) = running.get(subsystem).map(Arc::clone) else {
                break self.begin(&mut running, subsystem, volume, deed, work)?;
            };
            drop(running);
            if job.deed == deed {
                break job;
            }
            // The other way round: one after the other.
            if job.wait(until).is_none() {
                return Err(self.late(&job));
            }
        };
        match job.wait(until) {
            Some(ended) => ended.map_err(|error| TargetError::Unreachable { error }),
            None => Err(self.late(&job)),
        }
    }

    fn begin<E: Display>(
        &self,
        running: &mut BTreeMap<String, Arc<Job>>,
        subsystem: &str,
        volume: &str,
        deed: Deed,
        work: impl FnOnce(&Job) -> Done<E> + Send + 'static,
    ) -> Result<Arc<Job>, TargetError> {
        let job = Arc::new(Job {
            volume: volume.to_owned(),
            deed,
            since: Instant::now(),
            drains: AtomicBool::new(false),
            ended: Mutex::new(None),
            bell: Condvar::new(),
        });
        let (theirs, all, subsystem) = (Arc::clone(&job), Arc::clone(&self.running), subsystem.to_owned());
        running.insert(subsystem.clone(), Arc::clone(&job));
        let key = subsystem.clone();
        let started = std::thread::Builder::new().name("nvmet".to_owned()).spawn(move || {
            let done = catch_unwind(AssertUnwindSafe(|| work(&theirs).map_err(|error| error.to_string())));
            let done = done.unwrap_or_else(|_| Err("the work on it ended early".to_owned()));
            let named = |words: String| format!("the kernel's NVMe target: {words}");
            let done = done.map(|lacking| lacking.map(named)).map_err(named);
            // First out of the list: who is told of the end may begin anew.
            lock(&all).remove(&key);
            *lock(&theirs.ended) = Some(done);
            theirs.bell.notify_all();
        });
        if let Err(error) = started {
            running.remove(&subsystem);
            return Err(TargetError::Unreachable { error: format!("no thread can be started: {error}") });
        }
        Ok(job)
    }

    /// What to say of work that has not ended: what it waits for, if that is known.
    fn late(&self, job: &Job) -> TargetError {
        if self.is_stuck(job) {
            return self.told(job);
        }
        if let Some(culprit) = lock(&self.running).values().find(|other| self.is_stuck(other)) {
            return self.told(culprit);
        }
        let error = format!("the kernel's NVMe target has not answered for {:?}", self.patience);
        TargetError::Unreachable { error }
    }

    /// Not a time-out: the cause is known, and is mended at the target or not at all. How long it has been is told in the log only: what is
    /// another sentence at every look would be written at every look.
    fn told(&self, culprit: &Job) -> TargetError {
        let (volume, since) = (&culprit.volume, culprit.since.elapsed().as_secs());
        tracing::error!(%volume, seconds = since, "its disk does not finish what is in flight; new logins on this target wait");
        let error = format!(
            "the disk under volume {volume} has not finished the writes in flight for more than {:?}; whoever wrote them is not \
             shut out yet, and new logins on this target wait until it has",
            self.patience
        );
        TargetError::Refused { error }
    }
}
