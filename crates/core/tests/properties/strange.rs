//! Ledgers that no sequence of events would make, with anything at all being seen.

use bowline_core::*;
use proptest::prelude::*;
use proptest::sample::select;

use crate::event::{NODES, SLOTS, disobedience, node, node_facts, ticket_id, tickets};
use crate::volume::{at, start};

fn mode() -> impl Strategy<Value = Mode> {
    let shares = vec![Share::Nobody, Share::Readers, Share::OneWriter, Share::Writers];
    (any::<bool>(), any::<bool>(), select(shares)).prop_map(|(write, frontend, share)| Mode {
        write,
        frontend,
        share,
    })
}

fn phase() -> impl Strategy<Value = Phase> {
    let why = FenceReason::Forced;
    select(vec![Phase::Granting, Phase::Held, Phase::Held, Phase::Releasing, Phase::Fencing { why }])
}

fn migration() -> impl Strategy<Value = Migration> {
    (0..SLOTS, 0..SLOTS, 1..3u64, 0..400i64).prop_map(|(from, to, to_generation, since)| Migration {
        from: ticket_id(from),
        from_generation: 1,
        to: ticket_id(to),
        to_generation,
        since: at(since),
    })
}

/// Holds on any of the nodes: the epochs are their own, all else is free.
fn ledger() -> impl Strategy<Value = Ledger> {
    let holds = prop::collection::vec(prop::option::of((mode(), phase())), NODES.len());
    (tickets(), holds, prop::option::of(migration())).prop_map(|(tickets, holds, migration)| {
        let held = holds.into_iter().enumerate().filter_map(|(index, hold)| {
            let (mode, phase) = hold?;
            let epoch = Epoch::new(10 + index as u64);
            let hold = Hold { epoch, mode, since: start(), phase };
            Some((node(index), serde_json::to_value(hold).unwrap()))
        });
        let holds: std::collections::BTreeMap<_, _> = held.collect();
        let record = serde_json::json!({
            "epoch": 12,
            "holds": holds,
            "tickets": tickets.iter().map(|one| (one.id.to_string(), one)).collect::<std::collections::BTreeMap<_, _>>(),
            "migration": migration,
        });
        serde_json::from_value(record).unwrap()
    })
}

fn answer() -> impl Strategy<Value = (usize, u64, Outcome)> {
    let gone = (0..20u64).prop_map(|highest| Outcome::Gone { highest: Epoch::new(highest) });
    (0..3usize, 0..3u64, prop_oneof![Just(Outcome::Allowed), gone, disobedience()])
}

/// What the target lists: some of what is on record, and some that is not.
fn exports() -> impl Strategy<Value = Vec<(usize, u64, Mode)>> {
    prop::collection::vec((0..3usize, 0..3u64, mode()), 0..4)
}

pub(crate) fn case() -> impl Strategy<Value = (Ledger, Observed)> {
    let nodes = prop::collection::vec(prop::option::of(node_facts()), NODES.len());
    let answers = prop::collection::vec(answer(), 0..3);
    let facts =
        (any::<bool>(), prop::bool::weighted(0.1), prop::bool::weighted(0.1), prop::bool::weighted(0.9));
    (ledger(), nodes, answers, prop::option::of(exports()), facts).prop_map(
        |(ledger, nodes, answers, exports, (migratable, fault, deleting, compared))| {
            let mut seen = Observed::new(VolumeFacts::new(TargetId::new("rack-1").unwrap()));
            seen.volume.migratable = migratable.then(MigrationTimeout::default);
            seen.volume.fault = fault.then(|| "checksum".to_owned());
            seen.volume.deleting = deleting;
            if !compared {
                seen.contact = Contact::NotCompared { since: start(), error: "silent".to_owned() };
            }
            for (index, facts) in nodes.into_iter().enumerate() {
                seen.nodes.extend(facts.map(|facts| (node(index), facts)));
            }
            for (index, off, outcome) in answers {
                let epoch = Epoch::new(9 + off + index as u64);
                seen.answers.insert(node(index), Answer { epoch, outcome });
            }
            seen.exports = exports.map(|listed| {
                // An epoch belongs to one node, at the target as in the ledger: 10, 13, 16 to the first, and so on.
                let export = |(index, off, mode): (usize, u64, Mode)| {
                    (Epoch::new(10 + index as u64 + 3 * off), Export { node: node(index), mode })
                };
                listed.into_iter().map(export).collect()
            });
            (ledger, seen)
        },
    )
}

/// Nothing panics, nobody is let in beside a hold that does not admit it, no hold goes without proof, and what comes
/// out is a ledger that can be read.
pub(crate) fn check(ledger: &Ledger, seen: &Observed) {
    let plan = decide(ledger, seen, at(500));
    let next = &plan.next;
    let written = serde_json::to_string(next).unwrap();
    assert_eq!(serde_json::from_str::<Ledger>(&written).unwrap(), *next);
    assert!(plan.verdicts.keys().eq(next.tickets().keys()), "one verdict for every ticket");
    let sides = next.migration().map(|migration| {
        [&migration.from, &migration.to].map(|id| next.tickets().get(id).map(|ticket| &ticket.node))
    });
    for (node, hold) in next.holds().iter().filter(|(_, hold)| hold.is_open()) {
        let was_there = ledger.holds().get(node).is_some_and(|known| known.epoch == hold.epoch);
        if was_there {
            continue;
        }
        let others = next.holds().iter().filter(|(other, _)| *other != node);
        let strangers: Vec<_> = others.filter(|(_, other)| !other.mode.admits(hold.mode)).collect();
        let adopted = hold.phase == Phase::Held;
        let intruder = |hold: &Hold| hold.phase == Phase::Fencing { why: FenceReason::Unrecorded };
        match strangers.as_slice() {
            [] => {}
            [(other, _)]
                if sides.is_some_and(|sides| sides.contains(&Some(node)) && sides.contains(&Some(other))) => {
            }
            several => assert!(
                adopted && several.iter().all(|(_, hold)| intruder(hold)),
                "{node} was let in beside {several:?}"
            ),
        }
    }
    for (node, hold) in ledger.holds() {
        let proven = seen.answers.get(node).is_some_and(|answer| {
            answer.epoch == hold.epoch && matches!(answer.outcome, Outcome::Gone { .. })
        });
        let covered = next.holds().get(node).is_some_and(|now| now.epoch >= hold.epoch);
        assert!(proven || covered, "{node} lost {hold:?} without proof");
    }
}
