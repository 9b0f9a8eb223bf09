//! What the status of a Target says, with real agents behind it.

use bowline_api::{Condition, Target, TargetStatus};
use bowline_cluster::adopt::{Adopter, AdopterParts};
use bowline_cluster::credentials::{AGENT, Authority, CONTROLLER};
use bowline_cluster::targets::{self, Connections, OrphanStatuses};
use bowline_controller::{FirstSeen, OrphanRecord};
use bowline_core::{TargetId, Timestamp, VolumeId};
use bowline_target::agent::{AgentServer, ExportsShown, Listener, TlsFiles, refuse};
use bowline_testkit::SimTarget;
use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::ResourceExt;
use kube::api::{DeleteParams, Patch, PatchParams};
use prometheus_client::registry::Registry;
use serde_json::json;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::people::running_on;
use crate::world::{DRIVER, World, pv, wait_for};

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// A controller that keeps targets connected, and what agents show it.
struct Site {
    world: World,
    catalog: bowline_controller::Catalog,
    registry: Arc<Mutex<Registry>>,
    agents: TlsFiles,
    running: bowline_cluster::Running,
    _keeping: tokio::task::JoinHandle<()>,
    _place: tempfile::TempDir,
}

impl Site {
    async fn new() -> Option<Self> {
        let world = World::new().await?;
        world.define().await;
        let place = tempfile::tempdir().unwrap();
        let authority = Authority::make(Timestamp::now()).unwrap();
        for (directory, name) in [("agent", AGENT), ("controller", CONTROLLER)] {
            let made = authority.sign(name, Timestamp::now()).unwrap();
            made.write(&place.path().join(directory)).unwrap();
        }
        let (catalog, registry, roll) = world.catalog().await;
        let running = running_on(&world, (&catalog, &registry, roll), None, None).await;
        let adopter = Adopter::new(AdopterParts {
            client: world.client.clone(),
            store: Arc::clone(&world.store),
            catalog: catalog.clone(),
            attacher: running.attacher.clone(),
            unfinished: false,
        });
        let keeping = tokio::spawn(targets::run(targets::Parts {
            client: world.client.clone(),
            namespace: "default".to_owned(),
            catalog: catalog.clone(),
            tls: TlsFiles::new(place.path().join("controller")),
            speaker: running.speaker.clone(),
            connections: Connections::default(),
            adopter,
        }));
        let agents = TlsFiles::new(place.path().join("agent"));
        Some(Self { world, catalog, registry, agents, running, _keeping: keeping, _place: place })
    }

    async fn listener(&self) -> (Listener, String) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        (Listener::Tls { listener, files: self.agents.clone() }, address)
    }

    /// An agent of this kind and version; where it is.
    async fn agent(
        &self,
        id: &str,
        (kind, version): (&str, &str),
        more: impl FnOnce(AgentServer) -> AgentServer,
    ) -> String {
        let (listener, address) = self.listener().await;
        let server = more(AgentServer::new(Arc::new(SimTarget::new(id)), kind, version));
        tokio::spawn(server.run(listener, std::future::pending()));
        address
    }

    async fn object(&self, name: &str, kind: &str, address: &str) {
        let spec = json!({"kind": kind, "address": address, "topology": {"zone": "z1"}});
        let object = json!({"apiVersion": "bowline.storage/v1beta1", "kind": "Target", "metadata": {"name": name}, "spec": spec});
        self.world.create::<Target>(object).await;
    }

    async fn status(&self, name: &str) -> TargetStatus {
        self.world.api::<Target>().get(name).await.unwrap().status.unwrap_or_default()
    }

    /// Waits until a condition has this status and reason, and gives its sentence.
    async fn until(&self, name: &str, expected: &str) -> String {
        let shown = |one: &Condition| format!("{}={:?}/{}", one.kind, one.status, one.reason);
        wait_for(&format!("{name} to say {expected}"), async || {
            let conditions = self.status(name).await.conditions;
            conditions.iter().find(|one| shown(one) == expected).map(|one| one.message.clone())
        })
        .await
    }

    fn orphans(&self) -> OrphanStatuses {
        OrphanStatuses { client: self.world.client.clone(), pvs: Arc::clone(&self.running.pvs) }
    }

    /// What is counted of its room that is left.
    fn room(&self, name: &str) -> Option<String> {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry.lock().unwrap()).unwrap();
        let line = format!("bowline_capacity_bytes{{target=\"{name}\",of=\"available\"}} ");
        text.lines().find_map(|one| one.strip_prefix(&line)).map(str::to_owned)
    }

    fn is_connected(&self, name: &str) -> bool {
        self.catalog.targets().iter().any(|one| one.id() == &TargetId::new(name).unwrap())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_target_says_whether_it_is_reached_understood_in_step_open_to_volumes_and_shown() {
    let Some(site) = Site::new().await else { return };
    let (shown, says) = watch::channel(ExportsShown::All);
    let telling = |server: AgentServer| server.showing(move || says.borrow().clone());
    let address = site.agent("good", ("nvmet", VERSION), telling).await;
    site.object("good", "nvmet", &address).await;
    for expected in ["Reachable=True/Answers", "Compatible=True/SameVersion", "ClockAgrees=True/InStep"] {
        site.until("good", expected).await;
    }
    site.until("good", "AcceptsVolumes=True/HasRoom").await;
    // Nobody has asked for room: with several targets, nobody asks for that of all.
    let room = site.room("good").expect("its room is counted");
    site.until("good", "ExportsShown=True/AllShown").await;
    assert_eq!(site.status("good").await.version, VERSION);
    let all = site.catalog.targets();
    let good = all.iter().find(|one| one.id().as_str() == "good").unwrap();
    assert_eq!(good.topology()["zone"], "z1", "what the object says counts, too");

    let why =
        "not shown to everybody who is let in, and tried again every 10s: v (no such address)".to_owned();
    shown.send_replace(ExportsShown::Missing { volumes: 1, why });
    let drain = json!({"spec": {"drain": true}});
    let targets = site.world.api::<Target>();
    targets.patch("good", &PatchParams::default(), &Patch::Merge(&drain)).await.unwrap();
    site.until("good", "AcceptsVolumes=False/Draining").await;
    assert_eq!(site.room("good"), None, "room for new volumes was {room}");
    let told = site.until("good", "ExportsShown=False/Missing").await;
    assert!(told.ends_with("and tried again every 10s: v (no such address)."), "{told}");

    let slow = |server: AgentServer| server.with_clock(|| Timestamp::now() - Duration::from_secs(3600));
    let address = site.agent("slow", ("nvmet", "0.0.1"), slow).await;
    site.object("slow", "nvmet", &address).await;
    let told = site.until("slow", "ClockAgrees=False/Behind").await;
    assert!(told.starts_with("Its clock is more than 5 s behind the controller's"), "{told}");
    let told = site.until("slow", "Compatible=True/OtherVersion").await;
    assert!(told.contains("0.0.1") && told.contains(VERSION), "{told}");
    site.until("slow", "Reachable=True/Answers").await;
    // As one of an earlier version, it does not say it.
    site.until("slow", "ExportsShown=Unknown/NotTold").await;
    for name in ["good", "slow"] {
        targets.delete(name, &DeleteParams::default()).await.unwrap();
        wait_for("the target to be forgotten", async || {
            targets.get_opt(name).await.unwrap().is_none().then_some(())
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_target_that_said_something_else_at_every_look_was_looked_at_and_written_without_end() {
    let Some(site) = Site::new().await else { return };
    let looks = Arc::new(AtomicU64::new(0));
    let asked = Arc::clone(&looks);
    let restless = move || {
        let why = format!("look {}", asked.fetch_add(1, Ordering::SeqCst));
        ExportsShown::Missing { volumes: 1, why }
    };
    let address = site.agent("restless", ("nvmet", VERSION), |server| server.showing(restless)).await;
    site.object("restless", "nvmet", &address).await;
    site.until("restless", "ExportsShown=False/Missing").await;
    // It would go round several times for each of these.
    for _ in 0..200 {
        site.status("restless").await;
    }
    let looks = looks.load(Ordering::SeqCst);
    assert!(looks < 15, "{looks} looks");
    site.world.api::<Target>().delete("restless", &DeleteParams::default()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_is_something_else_than_its_object_says_is_refused_with_the_reason() {
    let Some(site) = Site::new().await else { return };
    let file = site.agent("files", ("file", VERSION), |server| server).await;
    let future = site.agent("future", ("nvmet", "7.0.0"), |server| server.saying_protocol(7)).await;
    let (listener, missing) = site.listener().await;
    let (why, said) = watch::channel("the module nvmet is not loaded; modprobe nvmet".to_owned());
    tokio::spawn(refuse(said, listener, std::future::pending()));
    let rows = [
        ("files", &file, "Reachable=False/OtherKind", "is of kind nvmet, and the agent at", "Unknown"),
        ("other", &file, "Reachable=False/AnotherTarget", "is that of target files, not of other", "Unknown"),
        ("future", &future, "Reachable=False/OtherProtocol", "upgrade the controller", "False"),
        ("missing", &missing, "Reachable=False/NotServing", "cannot serve yet: the module nvmet", "Unknown"),
        ("nobody", &"127.0.0.1:1".to_owned(), "Reachable=False/Silent", "does not answer", "Unknown"),
    ];
    for (name, address, expected, words, compatible) in rows {
        site.object(name, "nvmet", address).await;
        let told = site.until(name, expected).await;
        assert!(told.contains(words), "{told}");
        let conditions = site.status(name).await.conditions;
        let found = conditions.iter().find(|one| one.kind == TargetStatus::COMPATIBLE).unwrap();
        assert_eq!(format!("{:?}", found.status), compatible, "{name}");
        assert!(!site.is_connected(name), "{name}");
    }
    // What changes is told anew, without a change of the object.
    why.send_replace("the disk is not mounted".to_owned());
    wait_for("the other reason", async || {
        let conditions = site.status("missing").await.conditions;
        conditions.iter().any(|one| one.message.contains("the disk is not mounted")).then_some(())
    })
    .await;
    // None of them was ever connected, and nothing is on them.
    let targets = site.world.api::<Target>();
    for object in targets.list(&Default::default()).await.unwrap() {
        targets.delete(&object.name_any(), &DeleteParams::default()).await.unwrap();
    }
    wait_for("the targets to be forgotten", async || {
        targets.list(&Default::default()).await.unwrap().items.is_empty().then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_that_was_replaced_is_refused_until_somebody_says_that_this_is_meant() {
    let Some(site) = Site::new().await else { return };
    let targets = site.world.api::<Target>();
    let device = async |key: &'static str| {
        site.agent("replaced", ("rds", VERSION), |server| server.of_storage(format!("rack-1/{key}"))).await
    };
    let first = device("SHA256:first").await;
    site.object("replaced", "rds", &first).await;
    site.until("replaced", "Reachable=True/Answers").await;
    assert_eq!(site.status("replaced").await.installation, "rack-1/SHA256:first");

    let second = json!({"spec": {"address": device("SHA256:second").await}});
    targets.patch("replaced", &PatchParams::default(), &Patch::Merge(&second)).await.unwrap();
    let told = site.until("replaced", "Reachable=False/OtherStorage").await;
    assert!(told.contains("SHA256:first") && told.contains("was its device replaced?"), "{told}");
    assert_eq!(site.status("replaced").await.installation, "rack-1/SHA256:first");

    let meant = json!({"status": {"installation": ""}});
    targets.patch_status("replaced", &PatchParams::default(), &Patch::Merge(&meant)).await.unwrap();
    site.until("replaced", "Reachable=True/Answers").await;
    assert_eq!(site.status("replaced").await.installation, "rack-1/SHA256:second");
    targets.delete("replaced", &DeleteParams::default()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn since_when_orphans_are_known_is_in_the_status_of_their_target() {
    let Some(site) = Site::new().await else { return };
    let address = site.agent("nvme-o", ("nvmet", VERSION), |server| server).await;
    let record = site.orphans();
    site.object("nvme-o", "nvmet", &address).await;
    assert_eq!(record.read().await, Ok(FirstSeen::new()));
    let orphan = (TargetId::new("nvme-o").unwrap(), VolumeId::new("left-1").unwrap());
    let seen = FirstSeen::from([(orphan, "2026-01-01T00:00:00Z".parse().unwrap())]);
    record.write(&seen).await.unwrap();
    // What else is written into the status leaves it alone.
    wait_for("the target to be reached", async || {
        let conditions = site.status("nvme-o").await.conditions;
        conditions.iter().any(|one| one.kind == "Reachable" && one.reason == "Answers").then_some(())
    })
    .await;
    assert_eq!(record.read().await, Ok(seen));
    record.write(&FirstSeen::new()).await.unwrap();
    assert_eq!(site.status("nvme-o").await.orphans, []);
    let broken = json!({"status": {"orphans": [{"volume": "left-1", "firstSeen": "long ago"}]}});
    let api = site.world.api::<Target>();
    api.patch_status("nvme-o", &PatchParams::default(), &Patch::Merge(&broken)).await.unwrap();
    let error = record.read().await.unwrap_err();
    assert!(error.contains("status.orphans of Target nvme-o"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn more_orphans_than_an_object_can_name_were_never_recorded() {
    let Some(site) = Site::new().await else { return };
    site.object("nvme-o", "nvmet", "127.0.0.1:1").await;
    let (record, target) = (site.orphans(), TargetId::new("nvme-o").unwrap());
    let one = |number: usize| {
        // The one whose name comes first was seen last.
        let seen = Timestamp::UNIX_EPOCH + Duration::from_secs(5000 - number as u64);
        ((target.clone(), VolumeId::new(format!("left-{number:04}")).unwrap()), seen)
    };
    record.write(&(0..1001).map(one).collect()).await.unwrap();
    assert_eq!(record.read().await, Ok((1..1001).map(one).collect()));
    record.write(&(0..1).map(one).collect()).await.unwrap();
    assert_eq!(record.read().await, Ok((0..1).map(one).collect()));
    site.world.api::<Target>().delete("nvme-o", &DeleteParams::default()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn who_counts_on_an_orphan_is_asked_of_the_api_server() {
    let Some(site) = Site::new().await else { return };
    let world = &site.world;
    let record = site.orphans();
    let claimed = async |volume: &str| record.claimed(&VolumeId::new(volume).unwrap()).await;
    world.create::<PersistentVolume>(pv("stands", "left-000000aa")).await;
    let mut inline = pv("inline", "left-000000bb")["spec"].clone();
    (inline["claimRef"], inline["capacity"]) = (json!(null), json!(null));
    world
        .create::<VolumeAttachment>(json!({"apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment", "metadata": {"name": "va-inline"},
            "spec": {"attacher": DRIVER, "nodeName": "a", "source": {"inlineVolumeSpec": inline}}}))
        .await;
    assert_eq!(claimed("left-000000aa").await, Ok(Some("PersistentVolume stands".to_owned())));
    assert_eq!(claimed("left-000000bb").await, Ok(Some("VolumeAttachment va-inline".to_owned())));
    assert_eq!(claimed("left-000000cc").await, Ok(None));
    // Nobody can be asked.
    let nowhere = tower::service_fn(|_: http::Request<kube::client::Body>| async {
        Err::<http::Response<kube::client::Body>, _>(kube::Error::Service("no way".into()))
    });
    let client = kube::Client::new(nowhere, "default");
    let silent = OrphanStatuses { client, pvs: Arc::clone(&site.running.pvs) };
    assert!(silent.claimed(&VolumeId::new("left-000000cc").unwrap()).await.unwrap_err().contains("no way"));
}
