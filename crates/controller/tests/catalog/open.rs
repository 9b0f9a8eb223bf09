//! The start: everything is read back, what is wrong is named, what was begun is completed; and what does not go together
//! is told.

use bowline_controller::{OpenError, Volume, VolumeState};
use bowline_core::Slot;
use bowline_engine::Patience;
use bowline_store::{Expected, Key, Kind, RedbStore, record};
use bowline_target::{Item, NewVolume, Progress, Provision};
use bowline_testkit::{Fate, SimTarget, csi, node};
use std::sync::Arc;
use tonic::Code;

use crate::world::{GIB, LONG, World, create, name, order, rest, told};

fn calm() -> Arc<Fate> {
    Arc::new(Fate::calm())
}

async fn put(world: &World, kind: Kind, at: &str, bytes: Vec<u8>) {
    let key = Key::new(kind, at);
    let now = world.store.get(&key).await.unwrap();
    let expected = now.map_or(Expected::Absent, |now| Expected::At(now.revision));
    world.store.put(&key, bytes, expected).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_record_that_is_wrong_stops_the_start_and_is_named() {
    for kind in [Kind::Volume, Kind::Snapshot, Kind::Group, Kind::Node] {
        let world = World::new();
        put(&world, kind, "x", b"{}".to_vec()).await;
        let error = world.catalog_with(calm()).await.err().unwrap();
        assert!(matches!(error, OpenError::Record { .. }), "{error}");
        assert!(error.to_string().contains(&format!("{kind}/x cannot be understood")), "{error}");
    }
    let world = World::new();
    let volume = create(&world.catalog().await, "v").await;
    put(&world, Kind::Volume, "elsewhere", record::encode(&volume).unwrap()).await;
    let error = world.catalog_with(calm()).await.err().unwrap();
    assert!(matches!(error, OpenError::Misplaced { .. }), "{error}");
}

#[tokio::test(start_paused = true)]
async fn what_was_begun_is_completed_without_being_asked() {
    for (state, there) in [
        (VolumeState::Creating, true),
        (VolumeState::Growing { to: 2 * GIB }, true),
        (VolumeState::Deleting, false),
    ] {
        let world = World::new();
        let volume = create(&world.catalog().await, "v").await;
        let slot = Slot::of_name("v");
        if state == VolumeState::Creating {
            world.target.lose(&Item::Volume(volume.id.clone()));
        }
        let begun = Volume { state: state.clone(), ..volume.clone() };
        put(&world, Kind::Volume, slot.as_str(), record::encode(&begun).unwrap()).await;
        let catalog = world.catalog().await;
        rest().await;
        assert_eq!(world.target.items().len(), usize::from(there), "{state:?}");
        match catalog.volume(&volume.id).await {
            Ok(found) => assert_eq!((found.state, there), (VolumeState::Ready, true)),
            Err(error) => assert!(!there, "{error}"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_name_whose_digest_is_taken_is_told() {
    let world = World::new();
    let catalog = world.catalog().await;
    let volume = create(&catalog, "v").await;
    let twin = Volume { name: "twin".to_owned(), ..volume };
    put(&world, Kind::Volume, Slot::of_name("v").as_str(), record::encode(&twin).unwrap()).await;
    told(catalog.create_volume(order("v"), LONG).await, Code::AlreadyExists, "digest is the same");
}

#[tokio::test(start_paused = true)]
async fn what_is_stored_without_a_record_and_recorded_without_storage_is_drift() {
    let world = World::new();
    let catalog = world.catalog().await;
    let (kept, lost) = (create(&catalog, "kept").await, create(&catalog, "lost").await);
    assert_eq!(catalog.drift().await.unwrap(), bowline_controller::Drift::default());
    world.target.lose(&Item::Volume(lost.id.clone()));
    let stray = bowline_testkit::volume("stray");
    let order = NewVolume { volume: stray.clone(), name: "stray".to_owned(), size: GIB, source: None };
    world.target.create(&order, &Progress::default()).await.unwrap();
    let drift = catalog.drift().await.unwrap();
    assert_eq!(
        (drift.unknown, drift.missing),
        (vec![Item::Volume(stray)], vec![Item::Volume(lost.id.clone())])
    );
    assert!(catalog.volume_fault(&lost.id).await.unwrap().unwrap().contains("not on target"));
    world.target.set_fault(&kept.id, "a bad block");
    assert_eq!(catalog.volume_fault(&kept.id).await.unwrap().unwrap(), "a bad block");
}

#[tokio::test]
async fn everything_is_there_again_after_a_restart_on_a_disk() {
    let dir = tempfile::tempdir().unwrap();
    let on_disk = |target: &Arc<SimTarget>| World {
        store: Arc::new(RedbStore::open(dir.path()).unwrap()),
        target: Arc::clone(target),
        ..World::new()
    };
    let target = Arc::new(SimTarget::new("sim"));
    let world = on_disk(&target);
    let catalog = world.catalog().await;
    let volume = create(&catalog, "v").await;
    let snapshot = catalog.create_snapshot(name("s"), &volume.id, LONG).await.unwrap();
    let (group, members) =
        catalog.create_group(name("g"), std::slice::from_ref(&volume.id), LONG).await.unwrap();
    catalog.attach(&volume.id, csi("a"), Patience::Wait, LONG).await.unwrap();
    catalog.set_out_of_service(&node("c"), true).await.unwrap();
    catalog.close().await;
    told(catalog.create_volume(order("late"), LONG).await, Code::Unavailable, "stopping");
    // The lock on the directory shows that nothing of it is left.
    drop((catalog, world));
    let world = on_disk(&target);
    let catalog = world.catalog().await;
    assert_eq!(catalog.volume(&volume.id).await.unwrap(), volume);
    assert_eq!(catalog.snapshot(&snapshot.id).await.unwrap(), snapshot);
    assert_eq!(catalog.group(&group.id).await.unwrap(), (group, members));
    assert!(catalog.nodes().await.unwrap().iter().any(|node| node.out_of_service.is_some()));
    let view = catalog.view(&volume.id).await.unwrap();
    assert_eq!(view.ledger.holds().keys().collect::<Vec<_>>(), [&node("a")]);
    assert_eq!(catalog.drift().await.unwrap(), bowline_controller::Drift::default());
}
