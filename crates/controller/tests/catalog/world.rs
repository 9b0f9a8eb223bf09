//! A machine room: a store and a target that outlive the catalog, and catalogs that come and go.

use bowline_controller::{Catalog, NewVolume, Node, OpenError, Parts, Settings, Use, Volume};
use bowline_core::{AccessMode, Content, Timestamp};
use bowline_csi::Name;
use bowline_csi::code::Reason;
use bowline_engine::Clock;
use bowline_store::{MemoryStore, Store};
use bowline_target::Provision;
use bowline_testkit::{Fate, FaultyProvision, FaultyStore, SimTarget, TestClock, node};
use prometheus_client::registry::Registry;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tonic::Code;

pub(crate) const LONG: Duration = Duration::from_secs(3600);
pub(crate) const GIB: u64 = 1 << 30;

struct Ticking(TestClock);

impl Clock for Ticking {
    fn now(&self) -> Timestamp {
        self.0.now()
    }
}

/// What outlives a catalog.
pub(crate) struct World {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) target: Arc<SimTarget>,
    pub(crate) limit: Option<u32>,
    pub(crate) later: Duration,
    pub(crate) registry: Arc<Mutex<Registry>>,
}

impl World {
    pub(crate) fn new() -> Self {
        Self {
            store: Arc::new(MemoryStore::default()),
            target: Arc::new(SimTarget::new("sim")),
            limit: None,
            later: Duration::ZERO,
            registry: Arc::default(),
        }
    }

    pub(crate) async fn catalog(&self) -> Catalog {
        self.catalog_with(Arc::new(Fate::calm())).await.unwrap()
    }

    pub(crate) async fn catalog_with(&self, fate: Arc<Fate>) -> Result<Catalog, OpenError> {
        let target: Arc<dyn Provision> =
            Arc::new(FaultyProvision::new(Arc::clone(&self.target) as _, Arc::clone(&fate)));
        let store = Arc::new(FaultyStore::new(Arc::clone(&self.store), fate));
        self.catalog_of(store, vec![target]).await
    }

    /// A catalog with these targets instead of the one of this world.
    pub(crate) async fn catalog_on(&self, targets: Vec<Arc<dyn Provision>>) -> Result<Catalog, OpenError> {
        self.catalog_of(Arc::clone(&self.store), targets).await
    }

    async fn catalog_of(
        &self,
        store: Arc<dyn Store>,
        targets: Vec<Arc<dyn Provision>>,
    ) -> Result<Catalog, OpenError> {
        let added_at = TestClock::new().now();
        let known = |name: &str| Node { id: node(name), limit: self.limit, out_of_service: None, added_at };
        Catalog::open(Parts {
            store,
            targets,
            nodes: ["a", "b", "c"].map(known).to_vec(),
            reports: vec![],
            clock: Arc::new(Ticking(TestClock::at(self.later))),
            settings: Default::default(),
            registry: Arc::clone(&self.registry),
        })
        .await
    }
}

pub(crate) fn name(text: &str) -> Name {
    Name::new("name", text).unwrap()
}

/// A volume for one node at a time, with a filesystem, of 1 GiB.
pub(crate) fn order(called: &str) -> NewVolume {
    NewVolume {
        name: name(called),
        required: None,
        limit: None,
        fs: None,
        uses: vec![Use { access: AccessMode::SingleNodeWriter, content: Content::Filesystem }],
        source: None,
        settings: Settings::default(),
        target: None,
        kind: None,
        place: Default::default(),
    }
}

pub(crate) async fn create(catalog: &Catalog, called: &str) -> Volume {
    catalog.create_volume(order(called), LONG).await.unwrap()
}

/// The code of an error, and that its sentence says something.
pub(crate) fn told<T: std::fmt::Debug, E: Reason>(answer: Result<T, E>, code: Code, part: &str) {
    let error = answer.expect_err(part);
    assert_eq!(error.code(), code, "{error}");
    assert!(error.to_string().contains(part), "{error}");
}

/// Lets everything happen that can happen now.
pub(crate) async fn rest() {
    tokio::time::sleep(Duration::from_millis(1)).await;
}
