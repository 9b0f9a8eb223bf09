//! Everything there is in the model: one volume, its store, its target, its controllers and those who ask.

use bowline_core::{Effect, Epoch, Export, Exports, Ledger, NodeId, NodeState, Outcome, Timestamp};
use bowline_engine::Executor;
use bowline_store::{Expected, Revision};
use std::collections::BTreeMap;

use crate::history::History;

/// One state of the model. Small on purpose: whatever differs here is another state to visit.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct World {
    pub(crate) store: Store,
    pub(crate) controllers: Vec<Controller>,
    /// Commands to the target and its answers, in no order: each may be next.
    pub(crate) network: Vec<Command>,
    pub(crate) target: Target,
    /// One for every line of the script.
    pub(crate) callers: Vec<Caller>,
    /// What is true of the nodes; a controller learns of it in a step of its own.
    pub(crate) nodes: BTreeMap<NodeId, NodeState>,
    /// Moves only by the script, so that times do not multiply the states.
    pub(crate) minutes: u8,
    pub(crate) faults: Faults,
    pub(crate) history: History,
}

impl World {
    pub(crate) fn now(&self) -> Timestamp {
        Timestamp::from_second(i64::from(self.minutes) * 60).expect("a small number of minutes")
    }

    pub(crate) fn up(&self, at: usize) -> Option<&Up> {
        match &self.controllers[at] {
            Controller::Up(up) => Some(up),
            Controller::Down | Controller::Read { .. } | Controller::Listed { .. } => None,
        }
    }

    pub(crate) fn up_mut(&mut self, at: usize) -> &mut Up {
        match &mut self.controllers[at] {
            Controller::Up(up) => up,
            Controller::Down | Controller::Read { .. } | Controller::Listed { .. } => {
                panic!("controller {at} is not up")
            }
        }
    }

    /// Sends a command, keeping the bag in one order: two bags with the same commands are the same state.
    pub(crate) fn send(&mut self, command: Command) {
        self.network.push(command);
        self.network.sort_by_key(Command::place);
    }
}

/// How many faults of each sort may still happen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Faults {
    /// Crashes of a controller.
    pub(crate) crashes: u8,
    /// Lost answers, of the store or the target. What was asked may still be done, at any later time.
    pub(crate) losses: u8,
    /// Commands that arrive once more, at any later time.
    pub(crate) copies: u8,
    /// Lists of the target that are asked for again while serving, and may be out of date when they arrive.
    pub(crate) lists: u8,
    /// Somebody removes the record.
    pub(crate) wipes: u8,
}

/// The durable record, and writes that nobody waits for any more.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Store {
    pub(crate) ledger: Ledger,
    pub(crate) revision: Option<Revision>,
    /// The newest revision there was; none is used twice.
    pub(crate) newest: u64,
    pub(crate) late: Vec<LateWrite>,
}

/// A write that its controller has given up on, or died over.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct LateWrite {
    pub(crate) writer: usize,
    pub(crate) expected: Expected,
    pub(crate) ledger: Ledger,
}

/// A controller on its way up, in the order of production: the ledger is read, then the target is asked for its
/// list, then requests are served. Anything may happen in between.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Controller {
    Down,
    Read { ledger: Ledger, revision: Option<Revision> },
    Listed { ledger: Ledger, revision: Option<Revision>, list: BTreeMap<Epoch, Export> },
    Up(Box<Up>),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Up {
    pub(crate) executor: Executor,
    pub(crate) write: Option<Write>,
    /// Effects that failed and rest; each may be tried again at any time.
    pub(crate) failed: Vec<Effect>,
    /// The target's list, on its way.
    pub(crate) list: Option<BTreeMap<Epoch, Export>>,
}

/// A write under way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Write {
    Going {
        expected: Expected,
        ledger: Ledger,
    },
    /// The store has answered: the revision, or that it had something else.
    Answered(Option<Revision>),
}

/// A command to the target, or its answer on the way back.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Command {
    pub(crate) effect: Effect,
    /// The controller that waits for the answer; nobody if it gave up or crashed.
    pub(crate) asker: Option<u8>,
    pub(crate) stage: Stage,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Stage {
    Going,
    /// Received; the answer waits until the node's I/O has drained.
    Draining,
    Answered(Outcome),
}

impl Command {
    pub(crate) fn place(&self) -> (Epoch, u8, Option<u8>, u8) {
        let kind = match self.effect {
            Effect::Allow { .. } => 0,
            Effect::Revoke { fence: false, .. } => 1,
            Effect::Revoke { fence: true, .. } => 2,
        };
        let stage = match self.stage {
            Stage::Going => 0,
            Stage::Draining => 1,
            Stage::Answered(_) => 2,
        };
        (self.effect.epoch(), kind, self.asker, stage)
    }
}

/// The target: production's own memory of whom it lets in, and the two steps of a real revocation. A node whose
/// I/O drains is shut out of new logins and still reaches the bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Target {
    pub(crate) exports: Exports,
    pub(crate) draining: BTreeMap<Epoch, Export>,
    /// Only a wrong target has any: let in again although the epoch was closed.
    pub(crate) reopened: BTreeMap<Epoch, Export>,
}

impl Target {
    /// Who can reach the bytes now.
    pub(crate) fn reach(&self) -> BTreeMap<Epoch, Export> {
        let all = self.exports.open().iter().chain(&self.draining).chain(&self.reopened);
        all.map(|(epoch, export)| (*epoch, export.clone())).collect()
    }

    pub(crate) fn drains(&self, node: &NodeId, up_to: Epoch) -> bool {
        self.draining.iter().any(|(epoch, export)| export.node == *node && *epoch <= up_to)
    }
}

/// Whoever stands behind one line of the script.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Caller {
    NotYet,
    /// Asked, and waits. A withdrawal waits for these nodes to be out.
    Waiting {
        at: u8,
        out: Vec<NodeId>,
    },
    /// Its controller crashed or lost the request; it may ask again.
    Lost,
    /// Told that the node is in, at this epoch.
    Yes {
        epoch: Epoch,
    },
    /// Told that the nodes are out.
    Out,
    /// Told no for good.
    Refused,
    /// Nobody stands behind it any more: it was withdrawn, superseded, or is not a request.
    Over,
}
