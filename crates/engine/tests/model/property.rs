//! What must be true, always.

use bowline_core::{Epoch, Export, NodeId, NodeState};
use std::sync::atomic::Ordering;

use crate::script::Event;
use crate::system::System;
use crate::world::{Caller, Stage, World};
use bowline_core::Effect;

/// The properties. A state that breaks several is reported under the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Rule {
    TwoInMigration,
    Exclusion,
    Order,
    Recorded,
    IntentFirst,
    Answers,
    Epochs,
    Kept,
    Progress,
}

impl Rule {
    pub(crate) const ALL: [Rule; 9] = [
        Self::TwoInMigration,
        Self::Exclusion,
        Self::Order,
        Self::Recorded,
        Self::IntentFirst,
        Self::Answers,
        Self::Epochs,
        Self::Kept,
        Self::Progress,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::TwoInMigration => "two in a migration",
            Self::Exclusion => "exclusion",
            Self::Order => "order of epochs",
            Self::Recorded => "recorded reach",
            Self::IntentFirst => "intent first",
            Self::Answers => "honest answers",
            Self::Epochs => "epochs rise",
            Self::Kept => "kept attachments",
            Self::Progress => "progress",
        }
    }

    pub(crate) fn meaning(self) -> &'static str {
        match self {
            Self::TwoInMigration => {
                "a live migration has two nodes; never does a third reach the bytes beside them"
            }
            Self::Exclusion => {
                "any two nodes that can reach the bytes are in modes that admit each other, or are the two sides of a \
                 migration that was durable before both were let in"
            }
            Self::Order => {
                "once a grant has acted, no older grant that it does not admit ever acts again (the two sides of a \
                 migration excepted)"
            }
            Self::Recorded => {
                "whoever can reach the bytes, draining included, has a durable hold with that very epoch; where somebody removed \
                 the record, from the moment on at which it is whole again"
            }
            Self::IntentFirst => {
                "no command is ever on its way, to let somebody in or to shut somebody out, that was never durable as an intent"
            }
            Self::Answers => {
                "'yes' is said only for a durable ticket whose grant was durable and confirmed by the target; a node that was \
                 called 'out' never again reaches the bytes by a grant of that time, and the store did not mean it to be in \
                 (but for another ticket); a final 'no' leaves no ticket behind"
            }
            Self::Epochs => "the stored epoch never goes down; no grant shares, reuses or undercuts an epoch",
            Self::Kept => {
                "a workload that was told 'yes' keeps its reach for as long as its ticket and its node stand"
            }
            Self::Progress => {
                "from every state, once faults stop, the volume comes to rest: every wanted ticket is there, satisfied or \
                 with a settled reason that names a real holder; every withdrawal is answered; nothing else is left, \
                 neither ticket nor hold nor export"
            }
        }
    }

    fn holds(self, system: &System, world: &World) -> bool {
        if world.history.broken.is_some_and(|(rule, _)| rule == self) {
            return false;
        }
        match self {
            Self::TwoInMigration => two_in_migration(world),
            Self::Exclusion => {
                pairs(world).all(|(a, b)| admits(&a.1, &b.1) || world.history.were_migrating(a.0, b.0))
            }
            Self::Order => in_order(world),
            Self::Recorded => world.history.wiped || recorded(world),
            Self::IntentFirst => intent_first(world),
            Self::Answers => out_is_out(world),
            Self::Epochs => true,
            Self::Kept => kept(system, world),
            Self::Progress => !system.foresight || system.comes_to_rest(world).is_ok(),
        }
    }
}

/// The rule as the checker wants it. Only the first violation is reported: with one thread it is the nearest.
pub(crate) fn of(rule: Rule) -> stateright::Property<System> {
    let condition: fn(&System, &World) -> bool = match rule {
        Rule::TwoInMigration => |system, world| check(Rule::TwoInMigration, system, world),
        Rule::Exclusion => |system, world| check(Rule::Exclusion, system, world),
        Rule::Order => |system, world| check(Rule::Order, system, world),
        Rule::Recorded => |system, world| check(Rule::Recorded, system, world),
        Rule::IntentFirst => |system, world| check(Rule::IntentFirst, system, world),
        Rule::Answers => |system, world| check(Rule::Answers, system, world),
        Rule::Epochs => |system, world| check(Rule::Epochs, system, world),
        Rule::Kept => |system, world| check(Rule::Kept, system, world),
        Rule::Progress => |system, world| check(Rule::Progress, system, world),
    };
    stateright::Property::always(rule.name(), condition)
}

fn check(rule: Rule, system: &System, world: &World) -> bool {
    system.over.load(Ordering::Relaxed)
        || rule.holds(system, world)
        || system.over.swap(true, Ordering::Relaxed)
}

type Reach = (Epoch, Export);

fn pairs(world: &World) -> impl Iterator<Item = (Reach, Reach)> {
    let reach: Vec<Reach> = world.target.reach().into_iter().collect();
    let count = reach.len();
    (0..count).flat_map(move |one| {
        let reach = reach.clone();
        (one + 1..count).map(move |other| (reach[one].clone(), reach[other].clone()))
    })
}

fn admits(a: &Export, b: &Export) -> bool {
    a.node != b.node && a.mode.admits(b.mode)
}

fn two_in_migration(world: &World) -> bool {
    let migrating = pairs(world).any(|(a, b)| world.history.were_migrating(a.0, b.0));
    let recorded = world.store.ledger.migration().is_none() || world.store.ledger.holds().len() <= 2;
    recorded && !(migrating && world.target.reach().len() > 2)
}

fn in_order(world: &World) -> bool {
    let newer_ones = &world.history.let_in;
    world.target.reach().iter().all(|(epoch, export)| {
        newer_ones.iter().all(|(newer, acted)| {
            newer <= epoch || admits(acted, export) || world.history.were_migrating(*newer, *epoch)
        })
    })
}

pub(crate) fn recorded(world: &World) -> bool {
    let holds = world.store.ledger.holds();
    let reach = world.target.reach();
    reach.iter().all(|(epoch, export)| holds.get(&export.node).is_some_and(|hold| hold.epoch == *epoch))
}

/// Whoever was told that a node is out was told so for good, as far as the grants of that time go.
fn out_is_out(world: &World) -> bool {
    let told = &world.history.told_out;
    let meant = |node: &NodeId, epoch: Epoch| told.get(node).is_some_and(|up_to| epoch <= *up_to);
    world.target.reach().iter().all(|(epoch, export)| !meant(&export.node, *epoch))
}

fn intent_first(world: &World) -> bool {
    world.network.iter().filter(|command| command.stage == Stage::Going).all(|command| {
        match &command.effect {
            Effect::Allow { node, epoch, mode } => {
                world.history.granted.get(epoch).is_some_and(|granted| granted == &(node.clone(), *mode))
            }
            Effect::Revoke { epoch, .. } => world.history.closed.contains(epoch),
        }
    })
}

fn kept(system: &System, world: &World) -> bool {
    let lines = &system.scenario.lines;
    let given_up = |node| {
        lines.iter().zip(&world.callers).any(|(line, caller)| {
            *caller != Caller::NotYet
                && matches!(&line.event, Event::Node(gone, NodeState::OutOfService { .. } | NodeState::Gone { .. })
                    if gone == node)
        })
    };
    // A migration that took too long ends for one of the two; which, is for the chooser's own tests.
    let timed_out = system.scenario.volume.migratable.is_some() && world.minutes > 0;
    (0..lines.len()).all(|line| match (&lines[line].event, &world.callers[line]) {
        (Event::Submit(ticket, _), Caller::Yes { epoch }) => {
            !ticket.kind.is_workload()
                || given_up(&ticket.node)
                || timed_out
                || !system.scenario.is_wanted(world, line)
                || world.target.exports.open().contains_key(epoch)
        }
        _ => true,
    })
}
