//! What can happen in Kubernetes only.

use crate::lab::{Leads, World, eventually, key, ledger, text};
use bowline_store::{Event, Expected, Kind, Revision, Store, StoreError};
use futures::StreamExt;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

fn current(error: &StoreError) -> Option<Revision> {
    let StoreError::Conflict { current, .. } = error else { panic!("not a conflict: {error}") };
    *current
}

#[tokio::test]
async fn of_two_clients_one_wins_and_the_other_sees_what_the_first_wrote() {
    let world = World::new().await;
    let (a, b) = (world.store().await, world.store().await);
    let first = a.put(&key("db"), ledger(b"one"), Expected::Absent).await.unwrap();
    let seen = eventually("the cache of b", || async { b.get(&key("db")).await.unwrap() }).await;
    assert_eq!(seen.revision, first);
    let second = a.put(&key("db"), ledger(b"two"), Expected::At(first)).await.unwrap();
    // Whatever b's cache shows by now, the write is judged by the server, and what b reads then is what is there.
    let error = b.put(&key("db"), ledger(b"late"), Expected::At(first)).await.unwrap_err();
    assert_eq!(current(&error), Some(second));
    let seen = b.get(&key("db")).await.unwrap().unwrap();
    assert_eq!((text(&seen.value), seen.revision), (b"two".to_vec(), second));
    assert_eq!(current(&b.delete(&key("db"), first).await.unwrap_err()), Some(second));
    b.delete(&key("db"), second).await.unwrap();
    // Nothing is deleted in part; what a keeps in memory is told by a watch.
    eventually("the cache of a", || async { a.get(&key("db")).await.unwrap().is_none().then_some(()) }).await;
}

#[tokio::test]
async fn an_object_deleted_by_hand_stays_until_its_record_is_deleted() {
    let world = World::new().await;
    let store = world.store().await;
    let first = store.put(&key("db"), ledger(b"in use"), Expected::Absent).await.unwrap();
    world.lab.kubectl(&["delete", "bva", "db", "--wait=false"]);
    let error = store.put(&key("db"), ledger(b"stale"), Expected::At(first)).await.unwrap_err();
    let marked = current(&error).unwrap();
    let second = store.put(&key("db"), ledger(b"still in use"), Expected::At(marked)).await.unwrap();
    let error = store.put(&key("db"), ledger(b"new"), Expected::Absent).await.unwrap_err();
    assert_eq!(current(&error), Some(second));
    store.delete(&key("db"), second).await.unwrap();
    assert!(world.lab.try_kubectl(&["get", "bva", "db"]).unwrap_err().contains("NotFound"));
    store.put(&key("db"), ledger(b"again"), Expected::Absent).await.unwrap();
}

#[tokio::test]
async fn a_status_wiped_by_hand_is_no_record() {
    let world = World::new().await;
    let store = world.store().await;
    let first = store.put(&key("db"), ledger(b"one"), Expected::Absent).await.unwrap();
    let mut watch = store.watch(Kind::Ledger, first).await.unwrap();
    let wipe = r#"[{"op":"remove","path":"/status"}]"#;
    world.lab.kubectl(&["patch", "bva", "db", "--subresource=status", "--type=json", "-p", wipe]);
    assert!(matches!(watch.next().await.unwrap().unwrap(), Event::Deleted { key, .. } if key.name == "db"));
    assert_eq!(current(&store.put(&key("db"), ledger(b"two"), Expected::At(first)).await.unwrap_err()), None);
    assert_eq!(store.get(&key("db")).await.unwrap(), None);
    assert!(store.list(Kind::Ledger, None, 10).await.unwrap().entries.is_empty());
    // What was left half made, or wiped, is completed by the next creation.
    store.put(&key("db"), ledger(b"rebuilt"), Expected::Absent).await.unwrap();
    assert!(
        matches!(watch.next().await.unwrap().unwrap(), Event::Put(entry) if text(&entry.value) == b"rebuilt")
    );
    // And one that is deleted after that is let go.
    world.lab.kubectl(&["patch", "bva", "db", "--subresource=status", "--type=json", "-p", wipe]);
    world.lab.kubectl(&["delete", "bva", "db", "--wait=false"]);
    assert!(store.let_go(&key("db")).await.unwrap());
    assert!(world.lab.try_kubectl(&["get", "bva", "db"]).unwrap_err().contains("NotFound"));
}

#[tokio::test]
async fn an_edit_of_the_spec_is_a_conflict_and_then_fine() {
    let world = World::new().await;
    let store = world.store().await;
    let first = store.put(&key("db"), ledger(b"one"), Expected::Absent).await.unwrap();
    let wish = r#"{"spec":{"attachmentTickets":{"a":{"id":"a","type":"bowline-api","nodeID":"n1"}}}}"#;
    world.lab.kubectl(&["patch", "bva", "db", "--type=merge", "-p", wish]);
    let edited =
        current(&store.put(&key("db"), ledger(b"two"), Expected::At(first)).await.unwrap_err()).unwrap();
    assert_eq!(store.get(&key("db")).await.unwrap().unwrap().revision, edited);
    store.put(&key("db"), ledger(b"two"), Expected::At(edited)).await.unwrap();
    let spec = world.lab.kubectl(&["get", "bva", "db", "-o", "jsonpath={.spec.attachmentTickets.a.nodeID}"]);
    assert_eq!(spec, "n1", "a record leaves the wishes alone");
}

#[tokio::test]
async fn who_does_not_lead_writes_nothing() {
    let world = World::new().await;
    let leads = Arc::new(Leads(AtomicBool::new(true)));
    let store = world.store_of(Arc::clone(&leads)).await;
    let first = store.put(&key("db"), ledger(b"one"), Expected::Absent).await.unwrap();
    leads.0.store(false, Ordering::SeqCst);
    for result in [
        store.put(&key("db"), ledger(b"two"), Expected::At(first)).await.map(|_| ()),
        store.put(&key("other"), ledger(b""), Expected::Absent).await.map(|_| ()),
        store.delete(&key("db"), first).await,
    ] {
        let error = result.unwrap_err();
        assert!(matches!(error, StoreError::NotLeader { .. }) && error.outcome_known(), "{error}");
    }
    let other = world.store().await;
    assert_eq!(other.get(&key("db")).await.unwrap().unwrap().revision, first);
    assert_eq!(other.get(&key("other")).await.unwrap(), None);
    assert_eq!(store.get(&key("db")).await.unwrap().unwrap().revision, first, "reading is for everybody");
}

#[tokio::test]
async fn a_listing_goes_on_and_a_watch_is_compacted_when_the_history_is_forgotten() {
    let world = World::new().await;
    let store = world.store().await;
    for n in 0..9 {
        store.put(&key(&format!("db-{n}")), ledger(b""), Expected::Absent).await.unwrap();
    }
    let page = store.list(Kind::Ledger, None, 4).await.unwrap();
    let mut watch = store.watch(Kind::Ledger, page.revision).await.unwrap();
    let gone = page.entries[0].clone();
    let last = store.get(&key("db-8")).await.unwrap().unwrap();
    world.lab.stop_api_server();
    world.lab.compact();
    world.lab.start_api_server();
    let other = world.store().await;
    other.delete(&gone.key, gone.revision).await.unwrap();
    other.delete(&last.key, last.revision).await.unwrap();
    world.lab.forget_history();

    let mut names: Vec<String> = page.entries.into_iter().map(|entry| entry.key.name).collect();
    let mut next = page.next;
    while let Some(after) = next {
        let page = store.list(Kind::Ledger, Some(&after), 4).await.unwrap();
        names.extend(page.entries.into_iter().map(|entry| entry.key.name));
        next = page.next;
    }
    assert_eq!(names, (0..8).map(|n| format!("db-{n}")).collect::<Vec<_>>());

    assert!(
        matches!(store.watch(Kind::Ledger, page.revision).await, Err(StoreError::Compacted { .. }))
            || matches!(
                store.watch(Kind::Ledger, page.revision).await.unwrap().next().await,
                Some(Err(StoreError::Compacted { .. }))
            )
    );
    // The watch that was open has seen the deletions, or says that it may have missed something.
    let mut deleted = BTreeSet::new();
    while deleted.len() < 2 {
        match watch.next().await {
            Some(Ok(Event::Deleted { key, .. })) => drop(deleted.insert(key.name)),
            Some(Ok(Event::Put(_))) => {}
            Some(Err(error)) => {
                assert!(matches!(error, StoreError::Compacted { .. }), "{error}");
                assert!(watch.next().await.is_none());
                break;
            }
            None => panic!("the watch ended without a word"),
        }
    }
    // Nor does the cache of a store that lived through it show what is gone.
    assert_eq!(eventually_none(&store, "db-0").await, None);
}

async fn eventually_none(store: &bowline_store::KubeStore, name: &str) -> Option<()> {
    eventually("the cache to know", || async {
        store.get(&key(name)).await.unwrap().is_none().then_some(())
    })
    .await;
    None
}

#[tokio::test]
async fn an_api_server_that_stops_is_unknown_and_then_everything_goes_on() {
    let world = World::new().await;
    let store = world.store().await;
    let first = store.put(&key("db"), ledger(b"one"), Expected::Absent).await.unwrap();
    let mut watch = store.watch(Kind::Ledger, first).await.unwrap();
    world.lab.stop_api_server();
    let error = store.put(&key("db"), ledger(b"two"), Expected::At(first)).await.unwrap_err();
    assert!(matches!(error, StoreError::Unavailable { .. }) && !error.outcome_known(), "{error}");
    // A read waits for it to come back.
    let reading = tokio::spawn({
        let store = Arc::clone(&store);
        async move { store.get(&key("db")).await }
    });
    world.lab.start_api_server();
    let seen = reading.await.unwrap().unwrap().unwrap();
    let second = store.put(&key("db"), ledger(b"two"), Expected::At(seen.revision)).await.unwrap();
    // The watch goes on by itself, or says that it cannot: a server that starts again remembers no earlier changes.
    match watch.next().await.unwrap() {
        Ok(event) => assert_eq!(event.revision(), second),
        Err(error) => assert!(matches!(error, StoreError::Compacted { .. }), "{error}"),
    }
}

#[tokio::test]
async fn looking_at_an_idle_volume_costs_no_request() {
    let world = World::new().await;
    let store = world.store().await;
    for n in 0..50 {
        store.put(&key(&format!("db-{n}")), ledger(&[7; 250]), Expected::Absent).await.unwrap();
    }
    let (count, bytes) = store.cached();
    assert!(count >= 50 && bytes / count < 2000, "{bytes} bytes for {count} ledgers");
    bowline_testkit::say(&format!(
        "kube store: {} bytes in memory for a ledger of {}",
        bytes / count,
        ledger(&[7; 250]).len()
    ));
    let other = world.store().await;
    // Whoever can do with what is remembered waits until that is everything.
    assert_eq!(other.recall(Kind::Ledger, None, 100).await.unwrap().entries.len(), 50);
    world.lab.freeze_api_server(true);
    let shown = tokio::time::timeout(Duration::from_secs(2), other.get(&key("db-7"))).await;
    let page =
        tokio::time::timeout(Duration::from_secs(2), other.recall(Kind::Ledger, Some("db-0"), 9)).await;
    let absent = tokio::time::timeout(Duration::from_secs(2), other.get(&key("db-77"))).await;
    world.lab.freeze_api_server(false);
    let page = page.expect("a list without the server").unwrap();
    assert_eq!((page.entries[0].key.name.as_str(), page.entries.len()), ("db-1", 9));
    assert!(shown.expect("an answer without the server").unwrap().is_some());
    assert!(absent.is_err(), "what the cache does not show is asked of the server");
}
