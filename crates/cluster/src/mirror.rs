//! What is only for people: the annotations of PersistentVolumes that say where a volume is, and the verdicts in the status of Bowline's own
//! VolumeAttachments. At most one write per volume and second, and none while grants are being worked on.

use bowline_api::keys::{ANNOTATIONS, ATTACH_TIME, ATTACHED_NODE, READ_ONLY};
use bowline_api::{Condition, TicketStatus, Truth};
use bowline_controller::Catalog;
use bowline_core::{Ledger, Phase, State as VolumeState, Ticket, TicketId, VolumeId};
use bowline_csi::code::ListError;
use bowline_engine::{Changes, View};
use bowline_store::{Key, KubeStore, StoreError};
use futures::StreamExt;
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;

use crate::attacher::{Attacher, PersistentVolumes};
use crate::pv::Pv;
use crate::writes::Writes;

/// How often what has changed is written.
const EVERY: Duration = Duration::from_secs(1);
/// How many writes at once.
const AT_ONCE: usize = 4;
/// How often such a write looks whether there is still somebody to be served first, and how often it does before it goes ahead all the same.
const LOOK: Duration = Duration::from_millis(250);
const LOOKS: u32 = 4;

/// What the annotations say of a volume; all of them are there, or none.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Shown {
    nodes: String,
    since: String,
    read_only: bool,
}

/// What a ledger means for people who look at the PersistentVolume: who has it, and since when.
fn shown(ledger: &Ledger) -> Option<Shown> {
    let held: Vec<_> = ledger.holds().iter().filter(|(_, hold)| hold.phase == Phase::Held).collect();
    let since = held.iter().map(|(_, hold)| hold.since).min()?;
    let nodes: Vec<&str> = held.iter().map(|(node, _)| node.as_str()).collect();
    let read_only = held.iter().all(|(_, hold)| !hold.mode.write);
    Some(Shown { nodes: nodes.join(","), since: format!("{since:.0}"), read_only })
}

/// The annotations that differ from what they should be; `None` where they do not.
fn difference(pv: &Pv, shown: Option<&Shown>) -> Option<Value> {
    let wanted: BTreeMap<&str, String> = shown.map_or_else(BTreeMap::new, |shown| {
        BTreeMap::from([
            (ATTACHED_NODE, shown.nodes.clone()),
            (ATTACH_TIME, shown.since.clone()),
            (READ_ONLY, shown.read_only.to_string()),
        ])
    });
    let mut change = Map::new();
    for key in [ATTACHED_NODE, ATTACH_TIME, READ_ONLY] {
        let full = format!("{ANNOTATIONS}{key}");
        if pv.annotations.get(&full) != wanted.get(key) {
            change.insert(full, wanted.get(key).map_or(Value::Null, |value| Value::String(value.clone())));
        }
    }
    (!change.is_empty()).then(|| json!({"metadata": {"annotations": change}}))
}

/// What became of each ticket, in the words of its verdict.
fn conditions(
    view: &View,
    before: &BTreeMap<String, Condition>,
    now: jiff::Timestamp,
) -> BTreeMap<String, Condition> {
    let condition = |(id, ticket): (&TicketId, &Ticket)| {
        let verdict = view.verdicts.get(id)?;
        let id = id.to_string();
        let condition = Condition::of_verdict(verdict, ticket, before.get(&id), now);
        Some((id, condition))
    };
    view.ledger.tickets().iter().filter_map(condition).collect()
}

/// The states that a ledger does not know of.
fn unusable(state: VolumeState) -> Option<VolumeState> {
    match state {
        VolumeState::Faulted | VolumeState::Deleting => Some(state),
        VolumeState::Detached | VolumeState::Attaching | VolumeState::Attached | VolumeState::Detaching => {
            None
        }
    }
}

/// Whether what could not be written may be written a moment later.
fn comes_again(error: &StoreError) -> bool {
    // Whoever wrote it may have changed something else, so that this did not go along.
    matches!(error, StoreError::Conflict { .. } | StoreError::Unavailable { .. })
}

/// Writes the annotations and the verdicts. It runs until it is dropped.
pub struct Mirror {
    tasks: Vec<tokio::task::AbortHandle>,
}

impl Drop for Mirror {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

struct Inner {
    api: Api<PersistentVolume>,
    catalog: Catalog,
    pvs: Arc<PersistentVolumes>,
    attacher: Option<Attacher>,
    notes: Option<Arc<KubeStore>>,
    writes: Writes,
    state: Mutex<State>,
    news: Notify,
}

/// What was noted of a volume.
#[derive(Default, PartialEq, Eq)]
struct Noted {
    conditions: BTreeMap<String, Condition>,
    /// Why nobody can have it; only while somebody waits.
    unusable: Option<VolumeState>,
}

#[derive(Default)]
struct State {
    shown: HashMap<VolumeId, Shown>,
    /// Volumes whose PersistentVolumes have to be looked at.
    due: HashSet<String>,
    /// What was last noted of the tickets of a volume, and since when each stands so.
    noted: HashMap<VolumeId, Noted>,
    /// Volumes whose verdicts have to be written, because nothing else will be.
    untold: HashSet<VolumeId>,
}

impl Mirror {
    /// Begins with every ledger there is.
    pub async fn start(
        client: Client,
        catalog: Catalog,
        pvs: Arc<PersistentVolumes>,
        attacher: Option<Attacher>,
        notes: Option<Arc<KubeStore>>,
        writes: Writes,
    ) -> Result<Self, ListError> {
        let inner = Arc::new(Inner {
            api: Api::all(client),
            catalog,
            pvs,
            attacher,
            notes,
            writes,
            state: Mutex::default(),
            news: Notify::new(),
        });
        let changes = inner.catalog.engine().changes();
        inner.read_all().await?;
        let weak = Arc::downgrade(&inner);
        inner.pvs.on_change(move |name| {
            let Some(inner) = weak.upgrade() else { return };
            if let Some(pv) = inner.pvs.known.get(name) {
                inner.due(&pv.handle);
            }
        });
        let hearing = tokio::spawn(Arc::clone(&inner).hear(changes));
        let writing = tokio::spawn(inner.write_for_ever());
        Ok(Self { tasks: vec![hearing.abort_handle(), writing.abort_handle()] })
    }
}

impl Inner {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn due(&self, handle: &str) {
        self.state().due.insert(handle.to_owned());
        self.news.notify_one();
    }

    fn learn(&self, volume: &VolumeId, ledger: &Ledger) {
        {
            let mut state = self.state();
            let before = state.shown.get(volume).cloned();
            let now = shown(ledger);
            if before == now {
                return;
            }
            match now {
                Some(now) => state.shown.insert(volume.clone(), now),
                None => state.shown.remove(volume),
            };
        }
        self.due(volume.as_str());
    }

    /// Notes what became of each ticket: it goes along with the next write of the ledger. That a volume was granted is written anyway; that
    /// somebody waits may not be.
    fn note(&self, view: &View) {
        let Some(store) = &self.notes else { return };
        let now = jiff::Timestamp::now();
        let mut state = self.state();
        let before = state.noted.remove(&view.volume).unwrap_or_default();
        let conditions = conditions(view, &before.conditions, now);
        let waits = conditions.values().any(|one| one.status != Truth::True);
        let unusable = unusable(view.state).filter(|_| waits);
        let noted = Noted { conditions, unusable };
        let same = noted == before;
        let conditions = noted.conditions.clone();
        if noted != Noted::default() {
            state.noted.insert(view.volume.clone(), noted);
        }
        if same {
            return;
        }
        let ticket = |(id, condition): (String, Condition)| {
            let generation = view.ledger.tickets().iter().find(|(known, _)| known.as_str() == id);
            let generation = generation.map(|(_, ticket)| ticket.generation);
            let satisfied = condition.status == Truth::True;
            (id, json!(TicketStatus { satisfied, generation, conditions: vec![condition] }))
        };
        let statuses: Map<String, Value> = conditions.into_iter().map(ticket).collect();
        let mut fields = Map::new();
        fields.insert("attachmentTicketStatuses".to_owned(), Value::Object(statuses));
        if let Some(state) = unusable {
            fields.insert("state".to_owned(), state.as_str().into());
        }
        store.note(&Key::ledger(&view.volume), fields);
        // What was shown of a volume that nobody could use may have gone along with the last write.
        if !waits && before.unusable.is_none() {
            state.untold.remove(&view.volume);
        } else {
            state.untold.insert(view.volume.clone());
            drop(state);
            self.news.notify_one();
        }
    }

    async fn show(&self, volume: VolumeId) {
        let Some(store) = &self.notes else { return };
        self.writes.count("bowline-volumeattachment", "verdicts");
        if let Err(error) = store.show(&Key::ledger(&volume)).await {
            tracing::debug!(%volume, %error, "the verdicts were not written by themselves");
            if comes_again(&error) {
                self.state().untold.insert(volume);
                self.news.notify_one();
            }
        }
    }

    async fn read_all(&self) -> Result<(), ListError> {
        self.catalog
            .for_each_ledger(|volume, ledger| {
                self.learn(&volume, &ledger);
                self.due(volume.as_str());
            })
            .await
    }

    async fn hear(self: Arc<Self>, mut changes: Changes) {
        while let Some(view) = changes.next().await {
            self.learn(&view.volume, &view.ledger);
            self.note(&view);
        }
    }

    async fn write_for_ever(self: Arc<Self>) {
        loop {
            self.news.notified().await;
            // One write per volume in this time, however often it changes.
            tokio::time::sleep(EVERY).await;
            let untold = std::mem::take(&mut self.state().untold);
            let show = async |volume| {
                self.let_others_go_first().await;
                self.show(volume).await;
            };
            futures::stream::iter(untold).for_each_concurrent(AT_ONCE, show).await;
            let due = std::mem::take(&mut self.state().due);
            let write = async |handle| {
                self.let_others_go_first().await;
                self.write(handle).await;
            };
            futures::stream::iter(due).for_each_concurrent(AT_ONCE, write).await;
        }
    }

    /// Waits while there are grants to be made, but not for ever: in a storm, little is written, and after it the rest.
    async fn let_others_go_first(&self) {
        for _ in 0..LOOKS {
            if self.attacher.as_ref().map_or(0, Attacher::working) == 0 {
                return;
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    async fn write(&self, handle: String) {
        // What is written on a volume that is not known is a witness: adoption compares it with what others say.
        let Some(volume) = VolumeId::new(&handle).ok().filter(|volume| self.catalog.knows(volume)) else {
            return;
        };
        let shown = self.state().shown.get(&volume).cloned();
        for pv in self.pvs.known.of_volume(&handle) {
            let Some(patch) = difference(&pv, shown.as_ref()) else { continue };
            self.writes.count("persistentvolume", "annotations");
            match self.api.patch(&pv.name, &PatchParams::default(), &Patch::Merge(&patch)).await {
                Ok(_) => {}
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                Err(error) => {
                    // Best effort, but not forgotten: it comes again with the next change.
                    tracing::debug!(pv = pv.name, %error, "the annotations were not written");
                    self.due(&handle);
                }
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed check is a panic")]
mod tests {
    use super::*;

    #[test]
    fn only_what_differs_is_written() {
        let shown =
            Shown { nodes: "a".to_owned(), since: "2026-01-01T12:00:00Z".to_owned(), read_only: false };
        let mut pv = Pv { name: "p".to_owned(), ..Pv::default() };
        assert_eq!(difference(&pv, None), None);
        let patch = difference(&pv, Some(&shown)).unwrap();
        let all = patch["metadata"]["annotations"].as_object().unwrap().clone();
        assert_eq!(all.len(), 3);
        pv.annotations =
            all.iter().map(|(key, value)| (key.clone(), value.as_str().unwrap().to_owned())).collect();
        assert_eq!(difference(&pv, Some(&shown)), None);
        let moved = Shown { nodes: "b".to_owned(), ..shown };
        let patch = difference(&pv, Some(&moved)).unwrap();
        assert_eq!(patch, json!({"metadata": {"annotations": {"csi.bowline.storage/attached-node": "b"}}}));
        let gone = difference(&pv, None).unwrap();
        assert_eq!(gone["metadata"]["annotations"]["csi.bowline.storage/readonly"], Value::Null);
    }
}
