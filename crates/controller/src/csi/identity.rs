//! What this plugin is, and whether it is ready.

use bowline_csi::code::IdentityError;
use bowline_csi::wire;
use bowline_csi::wire::plugin_capability::{Service, Type, VolumeExpansion, service, volume_expansion};
use tonic::{Request, Response, Status};

use super::{DRIVER, IdentityService, answer};

#[tonic::async_trait]
impl wire::identity_server::Identity for IdentityService {
    async fn get_plugin_info(
        &self,
        _: Request<wire::GetPluginInfoRequest>,
    ) -> Result<Response<wire::GetPluginInfoResponse>, Status> {
        let info = wire::GetPluginInfoResponse {
            name: DRIVER.to_owned(),
            vendor_version: env!("CARGO_PKG_VERSION").to_owned(),
            manifest: Default::default(),
        };
        answer(&self.catalog, "GetPluginInfo", async { Ok::<_, IdentityError>(info) }).await
    }

    async fn get_plugin_capabilities(
        &self,
        _: Request<wire::GetPluginCapabilitiesRequest>,
    ) -> Result<Response<wire::GetPluginCapabilitiesResponse>, Status> {
        let services = [
            service::Type::ControllerService,
            service::Type::GroupControllerService,
            service::Type::VolumeAccessibilityConstraints,
            service::Type::SnapshotAccessibilityConstraints,
        ];
        let services = services.map(|one| Type::Service(Service { r#type: one.into() }));
        let online = VolumeExpansion { r#type: volume_expansion::Type::Online.into() };
        let capabilities = services.into_iter().chain([Type::VolumeExpansion(online)]);
        let capabilities = capabilities.map(|one| wire::PluginCapability { r#type: Some(one) }).collect();
        let told = async { Ok::<_, IdentityError>(wire::GetPluginCapabilitiesResponse { capabilities }) };
        answer(&self.catalog, "GetPluginCapabilities", told).await
    }

    async fn probe(&self, _: Request<wire::ProbeRequest>) -> Result<Response<wire::ProbeResponse>, Status> {
        // Whoever has a catalog has read everything back: it is ready, until it is closed.
        let ready = !self.catalog.inner().operations.is_closed();
        let told = async { Ok::<_, IdentityError>(wire::ProbeResponse { ready: Some(ready) }) };
        answer(&self.catalog, "Probe", told).await
    }
}
