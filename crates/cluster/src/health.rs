//! What a Volume says of its health: that its target finds it faulty, and that it is well again. Whatever else its conditions say follows from its
//! record and is written with it.
//!
//! Written when it changes and never while somebody waits: the attach path does not write Volumes at all.

use bowline_api::{Condition, Volume};
use bowline_controller::{Catalog, Event};
use bowline_core::{Slot, VolumeId};
use bowline_store::{Key, Kind, KubeStore};
use kube::api::ListParams;
use kube::{Api, Client};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::broadcast::{self, error::RecvError};

use crate::pause::pause;
use crate::writes::Writes;

/// How often it is looked again at what could not be told, or is not known.
const AGAIN: Duration = Duration::from_secs(30);
const PAGE: u32 = 500;
/// The reason of the condition of a volume that its target finds faulty.
const FAULTED: &str = "Faulted";

/// Writes what volumes say of their health. It runs until it is dropped.
pub(crate) struct Health {
    task: tokio::task::AbortHandle,
}

impl Drop for Health {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Teller {
    catalog: Catalog,
    store: Arc<KubeStore>,
    writes: Writes,
    /// What the objects say is wrong.
    shown: BTreeMap<VolumeId, String>,
}

impl Health {
    /// Begins with what the objects say, which may be long past.
    pub(crate) fn start(client: Client, catalog: Catalog, store: Arc<KubeStore>, writes: Writes) -> Self {
        let events = catalog.follow_events();
        let task = tokio::spawn(async move {
            let shown = said(&Api::all(client)).await;
            Teller { catalog, store, writes, shown }.run(events).await;
        });
        Self { task: task.abort_handle() }
    }
}

/// Every volume whose object says that it is faulty, and what it says.
async fn said(api: &Api<Volume>) -> BTreeMap<VolumeId, String> {
    let mut failures = 0;
    loop {
        match read(api).await {
            Ok(said) => return said,
            Err(error) => {
                tracing::debug!(%error, "it is not known what Volumes say of their health");
                tokio::time::sleep(pause(&"health", failures, AGAIN)).await;
                failures += 1;
            }
        }
    }
}

async fn read(api: &Api<Volume>) -> Result<BTreeMap<VolumeId, String>, kube::Error> {
    let (mut said, mut params) = (BTreeMap::new(), ListParams::default().limit(PAGE));
    loop {
        let page = api.list(&params).await?;
        for status in page.items.into_iter().filter_map(|object| object.status) {
            let ill = status.conditions.into_iter().find(|one| one.reason == FAULTED);
            if let (Some(ill), Ok(id)) = (ill, VolumeId::new(&status.id)) {
                said.insert(id, ill.message);
            }
        }
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(said),
        }
    }
}

impl Teller {
    async fn run(mut self, mut events: broadcast::Receiver<Event>) {
        loop {
            let done = self.tell_all().await;
            tokio::select! {
                heard = news(&mut events) => if !heard { return },
                () = tokio::time::sleep(AGAIN), if !done => {}
            }
        }
    }

    /// Makes the objects say what is known. Tells whether nothing is left to do before something is heard.
    async fn tell_all(&mut self) -> bool {
        let ill = self.catalog.faults();
        let mut done = true;
        for (volume, fault) in &ill {
            let sentence = format!("Its target finds that it cannot be used: {fault}.");
            if self.shown.get(volume) == Some(&sentence) {
                continue;
            }
            if self.tell(volume, Some(&sentence)).await {
                self.shown.insert(volume.clone(), sentence);
            } else {
                done = false;
            }
        }
        let past: Vec<VolumeId> =
            self.shown.keys().filter(|volume| !ill.contains_key(*volume)).cloned().collect();
        for volume in past {
            // It was said by an earlier leader, perhaps, and nobody has looked at the volume since.
            let is_well = match self.catalog.volume_fault(&volume).await {
                Ok(None) => self.tell(&volume, None).await,
                Ok(Some(_)) => false,
                Err(_) => !self.catalog.knows(&volume),
            };
            if is_well {
                self.shown.remove(&volume);
            } else {
                done = false;
            }
        }
        done
    }

    async fn tell(&self, volume: &VolumeId, fault: Option<&str>) -> bool {
        let Some(slot) = Slot::of_id(volume.as_str()) else { return true };
        let key = Key::new(Kind::Volume, slot.as_str());
        let mut fields = Map::new();
        if let Some(sentence) = fault {
            let said = (FAULTED, sentence.to_owned());
            let condition = Condition::new(Condition::READY, false, said, None, jiff::Timestamp::now());
            fields.insert("conditions".to_owned(), Value::Array(vec![json!(condition)]));
        }
        self.store.note(&key, fields);
        self.writes.count("bowline-volume", "health");
        match self.store.show(&key).await {
            Ok(_) => true,
            Err(error) => {
                tracing::debug!(%volume, %error, "how it is was not written");
                false
            }
        }
    }
}

/// Waits until something is heard of some volume's health; `false` when nothing will be.
async fn news(events: &mut broadcast::Receiver<Event>) -> bool {
    loop {
        match events.recv().await {
            Ok(event) if matches!(event.reason.as_str(), "Faulted" | "Repaired") => return true,
            Ok(_) => {}
            Err(RecvError::Lagged(_)) => return true,
            Err(RecvError::Closed) => return false,
        }
    }
}
