//! Volumes that become known while the engine runs, and are attached already.

use bowline_core::{Epoch, Ledger, TargetId, Ticket, Timestamp, VolumeFacts};
use bowline_engine::NodeReport;
use bowline_store::{Expected, Key, record};
use bowline_testkit::{csi, node};

use crate::world::{Running, World, reason, v};

fn sim() -> TargetId {
    TargetId::new("sim").unwrap()
}

/// A target that lets `a` in at epoch 7, and an engine that has never heard of the volume.
async fn unknown() -> (World, Running) {
    let mut world = World::new();
    world.volumes.clear();
    world.target.tamper(&v(), |exports| exports.allow(&node("a"), Epoch::new(7), csi("a").mode()).unwrap());
    let running = world.engine().await;
    (world, running)
}

/// Stores a ledger with these tickets, and makes the volume known.
async fn adopt(world: &World, running: &Running, tickets: &[Ticket]) -> bool {
    let exports = running.engine.exports(&sim()).await.unwrap();
    let mut ledger = Ledger::default();
    for ticket in tickets {
        ledger.submit(ticket.clone(), Timestamp::UNIX_EPOCH).unwrap();
    }
    let value = record::encode(&ledger).unwrap();
    world.store.put(&Key::ledger(&v()), value, Expected::Absent).await.unwrap();
    running.engine.adopt(&v(), VolumeFacts::new(sim()), &ledger, &exports)
}

#[tokio::test(start_paused = true)]
async fn who_is_in_keeps_its_grant_and_nobody_is_let_in_beside_it() {
    let (world, running) = unknown().await;
    assert!(adopt(&world, &running, &[csi("a")]).await);
    assert_eq!(reason(&running.attach(csi("b")).await), "HeldElsewhere");
    assert_eq!(reason(&running.attach(csi("a")).await), "Satisfied");
    running.quiet().await;
    assert_eq!(world.target.open(&v()), [(7, node("a"))], "the very grant it had");
    assert!(!adopt_again(&running).await, "what is known is left alone");
    assert_eq!(running.metric("bowline_engine_stray_exports{target=\"sim\"}"), "0");
    // From now on it is a volume like any other.
    running.detach(&csi("a")).await;
    assert_eq!(reason(&running.attach(csi("b")).await), "Satisfied");
    assert_eq!(world.target.open(&v()), [(8, node("b"))]);
    assert_eq!(world.target.violations(), [""; 0]);
}

async fn adopt_again(running: &Running) -> bool {
    let exports = running.engine.exports(&sim()).await.unwrap();
    running.engine.adopt(&v(), VolumeFacts::new(sim()), &Ledger::default(), &exports)
}

#[tokio::test(start_paused = true)]
async fn who_is_in_and_has_no_ticket_is_shut_out_before_anybody_else_is_let_in() {
    let (world, running) = unknown().await;
    assert!(adopt(&world, &running, &[csi("b")]).await);
    assert_eq!(reason(&running.attach(csi("b")).await), "Satisfied");
    assert_eq!(world.target.open(&v()), [(8, node("b"))]);
    assert_eq!(world.target.violations(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn an_adopted_volume_takes_a_place_on_its_node() {
    let (world, running) = unknown().await;
    running.engine.observe_node(&node("a"), NodeReport { limit: Some(1), ..NodeReport::default() });
    assert!(adopt(&world, &running, &[csi("a")]).await);
    running.quiet().await;
    let other = bowline_testkit::volume("other");
    running.engine.observe_volume(&other, VolumeFacts::new(sim()));
    let ticket = csi("a");
    let submitted = running
        .engine
        .submit(&other, ticket, bowline_engine::Patience::Wait, crate::world::LONG)
        .await
        .unwrap();
    assert_eq!(reason(&submitted), "NodeFull");
    assert_eq!(world.target.open(&v()), [(7, node("a"))]);
}

#[tokio::test(start_paused = true)]
async fn a_target_that_does_not_say_whom_it_lets_in_makes_nothing_known() {
    let (world, running) = unknown().await;
    world.target.set_silent(true);
    assert!(running.engine.exports(&sim()).await.is_err());
    assert!(running.engine.view(&v()).await.is_err(), "nobody knows it");
    // Nor does one that was never connected.
    assert!(running.engine.exports(&TargetId::new("elsewhere").unwrap()).await.is_err());
    world.target.set_silent(false);
    assert_eq!(world.target.open(&v()), [(7, node("a"))]);
}
