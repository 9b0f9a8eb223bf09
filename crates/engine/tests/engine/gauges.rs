//! What is true now, for alerts: a counter rises once at the beginning of an outage, and shows nothing of it while it lasts.

use bowline_core::TargetId;
use bowline_engine::{Patience, Withdrawn};
use bowline_testkit::{SimTarget, csi, node};
use std::sync::Arc;
use std::time::Duration;

use crate::world::{Running, World, reason, v};

const SHORT: Duration = Duration::from_secs(60);
const HOURS: Duration = Duration::from_secs(3 * 3600);
const SILENT: &str = "bowline_engine_target_silent{target=\"sim\"}";

fn waiting(running: &Running, reason: &str) -> String {
    running.metric(&format!("bowline_engine_tickets_waiting{{reason=\"{reason}\"}}"))
}

#[tokio::test(start_paused = true)]
async fn a_steady_outage_is_seen_as_long_as_it_lasts() {
    let world = World::new();
    let running = world.engine().await;
    assert_eq!(running.metric(SILENT), "0");
    world.target.set_silent(true);
    let asked = running.engine.submit(&v(), csi("a"), Patience::Wait, SHORT).await.unwrap();
    assert_eq!(reason(&asked), "TargetUnreachable");
    tokio::time::sleep(HOURS).await;
    assert_eq!((waiting(&running, "TargetUnreachable"), running.metric(SILENT)), ("1".into(), "1".into()));
    world.target.set_silent(false);
    assert_eq!(reason(&running.attach(csi("a")).await), "Satisfied");
    assert_eq!(waiting(&running, "TargetUnreachable"), "0");
    tokio::time::sleep(HOURS).await;
    assert_eq!(running.metric(SILENT), "0");
}

#[tokio::test(start_paused = true)]
async fn a_fence_that_is_not_proven_is_seen_as_long_as_somebody_waits_for_it() {
    let world = World::new();
    let running = world.engine().await;
    running.attach(csi("a")).await;
    world.target.set_busy(&node("a"), Some("a mount"));
    assert_eq!(reason(&running.attach(csi("b")).await), "HeldElsewhere");
    let gone = running.engine.withdraw(&v(), crate::world::withdrawal(&csi("a")), SHORT).await.unwrap();
    assert!(matches!(gone, Withdrawn::StillWorking { .. }), "{gone:?}");
    tokio::time::sleep(HOURS).await;
    assert_eq!(
        (waiting(&running, "StillInUse"), waiting(&running, "HeldElsewhere")),
        ("1".into(), "0".into())
    );
    // Whoever waited gives up; that the fence is not proven is no ticket's trouble any more.
    running.engine.withdraw(&v(), crate::world::withdrawal(&csi("b")), SHORT).await.unwrap();
    assert_eq!(waiting(&running, "StillInUse"), "0");
    world.target.set_busy(&node("a"), None);
    running.quiet().await;
}

#[tokio::test(start_paused = true)]
async fn a_ticket_that_waits_counts_when_its_actor_has_ended_after_a_restart_and_until_it_is_withdrawn() {
    let world = World::new();
    let first = world.engine().await;
    first.attach(csi("a")).await;
    first.attach(csi("b")).await;
    first.attach(csi("c")).await;
    first.quiet().await;
    assert_eq!(waiting(&first, "HeldElsewhere"), "2");
    first.engine.stop().await;
    let second = world.engine().await;
    second.quiet().await;
    assert_eq!(waiting(&second, "HeldElsewhere"), "2");
    second.detach(&csi("c")).await;
    assert_eq!(waiting(&second, "HeldElsewhere"), "1");
    second.detach(&csi("a")).await;
    second.quiet().await;
    assert_eq!(waiting(&second, "HeldElsewhere"), "0", "the other is in");
    second.detach(&csi("b")).await;
    second.engine.remove_volume(&v()).await.unwrap();
    assert_eq!(waiting(&second, "HeldElsewhere"), "0");
}

#[tokio::test(start_paused = true)]
async fn a_start_beside_a_silent_target_counts_who_waits_for_it() {
    let world = World::new();
    let first = world.engine().await;
    first.attach(csi("a")).await;
    first.attach(csi("b")).await;
    first.engine.stop().await;
    world.target.set_silent(true);
    let second = world.engine().await;
    second.quiet().await;
    assert_eq!((waiting(&second, "HeldElsewhere"), second.metric(SILENT)), ("1".into(), "1".into()));
    second.engine.submit(&v(), csi("a"), Patience::Wait, SHORT).await.unwrap();
    world.target.set_silent(false);
    tokio::time::sleep(HOURS).await;
    assert_eq!((waiting(&second, "HeldElsewhere"), second.metric(SILENT)), ("1".into(), "0".into()));
}

#[tokio::test(start_paused = true)]
async fn a_target_that_is_expected_is_silent_until_it_comes_and_nothing_once_it_is_forgotten() {
    let running = World::new().engine().await;
    let id = TargetId::new("late").unwrap();
    let line = "bowline_engine_target_silent{target=\"late\"}";
    running.engine.expect_target(&id);
    assert_eq!(running.metric(line), "1");
    running.engine.add_target(Arc::new(SimTarget::new("late"))).await.unwrap();
    assert_eq!(running.metric(line), "0");
    running.engine.remove_target(&id).unwrap();
    let left = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| running.metric(line)));
    assert!(left.is_err(), "{left:?}");
}
