//! The command line through a real API server: its service proxy, its tokens, its rights.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed check is a panic")]

use bowline_cluster::door;
use bowline_controller::{Catalog, Node};
use bowline_core::{NodeId, VolumeId};
use bowline_engine::{Clock, SystemClock};
use bowline_store::MemoryStore;
use bowline_target::{NewVolume, Progress, Provision};
use bowline_testkit::SimTarget;
use bowline_testkit::lab::{Access, ApiLab, PATIENCE, not_run, wait_for};
use bowline_web::Api;
use bowline_web::wire::{AdoptedVolume, Adoption, AdoptionState, Orphans};
use std::io::{BufRead, BufReader};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// What the chart has for people, as it is for everybody but Helm.
const PEOPLE: &str = "
apiVersion: v1
kind: Namespace
metadata: { name: bowline }
---
apiVersion: v1
kind: ServiceAccount
metadata: { name: bowline-controller, namespace: bowline }
---
apiVersion: v1
kind: Namespace
metadata: { name: empty }
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: { name: viewers }
roleRef: { apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: bowline-viewer }
subjects: [{ apiGroup: rbac.authorization.k8s.io, kind: User, name: vera }]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: { name: operators, namespace: bowline }
roleRef: { apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: bowline-operator }
subjects: [{ apiGroup: rbac.authorization.k8s.io, kind: User, name: otto }]
---
# Whoever may use every Service of the namespace, and has a token that may only look.
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: { name: half, namespace: bowline }
rules:
  - { apiGroups: [''], resources: [services/proxy], verbs: [get, create, update, delete] }
  - { apiGroups: [''], resources: [serviceaccounts/token], resourceNames: [bowline-view], verbs: [create] }
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: { name: half, namespace: bowline }
roleRef: { apiGroup: rbac.authorization.k8s.io, kind: Role, name: half }
subjects: [{ apiGroup: rbac.authorization.k8s.io, kind: User, name: hanna }]
";

/// An address of this machine that is not loopback: the API server refuses to go to one that is.
fn own_address() -> Option<IpAddr> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    // Nothing is sent: it only chooses the way.
    socket.connect("192.0.2.1:9").ok()?;
    socket
        .local_addr()
        .ok()
        .map(|address| address.ip())
        .filter(|ip| !ip.is_loopback() && !ip.is_unspecified())
}

/// An adoption that takes one volume over and refuses another.
struct OneRefused;

#[async_trait::async_trait]
impl bowline_web::Adopt for OneRefused {
    async fn adopt(&self, dry_run: bool) -> Result<Adoption, String> {
        let one = |volume: &str, state, why: Option<&str>| AdoptedVolume {
            volume: volume.to_owned(),
            state,
            nodes: vec!["a".to_owned()],
            why: why.map(str::to_owned),
        };
        let state = if dry_run { AdoptionState::Adoptable } else { AdoptionState::Adopted };
        let volumes =
            vec![one("db-1", state, None), one("old-2", AdoptionState::Refused, Some("they disagree"))];
        Ok(Adoption { dry_run, volumes })
    }
}

struct World {
    lab: ApiLab,
    runtime: tokio::runtime::Runtime,
    target: Arc<SimTarget>,
}

struct Controller {
    api: Api,
    address: SocketAddr,
}

impl World {
    fn new() -> Option<(Self, IpAddr)> {
        let Some(address) = own_address() else {
            not_run("an address that is not loopback");
            return None;
        };
        let chart = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/chart");
        let helm = bowline_testkit::lab::tools("helm").join("helm");
        let lab = ApiLab::start()?;
        let rendered = Command::new(helm)
            .args(["template", "bowline", "--namespace", "bowline", "--show-only", "templates/people.yaml"])
            .arg(chart)
            .output()
            .unwrap();
        assert!(rendered.status.success(), "{}", String::from_utf8_lossy(&rendered.stderr));
        lab.apply_text(PEOPLE);
        lab.apply_text(&String::from_utf8(rendered.stdout).unwrap());
        let (runtime, target) = (tokio::runtime::Runtime::new().unwrap(), Arc::new(SimTarget::new("sim")));
        Some((Self { lab, runtime, target }, address))
    }

    /// A controller that listens as one in a pod does, without being one.
    fn controller(&self, name: &str, ip: IpAddr) -> Controller {
        let api = Api::in_cluster(bowline_web::Parts {
            clock: Arc::new(SystemClock),
            registry: Arc::default(),
            probe: Arc::new(Vec::new),
            version: env!("CARGO_PKG_VERSION"),
            node: name.to_owned(),
        });
        let address = self.runtime.block_on(async {
            let client = self.lab.client_as(Access::ServiceAccount("bowline", "bowline-controller")).await;
            let server = door::open(client, "bowline", SocketAddr::new(ip, 0), None).await.unwrap();
            let address = server.address().unwrap();
            tokio::spawn(server.run(api.clone(), std::future::pending()));
            address
        });
        Controller { api, address }
    }

    fn open(&self, controller: &Controller) {
        let node = |name: &str| Node {
            id: NodeId::new(name).unwrap(),
            limit: None,
            out_of_service: None,
            added_at: SystemClock.now(),
        };
        let parts = bowline_controller::Parts {
            store: Arc::new(MemoryStore::default()),
            targets: vec![Arc::clone(&self.target) as _],
            nodes: ["a", "b"].map(node).to_vec(),
            reports: vec![],
            clock: Arc::new(SystemClock),
            settings: Default::default(),
            registry: Arc::new(Mutex::default()),
        };
        controller.api.adopt_with(Arc::new(OneRefused));
        controller.api.open(self.runtime.block_on(Catalog::open(parts)).unwrap());
    }

    /// Makes the Service lead to these, as kube-controller-manager would for pods that are ready.
    fn lead_to(&self, controllers: &[(&str, &Controller)]) {
        let mut subsets = String::new();
        for (pod, controller) in controllers {
            let (ip, port) = (controller.address.ip(), controller.address.port());
            self.lab.apply_text(&format!(
                "{{apiVersion: v1, kind: Pod, metadata: {{name: {pod}, namespace: bowline}}, spec: {{nodeName: none, \
                 automountServiceAccountToken: false, serviceAccountName: bowline-controller, \
                 containers: [{{name: c, image: i}}]}}}}"
            ));
            let status = format!(r#"{{"status":{{"podIP":"{ip}","podIPs":[{{"ip":"{ip}"}}]}}}}"#);
            self.lab.kubectl(&[
                "-n",
                "bowline",
                "patch",
                "pod",
                pod,
                "--subresource=status",
                "--type=merge",
                "-p",
                &status,
            ]);
            subsets += &format!(
                "{{addresses: [{{ip: {ip}, targetRef: {{kind: Pod, name: {pod}, namespace: bowline}}}}], \
                 ports: [{{name: api, port: {port}}}]}},"
            );
        }
        self.lab.apply_text(&format!(
            "{{apiVersion: v1, kind: Endpoints, metadata: {{name: bowline-api, namespace: bowline}}, subsets: [{subsets}]}}"
        ));
    }

    fn kubeconfig(&self, user: &str) -> PathBuf {
        match user {
            "admin" => self.lab.kubeconfig(),
            user => self.lab.kubeconfig_for(Access::User(user, &["system:authenticated"])),
        }
    }

    fn command(&self, user: &str, typed: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_bowline"));
        command.env_clear().env("KUBECONFIG", self.kubeconfig(user)).args(typed);
        command
    }

    fn says(&self, user: &str, code: i32, typed: &[&str]) -> (String, String) {
        let output = self.command(user, typed).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert_eq!(output.status.code(), Some(code), "{user}: {typed:?}\n{out}\n{err}");
        (out, err)
    }
}

#[test]
fn everybody_can_do_in_a_cluster_what_their_rights_let_them() {
    let Some((world, ip)) = World::new() else { return };
    let leader = world.controller("bowline-controller-a", ip);
    world.open(&leader);
    world.lead_to(&[("bowline-controller-a", &leader)]);

    // Every command, as somebody who may.
    let (out, _) = world.says("otto", 0, &["volume", "create", "db", "--size", "1Gi"]);
    assert!(out.starts_with("db is ready: 1Gi, ext4"), "{out}");
    let (out, _) = world.says("otto", 0, &["attach", "db", "a", "--reason", "first"]);
    assert!(out.starts_with("db is attached to a"), "{out}");
    let (_, err) = world.says("otto", 4, &["attach", "db", "b"]);
    assert!(err.contains("a has the volume for") && err.contains("bowline why db"), "{err}");
    let (_, err) = world.says("otto", 5, &["attach", "db", "b", "--wait", "1s"]);
    assert!(err.contains("The time is over"), "{err}");
    let (out, _) = world.says("otto", 0, &["snapshot", "create", "before", "db"]);
    assert!(out.contains("before"), "{out}");
    world.says("otto", 0, &["volume", "grow", "db", "--size", "2Gi"]);
    world.says("otto", 0, &["detach", "db", "b"]);
    // A name that the API server would take for a path.
    world.says("otto", 0, &["volume", "create", "a/b %41..", "--size", "1Mi"]);
    let (out, _) = world.says("otto", 0, &["volume", "show", "a/b %41.."]);
    assert!(out.contains("a/b %41.."), "{out}");
    let (_, err) = world.says("otto", 3, &["why", "nothing"]);
    assert!(err.contains("nothing"), "{err}");

    // Nodes are Kubernetes' own.
    let (out, _) = world.says("otto", 0, &["peer", "list"]);
    assert!(out.contains("a ") && out.contains("in service"), "{out}");
    for (typed, words) in [
        (&["peer", "add", "c"][..], "nodes come from Kubernetes: one is known as soon as"),
        (&["peer", "remove", "a"], "kubectl delete node a"),
        (
            &["peer", "out-of-service", "a"],
            "kubectl taint node a node.kubernetes.io/out-of-service=nodeshutdown:NoExecute",
        ),
        (&["peer", "back-in-service", "a"], "NoExecute-"),
    ] {
        let (_, err) = world.says("otto", 1, typed);
        assert!(err.contains(words), "{typed:?}: {err}");
    }

    let (_, err) = world.says("otto", 1, &["target", "drain", "sim"]);
    assert!(err.contains(r#"kubectl patch bvt sim --type=merge -p '{"spec":{"drain":true}}'"#), "{err}");

    rights(&world);
    changes(&world);
    adoption(&world);
    events_are_followed(&world);
    doctor(&world);
    orphans(&world);
    ways(&world);
}

/// What is refused, and what is said about it.
fn rights(world: &World) {
    let typed_by_the_curious: [&[&str]; 6] = [
        &["why", "db"],
        &["tickets"],
        &["volume", "list"],
        &["snapshot", "list"],
        &["events"],
        &["doctor", "--orphans"],
    ];
    for typed in typed_by_the_curious {
        world.says("vera", 0, typed);
        world.says("hanna", 0, typed);
        let (_, err) = world.says("nobody", 1, typed);
        for words in
            ["serviceaccounts/token of bowline-view", "namespace bowline", "ClusterRole bowline-viewer"]
        {
            assert!(err.contains(words), "{words}: {err}");
        }
    }
    let (_, err) = world.says("vera", 1, &["attach", "db", "b"]);
    for words in [
        "does not let you change anything",
        "the right to create services/proxy of https:bowline-api:api in the namespace bowline",
        "ClusterRole bowline-operator",
    ] {
        assert!(err.contains(words), "{words}: {err}");
    }
    let (_, err) = world.says("vera", 1, &["detach", "db", "a"]);
    assert!(err.contains("the right to delete services/proxy"), "{err}");
    let (_, err) = world.says("hanna", 1, &["attach", "db", "b"]);
    for words in ["the token is of bowline-view, which may only look", "ClusterRole bowline-operator"] {
        assert!(err.contains(words), "{words}: {err}");
    }
    let (out, _) = world.says("vera", 0, &["why", "db"]);
    assert!(!out.contains("waiting"), "somebody without the right waits: {out}");
    // Without anything in between, a token for the API server itself is none here.
    world.says("admin", 0, &["volume", "list"]);
}

/// What is there already is changed and deleted by those who may, and by nobody else: each verb is a right of its own at the API server.
fn changes(world: &World) {
    world.says("otto", 0, &["volume", "create", "old", "--size", "1Mi"]);
    world.says("otto", 0, &["snapshot", "create", "single", "old"]);
    let (group, _) = world.says("otto", 0, &["-o", "json", "snapshot", "create", "pair", "old", "db"]);
    let group: serde_json::Value = serde_json::from_str(&group).unwrap();
    let group = group["id"].as_str().unwrap();
    let rows: [(&[&str], &str, &str); 5] = [
        (&["volume", "modify", "old", "--deletion-protection", "on"], "patch", "old"),
        (&["snapshot", "delete", "single"], "delete", "single is deleted."),
        (&["snapshot", "delete", "--group", group], "delete", "is deleted."),
        (&["volume", "modify", "old", "--deletion-protection", "off"], "patch", "old"),
        (&["volume", "delete", "old"], "delete", "old is deleted."),
    ];
    for (typed, verb, done) in rows {
        let seen = || {
            let (volume, _) = world.says("vera", 0, &["volume", "show", "old", "-o", "json"]);
            let (snapshots, _) = world.says("vera", 0, &["snapshot", "list", "-o", "json"]);
            (volume, snapshots)
        };
        let before = seen();
        let (_, err) = world.says("vera", 1, typed);
        let lacking = format!("the right to {verb} services/proxy of https:bowline-api:api");
        assert!(err.contains(&lacking) && err.contains("ClusterRole bowline-operator"), "{typed:?}: {err}");
        let (_, err) = world.says("hanna", 1, typed);
        // The API server lets her delete through the Service, and her token may only look; to patch, it does not let her.
        let told = if verb == "delete" { "the token is of bowline-view" } else { &lacking };
        assert!(err.contains(told), "{typed:?}: {err}");
        let (_, err) = world.says("nobody", 1, typed);
        assert!(err.contains("serviceaccounts/token"), "{typed:?}: {err}");
        assert_eq!(seen(), before, "{typed:?}: something was changed without the right to do so");
        let (out, _) = world.says("otto", 0, typed);
        assert!(out.contains(done), "{typed:?}: {out}");
        if typed.contains(&"on") {
            let (_, err) = world.says("otto", 1, &["volume", "delete", "old"]);
            assert!(err.contains("is protected"), "the right to delete is not all that it takes: {err}");
        }
    }
    world.says("vera", 3, &["volume", "show", "old"]);
    let (left, _) = world.says("vera", 0, &["snapshot", "list"]);
    assert!(left.contains("before") && !left.contains("single") && !left.contains("pair"), "{left}");
}

/// To look is for everybody who may look, to adopt for those who may change something.
fn adoption(world: &World) {
    let (out, err) = world.says("vera", 4, &["adopt", "--dry-run"]);
    assert!(out.contains("db-1") && out.contains("to adopt") && out.contains("they disagree"), "{out}");
    assert!(err.contains("1 volume is refused"), "{err}");
    let (_, err) = world.says("vera", 1, &["adopt"]);
    assert!(err.contains("ClusterRole bowline-operator"), "{err}");
    let (out, _) = world.says("otto", 4, &["adopt", "-o", "json"]);
    let report: Adoption = serde_json::from_str(&out).unwrap();
    assert_eq!((report.dry_run, report.volumes[0].state), (false, AdoptionState::Adopted));
}

fn events_are_followed(world: &World) {
    let mut following = world.command("vera", &["events", "--follow", "-o", "json"]);
    let mut following = following.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(following.stdout.take().unwrap()).lines();
    // What was before comes first; then the stream is there.
    assert!(lines.next().unwrap().unwrap().contains("\"reason\""));
    world.says("otto", 0, &["volume", "create", "followed", "--size", "1Mi"]);
    world.says("otto", 0, &["attach", "followed", "a"]);
    let seen = lines.find(|line| {
        let line = line.as_ref().unwrap();
        line.contains("Attached") && line.contains("followed")
    });
    following.kill().unwrap();
    following.wait().unwrap();
    assert!(seen.is_some(), "the stream ended");
}

fn doctor(world: &World) {
    let (out, err) = world.says("vera", 1, &["doctor"]);
    for words in [
        "Bowline's kinds",
        "a leader",
        "deployments.apps \"bowline-controller\" not found",
        "records and storage agree",
    ] {
        assert!(out.contains(words), "{words}: {out}");
    }
    assert!(err.contains("needed and missing: 3"), "{err}");
    world.lab.apply_text(
        "{apiVersion: coordination.k8s.io/v1, kind: Lease, metadata: {name: bowline-controller, namespace: bowline}, \
         spec: {holderIdentity: bowline-controller-a}}",
    );
    let (out, _) = world.says("vera", 1, &["doctor"]);
    assert!(out.contains("a leader (bowline-controller-a)"), "{out}");
    // Otto has his role in one namespace only, which is enough for these.
    let (out, _) = world.says("otto", 1, &["doctor"]);
    assert!(out.contains("a leader (bowline-controller-a)"), "{out}");

    let definition =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/crds/bowline.storage_targets.yaml");
    world.lab.apply(&[&definition]);
    let kind = "crd/targets.bowline.storage";
    world.lab.kubectl(&["wait", "--for=condition=Established", "--timeout=60s", kind]);
    world.lab.apply_text(
        "{apiVersion: bowline.storage/v1beta1, kind: Target, metadata: {name: nvme-1}, \
         spec: {kind: nvmet, address: '10.0.0.5:9460'}}",
    );
    let status = r#"{"status":{"conditions":[{"type":"ExportsShown","status":"False","message":"1 volume is missing."}]}}"#;
    let patch = ["patch", "bvt", "nvme-1", "--subresource=status", "--type=merge", "-p", status];
    world.lab.kubectl(&patch);
    let (out, _) = world.says("vera", 1, &["doctor"]);
    assert!(out.contains("what storage agents show to nodes (nvme-1: 1 volume is missing.)"), "{out}");
    let (out, _) = world.says("otto", 1, &["doctor"]);
    assert!(out.contains("you have no right to list targets"), "{out}");
}

/// What no record knows of is seen by everybody who may look.
fn orphans(world: &World) {
    for user in ["vera", "otto"] {
        let (out, _) = world.says(user, 0, &["doctor", "--orphans"]);
        assert!(out.contains("Every volume on every target has a record."), "{out}");
    }
    let volume = VolumeId::new("left-1").unwrap();
    let left = NewVolume { volume, name: "left".to_owned(), size: 1 << 20, source: None };
    world.runtime.block_on(world.target.create(&left, &Progress::default())).unwrap();
    for user in ["vera", "hanna", "otto"] {
        let (out, _) = world.says(user, 0, &["doctor", "--orphans"]);
        assert!(out.contains("left-1 on sim has no record; seen since "), "{user}: {out}");
        let (out, _) = world.says(user, 0, &["doctor", "--orphans", "-o", "json"]);
        let found: Orphans = serde_json::from_str(&out).unwrap();
        assert_eq!((found.orphans.len(), found.orphans[0].ripe), (1, false), "{out}");
    }
}

/// Which way is tried, and what is said when it leads nowhere.
fn ways(world: &World) {
    let (_, err) = world.says("admin", 1, &["volume", "list", "--namespace", "empty"]);
    assert!(err.contains("there is no Bowline in the namespace empty of the current context"), "{err}");
    let (_, err) = world.says("otto", 2, &["volume", "list", "--context", "moon"]);
    assert!(err.contains("the context moon cannot be used"), "{err}");
    world.says("otto", 0, &["volume", "list", "--context", "lab"]);
    let (_, err) = world.says("otto", 1, &["volume", "list", "--data", "/nowhere"]);
    assert!(err.contains("no bowline runs in /nowhere"), "{err}");
    let (_, err) = world.says("otto", 2, &["volume", "list", "--data", "/nowhere", "--context", "lab"]);
    assert!(err.contains("give one of them"), "{err}");
    let mut local = world.command("otto", &["volume", "list"]);
    let local = local.env("BOWLINE_DATA", "/nowhere").output().unwrap();
    assert!(String::from_utf8_lossy(&local.stderr).contains("no bowline runs in /nowhere"));
    let file = world.kubeconfig("otto");
    let mut typed = world.command("otto", &["volume", "list", "--kubeconfig", file.to_str().unwrap()]);
    let typed = typed.env_remove("KUBECONFIG").env("BOWLINE_DATA", "/nowhere").output().unwrap();
    assert!(typed.status.success(), "{}", String::from_utf8_lossy(&typed.stderr));
}

#[test]
fn the_leader_is_found_among_controllers_and_waited_for() {
    let Some((world, ip)) = World::new() else { return };
    let (follower, leader) =
        (world.controller("bowline-controller-a", ip), world.controller("bowline-controller-b", ip));
    world.lab.apply_text(
        "{apiVersion: coordination.k8s.io/v1, kind: Lease, metadata: {name: bowline-controller, namespace: bowline}, \
         spec: {holderIdentity: bowline-controller-b}}",
    );
    for (identity, controller) in [("bowline-controller-a", &follower), ("bowline-controller-b", &leader)] {
        let api = controller.api.clone();
        let client = world.runtime.block_on(world.lab.client());
        world.runtime.spawn(async move {
            door::tell_leader(client, "bowline", "bowline-controller", identity, &api).await;
        });
    }
    world.lead_to(&[]);
    let begun = Instant::now();
    let (_, err) = world.says("otto", 1, &["volume", "create", "db", "--size", "1Mi"]);
    assert!(err.contains("no controller of Bowline answers in the namespace bowline"), "{err}");
    assert!(begun.elapsed() > Duration::from_secs(10), "an order did not wait for somebody to be there");
    world.lead_to(&[("bowline-controller-a", &follower), ("bowline-controller-b", &leader)]);
    let begun = Instant::now();
    let (_, err) = world.says("otto", 1, &["volume", "list"]);
    let told =
        ["bowline-controller-b leads, and this is bowline-controller-a", "everything is being read back"];
    assert!(told.iter().any(|words| err.contains(words)), "{err}");
    assert!(begun.elapsed() > Duration::from_secs(10), "it did not wait for the leader");

    let mut waiting = world.command("otto", &["volume", "list"]).spawn().unwrap();
    world.open(&leader);
    let ended = wait_for("the command that waits for a leader", PATIENCE, || waiting.try_wait().unwrap());
    assert!(ended.success(), "{ended}");
    // Half of all calls go to the wrong one.
    for number in 0..10 {
        let name = format!("volume-{number}");
        world.says("otto", 0, &["volume", "create", &name, "--size", "1Mi"]);
    }
    let (out, _) = world.says("otto", 0, &["volume", "list", "-o", "json"]);
    assert_eq!(out.matches("\"name\"").count(), 10, "{out}");
}
