//! Why a VolumeAttachment waits: the sentence that `kubectl describe` shows is the one of `bowline why`, for every reason that can be produced here for
//! real, and it goes away with its cause.

use crate::{Cluster, PATIENCE};
use bowline_testkit::lab::NAMESPACE;
use serde_json::Value;
use std::fs;
use std::path::PathBuf;

/// A cause, what waits for it and is told what, and how it ends.
struct Cause {
    name: &'static str,
    begin: fn(&Cluster),
    end: fn(&Cluster),
    /// The verdict on a VolumeAttachment of this volume on this node.
    rows: &'static [(&'static str, &'static str, &'static str)],
}

const CAUSES: &[Cause] = &[
    Cause {
        name: "another node has it",
        begin: |cluster| attach(cluster, "holder", "one", "lab-a"),
        end: |cluster| detach(cluster, "holder"),
        rows: &[("HeldElsewhere", "one", "lab-b")],
    },
    Cause {
        name: "somebody reads it on the same node",
        begin: |cluster| drop(cluster.bowline(&["attach", "one", "lab-b", "--read-only"]).unwrap()),
        end: |cluster| drop(cluster.bowline(&["detach", "one", "--ticket", "bowline-api-lab-b"]).unwrap()),
        rows: &[("AttachedWithIncompatibleParameters", "one", "lab-b")],
    },
    Cause {
        name: "the node has as many volumes as it can take",
        begin: |cluster| {
            attach(cluster, "fill-1", "two", "lab-b");
            attach(cluster, "fill-2", "three", "lab-b");
        },
        end: |cluster| {
            detach(cluster, "fill-1");
            detach(cluster, "fill-2");
        },
        rows: &[("NodeFull", "one", "lab-b")],
    },
    Cause {
        name: "the node is out of service",
        begin: |cluster| taint(cluster, "node.kubernetes.io/out-of-service=lab:NoSchedule"),
        end: |cluster| taint(cluster, "node.kubernetes.io/out-of-service-"),
        rows: &[("NodeOutOfService", "one", "lab-b")],
    },
    Cause {
        name: "the node does not report",
        begin: silence,
        end: |cluster| {
            cluster.lab.start_kubelet("lab-b");
            cluster.lab.wait_for_node("lab-b", true);
        },
        rows: &[("NodeNotReady", "one", "lab-b")],
    },
    Cause {
        name: "a pod on the other node still has it mounted",
        begin: pull_from_under_a_pod,
        end: |cluster| cluster.delete("pod", "user"),
        rows: &[("StillInUse", "one", "lab-b")],
    },
    Cause {
        name: "its bytes are gone",
        begin: |cluster| fs::rename(bytes(cluster, "one"), away(cluster, "one")).unwrap(),
        end: |cluster| {
            fs::rename(away(cluster, "one"), bytes(cluster, "one")).unwrap();
            // Looked at now instead of in half a minute.
            cluster.bowline(&["volume", "show", "one"]).unwrap();
        },
        rows: &[("VolumeFaulted", "one", "lab-b")],
    },
    Cause {
        name: "the agent of the target is stopped",
        begin: |cluster| scale_agent(cluster, 0),
        end: |cluster| scale_agent(cluster, 1),
        rows: &[("TargetUnreachable", "one", "lab-b")],
    },
    Cause {
        name: "a new leader has not heard the target yet, and a person asked first",
        begin: |cluster| {
            scale_agent(cluster, 0);
            new_leader(cluster);
            cluster.lab.wait_for("a person's ticket to wait for the target", PATIENCE, || {
                let told = cluster.bowline(&["attach", "two", "lab-a", "--wait", "1s"]).unwrap_err();
                let is_filed = told.contains("the ticket bowline-api-lab-a stays");
                // Nobody may lead yet.
                if !is_filed {
                    eprintln!("not filed: {told}");
                }
                is_filed.then_some(())
            });
        },
        end: |cluster| {
            scale_agent(cluster, 1);
            cluster.bowline(&["detach", "two", "--ticket", "bowline-api-lab-a"]).unwrap();
        },
        rows: &[("TargetNotCompared", "one", "lab-b"), ("Outranked", "two", "lab-b")],
    },
];

#[test]
fn whoever_waits_is_told_the_same_by_kubectl_and_by_bowline() {
    let Some(cluster) = Cluster::with(&["node.maxVolumes=2"]) else { return };
    for name in ["one", "two", "three"] {
        volume(&cluster, name);
    }
    for cause in CAUSES {
        let begun = std::time::Instant::now();
        (cause.begin)(&cluster);
        for (code, volume, node) in cause.rows {
            wish(&cluster, &row(code), volume, node);
        }
        for (code, volume, _) in cause.rows {
            told_alike(&cluster, cause.name, code, volume, &row(code));
        }
        (cause.end)(&cluster);
        for (code, ..) in cause.rows {
            until_attached(&cluster, &row(code));
            detach(&cluster, &row(code));
        }
        eprintln!("{}: {:.1?}", cause.name, begun.elapsed());
    }
    a_pod_waits(&cluster);
}

/// The same without anything made by hand: a pod waits for a volume that a person has on the other node, kube-controller-manager asks for it, and what
/// it is told is told to the pod, too.
fn a_pod_waits(cluster: &Cluster) {
    let (begun, lab) = (std::time::Instant::now(), &cluster.lab);
    cluster.bowline(&["attach", "two", "lab-a", "--reason", "a look at the files"]).unwrap();
    cluster.claim_of("two", "two");
    cluster.pod("waits", "lab-b", "two", "echo came > /data/file && sleep 3600");
    let attachments = ["volumeattachments.storage.k8s.io"];
    let path = ".items[?(@.spec.source.persistentVolumeName==\"two\")].metadata.name";
    let asked = || cluster.try_field(&attachments, path).filter(|name| !name.is_empty());
    let name = lab.wait_for("kube-controller-manager to ask for the volume", PATIENCE, asked);
    assert!(name.starts_with("csi-"), "{name}: somebody else asks");
    let told = told_alike(cluster, "a person has it on another node", "HeldElsewhere", "two", &name);
    assert!(told.contains("lab-a"), "{told}");
    lab.wait_for("the pod to be told", PATIENCE, || {
        lab.try_kubectl(&["describe", "pod", "waits"]).ok().filter(|described| described.contains(&told))
    });
    cluster.bowline(&["detach", "two", "lab-a"]).unwrap();
    lab.wait_for_pod("default", "waits", "Running");
    until_attached(cluster, &name);
    cluster.delete("pod", "waits");
    lab.wait_for("its VolumeAttachment to go", PATIENCE, || asked().is_none().then_some(()));
    eprintln!("a pod waits: {:.1?}", begun.elapsed());
}

/// The VolumeAttachment that is to be told this.
fn row(code: &str) -> String {
    format!("row-{}", code.to_lowercase())
}

/// A volume, and the PersistentVolume of the same name.
fn volume(cluster: &Cluster, name: &str) {
    let made = cluster.bowline(&["volume", "create", name, "--size", "16Mi", "-o", "json"]).unwrap();
    let made: Value = serde_json::from_str(&made).unwrap();
    let id = made["id"].as_str().unwrap();
    cluster.lab.apply_text(&format!(
        "apiVersion: v1\nkind: PersistentVolume\nmetadata: {{ name: {name} }}\nspec:\n  \
         storageClassName: bowline-file\n  capacity: {{ storage: 16Mi }}\n  accessModes: [ReadWriteOnce]\n  \
         persistentVolumeReclaimPolicy: Retain\n  csi: {{ driver: bowline.storage, volumeHandle: {id}, fsType: ext4 }}\n"
    ));
}

/// As the attach/detach controller of Kubernetes would ask.
fn wish(cluster: &Cluster, name: &str, pv: &str, node: &str) {
    cluster.lab.apply_text(&format!(
        "apiVersion: storage.k8s.io/v1\nkind: VolumeAttachment\nmetadata: {{ name: {name} }}\nspec:\n  \
         attacher: bowline.storage\n  nodeName: {node}\n  source: {{ persistentVolumeName: {pv} }}\n"
    ));
}

fn attach(cluster: &Cluster, name: &str, pv: &str, node: &str) {
    wish(cluster, name, pv, node);
    until_attached(cluster, name);
}

fn until_attached(cluster: &Cluster, name: &str) {
    cluster.lab.wait_for(&format!("{name} to be attached, and no error left"), PATIENCE, || {
        let path = ".status.attached} {.status.attachError";
        let status = cluster.try_field(&["volumeattachments.storage.k8s.io", name], path)?;
        (status == "true ").then_some(())
    });
}

fn detach(cluster: &Cluster, name: &str) {
    cluster.delete("volumeattachments.storage.k8s.io", name);
}

/// Both say of this VolumeAttachment why it waits, with this verdict, in the same words, which are given.
fn told_alike(cluster: &Cluster, cause: &str, code: &str, volume: &str, name: &str) -> String {
    let lab = &cluster.lab;
    let mut last = (String::new(), String::new());
    let ours = format!("VolumeAttachment {name} (uid ");
    let look = || {
        let path = ".status.attachError.message";
        let told = cluster.try_field(&["volumeattachments.storage.k8s.io", name], path)?;
        let why = cluster.bowline(&["why", volume, "-o", "json"]).ok()?;
        let why: Value = serde_json::from_str(&why).ok()?;
        let tickets = why["tickets"].as_array()?.clone();
        let is_ours = |one: &Value| one["owner"]["object"].as_str().is_some_and(|by| by.starts_with(&ours));
        let ticket = tickets.into_iter().find(is_ours)?;
        let said = ticket["sentence"].as_str()?.to_owned();
        last = (told.clone(), format!("{}: {said}", ticket["verdict"]["reason"]));
        (ticket["verdict"]["reason"] == code && told == said).then_some(told)
    };
    let told = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| lab.wait_for(code, PATIENCE, look)));
    let told =
        told.unwrap_or_else(|_| panic!("{cause}: kubectl says {:?}, bowline says {:?}", last.0, last.1));
    let described = lab.kubectl(&["describe", "volumeattachments.storage.k8s.io", name]);
    assert!(described.contains(&told), "{cause}: {told:?} is not in {described}");
    told
}

fn taint(cluster: &Cluster, taint: &str) {
    cluster.lab.kubectl(&["taint", "node", "lab-b", taint]);
}

/// Ends a kubelet, and says at once what Kubernetes would say after its grace period.
fn silence(cluster: &Cluster) {
    cluster.lab.stop_kubelet("lab-b");
    let since = format!("{:.0}", jiff::Timestamp::now());
    let condition = serde_json::json!({ "type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown",
        "message": "Kubelet stopped posting node status.", "lastTransitionTime": since });
    let patch = serde_json::json!({ "status": { "conditions": [condition] } }).to_string();
    cluster.lab.kubectl(&[
        "patch",
        "node",
        "lab-b",
        "--subresource=status",
        "--type=strategic",
        "-p",
        &patch,
    ]);
}

/// A pod uses the volume, and somebody deletes its VolumeAttachment.
fn pull_from_under_a_pod(cluster: &Cluster) {
    let lab = &cluster.lab;
    cluster.claim_of("one", "one");
    cluster.pod("user", "lab-a", "one", "sleep 3600");
    lab.wait_for_pod("default", "user", "Running");
    let path = ".items[?(@.spec.source.persistentVolumeName==\"one\")].metadata.name";
    let attachment = cluster.field(&["volumeattachments.storage.k8s.io"], path);
    lab.kubectl(&["delete", "volumeattachments.storage.k8s.io", &attachment, "--wait=false"]);
}

fn bytes(cluster: &Cluster, name: &str) -> PathBuf {
    let id = cluster.field(&["pv", name], ".spec.csi.volumeHandle");
    cluster.lab.directory().join("shared").join(format!("vol-{id}.data"))
}

fn away(cluster: &Cluster, name: &str) -> PathBuf {
    cluster.lab.directory().join(format!("{name}.away"))
}

fn scale_agent(cluster: &Cluster, replicas: u32) {
    let lab = &cluster.lab;
    lab.kubectl(&[
        "-n",
        NAMESPACE,
        "scale",
        "deployment/bowline-target-shared",
        &format!("--replicas={replicas}"),
    ]);
    lab.wait_for("the agent of the target", PATIENCE, || {
        let pods = ["-n", NAMESPACE, "get", "pods", "-o", "name", "-l", "bowline.storage/target=shared"];
        let ready = ["deployment", "bowline-target-shared", "-n", NAMESPACE];
        let left = lab.try_kubectl(&pods).ok()?;
        let ready = cluster.try_field(&ready, ".status.readyReplicas")?;
        let done = if replicas == 0 { left.trim().is_empty() } else { ready == replicas.to_string() };
        done.then_some(())
    });
}

fn new_leader(cluster: &Cluster) {
    let leader =
        || cluster.try_field(&["lease", "bowline-controller", "-n", NAMESPACE], ".spec.holderIdentity");
    let first = leader().unwrap();
    cluster.lab.kubectl(&["delete", "pod", &first, "-n", NAMESPACE, "--wait=false"]);
    cluster
        .lab
        .wait_for("another leader", PATIENCE, || leader().filter(|now| !now.is_empty() && *now != first));
}
