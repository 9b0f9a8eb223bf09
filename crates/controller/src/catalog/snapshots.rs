//! Taking and deleting snapshots of one volume.

use bowline_core::{Slot, SnapshotId, VolumeId};
use bowline_csi::Name;
use bowline_csi::code::{CreateSnapshotError, DeleteSnapshotError};
use bowline_store::{Key, Kind};
use bowline_target::{Cut, Progress, ProvisionError, StoredSnapshot};
use std::sync::Arc;
use std::time::Duration;

use super::volumes::{not_usable, odd};
use super::{Catalog, Inner, fresh_id, made};
use crate::failure::{Failure, Why};
use crate::operations::{Done, Order, Told, Touches};
use crate::record::{Snapshot, SnapshotState, Volume};
use crate::shelf::Put;

impl Catalog {
    /// Takes a snapshot.
    pub async fn create_snapshot(
        &self,
        name: Name,
        volume: &VolumeId,
        wait: Duration,
    ) -> Result<Snapshot, CreateSnapshotError> {
        let slot = Slot::of_name(name.as_str());
        let touches = Touches {
            changes: vec![Key::new(Kind::Snapshot, slot.as_str())],
            copies: volume_key(volume).into_iter().collect(),
        };
        let (inner, called, of) = (Arc::clone(&self.inner), name.clone(), volume.clone());
        let work = move || async move { inner.take(&called, &of).await };
        match self.inner.perform(Order::Take { name, volume: volume.clone() }, touches, wait, work).await? {
            Done::Snapshot(snapshot) => Ok(snapshot),
            other => Err(odd(&other).into()),
        }
    }

    /// Deletes a snapshot; one that is not there is deleted.
    pub async fn delete_snapshot(
        &self,
        snapshot: &SnapshotId,
        wait: Duration,
    ) -> Result<(), DeleteSnapshotError> {
        let Some(slot) = Slot::of_id(snapshot.as_str()) else { return Ok(()) };
        let touches = Touches { changes: vec![Key::new(Kind::Snapshot, slot.as_str())], copies: vec![] };
        let (inner, id) = (Arc::clone(&self.inner), snapshot.clone());
        let work = move || async move { inner.delete_one_snapshot(&id).await };
        self.inner.perform(Order::DeleteSnapshot(snapshot.clone()), touches, wait, work).await?;
        Ok(())
    }
}

pub(crate) fn volume_key(volume: &VolumeId) -> Option<Key> {
    Slot::of_id(volume.as_str()).map(|slot| Key::new(Kind::Volume, slot.as_str()))
}

pub(crate) fn snapshot_slot(snapshot: &SnapshotId) -> Result<Slot, Failure> {
    Slot::of_id(snapshot.as_str())
        .ok_or_else(|| Failure::new(Why::Unknown, format!("there is no snapshot {snapshot}")))
}

/// The state of a snapshot that the target has.
pub(crate) fn ready(stored: &StoredSnapshot) -> SnapshotState {
    SnapshotState::Ready { size: stored.size, taken_at: stored.taken_at }
}

impl Inner {
    async fn take(self: &Arc<Self>, name: &Name, volume: &VolumeId) -> Told {
        let slot = Slot::of_name(name.as_str());
        loop {
            let Some((snapshot, _)) = self.shelf.get::<Snapshot>(slot.as_str()).await? else {
                let volume = self.volume(volume).await?;
                if !volume.is_usable() {
                    return Err(not_usable(&volume));
                }
                let snapshot = self.planned_snapshot(name.as_str(), &slot, &volume)?;
                match self.shelf.add(slot.as_str(), &snapshot).await? {
                    Put::Done => self.metrics.snapshots.inc(),
                    Put::Stale => continue,
                };
                return self.cut(&snapshot).await;
            };
            if snapshot.volume != *volume || snapshot.name != name.as_str() || snapshot.group.is_some() {
                let sentence = format!(
                    "snapshot {name:?} exists and is another: {:?} of volume {}",
                    snapshot.name, snapshot.volume
                );
                return Err(Failure::new(Why::Different, sentence));
            }
            match snapshot.state {
                SnapshotState::Ready { .. } => return Ok(Done::Snapshot(snapshot)),
                SnapshotState::Deleting => {
                    let sentence = format!("snapshot {name:?} is being deleted; ask again when it is gone");
                    return Err(Failure::new(Why::Busy, sentence));
                }
                // Begun before: it is what was asked for, or it is taken anew.
                SnapshotState::Taking => {
                    if let Done::Snapshot(snapshot) = self.adopt(&snapshot).await? {
                        return Ok(Done::Snapshot(snapshot));
                    }
                }
            }
        }
    }

    pub(crate) fn planned_snapshot(
        &self,
        name: &str,
        slot: &Slot,
        volume: &Volume,
    ) -> Result<Snapshot, Failure> {
        Ok(Snapshot {
            id: made(SnapshotId::new(fresh_id(slot)?))?,
            name: name.to_owned(),
            volume: volume.id.clone(),
            target: volume.target.clone(),
            group: None,
            created_at: self.clock.now(),
            state: SnapshotState::Taking,
        })
    }

    async fn cut(self: &Arc<Self>, snapshot: &Snapshot) -> Told {
        let cut = Cut {
            snapshot: snapshot.id.clone(),
            name: snapshot.name.clone(),
            volume: snapshot.volume.clone(),
        };
        let target = self.target(&snapshot.target)?;
        let failure = match target.snapshot(&[cut], &Progress::default()).await {
            Ok(stored) => match stored.first() {
                Some(stored) => return self.taken(snapshot, stored).await,
                None => Failure::new(Why::Broken, format!("target {} gave no snapshot", snapshot.target)),
            },
            Err(error @ ProvisionError::Unreachable { .. }) => return Err(error.into()),
            Err(error @ ProvisionError::InUse { .. }) => Failure::new(Why::Busy, error.to_string()),
            Err(error) => error.into(),
        };
        self.clear_snapshot(snapshot).await?;
        Err(failure)
    }

    async fn taken(&self, snapshot: &Snapshot, stored: &StoredSnapshot) -> Told {
        let state = ready(stored);
        let snapshot = self.change_snapshot(&snapshot.id, state).await?;
        let sentence = format!("Snapshot {:?} was taken.", snapshot.name);
        self.tell(Some(&snapshot.volume), "SnapshotTaken", sentence);
        Ok(Done::Snapshot(snapshot))
    }

    pub(crate) async fn change_snapshot(
        &self,
        id: &SnapshotId,
        state: SnapshotState,
    ) -> Result<Snapshot, Failure> {
        let gone = || Failure::new(Why::Unknown, format!("there is no snapshot {id}"));
        let changed = |found: &Snapshot| {
            if found.id != *id {
                return Err(gone());
            }
            Ok(Some(Snapshot { state: state.clone(), ..found.clone() }))
        };
        self.shelf.change(snapshot_slot(id)?.as_str(), changed).await?.ok_or_else(gone)
    }

    /// A snapshot that somebody began to take: if the target has it whole, it is that; if not, it is cleared away, because
    /// taken now it would hold another moment.
    pub(crate) async fn adopt(self: &Arc<Self>, snapshot: &Snapshot) -> Told {
        match self.target(&snapshot.target)?.stored_snapshot(&snapshot.id).await? {
            Some(stored) if stored.fault.is_none() => self.taken(snapshot, &stored).await,
            Some(_) | None => {
                self.clear_snapshot(snapshot).await?;
                Ok(Done::Nothing)
            }
        }
    }

    /// Removes every trace of a snapshot; that it is to go is stored first.
    pub(crate) async fn clear_snapshot(&self, snapshot: &Snapshot) -> Result<(), Failure> {
        self.change_snapshot(&snapshot.id, SnapshotState::Deleting).await?;
        if let Err(error) = self.target(&snapshot.target)?.delete_snapshot(&snapshot.id).await {
            let sentence =
                format!("target {} has not deleted snapshot {}: {error}", snapshot.target, snapshot.id);
            return Err(Failure::new(Why::Unreachable, sentence));
        }
        let slot = snapshot_slot(&snapshot.id)?;
        self.shelf.remove(slot.as_str(), |found: &Snapshot| found.id == snapshot.id).await?;
        self.metrics.snapshots.dec();
        Ok(())
    }

    async fn delete_one_snapshot(self: &Arc<Self>, id: &SnapshotId) -> Told {
        let snapshot = match self.snapshot(id).await {
            Ok(snapshot) => snapshot,
            Err(Failure { why: Why::Unknown, .. }) => return Ok(Done::Nothing),
            Err(failure) => return Err(failure),
        };
        if let Some(group) = &snapshot.group
            && self.group_record(group).await?.is_some()
        {
            let sentence =
                format!("snapshot {id} belongs to group {group}; delete the group, and it goes too");
            return Err(Failure::new(Why::InUse, sentence));
        }
        self.clear_snapshot(&snapshot).await?;
        let sentence = format!("Snapshot {:?} is gone.", snapshot.name);
        self.tell(Some(&snapshot.volume), "SnapshotDeleted", sentence);
        Ok(Done::Nothing)
    }

    pub(crate) async fn settle_snapshot(self: &Arc<Self>, name: &str) -> Told {
        let Some((snapshot, _)) = self.shelf.get::<Snapshot>(name).await? else { return Ok(Done::Nothing) };
        if let Some(group) = &snapshot.group
            && self.group_record(group).await?.is_some()
        {
            // It comes to its end together with the others.
            return Ok(Done::Nothing);
        }
        match snapshot.state {
            SnapshotState::Taking => self.adopt(&snapshot).await,
            SnapshotState::Deleting => self.clear_snapshot(&snapshot).await.map(|()| Done::Nothing),
            SnapshotState::Ready { .. } => Ok(Done::Snapshot(snapshot)),
        }
    }
}
