//! With the real target of files: grants that are given and taken, snapshots of what is in use.

use crate::lab::{Lab, plain, refused, smallest};
use bowline_core::{Epoch, Mode, NodeId, Share, SnapshotId, TargetId, VolumeId};
use bowline_host::format::FsType;
use bowline_node::FileDevices;
use bowline_target::file::{FileTarget, Policy, Settings};
use bowline_target::{Cut, Grant, NewVolume, Progress, Provision, Revocation, Source, Target, TargetError};
use std::collections::HashMap;
use std::fs;
use std::sync::Arc;
use std::time::Duration;
use tonic::Code;

const MODE: Mode = Mode { write: true, frontend: true, share: Share::Nobody };

fn volume(name: &str) -> VolumeId {
    VolumeId::new(name).unwrap()
}

fn allow(lab: &Lab, target: &FileTarget, name: &str, node: &str, epoch: u64) -> HashMap<String, String> {
    let node = NodeId::new(node).unwrap();
    let grant = Grant { volume: volume(name), node, epoch: Epoch::new(epoch), mode: MODE, beside: None };
    lab.runtime.block_on(target.allow(&grant)).unwrap();
    target.context(&grant).into_iter().collect()
}

fn revoke(lab: &Lab, target: &FileTarget, name: &str, node: &str, epoch: u64) -> Result<(), TargetError> {
    let node = NodeId::new(node).unwrap();
    let revocation = Revocation { volume: volume(name), node, epoch: Epoch::new(epoch), fence: false };
    lab.runtime.block_on(target.revoke(&revocation)).map(drop)
}

#[test]
fn a_node_is_out_only_when_it_has_let_go_and_its_snapshot_holds_what_it_wrote() {
    let Some(lab) = Lab::new(&[FsType::Ext4]) else { return };
    let settings = Settings {
        id: TargetId::new("file").unwrap(),
        directory: lab.path("target"),
        host_name: "m1".to_owned(),
        policy: Policy::default(),
    };
    let target = FileTarget::open(settings, lab.host.clone()).unwrap();
    let devices = Arc::new(FileDevices::new(Arc::new(lab.host.clone()), Arc::new(target.clone())));
    let nodes = ["a", "b"]
        .map(|name| lab.node_with(name, Arc::clone(&devices) as _, &lab.host, Duration::from_secs(60)));
    let [a, b] = &nodes;
    let size = smallest(FsType::Ext4);
    let order = |name: &str, source| NewVolume { volume: volume(name), name: name.to_owned(), size, source };
    let create = |name: &str, source| {
        lab.runtime.block_on(target.create(&order(name, source), &Progress::default())).unwrap();
    };
    create("v", None);
    let context = allow(&lab, &target, "v", "a", 1);
    a.up("v", &context, FsType::Ext4);
    fs::write(a.at("pod/data"), "written by a").unwrap();
    let in_use = revoke(&lab, &target, "v", "a", 1).unwrap_err();
    assert!(matches!(&in_use, TargetError::InUse { .. }), "{in_use:?}");
    refused(a.stage("other", &context, &plain(FsType::Ext4)), Code::NotFound, "other");

    let cut = Cut { snapshot: SnapshotId::new("s").unwrap(), name: "s".to_owned(), volume: volume("v") };
    lab.runtime.block_on(target.snapshot(&[cut], &Progress::default())).unwrap();
    fs::write(a.at("pod/data"), "written later").unwrap();
    create("clone", Some(Source::Snapshot(SnapshotId::new("s").unwrap())));
    let clone = allow(&lab, &target, "clone", "a", 1);
    a.stage("clone", &clone, &plain(FsType::Ext4)).unwrap();
    assert_eq!(fs::read_to_string(a.at("stage-clone/data")).unwrap(), "written by a");
    a.unstage("clone").unwrap();

    a.down("v");
    revoke(&lab, &target, "v", "a", 1).unwrap();
    refused(a.stage("v", &context, &plain(FsType::Ext4)), Code::FailedPrecondition, "not let in");
    b.up("v", &allow(&lab, &target, "v", "b", 2), FsType::Ext4);
    assert_eq!(fs::read_to_string(b.at("pod/data")).unwrap(), "written later");
    b.down("v");
    revoke(&lab, &target, "v", "b", 2).unwrap();
    lab.assert_clean();
}
