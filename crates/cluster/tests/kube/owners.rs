//! Whose a ticket is when there are two objects, or none.

use bowline_core::NodeId;

use crate::world::{World, wait_for};

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
