//! What `bowline target --export nvmet` needs of its machine, and where it listens.

use anyhow::{Context, Result, bail};
use bowline_host::Host;
use bowline_host::doctor::{Finding, Presence, probe_nvme_directory};
use bowline_host::interface;
use bowline_host::network::Network;
use bowline_target::nvmet::{Configfs, Settings};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use crate::agent::Export;

/// Loads what is missing, and says what still is. With it, those of the places are named at which the kernel does not listen.
pub(crate) fn prepare(
    host: &Host,
    directory: &Path,
    places: &[NvmePlace],
) -> Result<(Settings, Vec<String>)> {
    // First, because it changes nothing.
    let (addresses, absent) = resolve(places, || Ok(interface::addresses()?))?;
    if let Some(missing) = missing(&host.load_nvme_target()) {
        bail!("this machine cannot export volumes over NVMe/TCP: {missing}");
    }
    std::fs::create_dir_all(directory).with_context(|| format!("cannot make {}", directory.display()))?;
    if let Some(missing) = missing(&probe_nvme_directory(directory)) {
        bail!("volumes in {} cannot be exported over NVMe/TCP: {missing}", directory.display());
    }
    let tree = Arc::new(Configfs::new(host.roots.sys.join("kernel/config/nvmet")));
    tracing::info!(?addresses, "exports are reached over NVMe/TCP");
    let lacks_addresses = !absent.is_empty();
    Ok((Settings { tree, addresses, lacks_addresses, patience: Settings::PATIENCE }, absent))
}

fn missing(findings: &[Finding]) -> Option<String> {
    let missing: Vec<_> = findings
        .iter()
        .filter_map(|finding| match &finding.state {
            Presence::Missing(why) => Some(format!("{} ({why})", finding.what)),
            Presence::Present(_) => None,
        })
        .collect();
    (!missing.is_empty()).then(|| missing.join(", "))
}

/// Where the kernel listens, with a port or without. Whoever is told an address by somebody else (a pod by the kubelet) need not know
/// whether it is one that stands in brackets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NvmeAddress {
    /// At the port of all that name none.
    Bare(IpAddr),
    /// At this port.
    Whole(SocketAddr),
    /// At the addresses of this machine in a network, and the port of all that name none.
    Network(Network),
}

impl NvmeAddress {
    pub(crate) fn with(self, port: u16) -> NvmePlace {
        match self {
            Self::Bare(address) => NvmePlace::At(SocketAddr::new(address, port)),
            Self::Whole(address) => NvmePlace::At(address),
            Self::Network(network) => NvmePlace::In(network, port),
        }
    }
}

impl FromStr for NvmeAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.contains('/') {
            return text.parse().map(Self::Network).map_err(|error| format!("{error}"));
        }
        let whole = || text.parse().map(Self::Whole).ok();
        let bare = || text.parse().map(Self::Bare).ok();
        whole().or_else(bare).ok_or_else(|| {
            format!("{text:?} is no address; write 10.0.0.1, 10.0.0.1:4420 or a network, 10.0.0.0/24")
        })
    }
}

/// Where the kernel is to listen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NvmePlace {
    /// At this address.
    At(SocketAddr),
    /// At every address of this machine in this network, with this port.
    In(Network, u16),
}

impl fmt::Display for NvmePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::At(address) => address.fmt(f),
            Self::In(network, port) => write!(f, "{network} with port {port}"),
        }
    }
}

/// Nodes are told these very addresses, so they must be ones that can be connected to.
pub(crate) fn check_places(export: Export, places: &[NvmePlace]) -> Result<(), String> {
    match (export, places) {
        (Export::Loop, []) => return Ok(()),
        (Export::Loop, _) => return Err("it is for --export nvmet".to_owned()),
        (Export::Nvmet, []) => {
            return Err(
                "--export nvmet needs it: an address of this machine that nodes can reach, with its port \
                        (10.0.0.1:4420), or its network (10.0.0.0/24)"
                    .to_owned(),
            );
        }
        (Export::Nvmet, _) => {}
    }
    for (at, place) in places.iter().enumerate() {
        let is_nowhere = match place {
            NvmePlace::At(address) => address.ip().is_unspecified() || address.port() == 0,
            NvmePlace::In(_, port) => *port == 0,
        };
        if is_nowhere {
            return Err(format!(
                "{place} is nowhere that a node could connect to; name the address and the port"
            ));
        }
        if places.iter().take(at).any(|other| other == place) {
            return Err(format!("{place} is named twice"));
        }
    }
    Ok(())
}

/// How often it is looked for addresses that are missing.
const AGAIN: Duration = Duration::from_secs(10);
/// How many addresses a sentence names.
const NAMED: usize = 20;

/// The addresses of all places, each once, and in words the networks in which this machine has none; at least one is served. Which ones this machine has
/// is asked only if a network is among the places.
fn resolve(
    places: &[NvmePlace],
    machine: impl FnOnce() -> Result<Vec<IpAddr>>,
) -> Result<(Vec<SocketAddr>, Vec<String>)> {
    let has_networks = places.iter().any(|place| matches!(place, NvmePlace::In(..)));
    let machine = if has_networks { machine()? } else { vec![] };
    let (mut addresses, mut lacking) = (Vec::new(), Vec::new());
    for place in places {
        let found = match place {
            NvmePlace::At(address) => vec![*address],
            NvmePlace::In(network, port) => {
                let meant = network.of(&machine);
                if meant.is_empty() {
                    lacking.push(format!(
                        "--nvme-listen {network}: this machine has no address in that network; it has {}",
                        sentence(machine.clone())
                    ));
                }
                meant.into_iter().map(|address| SocketAddr::new(address, *port)).collect()
            }
        };
        for address in found {
            if !addresses.contains(&address) {
                addresses.push(address);
            }
        }
    }
    if addresses.is_empty() && !lacking.is_empty() {
        bail!(lacking.join("; "));
    }
    let lacking = lacking.into_iter().map(|lacking| {
        format!("{lacking}, and serves at the others; when it has one, the agent ends, to be started anew")
    });
    Ok((addresses, lacking.collect()))
}

/// Comes back when this machine has an address in one of the networks in which it had none, `lacking` of them: a process that serves has its addresses for
/// good, and another one over the same exports disturbs nobody.
pub(crate) async fn until_there_are_more(
    places: &[NvmePlace],
    lacking: usize,
    machine: impl Fn() -> Result<Vec<IpAddr>>,
) {
    if lacking == 0 {
        std::future::pending::<()>().await;
    }
    loop {
        tokio::time::sleep(AGAIN).await;
        if resolve(places, &machine).is_ok_and(|(_, absent)| absent.len() < lacking) {
            return;
        }
    }
}

/// In one order, so that it is the same sentence as long as nothing changes.
fn sentence(mut addresses: Vec<IpAddr>) -> String {
    addresses.sort();
    addresses.dedup();
    let named: Vec<_> = addresses.iter().take(NAMED).map(ToString::to_string).collect();
    match addresses.len().saturating_sub(NAMED) {
        _ if named.is_empty() => "none at all".to_owned(),
        0 => named.join(", "),
        more => format!("{} and {more} more", named.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bowline_host::Roots;

    #[test]
    fn what_is_missing_is_named_with_what_to_do() {
        let place = tempfile::tempdir().unwrap();
        let mut host = Host::new(
            Roots { sys: place.path().to_owned(), ..Roots::default() },
            bowline_host::command::Programs::default(),
        );
        host.programs.path = vec![place.path().to_owned()];
        let error = prepare(&host, &place.path().join("v"), &[]).unwrap_err().to_string();
        for words in ["configfs", "mount -t configfs none", "modprobe nvmet)", "modprobe nvmet-tcp"] {
            assert!(error.contains(words), "{error}");
        }
        std::fs::create_dir_all(place.path().join("kernel/config/nvmet")).unwrap();
        let error = prepare(&host, &place.path().join("v"), &[]).unwrap_err().to_string();
        assert!(error.contains("modprobe nvmet-tcp") && !error.contains("configfs"), "{error}");
    }

    fn places(typed: &[&str]) -> Vec<NvmePlace> {
        typed.iter().map(|text| text.parse::<NvmeAddress>().unwrap().with(4420)).collect()
    }

    fn addresses(texts: &[&str]) -> Vec<IpAddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn a_network_stands_for_the_addresses_of_this_machine_in_it_and_each_counts_once() {
        let machine = ["127.0.0.1", "10.2.0.5", "10.1.0.9", "10.1.0.5", "fd00:1::5", "fe80::5"];
        for (typed, expected) in [
            (&["10.1.0.0/24"][..], &["10.1.0.5:4420", "10.1.0.9:4420"][..]),
            (&["10.2.0.0/24", "10.1.0.9/32"], &["10.2.0.5:4420", "10.1.0.9:4420"]),
            (&["fd00:1::/64"], &["[fd00:1::5]:4420"]),
            (&["10.1.0.0/24", "10.1.0.0/16"], &["10.1.0.5:4420", "10.1.0.9:4420"]),
            (&["10.1.0.9", "10.1.0.0/24"], &["10.1.0.9:4420", "10.1.0.5:4420"]),
            (&["10.2.0.0/24", "10.2.0.5:4420"], &["10.2.0.5:4420"]),
            (&["10.2.0.0/24", "10.2.0.5:9"], &["10.2.0.5:4420", "10.2.0.5:9"]),
            (&["127.0.0.0/8"], &["127.0.0.1:4420"]),
            // An address that is named is taken as it is: this machine may get it later.
            (&["10.9.0.1"], &["10.9.0.1:4420"]),
        ] {
            let (found, lacking) = resolve(&places(typed), || Ok(addresses(&machine))).unwrap();
            assert_eq!(lacking, [""; 0]);
            let found: Vec<_> = found.iter().map(ToString::to_string).collect();
            assert_eq!(found, expected, "{typed:?}");
        }
    }

    #[test]
    fn a_network_without_an_address_is_named_with_what_this_machine_has() {
        let lone = ["fe80::5", "10.1.0.5", "127.0.0.1", "127.0.0.1"];
        let many: Vec<String> = (1..=23).map(|last| format!("10.1.0.{last}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        for (typed, machine, told) in [
            (
                &["10.9.0.0/24", "10.8.0.0/24"][..],
                &lone[..],
                "--nvme-listen 10.9.0.0/24: this machine has no address in that network; it has 10.1.0.5, 127.0.0.1, fe80::5; \
                 --nvme-listen 10.8.0.0/24: ",
            ),
            (&["126.0.0.0/7"], &lone, "--nvme-listen 126.0.0.0/7: this machine has no address"),
            (&["fd00:1::/64"], &[], "it has none at all"),
            (&["10.9.0.0/24"], &many, "it has 10.1.0.1, 10.1.0.2, "),
            (&["10.9.0.0/24"], &many, "10.1.0.20 and 3 more"),
        ] {
            let error = resolve(&places(typed), || Ok(addresses(machine))).unwrap_err().to_string();
            assert!(error.contains(told), "{error}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_agent_that_began_without_an_address_in_a_network_had_none_there_for_ever() {
        let places = places(&["10.9.0.0/24", "10.1.0.0/24"]);
        let looks = std::cell::Cell::new(0);
        let machine = || {
            looks.set(looks.get() + 1);
            Ok(addresses(if looks.get() < 3 { &["10.1.0.5"] } else { &["10.1.0.5", "10.9.0.5"] }))
        };
        until_there_are_more(&places, 1, machine).await;
        assert_eq!(looks.get(), 3);
        let serves = until_there_are_more(&places, 0, machine);
        let waited = tokio::time::timeout(Duration::from_secs(3600), serves).await;
        assert!(waited.is_err(), "one that lacks nothing is not disturbed");
    }

    #[test]
    fn one_network_of_several_without_an_address_is_told_and_the_others_are_served() {
        let machine = ["10.1.0.5", "127.0.0.1"];
        for (typed, served) in [
            (["10.9.0.0/24", "10.1.0.0/24"], "10.1.0.5:4420"),
            // One that is named may come later, and is told then.
            (["10.9.0.0/24", "10.8.0.1"], "10.8.0.1:4420"),
        ] {
            let (found, lacking) = resolve(&places(&typed), || Ok(addresses(&machine))).unwrap();
            assert_eq!(found.iter().map(ToString::to_string).collect::<Vec<_>>(), [served]);
            let told = "--nvme-listen 10.9.0.0/24: this machine has no address in that network; it has 10.1.0.5, \
                        127.0.0.1, and serves at the others; when it has one, the agent ends, to be started anew";
            assert_eq!(lacking, [told]);
        }
    }

    /// As it was before there were networks: whoever names addresses does not depend on what the kernel says of its interfaces.
    #[test]
    fn the_machine_is_asked_only_if_a_network_is_named() {
        let unasked = || -> Result<Vec<IpAddr>> { bail!("asked") };
        assert_eq!(resolve(&places(&["10.1.0.5", "[fd00::1]:9"]), unasked).unwrap().0.len(), 2);
        assert_eq!(resolve(&places(&["10.1.0.0/24"]), unasked).unwrap_err().to_string(), "asked");
    }
}
