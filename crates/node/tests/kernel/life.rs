//! Volumes that are used as they should be.

use crate::lab::{Lab, block, mount, plain, refused, smallest};
use bowline_csi::wire;
use bowline_csi::wire::node_server::Node as _;
use bowline_csi::wire::volume_capability::access_mode::Mode;
use bowline_csi::wire::volume_usage::Unit;
use bowline_host::device::is_read_only;
use bowline_host::format::FsType;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use tonic::{Code, Request};

/// Everything twice, with the process started anew in between.
fn life(fs_type: FsType) {
    let Some(lab) = Lab::new(&[fs_type]) else { return };
    lab.volume("v", smallest(fs_type));
    let capability = mount(fs_type.name(), &["noatime"], "", Mode::SingleNodeWriter);
    let mut node = lab.node("a");
    for round in 1..=2 {
        let mut context = lab.grant("v", "a", round, true);
        context.insert("bowline.storage/discard".to_owned(), "true".to_owned());
        for _ in 0..2 {
            node.stage("v", &context, &capability).unwrap();
            node = node.restarted();
        }
        let staged = lab.host.mounts().unwrap().top(&node.at("stage-v")).unwrap().clone();
        assert!(
            staged.has("noatime")
                && staged.has("nosuid")
                && staged
                    .super_options
                    .iter()
                    .any(|option| { option.to_str().unwrap().starts_with("discard") }),
            "{staged:?}"
        );
        for _ in 0..2 {
            node.publish("v", "pod", &context, &capability, false).unwrap();
            node.publish("v", "reader", &context, &capability, true).unwrap();
            node = node.restarted();
        }
        assert_eq!(lab.mounts_below(&node.pods).len(), 3, "nothing is stacked");
        assert_eq!(lab.loops().len(), 1);
        let content = |round: u64| format!("written in round {round}");
        if round == 2 {
            assert_eq!(fs::read_to_string(node.at("pod/data-1")).unwrap(), content(1));
        }
        fs::write(node.at(&format!("pod/data-{round}")), content(round)).unwrap();
        assert_eq!(fs::read_to_string(node.at(&format!("reader/data-{round}"))).unwrap(), content(round));
        assert!(fs::write(node.at("reader/x"), "").is_err());
        for path in ["pod", "reader", "stage-v"] {
            let usage = node.stats("v", &node.text(path)).unwrap();
            let units: Vec<_> = usage.iter().map(wire::VolumeUsage::unit).collect();
            assert_eq!(units, [Unit::Bytes, Unit::Inodes]);
            assert!(usage[0].total > 0 && usage[0].used + usage[0].available <= usage[0].total, "{usage:?}");
        }
        assert_eq!(node.health("v").unwrap(), []);
        for _ in 0..2 {
            node.unpublish("v", "pod").unwrap();
            node.unpublish("v", "reader").unwrap();
            assert!(!node.at("pod").exists() && !node.at("reader").exists());
            node = node.restarted();
        }
        for _ in 0..2 {
            node.unstage("v").unwrap();
            node = node.restarted();
        }
        assert!(!node.record("v").exists());
        lab.assert_clean();
    }
}

#[test]
fn ext4_lives_twice() {
    life(FsType::Ext4);
}

#[test]
fn xfs_lives_twice() {
    life(FsType::Xfs);
}

#[test]
fn btrfs_lives_twice() {
    life(FsType::Btrfs);
}

#[test]
fn a_block_volume_is_the_same_byte_for_byte() {
    let Some(lab) = Lab::new(&[]) else { return };
    let file = lab.volume("v", 8 << 20);
    let bytes: Vec<u8> = (0..8_u32 << 20).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let (mut node, capability) = (lab.node("a"), block(Mode::SingleNodeWriter));
    let context = lab.grant("v", "a", 1, true);
    for _ in 0..2 {
        node.stage("v", &context, &capability).unwrap();
        node.publish("v", "dev", &context, &capability, false).unwrap();
        node = node.restarted();
    }
    let device = File::options().read(true).write(true).open(node.at("dev")).unwrap();
    device.write_all_at(&bytes, 0).unwrap();
    device.sync_all().unwrap();
    drop(device);
    let usage = node.stats("v", &node.text("dev")).unwrap();
    assert_eq!((usage.len(), usage[0].total, usage[0].unit()), (1, 8 << 20, Unit::Bytes));
    assert_eq!(node.health("v").unwrap(), []);
    assert_eq!(lab.mounts_below(&node.pods), [node.at("dev")], "not stacked");
    for _ in 0..2 {
        node.unpublish("v", "dev").unwrap();
        assert!(!node.at("dev").exists());
        node.unstage("v").unwrap();
    }
    lab.assert_clean();
    assert_eq!(fs::read(&file).unwrap(), bytes);

    let context = lab.grant("v", "a", 2, false);
    node.stage("v", &context, &capability).unwrap();
    node.publish("v", "dev", &context, &capability, true).unwrap();
    assert!(is_read_only(&node.at("dev")).unwrap());
    assert_eq!(fs::read(node.at("dev")).unwrap(), bytes);
}

#[test]
fn a_volume_moves_from_one_node_to_another() {
    let Some(lab) = Lab::new(&[FsType::Ext4]) else { return };
    lab.volume("v", smallest(FsType::Ext4));
    let (a, b) = (lab.node("a"), lab.node("b"));
    a.up("v", &lab.grant("v", "a", 1, true), FsType::Ext4);
    fs::write(a.at("pod/data"), "from a").unwrap();
    a.down("v");
    lab.revoke("v", "a");
    b.up("v", &lab.grant("v", "b", 2, true), FsType::Ext4);
    assert_eq!(fs::read_to_string(b.at("pod/data")).unwrap(), "from a");
    b.down("v");
    lab.assert_clean();
}

#[test]
fn readers_on_two_nodes_read_and_neither_can_write() {
    for fs_type in FsType::ALL {
        let Some(lab) = Lab::new(&[fs_type]) else { return };
        lab.volume("v", smallest(fs_type));
        let (a, b) = (lab.node("a"), lab.node("b"));
        a.up("v", &lab.grant("v", "a", 1, true), fs_type);
        fs::write(a.at("pod/data"), "for all").unwrap();
        a.down("v");
        let capability = mount(fs_type.name(), &[], "", Mode::MultiNodeReaderOnly);
        // Before Linux 6.7 two btrfs with one id are one filesystem to the kernel: its readers take turns here.
        for (node, epoch) in [(&a, 2), (&b, 3)] {
            let context = lab.grant("v", &node.name, epoch, false);
            node.stage("v", &context, &capability).unwrap();
            node.publish("v", "pod", &context, &capability, false).unwrap();
            assert_eq!(fs::read_to_string(node.at("pod/data")).unwrap(), "for all");
            for path in ["pod/data", "stage-v/data"] {
                let error = fs::write(node.at(path), "mine").unwrap_err();
                assert_eq!(error.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
            }
            assert!(lab.loops().iter().all(|device| device.read_only), "in the kernel, not by convention");
            if fs_type == FsType::Btrfs {
                node.down("v");
            }
        }
        if fs_type != FsType::Btrfs {
            assert_eq!(lab.loops().len(), 2);
            a.down("v");
            b.down("v");
        }
        lab.assert_clean();
    }
}

#[test]
fn a_clone_is_mounted_beside_its_origin() {
    // Not btrfs: only since Linux 6.7 can two with one id be mounted at once; before that the second is refused.
    for fs_type in [FsType::Ext4, FsType::Xfs] {
        let Some(lab) = Lab::new(&[fs_type]) else { return };
        let origin = lab.volume("v", smallest(fs_type));
        let node = lab.node("a");
        let context = lab.grant("v", "a", 1, true);
        node.stage("v", &context, &plain(fs_type)).unwrap();
        fs::write(node.at("stage-v/data"), "origin").unwrap();
        node.unstage("v").unwrap();
        fs::copy(&origin, lab.path("target/clone")).unwrap();
        node.stage("v", &context, &plain(fs_type)).unwrap();
        node.stage("clone", &lab.grant("clone", "a", 1, true), &plain(fs_type)).unwrap();
        fs::write(node.at("stage-clone/data"), "clone").unwrap();
        assert_eq!(fs::read_to_string(node.at("stage-v/data")).unwrap(), "origin");
    }
}

#[test]
fn a_reader_of_a_volume_that_was_not_unmounted_cleanly_is_told_what_to_do() {
    for fs_type in [FsType::Ext4, FsType::Xfs] {
        let Some(lab) = Lab::new(&[fs_type]) else { return };
        let origin = lab.volume("v", smallest(fs_type));
        let node = lab.node("a");
        node.up("v", &lab.grant("v", "a", 1, true), fs_type);
        fs::write(node.at("pod/data"), "in the log").unwrap();
        lab.host.programs.run("sync", &["-f".to_owned(), node.text("pod")]).unwrap();
        // As a machine that lost its power leaves it.
        fs::copy(&origin, lab.path("target/clone")).unwrap();
        node.down("v");
        let context = lab.grant("clone", "a", 1, false);
        let reader = |flags: &[&str]| mount(fs_type.name(), flags, "", Mode::MultiNodeReaderOnly);
        refused(node.stage("clone", &context, &reader(&[])), Code::FailedPrecondition, "norecovery");
        assert!(!node.record("clone").exists());
        node.stage("clone", &context, &reader(&["norecovery"])).unwrap();
        node.unstage("clone").unwrap();
        let context = lab.grant("clone", "a", 2, true);
        node.stage("clone", &context, &plain(fs_type)).unwrap();
        assert_eq!(fs::read_to_string(node.at("stage-clone/data")).unwrap(), "in the log");
        node.unstage("clone").unwrap();
        lab.assert_clean();
    }
}

#[test]
fn the_group_gets_the_volume_and_what_is_in_it_and_nothing_else() {
    let Some(lab) = Lab::new(&[FsType::Ext4]) else { return };
    lab.volume("v", smallest(FsType::Ext4));
    let node = lab.node("a");
    let context = lab.grant("v", "a", 1, true);
    node.stage("v", &context, &plain(FsType::Ext4)).unwrap();
    let root = node.at("stage-v");
    fs::create_dir(root.join("dir")).unwrap();
    fs::write(root.join("dir/file"), "x").unwrap();
    let outside = lab.path("outside");
    fs::write(&outside, "not in the volume").unwrap();
    let before = fs::metadata(&outside).unwrap();
    symlink(&outside, root.join("dir/link")).unwrap();
    fs::create_dir(root.join("other-mount")).unwrap();
    let other = root.join("other-mount");
    lab.host
        .programs
        .run("mount", &["-t".as_ref(), "tmpfs".as_ref(), "none".as_ref(), other.as_os_str()])
        .unwrap();
    fs::write(other.join("file"), "on another mount").unwrap();

    let grouped = |group: &str| mount("ext4", &[], group, Mode::SingleNodeWriter);
    node.stage("v", &context, &grouped("4711")).unwrap();
    let facts = |path: &std::path::Path| {
        let metadata = fs::symlink_metadata(path).unwrap();
        (metadata.gid(), metadata.mode() & 0o7777)
    };
    assert_eq!(facts(&root).0, 4711);
    assert_eq!(facts(&root).1 & 0o2070, 0o2070);
    assert_eq!((facts(&root.join("dir")).0, facts(&root.join("dir")).1 & 0o2070), (4711, 0o2070));
    assert_eq!((facts(&root.join("dir/file")).0, facts(&root.join("dir/file")).1 & 0o060), (4711, 0o060));
    assert_eq!(facts(&root.join("dir/link")).0, 4711, "the link itself");
    let after = fs::metadata(&outside).unwrap();
    assert_eq!((after.gid(), after.mode()), (before.gid(), before.mode()), "not what it points to");
    assert_eq!(facts(&other.join("file")).0, 0, "not what is mounted in it");

    // A root that matches says that it was done: nothing is walked again.
    fs::write(root.join("dir/later"), "x").unwrap();
    std::os::unix::fs::chown(root.join("dir/later"), None, Some(0)).unwrap();
    node.publish("v", "pod", &context, &grouped("4711"), false).unwrap();
    assert_eq!(facts(&root.join("dir/later")).0, 0);
    node.publish("v", "pod", &context, &grouped("4712"), false).unwrap();
    assert_eq!(facts(&root.join("dir/later")).0, 4712);
    lab.host.programs.run("umount", &[&other]).unwrap();
    node.down("v");
    lab.assert_clean();
}

#[test]
fn a_node_says_who_and_where_it_is_and_what_it_can_do() {
    let Some(lab) = Lab::new(&[]) else { return };
    let node = lab.node("a");
    let info = lab.runtime.block_on(node.service.node_get_info(Request::new(wire::NodeGetInfoRequest {})));
    let info = info.unwrap().into_inner();
    assert_eq!((info.node_id.as_str(), info.max_volumes_per_node), ("a", 16));
    assert_eq!(info.accessible_topology.unwrap().segments["topology.bowline.storage/host"], "m1");
    let request = Request::new(wire::NodeGetCapabilitiesRequest {});
    let can = lab.runtime.block_on(node.service.node_get_capabilities(request)).unwrap().into_inner();
    assert_eq!(can.capabilities.len(), 7);
    let request = Request::new(wire::NodeGetStorageHealthRequest::default());
    let health = lab.runtime.block_on(node.service.node_get_storage_health(request)).unwrap();
    assert_eq!(health.into_inner().backend_health, []);
}
