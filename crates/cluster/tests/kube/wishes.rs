//! What people write into specs, and the certificates of agents: objects in, objects out.

use bowline_api::{Snapshot, Volume};
use bowline_cluster::certificates::{self, AGENT_SECRET, CONTROLLER_SECRET};
use bowline_cluster::wishes;
use bowline_controller::{Catalog, Parts};
use bowline_engine::SystemClock;
use bowline_store::kube::Guard;
use bowline_store::{KubeStore, Store};
use bowline_target::Provision;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use kube::runtime::events::{Recorder, Reporter};
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use std::sync::{Arc, Mutex};

use crate::world::{World, wait_for};

struct Always;

impl Guard for Always {
    fn may_write(&self) -> Result<(), String> {
        Ok(())
    }
}

fn volume(name: &str, size: &str) -> Value {
    json!({"apiVersion": "bowline.storage/v1beta1", "kind": "Volume", "metadata": {"name": name}, "spec": {"name": name, "size": size}})
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_that_somebody_writes_is_made_grown_copied_and_deleted() {
    let Some(world) = World::new().await else { return };
    world.define().await;
    let store = Arc::new(KubeStore::new(world.client.clone(), Arc::new(Always)));
    let catalog = Catalog::open(Parts {
        store: store as Arc<dyn Store>,
        targets: vec![Arc::clone(&world.target) as Arc<dyn Provision>],
        nodes: vec![],
        clock: Arc::new(SystemClock),
        settings: bowline_engine::Settings::default(),
        registry: Arc::new(Mutex::new(Registry::default())),
    })
    .await
    .unwrap();
    let recorder = Recorder::new(world.client.clone(), Reporter::from("bowline"));
    let granting = tokio::spawn(wishes::run(world.client.clone(), catalog.clone(), recorder));
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
    granting.abort();
    catalog.close().await;
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
    let nothing = json!({"data": {"ca.key": null}});
    secrets.patch(CONTROLLER_SECRET, &PatchParams::default(), &Patch::Merge(&nothing)).await.unwrap();
    let error = certificates::ensure(&world.client, "default", later).await.unwrap_err().to_string();
    assert!(error.contains("bowline-controller-tls has no usable ca.key"), "{error}");
}
