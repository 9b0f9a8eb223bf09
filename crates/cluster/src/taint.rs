//! The taint that keeps workloads off a node until its part of Bowline is ready.

use k8s_openapi::api::core::v1::{Node, Taint};
use kube::api::{Api, Patch, PatchParams};
use serde_json::json;

/// Why the taint could not be taken off.
#[derive(Debug, thiserror::Error)]
pub enum TaintError {
    /// The API server could not be asked, or refused.
    #[error("the taint {key} cannot be taken off node {node}: {error}")]
    Api {
        /// The node.
        node: String,
        /// The taint.
        key: String,
        /// What was the matter.
        error: Box<kube::Error>,
    },
    /// Others changed the node's taints each time.
    #[error("the taint {key} cannot be taken off node {node}: others keep changing its taints; ask again")]
    Busy {
        /// The node.
        node: String,
        /// The taint.
        key: String,
    },
}

/// How often a change by others is answered by reading again.
const ATTEMPTS: u32 = 5;

/// Takes the taints with this key off a node, whatever their effect; tells whether there was one. Other taints are left
/// as they are: the patch holds only if they still are what was read.
pub async fn remove(client: kube::Client, node: &str, key: &str) -> Result<bool, TaintError> {
    let nodes: Api<Node> = Api::all(client);
    let told = |error| TaintError::Api { node: node.to_owned(), key: key.to_owned(), error: Box::new(error) };
    for _ in 0..ATTEMPTS {
        let found = nodes.get(node).await.map_err(told)?;
        let old = found.spec.and_then(|spec| spec.taints).unwrap_or_default();
        let kept: Vec<&Taint> = old.iter().filter(|taint| taint.key != key).collect();
        if kept.len() == old.len() {
            return Ok(false);
        }
        let patch = json!([
            { "op": "test", "path": "/spec/taints", "value": old },
            { "op": "replace", "path": "/spec/taints", "value": kept },
        ]);
        let patch = serde_json::from_value(patch).map_err(|error| told(kube::Error::SerdeError(error)))?;
        match nodes.patch(node, &PatchParams::default(), &Patch::Json::<()>(patch)).await {
            Ok(_) => return Ok(true),
            // 422 is a `test` that does not hold any more.
            Err(kube::Error::Api(status)) if matches!(status.code, 409 | 422) => {}
            Err(error) => return Err(told(error)),
        }
    }
    Err(TaintError::Busy { node: node.to_owned(), key: key.to_owned() })
}
