//! Snapshots of several volumes together.

use bowline_core::SnapshotId;
use bowline_csi::code::{CreateSnapshotError, DeleteSnapshotError, GetSnapshotError, IdentityError};
use bowline_csi::snapshot::{CreateGroupSnapshot, DeleteGroupSnapshot, GetGroupSnapshot};
use bowline_csi::wire;
use bowline_csi::wire::group_controller_service_capability::{Rpc, Type, rpc};
use std::collections::BTreeSet;
use std::time::Duration;
use tonic::{Request, Response, Status};

use super::{GroupService, answer, parameters, patience};
use crate::record::{Group, Snapshot};

#[tonic::async_trait]
impl wire::group_controller_server::GroupController for GroupService {
    async fn group_controller_get_capabilities(
        &self,
        _: Request<wire::GroupControllerGetCapabilitiesRequest>,
    ) -> Result<Response<wire::GroupControllerGetCapabilitiesResponse>, Status> {
        let all = rpc::Type::CreateDeleteGetVolumeGroupSnapshot;
        let capability =
            wire::GroupControllerServiceCapability { r#type: Some(Type::Rpc(Rpc { r#type: all.into() })) };
        let told = wire::GroupControllerGetCapabilitiesResponse { capabilities: vec![capability] };
        answer(&self.catalog, "GroupControllerGetCapabilities", async { Ok::<_, IdentityError>(told) }).await
    }

    async fn create_volume_group_snapshot(
        &self,
        request: Request<wire::CreateVolumeGroupSnapshotRequest>,
    ) -> Result<Response<wire::CreateVolumeGroupSnapshotResponse>, Status> {
        let wait = patience(&request);
        answer(&self.catalog, "CreateVolumeGroupSnapshot", self.take(request.into_inner(), wait)).await
    }

    async fn delete_volume_group_snapshot(
        &self,
        request: Request<wire::DeleteVolumeGroupSnapshotRequest>,
    ) -> Result<Response<wire::DeleteVolumeGroupSnapshotResponse>, Status> {
        let wait = patience(&request);
        answer(&self.catalog, "DeleteVolumeGroupSnapshot", self.delete(request.into_inner(), wait)).await
    }

    async fn get_volume_group_snapshot(
        &self,
        request: Request<wire::GetVolumeGroupSnapshotRequest>,
    ) -> Result<Response<wire::GetVolumeGroupSnapshotResponse>, Status> {
        answer(&self.catalog, "GetVolumeGroupSnapshot", self.get(request.into_inner())).await
    }
}

/// Whether the snapshots that a caller names are those of the group; it may name none.
fn names_others(group: &Group, named: &[SnapshotId]) -> Option<String> {
    let (has, named): (BTreeSet<_>, BTreeSet<_>) = (group.snapshots.iter().collect(), named.iter().collect());
    (!named.is_empty() && has != named)
        .then(|| format!("snapshot_ids are not the {} snapshots of group {}", has.len(), group.id))
}

impl GroupService {
    fn told(&self, group: &Group, members: &[Snapshot]) -> wire::VolumeGroupSnapshot {
        let taken = group.state.taken();
        wire::VolumeGroupSnapshot {
            group_snapshot_id: group.id.to_string(),
            snapshots: members.iter().filter_map(|one| answer::snapshot(&self.catalog, one)).collect(),
            creation_time: Some(answer::timestamp(taken.map_or(group.created_at, |(_, at)| at))),
            ready_to_use: taken.is_some(),
        }
    }

    async fn take(
        &self,
        request: wire::CreateVolumeGroupSnapshotRequest,
        wait: Duration,
    ) -> Result<wire::CreateVolumeGroupSnapshotResponse, CreateSnapshotError> {
        let request = CreateGroupSnapshot::try_from(request)?;
        parameters::of_snapshots(&request.parameters)?;
        let (group, members) = self.catalog.create_group(request.name, &request.sources, wait).await?;
        Ok(wire::CreateVolumeGroupSnapshotResponse { group_snapshot: Some(self.told(&group, &members)) })
    }

    async fn delete(
        &self,
        request: wire::DeleteVolumeGroupSnapshotRequest,
        wait: Duration,
    ) -> Result<wire::DeleteVolumeGroupSnapshotResponse, DeleteSnapshotError> {
        let request = DeleteGroupSnapshot::try_from(request)?;
        let Some(group) = self.catalog.inner().group_record(&request.group).await? else {
            return Ok(wire::DeleteVolumeGroupSnapshotResponse {});
        };
        if let Some(sentence) = names_others(&group, &request.snapshots) {
            return Err(DeleteSnapshotError::Mismatch(sentence));
        }
        self.catalog.delete_group(&request.group, wait).await?;
        Ok(wire::DeleteVolumeGroupSnapshotResponse {})
    }

    async fn get(
        &self,
        request: wire::GetVolumeGroupSnapshotRequest,
    ) -> Result<wire::GetVolumeGroupSnapshotResponse, GetSnapshotError> {
        let request = GetGroupSnapshot::try_from(request)?;
        let (group, members) = self.catalog.group(&request.group).await?;
        if let Some(sentence) = names_others(&group, &request.snapshots) {
            return Err(GetSnapshotError::Mismatch(sentence));
        }
        Ok(wire::GetVolumeGroupSnapshotResponse { group_snapshot: Some(self.told(&group, &members)) })
    }
}
