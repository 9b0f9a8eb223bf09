use bowline_core::{Ledger, NodeFacts, NodeId, NodeState, Observed, Room, VolumeId};
use std::collections::{HashMap, HashSet};

/// What is reported of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeReport {
    /// Whether it can be used.
    pub state: NodeState,
    /// How many volumes it can have, if there is a limit.
    pub limit: Option<u32>,
}

/// Which volumes matter to which node, and what is known of the nodes. Follows from the ledgers; kept so that an event
/// on a node costs as much as that node has volumes, and not as much as there are.
#[derive(Debug, Default)]
pub(crate) struct Nodes {
    reports: HashMap<NodeId, NodeReport>,
    wanted: HashMap<NodeId, HashSet<VolumeId>>,
    held: HashMap<NodeId, HashSet<VolumeId>>,
}

impl Nodes {
    /// Takes a report; returns the volumes that have to be decided again.
    pub(crate) fn report(&mut self, node: &NodeId, report: NodeReport) -> HashSet<VolumeId> {
        if self.reports.insert(node.clone(), report) == Some(report) {
            return HashSet::new();
        }
        let mut volumes = self.wanted.get(node).cloned().unwrap_or_default();
        volumes.extend(self.held.get(node).into_iter().flatten().cloned());
        volumes
    }

    /// Tells a volume's executor what is known of the nodes its ledger names.
    pub(crate) fn tell(&self, volume: &VolumeId, ledger: &Ledger, seen: &mut Observed) {
        let named = ledger.holds().keys().chain(ledger.tickets().values().map(|ticket| &ticket.node));
        for node in named {
            let report = self.reports.get(node).copied().unwrap_or_default();
            let room = report
                .limit
                .map(|limit| Room { free: limit.saturating_sub(self.others(node, volume)), limit });
            let facts = seen.nodes.entry(node.clone()).or_default();
            *facts = NodeFacts { state: report.state, room, forced: facts.forced };
        }
    }

    fn others(&self, node: &NodeId, volume: &VolumeId) -> u32 {
        let held =
            self.held.get(node).map_or(0, |volumes| volumes.len() - usize::from(volumes.contains(volume)));
        u32::try_from(held).unwrap_or(u32::MAX)
    }

    /// Keeps up with a ledger that changed from `before` to `after`. A grant that is planned counts at once, so
    /// that two volumes never take the same last place. Returns the volumes that may find a place now.
    pub(crate) fn follow(&mut self, volume: &VolumeId, before: &Ledger, after: &Ledger) -> HashSet<VolumeId> {
        let holders = |ledger: &Ledger| ledger.holds().keys().cloned().collect();
        let wanting = |ledger: &Ledger| ledger.tickets().values().map(|ticket| ticket.node.clone()).collect();
        let left = shift(&mut self.held, volume, &holders(before), &holders(after));
        shift(&mut self.wanted, volume, &wanting(before), &wanting(after));
        let limited = |node: &&NodeId| self.reports.get(*node).is_some_and(|report| report.limit.is_some());
        let waiting = |node: &NodeId| {
            let held = self.held.get(node);
            let wanted = self.wanted.get(node).cloned().unwrap_or_default();
            wanted.into_iter().filter(move |one| held.is_none_or(|held| !held.contains(one)))
        };
        left.iter().filter(limited).flat_map(waiting).collect()
    }
}

fn shift(
    index: &mut HashMap<NodeId, HashSet<VolumeId>>,
    volume: &VolumeId,
    before: &HashSet<NodeId>,
    after: &HashSet<NodeId>,
) -> Vec<NodeId> {
    for node in after.difference(before) {
        index.entry(node.clone()).or_default().insert(volume.clone());
    }
    let left: Vec<NodeId> = before.difference(after).cloned().collect();
    for node in &left {
        if let Some(volumes) = index.get_mut(node) {
            volumes.remove(volume);
            if volumes.is_empty() {
                index.remove(node);
            }
        }
    }
    left
}
