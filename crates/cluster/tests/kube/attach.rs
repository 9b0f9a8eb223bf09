//! Rows of the attacher: objects in, objects out.

use bowline_controller::csi::withdrawal;
use bowline_core::NodeId;
use bowline_store::KubeStore;
use k8s_openapi::api::core::v1::{Node, PersistentVolume};
use k8s_openapi::api::storage::v1::{CSINode, VolumeAttachment};
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::json;
use std::sync::Arc;

use crate::world::{Always, DRIVER, FINALIZER, LONG, World, holding, pv, wait_for};

fn metadata(object: &VolumeAttachment) -> String {
    let metadata = object.status.as_ref().unwrap().attachment_metadata.clone().unwrap();
    metadata["export"].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attach_costs_two_writes_beside_the_ledger_and_a_detach_one() {
    let Some(world) = World::new().await else { return };
    let controller = world.start().await;
    let volume = controller.volume(&world, "plain").await;
    world.attach("va-plain", "plain", "a").await;
    let object = world.until_attached("va-plain").await;
    assert_eq!(object.metadata.finalizers.as_deref().unwrap(), [FINALIZER]);
    assert_eq!(object.metadata.annotations.as_ref().unwrap()["csi.alpha.kubernetes.io/node-id"], "id-a");
    assert_eq!(metadata(&object), format!("{}:id-a:e1", volume.id));
    let status = object.status.unwrap();
    assert!(status.attach_error.is_none() && status.detach_error.is_none());
    assert_eq!(controller.sent(), [1, 1, 0, 0, 0]);
    world.delete("va-plain").await;
    world.until_gone("va-plain").await;
    assert_eq!(world.target.open(&volume.id), [], "the object goes after the proof");
    assert_eq!(controller.sent(), [1, 1, 0, 0, 1]);
    world.check();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_attach_of_a_volume_costs_three_writes_and_a_detach_two_ledger_and_all() {
    let Some(mut world) = World::new().await else { return };
    world.define().await;
    world.store = Arc::new(KubeStore::new(world.client.clone(), Arc::new(Always)));
    // What only confirms comes later than this test looks.
    world.settings.write_within = LONG * 10;
    let controller = world.start().await;
    let volume = controller.volume(&world, "three").await;
    let ledgers = world.api::<bowline_api::VolumeAttachment>();
    let ledger = ledgers.get(volume.id.as_str()).await.unwrap();
    assert!(ledger.status.is_some_and(|status| status.record_version.is_some()), "made with the volume");
    for round in ["first", "second"] {
        let before = world.written().await;
        world.attach("va-three", "three", "a").await;
        world.until_attached("va-three").await;
        // One is the creation itself. The server counts after it has answered.
        wait_for("the server to have counted", async || (world.written().await >= before + 4).then_some(()))
            .await;
        assert_eq!(world.written().await - before, 4, "the {round} attach");
        let before = world.written().await;
        world.delete("va-three").await;
        world.until_gone("va-three").await;
        wait_for("the server to have counted", async || (world.written().await >= before + 3).then_some(()))
            .await;
        assert_eq!(world.written().await - before, 3, "the {round} detach");
    }
    controller.catalog.delete_volume(&volume.id, LONG).await.unwrap();
    assert!(ledgers.get_opt(volume.id.as_str()).await.unwrap().is_none(), "it goes with the volume");
    world.check();
    controller.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ledger_that_was_not_made_with_its_volume_is_made_when_it_is_needed() {
    let Some(mut world) = World::new().await else { return };
    world.define().await;
    world.store = Arc::new(KubeStore::new(world.client.clone(), Arc::new(Always)));
    let controller = world.start().await;
    let volume = controller.volume(&world, "older").await;
    let key = bowline_store::Key::ledger(&volume.id);
    let made = world.store.get(&key).await.unwrap().unwrap();
    world.store.delete(&key, made.revision).await.unwrap();
    world.attach("va-older", "older", "a").await;
    world.until_attached("va-older").await;
    world.delete("va-older").await;
    world.until_gone("va-older").await;
    controller.catalog.delete_volume(&volume.id, LONG).await.unwrap();
    assert!(world.store.get(&key).await.unwrap().is_none());
    world.check();
    controller.stop().await;
}

/// Takes the record out of the object, as somebody in a hurry would, once nothing is left to write.
async fn wipe(world: &World, volume: &bowline_controller::Volume, held: &str) {
    let ledgers = world.api::<bowline_api::VolumeAttachment>();
    let key = bowline_store::Key::ledger(&volume.id);
    wait_for("the ledger to be at rest", async || {
        let entry = world.store.get(&key).await.unwrap()?;
        let ledger: bowline_core::Ledger = bowline_store::record::decode(&entry.value).unwrap();
        let hold = ledger.holds().get(&NodeId::new(held).unwrap())?;
        (hold.phase == bowline_core::Phase::Held).then_some(())
    })
    .await;
    let nothing = Patch::Merge(json!({"status": null}));
    ledgers.patch_status(volume.id.as_str(), &PatchParams::default(), &nothing).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_status_that_was_wiped_while_the_leader_ran_let_a_second_node_in() {
    let Some(mut world) = World::new().await else { return };
    world.define().await;
    world.store = Arc::new(KubeStore::new(world.client.clone(), Arc::new(Always)));
    let controller = world.start().await;
    let volume = controller.volume(&world, "wiped").await;
    world.attach("va-wiped-a", "wiped", "a").await;
    world.until_attached("va-wiped-a").await;
    wipe(&world, &volume, "id-a").await;
    world.attach("va-wiped-b", "wiped", "b").await;
    world.until_told("va-wiped-b", "id-a has the volume").await;
    let id = |name| NodeId::new(name).unwrap();
    assert_eq!(world.target.open(&volume.id), [(1, id("id-a"))], "the very grant it had");
    let kept = world.until_attached("va-wiped-a").await;
    assert_eq!(metadata(&kept), format!("{}:id-a:e1", volume.id));
    world.check();
    // A detach is not believed without the target's proof either.
    wipe(&world, &volume, "id-a").await;
    world.delete("va-wiped-a").await;
    world.until_gone("va-wiped-a").await;
    assert!(!world.target.open(&volume.id).contains(&(1, id("id-a"))), "the object goes after the proof");
    world.until_attached("va-wiped-b").await;
    world.until_open(&volume, &["id-b"]).await;
    world.check();
    controller.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_has_to_wait_is_told_why_and_gets_it_afterwards() {
    let Some(world) = World::new().await else { return };
    let controller = world.start().await;
    let volume = controller.volume(&world, "two").await;
    world.attach("va-two-a", "two", "a").await;
    world.until_attached("va-two-a").await;
    world.attach("va-two-b", "two", "b").await;
    let waiting = world.until_told("va-two-b", "id-a has the volume").await;
    assert!(!waiting.status.unwrap().attached);
    assert_eq!(waiting.metadata.finalizers.unwrap(), [FINALIZER]);
    world.delete("va-two-a").await;
    let object = world.until_attached("va-two-b").await;
    assert!(object.status.unwrap().attach_error.is_none(), "errors are cleared");
    world.until_open(&volume, &["id-b"]).await;
    assert_eq!(controller.sent()[2], 1, "one reason, one write");
    world.check();
}

#[tokio::test(flavor = "multi_thread")]
async fn who_waits_is_told_anew_when_somebody_else_has_it() {
    let Some(world) = World::new().await else { return };
    world.add_node("c").await;
    world.add_driver("c").await;
    let controller = world.start().await;
    controller.volume(&world, "passed-on").await;
    world.attach("va-first", "passed-on", "a").await;
    world.until_attached("va-first").await;
    world.attach("va-next", "passed-on", "b").await;
    world.until_told("va-next", "id-a has the volume").await;
    world.attach("va-last", "passed-on", "c").await;
    world.until_told("va-last", "id-a has the volume").await;
    world.delete("va-first").await;
    world.until_attached("va-next").await;
    world.until_told("va-last", "id-b has the volume").await;
    world.check();
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_gets_the_volume_while_its_object_is_being_marked_is_shown_attached() {
    let Some(world) = World::new().await else { return };
    let (slow, let_through) = holding(&world.client, "va-slow");
    let controller = world.start_with(slow).await;
    let volume = controller.volume(&world, "marked").await;
    world.attach("va-first", "marked", "a").await;
    world.until_attached("va-first").await;
    world.attach("va-slow", "marked", "b").await;
    wait_for("the second ticket to wait", async || {
        let view = controller.catalog.view(&volume.id).await.unwrap();
        view.verdicts.values().any(|one| one.reason() == "HeldElsewhere").then_some(())
    })
    .await;
    world.delete("va-first").await;
    world.until_gone("va-first").await;
    world.until_open(&volume, &["id-b"]).await;
    let_through.send_replace(true);
    world.until_attached("va-slow").await;
    world.check();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_missing_is_named_and_waited_for() {
    let Some(world) = World::new().await else { return };
    let controller = world.start().await;
    let volume = controller.create("late").await;
    world.attach("va-late", "late", "c").await;
    world.until_told("va-late", "PersistentVolume late is not there").await;
    world.create::<PersistentVolume>(pv("late", volume.id.as_str())).await;
    world.until_told("va-late", "node c does not run this driver").await;
    world.add_node("c").await;
    world.add_driver("c").await;
    world.until_attached("va-late").await;
    world.create::<PersistentVolume>(pv("nowhere", "nowhere-00000001")).await;
    world.attach("va-nowhere", "nowhere", "a").await;
    let object = world.until_told("va-nowhere", "there is no volume nowhere-00000001").await;
    assert_eq!(object.metadata.finalizers, None, "nothing was granted, so nothing needs to be kept");
    world.delete("va-nowhere").await;
    world.until_gone("va-nowhere").await;
    world.check();
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_detached_before_the_target_proves_it() {
    let Some(world) = World::new().await else { return };
    let controller = world.start().await;
    let volume = controller.volume(&world, "silent").await;
    world.attach("va-silent", "silent", "a").await;
    world.until_attached("va-silent").await;
    world.target.set_silent(true);
    world.delete("va-silent").await;
    world.until_told_to_wait("va-silent", "id-a").await;
    let object = world.attachment("va-silent").await.unwrap();
    assert!(object.status.unwrap().attached, "nothing is proven");
    assert_eq!(object.metadata.finalizers.unwrap(), [FINALIZER]);
    world.target.set_silent(false);
    world.until_gone("va-silent").await;
    assert_eq!(world.target.open(&volume.id), []);
    world.check();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attachment_deleted_while_its_grant_is_pending_leaves_nothing() {
    let Some(world) = World::new().await else { return };
    let controller = world.start().await;
    let volume = controller.volume(&world, "pending").await;
    world.target.set_silent(true);
    world.attach("va-pending", "pending", "a").await;
    world.until_told("va-pending", "id-a").await;
    world.delete("va-pending").await;
    world.until_told_to_wait("va-pending", "id-a").await;
    world.target.set_silent(false);
    world.until_gone("va-pending").await;
    world.until_open(&volume, &[]).await;
    let view = controller.catalog.view(&volume.id).await.unwrap();
    assert!(view.ledger.tickets().is_empty() && view.ledger.holds().is_empty(), "{:?}", view.ledger);
    world.check();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_torn_away_while_it_waits_for_proof_is_not_the_end_of_it() {
    let Some(world) = World::new().await else { return };
    let controller = world.start().await;
    let volume = controller.volume(&world, "torn").await;
    world.attach("va-torn", "torn", "a").await;
    world.until_attached("va-torn").await;
    world.target.set_silent(true);
    world.delete_by_force("va-torn").await;
    world.attach("va-torn-b", "torn", "b").await;
    world.until_told("va-torn-b", "id-a").await;
    assert_eq!(world.target.open(&volume.id).len(), 1, "nothing is proven");
    world.target.set_silent(false);
    world.until_attached("va-torn-b").await;
    world.until_open(&volume, &["id-b"]).await;
    let view = controller.catalog.view(&volume.id).await.unwrap();
    assert_eq!(view.ledger.tickets().len(), 1, "{:?}", view.ledger);
    world.check();
}

#[tokio::test(flavor = "multi_thread")]
async fn another_object_of_the_same_name_inherits_nothing() {
    let Some(world) = World::new().await else { return };
    let controller = world.start().await;
    let volume = controller.volume(&world, "again").await;
    world.attach("va-again", "again", "a").await;
    let first = world.until_attached("va-again").await;
    world.delete_by_force("va-again").await;
    world.attach("va-again", "again", "a").await;
    let second = world.until_attached("va-again").await;
    assert_ne!(first.metadata.uid, second.metadata.uid);
    let (first, second) = (metadata(&first), metadata(&second));
    assert_ne!(first, second, "a grant of its own");
    world.until_open(&volume, &["id-a"]).await;
    world.check();
}

#[tokio::test(flavor = "multi_thread")]
async fn drift_is_repaired_both_ways() {
    let Some(world) = World::new().await else { return };
    let controller = world.start().await;
    let volume = controller.volume(&world, "drift").await;
    world.attach("va-drift", "drift", "a").await;
    let first = metadata(&world.until_attached("va-drift").await);
    let api = world.api::<VolumeAttachment>();
    // The object says less than the ledger.
    let wiped = json!({"status": {"attached": false, "attachmentMetadata": null}});
    api.patch_status("va-drift", &PatchParams::default(), &Patch::Merge(&wiped)).await.unwrap();
    assert_eq!(metadata(&world.until_attached("va-drift").await), first);
    world.unfinalize("va-drift").await;
    wait_for("the finalizer to come back", async || {
        world.attachment("va-drift").await.unwrap().metadata.finalizers.filter(|all| all == &[FINALIZER])
    })
    .await;
    // The object says more than the ledger: it still wants the volume, so it gets a new grant.
    let node = NodeId::new("id-a").unwrap();
    controller.catalog.detach(&volume.id, withdrawal(&volume.id, &node), LONG).await.unwrap();
    wait_for("a new grant to be told", async || {
        let object = world.attachment("va-drift").await?;
        (metadata(&world.until_attached("va-drift").await) != first && object.status?.attached).then_some(())
    })
    .await;
    world.until_open(&volume, &["id-a"]).await;
    world.check();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_finds_everything_again_and_withdraws_what_is_gone() {
    let Some(world) = World::new().await else { return };
    let controller = world.start().await;
    let (kept, torn) = (controller.volume(&world, "kept").await, controller.volume(&world, "lost").await);
    world.attach("va-kept", "kept", "a").await;
    world.attach("va-lost", "lost", "b").await;
    let before = metadata(&world.until_attached("va-kept").await);
    world.until_attached("va-lost").await;
    controller.stop().await;
    world.delete_by_force("va-lost").await;
    let controller = world.start().await;
    world.until_open(&torn, &[]).await;
    let events = controller.catalog.events(Some(&torn.id), 100);
    assert!(events.iter().any(|event| event.reason == "OwnerGone"), "{events:?}");
    assert_eq!(metadata(&world.attachment("va-kept").await.unwrap()), before);
    world.until_open(&kept, &["id-a"]).await;
    assert_eq!(controller.sent(), [0; 5], "what is as it should be costs no writes");
    world.check();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_out_of_service_or_removed_is_fenced() {
    let Some(world) = World::new().await else { return };
    let controller = world.start().await;
    let volume = controller.volume(&world, "failing").await;
    world.attach("va-failing-a", "failing", "a").await;
    world.until_attached("va-failing-a").await;
    world.attach("va-failing-b", "failing", "b").await;
    world.until_told("va-failing-b", "id-a has the volume").await;
    let taint = json!({"spec": {"taints": [{"key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown", "effect": "NoExecute"}]}});
    world.api::<Node>().patch("a", &PatchParams::default(), &Patch::Merge(&taint)).await.unwrap();
    world.until_attached("va-failing-b").await;
    let told = world.until_told("va-failing-a", "out of service").await;
    assert!(told.status.unwrap().attached, "kube-controller-manager would never delete it");
    world.until_open(&volume, &["id-b"]).await;
    // Node and CSINode go; the object remembers the driver's name for it.
    world.api::<CSINode>().delete("b", &DeleteParams::default()).await.unwrap();
    world.api::<Node>().delete("b", &DeleteParams::default()).await.unwrap();
    world.until_open(&volume, &[]).await;
    let told = world.until_told("va-failing-b", "removed from the cluster").await;
    assert!(told.status.unwrap().attached, "as before");
    for name in ["va-failing-a", "va-failing-b"] {
        world.delete(name).await;
        world.until_gone(name).await;
    }
    world.check();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_could_not_be_shut_out_was_shown_as_detached() {
    let Some(world) = World::new().await else { return };
    let controller = world.start().await;
    let volume = controller.volume(&world, "stuck").await;
    world.attach("va-stuck", "stuck", "a").await;
    world.until_attached("va-stuck").await;
    let node = NodeId::new("id-a").unwrap();
    world.target.set_busy(&node, Some("/dev/loop7"));
    let taints = async |taints| {
        let patch = json!({"spec": {"taints": taints}});
        world.api::<Node>().patch("a", &PatchParams::default(), &Patch::Merge(&patch)).await.unwrap();
    };
    taints(json!([{"key": "node.kubernetes.io/out-of-service", "value": "wrong", "effect": "NoExecute"}]))
        .await;
    world.until_told("va-stuck", "out of service").await;
    // The fence that has begun goes on, and is not proven.
    taints(json!(null)).await;
    let told = world.until_told("va-stuck", "/dev/loop7 still uses the volume").await;
    assert!(told.status.unwrap().attached, "nothing is proven");
    assert_eq!(world.target.open(&volume.id).len(), 1);
    world.target.set_busy(&node, None);
    wait_for("a new grant to be told", async || {
        let object = world.attachment("va-stuck").await?;
        let status = object.status.as_ref()?;
        (status.attach_error.is_none() && metadata(&object).ends_with(":e2")).then_some(())
    })
    .await;
    world.until_open(&volume, &["id-a"]).await;
    world.check();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_removed_while_nobody_watched_is_fenced_after_the_start() {
    let Some(world) = World::new().await else { return };
    let controller = world.start().await;
    let volume = controller.volume(&world, "orphan").await;
    world.attach("va-orphan", "orphan", "b").await;
    world.until_attached("va-orphan").await;
    controller.stop().await;
    world.api::<CSINode>().delete("b", &DeleteParams::default()).await.unwrap();
    world.api::<Node>().delete("b", &DeleteParams::default()).await.unwrap();
    let _controller = world.start().await;
    world.until_open(&volume, &[]).await;
    world.until_told("va-orphan", "removed from the cluster").await;
    world.check();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_api_server_that_was_away_and_has_forgotten_is_asked_anew() {
    let Some(world) = World::new().await else { return };
    let lab = crate::world::lab().unwrap();
    let controller = world.start().await;
    let volume = controller.volume(&world, "away").await;
    world.attach("va-away", "away", "a").await;
    world.until_attached("va-away").await;
    lab.stop_api_server();
    lab.start_api_server();
    lab.forget_history();
    world.delete("va-away").await;
    world.until_gone("va-away").await;
    world.attach("va-away-b", "away", "b").await;
    world.until_attached("va-away-b").await;
    world.until_open(&volume, &["id-b"]).await;
    world.check();
}

#[tokio::test(flavor = "multi_thread")]
async fn many_at_once_are_all_served() {
    const MANY: usize = 200;
    let Some(world) = World::new().await else { return };
    let controller = world.start().await;
    for number in 0..MANY {
        controller.volume(&world, &format!("many-{number}")).await;
    }
    let nodes = ["a", "b"];
    for node in nodes {
        let limit = json!({"spec": {"drivers": [{"name": DRIVER, "nodeID": format!("id-{node}")}]}});
        world.api::<CSINode>().delete(node, &DeleteParams::default()).await.unwrap();
        let csi = json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": {"name": node}, "spec": limit["spec"]});
        world.create::<CSINode>(csi).await;
    }
    let began = std::time::Instant::now();
    let names: Vec<String> = (0..MANY).map(|number| format!("va-many-{number}")).collect();
    futures::future::join_all((0..MANY).map(|number| {
        world.attach(&names[number], names[number].trim_start_matches("va-"), nodes[number % 2])
    }))
    .await;
    for name in &names {
        world.until_attached(name).await;
    }
    let attached = began.elapsed();
    let began = std::time::Instant::now();
    futures::future::join_all(names.iter().map(|name| world.delete(name))).await;
    for name in &names {
        world.until_gone(name).await;
    }
    println!(
        "{MANY} attached in {attached:?}, detached in {:?}; writes {:?}",
        began.elapsed(),
        controller.sent()
    );
    let many = u64::try_from(MANY).unwrap();
    assert_eq!(controller.sent(), [many, many, 0, 0, many]);
    world.check();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_may_be_written_into_its_attachment() {
    let Some(world) = World::new().await else { return };
    let controller = world.start().await;
    let volume = controller.create("inline").await;
    let mut spec = pv("inline", volume.id.as_str())["spec"].clone();
    spec["claimRef"] = json!(null);
    spec["capacity"] = json!(null);
    world
        .create::<VolumeAttachment>(json!({"apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment", "metadata": {"name": "va-inline"},
            "spec": {"attacher": DRIVER, "nodeName": "a", "source": {"inlineVolumeSpec": spec}}}))
        .await;
    world.until_attached("va-inline").await;
    world.delete("va-inline").await;
    world.until_gone("va-inline").await;
    world.until_open(&volume, &[]).await;
}
