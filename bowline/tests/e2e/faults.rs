//! What goes wrong around a running driver, row by row, against the real process.

use bowline_csi::wire;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::time::Duration;
use tonic::{Code, Request, Status};

use crate::{BOWLINE, can_mount, read};
use bowline_testkit::driver::{BLOCK, Driver, MIB, RWO, refusal, text};
use bowline_testkit::world::{Daemon, World, mounts_below, run, wait_until};

struct Scene {
    world: World,
    daemon: Daemon,
    one: Driver,
}

async fn scene() -> Scene {
    let world = World::new(BOWLINE);
    let daemon = world.up(&[]);
    let one = Driver::connect(&world, &daemon).await;
    Scene { world, daemon, one }
}

async fn attached(scene: &mut Scene, name: &str) -> (wire::Volume, PathBuf) {
    let volume = scene.one.create(name, 32 * MIB, RWO).await.unwrap();
    let mut controller = scene.one.clone();
    let seen = scene.one.attach_all(&mut controller, &volume, "pod", RWO, false).await.unwrap();
    fs::write(seen.join("file"), "content").unwrap();
    fs::File::open(seen.join("file")).unwrap().sync_all().unwrap();
    (volume, seen)
}

async fn put_away(scene: &mut Scene, volume: &wire::Volume) {
    let mut controller = scene.one.clone();
    scene.one.detach_all(&mut controller, &volume.volume_id, "pod").await.unwrap();
    scene.one.delete(&volume.volume_id).await.unwrap();
    scene.world.assert_nothing_left();
}

fn asks_again(status: &Status) -> bool {
    matches!(status.code(), Code::Aborted | Code::DeadlineExceeded | Code::Unavailable | Code::Cancelled)
}

#[tokio::test]
async fn two_publishes_at_once_give_one_context_and_two_nodes_one_winner() {
    let mut scene = scene().await;
    let volume = scene.one.create("raced", 8 * MIB, BLOCK).await.unwrap();
    let (mut left, mut right) = (scene.one.clone(), scene.one.clone());
    let (first, second) = tokio::join!(
        left.publish(&volume, "worker-1", BLOCK, false),
        right.publish(&volume, "worker-1", BLOCK, false)
    );
    let contexts: Vec<_> = [first, second]
        .into_iter()
        .filter_map(|answer| match answer {
            Ok(context) => Some(context),
            Err(status) => {
                assert_eq!(status.code(), Code::Aborted, "{status}");
                None
            }
        })
        .collect();
    assert!(!contexts.is_empty() && contexts.iter().all(|context| *context == contexts[0]));
    scene.one.unpublish(&volume.volume_id, "worker-1").await.unwrap();
    let (one, two) = tokio::join!(
        left.publish(&volume, "worker-1", BLOCK, false),
        right.publish(&volume, "worker-2", BLOCK, false)
    );
    let refused: Vec<Code> =
        [one, two].into_iter().filter_map(|answer| answer.err().map(|status| status.code())).collect();
    assert_eq!(refused, [Code::FailedPrecondition]);
}

#[tokio::test]
async fn what_is_in_use_is_neither_deleted_nor_unstaged() {
    if !can_mount("delete while published") {
        return;
    }
    let mut scene = scene().await;
    let (volume, seen) = attached(&mut scene, "used").await;
    let (code, why) = refusal(scene.one.delete(&volume.volume_id).await);
    assert_eq!(code, Code::FailedPrecondition);
    assert!(why.contains("worker-1"), "{why}");
    let (code, why) = refusal(scene.one.unstage(&volume.volume_id).await);
    assert_eq!(code, Code::FailedPrecondition);
    assert!(why.contains(&text(&seen)), "{why}");
    assert_eq!(read(&seen.join("file")), b"content");
    put_away(&mut scene, &volume).await;
}

#[tokio::test]
async fn an_unpublish_of_what_is_not_there_is_done() {
    let mut scene = scene().await;
    let volume = scene.one.create("quiet", 8 * MIB, BLOCK).await.unwrap();
    for (volume, node) in [
        ("nothing", "worker-1"),
        (&volume.volume_id, "worker-2"),
        (&volume.volume_id, "nobody"),
        (&volume.volume_id, ""),
    ] {
        scene.one.unpublish(volume, node).await.unwrap_or_else(|status| panic!("{volume} {node}: {status}"));
    }
    assert_eq!(refusal(scene.one.publish(&volume, "nobody", BLOCK, false).await).0, Code::NotFound);
}

#[tokio::test]
async fn work_goes_on_when_its_caller_stops_waiting() {
    if !can_mount("deadline in the middle of mkfs") {
        return;
    }
    let mut scene = scene().await;
    let volume = scene.one.create("slow", 32 * MIB, RWO).await.unwrap();
    let context = scene.one.publish(&volume, "worker-1", RWO, false).await.unwrap();
    let staging = scene.one.staging(&volume.volume_id);
    fs::create_dir_all(&staging).unwrap();
    let mut request = Request::new(wire::NodeStageVolumeRequest {
        volume_id: volume.volume_id.clone(),
        publish_context: context.clone(),
        staging_target_path: text(&staging),
        volume_capability: Some(RWO.capability()),
        ..Default::default()
    });
    request.set_timeout(Duration::from_millis(5));
    let gone = scene.one.local.node_stage_volume(request).await.unwrap_err();
    assert!(asks_again(&gone), "{gone}");
    // Nobody asked again, and it is staged all the same.
    wait_until("the mount", || (!mounts_below(&text(&staging)).is_empty()).then_some(()));
    loop {
        match scene.one.stage(&volume, &context, RWO).await {
            Ok(()) => break,
            Err(status) => assert!(asks_again(&status), "{status}"),
        }
    }
    assert_eq!(mounts_below(&text(&staging)).len(), 1, "mounts never stack");
    scene.one.unstage(&volume.volume_id).await.unwrap();
    scene.one.unpublish(&volume.volume_id, "worker-1").await.unwrap();
    scene.one.delete(&volume.volume_id).await.unwrap();
    scene.world.assert_nothing_left();
}

#[tokio::test]
async fn after_a_reboot_it_is_staged_again_whatever_its_device_is_called_now() {
    if !can_mount("reboot") {
        return;
    }
    let mut scene = scene().await;
    let (volume, seen) = attached(&mut scene, "rebooted").await;
    let Scene { world, daemon, .. } = scene;
    daemon.kill();
    // What a reboot takes away: mounts and devices. The pods' directories stay.
    let inside = text(world.dir.path());
    let mut mounts = mounts_below(&inside);
    mounts.reverse();
    for at in mounts {
        run("umount", [at]);
    }
    for line in bowline_testkit::world::loops_below(&inside) {
        run("losetup", ["-d", line.split(' ').next().unwrap()]);
    }
    // And another disk takes the name that the device had.
    let decoy = world.path("decoy");
    fs::File::create(&decoy).unwrap().set_len(1 << 20).unwrap();
    run("losetup", ["-f".as_ref(), decoy.as_os_str()]);
    let daemon = world.up(&[]);
    let one = Driver::connect(&world, &daemon).await;
    let mut scene = Scene { world, daemon, one };
    let mut controller = scene.one.clone();
    let again = scene.one.attach_all(&mut controller, &volume, "pod", RWO, false).await.unwrap();
    assert_eq!((again.clone(), read(&again.join("file"))), (seen, b"content".to_vec()));
    for line in bowline_testkit::world::loops_below(&text(&decoy)) {
        run("losetup", ["-d", line.split(' ').next().unwrap()]);
    }
    put_away(&mut scene, &volume).await;
}

#[tokio::test]
async fn mounts_survive_a_death_and_a_stop_of_the_driver_under_load() {
    if !can_mount("restart under load") {
        return;
    }
    let mut scene = scene().await;
    let (volume, seen) = attached(&mut scene, "loaded").await;
    for round in 0..4 {
        fs::write(seen.join(format!("round-{round}")), vec![round; 1 << 20]).unwrap();
        let Scene { world, daemon, .. } = scene;
        if round % 2 == 0 {
            daemon.kill();
        } else {
            daemon.stop_while_connected().await;
        }
        fs::write(seen.join("while-away"), [round]).unwrap();
        let daemon = world.up(&[]);
        let one = Driver::connect(&world, &daemon).await;
        scene = Scene { world, daemon, one };
        // The kubelet replays what it asked before.
        let mut controller = scene.one.clone();
        scene.one.attach_all(&mut controller, &volume, "pod", RWO, false).await.unwrap();
        assert_eq!(mounts_below(&text(&seen)).len(), 1, "mounts never stack");
        assert_eq!(read(&seen.join(format!("round-{round}"))), vec![round; 1 << 20]);
    }
    put_away(&mut scene, &volume).await;
}

#[tokio::test]
async fn a_target_that_cannot_remember_the_end_of_a_grant_keeps_it() {
    if !can_mount("target that cannot be written") {
        return;
    }
    let world = World::on_filesystem(BOWLINE, "mkfs.ext4", 512 << 20);
    let daemon = world.up(&[]);
    let mut one = Driver::connect(&world, &daemon).await;
    let volume = one.create("stuck", 8 * MIB, BLOCK).await.unwrap();
    one.publish(&volume, "worker-1", BLOCK, false).await.unwrap();
    // Not even root writes what is immutable.
    run("chattr", ["-R".as_ref(), "+i".as_ref(), world.path("data/volumes").as_os_str()]);
    let mut request = Request::new(wire::ControllerUnpublishVolumeRequest {
        volume_id: volume.volume_id.clone(),
        node_id: "worker-1".to_owned(),
        ..Default::default()
    });
    request.set_timeout(Duration::from_secs(2));
    let kept = one.controller.controller_unpublish_volume(request).await.unwrap_err();
    assert!(asks_again(&kept), "{kept}");
    let (code, why) = refusal(one.publish(&volume, "worker-2", BLOCK, false).await);
    run("chattr", ["-R".as_ref(), "-i".as_ref(), world.path("data/volumes").as_os_str()]);
    assert_ne!(code, Code::Ok, "{why}");
    // It goes on by itself once the target can be written; worker-2's wish stayed in the queue and is taken back too.
    loop {
        match one.unpublish(&volume.volume_id, "").await {
            Ok(()) => break,
            Err(status) => assert!(asks_again(&status), "{status}"),
        }
    }
    one.delete(&volume.volume_id).await.unwrap();
    daemon.stop_while_connected().await;
    world.assert_nothing_left();
}

#[tokio::test]
async fn a_full_target_says_so_and_keeps_nothing() {
    if !can_mount("full target") {
        return;
    }
    let world = World::on_filesystem(BOWLINE, "mkfs.ext4", 256 << 20);
    let daemon = world.up(&[]);
    let mut one = Driver::connect(&world, &daemon).await;
    let before = used(&world);
    let (code, why) = refusal(one.create("huge", 1 << 40, BLOCK).await);
    assert_eq!(code, Code::ResourceExhausted);
    assert!(why.contains("room"), "{why}");
    assert_eq!(one.volumes().await, []);
    let mut made = vec![];
    for number in 0.. {
        match one.create(&format!("part-{number}"), 32 * MIB, BLOCK).await {
            Ok(volume) => made.push(volume),
            Err(status) => {
                assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
                break;
            }
        }
    }
    assert!((3..8).contains(&made.len()), "{} volumes of 32 MiB in 256 MiB", made.len());
    let (code, _) = refusal(one.grow(&made[0].volume_id, 1 << 40).await);
    assert_eq!(code, Code::ResourceExhausted);
    for volume in made {
        one.delete(&volume.volume_id).await.unwrap();
    }
    daemon.stop_while_connected().await;
    assert!(used(&world) <= before + (8 << 20), "room was leaked: {} before, {} after", before, used(&world));
}

fn used(world: &World) -> u64 {
    let output = std::process::Command::new("df")
        .args(["-B1", "--output=used"])
        .arg(world.path("data"))
        .output()
        .unwrap();
    String::from_utf8(output.stdout).unwrap().lines().nth(1).unwrap().trim().parse().unwrap()
}

#[tokio::test]
async fn a_mount_that_vanished_is_reported_and_mended_at_the_next_publish() {
    if !can_mount("stale mount") {
        return;
    }
    let mut scene = scene().await;
    let (volume, seen) = attached(&mut scene, "stale").await;
    let staging = scene.one.staging(&volume.volume_id);
    run("umount", [&seen]);
    run("umount", [&staging]);
    let request = wire::NodeGetVolumeStatsRequest {
        volume_id: volume.volume_id.clone(),
        volume_path: text(&seen),
        staging_target_path: text(&staging),
    };
    let status = scene.one.local.node_get_volume_stats(request).await.unwrap_err();
    assert!(status.message().contains("not mounted at"), "{status}");
    let mut controller = scene.one.clone();
    let context = controller.publish(&volume, "worker-1", RWO, false).await.unwrap();
    scene.one.expose(&volume, &context, "pod", RWO, false).await.unwrap();
    assert_eq!(read(&seen.join("file")), b"content");
    put_away(&mut scene, &volume).await;
}

#[tokio::test]
async fn damaged_staging_records_never_lead_to_the_wrong_volume() {
    if !can_mount("staging metadata") {
        return;
    }
    for damage in [
        "",
        "{",
        "{\"version\":999,\"record\":{}}",
        "\0\0\0\0",
        "{\"version\":1,\"record\":{\"volume\":\"another\"}}",
    ] {
        let mut scene = scene().await;
        let (volume, seen) = attached(&mut scene, "damaged").await;
        let records = staging_records(&scene.world);
        assert_eq!(records.len(), 1, "{records:?}");
        fs::write(&records[0], damage).unwrap();
        // Either it is made good from what the kernel says, or it is a clear error; the mount is left alone.
        let mut controller = scene.one.clone();
        let answer = scene.one.attach_all(&mut controller, &volume, "pod", RWO, false).await;
        if let Err(status) = &answer {
            assert!(status.message().contains(&text(&records[0])), "{damage:?}: {status}");
        }
        assert_eq!(read(&seen.join("file")), b"content", "{damage:?}");
        fs::remove_file(&records[0]).ok();
        scene
            .one
            .attach_all(&mut controller, &volume, "pod", RWO, false)
            .await
            .expect("a missing record is derived");
        put_away(&mut scene, &volume).await;
    }
}

fn staging_records(world: &World) -> Vec<PathBuf> {
    fn walk(directory: PathBuf, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(directory).unwrap().map(Result::unwrap) {
            if entry.metadata().unwrap().is_dir() {
                walk(entry.path(), found);
            } else if entry.path().extension().is_some_and(|extension| extension == "json") {
                found.push(entry.path());
            }
        }
    }
    let mut found = vec![];
    walk(world.path("data/node"), &mut found);
    found
}

#[tokio::test]
async fn paths_and_ids_that_lead_elsewhere_are_refused() {
    let mut scene = scene().await;
    let volume = scene.one.create("plain", 8 * MIB, BLOCK).await.unwrap();
    let context = scene.one.publish(&volume, "worker-1", BLOCK, false).await.unwrap();
    for bad in ["../../etc", "a^b", "a\nb", "a/b", "..", "$(reboot)/x"] {
        let (code, why) = refusal(scene.one.delete(bad).await);
        assert_eq!(code, Code::InvalidArgument, "{bad}: {why}");
        assert!(why.starts_with("volume_id"), "{why}");
    }
    // Shell characters are only characters.
    scene.one.delete("$(reboot);`x`").await.unwrap();
    let outside = scene.world.path("outside");
    fs::create_dir(&outside).unwrap();
    symlink(&outside, scene.world.path("pods").join("link")).unwrap();
    for target in [
        "relative",
        "/a/../b",
        &text(&scene.world.path("pods").join("link")),
        &text(&scene.world.path("pods").join("link/x")),
    ] {
        let request = wire::NodePublishVolumeRequest {
            volume_id: volume.volume_id.clone(),
            publish_context: context.clone(),
            staging_target_path: text(&scene.one.staging(&volume.volume_id)),
            target_path: target.to_owned(),
            volume_capability: Some(BLOCK.capability()),
            ..Default::default()
        };
        let status = scene.one.local.node_publish_volume(request).await.unwrap_err();
        assert!(
            matches!(status.code(), Code::InvalidArgument | Code::FailedPrecondition),
            "{target}: {status}"
        );
    }
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
    fs::remove_file(scene.world.path("pods").join("link")).unwrap();
}

#[tokio::test]
async fn what_is_too_large_or_impossible_is_refused_and_secrets_are_not_told() {
    let mut scene = scene().await;
    let long = "x".repeat(129);
    let (code, why) = refusal(scene.one.create(&long, MIB, BLOCK).await);
    assert_eq!((code, why.as_str()), (Code::InvalidArgument, "name has 129 bytes; at most 128 are allowed"));
    for bytes in [-1, i64::MIN] {
        assert_eq!(refusal(scene.one.create("negative", bytes, BLOCK).await).0, Code::InvalidArgument);
    }
    assert!(matches!(
        refusal(scene.one.create("endless", i64::MAX, BLOCK).await).0,
        Code::OutOfRange | Code::ResourceExhausted
    ));
    let secret = "s3cr3t-of-the-test";
    let request = wire::CreateVolumeRequest {
        name: "secret".to_owned(),
        volume_capabilities: vec![BLOCK.capability()],
        parameters: [("nonsense".to_owned(), "1".to_owned())].into(),
        secrets: [("password".to_owned(), secret.to_owned())].into(),
        ..Default::default()
    };
    let status = scene.one.controller.create_volume(request).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    assert!(status.message().contains("nonsense") && !status.message().contains(secret), "{status}");
    let giant = wire::CreateVolumeRequest {
        name: "giant".to_owned(),
        parameters: (0..200_000).map(|number| (format!("key-{number}"), "v".repeat(40))).collect(),
        ..Default::default()
    };
    let status = scene.one.controller.create_volume(giant).await.unwrap_err();
    assert!(
        matches!(
            status.code(),
            Code::OutOfRange
                | Code::ResourceExhausted
                | Code::InvalidArgument
                | Code::Unknown
                | Code::Unavailable
                | Code::Cancelled
        ),
        "{status}"
    );
    assert!(!scene.world.log("worker-1").contains(secret));
    assert!(scene.daemon.memory() < 256 << 20);
    assert_eq!(scene.one.volumes().await, []);
}

#[tokio::test]
async fn a_volume_whose_file_is_missing_is_faulted_and_attaches_when_it_is_put_back() {
    let mut scene = scene().await;
    let volume = scene.one.create("ill", 8 * MIB, BLOCK).await.unwrap();
    let volumes = scene.world.path("data").join("volumes");
    let is_data = |path: &PathBuf| path.extension().is_some_and(|end| end == "data");
    let data = fs::read_dir(&volumes).unwrap().map(|entry| entry.unwrap().path()).find(is_data).unwrap();
    let aside = scene.world.path("aside");
    fs::rename(&data, &aside).unwrap();
    let (_, why) = refusal(scene.one.publish(&volume, "worker-1", BLOCK, false).await);
    assert!(why.contains("the volume is faulted") && why.contains("is missing"), "{why}");
    fs::rename(&aside, &data).unwrap();
    scene.one.publish(&volume, "worker-1", BLOCK, false).await.unwrap();
    scene.one.unpublish(&volume.volume_id, "worker-1").await.unwrap();
    scene.one.delete(&volume.volume_id).await.unwrap();
}
