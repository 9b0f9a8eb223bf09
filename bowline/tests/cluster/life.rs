//! What people do with volumes, from the first write to the last deletion.

use crate::{Cluster, PATIENCE};
use bowline_testkit::lab::NAMESPACE;

const RWO: &str = "  accessModes: [ReadWriteOnce]\n";

#[test]
fn a_volume_follows_its_pod_to_the_other_node_and_keeps_its_data() {
    let Some(cluster) = Cluster::shared() else { return };
    a_pod_moves(&cluster);
    a_second_node_is_told_why(&cluster);
    blocks_and_snapshots(&cluster);
    a_new_leader_goes_on(&cluster);
    nothing_is_left(&cluster);
}

fn a_pod_moves(cluster: &Cluster) {
    cluster.claim("db", RWO);
    cluster.pod("writer", "lab-a", "db", "echo kept > /data/file && sync && cat /data/file");
    assert_eq!(cluster.ended("writer").trim(), "kept");
    cluster.delete("pod", "writer");
    cluster.pod("reader", "lab-b", "db", "cat /data/file");
    assert_eq!(cluster.ended("reader").trim(), "kept");
    cluster.delete("pod", "reader");
}

/// A pod that waits, and the sentence it is told: the same in `kubectl describe` and in `bowline why`.
fn a_second_node_is_told_why(cluster: &Cluster) {
    let lab = &cluster.lab;
    cluster.pod("holder", "lab-a", "db", "sleep 3600");
    lab.wait_for_pod("default", "holder", "Running");
    let volume = cluster.volume_of("db");
    let why = cluster.bowline(&["why", &volume]).unwrap();
    assert!(why.contains("lab-a"), "{why}");
    // As the attach/detach controller of Kubernetes would, if it believed that nobody has the volume.
    let pv = cluster.field(&["pvc", "db"], ".spec.volumeName");
    lab.apply_text(&format!(
        "apiVersion: storage.k8s.io/v1\nkind: VolumeAttachment\nmetadata: {{ name: second }}\nspec:\n  \
         attacher: bowline.storage\n  nodeName: lab-b\n  source: {{ persistentVolumeName: {pv} }}\n"
    ));
    let told = lab.wait_for("an attachError", PATIENCE, || {
        let path = "jsonpath={.status.attachError.message}";
        lab.try_kubectl(&["get", "volumeattachment", "second", "-o", path])
            .ok()
            .filter(|said| !said.is_empty())
    });
    assert!(told.contains("lab-a"), "{told}");
    let why = cluster.bowline(&["why", &volume, "-o", "json"]).unwrap();
    assert!(why.contains(&told), "kubectl says {told:?}, bowline says {why}");
    lab.kubectl(&["delete", "volumeattachment", "second", "--timeout=60s"]);
    cluster.delete("pod", "holder");
}

fn blocks_and_snapshots(cluster: &Cluster) {
    let lab = &cluster.lab;
    lab.apply_text(
        "apiVersion: snapshot.storage.k8s.io/v1\nkind: VolumeSnapshot\nmetadata: { name: db-1 }\nspec:\n  \
         volumeSnapshotClassName: bowline\n  source: { persistentVolumeClaimName: db }\n",
    );
    lab.wait_for("the snapshot", PATIENCE, || {
        let ready =
            lab.try_kubectl(&["get", "volumesnapshot", "db-1", "-o", "jsonpath={.status.readyToUse}"]);
        (ready.ok()? == "true").then_some(())
    });
    // A snapshot of CSI is one of ours.
    assert!(lab.kubectl(&["get", "bvs", "-o", "name"]).contains("/snapshot-"));
    let from = "  dataSource: { name: db-1, kind: VolumeSnapshot, apiGroup: snapshot.storage.k8s.io }\n";
    cluster.claim("restored", &format!("{RWO}{from}"));
    cluster.pod("restored", "lab-b", "restored", "cat /data/file");
    assert_eq!(cluster.ended("restored").trim(), "kept");
    cluster.claim("clone", &format!("{RWO}  dataSource: {{ name: db, kind: PersistentVolumeClaim }}\n"));
    cluster.pod("cloned", "lab-a", "clone", "cat /data/file");
    assert_eq!(cluster.ended("cloned").trim(), "kept");
    for pod in ["restored", "cloned"] {
        cluster.delete("pod", pod);
    }
    lab.kubectl(&["delete", "volumesnapshot", "db-1", "--timeout=120s"]);
}

/// The leader is killed while a pod has its volume; the other one goes on, and the pod hears nothing of it.
fn a_new_leader_goes_on(cluster: &Cluster) {
    let lab = &cluster.lab;
    cluster.pod("steady", "lab-a", "db", "while true; do date >> /data/log && sync; sleep 0.2; done");
    lab.wait_for_pod("default", "steady", "Running");
    let leader = || cluster.field(&["lease", "bowline-controller", "-n", NAMESPACE], ".spec.holderIdentity");
    let first = leader();
    lab.kubectl(&["delete", "pod", &first, "-n", NAMESPACE, "--grace-period=0", "--force"]);
    let second = lab.wait_for("another leader", PATIENCE, || {
        Some(leader()).filter(|now| !now.is_empty() && *now != first)
    });
    assert_ne!(first, second);
    cluster.claim("later", RWO);
    cluster.pod("later", "lab-b", "later", "echo made by the new leader > /data/file && cat /data/file");
    assert_eq!(cluster.ended("later").trim(), "made by the new leader");
    cluster.delete("pod", "later");
    let grows = |lines: &str| {
        lab.exec("default", "steady", &["wc", "-l", "/data/log"]).ok().filter(|now| now != lines)
    };
    let lines = lab.exec("default", "steady", &["wc", "-l", "/data/log"]).unwrap();
    lab.wait_for("the pod to go on writing", PATIENCE, || grows(&lines));
    cluster.delete("pod", "steady");
}

fn nothing_is_left(cluster: &Cluster) {
    let lab = &cluster.lab;
    for claim in ["restored", "clone", "later", "db"] {
        cluster.delete("pvc", claim);
    }
    lab.wait_for("every volume to be gone", PATIENCE, || {
        let left =
            lab.try_kubectl(&["get", "pv,volumeattachments.storage.k8s.io,bv,bva,bvs", "-o", "name"]).ok()?;
        left.trim().is_empty().then_some(())
    });
    cluster.uninstall();
}
