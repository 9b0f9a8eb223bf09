//! Ledgers that are lost while the engine runs.

use bowline_core::{Epoch, Mode, VolumeFacts};
use bowline_engine::{EngineError, Patience, Withdrawn};
use bowline_store::{Entry, Expected, Key};
use bowline_testkit::{Fate, Luck, csi, node, volume};
use std::sync::Arc;
use std::time::Duration;

use crate::world::{LONG, Running, World, reason, v, withdrawal};

const SHORT: Duration = Duration::from_secs(10);

async fn record(world: &World) -> Entry {
    world.store.get(&Key::ledger(&v())).await.unwrap().unwrap()
}

async fn wipe(world: &World) {
    let revision = record(world).await.revision;
    world.store.delete(&Key::ledger(&v()), revision).await.unwrap();
}

/// `a` has the volume, nothing is left to do, and the ledger is gone.
async fn wiped() -> (World, Running) {
    let world = World::new();
    let running = world.engine().await;
    running.attach(csi("a")).await;
    running.quiet().await;
    wipe(&world).await;
    (world, running)
}

#[tokio::test(start_paused = true)]
async fn a_ledger_that_was_lost_while_running_let_a_second_node_in() {
    let (world, running) = wiped().await;
    assert_eq!(reason(&running.attach(csi("b")).await), "Satisfied");
    assert_eq!(world.target.open(&v()), [(2, node("b"))], "after a, whom nobody wants, was shut out");
    assert_eq!(world.target.violations(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_node_was_called_out_because_its_ledger_was_lost() {
    let (world, running) = wiped().await;
    assert_eq!(running.detach(&csi("a")).await, Withdrawn::Out);
    assert_eq!(world.target.open(&v()), []);
    // So was one whose ticket is all that is known of it.
    let (world, running) = wiped().await;
    let by_ticket = bowline_engine::Withdrawal { node: None, ..withdrawal(&csi("a")) };
    let out = running.engine.withdraw(&v(), by_ticket, LONG).await.unwrap();
    assert_eq!((out, world.target.open(&v())), (Withdrawn::Out, vec![]));
}

#[tokio::test(start_paused = true)]
async fn whoever_has_a_volume_whose_ledger_was_lost_and_says_so_keeps_it() {
    let (world, running) = wiped().await;
    let engine = running.engine.clone();
    let other = tokio::spawn(async move { engine.submit(&v(), csi("b"), Patience::Wait, LONG).await });
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(reason(&running.attach(csi("a")).await), "Satisfied");
    assert_eq!(reason(&other.await.unwrap().unwrap()), "HeldElsewhere");
    assert_eq!(world.target.open(&v()), [(1, node("a"))], "the very grant it had");
    running.quiet().await;
    assert_eq!(world.stored().await.tickets().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_ledger_that_is_lost_while_it_is_worked_on_is_written_again() {
    let world = World::new();
    let running = world.engine().await;
    running.attach(csi("a")).await;
    wipe(&world).await;
    assert_eq!(reason(&running.attach(csi("b")).await), "HeldElsewhere");
    assert_eq!(world.target.open(&v()), [(1, node("a"))]);
    running.quiet().await;
    assert_eq!(world.stored().await.tickets().len(), 2, "nothing of it is missing");
    wipe(&world).await;
    assert_eq!(running.detach(&csi("a")).await, Withdrawn::Out);
    assert_eq!(world.target.violations(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_told_of_a_lost_ledger_while_the_target_is_silent() {
    let (world, running) = wiped().await;
    world.target.set_silent(true);
    let early = running.engine.submit(&v(), csi("b"), Patience::Refuse, SHORT).await.unwrap();
    assert_eq!(reason(&early), "TargetNotCompared", "{early:?}");
    assert!(format!("{early:?}").contains("its ledger was lost"), "{early:?}");
    let out = running.engine.withdraw(&v(), withdrawal(&csi("a")), SHORT).await.unwrap();
    assert!(matches!(out, Withdrawn::StillWorking { .. }), "{out:?}");
    assert!(running.engine.view(&v()).await.unwrap().lost);
    world.target.set_silent(false);
    assert_eq!(reason(&running.attach(csi("b")).await), "Satisfied");
    assert_eq!(world.target.open(&v()), [(2, node("b"))]);
    assert_eq!(world.target.violations(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_somebody_has_was_removed_because_its_ledger_was_lost() {
    let (_, running) = wiped().await;
    let removed = running.engine.remove_volume(&v()).await;
    assert!(matches!(removed, Err(EngineError::InUse { .. })), "{removed:?}");
}

#[tokio::test(start_paused = true)]
async fn an_older_ledger_that_was_put_back_lets_nobody_in_beside_who_is_in() {
    let world = World::new();
    let running = world.engine().await;
    running.attach(csi("a")).await;
    running.detach(&csi("a")).await;
    running.quiet().await;
    let older = record(&world).await;
    running.attach(csi("b")).await;
    running.quiet().await;
    let now = record(&world).await;
    world.store.put(&older.key, older.value, Expected::At(now.revision)).await.unwrap();
    assert_eq!(reason(&running.attach(csi("c")).await), "Satisfied");
    assert_eq!(world.target.open(&v()), [(3, node("c"))], "after b, whom nobody wants, was shut out");
    assert_eq!(world.target.violations(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_loss_that_nobody_asked_about_is_found_when_the_target_is_compared() {
    let (world, running) = wiped().await;
    let mut notices = running.engine.notices();
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert!(notices.try_recv().is_ok(), "that somebody is in of whom no ledger tells");
    running.quiet().await;
    assert_eq!(world.target.open(&v()), [], "and that nobody wants to be in");
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_was_just_made_is_given_without_a_question() {
    let world = World::new();
    let fate = Arc::new(Fate::calm());
    let running = world.engine_with(Arc::clone(&fate)).await.unwrap();
    let target = world.volumes[&v()].target.clone();
    let mut steps = Vec::new();
    for (name, is_new) in [("made", true), ("found", false)] {
        let before = fate.count();
        let (one, facts) = (volume(name), VolumeFacts::new(target.clone()));
        match is_new {
            true => running.engine.observe_new_volume(&one, facts),
            false => running.engine.observe_volume(&one, facts),
        }
        running.engine.submit(&one, csi("a"), Patience::Wait, LONG).await.unwrap();
        steps.push(fate.count() - before);
    }
    assert_eq!(steps, [3, 4], "read, write, allow; and a list where it is not known to be new");
}

/// A write that failed took with it what the target's list had told, and whoever was in without a ledger was forgotten.
#[tokio::test(start_paused = true)]
async fn what_a_list_had_told_was_forgotten_with_a_write_that_failed() {
    for luck in [Luck::LostBefore, Luck::LostAfter] {
        for step in 1..12 {
            let world = World::new();
            let allow = |exports: &mut bowline_core::Exports| {
                exports.allow(&node("x"), Epoch::new(7), Mode::UNKNOWN).unwrap();
            };
            world.target.tamper(&v(), allow);
            let running = world.engine_with(Arc::new(Fate::at(step, luck))).await.unwrap();
            assert_eq!(reason(&running.attach(csi("a")).await), "Satisfied", "{luck:?} at {step}");
            assert_eq!(world.target.violations(), [""; 0], "{luck:?} at {step}");
            assert_eq!(world.target.open(&v()).len(), 1, "{luck:?} at {step}");
        }
    }
}
