//! A store whose files were damaged says so; it never starts empty and never shows what was not written.
#![allow(clippy::unwrap_used, clippy::panic, reason = "test code")]

use std::cell::Cell;
use std::fs;
use std::path::Path;

use bowline_store::{Expected, Key, Kind, RedbStore, Store, StoreError};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use tempfile::TempDir;

const RECORDS: u8 = 40;

fn value(n: u8) -> Vec<u8> {
    format!("ledger {n} ").repeat(usize::from(n) * 3 + 1).into_bytes()
}

#[tokio::main(flavor = "current_thread")]
async fn filled() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let store = RedbStore::open(dir.path()).unwrap();
    for n in 0..RECORDS {
        store.put(&Key::new(Kind::Ledger, format!("db-{n:02}")), value(n), Expected::Absent).await.unwrap();
    }
    dir
}

#[tokio::main(flavor = "current_thread")]
async fn assert_whole(store: &RedbStore) {
    let page = store.list(Kind::Ledger, None, 1000).await.unwrap();
    assert_eq!(page.entries.len(), usize::from(RECORDS));
    for (n, entry) in (0..RECORDS).zip(page.entries) {
        assert_eq!((entry.key.name, entry.value), (format!("db-{n:02}"), value(n)));
    }
}

fn corrupt(dir: &Path) -> String {
    match RedbStore::open(dir) {
        Err(error @ StoreError::Corrupt { .. }) => error.to_string(),
        other => panic!("not corrupt: {other:?}"),
    }
}

fn database(dir: &TempDir) -> std::path::PathBuf {
    dir.path().join("bowline.redb")
}

#[test]
fn a_damaged_store_is_an_error_that_says_what_to_do() {
    type Damage = fn(&TempDir);
    let rows: [(&str, Damage, &str); 6] = [
        (
            "deleted",
            |dir| fs::remove_file(database(dir)).unwrap(),
            "bowline.id is there, but bowline.redb is gone",
        ),
        ("emptied", |dir| fs::write(database(dir), "").unwrap(), "bowline.redb is empty"),
        (
            "overwritten with text",
            |dir| fs::write(database(dir), "hello\n".repeat(4000)).unwrap(),
            "damaged (",
        ),
        ("overwritten with zeros", |dir| fs::write(database(dir), vec![0; 1 << 20]).unwrap(), "damaged ("),
        (
            "replaced by another store's",
            |dir| fs::copy(database(&filled()), database(dir)).map(drop).unwrap(),
            "not the database that bowline.id names",
        ),
        ("its id emptied", |dir| fs::write(dir.path().join("bowline.id"), "").unwrap(), "bowline.id names"),
    ];
    for (name, damage, reason) in rows {
        let dir = filled();
        damage(&dir);
        for time in ["first", "second"] {
            let sentence = corrupt(dir.path());
            assert!(sentence.contains(reason), "{name}, {time} time: {sentence}");
            assert!(sentence.contains(dir.path().to_str().unwrap()), "{name}: {sentence}");
            assert!(sentence.contains("import the latest export"), "{name}: {sentence}");
        }
    }
}

#[test]
fn an_empty_file_is_not_a_new_store_even_without_an_id() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(database(&dir), "").unwrap();
    assert!(corrupt(dir.path()).contains("bowline.redb is empty"));
}

#[test]
fn a_store_cut_short_is_damaged_wherever_it_is_cut() {
    let dir = filled();
    let whole = fs::read(database(&dir)).unwrap();
    for part in
        [1, 8, 63, 100, 511, 512, 4095, 4096, 10_000, whole.len() / 2, whole.len() - 4096, whole.len() - 1]
    {
        fs::write(database(&dir), &whole[..part]).unwrap();
        corrupt(dir.path());
        let _ = fs::remove_file(dir.path().join("bowline.redb.damaged"));
    }
    fs::write(database(&dir), &whole).unwrap();
    assert_whole(&RedbStore::open(dir.path()).unwrap());
}

#[test]
fn a_missing_id_is_written_again() {
    let dir = filled();
    let marker = dir.path().join("bowline.id");
    let before = fs::read(&marker).unwrap();
    fs::remove_file(&marker).unwrap();
    assert_whole(&RedbStore::open(dir.path()).unwrap());
    assert_eq!(fs::read(&marker).unwrap(), before);
}

#[test]
fn what_a_creation_that_was_cut_off_left_is_no_store() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("bowline.redb.draft"), "half").unwrap();
    drop(RedbStore::open(dir.path()).unwrap());
    assert!(!dir.path().join("bowline.redb.draft").exists());
}

#[test]
fn what_a_dead_process_left_in_the_lock_file_blocks_nobody() {
    let dir = filled();
    fs::write(dir.path().join("bowline.lock"), "pid 1 (bowline up) on elsewhere, since 1999").unwrap();
    let store = RedbStore::open(dir.path()).unwrap();
    let holder = match RedbStore::open(dir.path()) {
        Err(StoreError::Locked { holder, .. }) => holder,
        other => panic!("not locked: {other:?}"),
    };
    assert!(holder.starts_with(&format!("pid {} (", std::process::id())), "{holder}");
    assert_whole(&store);
    fs::remove_file(dir.path().join("bowline.lock")).unwrap();
    assert!(
        matches!(RedbStore::open(dir.path()), Err(StoreError::Locked { .. })),
        "the file has a lock of its own"
    );
}

/// Bits change on the disk: the store shows all that was written, or nothing, however often it is asked.
#[test]
fn changed_bytes_are_found_or_do_not_matter() {
    let original = filled();
    let whole = fs::read(database(&original)).unwrap();
    let id = fs::read(original.path().join("bowline.id")).unwrap();
    let (found, harmless) = (Cell::new(0), Cell::new(0));
    let change = |at: usize, change: u8, length: usize| {
        let mut bytes = whole.clone();
        bytes.iter_mut().skip(at).take(length).for_each(|byte| *byte ^= change);
        let dir = tempfile::tempdir().unwrap();
        fs::write(database(&dir), bytes).unwrap();
        fs::write(dir.path().join("bowline.id"), &id).unwrap();
        let count = match RedbStore::open(dir.path()) {
            Ok(store) => {
                assert_whole(&store);
                &harmless
            }
            Err(StoreError::Corrupt { .. }) => {
                corrupt(dir.path());
                &found
            }
            Err(other) => panic!("{other}"),
        };
        count.set(count.get() + 1);
    };
    // The first byte of every page, which says what the page is.
    (0..whole.len()).step_by(4096).for_each(|page| change(page, 0x41, 1));
    let mut runner = TestRunner::new(Config { failure_persistence: None, ..Config::with_cases(100) });
    let place = prop_oneof![0..512_usize, 0..whole.len()];
    let outcome = runner.run(&(place, 1..=255_u8, 1..64_usize), |(at, bits, length)| {
        change(at, bits, length);
        Ok(())
    });
    outcome.unwrap();
    assert!(
        found.get() > 20 && harmless.get() > 20,
        "{found:?} found, {harmless:?} harmless: this shows nothing"
    );
}
