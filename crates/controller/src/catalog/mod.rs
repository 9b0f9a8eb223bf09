//! The catalog: every volume, snapshot and node, and all that can be asked about them. CSI, the HTTP API and the command
//! line are three ways of asking; what is asked is answered here.

use bowline_core::{GroupSnapshotId, NodeId, SnapshotId, TicketId, Timestamp, VolumeId};
use bowline_csi::Name;
use bowline_csi::code::{
    ControllerExpandError, ControllerModifyError, ControllerPublishError, ControllerUnpublishError,
    CreateSnapshotError, CreateVolumeError, DeleteSnapshotError, DeleteVolumeError, GetCapacityError,
    GetSnapshotError, GetVolumeError, ListError,
};
use bowline_engine::{Engine, Submitted, View, Withdrawal};
use bowline_target::{Capacity, Item, Provision};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::record::{Group, Node, Settings, Snapshot, Source, Use, Volume};
use bowline_core::{AccessMode, Content, FsType, Ticket};

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
    /// The targets; new volumes go to the first.
    pub targets: Vec<Arc<dyn Provision>>,
    /// This node (and others that the command line names), to be known from the start.
    pub nodes: Vec<Node>,
    /// The clock.
    pub clock: Arc<dyn bowline_engine::Clock>,
    /// How patient the engine is.
    pub settings: bowline_engine::Settings,
    /// Where everything is counted.
    pub registry: Arc<std::sync::Mutex<prometheus_client::registry::Registry>>,
}

/// Every volume, snapshot and node. A handle; clones share one catalog.
#[derive(Clone)]
pub struct Catalog {
    inner: Arc<Inner>,
}

struct Inner;

/// Why the catalog cannot be opened. It never opens with less than everything that was stored.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The engine.
    #[error(transparent)]
    Engine(#[from] bowline_engine::StartError),
    /// The store.
    #[error(transparent)]
    Store(#[from] bowline_store::StoreError),
}

#[allow(clippy::todo, unused_variables, reason = "a sketch of the interface")]
impl Catalog {
    /// Reads everything back, starts the engine, and completes what was begun: volumes half made, grown or deleted.
    pub async fn open(parts: Parts) -> Result<Self, OpenError> {
        todo!()
    }

    /// The engine below, for watching.
    pub fn engine(&self) -> &Engine {
        todo!()
    }

    /// Makes a volume, or joins whoever is making it. Beyond `wait` the work goes on and the answer is `TimedOut`.
    pub async fn create_volume(&self, order: NewVolume, wait: Duration) -> Result<Volume, CreateVolumeError> {
        todo!()
    }

    /// Deletes a volume; one that is not there is deleted.
    pub async fn delete_volume(&self, volume: &VolumeId, wait: Duration) -> Result<(), DeleteVolumeError> {
        todo!()
    }

    /// Makes a volume larger: at least `required` bytes, at most `limit`.
    pub async fn grow_volume(
        &self,
        volume: &VolumeId,
        required: u64,
        limit: Option<u64>,
        wait: Duration,
    ) -> Result<Volume, ControllerExpandError> {
        todo!()
    }

    /// Changes a volume's settings.
    pub async fn modify_volume(
        &self,
        volume: &VolumeId,
        change: Change,
    ) -> Result<Volume, ControllerModifyError> {
        todo!()
    }

    /// A volume by its id.
    pub async fn volume(&self, volume: &VolumeId) -> Result<Volume, GetVolumeError> {
        todo!()
    }

    /// A volume by what a person typed: its name, its id, or the beginning of its id if only one has it.
    pub async fn find_volume(&self, text: &str) -> Result<Volume, GetVolumeError> {
        todo!()
    }

    /// Volumes, a page at a time.
    pub async fn volumes(&self, after: Option<&str>, limit: usize) -> Result<Listed<Volume>, ListError> {
        todo!()
    }

    /// What is wrong with a volume, if anything: as its target sees it.
    pub async fn volume_fault(&self, volume: &VolumeId) -> Result<Option<String>, GetVolumeError> {
        todo!()
    }

    /// Files a ticket on a volume and waits for what becomes of it. The node must be known, the volume ready.
    pub async fn attach(
        &self,
        volume: &VolumeId,
        ticket: Ticket,
        patience: bowline_engine::Patience,
        wait: Duration,
    ) -> Result<Submitted, ControllerPublishError> {
        todo!()
    }

    /// Withdraws tickets and waits until the nodes are out at the target.
    pub async fn detach(
        &self,
        volume: &VolumeId,
        withdrawal: Withdrawal,
        wait: Duration,
    ) -> Result<(), ControllerUnpublishError> {
        todo!()
    }

    /// The ledger of a volume with a verdict on every ticket: what `bowline why` shows.
    pub async fn view(&self, volume: &VolumeId) -> Result<Arc<View>, GetVolumeError> {
        todo!()
    }

    /// Takes a snapshot.
    pub async fn create_snapshot(
        &self,
        name: Name,
        volume: &VolumeId,
        wait: Duration,
    ) -> Result<Snapshot, CreateSnapshotError> {
        todo!()
    }

    /// Takes snapshots of several volumes at one moment.
    pub async fn create_group(
        &self,
        name: Name,
        volumes: &[VolumeId],
        wait: Duration,
    ) -> Result<(Group, Vec<Snapshot>), CreateSnapshotError> {
        todo!()
    }

    /// Deletes a snapshot; one that is not there is deleted.
    pub async fn delete_snapshot(
        &self,
        snapshot: &SnapshotId,
        wait: Duration,
    ) -> Result<(), DeleteSnapshotError> {
        todo!()
    }

    /// Deletes a group and its snapshots.
    pub async fn delete_group(
        &self,
        group: &GroupSnapshotId,
        wait: Duration,
    ) -> Result<(), DeleteSnapshotError> {
        todo!()
    }

    /// A snapshot by its id.
    pub async fn snapshot(&self, snapshot: &SnapshotId) -> Result<Snapshot, GetSnapshotError> {
        todo!()
    }

    /// A snapshot by what a person typed, as [`Catalog::find_volume`].
    pub async fn find_snapshot(&self, text: &str) -> Result<Snapshot, GetSnapshotError> {
        todo!()
    }

    /// Snapshots, a page at a time; of one volume only if given.
    pub async fn snapshots(
        &self,
        of: Option<&VolumeId>,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Listed<Snapshot>, ListError> {
        todo!()
    }

    /// A group with its snapshots.
    pub async fn group(&self, group: &GroupSnapshotId) -> Result<(Group, Vec<Snapshot>), GetSnapshotError> {
        todo!()
    }

    /// Every node that is known.
    pub async fn nodes(&self) -> Result<Vec<Node>, ListError> {
        todo!()
    }

    /// Makes a node known, or changes its limit.
    pub async fn add_node(&self, node: Node) -> Result<Node, NodeError> {
        todo!()
    }

    /// Forgets a node. Refused while it holds or wants a volume.
    pub async fn remove_node(&self, node: &NodeId) -> Result<(), NodeError> {
        todo!()
    }

    /// Declares a node out of service (what it has is fenced), or takes that back.
    pub async fn set_out_of_service(&self, node: &NodeId, out: bool) -> Result<Node, NodeError> {
        todo!()
    }

    /// How much room there is for new volumes.
    pub async fn capacity(&self) -> Result<Capacity, GetCapacityError> {
        todo!()
    }

    /// How far the copy into a volume that is being made has come: bytes done and bytes in all.
    pub fn progress(&self, volume: &VolumeId) -> Option<(u64, u64)> {
        todo!()
    }

    /// What the targets hold that no record knows, and what records name that is not there: for `bowline doctor`.
    pub async fn drift(&self) -> Result<Drift, ListError> {
        todo!()
    }

    /// What happened, newest last: at most `limit` entries, of one volume only if given.
    pub fn events(&self, of: Option<&VolumeId>, limit: usize) -> Vec<Event> {
        todo!()
    }

    /// Everything that happens from now on.
    pub fn follow_events(&self) -> tokio::sync::broadcast::Receiver<Event> {
        todo!()
    }

    /// Ends the engine after what is unwritten is written.
    pub async fn close(&self) {
        todo!()
    }
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
