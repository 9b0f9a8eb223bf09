//! What the schemas and the names allow.

use crate::lab::{World, key, ledger};
use bowline_store::{Expected, Key, Kind, Store, StoreError};
use serde_json::{Value, json};

fn object(kind: &str, name: &str, spec: &Value) -> Value {
    json!({ "apiVersion": "bowline.storage/v1beta1", "kind": kind, "metadata": { "name": name }, "spec": spec })
}

#[tokio::test]
async fn wishes_that_cannot_be_are_refused_by_the_schema() {
    let world = World::new().await;
    let ticket = |id: &str, kind: &str, node: &str| json!({ "id": id, "type": kind, "nodeID": node });
    let wish = |key: &str, ticket: Value| json!({ "volume": "db", "attachmentTickets": { key: ticket } });
    let rows = [
        (wish("a", ticket("a", "longhorn-ui", "n1")), "Unsupported value: \"longhorn-ui\""),
        (wish("a", ticket("b", "csi-attacher", "n1")), "a ticket's id must equal its key"),
        (wish("a", ticket("a", "csi-attacher", "n/1")), "nodeID"),
        (wish("a", json!({ "id": "a", "type": "csi-attacher" })), "nodeID: Required value"),
        (json!({}), "volume: Required value"),
    ];
    for (spec, says) in rows {
        let error = world.apply(&object("VolumeAttachment", "wish", &spec)).unwrap_err();
        assert!(error.contains(says), "{spec}: {error}");
    }
    world.apply(&object("VolumeAttachment", "wish", &wish("a", ticket("a", "csi-attacher", "n1")))).unwrap();
    let moved = world
        .apply(&object("VolumeAttachment", "wish", &wish("a", ticket("a", "csi-attacher", "n2"))))
        .unwrap_err();
    assert!(moved.contains("raise its generation"), "{moved}");
    let mut again = ticket("a", "csi-attacher", "n2");
    again["generation"] = json!(1);
    world.apply(&object("VolumeAttachment", "wish", &wish("a", again))).unwrap();
    let other = world.apply(&object("VolumeAttachment", "wish", &json!({ "volume": "other" }))).unwrap_err();
    assert!(other.contains("volume cannot be changed"), "{other}");
    world.lab.kubectl(&["delete", "bva", "wish"]);
}

#[tokio::test]
async fn a_volume_never_shrinks_and_stays_what_it_is() {
    let world = World::new().await;
    let volume =
        |size: Value, fs: &str| object("Volume", "db", &json!({ "name": "db", "size": size, "fs": fs }));
    world.apply(&volume(json!("2Gi"), "ext4")).unwrap();
    for (changed, says) in [
        (volume(json!("1Gi"), "ext4"), "a volume never shrinks"),
        (volume(json!("2G"), "ext4"), "a volume never shrinks"),
        (volume(json!(1_073_741_824), "ext4"), "a volume never shrinks"),
        (volume(json!("2Gi"), "xfs"), "fs cannot be changed"),
        (volume(json!("a lot"), "ext4"), "size"),
        (volume(json!("2Gi"), "ntfs"), "Unsupported value: \"ntfs\""),
    ] {
        let error = world.apply(&changed).unwrap_err();
        assert!(error.contains(says), "{says}: {error}");
    }
    world.apply(&volume(json!("2048Mi"), "ext4")).unwrap();
    world.apply(&volume(json!(4_294_967_296_i64), "ext4")).unwrap();
    world.lab.kubectl(&["delete", "bv", "db"]);
    let target =
        |kind: &str, address: &str| object("Target", "t", &json!({ "kind": kind, "address": address }));
    assert!(world.apply(&target("tape", "a:1")).unwrap_err().contains("Unsupported value"));
    assert!(world.apply(&target("file", "nowhere")).unwrap_err().contains("address"));
    world.apply(&target("file", "10.0.0.1:9800")).unwrap();
    world.lab.kubectl(&["delete", "bvt", "t"]);
}

#[tokio::test]
async fn names_and_kinds_that_no_object_has_are_absent_and_refused() {
    let world = World::new().await;
    let store = world.store().await;
    for name in ["", "A", "a/b", "../volumes", "a?watch=1", "ä", "a_b"] {
        assert_eq!(store.get(&key(name)).await.unwrap(), None, "{name}");
        let error = store.put(&key(name), ledger(b""), Expected::Absent).await.unwrap_err();
        assert!(matches!(error, StoreError::Refused { .. }) && error.outcome_known(), "{name}: {error}");
    }
    let node = Key::new(Kind::Node, "worker-1");
    assert_eq!(store.get(&node).await.unwrap(), None);
    assert!(store.list(Kind::Node, None, 10).await.unwrap().entries.is_empty());
    let error = store.put(&node, ledger(b""), Expected::Absent).await.unwrap_err().to_string();
    assert!(error.contains("nodes are known from the cluster itself"), "{error}");
}

#[tokio::test]
async fn a_record_that_is_too_large_is_refused_and_one_that_is_large_is_kept() {
    let world = World::new().await;
    let store = world.store().await;
    let large = vec![7; 300 << 10];
    let revision = store.put(&key("large"), ledger(&large), Expected::Absent).await.unwrap();
    assert_eq!(crate::lab::text(&store.get(&key("large")).await.unwrap().unwrap().value), large);
    let error =
        store.put(&key("large"), ledger(&vec![7; 2 << 20]), Expected::At(revision)).await.unwrap_err();
    assert!(matches!(error, StoreError::Refused { .. }), "{error}");
    assert_eq!(world.store().await.get(&key("large")).await.unwrap().unwrap().revision, revision);
}

#[tokio::test]
async fn a_cluster_without_our_kinds_is_an_error_and_not_empty() {
    let world = World::new().await;
    let store = world.store().await;
    world.lab.kubectl(&["delete", "crd", "snapshotgroups.bowline.storage"]);
    let group = Key::new(Kind::Group, "g");
    let answers = crate::lab::eventually("the kind to be gone", || async {
        let errors = (store.get(&group).await.err()?, store.list(Kind::Group, None, 1).await.err()?);
        Some(errors)
    })
    .await;
    world.lab.apply(&[&crate::lab::definitions()]);
    for error in [answers.0, answers.1] {
        assert!(error.to_string().contains("apply deploy/crds"), "{error}");
    }
    crate::lab::eventually("the kind to be back", || async { store.list(Kind::Group, None, 1).await.ok() })
        .await;
}
