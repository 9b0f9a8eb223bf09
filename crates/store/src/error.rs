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
    /// This process may not write any more. Nothing was written.
    #[error(
        "this controller is no longer the leader ({reason}); nothing was written: the one that leads now goes on with it"
    )]
    NotLeader {
        /// What the lease says.
        reason: String,
    },
    /// The store will not take it. Nothing was written.
    #[error(
        "the API server refuses {key} ({reason}); nothing was written: see that the definitions and permissions of this Bowline are installed"
    )]
    Refused {
        /// The record.
        key: Key,
        /// Its words.
        reason: String,
    },
    /// The record was written, but not all of it was kept.
    #[error(
        "the API server dropped {field} of {key}: the definitions in this cluster are older than this Bowline; apply deploy/crds of this version and read the record again before deciding"
    )]
    Pruned {
        /// The record.
        key: Key,
        /// The first field that was not kept.
        field: String,
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
            StoreError::Unavailable { .. } | StoreError::Pruned { .. } => false,
            StoreError::Conflict { .. }
            | StoreError::Compacted { .. }
            | StoreError::Full { .. }
            | StoreError::Corrupt { .. }
            | StoreError::Locked { .. }
            | StoreError::NotLeader { .. }
            | StoreError::Refused { .. }
            | StoreError::Newer { .. } => true,
        }
    }
}

fn now(current: Option<Revision>) -> String {
    current.map_or_else(|| "does not exist".to_owned(), |revision| format!("is at revision {revision}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_error_names_its_place_and_says_what_to_do() {
        let place = || "/var/lib/bowline/bowline.redb".to_owned();
        let reason = || "seen".to_owned();
        let key = || Key::new(Kind::Ledger, "db-0");
        let at = Revision::new(7);
        let rows = [
            (
                StoreError::Conflict { key: key(), current: Some(at) },
                true,
                "ledger/db-0 is at revision 7",
                "read it again",
            ),
            (
                StoreError::Conflict { key: key(), current: None },
                true,
                "ledger/db-0 does not exist",
                "read it again",
            ),
            (
                StoreError::Compacted { kind: Kind::Ledger, from: at },
                true,
                "of ledger after revision 7",
                "list again",
            ),
            (
                StoreError::Unavailable { place: place(), reason: reason() },
                false,
                "bowline.redb",
                "read the record again",
            ),
            (
                StoreError::Full { place: place(), reason: reason() },
                true,
                "bowline.redb",
                "free some space there",
            ),
            (
                StoreError::Corrupt { place: place(), reason: reason() },
                true,
                "bowline.redb",
                "import the latest export",
            ),
            (
                StoreError::Locked { path: "/l/bowline.lock".into(), holder: "pid 4242 (bowline up)".into() },
                true,
                "/l/bowline.lock is in use by pid 4242 (bowline up)",
                "stop that one first",
            ),
            (
                StoreError::NotLeader { reason: "held by bowline-b".into() },
                true,
                "no longer the leader (held by bowline-b)",
                "the one that leads now goes on",
            ),
            (
                StoreError::Refused { key: key(), reason: reason() },
                true,
                "refuses ledger/db-0 (seen)",
                "are installed",
            ),
            (
                StoreError::Pruned { key: key(), field: "status.epoch".into() },
                false,
                "dropped status.epoch of ledger/db-0",
                "apply deploy/crds",
            ),
            (
                StoreError::Newer { place: place(), found: 3, known: 2 },
                true,
                "format 3",
                "written by a newer Bowline",
            ),
        ];
        for (error, outcome_known, place, advice) in rows {
            let sentence = error.to_string();
            assert!(sentence.contains(place) && sentence.contains(advice), "{sentence}");
            assert_eq!(error.outcome_known(), outcome_known, "{sentence}");
        }
    }
}
