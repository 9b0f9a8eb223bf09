//! Events of Kubernetes, on the objects that people look at: the claim, the pods that wait for it, and the volume itself.

use bowline_api::Volume;
use bowline_api::keys::{GROUP, VERSION};
use bowline_controller::{Catalog, Event};
use bowline_core::{NodeId, Slot, VolumeId};
use k8s_openapi::api::core::v1::{ObjectReference, Pod};
use k8s_openapi::api::events::v1::Event as KubeEvent;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;
use std::collections::{HashMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;
use tokio::sync::{broadcast, mpsc};

use crate::attacher::{Attacher, PersistentVolumes};
use crate::fence::claims;
use crate::writes::Writes;

/// Who reports them.
const CONTROLLER: &str = "bowline.storage/controller";
const NODE: &str = "bowline.storage/node";
/// How many are remembered, to count those that come again instead of making new ones.
const REMEMBERED: usize = 1024;
/// How many may wait to be written.
const WAITING: usize = 8192;
/// How often they are put off in a row because of grants, and for how long each time. After that, each of them waits a little: in a storm few are
/// written, and after it the rest.
const PUT_OFF: u32 = 100;
const EACH: u32 = 2;
const PAUSE: Duration = Duration::from_millis(100);
/// The API server refuses longer notes.
const NOTE: usize = 1024;

/// Writes events. It runs until it is dropped.
pub struct EventWriter {
    tasks: [tokio::task::AbortHandle; 2],
    attacher: Arc<OnceLock<Attacher>>,
}

impl Drop for EventWriter {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

impl EventWriter {
    /// Writes what the catalog tells from now on.
    pub fn start(client: Client, catalog: &Catalog, pvs: Arc<PersistentVolumes>, speaker: Speaker) -> Self {
        let (waiting, inbox) = mpsc::channel(WAITING);
        let attacher = Arc::new(OnceLock::new());
        let writer = Writer { client, pvs, speaker, uids: Mutex::default(), attacher: Arc::clone(&attacher) };
        let hearing = tokio::spawn(hear(catalog.follow_events(), waiting)).abort_handle();
        let tasks = [hearing, tokio::spawn(writer.run(inbox)).abort_handle()];
        Self { tasks, attacher }
    }

    /// From now on events wait while this one works on grants.
    pub(crate) fn give_way_to(&self, attacher: Attacher) {
        // Set once, by whoever started both.
        let _ = self.attacher.set(attacher);
    }
}

/// Those that were written last, with how often.
#[derive(Default)]
struct Recent {
    counts: HashMap<String, i32>,
    order: VecDeque<String>,
}

impl Recent {
    fn seen(&mut self, name: &str) -> i32 {
        if let Some(count) = self.counts.get_mut(name) {
            *count += 1;
            return *count;
        }
        if self.order.len() == REMEMBERED
            && let Some(oldest) = self.order.pop_front()
        {
            self.counts.remove(&oldest);
        }
        self.order.push_back(name.to_owned());
        self.counts.insert(name.to_owned(), 1);
        1
    }
}

/// Something to be said on an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Remark {
    pub(crate) action: &'static str,
    pub(crate) reason: String,
    pub(crate) message: String,
    pub(crate) is_warning: bool,
}

impl Remark {
    /// Something that somebody should look at.
    pub(crate) fn warning(action: &'static str, reason: &str, message: String) -> Self {
        Self { action, reason: reason.to_owned(), message, is_warning: true }
    }
}

/// Says things on objects. The same thing said again is one event, counted; another sentence is another event, also under the same reason. A handle;
/// clones share it.
#[derive(Clone)]
pub struct Speaker {
    inner: Arc<SpeakerParts>,
}

struct SpeakerParts {
    client: Client,
    writes: Writes,
    reporter: &'static str,
    instance: String,
    recent: Mutex<Recent>,
}

impl Speaker {
    /// `instance` is this process: the name of its pod.
    pub fn new(client: Client, writes: Writes, instance: &str) -> Self {
        Self::of(client, writes, CONTROLLER, instance)
    }

    /// For what happens on a node.
    pub fn of_node(client: Client, writes: Writes, node: &NodeId) -> Self {
        Self::of(client, writes, NODE, node.as_str())
    }

    fn of(client: Client, writes: Writes, reporter: &'static str, instance: &str) -> Self {
        let (instance, recent) = (instance.to_owned(), Mutex::default());
        Self { inner: Arc::new(SpeakerParts { client, writes, reporter, instance, recent }) }
    }

    /// Says something of a volume, on the object of our kind: the one that is found from its id alone.
    pub async fn say_of_volume(&self, volume: &VolumeId, reason: &str, message: String, is_warning: bool) {
        let remark = Remark { action: "Mount", reason: reason.to_owned(), message, is_warning };
        self.say(&volume_reference(volume), &remark).await;
    }

    /// Says it. That it could not be said is logged: nothing depends on it.
    pub(crate) async fn say(&self, object: &ObjectReference, remark: &Remark) {
        if let Err(error) = self.write(object, remark).await {
            let name = object.name.as_deref().unwrap_or_default();
            tracing::debug!(object = name, reason = remark.reason, %error, "an event was not written");
        }
    }

    async fn write(&self, object: &ObjectReference, remark: &Remark) -> Result<(), kube::Error> {
        let SpeakerParts { client, writes, reporter, instance, recent } = &*self.inner;
        // What is cluster-scoped has its events in the namespace `default`.
        let namespace = object.namespace.clone().unwrap_or_else(|| "default".to_owned());
        let name = event_name(object, remark);
        let api: Api<KubeEvent> = Api::namespaced(client.clone(), &namespace);
        let now = MicroTime(jiff::Timestamp::now());
        let count = recent.lock().unwrap_or_else(PoisonError::into_inner).seen(&name);
        if count > 1 {
            let patch = json!({"series": {"count": count, "lastObservedTime": now}});
            writes.count("event", "series");
            match api.patch(&name, &PatchParams::default(), &Patch::Merge(&patch)).await {
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                written => return written.map(|_| ()),
            }
        }
        let mut note = remark.message.clone();
        note.truncate(note.floor_char_boundary(NOTE));
        let new = KubeEvent {
            metadata: ObjectMeta { name: Some(name), namespace: Some(namespace), ..ObjectMeta::default() },
            event_time: Some(now),
            action: Some(remark.action.to_owned()),
            reason: Some(remark.reason.clone()),
            note: Some(note),
            regarding: Some(object.clone()),
            reporting_controller: Some((*reporter).to_owned()),
            reporting_instance: Some(instance.clone()),
            type_: Some(if remark.is_warning { "Warning" } else { "Normal" }.to_owned()),
            ..KubeEvent::default()
        };
        writes.count("event", "create");
        match api.create(&PostParams::default(), &new).await {
            // An earlier process has told the same.
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
            written => written.map(|_| ()),
        }
    }
}

struct Writer {
    client: Client,
    pvs: Arc<PersistentVolumes>,
    speaker: Speaker,
    /// Those of Volumes that something was said of, also when they are gone.
    uids: Mutex<HashMap<VolumeId, String>>,
    attacher: Arc<OnceLock<Attacher>>,
}

/// Whether somebody should look.
fn is_warning(reason: &str) -> bool {
    !matches!(
        reason,
        "Attached"
            | "Detached"
            | "Created"
            | "Deleted"
            | "Grown"
            | "Modified"
            | "SnapshotTaken"
            | "InService"
            | "Adopted"
    )
}

/// Whether pods wait because of it.
fn holds_up_pods(reason: &str) -> bool {
    matches!(reason, "Waiting" | "Fencing" | "Refused")
}

/// Takes events as they are told: they are written later, and whoever tells them waits for nobody.
async fn hear(mut told: broadcast::Receiver<Event>, waiting: mpsc::Sender<Event>) {
    let mut missing = 0_u64;
    loop {
        match told.recv().await {
            Ok(event) => match waiting.try_send(event) {
                // Thousands may be missing one after another; that is said once, when there is room again.
                Err(_) => missing += 1,
                Ok(()) if missing > 0 => {
                    tracing::warn!(missing, "too much happened at once; some events are missing");
                    missing = 0;
                }
                Ok(()) => {}
            },
            Err(broadcast::error::RecvError::Lagged(missed)) => {
                tracing::warn!(missed, "too much happened at once; some events are missing");
            }
            Err(broadcast::error::RecvError::Closed) => return,
        }
    }
}

impl Writer {
    async fn run(self, mut inbox: mpsc::Receiver<Event>) {
        let mut put_off = 0;
        while let Some(event) = inbox.recv().await {
            while put_off < PUT_OFF && self.attacher.get().is_some_and(|attacher| attacher.working() > 0) {
                tokio::time::sleep(PAUSE).await;
                put_off += 1;
            }
            put_off = if inbox.is_empty() { 0 } else { put_off.min(PUT_OFF - EACH) };
            self.write(&event).await;
        }
    }

    async fn write(&self, event: &Event) {
        let Some(volume) = &event.volume else { return };
        let remark = Remark {
            action: "Attach",
            reason: event.reason.clone(),
            message: event.message.clone(),
            is_warning: is_warning(&event.reason),
        };
        for object in self.objects(volume, &event.reason).await {
            self.speaker.say(&object, &remark).await;
        }
    }

    /// Whom it concerns.
    async fn objects(&self, volume: &VolumeId, reason: &str) -> Vec<ObjectReference> {
        let reference = volume_reference(volume);
        let uid = self.uid(volume, reference.name.as_deref().unwrap_or_default()).await;
        let mut objects = vec![ObjectReference { uid, ..reference }];
        for pv in self.pvs.known.of_volume(volume.as_str()) {
            let Some((namespace, name, uid)) = pv.claim.clone() else { continue };
            if holds_up_pods(reason) {
                objects.extend(self.pods(&namespace, &name).await);
            }
            objects.push(ObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some("PersistentVolumeClaim".to_owned()),
                namespace: Some(namespace),
                name: Some(name),
                uid: Some(uid).filter(|uid| !uid.is_empty()),
                ..ObjectReference::default()
            });
        }
        objects
    }

    /// The uid of a Volume, by which people's tools look for events; none where there is no such object.
    async fn uid(&self, volume: &VolumeId, name: &str) -> Option<String> {
        let known = self.uids.lock().unwrap_or_else(PoisonError::into_inner).get(volume).cloned();
        if known.is_some() {
            return known;
        }
        let api: Api<Volume> = Api::all(self.client.clone());
        let uid = api.get_metadata_opt(name).await.ok().flatten()?.metadata.uid?;
        let mut uids = self.uids.lock().unwrap_or_else(PoisonError::into_inner);
        if uids.len() >= REMEMBERED {
            uids.clear();
        }
        uids.insert(volume.clone(), uid.clone());
        Some(uid)
    }

    /// Pods that do not run yet and use the claim.
    async fn pods(&self, namespace: &str, claim: &str) -> Vec<ObjectReference> {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        let params = ListParams::default().fields("status.phase=Pending").limit(100);
        let Ok(pods) = api.list(&params).await else { return Vec::new() };
        let uses = |pod: &Pod| claims(pod).0.iter().any(|one| one == claim);
        let waiting = pods.items.into_iter().filter(uses);
        let reference = |pod: Pod| ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            namespace: pod.metadata.namespace,
            name: pod.metadata.name,
            uid: pod.metadata.uid,
            ..ObjectReference::default()
        };
        waiting.map(reference).collect()
    }
}

fn volume_reference(volume: &VolumeId) -> ObjectReference {
    let name =
        Slot::of_id(volume.as_str()).map_or_else(|| volume.to_string(), |slot| slot.as_str().to_owned());
    ObjectReference {
        api_version: Some(format!("{GROUP}/{VERSION}")),
        kind: Some("Volume".to_owned()),
        name: Some(name),
        ..ObjectReference::default()
    }
}

/// The same thing said of the same object has the same name, so that it is one event, counted.
fn event_name(object: &ObjectReference, remark: &Remark) -> String {
    let mut hasher = DefaultHasher::new();
    (&object.kind, &object.uid, &remark.reason, &remark.message).hash(&mut hasher);
    let name: String = object.name.as_deref().unwrap_or("volume").chars().take(200).collect();
    format!("{name}.{:016x}", hasher.finish())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed check is a panic")]
mod tests {
    use super::*;

    #[test]
    fn the_same_thing_is_one_event_and_another_thing_another() {
        let volume = volume_reference(&VolumeId::new("pvc-1-000000ab").unwrap());
        assert_eq!(volume.name.as_deref(), Some("pvc-1"));
        let event = |reason: &str, message: &str| Remark::warning("Attach", reason, message.to_owned());
        let name = event_name(&volume, &event("Waiting", "x"));
        assert_eq!(name, event_name(&volume, &event("Waiting", "x")));
        assert_ne!(name, event_name(&volume, &event("Waiting", "y")));
        assert_ne!(name, event_name(&volume, &event("Fencing", "x")));
        let mut recent = Recent::default();
        assert_eq!([recent.seen(&name), recent.seen(&name), recent.seen("other")], [1, 2, 1]);
    }
}
