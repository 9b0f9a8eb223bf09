//! Storage nodes for NVMe/TCP in a cluster whose kernel has no NVMe: what is missing is told where people look, and everything else goes on.
//!
//! What comes after that is tested with real kernels, in the VM lab.

use crate::{Cluster, PATIENCE};
use bowline_testkit::lab::{NAMESPACE, Options};
use std::path::Path;

const DIRECTORY: &str = "/var/lib/nvme-volumes";
const TARGET: &str = "nvmet-lab-a";
const MISSING: &str = "the module nvmet is not loaded; modprobe nvmet";

#[test]
fn a_storage_node_without_nvme_has_a_target_that_says_what_is_missing() {
    if Path::new("/sys/kernel/config/nvmet").exists() {
        bowline_testkit::say("not run: a_storage_node_without_nvme… (this machine has NVMe)");
        return;
    }
    let Some(cluster) = Cluster::bare(&Options::default()) else { return };
    let lab = &cluster.lab;
    std::fs::create_dir(lab.node("lab-a").var_lib().join("nvme-volumes")).unwrap();
    let directory = format!("nvmeTarget.directory={DIRECTORY}");
    let values = [
        "nvmeTarget.enabled=true",
        // This machine's kernel has none, and no such directory either.
        "nvmeTarget.loadModules=false",
        &directory,
        "storageClasses[0].name=bowline-file",
        "storageClasses[1].name=bowline-nvme",
        "storageClasses[1].volumeBindingMode=Immediate",
        "storageClasses[1].parameters.kind=nvmet",
    ];
    let flags: Vec<&str> = values.iter().flat_map(|value| ["--set", value]).collect();
    lab.install_chart(&flags).unwrap_or_else(|error| panic!("{error}"));
    nobody_chosen_nobody_there(&cluster);
    cluster.lab.kubectl(&["label", "node", "lab-a", "bowline.storage/nvme-target=true"]);
    its_target_says_why(&cluster);
    what_asks_for_it_is_told(&cluster);
    files_of_nodes_go_on(&cluster);
}

fn pods(cluster: &Cluster) -> String {
    let ours = "--selector=app.kubernetes.io/component=nvme-target";
    let path = "jsonpath={range .items[*]}{.spec.nodeName}={.status.containerStatuses[0].ready} {end}";
    cluster.lab.kubectl(&["--namespace", NAMESPACE, "get", "pods", ours, "-o", path])
}

fn nobody_chosen_nobody_there(cluster: &Cluster) {
    assert_eq!(pods(cluster), "");
    let targets = cluster.lab.kubectl(&["get", "bvt", "-o", "name"]);
    assert!(!targets.contains("nvmet"), "{targets}");
}

fn its_target_says_why(cluster: &Cluster) {
    let reachable = ".status.conditions[?(@.type==\"Reachable\")]";
    let told = cluster.lab.wait_for("the target to say what is missing", PATIENCE, || {
        let reason = cluster.try_field(&["bvt", TARGET], &format!("{reachable}.reason"))?;
        (reason == "NotServing").then(|| cluster.field(&["bvt", TARGET], &format!("{reachable}.message")))
    });
    assert!(told.contains("cannot serve yet") && told.contains(MISSING), "{told}");
    assert_eq!(cluster.field(&["bvt", TARGET], ".spec.kind"), "nvmet");
    assert_eq!(cluster.field(&["bvt", TARGET], ".spec.topology"), "");
    let address = cluster.field(&["node", "lab-a"], ".status.addresses[?(@.type==\"InternalIP\")].address");
    assert_eq!(cluster.field(&["bvt", TARGET], ".spec.address"), format!("{address}:8471"));
    assert_eq!(pods(cluster).trim(), "lab-a=false", "it runs, is not ready, and runs nowhere else");
    let selector = "--selector=app.kubernetes.io/component=nvme-target";
    let log = cluster.lab.kubectl(&["--namespace", NAMESPACE, "logs", selector, "--tail=-1"]);
    assert!(log.contains(MISSING), "{log}");
    let restarts = "jsonpath={.items[0].status.containerStatuses[0].restartCount}";
    let restarts = cluster.lab.kubectl(&["--namespace", NAMESPACE, "get", "pods", selector, "-o", restarts]);
    assert_eq!(restarts, "0", "it waits, and does not die of it");
    let shown = cluster.lab.kubectl(&["get", "bvt", TARGET]);
    assert!(shown.contains("REACHABLE") && shown.contains("False"), "{shown}");
}

fn what_asks_for_it_is_told(cluster: &Cluster) {
    cluster.lab.apply_text(
        "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: { name: exported }\nspec:\n  \
         storageClassName: bowline-nvme\n  accessModes: [ReadWriteOnce]\n  resources: { requests: { storage: 64Mi } }\n",
    );
    cluster.lab.wait_for("the claim to be told why it waits", PATIENCE, || {
        let events = [
            "get",
            "events",
            "--field-selector=involvedObject.name=exported",
            "-o",
            "jsonpath={.items[*].message}",
        ];
        let told = cluster.lab.try_kubectl(&events).ok()?;
        told.contains("no target of kind nvmet is connected").then_some(())
    });
    cluster.delete("pvc", "exported");
}

/// Also now that the pods on nodes are in the network of their host.
fn files_of_nodes_go_on(cluster: &Cluster) {
    cluster.claim("files", "  accessModes: [ReadWriteOnce]\n");
    cluster.pod("writer", "lab-a", "files", "echo here > /data/file && cat /data/file");
    assert_eq!(cluster.ended("writer"), "here\n");
    let address = cluster.field(&["node", "lab-a"], ".status.addresses[?(@.type==\"InternalIP\")].address");
    assert_eq!(cluster.field(&["bvt", "file-lab-a"], ".spec.address"), format!("{address}:8470"));
    for condition in ["Reachable", "Compatible", "ClockAgrees", "AcceptsVolumes", "ExportsShown"] {
        let path = format!(".status.conditions[?(@.type==\"{condition}\")].status");
        assert_eq!(cluster.field(&["bvt", "file-lab-a"], &path), "True", "{condition}");
    }
    cluster.delete("pod", "writer");
    cluster.delete("pvc", "files");
}
