//! What every handler needs, and when the API is ready.

use async_trait::async_trait;
use axum::http::Method;
use bowline_controller::Catalog;
use bowline_core::TargetId;
use bowline_engine::Clock;
use prometheus_client::registry::Registry;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use tokio::sync::{Semaphore, watch};

use crate::problem::Problem;
use crate::wire::{Adoption, Finding};

/// Calls of one kind that are worked on at once; more wait a moment and are then refused.
const CALLS: usize = 256;

/// Callers that follow what happens at once.
const FOLLOWERS: usize = 64;

/// What the API is made of.
pub struct Parts {
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// Where everything is counted.
    pub registry: Arc<Mutex<Registry>>,
    /// Looks at the machine; may block.
    pub probe: Arc<dyn Fn() -> Vec<Finding> + Send + Sync>,
    /// The version of this process.
    pub version: &'static str,
    /// The node it runs on.
    pub node: String,
}

/// Takes over what was attached before Bowline came.
#[async_trait]
pub trait Adopt: Send + Sync {
    /// Says what there is to adopt, and adopts it unless this is only to look; or why neither can be done now.
    async fn adopt(&self, dry_run: bool) -> Result<Adoption, String>;
}

/// Remembers on which targets nothing new is made.
#[async_trait]
pub trait Drains: Send + Sync {
    /// Remembers it for good, then does it; or why it cannot be remembered.
    async fn drain(&self, target: &TargetId, is_draining: bool) -> Result<(), String>;
}

/// The state of the API. A handle; clones share it.
///
/// It can listen before there is a catalog, so that `/healthz` and `/readyz` answer while a large store is read; until
/// [`Api::open`] everything else is told to come again.
#[derive(Clone)]
pub struct Api {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) parts: Parts,
    catalog: OnceLock<Catalog>,
    adopter: OnceLock<Arc<dyn Adopt>>,
    drains: OnceLock<Arc<dyn Drains>>,
    /// Who leads, while it is somebody else.
    leader: Mutex<Option<String>>,
    nodes: NodeSource,
    stopping: watch::Sender<bool>,
    pub(crate) calls: Calls,
    pub(crate) followers: Arc<Semaphore>,
}

/// Who says which nodes there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NodeSource {
    /// The catalog keeps them, and people add them.
    Catalog,
    /// They are what Kubernetes says.
    Kubernetes,
}

/// What is worked on at once. Three kinds, each with its own bound: those who wait for a volume must not keep out whoever
/// gives it back, nor whoever looks why they wait.
pub(crate) struct Calls {
    asking: Semaphore,
    ordering: Semaphore,
    removing: Semaphore,
}

impl Default for Calls {
    fn default() -> Self {
        let places = || Semaphore::new(CALLS);
        Self { asking: places(), ordering: places(), removing: places() }
    }
}

impl Calls {
    /// The bound for a call of this method.
    pub(crate) fn of(&self, method: &Method) -> &Semaphore {
        match *method {
            Method::GET | Method::HEAD => &self.asking,
            Method::DELETE => &self.removing,
            _ => &self.ordering,
        }
    }
}

impl Api {
    /// An API without a catalog yet.
    pub fn new(parts: Parts) -> Self {
        Self::with(parts, NodeSource::Catalog)
    }

    /// The same for a catalog whose nodes come from Kubernetes: they are listed, and changed there.
    pub fn in_cluster(parts: Parts) -> Self {
        Self::with(parts, NodeSource::Kubernetes)
    }

    fn with(parts: Parts, nodes: NodeSource) -> Self {
        let inner = Inner {
            parts,
            catalog: OnceLock::new(),
            adopter: OnceLock::new(),
            drains: OnceLock::new(),
            leader: Mutex::default(),
            nodes,
            stopping: watch::channel(false).0,
            calls: Calls::default(),
            followers: Arc::new(Semaphore::new(FOLLOWERS)),
        };
        Self { inner: Arc::new(inner) }
    }

    /// From now on it is ready. The first catalog stays.
    pub fn open(&self, catalog: Catalog) {
        let _ = self.inner.catalog.set(catalog);
    }

    /// Who adopts, where there is something to adopt from. The first one stays.
    pub fn adopt_with(&self, adopter: Arc<dyn Adopt>) {
        let _ = self.inner.adopter.set(adopter);
    }

    /// Who remembers which targets are drained, where Kubernetes does not. The first one stays.
    pub fn drain_with(&self, drains: Arc<dyn Drains>) {
        let _ = self.inner.drains.set(drains);
    }

    /// Ends whoever follows what happens, so that a stop does not wait for them. From now on it is not ready.
    pub fn stop(&self) {
        self.inner.stopping.send_replace(true);
    }

    /// Whether it is ready for work.
    pub fn is_ready(&self) -> bool {
        self.inner.catalog.get().is_some() && !*self.inner.stopping.borrow()
    }

    /// Done when the API stops.
    pub(crate) fn stopped(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut stopping = self.inner.stopping.subscribe();
        async move {
            // The sender lives as long as the API does.
            let _ = stopping.wait_for(|stopping| *stopping).await;
        }
    }

    /// Tells callers who leads while this process does not. `None`: nobody else, so this one is starting.
    pub fn led_by(&self, leader: Option<String>) {
        *self.inner.leader.lock().unwrap_or_else(PoisonError::into_inner) = leader;
    }

    pub(crate) fn catalog(&self) -> Result<&Catalog, Problem> {
        self.inner.catalog.get().ok_or_else(|| self.not_yet())
    }

    pub(crate) fn adopter(&self) -> Result<&Arc<dyn Adopt>, Problem> {
        self.catalog()?;
        self.inner.adopter.get().ok_or_else(|| {
            let sentence = "there is nothing to adopt from here: what PersistentVolumes and VolumeAttachments say is adopted in a cluster; \
                            ask the Bowline of one, with --context or --kubeconfig";
            Problem::new("NotInCluster", sentence)
        })
    }

    /// Who remembers which targets are drained; where that is Kubernetes, `instead` says how.
    pub(crate) fn drains(&self, instead: &str) -> Result<&Arc<dyn Drains>, Problem> {
        let elsewhere = || Problem::new("FromKubernetes", format!("targets come from Kubernetes: {instead}"));
        self.inner.drains.get().ok_or_else(elsewhere)
    }

    /// Why there is no catalog.
    pub(crate) fn not_yet(&self) -> Problem {
        let leader = self.inner.leader.lock().unwrap_or_else(PoisonError::into_inner);
        match &*leader {
            None => Problem::new("Starting", "everything is being read back; ask again in a moment"),
            Some(leader) => {
                let here = &self.inner.parts.node;
                Problem::new(
                    "NotLeading",
                    format!("{leader} leads, and this is {here}; ask again to reach it"),
                )
            }
        }
    }

    /// Whether nodes may be changed here; if not, `instead` says how.
    pub(crate) fn keeps_nodes(&self, instead: &str) -> Result<(), Problem> {
        match self.inner.nodes {
            NodeSource::Catalog => Ok(()),
            NodeSource::Kubernetes => {
                Err(Problem::new("FromKubernetes", format!("nodes come from Kubernetes: {instead}")))
            }
        }
    }
}
