//! Which device is a volume's?

use crate::tree::Tree;
use crate::{machine, nvme};
use bowline_core::ONLY_NAMESPACE;
use bowline_host::nvme::{ControllerState, Kernel, Nvme, NvmeError, WriteError};
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

const MULTIPATH: &str = include_str!("trees/multipath.txt");
const PLAIN: &str = include_str!("trees/plain.txt");
const ODD: &str = include_str!("trees/odd.txt");

const A: (&str, &str) = ("nqn.2026-01.storage.bowline:s:a:e1", "aaaaaaaa-0000-8000-8000-00000000000a");
const B: (&str, &str) = ("nqn.2026-01.storage.bowline:s:b:e7", "bbbbbbbb-0000-8000-8000-00000000000b");
const C: (&str, &str) = ("nqn.2026-01.storage.bowline:s:c:e2", "cccccccc-0000-8000-8000-00000000000c");

/// A kernel to which nobody may write.
struct Untouched;

impl Kernel for Untouched {
    fn write(&self, file: &Path, text: &str, _: Duration) -> Result<String, WriteError> {
        panic!("{text} was written to {}", file.display())
    }

    fn answers(&self, address: SocketAddr, _: Duration) -> io::Result<()> {
        panic!("{address} was asked")
    }
}

fn reader(tree: &Tree) -> Nvme {
    nvme(tree, Arc::new(Untouched))
}

/// The name of the device, if there is one.
fn found(nvme: &Nvme, (nqn, namespace): (&str, &str)) -> Option<String> {
    let node = nvme.resolve(nqn, namespace).unwrap()?;
    Some(format!("{} {}", node.path.file_name().unwrap().to_str().unwrap(), node.number.minor))
}

#[test]
fn the_disk_of_another_subsystem_is_not_picked_by_the_number_of_a_controller() {
    for (tree, expected) in [
        (MULTIPATH, [(A, "nvme1n1 3"), (B, "nvme2n1 5"), (C, "nvme3n2 9")].as_slice()),
        (PLAIN, &[(A, "nvme5n1 1"), (B, "nvme1n1 2")]),
    ] {
        let Some(tree) = machine(tree) else { return };
        let nvme = reader(&tree);
        for _ in 0..2 {
            for (volume, device) in expected {
                assert_eq!(found(&nvme, *volume).as_deref(), Some(*device), "{volume:?}");
            }
        }
        assert_eq!(found(&nvme, (A.0, B.1)), None, "the right subsystem and another's namespace");
        let other = ("nqn.2026-01.storage.bowline:s:a:e2", A.1);
        assert_eq!(found(&nvme, other), None, "another epoch is another disk");
    }
}

#[test]
fn where_no_uuid_could_be_set_the_only_namespace_is_taken_and_of_several_none() {
    let Some(tree) = machine(MULTIPATH) else { return };
    let nvme = reader(&tree);
    for _ in 0..2 {
        assert_eq!(found(&nvme, (A.0, ONLY_NAMESPACE)).as_deref(), Some("nvme1n1 3"));
    }
    let Some(tree) = machine(ODD) else { return };
    let (nvme, disks) = (reader(&tree), "nqn.2026-01.storage.bowline:s:disks:e1");
    assert_eq!(found(&nvme, (disks, ONLY_NAMESPACE)), None, "it has three");
}

#[test]
fn a_subsystem_is_seen_with_its_connections() {
    let Some(tree) = machine(MULTIPATH) else { return };
    let nvme = reader(&tree);
    assert!(nvme.is_multipath());
    let all = nvme.subsystems(|_| true).unwrap();
    assert_eq!(all.iter().map(|one| one.nqn.as_str()).collect::<Vec<_>>(), [A.0, B.0, C.0]);
    let states: Vec<_> = all.iter().flat_map(|one| &one.controllers).map(|one| one.state.clone()).collect();
    let [live, connecting, dead] =
        [ControllerState::Live, ControllerState::Connecting, ControllerState::Dead];
    assert_eq!(states, [live.clone(), connecting, live, dead]);
    let addresses: Vec<_> =
        all[0].controllers.iter().map(|one| one.address.clone().unwrap().traddr).collect();
    assert_eq!(addresses, ["10.0.0.1", "10.0.1.1"]);
    assert_eq!(all[1].controllers[0].host_nqn, "nqn.2014-08.org.nvmexpress:uuid:host-b");
    assert!(all[1].namespaces[0].read_only && !all[0].namespaces[0].read_only);
    let Some(plain) = machine(PLAIN) else { return };
    assert!(!reader(&plain).is_multipath());
}

#[test]
fn what_is_odd_is_not_a_device() {
    let Some(tree) = machine(ODD) else { return };
    let nvme = reader(&tree);
    let all = nvme.subsystems(|_| true).unwrap();
    let seen = |name: &str| {
        let nqn = format!("nqn.2026-01.storage.bowline:s:{name}:e1");
        all.iter().find(|one| one.nqn == nqn).unwrap().clone()
    };
    assert_eq!(all.len(), 7, "{all:?}");
    let twice = nvme.subsystem("nqn.2026-01.storage.bowline:s:twice:e1").unwrap().unwrap();
    assert_eq!(twice.controllers.len(), 1, "not the ones that are only held");
    assert!(seen("held").controllers.is_empty() && seen("held").namespaces.is_empty());
    assert_eq!(seen("orphan").controllers[0].state, ControllerState::Deleting);
    assert_eq!(seen("orphan").controllers[0].address, None);
    assert!(seen("moved").controllers.is_empty(), "the controller is another subsystem's by now");
    assert_eq!(seen("disks").namespaces.len(), 3);
    let disks = &seen("disks").nqn;
    for index in 1..=6 {
        let uuid = format!("00000000-0000-8000-8000-00000000000{index}");
        assert_eq!(found(&nvme, (disks, &uuid)), None, "{index}");
    }
}

#[test]
fn foreign_subsystems_are_never_touched() {
    let Some(tree) = machine(MULTIPATH) else { return };
    let nvme = reader(&tree);
    let root = "nqn.2019-08.org.qemu:root";
    let foreign = |answer: Result<(), NvmeError>| matches!(answer, Err(NvmeError::Foreign { .. }));
    assert!(foreign(nvme.disconnect(root, "")));
    assert!(foreign(nvme.resolve(root, "0a0a0a0a-0000-8000-8000-000000000000").map(drop)));
    assert!(foreign(nvme.rescan(root, "", 1).map(drop)));
    // Ours, and connected by somebody else: nothing is written.
    nvme.disconnect(A.0, "nqn.2014-08.org.nvmexpress:uuid:host-b").unwrap();
}

/// Volume a and volume b get each other's names and numbers, as after both were reconnected.
fn swap(tree: &Tree) {
    let subsystem = |number: u32| format!("sys/devices/virtual/nvme-subsystem/nvme-subsys{number}");
    for (number, (nqn, uuid)) in [(1, B), (2, A)] {
        fs::write(tree.at(&format!("{}/subsysnqn", subsystem(number))), nqn).unwrap();
        let disk = format!("{}/nvme{number}n1", subsystem(number));
        fs::write(tree.at(&format!("{disk}/uuid")), uuid).unwrap();
        // A subsystem that is made has a link of its own, also where there was one of that name.
        let (link, made) =
            (tree.at(&format!("sys/class/nvme-subsystem/nvme-subsys{number}")), tree.at("made"));
        symlink(fs::read_link(&link).unwrap(), &made).unwrap();
        fs::rename(made, link).unwrap();
    }
    for (controller, (nqn, _)) in [(1, B), (4, B), (3, A)] {
        let file = format!("sys/devices/virtual/nvme-fabrics/ctl/nvme{controller}/subsysnqn");
        fs::write(tree.at(&file), nqn).unwrap();
    }
}

#[test]
fn a_name_that_moved_to_another_volume_is_not_taken_from_the_cache() {
    let Some(tree) = machine(MULTIPATH) else { return };
    let nvme = reader(&tree);
    assert_eq!(found(&nvme, A).as_deref(), Some("nvme1n1 3"));
    assert_eq!(found(&nvme, B).as_deref(), Some("nvme2n1 5"));
    swap(&tree);
    assert_eq!(found(&nvme, A).as_deref(), Some("nvme2n1 5"));
    assert_eq!(found(&nvme, B).as_deref(), Some("nvme1n1 3"));
}

/// `nvme-subsys1` was seen as that of volume a when b was looked for, and is b's when b is looked for again.
#[test]
fn a_subsystem_that_took_the_name_of_another_is_found() {
    let Some(tree) = machine(MULTIPATH) else { return };
    let nvme = reader(&tree);
    let name_of = |nqn: &str| {
        let found = nvme.subsystem(nqn).unwrap().unwrap();
        found.namespaces.iter().map(|one| one.name.clone()).collect::<Vec<_>>()
    };
    assert_eq!(name_of(B.0), ["nvme2n1"]);
    swap(&tree);
    assert_eq!((name_of(B.0), name_of(A.0)), (vec!["nvme1n1".to_owned()], vec!["nvme2n1".to_owned()]));
    for number in [1, 2] {
        fs::remove_file(tree.at(&format!("sys/class/nvme-subsystem/nvme-subsys{number}"))).unwrap();
    }
    assert_eq!((nvme.subsystem(A.0).unwrap(), nvme.subsystem(B.0).unwrap()), (None, None));
}

#[test]
fn a_cached_device_is_proven_again_in_every_way() {
    let disk = "sys/devices/virtual/nvme-subsystem/nvme-subsys1/nvme1n1";
    for (file, content) in [
        ("sys/devices/virtual/nvme-subsystem/nvme-subsys1/subsysnqn", Some("nqn.other")),
        (&format!("{disk}/uuid"), Some("00000000-0000-8000-8000-000000000000")),
        ("dev/nvme1n1", None),
        ("dev/nvme1n1", Some("a file")),
    ] {
        let Some(tree) = machine(MULTIPATH) else { return };
        let nvme = reader(&tree);
        assert!(found(&nvme, A).is_some());
        fs::remove_file(tree.at(file)).unwrap();
        if let Some(content) = content {
            fs::write(tree.at(file), content).unwrap();
        }
        assert_eq!(found(&nvme, A), None, "{file} {content:?}");
    }
}
