//! `bowline up`: everything on one machine, in one process. A parts list, and the order in which they start and stop.

use anyhow::{Context, Result};
use bowline_controller::csi::{ControllerService, GroupService, IdentityService};
use bowline_controller::{Catalog, Node};
use bowline_core::{NodeId, TargetId, Timestamp};
use bowline_csi::{Endpoint, Limits, Server};
use bowline_engine::SystemClock;
use bowline_host::path::Base;
use bowline_host::{Host, Roots};
use bowline_node::{Devices, FileDevices, NodeService, Told};
use bowline_store::{RedbStore, Store};
use bowline_target::Provision;
use bowline_target::agent::TlsFiles;
use bowline_target::file::{FileTarget, Policy, Settings};
use bowline_web::Api;
use prometheus_client::registry::Registry;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{mpsc, watch};

use crate::agents::Agents;
use crate::command::doctor;
use crate::config::{Config, TargetKind};
use crate::drains::{self, DrainFile};
use crate::fabric;
use crate::notify::{self, State};
use crate::orphans::OrphanFile;

/// The one target of a machine on its own.
pub(crate) const TARGET: &str = "file";

/// Serves until it is told to stop. Mounts stay: they are found again at the next start.
pub(crate) async fn run(config: Config) -> Result<()> {
    let stop = stopped()?;
    make_private(&config.data)?;
    let registry = Arc::new(Mutex::new(Registry::default()));
    let devices = crate::rds::Devices::new(&config.rds);
    devices.register(&mut registry.lock().unwrap_or_else(PoisonError::into_inner));
    let host = Arc::new(Host::new(Roots::default(), bowline_host::command::Programs::default()));
    let agents = Agents::new(&config.agents, &devices, config.tls.as_deref(), &config.data);
    if let Some(directory) = config.tls.as_deref() {
        crate::expiry::watch(TlsFiles::new(directory), &registry);
    }
    let api = Api::new(bowline_web::Parts {
        clock: Arc::new(SystemClock),
        registry: Arc::clone(&registry),
        probe: {
            let (host, devices, agents) = (Arc::clone(&host), devices.clone(), agents.reached());
            Arc::new(move || [doctor::probe(&host), devices.findings(), agents.findings()].concat())
        },
        version: env!("CARGO_PKG_VERSION"),
        node: config.node.to_string(),
    });
    let web = listen_for_people(&config).await?;
    if let Some(address) = web.address() {
        tracing::info!(%address, "HTTP");
    }
    let web = tokio::spawn(web.run(api.clone(), until(stop.clone())));

    let (connected, silent) = agents.connect().await;
    let (catalog, files) = open(&config, &host, &registry, connected).await?;
    api.drain_with(Arc::new(DrainFile::open(config.data.join(drains::FILE), catalog.clone())?));
    silent.expect(&catalog);
    tokio::spawn(silent.go_on(catalog.clone()));
    let record = Arc::new(OrphanFile(config.data.join("orphans.json")));
    tokio::spawn(config.orphans.look_after(catalog.clone(), record));
    let mut devices: BTreeMap<TargetId, Arc<dyn Devices>> = BTreeMap::new();
    if let Some(files) = files {
        devices.insert(TargetId::new(TARGET)?, Arc::new(FileDevices::new(Arc::clone(&host), files)));
    }
    let fabric = fabric::devices(&host, bowline_host::nvme::Settings::default());
    let node = this_node(&config, &host, devices, fabric, None, &registry)?;
    let server = Server::bind(&config.csi, Limits::default())
        .await?
        .identity(IdentityService::new(catalog.clone()))
        .controller(ControllerService::new(catalog.clone()))
        .group_controller(GroupService::new(catalog.clone()))
        .node(node);
    api.open(catalog.clone());
    // A supervisor that cannot be told is no reason to end.
    if let Err(error) = notify::notify(State::Ready) {
        tracing::warn!(%error, "nobody could be told that it is ready");
    }
    tracing::info!(node = %config.node, data = %config.data.display(), csi = %config.csi, "ready");
    let ended = server.run(until(stop)).await?;
    let _ = notify::notify(State::Stopping);
    tracing::info!(?ended, "no more CSI calls");
    web.await.context("the HTTP server")??;
    catalog.close().await;
    Ok(())
}

/// The directory, for nobody else.
fn make_private(data: &Path) -> Result<()> {
    use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
    if !data.exists() {
        let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(data);
        made.with_context(|| format!("making the data directory {}", data.display()))?;
    }
    let mode = std::fs::metadata(data)?.permissions().mode();
    if mode & 0o077 != 0 {
        if let Some(other) = anothers(data)? {
            anyhow::bail!(
                "{} is open to others and holds {other}, which is not Bowline's; give it a directory of its own with \
                 --data, or close this one (chmod 700) if nobody else needs it",
                data.display()
            );
        }
        std::fs::set_permissions(data, PermissionsExt::from_mode(mode & !0o077))
            .with_context(|| format!("closing {} to others", data.display()))?;
    }
    Ok(())
}

/// Something in the directory that is not Bowline's. What a new filesystem holds is nobody's.
fn anothers(data: &Path) -> Result<Option<String>> {
    for entry in std::fs::read_dir(data)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        let ours = matches!(
            name.as_str(),
            "store"
                | "volumes"
                | "targets"
                | "node"
                | "api.token"
                | "bowline.toml"
                | "orphans.json"
                | "draining.json"
                | "lost+found"
        );
        if !ours && !name.ends_with(".sock") {
            return Ok(Some(name));
        }
    }
    Ok(None)
}

async fn listen_for_people(config: &Config) -> Result<bowline_web::Server> {
    let socket: Endpoint = format!("unix://{}", config.api_socket().display()).parse()?;
    let http = match config.http {
        Some(address) => Some((address, bowline_web::Token::load(&config.api_token())?)),
        None => None,
    };
    Ok(bowline_web::Server::bind(&socket, http).await?)
}

async fn open(
    config: &Config,
    host: &Host,
    registry: &Arc<Mutex<Registry>>,
    elsewhere: Vec<Arc<dyn Provision>>,
) -> Result<(Catalog, Option<Arc<FileTarget>>)> {
    let settings = Settings {
        id: TargetId::new(TARGET)?,
        directory: config.data.join("volumes"),
        host_name: config.node.to_string(),
        policy: Policy { overcommit: config.overcommit.percent(), reserve: config.reserve.0 },
    };
    let (database, host, kind) = (config.data.join("store"), host.clone(), config.target);
    // The store first: its lock says which other process has this directory.
    let (store, target) = tokio::task::spawn_blocking(move || -> Result<_> {
        let store = RedbStore::open(&database)?;
        let target = match kind {
            TargetKind::File => Some(FileTarget::open(settings, host)?),
            TargetKind::None => None,
        };
        Ok((store, target.map(Arc::new)))
    })
    .await??;
    let store: Arc<dyn Store> = Arc::new(store);
    #[cfg(feature = "failpoints")]
    let store: Arc<dyn Store> = Arc::new(crate::steps::Stepped(store));
    let mut targets: Vec<_> = target.iter().map(|target| Arc::clone(target) as Arc<dyn Provision>).collect();
    targets.extend(elsewhere);
    let known = |node: &NodeId| Node {
        id: node.clone(),
        limit: Some(config.max_volumes),
        out_of_service: None,
        added_at: Timestamp::now(),
    };
    let catalog = Catalog::open(bowline_controller::Parts {
        store,
        targets,
        nodes: std::iter::once(&config.node).chain(&config.peers).map(known).collect(),
        reports: vec![],
        clock: Arc::new(SystemClock),
        settings: bowline_engine::Settings::default(),
        registry: Arc::clone(registry),
    })
    .await?;
    Ok((catalog, target))
}

/// The node service of this process: for `up` beside the controller, for `bowline node` alone.
pub(crate) fn this_node(
    config: &Config,
    host: &Arc<Host>,
    devices: BTreeMap<TargetId, Arc<dyn Devices>>,
    fabric: Arc<dyn Devices>,
    events: Option<mpsc::Sender<Told>>,
    registry: &Mutex<Registry>,
) -> Result<NodeService> {
    let parts = bowline_node::Parts {
        node: config.node.clone(),
        devices,
        fabric,
        host: Arc::clone(host),
        state: config.state.clone(),
        bases: vec![Base::open(&config.path_root)?],
        attach_limit: Some(config.max_volumes),
        topology: BTreeMap::from([("topology.bowline.storage/host".to_owned(), config.host.to_string())]),
        timing: bowline_node::Timing::default(),
        events,
    };
    let mut registry = registry.lock().unwrap_or_else(PoisonError::into_inner);
    Ok(NodeService::new(parts, &mut registry)?)
}

/// Told once when SIGTERM or SIGINT comes.
pub(crate) fn stopped() -> Result<watch::Receiver<bool>> {
    use tokio::signal::unix::{SignalKind, signal};
    let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let (tell, told) = watch::channel(false);
    tokio::spawn(async move {
        tokio::select! {
            _ = term.recv() => {}
            _ = int.recv() => {}
        }
        tracing::info!("stopping");
        tell.send_replace(true);
        // The sender stays, so that whoever waits sees the value and not the end of the channel.
        std::future::pending::<()>().await;
    });
    Ok(told)
}

pub(crate) async fn until(mut stop: watch::Receiver<bool>) {
    let _ = stop.wait_for(|stopped| *stopped).await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn a_directory_of_others_is_not_closed_to_them() {
        for (holds, closed) in [("", true), ("lost+found", true), ("store", true), ("report.pdf", false)] {
            let place = tempfile::tempdir().unwrap();
            std::fs::set_permissions(place.path(), PermissionsExt::from_mode(0o755)).unwrap();
            if !holds.is_empty() {
                std::fs::write(place.path().join(holds), "").unwrap();
            }
            let answer = make_private(place.path());
            assert_eq!(answer.is_ok(), closed, "{holds}: {answer:?}");
            assert_eq!(mode(place.path()), if closed { 0o700 } else { 0o755 }, "{holds}");
        }
        let place = tempfile::tempdir().unwrap();
        make_private(&place.path().join("a/b")).unwrap();
        assert_eq!(mode(&place.path().join("a/b")), 0o700);
    }
}
