//! What the target finds wrong with a volume is why nobody gets it.

use bowline_engine::{Patience, Submitted, Withdrawal};
use bowline_target::Item;
use bowline_testkit::{csi, node};
use std::time::Duration;

use crate::world::{LONG, World, create, rest};

fn reason(submitted: &Submitted) -> &'static str {
    match submitted {
        Submitted::Satisfied { verdict, .. } | Submitted::Waiting(verdict) | Submitted::Refused(verdict) => {
            verdict.reason()
        }
        Submitted::StillWorking { verdict, .. } => verdict.as_ref().map_or("?", |verdict| verdict.reason()),
    }
}

#[tokio::test(start_paused = true)]
async fn a_grant_that_is_refused_for_a_fault_says_so_and_comes_when_it_is_mended() {
    let world = World::new();
    let catalog = world.catalog().await;
    rest().await;
    let id = create(&catalog, "v").await.id;
    world.target.set_fault(&id, "a bad block");
    let refused = catalog.attach(&id, csi("a"), Patience::Refuse, Duration::from_secs(15)).await.unwrap();
    assert_eq!(reason(&refused), "VolumeFaulted", "{refused:?}");
    let waits = catalog.attach(&id, csi("a"), Patience::Wait, LONG).await.unwrap();
    assert_eq!(reason(&waits), "VolumeFaulted", "{waits:?}");
    assert_eq!(world.target.open(&id), []);
    world.target.mend(&id);
    let comes = async {
        while world.target.open(&id).is_empty() {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(120), comes)
        .await
        .expect("who waits gets it without asking again");
    let reasons: Vec<String> = catalog.events(Some(&id), 99).into_iter().map(|event| event.reason).collect();
    assert!(
        reasons.contains(&"Faulted".to_owned()) && reasons.contains(&"Repaired".to_owned()),
        "{reasons:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn bytes_that_are_lost_are_found_out_at_the_start_and_when_targets_are_compared() {
    let world = World::new();
    let catalog = world.catalog().await;
    let id = create(&catalog, "v").await.id;
    catalog.close().await;
    let item = Item::Volume(id.clone());
    world.target.lose(&item);
    let catalog = world.catalog().await;
    rest().await;
    let refused = catalog.attach(&id, csi("a"), Patience::Refuse, LONG).await.unwrap();
    assert_eq!(reason(&refused), "VolumeFaulted", "{refused:?}");
    let other = create(&catalog, "w").await.id;
    world.target.lose(&Item::Volume(other.clone()));
    tokio::time::sleep(Duration::from_secs(900)).await;
    let state = catalog.view(&other).await.unwrap().state;
    assert_eq!(state.as_str(), "faulted");
}

#[tokio::test(start_paused = true)]
async fn a_target_that_does_not_answer_says_neither_ill_nor_well() {
    let world = World::new();
    let catalog = world.catalog().await;
    let id = create(&catalog, "v").await.id;
    let held = catalog.attach(&id, csi("a"), Patience::Refuse, LONG).await.unwrap();
    assert_eq!(reason(&held), "Satisfied");
    world.target.set_silent(true);
    tokio::time::sleep(Duration::from_secs(900)).await;
    assert_eq!(world.target.open(&id), [(1, node("a"))], "silence takes nothing away");
    assert_eq!(catalog.view(&id).await.unwrap().state.as_str(), "attached");
    world.target.set_silent(false);
    catalog.detach(&id, Withdrawal::default(), LONG).await.unwrap();
    world.target.set_fault(&id, "a bad block");
    let refused = catalog.attach(&id, csi("a"), Patience::Refuse, LONG).await.unwrap();
    assert_eq!(reason(&refused), "VolumeFaulted");
    world.target.mend(&id);
    let back = catalog.attach(&id, csi("a"), Patience::Refuse, LONG).await.unwrap();
    assert_eq!(reason(&back), "Satisfied", "asked again, it is looked at again");
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_is_being_deleted_is_not_ill() {
    let world = World::new();
    let catalog = world.catalog().await;
    let id = create(&catalog, "v").await.id;
    catalog.delete_volume(&id, LONG).await.unwrap();
    tokio::time::sleep(Duration::from_secs(900)).await;
    let told: Vec<String> = catalog.events(None, 99).into_iter().map(|event| event.reason).collect();
    assert!(!told.contains(&"Faulted".to_owned()), "{told:?}");
}
