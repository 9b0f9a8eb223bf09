//! Disks over NVMe/TCP that were given up: what is left of them, and what becomes of their names and numbers.

use crate::device::Fleeting;
use crate::lab::{Node, block, plain, refused};
use crate::nvme::{Machine, connect_of, id, names};
use bowline_core::{Epoch, NodeId};
use bowline_csi::wire::volume_capability::access_mode::Mode;
use bowline_host::device::is_read_only;
use bowline_host::format::{FsType, FsUuid};
use bowline_node::staging::{Content, Phase, Record, decode, encode};
use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;
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
    let phases = [Phase::Staged, Phase::Restaging, Phase::Connecting, Phase::Making { uuid }];
    for (epoch, phase) in (1..).zip(phases) {
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

#[test]
fn a_publish_was_in_its_own_way_for_ever_when_its_target_came_back() {
    let Some(machine) = Machine::new() else { return };
    let (node, ext4) = (machine.node("a"), plain(FsType::Ext4));
    let context = machine.grant("v", "a", 1, true);
    node.up("v", &context, FsType::Ext4);
    node.publish("v", "second", &context, &ext4, false).unwrap();
    fs::write(node.at("pod/data"), "kept").unwrap();
    // Nothing is written to a disk that is gone.
    let read_only = ["-o".to_owned(), "remount,ro".to_owned(), node.text("stage-v")];
    machine.lab.host.programs.run("mount", &read_only).unwrap();
    let nqn = names("v", "a", 1).subsystem;
    machine.kernel.lose(&nqn, false);
    let publish = || node.publish("v", "pod", &context, &ext4, false);
    refused(publish(), Code::Unavailable, "workloads still see what was there before");
    node.unpublish("v", "second").unwrap();
    // Its path would be one on the node's own disk.
    let export = machine.kernel.world().exports.remove(&nqn).unwrap();
    refused(publish(), Code::Unavailable, "could not be connected");
    assert!(machine.host.mounts().unwrap().is_mount_point(&node.at("pod")));
    machine.kernel.world().exports.insert(nqn.clone(), export);
    let after = machine.renumber(&nqn, "v");
    let open = fs::File::open(node.at("pod/data")).unwrap();
    refused(publish(), Code::FailedPrecondition, "cannot be unmounted");
    drop(open);
    publish().unwrap();
    let mounts = machine.host.mounts().unwrap();
    assert_eq!(mounts.at(&node.at("pod")).map(|mount| mount.device.to_string()).collect::<Vec<_>>(), [after]);
    assert_eq!(fs::read_to_string(node.at("pod/data")).unwrap(), "kept");
    node.down("v");
    machine.assert_clean();
}

#[test]
fn a_raw_volume_was_in_its_own_way_for_ever_when_its_target_came_back() {
    let Some(machine) = Machine::new() else { return };
    let (node, raw) = (machine.node("a"), block(Mode::SingleNodeWriter));
    let context = machine.grant("v", "a", 1, true);
    node.stage("v", &context, &raw).unwrap();
    let publish = || node.publish("v", "dev", &context, &raw, false);
    publish().unwrap();
    machine.kernel.lose(&names("v", "a", 1).subsystem, false);
    let after = machine.renumber(&names("v", "a", 1).subsystem, "v");
    let open = fs::File::open(node.at("dev")).unwrap();
    refused(publish(), Code::FailedPrecondition, "cannot be unmounted");
    drop(open);
    for is_lost in [false, true] {
        // The node of a disk that is gone stays what it is, also if another one of the number comes.
        if is_lost {
            machine.kernel.lose(&names("v", "a", 1).subsystem, false);
        }
        publish().unwrap();
        assert_eq!(bowline_host::device::number(&node.at("dev")).unwrap().to_string(), after);
        assert_eq!(machine.lab.mounts_below(&node.pods).len(), 1);
        node.stats("v", &node.text("dev")).unwrap();
    }
    node.unpublish("v", "dev").unwrap();
    node.unstage("v").unwrap();
    machine.assert_clean();
}

/// A machine where a workload sees v raw, whose disk is gone, and w has its number. Says how to reach w.
fn dead_and_shown(machine: &Machine, node: &Node<'_>) -> HashMap<String, String> {
    let raw = block(Mode::SingleNodeWriter);
    let v = machine.grant("v", "a", 1, true);
    node.stage("v", &v, &raw).unwrap();
    node.publish("v", "dev", &v, &raw, false).unwrap();
    machine.kernel.lose(&names("v", "a", 1).subsystem, false);
    let w = machine.grant("w", "a", 1, true);
    let mut world = machine.kernel.world();
    let number = world.exports[&names("v", "a", 1).subsystem].number.clone();
    world.exports.get_mut(&names("w", "a", 1).subsystem).unwrap().number = number;
    drop(world);
    machine.asked();
    w
}

#[test]
fn a_workload_saw_the_next_volume_whose_disk_got_the_number_of_its_own() {
    let Some(machine) = Machine::new() else { return };
    let (node, raw, ext4) = (machine.node("a"), block(Mode::SingleNodeWriter), plain(FsType::Ext4));
    let w = dead_and_shown(&machine, &node);
    let (of_v, known) = ("of volume v that is gone", fs::read(node.record("v")).unwrap());
    let once = ["connect", "delete_controller"];
    let twice = ["connect", "connect", "delete_controller", "delete_controller"];
    for (capability, connect_fails, is_known, said) in [
        (&raw, false, true, of_v),
        (&ext4, false, true, of_v),
        // A connect can make a disk after its time is over.
        (&raw, true, true, of_v),
        // What another node of this machine shows is in no record of this one.
        (&ext4, false, false, "of one that is gone"),
    ] {
        fs::write(node.record("v"), if is_known { &known[..] } else { b"{" }).unwrap();
        machine.kernel.world().connect_fails = connect_fails;
        let refusal = node.stage("w", &w, capability).unwrap_err();
        assert!(refusal.message().contains(said), "{refusal}");
        refused(Err::<(), _>(refusal), Code::Unavailable, &node.text("dev"));
        // Nobody waits for the second address while it is seen.
        assert_eq!(machine.asked(), if connect_fails { &twice[..] } else { &once });
        assert_eq!(machine.files("state").len(), 0, "nobody sees it any more");
        let told = if is_known { vec![("v".to_owned(), "GoneDiskSeen")] } else { vec![] };
        assert_eq!(node.told(), told);
        machine.kernel.world().connect_fails = false;
        fs::write(node.record("v"), &known).unwrap();
    }
    // An unstage connects by itself where a filesystem was being made.
    let record = decode(&fs::read(node.record("w")).unwrap()).unwrap();
    let phase = Phase::Making { uuid: FsUuid::from_bytes([7; 16]) };
    fs::write(node.record("w"), encode(&Record { phase, ..record }).unwrap()).unwrap();
    node.unstage("w").unwrap();
    assert_eq!(machine.asked(), once);
    assert!(node.record("w").exists(), "the making is not settled");
    node.unpublish("v", "dev").unwrap();
    node.stage("w", &w, &ext4).unwrap();
    node.unstage("v").unwrap();
    node.unstage("w").unwrap();
    machine.assert_clean();
}

#[test]
fn a_disk_that_a_workload_opened_as_another_volumes_took_its_writes() {
    let Some(machine) = Machine::new() else { return };
    let devices = Fleeting::new(machine.devices());
    let long = Duration::from_secs(60);
    let node =
        machine.lab.node_over("a", machine.lab.devices(), Arc::clone(&devices) as _, &machine.host, long);
    let w = dead_and_shown(&machine, &node);
    let (shown, opened) = (node.at("dev"), Arc::new(Mutex::new(None)));
    let workload = Arc::clone(&opened);
    let open = shown.clone();
    devices.after("connect", move || {
        let disk = fs::File::open(open).unwrap();
        *workload.lock().unwrap() = Some(Command::new("sleep").arg("600").stdin(disk).spawn().unwrap());
    });
    let refusal = node.stage("w", &w, &block(Mode::SingleNodeWriter));
    let is_refusing = is_read_only(&shown).unwrap();
    let mut workload = opened.lock().unwrap().take().unwrap();
    workload.kill().unwrap();
    workload.wait().unwrap();
    refused(refusal, Code::Unavailable, "it refuses writes since");
    assert!(is_refusing);
    node.unpublish("v", "dev").unwrap();
    node.unstage("v").unwrap();
    node.unstage("w").unwrap();
    machine.assert_clean();
}

/// A node, and what lets it find the disk of v at a moment after which name and number of that disk are those of w's.
fn beside_a_swap(machine: &Machine) -> (Node<'_>, impl Fn(&'static str)) {
    let devices = Fleeting::new(machine.devices());
    let long = Duration::from_secs(60);
    let node =
        machine.lab.node_over("a", machine.lab.devices(), Arc::clone(&devices) as _, &machine.host, long);
    let connect = connect_of(&machine.grant("w", "a", 1, true));
    let swap_after = move |call| {
        let (kernel, connect) = (Arc::clone(&machine.kernel), connect.clone());
        let [v, w] = ["v", "w"].map(|volume| names(volume, "a", 1).subsystem);
        devices.after(call, move || {
            let number = kernel.world().exports[&v].number.clone();
            kernel.lose(&v, false);
            kernel.restart_numbering();
            kernel.world().exports.get_mut(&w).unwrap().number = number;
            kernel.command(&connect);
        });
    };
    (node, swap_after)
}

/// Another volume's disk, which is not to be touched.
fn disconnect_w(machine: &Machine) {
    machine.devices().disconnect(&id("w"), &NodeId::new("a").unwrap(), Epoch::new(1)).unwrap();
}

#[test]
fn a_workload_was_shown_the_disk_that_had_got_its_volumes_name_and_number() {
    let Some(machine) = Machine::new() else { return };
    let (context, raw) = (machine.grant("v", "a", 1, true), block(Mode::SingleNodeWriter));
    let (node, swap_after) = beside_a_swap(&machine);
    node.stage("v", &context, &raw).unwrap();
    swap_after("get");
    refused(node.publish("v", "dev", &context, &raw, false), Code::Unavailable, "another by now");
    assert_eq!(machine.lab.mounts_below(&node.pods).len(), 0);
    let record = decode(&fs::read(node.record("v")).unwrap()).unwrap();
    assert_eq!(record.published.len(), 0, "nobody was shown it");
    disconnect_w(&machine);
    node.unstage("v").unwrap();
    machine.assert_clean();
}

#[test]
fn a_disk_that_had_got_a_volumes_name_and_number_was_formatted() {
    let Some(machine) = Machine::new() else { return };
    let context = machine.grant("v", "a", 1, true);
    let (node, swap_after) = beside_a_swap(&machine);
    swap_after("connect");
    refused(node.stage("v", &context, &plain(FsType::Ext4)), Code::Unavailable, "another by now");
    // This is what w's disk is made of by now.
    let bytes = fs::read(machine.lab.path("target/v")).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 0), "it is not touched");
    disconnect_w(&machine);
    node.unstage("v").unwrap();
    machine.assert_clean();
}

#[test]
fn a_disk_that_had_got_a_volumes_name_and_number_was_erased() {
    let Some(machine) = Machine::new() else { return };
    let context = machine.grant("v", "a", 1, true);
    let (node, swap_after) = beside_a_swap(&machine);
    node.stage("v", &context, &block(Mode::SingleNodeWriter)).unwrap();
    let record = decode(&fs::read(node.record("v")).unwrap()).unwrap();
    let phase = Phase::Making { uuid: FsUuid::from_bytes([7; 16]) };
    let content = Content::Filesystem { fs: FsType::Ext4, options: vec![] };
    fs::write(node.record("v"), encode(&Record { phase, content, ..record }).unwrap()).unwrap();
    let file = fs::File::options().read(true).write(true).open(machine.lab.path("target/v")).unwrap();
    file.write_all_at(b"somebody's", 1 << 20).unwrap();
    swap_after("find");
    node.unstage("v").unwrap();
    assert!(node.record("v").exists(), "the making is not settled");
    let mut bytes = [0; 10];
    file.read_exact_at(&mut bytes, 1 << 20).unwrap();
    assert_eq!(&bytes, b"somebody's");
    disconnect_w(&machine);
    machine.assert_clean();
}
