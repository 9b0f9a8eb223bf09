//! What single requests become, and what is said of those that are wrong in a way of their own.

use bowline_core::{NodeId, VolumeId};
use bowline_csi::controller::{ContentSource, ControllerUnpublish, CreateVolume, GetCapacity, ShutOut};
use bowline_csi::snapshot::{CreateGroupSnapshot, DeleteGroupSnapshot};
use bowline_csi::wire::volume_capability::{AccessMode, AccessType, BlockVolume, access_mode::Mode};
use bowline_csi::wire::volume_content_source::{SnapshotSource, Type, VolumeSource};
use bowline_csi::{node, wire};

fn create() -> wire::CreateVolumeRequest {
    wire::CreateVolumeRequest {
        name: "pvc-1".to_owned(),
        volume_capabilities: vec![block()],
        ..Default::default()
    }
}

fn block() -> wire::VolumeCapability {
    wire::VolumeCapability {
        access_type: Some(AccessType::Block(BlockVolume {})),
        access_mode: Some(AccessMode { mode: Mode::SingleNodeWriter.into() }),
    }
}

#[test]
fn an_unpublish_without_a_node_shuts_out_everyone() {
    for (node_id, expected) in
        [("", ShutOut::EveryNode), ("worker-1", ShutOut::Node(NodeId::new("worker-1").unwrap()))]
    {
        let request = wire::ControllerUnpublishVolumeRequest {
            volume_id: "pvc-1".to_owned(),
            node_id: node_id.to_owned(),
            ..Default::default()
        };
        assert_eq!(ControllerUnpublish::try_from(request).unwrap().whom, expected);
    }
}

#[test]
fn a_source_is_a_snapshot_or_a_volume() {
    let parse = |r#type| {
        let volume_content_source = Some(wire::VolumeContentSource { r#type });
        let parsed = CreateVolume::try_from(wire::CreateVolumeRequest { volume_content_source, ..create() });
        parsed.map(|request| request.source).map_err(|error| error.to_string())
    };
    let snapshot = |id: &str| Some(Type::Snapshot(SnapshotSource { snapshot_id: id.to_owned() }));
    let volume = |id: &str| Some(Type::Volume(VolumeSource { volume_id: id.to_owned() }));
    let Ok(Some(ContentSource::Snapshot(id))) = parse(snapshot("snap-1")) else { panic!("no snapshot") };
    assert_eq!(id.as_str(), "snap-1");
    assert_eq!(parse(volume("pvc-2")), Ok(Some(ContentSource::Volume(VolumeId::new("pvc-2").unwrap()))));
    for (source, why) in [
        (None, "volume_content_source.type is required"),
        (snapshot(""), "volume_content_source.snapshot.snapshot_id is required"),
        (volume(".."), "volume_content_source.volume.volume_id would be read as a directory"),
    ] {
        assert_eq!(parse(source).unwrap_err(), why);
    }
}

#[test]
fn the_second_capability_is_told_by_its_number() {
    let wrong = wire::VolumeCapability { access_mode: Some(AccessMode { mode: 42 }), ..block() };
    let request = wire::CreateVolumeRequest { volume_capabilities: vec![block(), wrong], ..create() };
    assert_eq!(
        CreateVolume::try_from(request).unwrap_err().to_string(),
        "volume_capabilities[1].access_mode.mode is 42; that is none of its known values"
    );
}

#[test]
fn volumes_taken_together_are_named_once_each() {
    let parse = |ids: &[&str]| {
        let request = wire::CreateVolumeGroupSnapshotRequest {
            name: "group".to_owned(),
            source_volume_ids: ids.iter().map(ToString::to_string).collect(),
            ..Default::default()
        };
        CreateGroupSnapshot::try_from(request).map_err(|error| error.to_string())
    };
    assert_eq!(parse(&["b", "a"]).unwrap().sources, ["b", "a"].map(|id| VolumeId::new(id).unwrap()));
    assert_eq!(parse(&["a", "b", "a"]).unwrap_err(), "source_volume_ids[2] repeats an earlier entry");
    assert_eq!(parse(&[]).unwrap_err(), "source_volume_ids is required");
}

#[test]
fn a_group_may_be_deleted_without_its_list_as_csi_sanity_does() {
    let group_snapshot_id = "group-1".to_owned();
    let request = wire::DeleteVolumeGroupSnapshotRequest { group_snapshot_id, ..Default::default() };
    assert!(DeleteGroupSnapshot::try_from(request).unwrap().snapshots.is_empty());
}

#[test]
fn an_empty_topology_is_none_where_a_capacity_is_asked_for() {
    let accessible_topology = Some(wire::Topology::default());
    let request = wire::GetCapacityRequest { accessible_topology, ..Default::default() };
    assert_eq!(GetCapacity::try_from(request).unwrap().topology, None);
}

#[test]
fn a_retry_with_another_spelling_of_the_path_is_the_same_request() {
    let unstage = |path: &str| {
        let staging_target_path = path.to_owned();
        let request = wire::NodeUnstageVolumeRequest { volume_id: "pvc-1".to_owned(), staging_target_path };
        node::Unstage::try_from(request).unwrap()
    };
    assert_eq!(unstage("/var/lib//kubelet/./x/"), unstage("/var/lib/kubelet/x"));
}
