//! The transitions: what each step does to the world.

use bowline_core::{Effect, Ledger, Outcome};
use bowline_engine::{Decide, Written};
use bowline_store::{Expected, Revision};
use stateright::Model;
use std::sync::atomic::AtomicBool;

use crate::calm::Settled;
use crate::history::History;
use crate::property::{self, Rule};
use crate::script::{Event, Scenario};
use crate::step::{self, Step};
use crate::world::{Caller, Command, Controller, LateWrite, Stage, Store, Target, World, Write};

/// A mistake outside the chooser, for the runs that must fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    AnswersBeforeDurable,
    LetsInBeforeStored,
    ShutsOutBeforeStored,
    WithdrawsEverybody,
    StoreDoesNotCompare,
    StartsEmpty,
    LostIsEmpty,
    InheritsAnswers,
    TargetForgetsEpochs,
    TargetAcknowledgesBeforeDrained,
    TargetAnswersLateAllowsBeforeDrained,
}

/// A scenario together with the code that is run in it.
pub(crate) struct System {
    pub(crate) scenario: Scenario,
    pub(crate) decide: Decide,
    pub(crate) flaw: Option<Flaw>,
    /// Whether progress is watched. It looks ahead, and would claim most mistakes before they have happened.
    pub(crate) foresight: bool,
    pub(crate) settled: Settled,
    /// Set by the first violation: the search is over, and its trace is the one to show.
    pub(crate) over: AtomicBool,
}

impl System {
    pub(crate) fn new(scenario: Scenario, decide: Decide, flaw: Option<Flaw>) -> Self {
        let (settled, over) = (Settled::default(), AtomicBool::new(false));
        Self { scenario, decide, flaw, foresight: true, settled, over }
    }

    /// The world in which the exploration begins.
    pub(crate) fn beginning(&self) -> World {
        let scenario = &self.scenario;
        let mut world = World {
            store: Store::default(),
            controllers: vec![Controller::Down; scenario.controllers],
            network: Vec::new(),
            target: Target::default(),
            callers: vec![Caller::NotYet; scenario.lines.len()],
            nodes: Default::default(),
            minutes: 0,
            faults: Default::default(),
            history: History::default(),
        };
        self.start(&mut world, 0);
        for line in 0..scenario.before {
            self.take(&mut world, &Step::Happen { line, at: 0 });
            while let Some(step) = self.calm_step(&world) {
                self.take(&mut world, &step);
            }
        }
        for at in 1..scenario.up {
            self.start(&mut world, at);
        }
        world.faults = scenario.faults;
        world
    }

    fn start(&self, world: &mut World, at: usize) {
        for step in [Step::Read(at), Step::List(at), Step::Serve(at)] {
            self.take(world, &step);
        }
    }

    /// Takes one step.
    pub(crate) fn take(&self, world: &mut World, step: &Step) {
        match step {
            Step::Happen { line, at } => self.happen(world, *line, *at),
            Step::Retry { line, at } => self.ask(world, *line, *at),
            Step::Read(at) => {
                let Store { mut ledger, revision, .. } = world.store.clone();
                if self.flaw == Some(Flaw::StartsEmpty) {
                    ledger = Ledger::default();
                }
                self.settle_writes(world, *at);
                world.controllers[*at] = Controller::Read { ledger, revision };
            }
            Step::List(at) => {
                if let Controller::Read { ledger, revision } = world.controllers[*at].clone() {
                    let list = world.target.reach();
                    world.controllers[*at] = Controller::Listed { ledger, revision, list };
                }
            }
            Step::Serve(at) => self.serve(world, *at),
            Step::Crash(at) => self.crash(world, *at),
            Step::Store(at) => {
                if let Some(Write::Going { expected, ledger }) = world.up_mut(*at).write.clone() {
                    let revision = self.store(world, expected, ledger);
                    world.up_mut(*at).write = Some(Write::Answered(revision));
                }
            }
            Step::Stored(at) => {
                if let Some(Write::Answered(revision)) = world.up_mut(*at).write {
                    self.wrote(world, *at, revision.map_or(Written::ReadAgain, Written::Durable));
                }
            }
            Step::StoreSilent(at) => {
                world.faults.losses -= 1;
                self.abandon_write(world, *at);
                self.wrote(world, *at, Written::ReadAgain);
            }
            Step::Load(at) => {
                self.settle_writes(world, *at);
                self.load(world, *at);
            }
            Step::Flush(at) => {
                world.up_mut(*at).executor.flush();
                self.turn(world, *at);
            }
            Step::Wake(at) => self.turn(world, *at),
            Step::Observe(at) => self.observe(world, *at),
            Step::Rest { at, effect } => self.rested(world, *at, *effect),
            Step::AskList(at) => {
                if !world.up_mut(*at).executor.must_look() {
                    world.faults.lists -= 1;
                }
                let list = world.target.reach();
                world.up_mut(*at).list = Some(list);
            }
            Step::Compare(at) => self.compare(world, *at),
            Step::Wipe => self.wipe(world),
            Step::LateStore(index) => {
                let LateWrite { expected, ledger, .. } = world.store.late.remove(*index);
                self.store(world, expected, ledger);
            }
            Step::Deliver(index) => self.deliver(world, *index),
            Step::DeliverCopy(index) => {
                world.faults.copies -= 1;
                let copy = Command { asker: None, ..world.network[*index].clone() };
                self.deliver(world, *index);
                world.send(copy);
            }
            Step::Drain(epoch) => {
                world.target.draining.remove(epoch);
                self.finish_drained(world);
            }
            Step::Answer(index) => {
                let Command { effect, asker, stage } = world.network.remove(*index);
                if let (Some(at), Stage::Answered(outcome)) = (asker, stage) {
                    self.answered(world, at.into(), &effect, outcome);
                }
            }
            Step::Silent(index) => self.silent(world, *index),
            Step::Disown { line, at } => self.disown(world, *line, *at),
        }
    }

    fn happen(&self, world: &mut World, line: usize, at: usize) {
        let event = &self.scenario.lines[line].event;
        world.callers[line] = Caller::Over;
        for (other, caller) in self.scenario.lines.iter().zip(&mut world.callers) {
            let Event::Submit(known, _) = &other.event else { continue };
            let newer = matches!(event, Event::Submit(ticket, _)
                if ticket.id == known.id && ticket.generation > known.generation);
            if *caller != Caller::NotYet && (event.withdraws(known) || newer) {
                *caller = Caller::Over;
            }
        }
        match event {
            Event::Submit(..) | Event::Withdraw(_) => self.ask(world, line, at),
            Event::Node(node, state) => {
                world.nodes.insert(node.clone(), *state);
            }
            Event::Minute => world.minutes += 1,
        }
    }

    fn crash(&self, world: &mut World, at: usize) {
        world.faults.crashes -= 1;
        self.stop(world, at);
    }

    /// All that a controller had in memory is gone; what it has sent is on its way.
    pub(crate) fn stop(&self, world: &mut World, at: usize) {
        if world.up(at).is_some() {
            self.abandon_write(world, at);
        }
        world.controllers[at] = Controller::Down;
        let its = |asker: Option<u8>| asker.is_some_and(|asker| usize::from(asker) == at);
        world.network.retain(|command| !its(command.asker) || !matches!(command.stage, Stage::Answered(_)));
        for command in &mut world.network {
            if its(command.asker) {
                command.asker = None;
            }
        }
        world.network.sort_by_key(Command::place);
        for caller in &mut world.callers {
            if matches!(caller, Caller::Waiting { at: here, .. } if usize::from(*here) == at) {
                *caller = Caller::Lost;
            }
        }
    }

    fn abandon_write(&self, world: &mut World, at: usize) {
        if let Some(Write::Going { expected, ledger }) = world.up_mut(at).write.take() {
            world.store.late.push(LateWrite { writer: at, expected, ledger });
            self.forget_hopeless_writes(world);
        }
    }

    fn settle_writes(&self, world: &mut World, reader: usize) {
        if self.scenario.reads_settle_writes {
            world.store.late.retain(|late| late.writer != reader);
        }
    }

    /// Revisions only rise: a write that expects another one will never be accepted, and is no state of its own.
    fn forget_hopeless_writes(&self, world: &mut World) {
        let Store { revision, late, .. } = &mut world.store;
        if self.flaw != Some(Flaw::StoreDoesNotCompare) {
            late.retain(|late| late.expected.matches(*revision));
        }
    }

    fn store(&self, world: &mut World, expected: Expected, ledger: Ledger) -> Option<Revision> {
        if !expected.matches(world.store.revision) && self.flaw != Some(Flaw::StoreDoesNotCompare) {
            return None;
        }
        world.history.durable(&world.store.ledger, &ledger);
        world.store.ledger = ledger;
        world.store.newest += 1;
        world.store.revision = Some(Revision::new(world.store.newest));
        world.history.wiped &= !property::recorded(world);
        self.forget_hopeless_writes(world);
        world.store.revision
    }

    fn wipe(&self, world: &mut World) {
        world.faults.wipes -= 1;
        (world.store.ledger, world.store.revision) = (Ledger::default(), None);
        world.history.wiped = true;
        self.forget_hopeless_writes(world);
    }

    fn deliver(&self, world: &mut World, index: usize) {
        let mut command = world.network.remove(index);
        let outcome = match &command.effect {
            Effect::Allow { node, epoch, mode } => {
                let export = bowline_core::Export { node: node.clone(), mode: *mode };
                match world.target.exports.allow(node, *epoch, *mode) {
                    Ok(()) => {
                        world.history.let_in.insert(*epoch, export);
                        Some(Outcome::Allowed)
                    }
                    Err(_) if self.flaw == Some(Flaw::TargetForgetsEpochs) => {
                        world.target.reopened.insert(*epoch, export.clone());
                        world.history.let_in.insert(*epoch, export);
                        Some(Outcome::Allowed)
                    }
                    Err(proof) => {
                        let drained = !world.target.drains(node, *epoch)
                            || self.flaw == Some(Flaw::TargetAnswersLateAllowsBeforeDrained);
                        drained.then_some(Outcome::Gone { highest: proof.highest })
                    }
                }
            }
            Effect::Revoke { node, epoch, .. } => {
                let covered = |at, export: &bowline_core::Export| export.node == *node && at <= *epoch;
                let closing: Vec<_> =
                    world.target.exports.open().iter().map(|(at, x)| (*at, x.clone())).collect();
                world.target.draining.extend(closing.into_iter().filter(|(at, export)| covered(*at, export)));
                world.target.reopened.retain(|at, export| !covered(*at, export));
                let highest = world.target.exports.revoke(node, *epoch).highest;
                let drained = !world.target.drains(node, *epoch)
                    || self.flaw == Some(Flaw::TargetAcknowledgesBeforeDrained);
                drained.then_some(Outcome::Gone { highest })
            }
        };
        command.stage = outcome.map_or(Stage::Draining, Stage::Answered);
        if command.asker.is_some() {
            world.send(command);
        }
    }

    fn finish_drained(&self, world: &mut World) {
        let highest = world.target.exports.highest();
        let World { network, target, .. } = world;
        for command in network.iter_mut() {
            let (node, epoch) = (command.effect.node(), command.effect.epoch());
            if command.stage == Stage::Draining && !target.drains(node, epoch) {
                command.stage = Stage::Answered(Outcome::Gone { highest });
            }
        }
        network.sort_by_key(Command::place);
    }

    fn silent(&self, world: &mut World, index: usize) {
        world.faults.losses -= 1;
        let since = world.now();
        let mut command = world.network.remove(index);
        let Some(at) = command.asker.take() else { return };
        let effect = command.effect.clone();
        if command.stage == Stage::Going {
            world.send(command);
        }
        self.answered(world, at.into(), &effect, Outcome::Silent { since, error: "time-out".to_owned() });
    }
}

impl Scenario {
    pub(crate) fn may_happen(&self, world: &World, line: usize) -> bool {
        world.callers[line] == Caller::NotYet
            && self.lines[line].after.iter().all(|earlier| world.callers[*earlier] != Caller::NotYet)
    }

    /// Nobody repeats a withdrawal after asking for the volume again.
    pub(crate) fn may_retry(&self, world: &World, line: usize) -> bool {
        let superseded = self.lines.iter().zip(&world.callers).skip(line + 1).any(|(later, caller)| {
            *caller != Caller::NotYet
                && matches!(&later.event, Event::Submit(ticket, _) if self.lines[line].event.withdraws(ticket))
        });
        world.callers[line] == Caller::Lost && !superseded && !self.is_expired(world, line)
    }

    pub(crate) fn is_expired(&self, world: &World, line: usize) -> bool {
        matches!(&self.lines[line].event, Event::Submit(ticket, _)
            if matches!(ticket.owner, bowline_core::Owner::Expires { at } if at <= world.now()))
    }

    /// Whether somebody still wants the ticket of this line.
    pub(crate) fn is_wanted(&self, world: &World, line: usize) -> bool {
        let stands =
            matches!(world.callers[line], Caller::Waiting { .. } | Caller::Lost | Caller::Yes { .. });
        stands && matches!(self.lines[line].event, Event::Submit(..)) && !self.is_expired(world, line)
    }
}

impl Model for System {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        vec![self.beginning()]
    }

    fn actions(&self, world: &World, steps: &mut Vec<Step>) {
        step::possible(&self.scenario, world, steps);
    }

    fn next_state(&self, world: &World, step: Step) -> Option<World> {
        let mut next = world.clone();
        self.take(&mut next, &step);
        Some(next)
    }

    fn properties(&self) -> Vec<stateright::Property<Self>> {
        Rule::ALL.map(property::of).to_vec()
    }
}
