//! `bowline node`: a second node on the same machine, with a CSI socket of its own.

use anyhow::{Context, Result};
use bowline_csi::{Limits, Server};
use bowline_host::{Host, Roots};
use bowline_target::file::Shelf;
use prometheus_client::registry::Registry;
use std::sync::{Arc, Mutex};

use crate::identity::NodeIdentity;
use crate::notify::{self, State};
use crate::up::{Setup, stopped, this_node, until};

/// Serves until it is told to stop. The controller is a `bowline up` with the same data directory.
pub async fn run(setup: Setup) -> Result<()> {
    let stop = stopped()?;
    let host = Arc::new(Host::new(Roots::default(), bowline_host::command::Programs::default()));
    let volumes = setup.data.join("volumes");
    let shelf = Shelf::open(&volumes)
        .with_context(|| format!("is `bowline up` running with --data {}?", setup.data.display()))?;
    let node = this_node(&setup, &host, Arc::new(shelf), &Mutex::new(Registry::default()))?;
    let server = Server::bind(&setup.csi, Limits::default()).await?.identity(NodeIdentity).node(node);
    if let Err(error) = notify::notify(State::Ready) {
        tracing::warn!(%error, "nobody could be told that it is ready");
    }
    tracing::info!(node = %setup.node, csi = %setup.csi, "ready");
    server.run(until(stop)).await?;
    let _ = notify::notify(State::Stopping);
    Ok(())
}
