//! Actors come and go, watchers follow, engines stop.

use bowline_core::State;
use bowline_engine::{EngineError, Patience, Withdrawn};
use bowline_testkit::{csi, node};

use crate::world::{LONG, World, reason, v};

#[tokio::test(start_paused = true)]
async fn an_actor_lives_only_while_there_is_something_to_do() {
    let running = World::new().engine().await;
    assert_eq!(running.metric("bowline_engine_actors "), "0");
    running.attach(csi("a")).await;
    running.quiet().await;
    let view = running.engine.view(&v()).await.unwrap();
    assert_eq!((view.state, view.ledger.holds().len()), (State::Attached, 1), "found again in the store");
    running.quiet().await;
}

#[tokio::test(start_paused = true)]
async fn a_watcher_sees_the_way_from_detached_to_attached_and_back() {
    let running = World::new().engine().await;
    let mut watch = running.engine.watch(&v()).unwrap();
    let follow = tokio::spawn(async move {
        let mut states = Vec::new();
        while states.last() != Some(&State::Detached) || states.len() < 2 {
            watch.changed().await.unwrap();
            let status = watch.borrow_and_update().clone();
            let state = status.view.map(|view| view.state).unwrap();
            if states.last() != Some(&state) {
                states.push(state);
            }
        }
        states
    });
    tokio::task::yield_now().await;
    running.attach(csi("a")).await;
    running.quiet().await;
    running.detach(&csi("a")).await;
    let states = follow.await.unwrap();
    assert_eq!(states.first(), Some(&State::Detached));
    assert!(states.contains(&State::Attached), "{states:?}");
    assert_eq!(states.last(), Some(&State::Detached));
}

#[tokio::test(start_paused = true)]
async fn stop_writes_what_is_unwritten() {
    let world = World::new();
    let running = world.engine().await;
    running.attach(csi("a")).await;
    running.engine.stop().await;
    assert_eq!(world.stored().await.holds()[&node("a")].phase, bowline_core::Phase::Held);
    let late = running.engine.submit(&v(), csi("b"), Patience::Wait, LONG).await;
    assert!(matches!(late, Err(EngineError::Stopping)), "{late:?}");
}

#[tokio::test(start_paused = true)]
async fn what_only_confirms_waits_for_those_who_wait_to_be_let_in_but_not_for_ever() {
    let mut world = World::new();
    let other = bowline_testkit::volume("w");
    world.volumes.insert(other.clone(), world.volumes[&v()].clone());
    let running = world.engine().await;
    running.attach(csi("a")).await;
    world.target.set_silent(true);
    let engine = running.engine.clone();
    let waiting = tokio::spawn(async move { engine.submit(&other, csi("b"), Patience::Wait, LONG).await });
    let phase = async || world.stored().await.holds()[&node("a")].phase;
    tokio::time::sleep(std::time::Duration::from_secs(50)).await;
    assert_eq!(phase().await, bowline_core::Phase::Granting, "somebody waits");
    tokio::time::sleep(std::time::Duration::from_secs(20)).await;
    assert_eq!(phase().await, bowline_core::Phase::Held, "but that was long enough");
    waiting.abort();
}

/// What confirms was written whenever nobody waited for a moment: of a thousand attaches at once, nearly all of it while the others were on their way.
#[tokio::test(start_paused = true)]
async fn a_moment_in_which_nobody_waits_does_not_end_a_storm() {
    let mut world = World::new();
    let other = bowline_testkit::volume("w");
    world.volumes.insert(other.clone(), world.volumes[&v()].clone());
    let running = world.engine().await;
    running.attach(csi("a")).await;
    let phase = async || world.stored().await.holds()[&node("a")].phase;
    for _ in 0..10 {
        running.engine.submit(&other, csi("b"), Patience::Wait, LONG).await.unwrap();
        tokio::time::sleep(std::time::Duration::from_millis(600)).await;
        assert_eq!(phase().await, bowline_core::Phase::Granting, "others come");
    }
    tokio::time::sleep(std::time::Duration::from_secs(2)).await;
    assert_eq!(phase().await, bowline_core::Phase::Held, "nobody came any more");
}

/// Of a thousand attaches at once, half of what confirms was written while the last of them waited for their objects to be written.
#[tokio::test(start_paused = true)]
async fn those_who_wait_for_the_store_past_the_engine_were_held_up() {
    let world = World::new();
    let running = world.engine().await;
    running.attach(csi("a")).await;
    let phase = async || world.stored().await.holds()[&node("a")].phase;
    let waiting = running.engine.waiting();
    tokio::time::sleep(std::time::Duration::from_secs(10)).await;
    assert_eq!(phase().await, bowline_core::Phase::Granting, "somebody waits");
    drop(waiting);
    tokio::time::sleep(std::time::Duration::from_secs(2)).await;
    assert_eq!(phase().await, bowline_core::Phase::Held, "and does not any more");
}

#[tokio::test(start_paused = true)]
async fn a_volume_is_removed_only_when_nobody_holds_or_wants_it() {
    let world = World::new();
    let running = world.engine().await;
    running.attach(csi("a")).await;
    let error = running.engine.remove_volume(&v()).await.unwrap_err();
    assert_eq!(error.to_string(), "volume v is attached; it can be removed when nobody holds or wants it");
    assert_eq!(running.detach(&csi("a")).await, Withdrawn::Out);
    let began = tokio::time::Instant::now();
    running.engine.remove_volume(&v()).await.unwrap();
    assert_eq!(began.elapsed(), std::time::Duration::ZERO, "it waits for no write that was put off");
    assert!(world.store.get(&bowline_store::Key::ledger(&v())).await.unwrap().is_none());
    let gone = running.engine.view(&v()).await.unwrap_err();
    assert_eq!(gone.to_string(), "volume v is not known");
}

#[tokio::test(start_paused = true)]
async fn what_happened_is_counted() {
    let running = World::new().engine().await;
    running.attach(csi("a")).await;
    assert_eq!(reason(&running.attach(csi("b")).await), "HeldElsewhere");
    running.detach(&csi("a")).await;
    running.attach(csi("b")).await;
    running.quiet().await;
    for (line, expected) in [
        ("bowline_engine_verdicts_total{reason=\"Satisfied\"}", "2"),
        ("bowline_engine_verdicts_total{reason=\"HeldElsewhere\"}", "1"),
        ("bowline_engine_effects_total{effect=\"allow\",result=\"allowed\"}", "2"),
        ("bowline_engine_effects_total{effect=\"revoke\",result=\"gone\"}", "1"),
        ("bowline_engine_time_to_verdict_seconds_count", "3"),
        ("bowline_engine_queue ", "0"),
        ("bowline_engine_store_retries_total ", "0"),
    ] {
        assert_eq!(running.metric(line), expected, "{line}");
    }
}
