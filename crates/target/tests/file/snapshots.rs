//! One moment, under a running writer, on filesystems that share blocks and on those that copy.

use crate::lab::{Lab, MIB, Raw, cut, grant, lab, order, run, snapshot, volume};
use bowline_core::Epoch;
use bowline_target::contract::provision::Bytes;
use bowline_target::file::{FileTarget, Shelf};
use bowline_target::{BackingFiles, Progress, Provision, ProvisionError, Source, Target};
use futures::FutureExt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

/// Writes rising numbers, first to one place and then to the other, until it is told to stop.
fn count(first: &Path, second: &Path, stop: &AtomicBool) -> u64 {
    let mut number = 0;
    while !stop.load(Ordering::Relaxed) {
        number += 1;
        for at in [first, second] {
            // The number is in the name: a rename is whole or not there, whatever moment is taken.
            fs::write(at.join("next"), vec![1; 8192]).unwrap();
            fs::rename(at.join("next"), at.join("now")).unwrap();
            fs::write(at.join(format!("n{number:08}")), "").unwrap();
            if number > 1 {
                fs::remove_file(at.join(format!("n{:08}", number - 1))).unwrap();
            }
        }
    }
    number
}

/// The number that a place had.
fn number(at: &Path) -> u64 {
    let names = fs::read_dir(at).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter_map(|name| name.strip_prefix('n')?.parse().ok()).max().unwrap_or(0)
}

fn one_moment(lab: &Lab, dir: &Path) {
    let target = lab.open(dir);
    let mut places = Vec::new();
    for id in ["a", "b"] {
        lab.create(&target, &order(id, 24 * MIB, None)).unwrap();
        places.push(lab.mounted(&target, dir, id, true));
    }
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| count(&places[0].1, &places[1].1, &stop));
        for round in 0..3 {
            let seen = number(&places[1].1);
            let cuts = [cut(&format!("a{round}"), "a"), cut(&format!("b{round}"), "b")];
            lab.snapshot(&target, &cuts).unwrap();
            lab.create(
                &target,
                &order(&format!("clone{round}"), 32 * MIB, Some(Source::Volume(volume("b")))),
            )
            .unwrap();
            while number(&places[1].1) <= seen + 1 {
                assert!(!writer.is_finished(), "the writer goes on: what was frozen is thawed");
            }
        }
        stop.store(true, Ordering::Relaxed);
        assert!(writer.join().unwrap() > 0);
    });
    for round in 0..3 {
        let [a, b] = ["a", "b"].map(|id| restored(lab, &target, dir, &format!("{id}{round}")));
        assert!(a == b || a == b + 1, "not one moment: {a} was written before {b}");
        let clone = contents(lab, &target, dir, &format!("clone{round}"));
        assert!(clone >= b, "the clone is younger than the snapshot before it: {clone}, {b}");
        lab.runtime.block_on(target.delete_snapshot(&snapshot(&format!("a{round}")))).unwrap();
    }
    for (id, place) in ["a", "b"].into_iter().zip(&places) {
        lab.unmounted(&target, id, place);
        lab.runtime.block_on(target.allow(&grant(id, "a", 2))).unwrap();
        let again = lab.attach(&target, id, "a", 2).unwrap();
        run("mount", &[&again.path, &place.1]);
        run("umount", &[&place.1]);
        lab.detach(&again);
    }
}

fn restored(lab: &Lab, target: &FileTarget, dir: &Path, id: &str) -> u64 {
    let name = format!("restored-{id}");
    lab.create(target, &order(&name, 24 * MIB, Some(Source::Snapshot(snapshot(id))))).unwrap();
    contents(lab, target, dir, &name)
}

fn contents(lab: &Lab, target: &FileTarget, dir: &Path, id: &str) -> u64 {
    let place = lab.mounted(target, dir, id, false);
    let found = number(&place.1);
    lab.unmounted(target, id, &place);
    run("e2fsck", &[&"-fn", &target_file(target, id)]);
    found
}

fn target_file(target: &FileTarget, id: &str) -> PathBuf {
    use bowline_target::BackingFiles;
    target.backing(&volume(id)).unwrap().unwrap()
}

const PROGRAMS: &[&str] = &["mkfs.ext4", "mkfs.xfs", "mkfs.btrfs"];

#[test]
fn a_group_is_of_one_moment_where_blocks_are_copied() {
    lab("snapshots::a_group_is_of_one_moment_where_blocks_are_copied", PROGRAMS, |lab| {
        one_moment(lab, &lab.path("volumes"));
    });
}

#[test]
fn a_group_is_of_one_moment_on_xfs() {
    lab("snapshots::a_group_is_of_one_moment_on_xfs", PROGRAMS, |lab| {
        one_moment(lab, &lab.scratch("xfs", 512));
    });
}

#[test]
fn a_group_is_of_one_moment_on_btrfs() {
    lab("snapshots::a_group_is_of_one_moment_on_btrfs", PROGRAMS, |lab| {
        one_moment(lab, &lab.scratch("btrfs", 512));
    });
}

#[test]
fn a_raw_device_is_copied_only_where_that_is_one_moment() {
    lab("snapshots::a_raw_device_is_copied_only_where_that_is_one_moment", PROGRAMS, |lab| {
        for (dir, shares) in [(lab.path("volumes"), false), (lab.scratch("xfs", 320), true)] {
            let target = lab.open(&dir);
            for id in ["raw", "idle"] {
                lab.create(&target, &order(id, MIB, None)).unwrap();
            }
            lab.runtime.block_on(target.allow(&grant("raw", "a", 1))).unwrap();
            let device = lab.attach(&Shelf::open(&dir, &lab.host).unwrap(), "raw", "a", 1).unwrap();
            // Through the cache of the device: not in the file until somebody syncs.
            fs::File::options()
                .write(true)
                .open(&device.path)
                .and_then(|mut open| std::io::Write::write_all(&mut open, b"cached"))
                .unwrap();
            let taken = lab.snapshot(&target, &[cut("i", "idle"), cut("r", "raw")]);
            let cloned = lab.create(&target, &order("clone", MIB, Some(Source::Volume(volume("raw")))));
            if shares {
                taken.unwrap();
                cloned.unwrap();
                lab.create(&target, &order("restored", MIB, Some(Source::Snapshot(snapshot("r"))))).unwrap();
                for id in ["restored", "clone"] {
                    assert_eq!(Raw(&target).read(&volume(id), 0, 6), b"cached", "{id}");
                }
            } else {
                let told = |error: &ProvisionError| {
                    error.to_string().contains("which could be written while this filesystem copies")
                };
                assert!(
                    matches!(&taken, Err(error @ ProvisionError::InUse { .. }) if told(error)),
                    "{taken:?}"
                );
                assert!(
                    matches!(&cloned, Err(error @ ProvisionError::InUse { .. }) if told(error)),
                    "{cloned:?}"
                );
                let stored = lab.runtime.block_on(target.stored_snapshot(&snapshot("i"))).unwrap();
                assert_eq!(stored, None, "all or none");
                assert_eq!(lab.runtime.block_on(target.volume(&volume("clone"))).unwrap(), None);
            }
            lab.detach(&device);
        }
    });
}

#[test]
fn what_somebody_else_froze_stays_frozen_and_the_others_are_thawed() {
    lab("snapshots::what_somebody_else_froze_stays_frozen_and_the_others_are_thawed", PROGRAMS, |lab| {
        let dir = lab.path("volumes");
        let target = lab.open(&dir);
        let mut places = Vec::new();
        for id in ["a", "b"] {
            lab.create(&target, &order(id, 16 * MIB, None)).unwrap();
            places.push(lab.mounted(&target, &dir, id, true));
        }
        run("fsfreeze", &[&"-f", &places[1].1]);
        let refused = lab.snapshot(&target, &[cut("sa", "a"), cut("sb", "b")]);
        assert!(matches!(refused, Err(ProvisionError::InUse { .. })), "{refused:?}");
        fs::write(places[0].1.join("x"), "thawed").unwrap();
        run("fsfreeze", &[&"-u", &places[1].1]);
        lab.snapshot(&target, &[cut("sa", "a"), cut("sb", "b")]).unwrap();
        for place in &places {
            fs::write(place.1.join("y"), "thawed").unwrap();
        }
    });
}

#[test]
fn a_filesystem_that_is_mounted_in_another_namespace_is_frozen_too() {
    lab("snapshots::a_filesystem_that_is_mounted_in_another_namespace_is_frozen_too", PROGRAMS, |lab| {
        let dir = lab.path("volumes");
        let target = lab.open(&dir);
        lab.create(&target, &order("v", 16 * MIB, None)).unwrap();
        let (device, at) = lab.mounted(&target, &dir, "v", true);
        run("umount", &[&at]);
        let script = "mount \"$1\" \"$2\" && echo unsynced >\"$2/file\" && echo ready && cat >/dev/null; umount \"$2\"";
        let mut other = std::process::Command::new("unshare")
            .args(["-m", "--propagation", "private", "sh", "-c", script, "sh"])
            .args([&device.path, &at])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        std::io::Read::read_exact(other.stdout.as_mut().unwrap(), &mut [0; 6]).unwrap();
        let taken = lab.snapshot(&target, &[cut("s", "v")]);
        drop(other.stdin.take());
        assert!(other.wait().unwrap().success(), "thawed: it could be unmounted");
        taken.unwrap();
        lab.detach(&device);
        lab.create(&target, &order("restored", 16 * MIB, Some(Source::Snapshot(snapshot("s"))))).unwrap();
        let place = lab.mounted(&target, &dir, "restored", false);
        assert_eq!(fs::read_to_string(place.1.join("file")).unwrap(), "unsynced\n");
        lab.unmounted(&target, "restored", &place);
    });
}

#[test]
fn a_snapshot_that_is_taken_but_has_no_record_yet_is_neither_forgotten_nor_taken_again() {
    let name =
        "snapshots::a_snapshot_that_is_taken_but_has_no_record_yet_is_neither_forgotten_nor_taken_again";
    lab(name, &[], |lab| {
        let dir = lab.path("volumes");
        let mut target = lab.open(&dir);
        for id in ["a", "b"] {
            lab.create(&target, &order(id, MIB, None)).unwrap();
            Raw(&target).write(&volume(id), 0, b"then");
        }
        // Something that cannot be replaced by a file, where the record is to be written.
        let obstacle = dir.join("snap-s2.json-draft");
        fs::create_dir(&obstacle).unwrap();
        let cuts = [cut("s1", "a"), cut("s2", "b")];
        let refused = lab.snapshot(&target, &cuts);
        assert!(matches!(refused, Err(ProvisionError::Unreachable { .. })), "{refused:?}");
        for id in ["a", "b"] {
            Raw(&target).write(&volume(id), 0, b"now!");
        }
        for restarted in [false, true] {
            if restarted {
                drop(target);
                target = lab.open(&dir);
            }
            let shown = lab.runtime.block_on(target.stored_snapshot(&snapshot("s1")));
            assert!(
                matches!(shown, Err(ProvisionError::Unreachable { .. })),
                "not one without the other: {shown:?}"
            );
            let deleted = lab.runtime.block_on(target.delete_snapshot(&snapshot("s2")));
            assert!(matches!(deleted, Err(ProvisionError::Unreachable { .. })), "{deleted:?}");
            assert!(lab.snapshot(&target, &cuts).is_err());
        }
        fs::remove_dir(&obstacle).unwrap();
        lab.snapshot(&target, &cuts).unwrap();
        for (id, from) in [("ra", "s1"), ("rb", "s2")] {
            lab.create(&target, &order(id, MIB, Some(Source::Snapshot(snapshot(from))))).unwrap();
            assert_eq!(
                Raw(&target).read(&volume(id), 0, 4),
                b"then",
                "the moment is the one it was taken at"
            );
        }
        for id in ["s1", "s2"] {
            lab.runtime.block_on(target.delete_snapshot(&snapshot(id))).unwrap();
        }
        let left: Vec<_> =
            crate::lab::listed(&dir).into_iter().filter(|name| !name.starts_with("vol-")).collect();
        assert_eq!(left, crate::lab::EMPTY);
    });
}

/// A controller that was started anew asks whether the target has what it had asked for, and clears away what is not there.
#[test]
fn a_snapshot_that_waits_does_not_land_after_its_deletion() {
    lab("snapshots::a_snapshot_that_waits_does_not_land_after_its_deletion", &[], |lab| {
        let dir = lab.path("volumes");
        let target = lab.open(&dir);
        for id in ["a", "b"] {
            lab.create(&target, &order(id, MIB, None)).unwrap();
        }
        lab.runtime.block_on(target.allow(&grant("b", "n", 1))).unwrap();
        let cuts = [cut("s1", "a"), cut("s2", "b")];
        let (s1, s2) = (snapshot("s1"), snapshot("s2"));
        let node = crate::lab::node("n");
        // Whoever attaches holds the lock of a volume for which the snapshot waits.
        let attach = &mut |_: &Path, _| {
            let meanwhile = async {
                let progress = Progress::default();
                let mut taking = Box::pin(target.snapshot(&cuts, &progress));
                assert!((&mut taking).now_or_never().is_none(), "it waits");
                // Its caller hangs up; it is carried on.
                drop(taking);
                tokio::join!(
                    target.stored_snapshot(&s1),
                    target.delete_snapshot(&s1),
                    target.delete_snapshot(&s2)
                )
            };
            let (stored, first, second) = lab.runtime.block_on(meanwhile);
            for told in [stored.map(|_| ()), first, second] {
                assert!(
                    matches!(&told, Err(ProvisionError::Unreachable { error }) if error.contains("still under way")),
                    "what is on its way is not gone: {told:?}"
                );
            }
        };
        target.with_grant(&volume("b"), &node, Epoch::new(1), attach).unwrap();
        for id in [&s1, &s2] {
            lab.runtime.block_on(target.delete_snapshot(id)).unwrap();
        }
        let left: Vec<_> =
            crate::lab::listed(&dir).into_iter().filter(|name| !name.starts_with("vol-")).collect();
        assert_eq!(left, crate::lab::EMPTY);
    });
}

#[test]
fn snapshots_are_read_only_files() {
    lab("snapshots::snapshots_are_read_only_files", &[], |lab| {
        use std::os::unix::fs::PermissionsExt;
        let dir = lab.path("volumes");
        let target = lab.open(&dir);
        lab.create(&target, &order("a", MIB, None)).unwrap();
        lab.snapshot(&target, &[cut("s", "a")]).unwrap();
        assert_eq!(fs::metadata(dir.join("snap-s.data")).unwrap().permissions().mode() & 0o777, 0o400);
    });
}
