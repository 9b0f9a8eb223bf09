//! What people write into specs, and the certificates of agents: objects in, objects out.

use bowline_api::{Snapshot, SnapshotGroup, Volume, VolumeAttachment};
use bowline_cluster::certificates::{self, AGENT_SECRET, CONTROLLER_SECRET};
use bowline_cluster::{PersistentVolumes, Speaker, Writes, wishes};
use bowline_controller::{Catalog, Node, Parts};
use bowline_core::NodeId;
use bowline_engine::SystemClock;
use bowline_store::kube::Guard;
use bowline_store::{KubeStore, Store};
use bowline_target::Provision;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{PersistentVolume, Secret};
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use prometheus_client::registry::Registry;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use tokio::task::JoinHandle;

use crate::world::{World, lab, parse, pv, wait_for};

struct Always;

impl Guard for Always {
    fn may_write(&self) -> Result<(), String> {
        Ok(())
    }
}

fn volume(name: &str, size: &str) -> Value {
    json!({"apiVersion": "bowline.storage/v1beta1", "kind": "Volume", "metadata": {"name": name}, "spec": {"name": name, "size": size}})
}

/// A leader that grants wishes.
struct Granting {
    catalog: Catalog,
    task: JoinHandle<()>,
}

impl Granting {
    async fn start(world: &World) -> Self {
        let store = Arc::new(KubeStore::new(world.client.clone(), Arc::new(Always)));
        let node = |id: &str| Node {
            id: NodeId::new(id).unwrap(),
            limit: None,
            out_of_service: None,
            added_at: Timestamp::now(),
        };
        let catalog = Catalog::open(Parts {
            store: Arc::clone(&store) as Arc<dyn Store>,
            targets: vec![Arc::clone(&world.target) as Arc<dyn Provision>],
            nodes: vec![node("a"), node("b")],
            reports: vec![],
            clock: Arc::new(SystemClock),
            settings: bowline_engine::Settings::default(),
            registry: Arc::new(Mutex::new(Registry::default())),
        })
        .await
        .unwrap();
        let speaker =
            Speaker::new(world.client.clone(), Writes::new(&mut Registry::default()), "test-controller");
        let pvs = PersistentVolumes::start(world.client.clone()).await;
        let task = tokio::spawn(wishes::run(world.client.clone(), store, catalog.clone(), pvs, speaker));
        Self { catalog, task }
    }

    async fn stop(self) {
        self.task.abort();
        self.catalog.close().await;
    }
}

/// Waits until an event on the object says this.
async fn until_said(world: &World, object: &str, part: &str) {
    let events = Api::<Event>::namespaced(world.client.clone(), "default");
    wait_for(&format!("an event on {object} that says {part:?}"), async || {
        let all = events.list(&ListParams::default()).await.unwrap();
        all.into_iter()
            .any(|one| {
                let about = one.regarding.and_then(|it| it.name);
                about.as_deref() == Some(object) && one.note.is_some_and(|note| note.contains(part))
            })
            .then_some(())
    })
    .await;
}

/// Changes something about an object that means nothing, so that it is looked at again.
async fn nudged<K>(api: &Api<K>, name: &str) -> Result<K, kube::Error>
where
    K: Clone + Debug + DeserializeOwned,
{
    let patch = json!({"metadata": {"annotations": {"test/nudge": Timestamp::now().to_string()}}});
    api.patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await
}

/// The id of a volume that is ready.
async fn made(world: &World, name: &str) -> String {
    world.create::<Volume>(volume(name, "8Mi")).await;
    let volumes = world.api::<Volume>();
    wait_for("the volume", async || {
        let status = volumes.get(name).await.unwrap().status?;
        (status.phase == "Ready").then_some(status.id)
    })
    .await
}

/// A VolumeSnapshotContent that stands for a snapshot.
async fn stand_for(world: &World, name: &str, snapshot: &str) -> Api<DynamicObject> {
    let kind = ApiResource {
        group: "snapshot.storage.k8s.io".to_owned(),
        version: "v1".to_owned(),
        api_version: "snapshot.storage.k8s.io/v1".to_owned(),
        kind: "VolumeSnapshotContent".to_owned(),
        plural: "volumesnapshotcontents".to_owned(),
    };
    let contents: Api<DynamicObject> = Api::all_with(world.client.clone(), &kind);
    let content = json!({"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": name},
        "spec": {"driver": "bowline.storage", "deletionPolicy": "Retain", "source": {"snapshotHandle": snapshot},
            "volumeSnapshotRef": {"namespace": "default", "name": "wanted"}}});
    contents.create(&PostParams::default(), &parse(content)).await.unwrap();
    contents
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_that_somebody_writes_is_made_grown_copied_and_deleted() {
    let Some(world) = World::new().await else { return };
    world.define().await;
    let granting = Granting::start(&world).await;
    let (volumes, snapshots) = (world.api::<Volume>(), world.api::<Snapshot>());

    world.create::<Volume>(volume("wished", "8Mi")).await;
    let size = async |least: u64| {
        wait_for(&format!("a volume of {least} bytes"), async || {
            let status = volumes.get("wished").await.unwrap().status?;
            status.size.filter(|size| *size >= least && status.phase == "Ready")
        })
        .await
    };
    assert_eq!(size(1).await, 8 << 20);
    let larger = json!({"spec": {"size": "16Mi"}});
    volumes.patch("wished", &PatchParams::default(), &Patch::Merge(&larger)).await.unwrap();
    assert_eq!(size(16 << 20).await, 16 << 20);

    let copy = json!({"apiVersion": "bowline.storage/v1beta1", "kind": "Snapshot", "metadata": {"name": "copy"},
        "spec": {"name": "copy", "volume": "wished"}});
    world.create::<Snapshot>(copy).await;
    wait_for("the snapshot", async || {
        snapshots.get("copy").await.unwrap().status.filter(|status| status.phase == "Ready")
    })
    .await;

    // Under a name that is not its own it is refused, with an event; it goes when it is deleted.
    world
        .create::<Volume>(json!({"apiVersion": "bowline.storage/v1beta1", "kind": "Volume",
        "metadata": {"name": "elsewhere"}, "spec": {"name": "Not Plain", "size": "8Mi"}}))
        .await;
    volumes.delete("elsewhere", &DeleteParams::default()).await.unwrap();
    snapshots.delete("copy", &DeleteParams::default()).await.unwrap();
    volumes.delete("wished", &DeleteParams::default()).await.unwrap();
    wait_for("everything to be gone", async || {
        let left = [
            volumes.get_opt("wished").await.unwrap().is_some(),
            volumes.get_opt("elsewhere").await.unwrap().is_some(),
        ];
        (!left.contains(&true) && snapshots.get_opt("copy").await.unwrap().is_none()).then_some(())
    })
    .await;
    assert!(world.target.items().is_empty(), "{:?}", world.target.items());
    granting.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn data_is_kept_while_a_persistent_volume_or_a_snapshot_content_stands_for_it() {
    let Some(world) = World::new().await else { return };
    world.define().await;
    lab().unwrap().apply_snapshot_definitions();
    let granting = Granting::start(&world).await;
    let (volumes, snapshots) = (world.api::<Volume>(), world.api::<Snapshot>());
    let id = made(&world, "claimed").await;
    world.create::<PersistentVolume>(pv("stands", &id)).await;
    let copy = json!({"apiVersion": "bowline.storage/v1beta1", "kind": "Snapshot", "metadata": {"name": "kept"},
        "spec": {"name": "kept", "volume": "claimed"}});
    world.create::<Snapshot>(copy).await;
    let snapshot = wait_for("the snapshot", async || {
        let status = snapshots.get("kept").await.unwrap().status?;
        (status.phase == "Ready").then_some(status.id)
    })
    .await;
    let contents = stand_for(&world, "content", &snapshot).await;

    volumes.delete("claimed", &DeleteParams::default()).await.unwrap();
    snapshots.delete("kept", &DeleteParams::default()).await.unwrap();
    until_said(&world, "claimed", "PersistentVolume stands stands for it").await;
    until_said(&world, "kept", "VolumeSnapshotContent content stands for it").await;
    assert_eq!(world.target.items().len(), 2, "{:?}", world.target.items());

    contents.delete("content", &DeleteParams::default()).await.unwrap();
    wait_for("the content to be gone", async || {
        contents.get_opt("content").await.unwrap().is_none().then_some(())
    })
    .await;
    nudged(&snapshots, "kept").await.unwrap();
    wait_for("the snapshot to go", async || snapshots.get_opt("kept").await.unwrap().is_none().then_some(()))
        .await;
    world.api::<PersistentVolume>().delete("stands", &DeleteParams::default()).await.unwrap();
    let free = json!({"metadata": {"finalizers": null}});
    let _ =
        world.api::<PersistentVolume>().patch("stands", &PatchParams::default(), &Patch::Merge(&free)).await;
    // What is known of it may be a moment old.
    wait_for("the volume to go", async || match volumes.get_opt("claimed").await.unwrap() {
        None => Some(()),
        Some(_) => {
            let _ = nudged(&volumes, "claimed").await;
            None
        }
    })
    .await;
    assert!(world.target.items().is_empty(), "{:?}", world.target.items());
    granting.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_that_somebody_wrote_was_ignored_and_one_that_was_deleted_hung() {
    let Some(world) = World::new().await else { return };
    world.define().await;
    lab().unwrap().apply_snapshot_definitions();
    let granting = Granting::start(&world).await;
    let (groups, snapshots) = (world.api::<SnapshotGroup>(), world.api::<Snapshot>());
    made(&world, "left").await;
    let right = made(&world, "right").await;
    let wish = |name: &str, volumes: &[&str]| {
        json!({"apiVersion": "bowline.storage/v1beta1", "kind": "SnapshotGroup", "metadata": {"name": name},
            "spec": {"name": name, "volumes": volumes}})
    };
    // A volume by its name, and one by its id.
    world.create::<SnapshotGroup>(wish("both", &["left", &right])).await;
    let taken = wait_for("the group", async || {
        groups.get("both").await.unwrap().status.filter(|status| status.phase == "Ready")
    })
    .await;
    assert_eq!((taken.snapshots.len(), world.target.items().len()), (2, 4), "{taken:?}");
    world.create::<SnapshotGroup>(wish("neither", &["left", "nowhere"])).await;
    until_said(&world, "neither", "spec.volumes: there is no volume").await;

    let contents = stand_for(&world, "member", &taken.snapshots[1]).await;
    groups.delete("both", &DeleteParams::default()).await.unwrap();
    until_said(&world, "both", "VolumeSnapshotContent member stands for it").await;
    assert_eq!(world.target.items().len(), 4, "{:?}", world.target.items());
    contents.delete("member", &DeleteParams::default()).await.unwrap();
    wait_for("the content to be gone", async || {
        contents.get_opt("member").await.unwrap().is_none().then_some(())
    })
    .await;
    nudged(&groups, "both").await.unwrap();
    groups.delete("neither", &DeleteParams::default()).await.unwrap();
    wait_for("the groups and their snapshots to go", async || {
        let groups = groups.list(&ListParams::default()).await.unwrap().items.len();
        let snapshots = snapshots.list(&ListParams::default()).await.unwrap().items.len();
        (groups + snapshots == 0).then_some(())
    })
    .await;
    assert_eq!(world.target.items().len(), 2, "only the volumes: {:?}", world.target.items());
    granting.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn deleting_the_definition_of_a_kind_deletes_no_data() {
    let Some(world) = World::new().await else { return };
    world.define().await;
    let granting = Granting::start(&world).await;
    let id = made(&world, "precious").await;
    let definitions = Api::<CustomResourceDefinition>::all(world.client.clone());
    definitions.delete("volumes.bowline.storage", &DeleteParams::default()).await.unwrap();
    until_said(&world, "precious", "volumes.bowline.storage is being deleted").await;
    assert_eq!(world.target.items().len(), 1, "{:?}", world.target.items());
    // Somebody lets it go by force: the definition goes, the data does not.
    granting.stop().await;
    let free = json!({"metadata": {"finalizers": null}});
    world.api::<Volume>().patch("precious", &PatchParams::default(), &Patch::Merge(&free)).await.unwrap();
    wait_for("the definition to be gone", async || {
        definitions.get_opt("volumes.bowline.storage").await.unwrap().is_none().then_some(())
    })
    .await;
    assert_eq!(world.target.items().len(), 1, "{id} is gone");
    world.define().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ticket_in_a_spec_is_filed_beside_bad_ones_and_withdrawn_when_it_is_taken_out() {
    let Some(world) = World::new().await else { return };
    world.define().await;
    let granting = Granting::start(&world).await;
    let id = made(&world, "ticketed").await;
    let attachments = world.api::<VolumeAttachment>();
    let ticket = |id: &str, node: &str| json!({"id": id, "type": "bowline-api", "nodeID": node});
    let wish = json!({"apiVersion": "bowline.storage/v1beta1", "kind": "VolumeAttachment", "metadata": {"name": id},
    "spec": {"volume": "ticketed", "attachmentTickets": {
        "a-nowhere": ticket("a-nowhere", "unknown"),
        "csi-taken": ticket("csi-taken", "b"),
        "mine": ticket("mine", "a"),
    }}});
    let apply = PatchParams::apply("somebody").force();
    attachments.patch(&id, &apply, &Patch::Apply(&wish)).await.unwrap();
    let volume = bowline_core::VolumeId::new(&id).unwrap();
    let open = async |nodes: &[&str]| {
        wait_for(&format!("{nodes:?} to reach it"), async || {
            let open: Vec<String> =
                world.target.open(&volume).into_iter().map(|(_, node)| node.to_string()).collect();
            (open == nodes).then_some(())
        })
        .await;
    };
    open(&["a"]).await;
    until_said(&world, &id, "spec.attachmentTickets[a-nowhere]: node unknown is not known").await;
    until_said(&world, &id, "spec.attachmentTickets[csi-taken].id begins with csi-").await;
    let without = json!({"apiVersion": "bowline.storage/v1beta1", "kind": "VolumeAttachment", "metadata": {"name": id},
        "spec": {"volume": "ticketed", "attachmentTickets": { "a-nowhere": ticket("a-nowhere", "unknown") }}});
    attachments.patch(&id, &apply, &Patch::Apply(&without)).await.unwrap();
    open(&[]).await;
    granting.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_managers_each_owns_its_ticket_and_withdraws_it_by_applying_without_it() {
    let Some(world) = World::new().await else { return };
    world.define().await;
    let granting = Granting::start(&world).await;
    let id = made(&world, "shared").await;
    let volume = bowline_core::VolumeId::new(&id).unwrap();
    let attachments = world.api::<VolumeAttachment>();
    // As each of them would write it: its own key, and nothing of the other. Without force: a conflict would be told.
    let apply = async |manager: &str, node: Option<&str>| {
        let mut wish = json!({"apiVersion": "bowline.storage/v1beta1", "kind": "VolumeAttachment",
            "metadata": {"name": id}, "spec": {"volume": "shared"}});
        if let Some(node) = node {
            wish["spec"]["attachmentTickets"] =
                json!({manager: {"id": manager, "type": "bowline-api", "nodeID": node}});
        }
        attachments.patch(&id, &PatchParams::apply(manager), &Patch::Apply(&wish)).await
    };
    apply("backup", Some("a")).await.unwrap();
    let both = apply("report", Some("b")).await.unwrap();
    let keys = |object: &VolumeAttachment| object.spec.attachment_tickets.keys().cloned().collect::<Vec<_>>();
    assert_eq!(keys(&both), ["backup", "report"]);
    for manager in ["backup", "report"] {
        let fields = both.metadata.managed_fields.iter().flatten();
        let own = fields.clone().find(|one| one.manager.as_deref() == Some(manager)).unwrap();
        let owned = &own.fields_v1.as_ref().unwrap().0["f:spec"]["f:attachmentTickets"];
        let owned: Vec<&String> = owned.as_object().unwrap().keys().filter(|key| *key != ".").collect();
        assert_eq!(owned, [&format!("f:{manager}")], "{owned:?}");
    }
    let open = async |nodes: &[&str]| {
        wait_for(&format!("{nodes:?} to reach it"), async || {
            let open: Vec<String> =
                world.target.open(&volume).into_iter().map(|(_, node)| node.to_string()).collect();
            (open == nodes).then_some(())
        })
        .await;
    };
    open(&["a"]).await;
    // The one again, as it was: nothing of the other goes. A key of the other is refused.
    assert_eq!(keys(&apply("backup", Some("a")).await.unwrap()), ["backup", "report"]);
    let theirs = json!({"apiVersion": "bowline.storage/v1beta1", "kind": "VolumeAttachment", "metadata": {"name": id},
        "spec": {"volume": "shared", "attachmentTickets": {"report": {"id": "report", "type": "bowline-api", "nodeID": "a", "generation": 1}}}});
    let taken =
        attachments.patch(&id, &PatchParams::apply("backup"), &Patch::Apply(&theirs)).await.unwrap_err();
    assert!(matches!(&taken, kube::Error::Api(status) if status.code == 409), "{taken}");
    assert!(taken.to_string().contains("report"), "{taken}");

    assert_eq!(keys(&apply("backup", None).await.unwrap()), ["report"]);
    open(&["b"]).await;
    assert_eq!(keys(&apply("report", None).await.unwrap()), [""; 0]);
    open(&[]).await;
    world.check();
    granting.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn certificates_are_made_once_and_anew_in_time_under_the_same_authority() {
    let Some(world) = World::new().await else { return };
    let secrets: Api<Secret> = Api::namespaced(world.client.clone(), "default");
    for name in [CONTROLLER_SECRET, AGENT_SECRET] {
        let _ = secrets.delete(name, &DeleteParams::default()).await;
    }
    let now = Timestamp::now();
    let first = certificates::ensure(&world.client, "default", now).await.unwrap();
    assert_eq!(certificates::ensure(&world.client, "default", now).await.unwrap(), first);
    let agent = async || secrets.get(AGENT_SECRET).await.unwrap().data.unwrap();
    let agents = agent().await;
    assert!(!agents.contains_key("ca.key"), "an agent could make itself a controller");
    // A crash between the two Secrets.
    secrets.delete(AGENT_SECRET, &DeleteParams::default()).await.unwrap();
    assert_eq!(certificates::ensure(&world.client, "default", now).await.unwrap(), first);
    let again = agent().await;
    assert!(again["ca.crt"] == agents["ca.crt"] && again["tls.crt"] != agents["tls.crt"]);
    let later = now + SignedDuration::from_hours(24 * 250);
    let renewed = certificates::ensure(&world.client, "default", later).await.unwrap();
    assert!(renewed.authority == first.authority && renewed.certificate != first.certificate);
    assert_ne!(agent().await["tls.crt"], again["tls.crt"]);
    // Somebody brings an authority, and nothing else.
    for name in [CONTROLLER_SECRET, AGENT_SECRET] {
        secrets.delete(name, &DeleteParams::default()).await.unwrap();
    }
    let own = bowline_cluster::credentials::Authority::make(now).unwrap();
    let text = json!({"ca.crt": own.certificate, "ca.key": own.key});
    let brought = json!({"metadata": {"name": CONTROLLER_SECRET}, "stringData": text});
    secrets.create(&PostParams::default(), &parse(brought)).await.unwrap();
    let made = certificates::ensure(&world.client, "default", now).await.unwrap();
    assert!(made.authority == own.certificate && agent().await["ca.crt"].0 == own.certificate.as_bytes());
    let nothing = json!({"data": {"ca.key": null}});
    secrets.patch(CONTROLLER_SECRET, &PatchParams::default(), &Patch::Merge(&nothing)).await.unwrap();
    let error = certificates::ensure(&world.client, "default", later).await.unwrap_err().to_string();
    assert!(error.contains("bowline-controller-tls has no usable ca.key"), "{error}");
}
