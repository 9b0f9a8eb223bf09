//! Volumes as sparse files in one directory of this machine.
//!
//! **What is in the directory.** `directory.json` names the installation, `directory.spare` keeps room for records that
//! must be written when the disk is full; every volume has `vol-….data` (its bytes, and
//! nothing else), `vol-….json` (its record: id, name, size, installation, whom it lets in) and `vol-….lock`; snapshots
//! have the same as `snap-…`. The installation and the id are in the record and on the file itself (an extended
//! attribute), so a directory that was moved or restored is recognised, and bytes are never taken for those of another
//! volume. What is not named like this is somebody else's and is left alone.
//!
//! **How things come and go.** Intent is stored, bytes are made under another name, synced, renamed, the directory is
//! synced, and the record says that it is whole: nothing half made is taken for whole. Deletion is stored first, too.
//! The next start completes or clears away what a crash left, but for a copy of a snapshot, which goes on (`mark`).
//!
//! **Who is let in.** The record of a volume keeps [`bowline_core::Exports`], and `vol-….recent` the grants since it was
//! last written, which need not survive a loss of power: no device does, either. A node attaches a loop device only inside
//! [`crate::BackingFiles::with_grant`], which holds the volume's lock shared; letting in and shutting out hold it alone.
//! So when a revocation looks at this machine's loop devices, none is on its way. It is confirmed when every device
//! of the file belongs to somebody else who is still listed; until then the epoch is kept as draining and is listed.
//!
//! That is how nodes of this machine reach volumes. Whatever else shows them, [`crate::nvmet`] for one, stands behind `exporter`: a
//! grant is stored and then shown, and what is taken away is stored as gone when that is proven.
//!
//! **One moment.** Filesystems on the volume's loop devices are frozen together while snapshots and clones are taken. Where
//! the filesystem of the directory shares blocks (xfs, btrfs) that takes milliseconds; elsewhere the bytes are
//! copied while everything waits, the volume's lock included, and a device that is written raw cannot be copied at
//! one moment, so it is refused.

mod access;
mod again;
mod blocks;
mod busy;
mod cut;
mod cut_off;
mod directory;
mod elsewhere;
pub(crate) mod exporter;
mod grow;
mod holder;
mod late;
mod make;
mod mark;
mod name;
mod recent;
mod record;
mod remove;
mod room;
mod shelf;
mod start;
mod still;

pub(crate) use directory::now;
pub use room::Policy;
pub use shelf::Shelf;
pub use start::OpenError;

use crate::turns::Turns;
use crate::{
    BackingError, BackingFiles, Capacity, Cut, Grant, Item, NewVolume, Page, Progress, Provision,
    ProvisionError, Revocation, Sizes, StoredSnapshot, StoredVolume, Target, TargetError, context,
};
use async_trait::async_trait;
use bowline_core::{Epoch, NeverAgain, NodeId, SnapshotId, TargetId, VolumeId};
use bowline_host::Host;
use bowline_host::file::PathLock;
use busy::{Busy, NotAlone};
use cut_off::CutOff;
use directory::{Directory, Fault, called};
use exporter::Exporter;
use late::Late;
use record::CutRecord;
use room::Room;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::OwnedMutexGuard;

/// How long a call waits for what another one does to the same volume or snapshot; then it says so and is asked again. Less
/// than a controller waits for an answer, together with whatever else a call may wait for.
const PATIENCE: Duration = Duration::from_secs(3);

/// The topology key of the machine whose directory it is.
pub const TOPOLOGY_HOST: &str = "topology.bowline.storage/host";

/// Where volumes are kept, and how.
#[derive(Clone, Debug)]
pub struct Settings {
    /// What the target is called.
    pub id: TargetId,
    /// The directory; made if it is not there.
    pub directory: PathBuf,
    /// What this machine is called in topology.
    pub host_name: String,
    /// How much may be promised.
    pub policy: Policy,
}

/// Volumes in one directory. One process at a time has it; nodes on the same machine use a [`Shelf`], or, if it exports them
/// over the network, what they are told in the context of a grant.
#[derive(Clone, Debug)]
pub struct FileTarget {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    id: TargetId,
    host_name: String,
    host: Host,
    exporter: Box<dyn Exporter>,
    sizes: Sizes,
    directory: Directory,
    room: Room,
    turns: Turns<Item>,
    busy: Busy,
    late: Late,
    /// Cuts that are taken, but whose snapshots have not all got their records because writing them failed.
    unfinished: Mutex<Vec<CutRecord>>,
    /// What could not be shown, or not everywhere.
    missing: Mutex<BTreeMap<VolumeId, String>>,
    /// Of which something was shown at the start that no record names, and is not proven gone: nobody new is let in to them.
    unproven: Mutex<BTreeSet<VolumeId>>,
    cut_off: CutOff,
    _lock: PathLock,
}

impl Inner {
    /// What a fault means to whoever asked for something that needs `needed` bytes.
    fn told(&self, fault: Fault, needed: u64) -> ProvisionError {
        if fault.is_full() {
            let available =
                bowline_host::file::space(&self.directory.path).map_or(0, |space| space.available);
            return ProvisionError::NoRoom { needed, available: available.min(needed.saturating_sub(1)) };
        }
        match fault {
            Fault::Io { .. } => ProvisionError::Unreachable { error: fault.to_string() },
            Fault::Damaged { what, error } => ProvisionError::Damaged { what, error },
        }
    }

    /// What it means that a volume is not had now: it is asked for again.
    fn not_alone(&self, error: NotAlone, needed: u64) -> ProvisionError {
        match error {
            NotAlone::Taken(taken) => ProvisionError::Unreachable { error: taken.to_string() },
            NotAlone::Fault(fault) => self.told(fault, needed),
        }
    }

    fn check_size(&self, size: u64) -> Result<(), ProvisionError> {
        let Sizes { minimum, maximum, multiple } = self.sizes;
        let error = if size < minimum {
            format!("a volume has at least {minimum} bytes, not {size}")
        } else if size > maximum {
            format!("a volume has at most {maximum} bytes here, not {size}")
        } else if !size.is_multiple_of(multiple) {
            format!("the size must be a multiple of {multiple} bytes; {size} is not")
        } else {
            return Ok(());
        };
        Err(ProvisionError::Refused { error })
    }

    fn capacity(&self) -> Result<Capacity, ProvisionError> {
        let path = &self.directory.path;
        let seen = self.room.look_closely(&self.directory);
        let seen = seen.map_err(|error| self.told(Fault::io(path, error), 0))?;
        Ok(self.room.capacity(seen))
    }

    fn volume(&self, volume: &VolumeId) -> Result<Option<StoredVolume>, ProvisionError> {
        let item = Item::Volume(volume.clone());
        let ill = |fault: String| StoredVolume {
            size: self.directory.length(&item),
            allocated: self.directory.allocated(&item),
            fault: Some(fault),
        };
        match self.directory.examine(&item) {
            Ok(Some((record, allocated, fault))) => {
                Ok(Some(StoredVolume { size: record.size, allocated, fault }))
            }
            Ok(None) => {
                // An empty mount point in its place says nothing of what was there.
                if !self.directory.is_here().map_err(|fault| self.told(fault, 0))? {
                    let path = self.directory.path.display();
                    let error = format!("{path} is not the directory that was opened");
                    return Err(ProvisionError::Unreachable { error });
                }
                let has = |part| self.directory.exists(&item, part).map_err(|fault| self.told(fault, 0));
                let orphan = has(name::Part::Data)? && !has(name::Part::Record)?;
                Ok(orphan.then(|| ill(format!("the record of volume {volume} is missing"))))
            }
            Err(fault @ Fault::Damaged { .. }) => Ok(Some(ill(fault.to_string()))),
            Err(fault @ Fault::Io { .. }) => Err(self.told(fault, 0)),
        }
    }
}

fn ended(error: &tokio::task::JoinError) -> String {
    format!("the work on it ended early: {error}")
}

impl FileTarget {
    /// Where the volumes are.
    pub fn directory(&self) -> &Path {
        &self.inner.directory.path
    }

    /// Runs blocking work to its end, whether anybody waits for it or not.
    async fn run<T, E>(
        &self,
        lost: impl FnOnce(String) -> E,
        work: impl FnOnce(&Inner) -> Result<T, E> + Send + 'static,
    ) -> Result<T, E>
    where
        T: Send + 'static,
        E: Send + 'static,
    {
        let inner = self.inner.clone();
        let done = tokio::task::spawn_blocking(move || work(&inner)).await;
        done.unwrap_or_else(|error| Err(lost(ended(&error))))
    }

    async fn provision<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Inner) -> Result<T, ProvisionError> + Send + 'static,
    ) -> Result<T, ProvisionError> {
        self.run(|error| ProvisionError::Unreachable { error }, work).await
    }

    async fn access<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Inner) -> Result<T, TargetError> + Send + 'static,
    ) -> Result<T, TargetError> {
        self.run(|error| TargetError::Unreachable { error }, work).await
    }

    /// Waits for what was asked for about this before, for a while: a copy may take hours, and whoever is told asks again.
    async fn turn_soon(&self, item: &Item) -> Result<OwnedMutexGuard<()>, ProvisionError> {
        self.inner.turns.take_soon(item, PATIENCE).await.ok_or_else(|| ProvisionError::Unreachable {
            error: format!("what was asked for about {} before is still under way", called(item)),
        })
    }

    /// As [`Self::provision`], with somebody looking on: the work outlives the call, so it has a progress of its own.
    async fn watched<T: Send + 'static>(
        &self,
        progress: &Progress,
        work: impl FnOnce(&Inner, &Progress) -> Result<T, ProvisionError> + Send + 'static,
    ) -> Result<T, ProvisionError> {
        let own = Arc::new(Progress::default());
        let (inner, theirs) = (self.inner.clone(), own.clone());
        let mut work = tokio::task::spawn_blocking(move || work(&inner, &theirs));
        let mut shown = 0;
        loop {
            let done = tokio::time::timeout(Duration::from_millis(100), &mut work).await;
            let (copied, total) = own.read();
            progress.expect(total);
            progress.add(copied.saturating_sub(shown));
            shown = copied;
            if let Ok(done) = done {
                return done
                    .unwrap_or_else(|error| Err(ProvisionError::Unreachable { error: ended(&error) }));
            }
        }
    }
}

#[async_trait]
impl Target for FileTarget {
    fn id(&self) -> &TargetId {
        &self.inner.id
    }

    async fn allow(&self, grant: &Grant) -> Result<(), TargetError> {
        let grant = grant.clone();
        self.access(move |inner| inner.allow(&grant)).await
    }

    async fn revoke(&self, revocation: &Revocation) -> Result<NeverAgain, TargetError> {
        let revocation = revocation.clone();
        self.access(move |inner| inner.revoke(&revocation)).await
    }

    async fn exports(&self, after: Option<&VolumeId>, limit: usize) -> Result<Page, TargetError> {
        let after = after.cloned();
        self.access(move |inner| inner.exports(after, limit)).await
    }

    fn context(&self, grant: &Grant) -> BTreeMap<String, String> {
        context::of_grant(&self.inner.id, self.kind(), self.installation(), self.addresses(), grant)
    }
}

#[async_trait]
impl Provision for FileTarget {
    fn sizes(&self) -> Sizes {
        self.inner.sizes
    }

    fn topology(&self) -> BTreeMap<String, String> {
        if self.inner.exporter.is_remote() {
            return BTreeMap::new();
        }
        [(TOPOLOGY_HOST.to_owned(), self.inner.host_name.clone())].into()
    }

    fn addresses(&self) -> &[SocketAddr] {
        self.inner.exporter.addresses()
    }

    fn installation(&self) -> &str {
        &self.inner.directory.installation
    }

    async fn create(&self, order: &NewVolume, progress: &Progress) -> Result<u64, ProvisionError> {
        let order = order.clone();
        let turn = self.inner.turns.take(&Item::Volume(order.volume.clone())).await;
        let create = move |inner: &Inner, progress: &Progress| {
            let _turn = turn;
            inner.create(&order, progress)
        };
        self.watched(progress, create).await
    }

    async fn delete(&self, volume: &VolumeId) -> Result<(), ProvisionError> {
        let volume = volume.clone();
        let turn = self.turn_soon(&Item::Volume(volume.clone())).await?;
        let delete = move |inner: &Inner| {
            let _turn = turn;
            inner.delete(&volume)
        };
        self.provision(delete).await
    }

    async fn grow(&self, volume: &VolumeId, size: u64) -> Result<u64, ProvisionError> {
        let volume = volume.clone();
        self.provision(move |inner| inner.grow(&volume, size)).await
    }

    async fn volume(&self, volume: &VolumeId) -> Result<Option<StoredVolume>, ProvisionError> {
        let volume = volume.clone();
        self.provision(move |inner| inner.volume(&volume)).await
    }

    async fn snapshot(
        &self,
        cuts: &[Cut],
        progress: &Progress,
    ) -> Result<Vec<StoredSnapshot>, ProvisionError> {
        let cuts = cuts.to_vec();
        // In one order, so that two that have some in common do not wait for each other.
        let snapshots: BTreeSet<_> = cuts.iter().map(|cut| Item::Snapshot(cut.snapshot.clone())).collect();
        let mut turns = Vec::new();
        for snapshot in &snapshots {
            turns.push(self.inner.turns.take(snapshot).await);
        }
        let snapshot = move |inner: &Inner, progress: &Progress| {
            let _turns = turns;
            inner.snapshot(&cuts, progress)
        };
        self.watched(progress, snapshot).await
    }

    async fn delete_snapshot(&self, snapshot: &SnapshotId) -> Result<(), ProvisionError> {
        let snapshot = snapshot.clone();
        let turn = self.turn_soon(&Item::Snapshot(snapshot.clone())).await?;
        let delete = move |inner: &Inner| {
            let _turn = turn;
            inner.delete_snapshot(&snapshot)
        };
        self.provision(delete).await
    }

    async fn stored_snapshot(&self, snapshot: &SnapshotId) -> Result<Option<StoredSnapshot>, ProvisionError> {
        let snapshot = snapshot.clone();
        // That it is not there is an answer only when nothing is on its way that would make it.
        let turn = self.turn_soon(&Item::Snapshot(snapshot.clone())).await?;
        let look = move |inner: &Inner| {
            let _turn = turn;
            inner.stored_snapshot(&snapshot)
        };
        self.provision(look).await
    }

    async fn capacity(&self) -> Result<Capacity, ProvisionError> {
        self.provision(Inner::capacity).await
    }

    async fn items(&self, after: Option<&Item>, limit: usize) -> Result<Vec<Item>, ProvisionError> {
        Ok(self.inner.room.items(after, limit))
    }
}

impl BackingFiles for FileTarget {
    fn with_grant(
        &self,
        volume: &VolumeId,
        node: &NodeId,
        epoch: Epoch,
        attach: &mut dyn FnMut(&Path, bool),
    ) -> Result<(), BackingError> {
        self.inner.directory.with_grant(volume, node, epoch, attach)
    }

    fn backing(&self, volume: &VolumeId) -> Result<Option<PathBuf>, BackingError> {
        self.inner.directory.backing(volume)
    }
}
