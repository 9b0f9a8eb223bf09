//! The ledgers and the volumes, each kept in memory by a list and a watch, so that looking at a volume costs no request, and a start
//! lists everything once.
//!
//! # Why it is safe
//!
//! What is shown here may be old. Nobody is let in by that: whatever lets somebody in, or shuts somebody out, is a
//! compare-and-swap against the API server that names the revision shown here, and it fails if that is not the latest.
//! An old record costs a conflict and a look at the real one; it never decides anything.
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

use std::collections::{BTreeMap, HashSet};
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

use super::follow::{Follow, Signal};
use super::pages::{self, Tokens};
use super::request::{Api, Pause};
use crate::{Entry, Event, Key, Kind, Page, Revision, StoreError};

/// How long somebody who could do with what is remembered waits for the first filling.
const FILLING: Duration = Duration::from_secs(60);

pub(crate) struct Cache {
    kind: Kind,
    known: Mutex<Known>,
    begun: watch::Sender<Begun>,
}

/// How far the first filling has come.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Begun {
    No,
    Filled,
    /// Whoever waits for it asks the API server instead.
    Failed,
}

struct Known {
    /// Whether the watch is being heard and everything was read once.
    live: bool,
    /// Everything up to here is known.
    at: Revision,
    records: BTreeMap<String, Newest>,
    bytes: usize,
}

/// The newest that is known of a record.
struct Newest {
    revision: Revision,
    /// `None`: it is not there, or nobody knows; read it.
    value: Option<Box<[u8]>>,
}

impl Newest {
    fn entry(&self, kind: Kind, name: &str) -> Option<Entry> {
        let value = self.value.as_ref()?.to_vec();
        Some(Entry { key: Key::new(kind, name), value, revision: self.revision })
    }
}

impl Cache {
    pub(crate) fn new(kind: Kind) -> Cache {
        let known = Known { live: false, at: Revision::new(0), records: BTreeMap::new(), bytes: 0 };
        Cache { kind, known: Mutex::new(known), begun: watch::Sender::new(Begun::No) }
    }

    pub(crate) fn get(&self, name: &str) -> Option<Entry> {
        let known = self.locked();
        known.records.get(name).filter(|_| known.live)?.entry(self.kind, name)
    }

    /// A part of what is known, as a listing; `None` where the API server must be asked. Whoever comes early waits for the first
    /// filling: to list beside it would do everything twice.
    pub(crate) async fn page(&self, after: Option<&str>, limit: usize) -> Option<Page> {
        let mut begun = self.begun.subscribe();
        let filled = begun.wait_for(|begun| *begun != Begun::No);
        if !matches!(tokio::time::timeout(FILLING, filled).await, Ok(Ok(_))) {
            return None;
        }
        let known = self.locked();
        // One that nobody knows must be read, not left out.
        if !known.live || known.records.values().any(|newest| newest.value.is_none()) {
            return None;
        }
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut rest = known.records.range::<str, _>((from, Bound::Unbounded));
        let entries: Vec<Entry> = rest
            .by_ref()
            .filter_map(|(name, newest)| newest.entry(self.kind, name))
            .take(limit.max(1))
            .collect();
        let next = rest.next().and(entries.last()).map(|last| last.key.name.clone());
        Some(Page { entries, next, revision: known.at })
    }

    pub(crate) fn put(&self, entry: Entry) {
        self.locked().set(entry.key.name, entry.revision, Some(entry.value.into()));
    }

    /// The record was deleted at this revision. Kept until the watch has seen it too, which may still show it before.
    pub(crate) fn gone(&self, name: &str, revision: Revision) {
        self.locked().set(name.to_owned(), revision, None);
    }

    /// Nobody knows what the record is now; what comes later than what was known will tell.
    pub(crate) fn doubt(&self, name: &str) {
        let mut known = self.locked();
        if let Some(newest) = known.records.get_mut(name) {
            let freed = newest.value.take().map_or(0, |value| value.len());
            known.bytes -= freed;
        }
    }

    pub(crate) fn size(&self) -> (usize, usize) {
        let known = self.locked();
        let names: usize = known.records.keys().map(String::len).sum();
        // A map's entry, a revision, two headers of allocations.
        (known.records.len(), known.bytes + names + known.records.len() * 96)
    }

    fn apply(&self, event: Event) {
        let revision = event.revision();
        let mut known = self.locked();
        match event {
            Event::Put(entry) => known.set(entry.key.name, revision, Some(entry.value.into())),
            Event::Deleted { key, .. } => {
                if known.records.get(&key.name).is_some_and(|newest| newest.revision <= revision) {
                    known.remove(&key.name);
                }
            }
        }
        known.at = known.at.max(revision);
    }

    /// The API server has listed everything, and these are all the names: whatever is newer than the list was learned otherwise, and
    /// stays.
    fn fill(&self, listed: &HashSet<String>, revision: Revision) {
        let mut known = self.locked();
        let stale = known
            .records
            .iter()
            .filter(|(name, newest)| !listed.contains(*name) && newest.revision <= revision);
        for name in stale.map(|(name, _)| name.clone()).collect::<Vec<_>>() {
            known.remove(&name);
        }
        known.at = revision;
        known.live = true;
        self.begun.send_replace(Begun::Filled);
    }

    fn heard(&self, live: bool) {
        self.locked().live = live;
        if !live {
            self.begun.send_if_modified(|begun| {
                let first = *begun == Begun::No;
                if first {
                    *begun = Begun::Failed;
                }
                first
            });
        }
    }

    fn locked(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    fn set(&mut self, name: String, revision: Revision, value: Option<Box<[u8]>>) {
        let newest = self.records.entry(name).or_insert(Newest { revision, value: None });
        if newest.revision > revision {
            return;
        }
        self.bytes += value.as_ref().map_or(0, |value| value.len());
        self.bytes -= newest.value.as_ref().map_or(0, |value| value.len());
        *newest = Newest { revision, value };
    }

    fn remove(&mut self, name: &str) {
        if let Some(newest) = self.records.remove(name) {
            self.bytes -= newest.value.map_or(0, |value| value.len());
        }
    }
}

/// Keeps the cache filled, for ever.
pub(crate) async fn feed(api: Arc<Api>, cache: Arc<Cache>) {
    let mut pause = Pause::new();
    loop {
        if let Err(error) = follow(&api, &cache).await {
            let kind = cache.kind;
            tracing::warn!(%kind, %error, "records cannot be followed; reading them one by one until they can");
        }
        cache.heard(false);
        pause.wait().await;
    }
}

async fn follow(api: &Arc<Api>, cache: &Cache) -> Result<(), StoreError> {
    let (tokens, mut listed, mut after, mut first) = (Tokens::default(), HashSet::new(), None, None);
    let from = loop {
        let page = pages::list(api, &tokens, cache.kind, after.as_deref(), usize::MAX).await?;
        let from = *first.get_or_insert(page.revision);
        for entry in page.entries {
            listed.insert(entry.key.name.clone());
            cache.put(entry);
        }
        after = page.next;
        if after.is_none() {
            break from;
        }
    };
    let mut follow = Follow::open(Arc::clone(api), cache.kind, from).await?;
    cache.fill(&listed, from);
    drop(listed);
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

    fn shown(cache: &Cache) -> Option<(u64, Vec<u8>)> {
        cache.get("a").map(|entry| (entry.revision.number(), entry.value))
    }

    fn deleted(revision: u64) -> Event {
        Event::Deleted { key: Key::new(Kind::Ledger, "a"), revision: Revision::new(revision) }
    }

    fn names(names: &[&str]) -> HashSet<String> {
        names.iter().map(ToString::to_string).collect()
    }

    fn live() -> Cache {
        let cache = Cache::new(Kind::Ledger);
        cache.put(entry("a", 5, b"five"));
        cache.fill(&names(&["a"]), Revision::new(7));
        cache
    }

    async fn page(
        cache: &Cache,
        after: Option<&str>,
        limit: usize,
    ) -> Option<(Vec<String>, Option<String>, u64)> {
        let page = cache.page(after, limit).await?;
        let names = page.entries.into_iter().map(|entry| entry.key.name).collect();
        Some((names, page.next, page.revision.number()))
    }

    #[tokio::test]
    async fn what_is_known_is_listed_in_pages_and_what_is_not_is_left_to_the_server() {
        let cache = Cache::new(Kind::Ledger);
        for name in ["a", "b", "c"] {
            cache.put(entry(name, 5, b"x"));
        }
        let early = tokio::spawn({
            let cache = Arc::new(Cache::new(Kind::Ledger));
            let failing = Arc::clone(&cache);
            tokio::spawn(async move { failing.heard(false) });
            async move { cache.page(None, 9).await.is_none() }
        });
        assert!(early.await.unwrap(), "nobody waits for a filling that failed");
        cache.fill(&names(&["a", "b", "c"]), Revision::new(7));
        let all = |names: &[&str], next: Option<&str>| {
            Some((names.iter().map(ToString::to_string).collect(), next.map(str::to_owned), 7))
        };
        assert_eq!(page(&cache, None, 2).await, all(&["a", "b"], Some("b")));
        assert_eq!(page(&cache, Some("b"), 2).await, all(&["c"], None));
        assert_eq!(page(&cache, Some("c"), 0).await, all(&[], None));
        cache.apply(Event::Put(entry("d", 9, b"y")));
        assert_eq!(page(&cache, Some("c"), 1).await.unwrap().2, 9, "everything up to there is shown");
        cache.doubt("b");
        assert_eq!(page(&cache, None, 2).await, None);
        cache.put(entry("b", 10, b"z"));
        assert!(page(&cache, None, 2).await.is_some());
        cache.heard(false);
        assert_eq!(page(&cache, None, 2).await, None);
    }

    #[test]
    fn nothing_is_shown_before_it_is_filled_or_while_its_watch_is_broken() {
        let cache = Cache::new(Kind::Ledger);
        cache.put(entry("a", 5, b"five"));
        assert_eq!(shown(&cache), None);
        cache.fill(&names(&[]), Revision::new(4));
        assert_eq!(shown(&cache), Some((5, b"five".to_vec())), "newer than the list");
        cache.heard(false);
        assert_eq!(shown(&cache), None);
        cache.heard(true);
        assert!(shown(&cache).is_some());
        cache.fill(&names(&[]), Revision::new(9));
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
