//! Snapshots of one volume and of several together.

use bowline_controller::{Group, NewVolume, Snapshot, SnapshotState, Source};
use bowline_core::{Slot, SnapshotId};
use bowline_store::{Expected, Key, Kind, record};
use bowline_target::{Cut, Item, Progress, Provision};
use std::time::Duration;
use tonic::Code;

use crate::world::{GIB, LONG, World, create, name, order, rest, told};

#[tokio::test(start_paused = true)]
async fn a_snapshot_is_taken_once_and_outlives_its_volume() {
    let world = World::new();
    let catalog = world.catalog().await;
    let (volume, other) = (create(&catalog, "one").await, create(&catalog, "two").await);
    let snapshot = catalog.create_snapshot(name("s"), &volume.id, LONG).await.unwrap();
    assert_eq!(snapshot.taken().unwrap().0, GIB);
    assert_eq!(catalog.create_snapshot(name("s"), &volume.id, LONG).await.unwrap(), snapshot);
    told(catalog.create_snapshot(name("s"), &other.id, LONG).await, Code::AlreadyExists, "is another");
    let gone = bowline_testkit::volume("gone");
    told(catalog.create_snapshot(name("t"), &gone, LONG).await, Code::NotFound, "there is no volume");
    catalog.delete_volume(&volume.id, LONG).await.unwrap();
    assert_eq!(catalog.create_snapshot(name("s"), &volume.id, LONG).await.unwrap(), snapshot);
    let copy = NewVolume { source: Some(Source::Snapshot(snapshot.id.clone())), ..order("copy") };
    assert_eq!(catalog.create_volume(copy.clone(), LONG).await.unwrap().size, GIB);
    let small = NewVolume { required: Some(GIB / 2), name: name("small"), ..copy };
    told(catalog.create_volume(small, LONG).await, Code::OutOfRange, "copied into it");
    catalog.delete_snapshot(&snapshot.id, LONG).await.unwrap();
    catalog.delete_snapshot(&snapshot.id, LONG).await.unwrap();
    told(catalog.snapshot(&snapshot.id).await, Code::NotFound, "there is no snapshot");
    assert!(world.target.items().iter().all(|item| matches!(item, Item::Volume(_))));
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_that_is_copied_from_is_not_deleted() {
    let world = World::new();
    let catalog = world.catalog().await;
    let volume = create(&catalog, "one").await;
    let snapshot = catalog.create_snapshot(name("s"), &volume.id, LONG).await.unwrap();
    world.target.set_copying(false);
    let copy = NewVolume { source: Some(Source::Snapshot(snapshot.id.clone())), ..order("copy") };
    let (second, again) = (catalog.clone(), copy.clone());
    let copying = tokio::spawn(async move { second.create_volume(again, LONG).await });
    rest().await;
    told(catalog.delete_snapshot(&snapshot.id, LONG).await, Code::Aborted, "being copied");
    let short = Duration::from_secs(1);
    told(catalog.create_snapshot(name("t"), &volume.id, short).await, Code::DeadlineExceeded, "goes on");
    told(catalog.delete_volume(&volume.id, LONG).await, Code::Aborted, "being copied");
    world.target.set_copying(true);
    copying.await.unwrap().unwrap();
    catalog.create_snapshot(name("t"), &volume.id, LONG).await.unwrap();
    catalog.delete_snapshot(&snapshot.id, LONG).await.unwrap();
}

/// A record of a snapshot that somebody began to take, and then died.
async fn begun(world: &World, called: &str, volume: &bowline_core::VolumeId) -> Snapshot {
    let slot = Slot::of_name(called);
    let snapshot = Snapshot {
        id: SnapshotId::new(slot.id(7)).unwrap(),
        name: called.to_owned(),
        volume: volume.clone(),
        target: bowline_core::TargetId::new("sim").unwrap(),
        group: None,
        created_at: bowline_core::Timestamp::UNIX_EPOCH,
        state: SnapshotState::Taking,
    };
    let key = Key::new(Kind::Snapshot, slot.as_str());
    world.store.put(&key, record::encode(&snapshot).unwrap(), Expected::Absent).await.unwrap();
    snapshot
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_begun_before_a_crash_is_that_moment_or_none() {
    let world = World::new();
    let volume = create(&world.catalog().await, "one").await;
    let whole = begun(&world, "whole", &volume.id).await;
    let cut = Cut { snapshot: whole.id.clone(), name: "whole".to_owned(), volume: volume.id.clone() };
    world.target.snapshot(&[cut], &Progress::default()).await.unwrap();
    let never = begun(&world, "never", &volume.id).await;
    let catalog = world.catalog().await;
    rest().await;
    assert!(catalog.snapshot(&whole.id).await.unwrap().taken().is_some());
    told(catalog.snapshot(&never.id).await, Code::NotFound, "there is no snapshot");
    let anew = catalog.create_snapshot(name("never"), &volume.id, LONG).await.unwrap();
    assert_ne!(anew.id, never.id);
}

#[tokio::test(start_paused = true)]
async fn a_group_begun_before_a_crash_comes_to_its_end_though_nobody_asks() {
    for (state, lost, there) in [
        (SnapshotState::Taking, false, true),
        (SnapshotState::Taking, true, false),
        (SnapshotState::Deleting, false, false),
    ] {
        let world = World::new();
        let catalog = world.catalog().await;
        let volumes = [create(&catalog, "one").await.id, create(&catalog, "two").await.id];
        let (group, members) = catalog.create_group(name("g"), &volumes, LONG).await.unwrap();
        let begun = Group { state: state.clone(), ..group.clone() };
        let mut records =
            vec![(Key::new(Kind::Group, Slot::of_name("g").as_str()), record::encode(&begun).unwrap())];
        for member in &members {
            let begun = Snapshot { state: SnapshotState::Taking, ..member.clone() };
            let slot = Slot::of_id(member.id.as_str()).unwrap();
            records.push((Key::new(Kind::Snapshot, slot.as_str()), record::encode(&begun).unwrap()));
        }
        for (key, bytes) in records {
            let now = world.store.get(&key).await.unwrap().unwrap();
            world.store.put(&key, bytes, Expected::At(now.revision)).await.unwrap();
        }
        if lost {
            world.target.lose(&Item::Snapshot(members[1].id.clone()));
        }
        let catalog = world.catalog().await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        match catalog.group(&group.id).await {
            Ok(found) => assert_eq!((found, there), ((group, members), true)),
            Err(error) => assert!(!there, "{state:?} {lost}: {error}"),
        }
        assert_eq!(world.target.items().len(), if there { 4 } else { 2 });
    }
}

#[tokio::test(start_paused = true)]
async fn a_group_is_taken_and_deleted_as_a_whole() {
    let world = World::new();
    let catalog = world.catalog().await;
    let volumes = [create(&catalog, "one").await.id, create(&catalog, "two").await.id];
    let other = create(&catalog, "three").await.id;
    let (group, members) = catalog.create_group(name("g"), &volumes, LONG).await.unwrap();
    let moments: Vec<_> = members.iter().map(|one| one.taken().unwrap().1).collect();
    assert_eq!(moments[0], moments[1]);
    assert_eq!(group.state.taken(), Some((2 * GIB, moments[0])));
    assert_eq!(
        catalog.create_group(name("g"), &volumes, LONG).await.unwrap(),
        (group.clone(), members.clone())
    );
    told(
        catalog.create_group(name("g"), std::slice::from_ref(&other), LONG).await,
        Code::AlreadyExists,
        "other volumes",
    );
    told(catalog.create_group(name("h"), &[], LONG).await, Code::InvalidArgument, "1 to 128");
    let twice = [other.clone(), other.clone()];
    told(catalog.create_group(name("h"), &twice, LONG).await, Code::InvalidArgument, "twice");
    let gone = bowline_testkit::volume("gone");
    let failed = catalog.create_group(name("h"), &[other, gone], LONG).await;
    told(failed, Code::NotFound, "there is no volume");
    assert_eq!(catalog.snapshots(None, None, 10).await.unwrap().entries.len(), 2);
    told(catalog.delete_snapshot(&members[0].id, LONG).await, Code::FailedPrecondition, "belongs to group");
    assert_eq!(catalog.group(&group.id).await.unwrap().1, members);
    catalog.delete_group(&group.id, LONG).await.unwrap();
    catalog.delete_group(&group.id, LONG).await.unwrap();
    told(catalog.group(&group.id).await, Code::NotFound, "there is no group");
    assert_eq!(world.target.items().len(), 3);
}
