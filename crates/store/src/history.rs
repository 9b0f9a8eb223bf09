//! The recent changes of a store, from which its watches are fed.
//!
//! A watch has no queue of its own: it is a place in this one history. So a slow one costs no memory, and one
//! that the history has moved past is told so instead of being given a gap.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::StreamExt;
use futures::stream::{self, BoxStream};
use tokio::sync::watch;

use crate::{Event, Kind, Revision, StoreError};

/// How many changes a store keeps for its watches: whichever limit is reached first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HistoryLimits {
    /// At most so many changes.
    pub events: usize,
    /// At most so many bytes of names and values.
    pub bytes: usize,
}

impl Default for HistoryLimits {
    fn default() -> HistoryLimits {
        HistoryLimits { events: 8192, bytes: 32 << 20 }
    }
}

#[derive(Debug)]
pub(crate) struct History {
    log: Arc<Mutex<Log>>,
    /// Wakes the watches. They hold no sender, so they end when the store is dropped.
    news: watch::Sender<()>,
}

#[derive(Debug)]
struct Log {
    limits: HistoryLimits,
    /// Every change after this revision is in `events`.
    floor: Revision,
    events: VecDeque<Event>,
    bytes: usize,
}

impl History {
    /// A history of a store that is now at `revision`, with nothing before it kept.
    pub(crate) fn new(limits: HistoryLimits, revision: Revision) -> History {
        let log = Log { limits, floor: revision, events: VecDeque::new(), bytes: 0 };
        History { log: Arc::new(Mutex::new(log)), news: watch::Sender::new(()) }
    }

    /// Adds changes, in the order of their revisions.
    pub(crate) fn publish(&self, events: impl IntoIterator<Item = Event>) {
        let mut log = locked(&self.log);
        for event in events {
            log.push(event);
        }
        drop(log);
        self.news.send_replace(());
    }

    /// Forgets everything up to `revision`: what happened until then was not seen change by change.
    pub(crate) fn reset(&self, revision: Revision) {
        let mut log = locked(&self.log);
        log.events.clear();
        log.bytes = 0;
        log.floor = revision;
        drop(log);
        self.news.send_replace(());
    }

    /// The changes of `kind` after `from`, now and to come.
    pub(crate) fn follow(
        &self,
        kind: Kind,
        from: Revision,
    ) -> Result<BoxStream<'static, Result<Event, StoreError>>, StoreError> {
        let news = self.news.subscribe();
        if from < locked(&self.log).floor {
            return Err(StoreError::Compacted { kind, from });
        }
        let follower = Follower { log: Arc::clone(&self.log), news, kind, at: from };
        Ok(stream::unfold(Some(follower), |follower| async { follower?.next().await }).boxed())
    }
}

impl Log {
    fn push(&mut self, event: Event) {
        self.bytes += size(&event);
        self.events.push_back(event);
        while self.events.len() > self.limits.events || self.bytes > self.limits.bytes {
            let Some(oldest) = self.events.pop_front() else { break };
            self.bytes -= size(&oldest);
            self.floor = oldest.revision();
        }
    }

    fn after(&self, at: Revision, kind: Kind) -> Result<Option<Event>, StoreError> {
        if at < self.floor {
            return Err(StoreError::Compacted { kind, from: at });
        }
        let start = self.events.partition_point(|event| event.revision() <= at);
        Ok(self.events.range(start..).find(|event| event.key().kind == kind).cloned())
    }
}

struct Follower {
    log: Arc<Mutex<Log>>,
    news: watch::Receiver<()>,
    kind: Kind,
    at: Revision,
}

impl Follower {
    async fn next(mut self) -> Option<(Result<Event, StoreError>, Option<Follower>)> {
        loop {
            self.news.mark_unchanged();
            let found = locked(&self.log).after(self.at, self.kind);
            match found {
                Ok(Some(event)) => {
                    self.at = event.revision();
                    return Some((Ok(event), Some(self)));
                }
                Ok(None) => self.news.changed().await.ok()?,
                Err(compacted) => return Some((Err(compacted), None)),
            }
        }
    }
}

fn size(event: &Event) -> usize {
    let value = match event {
        Event::Put(entry) => entry.value.len(),
        Event::Deleted { .. } => 0,
    };
    // The fixed part stands for the structures around the bytes, so that empty values are not free.
    value + event.key().name.len() + 128
}

fn locked(log: &Mutex<Log>) -> MutexGuard<'_, Log> {
    // Nothing panics while it holds this lock; if something did, the log is still whole.
    log.lock().unwrap_or_else(PoisonError::into_inner)
}
