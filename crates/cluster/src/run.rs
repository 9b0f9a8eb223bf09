//! Everything that runs beside the catalog while this process leads, started in the one order that is safe.

use bowline_controller::Catalog;
use bowline_csi::code::ListError;
use bowline_store::KubeStore;
use kube::Client;
use prometheus_client::registry::Registry;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::health::Health;
use crate::{
    Attacher, AttacherParts, EventWriter, Fence, Mirror, Nodes, PersistentVolumes, Roll, Speaker, Writes,
};

/// What the parts around a catalog are made of.
pub struct Parts {
    /// The API server.
    pub client: Client,
    /// The catalog, open.
    pub catalog: Catalog,
    /// Where everything is counted.
    pub registry: Arc<Mutex<Registry>>,
    /// The nodes, as they were when the catalog was opened.
    pub roll: Roll,
    /// The name of this process in events: that of its pod.
    pub instance: String,
    /// Whether VolumeAttachments are served here; not where the upstream attacher does it over CSI.
    pub attacher: bool,
    /// The store, where it is Kubernetes: the verdicts on tickets are shown in its VolumeAttachments.
    pub notes: Option<Arc<KubeStore>>,
    /// How long a grant or a proof may take before its VolumeAttachment says what it waits for.
    pub patience: Duration,
    /// `--fence-not-ready-after`.
    pub fence_not_ready_after: Option<Duration>,
}

/// What runs. It ends when this is dropped.
pub struct Running {
    /// The nodes.
    pub nodes: Nodes,
    /// The PersistentVolumes.
    pub pvs: Arc<PersistentVolumes>,
    /// The attacher, unless it is left to others.
    pub attacher: Option<Attacher>,
    /// What is counted.
    pub writes: Writes,
    /// Who says things on objects.
    pub speaker: Speaker,
    _mirror: Mirror,
    _health: Option<Health>,
    _events: EventWriter,
    _fence: Option<Fence>,
}

/// Starts everything. When it returns, every node, PersistentVolume and VolumeAttachment is known, and the CSI socket may be opened.
pub async fn run(parts: Parts) -> Result<Running, ListError> {
    let pvs = PersistentVolumes::start(parts.client.clone()).await;
    run_with(parts, pvs).await
}

/// As [`run`], with PersistentVolumes that somebody began to watch earlier.
pub async fn run_with(parts: Parts, pvs: Arc<PersistentVolumes>) -> Result<Running, ListError> {
    let Parts { client, catalog, registry, roll, instance, attacher, notes, patience, fence_not_ready_after } =
        parts;
    let writes = Writes::new(&mut registry.lock().unwrap_or_else(PoisonError::into_inner));
    let speaker = Speaker::new(client.clone(), writes.clone(), &instance);
    let events = EventWriter::start(client.clone(), &catalog, Arc::clone(&pvs), speaker.clone());
    let nodes = Nodes::start(client.clone(), catalog.clone(), &roll).await;
    let attacher = if attacher {
        let parts = AttacherParts {
            client: client.clone(),
            catalog: catalog.clone(),
            nodes: nodes.clone(),
            writes: writes.clone(),
            patience,
        };
        let attacher = Attacher::start(parts, Arc::clone(&pvs)).await?;
        events.give_way_to(attacher.clone());
        Some(attacher)
    } else {
        None
    };
    let health =
        notes.clone().map(|store| Health::start(client.clone(), catalog.clone(), store, writes.clone()));
    let mirror = Mirror::start(
        client.clone(),
        catalog.clone(),
        Arc::clone(&pvs),
        attacher.clone(),
        notes,
        writes.clone(),
    )
    .await?;
    let fence = fence_not_ready_after
        .map(|after| Fence::start(client, catalog, Arc::clone(&pvs), &nodes, writes.clone(), after));
    Ok(Running {
        nodes,
        pvs,
        attacher,
        writes,
        speaker,
        _mirror: mirror,
        _health: health,
        _events: events,
        _fence: fence,
    })
}
