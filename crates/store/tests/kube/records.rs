//! What is put comes back: records with everything in them, and what people are shown beside them.

use crate::lab::World;
use bowline_core::Ledger;
use bowline_store::{Expected, Key, Kind, Store, StoreError, record};
use serde_json::{Value, json};

fn largest_ledger() -> Value {
    let ticket = |id: &str, owner: Value| {
        json!({
            "id": id, "type": "csi-attacher", "nodeID": "worker-2", "access": "multi-node-multi-writer", "content": "block",
            "readOnly": true, "disableFrontend": "any", "generation": i64::MAX, "createdAt": "2026-01-01T12:00:00.123456789Z",
            "owner": owner, "reason": "ä \u{1f980} \" \\ \n"
        })
    };
    let hold = |epoch: i64, phase: &str| json!({ "epoch": epoch, "mode": { "write": true, "frontend": false, "share": "one-writer" }, "since": "2026-01-01T12:00:01Z", "phase": phase });
    let mut fencing = hold(i64::MAX - 3, "fencing");
    fencing["why"] = json!("nodeOutOfService");
    json!({
        "epoch": i64::MAX,
        "tickets": {
            "a": ticket("a", json!({ "until": "objectGone", "object": "volumeattachments.storage.k8s.io/csi-1" })),
            "b": ticket("b", json!({ "until": "expires", "at": "2026-01-02T00:00:00Z" })),
            "c:_~.": ticket("c:_~.", json!({ "until": "withdrawn" }))
        },
        "holds": {
            "n1": hold(i64::MAX, "granting"), "n2": hold(i64::MAX - 1, "held"), "n3": hold(i64::MAX - 2, "releasing"), "n4": fencing
        },
        "migration": { "from": "a", "fromGeneration": 1, "to": "b", "toGeneration": i64::MAX, "since": "2026-01-01T12:00:00Z" }
    })
}

fn rows() -> Vec<(Kind, &'static str, Value)> {
    let volume = |source: Value, migratable: Value, state: Value| {
        json!({
            "id": "pvc-1-000000ab", "name": "pvc-1", "target": "file-worker-1", "size": i64::MAX, "fs": "xfs",
            "uses": [{ "access": "single-node-writer", "content": "filesystem" }, { "access": "multi-node-multi-writer", "content": "block" }],
            "source": source, "settings": { "migratable": migratable, "deletionProtection": true, "discard": true },
            "createdAt": "2026-01-01T12:00:00.5Z", "state": state
        })
    };
    let snapshot = |group: Value, state: Value| {
        json!({
            "id": "s-1-000000ab", "name": "s-1", "volume": "pvc-1-000000ab", "target": "file", "group": group,
            "createdAt": "2026-01-01T12:00:00Z", "state": state
        })
    };
    let ready = json!({ "is": "ready", "size": 1_073_741_824, "takenAt": "2026-01-01T12:00:00Z" });
    vec![
        (Kind::Ledger, "pvc-1-000000ab", largest_ledger()),
        (Kind::Ledger, "pvc-2-000000ab", json!({ "epoch": 0, "tickets": {}, "holds": {} })),
        (
            Kind::Volume,
            "pvc-1",
            volume(
                json!({ "snapshot": "s-1-000000ab" }),
                json!(300),
                json!({ "is": "growing", "to": i64::MAX }),
            ),
        ),
        (
            Kind::Volume,
            "pvc-2",
            volume(json!({ "volume": "pvc-1-000000ab" }), Value::Null, json!({ "is": "creating" })),
        ),
        (Kind::Volume, "pvc-3", volume(Value::Null, Value::Null, json!({ "is": "deleting" }))),
        (Kind::Snapshot, "s-1", snapshot(json!("g-1-000000ab"), ready.clone())),
        (Kind::Snapshot, "s-2", snapshot(Value::Null, json!({ "is": "taking" }))),
        (
            Kind::Group,
            "g-1",
            json!({ "id": "g-1-000000ab", "name": "g-1", "snapshots": ["s-1-000000ab", "s-2-000000ab"], "createdAt": "2026-01-01T12:00:00Z", "state": ready }),
        ),
    ]
}

#[tokio::test]
async fn the_largest_record_of_every_kind_comes_back_whole() {
    let world = World::new().await;
    let store = world.store().await;
    for (kind, name, record) in rows() {
        let key = Key::new(kind, name);
        let value = json!({ "version": 1, "record": record });
        let revision = store.put(&key, value.to_string().into_bytes(), Expected::Absent).await.unwrap();
        // Another store, so that nothing comes from memory.
        let other = world.store().await;
        let found = other.get(&key).await.unwrap().unwrap();
        assert_eq!(found.revision, revision);
        assert_eq!(serde_json::from_slice::<Value>(&found.value).unwrap(), value, "{key}");
        if kind == Kind::Ledger {
            let sent = record::decode::<Ledger>(value.to_string().as_bytes()).unwrap();
            assert_eq!(record::decode::<Ledger>(&found.value).unwrap(), sent);
        }
    }
}

#[tokio::test]
async fn kubectl_answers_the_first_question() {
    let world = World::new().await;
    let store = world.store().await;
    for (kind, name, record) in rows() {
        let value = json!({ "version": 1, "record": record }).to_string().into_bytes();
        store.put(&Key::new(kind, name), value, Expected::Absent).await.unwrap();
    }
    let mut seen = world.lab.kubectl(&["get", "bv,bva,bvs,bvg", "--no-headers"]);
    seen.push_str(&world.lab.kubectl(&["get", "bv", "pvc-1"]));
    for words in
        ["detaching", "n1,n2,n3,n4", "Growing", "Creating", "Deleting", "1Gi", "file-worker-1", "TARGET"]
    {
        assert!(seen.contains(words), "{words} is not in\n{seen}");
    }
}

#[tokio::test]
async fn what_is_noted_for_people_is_shown_and_changes_no_record() {
    let world = World::new().await;
    let store = world.store().await;
    let key = Key::new(Kind::Ledger, "pvc-1-000000ab");
    let value = json!({ "version": 1, "record": largest_ledger() }).to_string().into_bytes();
    let first = store.put(&key, value.clone(), Expected::Absent).await.unwrap();
    let condition =
        json!({ "type": "Satisfied", "status": "False", "reason": "HeldElsewhere", "message": "n2 has it." });
    let told = json!({
        "attachmentTicketStatuses": {
            "a": { "satisfied": false, "generation": i64::MAX, "conditions": [condition] },
            "b": { "satisfied": false, "generation": 1, "conditions": [condition] },
        },
        "epoch": 1
    });
    store.note(&key, told.as_object().unwrap().clone());
    let shown = store.show(&key).await.unwrap().unwrap();
    assert!(shown > first);
    let object: Value =
        serde_json::from_str(&world.lab.kubectl(&["get", "bva", &key.name, "-o", "json"])).unwrap();
    let statuses = &object["status"]["attachmentTicketStatuses"];
    assert_eq!(statuses["a"]["conditions"][0]["reason"], "HeldElsewhere");
    assert_eq!(statuses["b"]["conditions"], Value::Null, "said of another filing of it");
    assert_eq!(object["status"]["reason"], "HeldElsewhere");
    let attached = json!([{ "type": "Attached", "status": "False", "reason": "HeldElsewhere", "message": "n2 has it." }]);
    assert_eq!(object["status"]["conditions"], attached);
    let found = store.get(&key).await.unwrap().unwrap();
    assert_eq!(
        serde_json::from_slice::<Value>(&found.value).unwrap(),
        serde_json::from_slice::<Value>(&value).unwrap()
    );
    assert_eq!(found.revision, shown);
}

#[tokio::test]
async fn what_older_definitions_drop_is_noticed() {
    let world = World::new().await;
    let store = world.store().await;
    let path = "/spec/versions/0/schema/openAPIV3Schema/properties/status/properties/migration";
    let patch = json!([{ "op": "remove", "path": path }]).to_string();
    world.lab.kubectl(&["patch", "crd", "volumeattachments.bowline.storage", "--type=json", "-p", &patch]);
    let value = json!({ "version": 1, "record": largest_ledger() }).to_string().into_bytes();
    let mut names = (0..).map(|n| Key::new(Kind::Ledger, format!("old-{n}")));
    let pruned = crate::lab::eventually("the older definition to count", || {
        let (store, value, key) = (store.clone(), value.clone(), names.next().unwrap());
        async move { store.put(&key, value, Expected::Absent).await.err() }
    })
    .await;
    world.lab.apply(&[&crate::lab::definitions()]);
    assert!(matches!(&pruned, StoreError::Pruned { field, .. } if field == "status.migration"), "{pruned}");
    let mut names = (0..).map(|n| Key::new(Kind::Ledger, format!("new-{n}")));
    crate::lab::eventually("the current definition to count", || {
        let (store, value, key) = (store.clone(), value.clone(), names.next().unwrap());
        async move { store.put(&key, value, Expected::Absent).await.ok() }
    })
    .await;
}

#[tokio::test]
async fn a_record_that_is_prepared_is_there_and_one_that_is_there_stays() {
    let world = World::new().await;
    let store = world.store().await;
    let key = Key::new(Kind::Ledger, "prepared");
    let empty = record::encode(&Ledger::default()).unwrap();
    store.prepare(&key, empty.clone()).await.unwrap();
    let entry = store.get(&key).await.unwrap().unwrap();
    assert_eq!(record::decode::<Ledger>(&entry.value).unwrap(), Ledger::default());
    let ledger = crate::lab::ledger(b"somebody");
    let revision = store.put(&key, ledger.clone(), Expected::At(entry.revision)).await.unwrap();
    store.prepare(&key, empty.clone()).await.unwrap();
    let other = world.store().await;
    other.prepare(&key, empty).await.unwrap();
    assert_eq!(store.get(&key).await.unwrap().unwrap().revision, revision);
    assert_eq!(crate::lab::text(&other.get(&key).await.unwrap().unwrap().value), b"somebody");
    store.delete(&key, revision).await.unwrap();
}
