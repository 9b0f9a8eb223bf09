//! Objects that have the attacher's marks from the beginning.

use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use serde_json::{Value, json};

use crate::world::{DRIVER, FINALIZER, World, pv};

const NODE_ID: &str = "csi.alpha.kubernetes.io/node-id";

fn attachment(name: &str, pv: &str, node: &str, marks: &Value) -> Value {
    let mut object = json!({"apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment", "metadata": marks,
        "spec": {"attacher": DRIVER, "nodeName": node, "source": {"persistentVolumeName": pv}}});
    object["metadata"]["name"] = name.into();
    object
}

/// Makes one that is marked.
async fn make(world: &World, name: &str, pv: &str, node: &str) {
    let marks = json!({"finalizers": [FINALIZER], "annotations": {NODE_ID: format!("id-{node}")}});
    world.create::<VolumeAttachment>(attachment(name, pv, node, &marks)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_whose_name_is_there_before_its_driver_is_told_of_as_one_without_it() {
    let Some(world) = World::new().await else { return };
    let controller = world.start().await;
    controller.volume(&world, "early").await;
    world.add_node("c").await;
    make(&world, "va-early", "early", "c").await;
    world.until_told("va-early", "node c does not run this driver yet").await;
    world.add_driver("c").await;
    world.until_attached("va-early").await;
    assert_eq!(controller.sent()[0], 0, "there was nothing to mark");
    world.check();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_never_attached_goes_with_its_marks() {
    let Some(world) = World::new().await else { return };
    let controller = world.start().await;
    let volume = controller.volume(&world, "asked").await;
    world.create::<PersistentVolume>(pv("nowhere", "nowhere-00000001")).await;
    world.add_node("c").await;
    for (name, pv, node, why) in [
        ("va-unknown", "missing", "a", "PersistentVolume missing is not there"),
        ("va-nowhere", "nowhere", "a", "there is no volume nowhere-00000001"),
        ("va-asked", "asked", "c", "node c does not run this driver yet"),
    ] {
        make(&world, name, pv, node).await;
        world.until_told(name, why).await;
        world.delete(name).await;
        world.until_gone(name).await;
    }
    // However far it has come by then.
    make(&world, "va-at-once", "asked", "a").await;
    world.delete("va-at-once").await;
    world.until_gone("va-at-once").await;
    world.until_open(&volume, &[]).await;
    controller.stop().await;

    let all = [("va-down", "asked", "a"), ("va-down-b", "missing", "b"), ("va-down-c", "nowhere", "c")];
    for (name, pv, node) in all {
        make(&world, name, pv, node).await;
        world.delete(name).await;
        let object = world.attachment(name).await.expect("its finalizer keeps it");
        assert!(object.metadata.deletion_timestamp.is_some());
    }
    let controller = world.start().await;
    for (name, ..) in all {
        world.until_gone(name).await;
    }
    assert_eq!(controller.sent(), [0, 0, 0, 0, 3]);
    let view = controller.catalog.view(&volume.id).await.unwrap();
    assert!(view.ledger.tickets().is_empty() && view.ledger.holds().is_empty(), "{:?}", view.ledger);
    world.check();
}
