//! One verdict for every ticket: what it got, or the one thing it waits for.

use std::collections::BTreeMap;

use crate::choose::Choice;
use crate::{Contact, Hold, Ledger, NodeId, Observed, Outcome, Phase, Ticket, TicketId, Verdict};

pub(crate) fn explain(next: &Ledger, choice: &Choice, seen: &Observed) -> BTreeMap<TicketId, Verdict> {
    let verdict = |ticket: &Ticket| {
        if ticket.wants_share() {
            return share(seen);
        }
        match choice.refused.get(&ticket.id) {
            Some(reason) => reason.clone(),
            None => progress(next, choice, seen, ticket),
        }
    };
    next.tickets.iter().map(|(id, ticket)| (id.clone(), verdict(ticket))).collect()
}

fn share(seen: &Observed) -> Verdict {
    if let Some(fault) = &seen.volume.fault {
        return Verdict::VolumeFaulted { fault: fault.clone() };
    }
    match &seen.volume.share {
        Some(endpoint) => Verdict::Shared { endpoint: endpoint.clone() },
        None => Verdict::WaitingForShare,
    }
}

/// How far a chosen ticket has come.
fn progress(next: &Ledger, choice: &Choice, seen: &Observed, ticket: &Ticket) -> Verdict {
    if let Some(hold) = next.hold_serving(ticket) {
        return match hold.phase {
            Phase::Held => {
                Verdict::Satisfied { node: ticket.node.clone(), epoch: hold.epoch, since: hold.since }
            }
            Phase::Granting | Phase::Releasing | Phase::Fencing { .. } => granting(seen, &ticket.node, hold),
        };
    }
    if let Contact::NotCompared { since, error } = &seen.contact {
        let target = seen.volume.target.clone();
        return Verdict::TargetNotCompared { target, since: *since, error: error.clone() };
    }
    let mode = choice.mode_on(&ticket.node, next).unwrap_or_else(|| ticket.mode());
    let in_the_way = next
        .holds
        .iter()
        .filter(|(node, hold)| **node == ticket.node || !hold.mode.admits(mode))
        .min_by_key(|(_, hold)| (hold.is_open(), hold.epoch));
    match in_the_way {
        Some((node, hold)) => closing(seen, node, hold),
        None => Verdict::Granting {
            target: seen.volume.target.clone(),
            node: ticket.node.clone(),
            since: ticket.created_at,
        },
    }
}

fn granting(seen: &Observed, node: &NodeId, hold: &Hold) -> Verdict {
    let granting =
        || Verdict::Granting { target: seen.volume.target.clone(), node: node.clone(), since: hold.since };
    not_done(seen, node, hold).unwrap_or_else(granting)
}

fn closing(seen: &Observed, node: &NodeId, hold: &Hold) -> Verdict {
    let closing = || match hold.phase {
        Phase::Fencing { why } => Verdict::Fencing { node: node.clone(), since: hold.since, why },
        Phase::Granting | Phase::Held | Phase::Releasing => {
            Verdict::WaitingForRelease { node: node.clone(), since: hold.since }
        }
    };
    not_done(seen, node, hold).unwrap_or_else(closing)
}

/// Why the target has not done what it was asked, if it said so or said nothing.
fn not_done(seen: &Observed, node: &NodeId, hold: &Hold) -> Option<Verdict> {
    let (target, node) = (seen.volume.target.clone(), node.clone());
    match outcome_for(seen, &node, hold)? {
        Outcome::Silent { since, error } => {
            Some(Verdict::TargetUnreachable { target, node, since: *since, error: error.clone() })
        }
        Outcome::Refused { error } => Some(Verdict::TargetRefused { target, node, error: error.clone() }),
        Outcome::InUse { by } if !hold.is_open() => {
            Some(Verdict::StillInUse { node, by: by.clone(), since: hold.since })
        }
        Outcome::InUse { .. } | Outcome::Allowed | Outcome::Gone { .. } => None,
    }
}

fn outcome_for<'a>(seen: &'a Observed, node: &NodeId, hold: &Hold) -> Option<&'a Outcome> {
    seen.answers.get(node).filter(|answer| answer.epoch == hold.epoch).map(|answer| &answer.outcome)
}
