//! What can happen next. Each step is one thing that one part of the world does; a controller that is paused is
//! one whose steps are not taken.

use bowline_core::{Effect, Epoch};
use std::fmt::Write as _;

use crate::script::{Event, Scenario};
use crate::world::{Command, Controller, Stage, World, Write};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// A line of the script happens; a request goes to a controller.
    Happen {
        line: usize,
        at: usize,
    },
    /// Somebody who got no answer asks again.
    Retry {
        line: usize,
        at: usize,
    },
    Read(usize),
    List(usize),
    Serve(usize),
    Crash(usize),
    /// The write arrives at the store.
    Store(usize),
    /// The store's answer arrives.
    Stored(usize),
    /// The store's answer is lost; the write may have arrived, or may arrive later.
    StoreSilent(usize),
    Load(usize),
    Flush(usize),
    Wake(usize),
    Observe(usize),
    Rest {
        at: usize,
        effect: usize,
    },
    /// The target is asked for its list once more.
    AskList(usize),
    /// That list arrives.
    Compare(usize),
    /// Somebody removes the record.
    Wipe,
    /// A write that nobody waits for arrives after all.
    LateStore(usize),
    Deliver(usize),
    /// As `Deliver`, and the same command will arrive once more.
    DeliverCopy(usize),
    Drain(Epoch),
    Answer(usize),
    /// The controller gives up waiting; the command may have arrived, or may arrive later.
    Silent(usize),
    /// A ticket whose owner does not want it is found and withdrawn. Only in calm.
    Disown {
        line: usize,
        at: usize,
    },
}

/// Every step that the world allows.
pub(crate) fn possible(scenario: &Scenario, world: &World, steps: &mut Vec<Step>) {
    let up: Vec<usize> = (0..world.controllers.len()).filter(|at| world.up(*at).is_some()).collect();
    for (line, caller) in scenario.lines.iter().enumerate() {
        if scenario.may_happen(world, line) {
            let at = if caller.event.is_request() { up.as_slice() } else { &[0] };
            steps.extend(at.iter().map(|at| Step::Happen { line, at: *at }));
        }
        if scenario.may_retry(world, line) {
            steps.extend(up.iter().map(|at| Step::Retry { line, at: *at }));
        }
    }
    for at in 0..world.controllers.len() {
        of_controller(world, at, steps);
    }
    steps.extend((0..world.store.late.len()).map(Step::LateStore));
    if world.faults.wipes > 0 && world.store.revision.is_some() {
        steps.push(Step::Wipe);
    }
    for (index, command) in world.network.iter().enumerate() {
        if index == 0 || world.network[index - 1] != *command {
            of_command(world, index, command, steps);
        }
    }
    steps.extend(world.target.draining.keys().map(|epoch| Step::Drain(*epoch)));
}

fn of_controller(world: &World, at: usize, steps: &mut Vec<Step>) {
    let up = match &world.controllers[at] {
        Controller::Down => return steps.push(Step::Read(at)),
        Controller::Read { .. } => return steps.push(Step::List(at)),
        Controller::Listed { .. } => return steps.push(Step::Serve(at)),
        Controller::Up(up) => up,
    };
    match &up.write {
        Some(Write::Going { .. }) => steps.push(Step::Store(at)),
        Some(Write::Answered(_)) => steps.push(Step::Stored(at)),
        None => {}
    }
    if up.write.is_some() && world.faults.losses > 0 {
        steps.push(Step::StoreSilent(at));
    }
    if up.executor.must_read() {
        steps.push(Step::Load(at));
    }
    if up.executor.has_unwritten() {
        steps.push(Step::Flush(at));
    }
    if up.executor.wake().is_some_and(|wake| wake <= world.now()) {
        steps.push(Step::Wake(at));
    }
    if unobserved(world, at) {
        steps.push(Step::Observe(at));
    }
    steps.extend((0..up.failed.len()).map(|effect| Step::Rest { at, effect }));
    match up.list {
        Some(_) => steps.push(Step::Compare(at)),
        None if world.faults.lists > 0 || up.executor.must_look() => steps.push(Step::AskList(at)),
        None => {}
    }
    if world.faults.crashes > 0 {
        steps.push(Step::Crash(at));
    }
}

fn of_command(world: &World, index: usize, command: &Command, steps: &mut Vec<Step>) {
    match command.stage {
        Stage::Going => {
            steps.push(Step::Deliver(index));
            if world.faults.copies > 0 {
                steps.push(Step::DeliverCopy(index));
            }
        }
        Stage::Draining => {}
        Stage::Answered(_) => steps.push(Step::Answer(index)),
    }
    if command.asker.is_some() && world.faults.losses > 0 {
        steps.push(Step::Silent(index));
    }
}

/// Whether a controller does not know yet what became of the nodes.
pub(crate) fn unobserved(world: &World, at: usize) -> bool {
    let Some(up) = world.up(at) else { return false };
    let known = |node| up.executor.seen().nodes.get(node).map(|facts| facts.state).unwrap_or_default();
    world.nodes.iter().any(|(node, state)| known(node) != *state)
}

impl Step {
    /// The step in words; `world` is what it is taken in.
    pub(crate) fn words(&self, scenario: &Scenario, world: &World) -> String {
        let event = |line: usize| match &scenario.lines[line].event {
            Event::Submit(ticket, _) => {
                format!(
                    "ticket {} (generation {}) is filed for {}",
                    ticket.id, ticket.generation, ticket.node
                )
            }
            Event::Withdraw(one) => {
                let node = one.node.as_ref().map_or("every node", |node| node.as_str());
                let how = if one.force { "cut off by force" } else { "withdrawn" };
                format!("the tickets of {node} are {how}")
            }
            Event::Node(node, state) => {
                let state = format!("{state:?}");
                format!("node {node} is {}", state.split_whitespace().next().unwrap_or_default())
            }
            Event::Minute => "a minute passes".to_owned(),
        };
        let command = |index: usize| command_words(&world.network[index]);
        let name = |at: &usize| ["one", "two"][*at];
        match self {
            Self::Happen { line, at } if scenario.lines[*line].event.is_request() => {
                format!("{}, at controller {}", event(*line), name(at))
            }
            Self::Happen { line, .. } => event(*line),
            Self::Retry { line, at } => format!("retry: {}, at controller {}", event(*line), name(at)),
            Self::Read(at) => format!("controller {} starts and reads the ledger", name(at)),
            Self::List(at) => format!("controller {} hears whom the target lets in", name(at)),
            Self::Serve(at) => format!("controller {} begins to serve", name(at)),
            Self::Crash(at) => format!("controller {} crashes", name(at)),
            Self::Store(at) => format!("the write of controller {} arrives at the store", name(at)),
            Self::Stored(at) => format!("controller {} hears what became of its write", name(at)),
            Self::StoreSilent(at) => format!("controller {} hears nothing of its write", name(at)),
            Self::Load(at) => format!("controller {} reads the ledger again", name(at)),
            Self::Flush(at) => format!("controller {} writes what has changed", name(at)),
            Self::Wake(at) => format!("controller {} wakes for a deadline", name(at)),
            Self::Observe(at) => format!("controller {} hears of the nodes", name(at)),
            Self::Rest { at, .. } => format!("controller {} may ask the target again", name(at)),
            Self::AskList(at) => format!("controller {} asks the target for its list", name(at)),
            Self::Compare(at) => format!("controller {} hears that list", name(at)),
            Self::Wipe => "somebody removes the record".to_owned(),
            Self::LateStore(_) => "a write that nobody waits for arrives at the store".to_owned(),
            Self::Deliver(index) => format!("the target receives {}", command(*index)),
            Self::DeliverCopy(index) => {
                format!("the target receives {}, and a copy stays on its way", command(*index))
            }
            Self::Drain(epoch) => format!("the I/O of epoch {epoch} has drained"),
            Self::Answer(index) => format!("the target's answer to {} is heard", command(*index)),
            Self::Silent(index) => format!("nobody hears of {}", command(*index)),
            Self::Disown { line, at } => format!("controller {} takes back: {}", name(at), event(*line)),
        }
    }
}

fn command_words(command: &Command) -> String {
    let mut words = match &command.effect {
        Effect::Allow { node, epoch, .. } => format!("'allow {node} at epoch {epoch}'"),
        Effect::Revoke { node, epoch, fence: false } => format!("'revoke {node} up to epoch {epoch}'"),
        Effect::Revoke { node, epoch, fence: true } => format!("'fence {node} up to epoch {epoch}'"),
    };
    if let Some(at) = command.asker {
        let _ = write!(words, " of controller {}", ["one", "two"][usize::from(at)]);
    }
    words
}
