//! `Identity` of a process that is only a node.

use bowline_csi::wire;
use tonic::{Request, Response, Status};

/// Answers for a node without a controller beside it.
pub(crate) struct NodeIdentity;

#[tonic::async_trait]
impl wire::identity_server::Identity for NodeIdentity {
    async fn get_plugin_info(
        &self,
        _: Request<wire::GetPluginInfoRequest>,
    ) -> Result<Response<wire::GetPluginInfoResponse>, Status> {
        Ok(Response::new(wire::GetPluginInfoResponse {
            name: bowline_controller::csi::DRIVER.to_owned(),
            vendor_version: env!("CARGO_PKG_VERSION").to_owned(),
            manifest: Default::default(),
        }))
    }

    async fn get_plugin_capabilities(
        &self,
        _: Request<wire::GetPluginCapabilitiesRequest>,
    ) -> Result<Response<wire::GetPluginCapabilitiesResponse>, Status> {
        Ok(Response::new(wire::GetPluginCapabilitiesResponse::default()))
    }

    async fn probe(&self, _: Request<wire::ProbeRequest>) -> Result<Response<wire::ProbeResponse>, Status> {
        Ok(Response::new(wire::ProbeResponse { ready: Some(true) }))
    }
}
