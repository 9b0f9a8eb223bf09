//! In which order a grant is shown and taken away, step by step.

use crate::lab::{Lab, MIB, Raw, grant, names, open, revocation, volume};
use bowline_core::{Epoch, MODEL, MODEL_OF_BLANK, Mode, Share};
use bowline_host::Host;
use bowline_target::contract::provision::Bytes;
use bowline_target::nvmet::Tree;
use bowline_target::{Grant, Provision, TargetError};
use bowline_testkit::SimNvmet;
use std::path::Path;
use std::sync::Arc;

/// What was done, with the names of the grant shortened.
fn steps(lab: &Lab, names: &bowline_core::NvmeNames) -> String {
    let done = lab.kernel.done().join("\n");
    let directory = lab.directory.display().to_string();
    let serial =
        lab.kernel.names("subsystems").contains(&names.subsystem).then(|| serial(&lab.kernel, names));
    done.replace(&names.subsystem, "NQN")
        .replace(&names.host, "HOST")
        .replace(&names.namespace, "UUID")
        .replace(serial.as_deref().unwrap_or("of no file"), "SERIAL")
        .replace(&directory, "DIR")
}

#[test]
fn a_grant_is_shown_and_taken_away_in_this_order() {
    let lab = Lab::new();
    let target = lab.with(&["v"]);
    let grant = grant("v", "a", 1);
    let names = names(&target, &grant);
    lab.allow(&target, &grant).unwrap();
    insta::assert_snapshot!(steps(&lab, &names), @r#"
    make ports/4420
    write "10.0.0.1" to ports/4420/addr_traddr
    write "4420" to ports/4420/addr_trsvcid
    write "ipv4" to ports/4420/addr_adrfam
    write "tcp" to ports/4420/addr_trtype
    make ports/4421
    write "fd00::1" to ports/4421/addr_traddr
    write "4420" to ports/4421/addr_trsvcid
    write "ipv6" to ports/4421/addr_adrfam
    write "tcp" to ports/4421/addr_trtype
    make subsystems/NQN
    write "SERIAL" to subsystems/NQN/attr_serial
    write "Bowline" to subsystems/NQN/attr_model
    make subsystems/NQN/namespaces/1
    write "DIR/vol-v.data" to subsystems/NQN/namespaces/1/device_path
    write "UUID" to subsystems/NQN/namespaces/1/device_uuid
    write "1" to subsystems/NQN/namespaces/1/enable
    make hosts/HOST
    link subsystems/NQN/allowed_hosts/HOST
    link ports/4420/subsystems/NQN
    link ports/4421/subsystems/NQN
    "#);
    lab.only_these(&target, std::slice::from_ref(&grant));
    lab.allow(&target, &grant).unwrap();
    assert_eq!(lab.kernel.done(), [""; 0], "again changes nothing");
    lab.revoke(&target, &revocation("v", "a", 1)).unwrap();
    insta::assert_snapshot!(steps(&lab, &names), @r#"
    unlink subsystems/NQN/allowed_hosts/HOST
    unlink ports/4420/subsystems/NQN
    unlink ports/4421/subsystems/NQN
    write "0" to subsystems/NQN/namespaces/1/enable
    remove subsystems/NQN/namespaces/1
    remove subsystems/NQN
    remove hosts/HOST
    "#);
    lab.nothing_is_left();
    lab.revoke(&target, &revocation("v", "a", 1)).unwrap();
    assert_eq!(lab.kernel.done(), [""; 0], "again changes nothing");
}

fn serial(kernel: &SimNvmet, names: &bowline_core::NvmeNames) -> String {
    kernel.attribute(&format!("subsystems/{}/attr_serial", names.subsystem))
}

/// For a node that nobody else may write beside.
fn alone(id: &str, to: &str, epoch: u64) -> Grant {
    let mode = Mode { write: true, frontend: true, share: Share::Nobody };
    Grant { mode, ..grant(id, to, epoch) }
}

fn model(kernel: &SimNvmet, subsystem: &str) -> String {
    kernel.attribute(&format!("subsystems/{subsystem}/attr_model"))
}

#[test]
fn only_a_volume_without_a_byte_that_nobody_else_can_write_is_called_blank() {
    let lab = Lab::new();
    let target = lab.with(&["v", "zeros", "shared", "moving"]);
    let shown = |grant: &Grant| {
        lab.allow(&target, grant).unwrap();
        model(&lab.kernel, &names(&target, grant).subsystem)
    };
    for epoch in 1..=2 {
        assert_eq!(shown(&alone("v", "a", epoch)), MODEL_OF_BLANK, "nobody wrote yet");
        lab.revoke(&target, &revocation("v", "a", epoch)).unwrap();
    }
    Raw(&target).write(&volume("v"), MIB - 1, &[1]);
    assert_eq!(shown(&alone("v", "a", 3)), MODEL, "one byte");
    Raw(&target).write(&volume("zeros"), 0, &[0; 4096]);
    assert_eq!(shown(&alone("zeros", "a", 1)), MODEL, "what is stored is not looked at");
    assert_eq!(shown(&grant("shared", "a", 1)), MODEL, "others may write meanwhile");
    assert_eq!(shown(&alone("moving", "a", 1)), MODEL_OF_BLANK);
    let beside = Some(Epoch::new(1));
    assert_eq!(shown(&Grant { beside, ..alone("moving", "b", 2) }), MODEL, "another is let in");
}

/// Its node may have written meanwhile what is not on the disk yet.
#[test]
fn a_grant_that_may_have_been_shown_before_is_not_called_blank() {
    let lab = Lab::new();
    let target = lab.with(&["v"]);
    let grant = alone("v", "a", 1);
    let name = names(&target, &grant).subsystem;
    lab.allow(&target, &grant).unwrap();
    assert_eq!(model(&lab.kernel, &name), MODEL_OF_BLANK);
    lab.kernel.done();
    drop(target);
    let target = lab.open();
    lab.allow(&target, &grant).unwrap();
    assert_eq!(model(&lab.kernel, &name), MODEL_OF_BLANK, "what is shown stays as it is");
    assert_eq!(lab.kernel.done(), [""; 0]);
    // Gone from the kernel, for whatever reason, and asked for again.
    let place = Path::new("subsystems").join(&name);
    for host in lab.kernel.names(&format!("subsystems/{name}/allowed_hosts")) {
        lab.kernel.unlink(&place.join("allowed_hosts").join(host)).unwrap();
    }
    for port in lab.kernel.names("ports") {
        lab.kernel.unlink(&Path::new("ports").join(port).join("subsystems").join(&name)).unwrap();
    }
    lab.kernel.remove(&place.join("namespaces/1")).unwrap();
    lab.kernel.remove(&place).unwrap();
    lab.allow(&target, &grant).unwrap();
    assert_eq!(model(&lab.kernel, &name), MODEL, "asked for again");
    drop(target);
    let kernel = Arc::new(SimNvmet::new(lab.directory.join("../after-reboot")));
    let target = open(&lab.directory, Arc::clone(&kernel)).unwrap();
    assert_eq!(model(&kernel, &name), MODEL, "after a reboot");
    lab.allow(&target, &grant).unwrap();
    assert_eq!(model(&kernel, &name), MODEL, "after a reboot, and asked for again");
}

#[test]
fn the_fence_of_one_leaves_the_others() {
    let lab = Lab::new();
    let target = lab.with(&["v", "w"]);
    let others = [grant("v", "b", 2), grant("w", "a", 1)];
    lab.allow(&target, &grant("v", "a", 1)).unwrap();
    for other in &others {
        lab.allow(&target, other).unwrap();
    }
    lab.kernel.done();
    lab.revoke(&target, &revocation("v", "a", 1)).unwrap();
    lab.only_these(&target, &others);
    for other in &others {
        let name = names(&target, other).subsystem;
        assert!(lab.kernel.done().iter().all(|step| !step.contains(&name)), "{name} was touched");
    }
}

#[test]
fn what_was_there_before_under_the_name_of_a_grant_lets_nobody_else_in() {
    let lab = Lab::new();
    let target = lab.with(&["v"]);
    let first = grant("v", "a", 1);
    lab.allow(&target, &first).unwrap();
    let place = Path::new("subsystems").join(names(&target, &first).subsystem);
    lab.kernel.make(Path::new("hosts/nqn.stranger")).unwrap();
    lab.kernel.link(&place.join("allowed_hosts/nqn.stranger"), Path::new("hosts/nqn.stranger")).unwrap();
    lab.allow(&target, &first).unwrap();
    lab.only_these(&target, &[first]);
}

/// Its node has written to those other bytes, and would find others under the same names.
#[test]
fn an_export_over_other_bytes_is_not_put_over_the_right_ones_and_its_epoch_is_over() {
    let lab = Lab::new();
    let target = lab.with(&["v", "w"]);
    let (first, other) = (grant("v", "a", 1), grant("w", "a", 1));
    lab.allow(&target, &first).unwrap();
    lab.allow(&target, &other).unwrap();
    let namespace = Path::new("subsystems").join(names(&target, &first).subsystem).join("namespaces/1");
    lab.kernel.write(&namespace.join("enable"), "0").unwrap();
    let wrong = lab.directory.join("vol-w.data");
    lab.kernel.write(&namespace.join("device_path"), wrong.to_str().unwrap()).unwrap();
    lab.kernel.write(&namespace.join("enable"), "1").unwrap();
    lab.kernel.done();
    let told = lab.allow(&target, &first);
    assert!(matches!(told, Err(TargetError::NeverAgain(_))), "{told:?}");
    let done = lab.kernel.done();
    assert!(done.iter().all(|step| !step.starts_with("write \"1\"")), "{done:?}");
    lab.only_these(&target, std::slice::from_ref(&other));
    let next = grant("v", "a", 2);
    lab.allow(&target, &next).unwrap();
    lab.only_these(&target, &[next, other]);
}

#[test]
fn a_reader_gets_a_device_that_refuses_writes() {
    let host = Host::default();
    if std::fs::File::options().read(true).write(true).open("/dev/loop-control").is_err() {
        bowline_testkit::say(
            "not run: order::a_reader_gets_a_device_that_refuses_writes (needs root and loop devices)",
        );
        return;
    }
    let lab = Lab::new();
    let target = lab.with(&["v"]);
    let mut reader = grant("v", "a", 1);
    reader.mode = Mode { write: false, frontend: true, share: Share::Readers };
    lab.allow(&target, &reader).unwrap();
    let namespace = format!("subsystems/{}/namespaces/1", names(&target, &reader).subsystem);
    let path = lab.kernel.attribute(&format!("{namespace}/device_path"));
    let of_ours =
        |device: &bowline_host::loopdev::LoopDevice| device.backing_path.starts_with(&lab.directory);
    let devices: Vec<_> = host.loops().unwrap().into_iter().filter(of_ours).collect();
    assert_eq!(devices.iter().map(|device| device.path.display().to_string()).collect::<Vec<_>>(), [path]);
    assert!(devices[0].read_only && devices[0].vanishing, "{devices:?}");
    lab.kernel.done();
    lab.allow(&target, &reader).unwrap();
    assert_eq!(lab.kernel.done(), [""; 0], "again changes nothing");
    drop(target);
    let target = lab.open();
    assert_eq!(lab.kernel.done(), [""; 0], "nor does a start");
    lab.runtime.block_on(target.grow(&reader.volume, 2 << 20)).unwrap();
    lab.revoke(&target, &revocation("v", "a", 1)).unwrap();
    lab.nothing_is_left();
    assert!(!host.loops().unwrap().iter().any(of_ours), "it goes with the namespace");
    lab.runtime.block_on(target.delete(&reader.volume)).unwrap();
}
