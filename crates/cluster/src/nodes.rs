//! The nodes of the cluster, as Node and CSINode tell of them: kept in memory, told to the catalog, stored nowhere.

use bowline_api::keys::{DRIVER, OUT_OF_SERVICE};
use bowline_controller::{Catalog, Node as Known};
use bowline_core::{NodeId, NodeState, Timestamp};
use bowline_engine::NodeReport;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::storage::v1::CSINode;
use kube::{Api, Client, ResourceExt};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::roll::Roll;
use crate::watch::{Change, follow};

/// What is known of one node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    /// Whether there is a Node object; `None` until one of them was heard of.
    present: Option<bool>,
    /// How often a Node object was heard of: a look that has found none says nothing about one that came meanwhile.
    told: u64,
    not_ready: Option<Timestamp>,
    out_of_service: Option<Timestamp>,
    /// The driver's name for it and how many volumes it can have, while the driver runs there.
    pub(crate) driver: Option<(NodeId, Option<u32>)>,
    /// The driver's last name for it: it is needed longest when the driver does not run there any more.
    id: Option<NodeId>,
    /// Since when it was noticed that the driver does not run there.
    without_driver: Option<Timestamp>,
}

impl Seen {
    pub(crate) fn is_present(&self) -> bool {
        self.present == Some(true)
    }

    pub(crate) fn state(&self) -> NodeState {
        match (self.out_of_service, self.not_ready) {
            (Some(since), _) => NodeState::OutOfService { since },
            (None, Some(since)) => NodeState::NotReady { since },
            (None, None) => NodeState::Ready,
        }
    }

    /// As it counts while the driver does not run there: nothing could be attached, so it gets nothing new, whoever waits for it already. That says
    /// nothing against what it has: an upgrade takes the driver away for a moment.
    pub(crate) fn state_without_driver(&self, since: Timestamp) -> NodeState {
        match self.state() {
            NodeState::Ready => NodeState::NotReady { since },
            worse => worse,
        }
    }

    pub(crate) fn hear_node(&mut self, node: &Node, now: Timestamp) {
        self.present = Some(true);
        self.told += 1;
        let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
        let ready = conditions.into_iter().find(|condition| condition.type_ == "Ready");
        // A node that has not said anything yet counts as one that has just stopped.
        let changed = ready.and_then(|ready| ready.last_transition_time.as_ref()).map(|time| time.0);
        let is_ready = ready.is_some_and(|ready| ready.status == "True");
        self.not_ready = (!is_ready).then(|| changed.or(self.not_ready).unwrap_or(now));
        let taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
        let taint = taints.into_iter().find(|taint| taint.key == OUT_OF_SERVICE);
        self.out_of_service = taint
            .map(|taint| taint.time_added.as_ref().map(|time| time.0).or(self.out_of_service).unwrap_or(now));
    }

    /// A look that began when it was told `told` times has found no Node object. Returns whether that is news.
    fn hear_gone(&mut self, told: u64) -> bool {
        self.told == told && self.present.replace(false) != Some(false)
    }

    pub(crate) fn hear_driver(&mut self, csi: Option<&CSINode>, now: Timestamp) {
        let driver = csi.and_then(|csi| csi.spec.drivers.iter().find(|driver| driver.name == DRIVER));
        self.driver = driver.and_then(|driver| {
            let limit = driver.allocatable.as_ref().and_then(|room| room.count);
            let limit = limit.and_then(|count| u32::try_from(count).ok());
            match NodeId::new(&driver.node_id) {
                Ok(id) => Some((id, limit)),
                Err(error) => {
                    tracing::error!(%error, "CSINode gives this driver a node id that cannot be one");
                    None
                }
            }
        });
        match &self.driver {
            Some((id, _)) => (self.id, self.without_driver) = (Some(id.clone()), None),
            None => self.without_driver = self.without_driver.or(Some(now)),
        }
    }
}

/// The nodes of the cluster. A handle; clones share it.
#[derive(Clone)]
pub struct Nodes {
    inner: Arc<Inner>,
}

struct Inner {
    catalog: Catalog,
    api: Api<Node>,
    seen: Mutex<HashMap<String, Seen>>,
    /// Called with the name of every node of which something new is known.
    changed: Mutex<Vec<Changed>>,
}

type Changed = Box<dyn Fn(&str) + Send + Sync>;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Nodes {
    /// Begins to watch, and returns when every node there is has been told to the catalog. Of those on the roll that are not among them, it is looked
    /// for what became of them.
    pub async fn start(client: Client, catalog: Catalog, roll: &Roll) -> Self {
        let api = Api::all(client.clone());
        let inner = Inner { catalog, api, seen: Mutex::default(), changed: Mutex::default() };
        let nodes = Self { inner: Arc::new(inner) };
        let (listed, mut all) = tokio::sync::watch::channel((false, false));
        let listed = Arc::new(listed);
        let (told, weak) = (Arc::clone(&listed), Arc::downgrade(&nodes.inner));
        let drivers = follow(Api::<CSINode>::all(client), move |change| {
            let Some(inner) = weak.upgrade() else { return false };
            match change {
                Change::Present(csi) => {
                    inner.hear(&csi.name_any(), |seen, now| seen.hear_driver(Some(&csi), now));
                }
                Change::Absent(name) => inner.hear(&name, |seen, now| seen.hear_driver(None, now)),
                Change::Listed => told.send_modify(|listed| listed.0 = true),
            }
            true
        });
        tokio::spawn(drivers);
        let weak = Arc::downgrade(&nodes.inner);
        let objects = follow(nodes.inner.api.clone(), move |change| {
            let Some(inner) = weak.upgrade() else { return false };
            match change {
                Change::Present(node) => inner.hear(&node.name_any(), |seen, now| seen.hear_node(&node, now)),
                Change::Absent(name) => drop(tokio::spawn(async move { inner.look_for(&name).await })),
                Change::Listed => listed.send_modify(|listed| listed.1 = true),
            }
            true
        });
        tokio::spawn(objects);
        // The senders live in tasks that never end.
        let _ = all.wait_for(|(drivers, objects)| *drivers && *objects).await;
        for (name, id) in &roll.names {
            nodes.learn(name, id);
        }
        nodes
    }

    /// The driver's name for a node, if it is known.
    pub fn id_of(&self, name: &str) -> Option<NodeId> {
        lock(&self.inner.seen).get(name)?.id.clone()
    }

    /// The name of the Node that the driver calls so, if it is known.
    pub(crate) fn name_of(&self, id: &NodeId) -> Option<String> {
        let seen = lock(&self.inner.seen);
        seen.iter().find(|(_, one)| one.id.as_ref() == Some(id)).map(|(name, _)| name.clone())
    }

    /// Every node of which anything is known.
    pub(crate) fn names(&self) -> Vec<String> {
        lock(&self.inner.seen).keys().cloned().collect()
    }

    /// Since when a node does not report, if it does not.
    pub(crate) fn not_ready(&self, name: &str) -> Option<Timestamp> {
        lock(&self.inner.seen).get(name)?.not_ready
    }

    /// Calls `hear` with the name of every node of which something new is known from now on.
    pub(crate) fn on_change(&self, hear: impl Fn(&str) + Send + Sync + 'static) {
        lock(&self.inner.changed).push(Box::new(hear));
    }

    /// Learns the driver's name for a node from somebody who remembers it, and looks for the node if it is not among those there are: it may have
    /// gone while nobody was watching.
    pub(crate) fn learn(&self, name: &str, id: &NodeId) {
        let missing = {
            let mut seen = lock(&self.inner.seen);
            let one = seen.entry(name.to_owned()).or_default();
            if one.id.is_none() {
                one.id = Some(id.clone());
                one.without_driver = one.without_driver.or(Some(Timestamp::now()));
                // What was heard of it before could be told of nobody.
                self.inner.tell(one);
            }
            one.present.is_none()
        };
        if missing {
            let (inner, name) = (Arc::clone(&self.inner), name.to_owned());
            tokio::spawn(async move { inner.look_for(&name).await });
        }
    }
}

impl Inner {
    /// Learns something of a node and passes it on. In the order in which it was learned: hence under one lock, so that what was heard before a node
    /// was gone is not told afterwards.
    fn hear(&self, name: &str, learn: impl FnOnce(&mut Seen, Timestamp)) {
        {
            let mut seen = lock(&self.seen);
            let one = seen.entry(name.to_owned()).or_default();
            let before = one.clone();
            learn(one, Timestamp::now());
            if (Seen { told: before.told, ..one.clone() }) == before {
                return;
            }
            self.tell(one);
        }
        self.changed(name);
    }

    fn changed(&self, name: &str) {
        for hear in lock(&self.changed).iter() {
            hear(name);
        }
    }

    fn tell(&self, seen: &Seen) {
        match (&seen.driver, seen.id.as_ref().zip(seen.without_driver)) {
            // One of which only the CSINode shows may be gone.
            (Some((id, limit)), _) if seen.is_present() => {
                let node = Known {
                    id: id.clone(),
                    limit: *limit,
                    out_of_service: seen.out_of_service,
                    added_at: Timestamp::now(),
                };
                self.catalog.observe_node(node, seen.state());
            }
            (None, Some((id, since))) if seen.is_present() => {
                self.catalog.observe_node_unusable(id);
                let report = NodeReport { state: seen.state_without_driver(since), limit: None };
                self.catalog.engine().observe_node(id, report);
            }
            _ => {}
        }
    }

    /// The node does not show: only a look at the API server itself proves that it is gone.
    async fn look_for(&self, name: &str) {
        let mut failures = 0;
        let told = loop {
            let told = lock(&self.seen).get(name).map_or(0, |seen| seen.told);
            match self.api.get_opt(name).await {
                Ok(Some(node)) => return self.hear(name, |seen, now| seen.hear_node(&node, now)),
                Ok(None) => break told,
                Err(error) => {
                    tracing::warn!(node = name, %error, "it is not known whether this node is gone");
                    let longest = std::time::Duration::from_secs(30);
                    tokio::time::sleep(crate::pause::pause(&name, failures, longest)).await;
                    failures += 1;
                }
            }
        };
        {
            let mut seen = lock(&self.seen);
            let one = seen.entry(name.to_owned()).or_default();
            let news = one.hear_gone(told);
            let Some(id) = one.id.clone().filter(|_| news) else { return };
            let has =
                |two: &Seen| two.is_present() && two.driver.as_ref().is_some_and(|(theirs, _)| *theirs == id);
            if let Some((other, _)) = seen.iter().find(|(other, two)| *other != name && has(two)) {
                tracing::info!(node = name, %id, other, "the node was removed from the cluster, and another one is what the driver calls so by now");
                return;
            }
            tracing::warn!(
                node = name,
                "the node was removed from the cluster; what it has is taken from it"
            );
            let sentence = format!(
                "Node {name} was removed from the cluster; what it has is taken from it at the target."
            );
            self.catalog.tell(None, "NodeGone", sentence);
            self.catalog.observe_node_gone(&id, Timestamp::now());
        }
        self.changed(name);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed check is a panic")]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn node(ready: &str, taints: &Value) -> Node {
        serde_json::from_value(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}, "spec": {"taints": taints},
            "status": {"conditions": [{"type": "Ready", "status": ready, "lastTransitionTime": "2026-01-01T10:00:00Z"}]}}))
        .unwrap()
    }

    #[test]
    fn a_node_is_ready_silent_or_out_of_service() {
        let now: Timestamp = "2026-01-01T12:00:00Z".parse().unwrap();
        let since: Timestamp = "2026-01-01T10:00:00Z".parse().unwrap();
        let added: Timestamp = "2026-01-01T11:00:00Z".parse().unwrap();
        let taint =
            json!([{"key": OUT_OF_SERVICE, "effect": "NoExecute", "timeAdded": "2026-01-01T11:00:00Z"}]);
        let untimed = json!([{"key": OUT_OF_SERVICE, "effect": "NoExecute"}]);
        let other = json!([{"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}]);
        for (ready, taints, expected) in [
            ("True", json!([]), NodeState::Ready),
            ("True", other, NodeState::Ready),
            ("False", json!([]), NodeState::NotReady { since }),
            ("Unknown", json!([]), NodeState::NotReady { since }),
            ("Unknown", taint.clone(), NodeState::OutOfService { since: added }),
            ("True", taint, NodeState::OutOfService { since: added }),
            ("True", untimed, NodeState::OutOfService { since: now }),
        ] {
            let mut seen = Seen::default();
            seen.hear_node(&node(ready, &taints), now);
            assert_eq!(seen.state(), expected, "{ready} {taints}");
            let later = now + jiff::SignedDuration::from_secs(60);
            seen.hear_node(&node(ready, &taints), later);
            assert_eq!(seen.state(), expected, "the same again is since the same moment");
        }
    }

    #[test]
    fn a_node_that_came_back_during_a_look_was_taken_for_gone() {
        let mut seen = Seen::default();
        seen.hear_node(&node("True", &json!([])), Timestamp::UNIX_EPOCH);
        let before_the_look = seen.told;
        seen.hear_node(&node("True", &json!([])), Timestamp::UNIX_EPOCH);
        assert!(!seen.hear_gone(before_the_look));
        assert_eq!(seen.present, Some(true));
        assert!(seen.hear_gone(seen.told));
        assert!(!seen.hear_gone(seen.told), "that is known");
        assert_eq!(seen.present, Some(false));
    }

    #[test]
    fn the_drivers_name_for_a_node_is_remembered_when_the_driver_goes() {
        let csi: CSINode = serde_json::from_value(json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": {"name": "n"},
            "spec": {"drivers": [{"name": "other", "nodeID": "x"}, {"name": DRIVER, "nodeID": "id-1", "allocatable": {"count": 7}}]}}))
        .unwrap();
        let mut seen = Seen::default();
        seen.hear_driver(Some(&csi), Timestamp::UNIX_EPOCH);
        assert_eq!(seen.driver, Some((NodeId::new("id-1").unwrap(), Some(7))));
        seen.hear_driver(None, Timestamp::UNIX_EPOCH);
        assert_eq!((seen.driver, seen.id), (None, Some(NodeId::new("id-1").unwrap())));
    }

    #[test]
    fn a_node_without_the_driver_counted_as_ready() {
        let csi: CSINode = serde_json::from_value(json!({"metadata": {"name": "n"},
            "spec": {"drivers": [{"name": DRIVER, "nodeID": "id-1", "allocatable": {"count": 7}}]}}))
        .unwrap();
        let second = |second| Timestamp::from_second(second).unwrap();
        let mut seen = Seen::default();
        seen.hear_driver(Some(&csi), second(1));
        assert_eq!(seen.without_driver, None);
        seen.hear_driver(None, second(2));
        seen.hear_driver(None, second(3));
        assert_eq!(seen.without_driver, Some(second(2)), "the same again is since the same moment");
        seen.hear_node(&node("True", &json!([])), second(4));
        let without = |seen: &Seen| seen.state_without_driver(second(2));
        assert_eq!(without(&seen), NodeState::NotReady { since: second(2) });
        let taint = json!([{"key": OUT_OF_SERVICE, "effect": "NoExecute"}]);
        seen.hear_node(&node("True", &taint), second(5));
        assert_eq!(without(&seen), NodeState::OutOfService { since: second(5) });
        seen.hear_driver(Some(&csi), second(6));
        assert_eq!(seen.without_driver, None);
    }
}
