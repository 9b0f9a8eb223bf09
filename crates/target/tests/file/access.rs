//! Who gets at the bytes, and when that is proven to be over.

use crate::lab::{
    GENEROUS, Lab, MIB, grant, identity, lab, listed, node, open, order, revocation, run, volume,
};
use bowline_core::{Epoch, Mode, Share};
use bowline_host::{Host, Roots, Tag};
use bowline_target::file::{FileTarget, OpenError, Shelf};
use bowline_target::{BackingError, BackingFiles, Grant, Provision, ProvisionError, Target, TargetError};
use std::fs;
use std::path::PathBuf;
use std::sync::mpsc;

fn one_volume(lab: &Lab) -> (FileTarget, PathBuf) {
    let dir = lab.path("volumes");
    let target = lab.open(&dir);
    lab.create(&target, &order("v", MIB, None)).unwrap();
    (target, dir)
}

fn allow(lab: &Lab, target: &FileTarget, to: &str, epoch: u64) -> Result<(), TargetError> {
    lab.runtime.block_on(target.allow(&grant("v", to, epoch)))
}

fn revoke(lab: &Lab, target: &FileTarget, from: &str, epoch: u64) -> Result<(), TargetError> {
    lab.runtime.block_on(target.revoke(&revocation("v", from, epoch))).map(|_| ())
}

fn epochs(lab: &Lab, target: &FileTarget) -> Vec<u64> {
    let page = lab.runtime.block_on(target.exports(None, 100)).unwrap();
    page.listings.iter().flat_map(|listing| listing.exports.keys().map(|epoch| epoch.number())).collect()
}

#[test]
fn a_revocation_is_not_confirmed_while_a_device_is_left_also_not_after_a_restart() {
    lab(
        "access::a_revocation_is_not_confirmed_while_a_device_is_left_also_not_after_a_restart",
        &[],
        |lab| {
            let (mut target, dir) = one_volume(lab);
            let shelf = Shelf::open(&dir, &lab.host).unwrap();
            allow(lab, &target, "a", 1).unwrap();
            let device = lab.attach(&shelf, "v", "a", 1).unwrap();
            for restarted in [false, true] {
                if restarted {
                    drop(target);
                    target = lab.open(&dir);
                }
                let refused = revoke(lab, &target, "a", 1);
                let name = device.path.display().to_string();
                assert!(
                    matches!(&refused, Err(TargetError::InUse { by }) if by.contains(&name)),
                    "{refused:?}"
                );
                assert_eq!(epochs(lab, &target), [1], "what a device still reaches is listed");
                let late = allow(lab, &target, "a", 1);
                assert!(
                    matches!(&late, Err(TargetError::InUse { .. })),
                    "no proof while it drains: {late:?}"
                );
                let again = lab.attach(&shelf, "v", "a", 1);
                assert!(
                    matches!(again, Err(BackingError::NotGranted { .. })),
                    "nobody new gets in: {again:?}"
                );
                let delete = lab.runtime.block_on(target.delete(&volume("v")));
                assert!(matches!(delete, Err(ProvisionError::InUse { .. })), "{delete:?}");
            }
            lab.detach(&device);
            revoke(lab, &target, "a", 1).unwrap();
            assert_eq!(epochs(lab, &target), [0; 0]);
            assert!(matches!(allow(lab, &target, "a", 1), Err(TargetError::NeverAgain(_))));
            lab.runtime.block_on(target.delete(&volume("v"))).unwrap();
        },
    );
}

#[test]
fn a_mount_is_named_and_a_late_allow_proves_what_has_drained_meanwhile() {
    lab(
        "access::a_mount_is_named_and_a_late_allow_proves_what_has_drained_meanwhile",
        &["mkfs.ext4"],
        |lab| {
            let (target, dir) = one_volume(lab);
            lab.runtime.block_on(target.grow(&volume("v"), 16 * MIB)).unwrap();
            let (device, at) = lab.mounted(&target, &dir, "v", true);
            let refused = revoke(lab, &target, "a", 1);
            let mount = format!("mounted at {}", at.display());
            assert!(matches!(&refused, Err(TargetError::InUse { by }) if by.contains(&mount)), "{refused:?}");
            run("umount", &[&at]);
            lab.detach(&device);
            assert!(matches!(allow(lab, &target, "a", 1), Err(TargetError::NeverAgain(_))));
            assert_eq!(epochs(lab, &target), [0; 0]);
        },
    );
}

#[test]
fn a_device_of_another_grant_that_stays_is_not_in_the_way_and_a_strangers_is() {
    lab("access::a_device_of_another_grant_that_stays_is_not_in_the_way_and_a_strangers_is", &[], |lab| {
        let (target, dir) = one_volume(lab);
        let shelf = Shelf::open(&dir, &lab.host).unwrap();
        allow(lab, &target, "a", 1).unwrap();
        allow(lab, &target, "b", 2).unwrap();
        let device = lab.attach(&shelf, "v", "b", 2).unwrap();
        revoke(lab, &target, "a", 1).unwrap();
        allow(lab, &target, "a", 3).unwrap();
        let path = target.backing(&volume("v")).unwrap().unwrap();
        for tag in [
            Tag::new(&volume("v"), &node("c"), Epoch::new(9)),
            Tag::new(&volume("w"), &node("b"), Epoch::new(2)),
        ] {
            let stranger = lab.host.attach(&path, &tag, true).unwrap();
            let refused = revoke(lab, &target, "a", 3);
            assert!(
                matches!(refused, Err(TargetError::InUse { .. })),
                "whose it is is not known: {refused:?}"
            );
            lab.detach(&stranger);
        }
        revoke(lab, &target, "a", 3).unwrap();
        lab.detach(&device);
        revoke(lab, &target, "b", 2).unwrap();
    });
}

#[test]
fn a_file_that_lost_its_name_is_still_reached_by_its_device() {
    lab("access::a_file_that_lost_its_name_is_still_reached_by_its_device", &[], |lab| {
        let dir = lab.path("volumes");
        let target = lab.open(&dir);
        // Tags are seen by the whole machine: a name that no other test uses.
        let id = format!("lost-{}", std::process::id());
        lab.create(&target, &order(&id, MIB, None)).unwrap();
        lab.runtime.block_on(target.allow(&grant(&id, "a", 1))).unwrap();
        let revoke = || lab.runtime.block_on(target.revoke(&revocation(&id, "a", 1)));
        let device = lab.attach(&Shelf::open(&dir, &lab.host).unwrap(), &id, "a", 1).unwrap();
        fs::remove_file(target.backing(&volume(&id)).unwrap().unwrap()).unwrap();
        assert!(matches!(revoke(), Err(TargetError::InUse { .. })));
        let restored = dir.join(format!("vol-{id}.data"));
        fs::File::create(&restored).unwrap().set_len(MIB).unwrap();
        assert!(matches!(revoke(), Err(TargetError::InUse { .. })), "the old file's device may be mounted");
        fs::remove_file(&restored).unwrap();
        fs::remove_file(dir.join(format!("vol-{id}.json"))).unwrap();
        let unknown = revoke();
        assert!(
            matches!(unknown, Err(TargetError::InUse { .. })),
            "not even as an unknown volume: {unknown:?}"
        );
        lab.detach(&device);
        revoke().unwrap();
        fs::rename(dir.join("directory.json"), dir.join("elsewhere")).unwrap();
        let lost = revoke();
        assert!(
            matches!(lost, Err(TargetError::Unreachable { .. })),
            "an empty mount point proves nothing: {lost:?}"
        );
    });
}

#[test]
fn a_revocation_waits_for_whoever_is_attaching() {
    lab("access::a_revocation_waits_for_whoever_is_attaching", &[], |lab| {
        let (target, dir) = one_volume(lab);
        allow(lab, &target, "a", 1).unwrap();
        let shelf = Shelf::open(&dir, &lab.host).unwrap();
        let tag = Tag::new(&volume("v"), &node("a"), Epoch::new(1));
        let (answer, answered) = mpsc::channel();
        shelf
            .with_grant(&volume("v"), &node("a"), Epoch::new(1), &mut |path, write| {
                assert!(write);
                let (target, answer) = (target.clone(), answer.clone());
                lab.runtime.spawn(async move {
                    answer.send(target.revoke(&revocation("v", "a", 1)).await).unwrap();
                });
                // Without the lock it would have answered long before this.
                let early = answered.recv_timeout(std::time::Duration::from_millis(300));
                assert!(early.is_err(), "confirmed while somebody attaches: {early:?}");
                lab.host.attach(path, &tag, false).unwrap();
            })
            .unwrap();
        let seen = answered.recv().unwrap();
        assert!(matches!(seen, Err(TargetError::InUse { .. })), "the device that was made is seen: {seen:?}");
        lab.host.detach(identity(&target.backing(&volume("v")).unwrap().unwrap()), &tag).unwrap();
        revoke(lab, &target, "a", 1).unwrap();
    });
}

#[test]
fn a_revocation_waits_for_a_node_in_another_process() {
    lab("access::a_revocation_waits_for_a_node_in_another_process", &["flock"], |lab| {
        let (target, dir) = one_volume(lab);
        allow(lab, &target, "a", 1).unwrap();
        let mut other = std::process::Command::new("flock")
            .args(["-s", dir.join("vol-v.lock").to_str().unwrap(), "-c", "echo locked; cat >/dev/null"])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        std::io::Read::read_exact(other.stdout.as_mut().unwrap(), &mut [0; 7]).unwrap();
        let device = lab
            .attach(&Shelf::open(&dir, &lab.host).unwrap(), "v", "a", 1)
            .expect("nodes do not wait for each other");
        lab.detach(&device);
        let (answer, answered) = mpsc::channel();
        let asked = target.clone();
        lab.runtime.spawn(async move { answer.send(asked.revoke(&revocation("v", "a", 1)).await) });
        let early = answered.recv_timeout(std::time::Duration::from_millis(300));
        assert!(early.is_err(), "confirmed while somebody attaches: {early:?}");
        drop(other.stdin.take());
        other.wait().unwrap();
        answered.recv().unwrap().unwrap();
    });
}

/// A controller that has lost its record of who is in would let a second writer in at an epoch that is high enough.
#[test]
fn a_grant_that_does_not_go_with_who_is_in_is_refused_whatever_its_epoch() {
    lab("access::a_grant_that_does_not_go_with_who_is_in_is_refused_whatever_its_epoch", &[], |lab| {
        let (target, dir) = one_volume(lab);
        let asks = |to: &str, epoch, share, write, beside: Option<u64>| {
            let mode = Mode { write, frontend: true, share };
            let wanted = Grant { mode, beside: beside.map(Epoch::new), ..grant("v", to, epoch) };
            lab.runtime.block_on(target.allow(&wanted))
        };
        asks("a", 5, Share::Nobody, true, None).unwrap();
        for (to, share, write, beside) in [
            ("b", Share::Nobody, true, None),
            ("b", Share::Writers, true, None),
            ("b", Share::Readers, false, None),
            ("b", Share::Nobody, true, Some(4)),
            ("a", Share::Nobody, true, None),
        ] {
            let refused = asks(to, 6, share, write, beside).unwrap_err();
            assert!(
                matches!(&refused, TargetError::Refused { error } if error.contains("node a can still reach volume v at epoch 5")),
                "{refused:?}"
            );
            assert_eq!(epochs(lab, &target), [5]);
        }
        asks("b", 6, Share::Nobody, true, Some(5)).expect("the other node of a live migration");
        assert_eq!(epochs(lab, &target), [5, 6]);
        asks("c", 7, Share::Nobody, true, Some(6)).expect_err("never a third");
        let shelf = Shelf::open(&dir, &lab.host).unwrap();
        let device = lab.attach(&shelf, "v", "a", 5).unwrap();
        revoke(lab, &target, "b", 6).unwrap();
        revoke(lab, &target, "a", 5).expect_err("its device is there");
        asks("c", 8, Share::Nobody, true, None).expect_err("who is on the way out can still write");
        lab.detach(&device);
        revoke(lab, &target, "a", 5).unwrap();
        asks("c", 8, Share::Nobody, true, None).unwrap();
    });
}

#[test]
fn a_reader_is_told_to_read_only() {
    lab("access::a_reader_is_told_to_read_only", &[], |lab| {
        let (target, _) = one_volume(lab);
        let mut reader = grant("v", "a", 1);
        reader.mode.write = false;
        lab.runtime.block_on(target.allow(&reader)).unwrap();
        let device = lab.attach(&target, "v", "a", 1).unwrap();
        assert!(device.read_only);
        let other = lab.attach(&target, "v", "b", 1);
        assert!(matches!(other, Err(BackingError::NotGranted { .. })), "{other:?}");
        let unknown = lab.attach(&target, "w", "a", 1);
        assert!(matches!(unknown, Err(BackingError::Unknown(_))), "{unknown:?}");
        assert_eq!(target.backing(&volume("w")).unwrap(), None);
        lab.detach(&device);
    });
}

#[test]
fn one_process_has_the_directory_and_is_named_to_the_second() {
    lab("access::one_process_has_the_directory_and_is_named_to_the_second", &[], |lab| {
        let (_target, dir) = one_volume(lab);
        let pid = format!("pid {} ", std::process::id());
        match open(&dir, GENEROUS) {
            Err(OpenError::Locked { holder, .. }) => assert!(holder.starts_with(&pid), "{holder}"),
            other => panic!("two have it: {other:?}"),
        }
        assert!(matches!(
            Shelf::open(&lab.directory("empty"), &lab.host),
            Err(OpenError::NotADirectory { .. })
        ));
    });
}

/// A machine whose kernel is another one, or was started again.
fn another(lab: &Lab, boot: &str) -> Host {
    let proc = lab.path("proc");
    fs::create_dir_all(proc.join("sys/kernel/random")).unwrap();
    fs::write(proc.join("sys/kernel/random/boot_id"), boot).unwrap();
    Host { roots: Roots { proc, ..Roots::default() }, ..Host::default() }
}

#[test]
fn a_node_under_another_kernel_than_the_target_attaches_nothing() {
    lab("access::a_node_under_another_kernel_than_the_target_attaches_nothing", &[], |lab| {
        let (target, dir) = one_volume(lab);
        allow(lab, &target, "a", 1).unwrap();
        let elsewhere = Shelf::open(&dir, &another(lab, "another\n")).unwrap();
        let attach =
            |shelf: &Shelf| shelf.with_grant(&volume("v"), &node("a"), Epoch::new(1), &mut |_, _| {});
        let refused = attach(&elsewhere);
        assert!(
            matches!(&refused, Err(BackingError::Unreadable { error }) if error.contains("another machine")),
            "{refused:?}"
        );
        attach(&Shelf::open(&dir, &lab.host).unwrap()).expect("under the target's own kernel");
        // As an older version left it, which says nothing of kernels.
        fs::write(dir.join("directory.lock"), "pid 1 (bowline), since yesterday\n").unwrap();
        attach(&Shelf::open(&dir, &lab.host).unwrap()).expect_err("the target does not say where it is");
        drop(target);
        let _target = lab.open(&dir);
        attach(&Shelf::open(&dir, &lab.host).unwrap()).expect("a new start says it");
    });
}

#[test]
fn a_directory_comes_from_another_machine_only_when_nobody_can_have_a_device_there() {
    lab(
        "access::a_directory_comes_from_another_machine_only_when_nobody_can_have_a_device_there",
        &["mkfs.ext4"],
        |lab| {
            let (target, made) = one_volume(lab);
            let come = |fs_type: &str, name: &str, kernel: &str| {
                let dir = lab.path(&format!("on-{fs_type}")).join(name);
                run("cp", &[&"-r", &made, &dir]);
                let lock = dir.join("directory.lock");
                let text = fs::read_to_string(&lock).unwrap();
                fs::write(&lock, format!("{}\n{kernel}", text.lines().next().unwrap())).unwrap();
                (open(&dir, GENEROUS), dir)
            };
            // Nobody says of ramfs that one kernel has it for itself, as of what is on a network.
            let kinds = [("ramfs", false), ("ext4", true)];
            for (fs_type, _) in kinds {
                lab.scratch(fs_type, 64);
                come(fs_type, "early", "kernel another\n").0.expect("nobody is let in");
            }
            allow(lab, &target, "a", 1).unwrap();
            // An earlier version said nothing of kernels.
            let late = [("late", "kernel another\n"), ("old", "")];
            for ((fs_type, local), (name, kernel)) in
                kinds.into_iter().flat_map(|kind| late.map(|how| (kind, how)))
            {
                let (opened, dir) = come(fs_type, name, kernel);
                match opened {
                    Ok(_) => assert!(local, "{fs_type}: node a may have a device on the other machine"),
                    Err(OpenError::Elsewhere { item, .. }) => {
                        assert!(!local && item == "volume v", "{fs_type}: {item}");
                        let text = fs::read_to_string(dir.join("directory.lock")).unwrap();
                        assert!(text.contains(kernel), "the next start must ask again: {text}");
                        fs::remove_file(dir.join("directory.lock")).unwrap();
                        open(&dir, GENEROUS).expect("somebody has said that the other machine is off");
                    }
                    Err(other) => panic!("{fs_type}: {other}"),
                }
            }
        },
    );
}

#[test]
fn a_directory_that_was_moved_or_restored_is_recognised() {
    lab("access::a_directory_that_was_moved_or_restored_is_recognised", &[], |lab| {
        let (target, dir) = one_volume(lab);
        allow(lab, &target, "a", 5).unwrap();
        drop(target);
        let (moved, copied) = (lab.path("moved"), lab.path("copied"));
        fs::rename(&dir, &moved).unwrap();
        // A backup that lost extended attributes, locks and the directory's own record.
        fs::create_dir(&copied).unwrap();
        for name in listed(&moved).iter().filter(|name| name.starts_with("vol-") && !name.ends_with(".lock"))
        {
            run("cp", &[&"--sparse=always", &"--no-preserve=all", &moved.join(name), &copied.join(name)]);
        }
        for place in [&moved, &copied] {
            let target = lab.open(place);
            let stored = lab.runtime.block_on(target.volume(&volume("v"))).unwrap().unwrap();
            assert_eq!((stored.size, stored.fault), (MIB, None));
            assert_eq!(epochs(lab, &target), [5]);
            assert!(matches!(allow(lab, &target, "b", 5), Err(TargetError::Refused { .. })));
            assert!(matches!(allow(lab, &target, "b", 4), Err(TargetError::NeverAgain(_))));
        }
    });
}
