//! What is not done, and leaves nothing behind.

use crate::lab::{Lab, block, mount, plain, refused, smallest};
use bowline_csi::wire;
use bowline_csi::wire::node_server::Node as _;
use bowline_csi::wire::volume_capability::access_mode::Mode;
use bowline_host::format::FsType;
use std::collections::HashMap;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, symlink};
use tonic::{Code, Request};

#[test]
fn unstage_while_published_is_refused_and_changes_nothing() {
    let Some(lab) = Lab::new(&[FsType::Ext4]) else { return };
    lab.volume("v", smallest(FsType::Ext4));
    lab.volume("raw", 1 << 20);
    let node = lab.node("a");
    node.up("v", &lab.grant("v", "a", 1, true), FsType::Ext4);
    let (context, capability) = (lab.grant("raw", "a", 1, true), block(Mode::SingleNodeWriter));
    node.stage("raw", &context, &capability).unwrap();
    node.publish("raw", "dev", &context, &capability, false).unwrap();
    let before = lab.mounts_below(&node.pods);
    refused(node.unstage("v"), Code::FailedPrecondition, &node.text("pod"));
    refused(node.unstage("raw"), Code::FailedPrecondition, &node.text("dev"));
    // Also when nothing is recorded any more.
    for volume in ["v", "raw"] {
        fs::write(node.record(volume), "{").unwrap();
        refused(node.unstage(volume), Code::FailedPrecondition, "still published");
    }
    assert_eq!(lab.mounts_below(&node.pods), before);
    node.unpublish("raw", "dev").unwrap();
    node.unstage("raw").unwrap();
    node.down("v");
    lab.assert_clean();
}

#[test]
fn an_earlier_grant_in_use_is_named_and_an_unused_one_is_cleared() {
    let Some(lab) = Lab::new(&[FsType::Ext4]) else { return };
    lab.volume("v", smallest(FsType::Ext4));
    let node = lab.node("a");
    let old = lab.grant("v", "a", 1, true);
    node.up("v", &old, FsType::Ext4);
    let new = lab.grant("v", "a", 3, true);
    refused(node.stage("v", &new, &plain(FsType::Ext4)), Code::FailedPrecondition, "epoch 1");
    fs::remove_file(node.record("v")).unwrap();
    refused(node.stage("v", &new, &plain(FsType::Ext4)), Code::FailedPrecondition, "stage-v");
    node.down("v");

    // A device that is open is in use too; one that nobody has open is taken away.
    let devices = lab.devices();
    let grant = |epoch| bowline_node::Grant {
        volume: "v".parse().unwrap(),
        node: "a".parse().unwrap(),
        epoch: bowline_core::Epoch::new(epoch),
        write: true,
        fabric: None,
    };
    lab.grant("v", "a", 1, true);
    let left = devices.connect(&grant(1)).unwrap();
    let new = lab.grant("v", "a", 3, true);
    let open = File::open(&left.path).unwrap();
    refused(node.stage("v", &new, &plain(FsType::Ext4)), Code::FailedPrecondition, "open in process");
    drop(open);
    node.stage("v", &new, &plain(FsType::Ext4)).unwrap();
    assert_eq!(lab.loops().len(), 1);
    refused(node.stage("v", &old, &plain(FsType::Ext4)), Code::FailedPrecondition, "out of date");
    node.unstage("v").unwrap();
    lab.assert_clean();
}

#[test]
fn a_mount_of_an_earlier_grant_that_nobody_used_kept_the_next_grant_out() {
    let Some(lab) = Lab::new(&[FsType::Ext4]) else { return };
    lab.volume("v", smallest(FsType::Ext4));
    let (node, ext4) = (lab.node("a"), plain(FsType::Ext4));
    let old = lab.grant("v", "a", 1, true);
    node.stage("v", &old, &ext4).unwrap();
    fs::write(node.at("stage-v/data"), "kept").unwrap();
    let open = File::open(node.at("stage-v/data")).unwrap();
    let new = lab.grant("v", "a", 3, true);
    for _ in 0..2 {
        refused(node.stage("v", &new, &ext4), Code::FailedPrecondition, "(epoch 1): mounted at");
        assert_eq!(fs::read_to_string(node.at("stage-v/data")).unwrap(), "kept", "it is left as it was");
    }
    drop(open);
    node.stage("v", &new, &ext4).unwrap();
    assert_eq!(fs::read_to_string(node.at("stage-v/data")).unwrap(), "kept");
    assert_eq!(lab.loops().len(), 1);

    // Where the record says that a workload was shown it, somebody has to say that it is over.
    node.publish("v", "pod", &new, &ext4, false).unwrap();
    lab.host.programs.run("umount", &[node.at("pod")]).unwrap();
    let newer = lab.grant("v", "a", 4, true);
    refused(node.stage("v", &newer, &ext4), Code::FailedPrecondition, "(epoch 3): mounted at");
    node.unpublish("v", "pod").unwrap();
    node.stage("v", &newer, &ext4).unwrap();
    node.unstage("v").unwrap();
    lab.assert_clean();
}

#[test]
fn a_grant_of_another_node_target_or_time_lets_nobody_in() {
    let Some(lab) = Lab::new(&[FsType::Ext4]) else { return };
    lab.volume("v", smallest(FsType::Ext4));
    let (node, capability) = (lab.node("a"), plain(FsType::Ext4));
    let with = |key: &str, value: &str| {
        let mut context = lab.grant("v", "a", 5, true);
        context.insert(format!("bowline.storage/{key}"), value.to_owned());
        context
    };
    for (context, code, part) in [
        (HashMap::new(), Code::InvalidArgument, "publish_context[bowline.storage/"),
        (with("epoch", "x"), Code::InvalidArgument, "publish_context[bowline.storage/epoch]"),
        (with("node", "b"), Code::FailedPrecondition, "node b"),
        (with("target", "other"), Code::FailedPrecondition, "target other"),
        (with("epoch", "4"), Code::FailedPrecondition, "epoch 4"),
        (lab.grant("gone", "a", 1, true), Code::NotFound, "epoch"),
    ] {
        let volume = if code == Code::NotFound { "gone" } else { "v" };
        let part = if code == Code::NotFound { "not on this target" } else { part };
        refused(node.stage(volume, &context, &capability), code, part);
        assert!(!node.record(volume).exists(), "{part}");
    }
    lab.grant("v", "a", 5, false);
    refused(node.stage("v", &with_write(&lab), &capability), Code::FailedPrecondition, "only read");
    assert_eq!(lab.loops(), []);
    assert!(!node.record("v").exists());
}

/// A context that claims more than the target granted.
fn with_write(lab: &Lab) -> HashMap<String, String> {
    let context = lab.grant("v", "a", 5, true);
    lab.grant("v", "a", 5, false);
    context
}

#[test]
fn what_is_on_a_volume_is_never_formatted_away() {
    let Some(lab) = Lab::new(&[FsType::Ext4, FsType::Xfs]) else { return };
    let node = lab.node("a");
    lab.volume("v", smallest(FsType::Ext4));
    let context = lab.grant("v", "a", 1, true);
    node.stage("v", &context, &plain(FsType::Ext4)).unwrap();
    fs::write(node.at("stage-v/data"), "precious").unwrap();
    node.unstage("v").unwrap();
    refused(node.stage("v", &context, &plain(FsType::Xfs)), Code::InvalidArgument, "not formatted anew");
    let file = lab.volume("odd", 8 << 20);
    File::options().write(true).open(&file).unwrap().write_all_at(b"somebody's data", 12345).unwrap();
    let before = fs::read(&file).unwrap();
    let odd = lab.grant("odd", "a", 1, true);
    refused(node.stage("odd", &odd, &plain(FsType::Ext4)), Code::FailedPrecondition, "left alone");
    assert_eq!(fs::read(&file).unwrap(), before);
    assert!(!node.record("v").exists() && !node.record("odd").exists(), "a final answer leaves nothing");
    assert_eq!(lab.loops(), []);
    node.stage("v", &context, &plain(FsType::Ext4)).unwrap();
    assert_eq!(fs::read_to_string(node.at("stage-v/data")).unwrap(), "precious");
}

#[test]
fn a_mkfs_that_says_no_is_quoted_and_leaves_nothing() {
    let Some(lab) = Lab::new(&[FsType::Xfs]) else { return };
    let file = lab.volume("v", 8 << 20);
    let node = lab.node("a");
    refused(node.stage("v", &lab.grant("v", "a", 1, true), &plain(FsType::Xfs)), Code::Internal, "mkfs.xfs");
    assert!(!node.record("v").exists());
    assert!(fs::read(&file).unwrap().iter().all(|byte| *byte == 0));
    lab.assert_clean();
}

#[test]
fn a_grant_that_only_reads_never_formats() {
    let Some(lab) = Lab::new(&[FsType::Ext4]) else { return };
    let file = lab.volume("v", smallest(FsType::Ext4));
    let node = lab.node("a");
    let context = lab.grant("v", "a", 1, false);
    refused(node.stage("v", &context, &plain(FsType::Ext4)), Code::FailedPrecondition, "blank");
    let context = lab.grant("v", "a", 2, true);
    let reader = mount("ext4", &[], "", Mode::SingleNodeReaderOnly);
    refused(node.stage("v", &context, &reader), Code::FailedPrecondition, "blank");
    assert!(fs::read(&file).unwrap().iter().all(|byte| *byte == 0));
    assert_eq!(lab.loops(), []);
}

#[test]
fn one_workload_alone_means_one_path() {
    let Some(lab) = Lab::new(&[FsType::Ext4]) else { return };
    lab.volume("v", smallest(FsType::Ext4));
    let (mut node, context) = (lab.node("a"), lab.grant("v", "a", 1, true));
    let alone = mount("ext4", &[], "", Mode::SingleNodeSingleWriter);
    node.stage("v", &context, &alone).unwrap();
    for _ in 0..2 {
        node.publish("v", "pod", &context, &alone, false).unwrap();
        refused(node.publish("v", "second", &context, &alone, false), Code::FailedPrecondition, "pod");
        assert!(!node.at("second").exists());
        node = node.restarted();
    }
    node.unpublish("v", "pod").unwrap();
    node.publish("v", "second", &context, &alone, false).unwrap();
    node.unpublish("v", "second").unwrap();
    node.unstage("v").unwrap();
    lab.assert_clean();
}

#[test]
fn staged_or_published_in_another_way_is_not_a_yes() {
    let Some(lab) = Lab::new(&[FsType::Ext4]) else { return };
    lab.volume("v", smallest(FsType::Ext4));
    let (node, context) = (lab.node("a"), lab.grant("v", "a", 1, true));
    node.up("v", &context, FsType::Ext4);
    let noexec = mount("ext4", &["noexec"], "", Mode::SingleNodeWriter);
    for capability in
        [block(Mode::SingleNodeWriter), noexec, mount("ext4", &[], "", Mode::SingleNodeMultiWriter)]
    {
        refused(node.stage("v", &context, &capability), Code::AlreadyExists, "another way");
    }
    refused(node.publish("v", "pod", &context, &plain(FsType::Ext4), true), Code::AlreadyExists, "pod");
    refused(
        node.publish("v", "dev", &context, &block(Mode::SingleNodeWriter), false),
        Code::AlreadyExists,
        "ext4",
    );
    refused(node.publish("v", "pod", &context, &plain(FsType::Xfs), false), Code::AlreadyExists, "ext4");
    lab.volume("w", smallest(FsType::Ext4));
    let other = lab.grant("w", "a", 1, true);
    node.stage("w", &other, &plain(FsType::Ext4)).unwrap();
    refused(
        node.publish("w", "pod", &other, &plain(FsType::Ext4), false),
        Code::AlreadyExists,
        "something else",
    );
    refused(node.unpublish("w", "pod"), Code::Internal, "is not volume w");
    let mut strange = node.publish_request("v", "second", &context, &plain(FsType::Ext4), false);
    strange.staging_target_path = node.text("stage-w");
    let answer = lab.runtime.block_on(node.service.node_publish_volume(Request::new(strange)));
    refused(answer, Code::FailedPrecondition, "stage-v");
    let before = lab.mounts_below(&node.pods);
    assert_eq!(before.len(), 3, "{before:?}");
    node.unstage("w").unwrap();
    node.down("v");
    lab.assert_clean();
}

#[test]
fn publish_without_stage_is_refused() {
    let Some(lab) = Lab::new(&[FsType::Ext4]) else { return };
    lab.volume("v", smallest(FsType::Ext4));
    let (node, context) = (lab.node("a"), lab.grant("v", "a", 1, true));
    refused(
        node.publish("v", "pod", &context, &plain(FsType::Ext4), false),
        Code::FailedPrecondition,
        "not staged",
    );
    let mut request = node.publish_request("v", "pod", &context, &plain(FsType::Ext4), false);
    request.staging_target_path.clear();
    let answer = lab.runtime.block_on(node.service.node_publish_volume(Request::new(request)));
    refused(answer, Code::FailedPrecondition, "staging_target_path");
    assert!(!node.at("pod").exists());
    node.unpublish("v", "pod").unwrap();
    node.unpublish("v", "no/such/directory").unwrap();
    node.unstage("v").unwrap();
    refused(node.health("v"), Code::NotFound, "v");
}

#[test]
fn a_block_volume_for_writing_is_not_shown_read_only_by_convention() {
    let Some(lab) = Lab::new(&[]) else { return };
    lab.volume("v", 1 << 20);
    let (node, context) = (lab.node("a"), lab.grant("v", "a", 1, true));
    node.stage("v", &context, &block(Mode::SingleNodeWriter)).unwrap();
    let answer = node.publish("v", "dev", &context, &block(Mode::SingleNodeWriter), true);
    refused(answer, Code::InvalidArgument, "must be read-only");
    node.unpublish("v", "dev").unwrap();
    node.unstage("v").unwrap();
    lab.assert_clean();
}

#[test]
fn dangerous_flags_are_refused_and_never_told() {
    let Some(lab) = Lab::new(&[FsType::Ext4]) else { return };
    lab.volume("v", smallest(FsType::Ext4));
    let (node, context) = (lab.node("a"), lab.grant("v", "a", 1, true));
    for flags in [&["suid"][..], &["dev"], &["password=hunter2"], &["discard", "nodiscard"], &["norecovery"]]
    {
        let capability = mount("ext4", flags, "", Mode::SingleNodeWriter);
        let status = node.stage("v", &context, &capability).unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument, "{status}");
        assert!(
            status.message().contains("mount_flags") && !status.message().contains("hunter2"),
            "{status}"
        );
    }
    refused(
        node.stage("v", &context, &mount("ntfs", &[], "", Mode::SingleNodeWriter)),
        Code::InvalidArgument,
        "ntfs",
    );
    let mut request = node.stage_request("v", &context, &mount("", &[], "", Mode::SingleNodeWriter));
    request.volume_context.insert("bowline.storage/fs".to_owned(), "zfs".to_owned());
    let answer = lab.runtime.block_on(node.service.node_stage_volume(Request::new(request)));
    refused(answer, Code::InvalidArgument, "bowline.storage/fs");
    lab.assert_clean();
}

#[test]
fn paths_that_lead_astray_are_refused() {
    let Some(lab) = Lab::new(&[FsType::Ext4]) else { return };
    lab.volume("v", smallest(FsType::Ext4));
    let (node, context, capability) = (lab.node("a"), lab.grant("v", "a", 1, true), plain(FsType::Ext4));
    node.stage("v", &context, &capability).unwrap();
    let victim = lab.path("victim");
    fs::create_dir(&victim).unwrap();
    symlink(&victim, node.at("link")).unwrap();
    let inside = node.text("pod");
    for target in [
        lab.path("elsewhere").to_str().unwrap(),
        &format!("{inside}/../../../victim"),
        &format!("{inside}\nx"),
        &format!("{inside}\0x"),
        &node.text("link"),
        &node.text("link/below"),
    ] {
        let mut publish = node.publish_request("v", "pod", &context, &capability, false);
        publish.target_path = target.to_owned();
        let answer = lab.runtime.block_on(node.service.node_publish_volume(Request::new(publish)));
        refused(answer, Code::InvalidArgument, "target_path");
        let unpublish =
            wire::NodeUnpublishVolumeRequest { volume_id: "v".to_owned(), target_path: target.to_owned() };
        let answer = lab.runtime.block_on(node.service.node_unpublish_volume(Request::new(unpublish)));
        refused(answer, Code::InvalidArgument, "target_path");
        let mut stage = node.stage_request("w", &context, &capability);
        stage.staging_target_path = target.to_owned();
        let answer = lab.runtime.block_on(node.service.node_stage_volume(Request::new(stage)));
        refused(answer, Code::InvalidArgument, "staging_target_path");
    }
    // Swapped in after a publish: the link is not followed, and what it points to is not unmounted.
    node.publish("v", "pod", &context, &capability, false).unwrap();
    node.unpublish("v", "pod").unwrap();
    symlink(node.at("stage-v"), node.at("pod")).unwrap();
    refused(node.unpublish("v", "pod"), Code::InvalidArgument, "target_path has a symbolic link");
    refused(node.publish("v", "pod", &context, &capability, false), Code::InvalidArgument, "symbolic link");
    assert_eq!(lab.mounts_below(&node.pods), [node.at("stage-v")]);
    for target in ["$(reboot)", "; rm -rf x", "`x`", "a b"] {
        node.publish("v", target, &context, &capability, false).unwrap();
        node.unpublish("v", target).unwrap();
    }
    node.unstage("v").unwrap();
    lab.assert_clean();
}

#[test]
fn a_directory_with_something_in_it_is_not_removed() {
    let Some(lab) = Lab::new(&[FsType::Ext4]) else { return };
    lab.volume("v", smallest(FsType::Ext4));
    let (node, context) = (lab.node("a"), lab.grant("v", "a", 1, true));
    node.up("v", &context, FsType::Ext4);
    node.unpublish("v", "pod").unwrap();
    fs::create_dir(node.at("pod")).unwrap();
    fs::write(node.at("pod/kept"), "x").unwrap();
    refused(node.unpublish("v", "pod"), Code::Internal, "not empty");
    assert!(node.at("pod/kept").exists());
}

#[test]
fn a_volume_is_not_found_where_it_is_not() {
    let Some(lab) = Lab::new(&[FsType::Ext4]) else { return };
    lab.volume("v", smallest(FsType::Ext4));
    let node = lab.node("a");
    node.up("v", &lab.grant("v", "a", 1, true), FsType::Ext4);
    fs::create_dir(node.at("empty")).unwrap();
    for (volume, path) in [
        ("v", node.text("empty")),
        ("v", node.text("missing")),
        ("v", node.text("no/parent")),
        ("v", "some/path".to_owned()),
        ("v", "/etc".to_owned()),
        ("unknown", node.text("pod")),
        ("unknown", "some/path".to_owned()),
    ] {
        refused(node.stats(volume, &path), Code::NotFound, "volume");
        refused(node.expand(volume, &path, 1), Code::NotFound, "volume");
    }
    for (volume, path) in [("", "some/path"), ("v", ""), ("v", "/a/../b")] {
        refused(node.stats(volume, path), Code::InvalidArgument, "volume_");
        refused(node.expand(volume, path, 1), Code::InvalidArgument, "volume_");
    }
}
