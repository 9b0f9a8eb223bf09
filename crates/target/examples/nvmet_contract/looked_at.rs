//! A target whose every answer is compared with what its kernel serves: in its tree, and to who logs in over TCP.

use crate::wire::Wire;
use async_trait::async_trait;
use bowline_core::{Epoch, NeverAgain, NodeId, TargetId, VolumeId};
use bowline_target::file::FileTarget;
use bowline_target::{Grant, Page, Provision, Revocation, Target, TargetError};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The tree of the kernel that runs.
pub(crate) const NVMET: &str = "/sys/kernel/config/nvmet";

fn names(directory: impl AsRef<Path>) -> Vec<String> {
    let entries = fs::read_dir(Path::new(NVMET).join(directory)).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Nothing is left in the kernel but ports, and nothing is shown there.
pub(crate) fn nothing_is_left() {
    for group in ["subsystems", "hosts"] {
        assert_eq!(names(group), [""; 0], "{group}");
    }
    for port in names("ports") {
        assert_eq!(names(format!("ports/{port}/subsystems")), [""; 0], "port {port}");
    }
}

pub(crate) struct LookedAt {
    target: FileTarget,
    wire: Wire,
    shown: AtomicUsize,
    gone: AtomicUsize,
}

impl LookedAt {
    pub(crate) fn new(target: FileTarget) -> Self {
        let wire = Wire::new(target.clone());
        Self { target, wire, shown: AtomicUsize::new(0), gone: AtomicUsize::new(0) }
    }

    /// How often a grant was seen to be served, and how often not to be served any more.
    pub(crate) fn looks(&self) -> (usize, usize) {
        (self.shown.load(Ordering::Relaxed), self.gone.load(Ordering::Relaxed))
    }

    /// The host of the grant can log in, at every port, and nobody else.
    fn is_shown(&self, grant: &Grant) {
        let names_of = self.wire.names(&grant.volume, &grant.node, grant.epoch);
        let place = PathBuf::from("subsystems").join(&names_of.subsystem);
        let attribute = |name: &str| fs::read_to_string(Path::new(NVMET).join(&place).join(name)).unwrap();
        assert_eq!(attribute("attr_allow_any_host").trim(), "0", "{grant:?}");
        assert_eq!(attribute("namespaces/1/enable").trim(), "1", "{grant:?}");
        assert_eq!(names(place.join("allowed_hosts")), [names_of.host.as_str()], "{grant:?}");
        let ports = names("ports");
        assert_eq!(ports.len(), self.target.addresses().len(), "one port for each address");
        for port in ports {
            let shown = names(format!("ports/{port}/subsystems"));
            assert!(shown.contains(&names_of.subsystem), "{grant:?} is not at port {port}: {shown:?}");
        }
        self.wire
            .with_disk(&names_of, |disk| assert_eq!(disk.node.read_only, !grant.mode.write, "{grant:?}"));
        let stranger = self.wire.names(&grant.volume, &NodeId::new("stranger").unwrap(), grant.epoch);
        self.wire.is_refused(&stranger, &format!("beside {grant:?}"));
        self.shown.fetch_add(1, Ordering::Relaxed);
    }

    /// Nothing is served of any grant of the node up to this epoch.
    fn is_gone(&self, revocation: &Revocation) {
        let Revocation { volume, node, epoch, .. } = revocation;
        for number in 1..=epoch.number() {
            let names = self.wire.names(volume, node, Epoch::new(number));
            // Another node may have the same epoch of another volume; the host is nobody else's.
            let host = Path::new(NVMET).join("hosts").join(&names.host);
            assert!(!host.exists(), "{} after {revocation:?}", host.display());
            let allowed = format!("{NVMET}/subsystems/{}/allowed_hosts/{}", names.subsystem, names.host);
            assert!(!Path::new(&allowed).exists(), "{allowed} after {revocation:?}");
        }
        self.wire.is_refused(&self.wire.names(volume, node, *epoch), &format!("after {revocation:?}"));
        self.gone.fetch_add(1, Ordering::Relaxed);
    }
}

#[async_trait]
impl Target for LookedAt {
    fn id(&self) -> &TargetId {
        self.target.id()
    }

    async fn allow(&self, grant: &Grant) -> Result<(), TargetError> {
        let answer = self.target.allow(grant).await;
        match &answer {
            Ok(()) => self.is_shown(grant),
            Err(TargetError::NeverAgain(_)) => {
                let Grant { volume, node, epoch, .. } = grant.clone();
                self.is_gone(&Revocation { volume, node, epoch, fence: false });
            }
            Err(_) => {}
        }
        answer
    }

    async fn revoke(&self, revocation: &Revocation) -> Result<NeverAgain, TargetError> {
        let answer = self.target.revoke(revocation).await;
        if answer.is_ok() {
            self.is_gone(revocation);
        }
        answer
    }

    async fn exports(&self, after: Option<&VolumeId>, limit: usize) -> Result<Page, TargetError> {
        self.target.exports(after, limit).await
    }

    fn context(&self, grant: &Grant) -> BTreeMap<String, String> {
        self.target.context(grant)
    }
}
