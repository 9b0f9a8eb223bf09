//! Random stories with random luck. The seed decides everything, so every run can be had again:
//! `make replay SEED=7`.

use bowline_core::Ticket;
use bowline_testkit::{Dice, Fate, backup, csi, say};
use std::sync::Arc;

use crate::scenario::{Do, Scenario};

fn seeds() -> Vec<u64> {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect(name));
    match number("BOWLINE_SEED") {
        Some(seed) => vec![seed],
        None => (0..number("BOWLINE_SEEDS").unwrap_or(300)).collect(),
    }
}

/// Asks for and gives back tickets of three nodes in an order that the seed decides, and gives everything back.
fn story(seed: u64) -> Scenario {
    let nodes = ["a", "b", "c"];
    let tickets: Vec<Ticket> = nodes.into_iter().flat_map(|on| [csi(on), backup(on)]).collect();
    let mut dice = Dice::new(seed);
    let mut steps = Vec::new();
    for _ in 0..12 {
        let ticket = dice.pick(&tickets);
        steps.push(match dice.below(5) {
            0 => Do::Force(dice.pick(&nodes)),
            1 | 2 => Do::Detach(ticket),
            _ => Do::Ask(ticket),
        });
    }
    steps.extend(tickets.into_iter().map(Do::Detach));
    Scenario { name: "random", migratable: false, steps, ends: &[] }
}

#[test]
fn random_schedules_come_to_a_good_end() {
    let (mut deaths, mut steps) = (0, 0);
    for seed in seeds() {
        println!("seed {seed}: `make replay SEED={seed}` plays it again");
        let scenario = story(seed);
        let (mut world, mut done) = (scenario.world(), 0);
        for life in 0.. {
            let fate =
                Arc::new(Fate::random(seed.wrapping_add(life << 32), 150, if life < 8 { 200 } else { 0 }));
            let ended = scenario.play(&mut world, &fate, &mut done);
            steps += fate.count();
            if ended {
                break;
            }
            deaths += 1;
        }
        scenario.check_end(&world, &format!("seed {seed}"));
    }
    say(&format!("random schedules: {} seeds, {steps} steps, {deaths} deaths", seeds().len()));
    assert!(steps > 0);
}
