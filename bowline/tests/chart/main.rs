//! The chart: what it renders for many values, what it refuses, and that what it says of the process is true.
//!
//! Needs helm and kubeconform, which `lab/tools.sh helm` builds; where that cannot be done, each test says so and is counted
//! as not run.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a failed check is a panic"
)]

mod monitoring;
mod render;
mod rights;
mod schemas;
mod server;
mod truth;
mod wiring;

use crate::render::{CASES, Chart, chart_directory, tools};
use bowline_testkit::say;
use std::path::PathBuf;
use std::process::Command;

fn manifest() -> PathBuf {
    chart_directory().join("../manifests/bowline.yaml")
}

/// The namespace is no part of a chart, but of what one applies without Helm.
const NAMESPACE: &str = "\
# Everything for Bowline in Kubernetes, for those who do without Helm: kubectl apply --server-side -f bowline.yaml
# Rendered from deploy/chart with its default values; a test keeps it so, and BOWLINE_UPDATE=1 renders it again.
# Snapshots need the API snapshot.storage.k8s.io: docs/install.md says how to render with them.
apiVersion: v1
kind: Namespace
metadata:
  name: bowline
  labels:
    # The pods on nodes mount, so they are privileged.
    pod-security.kubernetes.io/enforce: privileged
";

#[test]
fn helm_finds_nothing_to_complain_about() {
    let Some(chart) = Chart::new("helm lint") else { return };
    for (name, values) in CASES {
        let output = chart.helm("lint", &["--strict"], values);
        assert!(output.status.success(), "{name}:\n{}", String::from_utf8_lossy(&output.stdout));
    }
}

#[test]
fn values_that_mean_nothing_are_refused_with_their_name() {
    let Some(chart) = Chart::new("the schema of values") else { return };
    for (values, named) in [
        ("sapshots: { enabled: true }", "sapshots"),
        ("node: { kubletDir: /x/y }", "kubletDir"),
        ("attacher: both", "attacher"),
        ("markAtCreation: perhaps", "markAtCreation"),
        ("attacher: sidecar\nmarkAtCreation: true", "markAtCreation"),
        ("controller: { replicas: 0 }", "replicas"),
        ("controller: { fenceNotReadyAfter: soon }", "fenceNotReadyAfter"),
        ("node: { kubeletDir: var/lib/kubelet }", "kubeletDir"),
        ("node: { dataDir: /var/lib/bowline/ }", "dataDir"),
        ("snapshots: { enabled: perhaps }", "enabled"),
        ("storageClasses: [{ name: x, fsType: ntfs }]", "fsType"),
        ("storageClasses: [{ name: x, parameters: { colour: red } }]", "colour"),
        ("storageClasses: [{ fsType: ext4 }]", "name"),
        ("sharedTargets: [{ name: Shared, directory: /x/y }]", "name"),
        (
            "rdsTargets: [{ name: box, address: a, user: u, secret: s, pool: p, directory: p, exports: ['a:1'], installation: i }]",
            "directory",
        ),
        (
            "rdsTargets: [{ name: box, address: a, user: u, secret: s, pool: p, directory: /p, exports: [], installation: i }]",
            "exports",
        ),
        (
            "rdsTargets: [{ name: box, address: a, user: u, pool: p, directory: /p, exports: ['a:1'], installation: i }]",
            "secret",
        ),
        ("orphans: { mode: keep }", "mode"),
        ("orphans: { grace: soon }", "grace"),
        ("image: { digest: 'md5:1' }", "digest"),
        ("nvmeTarget: { enabled: true, directory: srv }", "directory"),
        ("nvmeTarget: { port: 70000 }", "port"),
        ("nvmeTarget: { extraArgs: [oops] }", "extraArgs"),
        ("nvmeTarget: { networks: 10.1.0.0/24 }", "networks"),
        ("nvmeTarget: { networks: [10.1.0.7] }", "networks"),
        ("nvmeTarget: { networks: [10.1.0.0/33] }", "networks"),
        ("nvmeTarget: { networks: [0.0.0.0/0] }", "networks"),
        ("nvmeTarget: { networks: ['::/0'] }", "networks"),
        ("nvmeTarget: { networks: ['10.1.0.0/24,10.2.0.0/24'] }", "networks"),
        ("nvmeTarget: { networks: [eth0] }", "networks"),
        ("node: { nvme: { enabled: perhaps } }", "enabled"),
        ("metrics: { hostAddress: here }", "hostAddress"),
        ("metrics: { hostAddress: 10.0.0.256 }", "hostAddress"),
        ("metrics: { hostAddress: '10.0.0.5:80' }", "hostAddress"),
        ("metrics: { hostAddress: '[::1]' }", "hostAddress"),
        ("metrics: { hostAddress: 'fd00::1::2' }", "hostAddress"),
        ("metrics: { hostAddress: '1:2:3:4:5:6:7' }", "hostAddress"),
        ("listenAddress: 127.0.0.1", "listenAddress"),
        ("listenAddress: '[::]'", "listenAddress"),
        ("storageClasses: [{ name: x, parameters: { kind: tape } }]", "kind"),
        ("sidecars: { provisioner: { timeout: 60 } }", "timeout"),
        ("controller: { extraArgs: [oops] }", "extraArgs"),
    ] {
        let output = chart.helm("template", &[], values);
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "accepted: {values}");
        assert!(told.contains(named), "{values}: {named} is not named:\n{told}");
    }
}

#[test]
fn what_kubernetes_is_too_old_for_is_refused_with_its_name() {
    let Some(chart) = Chart::new("the version of Kubernetes") else { return };
    let older = ["--kube-version=1.35.9"];
    let output = chart.helm("template", &older, "markAtCreation: true");
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && told.contains("markAtCreation needs Kubernetes 1.36"), "{told}");
    assert!(chart.helm("template", &older, "").status.success());
    assert!(chart.helm("template", &["--kube-version=1.36.0"], "markAtCreation: true").status.success());
}

#[test]
fn the_manifests_are_what_the_chart_renders_with_its_default_values() {
    let Some(chart) = Chart::new("deploy/manifests") else { return };
    let output = chart.helm("template", &[], "");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let rendered = format!("{NAMESPACE}{}", String::from_utf8(output.stdout).unwrap());
    if std::env::var_os("BOWLINE_UPDATE").is_some() {
        std::fs::create_dir_all(manifest().parent().unwrap()).unwrap();
        std::fs::write(manifest(), &rendered).unwrap();
    }
    let kept = std::fs::read_to_string(manifest()).unwrap_or_default();
    assert!(
        kept == rendered,
        "deploy/manifests/bowline.yaml is old; run this test again with BOWLINE_UPDATE=1"
    );
}

#[test]
fn the_kinds_are_kept_when_the_chart_is_removed() {
    let Some(chart) = Chart::new("keeping the kinds") else { return };
    let kinds = std::fs::read_dir(chart_directory().join("../crds")).unwrap();
    let kinds =
        kinds.filter(|entry| entry.as_ref().unwrap().path().extension().is_some_and(|ext| ext == "yaml"));
    let documents = chart.render("");
    let rendered: Vec<_> =
        documents.iter().filter(|document| document["kind"] == "CustomResourceDefinition").collect();
    assert_eq!(rendered.len(), kinds.count(), "every file of deploy/crds is one kind");
    for kind in rendered {
        let policy = &kind["metadata"]["annotations"]["helm.sh/resource-policy"];
        assert_eq!(policy, "keep", "{}", kind["metadata"]["name"]);
    }
    let without = chart.render("crds: { install: false }");
    assert!(without.iter().all(|document| document["kind"] != "CustomResourceDefinition"));
}

#[test]
fn every_object_is_what_kubernetes_says_it_is() {
    let Some(chart) = Chart::new("kubeconform") else { return };
    let schemas = match schemas::of_kubernetes() {
        Ok(schemas) => schemas,
        Err(missing) => return say(&format!("not run: kubeconform ({missing})")),
    };
    let mut checked = 0;
    for (name, values) in CASES {
        let output = chart.helm("template", &[], values);
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("rendered.yaml");
        std::fs::write(&file, &output.stdout).unwrap();
        let location = format!("{}/{{{{.ResourceKind}}}}{{{{.KindSuffix}}}}.json", schemas.path().display());
        let output = Command::new(tools().unwrap().join("kubeconform"))
            .args(["-strict", "-summary", "-output", "json", "-schema-location", &location])
            // They belong to others, and their schemas are not Kubernetes'.
            .args(["-skip", "ServiceMonitor,PrometheusRule,VolumeSnapshotClass"])
            .arg(&file)
            .output()
            .unwrap();
        let told = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{name}:\n{told}\n{}", String::from_utf8_lossy(&output.stderr));
        let summary: serde_json::Value = serde_json::from_str(&told).unwrap();
        checked += summary["summary"]["valid"].as_u64().unwrap();
    }
    assert!(checked > 100, "kubeconform looked at {checked} objects only");
    say(&format!("chart: kubeconform accepts {checked} objects in {} sets of values", CASES.len()));
}
