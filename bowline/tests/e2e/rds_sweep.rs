//! A volume on a simulated RouterOS device, over real SSH: the real process ends at every write of its store and before and after
//! every command that changes the device, in every step of the volume's life, and goes on (rows 1 to 5 of docs/faults.md).

use bowline_csi::wire;
use bowline_target::context;
use bowline_testkit::driver::{Driver, MIB, RWO};
use bowline_testkit::routeros::Firmware;
use bowline_testkit::say;
use bowline_testkit::world::{Daemon, PATIENCE};
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tonic::{Code, Status};

use crate::death::{Death, attempt};
use crate::rds::{Rack, create};

/// What a volume goes through on such a device. The order is that of the life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    Create,
    Publish,
    Unpublish,
    Move,
    MoveBack,
    Snapshot,
    Restore,
    DeleteSnapshot,
    DeleteRestored,
    Grow,
    Delete,
}

impl Step {
    const ALL: [Step; 11] = [
        Step::Create,
        Step::Publish,
        Step::Unpublish,
        Step::Move,
        Step::MoveBack,
        Step::Snapshot,
        Step::Restore,
        Step::DeleteSnapshot,
        Step::DeleteRestored,
        Step::Grow,
        Step::Delete,
    ];
}

/// What a caller knows: the answers it got.
#[derive(Default)]
struct Known {
    volume: wire::Volume,
    context: HashMap<String, String>,
    snapshot: String,
    restored: String,
}

async fn step(which: Step, one: &mut Driver, known: &mut Known) -> Result<(), Status> {
    let id = known.volume.volume_id.clone();
    match which {
        Step::Create => known.volume = create(one, "swept", None).await?,
        Step::Publish => known.context = one.publish(&known.volume, "worker-1", RWO, false).await?,
        Step::Unpublish => one.unpublish(&id, "worker-1").await?,
        Step::Move => known.context = one.publish(&known.volume, "worker-2", RWO, false).await?,
        Step::MoveBack => one.unpublish(&id, "worker-2").await?,
        Step::Snapshot => known.snapshot = one.snapshot("moment", &id).await?.snapshot_id,
        Step::Restore => known.restored = create(one, "restored", Some(&known.snapshot)).await?.volume_id,
        Step::DeleteSnapshot => one.delete_snapshot(&known.snapshot).await?,
        Step::DeleteRestored => one.delete(&known.restored).await?,
        Step::Grow => assert_eq!(one.grow(&id, 96 * MIB).await?, 96 * MIB),
        Step::Delete => one.delete(&id).await?,
    }
    Ok(())
}

/// A world, its process, and where that has died.
struct Scene {
    rack: Rack,
    daemon: Option<Daemon>,
    deaths: Vec<String>,
}

impl Scene {
    async fn connect(&self) -> Driver {
        Driver::connect(&self.rack.world, self.daemon.as_ref().unwrap()).await
    }

    /// Does a step as a caller does who is told to ask again.
    async fn insist(&self, which: Step, one: &mut Driver, known: &mut Known) {
        let begun = Instant::now();
        while let Err(status) = step(which, one, known).await {
            let again = matches!(
                status.code(),
                Code::Aborted | Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled
            );
            let log = || self.rack.world.log("worker-1");
            let deaths = &self.deaths;
            assert!(
                again && begun.elapsed() < PATIENCE,
                "{which:?}, deaths at {deaths:?}: {status}\n{}",
                log()
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// What must be so after a step, whatever died in it.
    async fn check(&self, after: Step, one: &mut Driver, known: &Known) {
        let (device, deaths) = (&self.rack.device, &self.deaths);
        assert_eq!(device.breaches(), [""; 0], "after {after:?}, deaths at {deaths:?}");
        let doors: Vec<_> = device.doors().into_iter().map(|door| (door.nqn, door.host)).collect();
        let granted = matches!(after, Step::Publish | Step::Move)
            .then(|| (known.context[context::NQN].clone(), Some(known.context[context::HOST_NQN].clone())));
        assert_eq!(doors, Vec::from_iter(granted), "after {after:?}, deaths at {deaths:?}");
        if after == Step::Create {
            let ids: Vec<_> = one.volumes().await.into_iter().filter_map(|entry| entry.volume).collect();
            let ids: Vec<_> = ids.into_iter().map(|volume| volume.volume_id).collect();
            assert_eq!(ids, std::slice::from_ref(&known.volume.volume_id), "deaths at {deaths:?}");
            assert_eq!(device.slots(), ids, "deaths at {deaths:?}");
        }
    }
}

/// One life with a death in the step `at`, or with none. The points that the step passed, and where the process died.
async fn live(at: Step, death: Option<&Death>) -> (Vec<String>, Vec<String>) {
    let rack = Rack::new(Firmware::default()).await;
    let key = rack.pinned();
    let mut scene = Scene { daemon: Some(rack.up(Some(&key))), rack, deaths: vec![] };
    let (mut one, mut known, mut passed) = (scene.connect().await, Known::default(), vec![]);
    for now in Step::ALL {
        if now == at {
            let call = step(now, &mut one, &mut known);
            let went = attempt(&scene.rack.world, &format!("{now:?}"), death, call).await;
            passed = went.passed;
            if let Some(point) = went.stopped {
                scene.daemon.take().unwrap().kill();
                scene.deaths.push(point);
                scene.daemon = Some(scene.rack.up(Some(&key)));
                one = scene.connect().await;
            }
        }
        scene.insist(now, &mut one, &mut known).await;
        scene.check(now, &mut one, &known).await;
    }
    let Scene { rack, daemon, deaths } = scene;
    assert_eq!((one.volumes().await, one.snapshots().await), (vec![], vec![]), "deaths at {deaths:?}");
    let left = (rack.device.slots(), rack.device.files());
    assert_eq!(left, (vec![], vec![]), "on the device after deaths at {deaths:?}");
    daemon.unwrap().stop_while_connected().await;
    (passed, deaths)
}

#[test]
fn a_volume_on_a_device_survives_a_death_at_every_point_of_its_life() {
    let (next, deaths) = (AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                // The device answers while this thread waits for the process.
                let runtime = tokio::runtime::Builder::new_multi_thread()
                    .worker_threads(1)
                    .enable_all()
                    .build()
                    .unwrap();
                while let Some(at) = Step::ALL.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let passed = runtime.block_on(live(*at, None)).0;
                    let commands = passed.iter().filter(|point| point.starts_with("rds.command")).count();
                    assert!(commands > 0, "{at:?} tells the device nothing: {passed:?}");
                    let mut total = 0;
                    for death in Death::each(passed) {
                        // What is put off may come now or later, so a point need not be passed again.
                        total += runtime.block_on(live(*at, Some(&death))).1.len();
                    }
                    println!("{at:?}: {total} deaths");
                    assert!(total >= commands, "{at:?}: only {total} deaths");
                    deaths.fetch_add(total, Ordering::Relaxed);
                }
            });
        }
    });
    say(&format!(
        "deaths of the real process survived by a volume on a simulated RouterOS device: {} in {} steps",
        deaths.into_inner(),
        Step::ALL.len()
    ));
}
