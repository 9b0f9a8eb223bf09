//! Objects that have the attacher's marks from the beginning, as the chart's `markAtCreation` lets the API server make them.

use bowline_store::KubeStore;
use bowline_testkit::lab::{ApiLab, rendered};
use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::api::storage::v1::{CSINode, VolumeAttachment};
use kube::api::PostParams;
use serde_json::{Value, json};
use std::sync::Arc;

use crate::world::{Always, DRIVER, FINALIZER, LONG, World, parse, pv, wait_for};

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
async fn where_the_api_server_marks_an_attach_costs_one_write_less() {
    // One of its own: its policy is for everything that is made there.
    let Some(lab) = ApiLab::start() else { return };
    let mut world = World::at(&lab).await;
    world.define().await;
    world.store = Arc::new(KubeStore::new(world.client.clone(), Arc::new(Always)));
    // What only confirms comes later than this test looks.
    world.settings.write_within = LONG * 10;
    // Named by the driver as by Kubernetes, as in the chart.
    world.add_node("worker").await;
    world
        .create::<CSINode>(
            json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": {"name": "worker"},
            "spec": {"drivers": [{"name": DRIVER, "nodeID": "worker"}]}}),
        )
        .await;
    lab.apply_text(&rendered("attacher-policy.yaml", &["markAtCreation=true"]));
    wait_for("the policy to be followed", async || {
        let dry = PostParams { dry_run: true, ..PostParams::default() };
        let object = parse(attachment("tried", "marked", "worker", &json!({})));
        world.api::<VolumeAttachment>().create(&dry, &object).await.unwrap().metadata.finalizers
    })
    .await;
    let controller = world.start().await;
    let volume = controller.volume(&world, "marked").await;
    for round in ["first", "second"] {
        let before = world.written().await;
        world.attach("va-marked", "marked", "worker").await;
        let object = world.until_attached("va-marked").await;
        assert_eq!(object.metadata.finalizers.unwrap(), [FINALIZER]);
        assert_eq!(object.metadata.annotations.unwrap()[NODE_ID], "worker");
        // One is the creation itself. The server counts after it has answered.
        wait_for("the server to have counted", async || (world.written().await >= before + 3).then_some(()))
            .await;
        assert_eq!(world.written().await - before, 3, "the {round} attach");
        let before = world.written().await;
        world.delete("va-marked").await;
        world.until_gone("va-marked").await;
        wait_for("the server to have counted", async || (world.written().await >= before + 3).then_some(()))
            .await;
        assert_eq!(world.written().await - before, 3, "the {round} detach");
    }
    assert_eq!(controller.sent(), [0, 2, 0, 0, 2]);
    world.until_open(&volume, &[]).await;
    world.check();
    controller.stop().await;
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
