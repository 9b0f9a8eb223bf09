//! Whose a ticket is when there are two objects, or none.

use bowline_core::NodeId;

use crate::world::{World, blind, holding, wait_for};

#[tokio::test(flavor = "multi_thread")]
async fn of_two_objects_for_one_volume_and_node_the_one_that_went_cut_off_the_other() {
    let Some(world) = World::new().await else { return };
    let controller = world.start().await;
    let volume = controller.volume(&world, "shared").await;
    world.attach("va-stays", "shared", "a").await;
    world.until_attached("va-stays").await;
    for by_force in [false, true] {
        world.attach("va-goes", "shared", "a").await;
        world.until_attached("va-goes").await;
        if by_force {
            world.delete_by_force("va-goes").await;
        } else {
            world.delete("va-goes").await;
            world.until_gone("va-goes").await;
        }
        wait_for("the ticket to be the other one's", async || {
            let view = controller.catalog.view(&volume.id).await.unwrap();
            let owners =
                format!("{:?}", view.ledger.tickets().values().map(|one| &one.owner).collect::<Vec<_>>());
            owners.contains("va-stays").then_some(())
        })
        .await;
        assert_eq!(
            world.target.open(&volume.id),
            [(1, NodeId::new("id-a").unwrap())],
            "the very grant it had"
        );
    }
    world.delete("va-stays").await;
    world.until_gone("va-stays").await;
    assert_eq!(world.target.open(&volume.id), []);
    world.check();
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_objects_the_one_that_went_while_nobody_led_cut_off_the_other() {
    let Some(world) = World::new().await else { return };
    let controller = world.start().await;
    let volume = controller.volume(&world, "shared").await;
    world.attach("va-stays", "shared", "a").await;
    world.until_attached("va-stays").await;
    controller.stop().await;
    for by_force in [false, true] {
        let controller = world.start().await;
        // Whoever asks last owns the ticket.
        world.attach("va-goes", "shared", "a").await;
        world.until_attached("va-goes").await;
        controller.stop().await;
        if by_force {
            world.delete_by_force("va-goes").await;
        } else {
            world.delete("va-goes").await;
        }
        // So that the one that stays is answered late.
        world.unfinalize("va-stays").await;
        let (slow, let_through) = holding(&world.client, "va-stays");
        let controller = world.start_with(slow).await;
        wait_for("the mark to be on its way", async || (controller.sent()[0] == 1).then_some(())).await;
        let_through.send_replace(true);
        world.until_gone("va-goes").await;
        wait_for("the ticket to be the other one's", async || {
            let view = controller.catalog.view(&volume.id).await.unwrap();
            let owners =
                format!("{:?}", view.ledger.tickets().values().map(|one| &one.owner).collect::<Vec<_>>());
            owners.contains("va-stays").then_some(())
        })
        .await;
        assert_eq!(
            world.target.open(&volume.id),
            [(1, NodeId::new("id-a").unwrap())],
            "the very grant it had"
        );
        world.check();
        controller.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_that_vanishes_while_the_watch_is_broken_takes_its_ticket_with_it() {
    let Some(world) = World::new().await else { return };
    let lab = crate::world::lab().unwrap();
    let (client, open) = blind(&world.client);
    let controller = world.start_with(client).await;
    let volume = controller.volume(&world, "unseen").await;
    world.attach("va-unseen", "unseen", "a").await;
    world.until_attached("va-unseen").await;
    open.send_replace(false);
    lab.stop_api_server();
    lab.start_api_server();
    world.delete_by_force("va-unseen").await;
    // Whoever asks what has changed since is told to list everything: the server has not heard of the deletion either.
    lab.stop_api_server();
    lab.start_api_server();
    let told =
        || controller.catalog.events(Some(&volume.id), 100).iter().any(|one| one.reason == "OwnerGone");
    assert!(!told(), "nobody has looked");
    open.send_replace(true);
    wait_for("the ticket to be withdrawn", async || told().then_some(())).await;
    world.until_open(&volume, &[]).await;
    let view = controller.catalog.view(&volume.id).await.unwrap();
    assert!(view.ledger.tickets().is_empty(), "{:?}", view.ledger);
    world.check();
}
