//! Deliberate mistakes. A checker that has never failed proves nothing: each of these must be caught, by the property that is
//! there for it. None touches production code: the chooser is wrapped, or the shell, the store or the target is wrong.

use bowline_core::{
    Answer, Effect, Hold, Ledger, NodeState, Observed, Outcome, Phase, Plan, Timestamp, Verdict, decide,
};
use bowline_engine::Decide;
use serde_json::{Value, json};

use crate::property::Rule;
use crate::system::Flaw;

pub(crate) struct Variant {
    pub(crate) name: &'static str,
    /// The scenario it is run in.
    pub(crate) scenario: &'static str,
    pub(crate) decide: Decide,
    pub(crate) flaw: Option<Flaw>,
    pub(crate) caught_by: Rule,
}

/// Every wrong variant.
pub(crate) fn all() -> Vec<Variant> {
    let chooser =
        |name, scenario, decide, caught_by| Variant { name, scenario, decide, flaw: None, caught_by };
    let flaw =
        |name, scenario, flaw, caught_by| Variant { name, scenario, decide, flaw: Some(flaw), caught_by };
    vec![
        chooser("a time-out counts as proof", "forced detach, silent target", fail_open, Rule::Answers),
        flaw(
            "answers before it is durable",
            "two tickets on one node",
            Flaw::AnswersBeforeDurable,
            Rule::Answers,
        ),
        flaw("lets in before it is stored", "move", Flaw::LetsInBeforeStored, Rule::IntentFirst),
        flaw(
            "shuts out before it is stored",
            "a second controller starts",
            Flaw::ShutsOutBeforeStored,
            Rule::IntentFirst,
        ),
        chooser("the epoch is not raised", "move", reuse_epoch, Rule::Epochs),
        flaw(
            "the target does not compare epochs",
            "late unpublish",
            Flaw::TargetForgetsEpochs,
            Rule::Answers,
        ),
        flaw("a late unpublish of a releases b", "late unpublish", Flaw::WithdrawsEverybody, Rule::Progress),
        chooser("a grace period lets both in", "move", grace_period, Rule::Exclusion),
        flaw(
            "an ex-leader may write",
            "two controllers, both asked",
            Flaw::StoreDoesNotCompare,
            Rule::Epochs,
        ),
        flaw("a restart begins empty", "move", Flaw::StartsEmpty, Rule::Recorded),
        flaw("a lost record counts as an empty one", "record removed", Flaw::LostIsEmpty, Rule::Epochs),
        flaw(
            "nobody is in of whom a lost record told",
            "record removed during a move",
            Flaw::LostIsEmpty,
            Rule::Answers,
        ),
        chooser("a deleted node counts as released", "node deleted", deleted_is_released, Rule::Recorded),
        chooser(
            "a third node joins a migration",
            "migration and a third node",
            third_node,
            Rule::TwoInMigration,
        ),
        flaw("a new filing inherits the old answer", "superseded", Flaw::InheritsAnswers, Rule::Answers),
        flaw(
            "a revocation is acknowledged before the drain",
            "move",
            Flaw::TargetAcknowledgesBeforeDrained,
            Rule::Answers,
        ),
        flaw(
            "a late allow is called gone during the drain",
            "late unpublish",
            Flaw::TargetAnswersLateAllowsBeforeDrained,
            Rule::Answers,
        ),
        chooser("an answer of another epoch counts", "released, then forced", any_epoch, Rule::Recorded),
        chooser("absence from the list is proof", "late unpublish", absence_is_proof, Rule::Recorded),
    ]
}

fn gone(hold: &Hold) -> Answer {
    Answer { epoch: hold.epoch, outcome: Outcome::Gone { highest: hold.epoch } }
}

fn fail_open(ledger: &Ledger, seen: &Observed, now: Timestamp) -> Plan {
    let mut seen = seen.clone();
    for answer in seen.answers.values_mut() {
        if matches!(answer.outcome, Outcome::Silent { .. }) {
            answer.outcome = Outcome::Gone { highest: answer.epoch };
        }
    }
    decide(ledger, &seen, now)
}

fn deleted_is_released(ledger: &Ledger, seen: &Observed, now: Timestamp) -> Plan {
    let mut seen = seen.clone();
    for (node, hold) in ledger.holds() {
        if seen.nodes.get(node).is_some_and(|facts| matches!(facts.state, NodeState::Gone { .. })) {
            seen.answers.insert(node.clone(), gone(hold));
        }
    }
    decide(ledger, &seen, now)
}

fn any_epoch(ledger: &Ledger, seen: &Observed, now: Timestamp) -> Plan {
    let mut seen = seen.clone();
    for (node, answer) in &mut seen.answers {
        if let Some(hold) = ledger.holds().get(node) {
            answer.epoch = hold.epoch;
        }
    }
    decide(ledger, &seen, now)
}

fn absence_is_proof(ledger: &Ledger, seen: &Observed, now: Timestamp) -> Plan {
    let mut seen = seen.clone();
    if let Some(list) = &seen.exports {
        for (node, hold) in ledger.holds() {
            if !hold.is_open() && !list.contains_key(&hold.epoch) {
                seen.answers.insert(node.clone(), gone(hold));
            }
        }
    }
    decide(ledger, &seen, now)
}

/// A ledger can be changed from outside only as the record it is stored as.
fn edited(ledger: &Ledger, edit: impl FnOnce(&mut Value)) -> Ledger {
    let mut record = serde_json::to_value(ledger).unwrap();
    edit(&mut record);
    serde_json::from_value(record).unwrap()
}

/// The orders that a ledger stands for.
fn orders(ledger: &Ledger) -> Vec<Effect> {
    decide(ledger, &Observed::new(crate::script::volume()), Timestamp::UNIX_EPOCH).effects
}

fn reuse_epoch(ledger: &Ledger, seen: &Observed, now: Timestamp) -> Plan {
    let mut plan = decide(ledger, seen, now);
    let fresh: Vec<String> = plan
        .next
        .holds()
        .iter()
        .filter(|(_, hold)| hold.epoch > ledger.epoch() && ledger.epoch().number() > 0)
        .map(|(node, _)| node.to_string())
        .collect();
    if fresh.is_empty() {
        return plan;
    }
    plan.next = edited(&plan.next, |record| {
        record["epoch"] = json!(ledger.epoch());
        for node in fresh {
            record["holds"][node]["epoch"] = json!(ledger.epoch());
        }
    });
    plan.effects = orders(&plan.next);
    plan
}

/// Chooses as if whoever is being released were gone already.
fn grace_period(ledger: &Ledger, seen: &Observed, now: Timestamp) -> Plan {
    let leaving: Vec<_> = ledger
        .holds()
        .iter()
        .filter(|(node, hold)| hold.phase == Phase::Releasing && seen.answers.get(*node) != Some(&gone(hold)))
        .collect();
    let without = edited(ledger, |record| {
        for (node, _) in &leaving {
            record["holds"].as_object_mut().unwrap().remove(node.as_str());
        }
    });
    let mut plan = decide(&without, seen, now);
    plan.next = edited(&plan.next, |record| {
        for (node, hold) in &leaving {
            record["holds"][node.as_str()] = json!(hold);
        }
    });
    let revoke = |(node, hold): &(&bowline_core::NodeId, &Hold)| Effect::Revoke {
        node: (*node).clone(),
        epoch: hold.epoch,
        fence: false,
    };
    plan.effects.extend(leaving.iter().map(revoke));
    plan
}

fn third_node(ledger: &Ledger, seen: &Observed, now: Timestamp) -> Plan {
    let mut plan = decide(ledger, seen, now);
    let third = plan.verdicts.iter().find(|(_, verdict)| matches!(verdict, Verdict::Migrating { .. }));
    let Some(ticket) = third.and_then(|(id, _)| plan.next.tickets().get(id).cloned()) else { return plan };
    let hold = Hold::granting(plan.next.epoch().next(), ticket.mode(), now);
    plan.next = edited(&plan.next, |record| {
        record["epoch"] = json!(hold.epoch);
        record["holds"][ticket.node.as_str()] = json!(hold);
    });
    plan.effects.push(Effect::Allow { node: ticket.node, epoch: hold.epoch, mode: hold.mode });
    plan
}
