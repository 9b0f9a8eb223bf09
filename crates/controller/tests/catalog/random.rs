//! Random calls, many at once, with random luck. The seed decides everything but the ids, so every run can be had again:
//! `make replay SEED=7`.

use bowline_controller::{Catalog, NewVolume, Source};
use bowline_core::VolumeId;
use bowline_csi::code::Reason;
use bowline_engine::{Patience, Submitted, Withdrawal};
use bowline_target::Item;
use bowline_testkit::{Dice, Fate, csi, node, say};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::task::JoinSet;

use crate::scenario::{quiet, records};
use crate::world::{LONG, World, name, order};

fn seeds() -> Vec<u64> {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect(name));
    match number("BOWLINE_SEED") {
        Some(seed) => vec![seed],
        None => (0..number("BOWLINE_SEEDS").unwrap_or(100)).collect(),
    }
}

const WAIT: Duration = Duration::from_secs(10);
const COPIES: [&str; 2] = ["copy-1", "copy-2"];
const NAMES: [&str; 3] = ["one", "two", "three"];

/// The ids that callers were told and that nobody has asked to delete since.
type Promised = Arc<Mutex<BTreeMap<&'static str, VolumeId>>>;

/// One caller: a few random calls, whatever comes of them. Nobody else deletes what a caller with this name makes.
async fn caller(catalog: Catalog, called: &'static str, seed: u64, promised: Promised) {
    let mut dice = Dice::new(seed);
    for _ in 0..8 {
        let known = promised.lock().unwrap().get(called).cloned();
        let volume = match catalog.create_volume(order(called), WAIT).await {
            Ok(volume) => volume,
            Err(error) => {
                assert!(!error.is_final(), "{error}");
                continue;
            }
        };
        assert!(known.is_none_or(|known| known == volume.id), "a volume was lost or made twice");
        promised.lock().unwrap().insert(called, volume.id.clone());
        match dice.below(6) {
            0 => drop(catalog.grow_volume(&volume.id, volume.size + 4096, None, WAIT).await),
            1 => drop(catalog.create_snapshot(name(&format!("s-{called}")), &volume.id, WAIT).await),
            2 => {
                let copy = NewVolume {
                    source: Some(Source::Volume(volume.id.clone())),
                    ..order(dice.pick(&COPIES))
                };
                drop(catalog.create_volume(copy, WAIT).await);
            }
            3 => {
                let on = dice.pick(&["a", "b"]);
                let attached = catalog.attach(&volume.id, csi(on), Patience::Refuse, WAIT).await;
                if let Ok(Submitted::Satisfied { .. }) = attached {
                    let refused = catalog.delete_volume(&volume.id, WAIT).await;
                    assert!(refused.is_err(), "{on} had it, and it was deleted");
                    let withdrawal = Withdrawal { node: Some(node(on)), ..Withdrawal::default() };
                    drop(catalog.detach(&volume.id, withdrawal, WAIT).await);
                }
            }
            _ => {
                promised.lock().unwrap().remove(called);
                drop(catalog.delete_volume(&volume.id, WAIT).await);
            }
        }
    }
}

#[test]
fn random_callers_at_once_lose_nothing_and_leave_nothing() {
    let (mut deaths, mut steps) = (0, 0);
    for seed in seeds() {
        println!("seed {seed}: `make replay SEED={seed}` plays it again");
        let mut world = World::new();
        let promised = Promised::default();
        for life in 0..4_u64 {
            let luck = if life < 3 { 120 } else { 0 };
            let fate = Arc::new(Fate::random(seed.wrapping_add(life << 32), luck, 300));
            let process = tokio::runtime::Builder::new_current_thread()
                .enable_time()
                .start_paused(true)
                .build()
                .unwrap();
            process.block_on(async {
                let begin = tokio::time::Instant::now();
                let life = async {
                    let catalog = world.catalog_with(Arc::clone(&fate)).await.unwrap();
                    let mut callers = JoinSet::new();
                    for (index, called) in NAMES.into_iter().enumerate() {
                        let seed = seed * 31 + life * 7 + index as u64 + 1;
                        callers.spawn(caller(catalog.clone(), called, seed, Arc::clone(&promised)));
                    }
                    while let Some(ended) = callers.join_next().await {
                        ended.unwrap();
                    }
                };
                tokio::select! {
                    () = life => {}
                    () = fate.death() => deaths += 1,
                }
                world.later += begin.elapsed();
            });
            steps += fate.count();
        }
        tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap()
            .block_on(check(&world, &promised, seed));
    }
    say(&format!("random catalog calls: {} seeds, {steps} steps, {deaths} deaths", seeds().len()));
    assert!(steps > 0);
}

async fn check(world: &World, promised: &Promised, seed: u64) {
    let catalog = world.catalog().await;
    quiet(world).await;
    assert_eq!(world.target.violations(), [""; 0], "seed {seed}");
    let promised = promised.lock().unwrap().clone();
    for (called, id) in promised {
        assert_eq!(catalog.find_volume(called).await.unwrap().id, id, "seed {seed}");
    }
    let (volumes, snapshots) = records(world).await;
    let mut items: Vec<Item> = volumes.iter().map(|one| Item::Volume(one.id.clone())).collect();
    items.extend(snapshots.iter().map(|one| Item::Snapshot(one.id.clone())));
    items.sort();
    assert_eq!(world.target.items(), items, "seed {seed}: what is stored is what is recorded");
    for volume in volumes {
        catalog.detach(&volume.id, Withdrawal::default(), LONG).await.unwrap();
        catalog.delete_volume(&volume.id, LONG).await.unwrap();
    }
    for snapshot in snapshots {
        catalog.delete_snapshot(&snapshot.id, LONG).await.unwrap();
    }
    assert_eq!(world.target.items(), [], "seed {seed}");
}
