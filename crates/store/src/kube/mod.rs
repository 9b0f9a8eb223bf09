//! A store in Kubernetes: every record is the status of one object of Bowline's own kinds.
//!
//! # Flow
//!
//! A record is replaced by one PUT on `/status` that names the resourceVersion it expects: that is the
//! compare-and-swap. It is made by a POST of the object with its spec and then that PUT; a crash between the two leaves an
//! object without a record, which the next creation completes. It is deleted by marking the object (with the
//! resourceVersion as a precondition) and then removing our finalizer, which ends both at once; a crash between the two
//! leaves the record, and whoever deletes it again completes that.
//!
//! # Guarantees
//!
//! - The [`Guard`] is asked immediately before every write, so that a controller that is no longer the leader stops by
//!   itself; what keeps it from doing harm if it does not is the resourceVersion.
//! - An object that has a record stays, whoever deletes it, until the record is deleted here: our finalizer keeps it.
//! - An API server that does not know Bowline's kinds, or does not answer, is an error and never an empty store.
//! - What an older definition of the kinds drops silently is noticed at once ([`StoreError::Pruned`]).
//!
//! # Assumptions
//!
//! The client does not repeat writes by itself: what it does then looks like somebody else's write. [`client`] makes
//! one that does not.
//!
//! # Caveats
//!
//! - Whatever changes an object gives its record a new revision, also an edit of its spec: a watch shows the record
//!   again as it was, and a write that expected the earlier revision conflicts.
//! - Writing what is there already changes nothing, and keeps its revision.

mod cache;
mod deadline;
mod follow;
mod object;
mod pages;
mod people;
mod request;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use kube::{Client, Config};
use serde_json::{Map, Value, json};
use tokio::task::AbortHandle;

use crate::{Entry, Event, Expected, Key, Kind, Page, Revision, Store, StoreError};
use cache::Cache;
pub use deadline::bounded;
use follow::{Follow, Signal};
use object::{Object, Place};
use pages::Tokens;
use request::{Api, Trouble};

/// Says whether this process may write.
pub trait Guard: Send + Sync {
    /// `Ok` while it may.
    ///
    /// # Errors
    ///
    /// Why it may not, for people.
    fn may_write(&self) -> Result<(), String>;
}

/// A client that never repeats a write by itself, and waits for no answer without end.
///
/// # Errors
///
/// When the configuration cannot be used, such as a certificate that is none.
pub fn client(mut config: Config) -> Result<Client, kube::Error> {
    config.default_retry = false;
    Client::try_from(config).map(bounded)
}

/// A [`Store`] in Kubernetes.
pub struct KubeStore {
    api: Arc<Api>,
    ledgers: Arc<Cache>,
    volumes: Arc<Cache>,
    tokens: Tokens,
    /// What people are to be told of a record beyond what it says itself; goes along with the next write of it.
    notes: Mutex<BTreeMap<Key, Map<String, Value>>>,
    feeders: [AbortHandle; 2],
}

impl KubeStore {
    /// A store that asks `guard` before every write. Must be made within a tokio runtime: it keeps a watch of the
    /// ledgers and one of the volumes there until it is dropped.
    pub fn new(client: Client, guard: Arc<dyn Guard>) -> KubeStore {
        let api = Arc::new(Api::new(client, guard));
        let [ledgers, volumes] = [Kind::Ledger, Kind::Volume].map(|kind| Arc::new(Cache::new(kind)));
        let feeders = [&ledgers, &volumes]
            .map(|cache| tokio::spawn(cache::feed(Arc::clone(&api), Arc::clone(cache))).abort_handle());
        KubeStore { api, ledgers, volumes, tokens: Tokens::default(), notes: Mutex::default(), feeders }
    }

    /// How many ledgers are kept in memory, and roughly how many bytes they take; for metrics.
    pub fn cached(&self) -> (usize, usize) {
        self.ledgers.size()
    }

    /// Remembers what people are to be told of a record (fields of its status that are for people), to go along with its
    /// next write. Costs no request. [`KubeStore::show`] writes it when nothing else does.
    pub fn note(&self, key: &Key, fields: Map<String, Value>) {
        let known = people::fields(key.kind);
        let fields: Map<_, _> =
            fields.into_iter().filter(|(name, _)| known.contains(&name.as_str())).collect();
        self.notes.lock().unwrap_or_else(PoisonError::into_inner).insert(key.clone(), fields);
    }

    /// Writes what was noted about a record, and nothing of the record itself. It gets a new revision by that, so
    /// this is for a record that is at rest. `Ok(None)` if there is no such record, or nothing was noted.
    ///
    /// # Errors
    ///
    /// As [`Store::put`].
    pub async fn show(&self, key: &Key) -> Result<Option<Revision>, StoreError> {
        let Some(place) = Place::of(key) else { return Ok(None) };
        let Some(current) = self.live(key).await?.filter(Object::has_record) else { return Ok(None) };
        let Some(entry) = current.entry(key)? else { return Ok(None) };
        let told = self.told(key, &entry.value);
        if told.is_empty() {
            return Ok(None);
        }
        let patch = json!({
            "metadata": { "resourceVersion": current.metadata.resource_version, "uid": current.metadata.uid },
            "status": told,
        });
        let written = self.api.patch_status(&place, &patch).await;
        let object = self.settle(key, written).await?;
        Ok(Some(object.revision()?))
    }

    /// Lets an object go that somebody deleted before it ever had a record, or after its status was wiped. Does nothing
    /// to any other. Tells whether it did.
    ///
    /// # Errors
    ///
    /// As [`Store::delete`].
    pub async fn let_go(&self, key: &Key) -> Result<bool, StoreError> {
        let Some(place) = Place::of(key) else { return Ok(false) };
        match self.live(key).await? {
            Some(object) if object.is_going() && object.is_held() && !object.has_record() => {
                let released = self.api.set_finalizers(&place, &object, object.other_finalizers()).await;
                self.settle(key, released).await?;
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    /// Where the records of this kind are remembered.
    fn cache(&self, kind: Kind) -> Option<&Cache> {
        match kind {
            Kind::Ledger => Some(&self.ledgers),
            Kind::Volume => Some(&self.volumes),
            Kind::Snapshot | Kind::Group | Kind::Node => None,
        }
    }

    /// The object as the API server has it now.
    async fn live(&self, key: &Key) -> Result<Option<Object>, StoreError> {
        let Some(place) = Place::of(key) else { return Ok(None) };
        match self.api.get(&place).await {
            Ok(object) => Ok(Some(object)),
            Err(Trouble::NotFound) => Ok(None),
            Err(trouble) => Err(trouble.on(key)),
        }
    }

    /// What became of a write: the object as it is now, or the error that says so. Whatever is not certain makes the
    /// cache forget the record.
    async fn settle(&self, key: &Key, written: Result<Object, Trouble>) -> Result<Object, StoreError> {
        match written {
            Ok(object) => {
                self.learn(key, &object)?;
                Ok(object)
            }
            Err(Trouble::Conflict | Trouble::Exists | Trouble::NotFound) => Err(self.conflict(key).await?),
            Err(trouble) => {
                self.forget(key);
                Err(trouble.on(key))
            }
        }
    }

    fn learn(&self, key: &Key, object: &Object) -> Result<(), StoreError> {
        if let Some(cache) = self.cache(key.kind) {
            match object.entry(key)? {
                Some(entry) => cache.put(entry),
                None => cache.gone(&key.name, object.revision()?),
            }
        }
        Ok(())
    }

    fn forget(&self, key: &Key) {
        if let Some(cache) = self.cache(key.kind) {
            cache.doubt(&key.name);
        }
    }

    /// A conflict, and what is there instead: always from a live read, which the cache learns from.
    async fn conflict(&self, key: &Key) -> Result<StoreError, StoreError> {
        self.forget(key);
        let object = self.live(key).await?;
        if let Some(object) = &object {
            self.learn(key, object)?;
        }
        let record = object.filter(Object::has_record);
        let current = record.map(|object| object.revision()).transpose()?;
        Ok(StoreError::Conflict { key: key.clone(), current })
    }

    /// The status of an object that has this record: its fields, its version, and what people are told.
    fn status(&self, key: &Key, value: &[u8]) -> Result<Map<String, Value>, StoreError> {
        let mut status = object::status_of(key, value)?;
        for (name, told) in self.told(key, value) {
            status.entry(name).or_insert(told);
        }
        Ok(status)
    }

    fn told(&self, key: &Key, value: &[u8]) -> Map<String, Value> {
        let notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
        people::told(key.kind, value, notes.get(key))
    }

    async fn create(&self, key: &Key, value: &[u8]) -> Result<Revision, StoreError> {
        let place = Place::of(key).ok_or_else(|| object::no_place(key))?;
        let status = self.status(key, value)?;
        let spec = object::spec_of(key, value)?;
        let mut object = match self.api.create(&place, &spec).await {
            Ok(object) => object,
            Err(Trouble::Exists) => match self.live(key).await? {
                Some(object) if object.has_record() => return Err(self.conflict(key).await?),
                Some(object) => object,
                // Gone again by now: whoever asked looks again.
                None => return Err(StoreError::Conflict { key: key.clone(), current: None }),
            },
            Err(trouble) => return Err(trouble.on(key)),
        };
        if object.is_going() {
            return Err(self.make_way(key, &place, &object).await?);
        }
        if !object.is_held() {
            // Made by somebody else, as a wish.
            let held = self.api.set_finalizers(&place, &object, object.with_ours()).await;
            object = self.settle(key, held).await?;
        }
        self.replace(key, &place, &object.metadata.resource_version, &status).await
    }

    /// An object without a record that somebody deleted stands in the way of a new one.
    async fn make_way(&self, key: &Key, place: &Place, object: &Object) -> Result<StoreError, StoreError> {
        if object.is_held() {
            let released = self.api.set_finalizers(place, object, object.other_finalizers()).await;
            self.settle(key, released).await?;
        }
        let others = object.other_finalizers();
        if others.is_empty() {
            return Ok(StoreError::Conflict { key: key.clone(), current: None });
        }
        let reason = format!("the object was deleted, and is kept by the finalizers {}", others.join(", "));
        Ok(StoreError::Refused { key: key.clone(), reason })
    }

    async fn replace(
        &self,
        key: &Key,
        place: &Place,
        expected: &str,
        status: &Map<String, Value>,
    ) -> Result<Revision, StoreError> {
        let written = self.api.put_status(place, expected, status).await;
        let object = self.settle(key, written).await?;
        if let Some(field) = object.lost(status) {
            self.forget(key);
            return Err(StoreError::Pruned { key: key.clone(), field });
        }
        if object.is_held() || object.is_going() {
            return object.revision();
        }
        // Somebody took our finalizer off. The record is written all the same.
        tracing::warn!(%key, "the finalizer of an object that has a record was removed by hand; putting it back");
        match self.api.set_finalizers(place, &object, object.with_ours()).await {
            Ok(object) => {
                self.learn(key, &object)?;
                object.revision()
            }
            Err(_) => object.revision(),
        }
    }
}

impl Drop for KubeStore {
    fn drop(&mut self) {
        for feeder in &self.feeders {
            feeder.abort();
        }
    }
}

#[async_trait]
impl Store for KubeStore {
    async fn get(&self, key: &Key) -> Result<Option<Entry>, StoreError> {
        if let Some(entry) = self.cache(key.kind).and_then(|cache| cache.get(&key.name)) {
            return Ok(Some(entry));
        }
        let Some(object) = self.live(key).await? else { return Ok(None) };
        self.learn(key, &object)?;
        object.entry(key)
    }

    async fn list(&self, kind: Kind, after: Option<&str>, limit: usize) -> Result<Page, StoreError> {
        pages::list(&self.api, &self.tokens, kind, after, limit).await
    }

    async fn recall(&self, kind: Kind, after: Option<&str>, limit: usize) -> Result<Page, StoreError> {
        if let Some(cache) = self.cache(kind)
            && let Some(page) = cache.page(after, limit).await
        {
            return Ok(page);
        }
        self.list(kind, after, limit).await
    }

    /// A record's first write makes its object, too.
    async fn prepare(&self, key: &Key, value: Vec<u8>) -> Result<(), StoreError> {
        match self.create(key, &value).await {
            Ok(_) | Err(StoreError::Conflict { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn watch(
        &self,
        kind: Kind,
        from: Revision,
    ) -> Result<BoxStream<'static, Result<Event, StoreError>>, StoreError> {
        if Place::collection(kind).is_none() {
            return Ok(stream::pending().boxed());
        }
        let follow = Follow::open(Arc::clone(&self.api), kind, from).await?;
        Ok(stream::unfold(Some(follow), |follow| async {
            let mut follow = follow?;
            loop {
                match follow.next().await {
                    Signal::Event(event) => return Some((Ok(event), Some(follow))),
                    Signal::Alive | Signal::Broken => {}
                    Signal::Compacted(error) => return Some((Err(error), None)),
                }
            }
        })
        .boxed())
    }

    async fn put(&self, key: &Key, value: Vec<u8>, expected: Expected) -> Result<Revision, StoreError> {
        match expected {
            Expected::Absent => self.create(key, &value).await,
            Expected::At(revision) => {
                let place = Place::of(key).ok_or_else(|| object::no_place(key))?;
                let status = self.status(key, &value)?;
                self.replace(key, &place, &revision.to_string(), &status).await
            }
        }
    }

    async fn delete(&self, key: &Key, expected: Revision) -> Result<(), StoreError> {
        let absent = || StoreError::Conflict { key: key.clone(), current: None };
        let place = Place::of(key).ok_or_else(absent)?;
        match self.api.delete(&place, &expected.to_string()).await {
            Ok(Some(marked)) if marked.is_held() => {
                let released = self.api.set_finalizers(&place, &marked, marked.other_finalizers()).await;
                let last = self.settle(key, released).await?;
                if let Some(cache) = self.cache(key.kind) {
                    cache.gone(&key.name, last.revision()?);
                }
            }
            // There was no finalizer of ours to keep it.
            Ok(_) => self.forget(key),
            Err(trouble) => return Err(self.settle(key, Err(trouble)).await.err().unwrap_or_else(absent)),
        }
        self.notes.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
        Ok(())
    }
}
