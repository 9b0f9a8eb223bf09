//! What is done to volumes over real NVMe/TCP.

use crate::lab::{Lab, Node, block, plain, refused, smallest};
use crate::target::{ADDRESS, Nvmet};
use bowline_core::{Epoch, NodeId, NvmeNames, TargetId, VolumeId};
use bowline_csi::wire::volume_capability::access_mode::Mode;
use bowline_host::device::is_read_only;
use bowline_host::format::FsType;
use bowline_host::helper::Helper;
use bowline_host::mount::own_mounts;
use bowline_host::nvme::{Nvme, Settings};
use bowline_node::{Devices, DevicesError, NvmeDevices};
use bowline_target::{GrantContext, NvmeContext};
use std::collections::HashMap;
use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tonic::Code;

pub(crate) const ALL: &[(&str, fn())] = &[
    ("volumes_live_twice", volumes_live_twice),
    ("a_block_volume_is_the_same_byte_for_byte", a_block_volume_is_the_same_byte_for_byte),
    ("renumbered_disks_keep_their_data", renumbered_disks_keep_their_data),
    ("a_fenced_writer_gets_errors_and_its_dirty_pages_go_nowhere", a_fenced_writer_gets_errors),
    ("a_target_that_is_away_keeps_nobody", a_target_that_is_away_keeps_nobody),
    ("a_network_that_is_silent_keeps_nobody", a_network_that_is_silent_keeps_nobody),
    ("an_orphan_is_taken_down", an_orphan_is_taken_down),
    ("a_volume_grows_while_it_is_used", a_volume_grows_while_it_is_used),
    ("a_grant_that_only_reads_cannot_write", a_grant_that_only_reads_cannot_write),
    ("an_address_that_is_shut_does_not_matter", an_address_that_is_shut_does_not_matter),
];

/// Short, so that a test can wait for them.
const FAIL_IO_AFTER: u32 = 3;
const GIVE_UP_AFTER: u32 = 8;

struct Machine {
    nvmet: Nvmet,
    lab: Lab,
    _place: tempfile::TempDir,
}

impl Machine {
    fn new() -> Self {
        own_mounts().unwrap();
        // On a disk if there is one: nvmet opens files for direct I/O, and tmpfs has none.
        let disk = PathBuf::from("/data");
        let within = if disk.is_dir() { disk } else { std::env::temp_dir() };
        let place = tempfile::Builder::new().prefix("bowline-fabric-").tempdir_in(within).unwrap();
        let path = place.path().canonicalize().unwrap();
        let nvmet = Nvmet::new(&path.join("target"));
        let mut lab = Lab::within(path);
        // A machine of the VM lab has its programs in a place of its own.
        lab.host.programs.path.extend(std::env::var_os("PATH").iter().flat_map(std::env::split_paths));
        Self { nvmet, lab, _place: place }
    }

    fn devices(&self) -> Arc<dyn Devices> {
        let settings = Settings {
            fail_io_after: FAIL_IO_AFTER,
            give_up_after: GIVE_UP_AFTER,
            reconnect_delay: 1,
            appear_within: Duration::from_secs(5),
            ..Settings::default()
        };
        let helper = Helper::new("/proc/self/exe", ["kernel-write"]);
        let nvme = Nvme::new(Arc::new(self.lab.host.clone()), Arc::new(helper), settings);
        Arc::new(NvmeDevices::new(Arc::new(nvme)))
    }

    fn node(&self) -> Node<'_> {
        let long = Duration::from_secs(60);
        self.lab.node_over("a", self.lab.devices(), self.devices(), &self.lab.host, long)
    }

    /// Exports a volume for node a, and says what the node is told.
    fn grant(&mut self, volume: &str, epoch: u64, write: bool) -> HashMap<String, String> {
        self.nvmet.export(volume, &names(volume, epoch));
        context(volume, epoch, write, &[ADDRESS])
    }
}

fn names(volume: &str, epoch: u64) -> NvmeNames {
    let (volume, node) = (VolumeId::new(volume).unwrap(), NodeId::new("a").unwrap());
    NvmeNames::new("fabric", &volume, &node, Epoch::new(epoch))
}

fn context(volume: &str, epoch: u64, write: bool, addresses: &[&str]) -> HashMap<String, String> {
    let (target, node) = (TargetId::new("nvmet").unwrap(), NodeId::new("a").unwrap());
    let mut context = GrantContext { target, node, epoch: Epoch::new(epoch), write }.to_map();
    let addresses = addresses.iter().map(|address| address.parse().unwrap()).collect();
    context.extend(NvmeContext { names: names(volume, epoch), addresses }.to_map());
    context.into_iter().collect()
}

/// The controllers that this machine has.
fn controllers() -> Vec<PathBuf> {
    let listed = fs::read_dir("/sys/class/nvme").into_iter().flatten();
    listed.map(|entry| entry.unwrap().path()).collect()
}

fn assert_clean(machine: &Machine) {
    assert_eq!(controllers(), Vec::<PathBuf>::new());
    assert_eq!(machine.lab.mounts_below(&machine.lab.path("")), Vec::<PathBuf>::new());
}

/// Runs it and says how long it took, which must not be longer than this.
#[track_caller]
fn within<T>(limit: Duration, what: &str, work: impl FnOnce() -> T) -> T {
    let began = Instant::now();
    let done = work();
    let took = began.elapsed();
    assert!(took <= limit, "{what} took {took:?}, more than {limit:?}");
    println!("    {what}: {took:?}");
    done
}

fn volumes_live_twice() {
    let mut machine = Machine::new();
    for fs_type in [FsType::Ext4, FsType::Xfs] {
        let volume = fs_type.name();
        machine.nvmet.volume(volume, smallest(fs_type));
        for epoch in 1..=2 {
            let context = machine.grant(volume, epoch, true);
            let mut node = machine.node();
            within(Duration::from_secs(20), "stage and publish", || node.up(volume, &context, fs_type));
            if epoch == 2 {
                assert_eq!(fs::read_to_string(node.at("pod/data")).unwrap(), "kept");
            }
            fs::write(node.at("pod/data"), "kept").unwrap();
            node = {
                drop(node);
                machine.node()
            };
            node.up(volume, &context, fs_type);
            assert_eq!(node.health(volume).unwrap(), []);
            assert_eq!(node.stats(volume, &node.text("pod")).unwrap().len(), 2);
            assert_eq!(controllers().len(), 1);
            node.down(volume);
            assert!(!node.record(volume).exists());
            drop(node);
            assert_clean(&machine);
            machine.nvmet.fence(&names(volume, epoch));
        }
    }
}

fn a_block_volume_is_the_same_byte_for_byte() {
    let mut machine = Machine::new();
    machine.nvmet.volume("v", 8 << 20);
    let context = machine.grant("v", 1, true);
    let (node, capability) = (machine.node(), block(Mode::SingleNodeWriter));
    node.stage("v", &context, &capability).unwrap();
    node.publish("v", "dev", &context, &capability, false).unwrap();
    let bytes: Vec<u8> = (0..8_u32 << 20).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let device = File::options().write(true).open(node.at("dev")).unwrap();
    device.write_all_at(&bytes, 0).unwrap();
    device.sync_all().unwrap();
    // Another process has it, so that its number is found in another place than our own.
    let mut reader = Command::new("sleep").arg("60").stdin(device).spawn().unwrap();
    let devices = machine.devices();
    let taken = devices.disconnect(&VolumeId::new("v").unwrap(), &NodeId::new("a").unwrap(), Epoch::new(1));
    reader.kill().unwrap();
    reader.wait().unwrap();
    assert!(matches!(taken, Err(DevicesError::InUse(_))), "{taken:?}");
    node.unpublish("v", "dev").unwrap();
    node.unstage("v").unwrap();
    assert_eq!(fs::read(machine.nvmet.file("v")).unwrap(), bytes);
    drop(node);
    assert_clean(&machine);
}

fn renumbered_disks_keep_their_data() {
    let mut machine = Machine::new();
    let volumes = ["v", "w"];
    let contexts = volumes.map(|volume| {
        machine.nvmet.volume(volume, smallest(FsType::Ext4));
        machine.grant(volume, 1, true)
    });
    let (node, ext4) = (machine.node(), plain(FsType::Ext4));
    let staging = |volume: &str| node.at(&format!("stage-{volume}"));
    let source =
        |volume: &str| machine.lab.host.mounts().unwrap().top(&staging(volume)).unwrap().source.clone();
    // With their mounts left, which keep the old names from being given out again, and without.
    for unmounted in [false, true] {
        for (volume, context) in volumes.iter().zip(&contexts) {
            node.stage(volume, context, &ext4).unwrap();
            fs::write(staging(volume).join("who"), volume).unwrap();
            File::open(staging(volume).join("who")).unwrap().sync_all().unwrap();
        }
        let before = volumes.map(source);
        for controller in controllers() {
            fs::write(controller.join("delete_controller"), "1").unwrap();
        }
        for volume in volumes {
            let stale = node.stats(volume, staging(volume).to_str().unwrap());
            refused(stale, Code::Unavailable, "is gone");
            assert_eq!(node.health(volume).unwrap()[0].reason, "StaleMount");
            if unmounted {
                machine.lab.host.programs.run("umount", &[staging(volume)]).unwrap();
            }
        }
        for (volume, context) in volumes.iter().zip(&contexts).rev() {
            let pod = format!("pod-{volume}");
            let cured = || node.publish(volume, &pod, context, &ext4, false);
            within(Duration::from_secs(20), "recovery", cured).unwrap();
        }
        println!("    {before:?} became {:?}", volumes.map(source));
        let [v, w] = before;
        assert_eq!(volumes.map(source) == [w, v], unmounted, "this is about names that move");
        for volume in volumes {
            let pod = format!("pod-{volume}");
            assert_eq!(fs::read_to_string(node.at(&pod).join("who")).unwrap(), volume);
            node.unpublish(volume, &pod).unwrap();
            node.unstage(volume).unwrap();
        }
    }
    assert!(node.metrics().contains("bowline_remount_operations_total{result=\"success\"} 4"));
    drop(node);
    assert_clean(&machine);
}

fn a_fenced_writer_gets_errors() {
    let mut machine = Machine::new();
    machine.nvmet.volume("v", smallest(FsType::Ext4));
    let old = machine.grant("v", 1, true);
    let ext4 = plain(FsType::Ext4);
    let node = machine.node();
    node.up("v", &old, FsType::Ext4);
    let mut dirty = File::create(node.at("pod/dirty")).unwrap();
    dirty.sync_all().unwrap();
    dirty.write_all(&vec![b'A'; 4 << 20]).unwrap();
    drop(node);
    machine.nvmet.fence(&names("v", 1));
    let after_fence = fs::read(machine.nvmet.file("v")).unwrap();
    // By the kernel's own clock: detection, then the time that I/O waits.
    let limit = Duration::from_secs(u64::from(FAIL_IO_AFTER) + 15);
    let error = within(limit, "the first error of a fenced fsync", || dirty.sync_all()).unwrap_err();
    println!("    {error}");
    drop(dirty);

    let new = machine.grant("v", 2, true);
    let node = machine.node();
    refused(node.stage("v", &new, &ext4), Code::FailedPrecondition, "epoch 1");
    within(limit, "unpublish", || node.unpublish("v", "pod")).unwrap();
    within(limit, "unstage", || node.unstage("v")).unwrap();
    assert_eq!(fs::read(machine.nvmet.file("v")).unwrap(), after_fence, "nothing of epoch 1 arrived");
    node.up("v", &new, FsType::Ext4);
    let dirty = fs::read(node.at("pod/dirty")).unwrap();
    assert!(dirty.iter().all(|byte| *byte != b'A'), "{} bytes of epoch 1", dirty.len());
    node.down("v");
    drop(node);
    assert_clean(&machine);
}

fn a_target_that_is_away_keeps_nobody() {
    let mut machine = Machine::new();
    machine.nvmet.volume("v", smallest(FsType::Xfs));
    let context = machine.grant("v", 1, true);
    let node = machine.node();
    node.up("v", &context, FsType::Xfs);
    fs::write(node.at("pod/data"), vec![7; 1 << 20]).unwrap();
    machine.nvmet.leave(&names("v", 1));
    // The device is still there, and leads nowhere: told without waiting for it.
    let lost = || {
        controllers().iter().all(|one| fs::read_to_string(one.join("state")).unwrap_or_default() != "live\n")
    };
    let deadline = Instant::now() + Duration::from_secs(20);
    while !lost() {
        assert!(Instant::now() < deadline, "the connection is not lost after 20 s");
        std::thread::sleep(Duration::from_millis(50));
    }
    let quick = Duration::from_secs(2);
    let told = within(quick, "statistics", || node.stats("v", &node.text("pod"))).unwrap_err();
    assert_eq!(told.code(), Code::Unavailable, "{told}");
    let health = within(quick, "health", || node.health("v")).unwrap();
    assert!(!health.is_empty(), "{health:?}");
    let limit = Duration::from_secs(u64::from(GIVE_UP_AFTER) + 15);
    within(limit, "unpublish", || node.unpublish("v", "pod")).unwrap();
    within(limit, "unstage", || node.unstage("v")).unwrap();
    drop(node);
    assert_clean(&machine);
}

/// Nothing says that the target is gone: no reset, no refusal. Takes the machine's loopback away for a while, so nobody else may need
/// it.
fn a_network_that_is_silent_keeps_nobody() {
    let mut machine = Machine::new();
    machine.nvmet.volume("v", smallest(FsType::Ext4));
    let context = machine.grant("v", 1, true);
    let node = machine.node();
    node.up("v", &context, FsType::Ext4);
    fs::write(node.at("pod/data"), vec![7; 1 << 20]).unwrap();
    let loopback = |state: &str| {
        machine.lab.host.programs.run("ip", &["link", "set", "lo", state]).unwrap();
    };
    loopback("down");
    // A question is answered after 15 s, whatever the device does.
    let told = within(Duration::from_secs(17), "statistics", || node.stats("v", &node.text("pod")));
    println!("    {}", told.unwrap_err());
    // Linux 6.1 waits for the lost keep-alive twice, 13 s in all, before I/O begins to wait for a new connection.
    let limit = Duration::from_secs(u64::from(FAIL_IO_AFTER) + 20);
    within(limit, "unpublish", || node.unpublish("v", "pod")).unwrap();
    within(Duration::from_secs(40), "unstage", || node.unstage("v")).unwrap();
    assert_clean(&machine);
    loopback("up");
    node.up("v", &context, FsType::Ext4);
    node.down("v");
    drop(node);
    assert_clean(&machine);
}

fn an_orphan_is_taken_down() {
    let mut machine = Machine::new();
    machine.nvmet.volume("v", smallest(FsType::Ext4));
    let context = machine.grant("v", 1, true);
    machine.nvmet.enable(&names("v", 1), false);
    let node = machine.node();
    refused(node.stage("v", &context, &plain(FsType::Ext4)), Code::Unavailable, "had no device");
    assert_eq!(controllers(), Vec::<PathBuf>::new());
    assert!(node.metrics().contains("bowline_orphaned_subsystems_detected_total 1"));
    machine.nvmet.enable(&names("v", 1), true);
    node.up("v", &context, FsType::Ext4);
    node.down("v");
    drop(node);
    assert_clean(&machine);
}

fn a_volume_grows_while_it_is_used() {
    let mut machine = Machine::new();
    let size = smallest(FsType::Ext4);
    machine.nvmet.volume("v", size);
    let context = machine.grant("v", 1, true);
    let node = machine.node();
    node.up("v", &context, FsType::Ext4);
    machine.nvmet.volume("v", 2 * size);
    machine.nvmet.revalidate(&names("v", 1));
    assert_eq!(node.expand("v", &node.text("pod"), 2 * size).unwrap(), 2 * size);
    let total = u64::try_from(node.stats("v", &node.text("pod")).unwrap()[0].total).unwrap();
    assert!(total > size, "{total}");
    node.down("v");
    drop(node);
    assert_clean(&machine);
}

fn a_grant_that_only_reads_cannot_write() {
    let mut machine = Machine::new();
    machine.nvmet.volume("v", 8 << 20);
    let context = machine.grant("v", 1, false);
    let (node, capability) = (machine.node(), block(Mode::MultiNodeReaderOnly));
    node.stage("v", &context, &capability).unwrap();
    node.publish("v", "dev", &context, &capability, true).unwrap();
    assert!(is_read_only(&node.at("dev")).unwrap());
    let opened = File::options().write(true).open(node.at("dev"));
    let written = opened.and_then(|file| file.write_all_at(&[7; 4096], 0).and_then(|()| file.sync_all()));
    assert!(written.is_err(), "{written:?}");
    node.unpublish("v", "dev").unwrap();
    node.unstage("v").unwrap();
    drop(node);
    assert_clean(&machine);
}

fn an_address_that_is_shut_does_not_matter() {
    let mut machine = Machine::new();
    machine.nvmet.volume("v", smallest(FsType::Ext4));
    machine.grant("v", 1, true);
    let context = context("v", 1, true, &["127.0.0.1:4", ADDRESS]);
    let node = machine.node();
    within(Duration::from_secs(20), "stage", || node.stage("v", &context, &plain(FsType::Ext4))).unwrap();
    node.unstage("v").unwrap();
    let nobody = self::context("v", 1, true, &["127.0.0.1:4"]);
    refused(node.stage("v", &nobody, &plain(FsType::Ext4)), Code::Unavailable, "127.0.0.1:4: ");
    node.unstage("v").unwrap();
    drop(node);
    assert_clean(&machine);
}
