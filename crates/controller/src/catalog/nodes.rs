//! The nodes that may ask for volumes.

use bowline_core::{Ledger, NodeId, NodeState, Timestamp, VolumeId};
use bowline_csi::code::ListError;
use bowline_engine::NodeReport;
use bowline_store::{Expected, Key, Kind, Store, StoreError, record};
use std::sync::Arc;

use super::{Catalog, Inner, NodeError, lock};
use crate::record::Node;
use crate::shelf::PAGE;

/// What the engine is to know of a node.
pub(crate) fn report(node: &Node) -> NodeReport {
    let state = match node.out_of_service {
        Some(since) => NodeState::OutOfService { since },
        None => NodeState::Ready,
    };
    NodeReport { state, limit: node.limit }
}

impl Catalog {
    /// Every node that is known.
    pub async fn nodes(&self) -> Result<Vec<Node>, ListError> {
        Ok(lock(&self.inner.nodes).values().cloned().collect())
    }

    /// Makes a node known, or changes its limit.
    pub async fn add_node(&self, node: Node) -> Result<Node, NodeError> {
        let inner = Arc::clone(&self.inner);
        finish(async move {
            let known = lock(&inner.nodes).get(&node.id).cloned();
            let node = match known {
                Some(known) => Node { limit: node.limit, ..known },
                None => node,
            };
            inner.keep(node).await
        })
        .await
    }

    /// Tells of a node that somebody else remembers (Kubernetes does): it is known in memory only, and counts as it was told last.
    pub fn observe_node(&self, node: Node, state: NodeState) {
        let report = NodeReport { state, limit: node.limit };
        let id = node.id.clone();
        lock(&self.inner.nodes).insert(id.clone(), node);
        self.inner.engine.observe_node(&id, report);
    }

    /// Nothing new goes to such a node any more. What it has it keeps: that it cannot be asked for says nothing about it.
    pub fn observe_node_unusable(&self, node: &NodeId) {
        lock(&self.inner.nodes).remove(node);
    }

    /// Such a node is proven to be removed: what it has is taken from it, by the target.
    pub fn observe_node_gone(&self, node: &NodeId, since: Timestamp) {
        lock(&self.inner.nodes).remove(node);
        let report = NodeReport { state: NodeState::Gone { since }, limit: None };
        self.inner.engine.observe_node(node, report);
    }

    /// Forgets a node. Refused while it holds or wants a volume.
    pub async fn remove_node(&self, node: &NodeId) -> Result<(), NodeError> {
        let (inner, id) = (Arc::clone(&self.inner), node.clone());
        finish(async move { inner.forget(&id).await }).await
    }

    /// Declares a node out of service (what it has is fenced), or takes that back.
    pub async fn set_out_of_service(&self, node: &NodeId, out: bool) -> Result<Node, NodeError> {
        let (inner, id) = (Arc::clone(&self.inner), node.clone());
        finish(async move {
            let known = lock(&inner.nodes).get(&id).cloned();
            let mut node = known.ok_or_else(|| NodeError::Unknown(id.clone()))?;
            let now = inner.clock.now();
            node.out_of_service = out.then(|| node.out_of_service.unwrap_or(now));
            let (reason, sentence) = if out {
                (
                    "OutOfService",
                    format!("Node {id} was declared out of service; what it has is taken from it."),
                )
            } else {
                ("InService", format!("Node {id} is back in service."))
            };
            let node = inner.keep(node).await?;
            inner.tell(None, reason, sentence);
            Ok(node)
        })
        .await
    }
}

/// What was begun is completed, though its caller has gone.
async fn finish<T: Send + 'static>(
    work: impl Future<Output = Result<T, NodeError>> + Send + 'static,
) -> Result<T, NodeError> {
    let ended = tokio::spawn(work).await;
    ended.unwrap_or_else(|_| {
        let (place, reason) = ("the catalog".to_owned(), "it ended unexpectedly".to_owned());
        Err(StoreError::Unavailable { place, reason }.into())
    })
}

fn unreadable(key: &Key, error: &impl std::fmt::Display) -> StoreError {
    StoreError::Corrupt { place: key.to_string(), reason: error.to_string() }
}

/// Writes a node, whatever was there: the latest wish counts.
async fn write(store: &dyn Store, node: &Node) -> Result<(), StoreError> {
    let key = Key::new(Kind::Node, node.id.as_str());
    let bytes = record::encode(node).map_err(|error| unreadable(&key, &error))?;
    loop {
        let found = store.get(&key).await?;
        let expected = found.map_or(Expected::Absent, |found| Expected::At(found.revision));
        match store.put(&key, bytes.clone(), expected).await {
            Err(StoreError::Conflict { .. }) => {}
            written => return written.map(|_| ()),
        }
    }
}

impl Inner {
    /// Stores a node, then makes it known.
    async fn keep(&self, node: Node) -> Result<Node, NodeError> {
        write(self.shelf.store.as_ref(), &node).await?;
        lock(&self.nodes).insert(node.id.clone(), node.clone());
        self.engine.observe_node(&node.id, report(&node));
        Ok(node)
    }

    async fn forget(&self, id: &NodeId) -> Result<(), NodeError> {
        // Nobody new comes in while it is looked for what it has.
        let Some(node) = lock(&self.nodes).remove(id) else { return Err(NodeError::Unknown(id.clone())) };
        let forgotten = self.forget_unused(id).await;
        if forgotten.is_err() {
            lock(&self.nodes).insert(id.clone(), node);
        }
        forgotten
    }

    async fn forget_unused(&self, id: &NodeId) -> Result<(), NodeError> {
        if let Some(volume) = self.volume_of(id).await? {
            return Err(NodeError::InUse { node: id.clone(), volume });
        }
        let key = Key::new(Kind::Node, id.as_str());
        loop {
            let Some(found) = self.shelf.store.get(&key).await? else { return Ok(()) };
            match self.shelf.store.delete(&key, found.revision).await {
                Err(StoreError::Conflict { .. }) => {}
                deleted => return Ok(deleted?),
            }
        }
    }

    /// That a node is out is written later than it is proven; the engine knows first.
    async fn is_still_of(&self, volume: &VolumeId, node: &NodeId) -> bool {
        match self.engine.view(volume).await {
            Ok(view) => {
                view.ledger.holds().contains_key(node) || view.ledger.tickets_on(node).next().is_some()
            }
            Err(_) => true,
        }
    }

    /// A volume that the node holds or wants.
    async fn volume_of(&self, node: &NodeId) -> Result<Option<VolumeId>, StoreError> {
        let mut after = None;
        loop {
            let page = self.shelf.store.list(Kind::Ledger, after.as_deref(), PAGE).await?;
            for entry in page.entries {
                let ledger: Ledger =
                    record::decode(&entry.value).map_err(|error| unreadable(&entry.key, &error))?;
                if ledger.holds().contains_key(node) || ledger.tickets_on(node).next().is_some() {
                    let volume =
                        VolumeId::new(&entry.key.name).map_err(|error| unreadable(&entry.key, &error))?;
                    if self.is_still_of(&volume, node).await {
                        return Ok(Some(volume));
                    }
                }
            }
            after = page.next;
            if after.is_none() {
                return Ok(None);
            }
        }
    }
}
