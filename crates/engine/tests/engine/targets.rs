//! Targets that come and go while the engine runs.

use bowline_core::{Epoch, Mode};
use bowline_engine::{EngineError, Patience};
use bowline_testkit::{SimTarget, csi, node};
use std::sync::Arc;
use std::time::Duration;

use crate::world::{LONG, World, reason, v};

const SHORT: Duration = Duration::from_secs(10);

#[tokio::test(start_paused = true)]
async fn a_volume_whose_target_comes_later_waits_and_is_compared_before_anybody_is_let_in() {
    let world = World::new();
    world.target.tamper(&v(), |exports| exports.allow(&node("x"), Epoch::new(7), Mode::UNKNOWN).unwrap());
    let running = world.engine_on(Arc::clone(&world.store), vec![]).await.unwrap();
    for patience in [Patience::Wait, Patience::Refuse] {
        let early = running.engine.submit(&v(), csi("a"), patience, SHORT).await.unwrap();
        assert_eq!(reason(&early), "TargetNotCompared", "{early:?}");
    }
    assert_eq!(running.engine.view(&v()).await.unwrap().ledger.tickets().len(), 1, "it is known, and waits");
    running.engine.add_target(Arc::clone(&world.target) as _).await.unwrap();
    let joined = running.engine.submit(&v(), csi("a"), Patience::Wait, LONG).await.unwrap();
    assert_eq!(reason(&joined), "Satisfied");
    assert_eq!(world.target.open(&v()), [(8, node("a"))], "above what the target had seen");
    assert_eq!(world.target.violations(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn whoever_waits_for_a_target_gets_in_when_it_comes_without_asking_again() {
    let world = World::new();
    let running = world.engine_on(Arc::clone(&world.store), vec![]).await.unwrap();
    let (engine, target) = (running.engine.clone(), Arc::clone(&world.target));
    let waiting = tokio::spawn(async move { engine.submit(&v(), csi("a"), Patience::Refuse, SHORT).await });
    tokio::time::sleep(Duration::from_secs(1)).await;
    running.engine.add_target(target as _).await.unwrap();
    assert_eq!(reason(&waiting.await.unwrap().unwrap()), "Satisfied");
}

#[tokio::test(start_paused = true)]
async fn what_is_held_stays_held_while_its_target_is_not_connected() {
    let world = World::new();
    let first = world.engine().await;
    first.attach(csi("a")).await;
    first.engine.stop().await;
    let second = world.engine_on(Arc::clone(&world.store), vec![]).await.unwrap();
    let again = second.engine.submit(&v(), csi("a"), Patience::Wait, SHORT).await;
    assert!(matches!(again, Err(EngineError::NotConnected { .. })), "{again:?}");
    let other = second.engine.submit(&v(), csi("b"), Patience::Refuse, SHORT).await.unwrap();
    assert_eq!(reason(&other), "HeldElsewhere");
    second.engine.add_target(Arc::clone(&world.target) as _).await.unwrap();
    assert_eq!(reason(&second.attach(csi("a")).await), "Satisfied");
    assert_eq!(world.target.open(&v()), [(1, node("a"))], "nothing was asked twice");
}

#[tokio::test(start_paused = true)]
async fn a_target_that_does_not_answer_when_it_comes_is_asked_until_it_does() {
    let world = World::new();
    let running = world.engine_on(Arc::clone(&world.store), vec![]).await.unwrap();
    world.target.set_silent(true);
    running.engine.add_target(Arc::clone(&world.target) as _).await.unwrap_err();
    world.target.set_silent(false);
    assert_eq!(reason(&running.attach(csi("a")).await), "Satisfied");
}

#[tokio::test(start_paused = true)]
async fn a_target_connected_anew_is_compared_anew() {
    let world = World::new();
    let running = world.engine().await;
    running.attach(csi("a")).await;
    running.detach(&csi("a")).await;
    // Behind the engine's back, somebody was let in; the new connection shows it.
    world.target.tamper(&v(), |exports| exports.allow(&node("x"), Epoch::new(5), Mode::UNKNOWN).unwrap());
    running.engine.add_target(Arc::clone(&world.target) as _).await.unwrap();
    assert_eq!(reason(&running.attach(csi("b")).await), "Satisfied");
    assert_eq!(world.target.open(&v()), [(6, node("b"))]);
    assert_eq!(world.target.violations(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_target_is_not_forgotten_while_a_volume_is_there() {
    let world = World::new();
    let running = world.engine().await;
    let other = Arc::new(SimTarget::new("other"));
    running.engine.add_target(Arc::clone(&other) as _).await.unwrap();
    let refused = running.engine.remove_target(&world.volumes[&v()].target);
    assert!(matches!(refused, Err(EngineError::TargetInUse { .. })), "{refused:?}");
    let id = bowline_core::TargetId::new("other").unwrap();
    running.engine.remove_target(&id).unwrap();
    assert_eq!(Arc::strong_count(&other), 1, "nothing holds it any more");
}
