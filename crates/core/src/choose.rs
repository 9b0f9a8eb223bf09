//! Which tickets shall be satisfied now. Whoever has the volume keeps it, unless the rules of interruption let
//! a better-ranked ticket take it; what is free goes to the best-ranked ticket and all that get along with it.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    Clash, Content, Frontend, Hold, Ledger, Mode, NodeId, NodeState, Observed, Phase, Share, Ticket,
    TicketId, TicketKind, Timestamp, Verdict,
};

/// The outcome for every ticket that wants the volume itself.
#[derive(Debug, Default)]
pub(crate) struct Choice {
    /// Those that shall be satisfied, the best-ranked first.
    pub(crate) wanted: Vec<TicketId>,
    /// The others, each with its reason.
    pub(crate) refused: BTreeMap<TicketId, Verdict>,
    /// Those of the refused that had it until now: they do not challenge their own interruption.
    interrupted: BTreeSet<TicketId>,
}

impl Choice {
    pub(crate) fn tickets<'a>(&'a self, ledger: &'a Ledger) -> impl Iterator<Item = &'a Ticket> {
        self.wanted.iter().filter_map(|id| ledger.tickets.get(id))
    }

    /// The mode that serves all wanted tickets of one node.
    pub(crate) fn mode_on(&self, node: &NodeId, ledger: &Ledger) -> Option<Mode> {
        let here = || self.tickets(ledger).filter(|ticket| ticket.node == *node);
        Some(Mode {
            write: here().any(|ticket| ticket.mode().write),
            frontend: here().all(|ticket| ticket.frontend != Frontend::Off),
            share: here().map(|ticket| ticket.mode().share).min()?,
        })
    }
}

pub(crate) fn choose(ledger: &Ledger, seen: &Observed, now: Timestamp) -> Choice {
    let mut choice = Choice::default();
    let mut queue: Vec<&Ticket> = ledger.tickets.values().filter(|ticket| !ticket.wants_share()).collect();
    queue.sort_by_key(|ticket| ticket.rank());

    queue.retain(|ticket| match shut_out(ledger, seen, ticket, now) {
        Some(verdict) => choice.refused.insert(ticket.id.clone(), verdict).is_some(),
        None => true,
    });

    let mut chosen = keepers(ledger, seen, &queue);
    // An interruption may clear the way for a ticket that was refused before it: then all are asked again.
    while ask_the_others(ledger, seen, &queue, &mut chosen, &mut choice) {}

    chosen.sort_by_key(|ticket| ticket.rank());
    choice.wanted = chosen.into_iter().map(|ticket| ticket.id.clone()).collect();
    choice
}

/// Lets everybody who has nothing challenge those who have. Tells whether anybody was interrupted.
fn ask_the_others<'a>(
    ledger: &Ledger,
    seen: &Observed,
    queue: &[&'a Ticket],
    chosen: &mut Vec<&'a Ticket>,
    choice: &mut Choice,
) -> bool {
    let before = choice.interrupted.len();
    for challenger in queue {
        let is_kept = chosen.iter().any(|ticket| ticket.id == challenger.id);
        if is_kept || choice.interrupted.contains(&challenger.id) {
            continue;
        }
        match challenge(ledger, seen, chosen, challenger) {
            Ok(interrupted) => {
                for (loser, clash) in interrupted {
                    chosen.retain(|ticket| ticket.id != loser.id);
                    choice.refused.insert(loser.id.clone(), interruption(loser, clash, challenger));
                    choice.interrupted.insert(loser.id.clone());
                }
                choice.refused.remove(&challenger.id);
                chosen.push(challenger);
            }
            Err(verdict) => {
                choice.refused.insert(challenger.id.clone(), verdict);
            }
        }
    }
    choice.interrupted.len() > before
}

/// Why a ticket can have the volume neither now nor any longer, whoever else wants it.
fn shut_out(ledger: &Ledger, seen: &Observed, ticket: &Ticket, now: Timestamp) -> Option<Verdict> {
    if let Some(fault) = &seen.volume.fault {
        return Some(Verdict::VolumeFaulted { fault: fault.clone() });
    }
    match state_of(seen, &ticket.node) {
        NodeState::OutOfService { since } => {
            return Some(Verdict::NodeOutOfService { node: ticket.node.clone(), since });
        }
        NodeState::Gone { since } => {
            return Some(Verdict::NodeGone { node: ticket.node.clone(), since });
        }
        NodeState::Ready | NodeState::NotReady { .. } => {}
    }
    migration_timed_out(ledger, seen, ticket, now)
}

fn migration_timed_out(ledger: &Ledger, seen: &Observed, ticket: &Ticket, now: Timestamp) -> Option<Verdict> {
    let migration = ledger.migration.as_ref().filter(|migration| migration.is_to(ticket))?;
    let has_it = |from: &&Ticket| migration.is_from(from) && ledger.hold_serving(from).is_some();
    let from = ledger.tickets.get(&migration.from).filter(has_it)?;
    let deadline = seen.volume.migratable.unwrap_or_default().after(migration.since);
    (now >= deadline).then(|| Verdict::MigrationTimedOut {
        from: from.node.clone(),
        by: from.id.clone(),
        since: migration.since,
    })
}

/// Those that have what they want. Where they could not all have it together any more (a migration that was
/// confirmed while a job ran on the old node), the workloads come first, then the older grant.
fn keepers<'a>(ledger: &'a Ledger, seen: &Observed, queue: &[&'a Ticket]) -> Vec<&'a Ticket> {
    let mut served: Vec<(&Hold, &Ticket)> =
        queue.iter().filter_map(|ticket| Some((ledger.hold_serving(ticket)?, *ticket))).collect();
    served.sort_by_key(|(hold, ticket)| {
        (!ticket.kind.is_workload(), hold.epoch, ticket.created_at, ticket.id.clone())
    });
    let mut kept: Vec<&Ticket> = Vec::new();
    for (_, ticket) in served {
        if kept.iter().all(|other| clash(ledger, seen, other, ticket).is_none()) {
            kept.push(ticket);
        }
    }
    kept
}

/// Whether a ticket that does not have the volume gets it: if so, whom it takes it from.
fn challenge<'a>(
    ledger: &Ledger,
    seen: &Observed,
    chosen: &[&'a Ticket],
    challenger: &Ticket,
) -> Result<Vec<(&'a Ticket, Clash)>, Verdict> {
    not_let_in(ledger, seen, challenger)?;
    let mut interrupted = Vec::new();
    for holder in chosen {
        let Some(clash) = clash(ledger, seen, holder, challenger) else { continue };
        if !holder.kind.yields_to(challenger.kind, is_copied(seen, holder)) {
            return Err(refusal(ledger, chosen, holder, clash));
        }
        interrupted.push((*holder, clash));
    }
    Ok(interrupted)
}

/// What keeps a newcomer out, and would not take anything from one that is in.
fn not_let_in(ledger: &Ledger, seen: &Observed, ticket: &Ticket) -> Result<(), Verdict> {
    if ledger.hold_serving(ticket).is_some() {
        return Ok(());
    }
    if seen.volume.deleting {
        return Err(Verdict::Deleting);
    }
    let node = ticket.node.clone();
    if let NodeState::NotReady { since } = state_of(seen, &ticket.node) {
        return Err(Verdict::NodeNotReady { node, since });
    }
    let room = seen.nodes.get(&ticket.node).and_then(|facts| facts.room);
    match room {
        Some(room) if room.free == 0 => Err(Verdict::NodeFull { node, limit: room.limit }),
        Some(_) | None => Ok(()),
    }
}

/// Why two tickets cannot both be satisfied now.
fn clash(ledger: &Ledger, seen: &Observed, holder: &Ticket, other: &Ticket) -> Option<Clash> {
    if holder.node == other.node {
        return clash_on_one_node(ledger, holder, other);
    }
    let together = mode_of(ledger, holder).admits(mode_of(ledger, other));
    (!together && !may_migrate(ledger, seen, holder, other)).then_some(Clash::OtherNode)
}

fn clash_on_one_node(ledger: &Ledger, holder: &Ticket, other: &Ticket) -> Option<Clash> {
    let workloads = holder.kind.is_workload() && other.kind.is_workload();
    if workloads && (holder.wants_to_be_sole_writer() || other.wants_to_be_sole_writer()) {
        return Some(Clash::SoleWriter);
    }
    if holder.frontend.clashes(other.frontend) {
        return Some(Clash::Frontend);
    }
    if holder.mode().share != other.mode().share {
        return Some(Clash::Sharing);
    }
    // A grant is an export of its own: it cannot be widened, only given back and granted anew.
    let granted = ledger.hold_serving(holder)?.mode;
    if other.is_served_by(granted) {
        None
    } else if other.mode().write && !granted.write {
        Some(Clash::ReadOnly)
    } else if !other.frontend.accepts(granted.frontend) {
        Some(Clash::Frontend)
    } else {
        Some(Clash::Sharing)
    }
}

/// The mode that counts for others: what was really granted, or what would be.
fn mode_of(ledger: &Ledger, ticket: &Ticket) -> Mode {
    ledger.hold_serving(ticket).map_or_else(|| ticket.mode(), |hold| hold.mode)
}

/// Whether these two are, or may become, the two sides of a live migration: never a third node.
pub(crate) fn may_migrate(ledger: &Ledger, seen: &Observed, a: &Ticket, b: &Ticket) -> bool {
    let pair = [a, b];
    let fit = pair.iter().all(|ticket| {
        ticket.kind == TicketKind::CsiAttacher
            && ticket.content == Content::Block
            && ticket.mode().share == Share::Nobody
            && !ticket.wants_to_be_sole_writer()
    });
    if seen.volume.migratable.is_none() || !fit {
        return false;
    }
    if let Some(migration) = &ledger.migration {
        return migration.is_between(a, b);
    }
    let is_held = |ticket: &Ticket| ledger.hold_serving(ticket).is_some_and(|hold| hold.phase == Phase::Held);
    let is_free = |ticket: &Ticket| !ledger.holds.contains_key(&ticket.node);
    let one_comes_to_the_other = (is_held(a) && is_free(b)) || (is_held(b) && is_free(a));
    // The record names one ticket a side: a second would clash with the other side as soon as it is written.
    let is_sole = |ticket: &Ticket| {
        ledger.tickets_on(&ticket.node).all(|other| other.id == ticket.id || other.kind != ticket.kind)
    };
    one_comes_to_the_other && ledger.holds.len() == 1 && is_sole(a) && is_sole(b)
}

fn refusal(ledger: &Ledger, chosen: &[&Ticket], holder: &Ticket, clash: Clash) -> Verdict {
    let (node, by) = (holder.node.clone(), holder.id.clone());
    if clash != Clash::OtherNode {
        return Verdict::IncompatibleParameters { node, by, clash };
    }
    if let Some(migration) = &ledger.migration {
        let side = |id: &TicketId| chosen.iter().find(|ticket| ticket.id == *id);
        if let (Some(from), Some(to)) = (side(&migration.from), side(&migration.to)) {
            let (from, to) = (from.node.clone(), to.node.clone());
            return Verdict::Migrating { from, to, since: migration.since };
        }
    }
    match ledger.hold_serving(holder) {
        Some(hold) => Verdict::HeldElsewhere { node, by, since: hold.since },
        None => Verdict::Outranked { node, by, kind: holder.kind },
    }
}

fn interruption(loser: &Ticket, clash: Clash, winner: &Ticket) -> Verdict {
    let (node, by) = (winner.node.clone(), winner.id.clone());
    match clash {
        Clash::OtherNode => Verdict::Interrupted { node, by, kind: winner.kind },
        Clash::SoleWriter | Clash::Frontend | Clash::ReadOnly | Clash::Sharing => {
            Verdict::IncompatibleParameters { node: loser.node.clone(), by, clash }
        }
    }
}

fn state_of(seen: &Observed, node: &NodeId) -> NodeState {
    seen.nodes.get(node).map(|facts| facts.state).unwrap_or_default()
}

fn is_copied(seen: &Observed, ticket: &Ticket) -> bool {
    seen.tickets.get(&ticket.id).is_some_and(|facts| facts.generation == ticket.generation && facts.copied)
}
