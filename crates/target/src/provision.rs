//! The other half of a target: making, growing, copying and deleting what is stored there.

use async_trait::async_trait;
use bowline_core::{SnapshotId, Timestamp, VolumeId};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::Target;

/// The kind of a target whose volumes nodes on its own machine attach: sparse files in one directory.
pub const FILE: &str = "file";
/// The kind of a target that exports such files over NVMe/TCP.
pub const NVMET: &str = "nvmet";
/// The kind of a target whose volumes are files of a MikroTik ROSE Data Server, which exports them over NVMe/TCP.
pub const RDS: &str = "rds";

/// What a new volume holds from the start.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// What a snapshot holds.
    Snapshot(SnapshotId),
    /// What another volume holds at one moment between the call and its answer.
    Volume(VolumeId),
}

/// A volume to be made.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NewVolume {
    /// Its id, chosen before and never used before.
    pub volume: VolumeId,
    /// What people call it; kept beside the bytes, so that a storage directory explains itself.
    pub name: String,
    /// How many bytes it has; a multiple of [`Sizes::multiple`], and at least as many as its source.
    pub size: u64,
    /// What it holds; zeros if not given.
    pub source: Option<Source>,
}

/// One snapshot to be taken.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Cut {
    /// The snapshot's id, chosen before and never used before.
    pub snapshot: SnapshotId,
    /// What people call it.
    pub name: String,
    /// Of which volume.
    pub volume: VolumeId,
}

/// A volume as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredVolume {
    /// How many bytes it has.
    pub size: u64,
    /// How many bytes of room it takes up now.
    pub allocated: u64,
    /// What is wrong with it, for people; nothing if it is well.
    pub fault: Option<String>,
}

/// A snapshot as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredSnapshot {
    /// Of which volume.
    pub volume: VolumeId,
    /// How many bytes a volume made from it needs at least.
    pub size: u64,
    /// The moment whose bytes it holds.
    pub taken_at: Timestamp,
    /// What is wrong with it, for people; nothing if it is well.
    pub fault: Option<String>,
}

/// How much room there is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capacity {
    /// Bytes in all.
    pub total: u64,
    /// Bytes that nothing takes up now.
    pub free: u64,
    /// Bytes promised to volumes, whether they are taken up yet or not.
    pub promised: u64,
    /// The largest sum of sizes that new volumes may have now, under the target's policy for thin volumes.
    pub available: u64,
}

/// Which sizes a volume can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// The least.
    pub minimum: u64,
    /// The greatest.
    pub maximum: u64,
    /// Every size is a multiple of this.
    pub multiple: u64,
}

/// How far a copy has come; shared with whoever shows it.
#[derive(Debug, Default)]
pub struct Progress {
    done: AtomicU64,
    total: AtomicU64,
}

impl Progress {
    /// Sets how many bytes there are to copy.
    pub fn expect(&self, total: u64) {
        self.total.store(total, Ordering::Relaxed);
    }

    /// More bytes are copied.
    pub fn add(&self, bytes: u64) {
        self.done.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Bytes copied, and bytes in all (0 while that is not known).
    pub fn read(&self) -> (u64, u64) {
        (self.done.load(Ordering::Relaxed), self.total.load(Ordering::Relaxed))
    }
}

/// Why storage was not changed or described.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProvisionError {
    /// There is not enough room; nothing was made and nothing is left over.
    #[error("there is no room: {needed} bytes are needed and {available} can be had")]
    NoRoom {
        /// Bytes asked for.
        needed: u64,
        /// Bytes that can be had.
        available: u64,
    },
    /// What it is to be made from, or changed, is not there.
    #[error("{what} is not on this target")]
    Unknown {
        /// What, with its id.
        what: String,
    },
    /// The id is taken by something that is not like this.
    #[error("{what} is there already and is not what was asked for: {difference}")]
    Different {
        /// What, with its id.
        what: String,
        /// What differs.
        difference: String,
    },
    /// Somebody uses it in a way that this cannot be done beside.
    #[error("{by} still uses it")]
    InUse {
        /// The mount, device, process or grant.
        by: String,
    },
    /// It cannot be done here, now or ever, and nothing was changed.
    #[error("{error}")]
    Refused {
        /// Why.
        error: String,
    },
    /// What is stored there cannot be understood; nothing was changed.
    #[error("{what} is damaged: {error}")]
    Damaged {
        /// What.
        what: String,
        /// What was seen.
        error: String,
    },
    /// No answer, or a failure in the middle: it may have happened, or may happen later. Ask again.
    #[error("{error}")]
    Unreachable {
        /// What was seen.
        error: String,
    },
}

/// Something that is stored on a target.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Item {
    /// A volume.
    Volume(VolumeId),
    /// A snapshot.
    Snapshot(SnapshotId),
}

/// A target on which volumes are made.
///
/// # Guarantees that every adapter gives
/// - Every call can be repeated: what is so already is answered as if it had just been done.
/// - What returned `Ok` is durable. What did not either never happened or is completed (or cleared away) by the same
///   call again, by a deletion, or by the next start; nothing half made is ever taken for whole.
/// - Dropping a call's future does not stop it.
/// - Nobody is let in to a new volume, and a deleted one lets nobody in ever again.
/// - Calls for one volume do not disturb another, but for the room they take.
#[async_trait]
pub trait Provision: Target {
    /// Which sizes volumes can have.
    fn sizes(&self) -> Sizes;

    /// What kind of storage it is: [`FILE`], [`NVMET`], ….
    fn kind(&self) -> &str {
        if self.addresses().is_empty() { FILE } else { NVMET }
    }

    /// From where its volumes can be reached, as topology segments; empty if from everywhere.
    fn topology(&self) -> BTreeMap<String, String>;

    /// Tells the storage itself from any other that may come to have the same name: made once, kept beside the bytes, and
    /// the same for ever. Empty if there is nothing of the kind.
    fn installation(&self) -> &str {
        ""
    }

    /// Where nodes reach its volumes over NVMe/TCP; empty if they are reached otherwise. With the installation, all that a
    /// [`crate::NvmeContext`] needs besides the grant.
    fn addresses(&self) -> &[SocketAddr] {
        &[]
    }

    /// Makes a volume and says how many bytes it has.
    async fn create(&self, order: &NewVolume, progress: &Progress) -> Result<u64, ProvisionError>;

    /// Deletes a volume; one that is not there is deleted. Refused with `InUse` while anybody is let in to it.
    async fn delete(&self, volume: &VolumeId) -> Result<(), ProvisionError>;

    /// Makes a volume larger, never smaller, and says how many bytes it has now. Nodes that use it go on.
    async fn grow(&self, volume: &VolumeId, size: u64) -> Result<u64, ProvisionError>;

    /// A volume, if it is there.
    async fn volume(&self, volume: &VolumeId) -> Result<Option<StoredVolume>, ProvisionError>;

    /// Takes snapshots, all at one moment: filesystems that are mounted on this machine are frozen together, then
    /// all cuts are made, then they are thawed. All or none.
    async fn snapshot(
        &self,
        cuts: &[Cut],
        progress: &Progress,
    ) -> Result<Vec<StoredSnapshot>, ProvisionError>;

    /// Deletes a snapshot; one that is not there is deleted.
    async fn delete_snapshot(&self, snapshot: &SnapshotId) -> Result<(), ProvisionError>;

    /// A snapshot, if it is there.
    async fn stored_snapshot(&self, snapshot: &SnapshotId) -> Result<Option<StoredSnapshot>, ProvisionError>;

    /// How much room there is.
    async fn capacity(&self) -> Result<Capacity, ProvisionError>;

    /// What is stored here, from the one after `after`, at most `limit`: to find what nobody knows of.
    async fn items(&self, after: Option<&Item>, limit: usize) -> Result<Vec<Item>, ProvisionError>;
}
