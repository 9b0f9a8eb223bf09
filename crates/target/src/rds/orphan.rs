//! What lies on the device and no record knows of: found here, and told when it has been so for long enough. Nothing is removed here.

use super::disk::{Disk, StoredFile};
use super::fault::Fault;
use super::name::Names;
use crate::Item;
use bowline_core::{Timestamp, VolumeId};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// A volume, or a part of one, that no record knows of. Never a snapshot: it may be the last copy of something. Never what another
/// installation has made, and never what somebody is let in to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Orphan {
    /// A disk with its file.
    Volume(VolumeId),
    /// A disk whose file is gone.
    DiskWithoutFile(VolumeId),
    /// A file whose disk is gone.
    FileWithoutDisk(VolumeId),
}

impl Orphan {
    /// Which volume it is, or was. To delete that removes all of it.
    pub fn volume(&self) -> &VolumeId {
        match self {
            Self::Volume(id) | Self::DiskWithoutFile(id) | Self::FileWithoutDisk(id) => id,
        }
    }
}

/// When an orphan may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// How long it must have been one, by the recorded time at which it was first seen.
    pub grace: Duration,
    /// How many may go in one run.
    pub at_most: usize,
}

/// What one run found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Run {
    /// When each orphan was first seen: to be recorded, and given to the next run. What is no orphan any more is not in it.
    pub first_seen: BTreeMap<Orphan, Timestamp>,
    /// Those whose time has come, the oldest first.
    pub ripe: Vec<Orphan>,
}

/// The orphans among what a device lists. `known` is what records know of, read *after* the lists: what is made meanwhile is in it.
pub(super) fn find(
    names: &Names,
    disks: &[Disk],
    files: &[StoredFile],
    known: &BTreeSet<VolumeId>,
) -> Result<BTreeSet<Orphan>, Fault> {
    let filed: BTreeSet<VolumeId> =
        files.iter().filter_map(|file| volume_of(names.owner(&file.name)?.0)).collect();
    // A disk of anybody's in the slot keeps the file, also one that is not understood.
    let slots: BTreeSet<&str> = disks.iter().map(|disk| disk.slot.as_str()).collect();
    let mut found = BTreeSet::new();
    for disk in disks {
        let Some(seen) = names.seen(disk)? else { continue };
        let Some(id) = volume_of(seen.item).filter(|id| !seen.export && !known.contains(id)) else {
            continue;
        };
        found.insert(if filed.contains(&id) { Orphan::Volume(id) } else { Orphan::DiskWithoutFile(id) });
    }
    let alone = filed.into_iter().filter(|id| !slots.contains(id.as_str()) && !known.contains(id));
    found.extend(alone.map(Orphan::FileWithoutDisk));
    Ok(found)
}

fn volume_of(item: Item) -> Option<VolumeId> {
    match item {
        Item::Volume(id) => Some(id),
        Item::Snapshot(_) => None,
    }
}

/// Which orphans may go now, given when each was first seen.
pub fn due(
    found: &BTreeSet<Orphan>,
    before: &BTreeMap<Orphan, Timestamp>,
    now: Timestamp,
    rules: Rules,
) -> Run {
    let seen = |orphan: &Orphan| (orphan.clone(), before.get(orphan).copied().unwrap_or(now));
    let first_seen: BTreeMap<Orphan, Timestamp> = found.iter().map(seen).collect();
    let is_over = |since: Timestamp| since.checked_add(rules.grace).is_ok_and(|end| end <= now);
    let mut ripe: Vec<_> = first_seen.iter().filter(|(_, since)| is_over(**since)).collect();
    ripe.sort_by_key(|(orphan, since)| (**since, *orphan));
    let ripe = ripe.into_iter().take(rules.at_most).map(|(orphan, _)| orphan.clone()).collect();
    Run { first_seen, ripe }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rds::disk::{disks, files};

    const DIGEST: &str = "0123456789abcdef";

    fn id(name: &str) -> VolumeId {
        VolumeId::new(name).unwrap()
    }

    fn disk(index: usize, slot: &str, name: &str, export: &str) -> String {
        format!(
            " {index} type=file slot=\"{slot}\" size=1 nvme-tcp-export={export} nvme-tcp-server-nqn=\"nqn.2026-01.storage.bowline:{name}\"\n"
        )
    }

    fn found(shown: &[(&str, &str, &str)], there: &[&str], known: &[&str]) -> Vec<Orphan> {
        let names = Names { installation: "lab-1".to_owned(), directory: "pool/dir".to_owned() };
        let text: String = shown
            .iter()
            .enumerate()
            .map(|(index, (slot, name, export))| disk(index, slot, name, export))
            .collect();
        let list: String =
            there.iter().enumerate().map(|(index, name)| format!(" {index} name={name}\n")).collect();
        let known = known.iter().map(|name| id(name)).collect();
        let found = find(&names, &disks(&text).unwrap(), &files(&list).unwrap(), &known).unwrap();
        found.into_iter().collect()
    }

    #[test]
    fn what_no_record_knows_is_found() {
        let file = |slot: &str| format!("pool/dir/{slot}.{DIGEST}.img");
        let (a, b, c) = (file("a"), file("b"), file("c"));
        let shown = [("a", "lab-1:a:c3", "no"), ("b", "lab-1:b:c0", "no"), ("d", "lab-1:d:c0", "no")];
        assert_eq!(
            found(&shown, &[&a, &b, &c], &["a"]),
            [Orphan::Volume(id("b")), Orphan::DiskWithoutFile(id("d")), Orphan::FileWithoutDisk(id("c"))]
        );
        assert_eq!(found(&shown, &[&a, &b, &c], &["a", "b", "c", "d"]), []);
        assert_eq!(
            found(&[("m", "lab-1:m:m0", "no")], &[], &[]),
            [Orphan::DiskWithoutFile(id("m"))],
            "a copy half made"
        );
    }

    #[test]
    fn the_orphan_reconciler_deleted_snapshots() {
        let (snap, odd) = (format!("pool/dir/snap-1.{DIGEST}.img"), format!("pool/dir/snap-2.{DIGEST}.img"));
        let shown = [("snap-1", "lab-1:a:s5", "no"), ("snap-3", "lab-1:a:m5", "no")];
        assert_eq!(found(&shown, &[&snap, &odd], &[]), []);
    }

    #[test]
    fn what_others_have_or_somebody_uses_is_no_orphan() {
        let foreign = format!("pool/elsewhere/x.{DIGEST}.img");
        let taken = format!("pool/dir/theirs.{DIGEST}.img");
        let shown = [
            ("a", "lab-2:a:c3", "no"),
            ("pvc-1", "pvc-1", "no"),
            ("theirs", "lab-2:theirs:c0", "no"),
            ("used", "lab-1:wfn:node:used:e3", "yes"),
        ];
        assert_eq!(found(&shown, &[&foreign, &taken, "pool/dir/pvc-1.img", "pool/dir"], &[]), []);
    }

    #[test]
    fn an_orphan_goes_after_its_grace_period_by_the_recorded_time() {
        let at = |seconds: i64| Timestamp::new(seconds, 0).unwrap();
        let rules = Rules { grace: Duration::from_secs(100), at_most: 1 };
        let both: BTreeSet<_> = [Orphan::Volume(id("a")), Orphan::Volume(id("b"))].into();
        let first = due(&both, &BTreeMap::new(), at(1000), rules);
        assert_eq!(first.ripe, [], "just seen");
        let second = due(&both, &first.first_seen, at(1099), rules);
        assert_eq!(
            (second.ripe.len(), &second.first_seen),
            (0, &first.first_seen),
            "a restart forgets nothing"
        );
        let third = due(&both, &second.first_seen, at(1100), rules);
        assert_eq!(third.ripe, [Orphan::Volume(id("a"))], "one in a run");
        let gone = due(&BTreeSet::new(), &third.first_seen, at(1101), rules);
        assert_eq!(gone, Run::default());
        let back = due(&both, &gone.first_seen, at(1102), rules);
        assert_eq!(back.ripe, [], "its time begins anew");
        assert_eq!(due(&both, &back.first_seen, at(0), rules).ripe, [], "a clock that was set back");
    }
}
