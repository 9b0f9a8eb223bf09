//! Which nodes there are before anybody decides: the engine takes a node of which nobody has told anything for ready, and a new leader
//! would have heard of none.
//!
//! # Guarantees
//!
//! - Of every node that a ledger names the engine hears something. One of which nothing can be proven gets nothing new, and keeps what it has.
//! - A node counts as gone only if its Node is not in a list of the API server. Where the driver's name for it is all that is known, that is the
//!   Node's name only if every node that has registered the driver is called so.

use bowline_core::{Ledger, NodeId, NodeState, Timestamp};
use bowline_engine::NodeReport;
use bowline_store::{Kind, RecordError, Store, StoreError, record};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::storage::v1::CSINode;
use kube::{Api, Client, ResourceExt};
use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::nodes::Seen;
use crate::pages::for_each;

/// What is known of nodes before the catalog is opened.
#[derive(Clone, Debug, Default)]
pub struct Roll {
    reports: BTreeMap<NodeId, NodeReport>,
    /// Nodes, and the driver's names for them, also of those that are gone.
    pub(crate) names: Vec<(String, NodeId)>,
}

/// Why it is not known which nodes there are.
#[derive(Debug, thiserror::Error)]
pub enum RollError {
    /// The API server.
    #[error("the nodes cannot be read from the API server: {0}")]
    Api(#[from] kube::Error),
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A ledger cannot be read.
    #[error("the ledger of volume {volume} cannot be understood: {error}")]
    Record {
        /// Whose.
        volume: String,
        /// Why.
        error: RecordError,
    },
}

impl Roll {
    /// Asks the API server which nodes there are, and looks for those that ledgers name. To be called when nothing files tickets any more before
    /// the catalog is opened: after the adoption.
    pub async fn call(client: &Client, store: &dyn Store) -> Result<Self, RollError> {
        let named = named(store).await?;
        let mut seen: HashMap<String, Seen> = HashMap::new();
        let now = Timestamp::now();
        // CSINodes first: one is made after its Node, so a Node that is missing in the later list is gone.
        for_each(Api::<CSINode>::all(client.clone()), |csi| {
            seen.entry(csi.name_any()).or_default().hear_driver(Some(&csi), now);
        })
        .await?;
        for_each(Api::<Node>::all(client.clone()), |node| {
            seen.entry(node.name_any()).or_default().hear_node(&node, now);
        })
        .await?;
        Ok(Self::of(&seen, &named, now))
    }

    fn of(seen: &HashMap<String, Seen>, named: &BTreeSet<NodeId>, now: Timestamp) -> Self {
        let gone = NodeReport { state: NodeState::Gone { since: now }, limit: None };
        let mut roll = Self::default();
        let registered = || seen.iter().filter_map(|(name, one)| Some((name, one, one.driver.as_ref()?)));
        for (name, one, (id, limit)) in registered() {
            roll.names.push((name.clone(), id.clone()));
            if one.is_present() {
                roll.reports.insert(id.clone(), NodeReport { state: one.state(), limit: *limit });
            } else {
                roll.reports.entry(id.clone()).or_insert(gone);
            }
        }
        let mut ids = registered().map(|(name, _, (id, _))| name == id.as_str()).peekable();
        let is_name = ids.peek().is_some() && ids.all(|same| same);
        for id in named {
            if roll.reports.contains_key(id) {
                continue;
            }
            let node = seen.get(id.as_str()).filter(|one| one.is_present());
            let report = match (is_name, node) {
                (true, Some(node)) => NodeReport { state: node.state_without_driver(now), limit: None },
                (true, None) => gone,
                (false, _) => NodeReport { state: NodeState::NotReady { since: now }, limit: None },
            };
            if is_name {
                roll.names.push((id.to_string(), id.clone()));
            }
            tracing::info!(node = %id, state = ?report.state, "a ledger names it, and the driver is not registered there");
            roll.reports.insert(id.clone(), report);
        }
        roll
    }

    /// What the engine is to know from the start.
    pub fn reports(&self) -> Vec<(NodeId, NodeReport)> {
        self.reports.iter().map(|(id, report)| (id.clone(), *report)).collect()
    }
}

/// Every node that a ledger names.
async fn named(store: &dyn Store) -> Result<BTreeSet<NodeId>, RollError> {
    let (mut named, mut after) = (BTreeSet::new(), None);
    loop {
        let page = store.recall(Kind::Ledger, after.as_deref(), crate::pages::PAGE as usize).await?;
        for entry in page.entries {
            let ledger: Ledger = record::decode(&entry.value)
                .map_err(|error| RollError::Record { volume: entry.key.name.clone(), error })?;
            named.extend(ledger.holds().keys().cloned());
            named.extend(ledger.tickets().values().map(|ticket| ticket.node.clone()));
        }
        after = page.next;
        if after.is_none() {
            return Ok(named);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed check is a panic")]
mod tests {
    use super::*;
    use serde_json::json;

    fn id(name: &str) -> NodeId {
        NodeId::new(name).unwrap()
    }

    /// Nodes, whether each is there and ready, and the driver's name for it if it has registered.
    fn seen(nodes: &[(&str, Option<&str>, Option<&str>)]) -> HashMap<String, Seen> {
        let mut seen: HashMap<String, Seen> = HashMap::new();
        for (name, ready, driver) in nodes {
            let one = seen.entry((*name).to_owned()).or_default();
            if let Some(id) = driver {
                let drivers = json!([{"name": "bowline.storage", "nodeID": id, "allocatable": {"count": 7}}]);
                let csi: CSINode =
                    serde_json::from_value(json!({"metadata": {"name": name}, "spec": {"drivers": drivers}}))
                        .unwrap();
                one.hear_driver(Some(&csi), Timestamp::UNIX_EPOCH);
            }
            if let Some(ready) = ready {
                let conditions =
                    json!([{"type": "Ready", "status": ready, "lastTransitionTime": "2026-01-01T10:00:00Z"}]);
                let node: Node = serde_json::from_value(
                    json!({"metadata": {"name": name}, "status": {"conditions": conditions}}),
                )
                .unwrap();
                one.hear_node(&node, Timestamp::UNIX_EPOCH);
            }
        }
        seen
    }

    #[test]
    fn a_node_is_gone_only_if_that_is_proven_and_gets_nothing_new_if_nothing_is() {
        let named: BTreeSet<NodeId> = [id("lost")].into();
        let yes = Some("True");
        for (what, nodes, expected) in [
            ("registered and ready", &[("lost", yes, Some("lost"))][..], "Ready 7"),
            ("registered and silent", &[("lost", Some("Unknown"), Some("lost"))], "NotReady 7"),
            ("registered, and its Node is gone", &[("lost", None, Some("lost"))], "Gone"),
            ("under another name of the Node", &[("n", yes, Some("lost"))], "Ready 7"),
            ("the driver is away", &[("lost", yes, None), ("n", yes, Some("n"))], "NotReady"),
            (
                "the driver is away, the node silent",
                &[("lost", Some("False"), None), ("n", yes, Some("n"))],
                "NotReady",
            ),
            ("no Node of that name", &[("n", yes, Some("n"))], "Gone"),
            ("the driver's names are not the Nodes'", &[("n", yes, Some("id-n"))], "NotReady"),
            ("not all of them are", &[("n", yes, Some("n")), ("m", yes, Some("id-m"))], "NotReady"),
            (
                "a Node of that name, which proves nothing then",
                &[("lost", yes, None), ("n", yes, Some("id-n"))],
                "NotReady",
            ),
            ("no driver is registered anywhere", &[("n", yes, None)], "NotReady"),
            (
                "its id is another Node's by now",
                &[("old", None, Some("lost")), ("new", yes, Some("lost"))],
                "Ready 7",
            ),
        ] {
            let roll = Roll::of(&seen(nodes), &named, Timestamp::UNIX_EPOCH);
            let report = roll.reports[&id("lost")];
            let state = match report.state {
                NodeState::Ready => "Ready",
                NodeState::NotReady { .. } => "NotReady",
                NodeState::OutOfService { .. } => "OutOfService",
                NodeState::Gone { .. } => "Gone",
            };
            let limit = report.limit.map(|limit| format!(" {limit}")).unwrap_or_default();
            assert_eq!(format!("{state}{limit}"), expected, "{what}");
        }
    }
}
