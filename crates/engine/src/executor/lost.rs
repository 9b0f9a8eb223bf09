//! A ledger that is not there any more, or is an older one than was known: what it takes to trust it again.

use bowline_core::{Contact, Epoch, Export, Ledger, Observed, Timestamp};
use bowline_store::Revision;
use std::collections::BTreeMap;

use super::Executor;

/// Why nothing counts before the target was asked.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Lost {
    since: Timestamp,
    error: String,
}

impl Lost {
    /// What may be known in a decision: nobody new is let in. A list that was asked for before may lack whom the lost ledger has let in since.
    pub(super) fn known(&self, seen: &Observed) -> Observed {
        let contact = Contact::NotCompared { since: self.since, error: self.error.clone() };
        Observed { contact, exports: None, ..seen.clone() }
    }
}

impl Executor {
    /// The ledger was lost, or may have been: who is in is not known. Nobody is let in, and nobody is told anything, before the target was asked.
    pub fn lose(&mut self, now: Timestamp) {
        let error = || "its ledger was lost, and the target is being asked".to_owned();
        self.lost.get_or_insert_with(|| Lost { since: now, error: error() });
    }

    /// Whether the target must be asked whom it lets in. Report with [`Executor::looked`] what it says, if it was asked after this was so.
    pub fn must_look(&self) -> bool {
        self.lost.is_some()
    }

    /// Whom the target lets in, all of them.
    pub fn looked(&mut self, exports: BTreeMap<Epoch, Export>) {
        self.lost = None;
        self.seen.exports = Some(exports);
    }

    /// The target did not say.
    pub fn not_looked(&mut self, error: &str) {
        if let Some(lost) = &mut self.lost {
            lost.error = format!("its ledger was lost, and the target does not say: {error}");
        }
    }

    /// The target's list was compared. If it told of somebody who is not on record yet, it is kept until that is.
    pub(super) fn learn(&mut self) {
        let Some(list) = self.seen.exports.take().filter(|_| self.lost.is_none()) else { return };
        let holds = self.stored.holds();
        let recorded = |(epoch, export): (&Epoch, &Export)| {
            holds.get(&export.node).is_some_and(|hold| hold.epoch >= *epoch)
        };
        if !list.iter().all(recorded) {
            self.learned = Some(list);
        }
    }

    /// What to go on with, given what the store has now. A record that has vanished, or has become an older one, tells less than what is remembered of it;
    /// that is kept until it is durable again.
    pub(super) fn recalled(&mut self, stored: &Ledger, revision: Option<Revision>, now: Timestamp) -> Ledger {
        let known = self.memory.take().or_else(|| self.revision.map(|_| self.stored.clone()));
        match known {
            Some(known) if revision.is_none() || stored.epoch() < known.epoch() => {
                self.lose(now);
                self.memory = Some(known.clone());
                known
            }
            Some(_) | None => stored.clone(),
        }
    }
}
