//! The start: everything is read back, compared and repaired before anybody is served.

use bowline_core::{Epoch, Mode, Notice};
use bowline_engine::{StartError, Submitted, Withdrawn};
use bowline_store::{Expected, Key};
use bowline_target::Target as _;
use bowline_testkit::{Fate, Luck, csi, node, volume};
use futures::FutureExt;
use std::sync::Arc;
use std::time::Duration;

use crate::world::{World, reason, v};

const STRAYS: &str = "bowline_engine_stray_exports{target=\"sim\"}";

#[tokio::test(start_paused = true)]
async fn a_restart_finds_what_was_attached_and_asks_nothing_twice() {
    let world = World::new();
    let first = world.engine().await;
    first.attach(csi("a")).await;
    first.engine.stop().await;
    let second = world.engine().await;
    second.quiet().await;
    assert_eq!(reason(&second.attach(csi("a")).await), "Satisfied");
    assert_eq!(reason(&second.attach(csi("b")).await), "HeldElsewhere");
    assert_eq!(world.target.open(&v()), [(1, node("a"))]);
}

#[tokio::test(start_paused = true)]
async fn an_export_that_no_ledger_knows_is_closed_before_anybody_is_let_in() {
    let world = World::new();
    world.target.tamper(&v(), |exports| exports.allow(&node("x"), Epoch::new(7), Mode::UNKNOWN).unwrap());
    let running = world.engine().await;
    let mut notices = running.engine.notices();
    assert_eq!(reason(&running.attach(csi("a")).await), "Satisfied");
    assert_eq!(world.target.open(&v()), [(8, node("a"))], "above every epoch the target has seen");
    let (_, notice) = notices.recv().await.unwrap();
    assert!(matches!(notice, Notice::UnrecordedExport { .. }), "{notice:?}");
    assert_eq!(world.target.violations(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn an_export_of_a_volume_nobody_knows_is_left_alone_and_counted() {
    let world = World::new();
    let stray = volume("somebody-elses");
    world.target.tamper(&stray, |exports| exports.allow(&node("x"), Epoch::new(1), Mode::UNKNOWN).unwrap());
    let running = world.engine().await;
    running.quiet().await;
    assert_eq!(world.target.open(&stray).len(), 1);
    assert_eq!(running.metric(STRAYS), "1");
}

#[tokio::test(start_paused = true)]
async fn an_export_that_nobody_knows_was_not_counted_where_its_target_was_silent_at_the_start() {
    let world = World::new();
    let stray = volume("somebody-elses");
    world.target.tamper(&stray, |exports| exports.allow(&node("x"), Epoch::new(1), Mode::UNKNOWN).unwrap());
    world.target.set_silent(true);
    let running = world.engine().await;
    assert_eq!(running.metric(STRAYS), "0");
    world.target.set_silent(false);
    running.engine.compare(world.target.id()).await.unwrap();
    assert_eq!(running.metric(STRAYS), "1");
    // Whoever had it has let it go.
    world.target.tamper(&stray, |exports| {
        exports.revoke(&node("x"), Epoch::new(1));
    });
    running.engine.compare(world.target.id()).await.unwrap();
    assert_eq!(running.metric(STRAYS), "0");
}

#[tokio::test(start_paused = true)]
async fn an_export_that_was_lost_is_granted_anew() {
    let world = World::new();
    let first = world.engine().await;
    first.attach(csi("a")).await;
    first.engine.stop().await;
    world.target.tamper(&v(), |exports| {
        exports.revoke(&node("a"), Epoch::new(1));
    });
    let second = world.engine().await;
    second.quiet().await;
    assert_eq!(world.target.open(&v()), [(2, node("a"))], "a closed epoch is never opened again");
}

#[tokio::test(start_paused = true)]
async fn a_target_that_is_silent_at_the_start_lets_nobody_in_until_it_was_compared() {
    let world = World::new();
    world.target.tamper(&v(), |exports| exports.allow(&node("x"), Epoch::new(3), Mode::UNKNOWN).unwrap());
    world.target.set_silent(true);
    let running = world.engine().await;
    let wait = Duration::from_secs(100);
    let early = running.engine.submit(&v(), csi("a"), bowline_engine::Patience::Wait, wait).await.unwrap();
    assert_eq!(reason(&early), "TargetNotCompared", "{early:?}");
    world.target.set_silent(false);
    assert_eq!(reason(&running.attach(csi("a")).await), "Satisfied");
    assert_eq!(world.target.open(&v()), [(4, node("a"))]);
    assert_eq!(world.target.violations(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_ledger_that_cannot_be_understood_stops_the_start_and_is_named() {
    let world = World::new();
    world.store.put(&Key::ledger(&v()), b"{}".to_vec(), Expected::Absent).await.unwrap();
    let Err(error) = world.engine_with(Arc::new(Fate::calm())).await else { panic!("it started") };
    assert!(matches!(error, StartError::Record { .. }));
    assert!(error.to_string().starts_with("the ledger of volume v cannot be understood: "), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_store_that_fails_for_a_while_is_asked_until_it_answers() {
    let world = World::new();
    for luck in [Luck::LostBefore, Luck::LostAfter, Luck::Slow(Duration::from_secs(300))] {
        for step in 1..6 {
            let running = world.engine_with(Arc::new(Fate::at(step, luck))).await.unwrap();
            let attached = running.attach(csi("a")).await;
            assert!(matches!(attached, Submitted::Satisfied { .. }), "{luck:?} at {step}: {attached:?}");
            assert_eq!(running.detach(&csi("a")).await, Withdrawn::Out, "{luck:?} at {step}");
            running.quiet().await;
            assert_eq!(world.target.open(&v()), []);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_export_that_is_lost_behind_our_back_is_found_and_granted_anew() {
    let world = World::new();
    let running = world.engine().await;
    running.attach(csi("a")).await;
    running.quiet().await;
    world.target.tamper(&v(), |exports| {
        exports.revoke(&node("a"), Epoch::new(1));
    });
    let mut notices = running.engine.notices();
    let (_, notice) = notices.recv().await.unwrap();
    assert!(matches!(notice, Notice::ExportMissing { .. }), "{notice:?}");
    assert_eq!(reason(&running.attach(csi("a")).await), "Satisfied");
    assert_eq!(world.target.open(&v()), [(2, node("a"))]);
}

#[tokio::test(start_paused = true)]
async fn comparing_when_all_is_well_wakes_nobody() {
    let world = World::new();
    let running = world.engine().await;
    running.attach(csi("a")).await;
    running.quiet().await;
    let mut notices = running.engine.notices();
    running.engine.compare(&bowline_core::TargetId::new("sim").unwrap()).await.unwrap();
    assert_eq!(running.metric("bowline_engine_actors "), "0");
    assert!(notices.try_recv().is_err());
}

#[tokio::test(start_paused = true)]
async fn all_attached_volumes_were_woken_when_their_target_was_first_heard() {
    let world = World::new();
    let before = world.engine().await;
    before.attach(csi("a")).await;
    before.quiet().await;
    drop(before);
    world.target.set_silent(true);
    let running = world.engine().await;
    let mut changes = running.engine.changes();
    world.target.set_silent(false);
    running.engine.compare(&bowline_core::TargetId::new("sim").unwrap()).await.unwrap();
    assert_eq!(running.metric("bowline_engine_actors "), "0");
    running.quiet().await;
    assert!(changes.next().now_or_never().is_none(), "nothing has changed");
    assert_eq!(reason(&running.attach(csi("a")).await), "Satisfied", "and it is compared");
}
