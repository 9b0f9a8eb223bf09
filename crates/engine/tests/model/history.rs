//! What an all-knowing observer remembers, for the properties that are about more than one moment.

use bowline_core::{Epoch, Export, Ledger, Mode, NodeId};
use std::collections::{BTreeMap, BTreeSet};

use crate::property::Rule;

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct History {
    /// Every grant that was ever durable as an open hold.
    pub(crate) granted: BTreeMap<Epoch, (NodeId, Mode)>,
    /// Those of them that were durably ended.
    pub(crate) ended: BTreeSet<Epoch>,
    /// Every grant that was ever durably being closed.
    pub(crate) closed: BTreeSet<Epoch>,
    /// Everyone the target ever let in.
    pub(crate) let_in: BTreeMap<Epoch, Export>,
    /// Nodes of which somebody was told that they are out, and up to which epoch that was meant.
    pub(crate) told_out: BTreeMap<NodeId, Epoch>,
    /// Somebody removed the record, and who is in is not on record again yet.
    pub(crate) wiped: bool,
    /// Pairs of grants that were durable together as the two sides of a live migration.
    pub(crate) migrations: BTreeSet<(Epoch, Epoch)>,
    /// A rule that a step has broken, and how.
    pub(crate) broken: Option<(Rule, &'static str)>,
}

impl History {
    pub(crate) fn breaks(&mut self, rule: Rule, how: &'static str) {
        self.broken.get_or_insert((rule, how));
    }

    /// The store has a new ledger.
    pub(crate) fn durable(&mut self, before: &Ledger, after: &Ledger) {
        if after.epoch() < before.epoch() {
            self.breaks(Rule::Epochs, "the stored epoch went down");
        }
        let mut open: Vec<_> = after.holds().iter().filter(|(_, hold)| hold.is_open()).collect();
        open.sort_by_key(|(_, hold)| hold.epoch);
        for (node, hold) in open {
            let newest = self.granted.keys().next_back().copied().unwrap_or_default();
            match self.granted.get(&hold.epoch) {
                Some((known, mode)) if known == node && *mode == hold.mode => {
                    if self.ended.contains(&hold.epoch) {
                        self.breaks(Rule::Epochs, "a grant that had ended came back under its old epoch");
                    }
                }
                Some(_) => self.breaks(Rule::Epochs, "two grants had one epoch"),
                None if hold.epoch <= newest => {
                    self.breaks(Rule::Epochs, "a new grant had an epoch below an earlier one");
                }
                None => {
                    self.granted.insert(hold.epoch, (node.clone(), hold.mode));
                }
            }
        }
        let closing = after.holds().values().filter(|hold| !hold.is_open());
        self.closed.extend(closing.map(|hold| hold.epoch));
        let gone = self
            .granted
            .iter()
            .filter(|(epoch, (node, _))| after.holds().get(node).is_none_or(|hold| hold.epoch != **epoch));
        self.ended.extend(gone.map(|(epoch, _)| *epoch));
        self.remember_migration(after);
    }

    fn remember_migration(&mut self, ledger: &Ledger) {
        let Some(migration) = ledger.migration() else { return };
        let Some(newcomer) = ledger.tickets().get(&migration.to) else { return };
        let Some(to) = ledger.holds().get(&newcomer.node) else { return };
        let others = ledger.holds().values().filter(|other| other.epoch != to.epoch);
        let pairs = others.map(|from| (from.epoch.min(to.epoch), from.epoch.max(to.epoch)));
        self.migrations.extend(pairs);
    }

    pub(crate) fn were_migrating(&self, a: Epoch, b: Epoch) -> bool {
        self.migrations.contains(&(a.min(b), a.max(b)))
    }
}
