//! Random deeds beside a model of what must be there, with restarts in between.

use crate::lab::{GENEROUS, Lab, MIB, Raw, lab, open, order, snapshot, volume};
use bowline_core::{SnapshotId, VolumeId};
use bowline_target::contract::provision::Bytes;
use bowline_target::file::FileTarget;
use bowline_target::{Cut, Item, Provision, ProvisionError, Source};
use bowline_testkit::Dice;
use std::collections::BTreeMap;
use std::path::Path;

/// What a volume or snapshot holds: the number at its head, and how long it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Held {
    size: u64,
    stamp: u64,
}

#[derive(Default)]
struct Model {
    volumes: BTreeMap<VolumeId, Held>,
    snapshots: BTreeMap<SnapshotId, (VolumeId, Held)>,
    /// Ids are used once.
    next: u64,
}

impl Model {
    fn pick(&self, dice: &mut Dice) -> VolumeId {
        let index = dice.below(self.volumes.len() as u64 + 1);
        let picked = self.volumes.keys().nth(usize::try_from(index).unwrap());
        picked.cloned().unwrap_or_else(|| volume("never-made"))
    }

    fn fresh(&mut self, kind: &str) -> String {
        self.next += 1;
        format!("{kind}{}", self.next)
    }
}

fn stamp_of(target: &FileTarget, id: &VolumeId) -> u64 {
    u64::from_le_bytes(Raw(target).read(id, 0, 8).try_into().unwrap())
}

fn create(lab: &Lab, target: &FileTarget, model: &mut Model, dice: &mut Dice) {
    let (source, held) = match dice.below(3) {
        0 => (None, Some(Held { size: MIB, stamp: 0 })),
        1 => {
            let from = model.pick(dice);
            let held = model.volumes.get(&from).copied();
            (Some(Source::Volume(from)), held)
        }
        _ => {
            let index = usize::try_from(dice.below(model.snapshots.len() as u64 + 1)).unwrap();
            let found = model.snapshots.iter().nth(index);
            let (id, held) =
                found.map_or((snapshot("never-taken"), None), |(id, (_, held))| (id.clone(), Some(*held)));
            (Some(Source::Snapshot(id)), held)
        }
    };
    let size = held.map_or(MIB, |held| held.size) + dice.below(3) * MIB;
    let order = order(&model.fresh("v"), size, source);
    for _ in 0..=dice.below(2) {
        match (lab.create(target, &order), held) {
            (Ok(made), Some(held)) => {
                assert_eq!(made, size);
                model.volumes.insert(order.volume.clone(), Held { size, ..held });
            }
            (Err(ProvisionError::Unknown { .. }), None) => {}
            other => panic!("{order:?}: {other:?}"),
        }
    }
}

fn snap(lab: &Lab, target: &FileTarget, model: &mut Model, dice: &mut Dice) {
    let mut cuts = Vec::new();
    for _ in 0..=dice.below(2) {
        let snapshot = snapshot(&model.fresh("s"));
        cuts.push(Cut { name: snapshot.to_string(), snapshot, volume: model.pick(dice) });
    }
    let known = cuts.iter().all(|cut| model.volumes.contains_key(&cut.volume));
    for _ in 0..=dice.below(2) {
        let taken = lab.snapshot(target, &cuts);
        assert!(taken.is_ok() == known, "{cuts:?}: {taken:?}");
    }
    for cut in cuts.into_iter().filter(|_| known) {
        let held = model.volumes[&cut.volume];
        model.snapshots.insert(cut.snapshot, (cut.volume, held));
    }
}

fn deed(lab: &Lab, target: &FileTarget, model: &mut Model, dice: &mut Dice) {
    match dice.below(7) {
        0 | 1 => create(lab, target, model, dice),
        2 => snap(lab, target, model, dice),
        3 => {
            let id = model.pick(dice);
            lab.runtime.block_on(target.delete(&id)).unwrap();
            model.volumes.remove(&id);
        }
        4 => {
            let id = model.snapshots.keys().next().cloned().unwrap_or_else(|| snapshot("never-taken"));
            lab.runtime.block_on(target.delete_snapshot(&id)).unwrap();
            model.snapshots.remove(&id);
        }
        5 => {
            let id = model.pick(dice);
            let size = MIB * (1 + dice.below(6));
            let grown = lab.runtime.block_on(target.grow(&id, size));
            match model.volumes.get_mut(&id) {
                Some(held) => {
                    held.size = held.size.max(size);
                    assert_eq!(grown, Ok(held.size));
                }
                None => assert!(matches!(grown, Err(ProvisionError::Unknown { .. })), "{grown:?}"),
            }
        }
        _ => {
            let id = model.pick(dice);
            if let Some(held) = model.volumes.get_mut(&id) {
                held.stamp = dice.below(u64::MAX);
                Raw(target).write(&id, 0, &held.stamp.to_le_bytes());
            }
        }
    }
}

fn compare(lab: &Lab, target: &FileTarget, model: &Model) {
    for (id, held) in &model.volumes {
        let stored = lab.runtime.block_on(target.volume(id)).unwrap().unwrap();
        assert_eq!((stored.size, stored.fault), (held.size, None), "{id}");
        assert_eq!(stamp_of(target, id), held.stamp, "{id}");
    }
    for (id, (of, held)) in &model.snapshots {
        let stored = lab.runtime.block_on(target.stored_snapshot(id)).unwrap().unwrap();
        assert_eq!((&stored.volume, stored.size, stored.fault), (of, held.size, None), "{id}");
    }
    let mut expected: Vec<_> = model.volumes.keys().cloned().map(Item::Volume).collect();
    expected.extend(model.snapshots.keys().cloned().map(Item::Snapshot));
    assert_eq!(lab.runtime.block_on(target.items(None, usize::MAX)).unwrap(), expected);
    let volumes: u64 = model.volumes.values().map(|held| held.size).sum();
    let promised = lab.runtime.block_on(target.capacity()).unwrap().promised;
    assert!(
        promised >= volumes && promised <= volumes + model.snapshots.len() as u64 * 8 * MIB,
        "{promised}"
    );
}

fn play(lab: &Lab, dir: &Path, seed: u64) {
    let (mut dice, mut model) = (Dice::new(seed), Model::default());
    let mut target = open(dir, GENEROUS).unwrap();
    for step in 0..120 {
        if dice.below(15) == 0 {
            drop(target);
            target = open(dir, GENEROUS).unwrap_or_else(|error| panic!("seed {seed}, step {step}: {error}"));
        }
        deed(lab, &target, &mut model, &mut dice);
        compare(lab, &target, &model);
    }
}

fn games(lab: &Lab, below: &Path) {
    for seed in 1..=4 {
        crate::lab::say(&format!("seed {seed}"));
        play(lab, &below.join(format!("v{seed}")), seed);
    }
}

#[test]
fn random_deeds_do_what_the_model_says_where_blocks_are_copied() {
    lab("random::random_deeds_do_what_the_model_says_where_blocks_are_copied", &[], |lab| {
        games(lab, &lab.scratch("tmpfs", 512));
    });
}

#[test]
fn random_deeds_do_what_the_model_says_where_blocks_are_shared() {
    lab("random::random_deeds_do_what_the_model_says_where_blocks_are_shared", &["mkfs.xfs"], |lab| {
        games(lab, &lab.scratch("xfs", 512));
    });
}
