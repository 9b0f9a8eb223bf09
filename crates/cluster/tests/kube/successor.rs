//! What a leader that follows another knows from the first moment on.

use bowline_api::Target;
use bowline_cluster::targets::connect_all;
use bowline_controller::{NewVolume, Volume};
use bowline_core::{NodeId, TargetId, TicketId};
use bowline_engine::{Patience, Withdrawal};
use bowline_target::agent::TlsFiles;
use bowline_testkit::wish;
use k8s_openapi::api::core::v1::{Node, PersistentVolume};
use k8s_openapi::api::storage::v1::{CSINode, VolumeAttachment};
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::json;

use crate::world::{Controller, DRIVER, LONG, World, order};

use bowline_core::TicketKind::BowlineApi;

/// The newest epoch of a volume, and the reason of each verdict.
async fn stands(controller: &Controller, volume: &Volume) -> (u64, Vec<&'static str>) {
    let view = controller.catalog.view(&volume.id).await.unwrap();
    (view.ledger.epoch().number(), view.verdicts.values().map(bowline_core::Verdict::reason).collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_leader_let_in_nodes_of_which_it_had_not_heard_yet() {
    let Some(world) = World::new().await else { return };
    world.set_ready("b", "Unknown").await;
    let controller = world.start().await;
    let (waiting, taken) =
        (controller.volume(&world, "waiting").await, controller.volume(&world, "taken").await);
    world.attach("va-waiting", "waiting", "b").await;
    world.until_told("va-waiting", "does not report").await;
    world.attach("va-taken", "taken", "a").await;
    world.until_attached("va-taken").await;
    let taint = json!({"spec": {"taints": [{"key": "node.kubernetes.io/out-of-service", "value": "x", "effect": "NoExecute"}]}});
    world.api::<Node>().patch("a", &PatchParams::default(), &Patch::Merge(&taint)).await.unwrap();
    world.until_open(&taken, &[]).await;
    world.until_told("va-taken", "out of service").await;
    controller.stop().await;

    let controller = world.start().await;
    // Every grant has an epoch of its own, however soon it is taken back.
    assert_eq!(stands(&controller, &waiting).await, (0, vec!["NodeNotReady"]));
    assert_eq!(stands(&controller, &taken).await, (1, vec!["NodeOutOfService"]));
    assert_eq!((world.target.open(&waiting.id), world.target.open(&taken.id)), (vec![], vec![]));
    world.set_ready("b", "True").await;
    world.until_attached("va-waiting").await;
    world.check();
    controller.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_leader_made_volumes_on_a_target_that_was_being_drained() {
    let Some(world) = World::new().await else { return };
    world.define().await;
    for (name, drain) in [("sim", true), ("other", false)] {
        let spec = json!({"kind": "file", "address": "127.0.0.1:1", "drain": drain});
        world.create::<Target>(json!({"apiVersion": "bowline.storage/v1beta1", "kind": "Target", "metadata": {"name": name}, "spec": spec})).await;
    }
    // No certificates: nobody is connected.
    let connections = connect_all(&world.client, &TlsFiles::new("/nowhere")).await.unwrap();
    let (catalog, ..) = world.catalog().await;
    connections.expect(&catalog);
    let mut unconnected = catalog.engine().unconnected();
    unconnected.sort();
    assert_eq!(unconnected, [TargetId::new("other").unwrap()], "the other one is this world's");
    let refused = catalog
        .create_volume(NewVolume { target: Some(TargetId::new("sim").unwrap()), ..order("new") }, LONG)
        .await;
    assert!(refused.unwrap_err().to_string().contains("drained"));
    catalog.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_went_without_a_proof_when_its_volume_object_was_gone_and_the_leader_changed() {
    let Some(world) = World::new().await else { return };
    let controller = world.start().await;
    let volume = controller.volume(&world, "retained").await;
    // As kube-controller-manager names it.
    let name = TicketId::csi(&volume.id, DRIVER, &NodeId::new("a").unwrap()).to_string();
    world.attach(&name, "retained", "a").await;
    world.until_attached(&name).await;
    world.target.set_silent(true);
    world.delete(&name).await;
    world.until_told_to_wait(&name, "id-a").await;
    controller.stop().await;
    let pvs = world.api::<PersistentVolume>();
    pvs.delete("retained", &DeleteParams::default()).await.unwrap();
    let free = json!({"metadata": {"finalizers": null}});
    let _ = pvs.patch("retained", &PatchParams::default(), &Patch::Merge(&free)).await;
    let untold = json!({"status": {"attached": true, "detachError": null}});
    world
        .api::<VolumeAttachment>()
        .patch_status(&name, &PatchParams::default(), &Patch::Merge(&untold))
        .await
        .unwrap();

    let controller = world.start().await;
    world.until_told_to_wait(&name, "id-a").await;
    assert_eq!(world.target.open(&volume.id).len(), 1, "nothing is proven");
    world.target.set_silent(false);
    world.until_gone(&name).await;
    assert_eq!(world.target.open(&volume.id), []);
    world.check();
    controller.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ticket_without_an_object_was_granted_to_a_node_that_was_removed_while_nobody_led() {
    let Some(world) = World::new().await else { return };
    for node in ["a", "b"] {
        // As the chart has it: the driver's name for a node is the Node's.
        world.api::<CSINode>().delete(node, &DeleteParams::default()).await.unwrap();
        world.add_driver_as(node, node).await;
    }
    let controller = world.start().await;
    let (wanted, held) = (controller.create("wanted").await, controller.create("held").await);
    for (volume, id, node) in [(&wanted, "first", "a"), (&wanted, "next", "b"), (&held, "holder", "b")] {
        let ticket = wish(BowlineApi, id, node);
        let wait = if id == "next" { std::time::Duration::ZERO } else { LONG };
        controller.catalog.attach(&volume.id, ticket, Patience::Wait, wait).await.unwrap();
    }
    world.until_open(&held, &["b"]).await;
    controller.stop().await;
    world.api::<CSINode>().delete("b", &DeleteParams::default()).await.unwrap();
    world.api::<Node>().delete("b", &DeleteParams::default()).await.unwrap();

    let controller = world.start().await;
    world.until_open(&held, &[]).await;
    assert_eq!(stands(&controller, &held).await.1, ["NodeGone"]);
    let ticket = Some(TicketId::new("first").unwrap());
    let withdrawal = Withdrawal { ticket, ..Withdrawal::default() };
    controller.catalog.detach(&wanted.id, withdrawal, LONG).await.unwrap();
    assert_eq!(stands(&controller, &wanted).await, (1, vec!["NodeGone"]));
    assert_eq!(world.target.open(&wanted.id), []);
    // It is back, as a machine of its own.
    world.add_node("b").await;
    world.add_driver_as("b", "b").await;
    world.until_open(&wanted, &["b"]).await;
    world.check();
    controller.stop().await;
}
