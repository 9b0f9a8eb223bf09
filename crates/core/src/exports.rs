use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

use crate::{Epoch, Mode, NodeId};

/// One node let in to a volume at the target, at one epoch.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Export {
    /// The node that may reach the bytes.
    pub node: NodeId,
    /// What it may do.
    pub mode: Mode,
}

/// The target's proof that an epoch reaches nothing now and never will again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[error("this epoch was closed; the newest the target has seen is {highest}")]
pub struct NeverAgain {
    /// The newest epoch the target has seen for this volume: a new grant must be above it.
    pub highest: Epoch,
}

/// What a target must remember of one volume, durably, to be a fence: who is let in, and the newest epoch
/// it has seen.
///
/// # Guarantees
/// - An epoch that was closed is never opened again, in whatever order commands arrive, however often, and
///   whoever sends them. So a proof of revocation stays true.
/// - Closing one node leaves the others as they are.
///
/// # Caveats
/// Opening must come in the order of the epochs: one that is overtaken by a newer one is answered with
/// [`NeverAgain`], and the ledger grants anew. The executor sends one at a time for that reason.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Exports {
    highest: Epoch,
    open: BTreeMap<Epoch, Export>,
}

impl Exports {
    /// Lets `node` in at `epoch`; again for the same grant changes nothing.
    pub fn allow(&mut self, node: &NodeId, epoch: Epoch, mode: Mode) -> Result<(), NeverAgain> {
        let export = Export { node: node.clone(), mode };
        if self.open.get(&epoch) == Some(&export) {
            return Ok(());
        }
        if epoch <= self.highest {
            return Err(NeverAgain { highest: self.highest });
        }
        self.highest = epoch;
        self.open.insert(epoch, export);
        Ok(())
    }

    /// Shuts `node` out of everything it was granted up to `epoch`, and remembers that. What it was granted
    /// later stays: a late command of an earlier time closes nothing newer.
    pub fn revoke(&mut self, node: &NodeId, epoch: Epoch) -> NeverAgain {
        self.open.retain(|granted, export| export.node != *node || *granted > epoch);
        self.highest = self.highest.max(epoch);
        NeverAgain { highest: self.highest }
    }

    /// Who is let in now, by epoch.
    pub fn open(&self) -> &BTreeMap<Epoch, Export> {
        &self.open
    }

    /// The newest epoch seen.
    pub fn highest(&self) -> Epoch {
        self.highest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str) -> NodeId {
        NodeId::new(name).unwrap()
    }

    fn epoch(number: u64) -> Epoch {
        Epoch::new(number)
    }

    #[test]
    fn a_late_allow_after_its_revoke_lets_nobody_in() {
        let mut exports = Exports::default();
        exports.revoke(&node("a"), epoch(1));
        assert_eq!(exports.allow(&node("a"), epoch(1), Mode::UNKNOWN), Err(NeverAgain { highest: epoch(1) }));
        assert!(exports.open().is_empty());
    }

    #[test]
    fn a_late_revoke_leaves_the_newer_grant_of_the_same_node() {
        let mut exports = Exports::default();
        exports.allow(&node("a"), epoch(1), Mode::UNKNOWN).unwrap();
        exports.revoke(&node("a"), epoch(1));
        exports.allow(&node("a"), epoch(2), Mode::UNKNOWN).unwrap();
        exports.revoke(&node("a"), epoch(1));
        assert_eq!(exports.open().keys().copied().collect::<Vec<_>>(), [epoch(2)]);
    }

    #[test]
    fn a_repeated_allow_is_the_same_grant() {
        let mut exports = Exports::default();
        exports.allow(&node("a"), epoch(4), Mode::UNKNOWN).unwrap();
        let before = exports.clone();
        exports.allow(&node("a"), epoch(4), Mode::UNKNOWN).unwrap();
        assert_eq!(exports, before);
        assert!(exports.allow(&node("b"), epoch(4), Mode::UNKNOWN).is_err(), "an epoch belongs to one node");
    }
}
