//! The port: what a store must do, and the words it does it in.

use std::fmt;

use async_trait::async_trait;
use futures::stream::BoxStream;

use crate::StoreError;

/// What sort of record a key names. Each kind has a name space of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// The epoch, tickets and holds of one volume.
    Ledger,
    /// A volume: what it is, and how far its making, growing or deletion has come.
    Volume,
    /// A snapshot of one volume.
    Snapshot,
    /// Snapshots that were taken together.
    Group,
    /// A node that may ask for volumes.
    Node,
}

impl Kind {
    /// Every kind there is.
    pub const ALL: &[Kind] = &[Kind::Ledger, Kind::Volume, Kind::Snapshot, Kind::Group, Kind::Node];

    /// The kind's name in files, exports and messages. It never changes once released.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Kind::Ledger => "ledger",
            Kind::Volume => "volume",
            Kind::Snapshot => "snapshot",
            Kind::Group => "group",
            Kind::Node => "node",
        }
    }

    /// The kind of that name, if there is one.
    #[must_use]
    pub fn parse(name: &str) -> Option<Kind> {
        Kind::ALL.iter().copied().find(|kind| kind.as_str() == name)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The name of one record. Ordered by kind, then by the bytes of the name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// What sort of record it is.
    pub kind: Kind,
    /// Its name among the records of that kind.
    pub name: String,
}

impl Key {
    /// The key of the record `name` of `kind`.
    pub fn new(kind: Kind, name: impl Into<String>) -> Key {
        Key { kind, name: name.into() }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.kind, self.name)
    }
}

/// When a record was last written, in the order of one store. Every write of a store gets a higher one than
/// all before it; comparing revisions of two stores means nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision(u64);

impl Revision {
    /// The revision that an adapter numbers so. Callers other than adapters have no use for it.
    #[must_use]
    pub const fn new(number: u64) -> Revision {
        Revision(number)
    }

    /// The adapter's number.
    #[must_use]
    pub const fn number(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A record as the store holds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its name.
    pub key: Key,
    /// Its bytes; see [`crate::record`] for what is in them.
    pub value: Vec<u8>,
    /// When it was last written.
    pub revision: Revision,
}

/// A part of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// The records, by name in byte order.
    pub entries: Vec<Entry>,
    /// Where the next page starts (pass it as `after`); `None` when this was the last one.
    pub next: Option<String>,
    /// Every change that this page does not show comes after this revision. For a listing of several pages,
    /// watch from the revision of the *first*.
    pub revision: Revision,
}

/// A change that a watch shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The record was created or replaced.
    Put(Entry),
    /// The record was deleted.
    Deleted {
        /// Which one.
        key: Key,
        /// When.
        revision: Revision,
    },
}

impl Event {
    /// The record that changed.
    #[must_use]
    pub fn key(&self) -> &Key {
        match self {
            Event::Put(entry) => &entry.key,
            Event::Deleted { key, .. } => key,
        }
    }

    /// When it changed.
    #[must_use]
    pub fn revision(&self) -> Revision {
        match self {
            Event::Put(entry) => entry.revision,
            Event::Deleted { revision, .. } => *revision,
        }
    }
}

/// What a put expects to find.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Expected {
    /// No record of that name.
    Absent,
    /// The record as it was written at this revision.
    At(Revision),
}

impl Expected {
    /// Whether a record last written at `current` (`None`: no record) is what was expected.
    #[must_use]
    pub fn matches(self, current: Option<Revision>) -> bool {
        match self {
            Expected::Absent => current.is_none(),
            Expected::At(revision) => current == Some(revision),
        }
    }
}

/// A place that keeps records.
///
/// Dropping the future of a write does not take it back: it happens wholly or not at all, and the next read
/// tells which.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// The record, or `None` when there is none.
    async fn get(&self, key: &Key) -> Result<Option<Entry>, StoreError>;

    /// The records of `kind` whose names come after `after`, in byte order, at most `limit` of them.
    ///
    /// A record that exists during the whole of a listing of several pages is shown exactly once, whatever
    /// else is written meanwhile. A `limit` of 0 counts as 1: an empty page would look like an empty store.
    async fn list(&self, kind: Kind, after: Option<&str>, limit: usize) -> Result<Page, StoreError>;

    /// As [`Store::list`], but what the store remembers will do: it may lack what somebody else wrote a moment ago, never what was
    /// written through this store. For those who compare, and write by compare-and-swap what follows.
    async fn recall(&self, kind: Kind, after: Option<&str>, limit: usize) -> Result<Page, StoreError> {
        self.list(kind, after, limit).await
    }

    /// For a record that will be written later, at a time when somebody waits: where its first write costs more than the others, `value`
    /// is written now, unless there is a record. Elsewhere it does nothing. Nobody may rely on it.
    async fn prepare(&self, key: &Key, value: Vec<u8>) -> Result<(), StoreError> {
        let _ = (key, value);
        Ok(())
    }

    /// Every change of `kind` after `from`, in order and once. A record may also be shown again, at a later revision, as it was.
    ///
    /// [`StoreError::Compacted`], at once or later in the stream (which then ends), means that changes were
    /// missed: list again and watch from there. The stream also ends when the store is closed.
    async fn watch(
        &self,
        kind: Kind,
        from: Revision,
    ) -> Result<BoxStream<'static, Result<Event, StoreError>>, StoreError>;

    /// Writes the record if it is as `expected`. Durable when it returns `Ok`. Writing what is there already may change nothing and
    /// keep its revision.
    async fn put(&self, key: &Key, value: Vec<u8>, expected: Expected) -> Result<Revision, StoreError>;

    /// Deletes the record if it is still as written at `expected`. Durable when it returns `Ok`.
    async fn delete(&self, key: &Key, expected: Revision) -> Result<(), StoreError>;
}
