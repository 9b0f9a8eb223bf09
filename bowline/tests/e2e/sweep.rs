//! The life of a volume, ended by SIGKILL at every step that is persisted or seen from outside, and gone on with.
//!
//! The points are found, not listed: a step is lived through once, and then, for each point it passed, in another world
//! with a death there. At the end, every point that the sources name must have been a place of death.

use bowline_csi::wire;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tonic::{Code, Status};

use crate::death::{Attempt, Death, attempt};
use crate::{BOWLINE, can_mount};
use bowline_testkit::driver::{BLOCK, Driver, How, MIB, RWO, from_snapshot, from_volume};
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

/// A filesystem whose files belong to a group, and raw blocks.
const LIVES: [How; 2] = [How { group: "4321", ..RWO.fs("xfs") }, BLOCK];
const SIZE: i64 = 300 * MIB;
const LARGER: i64 = 320 * MIB;

async fn step(how: How, step: Step, one: &mut Driver, known: &mut Known) -> Result<(), Status> {
    let id = known.volume.volume_id.clone();
    match step {
        Step::Create => known.volume = one.create("swept", SIZE, how).await?,
        Step::Publish => known.context = one.publish(&known.volume, "worker-1", how, false).await?,
        Step::Stage => one.stage(&known.volume, &known.context, how).await?,
        Step::Expose => {
            known.seen = one.expose(&known.volume, &known.context, "pod", how, false).await?;
            // Synced: what a workload was told is on disk must survive everything below.
            let place = if how.block { known.seen.clone() } else { known.seen.join("file") };
            let file =
                fs::File::options().write(true).create(!how.block).truncate(false).open(place).unwrap();
            file.write_all_at(CONTENT, 0).unwrap();
            file.sync_all().unwrap();
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
            let clone = one.create_from("cloned", SIZE, how, from_volume(&id)).await?;
            known.clone = clone.volume_id;
        }
        Step::Restore => {
            let restored = one.create_from("restored", SIZE, how, from_snapshot(&known.snapshot)).await?;
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

/// The beginning of what a workload sees.
fn content(seen: &Path) -> Vec<u8> {
    let place = if seen.is_dir() { seen.join("file") } else { seen.to_owned() };
    let mut bytes = vec![0; CONTENT.len()];
    fs::File::open(place).unwrap().read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

/// One life with a death in the step `at`, or with none. The points that the step passed, and those where the process
/// died.
async fn live(how: How, at: Step, death: Option<&Death>) -> (Vec<String>, Vec<String>) {
    let world = World::on_filesystem(BOWLINE, "mkfs.xfs", 2 << 30);
    let mut scene = Scene { daemon: Some(world.up(&[])), world, how, deaths: vec![] };
    let mut one = scene.connect().await;
    let mut known = Known::default();
    let mut passed = vec![];
    for now in Step::ALL.into_iter().filter(|step| step.belongs_to(at)) {
        if how.block && now == Step::GrowHere && at != now {
            continue;
        }
        if now == at {
            passed = scene.attempt(now, death, &mut one, &mut known).await;
        }
        scene.insist(now, &mut one, &mut known).await;
        if (Step::Expose..Step::Hide).contains(&now) {
            assert_eq!(content(&known.seen), CONTENT, "after {now:?}, deaths at {:?}", scene.deaths);
        }
        if now == Step::Unpublish {
            check_copies(how, &mut one, &known).await;
        }
    }
    let Scene { world, daemon, deaths, .. } = scene;
    assert_eq!(one.volumes().await, [], "deaths at {deaths:?}");
    assert_eq!(one.snapshots().await, [], "deaths at {deaths:?}");
    assert_eq!(stored_bytes(&world), 0, "files are left after deaths at {deaths:?}");
    daemon.unwrap().stop_while_connected().await;
    world.assert_nothing_left();
    (passed, deaths)
}

struct Scene {
    world: World,
    daemon: Option<Daemon>,
    how: How,
    deaths: Vec<String>,
}

impl Scene {
    async fn connect(&self) -> Driver {
        Driver::connect(&self.world, self.daemon.as_ref().unwrap()).await
    }

    /// Does a step as a caller does who is told to ask again.
    async fn insist(&self, which: Step, one: &mut Driver, known: &mut Known) {
        let begun = Instant::now();
        loop {
            let Err(status) = step(self.how, which, one, known).await else { return };
            let again = matches!(
                status.code(),
                Code::Aborted | Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled
            );
            assert!(
                again && begun.elapsed() < PATIENCE,
                "{which:?}, deaths at {:?}: {status}\n{}",
                self.deaths,
                self.world.log("worker-1")
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Does a step once, with a death in it if that point is passed; starts again after it. What was passed meanwhile.
    async fn attempt(
        &mut self,
        now: Step,
        death: Option<&Death>,
        one: &mut Driver,
        known: &mut Known,
    ) -> Vec<String> {
        let call = step(self.how, now, one, known);
        let Attempt { passed, stopped } = attempt(&self.world, &format!("{now:?}"), death, call).await;
        if let Some(point) = stopped {
            self.daemon.take().unwrap().kill();
            self.deaths.push(point);
            self.daemon = Some(self.world.up(&[]));
            *one = self.connect().await;
        }
        passed
    }
}

async fn check_copies(how: How, one: &mut Driver, known: &Known) {
    for copy in [&known.clone, &known.restored].into_iter().filter(|copy| !copy.is_empty()) {
        let volume = wire::Volume { volume_id: copy.clone(), ..Default::default() };
        let mut controller = one.clone();
        let seen = one.attach_all(&mut controller, &volume, "check", how, false).await.unwrap();
        assert_eq!(content(&seen), CONTENT);
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

/// Points that no life passes, and why.
const ELSEWHERE: &[(&str, &str)] = &[
    ("host.settle.before", "erases what a mkfs left that was killed in the middle: host/tests/kernel"),
    ("host.settle.after", "the same"),
    ("rds.command.before", "a MikroTik device: rds_sweep.rs"),
    ("rds.command.after", "the same"),
    ("host.attach-behind.before", "a reader over NVMe/TCP: target/tests/nvmet"),
    ("host.attach-behind.after", "the same"),
    ("nvmet.step.before", "exports over NVMe/TCP: target/tests/nvmet/crash.rs"),
    ("nvmet.step.after", "the same"),
    ("target.closing-note.before", "the same"),
    ("target.closing-note.after", "the same"),
    ("host.nvme-connect.before", "a disk over NVMe/TCP: tests/vm/deaths.rs"),
    ("host.nvme-connect.after", "the same"),
    ("host.nvme-disconnect.before", "the same"),
    ("host.nvme-disconnect.after", "the same"),
    ("host.refuse-writes.before", "the same"),
    ("host.refuse-writes.after", "the same"),
    ("host.nvme-rescan.before", "the same"),
    ("host.nvme-rescan.after", "the same"),
    ("node.used.before", "the same"),
    ("node.used.after", "the same"),
    ("target.copy.before", "a copy where blocks cannot be shared: target/tests/file/copies.rs"),
    ("target.copy.after", "the same"),
    ("target.mark.before", "the same"),
    ("target.mark.after", "the same"),
    ("host.nvme-reset.before", "a connection that only counts as live: host/tests/nvme/connect.rs"),
    ("host.nvme-reset.after", "the same"),
];

/// Every death there is in a step: first it is lived through once, to learn the points.
async fn sweep(how: How, at: Step, deaths: &Mutex<BTreeMap<String, usize>>) -> usize {
    let mut total = 0;
    let mut count = |died: Vec<String>| {
        total += died.len();
        for point in died {
            *deaths.lock().unwrap().entry(point).or_default() += 1;
        }
    };
    for death in Death::each(live(how, at, None).await.0) {
        // What is put off may come now or later, so a point need not be passed again.
        count(live(how, at, Some(&death)).await.1);
    }
    total
}

#[test]
fn a_volume_survives_a_death_at_every_point_of_its_life() {
    if !can_mount("the sweep of deaths") {
        return;
    }
    let next = AtomicUsize::new(0);
    let work: Vec<(How, Step)> =
        LIVES.into_iter().flat_map(|how| Step::ALL.into_iter().map(move |step| (how, step))).collect();
    let deaths: Mutex<BTreeMap<String, usize>> = Mutex::default();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                while let Some((how, at)) = work.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let total = runtime.block_on(sweep(*how, *at, &deaths));
                    println!(
                        "{at:?} of {}: {total} deaths",
                        if how.block { "blocks" } else { "a filesystem" }
                    );
                }
            });
        }
    });
    let deaths = deaths.into_inner().unwrap();
    let elsewhere: BTreeSet<String> = ELSEWHERE.iter().map(|(point, _)| (*point).to_owned()).collect();
    let unswept: Vec<_> = named_points().into_iter().filter(|point| !deaths.contains_key(point)).collect();
    let unexplained: Vec<_> = unswept.iter().filter(|point| !elsewhere.contains(*point)).collect();
    assert_eq!(unexplained, [""; 0], "points where nobody died");
    say(&format!(
        "deaths of the real process survived: {} in {} steps of two volumes' lives, at {} points",
        deaths.values().sum::<usize>(),
        Step::ALL.len(),
        deaths.len()
    ));
}
