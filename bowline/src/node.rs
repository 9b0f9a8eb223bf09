//! `bowline node`: a node in Kubernetes, or a second one on the machine of a `bowline up`.

use anyhow::Result;
use bowline_core::{Epoch, NodeId, TargetId, VolumeId};
use bowline_csi::{Endpoint, Limits, Server};
use bowline_host::{Host, Roots};
use bowline_node::{Devices, FileDevices};
use bowline_target::file::Shelf;
use bowline_target::{BackingError, BackingFiles};
use clap::Args;
use prometheus_client::registry::Registry;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};

use crate::args::UpArgs;
use crate::config::{Config, ShelfAt, absolute_path};
use crate::fabric::{self, NvmeArgs};
use crate::identity::Identity;
use crate::kubelet::{self, KubeletArgs, Registration};
use crate::notify::{self, State};
use crate::orphans::OrphanArgs;
use crate::up::{TARGET, stopped, this_node, until};

/// What `bowline node` can be told. Its controller is the one in Kubernetes, or the `bowline up` with the same data
/// directory.
#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:\n  \
    bowline node --data /tmp/try --node worker-2\n  \
    bowline node --node worker-2 --kubelet /var/lib/kubelet --http 0.0.0.0:8461")]
pub struct NodeArgs {
    /// Where CSI listens; `NAME.sock` in the data directory, or `csi.sock` in the kubelet's, if not given.
    #[arg(long, env = "BOWLINE_CSI", value_name = "unix://PATH")]
    pub csi: Option<Endpoint>,

    /// What the node is called: in Kubernetes the name of its Node, elsewhere one that the controller knows
    /// (`bowline peer add NAME`).
    #[arg(long, env = "BOWLINE_NODE", value_name = "NAME")]
    pub node: NodeId,

    /// How many volumes it can have at once (128 if not given).
    #[arg(long, env = "BOWLINE_MAX_VOLUMES", value_name = "NUMBER")]
    pub max_volumes: Option<u32>,

    /// The directory below which every path of a CSI request must lie (/, or the kubelet's, if not given).
    #[arg(long, env = "BOWLINE_PATH_ROOT", value_name = "DIR", value_parser = absolute_path)]
    pub path_root: Option<PathBuf>,

    /// The directory of a target on this machine whose volumes it can attach; may be given several times
    /// (`file=volumes` in the data directory if not given).
    #[arg(long, env = "BOWLINE_SHELF", value_name = "TARGET=DIR", value_delimiter = ',')]
    pub shelf: Vec<ShelfAt>,

    /// Volumes over NVMe/TCP.
    #[command(flatten)]
    pub nvme: NvmeArgs,

    /// In Kubernetes.
    #[command(flatten)]
    pub kubelet: KubeletArgs,
}

impl From<NodeArgs> for UpArgs {
    fn from(NodeArgs { csi, node, max_volumes, path_root, shelf: _, nvme: _, kubelet: _ }: NodeArgs) -> Self {
        let node = Some(node);
        let (http, target, overcommit, reserve, tls) = (None, None, None, None, None);
        let (peer, agent, orphans) = (vec![], vec![], OrphanArgs::default());
        Self {
            csi,
            http,
            node,
            peer,
            target,
            agent,
            tls,
            max_volumes,
            overcommit,
            reserve,
            path_root,
            orphans,
        }
    }
}

/// The devices of every target on this machine. There may be none, where all volumes come over the network.
fn devices(config: &Config, host: &Arc<Host>) -> Result<BTreeMap<TargetId, Arc<dyn Devices>>> {
    let own = ShelfAt { target: TargetId::new(TARGET)?, directory: config.data.join("volumes") };
    let shelves = match config.shelves.as_slice() {
        [] if own.directory.exists() => std::slice::from_ref(&own),
        shelves => shelves,
    };
    if shelves.is_empty() {
        tracing::info!(directory = %own.directory.display(), "there are no files of a target here; volumes come over the network");
    }
    let devices = shelves.iter().map(|at| {
        let files: Arc<dyn BackingFiles> = Arc::new(LateShelf::new(&at.directory, host));
        let devices: Arc<dyn Devices> = Arc::new(FileDevices::new(Arc::clone(host), files));
        (at.target.clone(), devices)
    });
    Ok(devices.collect())
}

/// The directory of a target that may come later than the node: its agent makes it.
struct LateShelf {
    directory: PathBuf,
    host: Arc<Host>,
    opened: OnceLock<Shelf>,
}

impl LateShelf {
    fn new(directory: &Path, host: &Arc<Host>) -> Self {
        let shelf = Self { directory: directory.to_owned(), host: Arc::clone(host), opened: OnceLock::new() };
        if let Err(error) = shelf.shelf() {
            tracing::warn!(directory = %directory.display(), %error, "not there yet; it is looked for when it is needed");
        }
        shelf
    }

    fn shelf(&self) -> Result<&Shelf, BackingError> {
        if let Some(shelf) = self.opened.get() {
            return Ok(shelf);
        }
        let opened = Shelf::open(&self.directory, &self.host);
        let opened = opened.map_err(|error| BackingError::Unreadable { error: error.to_string() })?;
        Ok(self.opened.get_or_init(|| opened))
    }
}

impl BackingFiles for LateShelf {
    fn with_grant(
        &self,
        volume: &VolumeId,
        node: &NodeId,
        epoch: Epoch,
        attach: &mut dyn FnMut(&Path, bool),
    ) -> Result<(), BackingError> {
        self.shelf()?.with_grant(volume, node, epoch, attach)
    }

    fn backing(&self, volume: &VolumeId) -> Result<Option<PathBuf>, BackingError> {
        self.shelf()?.backing(volume)
    }
}

/// Serves until it is told to stop. Its controller is the one in Kubernetes, or a `bowline up` with the same data
/// directory.
pub(crate) async fn run(config: Config, told: KubeletArgs, nvme: bowline_host::nvme::Settings) -> Result<()> {
    let stop = stopped()?;
    let registry = Arc::new(Mutex::new(Registry::default()));
    let host = Arc::new(Host::new(Roots::default(), bowline_host::command::Programs::default()));
    let fabric = fabric::devices(&host, nvme);
    let events = told.events.then(|| {
        let (tell, write) = kubelet::events(config.node.clone());
        tokio::spawn(write);
        tell
    });
    let node = this_node(&config, &host, devices(&config, &host)?, fabric, events, &registry)?;
    if told.kubelet.is_some() {
        kubelet::make_place(config.csi.path())?;
    }
    let server = Server::bind(&config.csi, Limits::default()).await?.identity(Identity::Node).node(node);
    let registration = match &told.kubelet {
        Some(directory) => Some(Registration::bind(directory, &config.csi).await?),
        None => None,
    };
    let said = registration.as_ref().map(Registration::said);
    if let Some(address) = told.http {
        kubelet::answer_probes(address, kubelet::registered(registry, said.clone()), stop.clone()).await?;
    }
    if let (Some(key), Some(said)) = (told.startup_taint, said) {
        tokio::spawn(kubelet::keep_untainted(config.node.clone(), key, said));
    }
    if let Err(error) = notify::notify(State::Ready) {
        tracing::warn!(%error, "nobody could be told that it is ready");
    }
    tracing::info!(node = %config.node, csi = %config.csi, "ready");
    let registered = async {
        match registration {
            Some(registration) => registration.run(stop.clone()).await,
            None => Ok(()),
        }
    };
    let served = async { server.run(until(stop.clone())).await.map_err(anyhow::Error::from) };
    tokio::try_join!(served, registered)?;
    let _ = notify::notify(State::Stopping);
    Ok(())
}
