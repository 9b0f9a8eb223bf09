use async_trait::async_trait;
use bowline_core::{NeverAgain, TargetId, VolumeId};
use bowline_store::{Entry, Event, Expected, Key, Kind, Page, Revision, Store, StoreError};
use bowline_target::{Grant, Revocation, Target, TargetError};
use futures::stream::BoxStream;
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::Fate;

/// A store whose calls meet their fate.
pub struct FaultyStore {
    inner: Arc<dyn Store>,
    fate: Arc<Fate>,
}

impl FaultyStore {
    /// Stands in front of `inner`.
    pub fn new(inner: Arc<dyn Store>, fate: Arc<Fate>) -> Self {
        Self { inner, fate }
    }
}

fn unknown<T>() -> Result<T, StoreError> {
    Err(StoreError::Unavailable { place: "the store".to_owned(), reason: "lost on purpose".to_owned() })
}

#[async_trait]
impl Store for FaultyStore {
    async fn get(&self, key: &Key) -> Result<Option<Entry>, StoreError> {
        self.fate.meet(format!("get {}", key.name), self.inner.get(key), unknown).await
    }

    async fn list(&self, kind: Kind, after: Option<&str>, limit: usize) -> Result<Page, StoreError> {
        if self.fate.is_dead() {
            return std::future::pending().await;
        }
        self.inner.list(kind, after, limit).await
    }

    async fn watch(
        &self,
        kind: Kind,
        from: Revision,
    ) -> Result<BoxStream<'static, Result<Event, StoreError>>, StoreError> {
        self.inner.watch(kind, from).await
    }

    async fn put(&self, key: &Key, value: Vec<u8>, expected: Expected) -> Result<Revision, StoreError> {
        self.fate.meet(format!("put {}", key.name), self.inner.put(key, value, expected), unknown).await
    }

    /// As a store does whose first write costs more than the others.
    async fn prepare(&self, key: &Key, value: Vec<u8>) -> Result<(), StoreError> {
        match self.put(key, value, Expected::Absent).await {
            Ok(_) | Err(StoreError::Conflict { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn delete(&self, key: &Key, expected: Revision) -> Result<(), StoreError> {
        self.fate.meet(format!("delete {}", key.name), self.inner.delete(key, expected), unknown).await
    }
}

/// A target whose calls meet their fate.
pub struct FaultyTarget<T: ?Sized = dyn Target> {
    pub(crate) inner: Arc<T>,
    pub(crate) fate: Arc<Fate>,
}

impl<T: ?Sized> FaultyTarget<T> {
    /// Stands in front of `inner`.
    pub fn new(inner: Arc<T>, fate: Arc<Fate>) -> Self {
        Self { inner, fate }
    }
}

fn silent<T>() -> Result<T, TargetError> {
    Err(TargetError::Unreachable { error: "lost on purpose".to_owned() })
}

#[async_trait]
impl<T: Target + ?Sized> Target for FaultyTarget<T> {
    fn id(&self) -> &TargetId {
        self.inner.id()
    }

    async fn allow(&self, grant: &Grant) -> Result<(), TargetError> {
        let what = format!("allow {} {} e{}", grant.volume, grant.node, grant.epoch);
        self.fate.meet(what, self.inner.allow(grant), silent).await
    }

    async fn revoke(&self, revocation: &Revocation) -> Result<NeverAgain, TargetError> {
        let what = format!("revoke {} {} e{}", revocation.volume, revocation.node, revocation.epoch);
        self.fate.meet(what, self.inner.revoke(revocation), silent).await
    }

    async fn exports(
        &self,
        after: Option<&VolumeId>,
        limit: usize,
    ) -> Result<bowline_target::Page, TargetError> {
        self.fate.meet("list".to_owned(), self.inner.exports(after, limit), silent).await
    }

    fn context(&self, grant: &Grant) -> BTreeMap<String, String> {
        self.inner.context(grant)
    }
}
