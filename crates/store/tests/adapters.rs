//! Every adapter against the contract.
#![allow(clippy::unwrap_used, reason = "test code")]

use std::sync::Arc;

use bowline_store::contract::Fixture;
use bowline_store::{HistoryLimits, MemoryStore, RedbStore};

const LIMITS: HistoryLimits = HistoryLimits { events: 256, bytes: 8 << 20 };

async fn memory() -> Fixture {
    let store = Arc::new(MemoryStore::with_history(LIMITS));
    Fixture { store, history: LIMITS.events, crowd: 64, keep: Box::new(()) }
}

async fn redb() -> Fixture {
    let dir = tempfile::tempdir().unwrap();
    let store = Arc::new(RedbStore::open_with(dir.path(), LIMITS).unwrap());
    Fixture { store, history: LIMITS.events, crowd: 64, keep: Box::new(dir) }
}

bowline_store::contract!(memory_store, memory);
bowline_store::contract!(redb_store, redb);
