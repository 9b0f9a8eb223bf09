//! What the controller is asked about volumes.

use crate::attributes::{Attributes, Secrets};
use crate::capability::VolumeCapability;
use crate::capacity::CapacityRange;
use crate::field::{At, InvalidField};
use crate::id::{Name, node_id, snapshot_id, volume_id};
use crate::page::Page;
use crate::topology::{Topology, TopologyRequirement};
use crate::wire;
use crate::wire::volume_content_source::Type as SourceType;
use bowline_core::{NodeId, SnapshotId, VolumeId};

/// What a new volume is to hold from the start.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ContentSource {
    /// What a snapshot holds.
    Snapshot(SnapshotId),
    /// What another volume holds now.
    Volume(VolumeId),
}

impl ContentSource {
    fn parse(source: Option<wire::VolumeContentSource>) -> Result<Option<Self>, InvalidField> {
        let Some(source) = source else { return Ok(None) };
        let at = At::field("volume_content_source");
        Ok(Some(match at.child("type").required(source.r#type)? {
            SourceType::Snapshot(source) => {
                Self::Snapshot(snapshot_id(at.child("snapshot").child("snapshot_id"), &source.snapshot_id)?)
            }
            SourceType::Volume(source) => {
                Self::Volume(volume_id(at.child("volume").child("volume_id"), &source.volume_id)?)
            }
        }))
    }
}

/// `CreateVolume`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreateVolume {
    /// The caller's name for it.
    pub name: Name,
    /// Its size; the driver chooses if not given.
    pub capacity: Option<CapacityRange>,
    /// Every way in which it must be usable; at least one.
    pub capabilities: Vec<VolumeCapability>,
    /// Parameters of the storage class.
    pub parameters: Attributes,
    /// Parameters that can be changed later.
    pub mutable_parameters: Attributes,
    /// What it holds from the start; nothing if not given.
    pub source: Option<ContentSource>,
    /// From where it has to be reachable.
    pub accessibility: TopologyRequirement,
    /// Secrets of the call.
    pub secrets: Secrets,
}

impl TryFrom<wire::CreateVolumeRequest> for CreateVolume {
    type Error = InvalidField;

    fn try_from(request: wire::CreateVolumeRequest) -> Result<Self, InvalidField> {
        Ok(Self {
            name: Name::parse(At::field("name"), request.name)?,
            capacity: CapacityRange::parse_optional(request.capacity_range)?,
            capabilities: VolumeCapability::parse_some(request.volume_capabilities)?,
            parameters: Attributes::parse(At::field("parameters"), request.parameters)?,
            mutable_parameters: Attributes::parse(
                At::field("mutable_parameters"),
                request.mutable_parameters,
            )?,
            source: ContentSource::parse(request.volume_content_source)?,
            accessibility: TopologyRequirement::parse(request.accessibility_requirements)?,
            secrets: Secrets::parse(request.secrets)?,
        })
    }
}

/// `DeleteVolume`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeleteVolume {
    /// Which volume.
    pub volume: VolumeId,
    /// Secrets of the call.
    pub secrets: Secrets,
}

impl TryFrom<wire::DeleteVolumeRequest> for DeleteVolume {
    type Error = InvalidField;

    fn try_from(request: wire::DeleteVolumeRequest) -> Result<Self, InvalidField> {
        Ok(Self {
            volume: volume_id(At::field("volume_id"), &request.volume_id)?,
            secrets: Secrets::parse(request.secrets)?,
        })
    }
}

/// `ControllerPublishVolume`: let a node in to a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControllerPublish {
    /// Which volume.
    pub volume: VolumeId,
    /// Which node.
    pub node: NodeId,
    /// How it is to be used there.
    pub capability: VolumeCapability,
    /// Whether the node may not write, whatever the access mode says.
    pub read_only: bool,
    /// What the driver said about the volume when it was made.
    pub volume_context: Attributes,
    /// Secrets of the call.
    pub secrets: Secrets,
}

impl TryFrom<wire::ControllerPublishVolumeRequest> for ControllerPublish {
    type Error = InvalidField;

    fn try_from(request: wire::ControllerPublishVolumeRequest) -> Result<Self, InvalidField> {
        Ok(Self {
            volume: volume_id(At::field("volume_id"), &request.volume_id)?,
            node: node_id(At::field("node_id"), &request.node_id)?,
            capability: VolumeCapability::parse_required(request.volume_capability)?,
            read_only: request.readonly,
            volume_context: Attributes::parse(At::field("volume_context"), request.volume_context)?,
            secrets: Secrets::parse(request.secrets)?,
        })
    }
}

/// Whom to shut out of a volume.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ShutOut {
    /// One node.
    Node(NodeId),
    /// Whoever is let in: the request named no node.
    EveryNode,
}

/// `ControllerUnpublishVolume`: shut a node out of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControllerUnpublish {
    /// Which volume.
    pub volume: VolumeId,
    /// Whom to shut out.
    pub whom: ShutOut,
    /// Secrets of the call.
    pub secrets: Secrets,
}

impl TryFrom<wire::ControllerUnpublishVolumeRequest> for ControllerUnpublish {
    type Error = InvalidField;

    fn try_from(request: wire::ControllerUnpublishVolumeRequest) -> Result<Self, InvalidField> {
        let whom = match request.node_id.as_str() {
            "" => ShutOut::EveryNode,
            id => ShutOut::Node(node_id(At::field("node_id"), id)?),
        };
        Ok(Self {
            volume: volume_id(At::field("volume_id"), &request.volume_id)?,
            whom,
            secrets: Secrets::parse(request.secrets)?,
        })
    }
}

/// `ValidateVolumeCapabilities`: can a volume be used in these ways?
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValidateCapabilities {
    /// Which volume.
    pub volume: VolumeId,
    /// The ways; at least one.
    pub capabilities: Vec<VolumeCapability>,
    /// What the caller believes the driver said about the volume.
    pub volume_context: Attributes,
    /// Parameters the caller believes it was made with.
    pub parameters: Attributes,
    /// Changeable parameters the caller believes it has.
    pub mutable_parameters: Attributes,
    /// Secrets of the call.
    pub secrets: Secrets,
}

impl TryFrom<wire::ValidateVolumeCapabilitiesRequest> for ValidateCapabilities {
    type Error = InvalidField;

    fn try_from(request: wire::ValidateVolumeCapabilitiesRequest) -> Result<Self, InvalidField> {
        Ok(Self {
            volume: volume_id(At::field("volume_id"), &request.volume_id)?,
            capabilities: VolumeCapability::parse_some(request.volume_capabilities)?,
            volume_context: Attributes::parse(At::field("volume_context"), request.volume_context)?,
            parameters: Attributes::parse(At::field("parameters"), request.parameters)?,
            mutable_parameters: Attributes::parse(
                At::field("mutable_parameters"),
                request.mutable_parameters,
            )?,
            secrets: Secrets::parse(request.secrets)?,
        })
    }
}

/// `ListVolumes`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListVolumes {
    /// Which part of the list.
    pub page: Page,
}

impl TryFrom<wire::ListVolumesRequest> for ListVolumes {
    type Error = InvalidField;

    fn try_from(request: wire::ListVolumesRequest) -> Result<Self, InvalidField> {
        Ok(Self { page: Page::parse(request.max_entries, request.starting_token)? })
    }
}

/// `ControllerListVolumeHealth`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListVolumeHealth {
    /// Which part of the list.
    pub page: Page,
    /// Secrets of the call.
    pub secrets: Secrets,
}

impl TryFrom<wire::ControllerListVolumeHealthRequest> for ListVolumeHealth {
    type Error = InvalidField;

    fn try_from(request: wire::ControllerListVolumeHealthRequest) -> Result<Self, InvalidField> {
        Ok(Self {
            page: Page::parse(request.max_entries, request.starting_token)?,
            secrets: Secrets::parse(request.secrets)?,
        })
    }
}

/// `ControllerGetVolumeHealth`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControllerGetVolumeHealth {
    /// Which volume.
    pub volume: VolumeId,
    /// Secrets of the call.
    pub secrets: Secrets,
}

impl TryFrom<wire::ControllerGetVolumeHealthRequest> for ControllerGetVolumeHealth {
    type Error = InvalidField;

    fn try_from(request: wire::ControllerGetVolumeHealthRequest) -> Result<Self, InvalidField> {
        Ok(Self {
            volume: volume_id(At::field("volume_id"), &request.volume_id)?,
            secrets: Secrets::parse(request.secrets)?,
        })
    }
}

/// `GetCapacity`: how much room is there for volumes like these?
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GetCapacity {
    /// Ways in which they must be usable; any if there are none.
    pub capabilities: Vec<VolumeCapability>,
    /// Parameters of the storage class.
    pub parameters: Attributes,
    /// From where they have to be reachable; from anywhere if not given.
    pub topology: Option<Topology>,
}

impl TryFrom<wire::GetCapacityRequest> for GetCapacity {
    type Error = InvalidField;

    fn try_from(request: wire::GetCapacityRequest) -> Result<Self, InvalidField> {
        // external-provisioner asks with an empty topology where a driver has none.
        let topology = request.accessible_topology.filter(|topology| !topology.segments.is_empty());
        let at = At::field("accessible_topology");
        Ok(Self {
            capabilities: VolumeCapability::parse_each(request.volume_capabilities)?,
            parameters: Attributes::parse(At::field("parameters"), request.parameters)?,
            topology: topology.map(|topology| Topology::parse(at, topology)).transpose()?,
        })
    }
}

/// `ControllerExpandVolume`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControllerExpand {
    /// Which volume.
    pub volume: VolumeId,
    /// How large it is to be.
    pub capacity: CapacityRange,
    /// How it is used, if the caller knows.
    pub capability: Option<VolumeCapability>,
    /// Secrets of the call.
    pub secrets: Secrets,
}

impl TryFrom<wire::ControllerExpandVolumeRequest> for ControllerExpand {
    type Error = InvalidField;

    fn try_from(request: wire::ControllerExpandVolumeRequest) -> Result<Self, InvalidField> {
        Ok(Self {
            volume: volume_id(At::field("volume_id"), &request.volume_id)?,
            capacity: CapacityRange::parse_required(request.capacity_range)?,
            capability: VolumeCapability::parse_optional(request.volume_capability)?,
            secrets: Secrets::parse(request.secrets)?,
        })
    }
}

/// `ControllerGetVolume`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControllerGetVolume {
    /// Which volume.
    pub volume: VolumeId,
}

impl TryFrom<wire::ControllerGetVolumeRequest> for ControllerGetVolume {
    type Error = InvalidField;

    fn try_from(request: wire::ControllerGetVolumeRequest) -> Result<Self, InvalidField> {
        Ok(Self { volume: volume_id(At::field("volume_id"), &request.volume_id)? })
    }
}

/// `ControllerModifyVolume`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControllerModify {
    /// Which volume.
    pub volume: VolumeId,
    /// What to change, and to what; at least one. Keys that are not here stay as they are.
    pub mutable_parameters: Attributes,
    /// Secrets of the call.
    pub secrets: Secrets,
}

impl TryFrom<wire::ControllerModifyVolumeRequest> for ControllerModify {
    type Error = InvalidField;

    fn try_from(request: wire::ControllerModifyVolumeRequest) -> Result<Self, InvalidField> {
        Ok(Self {
            volume: volume_id(At::field("volume_id"), &request.volume_id)?,
            mutable_parameters: Attributes::parse_required(
                At::field("mutable_parameters"),
                request.mutable_parameters,
            )?,
            secrets: Secrets::parse(request.secrets)?,
        })
    }
}
