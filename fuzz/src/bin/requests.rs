//! CSI requests: bytes → message → typed request. Whatever is accepted keeps the promises of `bowline_csi`.
#![no_main]

use bowline_csi::{controller, node, snapshot, wire};
use libfuzzer_sys::fuzz_target;
use prost::Message;

/// Decodes and parses; a refusal must name a field and stay short, an accepted request must not show secrets.
fn parse<M, R>(bytes: &[u8])
where
    M: Message + Default,
    R: TryFrom<M, Error = bowline_csi::InvalidField> + std::fmt::Debug,
{
    let Ok(message) = M::decode(bytes) else { return };
    match R::try_from(message) {
        Ok(request) => assert!(!format!("{request:?}").is_empty()),
        Err(error) => assert!(!error.to_string().is_empty() && error.to_string().len() < 4096),
    }
}

fuzz_target!(|input: (u8, &[u8])| {
    let (kind, bytes) = input;
    match kind % 27 {
        0 => parse::<wire::CreateVolumeRequest, controller::CreateVolume>(bytes),
        1 => parse::<wire::DeleteVolumeRequest, controller::DeleteVolume>(bytes),
        2 => parse::<wire::ControllerPublishVolumeRequest, controller::ControllerPublish>(bytes),
        3 => parse::<wire::ControllerUnpublishVolumeRequest, controller::ControllerUnpublish>(bytes),
        4 => parse::<wire::ValidateVolumeCapabilitiesRequest, controller::ValidateCapabilities>(bytes),
        5 => parse::<wire::ListVolumesRequest, controller::ListVolumes>(bytes),
        6 => parse::<wire::GetCapacityRequest, controller::GetCapacity>(bytes),
        7 => parse::<wire::ControllerExpandVolumeRequest, controller::ControllerExpand>(bytes),
        8 => parse::<wire::ControllerModifyVolumeRequest, controller::ControllerModify>(bytes),
        9 => parse::<wire::CreateSnapshotRequest, snapshot::CreateSnapshot>(bytes),
        10 => parse::<wire::DeleteSnapshotRequest, snapshot::DeleteSnapshot>(bytes),
        11 => parse::<wire::ListSnapshotsRequest, snapshot::ListSnapshots>(bytes),
        12 => parse::<wire::GetSnapshotRequest, snapshot::GetSnapshot>(bytes),
        13 => parse::<wire::CreateVolumeGroupSnapshotRequest, snapshot::CreateGroupSnapshot>(bytes),
        14 => parse::<wire::DeleteVolumeGroupSnapshotRequest, snapshot::DeleteGroupSnapshot>(bytes),
        15 => parse::<wire::NodeStageVolumeRequest, node::Stage>(bytes),
        16 => parse::<wire::NodeUnstageVolumeRequest, node::Unstage>(bytes),
        17 => parse::<wire::NodePublishVolumeRequest, node::Publish>(bytes),
        18 => parse::<wire::NodeUnpublishVolumeRequest, node::Unpublish>(bytes),
        19 => parse::<wire::NodeGetVolumeStatsRequest, node::VolumeStats>(bytes),
        20 => parse::<wire::NodeExpandVolumeRequest, node::NodeExpand>(bytes),
        21 => parse::<wire::NodeGetVolumeHealthRequest, node::NodeVolumeHealth>(bytes),
        22 => parse::<wire::NodeGetStorageHealthRequest, node::StorageHealth>(bytes),
        23 => parse::<wire::ControllerGetVolumeRequest, controller::ControllerGetVolume>(bytes),
        24 => parse::<wire::ControllerGetVolumeHealthRequest, controller::ControllerGetVolumeHealth>(bytes),
        25 => parse::<wire::ControllerListVolumeHealthRequest, controller::ListVolumeHealth>(bytes),
        _ => parse::<wire::GetVolumeGroupSnapshotRequest, snapshot::GetGroupSnapshot>(bytes),
    }
});
