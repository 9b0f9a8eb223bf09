//! What `bowline target --export nvmet` needs of its machine, and where it listens.

use anyhow::{Context, Result, bail};
use bowline_host::Host;
use bowline_host::doctor::{Finding, Presence};
use bowline_host::file::{Abilities, abilities};
use bowline_target::nvmet::{Configfs, Settings};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

use crate::agent::Export;

/// Loads what is missing, and says what still is.
pub(crate) fn prepare(host: &Host, directory: &Path, addresses: Vec<SocketAddr>) -> Result<Settings> {
    if let Some(missing) = missing(&host.load_nvme_target()) {
        bail!("this machine cannot export volumes over NVMe/TCP: {missing}");
    }
    std::fs::create_dir_all(directory).with_context(|| format!("cannot make {}", directory.display()))?;
    let found = abilities(directory).with_context(|| format!("cannot use {}", directory.display()))?;
    if let Some(lacking) = lacking(found) {
        bail!("volumes in {} cannot be exported over NVMe/TCP: {lacking}", directory.display());
    }
    let tree = Arc::new(Configfs::new(host.roots.sys.join("kernel/config/nvmet")));
    Ok(Settings { tree, addresses, patience: Settings::PATIENCE })
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

fn lacking(found: Abilities) -> Option<&'static str> {
    match found {
        Abilities { direct: false, .. } => Some(
            "its filesystem has no direct I/O (O_DIRECT), so what a node was told is written might not be; use xfs or btrfs",
        ),
        Abilities { reflink: false, .. } => Some(
            "its filesystem cannot share blocks (reflink), so nothing could be copied while a node writes; use xfs or btrfs",
        ),
        Abilities { reflink: true, direct: true } => None,
    }
}

/// Where the kernel listens, with a port or without. Whoever is told an address by somebody else (a pod by the kubelet) need not know
/// whether it is one that stands in brackets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NvmeAddress {
    /// At the port of all that name none.
    Bare(IpAddr),
    /// At this port.
    Whole(SocketAddr),
}

impl NvmeAddress {
    pub(crate) fn with(self, port: u16) -> SocketAddr {
        match self {
            Self::Bare(address) => SocketAddr::new(address, port),
            Self::Whole(address) => address,
        }
    }
}

impl FromStr for NvmeAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let whole = || text.parse().map(Self::Whole).ok();
        let bare = || text.parse().map(Self::Bare).ok();
        whole()
            .or_else(bare)
            .ok_or_else(|| format!("{text:?} is no address; write 10.0.0.1 or 10.0.0.1:4420"))
    }
}

/// Nodes are told these very addresses, so they must be ones that can be connected to.
pub(crate) fn check_addresses(export: Export, addresses: &[SocketAddr]) -> Result<(), String> {
    match (export, addresses) {
        (Export::Loop, []) => return Ok(()),
        (Export::Loop, _) => return Err("it is for --export nvmet".to_owned()),
        (Export::Nvmet, []) => {
            return Err(
                "--export nvmet needs it: an address of this machine that nodes can reach, with its port \
                        (10.0.0.1:4420)"
                    .to_owned(),
            );
        }
        (Export::Nvmet, _) => {}
    }
    for (at, address) in addresses.iter().enumerate() {
        if address.ip().is_unspecified() || address.port() == 0 {
            return Err(format!(
                "{address} is nowhere that a node could connect to; name the address and the port"
            ));
        }
        if addresses.iter().take(at).any(|other| other == address) {
            return Err(format!("{address} is named twice"));
        }
    }
    Ok(())
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
        let error = prepare(&host, &place.path().join("v"), vec![]).unwrap_err().to_string();
        for words in ["configfs", "mount -t configfs none", "modprobe nvmet)", "modprobe nvmet-tcp"] {
            assert!(error.contains(words), "{error}");
        }
        std::fs::create_dir_all(place.path().join("kernel/config/nvmet")).unwrap();
        let error = prepare(&host, &place.path().join("v"), vec![]).unwrap_err().to_string();
        assert!(error.contains("modprobe nvmet-tcp") && !error.contains("configfs"), "{error}");
    }

    #[test]
    fn a_directory_must_have_direct_writes_and_shared_blocks() {
        let told = |reflink, direct| lacking(Abilities { reflink, direct });
        assert_eq!(told(true, true), None);
        assert!(told(false, true).unwrap().contains("reflink"));
        assert!(told(true, false).unwrap().contains("O_DIRECT") && told(false, false).is_some());
    }
}
