//! What the machine can do, on recorded roots and on this one.

use bowline_host::command::Programs;
use bowline_host::{Host, Roots};
use std::fs;

#[test]
fn a_machine_that_has_nothing_is_told_what_it_lacks_and_for_what() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    for name in ["proc/sys/kernel", "proc/self", "sys", "dev"] {
        fs::create_dir_all(at(name)).unwrap();
    }
    fs::write(at("proc/sys/kernel/osrelease"), "4.19.0-27-amd64\n").unwrap();
    fs::write(at("proc/self/status"), "Name:\tx\nCapEff:\t00000000a80425fb\n").unwrap();
    fs::write(at("proc/filesystems"), "nodev\tproc\n\text4\n").unwrap();
    fs::write(at("dev/fuse"), "").unwrap();
    let roots = Roots { proc: at("proc"), sys: at("sys"), dev: at("dev") };
    let host = Host::new(roots, Programs { path: vec![at("bin")], ..Programs::default() });
    let findings = host.probe_machine();
    let said = |what: &str| findings.iter().find(|finding| finding.what == what).unwrap();
    for (what, present) in [
        ("Linux 5.12", false),
        ("Linux 6.1", false),
        ("the right to mount", false),
        ("loop devices", false),
        ("FUSE", true),
        ("NVMe over fabrics", false),
        ("NVMe over TCP", false),
        ("native NVMe multipath", false),
        ("the filesystem ext4", true),
        ("the filesystem xfs", false),
        ("mkfs.ext4", false),
    ] {
        assert_eq!(said(what).is_present(), present, "{}", said(what));
    }
    // Enough to mount, and not to export.
    fs::write(at("proc/sys/kernel/osrelease"), "5.15.0-91-generic\n").unwrap();
    let findings = host.probe_machine();
    for (what, present) in [("Linux 5.12", true), ("Linux 6.1", false)] {
        let found = findings.iter().find(|finding| finding.what == what).unwrap();
        assert_eq!(found.is_present(), present, "{found}");
    }
    let told = host.load_nvme_target();
    let lacking = "missing  Linux 6.1 (this is \"5.15.0-91-generic\"); needed for serving volumes over NVMe/TCP from this machine";
    assert!(told.iter().any(|finding| finding.to_string() == lacking), "{told:?}");
    let expected = "missing  mkfs.xfs (the Debian package xfsprogs has it); needed for xfs volumes";
    assert_eq!(said("mkfs.xfs").to_string(), expected);
}

#[test]
fn this_machine_is_looked_at_without_harm() {
    for finding in Host::default().probe_machine() {
        println!("{finding}");
    }
}
