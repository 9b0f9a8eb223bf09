//! Two nodes on one machine: who gets in, who is refused and is told why.

use bowline_csi::wire::volume_capability::access_mode::Mode;
use std::fs;
use std::io::Write;
use tonic::Code;

use crate::{BOWLINE, can_mount, read};
use bowline_testkit::driver::{BLOCK, Driver, MIB, RWO, refusal};
use bowline_testkit::world::{Daemon, World};

/// A world with `bowline up` on worker-1 and `bowline node` as worker-2, and a caller of each.
async fn pair() -> (World, [Daemon; 2], Driver, Driver) {
    let world = World::new(BOWLINE);
    let daemons = [world.up(&[]), world.node("worker-2")];
    let one = Driver::connect(&world, &daemons[0]).await;
    let two = Driver::connect(&world, &daemons[1]).await;
    (world, daemons, one, two)
}

#[tokio::test]
async fn a_volume_moves_to_the_second_node_with_its_files_only_after_the_first_let_go() {
    if !can_mount("two nodes, RWO move") {
        return;
    }
    let (world, _daemons, mut one, mut two) = pair().await;
    let mut controller = one.clone();
    let volume = one.create("moves", 64 * MIB, RWO).await.unwrap();
    let seen = one.attach_all(&mut controller, &volume, "pod", RWO, false).await.unwrap();
    fs::write(seen.join("file"), "from worker-1").unwrap();

    let (code, why) = refusal(controller.publish(&volume, "worker-2", RWO, false).await);
    assert_eq!(code, Code::FailedPrecondition);
    assert!(why.contains("worker-1 has the volume"), "{why}");

    // Shut out at the target only when the mount is gone: it is named until then.
    one.detach_all(&mut controller, &volume.volume_id, "pod").await.unwrap();
    let seen = two.attach_all(&mut controller, &volume, "pod", RWO, false).await.unwrap();
    assert_eq!(read(&seen.join("file")), b"from worker-1");

    // A late unpublish of the first leaves the second alone.
    controller.unpublish(&volume.volume_id, "worker-1").await.unwrap();
    fs::write(seen.join("file"), "from worker-2").unwrap();
    two.detach_all(&mut controller, &volume.volume_id, "pod").await.unwrap();
    one.delete(&volume.volume_id).await.unwrap();
    world.assert_nothing_left();
}

#[tokio::test]
async fn a_node_that_still_has_it_mounted_is_not_out_and_the_mount_is_named() {
    if !can_mount("two nodes, unpublish while mounted") {
        return;
    }
    let (_world, _daemons, mut one, _) = pair().await;
    let mut controller = one.clone();
    let volume = one.create("mounted", 64 * MIB, RWO).await.unwrap();
    one.attach_all(&mut controller, &volume, "pod", RWO, false).await.unwrap();
    let mut request = tonic::Request::new(bowline_csi::wire::ControllerUnpublishVolumeRequest {
        volume_id: volume.volume_id.clone(),
        node_id: "worker-1".to_owned(),
        ..Default::default()
    });
    request.set_timeout(std::time::Duration::from_secs(3));
    let refused = controller.controller.controller_unpublish_volume(request).await.unwrap_err();
    assert!(matches!(refused.code(), Code::DeadlineExceeded | Code::Aborted | Code::Cancelled), "{refused}");
    let (code, why) = refusal(controller.publish(&volume, "worker-2", RWO, false).await);
    assert_ne!(code, Code::Ok);
    assert!(why.contains("worker-1"), "{why}");
    one.hide(&volume.volume_id, "pod").await.unwrap();
    one.unstage(&volume.volume_id).await.unwrap();
    controller.unpublish(&volume.volume_id, "worker-1").await.unwrap();
    controller.publish(&volume, "worker-2", RWO, false).await.expect("now it is the second node's turn");
    controller.unpublish(&volume.volume_id, "").await.expect("no node named: all are shut out");
    controller.delete(&volume.volume_id).await.unwrap();
}

#[tokio::test]
async fn a_sole_writer_is_alone_on_its_node() {
    if !can_mount("two nodes, RWOP") {
        return;
    }
    let (_world, _daemons, mut one, _) = pair().await;
    let mut controller = one.clone();
    let how = RWO.mode(Mode::SingleNodeSingleWriter);
    let volume = one.create("alone", 64 * MIB, how).await.unwrap();
    let context = controller.publish(&volume, "worker-1", how, false).await.unwrap();
    one.stage(&volume, &context, how).await.unwrap();
    one.expose(&volume, &context, "first", how, false).await.unwrap();
    let (code, why) = refusal(one.expose(&volume, &context, "second", how, false).await);
    assert_eq!(code, Code::FailedPrecondition, "{why}");
    one.detach_all(&mut controller, &volume.volume_id, "first").await.unwrap();
    controller.delete(&volume.volume_id).await.unwrap();
}

#[tokio::test]
async fn readers_on_both_nodes_read_the_same_and_cannot_write() {
    if !can_mount("two nodes, ROX") {
        return;
    }
    let (_world, _daemons, mut one, mut two) = pair().await;
    let mut controller = one.clone();
    let volume = one.create("read", 64 * MIB, RWO).await.unwrap();
    let seen = one.attach_all(&mut controller, &volume, "writer", RWO, false).await.unwrap();
    fs::write(seen.join("file"), "for all").unwrap();
    one.detach_all(&mut controller, &volume.volume_id, "writer").await.unwrap();

    let many = RWO.mode(Mode::MultiNodeReaderOnly);
    for node in [&mut one, &mut two] {
        let seen = node.attach_all(&mut controller, &volume, "reader", many, true).await.unwrap();
        assert_eq!(read(&seen.join("file")), b"for all");
        let refused = fs::write(seen.join("file"), "not for all").unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    }
    let (code, _) = refusal(controller.publish(&volume, "worker-2", RWO, false).await);
    assert!(matches!(code, Code::FailedPrecondition | Code::AlreadyExists), "{code}");
    for node in [&mut one, &mut two] {
        node.detach_all(&mut controller, &volume.volume_id, "reader").await.unwrap();
    }
    controller.delete(&volume.volume_id).await.unwrap();
}

#[tokio::test]
async fn a_read_only_block_device_is_read_only_in_the_kernel() {
    if !can_mount("two nodes, read-only block") {
        return;
    }
    let (_world, _daemons, mut one, _) = pair().await;
    let mut controller = one.clone();
    let volume = one.create("raw", 16 * MIB, BLOCK).await.unwrap();
    let seen = one.attach_all(&mut controller, &volume, "pod", BLOCK, true).await.unwrap();
    let refused = fs::OpenOptions::new().write(true).open(&seen).and_then(|mut device| {
        device.write_all(&[1; 4096])?;
        device.sync_all()
    });
    assert!(refused.is_err(), "a device that is granted for reading was written to");
    one.detach_all(&mut controller, &volume.volume_id, "pod").await.unwrap();
    controller.delete(&volume.volume_id).await.unwrap();
}
