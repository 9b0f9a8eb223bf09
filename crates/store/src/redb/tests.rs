//! What the disk can do to the store, on a disk that does it on purpose.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use ::redb::{ReadableDatabase, TableDefinition, WriteTransaction};
use futures::StreamExt;
use futures::future::join_all;
use tempfile::TempDir;

use super::faulty::Faults;
use super::*;

fn key(name: &str) -> Key {
    Key::new(Kind::Ledger, name)
}

fn open(dir: &TempDir, faults: &Arc<Faults>) -> RedbStore {
    RedbStore::open_on(dir.path(), HistoryLimits::default(), faults.device()).unwrap()
}

async fn put(store: &RedbStore, name: &str, value: &[u8]) -> Result<Revision, StoreError> {
    store.put(&key(name), value.to_vec(), Expected::Absent).await
}

async fn value(store: &RedbStore, name: &str) -> Option<Vec<u8>> {
    store.get(&key(name)).await.unwrap().map(|entry| entry.value)
}

/// A read that meets a failed database asks for its recovery and does not wait for it.
async fn value_when_open(store: &RedbStore, name: &str) -> Option<Vec<u8>> {
    let asking = async {
        loop {
            match store.get(&key(name)).await {
                Ok(entry) => return entry.map(|entry| entry.value),
                Err(error) => assert!(matches!(error, StoreError::Unavailable { .. }), "{error}"),
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, asking).await.expect("it never opened again")
}

/// The end of a test that will not end by itself.
const PATIENCE: Duration = Duration::from_secs(30);

#[tokio::test]
async fn a_lone_write_costs_one_sync() {
    let (dir, faults) = (tempfile::tempdir().unwrap(), Faults::none());
    let store = open(&dir, &faults);
    put(&store, "first", b"").await.unwrap();
    for n in 0..10 {
        let before = faults.syncs.load(SeqCst);
        put(&store, &format!("db-{n}"), b"a ledger").await.unwrap();
        assert_eq!(faults.syncs.load(SeqCst) - before, 1);
    }
    let before = faults.syncs.load(SeqCst);
    put(&store, "db-0", b"").await.unwrap_err();
    store.get(&key("db-0")).await.unwrap();
    assert_eq!(faults.syncs.load(SeqCst), before, "a conflict and a read cost none");
}

#[tokio::test]
async fn writes_that_wait_share_a_sync() {
    let (dir, faults) = (tempfile::tempdir().unwrap(), Faults::none());
    let store = open(&dir, &faults);
    put(&store, "taken", b"first").await.unwrap();
    let before = faults.syncs.load(SeqCst);
    let names: Vec<String> = (0..200).map(|n| format!("db-{n}")).collect();
    // All are handed in before this thread lets the first be answered.
    let writes = names.iter().map(|name| put(&store, name, name.as_bytes()));
    let (conflict, writes) = tokio::join!(put(&store, "taken", b"second"), join_all(writes));
    assert!(matches!(conflict, Err(StoreError::Conflict { .. })));
    assert!(writes.iter().all(Result::is_ok), "one conflict spoils nothing");
    let syncs = faults.syncs.load(SeqCst) - before;
    assert!(syncs < 20, "{syncs} syncs for 200 writes");
    for name in &names {
        assert_eq!(value(&store, name).await.as_deref(), Some(name.as_bytes()));
    }
}

#[tokio::test]
async fn a_batch_that_does_not_fit_still_lets_the_small_ones_in() {
    let (dir, faults) = (tempfile::tempdir().unwrap(), Faults::none());
    let store = open(&dir, &faults);
    let before = put(&store, "before", b"kept").await.unwrap();
    faults.quota.store(fs::metadata(dir.path().join("bowline.redb")).unwrap().len(), SeqCst);

    let (large, kept) = (vec![1; 8 << 20], key("before"));
    let (large, small, gone) = tokio::join!(
        put(&store, "large", &large),
        put(&store, "small", b"fits"),
        store.delete(&kept, before)
    );
    let full = large.unwrap_err();
    assert!(matches!(full, StoreError::Full { .. }) && full.outcome_known(), "{full}");
    assert!(full.to_string().contains("bowline.redb"), "{full}");
    small.unwrap();
    gone.unwrap();
    assert_eq!(value(&store, "large").await, None);

    faults.quota.store(u64::MAX, SeqCst);
    put(&store, "large", b"now it fits").await.unwrap();
    drop(store);
    let store = open(&dir, &Faults::none());
    assert_eq!(value(&store, "small").await.unwrap(), b"fits");
    assert_eq!(value(&store, "large").await.unwrap(), b"now it fits");
}

#[tokio::test]
async fn a_failed_write_is_not_there_and_the_store_goes_on() {
    let (dir, faults) = (tempfile::tempdir().unwrap(), Faults::none());
    let store = open(&dir, &faults);
    put(&store, "before", b"kept").await.unwrap();
    faults.fail_writes.store(true, SeqCst);
    let error = put(&store, "during", b"lost").await.unwrap_err();
    assert!(!error.outcome_known(), "{error}");
    faults.fail_writes.store(false, SeqCst);
    assert_eq!(value_when_open(&store, "during").await, None, "a read is enough to open it again");
    put(&store, "after", b"kept").await.unwrap();
    assert_eq!(value(&store, "before").await.unwrap(), b"kept");
}

/// The sync of a commit fails after its pages became visible: it may never be on the disk.
#[tokio::test]
async fn a_commit_whose_sync_failed_is_written_anew_before_it_is_shown() {
    let (dir, faults) = (tempfile::tempdir().unwrap(), Faults::none());
    let store = open(&dir, &faults);
    let before = put(&store, "before", b"kept").await.unwrap();
    let mut watch = store.watch(Kind::Ledger, before).await.unwrap();
    let file = |dir: &Path| {
        use std::os::unix::fs::MetadataExt;
        fs::metadata(dir.join("bowline.redb")).unwrap().ino()
    };
    let first = file(dir.path());

    faults.fail_syncs.store(true, SeqCst);
    let error = put(&store, "during", b"in doubt").await.unwrap_err();
    assert!(!error.outcome_known(), "{error}");
    faults.fail_syncs.store(false, SeqCst);

    let shown = value_when_open(&store, "during").await;
    assert_eq!(shown.as_deref(), Some(&b"in doubt"[..]));
    assert_ne!(file(dir.path()), first, "the file was not written anew");
    assert!(matches!(watch.next().await, Some(Err(StoreError::Compacted { .. }))));
    assert!(put(&store, "after", b"").await.unwrap() > before);
    drop(store);
    assert_eq!(value(&open(&dir, &Faults::none()), "during").await.unwrap(), b"in doubt");
}

/// A disk whose syncs wait until it is released.
struct SlowDisk {
    release: std::sync::mpsc::Sender<()>,
    thread: JoinHandle<()>,
}

impl SlowDisk {
    async fn of(faults: &Arc<Faults>) -> Self {
        let (release, held) = std::sync::mpsc::channel();
        let theirs = Arc::clone(faults);
        let thread = thread::spawn(move || {
            let _slow = theirs.slow_syncs.lock().unwrap();
            held.recv().unwrap();
        });
        while faults.slow_syncs.try_lock().is_ok() {
            tokio::task::yield_now().await;
        }
        Self { release, thread }
    }

    fn release(self) {
        self.release.send(()).unwrap();
        self.thread.join().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lone_write_stays_on_its_thread_and_those_that_come_meanwhile_share_a_sync() {
    let (dir, faults) = (tempfile::tempdir().unwrap(), Faults::none());
    let store = Arc::new(open(&dir, &faults));
    let write = |name: String| {
        let store = Arc::clone(&store);
        tokio::spawn(async move {
            put(&store, &name, name.as_bytes()).await.unwrap();
            thread::current().id()
        })
    };
    let own = write("lone".to_owned()).await.unwrap();
    assert_eq!(*faults.synced_by.lock().unwrap(), Some(own));

    let syncs = faults.syncs.load(SeqCst);
    let disk = SlowDisk::of(&faults).await;
    let first = write("first".to_owned());
    while faults.syncs.load(SeqCst) == syncs {
        tokio::task::yield_now().await;
    }
    let others: Vec<_> = (0..20).map(|n| write(format!("db-{n}"))).collect();
    while store.shared.queued.load(SeqCst) < others.len() {
        tokio::task::yield_now().await;
    }
    disk.release();
    first.await.unwrap();
    for other in join_all(others).await {
        other.unwrap();
    }
    assert_eq!(faults.syncs.load(SeqCst) - syncs, 2, "one for the first, one for all others");
    assert_eq!(store.shared.queued.load(SeqCst), 0);
    for n in 0..20 {
        assert_eq!(value(&store, &format!("db-{n}")).await.unwrap(), format!("db-{n}").as_bytes());
    }
}

/// Reads are done on the caller's thread, so none may wait for a disk that is slow to sync.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_does_not_wait_for_a_commit() {
    let (dir, faults) = (tempfile::tempdir().unwrap(), Faults::none());
    let store = Arc::new(open(&dir, &faults));
    let before = put(&store, "db-0", b"before").await.unwrap();
    let syncs = faults.syncs.load(SeqCst);
    let disk = SlowDisk::of(&faults).await;
    let write = tokio::spawn({
        let store = Arc::clone(&store);
        async move { store.put(&key("db-0"), b"after".to_vec(), Expected::At(before)).await }
    });
    while faults.syncs.load(SeqCst) == syncs {
        tokio::task::yield_now().await;
    }
    let read = tokio::spawn({
        let store = Arc::clone(&store);
        async move {
            let page = store.list(Kind::Ledger, None, 10).await.unwrap();
            (value(&store, "db-0").await, page.revision)
        }
    });
    let seen = tokio::time::timeout(PATIENCE, read).await;
    disk.release();
    let seen = seen.expect("the read waits for the commit").unwrap();
    assert_eq!(seen, (Some(b"before".to_vec()), before), "what is not durable was shown");
    write.await.unwrap().unwrap();
    assert_eq!(value(&store, "db-0").await.unwrap(), b"after");
}

#[tokio::test]
async fn watches_end_with_the_store() {
    let (dir, faults) = (tempfile::tempdir().unwrap(), Faults::none());
    let store = open(&dir, &faults);
    let mut watch = store.watch(Kind::Ledger, Revision::new(0)).await.unwrap();
    put(&store, "db-0", b"").await.unwrap();
    drop(store);
    assert!(matches!(watch.next().await, Some(Ok(Event::Put(_)))));
    assert!(watch.next().await.is_none());
}

#[test]
fn a_store_that_failed_its_check_stays_an_error() {
    let dir = tempfile::tempdir().unwrap();
    drop(open(&dir, &Faults::none()));
    let error = Place::new(dir.path()).set_aside();
    assert!(error.to_string().contains("bowline.redb.damaged"), "{error}");
    assert!(matches!(RedbStore::open(dir.path()), Err(StoreError::Corrupt { .. })));
    assert!(dir.path().join("bowline.redb.damaged").exists());
}

const EXTRA: TableDefinition<'_, &str, u64> = TableDefinition::new("extra");

fn make_extra(txn: &WriteTransaction) -> Result<(), ::redb::Error> {
    txn.open_table(EXTRA)?.insert("made", 1)?;
    Ok(())
}

fn double_extra(txn: &WriteTransaction) -> Result<(), ::redb::Error> {
    let mut table = txn.open_table(EXTRA)?;
    table.insert("made", 2)?;
    Ok(())
}

fn fail(txn: &WriteTransaction) -> Result<(), ::redb::Error> {
    make_extra(txn)?;
    Err(::redb::Error::Corrupted("on purpose".to_owned()))
}

fn raw(dir: &TempDir) -> Database {
    drop(open(dir, &Faults::none()));
    Database::open(dir.path().join("bowline.redb")).unwrap()
}

#[test]
fn an_older_format_is_brought_up_to_date_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let database = raw(&dir);
    let place = Place::new(dir.path());
    let failed = schema::migrate(&database, &[schema::STEPS[0], make_extra, fail], &place).unwrap_err();
    assert!(failed.to_string().contains("the store is as it was"), "{failed}");
    assert!(database.begin_read().unwrap().open_table(EXTRA).is_err(), "half of an upgrade was kept");

    schema::migrate(&database, &[schema::STEPS[0], make_extra, double_extra], &place).unwrap();
    let made =
        database.begin_read().unwrap().open_table(EXTRA).unwrap().get("made").unwrap().unwrap().value();
    assert_eq!(made, 2);
    schema::migrate(&database, &[fail, fail, fail], &place).expect("nothing is left to do");
}

#[test]
fn a_store_with_ledgers_only_gets_room_for_the_other_kinds() {
    let dir = tempfile::tempdir().unwrap();
    let database = raw(&dir);
    let txn = database.begin_write().unwrap();
    for kind in Kind::ALL.iter().filter(|kind| **kind != Kind::Ledger) {
        assert!(txn.delete_table(schema::records(*kind)).unwrap());
    }
    schema::set_format(&txn, 1).unwrap();
    txn.commit().unwrap();
    schema::migrate(&database, schema::STEPS, &Place::new(dir.path())).unwrap();
    let txn = database.begin_read().unwrap();
    for kind in Kind::ALL {
        assert_eq!(schema::list(&txn, *kind, None, 10).unwrap().entries, [], "{kind}");
    }
}

#[test]
fn a_newer_format_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let database = raw(&dir);
    schema::migrate(&database, &[schema::STEPS[0], make_extra, double_extra], &Place::new(dir.path()))
        .unwrap();
    drop(database);
    let error = RedbStore::open(dir.path()).unwrap_err();
    let expected = StoreError::Newer {
        place: dir.path().join("bowline.redb").display().to_string(),
        found: 4,
        known: schema::STEPS.len() as u64 + 1,
    };
    assert_eq!(error, expected);
    assert!(error.to_string().contains("newer Bowline"), "{error}");
}
