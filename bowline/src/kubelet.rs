//! A node in Kubernetes: where the kubelet looks for its driver, and what is told to whoever watches the pod.

use anyhow::{Context, Result};
use bowline_cluster::{Speaker, Writes};
use bowline_controller::csi::DRIVER;
use bowline_core::NodeId;
use bowline_csi::{Endpoint, Limits, Server};
use bowline_node::{Registered, RegistrationService, Told};
use bowline_web::{Probe, ProbeServer};
use clap::Args;
use prometheus_client::registry::Registry;
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::{mpsc, watch};

use crate::config::absolute_path;
use crate::up::until;

/// What `bowline node` can be told where there is a kubelet.
#[derive(Clone, Debug, Default, Args)]
pub struct KubeletArgs {
    /// The kubelet's directory (/var/lib/kubelet on most machines). The driver is registered with the kubelet, CSI
    /// listens in `plugins/bowline.storage` of it, and requests may name paths below it only.
    #[arg(long, env = "BOWLINE_KUBELET", value_name = "DIR", value_parser = absolute_path)]
    pub kubelet: Option<PathBuf>,

    /// Where the node remembers what it has staged; `node/NAME` in the data directory if not given.
    #[arg(long, env = "BOWLINE_STATE", value_name = "DIR", value_parser = absolute_path)]
    pub state: Option<PathBuf>,

    /// Where `/healthz`, `/readyz` and `/metrics` are answered; nowhere if not given.
    #[arg(long, value_name = "ADDRESS")]
    pub http: Option<SocketAddr>,

    /// What this machine is called in topology; as the node, if not given. Nodes that share a kernel share this name.
    #[arg(long, env = "BOWLINE_HOST_NAME", value_name = "NAME")]
    pub host_name: Option<NodeId>,

    /// A taint that is taken off this node in Kubernetes once the driver is registered.
    #[arg(long, env = "BOWLINE_STARTUP_TAINT", value_name = "KEY", requires = "kubelet")]
    pub startup_taint: Option<String>,

    /// Write what happens to volumes here into Kubernetes, as events of the Volumes.
    #[arg(long, env = "BOWLINE_EVENTS", requires = "kubelet")]
    pub events: bool,
}

/// Where CSI listens if nothing else is said.
pub fn csi_socket(kubelet: &Path) -> PathBuf {
    kubelet.join("plugins").join(DRIVER).join("csi.sock")
}

/// Where the kubelet looks for drivers.
pub fn registration_socket(kubelet: &Path) -> PathBuf {
    kubelet.join("plugins_registry").join(format!("{DRIVER}-reg.sock"))
}

/// How often is looked whether the registration socket is still there.
const LOOK_AGAIN: Duration = Duration::from_secs(2);

/// How long a refusal stands before the kubelet is shown a new socket. Kubelets before 1.35 do not try again by themselves.
const SHOW_AGAIN: Duration = Duration::from_secs(20);

/// How long to wait after Kubernetes could not be asked.
const ASK_AGAIN: Duration = Duration::from_secs(10);

/// How many events may wait to be written. Those that come after them are in the log alone.
const EVENTS: usize = 256;

/// How long an event may take to be written: the next ones wait.
const EVENT_WITHIN: Duration = Duration::from_secs(10);

/// The kubelet asks two short questions, one after the other.
const LIMITS: Limits =
    Limits { message_bytes: 1 << 20, connections: 8, streams: 8, calls: 8, grace: Duration::from_secs(2) };

/// Makes the directory of a socket, if the kubelet has not made it yet.
pub(crate) fn make_place(socket: &Path) -> Result<()> {
    let Some(directory) = socket.parent() else { return Ok(()) };
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o755).create(directory);
    made.with_context(|| format!("making {} for a socket", directory.display()))
}

/// The driver's registration with the kubelet. CSI must be answered already: the kubelet calls it at once.
pub(crate) struct Registration {
    service: RegistrationService,
    socket: Endpoint,
    server: Server,
}

impl Registration {
    /// Takes its place in the kubelet's directory; one that a crash left behind is removed.
    pub(crate) async fn bind(kubelet: &Path, csi: &Endpoint) -> Result<Self> {
        let socket = registration_socket(kubelet);
        make_place(&socket)?;
        let socket: Endpoint = socket.to_str().unwrap_or_default().parse()?;
        let service = RegistrationService::new(DRIVER, csi.path());
        let server = Server::bind(&socket, LIMITS).await?.registration(service.clone());
        Ok(Self { service, socket, server })
    }

    /// What the kubelet says.
    pub(crate) fn said(&self) -> watch::Receiver<Registered> {
        self.service.said()
    }

    /// Answers the kubelet, also one that was started anew, until `stop`. The socket is made again when somebody removed
    /// it, and some time after a refusal: the kubelet takes a new socket for a new plugin.
    pub(crate) async fn run(self, stop: watch::Receiver<bool>) -> Result<()> {
        let Self { service, socket, mut server } = self;
        loop {
            let end = {
                let (stop, service, socket) = (stop.clone(), service.clone(), socket.clone());
                async move {
                    tokio::select! {
                        () = until(stop) => {}
                        () = lost(socket.path()) => {
                            tracing::warn!(%socket, "the registration socket is gone; making it again");
                        }
                        () = refused(service.said()) => {
                            tracing::info!(%socket, "showing the kubelet a new registration socket");
                        }
                    }
                }
            };
            server.run(end).await?;
            if *stop.borrow() {
                return Ok(());
            }
            service.forget();
            make_place(socket.path())?;
            server = Server::bind(&socket, LIMITS).await?.registration(service.clone());
        }
    }
}

/// Done when what is at `path` is not what was there at first.
async fn lost(path: &Path) {
    let seen = || std::fs::symlink_metadata(path).map(|found| (found.dev(), found.ino())).ok();
    let first = seen();
    while first.is_some() && seen() == first {
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

/// Done when a refusal has stood for a while.
async fn refused(mut said: watch::Receiver<Registered>) {
    loop {
        let refused = said.wait_for(|said| matches!(said, Registered::Refused(_))).await.is_ok();
        let changed = tokio::time::timeout(SHOW_AGAIN, said.wait_for(|said| *said == Registered::Yes)).await;
        if refused && changed.is_err() {
            return;
        }
    }
}

/// Answers `/healthz`, `/readyz` and `/metrics` until `stop`.
pub(crate) async fn answer_probes(
    address: SocketAddr,
    probe: Probe,
    stop: watch::Receiver<bool>,
) -> Result<()> {
    let server = ProbeServer::bind(address).await?;
    if let Some(address) = server.address() {
        tracing::info!(%address, "HTTP");
    }
    tokio::spawn(async move {
        if let Err(error) = server.run(probe, until(stop)).await {
            tracing::error!(%error, "the HTTP server ended");
        }
    });
    Ok(())
}

/// Ready is what the kubelet has registered, where there is one.
pub(crate) fn registered(registry: Arc<Mutex<Registry>>, said: Option<watch::Receiver<Registered>>) -> Probe {
    let ready = move || match said.as_ref().and_then(|said| said.borrow().problem(DRIVER)) {
        None => Ok(()),
        Some(why) => Err(why),
    };
    Probe { registry, ready: Arc::new(ready) }
}

/// Asks until there is one; `otherwise` is what that means until then.
async fn way_to_kubernetes(otherwise: &str) -> kube::Client {
    loop {
        let client = match kube::Config::infer().await {
            Ok(config) => bowline_store::kube::client(config),
            Err(error) => Err(kube::Error::InferConfig(error)),
        };
        match client {
            Ok(client) => return client,
            Err(error) => {
                tracing::warn!(%error, "no way to Kubernetes, so {otherwise}");
                tokio::time::sleep(ASK_AGAIN).await;
            }
        }
    }
}

/// Where events are put, and what writes them on. Whoever tells one does not wait, and one that cannot be written is in the log all the same.
pub(crate) fn events(node: NodeId) -> (mpsc::Sender<Told>, impl Future<Output = ()>) {
    let (tell, mut told) = mpsc::channel(EVENTS);
    let write = async move {
        let client = way_to_kubernetes("events are only in the log").await;
        let speaker = Speaker::of_node(client, Writes::default(), &node);
        while let Some(Told { volume, reason, message, is_warning }) = told.recv().await {
            // The same thing may happen to a volume on several nodes.
            let message = format!("node {node}: {message}");
            let said = speaker.say_of_volume(&volume, reason, message, is_warning);
            if tokio::time::timeout(EVENT_WITHIN, said).await.is_err() {
                tracing::debug!(%volume, reason, "an event was not written in time");
            }
        }
    };
    (tell, write)
}

/// Takes the taint off whenever the kubelet has registered the driver: a node that was made anew has it again.
pub(crate) async fn keep_untainted(node: NodeId, key: String, mut said: watch::Receiver<Registered>) {
    let client = way_to_kubernetes("the startup taint stays").await;
    while said.wait_for(|said| *said == Registered::Yes).await.is_ok() {
        loop {
            match bowline_cluster::taint::remove(client.clone(), node.as_str(), &key).await {
                Ok(true) => tracing::info!(%node, %key, "took the startup taint off"),
                Ok(false) => {}
                Err(error) => {
                    tracing::warn!(%error, "the startup taint stays");
                    tokio::time::sleep(ASK_AGAIN).await;
                    continue;
                }
            }
            break;
        }
        if said.changed().await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Command};
    use crate::config::Config;
    use clap::Parser;

    #[tokio::test(start_paused = true)]
    async fn a_refusal_that_stands_is_answered_with_a_new_socket_and_one_that_was_taken_back_is_not() {
        let said = watch::Sender::new(Registered::Waiting);
        let mut waiting = std::pin::pin!(refused(said.subscribe()));
        let soon = Duration::from_secs(5);
        for (next, is_due) in [
            (Registered::Waiting, false),
            (Registered::Refused("no".to_owned()), false),
            (Registered::Yes, false),
            (Registered::Yes, false),
            (Registered::Refused("no".to_owned()), false),
            (Registered::Refused("still no".to_owned()), true),
        ] {
            said.send_replace(next.clone());
            let wait = if is_due { SHOW_AGAIN } else { soon };
            let due = tokio::time::timeout(wait, &mut waiting).await.is_ok();
            assert_eq!(due, is_due, "{next:?}");
        }
    }

    #[test]
    fn with_a_kubelet_everything_is_in_its_directory_unless_told_otherwise() {
        let load = |typed: &[&str]| {
            let typed = [&["bowline", "node", "--node", "n", "--data", "/d"], typed].concat();
            let Command::Node(args) = Cli::try_parse_from(typed).unwrap().command else { panic!("not node") };
            let config = Config::load_node(Path::new("/d"), args).unwrap();
            let text = |path: &Path| path.to_str().unwrap().to_owned();
            [text(config.csi.path()), text(&config.path_root), text(&config.state)]
        };
        assert_eq!(load(&[]), ["/d/n.sock", "/", "/d/node/n"]);
        let kubelet = ["--kubelet", "/var/lib/kubelet"];
        let csi = "/var/lib/kubelet/plugins/bowline.storage/csi.sock";
        assert_eq!(load(&kubelet), [csi, "/var/lib/kubelet", "/d/node/n"]);
        let more = ["--csi", "/x.sock", "--path-root", "/y", "--state", "/z"];
        assert_eq!(load(&[&kubelet[..], &more].concat()), ["/x.sock", "/y", "/z"]);
        let without = Cli::try_parse_from(["bowline", "node", "--node", "n", "--startup-taint", "k"]);
        assert!(without.is_err(), "a taint is for a node in Kubernetes");
    }
}
