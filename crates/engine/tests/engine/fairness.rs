//! One stuck volume or silent target delays no other.

use bowline_core::{TargetId, VolumeFacts};
use bowline_engine::Patience;
use bowline_testkit::{SimTarget, csi, node, volume};
use std::sync::Arc;
use std::time::Duration;

use crate::world::{World, reason};

#[tokio::test(start_paused = true)]
async fn a_silent_target_delays_only_its_own_volumes() {
    let mut world = World::new();
    world.volumes.clear();
    for target in ["dead", "alive"] {
        let facts = VolumeFacts::new(TargetId::new(target).unwrap());
        world.volumes.extend((0..200).map(|n| (volume(&format!("{target}-{n}")), facts.clone())));
    }
    let (dead, alive) = (Arc::new(SimTarget::new("dead")), Arc::new(SimTarget::new("alive")));
    let running = world
        .engine_on(Arc::clone(&world.store), vec![Arc::clone(&dead) as _, Arc::clone(&alive) as _])
        .await
        .unwrap();
    dead.set_silent(true);
    let attach = |name: String, wait| {
        let engine = running.engine.clone();
        tokio::spawn(
            async move { engine.submit(&volume(&name), csi("a"), Patience::Wait, wait).await.unwrap() },
        )
    };
    let begin = tokio::time::Instant::now();
    let stuck: Vec<_> = (0..200).map(|n| attach(format!("dead-{n}"), Duration::from_secs(7200))).collect();
    for n in 0..200 {
        assert_eq!(reason(&attach(format!("alive-{n}"), Duration::from_secs(1)).await.unwrap()), "Satisfied");
    }
    assert!(
        begin.elapsed() < Duration::from_secs(1),
        "nobody waited for the silent target: {:?}",
        begin.elapsed()
    );
    dead.set_silent(false);
    for task in stuck {
        assert_eq!(reason(&task.await.unwrap()), "Satisfied");
    }
    assert_eq!(dead.open(&volume("dead-7")), [(1, node("a"))]);
}
