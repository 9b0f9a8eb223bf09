//! What is in a volume is what was put there: snapshots, clones, restores, growth, raw blocks.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crate::{BOWLINE, can_mount, read};
use bowline_testkit::driver::{BLOCK, Driver, How, MIB, RWO, from_snapshot, from_volume};
use bowline_testkit::world::World;

/// Which filesystem the volumes' files lie on, and which the volumes hold.
const PLACES: [(&str, How); 2] = [("mkfs.xfs", RWO.fs("xfs")), ("mkfs.ext4", RWO)];

fn size(how: How) -> i64 {
    if how.fs == "xfs" { 320 * MIB } else { 32 * MIB }
}

#[tokio::test]
async fn snapshots_clones_and_restores_hold_what_their_source_held() {
    if !can_mount("contents of snapshots and clones") {
        return;
    }
    for (mkfs, how) in PLACES {
        let world = World::on_filesystem(BOWLINE, mkfs, 4 << 30);
        let daemon = world.up(&[]);
        let mut one = Driver::connect(&world, &daemon).await;
        let mut controller = one.clone();
        let volume = one.create("source", size(how), how).await.unwrap();
        let id = &volume.volume_id;
        let seen = one.attach_all(&mut controller, &volume, "pod", how, false).await.unwrap();
        fs::write(seen.join("file"), "before").unwrap();
        // Not synced on purpose: a snapshot of a mounted filesystem must not need that.
        let snapshot = one.snapshot("moment", id).await.unwrap();
        assert!(snapshot.ready_to_use);
        fs::write(seen.join("file"), "after").unwrap();
        let clone = one.create_from("clone", size(how), how, from_volume(id)).await.unwrap();
        fs::write(seen.join("file"), "much later").unwrap();
        let restored = one
            .create_from("restored", size(how) * 2, how, from_snapshot(&snapshot.snapshot_id))
            .await
            .unwrap();
        for (copy, expected) in [(&restored, "before"), (&clone, "after")] {
            let seen = one.attach_all(&mut controller, copy, "pod", how, false).await.unwrap();
            assert_eq!(read(&seen.join("file")), expected.as_bytes(), "{mkfs}");
            fs::write(seen.join("own"), "does not reach the source").unwrap();
            one.detach_all(&mut controller, &copy.volume_id, "pod").await.unwrap();
        }
        assert!(!seen.join("own").exists());
        assert_eq!(read(&seen.join("file")), b"much later");
        one.detach_all(&mut controller, id, "pod").await.unwrap();
        // The snapshot outlives its volume.
        one.delete(id).await.unwrap();
        let again =
            one.create_from("again", size(how), how, from_snapshot(&snapshot.snapshot_id)).await.unwrap();
        one.delete_snapshot(&snapshot.snapshot_id).await.unwrap();
        let seen = one.attach_all(&mut controller, &again, "pod", how, false).await.unwrap();
        assert_eq!(read(&seen.join("file")), b"before");
        one.detach_all(&mut controller, &again.volume_id, "pod").await.unwrap();
        for volume in [again, restored, clone] {
            one.delete(&volume.volume_id).await.unwrap();
        }
        daemon.stop_while_connected().await;
        world.assert_nothing_left();
    }
}

/// Writes 1, 2, 3, … into two files in turn, each synced: at any moment the second holds as many as the first or one less.
fn stamp(directories: [&Path; 2], stop: &AtomicBool) -> u64 {
    let files = directories.map(|directory| File::create(directory.join("stamps")).unwrap());
    let mut count = 0_u64;
    while !stop.load(Ordering::Relaxed) {
        count += 1;
        for file in &files {
            file.write_all_at(&count.to_le_bytes(), 8 * (count - 1)).unwrap();
            file.sync_data().unwrap();
        }
    }
    count
}

fn stamps(directory: &Path) -> u64 {
    let bytes = read(&directory.join("stamps"));
    let numbers: Vec<u64> =
        bytes.chunks_exact(8).map(|chunk| u64::from_le_bytes(chunk.try_into().unwrap())).collect();
    // A hole at the end is a file that was made longer and not written yet.
    let written = numbers.iter().take_while(|number| **number != 0).count();
    assert!(numbers[..written].iter().copied().eq(1..=written as u64), "stamps are missing in the middle");
    assert!(numbers[written..].iter().all(|number| *number == 0));
    written as u64
}

#[tokio::test]
async fn a_group_taken_under_a_running_writer_is_of_one_moment() {
    if !can_mount("group snapshot under a writer") {
        return;
    }
    let how = RWO.fs("xfs");
    let world = World::on_filesystem(BOWLINE, "mkfs.xfs", 4 << 30);
    let daemon = world.up(&[]);
    let mut one = Driver::connect(&world, &daemon).await;
    let mut controller = one.clone();
    let (mut volumes, mut places) = (vec![], vec![]);
    for name in ["first", "second"] {
        let volume = one.create(name, size(how), how).await.unwrap();
        places.push(one.attach_all(&mut controller, &volume, "pod", how, false).await.unwrap());
        volumes.push(volume);
    }
    let stop = Arc::new(AtomicBool::new(false));
    let writer = thread::spawn({
        let (places, stop) = (places.clone(), Arc::clone(&stop));
        move || stamp([&places[0], &places[1]], &stop)
    });
    let mut groups = vec![];
    for round in 0..5 {
        let request = bowline_csi::wire::CreateVolumeGroupSnapshotRequest {
            name: format!("group-{round}"),
            source_volume_ids: volumes.iter().map(|volume| volume.volume_id.clone()).collect(),
            ..Default::default()
        };
        let group = one.groups.create_volume_group_snapshot(request).await.unwrap().into_inner();
        groups.push(group.group_snapshot.unwrap());
    }
    stop.store(true, Ordering::Relaxed);
    let written = writer.join().unwrap();
    let mut before = 0;
    for group in &groups {
        let mut counts = vec![];
        for volume in &volumes {
            let of = group
                .snapshots
                .iter()
                .find(|snapshot| snapshot.source_volume_id == volume.volume_id)
                .unwrap();
            let name = format!("copy-{}", of.snapshot_id);
            let copy = one.create_from(&name, size(how), how, from_snapshot(&of.snapshot_id)).await.unwrap();
            let seen = one.attach_all(&mut controller, &copy, "pod", how, false).await.unwrap();
            counts.push(stamps(&seen));
            one.detach_all(&mut controller, &copy.volume_id, "pod").await.unwrap();
            one.delete(&copy.volume_id).await.unwrap();
        }
        let (first, second) = (counts[0], counts[1]);
        assert!(first == second || first == second + 1, "not one moment: {first} and {second}");
        assert!(first >= before && first <= written);
        before = first;
    }
    for group in groups {
        let request = bowline_csi::wire::DeleteVolumeGroupSnapshotRequest {
            group_snapshot_id: group.group_snapshot_id,
            snapshot_ids: group.snapshots.into_iter().map(|snapshot| snapshot.snapshot_id).collect(),
            ..Default::default()
        };
        one.groups.delete_volume_group_snapshot(request).await.unwrap();
    }
    for volume in &volumes {
        one.detach_all(&mut controller, &volume.volume_id, "pod").await.unwrap();
        one.delete(&volume.volume_id).await.unwrap();
    }
    assert!(one.snapshots().await.is_empty());
    world.assert_nothing_left();
}

#[tokio::test]
async fn a_grown_filesystem_keeps_its_files_and_has_the_room() {
    if !can_mount("growth") {
        return;
    }
    let how = RWO.fs("xfs");
    let world = World::new(BOWLINE);
    let daemon = world.up(&[]);
    let mut one = Driver::connect(&world, &daemon).await;
    let mut controller = one.clone();
    let volume = one.create("grows", size(how), how).await.unwrap();
    let id = &volume.volume_id;
    let seen = one.attach_all(&mut controller, &volume, "pod", how, false).await.unwrap();
    fs::write(seen.join("file"), vec![7; 1 << 20]).unwrap();
    assert_eq!(one.grow(id, 640 * MIB).await.unwrap(), 640 * MIB);
    assert_eq!(one.grow_here(id, "pod", 640 * MIB).await.unwrap(), 640 * MIB);
    assert_eq!(one.grow_here(id, "pod", 640 * MIB).await.unwrap(), 640 * MIB, "again");
    fs::write(seen.join("large"), vec![9; 400 << 20]).expect("more than the volume had before");
    assert_eq!(read(&seen.join("file")), vec![7; 1 << 20]);
    one.detach_all(&mut controller, id, "pod").await.unwrap();
    one.delete(id).await.unwrap();
}

#[tokio::test]
async fn blocks_are_kept_byte_for_byte() {
    if !can_mount("block contents") {
        return;
    }
    let world = World::new(BOWLINE);
    let daemon = world.up(&[]);
    let mut one = Driver::connect(&world, &daemon).await;
    let mut controller = one.clone();
    let volume = one.create("raw", 8 * MIB, BLOCK).await.unwrap();
    let id = &volume.volume_id;
    let seen = one.attach_all(&mut controller, &volume, "pod", BLOCK, false).await.unwrap();
    let pattern: Vec<u8> =
        (0..8_u64 << 20).map(|at| (at.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8).collect();
    let device = fs::OpenOptions::new().write(true).open(&seen).unwrap();
    device.write_all_at(&pattern, 0).unwrap();
    device.sync_all().unwrap();
    drop(device);
    one.detach_all(&mut controller, id, "pod").await.unwrap();
    let seen = one.attach_all(&mut controller, &volume, "pod", BLOCK, false).await.unwrap();
    assert!(read(&seen) == pattern, "the blocks differ");
    one.detach_all(&mut controller, id, "pod").await.unwrap();
    one.delete(id).await.unwrap();
    world.assert_nothing_left();
}
