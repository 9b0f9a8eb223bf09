//! Adoption while the engine runs: nobody is cut off, nobody is let in beside, and what is refused can be mended.

use bowline_cluster::adopt::{Adopter, AdopterParts};
use bowline_controller::Volume;
use bowline_core::Timestamp;
use bowline_store::MemoryStore;
use bowline_web::wire::{Adoption, AdoptionState};
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use std::sync::Arc;

use crate::world::{Controller, World, wait_for};

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
    let patch = json!({"metadata": {"annotations": {EARLIER: node}}});
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
