//! What must be true of every decision.

use bowline_core::*;
use std::collections::{BTreeMap, BTreeSet};

use crate::volume::Volume;

pub(crate) fn check_step(volume: &mut Volume, plan: &Plan) {
    let (before, seen, now) = (&volume.ledger, &volume.seen, volume.now);
    epochs(before, seen, plan);
    departures(before, seen, plan);
    arrivals(before, seen, plan);
    let pairs = exclusion(&volume.pairs, before, seen, plan);
    effects_are_the_holds(plan);
    verdicts_tell_the_truth(seen, plan);
    nobody_is_in_for_nothing(plan);
    wakes_at_the_earliest_deadline(seen, now, plan);
    again_changes_nothing(seen, now, plan);
    assert_eq!(*plan, decide(before, seen, now), "the same twice");
    volume.pairs.extend(pairs);
}

/// The target lets in nobody without a hold, and lets in everybody who is told so.
pub(crate) fn check_truth(volume: &Volume, verdicts: &BTreeMap<TicketId, Verdict>) {
    let compared = volume.seen.contact == Contact::Compared;
    for (epoch, export) in volume.exports.open() {
        let covered = volume.ledger.holds().get(&export.node).is_some_and(|hold| hold.epoch >= *epoch);
        let unknown = !compared && volume.intruders.contains(epoch);
        assert!(covered || unknown, "{} is in at {epoch}, unrecorded: {:#?}", export.node, volume.ledger);
    }
    if volume.misled || !compared {
        return;
    }
    for (id, verdict) in verdicts {
        if let Verdict::Satisfied { epoch, .. } = verdict {
            assert!(volume.exports.open().contains_key(epoch), "{id} is told it has what it has not");
        }
    }
}

fn epochs(before: &Ledger, seen: &Observed, plan: &Plan) {
    let next = &plan.next;
    assert!(next.epoch() >= before.epoch(), "the epoch went down");
    let used: BTreeSet<Epoch> = next.holds().values().map(|hold| hold.epoch).collect();
    assert_eq!(used.len(), next.holds().len(), "two holds with one epoch: {next:#?}");
    assert!(used.iter().all(|epoch| *epoch <= next.epoch()), "a hold ahead of its ledger: {next:#?}");
    let listed = seen.exports.iter().flatten().map(|(epoch, _)| *epoch);
    assert!(listed.max() <= Some(next.epoch()), "the target is ahead of the ledger");
    let written = serde_json::to_string(next).unwrap();
    assert_eq!(serde_json::from_str::<Ledger>(&written).unwrap(), *next, "changed by being written");
}

/// A hold goes only by proof, or under a fence that covers it.
fn departures(before: &Ledger, seen: &Observed, plan: &Plan) {
    for (node, hold) in before.holds() {
        let now = plan.next.holds().get(node);
        if now.is_some_and(|now| now.epoch == hold.epoch && now.mode == hold.mode) {
            continue;
        }
        let proof = seen.answers.get(node).is_some_and(|answer| {
            answer.epoch == hold.epoch && matches!(answer.outcome, Outcome::Gone { .. })
        });
        let covered = now.is_some_and(|now| now.epoch > hold.epoch && is_listed(seen, node, now));
        assert!(proof || covered, "{node} lost {hold:?} without proof");
    }
}

/// A grant is newer than anything known, and given only to a node that can take it.
fn arrivals(before: &Ledger, seen: &Observed, plan: &Plan) {
    for (node, hold) in arrived(before, plan) {
        if is_listed(seen, node, hold) {
            continue;
        }
        assert_eq!(hold.phase, Phase::Granting, "{node} has come from nowhere");
        assert!(hold.epoch > before.epoch(), "{node} was granted an old epoch");
        assert!(seen.exports.iter().flatten().all(|(epoch, _)| hold.epoch > *epoch));
        assert_eq!(seen.contact, Contact::Compared, "granted without having heard the target");
        assert!(!seen.volume.deleting && seen.volume.fault.is_none(), "granted what must stay detached");
        let facts = seen.nodes.get(node).cloned().unwrap_or_default();
        assert_eq!(facts.state, NodeState::Ready, "granted to a node that does not report");
        assert!(facts.room.is_none_or(|room| room.free > 0), "granted to a full node");
    }
}

fn arrived<'a>(before: &'a Ledger, plan: &'a Plan) -> impl Iterator<Item = (&'a NodeId, &'a Hold)> {
    plan.next
        .holds()
        .iter()
        .filter(|(node, hold)| before.holds().get(*node).is_none_or(|known| known.epoch != hold.epoch))
}

fn is_listed(seen: &Observed, node: &NodeId, hold: &Hold) -> bool {
    let listed = seen.exports.as_ref().and_then(|exports| exports.get(&hold.epoch));
    listed.is_some_and(|export| export.node == *node && export.mode == hold.mode)
}

/// Any two holds admit each other, were let in together by a live migration, or one is an intruder's that is being
/// fenced. Two open ones that do not admit each other are the migration on record. Returns the pair let in now.
fn exclusion(
    pairs: &BTreeSet<(Epoch, Epoch)>,
    before: &Ledger,
    seen: &Observed,
    plan: &Plan,
) -> Option<(Epoch, Epoch)> {
    let next = &plan.next;
    let node_of = |id| next.tickets().get(id).map(|ticket| ticket.node.clone());
    let on_record =
        next.migration().and_then(|migration| Some([node_of(&migration.from)?, node_of(&migration.to)?]));
    let is_moving = |a: &NodeId, b: &NodeId| {
        on_record.as_ref().is_some_and(|[from, to]| (from == a && to == b) || (from == b && to == a))
    };
    let mut let_in = None;
    for (node, hold) in arrived(before, plan).filter(|(node, hold)| !is_listed(seen, node, hold)) {
        let others = next.holds().iter().filter(|(other, _)| *other != node);
        let strangers: Vec<_> = others.filter(|(_, other)| !other.mode.admits(hold.mode)).collect();
        if let [(other, stays)] = strangers.as_slice() {
            assert!(is_moving(node, other) && stays.is_open(), "{node} was let in beside {other}: {next:#?}");
            assert!(seen.volume.migratable.is_some(), "moved what does not move");
            let_in = Some((stays.epoch.min(hold.epoch), stays.epoch.max(hold.epoch)));
        } else {
            assert_eq!(strangers, [], "{node} was let in beside others");
        }
    }
    for (a, one) in next.holds() {
        for (b, other) in next.holds().range::<NodeId, _>(a.clone()..).skip(1) {
            let pair = (one.epoch.min(other.epoch), one.epoch.max(other.epoch));
            let intruder =
                [one, other].iter().any(|hold| hold.phase == Phase::Fencing { why: FenceReason::Unrecorded });
            let together = one.mode.admits(other.mode) || intruder;
            let moved = pairs.contains(&pair) || let_in == Some(pair);
            assert!(together || moved, "{a} beside {b}: {next:#?}");
            let both_open = one.is_open() && other.is_open();
            assert!(together || !both_open || is_moving(a, b), "{a} and {b} are both in: {next:#?}");
        }
    }
    let_in
}

fn effects_are_the_holds(plan: &Plan) {
    let mut expected = Vec::new();
    for (node, hold) in plan.next.holds() {
        let (node, epoch) = (node.clone(), hold.epoch);
        match hold.phase {
            Phase::Held => {}
            Phase::Granting => expected.push(Effect::Allow { node, epoch, mode: hold.mode }),
            Phase::Releasing => expected.push(Effect::Revoke { node, epoch, fence: false }),
            Phase::Fencing { .. } => expected.push(Effect::Revoke { node, epoch, fence: true }),
        }
    }
    assert_eq!(plan.effects, expected);
}

/// One verdict for each ticket; satisfied are exactly those that are in and were not refused a place beside others.
fn verdicts_tell_the_truth(seen: &Observed, plan: &Plan) {
    let next = &plan.next;
    assert!(plan.verdicts.keys().eq(next.tickets().keys()), "one verdict for every ticket");
    for (id, verdict) in &plan.verdicts {
        let ticket = &next.tickets()[id];
        if ticket.wants_share() {
            let served = seen.volume.share.is_some() && seen.volume.fault.is_none();
            assert_eq!(verdict.is_satisfied(), served, "{id}");
            continue;
        }
        let hold = next.holds().get(&ticket.node).filter(|hold| hold.phase == Phase::Held);
        let hold = hold.filter(|hold| ticket.is_served_by(hold.mode));
        match (verdict, hold) {
            (Verdict::Satisfied { node, epoch, since }, Some(hold)) => {
                assert_eq!((node, *epoch, *since), (&ticket.node, hold.epoch, hold.since));
            }
            (Verdict::Satisfied { .. }, None) => panic!("{id} is told it has what it has not: {next:#?}"),
            (refused, Some(_)) => assert!(refused.is_settled(), "{id} is in, and told {refused:?}"),
            (_, None) => {}
        }
    }
}

/// Whoever is in, or on its way in, serves a ticket that is told so.
fn nobody_is_in_for_nothing(plan: &Plan) {
    for (node, hold) in plan.next.holds().iter().filter(|(_, hold)| hold.is_open()) {
        let served = plan.next.tickets_on(node).any(|ticket| {
            let told = &plan.verdicts[&ticket.id];
            let coming = matches!(
                told,
                Verdict::Granting { .. } | Verdict::TargetUnreachable { .. } | Verdict::TargetRefused { .. }
            );
            let fits = match hold.phase {
                Phase::Held => matches!(told, Verdict::Satisfied { .. }),
                Phase::Granting | Phase::Releasing | Phase::Fencing { .. } => coming,
            };
            fits && ticket.is_served_by(hold.mode)
        });
        assert!(served, "{node} is in for nobody: {:#?}", plan.next);
    }
}

fn wakes_at_the_earliest_deadline(seen: &Observed, now: Timestamp, plan: &Plan) {
    let expiries = plan.next.tickets().values().filter_map(|ticket| match ticket.owner {
        Owner::Expires { at } => Some(at),
        Owner::ObjectGone { .. } | Owner::Withdrawn => None,
    });
    let time_out = plan.next.migration().map(|migration| {
        let seconds: u16 = seen.volume.migratable.unwrap_or_default().into();
        Timestamp::from_second(migration.since.as_second() + i64::from(seconds)).unwrap()
    });
    let earliest = expiries.chain(time_out).filter(|deadline| *deadline > now).min();
    assert_eq!(plan.wake, earliest);
}

/// Deciding again with nothing new; and with the same answers once more, unless a list contradicted them.
fn again_changes_nothing(seen: &Observed, now: Timestamp, plan: &Plan) {
    let mut nothing_new = seen.clone();
    let listed = nothing_new.exports.take().is_some();
    let heard = std::mem::take(&mut nothing_new.answers);
    let again = decide(&plan.next, &nothing_new, now);
    assert_eq!(again.next, plan.next, "deciding again changed the ledger");
    assert_eq!(again.notices, [], "deciding again had something to say");
    assert_eq!(again.effects, plan.effects);
    if !listed {
        nothing_new.answers = heard;
        let again = decide(&plan.next, &nothing_new, now);
        assert_eq!(again.next, plan.next, "the same answers once more changed the ledger");
    }
}
