//! Making, growing, changing and deleting volumes.

use bowline_controller::{Change, NewVolume, Settings, Source, Use, Volume, VolumeState};
use bowline_core::{AccessMode, Content, FsType, Slot, SnapshotId, VolumeId};
use bowline_csi::code::Reason;
use bowline_engine::{Patience, Submitted, Withdrawal};
use bowline_store::{Expected, Key, Kind, record};
use bowline_target::Item;
use bowline_testkit::csi;
use std::time::Duration;
use tonic::Code;

use crate::world::{GIB, LONG, World, create, order, rest, told};

#[tokio::test(start_paused = true)]
async fn the_same_name_is_the_same_volume_and_another_order_is_different() {
    let world = World::new();
    let catalog = world.catalog().await;
    let volume = create(&catalog, "pvc-1").await;
    assert_eq!((volume.size, volume.state.clone(), volume.fs), (GIB, VolumeState::Ready, FsType::Ext4));
    assert_eq!(create(&catalog, "pvc-1").await, volume);
    let block = Use { access: AccessMode::SingleNodeWriter, content: Content::Block };
    for (other, part) in [
        (NewVolume { required: Some(2 * GIB), ..order("pvc-1") }, "it has 1073741824 bytes"),
        (NewVolume { limit: Some(GIB / 2), ..order("pvc-1") }, "it has 1073741824 bytes"),
        (NewVolume { fs: Some(FsType::Xfs), ..order("pvc-1") }, "its filesystem is ext4"),
        (NewVolume { uses: vec![block], ..order("pvc-1") }, "used in other ways"),
        (
            NewVolume { settings: Settings { discard: true, ..Settings::default() }, ..order("pvc-1") },
            "mutable parameters",
        ),
    ] {
        told(catalog.create_volume(other, LONG).await, Code::AlreadyExists, part);
    }
    let same = NewVolume { required: Some(GIB / 2), limit: Some(GIB), ..order("pvc-1") };
    assert_eq!(catalog.create_volume(same, LONG).await.unwrap().id, volume.id);
    assert_eq!(world.target.items(), [Item::Volume(volume.id)]);
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_made_leaves_nothing_behind() {
    let world = World::new();
    let catalog = world.catalog().await;
    let strange = VolumeId::new("nobody-knows-it").unwrap();
    let gone = VolumeId::new("0123456789abcdef01234567-00000001").unwrap();
    let no_snapshot = SnapshotId::new("0123456789abcdef01234567-00000001").unwrap();
    let shared = Use { access: AccessMode::MultiNodeMultiWriter, content: Content::Filesystem };
    let from = |source| NewVolume { source: Some(source), ..order("x") };
    for (other, code, part) in [
        (from(Source::Volume(strange)), Code::NotFound, "there is no volume"),
        (from(Source::Volume(gone)), Code::NotFound, "there is no volume"),
        (from(Source::Snapshot(no_snapshot)), Code::NotFound, "there is no snapshot"),
        (NewVolume { uses: vec![shared], ..order("x") }, Code::InvalidArgument, "needs a server"),
        (NewVolume { uses: vec![], ..order("x") }, Code::InvalidArgument, "at least one way"),
        (NewVolume { required: Some(1 << 50), ..order("x") }, Code::OutOfRange, "more than"),
        (NewVolume { limit: Some(4096), ..order("x") }, Code::OutOfRange, "limit"),
    ] {
        told(catalog.create_volume(other, LONG).await, code, part);
    }
    world.target.set_room(GIB / 2);
    told(catalog.create_volume(order("x"), LONG).await, Code::ResourceExhausted, "there is no room");
    assert_eq!(world.target.items(), []);
    assert_eq!(catalog.volumes(None, 10).await.unwrap().entries, []);
    world.target.set_room(2 * GIB);
    create(&catalog, "x").await;
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_hangs_up_stops_nothing_and_its_retry_joins() {
    let world = World::new();
    let catalog = world.catalog().await;
    let source = create(&catalog, "source").await;
    world.target.set_copying(false);
    let copy = NewVolume { source: Some(Source::Volume(source.id.clone())), ..order("copy") };
    told(
        catalog.create_volume(copy.clone(), Duration::from_secs(1)).await,
        Code::DeadlineExceeded,
        "goes on",
    );
    let made = catalog.find_volume("copy").await.unwrap();
    assert_eq!(made.state, VolumeState::Creating);
    assert_eq!(catalog.progress(&made.id), Some((0, GIB)));
    told(catalog.create_volume(order("copy"), LONG).await, Code::Aborted, "being made");
    told(catalog.delete_volume(&source.id, LONG).await, Code::Aborted, "being copied");
    told(catalog.grow_volume(&source.id, 2 * GIB, None, LONG).await, Code::Aborted, "being copied");
    told(catalog.delete_volume(&made.id, LONG).await, Code::Aborted, "being made");
    let (second, third) = (catalog.clone(), copy.clone());
    let joined = tokio::spawn(async move { second.create_volume(third, LONG).await });
    rest().await;
    world.target.set_copying(true);
    assert_eq!(joined.await.unwrap().unwrap().id, made.id);
    assert_eq!(catalog.create_volume(copy, LONG).await.unwrap().state, VolumeState::Ready);
    assert_eq!((catalog.progress(&made.id), world.target.items().len()), (None, 2));
    catalog.delete_volume(&source.id, LONG).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_id_of_an_earlier_volume_of_the_same_name_is_another_one() {
    let world = World::new();
    let catalog = world.catalog().await;
    let first = create(&catalog, "pvc-1").await;
    catalog.delete_volume(&first.id, LONG).await.unwrap();
    catalog.delete_volume(&first.id, LONG).await.unwrap();
    let second = create(&catalog, "pvc-1").await;
    assert_ne!(first.id, second.id);
    catalog.delete_volume(&first.id, LONG).await.unwrap();
    told(catalog.volume(&first.id).await, Code::NotFound, "there is no volume");
    told(catalog.grow_volume(&first.id, 1, None, LONG).await, Code::NotFound, "there is no volume");
    told(catalog.modify_volume(&first.id, Change::default()).await, Code::NotFound, "there is no volume");
    assert_eq!(catalog.volume(&second.id).await.unwrap(), second);
    assert_eq!(world.target.items(), [Item::Volume(second.id)]);
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_is_needed_is_not_deleted() {
    let world = World::new();
    let catalog = world.catalog().await;
    let volume = create(&catalog, "pvc-1").await;
    let protect = |on| Change { deletion_protection: Some(on), ..Change::default() };
    catalog.modify_volume(&volume.id, protect(true)).await.unwrap();
    told(catalog.delete_volume(&volume.id, LONG).await, Code::FailedPrecondition, "deletionProtection");
    catalog.modify_volume(&volume.id, protect(false)).await.unwrap();
    let attached = catalog.attach(&volume.id, csi("a"), Patience::Refuse, LONG).await.unwrap();
    assert!(matches!(attached, Submitted::Satisfied { .. }), "{attached:?}");
    told(catalog.delete_volume(&volume.id, LONG).await, Code::FailedPrecondition, "attached to node a");
    assert_eq!(catalog.volume(&volume.id).await.unwrap().state, VolumeState::Ready);
    catalog.detach(&volume.id, Withdrawal::default(), LONG).await.unwrap();
    // The target knows of a node that the ledger does not.
    world.target.tamper(&volume.id, |exports| {
        let mode = csi("b").mode();
        exports.allow(&bowline_testkit::node("b"), bowline_core::Epoch::new(99), mode).unwrap();
    });
    told(catalog.delete_volume(&volume.id, LONG).await, Code::FailedPrecondition, "node b still uses it");
    assert_eq!(catalog.volume(&volume.id).await.unwrap().state, VolumeState::Ready);
    world.target.tamper(&volume.id, |exports| {
        exports.revoke(&bowline_testkit::node("b"), bowline_core::Epoch::new(99));
    });
    // Its ledger went with the first try, so the target is asked whom it lets in before the next.
    let (mut deleted, mut tries) = (catalog.delete_volume(&volume.id, LONG).await, 0);
    while deleted.as_ref().is_err_and(|error| error.code() == Code::Aborted) && tries < 10 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        (deleted, tries) = (catalog.delete_volume(&volume.id, LONG).await, tries + 1);
    }
    deleted.unwrap();
    assert_eq!((world.target.items(), world.target.violations()), (vec![], vec![]));
}

#[tokio::test(start_paused = true)]
async fn a_volume_grows_and_never_shrinks() {
    let world = World::new();
    let catalog = world.catalog().await;
    let id = create(&catalog, "pvc-1").await.id;
    let size = |answer: Result<Volume, _>| {
        answer
            .map(|volume| (volume.size, volume.state))
            .map_err(|error: bowline_csi::code::ControllerExpandError| error)
    };
    let ready = |bytes| Ok((bytes, VolumeState::Ready));
    assert_eq!(size(catalog.grow_volume(&id, 1, None, LONG).await), ready(GIB));
    assert_eq!(size(catalog.grow_volume(&id, GIB + 1, None, LONG).await), ready(GIB + 4096));
    assert_eq!(size(catalog.grow_volume(&id, 2 * GIB, Some(2 * GIB), LONG).await), ready(2 * GIB));
    told(catalog.grow_volume(&id, 1, Some(GIB), LONG).await, Code::OutOfRange, "never shrinks");
    told(catalog.grow_volume(&id, 1 << 50, None, LONG).await, Code::OutOfRange, "more than");
    world.target.set_room(3 * GIB);
    told(catalog.grow_volume(&id, 4 * GIB, None, LONG).await, Code::ResourceExhausted, "no room");
    assert_eq!(size(catalog.volume(&id).await.map_err(|_| unreachable!())), ready(2 * GIB));
    let events: Vec<String> = catalog.events(Some(&id), 10).into_iter().map(|event| event.reason).collect();
    assert_eq!(events, ["Created", "Grown", "Grown"]);
}

#[tokio::test(start_paused = true)]
async fn a_silent_target_is_waited_for_and_what_was_begun_goes_on() {
    let world = World::new();
    let catalog = world.catalog().await;
    world.target.set_silent(true);
    told(catalog.create_volume(order("x"), Duration::from_secs(9)).await, Code::DeadlineExceeded, "goes on");
    assert_eq!(catalog.find_volume("x").await.unwrap().state, VolumeState::Creating);
    told(catalog.create_volume(order("x"), Duration::from_secs(9)).await, Code::DeadlineExceeded, "goes on");
    world.target.set_silent(false);
    // What was asked of a target that never answers stays unanswered; the next process asks again.
    let catalog = world.catalog().await;
    assert_eq!(create(&catalog, "x").await.state, VolumeState::Ready);
}

#[tokio::test(start_paused = true)]
async fn a_volume_is_found_by_what_a_person_types() {
    let world = World::new();
    let catalog = world.catalog().await;
    let (one, two) = (create(&catalog, "one").await, create(&catalog, "two").await);
    for text in ["one", one.id.as_str(), &one.id.as_str()[..12]] {
        assert_eq!(catalog.find_volume(text).await.unwrap(), one, "{text}");
    }
    told(catalog.find_volume("three").await, Code::NotFound, "neither by name nor by id");
    told(catalog.find_volume("").await, Code::NotFound, "neither");
    for digit in 0..16 {
        create(&catalog, &format!("more-{digit}")).await;
    }
    let first = |id: &VolumeId| id.as_str()[..1].to_owned();
    let all = catalog.volumes(None, 100).await.unwrap().entries;
    let twice =
        all.iter().find(|one| all.iter().filter(|other| first(&one.id) == first(&other.id)).count() > 1);
    told(catalog.find_volume(&first(&twice.unwrap().id)).await, Code::NotFound, "give more of it");
    assert_eq!(catalog.find_volume("two").await.unwrap(), two);
}

#[tokio::test(start_paused = true)]
async fn a_copy_begun_before_its_source_grew_is_planned_anew() {
    let world = World::new();
    let catalog = world.catalog().await;
    let source = create(&catalog, "source").await;
    let copy = NewVolume { source: Some(Source::Volume(source.id.clone())), ..order("copy") };
    let small = catalog.create_volume(copy.clone(), LONG).await.unwrap();
    catalog.grow_volume(&source.id, 2 * GIB, None, LONG).await.unwrap();
    // As if the process had died after it stored what it was about to do.
    world.target.lose(&Item::Volume(small.id.clone()));
    let key = Key::new(Kind::Volume, Slot::of_name("copy").as_str());
    let now = world.store.get(&key).await.unwrap().unwrap();
    let begun = Volume { state: VolumeState::Creating, ..small.clone() };
    world.store.put(&key, record::encode(&begun).unwrap(), Expected::At(now.revision)).await.unwrap();
    let catalog = world.catalog().await;
    rest().await;
    let copy = catalog.create_volume(copy, LONG).await.unwrap();
    assert_eq!((copy.size, copy.id == small.id), (2 * GIB, false));
}
