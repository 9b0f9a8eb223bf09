use std::collections::BTreeMap;

use crate::choose::{Choice, choose, may_migrate};
use crate::explain::explain;
use crate::{
    Contact, Epoch, Export, FenceReason, Hold, Ledger, Migration, Mode, NodeId, NodeState, Observed, Outcome,
    Owner, Phase, Ticket, TicketId, Timestamp, Verdict,
};

/// What shall be true next, what to do about it, and what to tell everybody.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The ledger as it shall be.
    pub next: Ledger,
    /// What to ask of the target. A function of `next` alone: a restart asks the same again.
    pub effects: Vec<Effect>,
    /// One for every ticket in `next`.
    pub verdicts: BTreeMap<TicketId, Verdict>,
    /// What happened that somebody should hear of.
    pub notices: Vec<Notice>,
    /// When to decide again although nothing was heard.
    pub wake: Option<Timestamp>,
}

/// Something to ask of the target. Asking twice does no harm.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Effect {
    /// Let the node in. To be asked only when the ledger that orders it is durable.
    Allow {
        /// Whom.
        node: NodeId,
        /// The grant.
        epoch: Epoch,
        /// What it may do.
        mode: Mode,
    },
    /// Shut the node out of everything granted up to this epoch, and prove it.
    Revoke {
        /// Whom.
        node: NodeId,
        /// The newest grant it covers.
        epoch: Epoch,
        /// Whether the node may be alive and using it.
        fence: bool,
    },
}

impl Effect {
    /// Whom it is about.
    pub fn node(&self) -> &NodeId {
        match self {
            Self::Allow { node, .. } | Self::Revoke { node, .. } => node,
        }
    }

    /// Which grant it is about.
    pub fn epoch(&self) -> Epoch {
        match self {
            Self::Allow { epoch, .. } | Self::Revoke { epoch, .. } => *epoch,
        }
    }
}

/// Something that happened to a volume without anybody having asked for it just now.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Notice {
    /// A ticket was removed because its owner is gone.
    OwnerGone {
        /// The ticket.
        ticket: TicketId,
        /// Where it wanted the volume.
        node: NodeId,
        /// What owned it.
        owner: String,
    },
    /// A ticket was removed because nobody renewed it.
    Expired {
        /// The ticket.
        ticket: TicketId,
        /// Where it wanted the volume.
        node: NodeId,
        /// When its time was over.
        at: Timestamp,
    },
    /// A live migration took too long; the new node is shut out again.
    MigrationTimedOut {
        /// The ticket of the new node.
        ticket: TicketId,
        /// The new node.
        node: NodeId,
    },
    /// The target let a node in that the ledger knew nothing of; it is recorded now, and shut out unless a
    /// ticket wants it there.
    UnrecordedExport {
        /// Who was let in.
        node: NodeId,
        /// At which epoch.
        epoch: Epoch,
    },
    /// The target does not let in a node that should be in; it is asked again.
    ExportMissing {
        /// Who should be in.
        node: NodeId,
        /// At which epoch.
        epoch: Epoch,
    },
}

/// The one chooser: what becomes of a volume, given what is written and what is seen.
///
/// # Guarantees
/// - A hold ends only on the target's proof ([`Outcome::Gone`] for its epoch).
/// - Nobody is granted a volume beside a hold, in whatever phase, that does not admit it; the two nodes of a
///   live migration are the only exception.
/// - Every grant has an epoch of its own, above every earlier one.
/// - Every ticket has exactly one verdict.
/// - Deciding again from `next`, with nothing new seen, changes nothing.
pub fn decide(ledger: &Ledger, seen: &Observed, now: Timestamp) -> Plan {
    let mut next = ledger.clone();
    let mut notices = Vec::new();

    learn_answers(&mut next, seen, now);
    compare_exports(&mut next, seen, now, &mut notices);
    forget_tickets(&mut next, seen, now, &mut notices);
    end_migration(&mut next);
    let choice = choose(&next, seen, now);
    note_timed_out_migration(&next, &choice, &mut notices);
    release_others(&mut next, &choice, seen, now);
    end_migration(&mut next);
    grant(&mut next, &choice, seen, now);

    let verdicts = explain(&next, &choice, seen);
    Plan { effects: effects(&next), wake: next_deadline(&next, seen, now), verdicts, notices, next }
}

/// Granting -> Held when the target has let the node in; any phase -> gone when the target proves it. All
/// other answers, and answers about another epoch, change nothing.
fn learn_answers(next: &mut Ledger, seen: &Observed, now: Timestamp) {
    for (node, answer) in &seen.answers {
        let Some(hold) = next.holds.get_mut(node).filter(|hold| hold.epoch == answer.epoch) else { continue };
        match answer.outcome {
            Outcome::Allowed if hold.phase == Phase::Granting => {
                *hold = hold.clone().turned(Phase::Held, now);
            }
            Outcome::Gone { highest } => {
                next.holds.remove(node);
                next.epoch = next.epoch.max(highest);
            }
            Outcome::Allowed | Outcome::Refused { .. } | Outcome::InUse { .. } | Outcome::Silent { .. } => {}
        }
    }
}

/// The target's own list against the ledger. Whom it lets in without a hold is recorded: as its holder if the ledger
/// has never heard of that grant (it was lost), a ticket there still wants it and nobody is in its way; else to be
/// fenced. A hold that it does not list is asked for again. That a *closing* hold is not listed proves nothing: an
/// earlier command to let the node in may still be on its way.
fn compare_exports(next: &mut Ledger, seen: &Observed, now: Timestamp, notices: &mut Vec<Notice>) {
    let Some(exports) = &seen.exports else { return };
    for (epoch, Export { node, mode }) in exports {
        if next.holds.get(node).is_some_and(|hold| hold.epoch >= *epoch) {
            continue;
        }
        let wants_it = |ticket: &Ticket| !ticket.wants_share() && ticket.is_served_by(*mode);
        let wanted = *epoch > next.epoch && next.tickets_on(node).any(wants_it);
        let free = next.holds.iter().all(|(other, hold)| other != node && hold.mode.admits(*mode));
        let phase =
            if wanted && free { Phase::Held } else { Phase::Fencing { why: FenceReason::Unrecorded } };
        next.epoch = next.epoch.max(*epoch);
        let taken = next.holds.values().any(|hold| hold.epoch == *epoch);
        // To shut a node out up to a later epoch shuts it out of this one too.
        let epoch = if taken { next.epoch.next() } else { *epoch };
        next.epoch = next.epoch.max(epoch);
        next.holds.insert(node.clone(), Hold { epoch, mode: *mode, since: now, phase });
        notices.push(Notice::UnrecordedExport { node: node.clone(), epoch });
    }
    for (node, hold) in &mut next.holds {
        let listed = exports.get(&hold.epoch).is_some_and(|export| export.node == *node);
        if hold.phase == Phase::Held && !listed {
            *hold = hold.clone().turned(Phase::Granting, now);
            notices.push(Notice::ExportMissing { node: node.clone(), epoch: hold.epoch });
        }
    }
}

fn forget_tickets(next: &mut Ledger, seen: &Observed, now: Timestamp, notices: &mut Vec<Notice>) {
    next.tickets.retain(|id, ticket| {
        let (id, node) = (id.clone(), ticket.node.clone());
        let owner_gone = seen
            .tickets
            .get(&id)
            .is_some_and(|facts| facts.generation == ticket.generation && facts.owner_gone);
        match &ticket.owner {
            Owner::ObjectGone { object } if owner_gone => {
                notices.push(Notice::OwnerGone { ticket: id, node, owner: object.clone() });
                false
            }
            Owner::Expires { at } if *at <= now => {
                notices.push(Notice::Expired { ticket: id, node, at: *at });
                false
            }
            Owner::ObjectGone { .. } | Owner::Expires { .. } | Owner::Withdrawn => true,
        }
    });
}

/// Rolled back when the new node's ticket is gone. Confirmed when the old node's is, and over, too, when the old node has
/// lost the volume; but it stays on record until the old node is out: a new node that may have been told so must not
/// be sent back, and that it is in beside the old one is excused by this record alone.
fn end_migration(next: &mut Ledger) {
    let Some(migration) = &next.migration else { return };
    let has_it = |ticket: &Ticket| next.hold_serving(ticket).is_some();
    let from = next.tickets.get(&migration.from).is_some_and(|from| migration.is_from(from) && has_it(from));
    let to = next.tickets.get(&migration.to).filter(|ticket| migration.is_to(ticket));
    let beside = |newcomer: &Ticket| {
        let Some(hold) = next.hold_serving(newcomer) else { return false };
        next.holds.iter().any(|(node, other)| *node != newcomer.node && !other.mode.admits(hold.mode))
    };
    if !to.is_some_and(|newcomer| from || beside(newcomer)) {
        next.migration = None;
    }
}

fn note_timed_out_migration(next: &Ledger, choice: &Choice, notices: &mut Vec<Notice>) {
    for (id, verdict) in &choice.refused {
        let Some(ticket) = next.tickets.get(id) else { continue };
        let is_in = next.hold_serving(ticket).is_some();
        if is_in && matches!(verdict, Verdict::MigrationTimedOut { .. }) {
            notices.push(Notice::MigrationTimedOut { ticket: id.clone(), node: ticket.node.clone() });
        }
    }
}

/// Whoever is in is shut out, unless it serves every wanted ticket there, since a grant cannot be changed: released,
/// or fenced where the node cannot be trusted to have stopped.
fn release_others(next: &mut Ledger, choice: &Choice, seen: &Observed, now: Timestamp) {
    let (served, unserved): (Vec<&Ticket>, Vec<&Ticket>) =
        choice.tickets(next).partition(|ticket| next.hold_serving(ticket).is_some());
    let keep: Vec<NodeId> = served
        .into_iter()
        .filter(|ticket| unserved.iter().all(|other| other.node != ticket.node))
        .map(|ticket| ticket.node.clone())
        .collect();
    for (node, hold) in &mut next.holds {
        let stays = match hold.phase {
            Phase::Granting | Phase::Held => keep.contains(node),
            Phase::Releasing => false,
            Phase::Fencing { .. } => true,
        };
        if !stays {
            *hold = hold.clone().turned(way_out(seen, node), now);
        }
    }
}

fn way_out(seen: &Observed, node: &NodeId) -> Phase {
    match distrust(seen, node) {
        Some(why) => Phase::Fencing { why },
        None => Phase::Releasing,
    }
}

/// Why a node may still be writing although nobody wants it to.
fn distrust(seen: &Observed, node: &NodeId) -> Option<FenceReason> {
    let facts = seen.nodes.get(node)?;
    if facts.forced {
        return Some(FenceReason::Forced);
    }
    match facts.state {
        NodeState::Ready => None,
        NodeState::NotReady { .. } => Some(FenceReason::NodeSilent),
        NodeState::OutOfService { .. } => Some(FenceReason::NodeOutOfService),
        NodeState::Gone { .. } => Some(FenceReason::NodeGone),
    }
}

/// Lets wanted nodes in where nothing that does not admit them is left, each at an epoch of its own.
fn grant(next: &mut Ledger, choice: &Choice, seen: &Observed, now: Timestamp) {
    if seen.contact != Contact::Compared {
        return;
    }
    for id in &choice.wanted {
        let Some(ticket) = next.tickets.get(id).cloned() else { continue };
        let Some(mode) = choice.mode_on(&ticket.node, next) else { continue };
        if next.holds.contains_key(&ticket.node) {
            continue;
        }
        let in_the_way: Vec<NodeId> = next
            .holds
            .iter()
            .filter(|(_, hold)| !hold.mode.admits(mode))
            .map(|(node, _)| node.clone())
            .collect();
        let migration = match in_the_way.as_slice() {
            [] => None,
            [node] => match migration_from(next, choice, seen, node, &ticket, now) {
                Some(migration) => Some(migration),
                None => continue,
            },
            [_, _, ..] => continue,
        };
        next.migration = migration.or(next.migration.take());
        next.epoch = next.epoch.next();
        next.holds.insert(ticket.node.clone(), Hold::granting(next.epoch, mode, now));
    }
}

/// The live migration that lets `to` in beside the one node in its way.
fn migration_from(
    next: &Ledger,
    choice: &Choice,
    seen: &Observed,
    node: &NodeId,
    to: &Ticket,
    now: Timestamp,
) -> Option<Migration> {
    let from = choice.tickets(next).find(|from| from.node == *node && may_migrate(next, seen, from, to))?;
    if let Some(under_way) = &next.migration {
        return Some(under_way.clone());
    }
    Some(Migration {
        from: from.id.clone(),
        from_generation: from.generation,
        to: to.id.clone(),
        to_generation: to.generation,
        since: now,
    })
}

/// A hold *is* its order: being granted means "let this node in at this epoch", being released or fenced means
/// "shut it out". So there is no journal, and state and intent cannot differ.
fn effects(ledger: &Ledger) -> Vec<Effect> {
    let order = |(node, hold): (&NodeId, &Hold)| {
        let (node, epoch) = (node.clone(), hold.epoch);
        match hold.phase {
            Phase::Granting => Some(Effect::Allow { node, epoch, mode: hold.mode }),
            Phase::Held => None,
            Phase::Releasing => Some(Effect::Revoke { node, epoch, fence: false }),
            Phase::Fencing { .. } => Some(Effect::Revoke { node, epoch, fence: true }),
        }
    };
    ledger.holds.iter().filter_map(order).collect()
}

fn next_deadline(ledger: &Ledger, seen: &Observed, now: Timestamp) -> Option<Timestamp> {
    let expiries = ledger.tickets.values().filter_map(|ticket| match ticket.owner {
        Owner::Expires { at } => Some(at),
        Owner::ObjectGone { .. } | Owner::Withdrawn => None,
    });
    let migration = ledger.migration.as_ref();
    let time_out = migration.map(|one| seen.volume.migratable.unwrap_or_default().after(one.since));
    expiries.chain(time_out).filter(|at| *at > now).min()
}
