//! A cluster without machines: a real API server, a store and a simulated target that outlive the controller, and controllers that come and go.

use bowline_cluster::{Attacher, AttacherParts, Nodes, PersistentVolumes, Roll, Writes};
use bowline_controller::{Catalog, NewVolume, Parts, Settings, Use, Volume};
use bowline_core::{AccessMode, Content};
use bowline_csi::Name;
use bowline_engine::SystemClock;
use bowline_store::{MemoryStore, Store};
use bowline_testkit::SimTarget;
use bowline_testkit::lab::{ApiLab, not_run};
use k8s_openapi::api::core::v1::{Node, PersistentVolume};
use k8s_openapi::api::storage::v1::{CSINode, VolumeAttachment};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Client, Resource, ResourceExt};
use prometheus_client::registry::Registry;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::fmt::Debug;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};
use tokio::sync::{Mutex as Turn, MutexGuard, watch};

pub(crate) const LONG: Duration = Duration::from_secs(120);
pub(crate) const DRIVER: &str = "bowline.storage";
pub(crate) const FINALIZER: &str = "external-attacher/bowline-storage";

/// Whoever may always write.
pub(crate) struct Always;

impl bowline_store::kube::Guard for Always {
    fn may_write(&self) -> Result<(), String> {
        Ok(())
    }
}

static LAB: OnceLock<Option<ApiLab>> = OnceLock::new();
/// One world at a time: each sees all objects of its kinds, and some take the API server away.
pub(crate) static TURN: Turn<()> = Turn::const_new(());

/// The lab of all tests; `None` says that it cannot run here.
pub(crate) fn lab() -> Option<&'static ApiLab> {
    let lab = LAB.get_or_init(ApiLab::start).as_ref();
    if lab.is_none() {
        // Whoever started it has said so; each other test that lacks it is one that did not run, too.
        not_run("the lab of all tests");
    }
    lab
}

/// A controller that runs.
pub(crate) struct Controller {
    pub(crate) catalog: Catalog,
    pub(crate) writes: Writes,
    pub(crate) nodes: Nodes,
    pub(crate) pvs: Arc<PersistentVolumes>,
    pub(crate) attacher: Attacher,
}

pub(crate) struct World {
    pub(crate) client: Client,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) target: Arc<SimTarget>,
    pub(crate) settings: bowline_engine::Settings,
    _turn: MutexGuard<'static, ()>,
}

pub(crate) fn parse<K: DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value).unwrap()
}

impl World {
    /// An empty cluster with two nodes that run the driver.
    pub(crate) async fn new() -> Option<Self> {
        Some(Self::at(lab()?).await)
    }

    /// The same in a lab of one's own.
    pub(crate) async fn at(lab: &ApiLab) -> Self {
        let turn = TURN.lock().await;
        let client = lab.client().await;
        let world = Self {
            client,
            store: Arc::new(MemoryStore::default()),
            target: Arc::new(SimTarget::new("sim")),
            settings: bowline_engine::Settings { ask_timeout: Duration::from_secs(1), ..Default::default() },
            _turn: turn,
        };
        world.clear::<VolumeAttachment>().await;
        world.clear::<PersistentVolume>().await;
        world.clear::<CSINode>().await;
        world.clear::<Node>().await;
        for node in ["a", "b"] {
            world.add_node(node).await;
            world.add_driver(node).await;
        }
        world
    }

    pub(crate) fn api<K: Resource<Scope = kube::core::ClusterResourceScope, DynamicType = ()>>(
        &self,
    ) -> Api<K> {
        Api::all(self.client.clone())
    }

    /// Bowline's own kinds, served.
    pub(crate) async fn define(&self) {
        let definitions = Api::<CustomResourceDefinition>::all(self.client.clone());
        for definition in bowline_api::definitions() {
            let _ = definitions.create(&PostParams::default(), &definition).await;
            let name = definition.metadata.name.unwrap();
            wait_for("the definition to be served", async || {
                let status = definitions.get(&name).await.unwrap().status?;
                status
                    .conditions?
                    .iter()
                    .any(|one| one.type_ == "Established" && one.status == "True")
                    .then_some(())
            })
            .await;
        }
        self.clear::<bowline_api::VolumeAttachment>().await;
        self.clear::<bowline_api::SnapshotGroup>().await;
        self.clear::<bowline_api::Snapshot>().await;
        self.clear::<bowline_api::Volume>().await;
        self.clear::<bowline_api::Target>().await;
    }

    /// How many writes to VolumeAttachments, Kubernetes' and Bowline's own, the API server has answered, whoever sent them.
    pub(crate) async fn written(&self) -> u64 {
        let request = http::Request::get("/metrics").body(vec![]).unwrap();
        let text = self.client.request_text(request).await.unwrap();
        let is_write = |line: &&str| {
            line.starts_with("apiserver_request_total{")
                && line.contains("resource=\"volumeattachments\"")
                && ["POST", "PUT", "PATCH", "APPLY", "DELETE"]
                    .iter()
                    .any(|verb| line.contains(&format!("verb=\"{verb}\"")))
        };
        let count = |line: &str| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap();
        text.lines().filter(is_write).map(count).sum::<f64>() as u64
    }

    async fn clear<K>(&self)
    where
        K: Resource<Scope = kube::core::ClusterResourceScope, DynamicType = ()>
            + Clone
            + DeserializeOwned
            + Debug,
    {
        let api = self.api::<K>();
        for object in api.list(&ListParams::default()).await.unwrap() {
            let name = object.name_any();
            let free = json!({"metadata": {"finalizers": null}});
            let _ = api.patch(&name, &PatchParams::default(), &Patch::Merge(&free)).await;
            let _ = api.delete(&name, &DeleteParams::default().grace_period(0)).await;
        }
        wait_for("the cluster to be empty", async || {
            api.list(&ListParams::default()).await.unwrap().items.is_empty().then_some(())
        })
        .await;
    }

    pub(crate) async fn create<K>(&self, object: Value) -> K
    where
        K: Resource<Scope = kube::core::ClusterResourceScope, DynamicType = ()>
            + Clone
            + DeserializeOwned
            + Serialize
            + Debug,
    {
        self.api::<K>().create(&PostParams::default(), &parse(object)).await.unwrap()
    }

    pub(crate) async fn add_node(&self, name: &str) {
        self.create::<Node>(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})).await;
        self.set_ready(name, "True").await;
    }

    pub(crate) async fn set_ready(&self, name: &str, ready: &str) {
        let condition = json!({"type": "Ready", "status": ready, "reason": "Test", "message": "",
            "lastHeartbeatTime": "2026-01-01T10:00:00Z", "lastTransitionTime": "2026-01-01T10:00:00Z"});
        let status = json!({"status": {"conditions": [condition]}});
        self.api::<Node>()
            .patch_status(name, &PatchParams::default(), &Patch::Strategic(&status))
            .await
            .unwrap();
    }

    pub(crate) async fn add_driver(&self, node: &str) {
        self.add_driver_as(node, &format!("id-{node}")).await;
    }

    /// The driver registers under this name for the node.
    pub(crate) async fn add_driver_as(&self, node: &str, id: &str) {
        self.create::<CSINode>(
            json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": {"name": node},
            "spec": {"drivers": [{"name": DRIVER, "nodeID": id, "allocatable": {"count": 10}}]}}),
        )
        .await;
    }

    /// A catalog on the store and the target, and the nodes as they were when it was opened.
    pub(crate) async fn catalog(&self) -> (Catalog, Arc<Mutex<Registry>>, Roll) {
        let roll = Roll::call(&self.client, self.store.as_ref()).await.unwrap();
        let registry = Arc::new(Mutex::new(Registry::default()));
        let catalog = Catalog::open(Parts {
            store: Arc::clone(&self.store),
            targets: vec![Arc::clone(&self.target) as _],
            nodes: vec![],
            reports: roll.reports(),
            clock: Arc::new(SystemClock),
            settings: self.settings.clone(),
            registry: Arc::clone(&registry),
        })
        .await
        .unwrap();
        (catalog, registry, roll)
    }

    /// Starts a controller: catalog, nodes, attacher.
    pub(crate) async fn start(&self) -> Controller {
        self.start_with(self.client.clone()).await
    }

    /// Starts a controller whose attacher talks to the API server through this client.
    pub(crate) async fn start_with(&self, client: Client) -> Controller {
        let (catalog, registry, roll) = self.catalog().await;
        let writes = Writes::new(&mut registry.lock().unwrap());
        let nodes = Nodes::start(self.client.clone(), catalog.clone(), &roll).await;
        let pvs = PersistentVolumes::start(self.client.clone()).await;
        let parts = AttacherParts {
            client,
            catalog: catalog.clone(),
            nodes: nodes.clone(),
            writes: writes.clone(),
            patience: Duration::from_secs(1),
        };
        let attacher = Attacher::start(parts, Arc::clone(&pvs)).await.unwrap();
        Controller { catalog, writes, nodes, pvs, attacher }
    }

    pub(crate) async fn attachment(&self, name: &str) -> Option<VolumeAttachment> {
        self.api::<VolumeAttachment>().get_opt(name).await.unwrap()
    }

    /// A VolumeAttachment of a PersistentVolume on a node, as kube-controller-manager makes it.
    pub(crate) async fn attach(&self, name: &str, pv: &str, node: &str) {
        self.create::<VolumeAttachment>(
            json!({"apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment", "metadata": {"name": name},
            "spec": {"attacher": DRIVER, "nodeName": node, "source": {"persistentVolumeName": pv}}}),
        )
        .await;
    }

    pub(crate) async fn delete(&self, name: &str) {
        self.api::<VolumeAttachment>().delete(name, &DeleteParams::default()).await.unwrap();
    }

    /// Takes the finalizers off, as somebody in a hurry would.
    pub(crate) async fn unfinalize(&self, name: &str) {
        let free = json!({"metadata": {"finalizers": null}});
        self.api::<VolumeAttachment>()
            .patch(name, &PatchParams::default(), &Patch::Merge(&free))
            .await
            .unwrap();
    }

    /// Deletes it although its finalizer says that it is needed.
    pub(crate) async fn delete_by_force(&self, name: &str) {
        self.delete(name).await;
        // The controller may be done with it first; that is as good.
        let free = json!({"metadata": {"finalizers": null}});
        let _ =
            self.api::<VolumeAttachment>().patch(name, &PatchParams::default(), &Patch::Merge(&free)).await;
        self.until_gone(name).await;
    }

    pub(crate) async fn until_attached(&self, name: &str) -> VolumeAttachment {
        wait_for(&format!("{name} to be attached"), async || {
            self.attachment(name)
                .await
                .filter(|one| one.status.as_ref().is_some_and(|status| status.attached))
        })
        .await
    }

    pub(crate) async fn until_gone(&self, name: &str) {
        wait_for(&format!("{name} to be gone"), async || self.attachment(name).await.is_none().then_some(()))
            .await;
    }

    /// Waits until it says why it is not attached.
    pub(crate) async fn until_told(&self, name: &str, part: &str) -> VolumeAttachment {
        wait_for(&format!("{name} to say {part:?}"), async || {
            let object = self.attachment(name).await?;
            let error = object.status.as_ref()?.attach_error.as_ref()?.message.clone()?;
            error.contains(part).then_some(object)
        })
        .await
    }

    /// Waits until it says why it is still there.
    pub(crate) async fn until_told_to_wait(&self, name: &str, part: &str) {
        wait_for(&format!("{name} to say {part:?}"), async || {
            let object = self.attachment(name).await?;
            let error = object.status.as_ref()?.detach_error.as_ref()?.message.clone()?;
            error.contains(part).then_some(())
        })
        .await;
    }

    /// Nobody was ever let in beside somebody who does not admit it.
    pub(crate) fn check(&self) {
        assert_eq!(self.target.violations(), [""; 0]);
    }

    /// Waits until exactly these nodes reach the volume.
    pub(crate) async fn until_open(&self, volume: &Volume, nodes: &[&str]) {
        wait_for(&format!("{nodes:?} to reach {}", volume.id), async || {
            let open: Vec<String> =
                self.target.open(&volume.id).into_iter().map(|(_, node)| node.to_string()).collect();
            (open == nodes).then_some(())
        })
        .await;
    }
}

/// A way to the API server on which writes to one VolumeAttachment are held up until they are let through.
pub(crate) fn holding(client: &Client, name: &str) -> (Client, watch::Sender<bool>) {
    let (let_through, held) = watch::channel(false);
    let (client, path) = (client.clone(), format!("/volumeattachments/{name}"));
    let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
        let (client, mut held) = (client.clone(), held.clone());
        let is_held = request.method() == http::Method::PATCH && request.uri().path().ends_with(&path);
        async move {
            if is_held {
                let _ = held.wait_for(|open| *open).await;
            }
            client.send(request).await
        }
    });
    (Client::new(service, "default"), let_through)
}

/// A way to the API server on which lists and watches of all VolumeAttachments are held up while it is shut.
pub(crate) fn blind(client: &Client) -> (Client, watch::Sender<bool>) {
    let (opened, is_open) = watch::channel(true);
    let client = client.clone();
    let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
        let (client, mut is_open) = (client.clone(), is_open.clone());
        let is_held = request.uri().path().ends_with("/volumeattachments");
        async move {
            if is_held {
                let _ = is_open.wait_for(|open| *open).await;
            }
            client.send(request).await
        }
    });
    (Client::new(service, "default"), opened)
}

/// Looks until there is something to see, and says what it waited for.
pub(crate) async fn wait_for<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(seen) = look().await {
            return seen;
        }
        assert!(began.elapsed() < LONG, "waited {LONG:?} for {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

impl Controller {
    /// A volume, and a PersistentVolume of the same name.
    pub(crate) async fn volume(&self, world: &World, name: &str) -> Volume {
        let volume = self.create(name).await;
        world.create::<PersistentVolume>(pv(name, volume.id.as_str())).await;
        volume
    }

    pub(crate) async fn create(&self, name: &str) -> Volume {
        create(&self.catalog, name).await
    }

    /// How many writes went to VolumeAttachments, by purpose.
    pub(crate) fn sent(&self) -> [u64; 5] {
        ["mark", "attached", "error", "detached", "unmark"]
            .map(|what| self.writes.sent("volumeattachment", what))
    }

    pub(crate) async fn stop(self) {
        let Self { catalog, writes: _, nodes, pvs, attacher } = self;
        drop((nodes, pvs, attacher));
        catalog.close().await;
    }
}

pub(crate) fn pv(name: &str, handle: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name},
        "spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "persistentVolumeReclaimPolicy": "Retain",
            "claimRef": {"namespace": "default", "name": format!("claim-{name}"), "uid": "11111111-2222-3333-4444-555555555555"},
            "csi": {"driver": DRIVER, "volumeHandle": handle, "fsType": "ext4"}}})
}

/// A volume for one node at a time.
pub(crate) async fn create(catalog: &Catalog, name: &str) -> Volume {
    catalog.create_volume(order(name), LONG).await.unwrap()
}

pub(crate) fn order(name: &str) -> NewVolume {
    NewVolume {
        name: Name::new("name", name).unwrap(),
        required: None,
        limit: None,
        fs: None,
        uses: vec![Use { access: AccessMode::SingleNodeWriter, content: Content::Filesystem }],
        source: None,
        settings: Settings::default(),
        target: None,
        kind: None,
        place: bowline_csi::TopologyRequirement::default(),
    }
}
