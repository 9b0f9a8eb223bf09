//! `bowline node`: a node in Kubernetes, or a second one on the machine of a `bowline up`.

use anyhow::{Context, Result};
use bowline_csi::{Limits, Server};
use bowline_host::{Host, Roots};
use bowline_target::file::Shelf;
use prometheus_client::registry::Registry;
use std::sync::{Arc, Mutex};

use crate::config::Config;
use crate::identity::NodeIdentity;
use crate::kubelet::{self, KubeletArgs, Registration};
use crate::notify::{self, State};
use crate::up::{stopped, this_node, until};

/// Serves until it is told to stop. Its controller is the one in Kubernetes, or a `bowline up` with the same data
/// directory.
pub(crate) async fn run(config: Config, told: KubeletArgs) -> Result<()> {
    let stop = stopped()?;
    let registry = Arc::new(Mutex::new(Registry::default()));
    let host = Arc::new(Host::new(Roots::default(), bowline_host::command::Programs::default()));
    let volumes = config.data.join("volumes");
    let shelf = Shelf::open(&volumes)
        .with_context(|| format!("is `bowline up` running with --data {}?", config.data.display()))?;
    let node = this_node(&config, &host, Arc::new(shelf), &registry)?;
    if told.kubelet.is_some() {
        kubelet::make_place(config.csi.path())?;
    }
    let server = Server::bind(&config.csi, Limits::default()).await?.identity(NodeIdentity).node(node);
    let registration = match &told.kubelet {
        Some(directory) => Some(Registration::bind(directory, &config.csi).await?),
        None => None,
    };
    let said = registration.as_ref().map(Registration::said);
    if let Some(address) = told.http {
        kubelet::answer_probes(address, registry, said.clone(), stop.clone()).await?;
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
