//! The life of a volume, ended by SIGKILL at every step that is persisted or seen from outside, and gone on with.
//!
//! The points are found, not listed: while a step of the life runs, the process is stopped at the first point it passes,
//! then (in another world) at the second, and so on until the step gets through. At the end, every point that
//! the sources name must have been a place of death.

use bowline_csi::wire;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;
use tonic::{Code, Status};

use crate::{BOWLINE, can_mount, read};
use bowline_testkit::driver::{Driver, How, MIB, RWO, from_snapshot, from_volume};
use bowline_testkit::say;
use bowline_testkit::world::{Daemon, PATIENCE, World};

/// What a volume goes through. The order is that of the life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    Create,
    Publish,
    Stage,
    Expose,
    Snapshot,
    Group,
    Clone,
    Restore,
    Grow,
    GrowHere,
    Modify,
    Hide,
    Unstage,
    Unpublish,
    DeleteGroup,
    DeleteSnapshot,
    DeleteClone,
    DeleteRestored,
    Delete,
}

impl Step {
    const ALL: [Step; 19] = [
        Step::Create,
        Step::Publish,
        Step::Stage,
        Step::Expose,
        Step::Snapshot,
        Step::Group,
        Step::Clone,
        Step::Restore,
        Step::Grow,
        Step::GrowHere,
        Step::Modify,
        Step::Hide,
        Step::Unstage,
        Step::Unpublish,
        Step::DeleteGroup,
        Step::DeleteSnapshot,
        Step::DeleteClone,
        Step::DeleteRestored,
        Step::Delete,
    ];
}

impl Step {
    /// Whether a life with a death in `at` has this step: what every volume goes through, and what `at` needs before it
    /// or leaves behind.
    fn belongs_to(self, at: Step) -> bool {
        match self {
            Step::Create | Step::Publish | Step::Stage | Step::Expose => true,
            Step::Hide | Step::Unstage | Step::Unpublish | Step::Delete => true,
            Step::Grow => matches!(at, Step::Grow | Step::GrowHere),
            Step::GrowHere | Step::Modify => at == self,
            Step::Group | Step::DeleteGroup => matches!(at, Step::Group | Step::DeleteGroup),
            Step::Clone | Step::DeleteClone => matches!(at, Step::Clone | Step::DeleteClone),
            Step::Restore | Step::DeleteRestored => matches!(at, Step::Restore | Step::DeleteRestored),
            Step::Snapshot | Step::DeleteSnapshot => {
                matches!(at, Step::Snapshot | Step::DeleteSnapshot | Step::Restore | Step::DeleteRestored)
            }
        }
    }
}

/// What a caller knows: the answers it got.
#[derive(Clone, Default)]
struct Known {
    volume: wire::Volume,
    context: std::collections::HashMap<String, String>,
    seen: PathBuf,
    snapshot: String,
    group: (String, Vec<String>),
    clone: String,
    restored: String,
}

const HOW: How = RWO.fs("xfs");
const SIZE: i64 = 300 * MIB;
const LARGER: i64 = 320 * MIB;

async fn step(step: Step, one: &mut Driver, known: &mut Known) -> Result<(), Status> {
    let id = known.volume.volume_id.clone();
    match step {
        Step::Create => known.volume = one.create("swept", SIZE, HOW).await?,
        Step::Publish => known.context = one.publish(&known.volume, "worker-1", HOW, false).await?,
        Step::Stage => one.stage(&known.volume, &known.context, HOW).await?,
        Step::Expose => {
            known.seen = one.expose(&known.volume, &known.context, "pod", HOW, false).await?;
            // Synced: what a workload was told is on disk must survive everything below.
            fs::write(known.seen.join("file"), CONTENT).unwrap();
            fs::File::open(known.seen.join("file")).unwrap().sync_all().unwrap();
        }
        Step::Snapshot => known.snapshot = one.snapshot("moment", &id).await?.snapshot_id,
        Step::Group => {
            let request = wire::CreateVolumeGroupSnapshotRequest {
                name: "moments".to_owned(),
                source_volume_ids: vec![id],
                ..Default::default()
            };
            let group =
                one.groups.create_volume_group_snapshot(request).await?.into_inner().group_snapshot.unwrap();
            let members = group.snapshots.into_iter().map(|snapshot| snapshot.snapshot_id).collect();
            known.group = (group.group_snapshot_id, members);
        }
        Step::Clone => {
            let clone = one.create_from("cloned", SIZE, HOW, from_volume(&id)).await?;
            known.clone = clone.volume_id;
        }
        Step::Restore => {
            let restored = one.create_from("restored", SIZE, HOW, from_snapshot(&known.snapshot)).await?;
            known.restored = restored.volume_id;
        }
        Step::Grow => assert_eq!(one.grow(&id, LARGER).await?, LARGER),
        Step::GrowHere => assert_eq!(one.grow_here(&id, "pod", LARGER).await?, LARGER),
        Step::Modify => {
            let request = wire::ControllerModifyVolumeRequest {
                volume_id: id,
                mutable_parameters: [("discard".to_owned(), "true".to_owned())].into(),
                ..Default::default()
            };
            one.controller.controller_modify_volume(request).await?;
        }
        Step::Hide => one.hide(&id, "pod").await?,
        Step::Unstage => one.unstage(&id).await?,
        Step::Unpublish => one.unpublish(&id, "worker-1").await?,
        Step::DeleteGroup => {
            let (group_snapshot_id, snapshot_ids) = known.group.clone();
            let request = wire::DeleteVolumeGroupSnapshotRequest {
                group_snapshot_id,
                snapshot_ids,
                ..Default::default()
            };
            one.groups.delete_volume_group_snapshot(request).await?;
        }
        Step::DeleteSnapshot => one.delete_snapshot(&known.snapshot).await?,
        Step::DeleteClone => one.delete(&known.clone).await?,
        Step::DeleteRestored => one.delete(&known.restored).await?,
        Step::Delete => one.delete(&id).await?,
    }
    Ok(())
}

const CONTENT: &[u8] = b"what was written before";

/// Does a step as a caller does who is told to ask again.
async fn insist(which: Step, one: &mut Driver, known: &mut Known, world: &World) {
    let begun = Instant::now();
    loop {
        let Err(status) = step(which, one, known).await else { return };
        let again = matches!(
            status.code(),
            Code::Aborted | Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled
        );
        assert!(again && begun.elapsed() < PATIENCE, "{which:?}: {status}\n{}", world.log("worker-1"));
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

/// One life with one death: in the step `at`, at the point after `skip` others. The point's name, if it came to that.
async fn live(at: Step, skip: usize) -> Option<String> {
    let world = World::on_filesystem(BOWLINE, "mkfs.xfs", 2 << 30);
    let mut daemon = world.up(&[]);
    let mut one = Driver::connect(&world, &daemon).await;
    let mut known = Known::default();
    let mut died = None;
    for now in Step::ALL.into_iter().filter(|step| step.belongs_to(at)) {
        if now == at {
            let (next, point) = die_in(now, skip, &world, daemon, &mut one, &mut known).await;
            daemon = next;
            if point.is_some() {
                one = Driver::connect(&world, &daemon).await;
                insist(now, &mut one, &mut known, &world).await;
            }
            died = point;
        } else {
            insist(now, &mut one, &mut known, &world).await;
        }
        if (Step::Expose..Step::Hide).contains(&now) {
            assert_eq!(read(&known.seen.join("file")), CONTENT, "after {now:?}, death at {died:?}");
        }
        if now == Step::Unpublish {
            check_copies(&mut one, &known).await;
        }
    }
    assert_eq!(one.volumes().await, [], "death at {died:?}");
    assert_eq!(one.snapshots().await, [], "death at {died:?}");
    assert_eq!(stored_bytes(&world), 0, "files are left after death at {died:?}");
    daemon.stop();
    world.assert_nothing_left();
    died
}

async fn die_in(
    now: Step,
    skip: usize,
    world: &World,
    daemon: Daemon,
    one: &mut Driver,
    known: &mut Known,
) -> (Daemon, Option<String>) {
    let (arm, stopped) = (world.path("failpoints/arm"), world.path("failpoints/stopped"));
    fs::write(&arm, skip.to_string()).unwrap();
    let begun = Instant::now();
    let answer = {
        let call = step(now, one, known);
        tokio::pin!(call);
        loop {
            tokio::select! {
                biased;
                answer = &mut call => break Some(answer),
                () = tokio::time::sleep(std::time::Duration::from_millis(3)) => {}
            }
            if stopped.exists() {
                break None;
            }
            assert!(begun.elapsed() < PATIENCE, "{now:?} neither ends nor stops\n{}", world.log("worker-1"));
        }
    };
    let _ = fs::remove_file(&arm);
    if let (Some(answer), false) = (&answer, stopped.exists()) {
        assert!(answer.is_ok(), "{now:?}: {answer:?}");
        return (daemon, None);
    }
    let point = fs::read_to_string(&stopped).unwrap();
    daemon.kill();
    fs::remove_file(&stopped).unwrap();
    (world.up(&[]), Some(point))
}

async fn check_copies(one: &mut Driver, known: &Known) {
    for copy in [&known.clone, &known.restored].into_iter().filter(|copy| !copy.is_empty()) {
        let volume = wire::Volume { volume_id: copy.clone(), ..Default::default() };
        let mut controller = one.clone();
        let seen = one.attach_all(&mut controller, &volume, "check", HOW, false).await.unwrap();
        assert_eq!(read(&seen.join("file")), CONTENT);
        one.detach_all(&mut controller, copy, "check").await.unwrap();
    }
}

/// Bytes of volumes and snapshots that are stored: large files below the data directory.
fn stored_bytes(world: &World) -> u64 {
    fn walk(directory: &Path, found: &mut u64) {
        for entry in fs::read_dir(directory).unwrap().map(Result::unwrap) {
            let status = entry.metadata().unwrap();
            if status.is_dir() {
                walk(&entry.path(), found);
            } else if status.len() >= SIZE as u64 {
                *found += status.len();
            }
        }
    }
    let mut found = 0;
    walk(&world.path("data"), &mut found);
    found
}

/// Every point that the sources name.
fn named_points() -> BTreeSet<String> {
    fn walk(directory: &Path, points: &mut BTreeSet<String>) {
        for entry in fs::read_dir(directory).unwrap().map(Result::unwrap) {
            let path = entry.path();
            if path.is_dir() {
                walk(&path, points);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let source = fs::read_to_string(&path).unwrap();
                let named = source.split("pass(\"").skip(1).filter_map(|rest| rest.split('"').next());
                points.extend(named.filter(|name| name.contains('.')).map(str::to_owned));
            }
        }
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut points = BTreeSet::new();
    for crate_dir in fs::read_dir(root.join("crates")).unwrap().map(Result::unwrap) {
        walk(&crate_dir.path().join("src"), &mut points);
    }
    walk(&root.join("bowline/src"), &mut points);
    points
}

/// Points that this life does not pass, and why.
const ELSEWHERE: &[(&str, &str)] = &[];

#[test]
fn a_volume_survives_a_death_at_every_point_of_its_life() {
    if !can_mount("the sweep of deaths") {
        return;
    }
    let next = AtomicUsize::new(0);
    let deaths: Mutex<BTreeMap<String, usize>> = Mutex::default();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                while let Some(at) = Step::ALL.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let begun = Instant::now();
                    for skip in 0.. {
                        let Some(point) = runtime.block_on(live(*at, skip)) else {
                            println!("{at:?}: {skip} deaths in {:?}", begun.elapsed());
                            break;
                        };
                        *deaths.lock().unwrap().entry(point).or_default() += 1;
                    }
                }
            });
        }
    });
    let deaths = deaths.into_inner().unwrap();
    let elsewhere: BTreeSet<String> = ELSEWHERE.iter().map(|(point, _)| (*point).to_owned()).collect();
    let survived: BTreeSet<String> = deaths.keys().cloned().collect();
    let unswept: Vec<_> = named_points().into_iter().filter(|point| !survived.contains(point)).collect();
    let unexplained: Vec<_> = unswept.iter().filter(|point| !elsewhere.contains(*point)).collect();
    assert_eq!(unexplained, [""; 0], "points where nobody died");
    let total: usize = deaths.values().sum();
    say(&format!(
        "deaths of the real process survived: {total} in {} steps of a volume's life, at {} points",
        Step::ALL.len(),
        survived.len()
    ));
}
