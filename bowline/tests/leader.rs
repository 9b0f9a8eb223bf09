//! The controller as a process, while it takes the lead.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed check is a panic")]

use bowline_testkit::lab::{ApiLab, PATIENCE, wait_for};
use std::path::Path;

/// Whoever asks for Bowline's kinds is told that the server of them is away: a start is tried again for a minute then.
const AWAY: &str = "
apiVersion: v1
kind: Namespace
metadata: { name: bowline }
---
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: { name: v1beta1.bowline.storage }
spec:
  group: bowline.storage
  version: v1beta1
  groupPriorityMinimum: 100
  versionPriority: 100
  insecureSkipTLSVerify: true
  service: { name: nobody, namespace: bowline }
";

#[test]
fn a_leader_that_was_still_starting_did_not_hear_that_it_should_stop() {
    let Some(lab) = ApiLab::start() else { return };
    lab.apply_text(AWAY);
    let told = || lab.try_kubectl(&["get", "--raw", "/apis/bowline.storage/v1beta1/targets"]).unwrap_err();
    wait_for("the kinds to be away", PATIENCE, || told().contains("ServiceUnavailable").then_some(()));
    let place = tempfile::tempdir().unwrap();
    let csi = format!("unix://{}", place.path().join("csi.sock").display());
    let tls = place.path().join("tls").display().to_string();
    let flags = ["controller", "--namespace", "bowline", "--pod-name", "one", "--csi", &csi, "--tls", &tls];
    let (flags, kubeconfig) = (flags.map(str::to_owned), lab.kubeconfig().display().to_string());
    let binary = Path::new(env!("CARGO_BIN_EXE_bowline"));
    let controller = lab.program("bowline-controller", binary, &flags, &[("KUBECONFIG", &kubeconfig)]);
    let leader = || {
        let lease = ["-n", "bowline", "get", "lease", "bowline-controller", "-o"];
        lab.try_kubectl(&[&lease[..], &["jsonpath={.spec.holderIdentity}"]].concat()).unwrap_or_default()
    };
    wait_for("it to lead", PATIENCE, || (leader() == "one").then_some(()));
    // A start that could not go on would end with 1, after a minute.
    assert_eq!(controller.stop().code(), Some(0));
    assert_eq!(leader(), "", "others wait for its lease to run out");
}
