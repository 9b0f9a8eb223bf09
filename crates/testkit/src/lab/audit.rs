//! What the API server wrote down about whoever changed something.

use super::ClusterLab;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

/// The log, in the directory of the lab.
pub(super) const LOG: &str = "audit.log";

/// Requests of pods that change something; what they contain is not written down.
const POLICY: &str = "apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
  - { level: Metadata, verbs: [create, update, patch, delete], userGroups: [\"system:serviceaccounts\"] }
  - { level: None }
";

pub(super) fn write_policy(directory: &Path) -> PathBuf {
    let path = directory.join("audit.yaml");
    fs::write(&path, POLICY).unwrap();
    path
}

/// A request to change something, and what became of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// When it came, as the API server writes times: `2026-01-01T10:00:00.000000Z`, so that they can be compared.
    pub at: String,
    /// The pod whose account it was made with.
    pub pod: String,
    /// The program that made it, as it calls itself.
    pub agent: String,
    /// Such as `update leases/bowline-controller`.
    pub what: String,
    /// The answer's status code: 200, 409 …
    pub code: u64,
}

impl ClusterLab {
    /// Every change that a pod has asked for, in the order in which they were answered. The lab must have been started with `audit`.
    pub fn audit(&self) -> Vec<Change> {
        let text = fs::read_to_string(self.directory().join(LOG)).unwrap();
        text.lines().filter_map(|line| change(&serde_json::from_str(line).ok()?)).collect()
    }
}

fn change(line: &Value) -> Option<Change> {
    let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let object = &line["objectRef"];
    let pod = line["user"]["extra"]["authentication.kubernetes.io/pod-name"].get(0)?;
    Some(Change {
        at: word(&line["requestReceivedTimestamp"]),
        pod: word(pod),
        agent: word(&line["userAgent"]),
        what: format!("{} {}/{}", word(&line["verb"]), word(&object["resource"]), word(&object["name"])),
        code: line["responseStatus"]["code"].as_u64().unwrap_or_default(),
    })
}
