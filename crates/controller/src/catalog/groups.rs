//! Snapshots of several volumes at one moment: all of them or none.

use bowline_core::{GroupSnapshotId, Slot, Timestamp, VolumeId};
use bowline_csi::Name;
use bowline_csi::code::{CreateSnapshotError, DeleteSnapshotError};
use bowline_store::{Key, Kind};
use bowline_target::{Cut, Progress, ProvisionError, StoredSnapshot};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::snapshots::{ready, snapshot_slot, volume_key};
use super::volumes::{not_usable, odd};
use super::{Catalog, Inner, fresh_id, made};
use crate::failure::{Failure, Why};
use crate::operations::{Done, Order, Told, Touches};
use crate::record::{Group, Snapshot, SnapshotState};
use crate::shelf::Put;

/// More would be frozen together for too long.
const MEMBERS: usize = 128;

/// What the snapshot of one volume in a group is called.
fn member_name(group: &Name, volume: &VolumeId) -> String {
    format!("{group}/{volume}")
}

impl Catalog {
    /// Takes snapshots of several volumes at one moment.
    pub async fn create_group(
        &self,
        name: Name,
        volumes: &[VolumeId],
        wait: Duration,
    ) -> Result<(Group, Vec<Snapshot>), CreateSnapshotError> {
        let mut changes = vec![Key::new(Kind::Group, Slot::of_name(name.as_str()).as_str())];
        changes.extend(
            volumes
                .iter()
                .map(|volume| Key::new(Kind::Snapshot, Slot::of_name(&member_name(&name, volume)).as_str())),
        );
        let touches = Touches { changes, copies: volumes.iter().filter_map(volume_key).collect() };
        let (inner, called, of) = (Arc::clone(&self.inner), name.clone(), volumes.to_vec());
        let work = move || async move { inner.take_together(&called, &of).await };
        let order = Order::TakeTogether { name, volumes: volumes.to_vec() };
        match self.inner.perform(order, touches, wait, work).await? {
            Done::Group(group, snapshots) => Ok((group, snapshots)),
            other => Err(odd(&other).into()),
        }
    }

    /// Deletes a group and its snapshots.
    pub async fn delete_group(
        &self,
        group: &GroupSnapshotId,
        wait: Duration,
    ) -> Result<(), DeleteSnapshotError> {
        let Some(found) = self.inner.group_record(group).await? else { return Ok(()) };
        let slots = found.snapshots.iter().filter_map(|id| Slot::of_id(id.as_str()));
        let mut changes: Vec<Key> = Slot::of_id(group.as_str())
            .map(|slot| Key::new(Kind::Group, slot.as_str()))
            .into_iter()
            .collect();
        changes.extend(slots.map(|slot| Key::new(Kind::Snapshot, slot.as_str())));
        let touches = Touches { changes, copies: vec![] };
        let inner = Arc::clone(&self.inner);
        let work = move || async move {
            inner.clear_group(&found).await?;
            inner.tell(None, "GroupDeleted", format!("Group {:?} and its snapshots are gone.", found.name));
            Ok(Done::Nothing)
        };
        self.inner.perform(Order::DeleteGroup(group.clone()), touches, wait, work).await?;
        Ok(())
    }
}

impl Inner {
    pub(crate) async fn group_record(&self, group: &GroupSnapshotId) -> Result<Option<Group>, Failure> {
        let Some(slot) = Slot::of_id(group.as_str()) else { return Ok(None) };
        let found = self.shelf.get::<Group>(slot.as_str()).await?;
        Ok(found.map(|(found, _)| found).filter(|found| found.id == *group))
    }

    /// A group with its snapshots, as far as they are there.
    pub(crate) async fn group(&self, id: &GroupSnapshotId) -> Result<(Group, Vec<Snapshot>), Failure> {
        let group = self.group_record(id).await?;
        let group = group
            .ok_or_else(|| Failure::new(Why::Unknown, format!("there is no group of snapshots {id}")))?;
        let members = self.members(&group).await?;
        Ok((group, members))
    }

    async fn members(&self, group: &Group) -> Result<Vec<Snapshot>, Failure> {
        let mut members = Vec::new();
        for id in &group.snapshots {
            match self.snapshot(id).await {
                Ok(snapshot) => members.push(snapshot),
                Err(Failure { why: Why::Unknown, .. }) => {}
                Err(failure) => return Err(failure),
            }
        }
        Ok(members)
    }

    async fn take_together(self: &Arc<Self>, name: &Name, volumes: &[VolumeId]) -> Told {
        let slot = Slot::of_name(name.as_str());
        loop {
            let Some((group, _)) = self.shelf.get::<Group>(slot.as_str()).await? else {
                let (group, members) = self.planned_group(name, &slot, volumes).await?;
                match self.shelf.add(slot.as_str(), &group).await? {
                    Put::Done => return self.cut_together(&group, &members).await,
                    Put::Stale => continue,
                }
            };
            if group.name != name.as_str() {
                let sentence = format!("group {:?} has the same digest as {name:?}", group.name);
                return Err(Failure::new(Why::Different, sentence));
            }
            match group.state {
                SnapshotState::Ready { .. } => return self.same_group(group, volumes).await,
                SnapshotState::Deleting => {
                    let sentence = format!("group {name:?} is being deleted; ask again when it is gone");
                    return Err(Failure::new(Why::Busy, sentence));
                }
                SnapshotState::Taking => {
                    if let Done::Group(group, _) = self.adopt_group(&group).await? {
                        return self.same_group(group, volumes).await;
                    }
                }
            }
        }
    }

    async fn same_group(&self, group: Group, volumes: &[VolumeId]) -> Told {
        let members = self.members(&group).await?;
        let (of, asked): (BTreeSet<&VolumeId>, BTreeSet<&VolumeId>) =
            (members.iter().map(|one| &one.volume).collect(), volumes.iter().collect());
        if of != asked {
            let sentence = format!("group {:?} exists and is of other volumes", group.name);
            return Err(Failure::new(Why::Different, sentence));
        }
        Ok(Done::Group(group, members))
    }

    async fn planned_group(
        &self,
        name: &Name,
        slot: &Slot,
        volumes: &[VolumeId],
    ) -> Result<(Group, Vec<Snapshot>), Failure> {
        if volumes.is_empty() || volumes.len() > MEMBERS {
            let sentence = format!("a group has 1 to {MEMBERS} volumes, not {}", volumes.len());
            return Err(Failure::new(Why::Unsupported, sentence));
        }
        if volumes.iter().collect::<BTreeSet<_>>().len() < volumes.len() {
            return Err(Failure::new(Why::Unsupported, "a volume is named twice"));
        }
        let id = made(GroupSnapshotId::new(fresh_id(slot)?))?;
        let mut members: Vec<Snapshot> = Vec::new();
        for volume in volumes {
            let volume = self.volume(volume).await?;
            if !volume.is_usable() {
                return Err(not_usable(&volume));
            }
            if let Some(first) = members.first().filter(|first| first.target != volume.target) {
                let sentence = format!(
                    "volume {} is on target {}, and {} on {}: only volumes of one target can be taken together",
                    volume.id, volume.target, first.volume, first.target
                );
                return Err(Failure::new(Why::NotTogether, sentence));
            }
            let called = member_name(name, &volume.id);
            let member = self.planned_snapshot(&called, &Slot::of_name(&called), &volume)?;
            members.push(Snapshot { group: Some(id.clone()), ..member });
        }
        let group = Group {
            id,
            name: name.as_str().to_owned(),
            snapshots: members.iter().map(|one| one.id.clone()).collect(),
            created_at: self.clock.now(),
            state: SnapshotState::Taking,
        };
        Ok((group, members))
    }

    /// Takes the snapshots of a group whose name is taken.
    async fn cut_together(self: &Arc<Self>, group: &Group, members: &[Snapshot]) -> Told {
        for member in members {
            match self.shelf.add(snapshot_slot(&member.id)?.as_str(), member).await? {
                Put::Done => self.metrics.snapshots.inc(),
                Put::Stale => {
                    self.clear_group(group).await?;
                    let sentence = format!("there is a snapshot {:?} already", member.name);
                    return Err(Failure::new(Why::Different, sentence));
                }
            };
        }
        let cut = |member: &Snapshot| Cut {
            snapshot: member.id.clone(),
            name: member.name.clone(),
            volume: member.volume.clone(),
        };
        let cuts: Vec<Cut> = members.iter().map(cut).collect();
        let Some(first) = members.first() else { return Ok(Done::Nothing) };
        let failure = match self.target(&first.target)?.snapshot(&cuts, &Progress::default()).await {
            Ok(stored) if stored.len() == members.len() => return self.taken_together(group, &stored).await,
            Ok(_) => Failure::new(Why::Broken, format!("target {} took another number", first.target)),
            Err(error @ ProvisionError::Unreachable { .. }) => return Err(error.into()),
            Err(error @ ProvisionError::InUse { .. }) => Failure::new(Why::Busy, error.to_string()),
            Err(error @ ProvisionError::Refused { .. }) => Failure::new(Why::NotTogether, error.to_string()),
            Err(error) => error.into(),
        };
        self.clear_group(group).await?;
        Err(failure)
    }

    async fn taken_together(&self, group: &Group, stored: &[StoredSnapshot]) -> Told {
        let mut members = Vec::new();
        for (id, stored) in group.snapshots.iter().zip(stored) {
            members.push(self.change_snapshot(id, ready(stored)).await?);
        }
        let size = stored.iter().map(|one| one.size).sum();
        let taken_at = stored.iter().map(|one| one.taken_at).min().unwrap_or(Timestamp::UNIX_EPOCH);
        let group = self.change_group(group, SnapshotState::Ready { size, taken_at }).await?;
        self.tell(None, "GroupTaken", format!("Group {:?}: {} snapshots.", group.name, members.len()));
        Ok(Done::Group(group, members))
    }

    async fn change_group(&self, group: &Group, state: SnapshotState) -> Result<Group, Failure> {
        let gone = || Failure::new(Why::Unknown, format!("there is no group of snapshots {}", group.id));
        let changed = |found: &Group| {
            if found.id != group.id {
                return Err(gone());
            }
            Ok(Some(Group { state: state.clone(), ..found.clone() }))
        };
        let slot = Slot::of_id(group.id.as_str()).ok_or_else(gone)?;
        self.shelf.change(slot.as_str(), changed).await?.ok_or_else(gone)
    }

    /// A group that somebody began to take: if the target has every snapshot whole, it is that; if not, all of it is
    /// cleared away.
    async fn adopt_group(self: &Arc<Self>, group: &Group) -> Told {
        let members = self.members(group).await?;
        let mut stored = Vec::new();
        for member in &members {
            let found = self.target(&member.target)?.stored_snapshot(&member.id).await?;
            stored.extend(found.filter(|found| found.fault.is_none()));
        }
        if stored.len() == group.snapshots.len() {
            return self.taken_together(group, &stored).await;
        }
        self.clear_group(group).await?;
        Ok(Done::Nothing)
    }

    /// Removes every trace of a group; that it is to go is stored first, and its own record goes last.
    async fn clear_group(&self, group: &Group) -> Result<(), Failure> {
        let group = self.change_group(group, SnapshotState::Deleting).await?;
        for member in self.members(&group).await? {
            self.clear_snapshot(&member).await?;
        }
        let Some(slot) = Slot::of_id(group.id.as_str()) else { return Ok(()) };
        self.shelf.remove(slot.as_str(), |found: &Group| found.id == group.id).await
    }

    pub(crate) async fn settle_group(self: &Arc<Self>, name: &str) -> Told {
        let Some((group, _)) = self.shelf.get::<Group>(name).await? else { return Ok(Done::Nothing) };
        match group.state {
            SnapshotState::Taking => self.adopt_group(&group).await,
            SnapshotState::Deleting => self.clear_group(&group).await.map(|()| Done::Nothing),
            SnapshotState::Ready { .. } => Ok(Done::Nothing),
        }
    }
}
