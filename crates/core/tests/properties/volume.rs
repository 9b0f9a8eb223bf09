//! One volume that lives through events: its ledger in memory and on disk, the world as it is seen, and a target that
//! keeps its promises whatever else goes wrong.

use bowline_core::*;
use std::collections::{BTreeMap, BTreeSet};

use crate::event::{Event, NODES, node, ticket_id};
use crate::invariants::{check_step, check_truth};

pub(crate) fn start() -> Timestamp {
    "2030-01-01T00:00:00Z".parse().unwrap()
}

pub(crate) fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(start().as_second() + seconds).unwrap()
}

pub(crate) struct Volume {
    pub(crate) ledger: Ledger,
    pub(crate) seen: Observed,
    pub(crate) now: Timestamp,
    /// What survives a crash.
    stored: String,
    /// What the target really does.
    pub(crate) exports: Exports,
    /// What it was last asked.
    orders: Vec<Effect>,
    commands: Vec<Effect>,
    answers: Vec<(NodeId, Answer)>,
    lists: Vec<BTreeMap<Epoch, Export>>,
    /// Pairs of grants that a live migration let in beside each other.
    pub(crate) pairs: BTreeSet<(Epoch, Epoch)>,
    /// Whom somebody else has let in: until the target was compared, the ledger need not know.
    pub(crate) intruders: BTreeSet<Epoch>,
    /// The ledger was told something that is no longer so.
    pub(crate) misled: bool,
}

impl Volume {
    pub(crate) fn new() -> Self {
        let ledger = Ledger::default();
        Self {
            stored: serde_json::to_string(&ledger).unwrap(),
            ledger,
            seen: Observed::new(VolumeFacts::new(TargetId::new("rack-1").unwrap())),
            now: start(),
            exports: Exports::default(),
            orders: Vec::new(),
            commands: Vec::new(),
            answers: Vec::new(),
            lists: Vec::new(),
            pairs: BTreeSet::new(),
            intruders: BTreeSet::new(),
            misled: false,
        }
    }

    /// Something happens, and a decision follows that must keep every guarantee.
    pub(crate) fn happen(&mut self, event: &Event) {
        let asked = matches!(event, Event::File { .. } | Event::Withdraw { .. });
        self.apply(event);
        self.decide();
        if asked {
            self.store();
        }
    }

    fn apply(&mut self, event: &Event) {
        match event {
            Event::File { ticket, anew } => self.file(ticket.clone(), *anew),
            Event::Withdraw { slot } => drop(self.ledger.withdraw(&ticket_id(*slot), self.now)),
            Event::Obey { nth } => {
                if let Some(effect) = self.order(*nth) {
                    self.obey(&effect);
                }
            }
            Event::ObeyUnheard { nth } => {
                if let Some(effect) = self.order(*nth) {
                    command(&mut self.exports, &effect);
                }
            }
            Event::Disobey { nth, outcome } => {
                if let Some(effect) = self.order(*nth) {
                    self.hear(&effect, outcome.clone());
                }
            }
            Event::Echo { nth } => {
                if let Some((node, answer)) = pick(&self.answers, *nth) {
                    // It was true when it was said.
                    let no_longer = !self.exports.open().contains_key(&answer.epoch);
                    self.misled |= answer.outcome == Outcome::Allowed && no_longer;
                    self.seen.answers.insert(node, answer);
                }
            }
            Event::LateCommand { nth } => {
                if let Some(effect) = pick(&self.commands, *nth) {
                    let was_open = self.exports.open().clone();
                    command(&mut self.exports, &effect);
                    // A release need not be written before it is asked for. If a crash loses it, and its reason
                    // is gone when the ledger is read back, the command that is still on its way closes a hold
                    // that is open again; only the next list tells.
                    let closed = was_open.keys().filter(|epoch| !self.exports.open().contains_key(epoch));
                    self.misled |= closed.count() > 0;
                }
            }
            Event::Crash => self.crash(),
            Event::Pass { seconds } => {
                self.now = Timestamp::from_second(self.now.as_second() + seconds).unwrap();
            }
            Event::List => self.list(),
            Event::StaleList { nth } => {
                self.seen.exports = pick(&self.lists, *nth);
                self.misled |= self.seen.exports.is_some();
            }
            Event::Intruder { node: index } => self.intrude(&node(*index)),
            Event::Node { .. }
            | Event::Fault(_)
            | Event::Deleting(_)
            | Event::Migratable(_)
            | Event::Share(_)
            | Event::Facts { .. } => self.learn(event),
        }
    }

    fn learn(&mut self, event: &Event) {
        let volume = &mut self.seen.volume;
        match event {
            Event::Node { node: index, facts } => {
                self.seen.nodes.insert(node(*index), facts.clone());
            }
            Event::Fault(is) => volume.fault = is.then(|| "checksum".to_owned()),
            Event::Deleting(is) => volume.deleting = *is,
            Event::Migratable(seconds) => {
                volume.migratable = seconds.map(|seconds| MigrationTimeout::from_seconds(seconds).unwrap());
            }
            Event::Share(is) => volume.share = is.then(|| "nfs://10.0.0.7/v".to_owned()),
            Event::Facts { slot, owner_gone, copied } => {
                let id = ticket_id(*slot);
                let generation = self.ledger.tickets().get(&id).map_or(1, |ticket| ticket.generation);
                let facts = TicketFacts { generation, owner_gone: *owner_gone, copied: *copied };
                self.seen.tickets.insert(id, facts);
            }
            other => panic!("{other:?} is nothing to be learned"),
        }
    }

    fn file(&mut self, mut ticket: Ticket, anew: bool) {
        if let Some(known) = self.ledger.tickets().get(&ticket.id) {
            ticket.generation = known.generation + u64::from(anew);
        }
        let before = self.ledger.clone();
        if self.ledger.submit(ticket, self.now).is_err() {
            assert_eq!(self.ledger, before, "what was refused changed something");
        }
    }

    fn order(&self, nth: usize) -> Option<Effect> {
        pick(&self.orders, nth)
    }

    fn obey(&mut self, effect: &Effect) {
        let outcome = command(&mut self.exports, effect);
        self.hear(effect, outcome);
    }

    fn hear(&mut self, effect: &Effect, outcome: Outcome) {
        let answer = Answer { epoch: effect.epoch(), outcome };
        self.answers.push((effect.node().clone(), answer.clone()));
        self.seen.answers.insert(effect.node().clone(), answer);
    }

    fn list(&mut self) {
        self.seen.exports = Some(self.exports.open().clone());
        self.lists.push(self.exports.open().clone());
        self.seen.contact = Contact::Compared;
        self.misled = false;
    }

    fn intrude(&mut self, node: &NodeId) {
        self.exports
            .allow(node, self.exports.highest().max(self.ledger.epoch()).next(), Mode::UNKNOWN)
            .unwrap();
        self.seen.contact = not_compared(self.now);
        self.intruders.insert(self.exports.highest());
    }

    fn store(&mut self) {
        self.stored = serde_json::to_string(&self.ledger).unwrap();
    }

    fn crash(&mut self) {
        self.ledger = serde_json::from_str(&self.stored).expect("what was written can be read");
        self.seen.answers.clear();
        self.seen.contact = not_compared(self.now);
        self.orders.clear();
        self.lists.clear();
        self.answers.clear();
    }

    fn decide(&mut self) {
        let plan = decide(&self.ledger, &self.seen, self.now);
        check_step(self, &plan);
        let stored: Ledger = serde_json::from_str(&self.stored).unwrap();
        let first = plan.next.lets_in_beyond(&stored);
        self.ledger = plan.next;
        if first {
            self.store();
        }
        self.seen.exports = None;
        self.seen.answers.clear();
        self.commands.extend(plan.effects.iter().cloned());
        self.orders = plan.effects;
        check_truth(self, &plan.verdicts);
    }

    pub(crate) fn withdraw_all(&mut self) {
        for id in self.ledger.tickets().keys().cloned().collect::<Vec<_>>() {
            self.ledger.withdraw(&id, self.now);
        }
    }

    /// All is well from now on, and the target does what it is asked.
    pub(crate) fn comes_to_rest(&mut self) {
        let volume = &mut self.seen.volume;
        (volume.fault, volume.deleting) = (None, false);
        self.seen.nodes =
            NODES.iter().map(|name| (NodeId::new(name).unwrap(), NodeFacts::default())).collect();
        self.list();
        for _ in 0..12 {
            self.decide();
            if self.orders.is_empty() {
                return self.is_settled();
            }
            for effect in self.orders.clone() {
                self.obey(&effect);
            }
        }
        panic!("does not come to rest: {:#?}", self.ledger);
    }

    /// Whoever does not have what it wants waits for a ticket that has, and that need not give it up.
    fn is_settled(&self) {
        let plan = decide(&self.ledger, &self.seen, self.now);
        for (id, verdict) in &plan.verdicts {
            let ticket = &plan.next.tickets()[id];
            let holder = match verdict {
                Verdict::Satisfied { .. } | Verdict::Shared { .. } | Verdict::WaitingForShare => continue,
                Verdict::HeldElsewhere { by, .. }
                | Verdict::IncompatibleParameters { by, .. }
                | Verdict::MigrationTimedOut { by, .. } => by,
                Verdict::Migrating { .. } => &plan.next.migration().expect("one under way").from,
                other => panic!("{id} is told {other:?} at rest: {:#?}", plan.next),
            };
            assert!(plan.verdicts[holder].is_satisfied(), "{id} waits for {holder}, which has nothing");
            let holder = &plan.next.tickets()[holder];
            let facts = self.seen.tickets.get(&holder.id);
            let copied = facts.is_some_and(|facts| facts.copied && facts.generation == holder.generation);
            assert!(
                !holder.kind.yields_to(ticket.kind, copied),
                "{id} waits for {holder:?}, which yields to it"
            );
        }
        let mut wanting = plan.next.tickets().values().filter(|ticket| !ticket.wants_share());
        assert_eq!(wanting.next().is_none(), plan.next.holds().is_empty(), "{:#?}", plan.next);
    }
}

fn pick<T: Clone>(from: &[T], nth: usize) -> Option<T> {
    from.get(nth.checked_rem(from.len())?).cloned()
}

fn not_compared(since: Timestamp) -> Contact {
    Contact::NotCompared { since, error: "not asked yet".to_owned() }
}

fn command(exports: &mut Exports, effect: &Effect) -> Outcome {
    match effect {
        Effect::Allow { node, epoch, mode } => match exports.allow(node, *epoch, *mode) {
            Ok(()) => Outcome::Allowed,
            Err(NeverAgain { highest }) => Outcome::Gone { highest },
        },
        Effect::Revoke { node, epoch, .. } => Outcome::Gone { highest: exports.revoke(node, *epoch).highest },
    }
}
