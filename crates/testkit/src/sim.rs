use async_trait::async_trait;
use bowline_core::{Epoch, Export, Exports, NeverAgain, NodeId, TargetId, VolumeId};
use bowline_target::{Grant, Listing, Page, Revocation, Target, TargetError};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// A whole target in memory: keeps what [`Exports`] says, and watches over itself.
pub struct SimTarget {
    pub(crate) id: TargetId,
    pub(crate) installation: String,
    pub(crate) volumes: Mutex<BTreeMap<VolumeId, Exports>>,
    violations: Mutex<Vec<String>>,
    busy: Mutex<BTreeMap<NodeId, String>>,
    pub(crate) silent: AtomicBool,
    pub(crate) stored: Mutex<crate::storage::Storage>,
    pub(crate) copying: tokio::sync::watch::Sender<bool>,
    pub(crate) kind: &'static str,
    /// Grants that were let in with the word that they may stand beside another.
    beside: Mutex<BTreeSet<(VolumeId, Epoch, Epoch)>>,
}

impl SimTarget {
    /// A target with no volumes exported.
    pub fn new(id: &str) -> Self {
        Self {
            id: TargetId::new(id).unwrap(),
            installation: format!("first-{id}"),
            volumes: Mutex::default(),
            violations: Mutex::default(),
            busy: Mutex::default(),
            silent: AtomicBool::new(false),
            stored: Mutex::default(),
            copying: tokio::sync::watch::Sender::new(true),
            kind: bowline_target::FILE,
            beside: Mutex::default(),
        }
    }

    /// Of another kind than that of files.
    #[must_use]
    pub fn of_kind(mut self, kind: &'static str) -> Self {
        self.kind = kind;
        self
    }

    /// Over other storage.
    #[must_use]
    pub fn of_installation(mut self, installation: &str) -> Self {
        installation.clone_into(&mut self.installation);
        self
    }

    /// From now on it does (not) answer.
    pub fn set_silent(&self, silent: bool) {
        self.silent.store(silent, Ordering::SeqCst);
    }

    /// Something on this node uses its volumes, so that it cannot be shut out; `None` ends that.
    pub fn set_busy(&self, node: &NodeId, by: Option<&str>) {
        let mut busy = self.busy.lock().unwrap();
        match by {
            Some(by) => busy.insert(node.clone(), by.to_owned()),
            None => busy.remove(node),
        };
    }

    /// Who can reach a volume now.
    pub fn open(&self, volume: &VolumeId) -> Vec<(u64, NodeId)> {
        let volumes = self.volumes.lock().unwrap();
        let open = volumes.get(volume).map(|exports| exports.open().clone()).unwrap_or_default();
        open.into_iter().map(|(epoch, export)| (epoch.number(), export.node)).collect()
    }

    /// Changes what it exports behind the engine's back.
    pub fn tamper(&self, volume: &VolumeId, change: impl FnOnce(&mut Exports)) {
        change(self.volumes.lock().unwrap().entry(volume.clone()).or_default());
    }

    /// Every moment at which two nodes could reach a volume in modes that do not admit each other, but for the two of a live migration: those that
    /// the later grant named.
    pub fn violations(&self) -> Vec<String> {
        self.violations.lock().unwrap().clone()
    }

    pub(crate) async fn answers(&self) {
        if self.silent.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
    }

    fn check(&self, volume: &VolumeId, exports: &Exports) {
        let open: Vec<(&Epoch, &Export)> = exports.open().iter().collect();
        let excused = self.beside.lock().unwrap();
        let clash = open.iter().enumerate().any(|(index, (late, one))| {
            open[..index].iter().any(|(early, other)| {
                let migrates = open.len() == 2 && excused.contains(&(volume.clone(), **early, **late));
                other.node != one.node && !other.mode.admits(one.mode) && !migrates
            })
        });
        if clash {
            self.violations.lock().unwrap().push(format!("{volume}: {open:?}"));
        }
    }
}

#[async_trait]
impl Target for SimTarget {
    fn id(&self) -> &TargetId {
        &self.id
    }

    async fn allow(&self, grant: &Grant) -> Result<(), TargetError> {
        self.answers().await;
        if self.stored.lock().unwrap().deleted.contains(&grant.volume) {
            return Err(TargetError::Refused { error: format!("volume {} is gone", grant.volume) });
        }
        if let Some(error) = self.stored.lock().unwrap().fault(&grant.volume) {
            return Err(TargetError::Refused { error });
        }
        let mut volumes = self.volumes.lock().unwrap();
        let exports = volumes.entry(grant.volume.clone()).or_default();
        exports.allow(&grant.node, grant.epoch, grant.mode)?;
        let beside = grant.beside.map(|beside| (grant.volume.clone(), beside, grant.epoch));
        self.beside.lock().unwrap().extend(beside);
        self.check(&grant.volume, exports);
        Ok(())
    }

    async fn revoke(&self, revocation: &Revocation) -> Result<NeverAgain, TargetError> {
        self.answers().await;
        if let Some(by) = self.busy.lock().unwrap().get(&revocation.node) {
            return Err(TargetError::InUse { by: by.clone() });
        }
        let mut volumes = self.volumes.lock().unwrap();
        Ok(volumes.entry(revocation.volume.clone()).or_default().revoke(&revocation.node, revocation.epoch))
    }

    async fn exports(&self, after: Option<&VolumeId>, limit: usize) -> Result<Page, TargetError> {
        self.answers().await;
        let volumes = self.volumes.lock().unwrap();
        let mut listings: Vec<Listing> = volumes
            .iter()
            .filter(|(volume, exports)| {
                after.is_none_or(|after| *volume > after) && !exports.open().is_empty()
            })
            .take(limit + 1)
            .map(|(volume, exports)| Listing { volume: volume.clone(), exports: exports.open().clone() })
            .collect();
        let more = listings.len() > limit;
        listings.truncate(limit);
        let next = listings.last().filter(|_| more).map(|last| last.volume.clone());
        Ok(Page { listings, next })
    }

    fn context(&self, grant: &Grant) -> BTreeMap<String, String> {
        BTreeMap::from([
            ("target".to_owned(), self.id.to_string()),
            ("export".to_owned(), format!("{}:{}:e{}", grant.volume, grant.node, grant.epoch)),
        ])
    }
}
