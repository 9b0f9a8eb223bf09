//! What the targets say of what they store: room, faults, and what does not go with the records.

use bowline_core::VolumeId;
use bowline_csi::code::{GetCapacityError, ListError};
use bowline_target::{Capacity, Item, Provision, ProvisionError};
use std::collections::{BTreeMap, BTreeSet};

use super::{Catalog, Drift, Inner};
use crate::failure::{Failure, Why};
use crate::record::{Snapshot, SnapshotState, Volume, VolumeState};
use crate::shelf::PAGE;

impl Catalog {
    /// How much room there is for new volumes, on all targets that answer.
    pub async fn capacity(&self) -> Result<Capacity, GetCapacityError> {
        let rooms = self.inner.rooms(self.inner.open_to_new(self.inner.connected())).await?;
        let mut sum = Capacity::default();
        for (_, room) in rooms {
            sum.total = sum.total.saturating_add(room.total);
            sum.free = sum.free.saturating_add(room.free);
            sum.promised = sum.promised.saturating_add(room.promised);
            sum.available = sum.available.saturating_add(room.available);
        }
        Ok(sum)
    }

    /// What the targets hold that no record knows, and what records name that is not there: for `bowline doctor`.
    pub async fn drift(&self) -> Result<Drift, ListError> {
        Ok(self.inner.drift().await?)
    }
}

/// A question that was not answered has changed nothing.
pub(crate) fn unanswered(error: &ProvisionError) -> Failure {
    Failure::new(Why::Unreachable, error.to_string())
}

impl Inner {
    /// What is wrong with a volume, as its target sees it.
    pub(crate) async fn fault(&self, id: &VolumeId) -> Result<Option<String>, Failure> {
        let volume = self.volume(id).await?;
        if !volume.is_usable() {
            return Ok(None);
        }
        self.look(&volume).await
    }

    async fn drift(&self) -> Result<Drift, Failure> {
        // What is stored first: whatever is made or deleted meanwhile is asked about once more below.
        let mut stored = BTreeMap::new();
        for target in self.connected() {
            let mut after = None;
            loop {
                let items = target.items(after.as_ref(), PAGE).await.map_err(|error| unanswered(&error))?;
                after = items.last().cloned();
                stored.extend(items.into_iter().map(|item| (item, target.id().clone())));
                if after.is_none() {
                    break;
                }
            }
        }
        let (mut known, mut expected) = (BTreeSet::new(), BTreeMap::new());
        self.shelf
            .for_each(|_, volume: Volume| {
                let item = Item::Volume(volume.id);
                if matches!(volume.state, VolumeState::Ready | VolumeState::Growing { .. }) {
                    expected.insert(item.clone(), volume.target);
                }
                known.insert(item);
            })
            .await?;
        self.shelf
            .for_each(|_, snapshot: Snapshot| {
                let item = Item::Snapshot(snapshot.id);
                if matches!(snapshot.state, SnapshotState::Ready { .. }) {
                    expected.insert(item.clone(), snapshot.target);
                }
                known.insert(item);
            })
            .await?;
        let mut drift = Drift::default();
        for (item, target) in &stored {
            let there = self.target(target)?;
            if !known.contains(item) && is_there(there.as_ref(), item).await? {
                drift.unknown.push(item.clone());
            }
        }
        for (item, target) in expected {
            // What is on a target that is not connected is not missing.
            let Ok(there) = self.target(&target) else { continue };
            if !stored.contains_key(&item) && !is_there(there.as_ref(), &item).await? {
                drift.missing.push(item);
            }
        }
        Ok(drift)
    }
}

async fn is_there(target: &dyn Provision, item: &Item) -> Result<bool, Failure> {
    match item {
        Item::Volume(id) => Ok(target.volume(id).await.map_err(|error| unanswered(&error))?.is_some()),
        Item::Snapshot(id) => {
            Ok(target.stored_snapshot(id).await.map_err(|error| unanswered(&error))?.is_some())
        }
    }
}
