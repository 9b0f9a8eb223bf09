//! Targets come and go while the catalog runs.

use bowline_core::TargetId;
use bowline_engine::CompareError;
use bowline_target::{Capacity, Provision, Target};
use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Catalog, Inner, TargetError, lock};
use crate::record::{Snapshot, Volume};

/// What is known of a target without asking it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownTarget {
    /// Its name.
    pub id: TargetId,
    /// Of which kind it is; not known while it is not connected.
    pub kind: Option<String>,
    /// Whether nothing new is made there.
    pub is_draining: bool,
}

/// A target that may be forgotten, until this is dropped.
struct Leaving<'a> {
    inner: &'a Inner,
    target: &'a TargetId,
}

impl<'a> Leaving<'a> {
    fn new(inner: &'a Inner, target: &'a TargetId) -> Self {
        lock(&inner.leaving).insert(target.clone());
        Self { inner, target }
    }
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        lock(&self.inner.leaving).remove(self.target);
    }
}

impl Catalog {
    /// Connects a target, or connects it anew. New volumes may be made there at once; those that are there get nobody new
    /// until it was asked whom it lets in, which is tried again by itself if it fails now.
    pub async fn add_target(&self, target: Arc<dyn Provision>) -> Result<(), CompareError> {
        let id = target.id().clone();
        lock(&self.inner.targets).insert(id.clone(), Arc::clone(&target));
        let compared = self.inner.engine.add_target(target as Arc<dyn Target>).await;
        let catalog = Arc::downgrade(&self.inner);
        tokio::spawn(async move {
            if let Some(inner) = catalog.upgrade() {
                inner.look_at_all(Some(&id)).await;
            }
        });
        compared
    }

    /// A target is to be connected later. Until it is, a volume that nobody knows may be there.
    pub fn expect_target(&self, target: &TargetId) {
        self.inner.engine.expect_target(target);
    }

    /// Forgets a target, whether it is connected or not. Refused while a volume or a snapshot is there.
    pub async fn remove_target(&self, target: &TargetId) -> Result<(), TargetError> {
        // Nothing new is made there while it is looked for what is. It is among the others all the same: whoever has to ask all of them before somebody
        // is called detached must ask this one, too.
        let _leaving = Leaving::new(&self.inner, target);
        let checked = self.inner.nothing_is_on(target).await;
        if checked.is_ok() {
            lock(&self.inner.targets).remove(target);
            self.inner.metrics.no_room(target);
        }
        checked
    }

    /// Whether nothing new is made on a target. What is there stays there, and is copied, grown and attached as before.
    pub fn drain_target(&self, target: &TargetId, is_draining: bool) {
        let mut draining = lock(&self.inner.draining);
        let changed = if is_draining { draining.insert(target.clone()) } else { draining.remove(target) };
        if is_draining {
            self.inner.metrics.no_room(target);
        }
        if changed {
            tracing::info!(%target, is_draining, "whether new volumes are made there has changed");
        }
    }

    /// Every target that is connected or awaited, by name.
    pub fn known_targets(&self) -> Vec<KnownTarget> {
        let connected = self.inner.connected().into_iter();
        let mut kinds: BTreeMap<TargetId, Option<String>> =
            connected.map(|target| (target.id().clone(), Some(target.kind().to_owned()))).collect();
        for target in self.inner.engine.unconnected() {
            kinds.entry(target).or_default();
        }
        let (draining, leaving) = (lock(&self.inner.draining), lock(&self.inner.leaving));
        let is_closed = |id: &TargetId| draining.contains(id) || leaving.contains(id);
        let known = |(id, kind): (TargetId, _)| KnownTarget { is_draining: is_closed(&id), id, kind };
        kinds.into_iter().map(known).collect()
    }

    /// Counts what a target has just said of its room.
    pub fn count_room(&self, target: &TargetId, room: &Capacity) {
        self.inner.count_room(target, room);
    }

    /// The targets that are connected, by name.
    pub fn targets(&self) -> Vec<Arc<dyn Provision>> {
        self.inner.connected()
    }
}

impl Inner {
    pub(crate) fn connected(&self) -> Vec<Arc<dyn Provision>> {
        lock(&self.targets).values().cloned().collect()
    }

    /// Of a target that was forgotten meanwhile, or where nothing new is made, no room is counted.
    pub(crate) fn count_room(&self, target: &TargetId, room: &Capacity) {
        let (targets, draining) = (lock(&self.targets), lock(&self.draining));
        if targets.contains_key(target) && !draining.contains(target) {
            self.metrics.room(target, room);
        }
    }

    /// Those where something new may be made.
    pub(crate) fn open_to_new(&self, targets: Vec<Arc<dyn Provision>>) -> Vec<Arc<dyn Provision>> {
        let (draining, leaving) = (lock(&self.draining), lock(&self.leaving));
        let is_open = |id: &TargetId| !draining.contains(id) && !leaving.contains(id);
        targets.into_iter().filter(|target| is_open(target.id())).collect()
    }

    async fn nothing_is_on(&self, target: &TargetId) -> Result<(), TargetError> {
        let unreadable = |error: crate::failure::Failure| TargetError::Unreadable {
            target: target.clone(),
            error: error.sentence,
        };
        let mut what = None;
        let volumes = self.shelf.for_each(|_, volume: Volume| {
            if volume.target == *target {
                what = Some(format!("volume {}", volume.id));
            }
        });
        volumes.await.map_err(unreadable)?;
        let snapshots = self.shelf.for_each(|_, snapshot: Snapshot| {
            if snapshot.target == *target {
                what = Some(format!("snapshot {}", snapshot.id));
            }
        });
        snapshots.await.map_err(unreadable)?;
        if let Some(what) = what {
            return Err(TargetError::InUse { target: target.clone(), what });
        }
        self.engine
            .remove_target(target)
            .map_err(|error| TargetError::Unreadable { target: target.clone(), error: error.to_string() })
    }
}
