//! Every step that leaves the process goes wrong once, in every way, in every scenario.

use bowline_testkit::say;
use bowline_testkit::sweep::{every_second_death, every_step};

use crate::scenario::scenarios;

#[test]
fn every_step_of_every_scenario_goes_wrong_once() {
    let points = every_step(&scenarios());
    say(&format!("crash points swept: {points} in {} scenarios", scenarios().len()));
    assert!(points > 400, "the sweep covers the scenarios: {points}");
}

#[test]
fn a_second_death_on_the_way_back_changes_nothing() {
    let pairs = every_second_death(&scenarios());
    say(&format!("pairs of crash points swept: {pairs}"));
    assert!(pairs > 500, "the sweep covers the scenarios: {pairs}");
}
