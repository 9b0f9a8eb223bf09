//! Room: promised, taken up, given back, and none left.

use crate::lab::{
    EMPTY, GENEROUS, Lab, MIB, Raw, cut, grant, lab, listed, open, order, revocation, run, snapshot, volume,
};
use bowline_target::contract::provision::Bytes;
use bowline_target::file::Policy;
use bowline_target::{BackingFiles, Item, Provision, ProvisionError, Source, Target};
use std::fs;
use std::os::unix::fs::MetadataExt;

#[test]
fn discarding_gives_room_back() {
    lab("room::discarding_gives_room_back", &["mkfs.ext4"], |lab| {
        let dir = lab.path("volumes");
        let target = lab.open(&dir);
        lab.create(&target, &order("v", 64 * MIB, None)).unwrap();
        let place = lab.mounted(&target, &dir, "v", true);
        let file = target.backing(&volume("v")).unwrap().unwrap();
        let taken = || fs::metadata(&file).unwrap().blocks() * 512;
        fs::write(place.1.join("large"), vec![7; 32 << 20]).unwrap();
        run("sync", &[&"-f", &place.1]);
        let full = taken();
        assert!(full >= 32 * MIB, "{full}");
        let stored = lab.runtime.block_on(target.volume(&volume("v"))).unwrap().unwrap();
        assert_eq!(stored.allocated, full);
        fs::remove_file(place.1.join("large")).unwrap();
        // ext4 discards in the background; with the unmount it is done with that.
        lab.unmounted(&target, "v", &place);
        assert!(taken() <= full - 30 * MIB, "{} of {full} are still taken", taken());
    });
}

#[test]
fn a_full_disk_is_told_and_nothing_is_left() {
    lab("room::a_full_disk_is_told_and_nothing_is_left", &["mkfs.ext4"], |lab| {
        for fs_type in ["tmpfs", "ext4"] {
            let dir = lab.scratch(fs_type, 48).join("v");
            let target = open(&dir, GENEROUS).unwrap();
            lab.create(&target, &order("v", 64 * MIB, None)).unwrap();
            Raw(&target).write(&volume("v"), 0, &vec![5; 28 << 20]);
            lab.runtime.block_on(target.allow(&grant("v", "a", 1))).unwrap();
            let before = (listed(&dir), lab.runtime.block_on(target.capacity()).unwrap());
            for _ in 0..2 {
                let clone = lab.create(&target, &order("c", 64 * MIB, Some(Source::Volume(volume("v")))));
                assert!(matches!(clone, Err(ProvisionError::NoRoom { .. })), "{fs_type}: {clone:?}");
                let taken = lab.snapshot(&target, &[cut("s", "v")]);
                assert!(matches!(taken, Err(ProvisionError::NoRoom { .. })), "{fs_type}: {taken:?}");
                let after = lab.runtime.block_on(target.capacity()).unwrap();
                assert_eq!(
                    (listed(&dir), after.promised),
                    (before.0.clone(), before.1.promised),
                    "{fs_type}"
                );
                // A filesystem may also give back what it kept for itself.
                assert!(before.1.free.saturating_sub(after.free) < MIB, "{fs_type}: room has leaked");
            }
            let items = lab.runtime.block_on(target.items(None, 9)).unwrap();
            assert_eq!(items, [Item::Volume(volume("v"))]);
            lab.runtime.block_on(target.revoke(&revocation("v", "a", 1))).unwrap();
            lab.runtime.block_on(target.delete(&volume("v"))).unwrap();
            assert_eq!(listed(&dir), EMPTY);
        }
    });
}

#[test]
fn what_is_full_to_the_last_byte_can_still_be_shut_and_deleted() {
    lab("room::what_is_full_to_the_last_byte_can_still_be_shut_and_deleted", &["mkfs.xfs"], |lab| {
        for (fs_type, mib) in [("tmpfs", 16), ("xfs", 320)] {
            let dir = lab.scratch(fs_type, mib).join("v");
            let target = open(&dir, GENEROUS).unwrap();
            lab.create(&target, &order("v", MIB, None)).unwrap();
            lab.runtime.block_on(target.allow(&grant("v", "a", 1))).unwrap();
            fill(&dir.join("foreign"));
            lab.runtime
                .block_on(target.revoke(&revocation("v", "a", 1)))
                .expect("shutting out needs no room");
            lab.runtime.block_on(target.delete(&volume("v"))).unwrap();
            fs::remove_file(dir.join("foreign")).unwrap();
            assert_eq!(listed(&dir), EMPTY, "{fs_type}");
        }
    });
}

/// Takes all the room there is.
fn fill(path: &std::path::Path) {
    use std::io::Write;
    let mut file = fs::File::create(path).unwrap();
    for size in [1 << 20, 4096, 1] {
        let piece = vec![1; size];
        while file.write_all(&piece).is_ok() {}
    }
    let _ = file.sync_all();
}

#[test]
fn the_last_room_goes_to_one_of_many() {
    lab("room::the_last_room_goes_to_one_of_many", &[], |lab| {
        let dir = lab.scratch("tmpfs", 64).join("v");
        let target = open(&dir, Policy { overcommit: 100, reserve: 4 * MIB }).unwrap();
        let before = lab.runtime.block_on(target.capacity()).unwrap();
        assert!(before.available >= 58 * MIB && before.available <= 60 * MIB, "{before:?}");
        let made: Vec<_> = std::thread::scope(|scope| {
            let one = |index: u64| {
                let (target, lab) = (&target, &lab);
                scope.spawn(move || lab.create(target, &order(&format!("v{index}"), 40 * MIB, None)))
            };
            let all: Vec<_> = (0..6).map(one).collect();
            all.into_iter().map(|call| call.join().unwrap()).collect()
        });
        let good = made.iter().filter(|made| made.is_ok()).count();
        let full = made.iter().filter(|made| matches!(made, Err(ProvisionError::NoRoom { .. }))).count();
        assert_eq!((good, full), (1, 5), "{made:?}");
        let after = lab.runtime.block_on(target.capacity()).unwrap();
        assert_eq!(after.promised, 40 * MIB);
        // What others put there is not promised any more.
        fs::write(dir.join("foreign"), vec![1; 8 << 20]).unwrap();
        let beside = lab.runtime.block_on(target.capacity()).unwrap();
        assert!(after.available - beside.available >= 8 * MIB, "{after:?} {beside:?}");
    });
}

#[test]
fn a_policy_may_promise_more_than_there_is() {
    lab("room::a_policy_may_promise_more_than_there_is", &[], |lab| {
        let dir = lab.scratch("tmpfs", 64).join("v");
        let target = open(&dir, Policy { overcommit: 300, reserve: 0 }).unwrap();
        for index in 0..4 {
            lab.create(&target, &order(&format!("v{index}"), 40 * MIB, None)).unwrap();
        }
        let refused = lab.create(&target, &order("v4", 40 * MIB, None));
        assert!(matches!(refused, Err(ProvisionError::NoRoom { .. })), "{refused:?}");
        let grown = lab.runtime.block_on(target.grow(&volume("v0"), 80 * MIB));
        assert!(matches!(grown, Err(ProvisionError::NoRoom { .. })), "{grown:?}");
        drop(target);
        let again = open(&dir, Policy { overcommit: 100, reserve: 0 }).unwrap();
        let capacity = lab.runtime.block_on(again.capacity()).unwrap();
        assert_eq!(
            (capacity.promised, capacity.available),
            (160 * MIB, 0),
            "a stricter policy takes nothing back"
        );
    });
}

/// A volume, its snapshots and a clone share their blocks, and others keep something beside them.
fn blocks_that_are_shared_hide_nobody(lab: &Lab, fs_type: &str) {
    const PIECES: u64 = 512;
    const PIECE: u64 = 72 << 10;
    const STEP: u64 = 80 << 10;
    let root = lab.scratch(fs_type, 512);
    let target = open(&root.join("v"), Policy::default()).unwrap();
    let capacity = || {
        run("sync", &[&"-f", &root]);
        lab.runtime.block_on(target.capacity()).unwrap()
    };
    let size = PIECES * STEP;
    lab.create(&target, &order("v", size, None)).unwrap();
    // With holes between them: they are more than the kernel tells of at once.
    for index in 0..PIECES {
        Raw(&target).write(&volume("v"), index * STEP, &[7; PIECE as usize]);
    }
    let alone = capacity();
    for id in ["s0", "s1", "s2"] {
        lab.snapshot(&target, &[cut(id, "v")]).unwrap();
    }
    lab.create(&target, &order("c", size, Some(Source::Snapshot(snapshot("s0"))))).unwrap();
    let shared = capacity();
    fs::write(root.join("foreign"), vec![1; 96 << 20]).unwrap();
    let beside = capacity();
    let too_much = (shared.available - 48 * MIB).next_multiple_of(MIB);
    let refused = lab.create(&target, &order("w", too_much, None));
    assert!(matches!(refused, Err(ProvisionError::NoRoom { .. })), "{fs_type}: {refused:?}");

    let promised = shared.promised - alone.promised;
    assert!(promised >= 3 * PIECES * PIECE + size, "{fs_type}: {promised}");
    let gone = alone.available - shared.available;
    assert!(gone.abs_diff(promised) < 8 * MIB, "{fs_type}: {gone} for a promise of {promised}");
    // A filesystem may also give back some of what it kept for itself.
    assert!(shared.available - beside.available > 95 * MIB, "{fs_type}: {shared:?} {beside:?}");

    // What is promised can be written full, also where a snapshot keeps what was there before.
    let rest = beside.available / MIB * MIB;
    lab.create(&target, &order("w", rest, None)).unwrap();
    for (id, size) in [("v", size), ("c", size), ("w", rest)] {
        for offset in (0..size).step_by(1 << 20) {
            Raw(&target).write(&volume(id), offset, &[9; 1 << 20]);
        }
    }
    run("sync", &[&"-f", &root]);
}

#[test]
fn blocks_that_are_shared_hide_nobody_on_xfs() {
    lab("room::blocks_that_are_shared_hide_nobody_on_xfs", &["mkfs.xfs"], |lab| {
        blocks_that_are_shared_hide_nobody(lab, "xfs");
    });
}

#[test]
fn blocks_that_are_shared_hide_nobody_on_btrfs() {
    lab("room::blocks_that_are_shared_hide_nobody_on_btrfs", &["mkfs.btrfs"], |lab| {
        blocks_that_are_shared_hide_nobody(lab, "btrfs");
    });
}
