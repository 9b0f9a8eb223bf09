//! What can go wrong with a store, and what to do about it.

use std::path::PathBuf;

use crate::{Key, Kind, Revision};

/// Why a store did not do what it was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The record is not as the caller expected. Nothing was written.
    #[error("{key} {}, which is not what this write expected; nothing was written: read it again and decide anew", now(*current))]
    Conflict {
        /// The record.
        key: Key,
        /// When it was last written; `None` when it does not exist.
        current: Option<Revision>,
    },
    /// The changes after that revision are not all kept any more.
    #[error(
        "the changes of {kind} after revision {from} are no longer all kept: list again and watch from there"
    )]
    Compacted {
        /// What was watched.
        kind: Kind,
        /// Where the watch stood.
        from: Revision,
    },
    /// The store did not answer, or failed while writing. A write may or may not have happened.
    #[error(
        "the store at {place} does not answer ({reason}); a write under way may have happened or not: read the record again before deciding"
    )]
    Unavailable {
        /// The store: a path or an address.
        place: String,
        /// What was seen.
        reason: String,
    },
    /// There is no room. Nothing was written, and what was there is unharmed.
    #[error(
        "no space left for the store at {place} ({reason}); nothing was written: free some space there, no restart is needed"
    )]
    Full {
        /// The store.
        place: String,
        /// What was seen.
        reason: String,
    },
    /// What the store holds is damaged or gone.
    #[error(
        "the store at {place} is damaged ({reason}); nothing is read from it: move its directory aside, start with an empty one and import the latest export"
    )]
    Corrupt {
        /// The store.
        place: String,
        /// What was seen.
        reason: String,
    },
    /// Another process has the store open.
    #[error("{} is in use by {holder}: stop that one first, or choose another directory", path.display())]
    Locked {
        /// The lock file.
        path: PathBuf,
        /// The process that has it.
        holder: String,
    },
    /// The store was written by a later version of Bowline.
    #[error(
        "the store at {place} has format {found}, and this Bowline knows formats up to {known}: it was written by a newer Bowline; use that one"
    )]
    Newer {
        /// The store.
        place: String,
        /// The format found there.
        found: u64,
        /// The latest format known here.
        known: u64,
    },
}

impl StoreError {
    /// Whether it is certain that a write which failed so did not happen. When it is not, the record must be
    /// read again before anything is decided.
    #[must_use]
    pub fn outcome_known(&self) -> bool {
        match self {
            StoreError::Unavailable { .. } => false,
            StoreError::Conflict { .. }
            | StoreError::Compacted { .. }
            | StoreError::Full { .. }
            | StoreError::Corrupt { .. }
            | StoreError::Locked { .. }
            | StoreError::Newer { .. } => true,
        }
    }
}

fn now(current: Option<Revision>) -> String {
    current.map_or_else(|| "does not exist".to_owned(), |revision| format!("is at revision {revision}"))
}
