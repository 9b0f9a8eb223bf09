//! Which targets there are, and the connections to their agents.
//!
//! **Flow.** Every pod that runs an agent offers its target (`offer.rs`): a Target object is written for it. Every Target object, whoever wrote it, is connected, and told to the catalog; one whose address changed, or
//! whose agent says something else of itself than before, is connected anew. What is known of it is in its status (`show.rs`). It is looked at when
//! somebody has changed something of it, and now and then; what is written into its status here is no change.
//!
//! **Guarantees.** A target is only ever the one of its name: an agent that says it is another is refused. A Target that was
//! deleted stays, by its finalizer, as long as there is a volume or a snapshot on it. Of which storage it is, is stored before it is told to
//! anybody: an agent that was started over an empty directory would prove that nobody was ever let in.

mod failing;
mod offer;
mod orphans;
mod show;

pub use offer::of_node;
pub use orphans::OrphanStatuses;

use bowline_api::{Target, TargetStatus};
use bowline_controller::Catalog;
use bowline_core::{TargetId, Timestamp};
use bowline_target::Provision;
use bowline_target::agent::{AgentClient, ClientSettings, ConnectError, Look, Place, TlsFiles};
use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ListParams, Patch, PatchParams};
use kube::runtime::controller::{Action, trigger_self};
use kube::runtime::{Config, Controller, PredicateConfig, WatchStreamExt, applier, reflector, watcher};
use kube::{Api, Client, Resource, ResourceExt};
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use self::failing::Failing;
use self::offer::{PODS, offered};
use self::show::{Heard, told};
use crate::adopt::Adopter;
use crate::events::{Remark, Speaker};

const MANAGER: &str = "bowline-controller";
/// How often what is known of a target is looked at again.
const LOOK: Duration = Duration::from_secs(30);
/// How long an agent may take to say who it is before the start goes on without it.
const FIRST: Duration = Duration::from_secs(5);
/// When an offer that was not written is written again.
const AGAIN: Duration = Duration::from_secs(5);

/// What is needed to find and to reach agents.
pub struct Parts {
    /// The API server.
    pub client: Client,
    /// Where the agents of nodes run.
    pub namespace: String,
    /// Whom to tell.
    pub catalog: Catalog,
    /// What to show to agents, and whom to trust.
    pub tls: TlsFiles,
    /// Where events go.
    pub speaker: Speaker,
    /// What is connected already.
    pub connections: Connections,
    /// Who may find on a new target what no other had.
    pub adopter: Adopter,
}

/// The targets that are connected.
#[derive(Default)]
pub struct Connections {
    all: HashMap<TargetId, Connection>,
    /// Those that have an object and did not answer at the start.
    missing: Vec<TargetId>,
    /// Those whose object says that nothing new is made there.
    draining: Vec<TargetId>,
}

#[derive(Clone)]
struct Connection {
    agent: Arc<AgentClient>,
    address: String,
    /// Of which storage its object said that it is when it was connected.
    installation: String,
}

impl Connection {
    /// Whether it is what the object asks for. Somebody who replaced the storage empties what is remembered of it.
    fn is_of(&self, object: &Target) -> bool {
        self.address == object.spec.address && self.installation == installation(object)
    }
}

impl Connections {
    /// The targets.
    pub fn targets(&self) -> Vec<Arc<dyn Provision>> {
        self.all.values().map(|one| Arc::clone(&one.agent) as Arc<dyn Provision>).collect()
    }

    /// Says which targets are still to come, and where nothing new is made. To be called before anybody can ask for a volume.
    pub fn expect(&self, catalog: &Catalog) {
        for target in &self.missing {
            catalog.expect_target(target);
        }
        for target in &self.draining {
            catalog.drain_target(target, true);
        }
    }
}

struct Context {
    client: Client,
    catalog: Catalog,
    tls: TlsFiles,
    speaker: Speaker,
    adopter: Adopter,
    connections: Mutex<Connections>,
    failing: Mutex<Failing>,
}

/// Why a target is not as its object says.
#[derive(Debug, thiserror::Error)]
enum TargetFailure {
    /// The object itself.
    #[error("{0}")]
    Field(String),
    /// The agent.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The agent is not what the object says.
    #[error(
        "its object says that it is of kind {object}, and the agent at {place} is of kind {agent}; start the agent with the right --export, \
         or delete the object and write it anew"
    )]
    Kind {
        /// What the object says.
        object: &'static str,
        /// What the agent says.
        agent: String,
        /// Where it is.
        place: String,
    },
    /// It still has something.
    #[error("it is not forgotten: {0}")]
    InUse(String),
    /// The API server.
    #[error(transparent)]
    Api(#[from] Box<kube::Error>),
}

impl TargetFailure {
    /// Why it is not connected, in one word; nothing for what says nothing about its agent.
    fn reason(&self) -> Option<&'static str> {
        match self {
            Self::Field(_) => Some("BadName"),
            Self::Connect(ConnectError::Unreachable { .. }) => Some(show::SILENT),
            Self::Connect(ConnectError::NotServing { .. }) => Some("NotServing"),
            Self::Connect(ConnectError::Protocol { .. }) => Some(show::OTHER_PROTOCOL),
            Self::Connect(ConnectError::Unclear { .. }) => Some("Unclear"),
            Self::Connect(ConnectError::Another { .. }) => Some("AnotherTarget"),
            Self::Connect(ConnectError::OtherStorage { .. }) => Some("OtherStorage"),
            Self::Kind { .. } => Some("OtherKind"),
            Self::InUse(_) | Self::Api(_) => None,
        }
    }
}

/// Keeps targets connected until it is dropped. Only the leader runs this.
pub async fn run(parts: Parts) {
    let Parts { client, namespace, catalog, tls, speaker, connections, adopter } = parts;
    let (connections, failing) = (Mutex::new(connections), Mutex::default());
    let context = Context { client: client.clone(), catalog, tls, speaker, adopter, connections, failing };
    let context = Arc::new(context);
    let pods = Controller::new(
        Api::<Pod>::namespaced(client.clone(), &namespace),
        watcher::Config::default().labels(PODS),
    )
    .run(offer, |_, _, _| Action::requeue(AGAIN), Arc::clone(&context))
    .for_each(|_| std::future::ready(()));
    futures::future::join(pods, keep_all(Api::all(client), context)).await;
}

/// Looks at every target whenever its object asks for something else, and now and then.
async fn keep_all(api: Api<Target>, context: Arc<Context>) {
    let (known, writer) = reflector::store();
    let changes = watcher(api, watcher::Config::default())
        .default_backoff()
        .reflect(writer)
        .applied_objects()
        .predicate_filter(asked, PredicateConfig::default());
    let look = |target, context| Box::pin(keep(target, context));
    let again = |target: Arc<Target>, _: &TargetFailure, context: Arc<Context>| {
        Action::requeue(context.failing().pause(&target.name_any()))
    };
    let queue = Box::pin(trigger_self(changes, ()));
    applier(look, again, context, known, queue, Config::default()).for_each(|_| std::future::ready(())).await;
}

/// What of an object is a wish. What else is in its status is written here: were that looked at, a target whose room changes all the time would be
/// looked at and written without end.
fn asked(target: &Target) -> Option<u64> {
    let mut hasher = DefaultHasher::new();
    let going = target.metadata.deletion_timestamp.is_some();
    (target.metadata.generation, going, target.finalizers(), installation(target)).hash(&mut hasher);
    Some(hasher.finish())
}

/// Connects every target that has an object and whose agent answers; the others are connected by [`run`] when they do.
pub async fn connect_all(client: &Client, tls: &TlsFiles) -> Result<Connections, kube::Error> {
    let objects = Api::<Target>::all(client.clone()).list(&ListParams::default()).await?;
    let connect = async |object: &Target| {
        let id = id(object).ok()?;
        let place = Place::Tls { address: object.spec.address.clone(), files: tls.clone() };
        match tokio::time::timeout(FIRST, connect(client, object, &id, place)).await {
            Ok(Ok(connection)) => Some((id, Some(connection))),
            Ok(Err(error)) => {
                tracing::warn!(target = %id, %error, "not connected yet");
                Some((id, None))
            }
            Err(_) => {
                tracing::warn!(target = %id, "not connected yet: no answer within {FIRST:?}");
                Some((id, None))
            }
        }
    };
    let agents = futures::future::join_all(objects.iter().map(connect)).await;
    let draining = objects.iter().filter(|object| object.spec.drain).filter_map(|object| id(object).ok());
    let mut connections = Connections { draining: draining.collect(), ..Connections::default() };
    for (id, connection) in agents.into_iter().flatten() {
        match connection {
            Some(connection) => drop(connections.all.insert(id, connection)),
            None => connections.missing.push(id),
        }
    }
    Ok(connections)
}

/// Of which storage the target was when it was last connected; empty if it never was.
fn installation(object: &Target) -> &str {
    object.status.as_ref().map(|status| status.installation.as_str()).unwrap_or_default()
}

/// Connects the agent of a target, and remembers or checks of which storage it is.
async fn connect(
    client: &Client,
    object: &Target,
    id: &TargetId,
    place: Place,
) -> Result<Connection, TargetFailure> {
    let agent = AgentClient::connect(place, Some(id), ClientSettings::default()).await?;
    if agent.kind() != object.spec.kind.as_str() {
        let (agent, place) = (agent.kind().to_owned(), agent.place().to_owned());
        return Err(TargetFailure::Kind { object: object.spec.kind.as_str(), agent, place });
    }
    let agent = agent.also_in(object.spec.topology.clone());
    let mut known = installation(object).to_owned();
    agent.must_be(&known)?;
    if known != agent.storage() {
        // With what was read: somebody else may have remembered another by now.
        let patch = serde_json::json!({
            "metadata": { "resourceVersion": object.resource_version() },
            "status": { "installation": agent.storage() },
        });
        let api: Api<Target> = Api::all(client.clone());
        let written = api
            .patch_status(&object.name_any(), &PatchParams::default(), &Patch::Merge(patch))
            .await
            .map_err(Box::new)?;
        // Nothing, where the definition of the kind is older than this program.
        known = installation(&written).to_owned();
    }
    Ok(Connection { agent: Arc::new(agent), address: object.spec.address.clone(), installation: known })
}

async fn offer(pod: Arc<Pod>, context: Arc<Context>) -> Result<Action, TargetFailure> {
    if let Some(target) = offered(&pod) {
        let api: Api<Target> = Api::all(context.client.clone());
        api.patch(&target.name_any(), &PatchParams::apply(MANAGER).force(), &Patch::Apply(&target))
            .await
            .map_err(Box::new)?;
    }
    Ok(Action::await_change())
}

async fn keep(target: Arc<Target>, context: Arc<Context>) -> Result<Action, TargetFailure> {
    let kept = if target.metadata.deletion_timestamp.is_some() {
        context.forget(&target).await
    } else {
        let connected = context.connect(&target).await;
        if let Err(failure) = &connected {
            context.show_failure(&target, failure).await;
        }
        connected
    };
    match &kept {
        Ok(()) => context.failing().end(&target.name_any()),
        Err(failure) => context.tell(&target, failure).await,
    }
    // Also one that is forgotten, or whose finalizer was written: if that met another write, it is not heard of here.
    kept.map(|()| Action::requeue(LOOK))
}

fn id(target: &Target) -> Result<TargetId, TargetFailure> {
    TargetId::new(target.name_any()).map_err(|error| TargetFailure::Field(format!("metadata.name: {error}")))
}

impl Context {
    fn connections(&self) -> MutexGuard<'_, Connections> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn failing(&self) -> MutexGuard<'_, Failing> {
        self.failing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn connect(&self, target: &Target) -> Result<(), TargetFailure> {
        let id = id(target)?;
        if !self.finalizer(target, true).await? {
            // The change comes here by itself, and with it the object as it is then; at the next look at the latest.
            return Ok(());
        }
        self.catalog.drain_target(&id, target.spec.drain);
        self.catalog.expect_target(&id);
        let held = self.connections().all.get(&id).cloned();
        let held = match held.filter(|held| held.is_of(target)) {
            Some(held) => Some((held.agent.look().await, held.agent)).filter(|(look, _)| look.as_it_was),
            None => None,
        };
        let (look, agent) = match held {
            Some(held) => held,
            None => {
                let place = Place::Tls { address: target.spec.address.clone(), files: self.tls.clone() };
                let connection = connect(&self.client, target, &id, place).await?;
                let agent = Arc::clone(&connection.agent);
                tracing::info!(target = %id, address = connection.address, "connected");
                // What did not work now is tried again by itself.
                if let Err(error) = self.catalog.add_target(Arc::clone(&agent) as Arc<dyn Provision>).await {
                    tracing::warn!(target = %id, %error, "not compared with the ledgers yet");
                }
                self.connections().all.insert(id, connection);
                self.adopter.target_came();
                (agent.look().await, agent)
            }
        };
        self.show(target, &agent, look).await
    }

    async fn show(&self, target: &Target, agent: &AgentClient, look: Look) -> Result<(), TargetFailure> {
        let room = agent.capacity().await;
        if let Ok(room) = &room {
            self.catalog.count_room(&id(target)?, room);
        }
        let heard = Heard {
            version: agent.version(),
            least: agent.sizes().minimum,
            clock: look.clock,
            exports: look.exports,
            room: room.map_err(|error| error.to_string()),
        };
        self.write(target, told(target, Ok(&heard), Timestamp::now())).await
    }

    /// What kept it from being connected, where people look first.
    async fn show_failure(&self, target: &Target, failure: &TargetFailure) {
        let Some(reason) = failure.reason() else { return };
        let status = told(target, Err((reason, failure.to_string())), Timestamp::now());
        if let Err(error) = self.write(target, status).await {
            tracing::warn!(target = %target.name_any(), %error, "its object does not say what is wrong with it");
        }
    }

    /// Writes what is known of a target, if it is not what its object says already.
    async fn write(&self, target: &Target, status: TargetStatus) -> Result<(), TargetFailure> {
        if target.status.as_ref() == Some(&status) {
            return Ok(());
        }
        let api: Api<Target> = Api::all(self.client.clone());
        // Of which storage it is was written when it was connected, and its orphans are written when they are looked for; either may be newer.
        let (installation, orphans) = (String::new(), Vec::new());
        let patch = serde_json::json!({ "status": TargetStatus { installation, orphans, ..status } });
        match api.patch_status(&target.name_any(), &PatchParams::default(), &Patch::Merge(patch)).await {
            // Gone meanwhile.
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            other => other.map(drop).map_err(|error| Box::new(error).into()),
        }
    }

    async fn forget(&self, target: &Target) -> Result<(), TargetFailure> {
        let id = id(target)?;
        self.catalog.remove_target(&id).await.map_err(|error| TargetFailure::InUse(error.to_string()))?;
        self.connections().all.remove(&id);
        tracing::info!(target = %id, "forgotten");
        self.finalizer(target, false).await.map(drop)
    }

    /// Puts the finalizer on, or takes it off; tells whether it was so already.
    async fn finalizer(&self, target: &Target, wanted: bool) -> Result<bool, TargetFailure> {
        let ours = bowline_api::keys::FINALIZER;
        if target.finalizers().iter().any(|one| one == ours) == wanted {
            return Ok(true);
        }
        let mut finalizers: Vec<&str> =
            target.finalizers().iter().map(String::as_str).filter(|one| *one != ours).collect();
        if wanted {
            finalizers.push(ours);
        }
        let patch = serde_json::json!({ "metadata": {
            "finalizers": finalizers, "resourceVersion": target.resource_version(),
        }});
        let api: Api<Target> = Api::all(self.client.clone());
        match api.patch(&target.name_any(), &PatchParams::default(), &Patch::Merge(patch)).await {
            // Changed since: it is looked at again.
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(false),
            other => other.map(|_| false).map_err(|error| Box::new(error).into()),
        }
    }

    async fn tell(&self, target: &Target, failure: &TargetFailure) {
        let sentence = failure.to_string();
        if !self.failing().note(&target.name_any(), &sentence) {
            return;
        }
        tracing::warn!(target = %target.name_any(), error = sentence, "a target is not as its object says");
        let remark = Remark::warning("Connect", "TargetNotConnected", sentence);
        self.speaker.say(&target.object_ref(&()), &remark).await;
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed check is a panic")]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn target(change: impl FnOnce(&mut Value)) -> Target {
        let mut object = json!({"apiVersion": "bowline.storage/v1beta1", "kind": "Target",
            "metadata": {"name": "t", "generation": 1, "resourceVersion": "1"}, "spec": {"kind": "file", "address": "a:1"},
            "status": {"free": "1Gi", "installation": "one"}});
        change(&mut object);
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn a_target_whose_room_changed_all_the_time_was_looked_at_without_end() {
        let before = asked(&target(|_| {}));
        let written = target(|object| {
            object["status"]["free"] = json!("1023Mi");
            object["status"]["orphans"] = json!([{"volume": "v", "firstSeen": "2026-01-01T00:00:00Z"}]);
            object["metadata"]["resourceVersion"] = json!("2");
        });
        assert_eq!(asked(&written), before);
        let changes: [fn(&mut Value); 5] = [
            |object| object["metadata"]["generation"] = json!(2),
            |object| object["metadata"]["finalizers"] = json!(["x/y"]),
            |object| object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z"),
            |object| object["status"]["installation"] = json!(""),
            |object| object["status"] = Value::Null,
        ];
        for (number, change) in changes.into_iter().enumerate() {
            assert_ne!(asked(&target(change)), before, "change {number} is somebody's");
        }
    }
}
