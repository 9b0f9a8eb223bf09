//! What the kubelet asks on a node.

use crate::attributes::{Attributes, Secrets};
use crate::capability::VolumeCapability;
use crate::capacity::CapacityRange;
use crate::field::{At, InvalidField};
use crate::id::volume_id;
use crate::path::AbsolutePath;
use crate::wire;
use bowline_core::VolumeId;

const STAGING: At<'static> = At::field("staging_target_path");

/// `NodeStageVolume`: make a volume ready on this node, once for all its workloads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stage {
    /// Which volume.
    pub volume: VolumeId,
    /// Where to make it ready.
    pub staging_path: AbsolutePath,
    /// How it is to be used.
    pub capability: VolumeCapability,
    /// What the controller said when it let this node in.
    pub publish_context: Attributes,
    /// What the driver said about the volume when it was made.
    pub volume_context: Attributes,
    /// Secrets of the call.
    pub secrets: Secrets,
}

impl TryFrom<wire::NodeStageVolumeRequest> for Stage {
    type Error = InvalidField;

    fn try_from(request: wire::NodeStageVolumeRequest) -> Result<Self, InvalidField> {
        Ok(Self {
            volume: volume_id(At::field("volume_id"), &request.volume_id)?,
            staging_path: AbsolutePath::parse(STAGING, &request.staging_target_path)?,
            capability: VolumeCapability::parse_required(request.volume_capability)?,
            publish_context: Attributes::parse(At::field("publish_context"), request.publish_context)?,
            volume_context: Attributes::parse(At::field("volume_context"), request.volume_context)?,
            secrets: Secrets::parse(request.secrets)?,
        })
    }
}

/// `NodeUnstageVolume`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unstage {
    /// Which volume.
    pub volume: VolumeId,
    /// Where it was made ready.
    pub staging_path: AbsolutePath,
}

impl TryFrom<wire::NodeUnstageVolumeRequest> for Unstage {
    type Error = InvalidField;

    fn try_from(request: wire::NodeUnstageVolumeRequest) -> Result<Self, InvalidField> {
        Ok(Self {
            volume: volume_id(At::field("volume_id"), &request.volume_id)?,
            staging_path: AbsolutePath::parse(STAGING, &request.staging_target_path)?,
        })
    }
}

/// `NodePublishVolume`: show a volume to one workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Publish {
    /// Which volume.
    pub volume: VolumeId,
    /// Where it was made ready. A driver that stages answers `FailedPrecondition` without it, as CSI says; that is
    /// not a matter of form.
    pub staging_path: Option<AbsolutePath>,
    /// Where the workload is to see it.
    pub target_path: AbsolutePath,
    /// How it is to be used.
    pub capability: VolumeCapability,
    /// Whether this workload may not write, whatever the access mode says.
    pub read_only: bool,
    /// What the controller said when it let this node in.
    pub publish_context: Attributes,
    /// What the driver said about the volume when it was made.
    pub volume_context: Attributes,
    /// Secrets of the call.
    pub secrets: Secrets,
}

impl TryFrom<wire::NodePublishVolumeRequest> for Publish {
    type Error = InvalidField;

    fn try_from(request: wire::NodePublishVolumeRequest) -> Result<Self, InvalidField> {
        Ok(Self {
            volume: volume_id(At::field("volume_id"), &request.volume_id)?,
            staging_path: AbsolutePath::parse_optional(STAGING, &request.staging_target_path)?,
            target_path: AbsolutePath::parse(At::field("target_path"), &request.target_path)?,
            capability: VolumeCapability::parse_required(request.volume_capability)?,
            read_only: request.readonly,
            publish_context: Attributes::parse(At::field("publish_context"), request.publish_context)?,
            volume_context: Attributes::parse(At::field("volume_context"), request.volume_context)?,
            secrets: Secrets::parse(request.secrets)?,
        })
    }
}

/// `NodeUnpublishVolume`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unpublish {
    /// Which volume.
    pub volume: VolumeId,
    /// Where the workload sees it.
    pub target_path: AbsolutePath,
}

impl TryFrom<wire::NodeUnpublishVolumeRequest> for Unpublish {
    type Error = InvalidField;

    fn try_from(request: wire::NodeUnpublishVolumeRequest) -> Result<Self, InvalidField> {
        Ok(Self {
            volume: volume_id(At::field("volume_id"), &request.volume_id)?,
            target_path: AbsolutePath::parse(At::field("target_path"), &request.target_path)?,
        })
    }
}

/// `NodeGetVolumeStats`: how full is it?
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeStats {
    /// Which volume.
    pub volume: VolumeId,
    /// Where it is staged or published.
    pub path: AbsolutePath,
    /// Where it was made ready.
    pub staging_path: Option<AbsolutePath>,
}

impl TryFrom<wire::NodeGetVolumeStatsRequest> for VolumeStats {
    type Error = InvalidField;

    fn try_from(request: wire::NodeGetVolumeStatsRequest) -> Result<Self, InvalidField> {
        Ok(Self {
            volume: volume_id(At::field("volume_id"), &request.volume_id)?,
            path: AbsolutePath::parse(At::field("volume_path"), &request.volume_path)?,
            staging_path: AbsolutePath::parse_optional(STAGING, &request.staging_target_path)?,
        })
    }
}

/// `NodeGetVolumeHealth`: is it well, seen from this node?
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeVolumeHealth {
    /// Which volume.
    pub volume: VolumeId,
    /// Where it is published, or was to be.
    pub publish_path: Option<AbsolutePath>,
    /// Where it was made ready, or was to be.
    pub staging_path: Option<AbsolutePath>,
}

impl TryFrom<wire::NodeGetVolumeHealthRequest> for NodeVolumeHealth {
    type Error = InvalidField;

    fn try_from(request: wire::NodeGetVolumeHealthRequest) -> Result<Self, InvalidField> {
        let at = At::field("volume_publish_path");
        Ok(Self {
            volume: volume_id(At::field("volume_id"), &request.volume_id)?,
            publish_path: AbsolutePath::parse_optional(at, &request.volume_publish_path)?,
            staging_path: AbsolutePath::parse_optional(STAGING, &request.staging_target_path)?,
        })
    }
}

/// `NodeGetStorageHealth`: does this node reach its storage?
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StorageHealth {
    /// Secrets of the call.
    pub secrets: Secrets,
}

impl TryFrom<wire::NodeGetStorageHealthRequest> for StorageHealth {
    type Error = InvalidField;

    fn try_from(request: wire::NodeGetStorageHealthRequest) -> Result<Self, InvalidField> {
        Ok(Self { secrets: Secrets::parse(request.secrets)? })
    }
}

/// `NodeExpandVolume`: let the workload see the new size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeExpand {
    /// Which volume.
    pub volume: VolumeId,
    /// Where it is staged or published.
    pub path: AbsolutePath,
    /// Where it was made ready.
    pub staging_path: Option<AbsolutePath>,
    /// How large it is to be; as large as its device if not given.
    pub capacity: Option<CapacityRange>,
    /// How it is used, if the caller knows.
    pub capability: Option<VolumeCapability>,
    /// Secrets of the call.
    pub secrets: Secrets,
}

impl TryFrom<wire::NodeExpandVolumeRequest> for NodeExpand {
    type Error = InvalidField;

    fn try_from(request: wire::NodeExpandVolumeRequest) -> Result<Self, InvalidField> {
        Ok(Self {
            volume: volume_id(At::field("volume_id"), &request.volume_id)?,
            path: AbsolutePath::parse(At::field("volume_path"), &request.volume_path)?,
            staging_path: AbsolutePath::parse_optional(STAGING, &request.staging_target_path)?,
            capacity: CapacityRange::parse_optional(request.capacity_range)?,
            capability: VolumeCapability::parse_optional(request.volume_capability)?,
            secrets: Secrets::parse(request.secrets)?,
        })
    }
}
