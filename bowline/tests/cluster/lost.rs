//! Nodes that are lost: the volume moves after the target has shut the node out and proven it, not when Kubernetes believes that it may.
//!
//! The nodes share a kernel, so the target's proof is that no device is on the volume's file. A node without its kubelet still runs its pods: its
//! volume must wait until its power is cut, however many objects are deleted meanwhile.

use crate::storm::installed;
use crate::{Cluster, PATIENCE};
use bowline_testkit::lab::{Observer, Options, Truth};
use bowline_testkit::say;
use std::time::{Duration, Instant};

/// Where everything goes.
const SAFE: &str = "lab-b";

/// A node that will be lost, and what it has.
struct Victim {
    node: &'static str,
    volume: String,
}

impl Victim {
    /// A pod that writes on it, and has begun.
    fn new(cluster: &Cluster, node: &'static str) -> Self {
        let script = "i=0; while true; do echo $i >> /data/log || exit 1; i=$((i+1)); sleep 0.2; done";
        cluster.pod(&format!("writer-{node}"), node, node, script);
        cluster.lab.wait_for_pod("default", &format!("writer-{node}"), "Running");
        let victim = Self { node, volume: cluster.volume_of(node) };
        victim.goes_on(cluster);
        victim
    }

    /// How many lines its pod has written, as its node sees the file.
    fn lines(&self, cluster: &Cluster) -> Option<usize> {
        let log = "cat /var/lib/kubelet/pods/*/volumes/kubernetes.io~csi/*/mount/log | wc -l";
        let output = cluster.lab.node(self.node).run(&["sh", "-c", log]);
        String::from_utf8_lossy(&output.stdout).trim().parse().ok()
    }

    /// Its pod writes, whatever the cluster believes.
    fn goes_on(&self, cluster: &Cluster) {
        let before = self.lines(cluster).unwrap_or_default();
        cluster.lab.wait_for(&format!("the pod on {} to write", self.node), PATIENCE, || {
            self.lines(cluster).filter(|now| *now > before)
        });
    }

    /// Somebody on the safe node who waits for its volume, and reads it.
    fn is_missed(&self, cluster: &Cluster) {
        cluster.pod(&self.heir(), SAFE, self.node, "cat /data/log");
    }

    fn heir(&self) -> String {
        format!("heir-of-{}", self.node)
    }

    /// Its VolumeAttachment: the name, what it says of being attached, and why it does not go.
    fn attachment(&self, cluster: &Cluster) -> Option<[String; 3]> {
        let each = "{.metadata.name} {.spec.nodeName} {.status.attached} {.status.detachError.message}";
        let path = format!("-o=jsonpath={{range .items[*]}}{each}{{\"\\n\"}}{{end}}");
        let all = cluster.lab.try_kubectl(&["get", "volumeattachment", &path]).ok()?;
        let mut lines = all.lines().map(|line| line.splitn(4, ' ').collect::<Vec<_>>());
        let words = lines.find(|words| words.get(1) == Some(&self.node))?;
        Some([words[0].to_owned(), words[2].to_owned(), words[3].to_owned()])
    }

    /// Its pod is gone for Kubernetes and writes on: the volume stays, and everybody is told why.
    fn keeps_it(&self, cluster: &Cluster, observer: &Observer) {
        let lab = &cluster.lab;
        let why = lab.wait_for(&format!("why {} keeps its volume", self.node), PATIENCE, || {
            let why = cluster.bowline(&["why", &self.volume]).ok()?;
            (why.contains("/dev/loop") && why.contains("mounted")).then_some(why)
        });
        assert!(why.contains(self.node), "{why}");
        lab.wait_for(&format!("the pod of {} to be deleted", self.node), PATIENCE, || {
            let pod = format!("writer-{}", self.node);
            lab.kubectl(&["get", "pod", &pod, "--ignore-not-found", "-o", "name"]).is_empty().then_some(())
        });
        // The taint makes kube-controller-manager delete the VolumeAttachment at once. Of a node that is gone it does so after six
        // minutes, which are not waited for here.
        if !cluster.field(&["nodes"], ".items[*].metadata.name").contains(self.node) {
            let object = self.attachment(cluster).unwrap();
            lab.kubectl(&["delete", "volumeattachment", &object[0], "--wait=false"]);
        }
        let told = lab.wait_for("the VolumeAttachment to say what it waits for", PATIENCE, || {
            self.attachment(cluster).filter(|object| object[2].contains("/dev/loop"))
        });
        assert_eq!(told[1], "true", "nothing is proven: {told:?}");
        say(&format!("lost: {}", told[2]));
        self.goes_on(cluster);
        let truth = observer.now(&self.volume);
        assert_eq!(truth.mounted.iter().collect::<Vec<_>>(), [self.node], "{truth:?}");
        assert!(truth.let_in.is_empty(), "the node is not shut out: {truth:?}");
        assert_eq!(truth.reach().into_iter().collect::<Vec<_>>(), [self.node], "{truth:?}");
    }

    /// The volume is on the safe node, with all that was written, and came there after it was taken from this one.
    fn is_followed(&self, cluster: &Cluster, observer: &Observer, written: usize) {
        let read = cluster.ended(&self.heir());
        let lines: Vec<&str> = read.lines().collect();
        assert!(lines.len() >= written, "{} of {written} lines are left: {read}", lines.len());
        for (number, line) in lines.iter().enumerate() {
            assert_eq!(*line, number.to_string(), "{read}");
        }
        observer.assert_well();
        let seen = observer.seen();
        let changes = &seen.changes[&self.volume];
        let reached = |node: &'static str| move |(_, truth): &(Duration, Truth)| truth.reach().contains(node);
        let last = changes.iter().rposition(reached(self.node)).unwrap();
        let first = changes.iter().position(reached(SAFE)).unwrap();
        assert!(last < first, "{changes:?}");
        assert!(changes[first..].iter().all(|(_, truth)| !truth.mounted.contains(self.node)), "{changes:?}");
    }
}

#[test]
fn a_lost_nodes_volume_moves_only_after_the_target_has_proven_that_the_node_is_out() {
    let begun = Instant::now();
    let nodes = ["lab-a", SAFE, "lab-c", "lab-d"].map(str::to_owned).to_vec();
    let values = [
        "controller.replicas=1",
        "controller.nodeSelector.kubernetes\\.io/hostname=lab-b",
        "sharedTargets[0].nodeSelector.kubernetes\\.io/hostname=lab-b",
        // Long after kube-controller-manager has acted on the taint.
        "controller.fenceNotReadyAfter=60s",
    ];
    let Some((mut cluster, directory)) = installed(&Options { nodes, ..Options::default() }, &values) else {
        return;
    };
    let observer = Observer::start(&cluster.lab, &directory);
    let names = ["lab-a", "lab-c", "lab-d"];
    for name in names {
        cluster.claim(name, "  accessModes: [ReadWriteOnce]\n");
    }
    let [tainted, deleted, dark] = names.map(|node| Victim::new(&cluster, node));
    say(&format!("lost: three pods write after {} s", begun.elapsed().as_secs()));

    let lost = Instant::now();
    let written = dark.lines(&cluster).unwrap();
    cluster.lab.crash_node(dark.node);
    cluster.lab.stop_kubelet(tainted.node);
    cluster.lab.kubectl(&["taint", "node", tainted.node, "node.kubernetes.io/out-of-service=lost:NoExecute"]);
    cluster.lab.stop_kubelet(deleted.node);
    cluster.lab.delete_node(deleted.node);
    for victim in [&tainted, &deleted, &dark] {
        victim.is_missed(&cluster);
    }
    for victim in [&tainted, &deleted] {
        victim.keeps_it(&cluster, &observer);
        let held = lost.elapsed().as_secs();
        let written = victim.lines(&cluster).unwrap();
        cluster.lab.crash_node(victim.node);
        victim.is_followed(&cluster, &observer, written);
        say(&format!(
            "lost: {} kept its volume for {held} s, and was followed {} s after the loss",
            victim.node,
            lost.elapsed().as_secs()
        ));
        assert_eq!(fenced(&cluster, victim), "", "Bowline did what was kube-controller-manager's to do");
    }
    dark.is_followed(&cluster, &observer, written);
    assert!(fenced(&cluster, &dark).contains("lab-d did not report for"), "{}", fenced(&cluster, &dark));
    say(&format!("lost: {} was followed {} s after the loss", dark.node, lost.elapsed().as_secs()));
    nothing_is_left(&cluster, &directory);
    say(&format!("lost: {} s in all", begun.elapsed().as_secs()));
}

/// What is told of a node that was fenced because it was silent.
fn fenced(cluster: &Cluster, victim: &Victim) -> String {
    let path = "-o=jsonpath={range .items[?(@.reason==\"NodeFenced\")]}{.note}{.message}{end}";
    let told = cluster.lab.kubectl(&["get", "events", "--all-namespaces", path]);
    told.split("Node ").filter(|sentence| sentence.starts_with(victim.node)).collect()
}

fn nothing_is_left(cluster: &Cluster, directory: &std::path::Path) {
    let lab = &cluster.lab;
    lab.kubectl(&["delete", "pod", "--all", "--timeout=60s"]);
    lab.kubectl(&["delete", "pvc", "--all", "--timeout=60s"]);
    lab.wait_for("every volume to be gone", PATIENCE, || {
        let kinds = "pv,pvc,volumeattachments.storage.k8s.io,bv,bva,bvs";
        lab.try_kubectl(&["get", kinds, "-o", "name"]).ok()?.trim().is_empty().then_some(())
    });
    let entries = std::fs::read_dir(directory).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned());
    let left: Vec<String> = names.filter(|name| !name.starts_with("directory.")).collect();
    assert!(left.is_empty(), "{left:?}");
}
