//! Volumes over NVMe/TCP: everything of the node but the fabric itself. The disks are loop devices, and a kernel made of
//! files connects them.

use crate::lab::{Lab, Node, block, not_run, plain, refused, smallest};
use crate::tree::{Export, Fake, Tree};
use bowline_core::{Epoch, MODEL, MODEL_OF_BLANK, NodeId, NvmeNames, TargetId, VolumeId};
use bowline_csi::wire::VolumeHealthErrorType;
use bowline_csi::wire::volume_capability::access_mode::Mode;
use bowline_host::device::is_read_only;
use bowline_host::format::FsType;
use bowline_host::loopdev::LoopDevice;
use bowline_host::nvme::{Nvme, Settings};
use bowline_host::{Host, Tag};
use bowline_node::staging::{Content, Phase, Record, decode, encode};
use bowline_node::{Devices, NvmeDevices};
use bowline_target::{GrantContext, NvmeContext};
use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::{FileExt, symlink};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;
use tonic::Code;

/// A machine on a fabric.
pub(crate) struct Machine {
    pub(crate) lab: Lab,
    tree: Tree,
    pub(crate) kernel: Arc<Fake>,
    pub(crate) host: Host,
}

impl Machine {
    pub(crate) fn new() -> Option<Self> {
        let lab = Lab::new(&[FsType::Ext4])?;
        let Some(tree) = Tree::new("dev/probe b 7:0") else {
            not_run("this process may not make device nodes");
            return None;
        };
        let kernel = Arc::new(Fake::new(&tree));
        let host = tree.host();
        Some(Self { lab, tree, kernel, host })
    }

    pub(crate) fn devices(&self) -> Arc<dyn Devices> {
        self.devices_with(Settings::default())
    }

    pub(crate) fn devices_with(&self, settings: Settings) -> Arc<dyn Devices> {
        let settings = Settings {
            appear_within: Duration::from_millis(50),
            grow_within: Duration::from_secs(5),
            ..settings
        };
        let nvme = Nvme::new(Arc::new(self.host.clone()), Arc::clone(&self.kernel) as _, settings);
        Arc::new(NvmeDevices::new(Arc::new(nvme)))
    }

    pub(crate) fn node(&self, name: &str) -> Node<'_> {
        let long = Duration::from_secs(60);
        self.lab.node_over(name, self.lab.devices(), self.devices(), &self.host, long)
    }

    /// The disk over which a volume is exported; another one each time.
    fn disk(&self, volume: &str, epoch: u64) -> LoopDevice {
        let file = self.lab.volume(volume, smallest(FsType::Ext4));
        let node = NodeId::new("target").unwrap();
        self.lab.host.attach(&file, &Tag::new(&id(volume), &node, Epoch::new(epoch)), false).unwrap()
    }

    /// Lets a node in; the epoch of its grant is of the volume alone.
    pub(crate) fn grant(&self, volume: &str, node: &str, epoch: u64, write: bool) -> HashMap<String, String> {
        let names = names(volume, node, epoch);
        let export = Export {
            host: names.host.clone(),
            namespace: names.namespace.clone(),
            number: self.disk(volume, epoch).number.to_string(),
            sectors: smallest(FsType::Ext4) / 512,
            model: MODEL,
        };
        self.kernel.world().exports.insert(names.subsystem.clone(), export);
        let (target, node) = (TargetId::new("far-away").unwrap(), NodeId::new(node).unwrap());
        let mut context = GrantContext { target, node, epoch: Epoch::new(epoch), write }.to_map();
        let addresses = vec!["10.0.0.1:4420".parse().unwrap(), "10.0.1.1:4420".parse().unwrap()];
        context.extend(NvmeContext { names, addresses }.to_map());
        context.into_iter().collect()
    }

    /// The same bytes are another device for whoever connects from now on. Says which.
    pub(crate) fn renumber(&self, nqn: &str, volume: &str) -> String {
        let after = self.disk(volume, 99).number.to_string();
        let before =
            std::mem::replace(&mut self.kernel.world().exports.get_mut(nqn).unwrap().number, after.clone());
        assert_ne!(before, after);
        after
    }

    /// The disk of a grant of node a is given up, and can be had again under another number.
    pub(crate) fn comes_back_as_another(&self, volume: &str, epoch: u64) {
        let nqn = names(volume, "a", epoch).subsystem;
        self.kernel.lose(&nqn, false);
        self.renumber(&nqn, volume);
    }

    /// Connects without the node.
    pub(crate) fn connect(&self, context: &HashMap<String, String>) {
        self.kernel.command(&connect_of(context));
    }

    /// What a target says of an export to whoever connects from now on.
    fn calls_blank(&self, nqn: &str) {
        self.kernel.world().exports.get_mut(nqn).unwrap().model = MODEL_OF_BLANK;
    }

    /// What the fabric was asked for since the last time: `connect`, or the file.
    pub(crate) fn asked(&self) -> Vec<String> {
        let written = std::mem::take(&mut self.kernel.world().written);
        let name = |text: String| if text.starts_with("transport") { "connect".to_owned() } else { text };
        written.into_iter().map(name).collect()
    }

    /// Every file of the kernel's with this name below the controllers.
    pub(crate) fn files(&self, name: &str) -> Vec<PathBuf> {
        let controllers = fs::read_dir(self.tree.at("sys/devices/virtual/nvme-fabrics/ctl")).unwrap();
        controllers.map(|entry| entry.unwrap().path().join(name)).collect()
    }

    pub(crate) fn assert_clean(&self) {
        assert_eq!(self.lab.mounts_below(&self.lab.path("")), Vec::<PathBuf>::new());
        assert_eq!(self.files("state"), Vec::<PathBuf>::new());
    }
}

impl Drop for Machine {
    /// A loop device keeps refusing writes for its next user, which no disk of a fabric does: it is made anew each time.
    fn drop(&mut self) {
        for device in self.lab.loops() {
            let _ = self.lab.host.programs.run("blockdev", &["--setrw".as_ref(), device.path.as_os_str()]);
        }
    }
}

/// What the kernel is told to connect to the first address of a grant.
pub(crate) fn connect_of(context: &HashMap<String, String>) -> String {
    let fabric = NvmeContext::parse(|key| context.get(key).map(String::as_str)).unwrap().unwrap();
    let NvmeNames { subsystem, host, .. } = fabric.names;
    format!("transport=tcp,traddr=10.0.0.1,trsvcid=4420,nqn={subsystem},hostnqn={host}")
}

pub(crate) fn id(volume: &str) -> VolumeId {
    VolumeId::new(volume).unwrap()
}

pub(crate) fn names(volume: &str, node: &str, epoch: u64) -> NvmeNames {
    NvmeNames::new("storage", &id(volume), &NodeId::new(node).unwrap(), Epoch::new(epoch))
}

#[test]
fn a_volume_of_a_target_that_the_node_never_heard_of_lives_twice() {
    let Some(machine) = Machine::new() else { return };
    let ext4 = plain(FsType::Ext4);
    for epoch in 1..=2 {
        let context = machine.grant("v", "a", epoch, true);
        let mut node = machine.node("a");
        for _ in 0..2 {
            node.stage("v", &context, &ext4).unwrap();
            node.publish("v", "pod", &context, &ext4, false).unwrap();
            drop(node);
            node = machine.node("a");
        }
        assert_eq!(machine.asked(), ["connect", "connect"], "two addresses, and nothing the second time");
        let record = decode(&fs::read(node.record("v")).unwrap()).unwrap();
        assert_eq!(record.device, names("v", "a", epoch).subsystem);
        assert_eq!(record.fabric.unwrap().addresses.len(), 2);
        assert_eq!(node.health("v").unwrap(), []);
        assert_eq!(node.stats("v", &node.text("pod")).unwrap().len(), 2);
        if epoch == 2 {
            assert_eq!(fs::read_to_string(node.at("pod/data")).unwrap(), "kept");
        }
        fs::write(node.at("pod/data"), "kept").unwrap();
        for _ in 0..2 {
            node.down("v");
        }
        assert_eq!(machine.asked(), ["delete_controller", "delete_controller"]);
        assert!(!node.record("v").exists());
        machine.assert_clean();
    }
}

/// Bytes of a volume that lie behind everything that a short look sees.
fn write_far(machine: &Machine, volume: &str) {
    let file = fs::File::options().write(true).open(machine.lab.path("target").join(volume)).unwrap();
    file.write_all_at(b"somebody's", 700 << 10).unwrap();
    file.sync_all().unwrap();
}

#[test]
fn what_a_target_calls_blank_is_looked_at_where_filesystems_begin_and_only_at_its_first_use() {
    let Some(machine) = Machine::new() else { return };
    let ext4 = plain(FsType::Ext4);
    let (raw, left) = (block(Mode::SingleNodeWriter), "is left alone");
    // Bytes that the target does not know of, to see how far the look goes.
    for (volume, is_called_blank, is_used_before) in
        [("plain", false, false), ("blank", true, false), ("used", true, true)]
    {
        let node = machine.node("a");
        let context = machine.grant(volume, "a", 1, true);
        let nqn = names(volume, "a", 1).subsystem;
        if is_called_blank {
            machine.calls_blank(&nqn);
        }
        if is_used_before {
            node.stage(volume, &context, &raw).unwrap();
            node.unstage(volume).unwrap();
        }
        write_far(&machine, volume);
        // Whoever has forgotten everything but what is on the disk knows it.
        drop(node);
        let node = machine.node("a");
        let staged = node.stage(volume, &context, &ext4);
        if is_called_blank && !is_used_before {
            staged.unwrap();
            node.unstage(volume).unwrap();
            node.up(volume, &context, FsType::Ext4);
            node.down(volume);
        } else {
            refused(staged, Code::FailedPrecondition, left);
            node.unstage(volume).unwrap();
        }
    }
    machine.assert_clean();
}

#[test]
fn a_volume_that_was_used_raw_before_its_target_called_it_blank_under_the_same_grant_is_not_formatted() {
    let Some(machine) = Machine::new() else { return };
    let context = machine.grant("v", "a", 1, true);
    let node = machine.node("a");
    node.stage("v", &context, &block(Mode::SingleNodeWriter)).unwrap();
    node.unstage("v").unwrap();
    // The target starts again before anything was written, and the workload writes after that.
    machine.calls_blank(&names("v", "a", 1).subsystem);
    write_far(&machine, "v");
    drop(node);
    let node = machine.node("a");
    refused(node.stage("v", &context, &plain(FsType::Ext4)), Code::FailedPrecondition, "is left alone");
    node.unstage("v").unwrap();
    // What is new on this node still counts as that.
    let context = machine.grant("w", "a", 1, true);
    machine.calls_blank(&names("w", "a", 1).subsystem);
    write_far(&machine, "w");
    node.stage("w", &context, &plain(FsType::Ext4)).unwrap();
    node.unstage("w").unwrap();
    machine.assert_clean();
}

#[test]
fn a_raw_volume_is_not_formatted_when_what_was_noted_of_its_use_is_lost() {
    let Some(machine) = Machine::new() else { return };
    let ext4 = plain(FsType::Ext4);
    let grants = ["rebooted", "upgraded"].map(|volume| {
        let context = machine.grant(volume, "a", 1, true);
        machine.calls_blank(&names(volume, "a", 1).subsystem);
        (volume, context)
    });
    let node = machine.node("a");
    for (volume, context) in &grants {
        node.stage(volume, context, &block(Mode::SingleNodeWriter)).unwrap();
        write_far(&machine, volume);
    }
    drop(node);
    // Lost; or all this was done by a program that noted nothing.
    let noted = machine.lab.path("a").join("state/used-grants");
    fs::remove_file(&noted).unwrap();
    let node = machine.node("a");
    let [(rebooted, context), (upgraded, other)] = &grants;
    machine.kernel.lose(&names(rebooted, "a", 1).subsystem, false);
    let staged = node.stage(rebooted, context, &ext4);
    refused(staged, Code::FailedPrecondition, "is left alone");
    // The file is made by now. What the other volume's record says is in it, and goes on to be known when the record is gone.
    assert!(noted.exists());
    node.unstage(upgraded).unwrap();
    refused(node.stage(upgraded, other, &ext4), Code::FailedPrecondition, "is left alone");
    for (volume, _) in &grants {
        node.unstage(volume).unwrap();
    }
    machine.assert_clean();
}

#[test]
fn a_mount_whose_disk_came_back_under_another_name_and_number_is_cured_by_the_next_publish() {
    let Some(machine) = Machine::new() else { return };
    let (node, ext4) = (machine.node("a"), plain(FsType::Ext4));
    let context = machine.grant("v", "a", 1, true);
    node.stage("v", &context, &ext4).unwrap();
    fs::write(node.at("stage-v/data"), "kept").unwrap();
    let nqn = names("v", "a", 1).subsystem;
    machine.kernel.lose(&nqn, false);
    let gone = "is gone";
    refused(node.stats("v", &node.text("stage-v")), Code::Unavailable, gone);
    refused(node.expand("v", &node.text("stage-v"), 1), Code::Unavailable, gone);
    assert_eq!(node.health("v").unwrap()[0].reason, "StaleMount");
    let after = machine.renumber(&nqn, "v");
    node.publish("v", "pod", &context, &ext4, false).unwrap();
    let mounts = machine.host.mounts().unwrap();
    assert_eq!(mounts.top(&node.at("pod")).unwrap().device.to_string(), after);
    assert_eq!(fs::read_to_string(node.at("pod/data")).unwrap(), "kept");
    let metrics = node.metrics();
    for line in [
        "bowline_stale_mounts_detected_total 4",
        "bowline_remount_operations_total{result=\"success\"} 1",
        "bowline_device_path_resolutions_total{result=\"missing\"}",
        "bowline_orphaned_subsystems_detected_total 0",
    ] {
        assert!(metrics.contains(line), "{line} is not in {metrics}");
    }
    node.down("v");
    machine.assert_clean();
}

#[test]
fn volumes_that_swapped_their_names_keep_their_data() {
    let Some(machine) = Machine::new() else { return };
    let (node, ext4) = (machine.node("a"), plain(FsType::Ext4));
    let contexts = ["v", "w"].map(|volume| (volume, machine.grant(volume, "a", 1, true)));
    let where_is = |volume: &str| {
        let mounts = machine.host.mounts().unwrap();
        mounts.top(&node.at(&format!("stage-{volume}"))).unwrap().source.clone()
    };
    for (volume, context) in &contexts {
        node.stage(volume, context, &ext4).unwrap();
        fs::write(node.at(&format!("stage-{volume}/who")), volume).unwrap();
    }
    let before = ["v", "w"].map(where_is);
    for (volume, _) in &contexts {
        machine.kernel.lose(&names(volume, "a", 1).subsystem, false);
    }
    // In the other order, so that each gets what was the other's name.
    machine.kernel.restart_numbering();
    for (volume, context) in contexts.iter().rev() {
        node.publish(volume, &format!("pod-{volume}"), context, &ext4, false).unwrap();
    }
    for (volume, _) in &contexts {
        assert_eq!(fs::read_to_string(node.at(&format!("pod-{volume}/who"))).unwrap(), *volume);
    }
    let [v, w] = before;
    assert_eq!(["v", "w"].map(where_is), [w, v], "this is about names that move");
    for (volume, _) in &contexts {
        node.unpublish(volume, &format!("pod-{volume}")).unwrap();
        node.unstage(volume).unwrap();
    }
    machine.assert_clean();
}

#[test]
fn what_is_left_of_an_earlier_grant_is_named_if_used_and_taken_away_if_not() {
    let Some(machine) = Machine::new() else { return };
    let (node, ext4) = (machine.node("a"), plain(FsType::Ext4));
    let old = machine.grant("v", "a", 1, true);
    node.up("v", &old, FsType::Ext4);
    let new = machine.grant("v", "a", 2, true);
    machine.asked();
    refused(node.stage("v", &new, &ext4), Code::FailedPrecondition, "epoch 1");
    let nqn = names("v", "a", 1).subsystem;
    machine.kernel.lose(&nqn, true);
    refused(node.stage("v", &new, &ext4), Code::FailedPrecondition, "epoch 1");
    // Nobody sees it any more, but something has it open.
    node.unpublish("v", "pod").unwrap();
    machine.lab.host.programs.run("umount", &[node.at("stage-v")]).unwrap();
    refused(node.stage("v", &new, &ext4), Code::FailedPrecondition, "still has it open");
    assert_eq!(machine.asked(), Vec::<String>::new(), "nothing was touched");
    node.unstage("v").unwrap();
    machine.kernel.forget(&nqn);
    node.stage("v", &new, &ext4).unwrap();
    node.unstage("v").unwrap();

    // A controller of an earlier grant whose disk nobody uses, and one without a disk.
    for without_disk in [false, true] {
        let old = machine.grant("v", "a", if without_disk { 5 } else { 3 }, true);
        machine.kernel.world().without_disk = without_disk;
        machine.connect(&old);
        machine.kernel.world().without_disk = false;
        let new = machine.grant("v", "a", if without_disk { 6 } else { 4 }, true);
        machine.asked();
        node.stage("v", &new, &ext4).unwrap();
        assert_eq!(machine.asked(), ["delete_controller", "connect", "connect"], "{without_disk}");
        node.unstage("v").unwrap();
    }
    assert!(node.metrics().contains("bowline_orphaned_subsystems_detected_total 1"));
    machine.assert_clean();
}

#[test]
fn a_connection_without_a_disk_is_taken_down_and_the_caller_asks_again() {
    let Some(machine) = Machine::new() else { return };
    let (node, ext4) = (machine.node("a"), plain(FsType::Ext4));
    let context = machine.grant("v", "a", 1, true);
    machine.kernel.world().without_disk = true;
    refused(node.stage("v", &context, &ext4), Code::Unavailable, "had no device");
    assert_eq!(machine.files("state"), Vec::<PathBuf>::new());
    assert!(node.metrics().contains("bowline_orphaned_subsystems_detected_total 1"));
    machine.kernel.world().without_disk = false;
    node.up("v", &context, FsType::Ext4);
    node.down("v");
    machine.assert_clean();
}

#[test]
fn a_disk_without_a_way_to_its_target_is_told_at_once() {
    let Some(machine) = Machine::new() else { return };
    let (node, context) = (machine.node("a"), machine.grant("v", "a", 1, true));
    node.up("v", &context, FsType::Ext4);
    let states = machine.files("state");
    fs::write(&states[0], "connecting\n").unwrap();
    let health = node.health("v").unwrap();
    assert_eq!(health.len(), 1, "the other way is open: {health:?}");
    assert_eq!(
        (health[0].reason.as_str(), health[0].status()),
        ("PathLost", VolumeHealthErrorType::Degraded)
    );
    node.stats("v", &node.text("pod")).unwrap();
    states.iter().for_each(|state| fs::write(state, "connecting\n").unwrap());
    refused(node.stats("v", &node.text("pod")), Code::Unavailable, "connecting, connecting");
    let health = node.health("v").unwrap();
    assert_eq!((health.len(), health[0].reason.as_str()), (1, "NotConnected"));
    node.down("v");
    machine.assert_clean();
}

#[test]
fn a_connection_that_was_given_up_is_made_again_by_the_next_publish() {
    let Some(machine) = Machine::new() else { return };
    let (node, context) = (machine.node("a"), machine.grant("v", "a", 1, true));
    machine.kernel.world().silent = vec!["10.0.1.1:4420".to_owned()];
    node.up("v", &context, FsType::Ext4);
    assert_eq!(node.health("v").unwrap()[0].reason, "PathLost");
    machine.asked();
    node.publish("v", "pod", &context, &plain(FsType::Ext4), false).unwrap();
    assert_eq!(machine.asked(), [""; 0], "nobody answers there, and the volume is shown all the same");
    machine.kernel.world().silent.clear();
    node.publish("v", "pod", &context, &plain(FsType::Ext4), false).unwrap();
    assert_eq!(node.health("v").unwrap(), []);
    assert_eq!(machine.files("state").len(), 2);
    node.down("v");
    machine.assert_clean();
}

#[test]
fn a_lost_connection_of_a_running_workload_stayed_lost_when_its_network_was_back() {
    let Some(machine) = Machine::new() else { return };
    let (node, context) = (machine.node("a"), machine.grant("v", "a", 1, true));
    for ask in ["stats", "health"] {
        machine.kernel.world().silent = vec!["10.0.1.1:4420".to_owned()];
        node.up("v", &context, FsType::Ext4);
        node.stats("v", &node.text("pod")).unwrap();
        assert_eq!(machine.files("state").len(), 1, "nobody answers there");
        machine.kernel.world().silent.clear();
        let begun = std::time::Instant::now();
        while machine.files("state").len() < 2 {
            match ask {
                "stats" => drop(node.stats("v", &node.text("pod")).unwrap()),
                _ => drop(node.health("v").unwrap()),
            }
            assert!(begun.elapsed() < Duration::from_secs(20), "{ask}");
            std::thread::yield_now();
        }
        // What brought it back may still have the volume to itself.
        while let Err(busy) = node.unpublish("v", "pod") {
            assert_eq!(busy.code(), Code::Aborted, "{busy}");
            assert!(begun.elapsed() < Duration::from_secs(20), "{busy}");
            std::thread::yield_now();
        }
        node.unstage("v").unwrap();
    }
    machine.assert_clean();
}

/// The filesystem in which the files under all disks are; it can be stopped, and whoever writes waits for it to go on.
struct Under<'a>(&'a Machine);

impl<'a> Under<'a> {
    fn new(machine: &'a Machine) -> Self {
        let (image, at) = (machine.lab.path("under"), machine.lab.path("target"));
        fs::File::create(&image).unwrap().set_len(256 << 20).unwrap();
        let run = |program: &str, args: &[&std::ffi::OsStr]| {
            machine.lab.host.programs.run(program, args).unwrap();
        };
        run("mkfs.ext4", &["-q".as_ref(), image.as_os_str()]);
        run("mount", &["-o".as_ref(), "loop".as_ref(), image.as_os_str(), at.as_os_str()]);
        Self(machine)
    }

    fn run(&self, what: &str) {
        let at = self.0.lab.path("target");
        self.0.lab.host.programs.run("fsfreeze", &[what.as_ref(), at.as_os_str()]).unwrap();
    }

    /// While the work is done, nothing is written.
    fn stopped(&self, work: impl FnOnce()) {
        struct Thaw<'a>(&'a Under<'a>);
        impl Drop for Thaw<'_> {
            fn drop(&mut self) {
                self.0.run("--unfreeze");
            }
        }
        self.run("--freeze");
        let _thaw = Thaw(self);
        work();
    }
}

#[test]
fn an_unmount_on_a_connection_that_only_counted_as_live_hung_for_ever() {
    let Some(machine) = Machine::new() else { return };
    let under = Under::new(&machine);
    let devices = machine.devices_with(Settings { give_up_after: 1, ..Settings::default() });
    let long = Duration::from_secs(60);
    let node = machine.lab.node_over("a", machine.lab.devices(), devices, &machine.host, long);
    for volume in ["v", "w"] {
        let context = machine.grant(volume, "a", 1, true);
        node.stage(volume, &context, &plain(FsType::Ext4)).unwrap();
    }
    // To be flushed by the unmount.
    fs::write(node.at("stage-v/data"), vec![7; 1 << 20]).unwrap();
    machine.asked();
    std::thread::scope(|scope| {
        under.stopped(|| {
            scope.spawn(|| node.unstage("v").unwrap());
            let begun = std::time::Instant::now();
            while machine.kernel.world().reset.len() < 2 {
                assert!(begun.elapsed() < Duration::from_secs(30), "nobody resets it");
                std::thread::sleep(Duration::from_millis(10));
            }
        });
    });
    let v = names("v", "a", 1).subsystem;
    assert_eq!(machine.kernel.world().reset, [v.clone(), v], "once, each of its connections");
    let asked = machine.asked();
    assert_eq!(asked, ["reset_controller", "reset_controller", "delete_controller", "delete_controller"]);
    let metrics = node.metrics();
    assert!(metrics.contains("bowline_connection_resets_total 1"), "{metrics}");
    node.unstage("w").unwrap();
    assert_eq!(machine.kernel.world().reset.len(), 2, "one that returns is not looked at");
    assert_eq!(machine.files("state"), Vec::<PathBuf>::new());
}

#[test]
fn a_mkfs_on_a_connection_that_only_counted_as_live_kept_its_volume_for_ever() {
    let Some(machine) = Machine::new() else { return };
    let under = Under::new(&machine);
    let devices = machine.devices_with(Settings { give_up_after: 1, ..Settings::default() });
    let long = Duration::from_secs(60);
    let node = machine.lab.node_over("a", machine.lab.devices(), devices, &machine.host, long);
    let context = machine.grant("v", "a", 1, true);
    std::thread::scope(|scope| {
        under.stopped(|| {
            scope.spawn(|| node.stage("v", &context, &plain(FsType::Ext4)).unwrap());
            let begun = std::time::Instant::now();
            while machine.kernel.world().reset.len() < 2 {
                assert!(begun.elapsed() < Duration::from_secs(30), "nobody resets it");
                std::thread::sleep(Duration::from_millis(10));
            }
        });
    });
    node.unstage("v").unwrap();
    assert_eq!(machine.files("state"), Vec::<PathBuf>::new());
}

#[test]
fn a_mkfs_that_was_left_behind_kept_its_volume_on_the_node_for_ever() {
    let Some(machine) = Machine::new() else { return };
    let (node, context) = (machine.node("a"), machine.grant("v", "a", 1, true));
    node.stage("v", &context, &block(Mode::SingleNodeWriter)).unwrap();
    let record = decode(&fs::read(node.record("v")).unwrap()).unwrap();
    let content = Content::Filesystem { fs: FsType::Ext4, options: vec![] };
    let record = Record { content, phase: Phase::Connecting, ..record };
    let next = machine.grant("v", "a", 2, true);
    // What a program is called is what the kernel shows of it.
    let sleep = machine.lab.host.programs.find("sleep").unwrap();
    for (name, resets) in [("mkfs.ext4", 2), ("somebodys", 0)] {
        fs::write(node.record("v"), encode(&record).unwrap()).unwrap();
        symlink(&sleep, machine.lab.path(name)).unwrap();
        let disk = fs::File::open(machine.disk("v", 1).path).unwrap();
        let mut left = Command::new(machine.lab.path(name)).arg("600").stdin(disk).spawn().unwrap();
        let reset = || std::mem::take(&mut machine.kernel.world().reset).len();
        let mut refusals = vec![("unstage", node.unstage("v"), reset())];
        refusals.push(("the next grant", node.stage("v", &next, &plain(FsType::Ext4)), reset()));
        fs::remove_file(node.record("v")).unwrap();
        refusals.push(("unstage without a record", node.unstage("v"), reset()));
        left.kill().unwrap();
        left.wait().unwrap();
        for (call, refusal, found) in refusals {
            refused(refusal, Code::FailedPrecondition, name);
            assert_eq!(found, resets, "{name}: {call}");
        }
    }
    node.unstage("v").unwrap();
    machine.assert_clean();
}

#[test]
fn two_nodes_of_one_machine_do_not_take_each_others_disks() {
    let Some(machine) = Machine::new() else { return };
    let nodes = ["a", "b"].map(|name| machine.node(name));
    let context = machine.grant("v", "a", 1, true);
    nodes[0].up("v", &context, FsType::Ext4);
    let devices = machine.devices();
    let [a, b] = ["a", "b"].map(|name| NodeId::new(name).unwrap());
    assert_eq!(devices.find(&id("v"), &a).unwrap().len(), 1);
    assert_eq!(devices.find(&id("v"), &b).unwrap(), []);
    assert_eq!(devices.remains(&id("v"), &b).unwrap(), []);
    devices.disconnect(&id("v"), &b, Epoch::new(1)).unwrap();
    nodes[1].unstage("v").unwrap();
    refused(nodes[1].stage("v", &context, &plain(FsType::Ext4)), Code::FailedPrecondition, "node a");
    assert_eq!(nodes[0].health("v").unwrap(), []);
    nodes[0].down("v");
    machine.assert_clean();
}

#[test]
fn a_grant_that_only_reads_has_a_disk_that_refuses_writes() {
    let Some(machine) = Machine::new() else { return };
    let node = machine.node("a");
    let context = machine.grant("v", "a", 1, false);
    let capability = block(Mode::MultiNodeReaderOnly);
    node.stage("v", &context, &capability).unwrap();
    node.publish("v", "dev", &context, &capability, true).unwrap();
    assert!(is_read_only(&node.at("dev")).unwrap());
    // The kernel lets it be opened, and refuses each write.
    let opened = fs::File::options().write(true).open(node.at("dev"));
    let written = opened.and_then(|file| file.write_all_at(&[7; 4096], 0));
    assert!(written.is_err(), "{written:?}");
    node.unpublish("v", "dev").unwrap();
    node.unstage("v").unwrap();
    machine.assert_clean();
}

#[test]
fn a_size_that_grew_is_taken_over() {
    let Some(machine) = Machine::new() else { return };
    let (node, context) = (machine.node("a"), machine.grant("v", "a", 1, true));
    node.up("v", &context, FsType::Ext4);
    if !machine.host.may_grow_mounted(FsType::Ext4) {
        not_run("growing ext4 while it is mounted needs CAP_SYS_RESOURCE");
        node.down("v");
        return;
    }
    let size = 2 * smallest(FsType::Ext4);
    machine.lab.volume("v", size);
    machine.lab.host.refresh_size(&machine.disk("v", 1)).unwrap();
    machine.kernel.world().exports.get_mut(&names("v", "a", 1).subsystem).unwrap().sectors = size / 512;
    machine.asked();
    assert_eq!(node.expand("v", &node.text("pod"), size).unwrap(), size);
    assert_eq!(machine.asked(), ["rescan_controller", "rescan_controller"]);
    let total = u64::try_from(node.stats("v", &node.text("pod")).unwrap()[0].total).unwrap();
    assert!(total > smallest(FsType::Ext4), "{total}");
    node.down("v");
    machine.assert_clean();
}

#[test]
fn names_that_are_not_those_of_the_grant_are_refused() {
    let Some(machine) = Machine::new() else { return };
    let (node, ext4) = (machine.node("a"), plain(FsType::Ext4));
    let right = machine.grant("v", "a", 1, true);
    for (other, why) in [
        (names("w", "a", 1), "another volume"),
        (names("v", "b", 1), "another node"),
        (names("v", "a", 2), "another epoch"),
        (NvmeNames { subsystem: "nqn.2019-08.org.qemu:root".to_owned(), ..names("v", "a", 1) }, "foreign"),
    ] {
        let mut context = right.clone();
        let addresses = vec!["10.0.0.1:4420".parse().unwrap()];
        context.extend(NvmeContext { names: other, addresses }.to_map());
        refused(node.stage("v", &context, &ext4), Code::FailedPrecondition, "are not those of volume v");
        assert!(!node.record("v").exists(), "{why}");
    }
    assert_eq!(machine.asked(), Vec::<String>::new());
}
