//! What is only for people, adoption against a real API server, and silent nodes.

use bowline_api::Truth;
use bowline_cluster::adopt::adopt;
use bowline_cluster::lease::{LeaseSettings, acquire};
use bowline_cluster::{Parts, Running, run};
use bowline_controller::Volume;
use bowline_core::Phase;
use bowline_store::kube::Guard;
use bowline_store::{KubeStore, MemoryStore};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::events::v1::Event;
use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::world::{World, lab, parse, pv, wait_for};

pub(crate) async fn running(
    world: &World,
    fence: Option<Duration>,
    notes: Option<Arc<KubeStore>>,
) -> (bowline_controller::Catalog, Running) {
    let (catalog, registry, roll) = world.catalog().await;
    let running = running_on(world, (&catalog, &registry, roll), fence, notes).await;
    (catalog, running)
}

pub(crate) async fn running_on(
    world: &World,
    (catalog, registry, roll): (&bowline_controller::Catalog, &Arc<Mutex<Registry>>, bowline_cluster::Roll),
    fence: Option<Duration>,
    notes: Option<Arc<KubeStore>>,
) -> Running {
    let parts = Parts {
        client: world.client.clone(),
        catalog: catalog.clone(),
        registry: Arc::clone(registry),
        roll,
        instance: "test".to_owned(),
        attacher: true,
        notes,
        patience: Duration::from_secs(1),
        fence_not_ready_after: fence,
    };
    run(parts).await.unwrap()
}

async fn volume(world: &World, catalog: &bowline_controller::Catalog, name: &str) -> Volume {
    let volume = crate::world::create(catalog, name).await;
    world.create::<PersistentVolume>(pv(name, volume.id.as_str())).await;
    volume
}

async fn annotation(world: &World, pv: &str, key: &str) -> Option<String> {
    let object = world.api::<PersistentVolume>().get(pv).await.unwrap();
    object.metadata.annotations?.get(&format!("csi.bowline.storage/{key}")).cloned()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_persistent_volume_says_where_it_is_and_the_claim_says_why_not() {
    let Some(world) = World::new().await else { return };
    let (catalog, running) = running(&world, None, None).await;
    let _volume = volume(&world, &catalog, "shown").await;
    add_account(&world).await;
    // Its claim is one of its own, and is named after both.
    let waiting = json!([{"name": "shown", "ephemeral": {"volumeClaimTemplate": {"spec": {
        "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}}}]);
    let mut waiting = pod("claim", &waiting);
    waiting["spec"]["nodeName"] = Value::Null;
    put(&world, waiting).await;
    world.attach("va-shown", "shown", "a").await;
    world.until_attached("va-shown").await;
    wait_for("the annotation", async || {
        annotation(&world, "shown", "attached-node").await.filter(|node| node == "id-a")
    })
    .await;
    assert_eq!(annotation(&world, "shown", "readonly").await.as_deref(), Some("false"));
    assert!(annotation(&world, "shown", "attach-time").await.is_some());
    assert_eq!(running.writes.sent("persistentvolume", "annotations"), 1, "all of them in one write");
    world.attach("va-shown-b", "shown", "b").await;
    let sentence = world.until_told("va-shown-b", "id-a has the volume").await;
    let sentence = sentence.status.unwrap().attach_error.unwrap().message.unwrap();
    let events = Api::<Event>::namespaced(world.client.clone(), "default");
    for (kind, name) in [("PersistentVolumeClaim", "claim-shown"), ("Pod", "claim")] {
        wait_for(&format!("an event on {kind} {name}"), async || {
            let all = events.list(&ListParams::default()).await.unwrap().items;
            all.into_iter().find(|event| {
                let regarding = event.regarding.clone().unwrap_or_default();
                regarding.kind.as_deref() == Some(kind)
                    && regarding.name.as_deref() == Some(name)
                    && event.reason.as_deref() == Some("Waiting")
                    && event.note.as_deref() == Some(&sentence)
                    && event.type_.as_deref() == Some("Warning")
            })
        })
        .await;
    }
    for name in ["va-shown-b", "va-shown"] {
        world.delete(name).await;
        world.until_gone(name).await;
    }
    wait_for("the annotation to go", async || {
        annotation(&world, "shown", "attached-node").await.is_none().then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_attached_survives_the_loss_of_every_record() {
    let Some(mut world) = World::new().await else { return };
    let controller = world.start().await;
    let volume = controller.volume(&world, "adopted").await;
    world.attach("va-adopted", "adopted", "a").await;
    world.until_attached("va-adopted").await;
    let open = world.target.open(&volume.id);
    controller.stop().await;
    world.store = Arc::new(MemoryStore::default());
    let targets = vec![Arc::clone(&world.target) as _];
    let shown = adopt(&world.client, world.store.as_ref(), &targets, true).await.unwrap();
    assert_eq!((shown.volumes.len(), shown.tickets.len()), (1, 1), "{shown}");
    let (catalog, ..) = world.catalog().await;
    assert!(catalog.volume(&volume.id).await.is_err(), "a dry run writes nothing");
    catalog.close().await;
    adopt(&world.client, world.store.as_ref(), &targets, false).await.unwrap();
    let again = adopt(&world.client, world.store.as_ref(), &targets, false).await.unwrap();
    assert!(again.is_done() && again.known == [volume.id.clone()], "it is idempotent: {again}");
    let controller = world.start().await;
    let view = controller.catalog.view(&volume.id).await.unwrap();
    let hold = view.ledger.holds().values().next().unwrap();
    assert_eq!((hold.epoch.number(), hold.phase), (open[0].0, Phase::Held), "the grant is taken over");
    assert_eq!(world.target.open(&volume.id), open, "and nobody was cut off");
    world.delete("va-adopted").await;
    world.until_gone("va-adopted").await;
    assert_eq!(world.target.open(&volume.id), []);
    world.check();
}

async fn put(world: &World, object: Value) {
    let name = object["metadata"]["name"].as_str().unwrap().to_owned();
    if object["kind"] == "Pod" {
        let api = Api::<Pod>::namespaced(world.client.clone(), "default");
        let _ = api.delete(&name, &DeleteParams::default().grace_period(0)).await;
        api.create(&PostParams::default(), &parse(object)).await.unwrap();
    } else {
        let api = Api::<PersistentVolumeClaim>::namespaced(world.client.clone(), "default");
        let patch = json!({"metadata": {"finalizers": null}});
        let _ = api.patch(&name, &PatchParams::default(), &Patch::Merge(&patch)).await;
        let _ = api.delete(&name, &DeleteParams::default()).await;
        api.create(&PostParams::default(), &parse(object)).await.unwrap();
    }
}

fn pod(name: &str, volumes: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"},
        "spec": {"nodeName": "a", "automountServiceAccountToken": false, "containers": [{"name": "c", "image": "x"}], "volumes": volumes}})
}

/// The account that pods have if they name none.
async fn add_account(world: &World) {
    let accounts = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": "default"}});
    let api = Api::<k8s_openapi::api::core::v1::ServiceAccount>::namespaced(world.client.clone(), "default");
    let _ = api.create(&PostParams::default(), &parse(accounts)).await;
}

/// A volume that is claimed, and attached to `a`.
async fn claimed(world: &World, catalog: &bowline_controller::Catalog, name: &str) -> Volume {
    let volume = volume(world, catalog, name).await;
    let claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": format!("claim-{name}"), "namespace": "default"},
        "spec": {"accessModes": ["ReadWriteOnce"], "volumeName": name, "storageClassName": "", "resources": {"requests": {"storage": "1Gi"}}}});
    put(world, claim).await;
    world.attach(&format!("va-{name}"), name, "a").await;
    world.until_attached(&format!("va-{name}")).await;
    volume
}

/// The claim of a volume, in a pod.
fn claim(of: &str) -> Value {
    json!({"name": "data", "persistentVolumeClaim": {"claimName": format!("claim-{of}")}})
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_was_left_alone_for_an_ill_volume_was_left_alone_for_ever() {
    let Some(world) = World::new().await else { return };
    add_account(&world).await;
    let (catalog, _running) = running(&world, Some(Duration::from_secs(1)), None).await;
    claimed(&world, &catalog, "well").await;
    let ill = claimed(&world, &catalog, "ill").await;
    put(&world, pod("first", &json!([claim("well")]))).await;
    put(&world, pod("later", &json!([claim("ill")]))).await;
    world.target.set_fault(&ill.id, "its disk is tired");
    let pods = Api::<Pod>::namespaced(world.client.clone(), "default");
    world.set_ready("a", "Unknown").await;
    wait_for("the pod to go", async || pods.get_opt("first").await.unwrap().is_none().then_some(())).await;
    // Both were looked at before the first one went.
    assert!(pods.get_opt("later").await.unwrap().is_some(), "its volume is ill");
    world.target.mend(&ill.id);
    wait_for("the other one to go", async || pods.get_opt("later").await.unwrap().is_none().then_some(()))
        .await;
    world.until_gone("va-ill").await;
    world.check();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_pods_of_a_silent_node_are_taken_from_it_if_all_they_keep_is_ours() {
    let Some(world) = World::new().await else { return };
    add_account(&world).await;
    let (catalog, _running) = running(&world, Some(Duration::from_secs(1)), None).await;
    let mut volumes = vec![];
    for name in ["fenced", "kept"] {
        volumes.push(claimed(&world, &catalog, name).await);
    }
    put(&world, pod("mine", &json!([claim("fenced")]))).await;
    put(&world, pod("other", &json!([claim("kept"), {"name": "host", "hostPath": {"path": "/"}}]))).await;
    put(&world, pod("sharing", &json!([claim("kept")]))).await;
    let pods = Api::<Pod>::namespaced(world.client.clone(), "default");
    world.set_ready("a", "Unknown").await;
    wait_for("the pod to go", async || pods.get_opt("mine").await.unwrap().is_none().then_some(())).await;
    world.until_gone("va-fenced").await;
    assert_eq!(world.target.open(&volumes[0].id), []);
    assert_eq!(world.target.open(&volumes[1].id).len(), 1, "it is taken from nobody who needs it");
    for (pod, why) in
        [("other", "keeps something that is not ours"), ("sharing", "shares a volume with that one")]
    {
        assert!(pods.get_opt(pod).await.unwrap().is_some(), "{pod} {why}");
        let _ = pods.delete(pod, &DeleteParams::default().grace_period(0)).await;
    }
}

struct Always;

impl Guard for Always {
    fn may_write(&self) -> Result<(), String> {
        Ok(())
    }
}

/// A way to the API server on which the first write of what is only for people about an attachment fails.
fn failing_once(client: &kube::Client, has_failed: &Arc<AtomicBool>) -> kube::Client {
    let (client, has_failed) = (client.clone(), Arc::clone(has_failed));
    let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
        let (client, path) = (client.clone(), request.uri().path());
        let is_it = request.method() == http::Method::PATCH
            && path.contains("/bowline.storage/")
            && path.contains("/volumeattachments/")
            && path.ends_with("/status");
        let fails = is_it && !has_failed.swap(true, Ordering::Relaxed);
        async move {
            if fails {
                let mut answer = http::Response::new(kube::client::Body::empty());
                *answer.status_mut() = http::StatusCode::SERVICE_UNAVAILABLE;
                return Ok(answer);
            }
            client.send(request).await
        }
    });
    kube::Client::new(service, "default")
}

#[tokio::test(flavor = "multi_thread")]
async fn verdicts_whose_write_failed_were_never_written() {
    let Some(mut world) = World::new().await else { return };
    world.define().await;
    let has_failed = Arc::default();
    let store = Arc::new(KubeStore::new(failing_once(&world.client, &has_failed), Arc::new(Always)));
    world.store = Arc::clone(&store) as _;
    let (catalog, running) = running(&world, None, Some(store)).await;
    let volume = volume(&world, &catalog, "untold").await;
    world.attach("va-untold", "untold", "a").await;
    world.until_attached("va-untold").await;
    world.attach("va-untold-b", "untold", "b").await;
    let ledgers = Api::<bowline_api::VolumeAttachment>::all(world.client.clone());
    let reasons = async || {
        let status = ledgers.get(volume.id.as_str()).await.unwrap().status.unwrap_or_default();
        let conditions = status.attachment_ticket_statuses.into_values().flat_map(|one| one.conditions);
        (status.state, conditions.map(|one| one.reason).collect::<Vec<_>>())
    };
    wait_for("the verdict", async || reasons().await.1.contains(&"HeldElsewhere".to_owned()).then_some(()))
        .await;

    // What is said of the volume is found by kubectl: it looks for the uid.
    let object = Api::<bowline_api::Volume>::all(world.client.clone()).get("untold").await.unwrap();
    let events = Api::<Event>::namespaced(world.client.clone(), "default");
    wait_for("an event on the Volume", async || {
        let all = events.list(&ListParams::default()).await.unwrap().items;
        all.into_iter().find(|event| {
            let regarding = event.regarding.clone().unwrap_or_default();
            regarding.kind.as_deref() == Some("Volume") && regarding.uid == object.metadata.uid
        })
    })
    .await;

    let health = async || {
        let object = Api::<bowline_api::Volume>::all(world.client.clone()).get("untold").await.unwrap();
        let [one] = object.status?.conditions.try_into().ok()?;
        Some((one.kind, one.status, one.reason, one.message))
    };
    let ready = |status, reason: &str, message: &str| {
        ("Ready".to_owned(), status, reason.to_owned(), message.to_owned())
    };
    assert_eq!(health().await, Some(ready(Truth::True, "Ready", "")));
    world.target.set_fault(&volume.id, "its disk is tired");
    catalog.volume_fault(&volume.id).await.unwrap();
    wait_for("the state", async || (reasons().await.0 == "faulted").then_some(())).await;
    let ill = ready(Truth::False, "Faulted", "Its target finds that it cannot be used: its disk is tired.");
    wait_for("the condition", async || (health().await.as_ref() == Some(&ill)).then_some(())).await;
    world.target.mend(&volume.id);
    catalog.volume_fault(&volume.id).await.unwrap();
    wait_for("the state", async || (reasons().await.0 == "attached").then_some(())).await;
    let well = ready(Truth::True, "Ready", "");
    wait_for("the condition", async || (health().await.as_ref() == Some(&well)).then_some(())).await;
    // Which of them it was is chance: whatever is noted when the ledger has to be written goes along with it.
    assert!(has_failed.load(Ordering::Relaxed), "no write has failed");
    drop(running);
}

/// The writes that the API server has served for attachments, theirs and ours, and for PersistentVolumes.
async fn served(world: &World) -> BTreeMap<String, u64> {
    let request = http::Request::get("/metrics").body(Vec::new()).unwrap();
    let metrics = world.client.request_text(request).await.unwrap();
    let writes = metrics.lines().filter(|line| line.starts_with("apiserver_request_total{"));
    let writes = writes.filter(|line| {
        ["POST", "PUT", "PATCH"].iter().any(|verb| line.contains(&format!("verb=\"{verb}\"")))
    });
    let writes = writes.filter(|line| {
        ["volumeattachments", "persistentvolumes"]
            .iter()
            .any(|kind| line.contains(&format!("resource=\"{kind}\"")))
    });
    let count = |line: &str| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap() as u64;
    writes.map(|line| (line.split('}').next().unwrap().to_owned(), count(line))).collect()
}

/// Attaches until it was quick enough not to be counted together with what is written later; tells how many writes that took.
async fn attach_within_a_second(world: &World) -> u64 {
    for _ in 0..10 {
        wait_for("what was put off to be written", async || {
            let before = served(world).await;
            tokio::time::sleep(Duration::from_millis(1500)).await;
            (served(world).await == before).then_some(())
        })
        .await;
        let before = served(world).await;
        let began = Instant::now();
        world.attach("va-recorded", "recorded", "a").await;
        world.until_attached("va-recorded").await;
        let mut after = served(world).await;
        after.retain(|write, count| {
            *count -= before.get(write).copied().unwrap_or_default();
            *count > 0
        });
        if began.elapsed() < Duration::from_millis(800) {
            println!("{after:#?}");
            // Without the test's own.
            return after.values().sum::<u64>() - 1;
        }
        world.delete("va-recorded").await;
        world.until_gone("va-recorded").await;
    }
    panic!("the machine is too slow to tell writes apart");
}

#[tokio::test(flavor = "multi_thread")]
async fn with_its_records_in_kubernetes_an_attach_costs_three_writes_and_every_verdict_is_shown() {
    let Some(mut world) = World::new().await else { return };
    world.define().await;
    let settings = LeaseSettings::new("default", "records", "one");
    let (leadership, _lost) = acquire(world.client.clone(), settings).await.unwrap();
    let store = Arc::new(KubeStore::new(world.client.clone(), Arc::new(leadership.clone())));
    world.store = Arc::clone(&store) as _;
    let (catalog, running) = running(&world, None, Some(store)).await;
    let volume = volume(&world, &catalog, "recorded").await;
    // The first attach of a volume, too. What comes a second later is for people, and yields to grants.
    let ledgers = Api::<bowline_api::VolumeAttachment>::all(world.client.clone());
    let status = async || ledgers.get(volume.id.as_str()).await.unwrap().status.unwrap_or_default();
    let name = format!("volumeattachments.bowline.storage/{}", volume.id);
    for round in ["first", "second"] {
        let cost = attach_within_a_second(&world).await;
        assert!(cost <= 3, "the {round} attach cost {cost} writes");
        // As people wait for it. It comes with the confirmation, and costs nothing.
        lab().unwrap().kubectl(&["wait", "--for=condition=Attached", "--timeout=120s", &name]);
        let shown = status().await;
        let [attached] = shown.conditions.try_into().unwrap();
        assert_eq!((shown.state.as_str(), shown.reason.as_str()), ("attached", attached.reason.as_str()));
        assert!(attached.message.contains("has the volume on id-a since"), "{}", attached.message);
        assert!(attached.last_transition_time.is_some());
        if round == "first" {
            world.delete("va-recorded").await;
            world.until_gone("va-recorded").await;
            assert_eq!(status().await.conditions, [], "nobody wants it");
        }
    }
    world.attach("va-recorded-b", "recorded", "b").await;
    let told = world.until_told("va-recorded-b", "id-a has the volume").await;
    let sentence = told.status.unwrap().attach_error.unwrap().message.unwrap();
    wait_for("the same sentence in our own object", async || {
        let status = status().await;
        let mut conditions = status.attachment_ticket_statuses.into_values().flat_map(|one| one.conditions);
        conditions.find(|one| one.message == sentence)
    })
    .await;
    let [attached] = status().await.conditions.try_into().unwrap();
    assert_eq!(attached.status, Truth::True, "who waits is not the current ticket: {}", attached.message);
    leadership.release().await;
    world.delete("va-recorded").await;
    world.until_told_to_wait("va-recorded", "does not lead any more").await;
    assert_eq!(world.target.open(&volume.id).len(), 1, "whoever does not lead shuts nobody out");
    drop(running);
}
