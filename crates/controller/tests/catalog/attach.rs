//! Letting nodes in through the catalog; nodes that come, go and are full.

use bowline_controller::{Change, Node, NodeError};
use bowline_core::{AccessMode, Content, Ticket};
use bowline_engine::{Patience, Submitted, Withdrawal};
use bowline_testkit::{csi, node};
use std::time::Duration;
use tonic::Code;

use crate::world::{LONG, World, create, order, told};

#[tokio::test(start_paused = true)]
async fn only_known_nodes_get_only_volumes_that_are_there() {
    let world = World::new();
    let catalog = world.catalog().await;
    let id = create(&catalog, "v").await.id;
    let attach = |id, ticket| catalog.attach(id, ticket, Patience::Refuse, LONG);
    told(attach(&id, csi("stranger")).await, Code::NotFound, "stranger is not known");
    let nothing = bowline_testkit::volume("x");
    told(attach(&nothing, csi("a")).await, Code::NotFound, "there is no volume");
    let added_at = bowline_core::Timestamp::UNIX_EPOCH;
    let stranger = Node { id: node("stranger"), limit: Some(1), out_of_service: None, added_at };
    catalog.add_node(stranger.clone()).await.unwrap();
    assert!(matches!(attach(&id, csi("stranger")).await.unwrap(), Submitted::Satisfied { .. }));
    let error = catalog.remove_node(&node("stranger")).await.unwrap_err();
    assert!(matches!(error, NodeError::InUse { .. }), "{error}");
    catalog.detach(&id, Withdrawal::default(), LONG).await.unwrap();
    catalog.remove_node(&node("stranger")).await.unwrap();
    assert!(matches!(catalog.remove_node(&node("stranger")).await, Err(NodeError::Unknown(_))));
    assert_eq!(catalog.nodes().await.unwrap().len(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_node_out_of_service_loses_what_it_has_and_stays_so() {
    let world = World::new();
    let catalog = world.catalog().await;
    let id = create(&catalog, "v").await.id;
    catalog.attach(&id, csi("a"), Patience::Wait, LONG).await.unwrap();
    catalog.set_out_of_service(&node("a"), true).await.unwrap();
    let moved = catalog.attach(&id, csi("b"), Patience::Wait, LONG).await.unwrap();
    assert!(matches!(moved, Submitted::Satisfied { .. }), "{moved:?}");
    assert_eq!(world.target.violations(), [""; 0]);
    catalog.close().await;
    let catalog = world.catalog().await;
    let kept = catalog.nodes().await.unwrap().into_iter().find(|one| one.id == node("a")).unwrap();
    assert!(kept.out_of_service.is_some());
    assert!(catalog.set_out_of_service(&node("a"), false).await.unwrap().out_of_service.is_none());
    assert!(catalog.set_out_of_service(&node("x"), true).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn whoever_waits_is_told_when_its_turn_has_come() {
    let world = World::new();
    let catalog = world.catalog().await;
    let id = create(&catalog, "v").await.id;
    let mut news = catalog.follow_events();
    catalog.attach(&id, csi("a"), Patience::Wait, LONG).await.unwrap();
    for _ in 0..3 {
        let waits = catalog.attach(&id, csi("b"), Patience::Wait, LONG).await.unwrap();
        assert!(matches!(waits, Submitted::Waiting(_)), "{waits:?}");
    }
    let ticket = Some(csi("a").id);
    catalog.detach(&id, Withdrawal { ticket, ..Withdrawal::default() }, LONG).await.unwrap();
    let mut told = Vec::new();
    while told.last().is_none_or(|last: &String| !last.starts_with("Attached: csi-b")) {
        let event = news.recv().await.unwrap();
        told.push(format!("{}: {}", event.reason, event.message));
    }
    let waited: Vec<_> = told.iter().filter(|one| one.contains("a has the volume for csi-a")).collect();
    assert_eq!(waited.len(), 1, "{told:#?}");
}

#[tokio::test(start_paused = true)]
async fn what_is_modified_counts_at_once() {
    let world = World::new();
    let catalog = world.catalog().await;
    let uses =
        vec![bowline_controller::Use { access: AccessMode::SingleNodeWriter, content: Content::Block }];
    let wanted = bowline_controller::NewVolume { uses, ..order("v") };
    let id = catalog.create_volume(wanted, LONG).await.unwrap().id;
    let block = |on| Ticket { content: Content::Block, ..csi(on) };
    catalog.attach(&id, block("a"), Patience::Refuse, LONG).await.unwrap();
    let second = catalog.attach(&id, block("b"), Patience::Refuse, LONG).await.unwrap();
    assert!(matches!(second, Submitted::Refused(_)), "{second:?}");
    let change = Change { migratable: Some(Some(Default::default())), ..Change::default() };
    catalog.modify_volume(&id, change).await.unwrap();
    let second = catalog.attach(&id, block("b"), Patience::Refuse, LONG).await.unwrap();
    assert!(matches!(second, Submitted::Satisfied { .. }), "{second:?}");
}

#[tokio::test(start_paused = true)]
async fn a_detach_waits_for_the_proof_and_says_what_is_in_its_way() {
    let world = World::new();
    let catalog = world.catalog().await;
    let id = create(&catalog, "v").await.id;
    catalog.attach(&id, csi("a"), Patience::Wait, LONG).await.unwrap();
    world.target.set_busy(&node("a"), Some("/mnt/data"));
    let short = Duration::from_secs(5);
    told(catalog.detach(&id, Withdrawal::default(), short).await, Code::Aborted, "/mnt/data still uses it");
    world.target.set_busy(&node("a"), None);
    catalog.detach(&id, Withdrawal::default(), LONG).await.unwrap();
    catalog.detach(&bowline_testkit::volume("never-was"), Withdrawal::default(), LONG).await.unwrap();
    let reasons: Vec<String> = catalog.events(Some(&id), 9).into_iter().map(|event| event.reason).collect();
    assert_eq!(reasons, ["Created", "Attached", "Detached"]);
}

#[tokio::test(start_paused = true)]
async fn a_volume_is_attached_or_deleted_and_never_both() {
    let (mut attached, mut deleted) = (0, 0);
    for (first, yields) in
        [true, false].into_iter().flat_map(|first| (0..40).map(move |yields| (first, yields)))
    {
        let world = World::new();
        let catalog = world.catalog().await;
        let id = create(&catalog, "v").await.id;
        let pause = async |waits: bool| {
            for _ in 0..if waits { yields } else { 0 } {
                tokio::task::yield_now().await;
            }
        };
        let attach = async {
            pause(first).await;
            catalog.attach(&id, csi("a"), Patience::Refuse, LONG).await
        };
        let delete = async {
            pause(!first).await;
            catalog.delete_volume(&id, LONG).await
        };
        let (attach, delete) = tokio::join!(attach, delete);
        let is_in = matches!(attach, Ok(Submitted::Satisfied { .. }));
        assert_ne!(is_in, delete.is_ok(), "{first} {yields}: {attach:?} {delete:?}");
        assert_eq!(world.target.items().len(), usize::from(is_in), "{first} {yields}");
        assert_eq!(world.target.open(&id).len(), usize::from(is_in), "{first} {yields}");
        attached += usize::from(is_in);
        deleted += usize::from(delete.is_ok());
    }
    assert!(attached > 0 && deleted > 0, "{attached} and {deleted}");
}
