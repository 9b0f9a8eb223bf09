//! The part that production's actor plays: it feeds the executor, carries out what a turn asks for, and answers those
//! who wait. Every function ends in a turn, as in production.

use bowline_core::{Contact, Effect, NodeFacts, NodeId, Observed, Outcome, Ticket, Verdict};
use bowline_engine::{Action, Executor, Withdrawal, Written};
use std::collections::BTreeSet;

use crate::property::Rule;
use crate::script::Event;
use crate::system::{Flaw, System};
use crate::world::{Caller, Command, Controller, Stage, Up, World, Write};

impl System {
    pub(crate) fn ask(&self, world: &mut World, line: usize, at: usize) {
        let now = world.now();
        let mut out = Vec::new();
        let up = world.up_mut(at);
        match &self.scenario.lines[line].event {
            Event::Submit(ticket, patience) => {
                if up.executor.submit(ticket.clone(), *patience, now).is_err() {
                    world.callers[line] = Caller::Refused;
                    return;
                }
            }
            Event::Withdraw(withdrawal) => {
                let mut withdrawal = withdrawal.clone();
                if self.flaw == Some(Flaw::WithdrawsEverybody) {
                    withdrawal.node = None;
                }
                out.extend(up.executor.withdraw(withdrawal, now));
            }
            Event::Node(..) | Event::Minute => panic!("not a request"),
        }
        world.callers[line] = Caller::Waiting { at: u8::try_from(at).expect("two controllers"), out };
        if self.flaw == Some(Flaw::InheritsAnswers) {
            self.answer(world, at);
        }
        self.turn(world, at);
    }

    pub(crate) fn serve(&self, world: &mut World, at: usize) {
        let Controller::Listed { ledger, revision, list } = world.controllers[at].clone() else { return };
        let mut seen = Observed::new(self.scenario.volume.clone());
        seen.contact = Contact::Compared;
        seen.exports = (self.flaw != Some(Flaw::StartsEmpty)).then_some(list);
        let facts = |state| NodeFacts { state, ..NodeFacts::default() };
        seen.nodes = world.nodes.iter().map(|(node, state)| (node.clone(), facts(*state))).collect();
        let executor = Executor::new(ledger, revision, seen);
        world.controllers[at] =
            Controller::Up(Box::new(Up { executor, write: None, failed: Vec::new(), list: None }));
        self.turn(world, at);
    }

    pub(crate) fn observe(&self, world: &mut World, at: usize) {
        let nodes = world.nodes.clone();
        world.up_mut(at).executor.observe(|seen| {
            for (node, state) in nodes {
                seen.nodes.entry(node).or_default().state = state;
            }
        });
        self.turn(world, at);
    }

    pub(crate) fn compare(&self, world: &mut World, at: usize) {
        let up = world.up_mut(at);
        match up.list.take() {
            Some(list) if up.executor.must_look() => up.executor.looked(list),
            list => up.executor.observe(|seen| seen.exports = list),
        }
        self.turn(world, at);
    }

    pub(crate) fn disown(&self, world: &mut World, line: usize, at: usize) {
        let Event::Submit(ticket, _) = &self.scenario.lines[line].event else { return };
        let withdrawal = Withdrawal { ticket: Some(ticket.id.clone()), ..Withdrawal::default() };
        let now = world.now();
        world.up_mut(at).executor.withdraw(withdrawal, now);
        self.turn(world, at);
    }

    pub(crate) fn wrote(&self, world: &mut World, at: usize, written: Written) {
        let up = world.up_mut(at);
        up.write = None;
        up.executor.wrote(written);
        self.turn(world, at);
    }

    pub(crate) fn load(&self, world: &mut World, at: usize) {
        let (ledger, revision, now) = (world.store.ledger.clone(), world.store.revision, world.now());
        if revision.is_none() {
            forget_the_unheard(world, at);
        }
        let up = world.up_mut(at);
        if self.flaw == Some(Flaw::LostIsEmpty) && revision.is_none() {
            up.executor = Executor::new(ledger, revision, up.executor.seen().clone());
            return self.turn(world, at);
        }
        let rejected = up.executor.loaded(ledger, revision, now);
        if up.executor.must_look() {
            // A list that was asked for earlier may lack somebody.
            up.list = None;
        }
        for (id, _) in rejected {
            self.tell(world, at, |ticket| ticket.id == id, &Caller::Refused);
        }
        self.turn(world, at);
    }

    pub(crate) fn answered(&self, world: &mut World, at: usize, effect: &Effect, outcome: Outcome) {
        let up = world.up_mut(at);
        let failed =
            matches!(outcome, Outcome::Silent { .. } | Outcome::Refused { .. } | Outcome::InUse { .. });
        if failed && !up.failed.contains(effect) {
            up.failed.push(effect.clone());
        }
        up.executor.answered(effect, outcome);
        self.turn(world, at);
    }

    pub(crate) fn rested(&self, world: &mut World, at: usize, effect: usize) {
        let up = world.up_mut(at);
        let effect = up.failed.remove(effect);
        up.executor.rested(&effect);
        self.turn(world, at);
    }

    pub(crate) fn turn(&self, world: &mut World, at: usize) {
        let (now, asker) = (world.now(), u8::try_from(at).ok());
        let turn = world.up_mut(at).executor.turn(now, self.decide);
        for action in turn.actions {
            match action {
                Action::Write { expected, ledger } => {
                    let plan =
                        self.flaw.map(|_| (self.decide)(&ledger, world.up_mut(at).executor.seen(), now));
                    for effect in plan.into_iter().flat_map(|plan| plan.effects) {
                        let hasty = match effect {
                            Effect::Allow { .. } => Flaw::LetsInBeforeStored,
                            Effect::Revoke { .. } => Flaw::ShutsOutBeforeStored,
                        };
                        if self.flaw == Some(hasty) {
                            world.send(Command { effect, asker, stage: Stage::Going });
                        }
                    }
                    world.up_mut(at).write = Some(Write::Going { expected, ledger });
                }
                Action::Ask(effect) => world.send(Command { effect, asker, stage: Stage::Going }),
            }
        }
        for (id, _) in turn.refused {
            if world.store.ledger.tickets().contains_key(&id) {
                world.history.breaks(Rule::Answers, "a final no left its ticket behind");
            }
            self.tell(world, at, |ticket| ticket.id == id, &Caller::Refused);
        }
        self.answer(world, at);
    }

    fn tell(&self, world: &mut World, at: usize, whom: impl Fn(&Ticket) -> bool, what: &Caller) {
        for (line, caller) in self.scenario.lines.iter().zip(&mut world.callers) {
            let waits_here = matches!(caller, Caller::Waiting { at: here, .. } if usize::from(*here) == at);
            if waits_here && matches!(&line.event, Event::Submit(ticket, _) if whom(ticket)) {
                *caller = what.clone();
            }
        }
    }

    /// Answers everybody at this controller who may be answered.
    fn answer(&self, world: &mut World, at: usize) {
        for line in 0..self.scenario.lines.len() {
            let Caller::Waiting { at: here, out } = world.callers[line].clone() else { continue };
            if usize::from(here) != at {
                continue;
            }
            match &self.scenario.lines[line].event {
                Event::Submit(ticket, _) => self.answer_yes(world, line, at, ticket),
                Event::Withdraw(_) => {
                    let nodes: BTreeSet<_> = out.into_iter().collect();
                    if world.up_mut(at).executor.is_out(&nodes) {
                        for node in &nodes {
                            tell_out(world, node);
                        }
                        world.callers[line] = Caller::Out;
                    }
                }
                Event::Node(..) | Event::Minute => {}
            }
        }
    }

    fn answer_yes(&self, world: &mut World, line: usize, at: usize, ticket: &Ticket) {
        let executor = &world.up_mut(at).executor;
        let (verdict, durable) = match executor.standing(&ticket.id, ticket.generation) {
            Some(standing) => (standing.verdict, standing.durable),
            None if executor.must_read() => return,
            None => {
                // The ticket went away without its owner's doing: time, or another controller's replay.
                let wanted = self.scenario.is_wanted(world, line);
                world.callers[line] = if wanted { Caller::Lost } else { Caller::Over };
                return;
            }
        };
        let hasty = matches!(self.flaw, Some(Flaw::AnswersBeforeDurable | Flaw::InheritsAnswers));
        let Verdict::Satisfied { node, epoch, .. } = verdict else { return };
        if !durable && !hasty {
            return;
        }
        let history = &mut world.history;
        if history.granted.get(&epoch).is_none_or(|(granted, _)| *granted != node) {
            history.breaks(Rule::Answers, "told 'yes' for a grant that was never durable");
        } else if history.let_in.get(&epoch).is_none_or(|export| export.node != node) {
            history.breaks(Rule::Answers, "told 'yes' for a grant that the target never confirmed");
        }
        let stored = world.store.ledger.tickets().get(&ticket.id);
        if !world.history.wiped && stored.is_none_or(|stored| stored.generation != ticket.generation) {
            world.history.breaks(Rule::Answers, "told 'yes' for a ticket that was not durable");
        }
        world.callers[line] = Caller::Yes { epoch };
    }
}

/// The record is gone, and with it every grant that was durable for a while without its controller having heard so: nobody acted on it.
fn forget_the_unheard(world: &mut World, at: usize) {
    let heard = world.up_mut(at).executor.stored().epoch();
    let World { network, history, .. } = world;
    let newest = network.iter().map(|command| command.effect.epoch()).fold(heard, Ord::max);
    history.granted.retain(|epoch, _| *epoch <= newest || history.let_in.contains_key(epoch));
}

/// A node may be called out if it reaches nothing, and never will again under any epoch there has been; and if the store
/// does not mean it to be in. What another ticket durably wants it to reach is not meant by the answer.
fn tell_out(world: &mut World, node: &NodeId) {
    let ledger = &world.store.ledger;
    let open = ledger.holds().get(node).filter(|hold| hold.is_open());
    match open {
        Some(_) if ledger.tickets_on(node).next().is_some() => {}
        Some(_) => world.history.breaks(Rule::Answers, "told 'out' while the store meant the node to be in"),
        None => {
            let newest = world.history.granted.keys().next_back().copied().unwrap_or_default();
            world.history.told_out.insert(node.clone(), ledger.epoch().max(newest));
        }
    }
}
