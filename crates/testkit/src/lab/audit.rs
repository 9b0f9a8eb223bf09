//! What the API server wrote down about what Bowline's pods asked of it.

use super::{ClusterLab, NAMESPACE};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

/// The log, in the directory of the lab.
pub(super) const LOG: &str = "audit.log";

/// What changes something is told apart from the rest by this.
const CHANGES: [&str; 4] = ["create", "update", "patch", "delete"];

/// Requests of pods, and what became of them; what they contain is not written down.
const POLICY: &str = "apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived, ResponseStarted]
rules:
  - { level: Metadata, userGroups: [\"system:serviceaccounts\"] }
  - { level: None }
";

pub(super) fn write_policy(directory: &Path) -> PathBuf {
    let path = directory.join("audit.yaml");
    fs::write(&path, POLICY).unwrap();
    path
}

/// A request, and what became of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
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
    /// Whether its account has a right to it. What is admitted to a namespace, or fits there, is another question.
    pub has_right: bool,
}

impl ClusterLab {
    /// Every change that a pod of Bowline has asked for, in the order in which they were answered. The lab must have been started with `audit`.
    pub fn audit(&self) -> Vec<Asked> {
        let asked = self.asked().into_iter();
        asked.filter(|asked| CHANGES.iter().any(|verb| asked.what.starts_with(verb))).collect()
    }

    /// Every request of a pod of Bowline that its account has no right to. The lab must have been started with `audit`.
    pub fn refused(&self) -> Vec<Asked> {
        // One that starts answers before it has read all roles, and refuses what it has not read to be allowed (Kubernetes 1.36).
        let proves = |asked: &Asked| asked.at.parse().map_or(true, |at| !self.was_starting(at));
        self.asked().into_iter().filter(|asked| !asked.has_right && proves(asked)).collect()
    }

    fn asked(&self) -> Vec<Asked> {
        let text = fs::read_to_string(self.directory().join(LOG)).unwrap();
        text.lines().filter_map(|line| asked(&serde_json::from_str(line).ok()?)).collect()
    }
}

fn asked(line: &Value) -> Option<Asked> {
    let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let object = &line["objectRef"];
    let ours = format!("system:serviceaccount:{NAMESPACE}:");
    if !line["user"]["username"].as_str()?.starts_with(&ours) {
        return None;
    }
    let pod = line["user"]["extra"]["authentication.kubernetes.io/pod-name"].get(0)?;
    Some(Asked {
        at: word(&line["requestReceivedTimestamp"]),
        pod: word(pod),
        agent: word(&line["userAgent"]),
        what: format!("{} {}/{}", word(&line["verb"]), word(&object["resource"]), word(&object["name"])),
        code: line["responseStatus"]["code"].as_u64().unwrap_or_default(),
        has_right: line["annotations"]["authorization.k8s.io/decision"] != "forbid",
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_request_without_a_right_is_told_from_one_that_is_not_admitted_and_from_those_of_others() {
        let line = |account: &str, decision: &str| {
            json!({
                "verb": "create", "requestReceivedTimestamp": "2026-01-01T10:00:00.000000Z", "userAgent": "bowline/1",
                "user": {
                    "username": format!("system:serviceaccount:{account}"),
                    "extra": { "authentication.kubernetes.io/pod-name": ["bowline-node-x"] },
                },
                "objectRef": { "resource": "events", "name": "e" },
                "responseStatus": { "code": 403 },
                "annotations": { "authorization.k8s.io/decision": decision },
            })
        };
        let ours = format!("{NAMESPACE}:bowline-node");
        let has_right = |line: &Value| asked(line).map(|asked| asked.has_right);
        assert_eq!(has_right(&line(&ours, "forbid")), Some(false));
        assert_eq!(has_right(&line(&ours, "allow")), Some(true));
        assert_eq!(has_right(&line("default:default", "forbid")), None);
    }
}
