//! Volumes that grow.

use crate::lab::{Lab, Node, block, not_run, plain, refused, smallest};
use bowline_csi::wire::volume_capability::access_mode::Mode;
use bowline_host::Host;
use bowline_host::command::Programs;
use bowline_host::format::FsType;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;
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

/// A machine on which what grows a mounted filesystem is killed.
fn host_that_does_not_grow(lab: &Lab) -> Host {
    let bin = lab.path("bin");
    fs::create_dir(&bin).unwrap();
    for program in ["xfs_growfs", "btrfs"] {
        let real = lab.host.programs.find(program).unwrap();
        let script =
            format!("#!/bin/sh\n[ \"$1\" = check ] && exec {} \"$@\"\nkill -9 $$\n", real.to_str().unwrap());
        fs::write(bin.join(program), script).unwrap();
        fs::set_permissions(bin.join(program), fs::Permissions::from_mode(0o755)).unwrap();
    }
    let mut programs = Programs::default();
    programs.path.insert(0, bin);
    Host::new(lab.host.roots.clone(), programs)
}

#[test]
fn a_filesystem_that_was_mounted_and_not_yet_grown_stayed_small() {
    let Some(lab) = Lab::new(&[FsType::Xfs, FsType::Btrfs]) else { return };
    let host = host_that_does_not_grow(&lab);
    for fs_type in [FsType::Xfs, FsType::Btrfs] {
        let (volume, capability, small) = (fs_type.name(), plain(fs_type), smallest(fs_type));
        lab.volume(volume, small);
        let context = lab.grant(volume, "a", 1, true);
        let mut node = lab.node("a");
        node.stage(volume, &context, &capability).unwrap();
        let staging = node.text(&format!("stage-{volume}"));
        let total = |node: &Node<'_>| node.stats(volume, &staging).unwrap()[0].total;
        let mut before = total(&node);
        for (size, is_rebooted) in [(small + MORE, true), (small + 2 * MORE, false)] {
            if is_rebooted {
                node = node.rebooted();
            } else {
                node.unstage(volume).unwrap();
            }
            lab.volume(volume, size);
            let ends = lab.node_with("a", lab.devices(), &host, Duration::from_secs(60));
            refused(ends.stage(volume, &context, &capability), Code::Unavailable, "killed by signal 9");
            assert_eq!(lab.mounts_below(&node.pods).len(), 1, "{volume}: it ended after the mount");
            refused(node.stats(volume, &staging), Code::NotFound, "is not at");
            node.stage(volume, &context, &capability).unwrap();
            let grown = total(&node);
            assert!(grown >= before + (100 << 20), "{volume}: {before} {grown}");
            before = grown;
        }
        node.unstage(volume).unwrap();
    }
    lab.assert_clean();
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
