//! A store that lives as long as its process. For tests and for trying things out.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use futures::stream::BoxStream;

use crate::history::{History, HistoryLimits};
use crate::{Entry, Event, Expected, Key, Kind, Page, Revision, Store, StoreError};

/// A [`Store`] in memory.
#[derive(Debug)]
pub struct MemoryStore {
    // Changes are published while this is held, so the history is in the order of the revisions.
    records: Mutex<Records>,
    history: History,
}

#[derive(Debug)]
struct Records {
    revision: Revision,
    entries: BTreeMap<Key, Entry>,
}

impl MemoryStore {
    /// An empty store.
    #[must_use]
    pub fn new() -> MemoryStore {
        MemoryStore::with_history(HistoryLimits::default())
    }

    /// An empty store that keeps so many changes for its watches.
    #[must_use]
    pub fn with_history(limits: HistoryLimits) -> MemoryStore {
        let revision = Revision::new(0);
        MemoryStore {
            records: Mutex::new(Records { revision, entries: BTreeMap::new() }),
            history: History::new(limits, revision),
        }
    }

    fn records(&self) -> MutexGuard<'_, Records> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for MemoryStore {
    fn default() -> MemoryStore {
        MemoryStore::new()
    }
}

impl Records {
    fn expect(&self, key: &Key, expected: Expected) -> Result<(), StoreError> {
        let current = self.entries.get(key).map(|entry| entry.revision);
        if expected.matches(current) {
            return Ok(());
        }
        Err(StoreError::Conflict { key: key.clone(), current })
    }

    fn advance(&mut self) -> Revision {
        self.revision = Revision::new(self.revision.number() + 1);
        self.revision
    }
}

#[async_trait]
impl Store for MemoryStore {
    async fn get(&self, key: &Key) -> Result<Option<Entry>, StoreError> {
        Ok(self.records().entries.get(key).cloned())
    }

    async fn list(&self, kind: Kind, after: Option<&str>, limit: usize) -> Result<Page, StoreError> {
        let limit = limit.max(1);
        let start = match after {
            Some(name) => Bound::Excluded(Key::new(kind, name)),
            None => Bound::Included(Key::new(kind, "")),
        };
        let records = self.records();
        let mut rest = records
            .entries
            .range((start, Bound::Unbounded))
            .map(|(_, entry)| entry)
            .filter(|e| e.key.kind == kind);
        let entries: Vec<Entry> = rest.by_ref().take(limit).cloned().collect();
        let next = rest.next().and(entries.last()).map(|last| last.key.name.clone());
        Ok(Page { entries, next, revision: records.revision })
    }

    async fn watch(
        &self,
        kind: Kind,
        from: Revision,
    ) -> Result<BoxStream<'static, Result<Event, StoreError>>, StoreError> {
        if from > self.records().revision {
            return Err(StoreError::Compacted { kind, from });
        }
        self.history.follow(kind, from)
    }

    async fn put(&self, key: &Key, value: Vec<u8>, expected: Expected) -> Result<Revision, StoreError> {
        let mut records = self.records();
        records.expect(key, expected)?;
        let revision = records.advance();
        let entry = Entry { key: key.clone(), value, revision };
        records.entries.insert(key.clone(), entry.clone());
        self.history.publish([Event::Put(entry)]);
        Ok(revision)
    }

    async fn delete(&self, key: &Key, expected: Revision) -> Result<(), StoreError> {
        let mut records = self.records();
        records.expect(key, Expected::At(expected))?;
        let revision = records.advance();
        records.entries.remove(key);
        self.history.publish([Event::Deleted { key: key.clone(), revision }]);
        Ok(())
    }
}
