//! `bowline target`: a directory of volumes on this machine, or a device, served to a controller elsewhere.

use anyhow::{Context, Result};
use bowline_core::{NodeId, TargetId};
use bowline_csi::{Endpoint, OwnedSocket};
use bowline_host::{Host, Roots};
use bowline_target::Provision;
use bowline_target::agent::{self, AgentServer, ExportsShown, Listener, TlsFiles};
use bowline_target::file::{FileTarget, Policy, Settings};
use bowline_web::Probe;
use clap::{Args, Subcommand, ValueEnum};
use prometheus_client::registry::Registry;
use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::config::{ConfigError, Http, Ratio, absolute_path, hostname};
use crate::kubelet::answer_probes;
use crate::measure::{Gauges, measure};
use crate::missing;
use crate::notify::{self, State};
use crate::nvme::{self, NvmeAddress, NvmePlace};
use crate::rds::{Device, DeviceConfig, Devices};
use crate::size::Size;
use crate::up::{stopped, until};

/// How often it is looked whether the certificates are there.
const LOOK: Duration = Duration::from_secs(1);
/// How often somebody is reminded that they are not.
const REMIND: u32 = 30;
/// How often a machine that misses something is looked at again.
const AGAIN: Duration = Duration::from_secs(10);

/// What `bowline target` can be told, also as `BOWLINE_…`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:\n  \
    bowline target --id file-worker-1 --directory /var/lib/bowline/volumes --listen 0.0.0.0:9460 --tls /etc/bowline/tls\n  \
    bowline target --id try --directory /tmp/volumes --listen unix:///tmp/try.sock\n  \
    bowline target --id nvme-1 --directory /srv/volumes --export nvmet --nvme-listen 10.0.0.1:4420 --listen 0.0.0.0:9460 --tls /etc/bowline/tls\n  \
    bowline target --id nvme-1 --directory /srv/volumes --export nvmet --nvme-listen 10.1.0.0/24,10.2.0.0/24 --listen 0.0.0.0:9460 --tls /etc/bowline/tls\n  \
    bowline target --id box --device /etc/bowline/box.toml --listen 0.0.0.0:9460 --tls /etc/bowline/tls\n  \
    bowline target init /etc/bowline/certificates\n\n\
    The directory of --tls holds ca.crt, tls.crt and tls.key. The name in the agent's certificate is \
    agent.bowline.storage, and in that of whoever calls it controller.bowline.storage. \
    docs/targets.md says more.")]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct TargetArgs {
    /// Something else than to serve.
    #[command(subcommand)]
    pub command: Option<TargetCommand>,

    /// What the target is called; the same for ever, because volumes remember it.
    #[arg(long, env = "BOWLINE_TARGET_ID", value_name = "NAME", required = true)]
    pub id: Option<TargetId>,

    /// The directory with the volumes; made if it is not there.
    #[arg(long, env = "BOWLINE_DIRECTORY", value_name = "DIR", value_parser = absolute_path, required_unless_present = "device")]
    pub directory: Option<PathBuf>,

    /// A MikroTik device instead of a directory: this file says how it is reached (docs/rds.md).
    #[arg(long, env = "BOWLINE_DEVICE", value_name = "FILE", value_parser = absolute_path,
        conflicts_with_all = ["directory", "export", "nvme_listen", "nvme_port", "overcommit", "reserve"])]
    pub device: Option<PathBuf>,

    /// Where controllers reach it: an address, which needs --tls, or a socket that only its owner can open.
    #[arg(long, env = "BOWLINE_LISTEN", value_name = "ADDRESS|unix://PATH", required = true)]
    pub listen: Option<Listen>,

    /// How nodes reach the volumes: `loop`, on this very machine, or `nvmet`, from anywhere over NVMe/TCP.
    #[arg(long, env = "BOWLINE_EXPORT", value_enum, default_value_t = Export::Loop, value_name = "loop|nvmet", hide_possible_values = true)]
    pub export: Export,

    /// Where this machine's kernel listens for NVMe/TCP, and where nodes are told to connect: IP, or IP:PORT, or a network
    /// (10.1.0.0/24) for the addresses that this machine has in it; several with commas.
    #[arg(long, env = "BOWLINE_NVME_LISTEN", value_name = "ADDRESS|NETWORK", value_delimiter = ',')]
    pub nvme_listen: Vec<NvmeAddress>,

    /// The port of those addresses that name none, and of networks.
    #[arg(long, env = "BOWLINE_NVME_PORT", value_name = "PORT", default_value_t = 4420)]
    pub nvme_port: u16,

    /// The directory with ca.crt, tls.crt and tls.key. They may come later, and may be replaced.
    #[arg(long, env = "BOWLINE_TLS", value_name = "DIR", value_parser = absolute_path)]
    pub tls: Option<PathBuf>,

    /// From where its volumes can be reached, besides from this machine; may be given several times. Without it, what is exported
    /// over NVMe/TCP can be reached from everywhere.
    #[arg(long, env = "BOWLINE_TOPOLOGY", value_name = "KEY=VALUE", value_delimiter = ',')]
    pub topology: Vec<Segment>,

    /// What this machine is called in topology; its own name if not given.
    #[arg(long, env = "BOWLINE_HOST_NAME", value_name = "NAME")]
    pub host_name: Option<NodeId>,

    /// How much may be promised to volumes, as a multiple of what there is (1.0 if not given).
    #[arg(long, env = "BOWLINE_OVERCOMMIT", value_name = "RATIO")]
    pub overcommit: Option<Ratio>,

    /// How much of the disk is never given to volumes (64Mi if not given).
    #[arg(long, env = "BOWLINE_RESERVE", value_name = "SIZE")]
    pub reserve: Option<Size>,

    /// Where /healthz, /readyz and /metrics are answered (127.0.0.1:8462 if not given), or `off`.
    #[arg(long, env = "BOWLINE_HTTP", value_name = "ADDRESS")]
    pub http: Option<Http>,
}

/// How nodes reach volumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Export {
    /// Loop devices that nodes on this machine attach themselves.
    Loop,
    /// The kernel's NVMe target.
    Nvmet,
}

/// What `bowline target` does besides serving.
#[derive(Clone, Debug, Subcommand)]
pub enum TargetCommand {
    /// Makes certificates for agents and controllers, or new ones under the same authority.
    #[command(after_help = "Example:\n  bowline target init /etc/bowline/certificates\n\n\
        Copy DIR/agent to the storage machines (--tls), and DIR/controller to the controller. DIR/authority stays where it is: \
        whoever has its key can be a controller. Run it again within a year; new files count without a restart.")]
    Init {
        /// Where; made if it is not there.
        directory: PathBuf,
    },
    /// Lists the targets that a controller has.
    #[command(visible_alias = "ls")]
    List,
    /// Makes nothing new on a target from now on, also after a restart. What is there stays usable.
    #[command(after_help = "Examples:\n  bowline target drain nvme-1\n  bowline target drain nvme-1 --off")]
    Drain {
        /// The target.
        target: String,
        /// Takes that back.
        #[arg(long)]
        off: bool,
    },
}

/// Everything that `bowline target` is told.
#[derive(Clone, Debug)]
pub struct TargetConfig {
    /// What the target is called.
    pub id: TargetId,
    /// Where the volumes are.
    pub storage: Storage,
    /// Where controllers reach it.
    pub listen: Listen,
    /// Where the certificates are.
    pub tls: Option<PathBuf>,
    /// From where its volumes can be reached, besides from this machine.
    pub topology: BTreeMap<String, String>,
    /// What this machine is called in topology.
    pub host_name: String,
    /// How much may be promised.
    pub policy: Policy,
    /// Where the kernel listens for NVMe/TCP; nowhere if volumes are not exported.
    pub nvme: Vec<NvmePlace>,
    /// Where health is told, if at all.
    pub http: Option<SocketAddr>,
}

/// Where volumes are kept.
#[derive(Clone, Debug, PartialEq)]
pub enum Storage {
    /// In a directory of this machine.
    Directory(PathBuf),
    /// On a MikroTik device.
    Device(Box<DeviceConfig>),
}

impl fmt::Display for Storage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Directory(directory) => directory.display().fmt(f),
            Self::Device(device) => write!(f, "the device at {}", device.address),
        }
    }
}

impl TargetConfig {
    /// What was typed, or is in the environment.
    pub fn load(args: TargetArgs) -> Result<Self, ConfigError> {
        let wrong = |path: &str, error: &str| ConfigError::Place {
            path: PathBuf::from(path),
            error: error.to_owned(),
        };
        let storage = match (args.directory, &args.device) {
            (Some(directory), _) => Some(Storage::Directory(directory)),
            (None, Some(file)) => Some(Storage::Device(crate::config::load(file)?)),
            (None, None) => None,
        };
        let (Some(id), Some(storage), Some(listen)) = (args.id, storage, args.listen) else {
            return Err(wrong("target", "--id, --directory and --listen are needed"));
        };
        let nvme: Vec<_> = args.nvme_listen.iter().map(|one| one.with(args.nvme_port)).collect();
        nvme::check_places(args.export, &nvme).map_err(|error| wrong("--nvme-listen", &error))?;
        if let (Listen::Address(address), None) = (&listen, &args.tls) {
            let error = "an address needs --tls, a directory with ca.crt, tls.crt and tls.key; without certificates \
                         only a unix socket is served";
            return Err(wrong(&address.to_string(), error));
        }
        let mut topology = BTreeMap::new();
        for Segment { domain, segment } in args.topology {
            if domain == bowline_target::file::TOPOLOGY_HOST {
                return Err(wrong(&domain, "--topology cannot say which machine this is; --host-name does"));
            }
            if topology.insert(domain.clone(), segment).is_some() {
                return Err(wrong(&domain, "--topology names it twice"));
            }
        }
        let host_name = match args.host_name {
            Some(name) => name,
            None => hostname()?,
        };
        let http = match args.http.unwrap_or(Http::At(SocketAddr::from(([127, 0, 0, 1], 8462)))) {
            Http::Off => None,
            Http::At(address) => Some(address),
        };
        Ok(Self {
            id,
            storage,
            listen,
            tls: args.tls,
            topology,
            host_name: host_name.to_string(),
            policy: Policy {
                overcommit: args.overcommit.unwrap_or_default().percent(),
                reserve: args.reserve.map_or(64 << 20, |reserve| reserve.0),
            },
            nvme,
            http,
        })
    }
}

/// Where controllers reach an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// An address, with certificates.
    Address(SocketAddr),
    /// A socket that only its owner can open.
    Socket(Endpoint),
}

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(address) = text.parse() {
            return Ok(Self::Address(address));
        }
        if text.starts_with("unix:") || text.starts_with('/') {
            return text.parse().map(Self::Socket).map_err(|error| format!("{error}"));
        }
        Err(format!("{text:?} is neither an address (0.0.0.0:9460) nor a socket (unix:///run/target.sock)"))
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => address.fmt(f),
            Self::Socket(socket) => socket.fmt(f),
        }
    }
}

/// One segment of topology, written `KEY=VALUE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The key.
    pub domain: String,
    /// The value.
    pub segment: String,
}

impl FromStr for Segment {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (domain, segment) =
            text.split_once('=').ok_or_else(|| format!("{text:?} is not of the form KEY=VALUE"))?;
        let plain = |part: &str, most: usize, more: &str| {
            let allowed = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c) || more.contains(c);
            !part.is_empty()
                && part.len() <= most
                && part.chars().all(allowed)
                && part.starts_with(|c: char| c.is_ascii_alphanumeric())
                && part.ends_with(|c: char| c.is_ascii_alphanumeric())
        };
        if !plain(domain, 127, "/") || !plain(segment, 63, "") {
            return Err(format!("{text:?} can be no label: letters, digits, '-', '_' and '.' are allowed"));
        }
        Ok(Self { domain: domain.to_owned(), segment: segment.to_owned() })
    }
}

/// Serves until it is told to stop.
pub(crate) async fn run(config: TargetConfig) -> Result<()> {
    let stop = stopped()?;
    let registry = Arc::new(Mutex::new(Registry::default()));
    let device = match &config.storage {
        Storage::Device(device) => Some(Devices::one(&config.id, device)),
        Storage::Directory(_) => None,
    };
    if let Some(device) = &device {
        device.register(&mut registry.lock().unwrap_or_else(PoisonError::into_inner));
    }
    let (progress, ready) = watch::channel(Err(format!("{} is being opened", config.storage)));
    if let Some(address) = config.http {
        let probe =
            Probe { registry: Arc::clone(&registry), ready: Arc::new(move || ready.borrow().clone()) };
        answer_probes(address, probe, stop.clone()).await?;
    }
    let opening = Opening { config: &config, device: device.as_ref().and_then(|one| one.all().first()) };
    let Some(Opened { target, files, lacking }) = opening.opened(&progress, stop.clone()).await? else {
        return Ok(());
    };
    tokio::spawn(measure(Arc::clone(&target), Gauges::new(&registry)));
    let Some((listener, socket)) = listen(&config, &progress, stop.clone()).await? else { return Ok(()) };
    if let (Listen::Address(_), Some(directory)) = (&config.listen, &config.tls) {
        crate::expiry::watch(TlsFiles::new(directory), &registry);
    }
    let kind = target.kind().to_owned();
    let (shown, ways) = (files.clone(), lacking.clone());
    let mut server = AgentServer::new(target, kind, env!("CARGO_PKG_VERSION"))
        .also_in(config.topology.clone())
        // A device keeps its exports by itself.
        .showing(move || {
            shown.as_ref().map_or(ExportsShown::All, |files| missing::told(&files.missing(), &ways))
        });
    if let Some(device) = opening.device {
        server = server.of_storage(device.storage());
    }
    let _ = progress
        .send_replace(files.as_ref().map_or(Ok(()), |files| missing::ready(&files.missing(), &lacking)));
    if let Err(error) = notify::notify(State::Ready) {
        tracing::warn!(%error, "nobody could be told that it is ready");
    }
    tracing::info!(target = %config.id, storage = %config.storage, listen = %config.listen, "ready");
    let showing = async {
        if let Some(files) = &files {
            missing::show(files, &lacking, &progress).await;
        }
        std::future::pending::<()>().await;
    };
    let mut done = Ok(());
    let ending = async {
        let machine = || Ok(bowline_host::interface::addresses()?);
        tokio::select! {
            () = until(stop) => {}
            () = showing => {}
            () = nvme::until_there_are_more(&config.nvme, lacking.len(), machine) => {
                done = Err(anyhow::anyhow!(
                    "this machine has an address now in a network of --nvme-listen in which it had none; this ends, to be started anew and serve there, too"
                ));
            }
        }
        let _ = progress.send_replace(Err("it is stopping".to_owned()));
        drop(socket);
    };
    server.run(listener, ending).await?;
    let _ = notify::notify(State::Stopping);
    done
}

/// What is served.
struct Opened {
    target: Arc<dyn Provision>,
    /// The same, where it is a directory of this machine.
    files: Option<FileTarget>,
    /// The ways to it that this machine lacks, in words.
    lacking: Vec<String>,
}

/// What is to be opened.
struct Opening<'a> {
    config: &'a TargetConfig,
    device: Option<&'a Arc<Device>>,
}

impl Opening<'_> {
    /// The target; `None` if it was told to stop before it could be opened.
    ///
    /// What an export over NVMe/TCP misses (a module, an address, a disk that is not mounted, a device that does not answer) may come later, and whoever
    /// waits for it sits at the controller: so the agent stays, tells everybody who asks what it is, and tries again. On a socket there is nobody else to
    /// tell, and it ends.
    async fn opened(
        &self,
        progress: &watch::Sender<Result<(), String>>,
        stop: watch::Receiver<bool>,
    ) -> Result<Option<Opened>> {
        let config = self.config;
        let is_only_here = config.nvme.is_empty() && self.device.is_none();
        let error = match self.open().await {
            Ok(target) => return Ok(Some(target)),
            Err(error) if is_only_here || matches!(config.listen, Listen::Socket(_)) => return Err(error),
            Err(error) => format!("{error:#}"),
        };
        tracing::error!(error, "nothing can be served; it is tried again every {AGAIN:?}");
        let Some((listener, _)) = listen(config, progress, stop.clone()).await? else { return Ok(None) };
        let why = watch::Sender::new(error.clone());
        let _ = progress.send_replace(Err(error));
        let mut target = None;
        let ending = async {
            tokio::select! {
                opened = self.try_again(&why, progress) => target = Some(opened),
                () = until(stop) => {}
            }
        };
        agent::refuse(why.subscribe(), listener, ending).await?;
        Ok(target)
    }

    /// Tries until it can be opened, and tells what is missing whenever that is something else.
    async fn try_again(
        &self,
        why: &watch::Sender<String>,
        progress: &watch::Sender<Result<(), String>>,
    ) -> Opened {
        loop {
            tokio::time::sleep(AGAIN).await;
            let error = match self.open().await {
                Ok(target) => return target,
                Err(error) => format!("{error:#}"),
            };
            if *why.borrow() != error {
                tracing::error!(error, "nothing can be served");
                why.send_replace(error.clone());
                let _ = progress.send_replace(Err(error));
            }
        }
    }

    async fn open(&self) -> Result<Opened> {
        let config = self.config;
        match (&config.storage, self.device) {
            (_, Some(device)) => {
                Ok(Opened { target: Arc::new(device.connect().await?), files: None, lacking: vec![] })
            }
            (Storage::Directory(directory), None) => {
                let (files, lacking) = open_directory(config, directory).await?;
                Ok(Opened { target: Arc::new(files.clone()), files: Some(files), lacking })
            }
            (Storage::Device(_), None) => anyhow::bail!("there is no device"),
        }
    }
}

async fn open_directory(config: &TargetConfig, directory: &Path) -> Result<(FileTarget, Vec<String>)> {
    let settings = Settings {
        id: config.id.clone(),
        directory: directory.to_owned(),
        host_name: config.host_name.clone(),
        policy: config.policy,
    };
    let host = Host::new(Roots::default(), bowline_host::command::Programs::default());
    let places = config.nvme.clone();
    let open = move || -> Result<_> {
        if places.is_empty() {
            return Ok((FileTarget::open(settings, host)?, vec![]));
        }
        let (nvmet, lacking) = nvme::prepare(&host, &settings.directory, &places)?;
        Ok((FileTarget::open_exported(settings, nvmet, host)?, lacking))
    };
    tokio::task::spawn_blocking(open).await?
}

/// The place to listen at; `None` if it was told to stop before the certificates were there.
async fn listen(
    config: &TargetConfig,
    progress: &watch::Sender<Result<(), String>>,
    stop: watch::Receiver<bool>,
) -> Result<Option<(Listener, Option<OwnedSocket>)>> {
    match (&config.listen, &config.tls) {
        (Listen::Socket(endpoint), _) => {
            let (listener, socket) = OwnedSocket::bind(endpoint).await?;
            Ok(Some((Listener::Unix(listener), Some(socket))))
        }
        (Listen::Address(address), Some(directory)) => {
            let files = TlsFiles::new(directory);
            tokio::select! {
                () = wait_for(&files, progress) => {}
                () = until(stop) => return Ok(None),
            }
            let listener = TcpListener::bind(address).await;
            let listener = listener.with_context(|| format!("cannot listen on {address}"))?;
            Ok(Some((Listener::Tls { listener, files }, None)))
        }
        // `TargetConfig::load` does not let it come to that.
        (Listen::Address(address), None) => anyhow::bail!("{address} needs certificates: give --tls"),
    }
}

/// In a container, certificates may come later than the process.
async fn wait_for(files: &TlsFiles, progress: &watch::Sender<Result<(), String>>) {
    let mut looks = 0;
    loop {
        let files = files.clone();
        let checked =
            tokio::task::spawn_blocking(move || files.check().map_err(|error| error.to_string())).await;
        let Err(error) = checked.unwrap_or_else(|error| Err(error.to_string())) else { return };
        if looks % REMIND == 0 {
            tracing::warn!(%error, "waiting for the certificates");
        }
        let _ = progress.send_replace(Err(format!("waiting for the certificates: {error}")));
        looks += 1;
        tokio::time::sleep(LOOK).await;
    }
}

#[cfg(test)]
mod tests;
