//! Connecting, growing and disconnecting, with a kernel made of files.

use crate::tree::{Export, Fake, Tree};
use crate::{machine, nvme};
use bowline_core::{Epoch, MODEL, MODEL_OF_BLANK, NodeId, NvmeNames, VolumeId};
use bowline_host::nvme::{Login, Nvme, NvmeError};
use std::fs;
use std::sync::Arc;

fn login(volume: &str, epoch: u64, addresses: &[&str]) -> Login {
    let (volume, node) = (VolumeId::new(volume).unwrap(), NodeId::new("n").unwrap());
    Login {
        names: NvmeNames::new("s", &volume, &node, Epoch::new(epoch)),
        addresses: addresses.iter().map(|address| address.parse().unwrap()).collect(),
    }
}

/// A machine without a connection, and the ways to use it.
fn lab() -> Option<(Tree, Arc<Fake>, Nvme)> {
    // A node that is made here shows that nodes can be.
    let tree = machine("dev/probe b 259:99")?;
    let kernel = Arc::new(Fake::new(&tree));
    let nvme = nvme(&tree, Arc::clone(&kernel) as _);
    Some((tree, kernel, nvme))
}

fn export(kernel: &Fake, login: &Login, minor: u32) {
    let NvmeNames { subsystem, host, namespace, .. } = login.names.clone();
    let number = format!("3999:{minor}");
    let export = Export { host, namespace, number, sectors: 2048, model: MODEL };
    kernel.world().exports.insert(subsystem, export);
}

#[test]
fn a_connect_finds_its_disk_and_again_is_the_same_one() {
    let Some((_tree, kernel, nvme)) = lab() else { return };
    let addresses = ["10.0.0.1:4420", "10.0.1.1:4420"];
    let (a, b) = (login("a", 1, &addresses), login("b", 1, &addresses));
    export(&kernel, &a, 1);
    export(&kernel, &b, 2);
    for login in [&a, &b, &a] {
        let connected = nvme.connect(login).unwrap();
        let minor = if login == &a { 1 } else { 2 };
        assert_eq!((connected.node.number.minor, connected.failures), (minor, vec![]));
    }
    assert_eq!(kernel.world().written.len(), 4, "two addresses each, and nothing the second time");
    for login in [&a, &b] {
        let names = &login.names;
        nvme.disconnect(&names.subsystem, &names.host).unwrap();
        nvme.disconnect(&names.subsystem, &names.host).unwrap();
        assert_eq!(nvme.subsystem(&names.subsystem).unwrap(), None);
    }
}

#[test]
fn what_a_target_says_of_a_disk_before_its_first_use_is_told() {
    let Some((_tree, kernel, nvme)) = lab() else { return };
    for (minor, (model, blank)) in (1..).zip([(MODEL, false), (MODEL_OF_BLANK, true), ("", false)]) {
        let login = login(&format!("v{minor}"), 1, &["10.0.0.1:4420"]);
        export(&kernel, &login, minor);
        kernel.world().exports.get_mut(&login.names.subsystem).unwrap().model = model;
        assert_eq!(nvme.connect(&login).unwrap().was_blank, blank, "{model:?}");
    }
}

#[test]
fn one_address_that_answers_suffices_and_the_others_are_told() {
    let Some((_tree, kernel, nvme)) = lab() else { return };
    let login = login("a", 1, &["10.0.0.1:4420", "10.0.1.1:4420"]);
    export(&kernel, &login, 1);
    kernel.world().silent = vec!["10.0.0.1:4420".to_owned()];
    let connected = nvme.connect(&login).unwrap();
    assert_eq!(connected.failures[0].address.to_string(), "10.0.0.1:4420");
    assert!(connected.failures[0].why.contains("refused"), "{:?}", connected.failures);
    // The address is back: the second connect adds the path.
    kernel.world().silent.clear();
    assert_eq!(nvme.connect(&login).unwrap().failures, []);
    let controllers = nvme.subsystem(&login.names.subsystem).unwrap().unwrap().controllers;
    assert_eq!(controllers.len(), 2);
    nvme.disconnect(&login.names.subsystem, &login.names.host).unwrap();

    kernel.world().silent = vec!["10.0.0.1:4420".to_owned(), "10.0.1.1:4420".to_owned()];
    kernel.world().written.clear();
    let error = nvme.connect(&login).unwrap_err();
    assert!(matches!(&error, NvmeError::Connect { failures, .. } if failures.len() == 2), "{error}");
    assert_eq!(
        kernel.world().written,
        [""; 0],
        "the kernel is not asked for what would hold up everybody else"
    );
}

#[test]
fn a_disk_that_nobody_wants_was_there_until_the_last_address_had_answered() {
    let Some((_tree, kernel, nvme)) = lab() else { return };
    let login = login("a", 1, &["10.0.0.1:4420", "10.0.1.1:4420", "10.0.2.1:4420"]);
    export(&kernel, &login, 1);
    for (is_wanted, connects) in [(false, 1), (true, 3)] {
        let shown = std::cell::Cell::new(0);
        let connected = nvme.connect_while(&login, &|node| {
            shown.set(shown.get() + 1);
            assert_eq!(node.number.minor, 1);
            is_wanted
        });
        assert_eq!((shown.get(), connected.unwrap().failures.len()), (1, 0));
        assert_eq!(std::mem::take(&mut kernel.world().written).len(), connects, "{is_wanted}");
        nvme.disconnect(&login.names.subsystem, &login.names.host).unwrap();
        kernel.world().written.clear();
    }
}

#[test]
fn a_machine_without_the_module_was_told_of_a_missing_file() {
    let Some((tree, kernel, nvme)) = lab() else { return };
    let login = login("a", 1, &["10.0.0.1:4420", "10.0.1.1:4420"]);
    export(&kernel, &login, 1);
    fs::remove_file(tree.at("dev/nvme-fabrics")).unwrap();
    let error = nvme.connect(&login).unwrap_err();
    assert!(matches!(error, NvmeError::NoModule { .. }), "{error}");
    assert!(error.to_string().ends_with("is not loaded on this machine; modprobe nvme_tcp"), "{error}");
}

#[test]
fn without_multipath_there_is_one_connection_and_no_second_disk() {
    let Some((tree, kernel, nvme)) = lab() else { return };
    fs::write(tree.at("sys/module/nvme_core/parameters/multipath"), "N\n").unwrap();
    let login = login("a", 1, &["10.0.0.1:4420", "10.0.1.1:4420"]);
    export(&kernel, &login, 1);
    for _ in 0..2 {
        nvme.connect(&login).unwrap();
        assert_eq!(kernel.world().written.len(), 1);
    }
}

#[test]
fn a_node_that_is_not_let_in_gets_no_device() {
    let Some((_tree, kernel, nvme)) = lab() else { return };
    let (old, new) = (login("a", 1, &["10.0.0.1:4420"]), login("a", 2, &["10.0.0.1:4420"]));
    export(&kernel, &new, 1);
    assert!(matches!(nvme.connect(&old), Err(NvmeError::Connect { .. })));
    assert_eq!(nvme.subsystems(|_| true).unwrap(), []);
    nvme.connect(&new).unwrap();
    let stranger = Login { names: NvmeNames { host: "nqn.other".to_owned(), ..new.names.clone() }, ..new };
    assert!(matches!(nvme.connect(&stranger), Err(NvmeError::OtherHost { .. })));
    let foreign = NvmeNames { subsystem: "nqn.2019-08.org.qemu:root".to_owned(), ..old.names.clone() };
    assert!(matches!(nvme.connect(&Login { names: foreign, ..old }), Err(NvmeError::Foreign { .. })));
}

#[test]
fn an_orphan_is_disconnected_and_the_next_connect_begins_anew() {
    let Some((_tree, kernel, nvme)) = lab() else { return };
    let login = login("a", 1, &["10.0.0.1:4420"]);
    export(&kernel, &login, 1);
    kernel.world().without_disk = true;
    let error = nvme.connect(&login).unwrap_err();
    assert!(matches!(error, NvmeError::Orphaned { .. }), "{error}");
    assert_eq!(nvme.subsystems(|_| true).unwrap(), []);
    kernel.world().without_disk = false;
    assert_eq!(nvme.connect(&login).unwrap().node.number.minor, 1);
}

#[test]
fn after_a_loss_the_disk_is_found_under_its_new_name() {
    let Some((_tree, kernel, nvme)) = lab() else { return };
    let login = login("a", 1, &["10.0.0.1:4420"]);
    export(&kernel, &login, 1);
    let before = nvme.connect(&login).unwrap().node;
    kernel.lose(&login.names.subsystem, true);
    let NvmeNames { subsystem, namespace, .. } = &login.names;
    assert_eq!(nvme.resolve(subsystem, namespace).unwrap(), None);
    assert_eq!(nvme.subsystem(subsystem).unwrap().unwrap().controllers, [], "held by its old disk");
    kernel.lose(subsystem, false);
    let after = nvme.connect(&login).unwrap().node;
    assert_ne!(before.path, after.path);
    assert_eq!(before.number, after.number);
}

#[test]
fn a_size_is_waited_for() {
    let Some((_tree, kernel, nvme)) = lab() else { return };
    let login = login("a", 1, &["10.0.0.1:4420"]);
    export(&kernel, &login, 1);
    nvme.connect(&login).unwrap();
    let NvmeNames { subsystem, namespace, .. } = &login.names;
    assert_eq!(nvme.rescan(subsystem, namespace, 1 << 20).unwrap(), Some(1 << 20), "it has it");
    assert_eq!(kernel.world().written.len(), 1, "nothing to ask for");
    kernel.world().exports.get_mut(subsystem).unwrap().sectors = 4096;
    assert_eq!(nvme.rescan(subsystem, namespace, 2 << 20).unwrap(), Some(2 << 20));
    assert_eq!(nvme.rescan("nqn.2026-01.storage.bowline:s:none:e1", namespace, 1).unwrap(), None);
}

#[test]
fn a_reset_is_for_the_live_connections_of_one_subsystem_and_nobody_elses() {
    let Some((tree, kernel, nvme)) = lab() else { return };
    let (a, b) = (login("a", 1, &["10.0.0.1:4420", "10.0.1.1:4420"]), login("b", 1, &["10.0.0.1:4420"]));
    for (minor, login) in (1..).zip([&a, &b]) {
        export(&kernel, login, minor);
        nvme.connect(login).unwrap();
    }
    let names = &a.names;
    let reset = || nvme.reset(&names.subsystem, &names.host);
    let seen = || std::mem::take(&mut kernel.world().reset);
    let twice = [names.subsystem.clone(), names.subsystem.clone()];
    assert_eq!((reset().unwrap(), seen()), (2, twice.to_vec()));
    // A target that is not there again at once, a reset that is under way, and a writer that is kept.
    for (errno, expected) in [(102, Some(2)), (16, Some(0)), (19, Some(0)), (110, None)] {
        kernel.world().reset_fails = Some(errno);
        assert_eq!((reset().ok(), seen()), (expected, twice.to_vec()), "{errno}");
    }
    kernel.world().reset_fails = None;
    let states = fs::read_dir(tree.at("sys/devices/virtual/nvme-fabrics/ctl")).unwrap();
    let mut states: Vec<_> = states.map(|entry| entry.unwrap().path().join("state")).collect();
    states.sort();
    // Numbers count downwards.
    fs::write(&states[1], "connecting\n").unwrap();
    assert_eq!((reset().unwrap(), seen().len()), (1, 1), "the kernel knows of the other");
    assert_eq!(nvme.reset(&names.subsystem, "nqn.somebody-else").unwrap(), 0);
    assert_eq!(nvme.reset(&login("c", 1, &[]).names.subsystem, &names.host).unwrap(), 0);
    assert!(matches!(nvme.reset("nqn.2014-08.org:root", &names.host), Err(NvmeError::Foreign { .. })));
    assert_eq!(seen(), [""; 0]);
}
