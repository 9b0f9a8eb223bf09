//! MikroTik devices that a `bowline up` uses (`[rds.NAME]` in its configuration), or a `bowline target` (`--device`): what is said of them, and how each
//! of them is.

use bowline_core::TargetId;
use bowline_target::rds::ssh::{BreakerState, Credentials, HostKey, LinkState, SshConsole, SshSettings};
use bowline_target::rds::{ConnectError, Guarantee, RdsTarget, Settings};
use bowline_web::wire::Finding;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use crate::config::{Text, absolute};

/// What a file says of one device.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(try_from = "Table")]
pub struct DeviceConfig {
    /// Where its SSH listens: `HOST:PORT`.
    pub address: String,
    /// Who logs in.
    pub user: String,
    /// With what.
    pub credentials: Credentials,
    /// The host key that it must show.
    pub host_key: Option<HostKey>,
    /// In which pool files lie.
    pub pool: String,
    /// In which directory of it.
    pub directory: String,
    /// The directory of an older driver whose disks are taken over.
    pub take_over: Option<String>,
    /// Where nodes reach its exports.
    pub exports: Vec<SocketAddr>,
    /// Tells this installation's disks from those of others on the same device.
    pub installation: String,
    /// Whether nodes are trusted not to write where they may only read.
    pub trust_readers: bool,
}

/// The same, as it is written.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct Table {
    address: String,
    user: String,
    #[serde(default, deserialize_with = "absolute")]
    key_file: Option<PathBuf>,
    #[serde(default, deserialize_with = "absolute")]
    password_file: Option<PathBuf>,
    host_key: Option<Text<HostKey>>,
    pool: String,
    directory: String,
    take_over: Option<String>,
    exports: Vec<SocketAddr>,
    installation: String,
    #[serde(default)]
    trust_readers: bool,
}

impl TryFrom<Table> for DeviceConfig {
    type Error = String;

    fn try_from(table: Table) -> Result<Self, String> {
        let Table { address, user, key_file, password_file, host_key, pool, directory, exports, .. } = table;
        let credentials = match (key_file, password_file) {
            (Some(key), None) => Credentials::Key(key),
            (None, Some(password)) => Credentials::Password(password),
            _ => return Err("give key-file or password-file, and not both".to_owned()),
        };
        if user.is_empty() {
            return Err("user must not be empty".to_owned());
        }
        let config = Self {
            address: with_port(&address)?,
            user,
            credentials,
            host_key: host_key.map(|Text(key)| key),
            pool,
            directory,
            take_over: table.take_over,
            exports,
            installation: table.installation,
            trust_readers: table.trust_readers,
        };
        let any = TargetId::new("any").map_err(|error| error.to_string())?;
        config.settings(&any).check().map_err(|error| error.to_string().replace("addresses", "exports"))?;
        Ok(config)
    }
}

impl DeviceConfig {
    fn settings(&self, id: &TargetId) -> Settings {
        Settings {
            id: id.clone(),
            installation: self.installation.clone(),
            pool: self.pool.clone(),
            directory: self.directory.clone(),
            take_over: self.take_over.clone(),
            addresses: self.exports.clone(),
            trust_readers: self.trust_readers,
        }
    }
}

/// `HOST`, or `HOST:PORT` if SSH listens elsewhere than usual.
fn with_port(text: &str) -> Result<String, String> {
    if let Ok(ip) = text.parse::<IpAddr>() {
        return Ok(SocketAddr::new(ip, 22).to_string());
    }
    let (host, port) = text.rsplit_once(':').unwrap_or((text, "22"));
    let is_host = !host.is_empty() && host.chars().all(|c| c.is_ascii_graphic());
    if is_host && port.parse::<u16>().is_ok_and(|port| port != 0) {
        return Ok(format!("{host}:{port}"));
    }
    Err(format!("address {text:?} is none; write HOST, or HOST:PORT"))
}

/// One device, whether it answers or not.
pub(crate) struct Device {
    settings: Settings,
    console: SshConsole,
    /// Tells the device from any other that may come to have the same name.
    identity: String,
    guarantee: OnceLock<Guarantee>,
}

impl Device {
    fn new(id: &TargetId, config: &DeviceConfig) -> Self {
        let DeviceConfig { user, credentials, host_key, address, installation, .. } = config;
        let key = host_key.map(|key| key.to_string()).unwrap_or_default();
        let ssh = SshSettings::new(user, credentials.clone(), *host_key);
        Self {
            settings: config.settings(id),
            console: SshConsole::new(address, ssh),
            identity: format!("{installation} {key}"),
            guarantee: OnceLock::new(),
        }
    }

    pub(crate) fn target(&self) -> &TargetId {
        &self.settings.id
    }

    /// What it was when it was first used must be what it is: another device proves nothing about the disks of this one.
    pub(crate) fn identity(&self) -> &str {
        &self.identity
    }

    /// The same, as an agent tells it: in one word.
    pub(crate) fn storage(&self) -> String {
        self.identity.trim_end().replacen(' ', "/", 1)
    }

    pub(crate) async fn connect(&self) -> Result<RdsTarget, ConnectError> {
        let target = RdsTarget::connect(Arc::new(self.console.clone()), self.settings.clone()).await?;
        let _ = self.guarantee.set(target.guarantee());
        Ok(target)
    }

    /// How it is, for people.
    fn findings(&self) -> Vec<Finding> {
        let target = self.target();
        let (present, detail) = told(&self.console.state());
        let needed_for = format!("volumes on {target}");
        let link = Finding {
            what: format!("the link to the device of target {target}"),
            needed_for: needed_for.clone(),
            present,
            detail,
            required: true,
        };
        let keeps = self.guarantee.get().map(|guarantee| Finding {
            what: format!("a device of target {target} that lets in one host only"),
            needed_for: "keeping every other host out".to_owned(),
            present: *guarantee == Guarantee::OneHost,
            detail: guarantee.to_string(),
            required: false,
        });
        std::iter::once(link).chain(keeps).collect()
    }
}

/// Whether commands get to a device, and in which words.
fn told(state: &LinkState) -> (bool, String) {
    let LinkState { is_connected, commands, breaker, failures, error } = state;
    let last = error.as_ref().map(|error| format!("; the last failure: {error}")).unwrap_or_default();
    match breaker {
        BreakerState::Open { for_another } => {
            let seconds = for_another.as_millis().div_ceil(1000);
            (
                false,
                format!(
                    "no command is sent for another {seconds} s, after {failures} failures in a row{last}"
                ),
            )
        }
        BreakerState::Trying => {
            (false, format!("one command is being tried, after {failures} failures in a row{last}"))
        }
        BreakerState::Closed if error.is_some() => (false, format!("{failures} failures in a row{last}")),
        BreakerState::Closed if *is_connected => (true, format!("connected, {commands} commands under way")),
        BreakerState::Closed => (true, "not connected now; the next command connects".to_owned()),
    }
}

/// All devices of a `bowline up`. A handle.
#[derive(Clone)]
pub(crate) struct Devices(Arc<[Arc<Device>]>);

impl Devices {
    pub(crate) fn new(configured: &BTreeMap<TargetId, DeviceConfig>) -> Self {
        Self(configured.iter().map(|(id, config)| Arc::new(Device::new(id, config))).collect())
    }

    /// One alone.
    pub(crate) fn one(id: &TargetId, config: &DeviceConfig) -> Self {
        Self(Arc::new([Arc::new(Device::new(id, config))]))
    }

    pub(crate) fn all(&self) -> &[Arc<Device>] {
        &self.0
    }

    pub(crate) fn findings(&self) -> Vec<Finding> {
        self.0.iter().flat_map(|device| device.findings()).collect()
    }

    /// Shows how the links are, at the moment they are asked for.
    pub(crate) fn register(&self, registry: &mut Registry) {
        if !self.0.is_empty() {
            registry.register_collector(Box::new(self.clone()));
        }
    }
}

impl std::fmt::Debug for Devices {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.0.iter().map(|device| device.target())).finish()
    }
}

/// Name, help, and what it is of a link.
type Gauge = (&'static str, &'static str, fn(&LinkState) -> i64);

const GAUGES: [Gauge; 4] = [
    ("bowline_rds_connected", "Whether there is a connection to the device", |state| {
        i64::from(state.is_connected)
    }),
    ("bowline_rds_breaker_open", "Whether no commands are sent to the device", |state| {
        i64::from(state.breaker != BreakerState::Closed)
    }),
    ("bowline_rds_failures", "Failures of the link to the device in a row", |state| {
        i64::from(state.failures)
    }),
    ("bowline_rds_commands", "Commands to the device that are under way", |state| {
        i64::try_from(state.commands).unwrap_or(i64::MAX)
    }),
];

impl Collector for Devices {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let states: Vec<_> = self.0.iter().map(|device| (device.target(), device.console.state())).collect();
        for (name, help, value) in GAUGES {
            let gauge = ConstGauge::<i64>::new(0);
            let kind = prometheus_client::encoding::EncodeMetric::metric_type(&gauge);
            let mut family = encoder.encode_descriptor(name, help, None, kind)?;
            for (target, state) in &states {
                let labels = [("target", target.as_str())];
                let one = family.encode_family(&labels)?;
                prometheus_client::encoding::EncodeMetric::encode(&ConstGauge::new(value(state)), one)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ssh_is_where_it_usually_is_unless_told_otherwise() {
        for (text, expected) in [
            ("10.0.0.9", Some("10.0.0.9:22")),
            ("10.0.0.9:2222", Some("10.0.0.9:2222")),
            ("fd00::9", Some("[fd00::9]:22")),
            ("[fd00::9]:2222", Some("[fd00::9]:2222")),
            ("storage.example", Some("storage.example:22")),
            ("storage.example:0", None),
            (":22", None),
            ("", None),
            ("a b", None),
        ] {
            assert_eq!(with_port(text).ok().as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn a_link_is_well_or_says_what_is_wrong() {
        let well = LinkState {
            is_connected: true,
            commands: 2,
            breaker: BreakerState::Closed,
            failures: 0,
            error: None,
        };
        let open = BreakerState::Open { for_another: std::time::Duration::from_millis(12_300) };
        assert_eq!(told(&well), (true, "connected, 2 commands under way".to_owned()));
        let fresh = LinkState { is_connected: false, ..well.clone() };
        assert_eq!(told(&fresh), (true, "not connected now; the next command connects".to_owned()));
        let (present, detail) = told(&LinkState { breaker: open, failures: 5, ..fresh });
        assert_eq!(
            (present, detail.as_str()),
            (false, "no command is sent for another 13 s, after 5 failures in a row")
        );
    }
}
