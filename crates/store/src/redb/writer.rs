//! The one writer: group commit, and recovery from a disk that failed.
//!
//! # Flow
//!
//! Whoever finds nobody writing writes by himself, on his own thread. Other writes queue up while a commit is under way; a thread
//! puts all that are waiting into one transaction, with one fsync, in the order they came. A write whose expectation fails is answered with a conflict and leaves the
//! others alone. Everybody is answered after the commit, so a write that waits for nobody costs exactly one.
//!
//! The commits are redb's default: durable, in one phase, checked by checksum when opened after a crash. Its
//! second phase (another fsync per commit) defends against somebody who chooses the values, orders the disk's
//! writes and crashes the machine; whoever can do that here can write the file.
//!
//! # After a failure
//!
//! redb refuses everything after its first I/O error, so the database is opened again, which also tells
//! whether a commit that failed half-way took place.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use ::redb::{Database, ReadableDatabase, ReadableTable, ReadableTableMetadata, WriteTransaction};
use tokio::sync::{mpsc, oneshot};

use super::Shared;
use super::schema;
use crate::{Entry, Event, Expected, Key, Kind, Revision, StoreError};

/// At most so many writes in one transaction, so that the first of them is not kept waiting for long.
const BATCH: usize = 256;

pub(super) enum Request {
    Write(Pending),
    Import(Import),
    /// A read found that the database has failed.
    Recover,
}

pub(super) struct Pending {
    pub(super) key: Key,
    pub(super) change: Change,
    pub(super) reply: oneshot::Sender<Result<Revision, StoreError>>,
}

pub(super) enum Change {
    Put { value: Vec<u8>, expected: Expected },
    Delete { expected: Revision },
}

pub(super) struct Import {
    pub(super) entries: Vec<Entry>,
    pub(super) revision: Revision,
    /// `false`: the store is not empty, and was left alone.
    pub(super) reply: oneshot::Sender<Result<bool, StoreError>>,
}

#[derive(Debug)]
pub(super) struct Writer {
    shared: Arc<Shared>,
    /// The last revision that is known to be committed.
    head: Revision,
}

/// Works off what is queued, until every sender is gone.
pub(super) fn run(writer: &Mutex<Writer>, mut requests: mpsc::Receiver<Request>) {
    while let Some(first) = requests.blocking_recv() {
        // One that panicked stays as it was left: nothing is written any more, and everybody is told so.
        let Ok(mut writer) = writer.lock() else { return };
        writer.work(first, &mut requests);
    }
}

/// What a transaction does once it is committed.
struct Applied {
    answers: Vec<Result<Revision, StoreError>>,
    events: Vec<Event>,
    revision: Revision,
}

enum Committed {
    Yes,
    /// The commit failed, but the database has it: the watches were told to list again.
    AfterAll,
}

impl Writer {
    pub(super) fn new(shared: Arc<Shared>, head: Revision) -> Writer {
        Writer { shared, head }
    }

    /// One request, and those that are waiting behind it.
    fn work(&mut self, first: Request, requests: &mut mpsc::Receiver<Request>) {
        let mut batch = Vec::new();
        let mut recover = false;
        let mut next = Some(first);
        while let Some(request) = next {
            self.shared.queued.fetch_sub(1, Ordering::SeqCst);
            match request {
                Request::Write(pending) => batch.push(pending),
                Request::Import(import) => {
                    self.write(std::mem::take(&mut batch));
                    self.import(import);
                }
                // Many reads may have asked; one attempt answers all.
                Request::Recover => recover = true,
            }
            next = if batch.len() < BATCH { requests.try_recv().ok() } else { None };
        }
        if recover {
            self.heal();
        }
        self.write(batch);
    }

    pub(super) fn write(&mut self, batch: Vec<Pending>) {
        if batch.is_empty() {
            return;
        }
        match self.attempt(&batch) {
            Ok(answers) => {
                for (pending, answer) in batch.into_iter().zip(answers) {
                    // Whoever has stopped waiting will read the record.
                    let _ = pending.reply.send(answer);
                }
            }
            // One large write must not fail the small ones, such as the deletion that makes room.
            Err(StoreError::Full { .. }) if batch.len() > 1 => {
                batch.into_iter().for_each(|pending| self.write(vec![pending]));
            }
            Err(error) => {
                tracing::warn!(writes = batch.len(), %error, "writes failed");
                for pending in batch {
                    let _ = pending.reply.send(Err(error.clone()));
                }
            }
        }
    }

    fn attempt(&mut self, batch: &[Pending]) -> Result<Vec<Result<Revision, StoreError>>, StoreError> {
        let txn = self.begin()?;
        let applied = match apply(&txn, batch) {
            Ok(applied) => applied,
            Err(error) => return Err(self.failed_before_commit(txn, error)),
        };
        if applied.events.is_empty() {
            return Ok(applied.answers);
        }
        match self.commit(txn, applied.revision)? {
            Committed::Yes => self.shared.history.publish(applied.events),
            Committed::AfterAll => {}
        }
        Ok(applied.answers)
    }

    fn import(&mut self, import: Import) {
        let Import { entries, revision, reply } = import;
        let mut attempt = || {
            let txn = self.begin()?;
            match fill(&txn, &entries, revision) {
                Ok(true) => {}
                Ok(false) => return Ok(false),
                Err(error) => return Err(self.failed_before_commit(txn, error)),
            }
            self.commit(txn, revision)?;
            self.shared.history.reset(revision);
            Ok(true)
        };
        let _ = reply.send(attempt());
    }

    fn begin(&mut self) -> Result<WriteTransaction, StoreError> {
        if let Ok(txn) = self.shared.with_database(|database| Ok(database.begin_write()?)) {
            return Ok(txn);
        }
        self.reopen()?;
        self.shared.with_database(|database| Ok(database.begin_write()?))
    }

    fn heal(&mut self) {
        match self.begin().map(WriteTransaction::abort) {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, "store still failing"),
            Err(error) => tracing::warn!(%error, "store still failing"),
        }
    }

    fn failed_before_commit(&mut self, txn: WriteTransaction, error: ::redb::Error) -> StoreError {
        let fault = self.shared.place.fault(error);
        // It must be gone before the database can be opened again. Its failure adds nothing.
        let _ = txn.abort();
        if let Err(error) = self.reopen() {
            tracing::warn!(%error, "store cannot be opened again yet");
        }
        fault
    }

    fn commit(&mut self, txn: WriteTransaction, revision: Revision) -> Result<Committed, StoreError> {
        let error = match txn.commit() {
            Ok(()) => {
                self.head = revision;
                return Ok(Committed::Yes);
            }
            Err(error) => error,
        };
        let fault = self.shared.place.fault(error.into());
        match self.reopen() {
            Ok(()) if self.head >= revision => Ok(Committed::AfterAll),
            Ok(()) => Err(fault),
            Err(reopen) => Err(self.shared.place.unavailable(&format!("{fault}; then: {reopen}"))),
        }
    }

    /// Opens the database again after it failed, or leaves it closed with the reason.
    fn reopen(&mut self) -> Result<(), StoreError> {
        let shared = Arc::clone(&self.shared);
        // Two handles on one file would lock each other out.
        shared.close(shared.place.unavailable(&"it is being opened again"));
        match self.reopened() {
            Ok(database) => {
                tracing::info!(revision = %self.head, "store opened again");
                shared.install(database);
                Ok(())
            }
            Err(error) => {
                shared.close(error.clone());
                Err(error)
            }
        }
    }

    fn reopened(&mut self) -> Result<Database, StoreError> {
        let Shared { place, device, history, .. } = &*self.shared;
        let revision = |database: &Database| -> Result<Revision, StoreError> {
            let read = || schema::revision(&database.begin_read()?);
            read().map_err(|error| place.open_fault(error))
        };
        let mut database = place.open_existing(device)?;
        let mut found = revision(&database)?;
        if found > self.head {
            // A commit that failed is there nevertheless: it may be visible and not on the disk.
            drop(database);
            place.rewrite()?;
            database = place.open_existing(device)?;
            found = revision(&database)?;
        }
        if found < self.head {
            let reason = format!("it went back from revision {} to {found}", self.head);
            return Err(place.corrupt(&reason));
        }
        if found > self.head {
            self.head = found;
            history.reset(found);
        }
        Ok(database)
    }
}

fn apply(txn: &WriteTransaction, batch: &[Pending]) -> Result<Applied, ::redb::Error> {
    let mut applied =
        Applied { answers: Vec::new(), events: Vec::new(), revision: schema::revision_to_write(txn)? };
    for Pending { key, change, .. } in batch {
        let mut table = txn.open_table(schema::records(key.kind))?;
        let name = key.name.as_str();
        let current = table.get(name)?.map(|found| Revision::new(found.value().0));
        let expected = match change {
            Change::Put { expected, .. } => *expected,
            Change::Delete { expected } => Expected::At(*expected),
        };
        if !expected.matches(current) {
            applied.answers.push(Err(StoreError::Conflict { key: key.clone(), current }));
            continue;
        }
        let revision = Revision::new(applied.revision.number() + 1);
        let event = match change {
            Change::Put { value, .. } => {
                table.insert(name, (revision.number(), value.as_slice()))?;
                Event::Put(Entry { key: key.clone(), value: value.clone(), revision })
            }
            Change::Delete { .. } => {
                table.remove(name)?;
                Event::Deleted { key: key.clone(), revision }
            }
        };
        applied.revision = revision;
        applied.events.push(event);
        applied.answers.push(Ok(revision));
    }
    if !applied.events.is_empty() {
        schema::set_revision(txn, applied.revision)?;
    }
    Ok(applied)
}

/// Puts everything into a store that was never written to; `false` when this is not one.
fn fill(txn: &WriteTransaction, entries: &[Entry], revision: Revision) -> Result<bool, ::redb::Error> {
    if schema::revision_to_write(txn)? != Revision::new(0) {
        return Ok(false);
    }
    for kind in Kind::ALL {
        let mut table = txn.open_table(schema::records(*kind))?;
        if !table.is_empty()? {
            return Ok(false);
        }
        for entry in entries.iter().filter(|entry| entry.key.kind == *kind) {
            table.insert(entry.key.name.as_str(), (entry.revision.number(), entry.value.as_slice()))?;
        }
    }
    schema::set_revision(txn, revision)?;
    Ok(true)
}
