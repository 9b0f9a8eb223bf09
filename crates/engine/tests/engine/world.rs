//! A machine room: a store and a target that outlive the engine, and engines that come and go.

use bowline_core::{Ledger, NodeId, NodeState, TargetId, Ticket, TicketId, Timestamp, VolumeFacts, VolumeId};
use bowline_engine::{
    Clock, Engine, Metrics, NodeReport, Parts, Patience, Settings, StartError, Submitted, Withdrawal,
    Withdrawn, start,
};
use bowline_store::{Key, MemoryStore, Store, record};
use bowline_target::Target;
use bowline_testkit::{Fate, FaultyStore, FaultyTarget, SimTarget, TestClock};
use prometheus_client::registry::Registry;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

pub(crate) const LONG: Duration = Duration::from_secs(3600);

pub(crate) struct Ticking(pub(crate) TestClock);

impl Clock for Ticking {
    fn now(&self) -> Timestamp {
        self.0.now()
    }
}

/// What outlives an engine.
#[derive(Clone)]
pub(crate) struct World {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) target: Arc<SimTarget>,
    pub(crate) volumes: BTreeMap<VolumeId, VolumeFacts>,
    pub(crate) nodes: BTreeMap<NodeId, NodeReport>,
    pub(crate) later: Duration,
}

impl World {
    /// One volume, `v`, on the target `sim`.
    pub(crate) fn new() -> Self {
        let facts = VolumeFacts::new(TargetId::new("sim").unwrap());
        Self {
            store: Arc::new(MemoryStore::default()),
            target: Arc::new(SimTarget::new("sim")),
            volumes: BTreeMap::from([(v(), facts)]),
            nodes: BTreeMap::new(),
            later: Duration::ZERO,
        }
    }

    pub(crate) async fn engine(&self) -> Running {
        self.engine_with(Arc::new(Fate::calm())).await.unwrap()
    }

    pub(crate) async fn engine_with(&self, fate: Arc<Fate>) -> Result<Running, StartError> {
        let target: Arc<dyn Target> =
            Arc::new(FaultyTarget::new(Arc::clone(&self.target) as _, Arc::clone(&fate)));
        self.engine_on(Arc::new(FaultyStore::new(Arc::clone(&self.store), fate)), vec![target]).await
    }

    pub(crate) async fn engine_on(
        &self,
        store: Arc<dyn Store>,
        targets: Vec<Arc<dyn Target>>,
    ) -> Result<Running, StartError> {
        let mut registry = Registry::default();
        let engine = start(Parts {
            store,
            targets,
            volumes: self.volumes.clone().into_iter().collect(),
            nodes: self.nodes.clone().into_iter().collect(),
            clock: Arc::new(Ticking(TestClock::at(self.later))),
            settings: Settings::default(),
            metrics: Metrics::new(&mut registry),
        })
        .await?;
        Ok(Running { engine, registry })
    }
}

impl World {
    /// The ledger of `v` as it is stored, whatever an engine may think of it.
    pub(crate) async fn stored(&self) -> Ledger {
        let entry = self.store.get(&Key::ledger(&v())).await.unwrap();
        entry.map(|entry| record::decode(&entry.value).unwrap()).unwrap_or_default()
    }
}

/// An engine and where it counts.
pub(crate) struct Running {
    pub(crate) engine: Engine,
    registry: Registry,
}

impl Running {
    pub(crate) async fn attach(&self, ticket: Ticket) -> Submitted {
        self.engine.submit(&v(), ticket, Patience::Wait, LONG).await.unwrap()
    }

    pub(crate) async fn attach_or_refuse(&self, ticket: Ticket) -> Submitted {
        self.engine.submit(&v(), ticket, Patience::Refuse, LONG).await.unwrap()
    }

    pub(crate) async fn detach(&self, ticket: &Ticket) -> Withdrawn {
        self.engine.withdraw(&v(), withdrawal(ticket), LONG).await.unwrap()
    }

    pub(crate) async fn force(&self, node: &NodeId) -> Withdrawn {
        let withdrawal = Withdrawal { node: Some(node.clone()), force: true, ..Withdrawal::default() };
        self.engine.withdraw(&v(), withdrawal, LONG).await.unwrap()
    }

    pub(crate) fn see(&self, node: &NodeId, state: NodeState) {
        self.engine.observe_node(node, NodeReport { state, limit: None });
    }

    /// The value of one line of the metrics.
    pub(crate) fn metric(&self, line: &str) -> String {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry).unwrap();
        let found = text.lines().find_map(|one| one.strip_prefix(line));
        found.map(|rest| rest.trim().to_owned()).unwrap_or_else(|| panic!("no line {line:?} in\n{text}"))
    }

    /// Waits until no volume has anything left to do.
    pub(crate) async fn quiet(&self) {
        for _ in 0..100_000 {
            if self.metric("bowline_engine_actors ") == "0" {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("the engine does not come to rest: {:?}", self.engine.view(&v()).await);
    }
}

pub(crate) fn v() -> VolumeId {
    bowline_testkit::volume("v")
}

pub(crate) fn withdrawal(ticket: &Ticket) -> Withdrawal {
    let (ticket, node): (TicketId, NodeId) = (ticket.id.clone(), ticket.node.clone());
    Withdrawal { ticket: Some(ticket), node: Some(node), force: false }
}

pub(crate) fn reason(submitted: &Submitted) -> &'static str {
    match submitted {
        Submitted::Satisfied { verdict, .. } | Submitted::Waiting(verdict) | Submitted::Refused(verdict) => {
            verdict.reason()
        }
        Submitted::StillWorking { verdict, .. } => verdict.as_ref().map_or("?", |verdict| verdict.reason()),
    }
}
