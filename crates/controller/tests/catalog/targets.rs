//! Several targets: where new volumes go, and what becomes of those whose target is away.

use bowline_controller::csi::ControllerService;
use bowline_controller::{Catalog, NewVolume, Source, TargetError};
use bowline_core::{TargetId, VolumeId};
use bowline_csi::wire;
use bowline_csi::wire::controller_server::Controller;
use bowline_engine::{Patience, Submitted};
use bowline_store::Key;
use bowline_target::Provision;
use bowline_testkit::{Fate, FaultyStore, Luck, SimTarget, csi, node};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tonic::{Code, Request, Status};

use crate::csi::{BYTES, new};
use crate::world::{GIB, LONG, World, create, name, order, told};

const HOST: &str = "topology.bowline.storage/host";

fn target(id: &str, host: &str, room: u64) -> Arc<SimTarget> {
    let target = SimTarget::new(id);
    target.set_topology(&[(HOST, host)]);
    target.set_room(room);
    Arc::new(target)
}

async fn on(world: &World, targets: &[&Arc<SimTarget>]) -> Catalog {
    let targets = targets.iter().map(|one| Arc::clone(one) as Arc<dyn Provision>).collect();
    world.catalog_on(targets).await.unwrap()
}

fn id(name: &str) -> TargetId {
    TargetId::new(name).unwrap()
}

fn at(host: &str) -> wire::Topology {
    wire::Topology { segments: HashMap::from([(HOST.to_owned(), host.to_owned())]) }
}

async fn made(catalog: &Catalog, request: wire::CreateVolumeRequest) -> Result<wire::Volume, Status> {
    let service = ControllerService::new(catalog.clone());
    service.create_volume(Request::new(request)).await.map(|answer| answer.into_inner().volume.unwrap())
}

fn where_is(volume: &wire::Volume) -> &str {
    assert_eq!(volume.accessible_topology.len(), 1);
    &volume.volume_context["bowline.storage/target"]
}

fn from(name: &str, requisite: &[&str], preferred: &[&str]) -> wire::CreateVolumeRequest {
    let places = |hosts: &[&str]| hosts.iter().map(|host| at(host)).collect();
    let requirement =
        wire::TopologyRequirement { requisite: places(requisite), preferred: places(preferred) };
    wire::CreateVolumeRequest { accessibility_requirements: Some(requirement), ..new(name) }
}

#[tokio::test(start_paused = true)]
async fn a_volume_goes_where_it_is_named_preferred_reachable_and_roomy_in_this_order() {
    let world = World::new();
    let (a, b, c) = (target("a", "ha", 50 * GIB), target("b", "hb", 90 * GIB), target("c", "hc", 20 * GIB));
    let catalog = on(&world, &[&a, &b, &c]).await;
    let named = |target: &str| wire::CreateVolumeRequest {
        parameters: HashMap::from([("target".to_owned(), target.to_owned())]),
        ..new("named")
    };
    for (request, expected) in [
        (new("roomy"), "b"),
        (from("reachable", &["ha", "hc"], &[]), "a"),
        (from("preferred", &["ha", "hb", "hc"], &["hc", "ha"]), "c"),
        (from("only-preferred", &[], &["ha"]), "a"),
        (named("c"), "c"),
    ] {
        let called = request.name.clone();
        let volume = made(&catalog, request.clone()).await.unwrap();
        assert_eq!(where_is(&volume), expected, "{called}");
        b.set_room(1);
        assert_eq!(made(&catalog, request).await.unwrap(), volume, "{called}: asked again, the same one");
        b.set_room(90 * GIB);
    }
    let status = made(&catalog, named("b")).await.unwrap_err();
    assert_eq!(status.code(), Code::AlreadyExists, "{}", status.message());
    let elsewhere = wire::CreateVolumeRequest { name: "x".to_owned(), ..named("d") };
    let status = made(&catalog, elsewhere).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "{}", status.message());
    assert!(status.message().contains("target d is not connected"), "{}", status.message());
    let status = made(&catalog, from("nowhere", &["hx"], &[])).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted, "{}", status.message());
    let status = made(&catalog, from("roomy", &["ha"], &[])).await.unwrap_err();
    assert_eq!(status.code(), Code::AlreadyExists, "{}", status.message());
}

#[tokio::test(start_paused = true)]
async fn a_preferred_target_without_room_or_without_a_voice_is_passed_over() {
    let world = World::new();
    let (a, b, c) = (target("a", "ha", GIB / 2), target("b", "hb", 9 * GIB), target("c", "hc", 99 * GIB));
    let catalog = on(&world, &[&a, &b, &c]).await;
    c.set_silent(true);
    let volume = made(&catalog, from("v", &["ha", "hb", "hc"], &["ha"])).await.unwrap();
    assert_eq!(where_is(&volume), "b");
    b.set_silent(true);
    let status = made(&catalog, from("w", &["hb", "hc"], &[])).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "{}", status.message());
    b.set_silent(false);
    let large = wire::CapacityRange { required_bytes: 50 * BYTES, limit_bytes: 0 };
    let status =
        made(&catalog, wire::CreateVolumeRequest { capacity_range: Some(large), ..new("large") }).await;
    let status = status.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted, "{}", status.message());
}

#[tokio::test(start_paused = true)]
async fn a_target_that_says_too_late_that_it_is_full_leaves_nothing_and_the_next_is_tried() {
    let world = World::new();
    let (a, b) = (target("a", "ha", 90 * GIB), target("b", "hb", 50 * GIB));
    let catalog = on(&world, &[&a, &b]).await;
    // It promises more than it has.
    a.lie_about_room(true);
    a.set_room(GIB / 2);
    let volume = create(&catalog, "v").await;
    assert_eq!(volume.target, id("b"));
    assert_eq!((a.items().len(), b.items().len()), (0, 1));
    b.lie_about_room(true);
    b.set_room(0);
    told(catalog.create_volume(order("w"), LONG).await, Code::ResourceExhausted, "there is no room");
    assert_eq!(catalog.volumes(None, 9).await.unwrap().entries.len(), 1, "nothing is left of it");
}

#[tokio::test(start_paused = true)]
async fn a_class_names_the_kind_of_its_targets_and_without_one_what_is_near_comes_first() {
    let world = World::new();
    let exported = |id: &str, room| {
        let target = SimTarget::new(id).of_kind(bowline_target::NVMET);
        target.set_topology(&[]);
        target.set_room(room);
        Arc::new(target)
    };
    let (a, b) = (target("a", "ha", 50 * GIB), target("b", "hb", 60 * GIB));
    let (near, far) = (exported("near", 70 * GIB), exported("far", 80 * GIB));
    let catalog = on(&world, &[&a, &b, &near]).await;
    let service = ControllerService::new(catalog.clone());
    let of = |kind: &str| HashMap::from([("kind".to_owned(), kind.to_owned())]);
    let asked = |kind: &str, request| wire::CreateVolumeRequest { parameters: of(kind), ..request };
    let target_of = |volume: &wire::Volume| volume.volume_context["bowline.storage/target"].clone();
    catalog.add_target(far).await.unwrap();
    for (request, expected) in [
        (asked("nvmet", new("exported")), "far"),
        (asked("file", new("files")), "b"),
        (asked("nvmet", from("from-a", &["ha"], &["ha"])), "far"),
        (new("anywhere"), "far"),
        (from("here", &["ha", "hb"], &["ha", "hb"]), "a"),
    ] {
        let called = request.name.clone();
        let volume = made(&catalog, request.clone()).await.unwrap();
        assert_eq!(target_of(&volume), expected, "{called}");
        assert_eq!(made(&catalog, request).await.unwrap(), volume, "{called}: asked again, the same one");
    }
    for (request, code, words) in [
        (asked("tape", new("x")), Code::InvalidArgument, "it must be file, nvmet or rds"),
        (asked("file", new("exported")), Code::AlreadyExists, "is of kind nvmet"),
    ] {
        let status = made(&catalog, request).await.unwrap_err();
        assert!(status.code() == code && status.message().contains(words), "{status}");
    }
    let mut both = asked("nvmet", new("both"));
    both.parameters.insert("target".to_owned(), "a".to_owned());
    let status = made(&catalog, both).await.unwrap_err();
    assert!(status.message().contains("target a is of kind file"), "{status}");
    let request = wire::GetCapacityRequest { parameters: of("file"), ..Default::default() };
    let room = service.get_capacity(Request::new(request)).await.unwrap().into_inner();
    // Two volumes of 1 GiB are on them.
    assert_eq!(room.available_capacity, 108 * BYTES);
}

#[tokio::test(start_paused = true)]
async fn a_copy_is_made_where_its_source_is() {
    let world = World::new();
    let (a, b) = (target("a", "ha", 50 * GIB), target("b", "hb", 90 * GIB));
    let catalog = on(&world, &[&a, &b]).await;
    let on_a = NewVolume { target: Some(id("a")), ..order("source") };
    let source = catalog.create_volume(on_a, LONG).await.unwrap();
    let snapshot = catalog.create_snapshot(name("s"), &source.id, LONG).await.unwrap();
    for (called, of) in [("c1", Source::Volume(source.id.clone())), ("c2", Source::Snapshot(snapshot.id))] {
        let copy = NewVolume { source: Some(of.clone()), ..order(called) };
        assert_eq!(catalog.create_volume(copy, LONG).await.unwrap().target, id("a"));
        let elsewhere = NewVolume { source: Some(of), target: Some(id("b")), ..order("x") };
        told(catalog.create_volume(elsewhere, LONG).await, Code::InvalidArgument, "is on target a");
    }
}

#[tokio::test(start_paused = true)]
async fn room_is_the_sum_of_what_can_be_reached_and_a_volume_no_larger_than_one_target() {
    let world = World::new();
    let (a, b) = (target("a", "ha", 50 * GIB), target("b", "hb", 90 * GIB));
    let catalog = on(&world, &[&a, &b]).await;
    let service = ControllerService::new(catalog.clone());
    let named = HashMap::from([("target".to_owned(), "a".to_owned())]);
    for (topology, parameters, available, largest) in
        [(None, HashMap::new(), 140, 90), (Some(at("ha")), HashMap::new(), 50, 50), (None, named, 50, 50)]
    {
        let request =
            wire::GetCapacityRequest { accessible_topology: topology, parameters, ..Default::default() };
        let answer = service.get_capacity(Request::new(request)).await.unwrap().into_inner();
        let told = (answer.available_capacity, answer.maximum_volume_size);
        assert_eq!(told, (available * BYTES, Some(largest * BYTES)));
    }
    // No target is there yet: that is not the same as no room.
    let early = wire::GetCapacityRequest { accessible_topology: Some(at("hx")), ..Default::default() };
    let early = service.get_capacity(Request::new(early)).await.unwrap_err();
    assert_eq!(early.code(), Code::Unavailable, "{early}");
    catalog.add_target(target("x", "hx", 9 * GIB)).await.unwrap();
    b.set_silent(true);
    assert_eq!(catalog.capacity().await.unwrap().available, 59 * GIB, "of those that answer");
}

/// Of one target of two, as csi-provisioner asks for the place of each.
#[tokio::test(start_paused = true)]
async fn the_room_of_a_target_was_counted_only_when_all_were_asked_at_once() {
    let world = World::new();
    let (a, b) = (target("a", "ha", 50 * GIB), target("b", "hb", 90 * GIB));
    let catalog = on(&world, &[&a, &b]).await;
    let available = |of: &str| {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &world.registry.lock().unwrap()).unwrap();
        let line = format!("bowline_capacity_bytes{{target=\"{of}\",of=\"available\"}} ");
        text.lines().find_map(|one| one.strip_prefix(&line)?.parse::<u64>().ok())
    };
    let service = ControllerService::new(catalog.clone());
    let request = wire::GetCapacityRequest { accessible_topology: Some(at("ha")), ..Default::default() };
    service.get_capacity(Request::new(request)).await.unwrap();
    assert_eq!((available("a"), available("b")), (Some(50 * GIB), None));
    catalog.count_room(&id("b"), &b.capacity().await.unwrap());
    assert_eq!(available("b"), Some(90 * GIB));
    // No new volume gets it.
    catalog.drain_target(&id("b"), true);
    catalog.count_room(&id("b"), &b.capacity().await.unwrap());
    catalog.remove_target(&id("a")).await.unwrap();
    catalog.count_room(&id("a"), &a.capacity().await.unwrap());
    assert_eq!((available("a"), available("b")), (None, None));
}

#[tokio::test(start_paused = true)]
async fn a_volume_whose_target_is_away_is_unavailable_and_never_unknown() {
    let world = World::new();
    let (a, b) = (target("a", "ha", 50 * GIB), target("b", "hb", 90 * GIB));
    let catalog = on(&world, &[&a, &b]).await;
    let volume = create(&catalog, "v").await;
    assert_eq!(volume.target, id("b"));
    catalog.close().await;
    let catalog = on(&world, &[&a]).await;
    assert_eq!(catalog.volume(&volume.id).await.unwrap(), volume);
    let early = catalog.attach(&volume.id, csi("a"), Patience::Wait, Duration::from_secs(9)).await;
    let early = early.unwrap();
    assert!(
        matches!(&early, Submitted::StillWorking { verdict: Some(verdict), .. } if verdict.reason() == "TargetNotCompared"),
        "{early:?}"
    );
    told(catalog.grow_volume(&volume.id, 2 * GIB, None, LONG).await, Code::Unavailable, "is not connected");
    told(catalog.create_snapshot(name("s"), &volume.id, LONG).await, Code::Unavailable, "is not connected");
    assert_eq!(create(&catalog, "v").await, volume, "its name is taken");
    catalog.add_target(Arc::clone(&b) as _).await.unwrap();
    let joined = catalog.attach(&volume.id, csi("a"), Patience::Wait, LONG).await.unwrap();
    assert!(matches!(joined, Submitted::Satisfied { .. }), "{joined:?}");
    assert_eq!(b.open(&volume.id), [(1, node("a"))]);
}

#[tokio::test(start_paused = true)]
async fn a_target_is_not_removed_while_a_volume_or_a_snapshot_is_there() {
    let world = World::new();
    let (a, b) = (target("a", "ha", 50 * GIB), target("b", "hb", 90 * GIB));
    let catalog = on(&world, &[&a]).await;
    catalog.add_target(Arc::clone(&b) as _).await.unwrap();
    let volume = create(&catalog, "v").await;
    let snapshot = catalog.create_snapshot(name("s"), &volume.id, LONG).await.unwrap();
    let in_use = |answer: Result<(), TargetError>, what: &str| {
        let error = answer.unwrap_err();
        assert!(matches!(&error, TargetError::InUse { .. }) && error.to_string().contains(what), "{error}");
    };
    in_use(catalog.remove_target(&id("b")).await, "snapshot s-");
    catalog.delete_volume(&volume.id, LONG).await.unwrap();
    in_use(catalog.remove_target(&id("b")).await, "snapshot s-");
    catalog.delete_snapshot(&snapshot.id, LONG).await.unwrap();
    catalog.remove_target(&id("b")).await.unwrap();
    catalog.remove_target(&id("b")).await.unwrap();
    assert_eq!(create(&catalog, "w").await.target, id("a"));
    catalog.remove_target(&id("a")).await.unwrap_err();
    assert_eq!(catalog.targets().len(), 1, "it stays");
}

/// Whoever has to ask every target before a node is called detached went by the others.
#[tokio::test(start_paused = true)]
async fn a_target_was_not_asked_while_it_was_looked_for_what_is_on_it() {
    let (a, b) = (target("a", "ha", 50 * GIB), target("b", "hb", 90 * GIB));
    let begin = async |fate: Fate| {
        let (fate, mut world) = (Arc::new(fate), World::new());
        world.store = Arc::new(FaultyStore::new(Arc::clone(&world.store), Arc::clone(&fate)));
        let catalog = on(&world, &[&a, &b]).await;
        (fate, world, catalog)
    };
    let (calm, _, _) = begin(Fate::calm()).await;
    let (fate, world, catalog) = begin(Fate::at(calm.count(), Luck::DiesBefore)).await;
    let (key, b_is) = (Key::ledger(&VolumeId::new("any").unwrap()), id("b"));
    let moment = Duration::from_secs(1);
    tokio::time::timeout(moment, world.store.get(&key)).await.unwrap_err();
    assert!(fate.is_dead(), "from now on the store does not answer");
    let mut removal = Box::pin(catalog.remove_target(&b_is));
    tokio::time::timeout(moment, &mut removal).await.unwrap_err();
    assert_eq!(catalog.targets().len(), 2);
    let open = |catalog: &Catalog| catalog.known_targets().into_iter().filter(|one| !one.is_draining).count();
    assert_eq!(open(&catalog), 1, "nothing new is made there");
    drop(removal);
    assert_eq!(open(&catalog), 2, "whoever gave up leaves it as it was");
}

#[tokio::test(start_paused = true)]
async fn a_target_that_was_not_connected_could_not_be_forgotten() {
    let world = World::new();
    let (a, b) = (target("a", "ha", 50 * GIB), target("b", "hb", 90 * GIB));
    let catalog = on(&world, &[&a, &b]).await;
    let volume = create(&catalog, "v").await;
    assert_eq!(volume.target, id("b"));
    catalog.close().await;
    let catalog = on(&world, &[&a]).await;
    catalog.expect_target(&id("mistyped"));
    assert_eq!(catalog.engine().unconnected(), [id("mistyped")]);
    catalog.remove_target(&id("mistyped")).await.unwrap();
    assert_eq!(catalog.engine().unconnected(), []);
    let error = catalog.remove_target(&id("b")).await.unwrap_err();
    assert!(matches!(&error, TargetError::InUse { what, .. } if what.contains("volume v-")), "{error}");
}

#[tokio::test(start_paused = true)]
async fn nothing_new_is_made_on_a_target_that_is_drained_and_what_is_there_stays_usable() {
    let world = World::new();
    let (a, b) = (target("a", "ha", 50 * GIB), target("b", "hb", 90 * GIB));
    let catalog = on(&world, &[&a, &b]).await;
    let volume = create(&catalog, "v").await;
    assert_eq!(volume.target, id("b"));
    catalog.drain_target(&id("b"), true);
    assert_eq!(create(&catalog, "w").await.target, id("a"));
    assert_eq!(catalog.capacity().await.unwrap().available, a.capacity().await.unwrap().available);
    let copy = NewVolume { source: Some(Source::Volume(volume.id.clone())), ..order("copy") };
    told(catalog.create_volume(copy, LONG).await, Code::ResourceExhausted, "it is being drained");
    catalog.create_snapshot(name("s"), &volume.id, LONG).await.unwrap();
    catalog.grow_volume(&volume.id, 2 * GIB, None, LONG).await.unwrap();
    let attached = catalog.attach(&volume.id, csi("a"), Patience::Wait, LONG).await.unwrap();
    assert!(matches!(attached, Submitted::Satisfied { .. }), "{attached:?}");
    catalog.drain_target(&id("b"), false);
    assert_eq!(create(&catalog, "x").await.target, id("b"));
}

#[tokio::test(start_paused = true)]
async fn without_any_target_nothing_is_made_and_that_is_no_final_answer() {
    let world = World::new();
    let catalog = on(&world, &[]).await;
    told(catalog.create_volume(order("v"), LONG).await, Code::Unavailable, "no target is connected");
}
