//! One API server for all tests of this program, used by one at a time.

use async_trait::async_trait;
use bowline_store::contract::Fixture;
use bowline_store::kube::{Guard, KubeStore};
use bowline_store::{Entry, Event, Expected, Key, Kind, Page, Revision, Store, StoreError};
use bowline_testkit::lab::ApiLab;
use futures::StreamExt;
use futures::stream::BoxStream;
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::{Value, json};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, OnceLock};
use std::time::{Duration, Instant};
use tokio::sync::{Mutex, OwnedMutexGuard};

static LAB: OnceLock<ApiLab> = OnceLock::new();
static TURN: LazyLock<Arc<Mutex<()>>> = LazyLock::new(Arc::default);

/// An API server with Bowline's kinds and no objects of them.
pub struct World {
    pub lab: &'static ApiLab,
    _turn: OwnedMutexGuard<()>,
}

/// A guard that tests turn.
#[derive(Default)]
pub struct Leads(pub AtomicBool);

impl Guard for Leads {
    fn may_write(&self) -> Result<(), String> {
        if self.0.load(Ordering::SeqCst) { Ok(()) } else { Err("bowline-b holds the lease".to_owned()) }
    }
}

pub fn definitions() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/crds")
}

impl World {
    pub async fn new() -> World {
        let turn = Arc::clone(&TURN).lock_owned().await;
        let lab = LAB.get_or_init(|| {
            let lab = ApiLab::start().expect("an API server can run here");
            lab.apply(&[&definitions()]);
            let wait = ["wait", "--for=condition=Established", "--timeout=60s", "crd", "--all"];
            lab.kubectl(&wait);
            lab
        });
        let world = World { lab, _turn: turn };
        world.clear().await;
        world
    }

    async fn clear(&self) {
        let store = self.store().await;
        for kind in [Kind::Ledger, Kind::Volume, Kind::Snapshot, Kind::Group] {
            while let Some(entry) = store.list(kind, None, 1).await.unwrap().entries.pop() {
                store.delete(&entry.key, entry.revision).await.unwrap();
            }
        }
    }

    pub async fn store(&self) -> Arc<KubeStore> {
        self.store_of(Arc::new(Leads(AtomicBool::new(true)))).await
    }

    pub async fn store_of(&self, guard: Arc<Leads>) -> Arc<KubeStore> {
        let config = Kubeconfig::read_from(self.lab.kubeconfig()).unwrap();
        let config =
            kube::Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await.unwrap();
        Arc::new(KubeStore::new(bowline_store::kube::client(config).unwrap(), guard))
    }

    /// Applies a manifest as somebody would by hand.
    pub fn apply(&self, object: &Value) -> Result<String, String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), object.to_string()).unwrap();
        self.lab.try_kubectl(&["apply", "-f", file.path().to_str().unwrap()])
    }
}

/// Looks until there is something to see.
pub async fn eventually<T, F: Future<Output = Option<T>>>(what: &str, mut look: impl FnMut() -> F) -> T {
    let begun = Instant::now();
    loop {
        if let Some(seen) = look().await {
            return seen;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "waited a minute for {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

pub fn key(name: &str) -> Key {
    Key::new(Kind::Ledger, name)
}

/// A ledger that says `text` in the reason of its one ticket.
pub fn ledger(text: &[u8]) -> Vec<u8> {
    let hex: String = text.iter().map(|byte| format!("{byte:02x}")).collect();
    let ticket = json!({
        "id": "t", "type": "bowline-api", "nodeID": "n", "access": "single-node-writer", "content": "filesystem",
        "readOnly": false, "disableFrontend": "false", "generation": 0, "createdAt": "2026-01-01T12:00:00Z",
        "owner": { "until": "withdrawn" }, "reason": hex
    });
    json!({ "version": 1, "record": { "epoch": 0, "tickets": { "t": ticket }, "holds": {} } })
        .to_string()
        .into_bytes()
}

pub fn text(value: &[u8]) -> Vec<u8> {
    let value: Value = serde_json::from_slice(value).unwrap();
    let hex = value["record"]["tickets"]["t"]["reason"].as_str().unwrap();
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

pub async fn fixture() -> Fixture {
    let world = World::new().await;
    let store = Arc::new(AsLedgers(world.store().await));
    Fixture { store, history: usize::MAX, crowd: 8, keep: Box::new(world) }
}

/// The contract writes bytes; this store takes ledgers.
struct AsLedgers(Arc<KubeStore>);

fn plain(entry: Entry) -> Entry {
    Entry { value: text(&entry.value), ..entry }
}

#[async_trait]
impl Store for AsLedgers {
    async fn get(&self, key: &Key) -> Result<Option<Entry>, StoreError> {
        Ok(self.0.get(key).await?.map(plain))
    }

    async fn list(&self, kind: Kind, after: Option<&str>, limit: usize) -> Result<Page, StoreError> {
        let page = self.0.list(kind, after, limit).await?;
        Ok(Page { entries: page.entries.into_iter().map(plain).collect(), ..page })
    }

    async fn watch(
        &self,
        kind: Kind,
        from: Revision,
    ) -> Result<BoxStream<'static, Result<Event, StoreError>>, StoreError> {
        let events = self.0.watch(kind, from).await?;
        let plain = |event| match event {
            Event::Put(entry) => Event::Put(plain(entry)),
            Event::Deleted { .. } => event,
        };
        Ok(events.map(move |event| event.map(plain)).boxed())
    }

    async fn put(&self, key: &Key, value: Vec<u8>, expected: Expected) -> Result<Revision, StoreError> {
        self.0.put(key, ledger(&value), expected).await
    }

    async fn delete(&self, key: &Key, expected: Revision) -> Result<(), StoreError> {
        self.0.delete(key, expected).await
    }
}
