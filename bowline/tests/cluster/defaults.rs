//! The chart with its default values: installed, upgraded, removed and installed again under a pod that writes all the time.

use crate::tenant::{Seat, Tenant, claimed};
use crate::{Cluster, PATIENCE};
use bowline_testkit::lab::{ClusterLab, Image, NAMESPACE, Options};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Writes 1, 2, 3 … and ends if that fails once.
const WRITER: &str =
    "i=1; while echo $i >> /data/log && sync /data/log; do i=$((i + 1)); sleep 0.2; done; exit 1";

/// The version of a chart that is older than the one in this tree.
const OLD: &str = "0.0.9";

#[test]
fn a_pod_writes_on_while_bowline_is_restarted_upgraded_removed_and_installed_again() {
    let Some(cluster) = Cluster::bare(&Options::default()) else { return };
    let (old, new) = (old_chart(&cluster.lab), chart());
    let bowline = Image::bowline(Path::new(env!("CARGO_BIN_EXE_bowline")));
    let name = bowline.name.rsplit_once(':').unwrap().0;
    cluster.lab.tag_image(&bowline.name, &format!("{name}:{OLD}"));
    helm(&cluster.lab, &["install", "bowline", old.to_str().unwrap(), "--create-namespace"]);
    assert_eq!(versions(&cluster.lab), [format!("bowline:{OLD}")]);

    let begun = std::time::Instant::now();
    let tenant = Tenant::new(&cluster, "defaults");
    let node = the_first_pod_decides_where(&tenant);
    a_node_plugin_is_exchanged(&tenant, &node);
    an_upgrade_brings_everything(&tenant, new.to_str().unwrap());
    removed_and_installed_again(&tenant, &node);
    removed_with_all_data(&tenant);
    bowline_testkit::say(&format!("cluster: default values, upgrade and removal in {:.0?}", begun.elapsed()));
}

fn chart() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/chart").canonicalize().unwrap()
}

/// This chart as an older version: of another image, with another default value, and a column less in a kind.
fn old_chart(lab: &ClusterLab) -> PathBuf {
    let directory = lab.directory().join("old");
    let copied = Command::new("cp").args(["-rL"]).arg(chart()).arg(&directory).status().unwrap();
    assert!(copied.success());
    let change = |file: &str, from: &str, to: &str| {
        let file = directory.join(file);
        let text = std::fs::read_to_string(&file).unwrap();
        assert!(text.contains(from), "{} has no {from:?}", file.display());
        std::fs::write(file, text.replace(from, to)).unwrap();
    };
    change("Chart.yaml", env!("CARGO_PKG_VERSION"), OLD);
    change("values.yaml", "capacityPollInterval: 1m", "capacityPollInterval: 9m");
    change(
        "files/crds/bowline.storage_volumes.yaml",
        "    - jsonPath: .status.target\n      name: Target\n      type: string\n",
        "",
    );
    let packed = lab.directory().display().to_string();
    lab.helm(&["package", directory.to_str().unwrap(), "--destination", &packed]).unwrap();
    lab.directory().join(format!("bowline-{OLD}.tgz"))
}

fn helm(lab: &ClusterLab, words: &[&str]) {
    let done = lab.helm(&[words, &["--namespace", NAMESPACE, "--wait", "--timeout", "4m"]].concat());
    if let Err(error) = done {
        let pods = lab.kubectl(&["--namespace", NAMESPACE, "describe", "pods"]);
        panic!("{error}\n{pods}");
    }
}

/// Which images of Bowline run.
fn versions(lab: &ClusterLab) -> Vec<String> {
    let path = "jsonpath={.items[*].spec.containers[*].image}";
    let ours = "--selector=app.kubernetes.io/name=bowline";
    let images = lab.kubectl(&["--namespace", NAMESPACE, "get", "pods", ours, "-o", path]);
    let images = images.split_whitespace().filter(|image| image.starts_with("bowline:"));
    let images: std::collections::BTreeSet<String> = images.map(str::to_owned).collect();
    images.into_iter().collect()
}

/// The writer has lost nothing, and writes more.
fn writes_on(tenant: &Tenant<'_>) {
    let lines = || -> u64 { tenant.run("writer", "wc -l < /data/log").trim().parse().unwrap() };
    let before = lines();
    tenant
        .cluster
        .lab
        .wait_for("the pod to go on writing", PATIENCE, || (lines() > before + 3).then_some(()));
    tenant.run("writer", "awk '$1 != NR { exit 1 }' /data/log");
    assert_eq!(tenant.field(&["pod", "writer"], ".status.containerStatuses[0].restartCount"), "0");
}

/// Whether a new pod gets a volume of its own, and can have that of the writer.
fn serves(tenant: &Tenant<'_>, name: &str) {
    tenant.claim(name);
    tenant.pod(name, &Seat { volume: &claimed(name), script: "echo new > /data/file", ..Seat::default() });
    let log = format!("{name}-log");
    tenant.pod(&log, &Seat { volume: &claimed("db"), script: "head -n 2 /data/log", ..Seat::default() });
    tenant.ended(name);
    assert_eq!(tenant.ended(&log), "1\n2\n");
    let pv = tenant.field(&["pvc", name], ".spec.volumeName");
    for pod in [name, &log] {
        tenant.delete("pod", pod);
    }
    tenant.delete("pvc", name);
    // Whoever counts what is there afterwards shall not count what is on its way out.
    let lab = &tenant.cluster.lab;
    lab.wait_for(&format!("the volume of {name} to be gone"), PATIENCE, || {
        let left = lab.try_kubectl(&["get", "pv", &pv, "--ignore-not-found", "-o", "name"]).ok()?;
        left.is_empty().then_some(())
    });
}

fn the_first_pod_decides_where(tenant: &Tenant<'_>) -> String {
    tenant.claim("db");
    let volume = claimed("db");
    tenant.wait(&["pvc", "db"], ".status.phase", |phase| phase == "Pending");
    tenant.pod("writer", &Seat { volume: &volume, script: WRITER, ..Seat::default() });
    tenant.running("writer");
    let node = tenant.field(&["pod", "writer"], ".spec.nodeName");
    // The next one goes where the volume is, whatever the scheduler would like.
    tenant.pod("beside", &Seat { volume: &volume, script: "head -n 1 /data/log", ..Seat::default() });
    assert_eq!(tenant.ended("beside"), "1\n");
    assert_eq!(tenant.field(&["pod", "beside"], ".spec.nodeName"), node);
    tenant.delete("pod", "beside");
    let other = if node == "lab-a" { "lab-b" } else { "lab-a" };
    tenant.pod("elsewhere", &Seat::on(other, &volume, "cat /data/log"));
    let path = ".status.conditions[?(@.type==\"PodScheduled\")].message";
    let told = tenant.wait(&["pod", "elsewhere"], path, |_| true);
    assert!(told.contains("affinity"), "{told}");
    tenant.delete("pod", "elsewhere");
    // Where there is another pod, there is another volume.
    tenant.claim("other");
    tenant.pod("other", &Seat::on(other, &claimed("other"), "echo other > /data/file && cat /data/file"));
    assert_eq!(tenant.ended("other"), "other\n");
    tenant.delete("pod", "other");
    node
}

fn a_node_plugin_is_exchanged(tenant: &Tenant<'_>, node: &str) {
    let lab = &tenant.cluster.lab;
    let own = format!("spec.nodeName={node}");
    let ours = "app.kubernetes.io/component=node";
    let words =
        ["--namespace", NAMESPACE, "delete", "pod", "--selector", ours, "--field-selector", &own, "--now"];
    let deleted = lab.kubectl(&words);
    assert_eq!(deleted.lines().count(), 1, "{deleted}");
    lab.kubectl(&["--namespace", NAMESPACE, "rollout", "status", "daemonset/bowline-node", "--timeout=180s"]);
    writes_on(tenant);
    serves(tenant, "restarted");
}

/// As docs/install.md says.
fn an_upgrade_brings_everything(tenant: &Tenant<'_>, new: &str) {
    let lab = &tenant.cluster.lab;
    let column = "{.spec.versions[0].additionalPrinterColumns[?(@.name==\"Target\")].jsonPath}";
    let column = ["get", "crd", "volumes.bowline.storage", "-o", &format!("jsonpath={column}")];
    assert_eq!(lab.kubectl(&column), "");
    helm(lab, &["upgrade", "bowline", new, "--reset-then-reuse-values"]);
    writes_on(tenant);
    lab.wait_for("the old pods to be gone", PATIENCE, || {
        (versions(lab) == [concat!("bowline:", env!("CARGO_PKG_VERSION"))]).then_some(())
    });
    assert_eq!(lab.kubectl(&column), ".status.target", "a kind of the new chart");
    let controller = ["--namespace", NAMESPACE, "get", "deployment", "bowline-controller", "-o", "yaml"];
    assert!(lab.kubectl(&controller).contains("--capacity-poll-interval=1m"), "a value of the new chart");
    serves(tenant, "upgraded");
    writes_on(tenant);
}

/// Waits until nothing in the cluster is in the middle of its deletion.
fn nothing_hangs(lab: &ClusterLab) {
    let kinds = lab.kubectl(&["api-resources", "--verbs=list", "-o", "name"]);
    let kinds = kinds.lines().collect::<Vec<_>>().join(",");
    let path = "jsonpath={range .items[?(@.metadata.deletionTimestamp)]}{.kind}/{.metadata.name} {end}";
    lab.wait_for("everything that is deleted to be gone", PATIENCE, || {
        let all = ["get", &kinds, "--all-namespaces", "--ignore-not-found", "-o", path];
        lab.try_kubectl(&all).ok()?.trim().is_empty().then_some(())
    });
}

/// The files of volumes on a node.
fn files(lab: &ClusterLab, node: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(lab.node(node).var_lib().join("bowline/volumes")).unwrap();
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    files.retain(|file| !file.file_name().unwrap().to_string_lossy().starts_with("directory."));
    files.sort();
    files
}

fn removed_and_installed_again(tenant: &Tenant<'_>, node: &str) {
    let lab = &tenant.cluster.lab;
    let pv = tenant.field(&["pvc", "db"], ".spec.volumeName");
    let known = || lab.kubectl(&["get", "pv,bv,bva,volumeattachments.storage.k8s.io", "-o", "name"]);
    let (before, kept) = (known(), files(lab, node));
    assert!(before.contains(&pv) && !kept.is_empty(), "{before} {kept:?}");
    tenant.cluster.uninstall();
    lab.kubectl(&["delete", "namespace", NAMESPACE, "--timeout=120s"]);
    nothing_hangs(lab);
    assert_eq!((known(), files(lab, node)), (before, kept), "nothing is lost");
    writes_on(tenant);
    lab.install_chart(&[]).unwrap_or_else(|error| panic!("{error}"));
    writes_on(tenant);
    serves(tenant, "again");
    // The volume is released and attached anew by the Bowline that found it.
    tenant.delete("pod", "writer");
    tenant.pod("after", &Seat { volume: &claimed("db"), script: "cat /data/log", ..Seat::default() });
    let log = tenant.ended("after");
    let numbers = log.lines().map(|line| line.parse::<usize>().unwrap());
    assert!(numbers.eq(1..=log.lines().count()), "{log}");
    tenant.delete("pod", "after");
    tenant.pod("other", &Seat { volume: &claimed("other"), script: "cat /data/file", ..Seat::default() });
    assert_eq!(tenant.ended("other"), "other\n");
}

/// As docs/install.md says: no finalizer is left that nobody takes off.
fn removed_with_all_data(tenant: &Tenant<'_>) {
    let lab = &tenant.cluster.lab;
    tenant.leaves_nothing();
    assert_eq!(lab.kubectl(&["get", "bv,bva", "-o", "name"]), "");
    lab.kubectl(&["delete", "bvt", "--all", "--timeout=60s"]);
    tenant.cluster.uninstall();
    let kinds = lab.kubectl(&["get", "crd", "-o", "name"]);
    let kinds: Vec<&str> = kinds.lines().filter(|kind| kind.ends_with(".bowline.storage")).collect();
    assert_eq!(kinds.len(), 5, "{kinds:?}");
    lab.kubectl(&[&["delete", "--timeout=60s"], &kinds[..]].concat());
    nothing_hangs(lab);
    for node in ["lab-a", "lab-b"] {
        assert_eq!(files(lab, node), [] as [PathBuf; 0]);
    }
}
