//! A loss of power: what was synced is there, and of what was written since, anything.

use crate::lab::{GENEROUS, Lab, MIB, grant, lab, node, open, order, revocation, volume};
use crate::watched::Watched;
use bowline_core::{Epoch, NeverAgain};
use bowline_target::file::FileTarget;
use bowline_target::{BackingError, BackingFiles, Provision, Target, TargetError};
use bowline_testkit::Dice;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

const NODES: [&str; 3] = ["a", "b", "c"];
/// What a disk writes whole.
const SECTOR: usize = 512;
const RECORD: &str = "vol-v.json";
const RECENT: &str = "vol-v.recent";
/// Where in that file closings begin, and how long each is.
const CLOSINGS: usize = 2 * PLACE;
const PLACE: usize = 4096;

fn epochs(lab: &Lab, target: &FileTarget) -> BTreeSet<u64> {
    let page = lab.runtime.block_on(target.exports(None, 100)).unwrap();
    page.listings.iter().flat_map(|listing| listing.exports.keys().map(|epoch| epoch.number())).collect()
}

/// One command; says up to where it was told that what is not listed is closed.
fn deed(lab: &Lab, target: &FileTarget, dice: &mut Dice) -> Option<u64> {
    let who = dice.pick(&NODES);
    let newest = epochs(lab, target).last().copied().unwrap_or(1);
    let epoch = (newest + dice.below(4)).saturating_sub(1).max(1);
    match dice.below(8) {
        0..5 => match lab.runtime.block_on(target.allow(&grant("v", who, epoch))) {
            Err(TargetError::NeverAgain(NeverAgain { highest })) => Some(highest.number()),
            // In use: by what a process that died was about to shut out.
            Ok(()) | Err(TargetError::Refused { .. } | TargetError::InUse { .. }) => None,
            other => panic!("{other:?}"),
        },
        5..7 => {
            let NeverAgain { highest } =
                lab.runtime.block_on(target.revoke(&revocation("v", who, epoch))).unwrap();
            Some(highest.number())
        }
        _ => {
            let size = lab.runtime.block_on(target.volume(&volume("v"))).unwrap().unwrap().size;
            lab.runtime.block_on(target.grow(&volume("v"), size + MIB)).unwrap();
            None
        }
    }
}

/// A file of which every sector is as some write left it, or, if it was never flushed, as none did.
fn torn(versions: &[Vec<u8>], is_flushed: bool, dice: &mut Dice) -> Vec<u8> {
    let longest = versions.iter().map(Vec::len).max().unwrap_or_default();
    let mut bytes = vec![0; longest];
    let choices = versions.len() as u64 + u64::from(!is_flushed);
    let mut version = dice.below(choices);
    for (index, sector) in bytes.chunks_mut(SECTOR).enumerate() {
        if dice.below(6) == 0 {
            version = dice.below(choices);
        }
        let written = versions.get(usize::try_from(version).unwrap());
        let written = written.and_then(|bytes| bytes.get(index * SECTOR..(index + 1) * SECTOR));
        if let Some(written) = written {
            sector.copy_from_slice(written);
        }
    }
    if !is_flushed {
        bytes.truncate(longest.saturating_sub(usize::try_from(dice.below(3)).unwrap() * 4000));
    }
    bytes
}

/// A file as it was flushed when something was closed in it; the copy in the other place came later.
fn flushed(before: &[u8], after: &[u8]) -> Option<Vec<u8>> {
    if before[CLOSINGS..] == after[CLOSINGS..] {
        return None;
    }
    let text = String::from_utf8_lossy(&after[CLOSINGS..]);
    let count: usize = text.split("\"count\":").nth(1)?.split(',').next()?.parse().ok()?;
    let mut flushed = after.to_vec();
    let other = CLOSINGS + (1 - count % 2) * PLACE;
    flushed[other..other + PLACE].copy_from_slice(&before[other..other + PLACE]);
    Some(flushed)
}

/// Starts on what the loss of power left, and asks for everything that was closed.
fn nothing_closed_is_open(lab: &Lab, dir: &Path, closed: &BTreeSet<u64>, what: &str) {
    let target = open(dir, GENEROUS).unwrap();
    let open: Vec<_> = epochs(lab, &target).intersection(closed).copied().collect();
    assert_eq!(open, [0; 0], "{what}: listed again");
    for (epoch, who) in closed.iter().flat_map(|epoch| NODES.map(|who| (*epoch, who))) {
        let mut reached = false;
        let granted =
            target.with_grant(&volume("v"), &node(who), Epoch::new(epoch), &mut |_, _| reached = true);
        assert!(
            matches!(granted, Err(BackingError::NotGranted { .. })),
            "{what}: {epoch} for {who}: {granted:?}"
        );
        assert!(!reached);
    }
    for epoch in closed {
        let late = lab.runtime.block_on(target.allow(&grant("v", "a", *epoch)));
        assert!(matches!(late, Err(TargetError::NeverAgain(_))), "{what}: {epoch} again: {late:?}");
    }
}

/// A disk under the records of one volume, and what may be on it.
struct Disk<'a> {
    lab: &'a Lab,
    dir: PathBuf,
    after: PathBuf,
    /// What was in the pages since they were flushed.
    versions: Vec<Vec<u8>>,
    is_flushed: bool,
    /// What somebody was told to be closed.
    closed: BTreeSet<u64>,
}

impl<'a> Disk<'a> {
    /// With a volume that somebody has just made.
    fn new(lab: &'a Lab, dir: &Path) -> Self {
        let after = dir.with_extension("after");
        fs::create_dir(&after).unwrap();
        let versions = vec![fs::read(dir.join(RECENT)).unwrap()];
        Self { lab, dir: dir.to_owned(), after, versions, is_flushed: false, closed: BTreeSet::new() }
    }

    fn record(&self) -> Vec<u8> {
        fs::read(self.dir.join(RECORD)).unwrap()
    }

    /// Takes note of what a deed has left in the pages; says whether it has closed something in place.
    fn is_closed_in_place(&mut self, dice: &mut Dice, when: &str) -> bool {
        let now = fs::read(self.dir.join(RECENT)).unwrap();
        let flushed = flushed(self.versions.last().unwrap(), &now);
        if let Some(flushed) = &flushed {
            // In the middle of it: what was told before is still closed. Then it is flushed, and so is all that was there before.
            self.versions.push(flushed.clone());
            self.lose_power(&self.record(), dice, &format!("{when}, while it is closed"));
            (self.versions, self.is_flushed) = (vec![flushed.clone()], true);
        }
        self.versions.push(now);
        flushed.is_some()
    }

    /// A loss of power, with this record on the disk: nothing that was told to be closed is open afterwards.
    fn lose_power(&self, record: &[u8], dice: &mut Dice, when: &str) {
        for name in ["directory.json", "vol-v.data"] {
            fs::copy(self.dir.join(name), self.after.join(name)).unwrap();
        }
        fs::write(self.after.join(RECORD), record).unwrap();
        fs::write(self.after.join(RECENT), torn(&self.versions, self.is_flushed, dice)).unwrap();
        nothing_closed_is_open(self.lab, &self.after, &self.closed, when);
    }

    /// Somebody was told that everything up to here is closed, but for what is open.
    fn told(&mut self, target: &FileTarget, highest: u64) {
        let open = epochs(self.lab, target);
        self.closed.extend((1..=highest).filter(|epoch| !open.contains(epoch)));
    }
}

#[test]
fn no_loss_of_power_opens_what_was_told_to_be_closed() {
    lab("power::no_loss_of_power_opens_what_was_told_to_be_closed", &[], |lab| {
        let (mut kept, mut in_place, mut whole) = (0, 0, 0);
        for seed in 1..=30 {
            let mut dice = Dice::new(seed);
            let dir = lab.path(&format!("volumes-{seed}"));
            let mut target = lab.open(&dir);
            lab.create(&target, &order("v", MIB, None)).unwrap();
            let mut disk = Disk::new(lab, &dir);
            for step in 0..25 {
                if dice.below(8) == 0 {
                    drop(target);
                    target = lab.open(&dir);
                }
                let (when, record) = (format!("seed {seed}, step {step}"), disk.record());
                let highest = deed(lab, &target, &mut dice);
                in_place += usize::from(disk.is_closed_in_place(&mut dice, &when));
                if let Some(highest) = highest {
                    disk.told(&target, highest);
                    whole += usize::from(record != disk.record());
                }
                disk.lose_power(&disk.record(), &mut dice, &format!("{when}, after it"));
                kept +=
                    usize::from(epochs(lab, &open(&disk.after, GENEROUS).unwrap()) == epochs(lab, &target));
            }
        }
        let tried =
            format!("of 750 {kept} kept every grant, {in_place} closed in place, {whole} with the record");
        assert!(kept > 100 && in_place > 50 && whole > 20, "hardly anything was tried: {tried}");
    });
}

/// What is noted before a fence over the network begins is flushed by nobody, and its process may die in the fence. What the next one notes
/// must not take the place of all that says what was told.
#[test]
fn no_death_and_no_loss_of_power_in_a_fence_opens_what_was_told_to_be_closed() {
    lab("power::no_death_and_no_loss_of_power_in_a_fence_opens_what_was_told_to_be_closed", &[], |lab| {
        // Nothing here rests on what its filesystem makes of a flush.
        let place = lab.scratch("tmpfs", 256);
        let (mut noted, mut stored, mut deaths) = (0, 0, 0);
        for seed in 1..=20 {
            let mut dice = Dice::new(seed);
            let dir = place.join(format!("volumes-{seed}"));
            let kernel = Watched::new(dir.with_extension("nvmet"), dir.join(RECORD), dir.join(RECENT));
            let mut target = kernel.open(&dir);
            lab.create(&target, &order("v", MIB, None)).unwrap();
            let mut disk = Disk::new(lab, &dir);
            for step in 0..25 {
                if dice.below(20) == 0 {
                    drop(target);
                    target = kernel.open(&dir);
                }
                let (when, record) = (format!("seed {seed}, step {step}"), disk.record());
                let highest = deed(lab, &target, &mut dice);
                if let Some(fence) = kernel.seen() {
                    noted += usize::from(fence.recent != *disk.versions.last().unwrap());
                    stored += usize::from(fence.record != record);
                    disk.versions.push(fence.recent.clone());
                    for _ in 0..2 {
                        disk.lose_power(&fence.record, &mut dice, &format!("{when}, in the fence"));
                    }
                    if dice.below(3) == 0 {
                        // Its process dies there, and what came afterwards never was.
                        deaths += 1;
                        drop(target);
                        fs::write(dir.join(RECORD), fence.record).unwrap();
                        fs::write(dir.join(RECENT), fence.recent).unwrap();
                        target = kernel.open(&dir);
                        continue;
                    }
                }
                disk.is_closed_in_place(&mut dice, &when);
                if let Some(highest) = highest {
                    disk.told(&target, highest);
                }
                disk.lose_power(&disk.record(), &mut dice, &format!("{when}, after it"));
            }
        }
        let tried = format!("{noted} fences noted, {stored} stored with the record, {deaths} deaths in one");
        assert!(noted > 20 && stored > 10 && deaths > 40, "hardly anything was tried: {tried}");
    });
}

#[test]
fn a_note_after_a_death_in_a_fence_does_not_spoil_the_only_copy_of_what_was_told() {
    lab("power::a_note_after_a_death_in_a_fence_does_not_spoil_the_only_copy_of_what_was_told", &[], |lab| {
        let dir = lab.path("volumes");
        let kernel = Watched::new(lab.path("nvmet"), dir.join(RECORD), dir.join(RECENT));
        let target = kernel.open(&dir);
        lab.create(&target, &order("v", MIB, None)).unwrap();
        for (who, epoch) in [("a", 1), ("b", 2), ("c", 3)] {
            lab.runtime.block_on(target.allow(&grant("v", who, epoch))).unwrap();
        }
        let mut disk = Disk::new(lab, &dir);
        let revoke = |target: &FileTarget, who: &str, epoch| {
            lab.runtime.block_on(target.revoke(&revocation("v", who, epoch))).unwrap();
            kernel.seen().unwrap()
        };
        // Told, and flushed in the second place; the first is as it was.
        revoke(&target, "a", 1);
        disk.closed.insert(1);
        // Noted in the first place; then the process dies.
        let fence = revoke(&target, "b", 2);
        drop(target);
        fs::write(dir.join(RECORD), fence.record).unwrap();
        fs::write(dir.join(RECENT), fence.recent).unwrap();
        let target = kernel.open(&dir);
        let mut fence = revoke(&target, "c", 3);
        // Power is lost while the pages are written back: nothing of the first has arrived, and half of the second.
        fence.recent[CLOSINGS..CLOSINGS + PLACE].fill(0);
        fence.recent[CLOSINGS + PLACE + 100] ^= 1;
        (disk.versions, disk.is_flushed) = (vec![fence.recent], true);
        disk.lose_power(&fence.record, &mut Dice::new(1), "in the fence after the death");
    });
}

#[test]
fn a_write_that_was_interrupted_spoils_no_other_grant() {
    lab("power::a_write_that_was_interrupted_spoils_no_other_grant", &[], |lab| {
        let dir = lab.path("volumes");
        let target = lab.open(&dir);
        lab.create(&target, &order("v", MIB, None)).unwrap();
        let before = fs::read(dir.join(RECORD)).unwrap();
        for epoch in 1..=80_u64 {
            let told = fs::read(dir.join(RECENT)).unwrap_or_default();
            lab.runtime.block_on(target.allow(&grant("v", "a", epoch))).unwrap();
            let (written, record) =
                (fs::read(dir.join(RECENT)).unwrap(), fs::read(dir.join(RECORD)).unwrap());
            if record != before && written == told {
                // Too many for a place: the record has them all.
                fs::write(dir.join(RECENT), b"").unwrap();
                assert_eq!(epochs(lab, &target), (1..=epoch).collect());
                return;
            }
            // The first half of it arrived.
            let changed = (0..written.len()).find(|at| told.get(*at) != Some(&written[*at])).unwrap();
            let place = changed / 4096 * 4096;
            let mut half = told.clone();
            half.resize(written.len(), 0);
            half[place..place + 100].copy_from_slice(&written[place..place + 100]);
            fs::write(dir.join(RECENT), half).unwrap();
            assert_eq!(epochs(lab, &target), (1..epoch).collect());
            fs::write(dir.join(RECENT), written).unwrap();
            assert_eq!(epochs(lab, &target), (1..=epoch).collect());
        }
        panic!("eighty grants fit into one place");
    });
}

#[test]
fn grants_of_an_earlier_volume_of_the_same_id_let_nobody_in() {
    lab("power::grants_of_an_earlier_volume_of_the_same_id_let_nobody_in", &[], |lab| {
        let dir = lab.path("volumes");
        let target = lab.open(&dir);
        lab.create(&target, &order("v", MIB, None)).unwrap();
        lab.runtime.block_on(target.allow(&grant("v", "a", 7))).unwrap();
        let left = fs::read(dir.join(RECENT)).unwrap();
        lab.runtime.block_on(target.revoke(&revocation("v", "a", 7))).unwrap();
        lab.runtime.block_on(target.delete(&volume("v"))).unwrap();
        assert!(!dir.join(RECENT).exists());
        fs::write(dir.join(RECENT), &left).unwrap();
        lab.create(&target, &order("v", MIB, None)).unwrap();
        assert_ne!(fs::read(dir.join(RECENT)).unwrap(), left);
        fs::write(dir.join(RECENT), left).unwrap();
        assert_eq!(epochs(lab, &target), BTreeSet::new());
    });
}

/// What a loss of power leaves of a file whose closings were never flushed.
fn without_closings(path: &Path) {
    let mut bytes = fs::read(path).unwrap();
    bytes[CLOSINGS..].fill(0);
    fs::write(path, bytes).unwrap();
}

#[test]
fn what_a_process_that_died_has_closed_is_stored_again_before_it_is_told() {
    lab("power::what_a_process_that_died_has_closed_is_stored_again_before_it_is_told", &[], |lab| {
        let dir = lab.path("volumes");
        let target = lab.open(&dir);
        lab.create(&target, &order("v", MIB, None)).unwrap();
        lab.runtime.block_on(target.allow(&grant("v", "a", 1))).unwrap();
        let before = fs::read(dir.join(RECORD)).unwrap();
        lab.runtime.block_on(target.revoke(&revocation("v", "a", 1))).unwrap();
        assert_eq!(fs::read(dir.join(RECORD)).unwrap(), before, "it is closed in place");
        drop(target);
        // Its last write may not have been flushed, for all that this one knows.
        let target = lab.open(&dir);
        for again in ["revoked", "allowed"] {
            match again {
                "revoked" => drop(lab.runtime.block_on(target.revoke(&revocation("v", "a", 1))).unwrap()),
                _ => drop(lab.runtime.block_on(target.allow(&grant("v", "a", 1))).unwrap_err()),
            }
            without_closings(&dir.join(RECENT));
            assert_eq!(epochs(lab, &target), BTreeSet::new(), "{again}");
        }
    });
}

#[test]
fn a_record_of_an_earlier_bowline_is_completed_before_anything_is_closed_in_place() {
    lab(
        "power::a_record_of_an_earlier_bowline_is_completed_before_anything_is_closed_in_place",
        &[],
        |lab| {
            let dir = lab.path("volumes");
            let target = lab.open(&dir);
            lab.create(&target, &order("v", MIB, None)).unwrap();
            drop(target);
            let record = fs::read_to_string(dir.join(RECORD)).unwrap();
            let (head, tail) = record.split_once(",\"closings\":{").unwrap();
            let (_, tail) = tail.split_once('}').unwrap();
            fs::write(dir.join(RECORD), summed(&format!("{head}{tail}"))).unwrap();
            let target = lab.open(&dir);
            for (epoch, in_place) in [(1, false), (2, true)] {
                lab.runtime.block_on(target.allow(&grant("v", "a", epoch))).unwrap();
                let before = fs::read(dir.join(RECORD)).unwrap();
                lab.runtime.block_on(target.revoke(&revocation("v", "a", epoch))).unwrap();
                assert_eq!(fs::read(dir.join(RECORD)).unwrap() == before, in_place, "epoch {epoch}");
            }
        },
    );
}

/// A record whose checksum fits again after it was changed.
fn summed(record: &str) -> String {
    let rest = &record["{\"crc32\":\"00000000".len()..];
    let step = |sum: u32| if sum & 1 == 1 { (sum >> 1) ^ 0xEDB8_8320 } else { sum >> 1 };
    let sum = !rest.bytes().fold(!0_u32, |sum, byte| (0..8).fold(sum ^ u32::from(byte), |sum, _| step(sum)));
    format!("{{\"crc32\":\"{sum:08x}{rest}")
}

#[test]
fn a_volume_without_its_places_lets_nobody_in() {
    lab("power::a_volume_without_its_places_lets_nobody_in", &[], |lab| {
        let dir = lab.path("volumes");
        let target = lab.open(&dir);
        lab.create(&target, &order("v", MIB, None)).unwrap();
        lab.runtime.block_on(target.allow(&grant("v", "a", 1))).unwrap();
        lab.runtime.block_on(target.revoke(&revocation("v", "a", 1))).unwrap();
        fs::remove_file(dir.join(RECENT)).unwrap();
        for epoch in [1, 2] {
            let told = lab.runtime.block_on(target.allow(&grant("v", "a", epoch)));
            let Err(TargetError::Refused { error }) = told else { panic!("{told:?}") };
            assert!(error.contains("vol-v.recent is missing"), "{error}");
        }
        assert_eq!(epochs(lab, &target), BTreeSet::new());
    });
}
