//! The service on the wire.

use crate::answer::Fault;
use crate::expand::Fill;
use crate::health::Ailment;
use crate::metrics::Metrics;
use crate::node::{Parts, StartError, ThisNode};
use crate::turn::Turns;
use bowline_core::VolumeId;
use bowline_csi::code::{
    NodeExpandError, PublishError, Reason, StageError, StatsError, UnpublishError, UnstageError,
};
use bowline_csi::node::{
    NodeExpand, NodeVolumeHealth, Publish, Stage, StorageHealth, Unpublish, Unstage, VolumeStats,
};
use bowline_csi::wire;
use bowline_csi::wire::node_get_storage_health_response::StorageBackendHealth;
use bowline_csi::wire::node_server::Node;
use bowline_csi::wire::node_service_capability::{Rpc, Type, rpc};
use bowline_csi::wire::volume_health::VolumeHealthEntry;
use bowline_csi::wire::volume_usage::Unit;
use bowline_host::usage::Amount;
use prometheus_client::registry::Registry;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tonic::{Code, Request, Response, Status};

/// The CSI `Node` service of one node.
///
/// # Guarantees
///
/// - One operation at a time per volume and per path; another is `Aborted`. It keeps its turn until it is done, even if
///   its caller hung up or was told `DeadlineExceeded`.
/// - Only a device that is provably blank is formatted, and never under a grant that only reads.
/// - Nothing is unmounted that is not provably the volume asked for, and no device is taken away that is in use.
#[derive(Clone)]
pub struct NodeService {
    node: Arc<ThisNode>,
    turns: Turns,
}

impl std::fmt::Debug for NodeService {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NodeService").field("node", &self.node.id).finish_non_exhaustive()
    }
}

impl NodeService {
    /// Reads the records of this node and finds again what is staged. Blocks.
    pub fn new(parts: Parts, registry: &mut Registry) -> Result<Self, StartError> {
        let node = ThisNode::start(parts, Metrics::new(registry))?;
        Ok(Self { node: Arc::new(node), turns: Turns::default() })
    }

    /// Runs work on a thread that may block. The turn ends with the work, whoever still waits for it.
    async fn run<T: Send + 'static>(
        &self,
        names: Vec<String>,
        limit: Duration,
        work: impl FnOnce(&ThisNode) -> Result<T, Fault> + Send + 'static,
    ) -> Result<T, Fault> {
        let taken = |name| Fault::Busy(format!("another call is busy with {name}; ask again"));
        let turn = self.turns.take(names).map_err(taken)?;
        let node = Arc::clone(&self.node);
        let task = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            work(&node)
        });
        match tokio::time::timeout(limit, task).await {
            Ok(Ok(done)) => done,
            Ok(Err(_)) => Err(Fault::Unreachable("the work ended in the middle; ask again".to_owned())),
            Err(_) => {
                let waited = limit.as_secs();
                Err(Fault::TimedOut(format!("not done after {waited} s; it goes on, ask again")))
            }
        }
    }

    fn answer<T, E: Reason>(
        &self,
        rpc: &'static str,
        began: Instant,
        answer: Result<T, E>,
    ) -> Result<Response<T>, Status> {
        let code = answer.as_ref().map_or_else(Reason::code, |_| Code::Ok);
        self.node.metrics.operation(rpc, bowline_csi::code::name(code), began.elapsed());
        answer.map(Response::new).map_err(Into::into)
    }
}

fn volume_turn(volume: &VolumeId) -> String {
    format!("volume {volume}")
}

fn path_turn(path: impl AsRef<Path>) -> String {
    format!("the path {}", path.as_ref().display())
}

/// How long a question that changes nothing may take: a device that does not answer must not keep its asker.
const QUESTION: Duration = Duration::from_secs(15);

/// Statistics and health change nothing, so they wait for nobody and keep nobody waiting; but one that hangs is not
/// joined by others.
fn question_turn(what: &str, volume: &VolumeId) -> String {
    format!("{what} of volume {volume}")
}

/// A path that is not absolute names no place at all, so no volume is there: callers (csi-sanity 5.6) expect
/// `NotFound` for a question about it, not `InvalidArgument`.
fn nowhere(volume: &str, path: &str) -> Option<Fault> {
    let relative = !path.is_empty() && !path.starts_with('/') && !volume.is_empty();
    relative.then(|| Fault::Unknown("volume_path is not a place where a volume can be".to_owned()))
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn usage_of(amount: Amount, unit: Unit) -> wire::VolumeUsage {
    wire::VolumeUsage {
        available: signed(amount.available),
        total: signed(amount.total),
        used: signed(amount.used),
        unit: unit.into(),
    }
}

impl NodeService {
    async fn stage(&self, request: wire::NodeStageVolumeRequest) -> Result<(), StageError> {
        let request = Stage::try_from(request)?;
        let names = vec![volume_turn(&request.volume), path_turn(&request.staging_path)];
        Ok(self.run(names, self.node.timing.answer_within, move |node| node.stage(&request)).await?)
    }

    async fn unstage(&self, request: wire::NodeUnstageVolumeRequest) -> Result<(), UnstageError> {
        let request = Unstage::try_from(request)?;
        let names = vec![volume_turn(&request.volume), path_turn(&request.staging_path)];
        Ok(self.run(names, self.node.timing.answer_within, move |node| node.unstage(&request)).await?)
    }

    async fn publish(&self, request: wire::NodePublishVolumeRequest) -> Result<(), PublishError> {
        let request = Publish::try_from(request)?;
        let names = vec![volume_turn(&request.volume), path_turn(&request.target_path)];
        Ok(self.run(names, self.node.timing.answer_within, move |node| node.publish(&request)).await?)
    }

    async fn unpublish(&self, request: wire::NodeUnpublishVolumeRequest) -> Result<(), UnpublishError> {
        let request = Unpublish::try_from(request)?;
        let names = vec![volume_turn(&request.volume), path_turn(&request.target_path)];
        Ok(self.run(names, self.node.timing.answer_within, move |node| node.unpublish(&request)).await?)
    }

    async fn stats(&self, request: wire::NodeGetVolumeStatsRequest) -> Result<Fill, StatsError> {
        if let Some(fault) = nowhere(&request.volume_id, &request.volume_path) {
            return Err(fault.into());
        }
        let request = VolumeStats::try_from(request)?;
        let (volume, names) =
            (request.volume.clone(), vec![question_turn("the statistics", &request.volume)]);
        let (fill, is_short) = self.run(names, QUESTION, move |node| node.stats(&request)).await?;
        if is_short {
            self.mend(volume);
        }
        Ok(fill)
    }

    /// Connects again what is lost of a volume's connections while another serves, without keeping the asker. The kubelet asks every
    /// minute how a volume is, so this comes by itself when a network is back. Until an address answers, nobody else is kept from the volume.
    fn mend(&self, volume: VolumeId) {
        let service = self.clone();
        tokio::spawn(async move {
            let (look, names) = (volume.clone(), vec![question_turn("the connections", &volume)]);
            let is_back = service.run(names, QUESTION, move |node| node.can_restore_paths(&look)).await;
            if matches!(is_back, Ok(true)) {
                let names = vec![volume_turn(&volume)];
                let mended = service.run(names, QUESTION, move |node| node.restore_lost_paths(&volume)).await;
                if let Err(fault) = mended {
                    tracing::debug!(%fault, "lost connections stay lost for now");
                }
            }
        });
    }

    async fn expand(&self, request: wire::NodeExpandVolumeRequest) -> Result<u64, NodeExpandError> {
        if let Some(fault) = nowhere(&request.volume_id, &request.volume_path) {
            return Err(fault.into());
        }
        let request = NodeExpand::try_from(request)?;
        let names = vec![volume_turn(&request.volume)];
        Ok(self.run(names, self.node.timing.answer_within, move |node| node.expand(&request)).await?)
    }

    async fn volume_health(
        &self,
        request: wire::NodeGetVolumeHealthRequest,
    ) -> Result<wire::VolumeHealth, StatsError> {
        let request = NodeVolumeHealth::try_from(request)?;
        let (volume, volume_id) = (request.volume.clone(), request.volume.to_string());
        let names = vec![question_turn("the health", &request.volume)];
        let ailments = self.run(names, QUESTION, move |node| node.volume_health(&request)).await?;
        if ailments.iter().any(Ailment::is_lost_path) {
            self.mend(volume);
        }
        let entry = |ailment| {
            let (status, reason, message) = match ailment {
                Ailment::Inaccessible { reason, message } => {
                    (wire::VolumeHealthErrorType::Inaccessible, reason, message)
                }
                Ailment::Degraded { reason, message } => {
                    (wire::VolumeHealthErrorType::Degraded, reason, message)
                }
            };
            VolumeHealthEntry { status: status.into(), reason: reason.to_owned(), message }
        };
        let health_statuses = ailments.into_iter().map(entry).collect();
        Ok(wire::VolumeHealth { volume_id, health_statuses })
    }

    async fn storage_health(
        &self,
        request: wire::NodeGetStorageHealthRequest,
    ) -> Result<Vec<StorageBackendHealth>, StatsError> {
        StorageHealth::try_from(request)?;
        let names = vec!["the health of the storage".to_owned()];
        let ailing = self.run(names, QUESTION, |node| Ok(node.storage_health())).await?;
        let entry = |message| StorageBackendHealth {
            status: wire::StorageHealthErrorType::StorageUnreachable.into(),
            reason: "TargetUnreachable".to_owned(),
            message,
            volume_capability: None,
        };
        Ok(ailing.into_iter().map(entry).collect())
    }
}

#[tonic::async_trait]
impl Node for NodeService {
    async fn node_stage_volume(
        &self,
        request: Request<wire::NodeStageVolumeRequest>,
    ) -> Result<Response<wire::NodeStageVolumeResponse>, Status> {
        let began = Instant::now();
        let done = self.stage(request.into_inner()).await;
        self.answer("NodeStageVolume", began, done.map(|()| wire::NodeStageVolumeResponse {}))
    }

    async fn node_unstage_volume(
        &self,
        request: Request<wire::NodeUnstageVolumeRequest>,
    ) -> Result<Response<wire::NodeUnstageVolumeResponse>, Status> {
        let began = Instant::now();
        let done = self.unstage(request.into_inner()).await;
        self.answer("NodeUnstageVolume", began, done.map(|()| wire::NodeUnstageVolumeResponse {}))
    }

    async fn node_publish_volume(
        &self,
        request: Request<wire::NodePublishVolumeRequest>,
    ) -> Result<Response<wire::NodePublishVolumeResponse>, Status> {
        let began = Instant::now();
        let done = self.publish(request.into_inner()).await;
        self.answer("NodePublishVolume", began, done.map(|()| wire::NodePublishVolumeResponse {}))
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<wire::NodeUnpublishVolumeRequest>,
    ) -> Result<Response<wire::NodeUnpublishVolumeResponse>, Status> {
        let began = Instant::now();
        let done = self.unpublish(request.into_inner()).await;
        self.answer("NodeUnpublishVolume", began, done.map(|()| wire::NodeUnpublishVolumeResponse {}))
    }

    async fn node_get_volume_stats(
        &self,
        request: Request<wire::NodeGetVolumeStatsRequest>,
    ) -> Result<Response<wire::NodeGetVolumeStatsResponse>, Status> {
        let began = Instant::now();
        let fill = self.stats(request.into_inner()).await.map(|fill| {
            let usage = match fill {
                Fill::Filesystem(usage) => {
                    vec![usage_of(usage.bytes, Unit::Bytes), usage_of(usage.inodes, Unit::Inodes)]
                }
                Fill::Block { bytes } => {
                    vec![wire::VolumeUsage {
                        total: signed(bytes),
                        unit: Unit::Bytes.into(),
                        ..Default::default()
                    }]
                }
            };
            wire::NodeGetVolumeStatsResponse { usage }
        });
        self.answer("NodeGetVolumeStats", began, fill)
    }

    async fn node_get_volume_health(
        &self,
        request: Request<wire::NodeGetVolumeHealthRequest>,
    ) -> Result<Response<wire::NodeGetVolumeHealthResponse>, Status> {
        let began = Instant::now();
        let health = self.volume_health(request.into_inner()).await;
        let health = health.map(|health| wire::NodeGetVolumeHealthResponse { volume_health: Some(health) });
        self.answer("NodeGetVolumeHealth", began, health)
    }

    async fn node_get_storage_health(
        &self,
        request: Request<wire::NodeGetStorageHealthRequest>,
    ) -> Result<Response<wire::NodeGetStorageHealthResponse>, Status> {
        let began = Instant::now();
        let health = self.storage_health(request.into_inner()).await;
        let health = health.map(|backend_health| wire::NodeGetStorageHealthResponse { backend_health });
        self.answer("NodeGetStorageHealth", began, health)
    }

    async fn node_expand_volume(
        &self,
        request: Request<wire::NodeExpandVolumeRequest>,
    ) -> Result<Response<wire::NodeExpandVolumeResponse>, Status> {
        let began = Instant::now();
        let size = self.expand(request.into_inner()).await;
        let size = size.map(|size| wire::NodeExpandVolumeResponse { capacity_bytes: signed(size) });
        self.answer("NodeExpandVolume", began, size)
    }

    async fn node_get_capabilities(
        &self,
        _: Request<wire::NodeGetCapabilitiesRequest>,
    ) -> Result<Response<wire::NodeGetCapabilitiesResponse>, Status> {
        let all = [
            rpc::Type::StageUnstageVolume,
            rpc::Type::GetVolumeStats,
            rpc::Type::ExpandVolume,
            rpc::Type::SingleNodeMultiWriter,
            rpc::Type::VolumeMountGroup,
            rpc::Type::GetVolumeHealth,
            rpc::Type::GetStorageHealth,
        ];
        let capability = |one: rpc::Type| wire::NodeServiceCapability {
            r#type: Some(Type::Rpc(Rpc { r#type: one.into() })),
        };
        let capabilities = all.into_iter().map(capability).collect();
        Ok(Response::new(wire::NodeGetCapabilitiesResponse { capabilities }))
    }

    async fn node_get_info(
        &self,
        _: Request<wire::NodeGetInfoRequest>,
    ) -> Result<Response<wire::NodeGetInfoResponse>, Status> {
        let node = &self.node;
        let segments = node.topology.clone().into_iter().collect();
        let accessible_topology =
            Some(wire::Topology { segments }).filter(|topology| !topology.segments.is_empty());
        Ok(Response::new(wire::NodeGetInfoResponse {
            node_id: node.id.to_string(),
            // CSI: 0 means that the caller decides.
            max_volumes_per_node: node.attach_limit.map_or(0, i64::from),
            accessible_topology,
        }))
    }
}
