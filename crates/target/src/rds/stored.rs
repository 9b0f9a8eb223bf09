//! What lies on the device and is this installation's, whole or in part.

use super::disk::{Disk, StoredFile};
use super::fault::Fault;
use super::name::Names;
use crate::Item;
use std::collections::BTreeSet;

/// The items among what a device lists: disks with or without their files, and files without their disks.
pub(super) fn items(names: &Names, disks: &[Disk], files: &[StoredFile]) -> Result<BTreeSet<Item>, Fault> {
    let mut items = BTreeSet::new();
    for disk in disks {
        items.extend(names.seen(disk)?.map(|seen| seen.item));
    }
    // A disk of anybody's in the slot keeps the file, also one that is not understood.
    let slots: BTreeSet<&str> = disks.iter().map(|disk| disk.slot.as_str()).collect();
    let owners = files.iter().filter_map(|file| Some(names.owner(&file.name)?.0));
    let alone = |item: &Item| super::name::slot(item).is_ok_and(|slot| !slots.contains(slot.as_str()));
    items.extend(owners.filter(alone));
    Ok(items)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rds::disk::{disks, files};
    use bowline_core::{SnapshotId, VolumeId};

    const DIGEST: &str = "0123456789abcdef";

    fn found(shown: &[(&str, &str)], there: &[&str]) -> Vec<Item> {
        let names = Names {
            installation: "lab-1".to_owned(),
            directory: "pool/dir".to_owned(),
            take_over: Some("pool/older".to_owned()),
        };
        let disk = |(index, (slot, name)): (usize, &(&str, &str))| {
            format!(
                " {index} type=file slot=\"{slot}\" size=1 nvme-tcp-export=no nvme-tcp-server-nqn=\"nqn.2026-01.storage.bowline:{name}\"\n"
            )
        };
        let text: String = shown.iter().enumerate().map(disk).collect();
        let list: String =
            there.iter().enumerate().map(|(index, name)| format!(" {index} name={name}\n")).collect();
        items(&names, &disks(&text).unwrap(), &files(&list).unwrap()).unwrap().into_iter().collect()
    }

    #[test]
    fn a_disk_without_its_file_and_a_file_without_its_disk_are_something() {
        let volume = |id: &str| Item::Volume(VolumeId::new(id).unwrap());
        let file = |slot: &str| format!("pool/dir/{slot}.{DIGEST}.img");
        let snapshot = Item::Snapshot(SnapshotId::new("1").unwrap());
        let shown = [("a", "lab-1:a:c3"), ("d", "lab-1:d:c0"), ("m", "lab-1:m:m0")];
        assert_eq!(
            found(&shown, &[&file("a"), &file("c"), &file("snap-1")]),
            [volume("a"), volume("c"), volume("d"), volume("m"), snapshot]
        );
    }

    #[test]
    fn what_others_have_is_nothing() {
        let foreign = format!("pool/elsewhere/x.{DIGEST}.img");
        let taken = format!("pool/dir/theirs.{DIGEST}.img");
        let shown = [("a", "lab-2:a:c3"), ("pvc-1", "pvc-1"), ("theirs", "lab-2:theirs:c0")];
        assert_eq!(found(&shown, &[&foreign, &taken, "pool/dir/pvc-1.img", "pool/dir"]), []);
    }
}
