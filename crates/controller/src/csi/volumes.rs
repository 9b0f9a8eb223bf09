//! Volumes: making, deleting, growing, changing, and asking about them.

use bowline_csi::code::{
    ControllerExpandError, ControllerModifyError, CreateVolumeError, DeleteVolumeError, GetCapacityError,
    GetVolumeError, ValidateCapabilitiesError,
};
use bowline_csi::controller::{
    ContentSource, ControllerExpand, ControllerGetVolume, ControllerGetVolumeHealth, ControllerModify,
    CreateVolume, DeleteVolume, GetCapacity, ValidateCapabilities,
};
use bowline_csi::wire;
use std::time::Duration;

use super::{ControllerService, answer, parameters};
use crate::catalog::{NewVolume, place};
use crate::failure::{Failure, Why};
use crate::record::{Source, Volume, VolumeState};
use bowline_core::{AccessMode, Content};

impl ControllerService {
    pub(crate) async fn create(
        &self,
        request: wire::CreateVolumeRequest,
        wait: Duration,
    ) -> Result<wire::CreateVolumeResponse, CreateVolumeError> {
        let request = CreateVolume::try_from(request)?;
        let class = parameters::of_class(&request.parameters)?;
        let given = parameters::mutable(&request.mutable_parameters)?;
        let order = NewVolume {
            name: request.name,
            required: request.capacity.map(|range| range.required()).filter(|required| *required > 0),
            limit: request.capacity.and_then(|range| range.limit()),
            fs: parameters::filesystem_of(&request.capabilities, class.fs)?,
            uses: request.capabilities.iter().map(parameters::use_of).collect(),
            source: request.source.map(|source| match source {
                ContentSource::Snapshot(id) => Source::Snapshot(id),
                ContentSource::Volume(id) => Source::Volume(id),
            }),
            settings: parameters::settings(&class.change, &given),
            target: class.target,
            kind: class.kind.map(str::to_owned),
            place: request.accessibility,
        };
        let volume = self.catalog.create_volume(order, wait).await?;
        Ok(wire::CreateVolumeResponse { volume: Some(answer::volume(&self.catalog, &volume)) })
    }

    pub(crate) async fn delete(
        &self,
        request: wire::DeleteVolumeRequest,
        wait: Duration,
    ) -> Result<wire::DeleteVolumeResponse, DeleteVolumeError> {
        let request = DeleteVolume::try_from(request)?;
        self.catalog.delete_volume(&request.volume, wait).await?;
        Ok(wire::DeleteVolumeResponse {})
    }

    pub(crate) async fn expand(
        &self,
        request: wire::ControllerExpandVolumeRequest,
        wait: Duration,
    ) -> Result<wire::ControllerExpandVolumeResponse, ControllerExpandError> {
        let request = ControllerExpand::try_from(request)?;
        let capacity = request.capacity;
        let known = self.catalog.inner().volume(&request.volume).await?;
        if let Some(capability) = &request.capability {
            suits(&known, capability, "volume_capability")?;
        }
        let volume =
            self.catalog.grow_volume(&request.volume, capacity.required(), capacity.limit(), wait).await?;
        let mounted = match &request.capability {
            Some(capability) => capability.content() == Content::Filesystem,
            None => volume.uses.iter().any(|one| one.content == Content::Filesystem),
        };
        Ok(wire::ControllerExpandVolumeResponse {
            capacity_bytes: answer::bytes(volume.size),
            node_expansion_required: mounted,
        })
    }

    pub(crate) async fn modify(
        &self,
        request: wire::ControllerModifyVolumeRequest,
    ) -> Result<wire::ControllerModifyVolumeResponse, ControllerModifyError> {
        let request = ControllerModify::try_from(request)?;
        // CSI: a volume that is not there is told before a parameter that is not known.
        self.catalog.inner().volume(&request.volume).await?;
        let change = parameters::mutable(&request.mutable_parameters)?;
        self.catalog.modify_volume(&request.volume, change).await?;
        Ok(wire::ControllerModifyVolumeResponse {})
    }

    pub(crate) async fn get(
        &self,
        request: wire::ControllerGetVolumeRequest,
    ) -> Result<wire::ControllerGetVolumeResponse, GetVolumeError> {
        let request = ControllerGetVolume::try_from(request)?;
        let volume = self.told(&request.volume).await?;
        let status = wire::controller_get_volume_response::VolumeStatus {
            published_node_ids: answer::published(&self.catalog, &volume.id).await?,
        };
        Ok(wire::ControllerGetVolumeResponse {
            volume: Some(answer::volume(&self.catalog, &volume)),
            status: Some(status),
        })
    }

    /// A volume whose id somebody was told.
    async fn told(&self, id: &bowline_core::VolumeId) -> Result<Volume, Failure> {
        let volume = self.catalog.inner().volume(id).await?;
        match volume.state {
            VolumeState::Creating => Err(Failure::new(Why::Unknown, format!("there is no volume {id} yet"))),
            VolumeState::Ready | VolumeState::Growing { .. } | VolumeState::Deleting => Ok(volume),
        }
    }

    pub(crate) async fn health(
        &self,
        request: wire::ControllerGetVolumeHealthRequest,
    ) -> Result<wire::ControllerGetVolumeHealthResponse, GetVolumeError> {
        let request = ControllerGetVolumeHealth::try_from(request)?;
        let fault = self.catalog.volume_fault(&request.volume).await?;
        let health = health_of(&request.volume, fault);
        Ok(wire::ControllerGetVolumeHealthResponse { volume_health: Some(health) })
    }

    pub(crate) async fn validate(
        &self,
        request: wire::ValidateVolumeCapabilitiesRequest,
    ) -> Result<wire::ValidateVolumeCapabilitiesResponse, ValidateCapabilitiesError> {
        use wire::validate_volume_capabilities_response::Confirmed;
        // Confirmed as they came.
        let given = request.clone();
        let request = ValidateCapabilities::try_from(request)?;
        let volume = match self.told(&request.volume).await {
            Ok(volume) => volume,
            Err(Failure { why: Why::Unknown, sentence }) => {
                return Err(ValidateCapabilitiesError::UnknownVolume(sentence));
            }
            Err(failure) => return Err(ValidateCapabilitiesError::Unreachable(failure.sentence)),
        };
        let kind = self
            .catalog
            .targets()
            .iter()
            .find(|one| *one.id() == volume.target)
            .map(|one| one.kind().to_owned());
        let (confirmed, message) = match agrees(&volume, kind.as_deref(), &request) {
            Ok(()) => (
                Some(Confirmed {
                    volume_context: given.volume_context,
                    volume_capabilities: given.volume_capabilities,
                    parameters: given.parameters,
                    mutable_parameters: given.mutable_parameters,
                }),
                String::new(),
            ),
            Err(failure) => (None, failure.sentence),
        };
        Ok(wire::ValidateVolumeCapabilitiesResponse { confirmed, message })
    }

    pub(crate) async fn room(
        &self,
        request: wire::GetCapacityRequest,
    ) -> Result<wire::GetCapacityResponse, GetCapacityError> {
        let request = GetCapacity::try_from(request)?;
        let class = parameters::of_class(&request.parameters)?;
        let usable = request.capabilities.iter().all(|one| !is_shared_filesystem(one));
        let matching = self.catalog.targets().into_iter().filter(|target| {
            usable
                && class.target.as_ref().is_none_or(|named| named == target.id())
                && class.kind.is_none_or(|kind| kind == target.kind())
                && request.topology.as_ref().is_none_or(|from| place::reaches(target.as_ref(), from))
        });
        let matching: Vec<_> = matching.collect();
        if usable && matching.is_empty() {
            // That there is no room would be believed until it is asked again, which csi-provisioner does a minute later; after an
            // error it asks again soon.
            let said =
                "no target is connected that such a volume could be on; one that connects may have room";
            return Err(GetCapacityError::Unreachable(said.to_owned()));
        }
        let inner = self.catalog.inner();
        let rooms = inner.rooms(inner.open_to_new(matching)).await?;
        let largest = rooms.iter().map(|(target, room)| target.sizes().maximum.min(room.available)).max();
        let available = rooms.iter().fold(0_u64, |sum, (_, room)| sum.saturating_add(room.available));
        let least = self.catalog.targets().iter().map(|target| target.sizes().minimum).min();
        Ok(wire::GetCapacityResponse {
            available_capacity: answer::bytes(available),
            maximum_volume_size: Some(answer::bytes(largest.unwrap_or_default())),
            minimum_volume_size: Some(answer::bytes(least.unwrap_or_default())),
        })
    }
}

fn is_shared_filesystem(capability: &bowline_csi::VolumeCapability) -> bool {
    capability.mode == AccessMode::MultiNodeMultiWriter && capability.content() == Content::Filesystem
}

/// Whether a volume can be used so.
pub(crate) fn suits(
    volume: &Volume,
    capability: &bowline_csi::VolumeCapability,
    field: &str,
) -> Result<(), Failure> {
    let no = |sentence: String| Err(Failure::new(Why::Unsupported, sentence));
    let wanted = parameters::use_of(capability);
    if !volume.uses.iter().any(|made_for| parameters::will_do(made_for, &wanted)) {
        return no(format!("{field}: volume {} was not made to be used so", volume.id));
    }
    match &capability.access {
        bowline_csi::Access::Mount(mount) => match &mount.fs_type {
            Some(fs) if fs.as_str() != volume.fs.name() => {
                no(format!("{field}.mount.fs_type is {fs}; volume {} has {}", volume.id, volume.fs))
            }
            _ => Ok(()),
        },
        bowline_csi::Access::Block => Ok(()),
    }
}

/// Whether everything that a caller believes of a volume is so.
fn agrees(volume: &Volume, kind: Option<&str>, request: &ValidateCapabilities) -> Result<(), Failure> {
    for (index, capability) in request.capabilities.iter().enumerate() {
        suits(volume, capability, &format!("volume_capabilities[{index}]"))?;
    }
    let context = answer::volume_context(volume);
    if let Some((key, _)) =
        request.volume_context.iter().find(|(key, value)| context.get(*key).is_some_and(|ours| ours != value))
    {
        let sentence = format!("volume_context[{key}] is not what volume {} has", volume.id);
        return Err(Failure::new(Why::Unsupported, sentence));
    }
    let class = parameters::of_class(&request.parameters)?;
    if class.target.is_some_and(|target| target != volume.target) {
        let sentence = format!("parameters[target]: volume {} is on {}", volume.id, volume.target);
        return Err(Failure::new(Why::Unsupported, sentence));
    }
    if let (Some(believed), Some(kind)) = (class.kind, kind)
        && believed != kind
    {
        let sentence = format!("parameters[kind]: volume {} is on a target of kind {kind}", volume.id);
        return Err(Failure::new(Why::Unsupported, sentence));
    }
    if class.fs.is_some_and(|fs| fs != volume.fs) {
        let sentence = format!("parameters[fsType]: volume {} has {}", volume.id, volume.fs);
        return Err(Failure::new(Why::Unsupported, sentence));
    }
    let believed = parameters::mutable(&request.mutable_parameters)?;
    let settings = &volume.settings;
    let same = believed.migratable.is_none_or(|one| one == settings.migratable)
        && believed.deletion_protection.is_none_or(|one| one == settings.deletion_protection)
        && believed.discard.is_none_or(|one| one == settings.discard);
    if same {
        return Ok(());
    }
    let sentence = format!("mutable_parameters: volume {} has others", volume.id);
    Err(Failure::new(Why::Unsupported, sentence))
}

/// What is wrong with a volume, as CSI tells it; nothing if it is well.
pub(crate) fn health_of(volume: &bowline_core::VolumeId, fault: Option<String>) -> wire::VolumeHealth {
    let entry = |message: String| wire::volume_health::VolumeHealthEntry {
        status: wire::VolumeHealthErrorType::Inaccessible.into(),
        reason: "VolumeFaulted".to_owned(),
        message,
    };
    wire::VolumeHealth {
        volume_id: volume.to_string(),
        health_statuses: fault.map(entry).into_iter().collect(),
    }
}
