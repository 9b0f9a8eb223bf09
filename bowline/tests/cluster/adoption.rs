//! A cluster that an older installation has left: pods that write, PersistentVolumes, VolumeAttachments and annotations, and nothing of Bowline's own.

use crate::{Cluster, PATIENCE};
use bowline_testkit::lab::NAMESPACE;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::process::{Child, Command, Stdio};

const RWO: &str = "  accessModes: [ReadWriteOnce]\n";
/// Every write must succeed: a pod that was cut off once has ended.
const WRITE: &str = "i=0; while i=$((i+1)); do echo $i >> /data/log && sync || exit 1; sleep 0.2; done";
const EARLIER: &str = "csi.rds.srvlab.io";

/// A pod that writes, and all that must not change while it is taken over.
struct Writer {
    pod: &'static str,
    pv: String,
    volume: String,
    attachment: String,
}

#[test]
fn an_older_installation_is_taken_over_without_one_detach() {
    let Some(cluster) = Cluster::shared() else { return };
    let begun = std::time::Instant::now();
    let writers = [("plain", "lab-a"), ("agreed", "lab-b"), ("odd", "lab-b")]
        .map(|(name, node)| writer(&cluster, name, node));
    let before = writers.each_ref().map(|one| look(&cluster, one));
    forget_everything(&cluster);
    dress_as_older(&cluster, &writers);
    let watch = Watch::start(&cluster);

    scale_controller(&cluster, 1);
    let report = cluster.lab.wait_for("the adoption", PATIENCE, || {
        let report = adoption(&cluster, &["adopt", "--dry-run"])?;
        let states = writers.each_ref().map(|one| report.get(&one.volume).map(|one| one.0.clone()));
        (states == ["known", "known", "refused"].map(|state| Some(state.to_owned()))).then_some(report)
    });
    // What the sources disagree about is refused, and the sentence says what to do; the others are adopted all the same.
    let odd = &writers[2];
    let why = report[&odd.volume].1.clone();
    for part in ["attached to lab-a", "says lab-b", &format!("from PersistentVolume {}", odd.pv)] {
        assert!(why.contains(part), "{part}: {why}");
    }
    all_write_on(&cluster, &writers);
    settled(&cluster, &writers[..2]);
    let error = cluster.bowline(&["adopt"]).unwrap_err();
    assert!(error.contains("1 volume is refused"), "{error}");

    cluster.lab.kubectl(&["annotate", "pv", &odd.pv, &format!("{EARLIER}/attached-node-")]);
    let said = cluster.bowline(&["adopt"]).unwrap();
    assert!(said.contains(&odd.volume) && said.contains("adopted") && said.contains("lab-b"), "{said}");
    settled(&cluster, &writers);
    all_write_on(&cluster, &writers);
    for (one, before) in writers.iter().zip(&before) {
        assert_eq!(look(&cluster, one), *before, "{} is not as it was", one.pod);
    }
    watch.nobody_was_detached();
    the_second_time_changes_nothing(&cluster, &writers);
    the_volume_moves_on(&cluster, &writers[0]);
    eprintln!("taken over in {:.1?}", begun.elapsed());
}

fn writer(cluster: &Cluster, name: &'static str, node: &str) -> Writer {
    cluster.claim(name, RWO);
    cluster.pod(name, node, name, WRITE);
    cluster.lab.wait_for_pod("default", name, "Running");
    let pv = cluster.field(&["pvc", name], ".spec.volumeName");
    let path = format!(".items[?(@.spec.source.persistentVolumeName==\"{pv}\")].metadata.name");
    let attachment = cluster.field(&["volumeattachments.storage.k8s.io"], &path);
    Writer { pod: name, volume: cluster.volume_of(name), pv, attachment }
}

/// What must stay as it is: the pod, the VolumeAttachment, and whom the target lets in, by its own record.
fn look(cluster: &Cluster, writer: &Writer) -> [String; 3] {
    let path = ".metadata.uid} {.status.containerStatuses[0].containerID";
    let pod = cluster.field(&["pod", writer.pod], path);
    let path = ".metadata.uid} {.spec.nodeName} {.status.attached} {.status.attachmentMetadata";
    let attachment = cluster.field(&["volumeattachments.storage.k8s.io", &writer.attachment], path);
    [pod, attachment, exports(cluster, &writer.volume)]
}

fn exports(cluster: &Cluster, volume: &str) -> String {
    let stem = cluster.lab.directory().join("shared").join(format!("vol-{volume}"));
    let record = fs::read_to_string(stem.with_extension("json")).unwrap();
    let record: Value = serde_json::from_str(&record).unwrap();
    let recent = fs::read(stem.with_extension("recent")).unwrap_or_default();
    format!("{} {}", record["exports"], String::from_utf8_lossy(&recent))
}

fn scale_controller(cluster: &Cluster, replicas: u32) {
    let lab = &cluster.lab;
    let replicas = format!("--replicas={replicas}");
    lab.kubectl(&["-n", NAMESPACE, "scale", "deployment/bowline-controller", &replicas]);
    if replicas.ends_with("=0") {
        let pods =
            ["-n", NAMESPACE, "get", "pods", "-o", "name", "-l", "app.kubernetes.io/component=controller"];
        lab.wait_for("the controllers to end", PATIENCE, || {
            lab.try_kubectl(&pods).ok().filter(|left| left.trim().is_empty())
        });
    }
}

/// Stops the controller and takes away all of its own objects, whatever keeps them.
fn forget_everything(cluster: &Cluster) {
    let lab = &cluster.lab;
    scale_controller(cluster, 0);
    let ours = lab.kubectl(&["get", "bv,bva,bvt", "-o", "name"]);
    for object in ours.lines() {
        lab.kubectl(&["patch", object, "--type=merge", "-p", r#"{"metadata":{"finalizers":null}}"#]);
        lab.kubectl(&["delete", object, "--ignore-not-found", "--timeout=60s"]);
    }
    assert_eq!(ours.lines().count(), 7, "three volumes, three ledgers, one target: {ours}");
    assert_eq!(lab.kubectl(&["get", "bv,bva,bvt", "-o", "name"]), "");
    lab.kubectl(&["-n", NAMESPACE, "delete", "lease", "bowline-controller"]);
}

/// The annotations of the older driver instead of ours; one VolumeAttachment without anything that an attacher writes.
fn dress_as_older(cluster: &Cluster, writers: &[Writer; 3]) {
    let lab = &cluster.lab;
    for (one, node) in writers.iter().zip(["lab-a", "lab-b", "lab-a"]) {
        let ours =
            ["attached-node-", "attach-time-", "readonly-"].map(|key| format!("csi.bowline.storage/{key}"));
        let theirs = [
            format!("attached-node={node}"),
            "attach-time=2026-01-30T12:34:56Z".into(),
            "readonly=false".into(),
        ];
        let theirs = theirs.map(|pair| format!("{EARLIER}/{pair}"));
        let words: Vec<&str> = ours.iter().chain(&theirs).map(String::as_str).collect();
        lab.kubectl(&[&["annotate", "pv", &one.pv], words.as_slice()].concat());
    }
    let plain = r#"{"metadata":{"finalizers":null,"annotations":null}}"#;
    lab.kubectl(&[
        "patch",
        "volumeattachments.storage.k8s.io",
        &writers[0].attachment,
        "--type=merge",
        "-p",
        plain,
    ]);
    // The first has a VolumeAttachment and nothing else.
    lab.kubectl(&["annotate", "pv", &writers[0].pv, &format!("{EARLIER}/attached-node-")]);
}

/// What `bowline` says of every volume: its state, and why.
fn adoption(cluster: &Cluster, words: &[&str]) -> Option<BTreeMap<String, (String, String)>> {
    let said = cluster.says(&[words, &["-o", "json"]].concat()).0;
    let report: Value = serde_json::from_str(&said).ok()?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let volumes = report["volumes"].as_array()?.iter();
    Some(volumes.map(|one| (text(&one["volume"]), (text(&one["state"]), text(&one["why"])))).collect())
}

fn all_write_on(cluster: &Cluster, writers: &[Writer]) {
    for one in writers {
        let lines = || cluster.lab.exec("default", one.pod, &["tail", "-n", "1", "/data/log"]).ok();
        let now = lines().unwrap_or_else(|| panic!("{} does not run", one.pod));
        let what = format!("{} to go on writing", one.pod);
        cluster.lab.wait_for(&what, PATIENCE, || lines().filter(|later| *later != now));
    }
}

/// Waits until all that is told of these has been told.
fn settled(cluster: &Cluster, writers: &[Writer]) {
    for one in writers {
        cluster.lab.wait_for(&format!("{} to be well", one.pod), PATIENCE, || {
            let error = cluster
                .field(&["volumeattachments.storage.k8s.io", &one.attachment], ".status.attachError.message");
            let annotation =
                cluster.field(&["pv", &one.pv], r".metadata.annotations.csi\.bowline\.storage/attached-node");
            (error.is_empty() && !annotation.is_empty()).then_some(())
        });
    }
}

/// Follows every VolumeAttachment from the start of the controller on.
struct Watch {
    child: Child,
    file: std::path::PathBuf,
}

impl Watch {
    fn start(cluster: &Cluster) -> Self {
        let file = cluster.lab.directory().join("attachments.log");
        let columns = "custom-columns=N:.metadata.name,A:.status.attached,D:.metadata.deletionTimestamp";
        let child = Command::new(bowline_testkit::lab::tools("kubernetes").join("kubectl"))
            .arg("--kubeconfig")
            .arg(cluster.lab.kubeconfig())
            .args(["get", "volumeattachments.storage.k8s.io", "--watch", "--no-headers", "-o", columns])
            .stdout(fs::File::create(&file).unwrap())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let watch = Self { child, file };
        cluster.lab.wait_for("the watch", PATIENCE, || (watch.seen().len() >= 3).then_some(()));
        watch
    }

    fn seen(&self) -> Vec<String> {
        fs::read_to_string(&self.file).unwrap().lines().map(str::to_owned).collect()
    }

    fn nobody_was_detached(mut self) {
        assert!(self.child.try_wait().unwrap().is_none(), "the watch ended");
        let seen = self.seen();
        assert!(seen.len() > 3, "nothing was seen: {seen:?}");
        for line in seen {
            assert!(line.ends_with("<none>") && line.contains(" true "), "{line}");
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Asked again, and started again: not one object is written.
fn the_second_time_changes_nothing(cluster: &Cluster, writers: &[Writer]) {
    let lab = &cluster.lab;
    let versions = || {
        let kinds = "pv,volumeattachments.storage.k8s.io,bv,bva";
        let path =
            r#"jsonpath={range .items[*]}{.kind}/{.metadata.name} {.metadata.resourceVersion}{"\n"}{end}"#;
        lab.kubectl(&["get", kinds, "-o", path])
    };
    let mut last = versions();
    lab.wait_for("what is only for people to be written", PATIENCE, || {
        std::thread::sleep(std::time::Duration::from_secs(3));
        let now = versions();
        (std::mem::replace(&mut last, now.clone()) == now).then_some(())
    });
    let said = cluster.bowline(&["adopt"]).unwrap();
    assert_eq!(said, "Nothing is left to adopt.\n3 volumes are known already.\n");
    assert_eq!(versions(), last, "asked again");
    let leader = || cluster.field(&["lease", "bowline-controller", "-n", NAMESPACE], ".spec.holderIdentity");
    let first = leader();
    lab.kubectl(&["delete", "pod", &first, "-n", NAMESPACE, "--wait=false"]);
    lab.wait_for("another leader", PATIENCE, || {
        let now =
            cluster.try_field(&["lease", "bowline-controller", "-n", NAMESPACE], ".spec.holderIdentity")?;
        (!now.is_empty() && now != first).then_some(())
    });
    let said = cluster.bowline(&["adopt", "--dry-run"]).unwrap();
    assert_eq!(said, "Nothing is left to adopt.\n3 volumes are known already.\n");
    all_write_on(cluster, writers);
    assert_eq!(versions(), last, "started again");
}

/// From now on it is a volume like any other.
fn the_volume_moves_on(cluster: &Cluster, writer: &Writer) {
    cluster.delete("pod", writer.pod);
    cluster.pod("reader", "lab-b", writer.pod, "head -n 1 /data/log");
    assert_eq!(cluster.ended("reader").trim(), "1");
}
