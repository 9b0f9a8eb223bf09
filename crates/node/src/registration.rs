//! How the kubelet learns of this driver: it finds a socket in its directory of plugins, asks who is there, and tells
//! what came of it.

use bowline_csi::wire::registration::registration_server::Registration;
use bowline_csi::wire::registration::{
    InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse,
};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::sync::watch;
use tonic::{Request, Response, Status};

/// What the kubelet takes for a CSI driver.
const TYPE: &str = "CSIPlugin";

/// The version of the contract between kubelet and driver; it has nothing to do with the version of CSI.
const VERSION: &str = "1.0.0";

/// What the kubelet said last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Registered {
    /// Nothing yet.
    #[default]
    Waiting,
    /// The driver is registered.
    Yes,
    /// It is not, for this reason.
    Refused(String),
}

impl Registered {
    /// In one sentence, for people, unless all is well.
    pub fn problem(&self, driver: &str) -> Option<String> {
        match self {
            Self::Waiting => Some(format!("the kubelet has not registered {driver} yet")),
            Self::Yes => None,
            Self::Refused(why) => Some(format!("the kubelet refused to register {driver}: {why}")),
        }
    }
}

/// The kubelet's `Registration` service for one driver.
#[derive(Clone, Debug)]
pub struct RegistrationService {
    driver: &'static str,
    endpoint: PathBuf,
    said: Arc<watch::Sender<Registered>>,
}

impl RegistrationService {
    /// For the driver with this name, which listens for CSI calls at `endpoint`, a path as the kubelet sees it.
    pub fn new(driver: &'static str, endpoint: &Path) -> Self {
        Self { driver, endpoint: endpoint.to_owned(), said: Arc::new(watch::Sender::default()) }
    }

    /// What the kubelet said last, and whatever it says from now on.
    pub fn said(&self) -> watch::Receiver<Registered> {
        self.said.subscribe()
    }

    /// Forgets what was said: from now on the kubelet has to ask again.
    pub fn forget(&self) {
        self.said.send_replace(Registered::Waiting);
    }
}

#[tonic::async_trait]
impl Registration for RegistrationService {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        tracing::info!(driver = self.driver, "the kubelet asks who is there");
        Ok(Response::new(PluginInfo {
            r#type: TYPE.to_owned(),
            name: self.driver.to_owned(),
            endpoint: self.endpoint.to_string_lossy().into_owned(),
            supported_versions: vec![VERSION.to_owned()],
        }))
    }

    async fn notify_registration_status(
        &self,
        status: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let RegistrationStatus { plugin_registered, error } = status.into_inner();
        let said = if plugin_registered {
            tracing::info!(driver = self.driver, "registered with the kubelet");
            Registered::Yes
        } else {
            tracing::error!(driver = self.driver, %error, "the kubelet refused to register the driver");
            Registered::Refused(error)
        };
        self.said.send_replace(said);
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_kubelet_is_told_what_it_asks_for_and_its_answer_is_kept() {
        let service = RegistrationService::new("bowline.storage", Path::new("/k/plugins/csi.sock"));
        let info = service.get_info(Request::new(InfoRequest {})).await.unwrap().into_inner();
        assert_eq!((info.r#type.as_str(), info.name.as_str()), ("CSIPlugin", "bowline.storage"));
        assert_eq!(info.endpoint, "/k/plugins/csi.sock");
        assert_eq!(info.supported_versions, ["1.0.0"]);

        let said = service.said();
        assert_eq!(*said.borrow(), Registered::Waiting);
        for (plugin_registered, error, expected) in [
            (
                false,
                "no such handler",
                Some("the kubelet refused to register bowline.storage: no such handler"),
            ),
            (true, "", None),
        ] {
            let status = RegistrationStatus { plugin_registered, error: error.to_owned() };
            service.notify_registration_status(Request::new(status)).await.unwrap();
            assert_eq!(said.borrow().problem("bowline.storage").as_deref(), expected);
        }
        service.forget();
        let waiting = "the kubelet has not registered bowline.storage yet";
        assert_eq!(said.borrow().problem("bowline.storage").as_deref(), Some(waiting));
    }
}
