//! What `bowline up` is told: flags before the environment (`BOWLINE_…`) before the file `bowline.toml` in the data
//! directory. A key that is not known, or a value that cannot be accepted, stops it with the file, the line and the key.

use bowline_core::{NodeId, TargetId};
use bowline_csi::Endpoint;
use serde::de::{DeserializeOwned, Deserializer, Error as _};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::agents::{AgentAt, At};
use crate::args::UpArgs;
use crate::kubelet::{KubeletArgs, csi_socket};
use crate::node::NodeArgs;
use crate::orphans::{OrphanArgs, OrphanMode};
use crate::rds::DeviceConfig;
use crate::size::Size;
use crate::span::Span;

/// The name of the file in the data directory.
pub const FILE: &str = "bowline.toml";

/// More than this is no configuration.
const FILE_BYTES: u64 = 1 << 20;

/// Everything that `bowline up` is told.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Where everything is kept.
    pub data: PathBuf,
    /// Where CSI listens.
    pub csi: Endpoint,
    /// Where the API listens beside its socket, if at all.
    pub http: Option<SocketAddr>,
    /// What this node is called.
    pub node: NodeId,
    /// Other nodes that may ask for volumes.
    pub peers: Vec<NodeId>,
    /// Where volumes are kept.
    pub target: TargetKind,
    /// Targets on other machines.
    pub agents: Vec<AgentAt>,
    /// Where the certificates for them are.
    pub tls: Option<PathBuf>,
    /// MikroTik devices.
    pub rds: BTreeMap<TargetId, DeviceConfig>,
    /// What becomes of volumes that no record knows of.
    pub orphans: OrphanArgs,
    /// How many volumes this node can have at once.
    pub max_volumes: u32,
    /// How much more may be promised to volumes than there is.
    pub overcommit: Ratio,
    /// How much of the disk is never given to volumes.
    pub reserve: Size,
    /// The directory below which every path of a CSI request must lie.
    pub path_root: PathBuf,
    /// What the machine is called in topology.
    pub host: NodeId,
    /// Where the node remembers what it has staged.
    pub state: PathBuf,
    /// Directories of targets on this machine, for a node on its own; the one in the data directory if there are none.
    pub shelves: Vec<ShelfAt>,
}

impl Config {
    /// The socket of the API.
    pub fn api_socket(&self) -> PathBuf {
        api_socket(&self.data)
    }

    /// The file with the token of the API.
    pub fn api_token(&self) -> PathBuf {
        self.data.join("api.token")
    }

    /// Reads the file, if there is one, and puts what was typed (or is in the environment) before it.
    pub fn load(data: &Path, args: &UpArgs) -> Result<Self, ConfigError> {
        let path = data.join(FILE);
        let file = match read(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => FileConfig::default(),
            Err(error) => return Err(ConfigError::Unreadable { path, error: error.to_string() }),
            Ok(text) => FileConfig::parse(&path, &text)?,
        };
        Self::merge(data, args, file)
    }

    /// What a node alone is told. The file is its controller's, so nothing of it counts here.
    pub fn load_node(data: &Path, args: NodeArgs) -> Result<Self, ConfigError> {
        let KubeletArgs { kubelet, state, host_name, .. } = args.kubelet.clone();
        let csi = match (&args.csi, &kubelet) {
            (Some(csi), _) => csi.clone(),
            (None, Some(kubelet)) => place(&csi_socket(kubelet))?,
            (None, None) => place(&data.join(format!("{}.sock", args.node)))?,
        };
        let shelves = args.shelf.clone();
        for (index, shelf) in shelves.iter().enumerate() {
            if shelves.iter().take(index).any(|other| other.target == shelf.target) {
                let error =
                    format!("target {} has two directories; give --shelf once for each", shelf.target);
                return Err(ConfigError::Place { path: shelf.directory.clone(), error });
            }
        }
        let path_root = args.path_root.clone().or(kubelet);
        let args = UpArgs::from(NodeArgs { csi: Some(csi), path_root, ..args });
        let config = Self::merge(data, &args, FileConfig::default())?;
        Ok(Self {
            shelves,
            state: state.unwrap_or(config.state),
            host: host_name.unwrap_or(config.host),
            ..config
        })
    }

    fn merge(data: &Path, args: &UpArgs, file: FileConfig) -> Result<Self, ConfigError> {
        let args = args.clone();
        let csi = match args.csi.or(file.csi) {
            Some(csi) => csi,
            None => place(&data.join("csi.sock"))?,
        };
        let node = match args.node.or(file.node) {
            Some(node) => node,
            None => hostname()?,
        };
        let http = args.http.or(file.http).unwrap_or(Http::At(SocketAddr::from(([127, 0, 0, 1], 8460))));
        let http = match http {
            Http::Off => None,
            Http::At(address) => Some(address),
        };
        let mut peers = if args.peer.is_empty() { file.peers.unwrap_or_default() } else { args.peer };
        peers.retain(|peer| *peer != node);
        let tls = args.tls.or(file.tls);
        let agents = if args.agent.is_empty() {
            file.agents.unwrap_or_default().into_iter().map(|Text(agent)| agent).collect()
        } else {
            args.agent
        };
        usable(&agents, &file.rds, tls.as_deref())?;
        let orphans = args.orphans.or(OrphanArgs { orphans: file.orphans, orphan_grace: file.orphan_grace });
        orphans.check()?;
        Ok(Self {
            data: data.to_owned(),
            csi,
            http,
            host: node.clone(),
            state: data.join("node").join(node.as_str()),
            node,
            peers,
            target: args.target.or(file.target).unwrap_or_default(),
            agents,
            tls,
            rds: file.rds,
            orphans,
            max_volumes: args.max_volumes.or(file.max_volumes).unwrap_or(128),
            overcommit: args.overcommit.or(file.overcommit).unwrap_or_default(),
            reserve: args.reserve.or(file.reserve).unwrap_or(Size(64 << 20)),
            path_root: args.path_root.or(file.path_root).unwrap_or_else(|| PathBuf::from("/")),
            shelves: Vec::new(),
        })
    }
}

/// Whether these can be told apart and reached.
fn usable(
    agents: &[AgentAt],
    devices: &BTreeMap<TargetId, DeviceConfig>,
    tls: Option<&Path>,
) -> Result<(), ConfigError> {
    for device in devices.keys() {
        let wrong = |problem: &str| {
            let error = format!("[rds.{device}]: {problem}; call the device something else");
            Err(ConfigError::Place { path: PathBuf::from(FILE), error })
        };
        if device.as_str() == crate::up::TARGET {
            return wrong("this is the name of the machine's own target");
        }
        if agents.iter().any(|agent| agent.target == *device) {
            return wrong("there is an agent of this name");
        }
    }
    for (index, AgentAt { target, at }) in agents.iter().enumerate() {
        let wrong = |error: String| Err(ConfigError::Place { path: PathBuf::from("--agent"), error });
        if target.as_str() == crate::up::TARGET {
            return wrong(format!(
                "{target} is the target of this machine; call the other one something else"
            ));
        }
        if agents.iter().take(index).any(|other| other.target == *target) {
            return wrong(format!("target {target} has two agents"));
        }
        if let (At::Address(address), None) = (at, tls) {
            return wrong(format!("{address} needs --tls, a directory with ca.crt, tls.crt and tls.key"));
        }
    }
    Ok(())
}

/// A socket that nobody asked for by name.
fn place(path: &Path) -> Result<Endpoint, ConfigError> {
    let endpoint: Result<Endpoint, _> = path.to_str().unwrap_or_default().parse();
    let path = path.to_owned();
    endpoint.map_err(|error| ConfigError::Place { path, error: format!("{error}; give --csi") })
}

/// The socket of the API in a data directory.
pub fn api_socket(data: &Path) -> PathBuf {
    data.join("api.sock")
}

fn read(path: &Path) -> std::io::Result<String> {
    let bytes = std::fs::metadata(path)?.len();
    if bytes > FILE_BYTES {
        return Err(std::io::Error::other(format!("it has {bytes} bytes; at most {FILE_BYTES} are read")));
    }
    std::fs::read_to_string(path)
}

/// What this machine calls itself.
pub(crate) fn hostname() -> Result<NodeId, ConfigError> {
    let path = PathBuf::from("/proc/sys/kernel/hostname");
    let text = std::fs::read_to_string(&path).unwrap_or_default();
    NodeId::new(text.trim())
        .map_err(|error| ConfigError::Place { path, error: format!("{error}; give --node") })
}

/// Why there is no configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The file is there and cannot be read.
    #[error("{} cannot be read: {error}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        error: String,
    },
    /// Something in the file cannot be accepted.
    #[error("{}:{line}: {}{problem}", path.display(), key.as_ref().map(|key| format!("{key}: ")).unwrap_or_default())]
    Line {
        /// The file.
        path: PathBuf,
        /// The line.
        line: usize,
        /// The key, if it is known which.
        key: Option<String>,
        /// What is wrong.
        problem: String,
    },
    /// What is taken if nothing is given cannot be used.
    #[error("{} cannot be used: {error}", path.display())]
    Place {
        /// What.
        path: PathBuf,
        /// Why.
        error: String,
    },
}

/// What the file says. Keys are as the flags, without their dashes in front: `max-volumes = 16`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct FileConfig {
    #[serde(deserialize_with = "text")]
    csi: Option<Endpoint>,
    #[serde(deserialize_with = "text")]
    http: Option<Http>,
    node: Option<NodeId>,
    peers: Option<Vec<NodeId>>,
    #[serde(deserialize_with = "text")]
    target: Option<TargetKind>,
    agents: Option<Vec<Text<AgentAt>>>,
    #[serde(deserialize_with = "absolute")]
    tls: Option<PathBuf>,
    max_volumes: Option<u32>,
    overcommit: Option<Ratio>,
    reserve: Option<Size>,
    #[serde(deserialize_with = "absolute")]
    path_root: Option<PathBuf>,
    rds: BTreeMap<TargetId, DeviceConfig>,
    #[serde(deserialize_with = "text")]
    orphans: Option<OrphanMode>,
    #[serde(deserialize_with = "text")]
    orphan_grace: Option<Span>,
}

impl FileConfig {
    /// Reads what is in the file; `path` is only for what an error says.
    pub fn parse(path: &Path, text: &str) -> Result<Self, ConfigError> {
        parse(path, text)
    }
}

/// Reads a file that must be there.
pub(crate) fn load<T: DeserializeOwned>(path: &Path) -> Result<T, ConfigError> {
    let text = read(path);
    let told =
        |error: std::io::Error| ConfigError::Unreadable { path: path.to_owned(), error: error.to_string() };
    parse(path, &text.map_err(told)?)
}

fn parse<T: DeserializeOwned>(path: &Path, text: &str) -> Result<T, ConfigError> {
    let line = |span: Option<std::ops::Range<usize>>| {
        let before = span.and_then(|span| text.get(..span.start)).unwrap_or_default();
        before.bytes().filter(|byte| *byte == b'\n').count() + 1
    };
    let told = |error: &toml::de::Error, key: Option<String>| ConfigError::Line {
        path: path.to_owned(),
        line: line(error.span()),
        key,
        problem: error.message().trim().replace('\n', " "),
    };
    let toml = toml::Deserializer::parse(text).map_err(|error| told(&error, None))?;
    serde_path_to_error::deserialize(toml).map_err(|error| {
        let key = Some(error.path().to_string()).filter(|key| key != ".");
        told(error.inner(), key)
    })
}

/// A value that is written as text.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Text<T>(pub(crate) T);

impl<'de, T: FromStr<Err: std::fmt::Display>> Deserialize<'de> for Text<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from)?.parse().map(Self).map_err(D::Error::custom)
    }
}

fn text<'de, D: Deserializer<'de>, T: FromStr<Err: std::fmt::Display>>(
    from: D,
) -> Result<Option<T>, D::Error> {
    let text = String::deserialize(from)?;
    text.parse().map(Some).map_err(D::Error::custom)
}

pub(crate) fn absolute<'de, D: Deserializer<'de>>(from: D) -> Result<Option<PathBuf>, D::Error> {
    let text = String::deserialize(from)?;
    absolute_path(&text).map(Some).map_err(D::Error::custom)
}

/// A path that begins at the root.
pub fn absolute_path(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    if path.is_absolute() { Ok(path) } else { Err(format!("{text:?} is no absolute path; begin it with /")) }
}

/// Where the API listens beside its socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Http {
    /// Nowhere.
    Off,
    /// At this address.
    At(SocketAddr),
}

impl FromStr for Http {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "off" {
            return Ok(Self::Off);
        }
        let address =
            text.parse().map_err(|_| format!("{text:?} is no address; write 127.0.0.1:8460, or off"))?;
        Ok(Self::At(address))
    }
}

/// The directory of a target on this machine, written `TARGET=DIR`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShelfAt {
    /// The target.
    pub target: TargetId,
    /// Its directory.
    pub directory: PathBuf,
}

impl FromStr for ShelfAt {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (target, directory) =
            text.split_once('=').ok_or_else(|| format!("{text:?} is not of the form TARGET=DIR"))?;
        let target = TargetId::new(target).map_err(|error| error.to_string())?;
        Ok(Self { target, directory: absolute_path(directory)? })
    }
}

/// Where volumes are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub enum TargetKind {
    /// In files of the data directory.
    #[default]
    File,
    /// Only on other machines.
    None,
}

impl FromStr for TargetKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "file" => Ok(Self::File),
            "none" => Ok(Self::None),
            other => Err(format!("{other:?} is no target; there are: file, none")),
        }
    }
}

/// How much may be promised, as a multiple of what there is: 1 to 1000.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Ratio(f64);

impl Ratio {
    /// As whole percent: 100 to 100,000.
    pub fn percent(self) -> u32 {
        // Bounded by `new`, so nothing is cut off.
        (self.0 * 100.0).round() as u32
    }

    fn new(ratio: f64) -> Result<Self, String> {
        // Not the other way round: nothing compares with what is no number.
        if (1.0..=1000.0).contains(&ratio) {
            Ok(Self(ratio))
        } else {
            Err(format!("{ratio} is not between 1 and 1000"))
        }
    }
}

impl Default for Ratio {
    fn default() -> Self {
        Self(1.0)
    }
}

impl FromStr for Ratio {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::new(text.parse().map_err(|_| format!("{text:?} is no number"))?)
    }
}

impl<'de> Deserialize<'de> for Ratio {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Self::new(f64::deserialize(from)?).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests;
