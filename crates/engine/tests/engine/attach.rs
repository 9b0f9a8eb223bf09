//! What callers hear.

use bowline_core::{NodeState, Owner, Phase, Timestamp};
use bowline_engine::{EngineError, NodeReport, Patience, Submitted, Withdrawal, Withdrawn};
use bowline_testkit::{csi, node};
use std::time::Duration;

use crate::world::{LONG, World, reason, v, withdrawal};

#[tokio::test(start_paused = true)]
async fn attach_then_detach() {
    let world = World::new();
    let running = world.engine().await;
    let Submitted::Satisfied { context, .. } = running.attach(csi("a")).await else { panic!("not attached") };
    assert_eq!(context["export"], "v:a:e1");
    assert_eq!(world.target.open(&v()), [(1, node("a"))]);
    assert_eq!(running.detach(&csi("a")).await, Withdrawn::Out);
    assert_eq!(world.target.open(&v()), []);
    assert_eq!(running.engine.view(&v()).await.unwrap().ledger.epoch().number(), 1);
}

#[tokio::test(start_paused = true)]
async fn the_same_publish_twice_is_one_grant_with_one_answer() {
    let world = World::new();
    let running = world.engine().await;
    let (first, second) = tokio::join!(running.attach(csi("a")), running.attach(csi("a")));
    assert_eq!(first, second);
    running.quiet().await;
    assert_eq!(running.attach(csi("a")).await, first, "also when it was idle meanwhile");
    assert_eq!(world.target.open(&v()), [(1, node("a"))]);
    let asked = "bowline_engine_effects_total{effect=\"allow\",result=\"allowed\"}";
    assert_eq!(running.metric(asked), "1", "a repeated request has no second effect");
}

#[tokio::test(start_paused = true)]
async fn publish_to_a_and_to_b_at_once_lets_one_in_and_leaves_nothing_of_the_other() {
    let world = World::new();
    let running = world.engine().await;
    let (a, b) = tokio::join!(running.attach_or_refuse(csi("a")), running.attach_or_refuse(csi("b")));
    assert_eq!((reason(&a), reason(&b)), ("Satisfied", "HeldElsewhere"));
    assert!(matches!(b, Submitted::Refused(_)));
    let view = running.engine.view(&v()).await.unwrap();
    assert_eq!(view.ledger.tickets().len(), 1, "a refused call does not grab the volume later");
    assert_eq!(running.detach(&csi("a")).await, Withdrawn::Out);
    running.quiet().await;
    assert_eq!(world.target.open(&v()), []);
}

#[tokio::test(start_paused = true)]
async fn a_refusal_does_not_take_back_the_ticket_of_an_object() {
    let running = World::new().engine().await;
    running.attach(csi("a")).await;
    let mut owned = csi("b");
    owned.owner = Owner::ObjectGone { object: "volumeattachments/csi-b".to_owned() };
    assert!(matches!(running.attach(owned).await, Submitted::Waiting(_)));
    assert!(matches!(running.attach_or_refuse(csi("b")).await, Submitted::Waiting(_)));
    assert_eq!(running.engine.view(&v()).await.unwrap().ledger.tickets().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn late_unpublish_of_a_leaves_b_alone() {
    let world = World::new();
    let running = world.engine().await;
    running.attach(csi("a")).await;
    running.detach(&csi("a")).await;
    running.attach(csi("b")).await;
    assert_eq!(running.detach(&csi("a")).await, Withdrawn::Out);
    assert_eq!(world.target.open(&v()), [(2, node("b"))]);
}

#[tokio::test(start_paused = true)]
async fn unpublish_with_no_node_shuts_everybody_out() {
    let world = World::new();
    let running = world.engine().await;
    let reader =
        |on| bowline_core::Ticket { access: bowline_core::AccessMode::MultiNodeReaderOnly, ..csi(on) };
    for on in ["a", "b", "c"] {
        assert_eq!(reason(&running.attach(reader(on)).await), "Satisfied");
    }
    let all = running.engine.withdraw(&v(), Withdrawal::default(), LONG).await.unwrap();
    assert_eq!((all, world.target.open(&v())), (Withdrawn::Out, vec![]));
}

#[tokio::test(start_paused = true)]
async fn another_mode_for_the_same_ticket_is_refused_by_name() {
    let running = World::new().engine().await;
    running.attach(csi("a")).await;
    let other = bowline_core::Ticket { read_only: true, ..csi("a") };
    let error = running.engine.submit(&v(), other, Patience::Refuse, LONG).await.unwrap_err();
    assert!(matches!(error, EngineError::Submit(_)), "{error}");
    assert!(error.to_string().contains("read-only flag"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_deadline_takes_nothing_back_and_a_retry_sees_the_result() {
    let world = World::new();
    let running = world.engine().await;
    world.target.set_silent(true);
    let short = Duration::from_secs(40);
    let first = running.engine.submit(&v(), csi("a"), Patience::Refuse, short).await.unwrap();
    assert_eq!(reason(&first), "TargetUnreachable", "{first:?}");
    world.target.set_silent(false);
    assert_eq!(reason(&running.attach_or_refuse(csi("a")).await), "Satisfied");
    assert_eq!(world.target.open(&v()), [(1, node("a"))], "the retry joined the first try");
}

#[tokio::test(start_paused = true)]
async fn target_unreachable_during_unpublish_keeps_the_hold_and_lets_nobody_in() {
    let world = World::new();
    let running = world.engine().await;
    running.attach(csi("a")).await;
    world.target.set_silent(true);
    let minutes = Duration::from_secs(600);
    let volume = v();
    let detach = running.engine.withdraw(&volume, withdrawal(&csi("a")), minutes);
    let attach = running.engine.submit(&volume, csi("b"), Patience::Wait, minutes);
    let (detached, attached) = tokio::join!(detach, attach);
    assert!(
        matches!(detached.unwrap(), Withdrawn::StillWorking { nodes, .. } if nodes.contains_key(&node("a")))
    );
    assert_eq!(reason(&attached.unwrap()), "TargetUnreachable");
    assert_eq!(world.target.open(&v()), [(1, node("a"))]);
    let hold = running.engine.view(&v()).await.unwrap().ledger.holds()[&node("a")].clone();
    assert_eq!(hold.phase, Phase::Releasing);
    world.target.set_silent(false);
    assert_eq!(running.detach(&csi("a")).await, Withdrawn::Out);
    running.quiet().await;
    assert_eq!(world.target.open(&v()), [(2, node("b"))]);
    assert_eq!(world.target.violations(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn what_still_uses_the_volume_is_named() {
    let world = World::new();
    let running = world.engine().await;
    running.attach(csi("a")).await;
    world.target.set_busy(&node("a"), Some("mount /data of pid 42"));
    let wait = Duration::from_secs(5);
    running.engine.withdraw(&v(), withdrawal(&csi("a")), wait).await.unwrap();
    let waiting = running.engine.submit(&v(), csi("b"), Patience::Wait, wait).await.unwrap();
    let Submitted::StillWorking { verdict: Some(verdict), .. } = waiting else { panic!("{waiting:?}") };
    assert!(verdict.sentence(&csi("b")).contains("mount /data of pid 42"), "{verdict:?}");
    world.target.set_busy(&node("a"), None);
    assert_eq!(reason(&running.attach(csi("b")).await), "Satisfied");
}

#[tokio::test(start_paused = true)]
async fn a_detach_after_a_long_use_does_not_wait_for_a_long_pause() {
    let world = World::new();
    let running = world.engine().await;
    running.attach(csi("a")).await;
    world.target.set_busy(&node("a"), Some("mount /data of pid 42"));
    running.engine.withdraw(&v(), withdrawal(&csi("a")), Duration::from_secs(120)).await.unwrap();
    world.target.set_busy(&node("a"), None);
    let soon = Duration::from_secs(2);
    let out = running.engine.withdraw(&v(), withdrawal(&csi("a")), soon).await.unwrap();
    assert_eq!(out, Withdrawn::Out);
}

#[tokio::test(start_paused = true)]
async fn a_deleted_node_is_fenced_before_the_next_one_is_let_in() {
    let world = World::new();
    let running = world.engine().await;
    running.attach(csi("a")).await;
    assert!(matches!(running.attach(csi("b")).await, Submitted::Waiting(_)));
    world.target.set_silent(true);
    running.see(&node("a"), NodeState::Gone { since: Timestamp::UNIX_EPOCH });
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(world.target.open(&v()), [(1, node("a"))], "a missing Node object proves nothing");
    world.target.set_silent(false);
    assert_eq!(reason(&running.attach(csi("b")).await), "Satisfied");
    assert_eq!(world.target.open(&v()), [(2, node("b"))]);
}

#[tokio::test(start_paused = true)]
async fn a_forgotten_attachment_expires() {
    let world = World::new();
    let running = world.engine().await;
    let at = |seconds| "2026-01-01T12:00:00Z".parse::<Timestamp>().unwrap() + Duration::from_secs(seconds);
    let mut ticket = csi("a");
    ticket.owner = Owner::Expires { at: at(3600) };
    running.attach(ticket.clone()).await;
    running.quiet().await;
    ticket.owner = Owner::Expires { at: at(7200) };
    running.attach(ticket).await;
    running.quiet().await;
    tokio::time::sleep(Duration::from_secs(5400)).await;
    assert_eq!(world.target.open(&v()), [(1, node("a"))], "it was renewed");
    let mut notices = running.engine.notices();
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert_eq!(world.target.open(&v()), []);
    let (_, notice) = notices.recv().await.unwrap();
    assert!(matches!(notice, bowline_core::Notice::Expired { .. }), "{notice:?}");
}

#[tokio::test(start_paused = true)]
async fn two_volumes_never_take_the_last_place_of_a_node_together() {
    let mut world = World::new();
    let facts = world.volumes[&v()].clone();
    let names = ["v1", "v2", "v3"].map(bowline_testkit::volume);
    world.volumes.extend(names.clone().map(|name| (name, facts.clone())));
    world.nodes.insert(node("a"), NodeReport { limit: Some(2), ..NodeReport::default() });
    let running = world.engine().await;
    let attach = |name: usize| running.engine.submit(&names[name], csi("a"), Patience::Wait, LONG);
    let (one, two, three) = tokio::join!(attach(0), attach(1), attach(2));
    let reasons = [one, two, three].map(|answer| reason(&answer.unwrap()));
    assert_eq!(reasons, ["Satisfied", "Satisfied", "NodeFull"]);
    running.engine.withdraw(&names[0], withdrawal(&csi("a")), LONG).await.unwrap();
    running.quiet().await;
    assert_eq!(world.target.open(&names[2]), [(1, node("a"))], "a place that becomes free is taken");
}
