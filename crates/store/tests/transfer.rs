//! Export and import.
#![allow(clippy::unwrap_used, clippy::panic, reason = "test code")]

use std::fs;

use bowline_store::redb::{Transfer, TransferError};
use bowline_store::{Entry, Event, Expected, Key, Kind, RedbStore, Revision, Store, StoreError};
use futures::StreamExt;
use tempfile::TempDir;

fn empty() -> (TempDir, RedbStore) {
    let dir = tempfile::tempdir().unwrap();
    let store = RedbStore::open(dir.path()).unwrap();
    (dir, store)
}

async fn put(store: &RedbStore, name: &str, value: &[u8]) -> Revision {
    store.put(&Key::new(Kind::Ledger, name), value.to_vec(), Expected::Absent).await.unwrap()
}

async fn filled() -> (TempDir, RedbStore) {
    let (dir, store) = empty();
    for n in 0..600 {
        put(&store, &format!("db-{n:03}"), format!("{{\"n\":{n}}}").as_bytes()).await;
    }
    put(&store, "odd \"name\"\n\u{2028}", &[0xff, 0x00, 0x0a, 0xfe]).await;
    put(&store, "empty", b"").await;
    let gone = put(&store, "gone", b"x").await;
    store.delete(&Key::new(Kind::Ledger, "gone"), gone).await.unwrap();
    (dir, store)
}

async fn everything(store: &RedbStore) -> Vec<Entry> {
    store.list(Kind::Ledger, None, 10_000).await.unwrap().entries
}

#[tokio::test]
async fn an_import_gives_back_what_was_exported() {
    let (dir, store) = filled().await;
    let file = dir.path().join("export.jsonl");
    let exported = store.export(&file).await.unwrap();
    assert_eq!(exported, Transfer { entries: 602, revision: Revision::new(604) });

    let (other_dir, other) = empty();
    let mut watch = other.watch(Kind::Ledger, Revision::new(0)).await.unwrap();
    assert_eq!(other.import(&file).await.unwrap(), exported);
    assert_eq!(everything(&other).await, everything(&store).await);
    assert!(matches!(watch.next().await, Some(Err(StoreError::Compacted { .. }))), "a watch must list again");
    assert!(put(&other, "later", b"").await > exported.revision, "revisions go on from the export's");
    drop(other);
    assert_eq!(everything(&RedbStore::open(other_dir.path()).unwrap()).await.len(), 603);
}

#[tokio::test]
async fn an_export_is_of_one_moment() {
    let (dir, store) = empty();
    let file = dir.path().join("export.jsonl");
    let (a, b) = (Key::new(Kind::Ledger, "a"), Key::new(Kind::Ledger, "b"));
    let mut at = [put(&store, "a", b"0").await, put(&store, "b", b"0").await];
    // `b` is written after `a`, so at every moment it is at the same count or one behind.
    let writer = async {
        for n in 1..100 {
            let text = n.to_string().into_bytes();
            at[0] = store.put(&a, text.clone(), Expected::At(at[0])).await.unwrap();
            at[1] = store.put(&b, text, Expected::At(at[1])).await.unwrap();
        }
    };
    let exporter = async {
        for _ in 0..20 {
            store.export(&file).await.unwrap();
            let (_dir, copy) = empty();
            copy.import(&file).await.unwrap();
            let counts: Vec<u32> = everything(&copy)
                .await
                .iter()
                .map(|entry| std::str::from_utf8(&entry.value).unwrap().parse().unwrap())
                .collect();
            assert!(counts[0] == counts[1] || counts[0] == counts[1] + 1, "{counts:?}");
        }
    };
    tokio::join!(writer, exporter);
}

#[tokio::test]
async fn an_import_into_a_store_that_was_written_to_changes_nothing() {
    let (dir, store) = filled().await;
    let file = dir.path().join("export.jsonl");
    store.export(&file).await.unwrap();
    let (_dir, other) = empty();
    let revision = put(&other, "db-000", b"mine").await;
    let error = other.import(&file).await.unwrap_err();
    assert!(matches!(error, TransferError::NotEmpty { .. }), "{error}");
    assert_eq!(everything(&other).await.len(), 1);
    other.delete(&Key::new(Kind::Ledger, "db-000"), revision).await.unwrap();
    let error = other.import(&file).await.unwrap_err();
    assert!(matches!(error, TransferError::NotEmpty { .. }), "its revisions would come back: {error}");
}

#[tokio::test]
async fn a_damaged_export_is_refused_and_nothing_is_imported() {
    let (dir, store) = filled().await;
    let file = dir.path().join("export.jsonl");
    store.export(&file).await.unwrap();
    let whole = fs::read_to_string(&file).unwrap();
    let lines: Vec<&str> = whole.split_inclusive('\n').collect();
    let rows = [
        ("empty", String::new(), "no header"),
        ("not an export", "hello\n".to_owned(), "no header"),
        ("a header only", lines[0].to_owned(), "no end"),
        ("cut off in a line", whole[..whole.len() / 2].to_owned(), "no end"),
        ("cut off after a line", lines[..300].concat(), "no end"),
        ("without its last newline", whole.trim_end().to_owned(), "no end"),
        ("a record changed", whole.replace("\\\"n\\\":7}", "\\\"n\\\":8}"), "checksum"),
        ("a record left out", [&lines[..5], &lines[6..]].concat().concat(), "checksum"),
        (
            "two records swapped",
            [&lines[..5], &[lines[6], lines[5]], &lines[7..]].concat().concat(),
            "checksum",
        ),
        ("its revision changed", whole.replacen("\"revision\":604", "\"revision\":605", 1), "checksum"),
    ];
    let (_dir, other) = empty();
    for (name, text, reason) in rows {
        fs::write(&file, text).unwrap();
        match other.import(&file).await {
            Err(error @ TransferError::Damaged { .. }) => {
                let sentence = error.to_string();
                assert!(sentence.contains(reason) && sentence.contains("export.jsonl"), "{name}: {sentence}");
            }
            other => panic!("{name}: {other:?}"),
        }
        assert_eq!(everything(&other).await, vec![], "{name}");
    }
    fs::write(&file, whole.replacen("\"bowline_export\":1", "\"bowline_export\":9", 1)).unwrap();
    let error = other.import(&file).await.unwrap_err();
    assert!(matches!(error, TransferError::Newer { found: 9, known: 1, .. }), "{error}");
    fs::write(&file, &whole).unwrap();
    other.import(&file).await.expect("refusing the others left it as it was");
}

#[tokio::test]
async fn an_export_that_fails_leaves_the_one_before() {
    let (dir, store) = filled().await;
    let file = dir.path().join("export.jsonl");
    store.export(&file).await.unwrap();
    let before = fs::read(&file).unwrap();
    // A directory where the new file is written first: this works as root too, unlike permissions.
    fs::create_dir(dir.path().join("export.jsonl.tmp")).unwrap();
    let error = store.export(&file).await.unwrap_err();
    assert!(error.to_string().contains("export.jsonl"), "{error}");
    assert_eq!(fs::read(&file).unwrap(), before);
}

#[tokio::test]
async fn a_store_goes_on_while_it_is_exported() {
    let (dir, store) = filled().await;
    let file = dir.path().join("export.jsonl");
    let start = store.list(Kind::Ledger, None, 1).await.unwrap().revision;
    let mut watch = store.watch(Kind::Ledger, start).await.unwrap();
    let (exported, written) = tokio::join!(store.export(&file), put(&store, "meanwhile", b""));
    exported.unwrap();
    let Some(Ok(Event::Put(entry))) = watch.next().await else { panic!("no event") };
    assert_eq!(entry.revision, written);
}
