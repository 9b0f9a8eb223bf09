//! What `bowline target --export nvmet` needs of its machine.

use anyhow::{Context, Result, bail};
use bowline_host::Host;
use bowline_host::doctor::{Finding, Presence};
use bowline_host::file::{Abilities, abilities};
use bowline_target::nvmet::{Configfs, Settings};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

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
