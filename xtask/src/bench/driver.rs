//! The real process behind its socket, beside what the same would cost by hand.

use anyhow::{Context, Result};
use bowline_csi::wire;
use bowline_csi::wire::identity_client::IdentityClient;
use bowline_testkit::driver::{BLOCK, Driver, How, MIB, RWO, from_volume};
use bowline_testkit::world::{World, run};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

use super::attach::{bare, commit};
use super::{Row, median, ratio, scratch, shown};

/// The binary that was built beside this one.
pub(crate) fn binary() -> Result<PathBuf> {
    let beside = std::env::current_exe()?.with_file_name("bowline");
    anyhow::ensure!(beside.exists(), "{} is not built: cargo build --release -p bowline", beside.display());
    Ok(beside)
}

/// `ControllerPublishVolume` over the socket, beside one bare durable commit and an empty call.
pub(crate) fn publishing() -> Result<Vec<Row>> {
    Runtime::new()?.block_on(publish_and_unpublish())
}

/// Both as calls come, some time apart, and as fast as one caller can make them.
async fn publish_and_unpublish() -> Result<Vec<Row>> {
    let apart = publish_after("", Duration::from_millis(400), 40).await?;
    let at_once = publish_after(", back to back", Duration::ZERO, 100).await?;
    Ok(apart.into_iter().chain(at_once).collect())
}

async fn publish_after(how: &str, pause: Duration, count: usize) -> Result<Vec<Row>> {
    let world = World::new(binary()?);
    let daemon = world.up(&[]);
    let mut one = Driver::connect(&world, &daemon).await;
    let mut identity = IdentityClient::new(one.channel.clone());
    let directory = scratch()?;
    let bare = bare(&directory.path().join("bare")).await?;
    let bytes = vec![b'x'; 700];
    let (mut publishes, mut unpublishes, mut floors) = (vec![], vec![], vec![]);
    for n in 0..count {
        let volume = one.create(&format!("bench-{n}"), MIB, BLOCK).await?;
        tokio::time::sleep(pause).await;
        let begin = Instant::now();
        identity.probe(wire::ProbeRequest {}).await?;
        let call = begin.elapsed();
        floors.push(call + commit(&bare, &volume.volume_id, &bytes)?);
        tokio::time::sleep(pause).await;
        let begin = Instant::now();
        one.publish(&volume, "worker-1", BLOCK, false).await?;
        publishes.push(begin.elapsed());
        tokio::time::sleep(pause).await;
        let begin = Instant::now();
        one.unpublish(&volume.volume_id, "worker-1").await?;
        unpublishes.push(begin.elapsed());
    }
    let floor = median(floors);
    let row = |what: &str, times: Vec<Duration>, goal| {
        let time = median(times);
        let beside = format!("one bare commit and an empty call: {}", shown(floor));
        Row { what: what.to_owned(), measured: shown(time), beside, ratio: Some(ratio(time, floor)), goal }
    };
    Ok(vec![
        row(&format!("`ControllerPublishVolume` over the socket{how}"), publishes, Some(1.5)),
        row(&format!("`ControllerUnpublishVolume` over the socket{how}"), unpublishes, None),
    ])
}

/// Staging and publishing a fresh volume, beside losetup, mkfs, mount and a bind mount by hand.
pub(crate) fn staging() -> Result<Vec<Row>> {
    Runtime::new()?.block_on(stage_and_publish())
}

async fn stage_and_publish() -> Result<Vec<Row>> {
    let mut rows = vec![];
    for (fs, mebibytes) in [("ext4", 64), ("xfs", 320)] {
        let how = RWO.fs(fs);
        let world = World::new(binary()?);
        let daemon = world.up(&[]);
        let mut one = Driver::connect(&world, &daemon).await;
        let (mut driver, mut hand) = (vec![], vec![]);
        for n in 0..15 {
            driver.push(by_driver(&mut one, &format!("bench-{n}"), mebibytes * MIB, how).await?);
            hand.push(by_hand(&world, fs, mebibytes * MIB)?);
        }
        let (driver, hand) = (median(driver), median(hand));
        rows.push(Row {
            what: format!("stage and publish a fresh {fs} volume"),
            measured: shown(driver),
            beside: format!("losetup, mkfs, mount, bind by hand: {}", shown(hand)),
            ratio: Some(ratio(driver, hand)),
            goal: Some(1.15),
        });
    }
    Ok(rows)
}

async fn by_driver(one: &mut Driver, name: &str, bytes: i64, how: How) -> Result<Duration> {
    let mut controller = one.clone();
    let volume = one.create(name, bytes, how).await?;
    let context = controller.publish(&volume, "worker-1", how, false).await?;
    let begin = Instant::now();
    one.stage(&volume, &context, how).await?;
    one.expose(&volume, &context, "pod", how, false).await?;
    let time = begin.elapsed();
    one.detach_all(&mut controller, &volume.volume_id, "pod").await?;
    one.delete(&volume.volume_id).await?;
    Ok(time)
}

fn by_hand(world: &World, fs: &str, bytes: i64) -> Result<Duration> {
    let (image, stage, pod) =
        (world.path("by-hand.img"), world.path("by-hand-stage"), world.path("by-hand-pod"));
    std::fs::File::create(&image)?.set_len(u64::try_from(bytes)?)?;
    for place in [&stage, &pod] {
        std::fs::create_dir_all(place)?;
    }
    let begin = Instant::now();
    let device = output("losetup", &["-f".as_ref(), "--show".as_ref(), "--direct-io=on".as_ref(), &image])?;
    run(&format!("mkfs.{fs}"), ["-q", &device]);
    run("mount", [Path::new(&device), &stage]);
    run("mount", [Path::new("--bind"), &stage, &pod]);
    let time = begin.elapsed();
    run("umount", [&pod]);
    run("umount", [&stage]);
    run("losetup", ["-d", &device]);
    Ok(time)
}

fn output(program: &str, arguments: &[&Path]) -> Result<String> {
    let output = Command::new(program).args(arguments).output()?;
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

/// Snapshots and clones share blocks: what they cost must not depend on how large the volume is.
pub(crate) fn copying() -> Result<Vec<Row>> {
    Runtime::new()?.block_on(copy())
}

async fn copy() -> Result<Vec<Row>> {
    let world = World::on_filesystem(binary()?, "mkfs.xfs", 110 << 30);
    let daemon = world.up(&["--overcommit", "4"]);
    let mut one = Driver::connect(&world, &daemon).await;
    let sizes = [1_i64 << 30, 100 << 30];
    let mut volumes = vec![];
    for bytes in sizes {
        volumes.push(one.create(&format!("of-{bytes}"), bytes, BLOCK).await?);
    }
    let mut snapshots = [vec![], vec![]];
    let mut clones = [vec![], vec![]];
    for n in 0..15 {
        for (which, volume) in volumes.iter().enumerate() {
            let id = &volume.volume_id;
            let begin = Instant::now();
            let snapshot = one.snapshot(&format!("snapshot-{which}-{n}"), id).await?;
            snapshots[which].push(begin.elapsed());
            let begin = Instant::now();
            let clone =
                one.create_from(&format!("clone-{which}-{n}"), sizes[which], BLOCK, from_volume(id)).await?;
            clones[which].push(begin.elapsed());
            one.delete_snapshot(&snapshot.snapshot_id).await?;
            one.delete(&clone.volume_id).await?;
        }
    }
    let row = |what: &str, [small, large]: [Vec<Duration>; 2]| {
        let (small, large) = (median(small), median(large));
        Row {
            what: format!("{what} of 100 GiB, sparse, on xfs"),
            measured: shown(large),
            beside: format!("of 1 GiB: {}", shown(small)),
            ratio: Some(ratio(large, small)),
            goal: Some(1.2),
        }
    };
    Ok(vec![row("snapshot", snapshots), row("clone", clones)])
}

/// A listing of ten thousand volumes, page by page.
pub(crate) fn listing() -> Result<Vec<Row>> {
    Runtime::new()?.block_on(list())
}

async fn list() -> Result<Vec<Row>> {
    let world = World::new(binary()?);
    let daemon = world.up(&["--overcommit", "1000"]);
    let one = Driver::connect(&world, &daemon).await;
    let mut making = tokio::task::JoinSet::new();
    for part in 0..50 {
        let mut one = one.clone();
        making.spawn(async move {
            for n in 0..200 {
                one.create(&format!("listed-{part}-{n}"), MIB, BLOCK).await?;
            }
            Ok::<_, tonic::Status>(())
        });
    }
    while let Some(made) = making.join_next().await {
        made??;
    }
    let mut controller = one.controller.clone();
    let mut times = vec![];
    for _ in 0..5 {
        let begin = Instant::now();
        let (mut seen, mut token) = (0, String::new());
        loop {
            let request = wire::ListVolumesRequest { max_entries: 0, starting_token: token };
            let page = controller.list_volumes(request).await?.into_inner();
            seen += page.entries.len();
            token = page.next_token;
            if token.is_empty() {
                break;
            }
        }
        anyhow::ensure!(seen == 10_000, "{seen} volumes listed");
        times.push(begin.elapsed());
    }
    let time = median(times);
    let each = time.checked_div(10_000).context("ten thousand is not zero")?;
    let beside = format!("{} a volume; memory {} MB", shown(each), daemon.memory() >> 20);
    Ok(vec![Row {
        what: "listing 10,000 volumes".to_owned(),
        measured: shown(time),
        beside,
        ratio: None,
        goal: None,
    }])
}
