//! Many callers at once, all asking for anything: only legal answers, no two writers, nothing leaks, memory stays flat.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tonic::{Code, Status};

use crate::{BOWLINE, can_mount};
use bowline_testkit::driver::{BLOCK, Driver, MIB};
use bowline_testkit::world::World;
use bowline_testkit::{Dice, say};

const CALLERS: usize = 64;
const VOLUMES: u64 = 50;

#[derive(Default)]
struct Tally {
    codes: BTreeMap<String, u64>,
    illegal: BTreeSet<String>,
}

/// What each call may answer beside OK; everything else is a fault.
fn is_legal(call: &str, code: Code) -> bool {
    use Code::{
        Aborted, AlreadyExists, DeadlineExceeded, FailedPrecondition, NotFound, ResourceExhausted,
        Unavailable,
    };
    let waits = matches!(code, Aborted | DeadlineExceeded | Unavailable);
    waits
        || match call {
            "create" => matches!(code, AlreadyExists | ResourceExhausted),
            "delete" => code == FailedPrecondition,
            "publish" => matches!(code, NotFound | FailedPrecondition | AlreadyExists | ResourceExhausted),
            "stage" | "expose" => matches!(code, NotFound | FailedPrecondition | AlreadyExists),
            "unstage" => code == FailedPrecondition,
            "snapshot" => matches!(code, NotFound | AlreadyExists | ResourceExhausted),
            "grow" => matches!(code, NotFound | ResourceExhausted | FailedPrecondition),
            _ => false,
        }
}

async fn call(
    one: &mut Driver,
    dice: &mut Dice,
    known: &Mutex<BTreeMap<u64, bowline_csi::wire::Volume>>,
) -> (&'static str, Result<(), Status>) {
    let number = dice.below(VOLUMES);
    let volume = known.lock().unwrap().get(&number).cloned();
    let what = dice.below(12);
    let Some(volume) = volume.filter(|_| what != 0) else {
        let created = one.create(&format!("soak-{number}"), 4 * MIB, BLOCK).await;
        return ("create", created.map(|volume| drop(known.lock().unwrap().insert(number, volume))));
    };
    let id = volume.volume_id.clone();
    let node = if dice.below(2) == 0 { "worker-1" } else { "worker-2" };
    match what {
        1 => ("delete", one.delete(&id).await.map(|()| drop(known.lock().unwrap().remove(&number)))),
        2 | 3 => ("publish", one.publish(&volume, node, BLOCK, false).await.map(drop)),
        4 => ("unpublish", one.unpublish(&id, node).await),
        5 | 6 => {
            // What is published on worker-1 is staged and shown there.
            match one.publish(&volume, "worker-1", BLOCK, false).await {
                Err(status) => ("publish", Err(status)),
                Ok(context) => match one.stage(&volume, &context, BLOCK).await {
                    Err(status) => ("stage", Err(status)),
                    Ok(()) => ("expose", one.expose(&volume, &context, "pod", BLOCK, false).await.map(drop)),
                },
            }
        }
        7 => ("hide", one.hide(&id, "pod").await),
        8 => ("unstage", unstage(one, &id).await),
        9 => match one.snapshot(&format!("soak-{number}"), &id).await {
            Err(status) => ("snapshot", Err(status)),
            Ok(snapshot) => ("delete snapshot", one.delete_snapshot(&snapshot.snapshot_id).await),
        },
        10 => ("grow", one.grow(&id, (4 + dice.below(4) as i64) * MIB).await.map(drop)),
        _ => ("list", {
            one.volumes().await;
            Ok(())
        }),
    }
}

/// Without the kubelet's removal of the directory: another caller may just stage there.
async fn unstage(one: &mut Driver, id: &str) -> Result<(), Status> {
    let request = bowline_csi::wire::NodeUnstageVolumeRequest {
        volume_id: id.to_owned(),
        staging_target_path: bowline_testkit::driver::text(&one.staging(id)),
    };
    one.local.node_unstage_volume(request).await.map(drop)
}

#[tokio::test(flavor = "multi_thread")]
async fn sixty_four_callers_get_only_legal_answers() {
    if !can_mount("the soak") {
        return;
    }
    let seconds = std::env::var("BOWLINE_SOAK_SECONDS").map_or(120, |text| text.parse().unwrap());
    let world = World::new(BOWLINE);
    let daemon = world.up(&[]);
    let one = Driver::connect(&world, &daemon).await;
    let known = Arc::new(Mutex::new(BTreeMap::new()));
    let tally = Arc::new(Mutex::new(Tally::default()));
    let end = Instant::now() + Duration::from_secs(seconds);
    let half = Instant::now() + Duration::from_secs(seconds / 2);
    let callers: Vec<_> = (0..CALLERS as u64)
        .map(|number| {
            let (mut one, known, tally) = (one.clone(), Arc::clone(&known), Arc::clone(&tally));
            tokio::spawn(async move {
                let mut dice = Dice::new(0x5EED + number);
                while Instant::now() < end {
                    let (what, answer) = call(&mut one, &mut dice, &known).await;
                    let mut tally = tally.lock().unwrap();
                    let code = answer.as_ref().map_or_else(Status::code, |()| Code::Ok);
                    *tally.codes.entry(format!("{what} {code:?}")).or_default() += 1;
                    if let Err(status) = answer
                        && !is_legal(what, status.code())
                    {
                        tally.illegal.insert(format!("{what}: {:?}: {}", status.code(), status.message()));
                    }
                }
            })
        })
        .collect();
    tokio::time::sleep_until(half.into()).await;
    let memory_then = daemon.memory();
    for caller in callers {
        caller.await.unwrap();
    }
    let memory_now = daemon.memory();
    let tally = std::mem::take(&mut *tally.lock().unwrap());
    assert_eq!(tally.illegal, BTreeSet::new());
    // Twice as long must not mean noticeably more; allocators breathe.
    assert!(
        memory_now < memory_then + memory_then / 4 + (16 << 20),
        "memory grew from {memory_then} to {memory_now} bytes"
    );
    calm_down(one.clone()).await;
    let calls: u64 = tally.codes.values().sum();
    let answered =
        tally.codes.iter().filter(|(what, _)| what.ends_with(" Ok")).map(|(_, count)| count).sum::<u64>();
    assert!(answered * 5 > calls, "hardly anything was done: {:?}", tally.codes);
    daemon.stop_while_connected().await;
    for entry in std::fs::read_dir(world.path("stage")).unwrap() {
        std::fs::remove_dir(entry.unwrap().path()).unwrap();
    }
    world.assert_nothing_left();
    say(&format!(
        "soak: {CALLERS} callers on {VOLUMES} volumes for {seconds} s: {calls} calls, only legal answers, memory {} MB",
        memory_now >> 20
    ));
}

async fn calm_down(mut one: Driver) {
    for snapshot in one.snapshots().await {
        one.delete_snapshot(&snapshot.snapshot_id).await.unwrap();
    }
    for entry in one.volumes().await {
        let id = entry.volume.unwrap().volume_id;
        let writers = entry.status.map(|status| status.published_node_ids).unwrap_or_default();
        assert!(writers.len() <= 1, "{id} is let in to {writers:?}");
        one.hide(&id, "pod").await.unwrap();
        unstage(&mut one, &id).await.unwrap();
        one.unpublish(&id, "").await.unwrap();
        one.delete(&id).await.unwrap();
    }
    assert_eq!(one.volumes().await, []);
}
