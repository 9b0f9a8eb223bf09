//! Volumes that grow.

use crate::lab::{Lab, block, not_run, refused, smallest};
use bowline_csi::wire::volume_capability::access_mode::Mode;
use bowline_host::format::FsType;
use std::fs;
use tonic::Code;

const MORE: u64 = 128 << 20;

fn grows(fs_type: FsType) {
    let Some(lab) = Lab::new(&[fs_type]) else { return };
    let small = smallest(fs_type);
    lab.volume("v", small);
    let (node, context) = (lab.node("a"), lab.grant("v", "a", 1, true));
    node.up("v", &context, fs_type);
    fs::write(node.at("pod/data"), "kept").unwrap();
    let total = |path: &str| node.stats("v", &node.text(path)).unwrap()[0].total;
    let before = total("pod");
    assert_eq!(node.expand("v", &node.text("pod"), small).unwrap(), small, "nothing to do is done");
    refused(node.expand("v", &node.text("pod"), small + 1), Code::OutOfRange, "bytes");
    lab.volume("v", small + MORE);
    if lab.host.may_grow_mounted(fs_type) {
        for path in ["pod", "stage-v", "pod"] {
            assert_eq!(node.expand("v", &node.text(path), small + MORE).unwrap(), small + MORE);
        }
    } else {
        // The way out is in the sentence, and it is true.
        let answer = node.expand("v", &node.text("pod"), small + MORE);
        refused(answer, Code::FailedPrecondition, "it grows when the volume is next staged");
        not_run("the part that grows ext4 while it is mounted: missing: CAP_SYS_RESOURCE");
        node.down("v");
        node.up("v", &context, fs_type);
        assert_eq!(node.expand("v", &node.text("pod"), small + MORE).unwrap(), small + MORE);
    }
    assert!(total("pod") >= before + (100 << 20), "{before} {}", total("pod"));
    assert_eq!(fs::read_to_string(node.at("pod/data")).unwrap(), "kept");
    node.down("v");
    // Restored to something larger: grown when it is staged.
    lab.volume("v", small + 2 * MORE);
    node.up("v", &context, fs_type);
    assert!(total("pod") >= before + (200 << 20), "{before} {}", total("pod"));
    assert_eq!(fs::read_to_string(node.at("pod/data")).unwrap(), "kept");
    node.down("v");
    lab.assert_clean();
}

#[test]
fn ext4_grows() {
    grows(FsType::Ext4);
}

#[test]
fn xfs_grows() {
    grows(FsType::Xfs);
}

#[test]
fn btrfs_grows() {
    grows(FsType::Btrfs);
}

#[test]
fn a_block_volume_shows_its_new_size() {
    let Some(lab) = Lab::new(&[]) else { return };
    lab.volume("v", 1 << 20);
    let (node, context, capability) =
        (lab.node("a"), lab.grant("v", "a", 1, true), block(Mode::SingleNodeWriter));
    node.stage("v", &context, &capability).unwrap();
    node.publish("v", "dev", &context, &capability, false).unwrap();
    lab.volume("v", 2 << 20);
    assert_eq!(node.stats("v", &node.text("dev")).unwrap()[0].total, 1 << 20);
    for _ in 0..2 {
        assert_eq!(node.expand("v", &node.text("dev"), 2 << 20).unwrap(), 2 << 20);
    }
    assert_eq!(node.stats("v", &node.text("dev")).unwrap()[0].total, 2 << 20);
}

#[test]
fn what_is_mounted_read_only_does_not_grow() {
    let Some(lab) = Lab::new(&[FsType::Ext4]) else { return };
    lab.volume("v", smallest(FsType::Ext4));
    let node = lab.node("a");
    node.up("v", &lab.grant("v", "a", 1, true), FsType::Ext4);
    node.down("v");
    let context = lab.grant("v", "a", 2, false);
    lab.volume("v", smallest(FsType::Ext4) + MORE);
    node.up("v", &context, FsType::Ext4);
    refused(node.expand("v", &node.text("pod"), 1), Code::FailedPrecondition, "read-only");
    node.down("v");
}
