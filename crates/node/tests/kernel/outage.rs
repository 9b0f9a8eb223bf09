//! Disks over NVMe/TCP that were given up: what is left of them, and what becomes of their names and numbers.

use crate::lab::{plain, refused};
use crate::nvme::{Machine, names};
use bowline_host::format::{FsType, FsUuid};
use bowline_node::staging::{Phase, Record, decode, encode};
use std::fs;
use tonic::Code;

#[test]
fn a_dead_mount_whose_target_came_back_could_neither_be_staged_nor_unstaged() {
    let Some(machine) = Machine::new() else { return };
    let (node, ext4) = (machine.node("a"), plain(FsType::Ext4));
    let context = machine.grant("v", "a", 1, true);
    node.up("v", &context, FsType::Ext4);
    fs::write(node.at("pod/data"), "kept").unwrap();
    machine.comes_back_as_another("v", 1);
    // Whoever is shown it keeps it.
    refused(node.stage("v", &context, &ext4), Code::FailedPrecondition, "workloads still see");
    refused(node.unstage("v"), Code::FailedPrecondition, "still published");
    node.unpublish("v", "pod").unwrap();
    let open = fs::File::open(node.at("stage-v/data")).unwrap();
    refused(node.stage("v", &context, &ext4), Code::FailedPrecondition, "cannot be unmounted");
    drop(open);
    node.stage("v", &context, &ext4).unwrap();
    assert_eq!(fs::read_to_string(node.at("stage-v/data")).unwrap(), "kept");
    assert_eq!(machine.lab.mounts_below(&node.pods).len(), 1, "nothing is stacked");
    node.unstage("v").unwrap();
    machine.assert_clean();
}

#[test]
fn a_dead_mount_beside_a_new_disk_of_its_volume_was_not_unmounted() {
    let Some(machine) = Machine::new() else { return };
    let (node, ext4) = (machine.node("a"), plain(FsType::Ext4));
    let uuid = FsUuid::from_bytes([7; 16]);
    for (epoch, phase) in (1..).zip([Phase::Staged, Phase::Connecting, Phase::Making { uuid }]) {
        let context = machine.grant("v", "a", epoch, true);
        node.stage("v", &context, &ext4).unwrap();
        let record = decode(&fs::read(node.record("v")).unwrap()).unwrap();
        let is_making = matches!(phase, Phase::Making { .. });
        fs::write(node.record("v"), encode(&Record { phase, ..record }).unwrap()).unwrap();
        machine.comes_back_as_another("v", epoch);
        // An unstage connects again by itself where a filesystem was being made.
        if !is_making {
            machine.connect(&context);
        }
        assert_eq!(machine.lab.mounts_below(&node.pods).len(), 1);
        node.unstage("v").unwrap();
        machine.assert_clean();
        assert!(!node.record("v").exists());
    }
}

#[test]
fn a_dead_mount_of_another_volume_is_not_unmounted() {
    let Some(machine) = Machine::new() else { return };
    let (node, ext4) = (machine.node("a"), plain(FsType::Ext4));
    let contexts = ["v", "w"].map(|volume| (volume, machine.grant(volume, "a", 1, true)));
    for (volume, context) in &contexts {
        node.stage(volume, context, &ext4).unwrap();
    }
    let run = |program: &str, args: &[String]| machine.lab.host.programs.run(program, args).unwrap();
    run("umount", &[node.text("stage-v")]);
    run("mount", &["--bind".to_owned(), node.text("stage-w"), node.text("stage-v")]);
    machine.kernel.lose(&names("w", "a", 1).subsystem, false);
    refused(node.stage("v", &contexts[0].1, &ext4), Code::FailedPrecondition, "left alone");
    refused(node.unstage("v"), Code::Internal, "nothing was unmounted");
    assert_eq!(machine.lab.mounts_below(&node.pods).len(), 2);
    run("umount", &[node.text("stage-v")]);
    for (volume, _) in &contexts {
        node.unstage(volume).unwrap();
    }
    machine.assert_clean();
}
