//! Both adapters beside a plain map: whatever is done to them, they say the same.
#![allow(clippy::unwrap_used, clippy::panic, reason = "test code")]

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use bowline_store::{Entry, Event, Expected, Key, Kind, MemoryStore, RedbStore, Revision, Store, StoreError};
use futures::StreamExt;
use proptest::prelude::*;
use tempfile::TempDir;

const NAMES: [&str; 6] = ["", "a", "a/b", "b", "é", "🪢"];

#[derive(Debug, Clone)]
enum Op {
    Put {
        name: usize,
        value: Vec<u8>,
        expect: Expect,
    },
    Delete {
        name: usize,
        expect: Expect,
    },
    Get {
        name: usize,
    },
    List {
        after: Option<usize>,
        limit: usize,
    },
    /// Close and open again, where there is something to open.
    Reopen,
}

#[derive(Debug, Clone, Copy)]
enum Expect {
    /// What is really there.
    Current,
    Absent,
    /// A revision that this record had once, or another has.
    Some(usize),
}

fn op() -> impl Strategy<Value = Op> {
    let name = 0..NAMES.len();
    let expect = prop_oneof![
        4 => Just(Expect::Current),
        1 => Just(Expect::Absent),
        2 => (0..40_usize).prop_map(Expect::Some),
    ];
    let value = prop_oneof![
        4 => prop::collection::vec(any::<u8>(), 0..64),
        1 => (any::<u8>(), 4000..10_000_usize).prop_map(|(byte, length)| vec![byte; length]),
    ];
    prop_oneof![
        8 => (name.clone(), value, expect.clone()).prop_map(|(name, value, expect)| Op::Put { name, value, expect }),
        4 => (name.clone(), expect).prop_map(|(name, expect)| Op::Delete { name, expect }),
        2 => name.clone().prop_map(|name| Op::Get { name }),
        2 => (prop::option::of(name), 0..5_usize).prop_map(|(after, limit)| Op::List { after, limit }),
        1 => Just(Op::Reopen),
    ]
}

#[derive(Default)]
struct Model {
    records: BTreeMap<Key, Entry>,
    issued: Vec<Revision>,
    /// Since the store was last opened.
    events: Vec<Event>,
}

impl Model {
    fn current(&self, key: &Key) -> Option<Revision> {
        self.records.get(key).map(|entry| entry.revision)
    }

    fn expected(&self, key: &Key, expect: Expect) -> Expected {
        match expect {
            Expect::Current => self.current(key).map_or(Expected::Absent, Expected::At),
            Expect::Absent => Expected::Absent,
            Expect::Some(n) if self.issued.is_empty() => Expected::At(Revision::new(n as u64)),
            Expect::Some(n) => Expected::At(self.issued[n % self.issued.len()]),
        }
    }

    /// Whether the store's answer to a write is right, given that the record was `current`.
    fn check(&self, key: &Key, expected: Expected, answer: Result<(), StoreError>) -> bool {
        let current = self.current(key);
        if expected.matches(current) {
            answer.unwrap();
            return true;
        }
        assert_eq!(answer.unwrap_err(), StoreError::Conflict { key: key.clone(), current });
        false
    }

    fn list(&self, after: Option<&str>, limit: usize) -> (Vec<Entry>, Option<String>) {
        let start = after.map_or(Bound::Unbounded, |name| Bound::Excluded(Key::new(Kind::Ledger, name)));
        let rest: Vec<Entry> =
            self.records.range((start, Bound::Unbounded)).map(|(_, entry)| entry.clone()).collect();
        let shown = rest[..rest.len().min(limit.max(1))].to_vec();
        let next = (shown.len() < rest.len()).then(|| shown.last().unwrap().key.name.clone());
        (shown, next)
    }
}

fn key(name: usize) -> Key {
    Key::new(Kind::Ledger, NAMES[name])
}

async fn apply(op: Op, store: &dyn Store, model: &mut Model) {
    match op {
        Op::Put { name, value, expect } => {
            let key = key(name);
            let expected = model.expected(&key, expect);
            let answer = store.put(&key, value.clone(), expected).await;
            if model.check(&key, expected, answer.clone().map(drop)) {
                let revision = answer.unwrap();
                assert!(model.issued.last().is_none_or(|last| *last < revision));
                model.issued.push(revision);
                let entry = Entry { key: key.clone(), value, revision };
                model.records.insert(key, entry.clone());
                model.events.push(Event::Put(entry));
            }
        }
        Op::Delete { name, expect } => {
            let key = key(name);
            let Expected::At(revision) = model.expected(&key, expect) else { return };
            let answer = store.delete(&key, revision).await;
            if model.check(&key, Expected::At(revision), answer) {
                model.records.remove(&key);
                let revision = store.list(Kind::Ledger, None, 1).await.unwrap().revision;
                model.issued.push(revision);
                model.events.push(Event::Deleted { key, revision });
            }
        }
        Op::Get { name } => {
            assert_eq!(store.get(&key(name)).await.unwrap().as_ref(), model.records.get(&key(name)));
        }
        Op::List { after, limit } => {
            let after = after.map(|name| NAMES[name]);
            let page = store.list(Kind::Ledger, after, limit).await.unwrap();
            assert_eq!((page.entries, page.next), model.list(after, limit));
        }
        Op::Reopen => {}
    }
}

struct Made {
    store: Arc<dyn Store>,
    dir: Option<TempDir>,
}

impl Made {
    fn memory() -> Made {
        Made { store: Arc::new(MemoryStore::new()), dir: None }
    }

    fn redb() -> Made {
        let dir = tempfile::tempdir().unwrap();
        Made { store: Arc::new(RedbStore::open(dir.path()).unwrap()), dir: Some(dir) }
    }

    /// `false` for a store that has nothing to open.
    fn reopen(&mut self) -> bool {
        let Some(dir) = &self.dir else { return false };
        // The old one must be gone before the new one is opened.
        self.store = Arc::new(MemoryStore::new());
        self.store = Arc::new(RedbStore::open(dir.path()).unwrap());
        true
    }
}

#[tokio::main(flavor = "current_thread")]
async fn play(mut made: Made, ops: Vec<Op>) {
    let mut model = Model::default();
    let mut start = made.store.list(Kind::Ledger, None, 1).await.unwrap().revision;
    for op in ops {
        if matches!(op, Op::Reopen) && made.reopen() {
            start = made.store.list(Kind::Ledger, None, 1).await.unwrap().revision;
            assert!(model.issued.last().is_none_or(|last| *last == start));
            model.events.clear();
        }
        apply(op, &*made.store, &mut model).await;
    }
    let all = made.store.list(Kind::Ledger, None, 1000).await.unwrap();
    assert_eq!(all.entries, model.records.into_values().collect::<Vec<_>>());
    let watch = made.store.watch(Kind::Ledger, start).await.unwrap();
    let seen: Vec<Event> = watch.take(model.events.len()).map(Result::unwrap).collect().await;
    assert_eq!(seen, model.events);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(128) })]

    #[test]
    fn memory_does_as_the_model(ops in prop::collection::vec(op(), 0..80)) {
        play(Made::memory(), ops);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(48) })]

    #[test]
    fn redb_does_as_the_model(ops in prop::collection::vec(op(), 0..60)) {
        play(Made::redb(), ops);
    }
}
