//! Progress: from any state, once nothing goes wrong any more, everything comes to rest as it should.
//!
//! The checker's own `eventually` overlooks cycles, so this is checked as a property of every state: a fair schedule without
//! faults is followed to its end with the same code. It is a function of the state, so a state from which the end was
//! reached once need not be followed again; that is why every state can be checked, and not a sample.

use bowline_core::{Ledger, NodeFacts, Observed, Phase, TicketId, Verdict};
use std::collections::{BTreeMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Mutex;

use crate::script::Event;
use crate::step::{Step, unobserved};
use crate::system::System;
use crate::world::{Caller, Controller, Stage, World, Write};

/// A calm world that takes longer than this goes in circles: the longest schedule seen has about fifty steps.
const LONGEST: usize = 300;

/// States, faults and history aside, from which the end is known to be reached.
#[derive(Default)]
pub(crate) struct Settled(Mutex<HashSet<u64>>);

impl Settled {
    fn has(&self, key: u64) -> bool {
        self.0.lock().expect("no checker thread panicked").contains(&key)
    }

    fn add(&self, keys: Vec<u64>) {
        self.0.lock().expect("no checker thread panicked").extend(keys);
    }
}

impl System {
    /// Follows the calm schedule; says what is wrong at its end.
    pub(crate) fn comes_to_rest(&self, world: &World) -> Result<(), String> {
        let mut passed = vec![key(world)];
        if self.settled.has(passed[0]) {
            return Ok(());
        }
        let mut world = world.clone();
        let mut may_change = self.scenario.controllers > 1;
        loop {
            match self.calm_step(&world) {
                Some(step) => self.take(&mut world, &step),
                None => match self.rests_well(&world) {
                    Ok(()) => break,
                    Err(_) if may_change => {
                        may_change = false;
                        self.change_leader(&mut world);
                    }
                    Err(wrong) => return Err(wrong),
                },
            }
            if passed.len() > LONGEST {
                return Err(format!("after {LONGEST} calm steps it has not come to rest"));
            }
            let key = key(&world);
            if self.settled.has(key) {
                break;
            }
            passed.push(key);
        }
        self.settled.add(passed);
        Ok(())
    }

    /// Controllers that both believed to lead do not hear of each other's doings: the lease goes to one, which starts anew.
    fn change_leader(&self, world: &mut World) {
        for at in 0..world.controllers.len() {
            self.stop(world, at);
        }
    }

    /// The one next step of the calm schedule, or none at its end.
    pub(crate) fn calm_step(&self, world: &World) -> Option<Step> {
        let network = || {
            let answered =
                world.network.iter().position(|command| matches!(command.stage, Stage::Answered(_)));
            let draining = world.target.draining.keys().next();
            let going = world.network.iter().position(|command| command.stage == Stage::Going);
            let next = answered.map(Step::Answer).or(draining.map(|epoch| Step::Drain(*epoch)));
            next.or(going.map(Step::Deliver))
        };
        let late = || (!world.store.late.is_empty()).then_some(Step::LateStore(0));
        let controllers = || (0..world.controllers.len()).find_map(|at| calm_step_of(world, at));
        let start = || (running(world) == 0).then_some(Step::Read(0));
        let retry = || {
            let line = (0..world.callers.len()).find(|line| self.scenario.may_retry(world, *line))?;
            let at = (0..world.controllers.len()).find(|at| world.up(*at).is_some())?;
            Some(Step::Retry { line, at })
        };
        let first = network().or_else(late).or_else(controllers).or_else(start).or_else(retry);
        first.or_else(|| self.disowning(world))
    }

    /// Where two controllers, or a write after its reader, can bring back a ticket that was withdrawn, it is left to the
    /// check of its owner.
    fn disowning(&self, world: &World) -> Option<Step> {
        let certain = self.scenario.reads_settle_writes && self.scenario.controllers == 1;
        if certain || running(world) > 1 {
            return None;
        }
        (0..world.controllers.len()).find_map(|at| {
            let tickets = world.up(at)?.executor.ledger().tickets();
            let mut lines = self.scenario.lines.iter().enumerate();
            let unwanted = |event: &Event| match event {
                Event::Submit(ticket, _) => {
                    tickets.contains_key(&ticket.id) && !self.wants(world, &ticket.id)
                }
                Event::Withdraw(_) | Event::Node(..) | Event::Minute => false,
            };
            lines.find_map(|(line, script)| unwanted(&script.event).then_some(Step::Disown { line, at }))
        })
    }

    fn wants(&self, world: &World, id: &TicketId) -> bool {
        self.scenario.lines.iter().enumerate().any(|(line, script)| {
            matches!(&script.event, Event::Submit(ticket, _) if ticket.id == *id)
                && self.scenario.is_wanted(world, line)
        })
    }

    fn rests_well(&self, world: &World) -> Result<(), String> {
        let ledger = &world.store.ledger;
        let mut seen = Observed::new(self.scenario.volume.clone());
        let facts = |state| NodeFacts { state, ..NodeFacts::default() };
        seen.nodes = world.nodes.iter().map(|(node, state)| (node.clone(), facts(*state))).collect();
        let plan = bowline_core::decide(ledger, &seen, world.now());
        if plan.next != *ledger {
            return Err("what is stored is not what would be decided".to_owned());
        }
        self.tickets_are_those_wanted(world)?;
        for (id, verdict) in &plan.verdicts {
            is_settled(ledger, &plan.verdicts, id, verdict)?;
        }
        for (node, hold) in ledger.holds() {
            if hold.phase != Phase::Held || !world.target.exports.open().contains_key(&hold.epoch) {
                return Err(format!("the hold of {node} is left in {:?}", hold.phase));
            }
        }
        if world.target.reach().len() != ledger.holds().len() {
            return Err("the target lets somebody in without a hold".to_owned());
        }
        self.callers_are_answered(world, &plan.verdicts)
    }

    fn tickets_are_those_wanted(&self, world: &World) -> Result<(), String> {
        let tickets = world.store.ledger.tickets();
        let mut wanted = BTreeMap::new();
        for (line, script) in self.scenario.lines.iter().enumerate() {
            if let Event::Submit(ticket, _) = &script.event
                && self.scenario.is_wanted(world, line)
            {
                wanted.insert(ticket.id.clone(), ticket.generation);
            }
        }
        for (id, generation) in &wanted {
            if tickets.get(id).is_none_or(|ticket| ticket.generation != *generation) {
                return Err(format!("ticket {id} is wanted and was lost"));
            }
        }
        match tickets.keys().find(|id| !wanted.contains_key(*id)) {
            Some(id) => Err(format!("ticket {id} is left although nobody wants it")),
            None => Ok(()),
        }
    }

    fn callers_are_answered(
        &self,
        world: &World,
        verdicts: &BTreeMap<TicketId, Verdict>,
    ) -> Result<(), String> {
        for (line, caller) in self.scenario.lines.iter().zip(&world.callers) {
            match (&line.event, caller) {
                (Event::Withdraw(_), Caller::Waiting { .. }) => {
                    return Err("a withdrawal is not answered".to_owned());
                }
                (Event::Submit(ticket, _), Caller::Waiting { .. })
                    if verdicts.get(&ticket.id).is_none_or(Verdict::is_satisfied) =>
                {
                    return Err(format!("ticket {} is satisfied and its caller was not told", ticket.id));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

fn calm_step_of(world: &World, at: usize) -> Option<Step> {
    let up = match &world.controllers[at] {
        Controller::Down => return None,
        Controller::Read { .. } => return Some(Step::List(at)),
        Controller::Listed { .. } => return Some(Step::Serve(at)),
        Controller::Up(up) => up,
    };
    match up.write {
        Some(Write::Going { .. }) => return Some(Step::Store(at)),
        Some(Write::Answered(_)) => return Some(Step::Stored(at)),
        None => {}
    }
    let wakes = up.executor.wake().is_some_and(|wake| wake <= world.now());
    [
        (up.executor.must_read(), Step::Load(at)),
        (up.list.is_some(), Step::Compare(at)),
        (up.executor.must_look(), Step::AskList(at)),
        (unobserved(world, at), Step::Observe(at)),
        (wakes, Step::Wake(at)),
        (!up.failed.is_empty(), Step::Rest { at, effect: 0 }),
        (up.executor.has_unwritten(), Step::Flush(at)),
        // Found at the latest when the targets are compared.
        (up.executor.revision().is_some() && world.store.revision.is_none(), Step::Load(at)),
    ]
    .into_iter()
    .find_map(|(due, step)| due.then_some(step))
}

fn running(world: &World) -> usize {
    world.controllers.iter().filter(|controller| **controller != Controller::Down).count()
}

fn is_settled(
    ledger: &Ledger,
    verdicts: &BTreeMap<TicketId, Verdict>,
    id: &TicketId,
    verdict: &Verdict,
) -> Result<(), String> {
    let legitimate = match verdict {
        Verdict::HeldElsewhere { by, .. }
        | Verdict::Outranked { by, .. }
        | Verdict::Interrupted { by, .. }
        | Verdict::IncompatibleParameters { by, .. }
        | Verdict::MigrationTimedOut { by, .. } => verdicts.get(by).is_some_and(Verdict::is_satisfied),
        Verdict::Migrating { .. } => ledger.migration().is_some(),
        other => other.is_settled(),
    };
    if legitimate { Ok(()) } else { Err(format!("ticket {id} waits for ever: {}", verdict.reason())) }
}

fn key(world: &World) -> u64 {
    let World { store, controllers, network, target, callers, nodes, minutes, faults: _, history: _ } = world;
    let mut hasher = DefaultHasher::new();
    (store, controllers, network, target, callers, nodes, minutes).hash(&mut hasher);
    hasher.finish()
}
