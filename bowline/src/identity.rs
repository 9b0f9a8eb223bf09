//! `Identity` of a process without a catalog: one that is only a node, and a controller that does not lead.

use bowline_csi::wire;
use tonic::{Request, Response, Status};

/// Who answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Identity {
    /// A node without a controller beside it.
    Node,
    /// A controller that waits to lead.
    NotReady,
}

#[tonic::async_trait]
impl wire::identity_server::Identity for Identity {
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
        Ok(Response::new(wire::ProbeResponse { ready: Some(*self == Self::Node) }))
    }
}
