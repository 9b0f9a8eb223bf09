//! Drivers that go from a node and come back, as every upgrade has it.

use bowline_core::NodeId;
use k8s_openapi::api::storage::v1::{CSINode, VolumeAttachment};
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::json;

use crate::world::{Controller, DRIVER, World, holding, wait_for};

const NODE_ID: &str = "csi.alpha.kubernetes.io/node-id";

/// Waits until volumes can be asked for on a node, or until they cannot.
async fn until_usable(controller: &Controller, node: &str, usable: bool) {
    let id = NodeId::new(node).unwrap();
    wait_for(&format!("{node} to be known: {usable}"), async || {
        let known = controller.catalog.nodes().await.unwrap().iter().any(|one| one.id == id);
        (known == usable).then_some(())
    })
    .await;
}

/// The driver goes from a node.
async fn remove_driver(world: &World, controller: &Controller, node: &str) {
    world.api::<CSINode>().delete(node, &DeleteParams::default()).await.unwrap();
    until_usable(controller, &format!("id-{node}"), false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attachment_that_was_looked_at_while_the_driver_was_away_was_never_shown_attached() {
    let Some(world) = World::new().await else { return };
    let controller = world.start().await;
    let volume = controller.volume(&world, "held").await;
    world.attach("va-held", "held", "b").await;
    world.until_attached("va-held").await;
    remove_driver(&world, &controller, "b").await;
    let wiped = json!({"status": {"attached": false, "attachmentMetadata": null}});
    let attachments = world.api::<VolumeAttachment>();
    attachments.patch_status("va-held", &PatchParams::default(), &Patch::Merge(&wiped)).await.unwrap();
    // Whoever comes later in the same watch is told: so the other was looked at.
    world.attach("va-later", "held", "nowhere").await;
    world.until_told("va-later", "does not run this driver").await;
    wait_for("nobody to be at work", async || (controller.attacher.working() == 0).then_some(())).await;
    world.add_driver("b").await;
    world.until_attached("va-held").await;
    assert_eq!(world.target.open(&volume.id), [(1, NodeId::new("id-b").unwrap())], "the very grant it had");
    world.check();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_driver_that_registered_while_its_attachment_was_being_marked_was_waited_for_ever_after() {
    let Some(world) = World::new().await else { return };
    let (slow, let_through) = holding(&world.client, "va-early");
    let controller = world.start_with(slow).await;
    controller.volume(&world, "early").await;
    world.add_node("c").await;
    // Its name is remembered, so that it is asked for; the finalizer is to be written at the same time.
    world
        .create::<VolumeAttachment>(json!({"apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment",
            "metadata": {"name": "va-early", "annotations": {NODE_ID: "id-c"}},
            "spec": {"attacher": DRIVER, "nodeName": "c", "source": {"persistentVolumeName": "early"}}}))
        .await;
    wait_for("the mark to be on its way", async || (controller.sent()[0] == 1).then_some(())).await;
    world.add_driver("c").await;
    until_usable(&controller, "id-c", true).await;
    let_through.send_replace(true);
    world.until_attached("va-early").await;
    world.check();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_node_was_given_one_volume_more_while_its_driver_was_away() {
    let Some(world) = World::new().await else { return };
    let register = async || {
        let drivers = json!([{"name": DRIVER, "nodeID": "id-c", "allocatable": {"count": 1}}]);
        let object = json!({"metadata": {"name": "c"}, "spec": {"drivers": drivers}});
        world.create::<CSINode>(object).await;
    };
    world.add_node("c").await;
    register().await;
    let controller = world.start().await;
    controller.volume(&world, "first").await;
    world.attach("va-first", "first", "c").await;
    world.until_attached("va-first").await;
    let waiting = controller.volume(&world, "waiting").await;
    world.attach("va-waiting", "waiting", "c").await;
    world.until_told("va-waiting", "as many as it can take").await;
    remove_driver(&world, &controller, "c").await;
    world.until_told("va-waiting", "node c does not run this driver").await;
    assert!(world.attachment("va-first").await.unwrap().status.unwrap().attached, "it keeps what it has");
    register().await;
    world.until_told("va-waiting", "as many as it can take").await;
    // Every grant has an epoch of its own, however soon it is taken back.
    let view = controller.catalog.view(&waiting.id).await.unwrap();
    assert_eq!((view.ledger.epoch().number(), world.target.open(&waiting.id)), (0, vec![]));
    world.delete("va-first").await;
    world.until_attached("va-waiting").await;
    world.check();
}
