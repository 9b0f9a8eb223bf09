//! What is damaged says so, and nothing else suffers.

use crate::lab::{Lab, MIB, cut, grant, lab, listed, order, revocation, snapshot, volume};
use bowline_target::file::FileTarget;
use bowline_target::{BackingError, Item, Provision, ProvisionError, Target, TargetError};
use std::fs;
use std::path::Path;

fn three(lab: &Lab, dir: &Path) {
    let target = lab.open(dir);
    for id in ["a", "b", "good"] {
        lab.create(&target, &order(id, MIB, None)).unwrap();
        lab.runtime.block_on(target.allow(&grant(id, "n", 1))).unwrap();
        lab.runtime.block_on(target.revoke(&revocation(id, "m", 1))).unwrap();
    }
    lab.snapshot(&target, &[cut("s", "good")]).unwrap();
}

fn replace(path: &Path, from: &str, to: &str) {
    let text = fs::read_to_string(path).unwrap();
    assert!(text.contains(from), "{text}");
    fs::write(path, text.replace(from, to)).unwrap();
}

type Deed = fn(&Path);

/// What was done to volume `a`, and what must be said about it.
const ROWS: &[(&str, Deed, &str)] = &[
    ("no file", |dir| fs::remove_file(dir.join("vol-a.data")).unwrap(), "is missing"),
    (
        "short file",
        |dir| fs::File::options().write(true).open(dir.join("vol-a.data")).unwrap().set_len(4096).unwrap(),
        "has 4096 bytes, and its record says 1048576",
    ),
    (
        "other volume's file",
        |dir| fs::rename(dir.join("vol-b.data"), dir.join("vol-a.data")).unwrap(),
        "is labelled as that of volume b",
    ),
    (
        "a link",
        |dir| {
            fs::rename(dir.join("vol-a.data"), dir.join("elsewhere")).unwrap();
            std::os::unix::fs::symlink(dir.join("elsewhere"), dir.join("vol-a.data")).unwrap();
        },
        "vol-a.data: ",
    ),
    ("no record", |dir| fs::remove_file(dir.join("vol-a.json")).unwrap(), "record of volume a is missing"),
    (
        "empty record",
        |dir| fs::write(dir.join("vol-a.json"), "").unwrap(),
        "does not begin with its checksum",
    ),
    (
        "cut record",
        |dir| {
            let bytes = fs::read(dir.join("vol-a.json")).unwrap();
            fs::write(dir.join("vol-a.json"), &bytes[..bytes.len() / 2]).unwrap();
        },
        "its checksum does not match",
    ),
    (
        "epoch changed",
        |dir| replace(&dir.join("vol-a.json"), "\"highest\":0", "\"highest\":9"),
        "its checksum does not match",
    ),
    (
        "no places",
        |dir| fs::remove_file(dir.join("vol-a.recent")).unwrap(),
        "vol-a.recent is missing, so it cannot be told who was shut out",
    ),
    ("noise", |dir| fs::write(dir.join("vol-a.json"), [0xff, 0, 7]).unwrap(), "is not text"),
    (
        "other volume's record",
        |dir| {
            fs::copy(dir.join("vol-b.json"), dir.join("vol-a.json")).unwrap();
        },
        "it is about volume b",
    ),
    (
        "other directory's record",
        |dir| {
            fs::copy(dir.join("../foreign/vol-a.json"), dir.join("vol-a.json")).unwrap();
        },
        "it belongs to the directory",
    ),
];

fn told(lab: &Lab, target: &FileTarget, what: &str, words: &str) {
    let stored = lab.runtime.block_on(target.volume(&volume("a"))).unwrap().unwrap();
    assert!(stored.fault.as_ref().is_some_and(|fault| fault.contains(words)), "{what}: {stored:?}");
    let items = lab.runtime.block_on(target.items(None, 9)).unwrap();
    assert!(items.contains(&Item::Volume(volume("a"))), "{what}: it is listed: {items:?}");
    let allowed = lab.runtime.block_on(target.allow(&grant("a", "m", 9)));
    assert!(
        matches!(allowed, Err(TargetError::Refused { .. } | TargetError::Unreachable { .. })),
        "{what}: {allowed:?}"
    );
    let attached = lab.attach(target, "a", "n", 1);
    assert!(
        matches!(attached, Err(BackingError::Unreadable { .. } | BackingError::Unknown(_))),
        "{what}: {attached:?}"
    );
    let made = lab.create(target, &order("a", MIB, None));
    assert!(
        matches!(made, Err(ProvisionError::Damaged { .. } | ProvisionError::Unreachable { .. })),
        "{what}: {made:?}"
    );
    let cut = lab.snapshot(target, &[cut("t", "good"), cut("u", "a")]);
    assert!(cut.is_err(), "{what}: {cut:?}");
    let deleted = lab.runtime.block_on(target.delete(&volume("a")));
    assert!(deleted.is_err(), "{what}: nothing is deleted on a guess");
}

#[test]
fn damage_is_told_in_words_and_keeps_to_its_volume() {
    lab("damage::damage_is_told_in_words_and_keeps_to_its_volume", &[], |lab| {
        three(lab, &lab.path("foreign"));
        for (index, (what, damage, words)) in ROWS.iter().enumerate() {
            let dir = lab.path(&format!("volumes{index}"));
            three(lab, &dir);
            damage(&dir);
            let before = listed(&dir);
            for _ in 0..2 {
                let target = lab.open(&dir);
                told(lab, &target, what, words);
                let good = lab.runtime.block_on(target.volume(&volume("good"))).unwrap().unwrap();
                assert_eq!(good.fault, None, "{what}");
                assert_eq!(
                    lab.attach(&target, "good", "n", 1).map(|device| lab.detach(&device)),
                    Ok(()),
                    "{what}"
                );
                let kept = lab.runtime.block_on(target.stored_snapshot(&snapshot("s"))).unwrap().unwrap();
                assert_eq!(kept.fault, None, "{what}");
                let page = lab.runtime.block_on(target.exports(None, 9)).unwrap();
                assert!(page.listings.iter().any(|listing| listing.volume == volume("good")), "{what}");
            }
            let kept = |names: &[String]| {
                names.iter().filter(|name| !name.ends_with(".lock")).cloned().collect::<Vec<_>>()
            };
            assert_eq!(kept(&listed(&dir)), kept(&before), "{what}: everything stays for people to look at");
        }
    });
}

#[test]
fn a_volume_whose_file_is_missing_can_be_shut_and_deleted() {
    lab("damage::a_volume_whose_file_is_missing_can_be_shut_and_deleted", &[], |lab| {
        let dir = lab.path("volumes");
        three(lab, &dir);
        fs::remove_file(dir.join("vol-a.data")).unwrap();
        let target = lab.open(&dir);
        lab.runtime.block_on(target.revoke(&revocation("a", "n", 1))).unwrap();
        lab.runtime.block_on(target.delete(&volume("a"))).unwrap();
        assert_eq!(lab.runtime.block_on(target.volume(&volume("a"))).unwrap(), None);
    });
}

#[test]
fn what_others_keep_here_is_left_alone() {
    lab("damage::what_others_keep_here_is_left_alone", &[], |lab| {
        let dir = lab.directory("volumes");
        let names =
            ["vol-A.data", "vol-a.part~", "notes.txt", ".vol-a.part", "snap-.json", "cut.json", "vol_a.lock"];
        for name in names {
            fs::write(dir.join(name), "mine").unwrap();
        }
        fs::create_dir(dir.join("lost+found")).unwrap();
        three(lab, &dir);
        drop(lab.open(&dir));
        for name in names {
            assert_eq!(fs::read_to_string(dir.join(name)).unwrap(), "mine");
        }
        assert!(dir.join("lost+found").is_dir());
    });
}

#[test]
fn records_of_several_directories_without_an_owner_are_refused() {
    lab("damage::records_of_several_directories_without_an_owner_are_refused", &[], |lab| {
        let (one, other) = (lab.path("one"), lab.path("other"));
        three(lab, &one);
        three(lab, &other);
        for part in ["json", "data"] {
            fs::rename(other.join(format!("vol-a.{part}")), one.join(format!("vol-a.{part}"))).unwrap();
        }
        assert!(lab.open(&one).inner_fault(lab).contains("it belongs to the directory"));
        fs::remove_file(one.join("directory.json")).unwrap();
        let refused = crate::lab::open(&one, crate::lab::GENEROUS);
        assert!(refused.is_err_and(|error| error.to_string().contains("several directories")));
    });
}

trait Fault {
    fn inner_fault(&self, lab: &Lab) -> String;
}

impl Fault for FileTarget {
    fn inner_fault(&self, lab: &Lab) -> String {
        lab.runtime.block_on(self.volume(&volume("a"))).unwrap().unwrap().fault.unwrap_or_default()
    }
}
