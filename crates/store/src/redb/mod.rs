//! A store in one file on a local disk, for a Bowline without Kubernetes.
//!
//! `place.rs` says which files are in its directory, `writer.rs` how it writes and what it does when the disk
//! fails.

mod disk;
mod lock;
mod place;
mod schema;
mod transfer;
mod writer;

#[cfg(test)]
mod faulty;
#[cfg(test)]
mod power;
#[cfg(test)]
mod tests;

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::thread::{self, JoinHandle};

use ::redb::{Database, ReadTransaction, ReadableDatabase};
use async_trait::async_trait;
use futures::stream::BoxStream;
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::{mpsc, oneshot};

use self::disk::Device;
use self::lock::Lock;
use self::place::Place;
pub use self::transfer::{Transfer, TransferError};
use self::writer::{Change, Pending, Request, Writer};
use crate::history::{History, HistoryLimits};
use crate::{Entry, Event, Expected, Key, Kind, Page, Revision, Store, StoreError};

/// How many requests may wait for the writer before the next one waits to be let in.
const QUEUE: usize = 512;

/// A [`Store`] in one file.
///
/// Dropping it waits for the writes that were handed in, and then gives the directory free.
///
/// # Caveats
///
/// Damage to the file is found when it is opened. One case cannot be told from a crash in the middle of a
/// commit: the process was killed *and* the pages of its very last commit were changed afterwards. The store
/// then opens as of the commit before.
#[derive(Debug)]
pub struct RedbStore {
    shared: Arc<Shared>,
    /// Whoever has it writes.
    writer: Arc<Mutex<Writer>>,
    /// `None` only while being dropped.
    requests: Option<mpsc::Sender<Request>>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    /// Or why it is closed.
    database: RwLock<Result<Database, StoreError>>,
    history: History,
    place: Place,
    device: Device,
    /// Requests that were handed to the thread and that it has not begun with.
    queued: AtomicUsize,
    // The last field, so that the lock is given back after the database is closed.
    _lock: Lock,
}

impl RedbStore {
    /// Opens the store in a directory, and makes both if there never was one.
    ///
    /// Reads every record once, to check it.
    ///
    /// # Errors
    ///
    /// [`StoreError::Locked`] when another process has it, [`StoreError::Corrupt`] when it is damaged or gone,
    /// [`StoreError::Newer`] when a newer Bowline wrote it.
    pub fn open(dir: &Path) -> Result<RedbStore, StoreError> {
        RedbStore::open_with(dir, HistoryLimits::default())
    }

    /// Opens the store in a directory, and keeps so many changes for its watches.
    ///
    /// # Errors
    ///
    /// As [`RedbStore::open`].
    pub fn open_with(dir: &Path, limits: HistoryLimits) -> Result<RedbStore, StoreError> {
        RedbStore::open_on(dir, limits, disk::plain_file())
    }

    fn open_on(dir: &Path, limits: HistoryLimits, device: Device) -> Result<RedbStore, StoreError> {
        let place = Place::new(dir);
        place.make_directory()?;
        let lock = Lock::take(&place)?;
        let database = place.open(&device)?;
        let read = || schema::revision(&database.begin_read()?);
        let head = read().map_err(|error| place.open_fault(error))?;
        let history = History::new(limits, head);
        let (database, queued) = (RwLock::new(Ok(database)), AtomicUsize::new(0));
        let shared = Arc::new(Shared { database, history, place, device, queued, _lock: lock });
        let (requests, queue) = mpsc::channel(QUEUE);
        let writer = Arc::new(Mutex::new(Writer::new(Arc::clone(&shared), head)));
        let theirs = Arc::clone(&writer);
        let thread = thread::Builder::new()
            .name("store-writer".to_owned())
            .spawn(move || writer::run(&theirs, queue))
            .map_err(|error| shared.place.unavailable(&error))?;
        tracing::info!(path = %shared.place.database().display(), revision = %head, "store opened");
        Ok(RedbStore { shared, writer, requests: Some(requests), thread: Some(thread) })
    }

    async fn write(&self, key: &Key, change: Change) -> Result<Revision, StoreError> {
        let (reply, answer) = oneshot::channel();
        let pending = Pending { key: key.clone(), change, reply };
        if let Some(pending) = self.write_here(pending) {
            self.send(Request::Write(pending)).await?;
        }
        answer.await.map_err(|_| self.stopped())?
    }

    /// Writes on the caller's thread if nobody else does or wants to: two thread switches less. Gives back what has to queue up.
    fn write_here(&self, pending: Pending) -> Option<Pending> {
        let runtime = Handle::try_current().map(|runtime| runtime.runtime_flavor());
        // Elsewhere, everybody would have to wait for the disk.
        let blocks_nobody = matches!(runtime, Ok(RuntimeFlavor::MultiThread));
        if !blocks_nobody || self.shared.queued.load(Ordering::SeqCst) > 0 {
            return Some(pending);
        }
        match self.writer.try_lock() {
            Ok(mut writer) => {
                tokio::task::block_in_place(|| writer.write(vec![pending]));
                None
            }
            Err(_) => Some(pending),
        }
    }

    async fn send(&self, request: Request) -> Result<(), StoreError> {
        let requests = self.requests.as_ref().ok_or_else(|| self.stopped())?;
        let permit = requests.reserve().await.map_err(|_| self.stopped())?;
        self.shared.queued.fetch_add(1, Ordering::SeqCst);
        permit.send(request);
        Ok(())
    }

    fn stopped(&self) -> StoreError {
        self.shared.place.unavailable(&"its writer stopped; restart Bowline")
    }

    /// Runs a read on a snapshot. If it finds that the database has failed, the writer opens it again.
    fn read<T>(
        &self,
        read: impl FnOnce(&ReadTransaction) -> Result<T, ::redb::Error>,
    ) -> Result<T, StoreError> {
        let answer = self.shared.read(read);
        if answer.is_err() {
            self.ask_for_recovery();
        }
        answer
    }

    fn ask_for_recovery(&self) {
        // A full queue means that the writer will find out by itself.
        if let Some(Ok(permit)) = self.requests.as_ref().map(mpsc::Sender::try_reserve) {
            self.shared.queued.fetch_add(1, Ordering::SeqCst);
            permit.send(Request::Recover);
        }
    }
}

impl Drop for RedbStore {
    fn drop(&mut self) {
        self.requests = None;
        if let Some(thread) = self.thread.take() {
            // A writer that panicked has already said so.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn with_database<T>(
        &self,
        run: impl FnOnce(&Database) -> Result<T, ::redb::Error>,
    ) -> Result<T, StoreError> {
        match &*self.database.read().unwrap_or_else(PoisonError::into_inner) {
            Ok(database) => run(database).map_err(|error| self.place.fault(error)),
            Err(closed) => Err(closed.clone()),
        }
    }

    fn read<T>(
        &self,
        read: impl FnOnce(&ReadTransaction) -> Result<T, ::redb::Error>,
    ) -> Result<T, StoreError> {
        let txn = self.with_database(|database| Ok(database.begin_read()?))?;
        read(&txn).map_err(|error| self.place.fault(error))
    }

    fn close(&self, why: StoreError) {
        let before = self.swap(Err(why));
        drop(before);
    }

    fn install(&self, database: Database) {
        drop(self.swap(Ok(database)));
    }

    /// The old one is dropped by the caller, outside of the lock: closing a database may write.
    fn swap(&self, state: Result<Database, StoreError>) -> Result<Database, StoreError> {
        std::mem::replace(&mut *self.database.write().unwrap_or_else(PoisonError::into_inner), state)
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("place", &self.place).finish_non_exhaustive()
    }
}

#[async_trait]
impl Store for RedbStore {
    // On the caller's thread: a few pages, nearly always in the cache, against two thread switches.
    async fn get(&self, key: &Key) -> Result<Option<Entry>, StoreError> {
        self.read(|txn| schema::get(txn, key))
    }

    // Not on the caller's thread: how much it reads is up to `limit`.
    async fn list(&self, kind: Kind, after: Option<&str>, limit: usize) -> Result<Page, StoreError> {
        let shared = Arc::clone(&self.shared);
        let after = after.map(ToOwned::to_owned);
        let read = move || shared.read(|txn| schema::list(txn, kind, after.as_deref(), limit));
        let answer =
            tokio::task::spawn_blocking(read).await.map_err(|error| self.shared.place.unavailable(&error))?;
        if answer.is_err() {
            self.ask_for_recovery();
        }
        answer
    }

    async fn watch(
        &self,
        kind: Kind,
        from: Revision,
    ) -> Result<BoxStream<'static, Result<Event, StoreError>>, StoreError> {
        // Asked of the file and not of the history, which learns of a commit a moment after it is readable.
        if from > self.read(schema::revision)? {
            return Err(StoreError::Compacted { kind, from });
        }
        self.shared.history.follow(kind, from)
    }

    async fn put(&self, key: &Key, value: Vec<u8>, expected: Expected) -> Result<Revision, StoreError> {
        self.write(key, Change::Put { value, expected }).await
    }

    async fn delete(&self, key: &Key, expected: Revision) -> Result<(), StoreError> {
        self.write(key, Change::Delete { expected }).await.map(|_| ())
    }
}
