//! The store with a failpoint before and after every write: only in processes that tests end there.

use async_trait::async_trait;
use bowline_failpoint::pass;
use bowline_store::{Entry, Event, Expected, Key, Kind, Page, Revision, Store, StoreError};
use futures::stream::BoxStream;
use std::sync::Arc;

/// Passes everything on.
pub(crate) struct Stepped(pub(crate) Arc<dyn Store>);

#[async_trait]
impl Store for Stepped {
    async fn get(&self, key: &Key) -> Result<Option<Entry>, StoreError> {
        self.0.get(key).await
    }

    async fn list(&self, kind: Kind, after: Option<&str>, limit: usize) -> Result<Page, StoreError> {
        self.0.list(kind, after, limit).await
    }

    async fn recall(&self, kind: Kind, after: Option<&str>, limit: usize) -> Result<Page, StoreError> {
        self.0.recall(kind, after, limit).await
    }

    async fn prepare(&self, key: &Key, value: Vec<u8>) -> Result<(), StoreError> {
        self.0.prepare(key, value).await
    }

    async fn watch(
        &self,
        kind: Kind,
        from: Revision,
    ) -> Result<BoxStream<'static, Result<Event, StoreError>>, StoreError> {
        self.0.watch(kind, from).await
    }

    async fn put(&self, key: &Key, value: Vec<u8>, expected: Expected) -> Result<Revision, StoreError> {
        pass("store.put.before");
        let written = self.0.put(key, value, expected).await;
        pass("store.put.after");
        written
    }

    async fn delete(&self, key: &Key, expected: Revision) -> Result<(), StoreError> {
        pass("store.delete.before");
        let deleted = self.0.delete(key, expected).await;
        pass("store.delete.after");
        deleted
    }
}
