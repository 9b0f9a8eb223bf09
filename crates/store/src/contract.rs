//! The suite every adapter passes, one test per row:
//!
//! ```text
//! async fn make() -> Fixture { … }
//! bowline_store::contract!(memory, make);
//! ```
//!
//! For tests only: a row panics where it finds a fault.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed row is a failed test")]

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::BoxStream;
use futures::{FutureExt, StreamExt};

use crate::{Entry, Event, Expected, Key, Kind, Page, Revision, Store, StoreError};

/// An empty store to try.
pub struct Fixture {
    /// The store.
    pub store: Arc<dyn Store>,
    /// How many changes it keeps for its watches at most.
    pub history: usize,
    /// How many callers may come at once: a store across a network takes longer for each.
    pub crowd: usize,
    /// What must live as long as the store, such as its directory.
    pub keep: Box<dyn Any + Send>,
}

/// Makes a module of tests: every row on a store of its own, made by an async function that returns a
/// [`Fixture`].
#[macro_export]
macro_rules! contract {
    ($module:ident, $make:expr) => {
        mod $module {
            use super::*;
            $crate::contract!(@rows $make;
                what_was_put_is_read
                what_was_never_put_is_absent
                expectations_are_kept
                a_conflict_writes_nothing
                revisions_only_rise
                a_record_made_again_is_another_one
                odd_names_are_names
                values_of_any_size_are_kept
                pages_cover_everything_in_order
                a_limit_of_zero_counts_as_one
                a_listing_is_stable_while_others_write
                a_watch_shows_every_change_in_order
                a_watch_from_a_page_misses_nothing
                a_watch_from_the_future_is_compacted
                a_watch_from_too_long_ago_is_compacted
                a_slow_watch_is_compacted_and_not_given_a_gap
                concurrent_increments_lose_none
                of_concurrent_creators_one_wins
                a_dropped_put_happens_wholly_or_not_at_all
            );
        }
    };
    (@rows $make:expr; $($row:ident)*) => {
        $(#[test] fn $row() { $crate::contract::run($make, $crate::contract::$row); })*
    };
}

/// Runs one row on a new store, with a limit on its time.
pub fn run<M: Future<Output = Fixture>, R: Future<Output = ()>>(
    make: impl FnOnce() -> M,
    row: impl FnOnce(Fixture) -> R,
) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let limited =
        async { tokio::time::timeout(Duration::from_secs(120), async { row(make().await).await }).await };
    runtime.block_on(limited).expect("the row takes too long");
}

fn key(name: &str) -> Key {
    Key::new(Kind::Ledger, name)
}

async fn create(store: &dyn Store, name: &str, value: &[u8]) -> Revision {
    store.put(&key(name), value.to_vec(), Expected::Absent).await.unwrap()
}

async fn value(store: &dyn Store, name: &str) -> Option<Vec<u8>> {
    store.get(&key(name)).await.unwrap().map(|entry| entry.value)
}

async fn first_page(store: &dyn Store) -> Page {
    store.list(Kind::Ledger, None, 1000).await.unwrap()
}

type Watch = BoxStream<'static, Result<Event, StoreError>>;

async fn take(watch: &mut Watch, count: usize) -> Vec<Event> {
    watch.take(count).map(Result::unwrap).collect().await
}

/// So many changes. A store may show a record again that did not change; that is none.
async fn changes(watch: &mut Watch, mut known: Option<Vec<u8>>, count: usize) -> Vec<Event> {
    let mut changes = Vec::new();
    while changes.len() < count {
        let event = watch.next().await.unwrap().unwrap();
        let value = match &event {
            Event::Put(entry) => Some(entry.value.clone()),
            Event::Deleted { .. } => None,
        };
        if value != known {
            known = value;
            changes.push(event);
        }
    }
    changes
}

fn assert_conflict<T: std::fmt::Debug>(result: Result<T, StoreError>, current: Option<Revision>) {
    let error = result.unwrap_err();
    assert!(error.outcome_known(), "{error}");
    let StoreError::Conflict { current: found, .. } = error else { panic!("not a conflict: {error}") };
    assert_eq!(found, current);
}

#[allow(missing_docs, reason = "the names of the rows say what they check")]
mod rows {
    use super::*;

    pub async fn what_was_put_is_read(f: Fixture) {
        let store = &*f.store;
        let first = create(store, "db-0", b"one").await;
        let entry = Entry { key: key("db-0"), value: b"one".to_vec(), revision: first };
        assert_eq!(store.get(&key("db-0")).await.unwrap(), Some(entry.clone()));
        assert_eq!(first_page(store).await.entries, vec![entry]);
        let second = store.put(&key("db-0"), b"two".to_vec(), Expected::At(first)).await.unwrap();
        assert_eq!(value(store, "db-0").await.unwrap(), b"two");
        store.delete(&key("db-0"), second).await.unwrap();
        assert_eq!(value(store, "db-0").await, None);
        assert_eq!(first_page(store).await.entries, vec![]);
    }

    pub async fn what_was_never_put_is_absent(f: Fixture) {
        assert_eq!(f.store.get(&key("db-0")).await.unwrap(), None);
        let page = first_page(&*f.store).await;
        assert_eq!((page.entries, page.next), (vec![], None));
    }

    pub async fn expectations_are_kept(f: Fixture) {
        let store = &*f.store;
        let put = |name, expected| async move { store.put(&key(name), b"new".to_vec(), expected).await };
        let never = create(store, "other", b"").await;

        assert_conflict(put("db-0", Expected::At(never)).await, None);
        assert_conflict(store.delete(&key("db-0"), never).await, None);
        let first = put("db-0", Expected::Absent).await.unwrap();
        assert_conflict(put("db-0", Expected::Absent).await, Some(first));
        assert_conflict(put("db-0", Expected::At(never)).await, Some(first));
        assert_conflict(store.delete(&key("db-0"), never).await, Some(first));
        let second = put("db-0", Expected::At(first)).await.unwrap();
        assert_conflict(put("db-0", Expected::At(first)).await, Some(second));
        assert_conflict(store.delete(&key("db-0"), first).await, Some(second));
        store.delete(&key("db-0"), second).await.unwrap();
        assert_conflict(store.delete(&key("db-0"), second).await, None);
    }

    pub async fn a_conflict_writes_nothing(f: Fixture) {
        let store = &*f.store;
        let first = create(store, "db-0", b"kept").await;
        let before = first_page(store).await;
        let mut watch = store.watch(Kind::Ledger, before.revision).await.unwrap();
        assert_conflict(store.put(&key("db-0"), b"lost".to_vec(), Expected::Absent).await, Some(first));
        assert_conflict(store.put(&key("db-1"), b"lost".to_vec(), Expected::At(first)).await, None);
        assert_conflict(store.delete(&key("db-1"), first).await, None);
        // What others write elsewhere may raise the revision of a page; it is the records that must be the same.
        assert_eq!(first_page(store).await.entries, before.entries);
        let next = create(store, "db-2", b"").await;
        assert_eq!(take(&mut watch, 1).await[0].revision(), next);
    }

    pub async fn revisions_only_rise(f: Fixture) {
        let store = &*f.store;
        let mut last = first_page(store).await.revision;
        for round in 0..5_u8 {
            for name in ["b", "a"] {
                let current = store.get(&key(name)).await.unwrap();
                let expected = current.map_or(Expected::Absent, |entry| Expected::At(entry.revision));
                let next = store.put(&key(name), vec![round], expected).await.unwrap();
                assert!(next > last, "{next} after {last}");
                assert_eq!(store.get(&key(name)).await.unwrap().unwrap().revision, next);
                last = next;
            }
        }
        assert!(first_page(store).await.revision >= last);
    }

    pub async fn a_record_made_again_is_another_one(f: Fixture) {
        let store = &*f.store;
        let first = create(store, "db-0", b"same").await;
        store.delete(&key("db-0"), first).await.unwrap();
        let again = create(store, "db-0", b"same").await;
        assert!(again > first);
        assert_conflict(store.put(&key("db-0"), b"late".to_vec(), Expected::At(first)).await, Some(again));
        assert_conflict(store.delete(&key("db-0"), first).await, Some(again));
        assert_eq!(value(store, "db-0").await.unwrap(), b"same");
    }

    pub async fn odd_names_are_names(f: Fixture) {
        let store = &*f.store;
        let long = "n".repeat(4096);
        let names = [
            "",
            " ",
            "a",
            "A",
            "a/b",
            "a\0b",
            "../up",
            "ledger/x",
            "é",
            "e\u{301}",
            "名前",
            "🪢",
            "\u{feff}x",
            "\u{10ffff}",
            "line\nbreak",
            "\"quoted\"",
            "\u{202e}rtl",
            &long,
        ];
        for name in names {
            create(store, name, name.as_bytes()).await;
        }
        for name in names {
            assert_eq!(value(store, name).await.as_deref(), Some(name.as_bytes()), "{name:?}");
        }
        let mut sorted = names.map(str::as_bytes);
        sorted.sort_unstable();
        assert_eq!(names_by_page(store, 4).await, sorted.map(<[u8]>::to_vec));
    }

    async fn names_by_page(store: &dyn Store, limit: usize) -> Vec<Vec<u8>> {
        let mut names = Vec::new();
        let mut after: Option<String> = None;
        loop {
            let page = store.list(Kind::Ledger, after.as_deref(), limit).await.unwrap();
            assert!(page.entries.len() <= limit);
            names.extend(page.entries.into_iter().map(|entry| entry.key.name.into_bytes()));
            match page.next {
                Some(next) => after = Some(next),
                None => return names,
            }
        }
    }

    pub async fn values_of_any_size_are_kept(f: Fixture) {
        let store = &*f.store;
        let large: Vec<u8> = (0..1_u32 << 20).map(|n| (n % 251) as u8).collect();
        for (name, bytes) in
            [("empty", vec![]), ("zero", vec![0]), ("not-utf-8", vec![0xff, 0xfe]), ("large", large)]
        {
            create(store, name, &bytes).await;
            assert_eq!(value(store, name).await.as_deref(), Some(&*bytes), "{name}");
        }
    }

    pub async fn pages_cover_everything_in_order(f: Fixture) {
        let store = &*f.store;
        let names: BTreeSet<Vec<u8>> = (0..12).map(|n| format!("db-{n}").into_bytes()).collect();
        for name in names.iter().rev() {
            create(store, std::str::from_utf8(name).unwrap(), b"").await;
        }
        for limit in [1, 2, 5, 11, 12, 13, usize::MAX] {
            assert_eq!(
                names_by_page(store, limit).await,
                names.iter().cloned().collect::<Vec<_>>(),
                "{limit}"
            );
        }
        let exact = store.list(Kind::Ledger, None, 12).await.unwrap();
        assert_eq!(exact.next, None, "a page that holds the last record is the last page");
        let rest = store.list(Kind::Ledger, Some("db-3-was-never-there"), 2).await.unwrap();
        assert_eq!(rest.entries[0].key.name, "db-4");
    }

    pub async fn a_limit_of_zero_counts_as_one(f: Fixture) {
        create(&*f.store, "a", b"").await;
        create(&*f.store, "b", b"").await;
        let page = f.store.list(Kind::Ledger, None, 0).await.unwrap();
        assert_eq!((page.entries.len(), page.next.as_deref()), (1, Some("a")));
    }

    pub async fn a_listing_is_stable_while_others_write(f: Fixture) {
        let store = &f.store;
        for n in 0..40 {
            create(&**store, &format!("stay-{n:02}"), b"").await;
            create(&**store, &format!("go-{n:02}"), b"").await;
        }
        let writer = tokio::spawn({
            let store = Arc::clone(store);
            async move {
                for n in 0..40 {
                    create(&*store, &format!("stay-{n:02}-new"), b"").await;
                    let gone = store.get(&key(&format!("go-{n:02}"))).await.unwrap().unwrap();
                    store.delete(&gone.key, gone.revision).await.unwrap();
                }
            }
        });
        let mut shown = Vec::new();
        let mut after: Option<String> = None;
        for n in 0.. {
            let page = store.list(Kind::Ledger, after.as_deref(), 3).await.unwrap();
            shown.extend(page.entries.into_iter().map(|entry| entry.key.name));
            // Whatever the writer's pace is: one write before every page, on both sides of it.
            create(&**store, &format!("a-{n:03}"), b"").await;
            create(&**store, &format!("z-{n:03}"), b"").await;
            match page.next {
                Some(next) if n < 200 => after = Some(next),
                _ => break,
            }
        }
        writer.await.unwrap();
        assert!(shown.is_sorted_by(|one, two| one < two), "{shown:?}");
        let stayed = shown.iter().filter(|name| name.len() == "stay-00".len() && name.starts_with("stay-"));
        assert_eq!(stayed.count(), 40, "{shown:?}");
    }

    pub async fn a_watch_shows_every_change_in_order(f: Fixture) {
        let store = &*f.store;
        let start = first_page(store).await.revision;
        let mut early = store.watch(Kind::Ledger, start).await.unwrap();
        let first = create(store, "db-0", b"one").await;
        let second = store.put(&key("db-0"), b"two".to_vec(), Expected::At(first)).await.unwrap();
        store.delete(&key("db-0"), second).await.unwrap();
        let again = create(store, "db-0", b"three").await;

        let put =
            |value: &[u8], revision| Event::Put(Entry { key: key("db-0"), value: value.to_vec(), revision });
        let seen = changes(&mut early, None, 4).await;
        let deleted = seen[2].revision();
        assert!(second < deleted && deleted < again);
        let expected = vec![
            put(b"one", first),
            put(b"two", second),
            Event::Deleted { key: key("db-0"), revision: deleted },
            put(b"three", again),
        ];
        assert_eq!(seen, expected);
        assert!(early.next().now_or_never().is_none(), "there is no fifth change");

        let mut late = store.watch(Kind::Ledger, start).await.unwrap();
        assert_eq!(changes(&mut late, None, 4).await, expected, "a watch that starts late sees the same");
        let mut middle = store.watch(Kind::Ledger, second).await.unwrap();
        let after = changes(&mut middle, Some(b"two".to_vec()), 2).await;
        assert_eq!(after, expected[2..], "a watch starts after its revision");
    }

    pub async fn a_watch_from_a_page_misses_nothing(f: Fixture) {
        let writer = tokio::spawn({
            let store = Arc::clone(&f.store);
            async move {
                for n in 0..60_u8 {
                    create(&*store, &format!("db-{n:02}"), &[n]).await;
                }
            }
        });
        let mut known = BTreeMap::new();
        let first = f.store.list(Kind::Ledger, None, 2).await.unwrap();
        let mut next = first.next;
        known.extend(first.entries.into_iter().map(|entry| (entry.key, entry.value)));
        while let Some(after) = next {
            let page = f.store.list(Kind::Ledger, Some(&after), 2).await.unwrap();
            known.extend(page.entries.into_iter().map(|entry| (entry.key, entry.value)));
            next = page.next;
        }
        let mut watch = f.store.watch(Kind::Ledger, first.revision).await.unwrap();
        while known.len() < 60 {
            if let Event::Put(entry) = watch.next().await.unwrap().unwrap() {
                known.insert(entry.key, entry.value);
            }
        }
        writer.await.unwrap();
        assert!((0..60_u8).all(|n| known[&key(&format!("db-{n:02}"))] == [n]));
    }

    pub async fn a_watch_from_the_future_is_compacted(f: Fixture) {
        let page = first_page(&*f.store).await;
        let future = Revision::new(page.revision.number() + 1_000_000);
        assert!(matches!(f.store.watch(Kind::Ledger, future).await, Err(StoreError::Compacted { .. })));
    }

    async fn write_more_than_is_kept(f: &Fixture) {
        let mut expected = Expected::Absent;
        for _ in 0..=f.history {
            expected = Expected::At(f.store.put(&key("busy"), vec![], expected).await.unwrap());
        }
    }

    pub async fn a_watch_from_too_long_ago_is_compacted(f: Fixture) {
        let start = first_page(&*f.store).await.revision;
        write_more_than_is_kept(&f).await;
        assert!(matches!(f.store.watch(Kind::Ledger, start).await, Err(StoreError::Compacted { .. })));
        let now = first_page(&*f.store).await.revision;
        let mut watch = f.store.watch(Kind::Ledger, now).await.unwrap();
        let next = create(&*f.store, "db-0", b"").await;
        assert_eq!(take(&mut watch, 1).await[0].revision(), next, "listing again is the way out");
    }

    pub async fn a_slow_watch_is_compacted_and_not_given_a_gap(f: Fixture) {
        let start = first_page(&*f.store).await.revision;
        let mut watch = f.store.watch(Kind::Ledger, start).await.unwrap();
        let first = create(&*f.store, "db-0", b"").await;
        assert_eq!(take(&mut watch, 1).await[0].revision(), first);
        write_more_than_is_kept(&f).await;
        assert!(matches!(watch.next().await, Some(Err(StoreError::Compacted { .. }))));
        assert!(watch.next().await.is_none(), "nothing comes after the gap");
    }

    pub async fn concurrent_increments_lose_none(f: Fixture) {
        create(&*f.store, "counter", b"0").await;
        let tasks: Vec<_> = (0..f.crowd).map(|_| tokio::spawn(increment(Arc::clone(&f.store)))).collect();
        let mut revisions = BTreeSet::new();
        for task in tasks {
            revisions.insert(task.await.unwrap());
        }
        assert_eq!(value(&*f.store, "counter").await.unwrap(), f.crowd.to_string().as_bytes());
        assert_eq!(revisions.len(), f.crowd, "every write has a revision of its own");
    }

    async fn increment(store: Arc<dyn Store>) -> Revision {
        loop {
            let entry = store.get(&key("counter")).await.unwrap().unwrap();
            let number: u32 = std::str::from_utf8(&entry.value).unwrap().parse().unwrap();
            let next = (number + 1).to_string().into_bytes();
            match store.put(&entry.key, next, Expected::At(entry.revision)).await {
                Ok(revision) => return revision,
                Err(error) => assert!(matches!(error, StoreError::Conflict { .. }), "{error}"),
            }
        }
    }

    pub async fn of_concurrent_creators_one_wins(f: Fixture) {
        let tasks: Vec<_> = (0..32_u8)
            .map(|n| {
                let store = Arc::clone(&f.store);
                tokio::spawn(async move {
                    store.put(&key("db-0"), vec![n], Expected::Absent).await.map(|at| (n, at))
                })
            })
            .collect();
        let mut winners = Vec::new();
        for task in tasks {
            winners.extend(task.await.unwrap().ok());
        }
        let [(n, revision)] = winners[..] else { panic!("{winners:?} won") };
        let entry = Entry { key: key("db-0"), value: vec![n], revision };
        assert_eq!(f.store.get(&key("db-0")).await.unwrap(), Some(entry));
    }

    pub async fn a_dropped_put_happens_wholly_or_not_at_all(f: Fixture) {
        let store = &*f.store;
        let start = first_page(store).await.revision;
        let mut watch = store.watch(Kind::Ledger, start).await.unwrap();
        let large = vec![7; 64 << 10];
        for n in 0..16 {
            let name = format!("db-{n:02}");
            let key = key(&name);
            {
                let put = pin!(store.put(&key, large.clone(), Expected::Absent));
                let _ = put.now_or_never();
            }
            replace(store, &key, b"kept").await;
        }
        for n in 0..16 {
            assert_eq!(value(store, &format!("db-{n:02}")).await.unwrap(), b"kept");
        }
        let end = create(store, "end", b"").await;
        let mut before: BTreeMap<Key, usize> = BTreeMap::new();
        loop {
            let Event::Put(entry) = watch.next().await.unwrap().unwrap() else {
                panic!("nothing was deleted")
            };
            if entry.revision == end {
                break;
            }
            let turn = before.entry(entry.key).or_default();
            *turn += 1;
            assert!(
                entry.value == b"kept" || (*turn == 1 && entry.value == large),
                "a put came back or came in part"
            );
        }
    }

    async fn replace(store: &dyn Store, key: &Key, value: &[u8]) {
        loop {
            let current = store.get(key).await.unwrap();
            let expected = current.map_or(Expected::Absent, |entry| Expected::At(entry.revision));
            match store.put(key, value.to_vec(), expected).await {
                Ok(_) => return,
                Err(error) => assert!(matches!(error, StoreError::Conflict { .. }), "{error}"),
            }
        }
    }
}

pub use rows::*;
