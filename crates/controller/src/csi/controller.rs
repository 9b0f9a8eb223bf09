//! The Controller service: each call and what answers it.

use bowline_csi::code::IdentityError;
use bowline_csi::wire;
use bowline_csi::wire::controller_service_capability::{Rpc, Type, rpc};
use tonic::{Request, Response, Status};

use super::{ControllerService, answer, patience};

/// Everything that is declared is implemented.
const CAPABILITIES: [rpc::Type; 16] = [
    rpc::Type::CreateDeleteVolume,
    rpc::Type::PublishUnpublishVolume,
    rpc::Type::PublishReadonly,
    rpc::Type::ListVolumes,
    rpc::Type::ListVolumesPublishedNodes,
    rpc::Type::GetCapacity,
    rpc::Type::CreateDeleteSnapshot,
    rpc::Type::ListSnapshots,
    rpc::Type::GetSnapshot,
    rpc::Type::CloneVolume,
    rpc::Type::ExpandVolume,
    rpc::Type::GetVolume,
    rpc::Type::ModifyVolume,
    rpc::Type::SingleNodeMultiWriter,
    rpc::Type::GetVolumeHealth,
    rpc::Type::ListVolumeHealth,
];

#[tonic::async_trait]
impl wire::controller_server::Controller for ControllerService {
    async fn controller_get_capabilities(
        &self,
        _: Request<wire::ControllerGetCapabilitiesRequest>,
    ) -> Result<Response<wire::ControllerGetCapabilitiesResponse>, Status> {
        let one = |rpc: rpc::Type| wire::ControllerServiceCapability {
            r#type: Some(Type::Rpc(Rpc { r#type: rpc.into() })),
        };
        let capabilities = CAPABILITIES.map(one).to_vec();
        let told = async { Ok::<_, IdentityError>(wire::ControllerGetCapabilitiesResponse { capabilities }) };
        answer(&self.catalog, "ControllerGetCapabilities", told).await
    }

    async fn create_volume(
        &self,
        request: Request<wire::CreateVolumeRequest>,
    ) -> Result<Response<wire::CreateVolumeResponse>, Status> {
        let wait = patience(&request);
        answer(&self.catalog, "CreateVolume", self.create(request.into_inner(), wait)).await
    }

    async fn delete_volume(
        &self,
        request: Request<wire::DeleteVolumeRequest>,
    ) -> Result<Response<wire::DeleteVolumeResponse>, Status> {
        let wait = patience(&request);
        answer(&self.catalog, "DeleteVolume", self.delete(request.into_inner(), wait)).await
    }

    async fn controller_publish_volume(
        &self,
        request: Request<wire::ControllerPublishVolumeRequest>,
    ) -> Result<Response<wire::ControllerPublishVolumeResponse>, Status> {
        let wait = patience(&request);
        answer(&self.catalog, "ControllerPublishVolume", self.publish(request.into_inner(), wait)).await
    }

    async fn controller_unpublish_volume(
        &self,
        request: Request<wire::ControllerUnpublishVolumeRequest>,
    ) -> Result<Response<wire::ControllerUnpublishVolumeResponse>, Status> {
        let wait = patience(&request);
        answer(&self.catalog, "ControllerUnpublishVolume", self.unpublish(request.into_inner(), wait)).await
    }

    async fn validate_volume_capabilities(
        &self,
        request: Request<wire::ValidateVolumeCapabilitiesRequest>,
    ) -> Result<Response<wire::ValidateVolumeCapabilitiesResponse>, Status> {
        answer(&self.catalog, "ValidateVolumeCapabilities", self.validate(request.into_inner())).await
    }

    async fn list_volumes(
        &self,
        request: Request<wire::ListVolumesRequest>,
    ) -> Result<Response<wire::ListVolumesResponse>, Status> {
        answer(&self.catalog, "ListVolumes", self.list(request.into_inner())).await
    }

    async fn controller_list_volume_health(
        &self,
        request: Request<wire::ControllerListVolumeHealthRequest>,
    ) -> Result<Response<wire::ControllerListVolumeHealthResponse>, Status> {
        answer(&self.catalog, "ControllerListVolumeHealth", self.list_health(request.into_inner())).await
    }

    async fn controller_get_volume_health(
        &self,
        request: Request<wire::ControllerGetVolumeHealthRequest>,
    ) -> Result<Response<wire::ControllerGetVolumeHealthResponse>, Status> {
        answer(&self.catalog, "ControllerGetVolumeHealth", self.health(request.into_inner())).await
    }

    async fn get_capacity(
        &self,
        request: Request<wire::GetCapacityRequest>,
    ) -> Result<Response<wire::GetCapacityResponse>, Status> {
        answer(&self.catalog, "GetCapacity", self.room(request.into_inner())).await
    }

    async fn create_snapshot(
        &self,
        request: Request<wire::CreateSnapshotRequest>,
    ) -> Result<Response<wire::CreateSnapshotResponse>, Status> {
        let wait = patience(&request);
        answer(&self.catalog, "CreateSnapshot", self.take_snapshot(request.into_inner(), wait)).await
    }

    async fn delete_snapshot(
        &self,
        request: Request<wire::DeleteSnapshotRequest>,
    ) -> Result<Response<wire::DeleteSnapshotResponse>, Status> {
        let wait = patience(&request);
        answer(&self.catalog, "DeleteSnapshot", self.remove_snapshot(request.into_inner(), wait)).await
    }

    async fn list_snapshots(
        &self,
        request: Request<wire::ListSnapshotsRequest>,
    ) -> Result<Response<wire::ListSnapshotsResponse>, Status> {
        answer(&self.catalog, "ListSnapshots", self.snapshots(request.into_inner())).await
    }

    async fn get_snapshot(
        &self,
        request: Request<wire::GetSnapshotRequest>,
    ) -> Result<Response<wire::GetSnapshotResponse>, Status> {
        answer(&self.catalog, "GetSnapshot", self.one_snapshot(request.into_inner())).await
    }

    async fn controller_expand_volume(
        &self,
        request: Request<wire::ControllerExpandVolumeRequest>,
    ) -> Result<Response<wire::ControllerExpandVolumeResponse>, Status> {
        let wait = patience(&request);
        answer(&self.catalog, "ControllerExpandVolume", self.expand(request.into_inner(), wait)).await
    }

    async fn controller_get_volume(
        &self,
        request: Request<wire::ControllerGetVolumeRequest>,
    ) -> Result<Response<wire::ControllerGetVolumeResponse>, Status> {
        answer(&self.catalog, "ControllerGetVolume", self.get(request.into_inner())).await
    }

    async fn controller_modify_volume(
        &self,
        request: Request<wire::ControllerModifyVolumeRequest>,
    ) -> Result<Response<wire::ControllerModifyVolumeResponse>, Status> {
        answer(&self.catalog, "ControllerModifyVolume", self.modify(request.into_inner())).await
    }
}
