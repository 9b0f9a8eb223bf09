//! Every step that leaves the process goes wrong once, in every way, in every scenario.

use bowline_testkit::{Fate, Luck, say};
use std::sync::Arc;
use std::time::Duration;

use crate::scenario::{Scenario, Told, scenarios};
use crate::world::World;

const WAYS: [Luck; 5] = [
    Luck::DiesBefore,
    Luck::DiesAfter,
    Luck::LostBefore,
    Luck::LostAfter,
    Luck::Slow(Duration::from_secs(45)),
];

/// Plays a scenario with one thing going wrong; further processes are calm. Tells whether it went wrong at all.
fn play_with(scenario: &Scenario, step: usize, luck: Luck) -> bool {
    let (mut world, mut told, mut done) = (World::new(), Told::default(), 0);
    let fate = Arc::new(Fate::at(step, luck));
    if !scenario.play(&mut world, &fate, &mut told, &mut done) {
        let calm = Arc::new(Fate::calm());
        assert!(scenario.play(&mut world, &calm, &mut told, &mut done), "a calm process dies");
    }
    scenario.check_end(&world, &format!("{luck:?} at step {step} of {:?}", fate.steps()));
    fate.count() > step
}

#[test]
fn every_step_of_every_scenario_goes_wrong_once() {
    let mut points = 0;
    for scenario in scenarios() {
        let mut here = 0;
        for luck in WAYS {
            here += (0..).take_while(|step| play_with(&scenario, *step, luck)).count();
        }
        println!("{here:>5} points: {}", scenario.name);
        points += here;
    }
    say(&format!("catalog crash points swept: {points} in {} scenarios", scenarios().len()));
    assert!(points > 400, "the sweep covers the scenarios: {points}");
}

#[test]
fn a_second_death_on_the_way_back_changes_nothing() {
    let mut pairs = 0;
    for scenario in scenarios() {
        for first in 0.. {
            let mut hit = false;
            for second in 0.. {
                let (mut world, mut told, mut done) = (World::new(), Told::default(), 0);
                let deaths =
                    [Arc::new(Fate::at(first, Luck::DiesAfter)), Arc::new(Fate::at(second, Luck::DiesAfter))];
                let mut ended =
                    deaths.iter().any(|fate| scenario.play(&mut world, fate, &mut told, &mut done));
                if !ended {
                    ended = scenario.play(&mut world, &Arc::new(Fate::calm()), &mut told, &mut done);
                }
                assert!(ended);
                scenario
                    .check_end(&world, &format!("deaths after step {first} and then after step {second}"));
                hit = deaths[0].is_dead();
                pairs += usize::from(deaths[1].is_dead());
                if !deaths[1].is_dead() {
                    break;
                }
            }
            if !hit {
                break;
            }
        }
    }
    say(&format!("pairs of catalog crash points swept: {pairs}"));
    assert!(pairs > 500, "the sweep covers the scenarios: {pairs}");
}
