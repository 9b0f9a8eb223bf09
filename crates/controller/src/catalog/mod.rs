//! The catalog: every volume, snapshot and node, and all that can be asked about them. CSI, the HTTP API and the command
//! line are three ways of asking; what is asked is answered here.

use bowline_core::{
    FsType, GroupSnapshotId, IdError, NodeId, Slot, SnapshotId, TargetId, TicketId, Timestamp, VolumeId,
};
use bowline_csi::code::{GetSnapshotError, GetVolumeError, ListError};
use bowline_csi::{Name, TopologyRequirement};
use bowline_engine::{Engine, View};
use bowline_store::{Key, Record, RecordError};
use bowline_target::{Item, Progress, Provision};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::events::Events;
use crate::failure::{Failure, Why};
use crate::metrics::Metrics;
use crate::operations::Operations;
use crate::record::{Group, Node, Settings, Snapshot, Source, Use, Volume};
use crate::shelf::{PAGE, Shelf};
use crate::token;

mod adopt;
mod attach;
mod faults;
mod groups;
mod nodes;
mod open;
mod orphans;
pub(crate) mod place;
mod settle;
mod size;
mod snapshots;
mod storage;
mod targets;
mod volumes;

pub use adopt::AdoptError;
pub use orphans::{FirstSeen, Orphan, OrphanRecord, OrphanRules};
pub use targets::KnownTarget;

/// A volume to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewVolume {
    /// Its name; asking again with it means the same volume.
    pub name: Name,
    /// Bytes: at least this many; `None` lets the catalog choose (1 GiB, or the size of the source).
    pub required: Option<u64>,
    /// Bytes: at most this many.
    pub limit: Option<u64>,
    /// The filesystem it gets when it is first mounted; ext4 if not given.
    pub fs: Option<FsType>,
    /// Every way in which it must be usable; at least one.
    pub uses: Vec<Use>,
    /// What it holds from the start.
    pub source: Option<Source>,
    /// What can be changed later.
    pub settings: Settings,
    /// On which target it is to be; the catalog chooses one if not given.
    pub target: Option<TargetId>,
    /// Of which kind that target has to be; any if not given.
    pub kind: Option<String>,
    /// From where it has to be reachable.
    pub place: TopologyRequirement,
}

/// A change of a volume's settings; what is `None` stays as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// `migratable`: `Some(None)` turns it off.
    pub migratable: Option<Option<bowline_core::MigrationTimeout>>,
    /// `deletionProtection`.
    pub deletion_protection: Option<bool>,
    /// `discard`.
    pub discard: Option<bool>,
}

/// A part of a list, in the order of the store, stable while others come and go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed<T> {
    /// The entries.
    pub entries: Vec<T>,
    /// Pass it as `after` to go on; `None` after the last page.
    pub next: Option<String>,
}

/// What a catalog is made of.
pub struct Parts {
    /// Where records are kept.
    pub store: Arc<dyn bowline_store::Store>,
    /// The targets that are connected from the start; more can be added later.
    pub targets: Vec<Arc<dyn Provision>>,
    /// This node (and others that the command line names), to be known from the start.
    pub nodes: Vec<Node>,
    /// What somebody else knows of nodes (Kubernetes does), before anything is decided; also of those that are gone.
    pub reports: Vec<(NodeId, bowline_engine::NodeReport)>,
    /// The clock.
    pub clock: Arc<dyn bowline_engine::Clock>,
    /// How patient the engine is.
    pub settings: bowline_engine::Settings,
    /// Where everything is counted.
    pub registry: Arc<Mutex<prometheus_client::registry::Registry>>,
}

/// Every volume, snapshot and node. A handle; clones share one catalog.
#[derive(Clone)]
pub struct Catalog {
    inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) shelf: Shelf,
    pub(crate) engine: Engine,
    pub(crate) targets: Mutex<BTreeMap<TargetId, Arc<dyn Provision>>>,
    /// Targets where nothing new is made.
    pub(crate) draining: Mutex<BTreeSet<TargetId>>,
    /// Targets that somebody asked to forget, while it is looked for what is on them.
    pub(crate) leaving: Mutex<BTreeSet<TargetId>>,
    /// What is wrong with volumes, as their targets said last.
    pub(crate) faults: Mutex<BTreeMap<VolumeId, String>>,
    pub(crate) nodes: Mutex<BTreeMap<NodeId, Node>>,
    pub(crate) clock: Arc<dyn bowline_engine::Clock>,
    pub(crate) settings: bowline_engine::Settings,
    pub(crate) operations: Arc<Operations>,
    /// Copies under way.
    pub(crate) progress: Mutex<HashMap<VolumeId, Arc<Progress>>>,
    /// What somebody is bringing to an end already.
    pub(crate) pursued: Mutex<HashSet<Key>>,
    /// Tickets whose owners were told to wait.
    pub(crate) followed: Mutex<HashSet<(VolumeId, TicketId)>>,
    /// Volumes that no record knows of, as they were last looked for.
    pub(crate) orphans: Mutex<Option<Vec<Orphan>>>,
    pub(crate) events: Events,
    pub(crate) metrics: Metrics,
}

/// Why the catalog cannot be opened. It never opens with less than everything that was stored.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The engine.
    #[error(transparent)]
    Engine(#[from] bowline_engine::StartError),
    /// The store.
    #[error(transparent)]
    Store(#[from] bowline_store::StoreError),
    /// One record cannot be understood.
    #[error("{key} cannot be understood: {error}")]
    Record {
        /// Which one.
        key: Key,
        /// Why.
        error: RecordError,
    },
    /// A record is not where its name and its id would have it.
    #[error(
        "{key} holds {id}, which does not belong there: the store is damaged or was written by something else; restore an export"
    )]
    Misplaced {
        /// Where it is.
        key: Key,
        /// What is there.
        id: String,
    },
}

impl Catalog {
    /// Reads everything back, starts the engine, and completes what was begun: volumes half made, grown or deleted.
    pub async fn open(parts: Parts) -> Result<Self, OpenError> {
        open::open(parts).await.map(|inner| Self { inner })
    }

    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.inner
    }

    /// The engine below, for watching.
    pub fn engine(&self) -> &Engine {
        &self.inner.engine
    }

    /// A volume by its id.
    pub async fn volume(&self, volume: &VolumeId) -> Result<Volume, GetVolumeError> {
        Ok(self.inner.volume(volume).await?)
    }

    /// A volume by what a person typed: its name, its id, or the beginning of its id if only one has it.
    pub async fn find_volume(&self, text: &str) -> Result<Volume, GetVolumeError> {
        Ok(self.inner.find("volume", text, |volume: &Volume| (volume.id.as_str(), &volume.name)).await?)
    }

    /// Volumes, a page at a time.
    pub async fn volumes(&self, after: Option<&str>, limit: usize) -> Result<Listed<Volume>, ListError> {
        let after = token::after(token::List::Volumes, after)?;
        let (entries, next) = self.inner.shelf.list(after.as_deref(), limit.min(PAGE)).await?;
        Ok(Listed {
            entries: entries.into_iter().map(|(_, volume)| volume).collect(),
            next: token::next(token::List::Volumes, next),
        })
    }

    /// What is wrong with a volume, if anything: as its target sees it.
    pub async fn volume_fault(&self, volume: &VolumeId) -> Result<Option<String>, GetVolumeError> {
        Ok(self.inner.fault(volume).await?)
    }

    /// The ledger of a volume with a verdict on every ticket: what `bowline why` shows.
    pub async fn view(&self, volume: &VolumeId) -> Result<Arc<View>, GetVolumeError> {
        let known = self.inner.volume(volume).await?;
        match self.inner.engine.view(&known.id).await {
            Ok(view) => Ok(view),
            Err(error) => Err(attach::trouble(&error).into()),
        }
    }

    /// Reads every ledger there is, as it is stored, or was a moment ago.
    pub async fn for_each_ledger(
        &self,
        mut visit: impl FnMut(VolumeId, bowline_core::Ledger),
    ) -> Result<(), ListError> {
        let store = &self.inner.shelf.store;
        let mut after = None;
        loop {
            let page = store.recall(bowline_store::Kind::Ledger, after.as_deref(), PAGE).await;
            let page = page.map_err(Failure::from)?;
            for entry in page.entries {
                let ledger = bowline_store::record::decode(&entry.value).map_err(Failure::from)?;
                visit(made(VolumeId::new(&entry.key.name))?, ledger);
            }
            after = page.next;
            if after.is_none() {
                return Ok(());
            }
        }
    }

    /// Tells something that happened around the catalog, to those who follow its events.
    pub fn tell(&self, volume: Option<&VolumeId>, reason: &str, message: String) {
        self.inner.tell(volume, reason, message);
    }

    /// A snapshot by its id.
    pub async fn snapshot(&self, snapshot: &SnapshotId) -> Result<Snapshot, GetSnapshotError> {
        Ok(self.inner.snapshot(snapshot).await?)
    }

    /// A snapshot by what a person typed, as [`Catalog::find_volume`].
    pub async fn find_snapshot(&self, text: &str) -> Result<Snapshot, GetSnapshotError> {
        Ok(self.inner.find("snapshot", text, |one: &Snapshot| (one.id.as_str(), &one.name)).await?)
    }

    /// Snapshots, a page at a time; of one volume only if given.
    pub async fn snapshots(
        &self,
        of: Option<&VolumeId>,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Listed<Snapshot>, ListError> {
        let mut after = token::after(token::List::Snapshots, after)?;
        let limit = limit.clamp(1, PAGE);
        let mut entries = Vec::new();
        // Few of many may be of this volume: whole pages are read until there are enough.
        loop {
            let (page, next) = self.inner.shelf.list::<Snapshot>(after.as_deref(), PAGE).await?;
            for (key, snapshot) in page {
                if entries.len() == limit {
                    return Ok(Listed { entries, next: token::next(token::List::Snapshots, after) });
                }
                if of.is_none_or(|of| snapshot.volume == *of) {
                    entries.push(snapshot);
                }
                after = Some(key);
            }
            if next.is_none() {
                return Ok(Listed { entries, next: None });
            }
        }
    }

    /// A group with its snapshots.
    pub async fn group(&self, group: &GroupSnapshotId) -> Result<(Group, Vec<Snapshot>), GetSnapshotError> {
        Ok(self.inner.group(group).await?)
    }

    /// A group by what a person typed, as [`Catalog::find_volume`].
    pub async fn find_group(&self, text: &str) -> Result<Group, GetSnapshotError> {
        Ok(self.inner.find("group", text, |one: &Group| (one.id.as_str(), &one.name)).await?)
    }

    /// How far the copy into a volume that is being made has come: bytes done and bytes in all.
    pub fn progress(&self, volume: &VolumeId) -> Option<(u64, u64)> {
        lock(&self.inner.progress).get(volume).map(|progress| progress.read())
    }

    /// What happened, newest last: at most `limit` entries, of one volume only if given.
    pub fn events(&self, of: Option<&VolumeId>, limit: usize) -> Vec<Event> {
        self.inner.events.latest(of, limit)
    }

    /// Everything that happens from now on.
    pub fn follow_events(&self) -> tokio::sync::broadcast::Receiver<Event> {
        self.inner.events.follow()
    }

    /// Ends the engine after what is unwritten is written.
    pub async fn close(&self) {
        self.inner.operations.close().await;
        self.inner.engine.stop().await;
    }
}

impl Inner {
    /// The target of that name.
    pub(crate) fn target(&self, target: &TargetId) -> Result<Arc<dyn Provision>, Failure> {
        let found = lock(&self.targets).get(target).cloned();
        found.ok_or_else(|| {
            Failure::new(Why::Unreachable, format!("target {target} is not connected; it goes on when it is"))
        })
    }

    /// A volume by its id. One that was made under the same name before is another one.
    pub(crate) async fn volume(&self, volume: &VolumeId) -> Result<Volume, Failure> {
        let found = match Slot::of_id(volume.as_str()) {
            Some(slot) => self.shelf.get::<Volume>(slot.as_str()).await?,
            None => None,
        };
        let found = found.map(|(found, _)| found).filter(|found| found.id == *volume);
        found.ok_or_else(|| Failure::new(Why::Unknown, format!("there is no volume {volume}")))
    }

    /// A snapshot by its id.
    pub(crate) async fn snapshot(&self, snapshot: &SnapshotId) -> Result<Snapshot, Failure> {
        let found = match Slot::of_id(snapshot.as_str()) {
            Some(slot) => self.shelf.get::<Snapshot>(slot.as_str()).await?,
            None => None,
        };
        let found = found.map(|(found, _)| found).filter(|found| found.id == *snapshot);
        found.ok_or_else(|| Failure::new(Why::Unknown, format!("there is no snapshot {snapshot}")))
    }

    /// What a person means: a name, an id, or the beginning of one.
    async fn find<R: Record>(
        &self,
        kind: &str,
        text: &str,
        names: impl Fn(&R) -> (&str, &str),
    ) -> Result<R, Failure> {
        for slot in [Some(Slot::of_name(text)), Slot::of_id(text)].into_iter().flatten() {
            let found = self.shelf.get::<R>(slot.as_str()).await?.map(|(found, _)| found);
            let is_it = |found: &R| names(found).0 == text || names(found).1 == text;
            if let Some(found) = found.filter(is_it) {
                return Ok(found);
            }
        }
        let mut begin_so = Vec::new();
        self.shelf
            .for_each(|_, record: R| {
                if !text.is_empty() && names(&record).0.starts_with(text) && begin_so.len() < 4 {
                    begin_so.push(record);
                }
            })
            .await?;
        let several: Vec<&str> = begin_so.iter().map(|one| names(one).0).collect();
        let shown: String = text.chars().take(80).collect();
        let sentence = match several.as_slice() {
            [] => format!("there is no {kind} {shown:?}, neither by name nor by id"),
            _ => format!("several ids begin with {shown:?} ({}); give more of it", several.join(", ")),
        };
        let several = begin_so.len() > 1;
        begin_so.pop().filter(|_| !several).ok_or_else(|| Failure::new(Why::Unknown, sentence))
    }

    pub(crate) fn tell(&self, volume: Option<&VolumeId>, reason: &str, message: String) {
        self.events.tell(self.clock.now(), volume, reason, message);
    }
}

/// Locks what no code panics beside; should that ever happen, what it guards is still whole.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An id for what is made under a name now.
pub(crate) fn fresh_id(slot: &Slot) -> Result<String, Failure> {
    let unique = getrandom::u32().map_err(|error| {
        Failure::new(Why::Busy, format!("the system gives no random number ({error}); ask again"))
    })?;
    Ok(slot.id(unique))
}

/// An id of ours is an id of every kind: short, and without special characters.
pub(crate) fn made<T>(id: Result<T, IdError>) -> Result<T, Failure> {
    id.map_err(|error| Failure::new(Why::Busy, error.to_string()))
}

/// Why a node was not added, changed or removed.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// There is no such node.
    #[error("node {0} is not known")]
    Unknown(NodeId),
    /// It still holds or wants volumes.
    #[error("node {node} still has volume {volume}; detach it first")]
    InUse {
        /// The node.
        node: NodeId,
        /// One of its volumes.
        volume: VolumeId,
    },
    /// The store.
    #[error(transparent)]
    Store(#[from] bowline_store::StoreError),
}

/// Why a target was not removed.
#[derive(Debug, thiserror::Error)]
pub enum TargetError {
    /// Something is there.
    #[error("{what} is on target {target}; delete it first")]
    InUse {
        /// The target.
        target: TargetId,
        /// What is there: a volume or a snapshot, with its id.
        what: String,
    },
    /// The store.
    #[error("it cannot be told what is on target {target}: {error}")]
    Unreadable {
        /// The target.
        target: TargetId,
        /// Why.
        error: String,
    },
}

/// Where records and storage disagree.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Drift {
    /// Stored on a target, and no record knows it.
    pub unknown: Vec<Item>,
    /// In a record, and not on its target.
    pub missing: Vec<Item>,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Event {
    /// When.
    pub at: Timestamp,
    /// To which volume.
    pub volume: Option<VolumeId>,
    /// What, in one word: `Attached`, `Detached`, `Created`, `Deleted`, `Grown`, `SnapshotTaken`, `Waiting`, `Fencing`, ….
    pub reason: String,
    /// The sentence for people.
    pub message: String,
}
