//! `bowline node`: a second node on the same machine, with a CSI socket of its own.

use anyhow::{Context, Result};
use bowline_csi::{Limits, Server};
use bowline_host::{Host, Roots};
use bowline_target::file::Shelf;
use prometheus_client::registry::Registry;
use std::sync::{Arc, Mutex};

use crate::config::Config;
use crate::identity::NodeIdentity;
use crate::notify::{self, State};
use crate::up::{stopped, this_node, until};

/// Serves until it is told to stop. The controller is a `bowline up` with the same data directory.
pub(crate) async fn run(config: Config) -> Result<()> {
    let stop = stopped()?;
    let host = Arc::new(Host::new(Roots::default(), bowline_host::command::Programs::default()));
    let volumes = config.data.join("volumes");
    let shelf = Shelf::open(&volumes)
        .with_context(|| format!("is `bowline up` running with --data {}?", config.data.display()))?;
    let node = this_node(&config, &host, Arc::new(shelf), &Mutex::new(Registry::default()))?;
    let server = Server::bind(&config.csi, Limits::default()).await?.identity(NodeIdentity).node(node);
    if let Err(error) = notify::notify(State::Ready) {
        tracing::warn!(%error, "nobody could be told that it is ready");
    }
    tracing::info!(node = %config.node, csi = %config.csi, "ready");
    server.run(until(stop)).await?;
    let _ = notify::notify(State::Stopping);
    Ok(())
}
