//! Adoption while the engine runs: nobody is cut off, nobody is let in beside, and what is refused can be mended.

use bowline_cluster::Mirror;
use bowline_cluster::adopt::{Adopter, AdopterParts};
use bowline_controller::Volume;
use bowline_core::{Epoch, NodeId, TargetId, TicketId, Timestamp, VolumeId};
use bowline_store::MemoryStore;
use bowline_target::Provision;
use bowline_target::rds::{RdsTarget, Settings};
use bowline_testkit::routeros::{Firmware, POOL, RouterOs};
use bowline_web::wire::{Adoption, AdoptionState};
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::json;
use std::sync::Arc;

use crate::world::{Controller, DRIVER, World, pv, wait_for};

const OURS: &str = "csi.bowline.storage/attached-node";
const EARLIER: &str = "csi.rds.srvlab.io/attached-node";

fn adopter(world: &World, controller: &Controller, unfinished: bool) -> Adopter {
    Adopter::new(AdopterParts {
        client: world.client.clone(),
        store: Arc::clone(&world.store),
        catalog: controller.catalog.clone(),
        attacher: Some(controller.attacher.clone()),
        unfinished,
    })
}

async fn annotate(world: &World, pv: &str, node: Option<&str>) {
    annotate_as(world, pv, EARLIER, node).await;
}

async fn annotate_as(world: &World, pv: &str, key: &str, node: Option<&str>) {
    let patch = json!({"metadata": {"annotations": {key: node}}});
    world.api::<PersistentVolume>().patch(pv, &PatchParams::default(), &Patch::Merge(&patch)).await.unwrap();
}

/// A cluster whose volumes are attached to `a`, and a controller that has lost all records and knows none of them.
async fn forgotten(names: &[&str]) -> Option<(World, Vec<Volume>, Controller)> {
    let mut world = World::new().await?;
    let first = world.start().await;
    let mut volumes = vec![];
    for name in names {
        volumes.push(first.volume(&world, name).await);
        world.attach(&format!("va-{name}"), name, "a").await;
        world.until_attached(&format!("va-{name}")).await;
    }
    first.stop().await;
    world.store = Arc::new(MemoryStore::default());
    let second = world.start().await;
    Some((world, volumes, second))
}

fn state(report: &Adoption, volume: &Volume) -> (AdoptionState, Option<String>) {
    let found = report.volumes.iter().find(|one| one.volume == volume.id.as_str());
    let found = found.unwrap_or_else(|| panic!("{} is not in {report:?}", volume.id));
    (found.state, found.why.clone())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_agrees_is_adopted_under_a_running_engine_and_the_rest_when_it_was_mended() {
    let Some((world, volumes, controller)) = forgotten(&["agrees", "differs"]).await else { return };
    let [agrees, differs] = volumes.as_slice() else { panic!("two volumes") };
    annotate(&world, "differs", Some("b")).await;
    let before: Vec<_> = volumes.iter().map(|one| world.target.open(&one.id)).collect();
    // Nobody knows them, so nothing is done about them, and nothing is taken back.
    let told = world.until_told("va-agrees", "is not adopted: `bowline adopt --dry-run` says why").await;
    assert!(told.status.unwrap().attached, "what is not known to be false stays");
    let adopter = adopter(&world, &controller, true);

    let shown = adopter.run(true).await.unwrap();
    assert_eq!(state(&shown, agrees), (AdoptionState::Adoptable, None));
    assert!(shown.dry_run && !controller.catalog.knows(&agrees.id), "a dry run writes nothing");
    let why = state(&shown, differs).1.unwrap();
    for part in ["attached to b", "va-differs says a", "remove the annotation attached-node"] {
        assert!(why.contains(part), "{part}: {why}");
    }

    let done = adopter.run(false).await.unwrap();
    assert_eq!(state(&done, agrees), (AdoptionState::Adopted, None));
    assert_eq!(state(&done, differs), (AdoptionState::Refused, Some(why)));
    wait_for("the VolumeAttachment to be well", async || {
        let status = world.attachment("va-agrees").await?.status?;
        (status.attached && status.attach_error.is_none()).then_some(())
    })
    .await;
    let again = adopter.run(false).await.unwrap();
    assert_eq!(state(&again, agrees), (AdoptionState::Known, None));

    annotate(&world, "differs", None).await;
    // Nobody needs to ask: a target that comes is reason enough while something is left.
    adopter.target_came();
    wait_for("the other one to be adopted", async || controller.catalog.knows(&differs.id).then_some(()))
        .await;
    let last = adopter.run(true).await.unwrap();
    assert!(last.volumes.iter().all(|one| one.state == AdoptionState::Known), "{last:?}");
    let after: Vec<_> = volumes.iter().map(|one| world.target.open(&one.id)).collect();
    assert_eq!(before, after, "the very grants they had");

    // From now on they are volumes like any other: for one node at a time.
    world.attach("va-second", "agrees", "b").await;
    world.until_told("va-second", "id-a has the volume").await;
    world.delete("va-agrees").await;
    world.until_attached("va-second").await;
    world.check();
    controller.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_annotations_of_a_volume_that_was_not_adopted_were_removed_and_the_contradiction_with_them() {
    let Some((world, volumes, controller)) = forgotten(&["witness"]).await else { return };
    annotate_as(&world, "witness", OURS, Some("id-b")).await;
    let adopter = adopter(&world, &controller, true);
    let before = state(&adopter.run(false).await.unwrap(), &volumes[0]);
    assert_eq!(before.0, AdoptionState::Refused, "{before:?}");
    let known = controller.volume(&world, "known").await;
    let (attacher, writes) = (Some(controller.attacher.clone()), controller.writes.clone());
    let (client, catalog, pvs) =
        (world.client.clone(), controller.catalog.clone(), Arc::clone(&controller.pvs));
    let _mirror = Mirror::start(client, catalog, pvs, attacher, None, writes).await.unwrap();

    let annotation = async |pv: &str| {
        let object = world.api::<PersistentVolume>().get(pv).await.unwrap();
        object.metadata.annotations.unwrap_or_default().get(OURS).cloned()
    };
    annotate_as(&world, "witness", "test/touched", Some("yes")).await;
    // What is false on a volume that is known goes. It was touched later, so the other one was looked at before the second time.
    for _ in 0..2 {
        annotate_as(&world, "known", OURS, Some("nowhere")).await;
        wait_for("the false annotation to go", async || annotation("known").await.is_none().then_some(()))
            .await;
    }
    assert_eq!(annotation("witness").await.as_deref(), Some("id-b"));
    let after = state(&adopter.run(false).await.unwrap(), &volumes[0]);
    assert_eq!(after, before);
    assert!(controller.catalog.knows(&known.id) && !controller.catalog.knows(&volumes[0].id));
    world.check();
    controller.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_attachment_that_goes_meanwhile_takes_its_ticket_with_it() {
    let Some((world, volumes, controller)) = forgotten(&["going"]).await else { return };
    let adopter = adopter(&world, &controller, true);
    // Without its finalizer it is gone at once, whatever anybody knows.
    let (adopted, ()) = tokio::join!(adopter.run(false), async { world.delete_by_force("va-going").await });
    assert_eq!(state(&adopted.unwrap(), &volumes[0]), (AdoptionState::Adopted, None));
    // Whichever came first: nobody is left in for an object that is not there.
    world.until_open(&volumes[0], &[]).await;
    world.attach("va-next", "going", "b").await;
    world.until_attached("va-next").await;
    world.until_open(&volumes[0], &["id-b"]).await;
    world.check();
    controller.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_detach_of_a_volume_that_was_not_adopted_succeeded_without_a_proof() {
    let Some((world, volumes, controller)) = forgotten(&["unadopted", "silent", "vanished"]).await else {
        return;
    };
    let [unadopted, silent, vanished] = volumes.as_slice() else { panic!("three volumes") };
    let before = world.target.open(&unadopted.id);
    world.delete("va-unadopted").await;
    world.until_told_to_wait("va-unadopted", "is not adopted, and target sim has it").await;
    world.until_told_to_wait("va-unadopted", "`bowline adopt` takes it over").await;
    assert_eq!(world.target.open(&unadopted.id), before, "nothing was done about it");
    // One that does not answer proves nothing.
    world.target.set_silent(true);
    world.delete("va-silent").await;
    world.until_told_to_wait("va-silent", "target sim does not say whether it has it").await;
    world.target.set_silent(false);
    // What no target has is gone.
    world.target.tamper(&vanished.id, |exports| {
        exports.revoke(&NodeId::new("id-a").unwrap(), Epoch::new(9));
    });
    world.target.delete(&vanished.id).await.unwrap();
    world.delete("va-vanished").await;
    world.until_gone("va-vanished").await;
    // Adopted, it goes as any other does: after the proof.
    adopter(&world, &controller, true).run(false).await.unwrap();
    for (name, volume) in [("va-unadopted", unadopted), ("va-silent", silent)] {
        world.until_gone(name).await;
        assert_eq!(world.target.open(&volume.id), [], "{name}");
    }
    world.check();
    controller.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attachment_whose_volume_object_and_records_were_gone_went_without_a_proof() {
    let Some(mut world) = World::new().await else { return };
    let controller = world.start().await;
    let (held, gone) = (controller.volume(&world, "held").await, controller.volume(&world, "gone").await);
    let odd = controller.volume(&world, "odd").await;
    // As kube-controller-manager names it.
    let named = |volume: &Volume| TicketId::csi(&volume.id, DRIVER, &NodeId::new("a").unwrap()).to_string();
    let all = [(named(&held), "held"), (named(&gone), "gone"), ("va-odd".to_owned(), "odd")];
    for (name, pv) in &all {
        world.attach(name, pv, "a").await;
        world.until_attached(name).await;
    }
    controller.stop().await;
    world.store = Arc::new(MemoryStore::default());
    for (_, pv) in &all {
        let pvs = world.api::<PersistentVolume>();
        pvs.delete(pv, &DeleteParams::default()).await.unwrap();
        let free = json!({"metadata": {"finalizers": null}});
        let _ = pvs.patch(pv, &PatchParams::default(), &Patch::Merge(&free)).await;
    }
    let shut_out = |volume: &Volume| {
        world.target.tamper(&volume.id, |exports| {
            exports.revoke(&NodeId::new("id-a").unwrap(), Epoch::new(9));
        });
    };
    shut_out(&gone);
    let controller = world.start().await;
    for (name, _) in &all {
        world.delete(name).await;
    }
    world.until_gone(&all[1].0).await;
    world.until_told_to_wait(&all[0].0, "is not adopted, and target sim has it").await;
    world.until_told_to_wait("va-odd", "restore its PersistentVolume").await;
    assert_eq!((world.target.open(&held.id).len(), world.target.open(&odd.id).len()), (1, 1));
    shut_out(&held);
    world.until_gone(&all[0].0).await;
    world.create::<PersistentVolume>(pv("odd", odd.id.as_str())).await;
    world.until_told_to_wait("va-odd", "is not adopted, and target sim has it").await;
    world.check();
    controller.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_interrupted_adoption_has_left_is_completed_by_the_next() {
    let Some((world, volumes, controller)) = forgotten(&["halfway"]).await else { return };
    // The ledger was written, and then the process ended.
    let targets = [Arc::clone(&world.target) as _];
    let found = bowline_cluster::adopt::find(&world.client, world.store.as_ref(), &targets, |_| true);
    let mut plan = bowline_cluster::adopt::plan(&found.await.unwrap(), Timestamp::now());
    plan.volumes.clear();
    bowline_cluster::adopt::execute(world.store.as_ref(), &plan, Timestamp::now()).await.unwrap();
    let before = world.target.open(&volumes[0].id);
    let done = adopter(&world, &controller, true).run(false).await.unwrap();
    assert_eq!(state(&done, &volumes[0]), (AdoptionState::Adopted, None));
    world.until_attached("va-halfway").await;
    assert_eq!(world.target.open(&volumes[0].id), before);
    world.check();
    controller.stop().await;
}

/// A device on which an older driver exports a volume, and a target on it that may take it over.
async fn device_of_an_older_driver(slot: &str) -> (RouterOs, RdsTarget) {
    let device = RouterOs::new(Firmware::default());
    let add = format!(
        "/disk add type=file file-path=/{POOL}/metal-csi/{slot}.img file-size=1G slot={slot} nvme-tcp-export=yes \
         nvme-tcp-server-port=4420 nvme-tcp-server-nqn=nqn.2000-02.com.mikrotik:{slot}"
    );
    assert_eq!(device.enter(&add).status, Some(0));
    let settings = Settings {
        id: TargetId::new("box").unwrap(),
        installation: "lab-1".to_owned(),
        pool: POOL.to_owned(),
        directory: format!("/{POOL}/bowline"),
        take_over: Some(format!("/{POOL}/metal-csi")),
        addresses: vec!["10.0.0.1:4420".parse().unwrap()],
        trust_readers: false,
    };
    let target = RdsTarget::connect(Arc::new(device.clone()), settings).await.unwrap();
    (device, target)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_of_an_older_driver_gets_its_record_and_its_node_when_it_was_let_go_of() {
    const ID: &str = "pvc-a1b2c3d4-e5f6-7890-abcd-ef1234567890";
    let Some(world) = World::new().await else { return };
    let controller = world.start().await;
    let (device, target) = device_of_an_older_driver(ID).await;
    controller.catalog.add_target(Arc::new(target)).await.unwrap();
    let adopter = adopter(&world, &controller, false);
    let mut older = pv(ID, ID);
    older["spec"]["csi"]["driver"] = json!("rds.csi.srvlab.io");
    world.create::<PersistentVolume>(older).await;
    let shown = adopter.run(true).await.unwrap();
    let [one] = shown.volumes.as_slice() else { panic!("{shown:?}") };
    assert_eq!((one.volume.as_str(), one.state), (ID, AdoptionState::Refused));
    assert!(one.why.as_ref().unwrap().contains("rds.csi.srvlab.io"), "{one:?}");

    let api = world.api::<PersistentVolume>();
    let free = json!({"metadata": {"finalizers": null}});
    api.delete(ID, &DeleteParams::default()).await.unwrap();
    let _ = api.patch(ID, &PatchParams::default(), &Patch::Merge(&free)).await;
    wait_for("the old object to go", async || api.get_opt(ID).await.unwrap().is_none().then_some(())).await;
    world.create::<PersistentVolume>(pv(ID, ID)).await;
    let done = adopter.run(false).await.unwrap();
    let [one] = done.volumes.as_slice() else { panic!("{done:?}") };
    assert_eq!((one.volume.as_str(), one.state), (ID, AdoptionState::Adopted));
    assert!(controller.catalog.knows(&VolumeId::new(ID).unwrap()));

    world.attach("va-older", ID, "a").await;
    world.until_told("va-older", "is still exported as nqn.2000-02.com.mikrotik:pvc-").await;
    assert!(device.doors().iter().all(|door| door.host.is_none()), "as the older driver left it");
    let let_go = format!("/disk set [find slot=\"{ID}\"] nvme-tcp-export=no");
    assert_eq!(device.enter(&let_go).status, Some(0));
    world.until_attached("va-older").await;
    let [door] = device.doors().try_into().unwrap();
    assert!(door.host.is_some() && door.nqn.ends_with(&format!(":id-a:{ID}:e1")), "{door:?}");
    world.delete("va-older").await;
    world.until_gone("va-older").await;
    assert_eq!(device.doors(), []);
    controller.stop().await;
}
