//! `bowline controller`: the controller in Kubernetes. A parts list, and the order in which they start and stop.
//!
//! Several run; the one that has the Lease leads, and only it serves CSI: on the socket of the others, a probe hears that the
//! driver is not ready. Losing the Lease ends the process.

use anyhow::{Context, Result};
use bowline_cluster::adopt::{Adopter, AdopterParts};
use bowline_cluster::again::persist;
use bowline_cluster::credentials::Credentials;
use bowline_cluster::targets::{self, OrphanStatuses, connect_all};
use bowline_cluster::{
    Leadership, LeaseSettings, PersistentVolumes, Roll, adopt, certificates, door, lease, led, wishes,
};
use bowline_controller::csi::{ControllerService, GroupService, IdentityService};
use bowline_controller::{Catalog, Parts};
use bowline_core::Timestamp;
use bowline_csi::{Endpoint, Limits, Server};
use bowline_engine::SystemClock;
use bowline_store::{KubeStore, Store};
use bowline_target::agent::TlsFiles;
use bowline_web::{Api, Probe};
use clap::{Args, ValueEnum};
use kube::Client;
use prometheus_client::registry::Registry;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::config::absolute_path;
use crate::identity::Identity;
use crate::kubelet::answer_probes;
use crate::orphans::OrphanArgs;
use crate::span::Span;
use crate::up::{stopped, until};

/// What `bowline controller` can be told, also as `BOWLINE_…`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "Example (in a pod):\n  \
    bowline controller --namespace bowline --pod-name $(POD_NAME) --csi unix:///csi/csi.sock --http 0.0.0.0:8460\n\n\
    docs/install.md says how it is installed, docs/kubernetes.md how it works.")]
pub struct ControllerArgs {
    /// Where CSI listens, for the sidecars in the same pod. While this one does not lead, it says there that it is not ready.
    #[arg(long, env = "BOWLINE_CSI", value_name = "unix://PATH", default_value = "unix:///csi/csi.sock")]
    pub csi: Endpoint,

    /// Where /healthz, /readyz and /metrics are answered; nowhere if not given.
    #[arg(long, env = "BOWLINE_HTTP", value_name = "ADDRESS")]
    pub http: Option<SocketAddr>,

    /// Where the API answers people, over TLS, to whoever shows a token of bowline-view or bowline-edit; nowhere if not
    /// given.
    #[arg(long, env = "BOWLINE_API", value_name = "ADDRESS")]
    pub api: Option<SocketAddr>,

    /// The namespace it is installed in: of its Lease, its Secrets and its pods. The flag is one of every command.
    #[arg(skip)]
    pub namespace: String,

    /// The name of its pod, which is its name in the Lease and in events.
    #[arg(long, env = "BOWLINE_POD_NAME", value_name = "NAME")]
    pub pod_name: String,

    /// Who serves VolumeAttachments: `builtin`, or `sidecar` for the upstream attacher beside it.
    #[arg(long, env = "BOWLINE_ATTACHER", value_enum, default_value_t = AttacherKind::Builtin)]
    pub attacher: AttacherKind,

    /// Delete the pods of a node that was not ready for so long, so that they start elsewhere; never, if not given.
    #[arg(long, env = "BOWLINE_FENCE_NOT_READY_AFTER", value_name = "TIME")]
    pub fence_not_ready_after: Option<Span>,

    /// Where the certificates that it shows to agents are kept while it runs.
    #[arg(long, env = "BOWLINE_TLS", value_name = "DIR", value_parser = absolute_path, default_value = "/tmp/bowline-tls")]
    pub tls: PathBuf,

    /// What becomes of orphans.
    #[command(flatten)]
    pub orphans: OrphanArgs,
}

/// Who serves VolumeAttachments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum AttacherKind {
    /// This process.
    Builtin,
    /// The upstream attacher, over CSI.
    Sidecar,
}

/// How far the process has come, for whoever asks whether it is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Another one leads; this one is as ready as it can be.
    Follows,
    /// It leads, and reads everything back.
    Starts,
    /// It serves.
    Leads,
}

/// Serves until it is told to stop, or until another one leads.
pub(crate) async fn run(args: ControllerArgs) -> Result<()> {
    let stop = stopped()?;
    let config = kube::Config::infer().await.context("no way to a Kubernetes API server")?;
    let client = bowline_store::kube::client(config)?;
    let registry = Arc::new(Mutex::new(Registry::default()));
    let stage = watch::Sender::new(Stage::Follows);
    if let Some(address) = args.http {
        answer_probes(address, probe(&registry, &stage), stop.clone()).await?;
    }
    let api = open_door(&args, &client, &registry, stop.clone()).await?;
    let settings = LeaseSettings::new(&args.namespace, bowline_api::keys::LEASE, &args.pod_name);
    tracing::info!(lease = bowline_api::keys::LEASE, namespace = args.namespace, "waiting to lead");
    let standby = Standby::start(&args.csi).await?;
    let (leadership, mut lost) = tokio::select! {
        acquired = lease::acquire(client.clone(), settings) => acquired?,
        () = until(stop.clone()) => return standby.end().await,
    };
    stage.send_replace(Stage::Starts);
    tracing::info!(pod = args.pod_name, "leading");
    let led = lead(&args, client, &leadership, &registry, (&stage, &api, standby), stop.clone());
    let ended = tokio::select! {
        ended = Box::pin(led) => ended,
        why = lost.lost() => anyhow::bail!("another controller may lead now ({why}); this one ends"),
        () = stopped_at_start(stage.subscribe(), stop) => Ok(()),
    };
    // Also if it could not go on: another one may be able to.
    leadership.release().await;
    ended
}

/// Told to stop before it serves: there is nobody to wait for, and what was begun is found again as after a crash.
async fn stopped_at_start(stage: watch::Receiver<Stage>, stop: watch::Receiver<bool>) {
    until(stop).await;
    if *stage.borrow() != Stage::Starts {
        std::future::pending::<()>().await;
    }
}

async fn lead(
    args: &ControllerArgs,
    client: Client,
    leadership: &Leadership,
    registry: &Arc<Mutex<Registry>>,
    (stage, api, standby): (&watch::Sender<Stage>, &Api, Standby),
    stop: watch::Receiver<bool>,
) -> Result<()> {
    // Whatever is written from here on is a leader's.
    let client = led::client(&client, Arc::new(leadership.clone()));
    // First what takes long by itself: the store lists ledgers and volumes meanwhile.
    let store = Arc::new(KubeStore::new(client.clone(), Arc::new(leadership.clone())));
    let pvs = tokio::spawn(PersistentVolumes::start(client.clone()));
    let ensure = async || certificates::ensure(&client, &args.namespace, Timestamp::now()).await;
    let tls = keep(args, &persist("certificates", ensure).await?)?;
    crate::expiry::watch(tls.clone(), registry);
    let connections = persist("targets", async || connect_all(&client, &tls).await).await?;
    let known = connections.targets();
    // Before the catalog is opened: what is attached already has its ticket before anything is compared.
    let adopting = async || adopt::adopt(&client, store.as_ref(), &known, false).await;
    let adopted = persist("adoption", adopting).await?;
    let roll = persist("nodes", async || Roll::call(&client, store.as_ref()).await).await?;
    let catalog = Catalog::open(Parts {
        store: Arc::clone(&store) as Arc<dyn Store>,
        targets: known,
        nodes: vec![],
        reports: roll.reports(),
        clock: Arc::new(SystemClock),
        settings: bowline_engine::Settings::default(),
        registry: Arc::clone(registry),
    })
    .await?;
    // Before anybody detaches or makes anything: what nobody knows may be on a target that has not answered yet, and some are being drained.
    connections.expect(&catalog);
    let parts = bowline_cluster::Parts {
        client: client.clone(),
        catalog: catalog.clone(),
        registry: Arc::clone(registry),
        roll,
        instance: args.pod_name.clone(),
        attacher: args.attacher == AttacherKind::Builtin,
        notes: Some(Arc::clone(&store)),
        patience: Duration::from_secs(2),
        fence_not_ready_after: args.fence_not_ready_after.map(|span| Duration::from_secs(span.0.into())),
    };
    let running = bowline_cluster::run_with(parts, pvs.await?).await?;
    let adopter = Adopter::new(AdopterParts {
        client: client.clone(),
        store: Arc::clone(&store) as Arc<dyn Store>,
        catalog: catalog.clone(),
        attacher: running.attacher.clone(),
        unfinished: !adopted.refused.is_empty(),
    });
    let mut beside = JoinSet::new();
    beside.spawn(targets::run(targets::Parts {
        client: client.clone(),
        namespace: args.namespace.clone(),
        catalog: catalog.clone(),
        tls: tls.clone(),
        speaker: running.speaker.clone(),
        connections,
        adopter: adopter.clone(),
    }));
    beside.spawn(wishes::run(
        client.clone(),
        store,
        catalog.clone(),
        Arc::clone(&running.pvs),
        running.speaker.clone(),
    ));
    let record = Arc::new(OrphanStatuses { client: client.clone(), pvs: Arc::clone(&running.pvs) });
    beside.spawn(args.orphans.look_after(catalog.clone(), record));
    beside.spawn(renew(args.clone(), client));
    standby.end().await?;
    let server = Server::bind(&args.csi, Limits::default())
        .await?
        .identity(IdentityService::new(catalog.clone()))
        .controller(ControllerService::new(catalog.clone()))
        .group_controller(GroupService::new(catalog.clone()));
    api.adopt_with(Arc::new(adopter));
    api.open(catalog.clone());
    stage.send_replace(Stage::Leads);
    tracing::info!(csi = %args.csi, "ready");
    let ended = server.run(until(stop)).await?;
    tracing::info!(?ended, "no more CSI calls");
    api.stop();
    beside.shutdown().await;
    drop(running);
    catalog.close().await;
    Ok(())
}

/// A socket that answers that the driver is not ready, and nothing else. The sidecars in the pod wait as long as they hear
/// that; one that finds no socket ends after half a minute, and a pod whose containers end is not ready.
struct Standby {
    end: watch::Sender<bool>,
    served: tokio::task::JoinHandle<Result<()>>,
}

impl Standby {
    async fn start(csi: &Endpoint) -> Result<Self> {
        let server = Server::bind(csi, Limits::default()).await?.identity(Identity::NotReady);
        let (end, ended) = watch::channel(false);
        let served = tokio::spawn(async move {
            server.run(until(ended)).await?;
            Ok(())
        });
        Ok(Self { end, served })
    }

    /// Whoever was connected loses the connection, and comes again.
    async fn end(self) -> Result<()> {
        self.end.send_replace(true);
        self.served.await.context("the socket of the standby")?
    }
}

/// What it shows to agents, on disk, where it is read for every connection.
fn keep(args: &ControllerArgs, made: &Credentials) -> Result<TlsFiles> {
    made.write(&args.tls).with_context(|| format!("writing certificates to {}", args.tls.display()))?;
    Ok(TlsFiles::new(args.tls.clone()))
}

async fn look_at_certificates(args: &ControllerArgs, client: &Client) -> Result<()> {
    let made = certificates::ensure(client, &args.namespace, Timestamp::now()).await?;
    keep(args, &made).map(drop)
}

/// Certificates are made anew long before they end.
async fn renew(args: ControllerArgs, client: Client) {
    loop {
        tokio::time::sleep(Duration::from_hours(12)).await;
        if let Err(error) = look_at_certificates(&args, &client).await {
            tracing::warn!(%error, "certificates were not looked at; trying again later");
        }
    }
}

/// A standby is ready, too: it can do all that is asked of it.
fn probe(registry: &Arc<Mutex<Registry>>, stage: &watch::Sender<Stage>) -> Probe {
    let stage = stage.subscribe();
    let ready = move || match *stage.borrow() {
        Stage::Follows | Stage::Leads => Ok(()),
        Stage::Starts => Err("it leads, and is reading everything back".to_owned()),
    };
    Probe { registry: Arc::clone(registry), ready: Arc::new(ready) }
}

/// The API for people, if it is wanted. Open already on a standby, where it says who leads.
async fn open_door(
    args: &ControllerArgs,
    client: &Client,
    registry: &Arc<Mutex<Registry>>,
    stop: watch::Receiver<bool>,
) -> Result<Api> {
    let api = Api::in_cluster(bowline_web::Parts {
        clock: Arc::new(SystemClock),
        registry: Arc::clone(registry),
        probe: Arc::new(Vec::new),
        version: env!("CARGO_PKG_VERSION"),
        node: args.pod_name.clone(),
    });
    if let Some(address) = args.api {
        let server = door::open(client.clone(), &args.namespace, address, None).await?;
        if let Some(address) = server.address() {
            tracing::info!(%address, "API");
        }
        let (serving, telling) = (api.clone(), api.clone());
        tokio::spawn(async move {
            if let Err(error) = server.run(serving, until(stop)).await {
                tracing::error!(%error, "the API ended");
            }
        });
        let (client, args) = (client.clone(), args.clone());
        tokio::spawn(async move {
            door::tell_leader(client, &args.namespace, bowline_api::keys::LEASE, &args.pod_name, &telling)
                .await;
        });
    }
    Ok(api)
}
