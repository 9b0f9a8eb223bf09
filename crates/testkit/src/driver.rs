//! A CSI caller: what an orchestrator would ask, with the paths of this world.

use bowline_csi::wire;
use bowline_csi::wire::controller_client::ControllerClient;
use bowline_csi::wire::group_controller_client::GroupControllerClient;
use bowline_csi::wire::node_client::NodeClient;
use bowline_csi::wire::volume_capability::access_mode::Mode;
use bowline_csi::wire::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
use hyper_util::rt::TokioIo;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::UnixStream;
use tonic::transport::{Channel, Uri};
use tonic::{Code, Status};

use crate::world::{Daemon, PATIENCE, World};

/// How long a process may take from its fork to its exec, on a machine that has much to do.
const FORK: Duration = Duration::from_secs(30);

/// A MiB.
pub const MIB: i64 = 1 << 20;

/// How a volume is used in a test.
#[derive(Clone, Copy, Debug)]
pub struct How {
    /// By whom at once.
    pub mode: Mode,
    /// As a raw device.
    pub block: bool,
    /// With which filesystem; the driver chooses if empty.
    pub fs: &'static str,
    /// The number of the group that owns the files; nobody in particular if empty.
    pub group: &'static str,
}

/// A filesystem that one node writes.
pub const RWO: How = How { mode: Mode::SingleNodeWriter, block: false, fs: "ext4", group: "" };
/// A raw device that one node writes.
pub const BLOCK: How = How { mode: Mode::SingleNodeWriter, block: true, fs: "", group: "" };

impl How {
    /// The same for other nodes and workloads.
    #[must_use]
    pub fn mode(self, mode: Mode) -> Self {
        Self { mode, ..self }
    }

    /// The same with another filesystem.
    #[must_use]
    pub const fn fs(self, fs: &'static str) -> Self {
        Self { fs, ..self }
    }

    /// As CSI says it.
    pub fn capability(self) -> wire::VolumeCapability {
        let access_type = if self.block {
            AccessType::Block(BlockVolume {})
        } else {
            AccessType::Mount(MountVolume {
                fs_type: self.fs.to_owned(),
                volume_mount_group: self.group.to_owned(),
                ..Default::default()
            })
        };
        let access_mode = AccessMode { mode: self.mode.into() };
        wire::VolumeCapability { access_type: Some(access_type), access_mode: Some(access_mode) }
    }
}

/// A connection to a unix socket, made with the first call.
pub fn channel(socket: &Path) -> Channel {
    let socket = socket.to_owned();
    let connector = tower::service_fn(move |_: Uri| {
        let socket = socket.clone();
        async move { Ok::<_, std::io::Error>(TokioIo::new(UnixStream::connect(socket).await?)) }
    });
    Channel::from_static("http://bowline").connect_with_connector_lazy(connector)
}

/// A connection to one process.
#[derive(Clone)]
pub struct Driver {
    /// The node it is connected to.
    pub node: String,
    /// The connection.
    pub channel: Channel,
    /// The controller's calls.
    pub controller: ControllerClient<Channel>,
    /// The group controller's calls.
    pub groups: GroupControllerClient<Channel>,
    /// The node's calls.
    pub local: NodeClient<Channel>,
    stage: PathBuf,
    pods: PathBuf,
    shell: Option<Shell>,
}

/// Runs a line of shell on the machine where the process is, which is not this one.
pub type Shell = Arc<dyn Fn(&str) + Send + Sync>;

type Answer<T> = Result<T, Status>;

impl Driver {
    /// Connects to a process; it may be started later.
    pub async fn connect(world: &World, daemon: &Daemon) -> Self {
        Self::new(&daemon.node, channel(&daemon.socket), &world.path("stage"), &world.path("pods"), None)
    }

    /// Connects to a process on another machine, through a socket that leads there. The directories are that machine's.
    pub fn elsewhere(node: &str, socket: &Path, stage: &str, pods: &str, shell: Shell) -> Self {
        Self::new(node, channel(socket), Path::new(stage), Path::new(pods), Some(shell))
    }

    fn new(node: &str, channel: Channel, stage: &Path, pods: &Path, shell: Option<Shell>) -> Self {
        Self {
            node: node.to_owned(),
            controller: ControllerClient::new(channel.clone()),
            groups: GroupControllerClient::new(channel.clone()),
            local: NodeClient::new(channel.clone()),
            channel,
            stage: stage.to_owned(),
            pods: pods.to_owned(),
            shell,
        }
    }

    /// Where a volume is staged.
    pub fn staging(&self, volume: &str) -> PathBuf {
        self.stage.join(format!("{}-{volume}", self.node))
    }

    /// Where a pod sees a volume.
    pub fn target(&self, volume: &str, pod: &str) -> PathBuf {
        self.pods.join(format!("{}-{pod}-{volume}", self.node))
    }

    /// `CreateVolume`.
    pub async fn create(&mut self, name: &str, bytes: i64, how: How) -> Answer<wire::Volume> {
        self.create_from(name, bytes, how, None).await
    }

    /// `CreateVolume` with a source.
    pub async fn create_from(
        &mut self,
        name: &str,
        bytes: i64,
        how: How,
        source: Option<wire::volume_content_source::Type>,
    ) -> Answer<wire::Volume> {
        let request = wire::CreateVolumeRequest {
            name: name.to_owned(),
            capacity_range: Some(wire::CapacityRange { required_bytes: bytes, limit_bytes: 0 }),
            volume_capabilities: vec![how.capability()],
            volume_content_source: source.map(|source| wire::VolumeContentSource { r#type: Some(source) }),
            ..Default::default()
        };
        Ok(self.controller.create_volume(request).await?.into_inner().volume.unwrap())
    }

    /// `DeleteVolume`.
    pub async fn delete(&mut self, volume: &str) -> Answer<()> {
        let request = wire::DeleteVolumeRequest { volume_id: volume.to_owned(), ..Default::default() };
        self.controller.delete_volume(request).await.map(drop)
    }

    /// `ControllerPublishVolume`.
    pub async fn publish(
        &mut self,
        volume: &wire::Volume,
        node: &str,
        how: How,
        readonly: bool,
    ) -> Answer<HashMap<String, String>> {
        let request = wire::ControllerPublishVolumeRequest {
            volume_id: volume.volume_id.clone(),
            node_id: node.to_owned(),
            volume_capability: Some(how.capability()),
            readonly,
            volume_context: volume.volume_context.clone(),
            ..Default::default()
        };
        Ok(self.controller.controller_publish_volume(request).await?.into_inner().publish_context)
    }

    /// `ControllerUnpublishVolume`.
    pub async fn unpublish(&mut self, volume: &str, node: &str) -> Answer<()> {
        let request = wire::ControllerUnpublishVolumeRequest {
            volume_id: volume.to_owned(),
            node_id: node.to_owned(),
            ..Default::default()
        };
        self.controller.controller_unpublish_volume(request).await.map(drop)
    }

    /// `NodeStageVolume`.
    pub async fn stage(
        &mut self,
        volume: &wire::Volume,
        context: &HashMap<String, String>,
        how: How,
    ) -> Answer<()> {
        let staging = self.staging(&volume.volume_id);
        // As the kubelet does: the directory is there before the call.
        match &self.shell {
            Some(shell) => shell(&format!("mkdir -p {0} {1}", staging.display(), self.pods.display())),
            None => std::fs::create_dir_all(&staging).unwrap(),
        }
        let request = wire::NodeStageVolumeRequest {
            volume_id: volume.volume_id.clone(),
            publish_context: context.clone(),
            staging_target_path: text(&staging),
            volume_capability: Some(how.capability()),
            volume_context: volume.volume_context.clone(),
            ..Default::default()
        };
        self.local.node_stage_volume(request).await.map(drop)
    }

    /// `NodeUnstageVolume`.
    pub async fn unstage(&mut self, volume: &str) -> Answer<()> {
        let staging = self.staging(volume);
        let request = wire::NodeUnstageVolumeRequest {
            volume_id: volume.to_owned(),
            staging_target_path: text(&staging),
        };
        let begun = Instant::now();
        // A mount namespace that somebody (a container, another test) made meanwhile has a copy of every mount, and keeps
        // the device in use until it ends. Callers ask again.
        while let Err(status) = self.local.node_unstage_volume(request.clone()).await {
            let is_used = status.message().contains("is still in use");
            if !is_used || begun.elapsed() > PATIENCE {
                return Err(status);
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        // As the kubelet does afterwards; only ever an empty directory.
        if let Some(shell) = &self.shell {
            shell(&format!("[ ! -e {0} ] || rmdir {0}", staging.display()));
            return Ok(());
        }
        match std::fs::remove_dir(&staging) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                panic!("{}: {error}", staging.display())
            }
            _ => Ok(()),
        }
    }

    /// `NodePublishVolume`.
    pub async fn expose(
        &mut self,
        volume: &wire::Volume,
        context: &HashMap<String, String>,
        pod: &str,
        how: How,
        readonly: bool,
    ) -> Answer<PathBuf> {
        let target = self.target(&volume.volume_id, pod);
        let request = wire::NodePublishVolumeRequest {
            volume_id: volume.volume_id.clone(),
            publish_context: context.clone(),
            staging_target_path: text(&self.staging(&volume.volume_id)),
            target_path: text(&target),
            volume_capability: Some(how.capability()),
            readonly,
            volume_context: volume.volume_context.clone(),
            ..Default::default()
        };
        self.local.node_publish_volume(request).await?;
        Ok(target)
    }

    /// `NodeUnpublishVolume`.
    pub async fn hide(&mut self, volume: &str, pod: &str) -> Answer<()> {
        let request = wire::NodeUnpublishVolumeRequest {
            volume_id: volume.to_owned(),
            target_path: text(&self.target(volume, pod)),
        };
        self.local.node_unpublish_volume(request).await.map(drop)
    }

    /// `CreateSnapshot`.
    pub async fn snapshot(&mut self, name: &str, volume: &str) -> Answer<wire::Snapshot> {
        let request = wire::CreateSnapshotRequest {
            name: name.to_owned(),
            source_volume_id: volume.to_owned(),
            ..Default::default()
        };
        Ok(self.controller.create_snapshot(request).await?.into_inner().snapshot.unwrap())
    }

    /// `DeleteSnapshot`.
    pub async fn delete_snapshot(&mut self, snapshot: &str) -> Answer<()> {
        let request = wire::DeleteSnapshotRequest { snapshot_id: snapshot.to_owned(), ..Default::default() };
        self.controller.delete_snapshot(request).await.map(drop)
    }

    /// `ControllerExpandVolume`.
    pub async fn grow(&mut self, volume: &str, bytes: i64) -> Answer<i64> {
        let request = wire::ControllerExpandVolumeRequest {
            volume_id: volume.to_owned(),
            capacity_range: Some(wire::CapacityRange { required_bytes: bytes, limit_bytes: 0 }),
            ..Default::default()
        };
        Ok(self.controller.controller_expand_volume(request).await?.into_inner().capacity_bytes)
    }

    /// `NodeExpandVolume`.
    pub async fn grow_here(&mut self, volume: &str, pod: &str, bytes: i64) -> Answer<i64> {
        let request = wire::NodeExpandVolumeRequest {
            volume_id: volume.to_owned(),
            volume_path: text(&self.target(volume, pod)),
            staging_target_path: text(&self.staging(volume)),
            capacity_range: Some(wire::CapacityRange { required_bytes: bytes, limit_bytes: 0 }),
            ..Default::default()
        };
        Ok(self.local.node_expand_volume(request).await?.into_inner().capacity_bytes)
    }

    /// Let in, staged and seen by one pod.
    pub async fn attach_all(
        &mut self,
        controller: &mut Driver,
        volume: &wire::Volume,
        pod: &str,
        how: How,
        readonly: bool,
    ) -> Answer<PathBuf> {
        let context = controller.publish(volume, &self.node, how, readonly).await?;
        self.stage(volume, &context, how).await?;
        self.expose(volume, &context, pod, how, readonly).await
    }

    /// The way back. A volume that is busy is asked for again, as a kubelet would: a process that another test has just
    /// forked has this one's files open until its exec.
    pub async fn detach_all(&mut self, controller: &mut Driver, volume: &str, pod: &str) -> Answer<()> {
        let begun = Instant::now();
        let mut is_hidden = false;
        loop {
            let answer = if is_hidden { self.unstage(volume).await } else { self.hide(volume, pod).await };
            match answer {
                Ok(()) if is_hidden => break,
                Ok(()) => is_hidden = true,
                Err(status) if !status.message().contains("busy") || begun.elapsed() > FORK => {
                    return Err(status);
                }
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
        controller.unpublish(volume, &self.node).await
    }

    /// Every volume there is, page by page.
    pub async fn volumes(&mut self) -> Vec<wire::list_volumes_response::Entry> {
        let (mut entries, mut token) = (vec![], String::new());
        loop {
            let request = wire::ListVolumesRequest { max_entries: 7, starting_token: token };
            let page = self.controller.list_volumes(request).await.unwrap().into_inner();
            entries.extend(page.entries);
            token = page.next_token;
            if token.is_empty() {
                return entries;
            }
        }
    }

    /// Every snapshot there is.
    pub async fn snapshots(&mut self) -> Vec<wire::Snapshot> {
        let request = wire::ListSnapshotsRequest::default();
        let page = self.controller.list_snapshots(request).await.unwrap().into_inner();
        page.entries.into_iter().map(|entry| entry.snapshot.unwrap()).collect()
    }
}

/// A path as a request wants it.
pub fn text(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}

/// The code and the sentence of a refusal.
pub fn refusal<T: std::fmt::Debug>(answer: Answer<T>) -> (Code, String) {
    let status = answer.expect_err("it must be refused");
    (status.code(), status.message().to_owned())
}

/// To be made from a snapshot.
pub fn from_snapshot(id: &str) -> Option<wire::volume_content_source::Type> {
    let source = wire::volume_content_source::SnapshotSource { snapshot_id: id.to_owned() };
    Some(wire::volume_content_source::Type::Snapshot(source))
}

/// To be made from a volume.
pub fn from_volume(id: &str) -> Option<wire::volume_content_source::Type> {
    let source = wire::volume_content_source::VolumeSource { volume_id: id.to_owned() };
    Some(wire::volume_content_source::Type::Volume(source))
}
