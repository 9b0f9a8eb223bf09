//! The CSI services, called without a socket: what each call answers, and with which code it refuses.

use bowline_controller::csi::{ControllerService, GroupService, IdentityService};
use bowline_csi::wire;
use bowline_csi::wire::controller_server::Controller;
use bowline_csi::wire::group_controller_server::GroupController;
use bowline_csi::wire::identity_server::Identity;
use bowline_csi::wire::volume_capability::access_mode::Mode;
use bowline_csi::wire::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
use bowline_csi::wire::volume_content_source::{SnapshotSource, Type, VolumeSource};
use std::collections::HashMap;
use std::time::Duration;
use tonic::{Code, Request, Response, Status};

use crate::world::{GIB, World};

pub(crate) const BYTES: i64 = 1 << 30;

/// The services of one process.
pub(crate) struct Plugin {
    pub(crate) controller: ControllerService,
    pub(crate) group: GroupService,
    pub(crate) identity: IdentityService,
}

impl Plugin {
    pub(crate) async fn on(world: &World) -> Self {
        let catalog = world.catalog().await;
        Self {
            controller: ControllerService::new(catalog.clone()),
            group: GroupService::new(catalog.clone()),
            identity: IdentityService::new(catalog),
        }
    }

    pub(crate) async fn create(&self, name: &str) -> wire::Volume {
        let answer = self.controller.create_volume(Request::new(new(name))).await.unwrap();
        answer.into_inner().volume.unwrap()
    }

    async fn publish(&self, volume: &str, node: &str) -> Result<HashMap<String, String>, Status> {
        let answer = self.controller.controller_publish_volume(Request::new(publish(volume, node))).await?;
        Ok(answer.into_inner().publish_context)
    }

    async fn unpublish(&self, volume: &str, node: &str) -> Result<(), Status> {
        let request = wire::ControllerUnpublishVolumeRequest {
            volume_id: volume.to_owned(),
            node_id: node.to_owned(),
            secrets: HashMap::new(),
        };
        self.controller.controller_unpublish_volume(Request::new(request)).await.map(|_| ())
    }
}

pub(crate) fn capability(mode: Mode, block: bool) -> wire::VolumeCapability {
    let access_type =
        if block { AccessType::Block(BlockVolume {}) } else { AccessType::Mount(MountVolume::default()) };
    wire::VolumeCapability {
        access_type: Some(access_type),
        access_mode: Some(AccessMode { mode: mode.into() }),
    }
}

pub(crate) fn new(name: &str) -> wire::CreateVolumeRequest {
    wire::CreateVolumeRequest {
        name: name.to_owned(),
        capacity_range: Some(wire::CapacityRange { required_bytes: BYTES, limit_bytes: 0 }),
        volume_capabilities: vec![capability(Mode::SingleNodeWriter, false)],
        ..Default::default()
    }
}

fn publish(volume: &str, node: &str) -> wire::ControllerPublishVolumeRequest {
    wire::ControllerPublishVolumeRequest {
        volume_id: volume.to_owned(),
        node_id: node.to_owned(),
        volume_capability: Some(capability(Mode::SingleNodeWriter, false)),
        ..Default::default()
    }
}

fn map(pairs: &[(&str, &str)]) -> HashMap<String, String> {
    pairs.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect()
}

fn at(host: &str) -> wire::Topology {
    wire::Topology { segments: map(&[("topology.bowline.storage/host", host)]) }
}

fn needs(host: &str) -> Option<wire::TopologyRequirement> {
    Some(wire::TopologyRequirement { requisite: vec![at(host)], preferred: vec![at(host)] })
}

#[track_caller]
fn refused<T: std::fmt::Debug>(answer: Result<T, Status>, code: Code, part: &str) {
    let status = answer.expect_err(part);
    assert_eq!(status.code(), code, "{}", status.message());
    assert!(status.message().contains(part), "{}", status.message());
}

fn inner<T>(answer: Result<Response<T>, Status>) -> T {
    answer.unwrap().into_inner()
}

#[tokio::test(start_paused = true)]
async fn the_plugin_says_what_it_is_and_can() {
    let plugin = Plugin::on(&World::new()).await;
    let info = inner(plugin.identity.get_plugin_info(Request::new(Default::default())).await);
    assert_eq!((info.name.as_str(), info.vendor_version.is_empty()), ("bowline.storage", false));
    assert_eq!(inner(plugin.identity.probe(Request::new(Default::default())).await).ready, Some(true));
    let capabilities = inner(plugin.identity.get_plugin_capabilities(Request::new(Default::default())).await);
    assert_eq!(capabilities.capabilities.len(), 5);
    let rpcs = inner(plugin.controller.controller_get_capabilities(Request::new(Default::default())).await);
    assert_eq!(rpcs.capabilities.len(), 16);
    let group = inner(plugin.group.group_controller_get_capabilities(Request::new(Default::default())).await);
    assert_eq!(group.capabilities.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn what_a_volume_may_be_made_with() {
    let plugin = Plugin::on(&World::new()).await;
    let with = |parameters: &[(&str, &str)], mutable: &[(&str, &str)]| wire::CreateVolumeRequest {
        parameters: map(parameters),
        mutable_parameters: map(mutable),
        ..new("x")
    };
    let shared = wire::CreateVolumeRequest {
        volume_capabilities: vec![capability(Mode::MultiNodeMultiWriter, false)],
        ..new("x")
    };
    let fs = |name: &str| wire::CreateVolumeRequest {
        parameters: map(&[("fsType", "xfs")]),
        volume_capabilities: vec![wire::VolumeCapability {
            access_type: Some(AccessType::Mount(MountVolume {
                fs_type: name.to_owned(),
                ..Default::default()
            })),
            ..capability(Mode::SingleNodeWriter, false)
        }],
        ..new("x")
    };
    let sized = |required_bytes, limit_bytes| wire::CreateVolumeRequest {
        capacity_range: Some(wire::CapacityRange { required_bytes, limit_bytes }),
        ..new("x")
    };
    let source = |source| wire::CreateVolumeRequest {
        volume_content_source: Some(wire::VolumeContentSource { r#type: Some(source) }),
        ..new("x")
    };
    let placed = wire::CreateVolumeRequest { accessibility_requirements: needs("elsewhere"), ..new("x") };
    let nowhere = "non-existing-id".to_owned();
    for (request, code, part) in [
        (
            wire::CreateVolumeRequest { name: String::new(), ..new("x") },
            Code::InvalidArgument,
            "name is required",
        ),
        (
            wire::CreateVolumeRequest { volume_capabilities: vec![], ..new("x") },
            Code::InvalidArgument,
            "volume_capabilities is required",
        ),
        (with(&[("fstype", "ext4")], &[]), Code::InvalidArgument, "parameters[\"fstype\"] is not known"),
        (with(&[("fsType", "ntfs")], &[]), Code::InvalidArgument, "not one of ext4, xfs, btrfs"),
        (with(&[], &[("XXX_FakeKey", "x")]), Code::InvalidArgument, "mutable_parameters[\"XXX_FakeKey\"]"),
        (with(&[], &[("migratable", "29")]), Code::InvalidArgument, "30 to 3600"),
        (with(&[], &[("migratable", "+30")]), Code::InvalidArgument, "30 to 3600"),
        (with(&[], &[("discard", "yes")]), Code::InvalidArgument, "must be true or false"),
        (shared, Code::InvalidArgument, "needs a server"),
        (fs("ext4"), Code::InvalidArgument, "but xfs is asked for elsewhere"),
        (sized(BYTES + 1, BYTES + 2), Code::OutOfRange, "limit"),
        (sized(i64::MAX, 0), Code::OutOfRange, "more than"),
        (
            source(Type::Snapshot(SnapshotSource { snapshot_id: nowhere.clone() })),
            Code::NotFound,
            "no snapshot",
        ),
        (source(Type::Volume(VolumeSource { volume_id: nowhere })), Code::NotFound, "no volume"),
        (placed, Code::ResourceExhausted, "cannot be reached"),
    ] {
        refused(plugin.controller.create_volume(Request::new(request)).await, code, part);
    }
    let all = wire::CreateVolumeRequest {
        accessibility_requirements: needs("here"),
        ..with(
            &[("fsType", "xfs"), ("csi.storage.k8s.io/pvc/name", "data"), ("discard", "false")],
            &[("migratable", "60"), ("deletionProtection", "false"), ("discard", "true")],
        )
    };
    let volume = inner(plugin.controller.create_volume(Request::new(all)).await).volume.unwrap();
    assert_eq!(volume.capacity_bytes, BYTES);
    assert_eq!(
        volume.volume_context,
        map(&[("bowline.storage/fs", "xfs"), ("bowline.storage/target", "sim")])
    );
    assert_eq!(volume.accessible_topology, [at("here")]);
    let context = plugin.publish(&volume.volume_id, "a").await.unwrap();
    assert_eq!(context.get("bowline.storage/discard").map(String::as_str), Some("true"));
}

#[tokio::test(start_paused = true)]
async fn a_second_node_is_refused_and_a_second_mode_exists() {
    let world = World { limit: Some(2), ..World::new() };
    let plugin = Plugin::on(&world).await;
    let id = plugin.create("v").await.volume_id;
    let context = plugin.publish(&id, "a").await.unwrap();
    assert_eq!(plugin.publish(&id, "a").await.unwrap(), context, "asked again, the same answer");
    let elsewhere = plugin.publish(&id, "b").await;
    refused(elsewhere, Code::FailedPrecondition, "a has the volume");
    let read_only = wire::ControllerPublishVolumeRequest { readonly: true, ..publish(&id, "a") };
    let answer = plugin.controller.controller_publish_volume(Request::new(read_only)).await;
    refused(answer, Code::AlreadyExists, "another read-only flag");
    let with = |capability| wire::ControllerPublishVolumeRequest {
        volume_capability: Some(capability),
        ..publish(&id, "a")
    };
    for capability in
        [capability(Mode::SingleNodeWriter, true), capability(Mode::MultiNodeMultiWriter, false)]
    {
        let answer = plugin.controller.controller_publish_volume(Request::new(with(capability))).await;
        refused(answer, Code::InvalidArgument, "was not made to be used so");
    }
    for (volume, node, part) in [("gone", "a", "no volume"), (id.as_str(), "stranger", "is not known")] {
        refused(plugin.publish(volume, node).await, Code::NotFound, part);
    }
    for (volume, node) in [("", "a"), (id.as_str(), "")] {
        refused(plugin.publish(volume, node).await, Code::InvalidArgument, "is required");
    }
    let (two, three) = (plugin.create("two").await.volume_id, plugin.create("three").await.volume_id);
    plugin.publish(&two, "a").await.unwrap();
    refused(plugin.publish(&three, "a").await, Code::ResourceExhausted, "as many as it can take");
    let delete = wire::DeleteVolumeRequest { volume_id: id.clone(), ..Default::default() };
    let answer = plugin.controller.delete_volume(Request::new(delete)).await;
    refused(answer, Code::FailedPrecondition, "attached to node a");
}

#[tokio::test(start_paused = true)]
async fn a_late_unpublish_takes_nothing_from_others() {
    let world = World::new();
    let plugin = Plugin::on(&world).await;
    let id = plugin.create("v").await.volume_id;
    plugin.publish(&id, "a").await.unwrap();
    plugin.unpublish(&id, "a").await.unwrap();
    plugin.publish(&id, "b").await.unwrap();
    for (volume, node) in [(id.as_str(), "a"), (id.as_str(), "stranger"), ("gone", "a"), ("gone", "")] {
        plugin.unpublish(volume, node).await.unwrap();
    }
    let volume = bowline_testkit::volume(&id);
    assert_eq!(world.target.open(&volume).len(), 1, "b is still in");
    plugin.unpublish(&id, "").await.unwrap();
    assert_eq!(world.target.open(&volume), []);
    refused(plugin.unpublish("", "a").await, Code::InvalidArgument, "volume_id is required");
}

#[tokio::test(start_paused = true)]
async fn publish_to_two_nodes_at_once_lets_one_in() {
    let world = World::new();
    let plugin = Plugin::on(&world).await;
    let id = plugin.create("v").await.volume_id;
    let (a, b) = tokio::join!(plugin.publish(&id, "a"), plugin.publish(&id, "b"));
    let codes = [a, b].map(|answer| answer.err().map(|status| status.code()));
    assert!(codes.contains(&None) && codes.contains(&Some(Code::FailedPrecondition)), "{codes:?}");
    assert_eq!(world.target.violations(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_runs_out_of_time_is_never_final() {
    let world = World::new();
    let plugin = Plugin::on(&world).await;
    let id = plugin.create("v").await.volume_id;
    world.target.set_silent(true);
    let mut request = Request::new(publish(&id, "a"));
    request.set_timeout(Duration::from_secs(2));
    let began = tokio::time::Instant::now();
    refused(
        plugin.controller.controller_publish_volume(request).await,
        Code::DeadlineExceeded,
        "asked since",
    );
    assert_eq!(began.elapsed(), Duration::from_millis(1800), "its own deadline counts");
    refused(plugin.controller.create_volume(Request::new(new("w"))).await, Code::DeadlineExceeded, "goes on");
    tokio::time::sleep(Duration::from_secs(60)).await;
    refused(plugin.publish(&id, "a").await, Code::Unavailable, "does not answer");
    world.target.set_silent(false);
    tokio::time::sleep(Duration::from_secs(60)).await;
    plugin.publish(&id, "a").await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn volumes_grow_change_and_tell_how_they_are() {
    let world = World::new();
    let plugin = Plugin::on(&world).await;
    let id = plugin.create("v").await.volume_id;
    let expand = |volume_id: &str, bytes| wire::ControllerExpandVolumeRequest {
        volume_id: volume_id.to_owned(),
        capacity_range: Some(wire::CapacityRange { required_bytes: bytes, limit_bytes: 0 }),
        ..Default::default()
    };
    let grown = inner(plugin.controller.controller_expand_volume(Request::new(expand(&id, 2 * BYTES))).await);
    assert_eq!((grown.capacity_bytes, grown.node_expansion_required), (2 * BYTES, true));
    let answer = plugin.controller.controller_expand_volume(Request::new(expand("gone", 1))).await;
    refused(answer, Code::NotFound, "no volume");
    let modify = |volume_id: &str, pairs: &[(&str, &str)]| wire::ControllerModifyVolumeRequest {
        volume_id: volume_id.to_owned(),
        mutable_parameters: map(pairs),
        ..Default::default()
    };
    for (volume, pairs, code) in [
        ("", [("discard", "true")], Code::InvalidArgument),
        ("gone", [("XXX_FakeKey", "x")], Code::NotFound),
        (id.as_str(), [("XXX_FakeKey", "x")], Code::InvalidArgument),
    ] {
        let answer = plugin.controller.controller_modify_volume(Request::new(modify(volume, &pairs))).await;
        refused(answer, code, "");
    }
    inner(
        plugin.controller.controller_modify_volume(Request::new(modify(&id, &[("discard", "true")]))).await,
    );
    plugin.publish(&id, "a").await.unwrap();
    let get =
        |volume_id: &str| Request::new(wire::ControllerGetVolumeRequest { volume_id: volume_id.to_owned() });
    let got = inner(plugin.controller.controller_get_volume(get(&id)).await);
    assert_eq!(got.volume.unwrap().capacity_bytes, 2 * BYTES);
    assert_eq!(got.status.unwrap().published_node_ids, ["a"]);
    refused(plugin.controller.controller_get_volume(get("gone")).await, Code::NotFound, "no volume");
    let health = |volume_id: &str| {
        let volume_id = volume_id.to_owned();
        Request::new(wire::ControllerGetVolumeHealthRequest { volume_id, ..Default::default() })
    };
    let well =
        inner(plugin.controller.controller_get_volume_health(health(&id)).await).volume_health.unwrap();
    assert_eq!((well.volume_id.as_str(), well.health_statuses.len()), (id.as_str(), 0));
    world.target.set_fault(&bowline_testkit::volume(&id), "a bad block");
    let ill = inner(plugin.controller.controller_get_volume_health(health(&id)).await).volume_health.unwrap();
    assert_eq!(ill.health_statuses[0].message, "a bad block");
    assert_eq!(ill.health_statuses[0].status, i32::from(wire::VolumeHealthErrorType::Inaccessible));
    refused(
        plugin.controller.controller_get_volume_health(health("")).await,
        Code::InvalidArgument,
        "required",
    );
}

#[tokio::test(start_paused = true)]
async fn what_a_volume_can_be_used_for_is_confirmed_or_explained() {
    let plugin = Plugin::on(&World::new()).await;
    let id = plugin.create("v").await.volume_id;
    let ask = |id: &str, capability| wire::ValidateVolumeCapabilitiesRequest {
        volume_id: id.to_owned(),
        volume_capabilities: vec![capability],
        ..Default::default()
    };
    for (mode, block, confirmed) in [
        (Mode::SingleNodeWriter, false, true),
        (Mode::SingleNodeMultiWriter, false, true),
        (Mode::SingleNodeReaderOnly, false, true),
        (Mode::MultiNodeReaderOnly, false, true),
        (Mode::MultiNodeSingleWriter, false, false),
        (Mode::MultiNodeMultiWriter, false, false),
        (Mode::SingleNodeWriter, true, false),
    ] {
        let request = Request::new(ask(&id, capability(mode, block)));
        let answer = inner(plugin.controller.validate_volume_capabilities(request).await);
        assert_eq!(answer.confirmed.is_some(), confirmed, "{mode:?} {block}: {}", answer.message);
        assert_eq!(answer.message.is_empty(), confirmed);
    }
    let one = || capability(Mode::SingleNodeWriter, false);
    let believed = wire::ValidateVolumeCapabilitiesRequest {
        mutable_parameters: map(&[("discard", "true")]),
        ..ask(&id, one())
    };
    let answer = inner(plugin.controller.validate_volume_capabilities(Request::new(believed)).await);
    assert!(answer.confirmed.is_none() && answer.message.contains("mutable_parameters"), "{answer:?}");
    let gone = plugin.controller.validate_volume_capabilities(Request::new(ask("gone", one()))).await;
    refused(gone, Code::NotFound, "no volume");
}

#[tokio::test(start_paused = true)]
async fn room_depends_on_where_and_how() {
    let world = World::new();
    world.target.set_room(10 * GIB);
    let plugin = Plugin::on(&world).await;
    plugin.create("v").await;
    let ask = |topology: Option<wire::Topology>, capabilities| wire::GetCapacityRequest {
        volume_capabilities: capabilities,
        accessible_topology: topology,
        ..Default::default()
    };
    for (topology, capabilities, available) in [
        (None, vec![], 9 * BYTES),
        (Some(at("here")), vec![capability(Mode::SingleNodeWriter, false)], 9 * BYTES),
        (None, vec![capability(Mode::MultiNodeMultiWriter, false)], 0),
    ] {
        let answer = inner(plugin.controller.get_capacity(Request::new(ask(topology, capabilities))).await);
        assert_eq!(answer.available_capacity, available);
        assert_eq!(answer.minimum_volume_size, Some(1 << 20));
    }
    let elsewhere = plugin.controller.get_capacity(Request::new(ask(Some(at("elsewhere")), vec![]))).await;
    refused(elsewhere, Code::Unavailable, "no target is connected");
    let unknown = wire::GetCapacityRequest { parameters: map(&[("color", "red")]), ..Default::default() };
    refused(plugin.controller.get_capacity(Request::new(unknown)).await, Code::InvalidArgument, "color");
}

#[tokio::test(start_paused = true)]
async fn calls_and_what_there_is_are_counted() {
    let world = World::new();
    let plugin = Plugin::on(&world).await;
    let id = plugin.create("v").await.volume_id;
    plugin.create("w").await;
    refused(plugin.publish("gone", "a").await, Code::NotFound, "no volume");
    let delete = wire::DeleteVolumeRequest { volume_id: id, ..Default::default() };
    inner(plugin.controller.delete_volume(Request::new(delete)).await);
    inner(plugin.controller.get_capacity(Request::new(Default::default())).await);
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &world.registry.lock().unwrap()).unwrap();
    for line in [
        "bowline_operation_seconds_count{rpc=\"CreateVolume\",code=\"OK\"} 2",
        "bowline_operation_seconds_count{rpc=\"ControllerPublishVolume\",code=\"NotFound\"} 1",
        "bowline_volumes 1",
        "bowline_snapshots 0",
        "bowline_capacity_bytes{target=\"sim\",of=\"promised\"} 1073741824",
    ] {
        assert!(text.lines().any(|one| one == line), "no line {line} in\n{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn groups_are_named_by_their_members_too() {
    let plugin = Plugin::on(&World::new()).await;
    let ids = vec![plugin.create("one").await.volume_id, plugin.create("two").await.volume_id];
    let take = |name: &str, source_volume_ids: &[String]| wire::CreateVolumeGroupSnapshotRequest {
        name: name.to_owned(),
        source_volume_ids: source_volume_ids.to_vec(),
        ..Default::default()
    };
    let refuse = plugin.group.create_volume_group_snapshot(Request::new(take("", &[]))).await;
    refused(refuse, Code::InvalidArgument, "is required");
    let answer = plugin.group.create_volume_group_snapshot(Request::new(take("g", &ids))).await;
    let group = inner(answer).group_snapshot.unwrap();
    assert!(group.ready_to_use && group.snapshots.iter().all(|one| one.ready_to_use), "{group:?}");
    let of: Vec<&String> = group.snapshots.iter().map(|one| &one.source_volume_id).collect();
    assert_eq!(of, ids.iter().collect::<Vec<_>>());
    let members: Vec<String> = group.snapshots.iter().map(|one| one.snapshot_id.clone()).collect();
    let get = |id: &str, snapshot_ids: &[String]| wire::GetVolumeGroupSnapshotRequest {
        group_snapshot_id: id.to_owned(),
        snapshot_ids: snapshot_ids.to_vec(),
        ..Default::default()
    };
    let id = &group.group_snapshot_id;
    for (request, expected) in [
        (get(id, &members), Code::Ok),
        (get(id, &[]), Code::Ok),
        (get(id, &members[..1]), Code::InvalidArgument),
        (get("gone", &[]), Code::NotFound),
        (get("", &[]), Code::InvalidArgument),
    ] {
        let answer = plugin.group.get_volume_group_snapshot(Request::new(request)).await;
        assert_eq!(answer.err().map_or(Code::Ok, |status| status.code()), expected);
    }
    let delete = |id: &str, snapshot_ids: &[String]| wire::DeleteVolumeGroupSnapshotRequest {
        group_snapshot_id: id.to_owned(),
        snapshot_ids: snapshot_ids.to_vec(),
        ..Default::default()
    };
    let one = wire::DeleteSnapshotRequest { snapshot_id: members[0].clone(), ..Default::default() };
    let alone = plugin.controller.delete_snapshot(Request::new(one)).await;
    refused(alone, Code::FailedPrecondition, "belongs to group");
    for (request, expected) in [
        (delete(id, &members[1..]), Code::InvalidArgument),
        (delete(id, &members), Code::Ok),
        (delete(id, &members), Code::Ok),
        (delete("gone", &[]), Code::Ok),
        (delete("", &[]), Code::InvalidArgument),
    ] {
        let answer = plugin.group.delete_volume_group_snapshot(Request::new(request)).await;
        assert_eq!(answer.err().map_or(Code::Ok, |status| status.code()), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn snapshots_are_reachable_from_where_they_have_to_be() {
    let plugin = Plugin::on(&World::new()).await;
    let id = plugin.create("v").await.volume_id;
    let take = |name: &str, volume: &str, host| wire::CreateSnapshotRequest {
        name: name.to_owned(),
        source_volume_id: volume.to_owned(),
        accessibility_requirements: needs(host),
        parameters: map(&[("csi.storage.k8s.io/volumesnapshot/name", "s")]),
        ..Default::default()
    };
    let answer = inner(plugin.controller.create_snapshot(Request::new(take("s", &id, "here"))).await);
    let snapshot = answer.snapshot.unwrap();
    assert!(snapshot.ready_to_use && snapshot.size_bytes == BYTES && snapshot.creation_time.is_some());
    assert_eq!(snapshot.accessible_topology, [], "it is where it was asked for");
    let get = wire::GetSnapshotRequest { snapshot_id: snapshot.snapshot_id, ..Default::default() };
    let got = inner(plugin.controller.get_snapshot(Request::new(get)).await).snapshot.unwrap();
    assert_eq!(got.accessible_topology, [at("here")]);
    let unknown = wire::CreateSnapshotRequest { parameters: map(&[("a", "b")]), ..take("t", &id, "here") };
    for (request, code) in [
        (take("t", &id, "elsewhere"), Code::ResourceExhausted),
        (take("", &id, "here"), Code::InvalidArgument),
        (take("t", "", "here"), Code::InvalidArgument),
        (take("t", "gone", "here"), Code::NotFound),
        (unknown, Code::InvalidArgument),
    ] {
        refused(plugin.controller.create_snapshot(Request::new(request)).await, code, "");
    }
    for (id, code) in [("none-exist-id", Code::NotFound), ("", Code::InvalidArgument)] {
        let request = wire::GetSnapshotRequest { snapshot_id: id.to_owned(), ..Default::default() };
        refused(plugin.controller.get_snapshot(Request::new(request)).await, code, "");
    }
}
