//! Runs the checker, and tells what it found in words.

use bowline_testkit::say;
use stateright::{Checker, HasDiscoveries, Model};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::property::Rule;
use crate::script::Scenario;
use crate::system::System;
use crate::variants::Variant;
use crate::world::World;

/// What one exploration found.
pub(crate) struct Finding {
    pub(crate) states: usize,
    pub(crate) depth: usize,
    pub(crate) took: Duration,
    pub(crate) violation: Option<Violation>,
}

pub(crate) struct Violation {
    pub(crate) rule: &'static str,
    /// One line per step, then what it led to.
    pub(crate) trace: Vec<String>,
    pub(crate) end: String,
}

/// Explores a system to its end, or to the first violation.
pub(crate) fn explore(system: System, threads: usize) -> Finding {
    let begun = Instant::now();
    let again = System::new(system.scenario.clone(), system.decide, system.flaw);
    let checker =
        system.checker().threads(threads).finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    checker.model().over.store(true, Ordering::Relaxed);
    let violation = checker.discoveries().into_iter().next().map(|(rule, path)| {
        let steps = path.into_vec();
        let words = |(world, step): &(World, Option<crate::step::Step>)| {
            step.as_ref().map(|step| step.words(&again.scenario, world))
        };
        let trace = steps.iter().filter_map(words).collect();
        Violation { rule, trace, end: end(&again, &steps.last().expect("a path has a state").0) }
    });
    let (states, depth) = (checker.unique_state_count(), checker.max_depth());
    Finding { states, depth, took: begun.elapsed(), violation }
}

fn end(system: &System, world: &World) -> String {
    let mut text = String::new();
    let mut line = |what: &str, value: String| text.push_str(&format!("    {what}: {value}\n"));
    if let Some((_, how)) = world.history.broken {
        line("what went wrong", how.to_owned());
    }
    if let Err(wrong) = system.comes_to_rest(world) {
        line("when all is calm", wrong);
    }
    line("stored ledger", format!("{:?}", world.store.ledger));
    line("the target lets in", format!("{:?}", world.target.exports.open()));
    line("draining there", format!("{:?}", world.target.draining));
    line("on its way", format!("{:?}", world.network));
    line("late writes", format!("{:?}", world.store.late));
    line("callers", format!("{:?}", world.callers));
    text
}

/// Explores every scenario that a filter selects, and prints the table.
pub(crate) fn scenarios(all: &[Scenario], filters: &[String]) -> bool {
    let (mut count, mut states, mut sound) = (0, 0, true);
    println!("{:<34} {:>10} {:>6} {:>8}", "scenario", "states", "depth", "seconds");
    for scenario in all.iter().filter(|scenario| is_chosen(scenario.name, filters)) {
        let finding = explore(System::new(scenario.clone(), bowline_core::decide, None), 2);
        let seconds = finding.took.as_secs_f64();
        println!("{:<34} {:>10} {:>6} {seconds:>8.1}", scenario.name, finding.states, finding.depth);
        (count, states) = (count + 1, states + finding.states);
        if let Some(violation) = &finding.violation {
            sound = false;
            print_violation(violation);
        }
    }
    if sound {
        say(&format!("model: {count} scenarios, {states} states, all properties hold"));
    }
    sound
}

pub(crate) fn print_violation(violation: &Violation) {
    println!("  VIOLATED: {}", violation.rule);
    for (number, step) in violation.trace.iter().enumerate() {
        println!("  {:>3}. {step}", number + 1);
    }
    print!("{}", violation.end);
}

/// Runs every wrong variant that a filter selects; each must be caught, by its own property. Returns those that were.
pub(crate) fn variants<'a>(
    all: &'a [Variant],
    scenarios: &[Scenario],
    filters: &[String],
) -> Option<Vec<(&'a Variant, Violation)>> {
    let chosen: Vec<_> = all.iter().filter(|variant| is_chosen(variant.name, filters)).collect();
    let mut caught = Vec::new();
    for variant in &chosen {
        let (seconds, violation) = run(variant, scenarios);
        println!("wrong: {} (in '{}', {seconds:.1} s)", variant.name, variant.scenario);
        if let Some(violation) = violation {
            print_violation(&violation);
            if violation.rule == variant.caught_by.name() {
                caught.push((*variant, violation));
                continue;
            }
        }
        println!("  NOT CAUGHT by {}, which is there for it", variant.caught_by.name());
    }
    say(&format!("wrong variants caught: {} of {}", caught.len(), chosen.len()));
    (caught.len() == chosen.len()).then_some(caught)
}

fn is_chosen(name: &str, filters: &[String]) -> bool {
    filters.is_empty() || filters.iter().any(|filter| name.contains(filter.as_str()))
}

/// One thread, so that the trace is the shortest.
pub(crate) fn run(variant: &Variant, scenarios: &[Scenario]) -> (f64, Option<Violation>) {
    let scenario =
        scenarios.iter().find(|scenario| scenario.name == variant.scenario).expect("a known scenario");
    let mut system = System::new(scenario.clone(), variant.decide, variant.flaw);
    system.foresight = variant.caught_by == Rule::Progress;
    let finding = explore(system, 1);
    (finding.took.as_secs_f64(), finding.violation)
}
