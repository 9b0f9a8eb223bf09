use async_trait::async_trait;
use bowline_core::{SnapshotId, VolumeId};
use bowline_target::{
    Capacity, Cut, Item, NewVolume, Progress, Provision, ProvisionError, Sizes, StoredSnapshot, StoredVolume,
};
use std::collections::BTreeMap;

use crate::FaultyTarget;

/// A target on which volumes are made, whose calls meet their fate.
pub type FaultyProvision = FaultyTarget<dyn Provision>;

fn lost<T>() -> Result<T, ProvisionError> {
    Err(ProvisionError::Unreachable { error: "lost on purpose".to_owned() })
}

#[async_trait]
impl Provision for FaultyTarget<dyn Provision> {
    fn sizes(&self) -> Sizes {
        self.inner.sizes()
    }

    fn kind(&self) -> &str {
        self.inner.kind()
    }

    fn topology(&self) -> BTreeMap<String, String> {
        self.inner.topology()
    }

    fn installation(&self) -> &str {
        self.inner.installation()
    }

    async fn create(&self, order: &NewVolume, progress: &Progress) -> Result<u64, ProvisionError> {
        let what = format!("create {}", order.volume);
        self.fate.meet(what, self.inner.create(order, progress), lost).await
    }

    async fn delete(&self, volume: &VolumeId) -> Result<(), ProvisionError> {
        self.fate.meet(format!("delete {volume}"), self.inner.delete(volume), lost).await
    }

    async fn grow(&self, volume: &VolumeId, size: u64) -> Result<u64, ProvisionError> {
        self.fate.meet(format!("grow {volume} {size}"), self.inner.grow(volume, size), lost).await
    }

    async fn volume(&self, volume: &VolumeId) -> Result<Option<StoredVolume>, ProvisionError> {
        self.fate.meet(format!("volume {volume}"), self.inner.volume(volume), lost).await
    }

    async fn snapshot(
        &self,
        cuts: &[Cut],
        progress: &Progress,
    ) -> Result<Vec<StoredSnapshot>, ProvisionError> {
        self.fate.meet("snapshot".to_owned(), self.inner.snapshot(cuts, progress), lost).await
    }

    async fn delete_snapshot(&self, snapshot: &SnapshotId) -> Result<(), ProvisionError> {
        let what = format!("delete snapshot {snapshot}");
        self.fate.meet(what, self.inner.delete_snapshot(snapshot), lost).await
    }

    async fn stored_snapshot(&self, snapshot: &SnapshotId) -> Result<Option<StoredSnapshot>, ProvisionError> {
        let what = format!("stored snapshot {snapshot}");
        self.fate.meet(what, self.inner.stored_snapshot(snapshot), lost).await
    }

    async fn capacity(&self) -> Result<Capacity, ProvisionError> {
        self.fate.meet("capacity".to_owned(), self.inner.capacity(), lost).await
    }

    async fn items(&self, after: Option<&Item>, limit: usize) -> Result<Vec<Item>, ProvisionError> {
        self.fate.meet("items".to_owned(), self.inner.items(after, limit), lost).await
    }
}
