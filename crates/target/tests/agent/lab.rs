//! An agent that can be killed, on a socket or with certificates.

use bowline_core::{Epoch, Mode, NodeId, Share, TargetId, VolumeId};
use bowline_target::agent::{
    AgentClient, AgentServer, ClientSettings, ConnectError, Listener, Place, TlsFiles,
};
use bowline_target::{Grant, NewVolume, Revocation, Source};
use bowline_testkit::SimTarget;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::{TcpListener, UnixListener};
use tokio::runtime::Runtime;

pub(crate) const MIB: u64 = 1 << 20;

/// A process of its own, as far as its tasks go: killed, nothing of it runs on.
pub(crate) struct Agent(Option<Runtime>);

impl Agent {
    pub(crate) fn on_socket(target: &Arc<SimTarget>, path: &Path) -> Self {
        let runtime = runtime();
        let _ = std::fs::remove_file(path);
        let listener = {
            let _inside = runtime.enter();
            UnixListener::bind(path).unwrap()
        };
        Self::serve(runtime, target, Listener::Unix(listener))
    }

    pub(crate) fn on_address(target: &Arc<SimTarget>, files: &Path) -> (Self, String) {
        let runtime = runtime();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let listener = {
            let _inside = runtime.enter();
            TcpListener::from_std(listener).unwrap()
        };
        let address = listener.local_addr().unwrap().to_string();
        let listener = Listener::Tls { listener, files: TlsFiles::new(files) };
        (Self::serve(runtime, target, listener), address)
    }

    fn serve(runtime: Runtime, target: &Arc<SimTarget>, listener: Listener) -> Self {
        let zone = [("zone".to_owned(), "z1".to_owned())].into();
        let server = AgentServer::new(Arc::clone(target) as _, "sim", "1.2.3").also_in(zone);
        runtime.spawn(server.run(listener, std::future::pending()));
        Self(Some(runtime))
    }

    pub(crate) fn kill(mut self) {
        self.0.take().unwrap().shutdown_background();
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

/// A simulated target, its agent on a socket, and a client.
pub(crate) struct Lab {
    pub(crate) target: Arc<SimTarget>,
    pub(crate) agent: Option<Agent>,
    pub(crate) client: AgentClient,
    pub(crate) socket: PathBuf,
    pub(crate) _place: tempfile::TempDir,
}

impl Lab {
    pub(crate) async fn new() -> Self {
        let place = tempfile::tempdir().unwrap();
        let socket = place.path().join("agent.sock");
        let target = Arc::new(SimTarget::new("sim"));
        let agent = Agent::on_socket(&target, &socket);
        let client = connect(Place::Unix(socket.clone())).await.unwrap();
        Self { target, agent: Some(agent), client, socket, _place: place }
    }

    pub(crate) fn kill(&mut self) {
        self.agent.take().unwrap().kill();
    }

    pub(crate) fn restart(&mut self) {
        self.agent = Some(Agent::on_socket(&self.target, &self.socket));
    }
}

pub(crate) async fn connect(place: Place) -> Result<AgentClient, ConnectError> {
    AgentClient::connect(place, Some(&TargetId::new("sim").unwrap()), ClientSettings::default()).await
}

pub(crate) fn volume(id: &str) -> VolumeId {
    VolumeId::new(id).unwrap()
}

pub(crate) fn order(id: &str, source: Option<Source>) -> NewVolume {
    NewVolume { volume: volume(id), name: format!("the {id}"), size: MIB, source }
}

pub(crate) fn grant(id: &str, node: &str, epoch: u64) -> Grant {
    let mode = Mode { write: true, frontend: false, share: Share::OneWriter };
    Grant {
        volume: volume(id),
        node: NodeId::new(node).unwrap(),
        epoch: Epoch::new(epoch),
        mode,
        beside: None,
    }
}

pub(crate) fn revocation(id: &str, node: &str, epoch: u64) -> Revocation {
    let node = NodeId::new(node).unwrap();
    Revocation { volume: volume(id), node, epoch: Epoch::new(epoch), fence: true }
}

/// Looks until it is so.
pub(crate) async fn until(what: &str, so: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !so() {
        assert!(Instant::now() < deadline, "waited in vain: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
