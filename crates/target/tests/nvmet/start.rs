//! What a start takes away, puts up again, and leaves alone.

use crate::lab::{ADDRESSES, Lab, grant, names, open_at, open_lacking, revocation, volume};
use bowline_core::{Epoch, NvmeNames};
use bowline_target::file::FileTarget;
use bowline_target::nvmet::Tree;
use bowline_target::{Provision, Target, TargetError};
use bowline_testkit::SimNvmet;
use std::path::Path;
use std::sync::Arc;

/// A subsystem with a host and a link to a port, made by hand.
fn by_hand(lab: &Lab, subsystem: &str, port: &str) {
    let place = Path::new("subsystems").join(subsystem);
    lab.kernel.make(&place).unwrap();
    lab.kernel
        .make(Path::new("hosts/nqn.by-hand"))
        .or_else(|_| lab.kernel.exists(Path::new("hosts")).map(drop))
        .unwrap();
    lab.kernel.link(&place.join("allowed_hosts/nqn.by-hand"), Path::new("hosts/nqn.by-hand")).unwrap();
    lab.kernel.link(&Path::new("ports").join(port).join("subsystems").join(subsystem), &place).unwrap();
}

fn port_by_hand(lab: &Lab, port: &str, address: &str) {
    let place = Path::new("ports").join(port);
    lab.kernel.make(&place).unwrap();
    for (name, value) in
        [("addr_traddr", address), ("addr_trsvcid", "4420"), ("addr_adrfam", "ipv4"), ("addr_trtype", "tcp")]
    {
        lab.kernel.write(&place.join(name), value).unwrap();
    }
}

#[test]
fn what_no_record_names_is_taken_away_and_what_others_have_stays() {
    let lab = Lab::new();
    let target = lab.with(&["v"]);
    let kept = grant("v", "a", 3);
    lab.allow(&target, &kept).unwrap();
    let prefix = NvmeNames::prefix(target.installation());
    drop(target);
    port_by_hand(&lab, "7", "192.0.2.1");
    let theirs =
        ["nqn.2026-01.storage.bowline:other:v:e9".to_owned(), "nqn.2014-08.org.example:disk".to_owned()];
    for name in
        theirs.iter().chain(&[format!("{prefix}v:e2"), format!("{prefix}gone:e1"), format!("{prefix}odd")])
    {
        by_hand(&lab, name, "7");
    }
    lab.kernel.done();
    let target = lab.open();
    let ours = names(&target, &kept).subsystem;
    let mut expected: Vec<_> = theirs.iter().cloned().chain([ours.clone()]).collect();
    expected.sort();
    assert_eq!(lab.kernel.names("subsystems"), expected);
    assert_eq!(lab.kernel.names("ports/7/subsystems"), {
        let mut theirs = theirs.to_vec();
        theirs.sort();
        theirs
    });
    let touched = lab.kernel.done();
    assert!(touched.iter().all(|step| !step.contains(&ours)), "whoever uses it notices nothing: {touched:?}");
    lab.only_these(&target, &[kept]);
}

/// A record that was restored from an earlier backup knows nothing of it, and whoever is let in by it writes on.
#[test]
fn nobody_new_is_let_in_beside_an_export_without_a_record_that_could_not_be_taken_away() {
    let lab = Lab::new();
    let target = lab.with(&["v", "w"]);
    let prefix = NvmeNames::prefix(target.installation());
    drop(target);
    port_by_hand(&lab, "7", "192.0.2.1");
    let stray = format!("{prefix}v:e2");
    by_hand(&lab, &stray, "7");
    let in_the_way = lab.directory.with_file_name("nvmet/subsystems").join(&stray).join("namespaces/odd");
    std::fs::write(&in_the_way, "").unwrap();
    let target = lab.open();
    let missing = target.missing();
    assert!(missing[&volume("v")].starts_with("what no record names is not proven gone: "), "{missing:?}");
    for _ in 0..2 {
        let told = lab.allow(&target, &grant("v", "b", 5));
        assert!(matches!(&told, Err(TargetError::Unreachable { .. })), "{told:?}");
        assert_eq!(lab.runtime.block_on(target.show_missing()).len(), 1);
    }
    lab.allow(&target, &grant("w", "b", 1)).unwrap();
    std::fs::remove_file(in_the_way).unwrap();
    assert!(lab.runtime.block_on(target.show_missing()).is_empty());
    assert!(!lab.kernel.names("subsystems").contains(&stray));
    lab.allow(&target, &grant("v", "b", 5)).unwrap();
}

#[test]
fn a_reboot_puts_up_what_the_records_say() {
    let lab = Lab::new();
    let target = lab.with(&["v", "w"]);
    let (kept, gone) = (grant("v", "a", 3), grant("w", "b", 1));
    lab.allow(&target, &kept).unwrap();
    lab.allow(&target, &gone).unwrap();
    lab.revoke(&target, &revocation("w", "b", 1)).unwrap();
    drop(target);
    let fresh = lab.directory.join("../after-reboot");
    let kernel = Arc::new(SimNvmet::new(&fresh));
    let target = crate::lab::open(&lab.directory, Arc::clone(&kernel)).unwrap();
    let names = names(&target, &kept);
    assert_eq!(kernel.admitted(), [(names.subsystem, [names.host].into())].into());
    assert_eq!(kernel.names("ports"), ["4420", "4421"]);
}

#[test]
fn a_port_that_is_there_is_used_and_a_number_that_is_taken_is_left() {
    let lab = Lab::new();
    port_by_hand(&lab, "3", "10.0.0.1");
    port_by_hand(&lab, "4420", "192.0.2.1");
    // As a crash in the middle leaves it.
    lab.kernel.make(Path::new("ports/9")).unwrap();
    lab.kernel.write(Path::new("ports/9/addr_traddr"), "fd00::1").unwrap();
    lab.kernel.write(Path::new("ports/9/addr_trsvcid"), "4420").unwrap();
    let target = lab.with(&["v"]);
    lab.allow(&target, &grant("v", "a", 1)).unwrap();
    assert_eq!(lab.kernel.names("ports"), ["3", "4420", "9"]);
    assert_eq!(lab.kernel.names("ports/4420/subsystems"), [""; 0]);
    let ours = names(&target, &grant("v", "a", 1)).subsystem;
    for port in ["3", "9"] {
        assert_eq!(lab.kernel.names(&format!("ports/{port}/subsystems")), [ours.as_str()]);
    }
    assert_eq!(lab.kernel.attribute("ports/9/addr_adrfam"), "ipv6");
    drop(target);
    let target = open_at(&lab.directory, Arc::clone(&lab.kernel), &["10.0.0.2:4420"]).unwrap();
    assert_eq!(lab.kernel.names("ports/3/subsystems"), [""; 0], "another address, another port");
    assert_eq!(lab.kernel.names("ports/4421/subsystems"), [ours]);
    assert_eq!(target.addresses().len(), 1);
}

#[test]
fn a_volume_that_cannot_be_read_lets_nobody_in() {
    let lab = Lab::new();
    let target = lab.with(&["v", "w"]);
    lab.allow(&target, &grant("v", "a", 1)).unwrap();
    lab.allow(&target, &grant("w", "a", 1)).unwrap();
    drop(target);
    std::fs::write(lab.directory.join("vol-v.json"), "damaged").unwrap();
    let target = lab.open();
    lab.only_these(&target, &[grant("w", "a", 1)]);
    assert_eq!(Epoch::new(1), grant("w", "a", 1).epoch);
}

/// As at a boot where the network comes later than the agent.
#[test]
fn what_could_not_be_shown_at_the_start_is_shown_when_it_can_be() {
    let lab = Lab::new();
    let target = lab.with(&["v", "w", "x"]);
    let (kept, gone, moved) = (grant("v", "a", 3), grant("w", "b", 1), grant("x", "a", 1));
    for grant in [&kept, &gone, &moved] {
        lab.allow(&target, grant).unwrap();
    }
    assert!(target.missing().is_empty());
    drop(target);
    let kernel = Arc::new(SimNvmet::new(lab.directory.join("../after-reboot")));
    let admitted = |grants: &[&bowline_target::Grant], target: &_| {
        let expected = grants.iter().map(|grant| names(target, grant));
        let expected = expected.map(|names| (names.subsystem, [names.host].into())).collect();
        assert_eq!(kernel.admitted(), expected);
    };
    kernel.has_address("10.0.0.1", false);
    let target = open_at(&lab.directory, Arc::clone(&kernel), &ADDRESSES[..1]).unwrap();
    admitted(&[], &target);
    let missing = target.missing();
    assert_eq!(missing.keys().collect::<Vec<_>>(), [&volume("v"), &volume("w"), &volume("x")]);
    assert!(missing.values().all(|why| why.contains("ports/4420/subsystems/")), "{missing:?}");
    // Meanwhile the world goes on.
    lab.revoke(&target, &revocation("w", "b", 1)).unwrap();
    lab.revoke(&target, &revocation("x", "a", 1)).unwrap();
    let moved = grant("x", "c", 2);
    assert!(lab.allow(&target, &moved).is_err(), "asked for again by whoever asked for it");
    let try_again = || lab.runtime.block_on(target.show_missing());
    assert_eq!(try_again().keys().collect::<Vec<_>>(), [&volume("v"), &volume("x")]);
    kernel.has_address("10.0.0.1", true);
    admitted(&[], &target);
    assert_eq!(try_again(), [].into());
    admitted(&[&kept, &moved], &target);
    assert_eq!((target.missing(), try_again()), ([].into(), [].into()));
}

#[test]
fn an_address_that_is_not_there_does_not_keep_a_volume_from_the_others() {
    let lab = Lab::new();
    let target = lab.with(&["v"]);
    let kept = grant("v", "a", 3);
    lab.allow(&target, &kept).unwrap();
    drop(target);
    let kernel = Arc::new(SimNvmet::new(lab.directory.join("../after-reboot")));
    kernel.has_address("10.0.0.1", false);
    let target = crate::lab::open(&lab.directory, Arc::clone(&kernel)).unwrap();
    let ours = names(&target, &kept).subsystem;
    assert_eq!(target.missing().len(), 1, "one path is missing");
    assert_eq!(kernel.names("ports/4420/subsystems"), [""; 0]);
    assert_eq!(kernel.names("ports/4421/subsystems"), [ours.as_str()]);
    kernel.has_address("10.0.0.1", true);
    assert_eq!(lab.runtime.block_on(target.show_missing()), [].into());
    assert_eq!(kernel.names("ports/4420/subsystems"), [ours]);
}

/// As on a machine that came back with one of its networks dead.
#[test]
fn one_missing_address_of_several_keeps_nobody_new_out() {
    let lab = Lab::new();
    let target = lab.with(&["v", "w"]);
    lab.kernel.has_address("10.0.0.1", false);
    let (first, second) = (grant("v", "a", 1), grant("w", "a", 1));
    for grant in [&first, &first, &second] {
        lab.allow(&target, grant).unwrap();
    }
    assert_eq!(lab.kernel.names("ports/4420/subsystems"), [""; 0]);
    lab.only_these(&target, &[first.clone(), second.clone()]);
    let missing = target.missing();
    assert_eq!(missing.keys().collect::<Vec<_>>(), [&volume("v"), &volume("w")]);
    assert!(missing.values().all(|why| why.contains("ports/4420/subsystems/")), "{missing:?}");
    lab.revoke(&target, &revocation("w", "a", 1)).unwrap();
    let try_again = || lab.runtime.block_on(target.show_missing());
    assert_eq!(try_again().keys().collect::<Vec<_>>(), [&volume("v")], "nobody is let in to the other");
    lab.kernel.has_address("10.0.0.1", true);
    assert_eq!(try_again(), [].into());
    assert_eq!(lab.kernel.names("ports/4420/subsystems"), [names(&target, &first).subsystem]);
    // Of none of them it is no way.
    for address in ["10.0.0.1", "fd00::1"] {
        lab.kernel.has_address(address, false);
    }
    lab.allow(&target, &grant("w", "a", 2)).unwrap_err();
}

/// Exports go on while the agent is stopped, and what the nodes write then is not in the copy.
#[test]
fn an_agent_over_a_copied_directory_puts_no_copy_under_a_live_export() {
    let lab = Lab::new();
    let target = lab.with(&["v", "w"]);
    let held = [grant("v", "a", 3), grant("w", "b", 1)];
    for grant in &held {
        lab.allow(&target, grant).unwrap();
    }
    drop(target);
    let copied = lab.directory.join("../copied");
    bowline_testkit::world::run("cp", ["-a".as_ref(), lab.directory.as_os_str(), copied.as_os_str()]);
    lab.kernel.done();
    let epochs = |target: &FileTarget| {
        let page = lab.runtime.block_on(target.exports(None, 10)).unwrap();
        page.listings
            .iter()
            .flat_map(|one| one.exports.keys().map(|epoch| epoch.number()))
            .collect::<Vec<_>>()
    };
    let old = lab.directory.join("vol-v.data").display().to_string();
    for again in [false, true] {
        let target = crate::lab::open(&copied, Arc::clone(&lab.kernel)).unwrap();
        let opened = lab.kernel.done().into_iter().filter(|step| step.contains("copied"));
        assert_eq!(opened.collect::<Vec<_>>(), [""; 0], "again {again}: nothing of the copy is exported");
        lab.nothing_is_left();
        for missing in [target.missing(), lab.runtime.block_on(target.show_missing())] {
            assert_eq!(missing.keys().collect::<Vec<_>>(), [&volume("v"), &volume("w")]);
            let why = &missing[&volume("v")];
            assert!(why.starts_with("node a ") && why.ends_with("when it is detached and attached"), "{why}");
            assert!(again || why.contains(&old), "{why}");
        }
        assert_eq!(epochs(&target), [3, 1], "listed: nobody has asked for the proof");
    }
    let target = crate::lab::open(&copied, Arc::clone(&lab.kernel)).unwrap();
    lab.revoke(&target, &revocation("v", "a", 3)).unwrap();
    lab.revoke(&target, &revocation("w", "b", 1)).unwrap();
    let anew = grant("v", "a", 4);
    lab.allow(&target, &anew).unwrap();
    lab.only_these(&target, std::slice::from_ref(&anew));
    assert_eq!(lab.runtime.block_on(target.show_missing()), [].into());
    assert_eq!(epochs(&target), [4]);
}

/// The export is all that tells of the other bytes. It was taken away, and the copy was shown ten seconds later.
#[test]
fn a_live_export_over_other_bytes_stays_until_it_is_stored_that_it_is_closed() {
    let lab = Lab::new();
    let target = lab.with(&["v"]);
    let held = grant("v", "a", 3);
    lab.allow(&target, &held).unwrap();
    drop(target);
    let copied = lab.directory.join("../copied");
    bowline_testkit::world::run("cp", ["-a".as_ref(), lab.directory.as_os_str(), copied.as_os_str()]);
    let in_the_way = copied.join("vol-v.json-draft");
    std::fs::create_dir(&in_the_way).unwrap();
    let target = crate::lab::open(&copied, Arc::clone(&lab.kernel)).unwrap();
    lab.kernel.done();
    for _ in 0..2 {
        assert_eq!(lab.runtime.block_on(target.show_missing()).len(), 1);
        lab.only_these(&target, std::slice::from_ref(&held));
    }
    assert_eq!(lab.kernel.done(), [""; 0]);
    std::fs::remove_dir(&in_the_way).unwrap();
    let missing = lab.runtime.block_on(target.show_missing());
    assert!(missing[&volume("v")].starts_with("node a was given "), "{missing:?}");
    lab.nothing_is_left();
}

/// Another file at the same place is other bytes all the same: what the node writes goes to the one that has no name any more.
#[test]
fn an_agent_puts_no_file_under_a_live_export_of_the_one_that_it_replaced() {
    let lab = Lab::new();
    let target = lab.with(&["v", "w", "x"]);
    let held = ["v", "w", "x"].map(|id| grant(id, "a", 1));
    for grant in &held {
        lab.allow(&target, grant).unwrap();
    }
    let [_, _, earlier] = held.clone().map(|grant| names(&target, &grant));
    drop(target);
    for id in ["v", "x"] {
        let (data, kept) = (lab.directory.join(format!("vol-{id}.data")), lab.directory.join("../kept"));
        std::fs::rename(&data, &kept).unwrap();
        std::fs::copy(&kept, &data).unwrap();
    }
    // Nobody can tell that of one which an earlier Bowline made.
    let serial = Path::new("subsystems").join(&earlier.subsystem).join("attr_serial");
    lab.kernel.write(&serial, &earlier.earlier_serial()).unwrap();
    let target = lab.open();
    lab.only_these(&target, &held[1..]);
    let missing = target.missing();
    assert_eq!(missing.keys().collect::<Vec<_>>(), [&volume("v")]);
    assert!(missing[&volume("v")].contains("vol-v.data (a file that another has replaced)"), "{missing:?}");
    lab.revoke(&target, &revocation("v", "a", 1)).unwrap();
    lab.allow(&target, &grant("v", "a", 2)).unwrap();
}

/// The agent was started while a network had no address for a moment, and took that way from everybody.
#[test]
fn what_is_shown_at_an_address_that_is_not_known_now_stays_there() {
    let lab = Lab::new();
    let target = lab.with(&["v"]);
    let held = grant("v", "a", 1);
    lab.allow(&target, &held).unwrap();
    let ours = names(&target, &held).subsystem;
    drop(target);
    let target = open_lacking(&lab.directory, Arc::clone(&lab.kernel), &ADDRESSES[1..]).unwrap();
    assert_eq!(lab.kernel.names("ports/4420/subsystems"), [ours]);
    lab.revoke(&target, &revocation("v", "a", 1)).unwrap();
    lab.nothing_is_left();
}
