use async_trait::async_trait;
use bowline_core::{SnapshotId, Timestamp, VolumeId};
use bowline_target::{
    Capacity, Cut, Item, NewVolume, Progress, Provision, ProvisionError, Sizes, Source, StoredSnapshot,
    StoredVolume,
};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::SimTarget;

/// What a simulated target holds.
pub(crate) struct Storage {
    volumes: BTreeMap<VolumeId, Kept>,
    snapshots: BTreeMap<SnapshotId, StoredSnapshot>,
    pub(crate) deleted: BTreeSet<VolumeId>,
    room: u64,
    moments: u64,
    topology: BTreeMap<String, String>,
    /// It says that it has all the room in the world.
    lies: bool,
}

struct Kept {
    size: u64,
    source: Option<Source>,
    fault: Option<String>,
}

impl Default for Storage {
    fn default() -> Self {
        Self {
            volumes: BTreeMap::new(),
            snapshots: BTreeMap::new(),
            deleted: BTreeSet::new(),
            room: 1 << 40,
            moments: 0,
            lies: false,
            topology: BTreeMap::from([("topology.bowline.storage/host".to_owned(), "here".to_owned())]),
        }
    }
}

impl Storage {
    fn promised(&self) -> u64 {
        self.volumes.values().map(|kept| kept.size).sum()
    }

    fn needs(&self, more: u64) -> Result<(), ProvisionError> {
        let available = self.room.saturating_sub(self.promised());
        if more > available { Err(ProvisionError::NoRoom { needed: more, available }) } else { Ok(()) }
    }

    pub(crate) fn fault(&self, volume: &VolumeId) -> Option<String> {
        self.volumes.get(volume).and_then(|kept| kept.fault.clone())
    }

    fn source_size(&self, source: &Source) -> Result<u64, ProvisionError> {
        let size = match source {
            Source::Volume(id) => self.volumes.get(id).map(|kept| kept.size),
            Source::Snapshot(id) => self.snapshots.get(id).map(|stored| stored.size),
        };
        size.ok_or_else(|| ProvisionError::Unknown { what: format!("{source:?}") })
    }
}

impl SimTarget {
    /// Everything that is stored.
    pub fn items(&self) -> Vec<Item> {
        let stored = self.stored.lock().unwrap();
        let volumes = stored.volumes.keys().cloned().map(Item::Volume);
        volumes.chain(stored.snapshots.keys().cloned().map(Item::Snapshot)).collect()
    }

    /// How much room there is in all.
    pub fn set_room(&self, bytes: u64) {
        self.stored.lock().unwrap().room = bytes;
    }

    /// Something is wrong with a volume.
    pub fn set_fault(&self, volume: &VolumeId, fault: &str) {
        self.stored.lock().unwrap().volumes.get_mut(volume).unwrap().fault = Some(fault.to_owned());
    }

    /// It does (not) say that it has more room than it has.
    pub fn lie_about_room(&self, lies: bool) {
        self.stored.lock().unwrap().lies = lies;
    }

    /// Nothing is wrong with a volume any more.
    pub fn mend(&self, volume: &VolumeId) {
        self.stored.lock().unwrap().volumes.get_mut(volume).unwrap().fault = None;
    }

    /// From where its volumes can be reached.
    pub fn set_topology(&self, segments: &[(&str, &str)]) {
        let segments = segments.iter().map(|(domain, segment)| ((*domain).to_owned(), (*segment).to_owned()));
        self.stored.lock().unwrap().topology = segments.collect();
    }

    /// Loses what it stores, as nobody asked it to.
    pub fn lose(&self, item: &Item) {
        let mut stored = self.stored.lock().unwrap();
        match item {
            Item::Volume(id) => drop(stored.volumes.remove(id)),
            Item::Snapshot(id) => drop(stored.snapshots.remove(id)),
        }
    }

    /// Copies and snapshots do (not) go on.
    pub fn set_copying(&self, copying: bool) {
        self.copying.send_replace(copying);
    }

    async fn copies(&self) {
        let mut copying = self.copying.subscribe();
        copying.wait_for(|copying| *copying).await.unwrap();
    }
}

#[async_trait]
impl Provision for SimTarget {
    fn sizes(&self) -> Sizes {
        Sizes { minimum: 1 << 20, maximum: 1 << 40, multiple: 4096 }
    }

    fn kind(&self) -> &str {
        self.kind
    }

    fn topology(&self) -> BTreeMap<String, String> {
        self.stored.lock().unwrap().topology.clone()
    }

    fn installation(&self) -> &str {
        &self.installation
    }

    async fn create(&self, order: &NewVolume, progress: &Progress) -> Result<u64, ProvisionError> {
        self.answers().await;
        if let Some(source) = &order.source {
            progress.expect(self.stored.lock().unwrap().source_size(source)?);
            self.copies().await;
        }
        let mut stored = self.stored.lock().unwrap();
        if let Some(kept) = stored.volumes.get(&order.volume) {
            if kept.size == order.size && kept.source == order.source {
                return Ok(kept.size);
            }
            let (what, difference) = (format!("volume {}", order.volume), "its size or source".to_owned());
            return Err(ProvisionError::Different { what, difference });
        }
        assert!(!stored.deleted.contains(&order.volume), "id {} is used again", order.volume);
        if let Some(source) = &order.source {
            let size = stored.source_size(source)?;
            assert!(size <= order.size, "a volume is smaller than its source");
            progress.add(size);
        }
        stored.needs(order.size)?;
        let kept = Kept { size: order.size, source: order.source.clone(), fault: None };
        stored.volumes.insert(order.volume.clone(), kept);
        Ok(order.size)
    }

    async fn delete(&self, volume: &VolumeId) -> Result<(), ProvisionError> {
        self.answers().await;
        let open = self.open(volume);
        if let Some((_, node)) = open.first() {
            return Err(ProvisionError::InUse { by: format!("node {node}") });
        }
        let mut stored = self.stored.lock().unwrap();
        stored.volumes.remove(volume);
        stored.deleted.insert(volume.clone());
        Ok(())
    }

    async fn grow(&self, volume: &VolumeId, size: u64) -> Result<u64, ProvisionError> {
        self.answers().await;
        let mut stored = self.stored.lock().unwrap();
        let now = stored.volumes.get(volume).map(|kept| kept.size);
        let now = now.ok_or_else(|| ProvisionError::Unknown { what: format!("volume {volume}") })?;
        stored.needs(size.saturating_sub(now))?;
        let kept = stored.volumes.get_mut(volume).unwrap();
        kept.size = now.max(size);
        Ok(kept.size)
    }

    async fn volume(&self, volume: &VolumeId) -> Result<Option<StoredVolume>, ProvisionError> {
        self.answers().await;
        let stored = self.stored.lock().unwrap();
        Ok(stored.volumes.get(volume).map(|kept| StoredVolume {
            size: kept.size,
            allocated: 0,
            fault: kept.fault.clone(),
        }))
    }

    async fn snapshot(&self, cuts: &[Cut], _: &Progress) -> Result<Vec<StoredSnapshot>, ProvisionError> {
        self.answers().await;
        self.copies().await;
        let mut stored = self.stored.lock().unwrap();
        stored.moments += 1;
        let taken_at = Timestamp::UNIX_EPOCH + Duration::from_secs(stored.moments);
        let mut made = Vec::new();
        for cut in cuts {
            let size = stored.source_size(&Source::Volume(cut.volume.clone()))?;
            made.push(StoredSnapshot { volume: cut.volume.clone(), size, taken_at, fault: None });
        }
        let here: Vec<_> =
            cuts.iter().filter_map(|cut| stored.snapshots.get(&cut.snapshot).cloned()).collect();
        if here.len() == cuts.len() {
            return Ok(here);
        }
        assert!(here.is_empty(), "snapshots of one moment were taken apart");
        for (cut, one) in cuts.iter().zip(&made) {
            stored.snapshots.insert(cut.snapshot.clone(), one.clone());
        }
        Ok(made)
    }

    async fn delete_snapshot(&self, snapshot: &SnapshotId) -> Result<(), ProvisionError> {
        self.answers().await;
        self.stored.lock().unwrap().snapshots.remove(snapshot);
        Ok(())
    }

    async fn stored_snapshot(&self, snapshot: &SnapshotId) -> Result<Option<StoredSnapshot>, ProvisionError> {
        self.answers().await;
        Ok(self.stored.lock().unwrap().snapshots.get(snapshot).cloned())
    }

    async fn capacity(&self) -> Result<Capacity, ProvisionError> {
        self.answers().await;
        let stored = self.stored.lock().unwrap();
        let promised = stored.promised();
        let available = if stored.lies { 1 << 50 } else { stored.room.saturating_sub(promised) };
        Ok(Capacity { total: stored.room, free: stored.room, promised, available })
    }

    async fn items(&self, after: Option<&Item>, limit: usize) -> Result<Vec<Item>, ProvisionError> {
        self.answers().await;
        let all = SimTarget::items(self).into_iter();
        Ok(all.filter(|item| after.is_none_or(|after| item > after)).take(limit).collect())
    }
}
