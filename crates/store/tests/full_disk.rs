//! A disk that is really full: a small tmpfs in a mount name space of its own.
//!
//! Needs root. Where it cannot run it says so; the same is tried on a disk with a quota in the unit tests,
//! which always run.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout, reason = "test code")]

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use bowline_store::{Expected, Key, Kind, RedbStore, Revision, Store, StoreError};

const DIR: &str = "BOWLINE_FULL_DISK";

#[test]
fn a_full_disk_is_an_error_and_nothing_is_lost() {
    on_a_small_disk("a_full_disk_is_an_error_and_nothing_is_lost", write_until_full);
}

#[test]
fn small_writes_go_on_when_others_fill_the_disk() {
    on_a_small_disk("small_writes_go_on_when_others_fill_the_disk", write_beside_others);
}

/// Runs the test of that name once more, where `BOWLINE_FULL_DISK` names a small disk.
fn on_a_small_disk(name: &str, test: fn(&Path)) {
    if let Some(dir) = std::env::var_os(DIR) {
        test(Path::new(&dir));
        println!("tried on a full disk");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let small_disk = |then: &str| {
        let mut command = Command::new("unshare");
        command.args(["-m", "sh", "-c", &format!("mount -t tmpfs -o size=6m tmpfs \"${DIR}\" && {then}")]);
        command.arg(std::env::current_exe().unwrap()).env(DIR, dir.path());
        command
    };
    match small_disk("true").output() {
        Ok(output) if output.status.success() => {}
        other => {
            bowline_testkit::say(&format!("not run: {name} (no tmpfs of its own: {other:?})"));
            return;
        }
    }
    let output = small_disk(&format!("exec \"$0\" --exact {name} --nocapture")).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("tried on a full disk"), "{text}");
}

fn key(n: u32) -> Key {
    Key::new(Kind::Ledger, format!("db-{n}"))
}

#[tokio::main(flavor = "current_thread")]
async fn write_until_full(dir: &Path) {
    let store = RedbStore::open(dir).unwrap();
    let value = vec![b'x'; 100_000];
    let mut written: Vec<Revision> = Vec::new();
    let full = loop {
        match store.put(&key(u32::try_from(written.len()).unwrap()), value.clone(), Expected::Absent).await {
            Ok(revision) => written.push(revision),
            Err(error) => break error,
        }
    };
    assert!(matches!(full, StoreError::Full { .. }) && full.outcome_known(), "{full}");
    assert!(full.to_string().contains(dir.join("bowline.redb").to_str().unwrap()), "{full}");
    assert!(!written.is_empty());
    assert_all_there(&store, &written).await;

    // Now to the last byte; and the process may be started again in that state.
    let filler = fill(dir);
    let again = store.put(&key(10_000), vec![b'y'; 3_000_000], Expected::Absent).await.unwrap_err();
    assert!(matches!(again, StoreError::Full { .. }), "{again}");
    assert_all_there(&store, &written).await;
    drop(store);
    let store = RedbStore::open(dir).unwrap();
    assert_all_there(&store, &written).await;
    store.delete(&key(0), written[0]).await.expect("a deletion needs no new space");

    fs::remove_file(&filler).unwrap();
    store.put(&key(0), b"space is back".to_vec(), Expected::Absent).await.expect("without a restart");
}

#[tokio::main(flavor = "current_thread")]
async fn write_beside_others(dir: &Path) {
    let store = RedbStore::open(dir).unwrap();
    let mut at = store.put(&key(0), vec![b'x'; 2000], Expected::Absent).await.unwrap();
    fill(dir);
    for round in 0..200 {
        let put = store.put(&key(0), format!("{round}").into_bytes(), Expected::At(at)).await;
        at = put.unwrap_or_else(|error| panic!("write {round}: {error}"));
    }
    drop(store);
    assert_eq!(RedbStore::open(dir).unwrap().get(&key(0)).await.unwrap().unwrap().revision, at);
}

/// Takes every block that is left.
fn fill(dir: &Path) -> PathBuf {
    let filler = dir.join("filler");
    let mut file = fs::File::create(&filler).unwrap();
    while file.write(&[0; 4096]).is_ok_and(|written| written > 0) {}
    filler
}

async fn assert_all_there(store: &RedbStore, written: &[Revision]) {
    let page = store.list(Kind::Ledger, None, 1000).await.unwrap();
    assert_eq!(page.entries.len(), written.len());
    for (n, revision) in (0..).zip(written) {
        let entry = store.get(&key(n)).await.unwrap().unwrap();
        assert_eq!((entry.value.len(), entry.revision), (100_000, *revision));
    }
}
