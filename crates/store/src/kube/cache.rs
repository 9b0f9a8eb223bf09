//! The ledgers, kept in memory by a list and a watch, so that looking at an idle volume costs no request.
//!
//! # Why it is safe
//!
//! What is shown here may be old. Nobody is let in by that: whatever lets somebody in, or shuts somebody out, is a
//! compare-and-swap against the API server that names the revision shown here, and it fails if that is not the latest.
//! An old ledger costs a conflict and a look at the real one; it never decides anything.
//!
//! # When it is not asked
//!
//! - A record that it does not show: that proves nothing, so the API server is read.
//! - After a conflict: the record is forgotten before the error is told, and what the API server shows instead is learned.
//! - After a write whose fate nobody knows: the record is forgotten, until a read or a later change tells.
//! - While its watch is broken, and until it has been filled.
//!
//! # How it stays small and right
//!
//! One rule: of what is known of a record, the newest revision counts. So it does not matter in which order answers and
//! events arrive. Each event costs one look into a map.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::follow::{Follow, Signal};
use super::pages::{self, Tokens};
use super::request::{Api, Pause};
use crate::{Entry, Event, Key, Kind, Revision, StoreError};

#[derive(Default)]
pub(crate) struct LedgerCache(Mutex<Known>);

#[derive(Default)]
struct Known {
    /// Whether the watch is being heard and everything was read once.
    live: bool,
    ledgers: BTreeMap<String, Newest>,
    bytes: usize,
}

/// The newest that is known of a record.
struct Newest {
    revision: Revision,
    /// `None`: it is not there, or nobody knows; read it.
    value: Option<Vec<u8>>,
}

impl LedgerCache {
    pub(crate) fn get(&self, name: &str) -> Option<Entry> {
        let known = self.locked();
        let newest = known.ledgers.get(name).filter(|_| known.live)?;
        let value = newest.value.clone()?;
        Some(Entry { key: Key::new(Kind::Ledger, name), value, revision: newest.revision })
    }

    pub(crate) fn put(&self, entry: Entry) {
        self.locked().set(entry.key.name, entry.revision, Some(entry.value));
    }

    /// The record was deleted at this revision. Kept until the watch has seen it too, which may still show it before.
    pub(crate) fn gone(&self, name: &str, revision: Revision) {
        self.locked().set(name.to_owned(), revision, None);
    }

    /// Nobody knows what the record is now; what comes later than what was known will tell.
    pub(crate) fn doubt(&self, name: &str) {
        let mut known = self.locked();
        if let Some(newest) = known.ledgers.get_mut(name) {
            let freed = newest.value.take().map_or(0, |value| value.len());
            known.bytes -= freed;
        }
    }

    pub(crate) fn size(&self) -> (usize, usize) {
        let known = self.locked();
        let names: usize = known.ledgers.keys().map(String::len).sum();
        // A map's entry, a revision, two headers of allocations.
        (known.ledgers.len(), known.bytes + names + known.ledgers.len() * 96)
    }

    fn apply(&self, event: Event) {
        match event {
            Event::Put(entry) => self.put(entry),
            Event::Deleted { key, revision } => {
                let mut known = self.locked();
                if known.ledgers.get(&key.name).is_some_and(|newest| newest.revision <= revision) {
                    known.remove(&key.name);
                }
            }
        }
    }

    /// What the API server listed: whatever is newer than the list was learned otherwise, and stays.
    fn fill(&self, listed: BTreeMap<String, Entry>, revision: Revision) {
        let mut known = self.locked();
        let stale = known
            .ledgers
            .iter()
            .filter(|(name, newest)| !listed.contains_key(*name) && newest.revision <= revision);
        for name in stale.map(|(name, _)| name.clone()).collect::<Vec<_>>() {
            known.remove(&name);
        }
        for (name, entry) in listed {
            known.set(name, entry.revision, Some(entry.value));
        }
        known.live = true;
    }

    fn heard(&self, live: bool) {
        self.locked().live = live;
    }

    fn locked(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    fn set(&mut self, name: String, revision: Revision, value: Option<Vec<u8>>) {
        let newest = self.ledgers.entry(name).or_insert(Newest { revision, value: None });
        if newest.revision > revision {
            return;
        }
        self.bytes += value.as_ref().map_or(0, Vec::len);
        self.bytes -= newest.value.as_ref().map_or(0, Vec::len);
        *newest = Newest { revision, value };
    }

    fn remove(&mut self, name: &str) {
        if let Some(newest) = self.ledgers.remove(name) {
            self.bytes -= newest.value.map_or(0, |value| value.len());
        }
    }
}

/// Keeps the cache filled, for ever.
pub(crate) async fn feed(api: Arc<Api>, cache: Arc<LedgerCache>) {
    let mut pause = Pause::new();
    loop {
        if let Err(error) = follow(&api, &cache).await {
            tracing::warn!(%error, "the ledgers cannot be followed; reading them one by one until they can");
        }
        cache.heard(false);
        pause.wait().await;
    }
}

async fn follow(api: &Arc<Api>, cache: &LedgerCache) -> Result<(), StoreError> {
    let (tokens, mut listed, mut after, mut first) = (Tokens::default(), BTreeMap::new(), None, None);
    let from = loop {
        let page = pages::list(api, &tokens, Kind::Ledger, after.as_deref(), usize::MAX).await?;
        let from = *first.get_or_insert(page.revision);
        listed.extend(page.entries.into_iter().map(|entry| (entry.key.name.clone(), entry)));
        after = page.next;
        if after.is_none() {
            break from;
        }
    };
    let mut follow = Follow::open(Arc::clone(api), Kind::Ledger, from).await?;
    cache.fill(listed, from);
    loop {
        match follow.next().await {
            Signal::Event(event) => cache.apply(event),
            Signal::Alive => cache.heard(true),
            Signal::Broken => cache.heard(false),
            Signal::Compacted(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &str, revision: u64, value: &[u8]) -> Entry {
        let key = Key::new(Kind::Ledger, name);
        Entry { key, value: value.to_vec(), revision: Revision::new(revision) }
    }

    fn shown(cache: &LedgerCache) -> Option<(u64, Vec<u8>)> {
        cache.get("a").map(|entry| (entry.revision.number(), entry.value))
    }

    fn deleted(revision: u64) -> Event {
        Event::Deleted { key: Key::new(Kind::Ledger, "a"), revision: Revision::new(revision) }
    }

    fn live() -> LedgerCache {
        let cache = LedgerCache::default();
        cache.fill(BTreeMap::from([("a".to_owned(), entry("a", 5, b"five"))]), Revision::new(7));
        cache
    }

    #[test]
    fn nothing_is_shown_before_it_is_filled_or_while_its_watch_is_broken() {
        let cache = LedgerCache::default();
        cache.put(entry("a", 5, b"five"));
        assert_eq!(shown(&cache), None);
        cache.fill(BTreeMap::new(), Revision::new(4));
        assert_eq!(shown(&cache), Some((5, b"five".to_vec())), "newer than the list");
        cache.heard(false);
        assert_eq!(shown(&cache), None);
        cache.heard(true);
        assert!(shown(&cache).is_some());
        cache.fill(BTreeMap::new(), Revision::new(9));
        assert_eq!(shown(&cache), None, "older than a list that does not have it");
    }

    #[test]
    fn the_newest_counts_in_whatever_order_it_comes() {
        let cache = live();
        cache.put(entry("a", 9, b"nine"));
        cache.apply(Event::Put(entry("a", 8, b"eight")));
        assert_eq!(shown(&cache), Some((9, b"nine".to_vec())), "an echo of an earlier write");
        cache.apply(deleted(6));
        assert!(shown(&cache).is_some(), "deleted before it was made again");
        cache.apply(deleted(10));
        assert_eq!(shown(&cache), None);
    }

    #[test]
    fn what_was_deleted_here_is_not_shown_again_by_a_watch_that_lags() {
        let cache = live();
        cache.gone("a", Revision::new(10));
        cache.apply(Event::Put(entry("a", 8, b"eight")));
        assert_eq!(shown(&cache), None);
        cache.apply(deleted(10));
        assert_eq!(cache.size().0, 0, "nothing is left of it once the watch has seen it");
        cache.apply(Event::Put(entry("a", 12, b"again")));
        assert_eq!(shown(&cache), Some((12, b"again".to_vec())));
    }

    #[test]
    fn what_is_in_doubt_is_read_until_something_later_is_known() {
        let cache = live();
        cache.doubt("a");
        assert_eq!(shown(&cache), None);
        cache.apply(Event::Put(entry("a", 4, b"four")));
        assert_eq!(shown(&cache), None, "earlier than what was known");
        cache.put(entry("a", 5, b"five"));
        assert_eq!(shown(&cache), Some((5, b"five".to_vec())), "a live read that shows it unchanged");
        cache.doubt("a");
        cache.apply(Event::Put(entry("a", 6, b"six")));
        assert_eq!(shown(&cache), Some((6, b"six".to_vec())));
    }

    #[test]
    fn bytes_are_counted() {
        let cache = live();
        let (_, before) = cache.size();
        cache.put(entry("a", 8, &[0; 1000]));
        assert_eq!(cache.size(), (1, before + 1000 - 4));
        cache.doubt("a");
        cache.doubt("a");
        cache.apply(deleted(9));
        assert_eq!(cache.size(), (0, 0));
    }
}
