//! A directory with a target's files and nodes, of which nothing is left when it goes, also on a panic.

use bowline_core::{Epoch, NodeId, TargetId, VolumeId};
use bowline_csi::wire;
use bowline_csi::wire::node_server::Node as _;
use bowline_csi::wire::volume_capability::access_mode::Mode;
use bowline_csi::wire::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
use bowline_host::Host;
use bowline_host::format::FsType;
use bowline_host::helper::Helper;
use bowline_host::loopdev::LoopDevice;
use bowline_host::mount::own_mounts;
use bowline_host::nvme::{Nvme, Settings};
use bowline_host::path::Base;
use bowline_node::{Devices, FileDevices, NodeService, NvmeDevices, Parts, Timing, Told};
use bowline_target::{BackingError, BackingFiles, GrantContext};
use prometheus_client::registry::Registry;
use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tonic::{Code, Request, Status};

/// How long a process may take from its fork to its exec, on a machine that has much to do.
const FORK: Duration = Duration::from_secs(30);

/// A target that is a directory, and what it remembers of its grants.
#[derive(Debug)]
pub(crate) struct Files {
    directory: PathBuf,
    grants: Mutex<BTreeMap<(VolumeId, NodeId), (Epoch, bool)>>,
}

impl BackingFiles for Files {
    fn with_grant(
        &self,
        volume: &VolumeId,
        node: &NodeId,
        epoch: Epoch,
        attach: &mut dyn FnMut(&Path, bool),
    ) -> Result<(), BackingError> {
        let file = self.backing(volume)?.ok_or_else(|| BackingError::Unknown(volume.clone()))?;
        // Held while `attach` runs: no revocation in between.
        let grants = self.grants.lock().unwrap();
        match grants.get(&(volume.clone(), node.clone())) {
            Some((granted, write)) if *granted == epoch => {
                attach(&file, *write);
                Ok(())
            }
            _ => Err(BackingError::NotGranted { volume: volume.clone(), node: node.clone(), epoch }),
        }
    }

    fn backing(&self, volume: &VolumeId) -> Result<Option<PathBuf>, BackingError> {
        Ok(Some(self.directory.join(volume.as_str())).filter(|file| file.exists()))
    }
}

pub(crate) struct Lab {
    pub(crate) host: Host,
    pub(crate) files: Arc<Files>,
    pub(crate) runtime: tokio::runtime::Runtime,
    dir: PathBuf,
    /// Who cleans up; a process that is to be killed does not.
    owner: Option<tempfile::TempDir>,
}

/// Says that a test did not run: on its output, and in the summary that `make test` shows at its end.
#[allow(clippy::print_stdout, reason = "that is what it is for")]
pub(crate) fn not_run(why: &str) {
    let line =
        format!("not run: {} ({why})", std::thread::current().name().unwrap_or("a test of crates/node"));
    println!("{line}");
    if let Some(path) = std::env::var_os("BOWLINE_SUMMARY") {
        let mut file = File::options().create(true).append(true).open(path).unwrap();
        file.write_all(format!("{line}\n").as_bytes()).unwrap();
    }
}

const OPTIONAL: [&str; 8] = [
    "FUSE",
    "NVMe over fabrics",
    "NVMe over TCP",
    "native NVMe multipath",
    "configfs",
    "the NVMe target",
    "the NVMe target over TCP",
    "the right to grow ext4 while it is mounted",
];

impl Lab {
    /// A lab in which these filesystems can be made, or nothing if this machine cannot.
    pub(crate) fn new(needs: &[FsType]) -> Option<Self> {
        let host = Host::default();
        let other = |text: &str| FsType::ALL.iter().any(|fs| !needs.contains(fs) && text.contains(fs.name()));
        let findings = host.probe_machine().into_iter().filter(|finding| {
            !finding.is_present() && !OPTIONAL.contains(&finding.what.as_str()) && !other(finding.needed_for)
        });
        let missing: Vec<_> = findings.map(|finding| finding.what).collect();
        if !missing.is_empty() {
            not_run(&format!("missing: {}", missing.join(", ")));
            return None;
        }
        own_mounts().unwrap();
        let dir = tempfile::Builder::new().prefix("bowline-node-").tempdir().unwrap();
        let path = dir.path().canonicalize().unwrap();
        fs::create_dir(path.join("target")).unwrap();
        let mut lab = Self::within(path);
        lab.owner = Some(dir);
        Some(lab)
    }

    /// The lab of the process that started this one.
    pub(crate) fn within(dir: PathBuf) -> Self {
        let files = Arc::new(Files { directory: dir.join("target"), grants: Mutex::default() });
        // Its threads are started by this one, so they see this one's mounts.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        Self { host: Host::default(), files, runtime, dir, owner: None }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Makes a volume, or grows it.
    pub(crate) fn volume(&self, name: &str, size: u64) -> PathBuf {
        let path = self.files.directory.join(name);
        let file = File::options().create(true).truncate(false).write(true).open(&path).unwrap();
        file.set_len(size).unwrap();
        path
    }

    pub(crate) fn grant(&self, volume: &str, node: &str, epoch: u64, write: bool) -> HashMap<String, String> {
        let (volume, node) = (VolumeId::new(volume).unwrap(), NodeId::new(node).unwrap());
        let context = GrantContext { target: target(), node: node.clone(), epoch: Epoch::new(epoch), write };
        self.files.grants.lock().unwrap().insert((volume, node), (Epoch::new(epoch), write));
        context.to_map().into_iter().collect()
    }

    pub(crate) fn revoke(&self, volume: &str, node: &str) {
        let key = (VolumeId::new(volume).unwrap(), NodeId::new(node).unwrap());
        self.files.grants.lock().unwrap().remove(&key);
    }

    pub(crate) fn devices(&self) -> Arc<dyn Devices> {
        Arc::new(FileDevices::new(Arc::new(self.host.clone()), Arc::clone(&self.files) as _))
    }

    pub(crate) fn node(&self, name: &str) -> Node<'_> {
        self.node_with(name, self.devices(), &self.host, Duration::from_secs(60))
    }

    pub(crate) fn node_with(
        &self,
        name: &str,
        devices: Arc<dyn Devices>,
        host: &Host,
        answer_within: Duration,
    ) -> Node<'_> {
        let unused = Helper::new("/bin/false", [""; 0]);
        let nvme = Nvme::new(Arc::new(host.clone()), Arc::new(unused), Settings::default());
        self.node_over(name, devices, Arc::new(NvmeDevices::new(Arc::new(nvme))), host, answer_within)
    }

    pub(crate) fn node_over(
        &self,
        name: &str,
        devices: Arc<dyn Devices>,
        fabric: Arc<dyn Devices>,
        host: &Host,
        answer_within: Duration,
    ) -> Node<'_> {
        let root = self.path(name);
        let pods = root.join("kubelet");
        fs::create_dir_all(&pods).unwrap();
        let mut registry = Registry::default();
        let (events, told) = mpsc::channel(256);
        let parts = Parts {
            node: NodeId::new(name).unwrap(),
            devices: BTreeMap::from([(target(), devices)]),
            fabric,
            host: Arc::new(host.clone()),
            state: root.join("state"),
            bases: vec![Base::open(&pods).unwrap()],
            attach_limit: Some(16),
            topology: BTreeMap::from([("topology.bowline.storage/host".to_owned(), "m1".to_owned())]),
            timing: Timing { answer_within, remount_pause: Duration::from_millis(1) },
            events: Some(events),
        };
        let service = NodeService::new(parts, &mut registry).unwrap();
        Node { lab: self, name: name.to_owned(), service, registry, told: Mutex::new(told), pods }
    }

    /// The loop devices over a volume's file.
    pub(crate) fn loops(&self) -> Vec<LoopDevice> {
        let dir = self.path("target");
        self.host.loops().unwrap().into_iter().filter(|found| found.backing_path.starts_with(&dir)).collect()
    }

    pub(crate) fn mounts_below(&self, dir: &Path) -> Vec<PathBuf> {
        let table = self.host.mounts().unwrap();
        table.iter().map(|mount| mount.at.clone()).filter(|at| at.starts_with(dir)).collect()
    }

    /// Nothing of any node is left.
    pub(crate) fn assert_clean(&self) {
        assert_eq!(self.mounts_below(&self.path("")), Vec::<PathBuf>::new());
        assert_eq!(self.loops(), []);
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if self.owner.is_none() {
            return;
        }
        let devices = self.loops();
        for at in self.mounts_below(&self.path("")).iter().rev() {
            let _ = self.host.programs.run("umount", &["-l".as_ref(), at.as_os_str()]);
        }
        for device in devices {
            let detached = device.tag.map(|tag| self.host.detach(device.backing, &tag));
            assert!(matches!(detached, None | Some(Ok(()))) || std::thread::panicking(), "{detached:?}");
        }
    }
}

pub(crate) fn target() -> TargetId {
    TargetId::new("file").unwrap()
}

/// What the mkfs of Debian 12 accepts: 300 MB for xfs.
pub(crate) fn smallest(fs: FsType) -> u64 {
    match fs {
        FsType::Ext4 => 32 << 20,
        FsType::Xfs => 320 << 20,
        FsType::Btrfs => 256 << 20,
    }
}

pub(crate) fn mount(fs: &str, flags: &[&str], group: &str, mode: Mode) -> wire::VolumeCapability {
    let access = AccessType::Mount(MountVolume {
        fs_type: fs.to_owned(),
        mount_flags: flags.iter().map(ToString::to_string).collect(),
        volume_mount_group: group.to_owned(),
    });
    wire::VolumeCapability { access_mode: Some(AccessMode { mode: mode.into() }), access_type: Some(access) }
}

pub(crate) fn plain(fs: FsType) -> wire::VolumeCapability {
    mount(fs.name(), &[], "", Mode::SingleNodeWriter)
}

pub(crate) fn block(mode: Mode) -> wire::VolumeCapability {
    wire::VolumeCapability {
        access_mode: Some(AccessMode { mode: mode.into() }),
        access_type: Some(AccessType::Block(BlockVolume {})),
    }
}

/// Which code, and that the sentence has this in it.
#[track_caller]
pub(crate) fn refused<T: std::fmt::Debug>(answer: Result<T, Status>, code: Code, part: &str) {
    let status = answer.unwrap_err();
    assert_eq!(status.code(), code, "{status}");
    assert!(status.message().contains(part), "{status}");
}

/// Asks again, as a kubelet would, while a process that another test has just forked has this one's files open: until its exec.
/// What this process itself has open stays open, and is told at once.
fn when_free(ask: impl Fn() -> Result<(), Status>) -> Result<(), Status> {
    let (begun, this) = (Instant::now(), format!("process {} ", std::process::id()));
    loop {
        let answer = ask();
        let is_forked = |status: &Status| {
            let said = status.message();
            said.contains("(os error 16)") && said.contains("used by") && !said.contains(&this)
        };
        if !answer.as_ref().is_err_and(is_forked) || begun.elapsed() > FORK {
            return answer;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A node with a directory of its own in which its "kubelet" has its paths.
pub(crate) struct Node<'a> {
    pub(crate) lab: &'a Lab,
    pub(crate) name: String,
    pub(crate) service: NodeService,
    pub(crate) registry: Registry,
    told: Mutex<mpsc::Receiver<Told>>,
    pub(crate) pods: PathBuf,
}

impl Node<'_> {
    pub(crate) fn at(&self, name: &str) -> PathBuf {
        self.pods.join(name)
    }

    pub(crate) fn text(&self, name: &str) -> String {
        self.at(name).to_str().unwrap().to_owned()
    }

    /// The file of a volume's record.
    pub(crate) fn record(&self, volume: &str) -> PathBuf {
        self.lab.path(&self.name).join(format!("state/staging/{volume}.json"))
    }

    /// The process ends here and starts again: all that is left is what is on disk and in the kernel.
    pub(crate) fn restarted(self) -> Self {
        let (lab, name) = (self.lab, self.name.clone());
        drop(self);
        lab.node(&name)
    }

    /// Whatever has the volume's mounts and devices is gone, as after a reboot; the files are still there.
    pub(crate) fn rebooted(self) -> Self {
        for at in self.lab.mounts_below(&self.pods).iter().rev() {
            self.lab.host.programs.run("umount", &[at]).unwrap();
        }
        for device in self.lab.loops() {
            self.lab.host.detach(device.backing, &device.tag.unwrap()).unwrap();
        }
        self.restarted()
    }

    pub(crate) fn stage_request(
        &self,
        volume: &str,
        context: &HashMap<String, String>,
        capability: &wire::VolumeCapability,
    ) -> wire::NodeStageVolumeRequest {
        wire::NodeStageVolumeRequest {
            volume_id: volume.to_owned(),
            publish_context: context.clone(),
            staging_target_path: self.text(&format!("stage-{volume}")),
            volume_capability: Some(capability.clone()),
            ..Default::default()
        }
    }

    pub(crate) fn stage(
        &self,
        volume: &str,
        context: &HashMap<String, String>,
        capability: &wire::VolumeCapability,
    ) -> Result<(), Status> {
        let request = self.stage_request(volume, context, capability);
        self.lab.runtime.block_on(self.service.node_stage_volume(Request::new(request))).map(drop)
    }

    pub(crate) fn publish_request(
        &self,
        volume: &str,
        pod: &str,
        context: &HashMap<String, String>,
        capability: &wire::VolumeCapability,
        readonly: bool,
    ) -> wire::NodePublishVolumeRequest {
        wire::NodePublishVolumeRequest {
            volume_id: volume.to_owned(),
            publish_context: context.clone(),
            staging_target_path: self.text(&format!("stage-{volume}")),
            target_path: self.text(pod),
            volume_capability: Some(capability.clone()),
            readonly,
            ..Default::default()
        }
    }

    pub(crate) fn publish(
        &self,
        volume: &str,
        pod: &str,
        context: &HashMap<String, String>,
        capability: &wire::VolumeCapability,
        readonly: bool,
    ) -> Result<(), Status> {
        let request = self.publish_request(volume, pod, context, capability, readonly);
        self.lab.runtime.block_on(self.service.node_publish_volume(Request::new(request))).map(drop)
    }

    pub(crate) fn unpublish(&self, volume: &str, pod: &str) -> Result<(), Status> {
        let request =
            wire::NodeUnpublishVolumeRequest { volume_id: volume.to_owned(), target_path: self.text(pod) };
        let ask = || self.service.node_unpublish_volume(Request::new(request.clone()));
        when_free(|| self.lab.runtime.block_on(ask()).map(drop))
    }

    pub(crate) fn unstage(&self, volume: &str) -> Result<(), Status> {
        let request = wire::NodeUnstageVolumeRequest {
            volume_id: volume.to_owned(),
            staging_target_path: self.text(&format!("stage-{volume}")),
        };
        let ask = || self.service.node_unstage_volume(Request::new(request.clone()));
        when_free(|| self.lab.runtime.block_on(ask()).map(drop))
    }

    pub(crate) fn stats(&self, volume: &str, path: &str) -> Result<Vec<wire::VolumeUsage>, Status> {
        let request = wire::NodeGetVolumeStatsRequest {
            volume_id: volume.to_owned(),
            volume_path: path.to_owned(),
            ..Default::default()
        };
        let answer = self.lab.runtime.block_on(self.service.node_get_volume_stats(Request::new(request)))?;
        Ok(answer.into_inner().usage)
    }

    pub(crate) fn expand(&self, volume: &str, path: &str, required: u64) -> Result<u64, Status> {
        let range = wire::CapacityRange { required_bytes: i64::try_from(required).unwrap(), limit_bytes: 0 };
        let request = wire::NodeExpandVolumeRequest {
            volume_id: volume.to_owned(),
            volume_path: path.to_owned(),
            capacity_range: Some(range),
            ..Default::default()
        };
        let answer = self.lab.runtime.block_on(self.service.node_expand_volume(Request::new(request)))?;
        Ok(answer.into_inner().capacity_bytes.try_into().unwrap())
    }

    pub(crate) fn health(&self, volume: &str) -> Result<Vec<wire::volume_health::VolumeHealthEntry>, Status> {
        let request = wire::NodeGetVolumeHealthRequest { volume_id: volume.to_owned(), ..Default::default() };
        let answer = self.lab.runtime.block_on(self.service.node_get_volume_health(Request::new(request)))?;
        let health = answer.into_inner().volume_health.unwrap();
        assert_eq!(health.volume_id, volume);
        Ok(health.health_statuses)
    }

    /// What happened without anybody asking, since the last time: to which volume, and what in one word.
    pub(crate) fn told(&self) -> Vec<(String, &'static str)> {
        let mut told = self.told.lock().unwrap();
        std::iter::from_fn(|| told.try_recv().ok()).map(|one| (one.volume.to_string(), one.reason)).collect()
    }

    pub(crate) fn metrics(&self) -> String {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry).unwrap();
        text
    }

    /// Staged and published at `pod`, as a plain filesystem.
    pub(crate) fn up(&self, volume: &str, context: &HashMap<String, String>, fs: FsType) {
        self.stage(volume, context, &plain(fs)).unwrap();
        self.publish(volume, "pod", context, &plain(fs), false).unwrap();
    }

    pub(crate) fn down(&self, volume: &str) {
        self.unpublish(volume, "pod").unwrap();
        self.unstage(volume).unwrap();
    }
}
