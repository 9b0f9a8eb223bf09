//! A loss of power: what was synced is there, and of what was written since, anything.

use crate::lab::{GENEROUS, Lab, MIB, grant, lab, node, open, order, revocation, volume};
use bowline_core::{Epoch, NeverAgain};
use bowline_target::file::FileTarget;
use bowline_target::{BackingError, BackingFiles, Provision, Target, TargetError};
use bowline_testkit::Dice;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

const NODES: [&str; 3] = ["a", "b", "c"];
/// What a disk writes whole.
const SECTOR: usize = 512;
const RECORD: &str = "vol-v.json";
const RECENT: &str = "vol-v.recent";

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
            Ok(()) | Err(TargetError::Refused { .. }) => None,
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

/// A file of which every sector is as some write left it, or as none did.
fn torn(versions: &[Vec<u8>], dice: &mut Dice) -> Vec<u8> {
    let longest = versions.iter().map(Vec::len).max().unwrap_or_default();
    let mut bytes = vec![0; longest];
    let mut version = dice.below(versions.len() as u64 + 1);
    for (index, sector) in bytes.chunks_mut(SECTOR).enumerate() {
        if dice.below(6) == 0 {
            version = dice.below(versions.len() as u64 + 1);
        }
        let written = versions.get(usize::try_from(version).unwrap());
        let written = written.and_then(|bytes| bytes.get(index * SECTOR..(index + 1) * SECTOR));
        if let Some(written) = written {
            sector.copy_from_slice(written);
        }
    }
    bytes.truncate(longest.saturating_sub(usize::try_from(dice.below(3)).unwrap() * 4000));
    bytes
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

#[test]
fn no_loss_of_power_opens_what_was_told_to_be_closed() {
    lab("power::no_loss_of_power_opens_what_was_told_to_be_closed", &[], |lab| {
        let mut kept = 0;
        for seed in 1..=30 {
            let mut dice = Dice::new(seed);
            let (dir, after) = (lab.path(&format!("volumes-{seed}")), lab.path(&format!("after-{seed}")));
            let target = lab.open(&dir);
            lab.create(&target, &order("v", MIB, None)).unwrap();
            fs::create_dir(&after).unwrap();
            let (mut closed, mut versions) = (BTreeSet::new(), Vec::new());
            for step in 0..25 {
                if let Some(highest) = deed(lab, &target, &mut dice) {
                    let open = epochs(lab, &target);
                    closed.extend((1..=highest).filter(|epoch| !open.contains(epoch)));
                }
                versions.extend(fs::read(dir.join(RECENT)).ok().filter(|now| versions.last() != Some(now)));
                for name in ["directory.json", RECORD, "vol-v.data"] {
                    fs::copy(dir.join(name), after.join(name)).unwrap();
                }
                fs::write(after.join(RECENT), torn(&versions, &mut dice)).unwrap();
                nothing_closed_is_open(lab, &after, &closed, &format!("seed {seed}, step {step}"));
                kept += usize::from(epochs(lab, &open(&after, GENEROUS).unwrap()) == epochs(lab, &target));
            }
        }
        assert!(kept > 100, "of 750 only {kept} kept every grant: hardly anything was tried");
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
