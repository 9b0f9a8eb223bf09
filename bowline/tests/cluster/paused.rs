//! A leader that sleeps past its lease and wakes up.

use crate::storm::{leader, process};
use crate::{Cluster, PATIENCE};
use bowline_testkit::lab::{Asked, NAMESPACE, Observer};
use bowline_testkit::say;

/// Its process is stopped, another one leads and grants, and it goes on. It does not even try to write: its log says that it ends, and
/// the API server's own log of changes has none of it.
///
/// All this takes about twenty seconds; the kubelet ends a container that does not answer for sixty.
pub(crate) fn a_paused_leader_writes_nothing_when_it_wakes(cluster: &Cluster, observer: &Observer) {
    let lab = &cluster.lab;
    cluster.claim("paused", "  accessModes: [ReadWriteOnce]\n");
    cluster.pod("first", "lab-a", "paused", "echo first > /data/file");
    cluster.ended("first");
    let (pv, volume) = (cluster.field(&["pvc", "paused"], ".spec.volumeName"), cluster.volume_of("paused"));
    cluster.delete("pod", "first");
    lab.wait_for("the volume to be nobody's", PATIENCE, || {
        observer.now(&volume).reach().is_empty().then_some(())
    });

    let old = lab.wait_for("a leader", PATIENCE, || leader(lab));
    let sleeper = process(lab, &old).unwrap();
    assert!(lab.signal(sleeper, "STOP"));
    // When it wakes, this is the first it hears of.
    lab.apply_text(&format!(
        "apiVersion: storage.k8s.io/v1\nkind: VolumeAttachment\nmetadata: {{ name: later }}\nspec:\n  \
         attacher: bowline.storage\n  nodeName: lab-b\n  source: {{ persistentVolumeName: {pv} }}\n"
    ));
    let new = lab.wait_for("another leader", PATIENCE, || leader(lab).filter(|now| *now != old));
    let path = "jsonpath={.status.attached}";
    lab.wait_for("the new leader's grant", PATIENCE, || {
        let attached = lab.try_kubectl(&["get", "volumeattachment", "later", "-o", path]).ok()?;
        (attached == "true").then_some(())
    });
    let ledger =
        || ["epoch", "tickets"].map(|part| cluster.field(&["bva", &volume], &format!(".status.{part}")));
    let (granted, recorded) = (observer.now(&volume), ledger());
    assert_eq!(granted.reach().into_iter().collect::<Vec<_>>(), ["lab-b"], "{granted:?}");
    assert_eq!(granted.let_in.keys().next().unwrap().to_string(), recorded[0], "{recorded:?}");
    assert!(recorded[1].contains("lab-b"), "{recorded:?}");

    let woken = jiff::Timestamp::now();
    assert!(lab.signal(sleeper, "CONT"));
    lab.wait_for("the end of the old leader", PATIENCE, || {
        (!std::path::Path::new(&format!("/proc/{sleeper}")).exists()).then_some(())
    });
    let said = lab.wait_for("its last words", PATIENCE, || {
        lab.try_kubectl(&["logs", &old, "-n", NAMESPACE, "-c", "bowline", "--previous"]).ok()
    });
    for words in ["the lease is lost", "another controller may lead now"] {
        assert!(said.contains(words), "{said}");
    }
    nothing_was_written_by(&old, &new, &woken.to_string(), &lab.audit());
    let is_new = |words: &str| lab.kubectl(&["get", "lease", "bowline-controller", "-n", NAMESPACE, words]);
    assert_eq!(is_new("-o=jsonpath={.spec.holderIdentity}"), new, "it has taken the lease back");
    assert_eq!(observer.now(&volume).let_in, granted.let_in);
    assert_eq!(ledger(), recorded);
    observer.assert_well();
    lab.kubectl(&["delete", "volumeattachment", "later", "--timeout=60s"]);
    cluster.delete("pvc", "paused");
}

fn nothing_was_written_by(old: &str, new: &str, woken: &str, changes: &[Asked]) {
    let by = |pod: &str, is_late: bool| -> Vec<&Asked> {
        // The sidecars have their pod's account, and names of their own.
        let program = |change: &&Asked| !change.agent.starts_with("csi-") && change.pod == pod;
        changes.iter().filter(program).filter(|change| (change.at.as_str() > woken) == is_late).collect()
    };
    // That the log sees such things at all.
    assert!(!by(old, false).is_empty() && !by(new, false).is_empty(), "{changes:#?}");
    let tried = by(old, true);
    assert!(tried.is_empty(), "the old leader has tried to write after it woke at {woken}: {tried:#?}");
    say(&format!(
        "paused leader: {} changes before it slept, none after it woke, {} by the next one",
        by(old, false).len(),
        by(new, false).len()
    ));
}
