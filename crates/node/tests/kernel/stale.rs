//! Mounts and devices that are not what they were.

use crate::device::Troubled;
use crate::lab::{Lab, Node, block, not_run, plain, refused, smallest};
use bowline_csi::wire;
use bowline_csi::wire::node_server::Node as _;
use bowline_csi::wire::volume_capability::access_mode::Mode;
use bowline_host::format::FsType;
use std::fs;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tonic::{Code, Request};

fn troubled(lab: &Lab) -> (Arc<Troubled>, Node<'_>) {
    let devices = Troubled::new(lab.devices());
    let node = lab.node_with("a", Arc::clone(&devices) as _, &lab.host, Duration::from_secs(60));
    (devices, node)
}

#[test]
fn a_stale_mount_is_mounted_again_by_the_next_publish() {
    let Some(lab) = Lab::new(&[FsType::Ext4]) else { return };
    lab.volume("v", smallest(FsType::Ext4));
    let (node, context) = (lab.node("a"), lab.grant("v", "a", 1, true));
    node.stage("v", &context, &plain(FsType::Ext4)).unwrap();
    fs::write(node.at("stage-v/data"), "kept").unwrap();
    lab.host.programs.run("umount", &[node.at("stage-v")]).unwrap();
    refused(node.stats("v", &node.text("stage-v")), Code::Unavailable, "not mounted");
    refused(node.expand("v", &node.text("stage-v"), 1), Code::Unavailable, "not mounted");
    let health = node.health("v").unwrap();
    assert_eq!(health[0].status(), wire::VolumeHealthErrorType::Inaccessible, "{health:?}");
    assert_eq!(lab.mounts_below(&node.pods).len(), 0, "only a publish mounts again");
    node.publish("v", "pod", &context, &plain(FsType::Ext4), false).unwrap();
    assert_eq!(fs::read_to_string(node.at("pod/data")).unwrap(), "kept");
    assert_eq!(node.health("v").unwrap(), []);
    let metrics = node.metrics();
    for line in [
        "bowline_stale_mounts_detected_total 4",
        "bowline_remount_operations_total{result=\"success\"} 1",
        "bowline_device_path_resolutions_total{result=\"found\"}",
        "bowline_node_operation_duration_seconds_bucket{le=\"0.001\",rpc=\"NodeStageVolume\",code=\"OK\"}",
        "bowline_node_operation_duration_seconds_count{rpc=\"NodeGetVolumeStats\",code=\"Unavailable\"} 1",
    ] {
        assert!(metrics.contains(line), "{line} is not in {metrics}");
    }
    node.down("v");
    lab.assert_clean();
}

#[test]
fn a_stale_mount_that_cannot_be_cured_is_told_after_three_attempts() {
    let Some(lab) = Lab::new(&[FsType::Ext4]) else { return };
    lab.volume("v", smallest(FsType::Ext4));
    let (node, context) = (lab.node("a"), lab.grant("v", "a", 1, true));
    node.stage("v", &context, &plain(FsType::Ext4)).unwrap();
    let node = node.rebooted();
    lab.revoke("v", "a");
    refused(node.publish("v", "pod", &context, &plain(FsType::Ext4), false), Code::Unavailable, "not let in");
    assert!(node.metrics().contains("bowline_remount_operations_total{result=\"failure\"} 3"));
    assert!(!node.at("pod").exists());
    node.unstage("v").unwrap();
    lab.assert_clean();
}

#[test]
fn a_staged_volume_that_is_blank_now_is_not_formatted_anew() {
    let Some(lab) = Lab::new(&[FsType::Ext4]) else { return };
    let file = lab.volume("v", smallest(FsType::Ext4));
    let (node, context) = (lab.node("a"), lab.grant("v", "a", 1, true));
    node.stage("v", &context, &plain(FsType::Ext4)).unwrap();
    let node = node.rebooted();
    fs::write(&file, "").unwrap();
    lab.volume("v", smallest(FsType::Ext4));
    refused(node.publish("v", "pod", &context, &plain(FsType::Ext4), false), Code::Unavailable, "blank now");
    assert!(fs::read(&file).unwrap().iter().all(|byte| *byte == 0));
    node.unstage("v").unwrap();
    lab.assert_clean();
}

#[test]
fn a_volume_that_came_back_blank_from_a_reboot_was_formatted_by_the_next_stage() {
    let Some(lab) = Lab::new(&[FsType::Ext4]) else { return };
    let (file, aside) = (lab.volume("v", smallest(FsType::Ext4)), lab.path("aside"));
    let (mut node, ext4) = (lab.node("a"), plain(FsType::Ext4));
    let context = lab.grant("v", "a", 1, true);
    node.stage("v", &context, &ext4).unwrap();
    fs::write(node.at("stage-v/data"), "kept").unwrap();
    node = node.rebooted();
    fs::rename(&file, &aside).unwrap();
    lab.volume("v", smallest(FsType::Ext4));
    for epoch in [1, 1, 2] {
        let context = lab.grant("v", "a", epoch, true);
        refused(node.stage("v", &context, &ext4), Code::FailedPrecondition, "blank now");
        assert!(fs::read(&file).unwrap().iter().all(|byte| *byte == 0), "epoch {epoch}");
        lab.assert_clean();
        node = node.rebooted();
    }
    fs::rename(&aside, &file).unwrap();
    let context = lab.grant("v", "a", 2, true);
    node.stage("v", &context, &ext4).unwrap();
    assert_eq!(fs::read_to_string(node.at("stage-v/data")).unwrap(), "kept");
    node.unstage("v").unwrap();
    lab.assert_clean();
}

#[test]
fn a_volume_that_came_back_blank_was_formatted_after_another_final_answer() {
    let Some(lab) = Lab::new(&[FsType::Ext4]) else { return };
    let (mut node, ext4, aside) = (lab.node("a"), plain(FsType::Ext4), lab.path("aside"));
    let raw = block(Mode::SingleNodeWriter);
    for (volume, asked, code, part) in [
        ("revoked", &ext4, Code::FailedPrecondition, "not let in"),
        ("revoked-raw", &raw, Code::FailedPrecondition, "not let in"),
        ("gone", &ext4, Code::NotFound, "not on this target"),
        ("unclear", &ext4, Code::FailedPrecondition, "left alone"),
        ("another", &plain(FsType::Xfs), Code::InvalidArgument, "not formatted anew"),
    ] {
        let file = lab.volume(volume, smallest(FsType::Ext4));
        let context = lab.grant(volume, "a", 1, true);
        node.stage(volume, &context, &ext4).unwrap();
        fs::write(node.at(&format!("stage-{volume}/data")), volume).unwrap();
        node = node.rebooted();
        match volume {
            "revoked" | "revoked-raw" => lab.revoke(volume, "a"),
            "gone" => fs::rename(&file, &aside).unwrap(),
            "unclear" => {
                fs::rename(&file, &aside).unwrap();
                let other = lab.volume(volume, smallest(FsType::Ext4));
                let other = fs::File::options().write(true).open(other).unwrap();
                other.write_all_at(&[7; 4096], 1 << 20).unwrap();
            }
            _ => {}
        }
        refused(node.stage(volume, &context, asked), code, part);
        lab.assert_clean();
        if !aside.exists() {
            fs::rename(&file, &aside).unwrap();
        }
        let _ = fs::remove_file(&file);
        lab.volume(volume, smallest(FsType::Ext4));
        let context = lab.grant(volume, "a", 2, true);
        for _ in 0..2 {
            refused(node.stage(volume, &context, &ext4), Code::FailedPrecondition, "blank now");
            assert!(fs::read(&file).unwrap().iter().all(|byte| *byte == 0), "{volume}");
        }
        fs::rename(&aside, &file).unwrap();
        node.stage(volume, &context, &ext4).unwrap();
        assert_eq!(fs::read_to_string(node.at(&format!("stage-{volume}/data"))).unwrap(), volume);
        node.unstage(volume).unwrap();
        assert!(!node.record(volume).exists());
    }
    lab.assert_clean();
}

#[test]
fn another_filesystem_at_the_staging_path_is_left_alone() {
    let Some(lab) = Lab::new(&[FsType::Ext4]) else { return };
    lab.volume("v", smallest(FsType::Ext4));
    let (node, context) = (lab.node("a"), lab.grant("v", "a", 1, true));
    node.stage("v", &context, &plain(FsType::Ext4)).unwrap();
    let tmpfs = ["-t".to_owned(), "tmpfs".to_owned(), "none".to_owned(), node.text("stage-v")];
    lab.host.programs.run("mount", &tmpfs).unwrap();
    refused(node.publish("v", "pod", &context, &plain(FsType::Ext4), false), Code::Unavailable, "left alone");
    refused(node.unstage("v"), Code::Internal, "nothing was unmounted");
    assert_eq!(lab.mounts_below(&node.pods).len(), 2);
    lab.host.programs.run("umount", &[node.at("stage-v")]).unwrap();
    node.unstage("v").unwrap();
    lab.assert_clean();
}

#[test]
fn a_device_gone_under_a_mount_is_told_and_does_not_keep_unstage() {
    let Some(lab) = Lab::new(&[FsType::Ext4]) else { return };
    lab.volume("v", smallest(FsType::Ext4));
    let (devices, node) = troubled(&lab);
    let context = lab.grant("v", "a", 1, true);
    node.up("v", &context, FsType::Ext4);
    devices.lost.store(true, Ordering::SeqCst);
    refused(node.stats("v", &node.text("pod")), Code::Unavailable, "is gone");
    let health = node.health("v").unwrap();
    assert_eq!(health[0].status(), wire::VolumeHealthErrorType::Inaccessible);
    let request = Request::new(wire::NodeGetStorageHealthRequest::default());
    let storage = lab.runtime.block_on(node.service.node_get_storage_health(request)).unwrap().into_inner();
    let storage = &storage.backend_health[0];
    assert_eq!(storage.status(), wire::StorageHealthErrorType::StorageUnreachable);
    assert!(storage.message.contains("target file"), "{storage:?}");
    // The workload that still sees it keeps it, and another does not get half of it.
    refused(node.publish("v", "second", &context, &plain(FsType::Ext4), false), Code::Unavailable, "is gone");
    refused(node.unstage("v"), Code::FailedPrecondition, "still published");
    node.unpublish("v", "pod").unwrap();
    node.unstage("v").unwrap();
    assert_eq!(lab.mounts_below(&node.pods).len(), 0);
    assert!(!node.record("v").exists());
}

#[test]
fn a_device_that_fails_under_a_mount_is_told_and_does_not_keep_unstage() {
    let Some(lab) = Lab::new(&[FsType::Ext4]) else { return };
    let file = lab.volume("v", smallest(FsType::Ext4));
    let (node, context) = (lab.node("a"), lab.grant("v", "a", 1, true));
    node.up("v", &context, FsType::Ext4);
    if !lab.loops()[0].direct_io {
        not_run("its files have no direct I/O, so a loop device reads what is not there as zeros");
        node.down("v");
        return;
    }
    assert_eq!(node.health("v").unwrap(), []);
    // Its file has no bytes any more: every read of the device fails.
    fs::write(&file, "").unwrap();
    refused(node.stats("v", &node.text("pod")), Code::Unavailable, "os error 5");
    let health = node.health("v").unwrap();
    assert_eq!(health[0].status(), wire::VolumeHealthErrorType::Inaccessible);
    node.down("v");
    lab.assert_clean();
}

/// An xfs that has shut itself down answers every `stat` with an error, that of its root included.
#[test]
fn an_xfs_that_shut_itself_down_does_not_keep_unpublish_and_unstage() {
    let Some(lab) = Lab::new(&[FsType::Xfs]) else { return };
    lab.volume("v", smallest(FsType::Xfs));
    let (node, context) = (lab.node("a"), lab.grant("v", "a", 1, true));
    node.up("v", &context, FsType::Xfs);
    lab.host.programs.run("xfs_io", &["-x", "-c", "shutdown", &node.text("stage-v")]).unwrap();
    assert!(fs::metadata(node.at("pod")).is_err(), "it is shut down");
    assert!(node.stats("v", &node.text("pod")).is_err());
    node.down("v");
    assert!(!node.at("pod").exists());
    lab.assert_clean();
}

#[test]
fn a_mount_of_another_device_is_not_taken_for_the_volume() {
    let Some(lab) = Lab::new(&[FsType::Ext4]) else { return };
    for volume in ["v", "w"] {
        lab.volume(volume, smallest(FsType::Ext4));
    }
    let node = lab.node("a");
    let (v, w) = (lab.grant("v", "a", 1, true), lab.grant("w", "a", 1, true));
    node.stage("v", &v, &plain(FsType::Ext4)).unwrap();
    node.stage("w", &w, &plain(FsType::Ext4)).unwrap();
    lab.host.programs.run("umount", &[node.at("stage-v")]).unwrap();
    let bind = ["--bind".to_owned(), node.text("stage-w"), node.text("stage-v")];
    lab.host.programs.run("mount", &bind).unwrap();
    refused(node.stats("v", &node.text("stage-v")), Code::Unavailable, "is not volume v");
    refused(node.unstage("v"), Code::Internal, "is not volume v");
    refused(node.unstage("w"), Code::FailedPrecondition, "stage-v");
    assert_eq!(lab.mounts_below(&node.pods).len(), 2);
}

#[test]
fn a_volume_whose_file_was_deleted_by_hand_is_still_taken_down() {
    let Some(lab) = Lab::new(&[FsType::Ext4]) else { return };
    let file = lab.volume("v", smallest(FsType::Ext4));
    let (node, context) = (lab.node("a"), lab.grant("v", "a", 1, true));
    node.up("v", &context, FsType::Ext4);
    fs::remove_file(&file).unwrap();
    // Restored under the same name, it is another file, and the old device is not taken for one of it.
    lab.volume("v", smallest(FsType::Ext4));
    let newer = lab.grant("v", "a", 2, true);
    refused(node.stage("v", &newer, &plain(FsType::Ext4)), Code::FailedPrecondition, "epoch 1");
    fs::remove_file(&file).unwrap();
    refused(node.unstage("v"), Code::FailedPrecondition, "still published");
    let node = node.restarted();
    node.down("v");
    lab.assert_clean();
}

#[test]
fn a_filesystem_left_frozen_by_a_crash_is_thawed_at_the_start() {
    let Some(lab) = Lab::new(&[FsType::Ext4]) else { return };
    lab.volume("v", smallest(FsType::Ext4));
    let (node, context) = (lab.node("a"), lab.grant("v", "a", 1, true));
    node.up("v", &context, FsType::Ext4);
    lab.host.programs.run("fsfreeze", &["-f".to_owned(), node.text("stage-v")]).unwrap();
    let node = node.restarted();
    fs::write(node.at("pod/data"), "goes on").unwrap();
    node.down("v");
    lab.assert_clean();
}
