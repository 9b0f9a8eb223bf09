//! The chart before a real API server, and the node's rights there.

use bowline_api::keys::{ATTACHER_FINALIZER, DRIVER, NODE_ID};
use bowline_testkit::lab::{ApiLab, PATIENCE, wait_for};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::api::{Api, PostParams};
use std::path::Path;

use crate::render::{CASES, Chart};

const TAINT: &str = "bowline.storage/agent-not-ready";

/// What the API server itself knows: not the kinds of the Prometheus operator.
fn of_kubernetes(rendered: &str) -> String {
    let documents = rendered.split("\n---\n").filter(|document| !document.contains("monitoring.coreos.com"));
    documents.collect::<Vec<_>>().join("\n---\n")
}

fn rendered(chart: &Chart, values: &str) -> String {
    let output = chart.helm("template", &[], values);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    of_kubernetes(&String::from_utf8(output.stdout).unwrap())
}

#[test]
fn an_api_server_takes_every_object_for_every_set_of_values() {
    let Some(chart) = Chart::new("the chart before an API server") else { return };
    let Some(lab) = ApiLab::start() else { return };
    lab.apply_text("apiVersion: v1\nkind: Namespace\nmetadata: { name: bowline }");
    lab.apply_snapshot_definitions();
    let file = lab.directory().join("rendered.yaml");
    for (case, values) in CASES {
        std::fs::write(&file, rendered(&chart, values)).unwrap();
        let file = file.to_str().unwrap();
        let taken = lab.try_kubectl(&["apply", "--server-side", "--dry-run=server", "-f", file]);
        let told = taken.unwrap_or_else(|error| panic!("{case}: {error}"));
        assert!(told.lines().count() > 15, "{case}: {told}");
    }
}

#[test]
fn an_uninstall_leaves_the_kinds_with_their_objects_and_a_new_installation_takes_them_over() {
    let Some(chart) = Chart::new("helm install, upgrade and uninstall") else { return };
    let Some(lab) = ApiLab::start() else { return };
    lab.apply_text("apiVersion: v1\nkind: Namespace\nmetadata: { name: bowline }");
    let release = |command: &str, more: &[&str]| chart.release(command, &lab.kubeconfig(), more);
    release("install", &[]);
    let kind = "volumes.bowline.storage";
    lab.kubectl(&["wait", "--for=condition=Established", "--timeout=60s", &format!("crd/{kind}")]);
    lab.apply_text(
        "apiVersion: bowline.storage/v1beta1\nkind: Volume\nmetadata: { name: db }\nspec: { name: db, size: 1Gi }",
    );

    // What an upgrade brings must arrive in the kinds, too.
    let columns = "{.spec.versions[0].additionalPrinterColumns}";
    let before = lab.kubectl(&["get", "crd", kind, "-o", &format!("jsonpath={columns}")]);
    let patch = r#"[{"op":"remove","path":"/spec/versions/0/additionalPrinterColumns/0"}]"#;
    lab.kubectl(&["patch", "crd", kind, "--type=json", "--patch", patch]);
    release("upgrade", &["--force-conflicts"]);
    assert_eq!(lab.kubectl(&["get", "crd", kind, "-o", &format!("jsonpath={columns}")]), before);

    release("uninstall", &[]);
    assert!(lab.try_kubectl(&["get", "csidriver", "bowline.storage"]).is_err(), "it is uninstalled");
    assert!(lab.try_kubectl(&["-n", "bowline", "get", "daemonset", "bowline-node"]).is_err());
    lab.kubectl(&["get", kind, "db"]);
    release("install", &[]);
    lab.kubectl(&["get", "csidriver", "bowline.storage"]);
    lab.kubectl(&["get", kind, "db"]);
}

/// A VolumeAttachment that somebody else has marked, too.
fn attachment(name: &str, attacher: &str) -> VolumeAttachment {
    let metadata =
        serde_json::json!({ "name": name, "finalizers": ["x.org/kept"], "annotations": { "x.org/a": "b" } });
    serde_json::from_value(serde_json::json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment", "metadata": metadata,
        "spec": { "attacher": attacher, "nodeName": "worker-1", "source": { "persistentVolumeName": "db" } },
    }))
    .unwrap()
}

/// Finalizers and annotations, for comparing.
fn marks(object: VolumeAttachment) -> (Vec<String>, Vec<(String, String)>) {
    let mut finalizers = object.metadata.finalizers.unwrap_or_default();
    finalizers.sort();
    (finalizers, object.metadata.annotations.unwrap_or_default().into_iter().collect())
}

/// A policy is followed a moment after it was written. Nothing that is made meanwhile may be refused.
async fn until_made(attachments: &Api<VolumeAttachment>, is_marked: bool) {
    let dry = PostParams { dry_run: true, ..PostParams::default() };
    let begun = std::time::Instant::now();
    loop {
        let made = attachments.create(&dry, &attachment("tried", DRIVER)).await.unwrap();
        if marks(made).0.iter().any(|one| one == ATTACHER_FINALIZER) == is_marked {
            return;
        }
        assert!(begun.elapsed() < PATIENCE, "waited for the policy; marked: {is_marked}");
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_made_for_this_driver_is_marked_and_nothing_that_is_made_is_refused() {
    let Some(chart) = Chart::new("marks by the API server") else { return };
    let Some(lab) = ApiLab::start() else { return };
    lab.apply_text("apiVersion: v1\nkind: Namespace\nmetadata: { name: bowline }");
    let attachments = Api::<VolumeAttachment>::all(lab.client().await);
    let make = async |name: &str, attacher: &str| {
        marks(attachments.create(&PostParams::default(), &attachment(name, attacher)).await.unwrap())
    };
    let others = make("before", DRIVER).await;
    chart.release("install", &lab.kubeconfig(), &["--set=markAtCreation=true"]);
    until_made(&attachments, true).await;
    let (finalizers, annotations) = make("ours", DRIVER).await;
    assert_eq!(finalizers, [ATTACHER_FINALIZER, "x.org/kept"]);
    let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    assert_eq!(annotations, [pair(NODE_ID, "worker-1"), pair("x.org/a", "b")]);
    for attacher in ["bowline.storage.example.org", "hostpath.csi.k8s.io"] {
        assert_eq!(make(attacher, attacher).await, others, "{attacher}");
    }
    // Nothing is taken away, or put back, later.
    lab.kubectl(&["annotate", "volumeattachment", "ours", &format!("{NODE_ID}=other"), "--overwrite"]);
    assert_eq!(marks(attachments.get("ours").await.unwrap()).1[0], pair(NODE_ID, "other"));

    // One that cannot be evaluated marks nothing, and is in nobody's way.
    let broken = r#"[{"op":"replace","path":"/spec/mutations/0/applyConfiguration/expression","value":"Object{metadata: Object.metadata{finalizers: [object.spec.nothing]}}"}]"#;
    lab.kubectl(&["patch", "mutatingadmissionpolicy", "bowline-attacher", "--type=json", "--patch", broken]);
    until_made(&attachments, false).await;
    assert_eq!(make("unmarked", DRIVER).await, others);
    chart.release("upgrade", &lab.kubeconfig(), &["--set=markAtCreation=true", "--force-conflicts"]);
    until_made(&attachments, true).await;

    chart.release("uninstall", &lab.kubeconfig(), &[]);
    until_made(&attachments, false).await;
    let left =
        lab.kubectl(&["get", "mutatingadmissionpolicies,mutatingadmissionpolicybindings", "-o", "name"]);
    assert_eq!(left, "", "whom nobody would free is not marked any more");
}

/// A node plugin's client: with the token that the kubelet would give to its pod.
async fn plugin(lab: &ApiLab, pod: &str) -> (kube::Client, std::path::PathBuf) {
    let token = lab.kubectl(&[
        "--namespace=bowline",
        "create",
        "token",
        "bowline-node",
        "--bound-object-kind=Pod",
        "--bound-object-name",
        pod,
    ]);
    let path = lab.directory().join(format!("{pod}.kubeconfig"));
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: x\n\
         clusters: [{{name: x, cluster: {{server: {:?}, certificate-authority: {:?}}}}}]\n\
         users: [{{name: x, user: {{token: {:?}}}}}]\ncontexts: [{{name: x, context: {{cluster: x, user: x}}}}]\n",
        lab.url(),
        lab.ca(),
        token.trim(),
    );
    std::fs::write(&path, text).unwrap();
    let config = kube::config::Kubeconfig::read_from(&path).unwrap();
    let config = kube::Config::from_custom_kubeconfig(config, &Default::default()).await.unwrap();
    (kube::Client::try_from(config).unwrap(), path)
}

async fn taints(nodes: &Api<Node>, node: &str) -> Vec<String> {
    let taints = nodes.get(node).await.unwrap().spec.and_then(|spec| spec.taints).unwrap_or_default();
    taints.into_iter().map(|taint| taint.key).collect()
}

fn two_nodes(lab: &ApiLab, chart: &Chart) {
    lab.apply_text("apiVersion: v1\nkind: Namespace\nmetadata: { name: bowline }");
    lab.apply_text(&rendered(chart, "node: { startupTaint: { enabled: true } }"));
    for name in ["worker-1", "worker-2"] {
        lab.apply_text(&format!(
            "apiVersion: v1\nkind: Node\nmetadata: {{ name: {name} }}\nspec:\n  taints:\n    \
             - {{ key: {TAINT}, effect: NoExecute }}\n    - {{ key: example.org/other, effect: NoSchedule }}\n---\n\
             apiVersion: v1\nkind: Pod\nmetadata: {{ name: on-{name}, namespace: bowline }}\nspec:\n  \
             nodeName: {name}\n  serviceAccountName: bowline-node\n  containers: [{{ name: node, image: none }}]"
        ));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_plugin_takes_its_taint_off_its_own_node_and_can_do_nothing_else() {
    let Some(chart) = Chart::new("the startup taint") else { return };
    let Some(lab) = ApiLab::start() else { return };
    two_nodes(&lab, &chart);
    let nodes = Api::<Node>::all(lab.client().await);
    let (client, kubeconfig) = plugin(&lab, "on-worker-2").await;
    let kubeconfig = format!("--kubeconfig={}", kubeconfig.display());

    // A policy is in force a moment after it was made. An annotation is nothing the plugin may write, on any Node.
    let is_refused = |node: &str, patch: &str, why: &str| {
        let told = lab.try_kubectl(&[&kubeconfig, "patch", "node", node, "--type=merge", "--patch", patch]);
        told.is_err_and(|told| told.contains(why))
    };
    let mut tries = 0;
    wait_for("the policy to be in force", PATIENCE, || {
        // Another one each time: one that came through before would change nothing when it comes again.
        tries += 1;
        let annotation = format!(r#"{{"metadata":{{"annotations":{{"x":"{tries}"}}}}}}"#);
        is_refused("worker-2", &annotation, "may change nothing but taints").then_some(())
    });
    for (node, patch, why) in [
        ("worker-2", r#"{"metadata":{"labels":{"a":"b"}}}"#, "nothing but taints"),
        ("worker-2", r#"{"metadata":{"finalizers":["example.org/kept"]}}"#, "nothing but taints"),
        (
            "worker-2",
            r#"{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Node","name":"gone","uid":"1"}]}}"#,
            "nothing but taints",
        ),
        ("worker-2", r#"{"spec":{"unschedulable":true}}"#, "nothing but taints"),
        ("worker-2", r#"{"spec":{"providerID":"cloud://another"}}"#, "nothing but taints"),
        (
            "worker-2",
            r#"{"spec":{"podCIDR":"10.9.0.0/24","podCIDRs":["10.9.0.0/24"]}}"#,
            "nothing but taints",
        ),
        ("worker-2", r#"{"spec":{"taints":null}}"#, "take off only the taint"),
        ("worker-1", r#"{"spec":{"taints":null}}"#, "only the Node it runs on"),
    ] {
        assert!(is_refused(node, patch, why), "{node}: {patch}");
    }

    let others = bowline_cluster::taint::remove(client.clone(), "worker-1", TAINT).await.unwrap_err();
    assert!(
        others
            .to_string()
            .starts_with("the taint bowline.storage/agent-not-ready cannot be taken off node worker-1")
    );
    assert!(taints(&nodes, "worker-1").await.contains(&TAINT.to_owned()));

    assert!(bowline_cluster::taint::remove(client.clone(), "worker-2", TAINT).await.unwrap());
    let left = taints(&nodes, "worker-2").await;
    assert!(!left.contains(&TAINT.to_owned()) && left.contains(&"example.org/other".to_owned()), "{left:?}");
    assert!(
        !bowline_cluster::taint::remove(client, "worker-2", TAINT).await.unwrap(),
        "there is none any more"
    );

    for (arguments, may) in [
        (["get", "nodes/worker-2"], "yes"),
        (["list", "nodes"], "no"),
        (["delete", "nodes"], "no"),
        (["get", "secrets"], "no"),
        (["get", "persistentvolumes"], "no"),
        (["create", "pods"], "no"),
    ] {
        let asked =
            [&["--as=system:serviceaccount:bowline:bowline-node", "auth", "can-i"], &arguments[..]].concat();
        let told = lab.try_kubectl(&asked).unwrap_or_else(|_| "no".to_owned());
        assert_eq!(told.trim(), may, "{arguments:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_process_takes_the_taint_off_when_the_kubelet_has_registered_it() {
    use bowline_csi::wire::registration::RegistrationStatus;
    use bowline_csi::wire::registration::registration_client::RegistrationClient;
    use bowline_testkit::world::World;

    let Some(chart) = Chart::new("the startup taint of a process") else { return };
    let Some(lab) = ApiLab::start() else { return };
    two_nodes(&lab, &chart);
    let nodes = Api::<Node>::all(lab.client().await);
    let (_, kubeconfig) = plugin(&lab, "on-worker-2").await;

    let world = World::new(env!("CARGO_BIN_EXE_bowline"));
    let _up = world.up(&[]);
    let kubelet = world.path("kubelet");
    std::fs::create_dir(&kubelet).unwrap();
    let env = [("KUBECONFIG", kubeconfig.to_str().unwrap())];
    let _node = world.beside_kubelet("worker-2", &kubelet, &env, &["--startup-taint", TAINT]);
    assert!(taints(&nodes, "worker-2").await.contains(&TAINT.to_owned()), "not before it is registered");

    let socket = kubelet.join("plugins_registry/bowline.storage-reg.sock");
    let mut plugin = RegistrationClient::new(bowline_testkit::driver::channel(Path::new(&socket)));
    let status = RegistrationStatus { plugin_registered: true, error: String::new() };
    plugin.notify_registration_status(status).await.unwrap();
    let begun = std::time::Instant::now();
    while taints(&nodes, "worker-2").await.contains(&TAINT.to_owned()) {
        assert!(begun.elapsed() < PATIENCE, "waited for the taint to go:\n{}", world.log("worker-2"));
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    assert!(taints(&nodes, "worker-1").await.contains(&TAINT.to_owned()));
}

/// A volume that was staged here once, and of which nothing is left but this.
fn staged(state: &Path, volume: &str) {
    std::fs::create_dir_all(state.join("staging")).unwrap();
    let record = serde_json::json!({ "version": 1, "record": {
        "volume": volume, "node": "worker-2", "target": "file", "epoch": 3, "write": true, "device": "gone",
        "path": "/nowhere", "mode": "single-node-writer", "content": "block", "phase": "staged", "published": [],
    }});
    std::fs::write(state.join(format!("staging/{volume}.json")), record.to_string()).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_happens_to_a_volume_on_a_node_is_an_event_of_it_and_the_node_may_write_no_others() {
    use bowline_csi::wire::NodeGetVolumeHealthRequest;
    use bowline_csi::wire::node_client::NodeClient;
    use bowline_testkit::world::World;
    use k8s_openapi::api::events::v1::Event;

    let Some(chart) = Chart::new("events of a node") else { return };
    let Some(lab) = ApiLab::start() else { return };
    two_nodes(&lab, &chart);
    let (_, kubeconfig) = plugin(&lab, "on-worker-2").await;
    let world = World::new(env!("CARGO_BIN_EXE_bowline"));
    let _up = world.up(&[]);
    let (kubelet, state) = (world.path("kubelet"), world.path("state"));
    std::fs::create_dir(&kubelet).unwrap();
    staged(&state, "pvc-1-000000ab");
    let env = [("KUBECONFIG", kubeconfig.to_str().unwrap())];
    let more = ["--events", "--state", state.to_str().unwrap()];
    let _node = world.beside_kubelet("worker-2", &kubelet, &env, &more);
    let socket = kubelet.join("plugins/bowline.storage/csi.sock");
    let mut node = NodeClient::new(bowline_testkit::driver::channel(&socket));
    let volume_id = "pvc-1-000000ab".to_owned();
    let request = NodeGetVolumeHealthRequest { volume_id, ..Default::default() };
    for _ in 0..3 {
        let health = node.node_get_volume_health(request.clone()).await.unwrap().into_inner();
        assert_eq!(health.volume_health.unwrap().health_statuses[0].reason, "StaleMount");
    }
    let events = Api::<Event>::namespaced(lab.client().await, "default");
    let begun = std::time::Instant::now();
    let event = loop {
        let found = events.list(&Default::default()).await.unwrap().items;
        let ours = |event: &&Event| event.reason.as_deref() == Some("StaleMountDetected");
        let ours: Vec<_> = found.iter().filter(ours).cloned().collect();
        assert!(ours.len() < 2, "the same again is one event: {ours:?}");
        let counted = |event: &Event| event.series.as_ref().is_some_and(|series| series.count == 3);
        if let Some(event) = ours.into_iter().find(counted) {
            break event;
        }
        assert!(begun.elapsed() < PATIENCE, "no event:\n{}", world.log("worker-2"));
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    };
    let regarding = event.regarding.unwrap();
    assert_eq!((regarding.kind.as_deref(), regarding.name.as_deref()), (Some("Volume"), Some("pvc-1")));
    assert_eq!(
        (event.type_.as_deref(), event.reporting_controller.as_deref()),
        (Some("Warning"), Some("bowline.storage/node"))
    );
    assert_eq!(event.reporting_instance.as_deref(), Some("worker-2"));
    let note = event.note.unwrap();
    assert!(note.starts_with("node worker-2: found a stale mount: "), "{note}");

    for (verb, namespace, may) in [
        ("create", "default", "yes"),
        ("patch", "default", "yes"),
        ("get", "default", "no"),
        ("create", "bowline", "no"),
    ] {
        let told = lab.try_kubectl(&[
            "--as=system:serviceaccount:bowline:bowline-node",
            "auth",
            "can-i",
            verb,
            "events.events.k8s.io",
            "--namespace",
            namespace,
        ]);
        assert_eq!(told.unwrap_or_else(|_| "no".to_owned()).trim(), may, "{verb} in {namespace}");
    }
}
