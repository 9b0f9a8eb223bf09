//! Which targets there are, and the connections to their agents.
//!
//! **Flow.** Every node that runs an agent offers its own files: for each of these pods that is ready, a Target object is
//! written. Every Target object, whoever wrote it, is connected, and told to the catalog; one whose address changed, or
//! whose agent says something else of itself than before, is connected anew. What is known of it is in its status.
//!
//! **Guarantees.** A target is only ever the one of its name: an agent that says it is another is refused. A Target that was
//! deleted stays, by its finalizer, as long as there is a volume or a snapshot on it. Of which storage it is, is stored before it is told to
//! anybody: an agent that was started over an empty directory would prove that nobody was ever let in.

use bowline_api::{Condition, Target, TargetSpec, TargetStatus};
use bowline_controller::Catalog;
use bowline_core::{TargetId, Timestamp};
use bowline_target::Provision;
use bowline_target::agent::{AgentClient, ClientSettings, Place, TlsFiles};
use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ListParams, Patch, PatchParams};
use kube::runtime::controller::Action;
use kube::runtime::{Controller, watcher};
use kube::{Api, Client, Resource, ResourceExt};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::adopt::Adopter;
use crate::events::{Remark, Speaker};

/// Which pods of the controller's namespace run an agent beside them.
const PODS: &str = "app.kubernetes.io/name=bowline,app.kubernetes.io/component in (node,target)";
/// On a pod that serves a directory of several nodes: the name of its target.
const LABEL: &str = "bowline.storage/target";
/// The container that is the agent, and its port.
const CONTAINER: &str = "target";
const PORT: &str = "agent";
const MANAGER: &str = "bowline-controller";
/// How often what is known of a target is looked at again.
const LOOK: Duration = Duration::from_secs(30);
/// How long an agent may take to say who it is before the start goes on without it.
const FIRST: Duration = Duration::from_secs(5);
/// When a connection that did not come about is tried again.
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
pub struct Connections(HashMap<TargetId, Connection>);

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
        self.0.values().map(|one| Arc::clone(&one.agent) as Arc<dyn Provision>).collect()
    }
}

struct Context {
    client: Client,
    catalog: Catalog,
    tls: TlsFiles,
    speaker: Speaker,
    adopter: Adopter,
    connections: Mutex<Connections>,
}

/// Why a target is not as its object says.
#[derive(Debug, thiserror::Error)]
enum TargetFailure {
    /// The object itself.
    #[error("{0}")]
    Field(String),
    /// The agent.
    #[error(transparent)]
    Connect(#[from] bowline_target::agent::ConnectError),
    /// It still has something.
    #[error("it is not forgotten: {0}")]
    InUse(String),
    /// The API server.
    #[error(transparent)]
    Api(#[from] Box<kube::Error>),
}

/// Keeps targets connected until it is dropped. Only the leader runs this.
pub async fn run(parts: Parts) {
    let Parts { client, namespace, catalog, tls, speaker, connections, adopter } = parts;
    let connections = Mutex::new(connections);
    let context = Arc::new(Context { client: client.clone(), catalog, tls, speaker, adopter, connections });
    let pods = Controller::new(
        Api::<Pod>::namespaced(client.clone(), &namespace),
        watcher::Config::default().labels(PODS),
    )
    .run(offer, |_, _, _| Action::requeue(AGAIN), Arc::clone(&context))
    .for_each(|_| std::future::ready(()));
    let targets = Controller::new(Api::<Target>::all(client), watcher::Config::default())
        .run(keep, |_, _, _| Action::requeue(AGAIN), context)
        .for_each(|_| std::future::ready(()));
    futures::future::join(pods, targets).await;
}

/// Connects every target that has an object and whose agent answers; the others are connected by [`run`] when they do.
pub async fn connect_all(client: &Client, tls: &TlsFiles) -> Result<Connections, kube::Error> {
    let objects = Api::<Target>::all(client.clone()).list(&ListParams::default()).await?;
    let connect = async |object: &Target| {
        let id = id(object).ok()?;
        let place = Place::Tls { address: object.spec.address.clone(), files: tls.clone() };
        match tokio::time::timeout(FIRST, connect(client, object, &id, place)).await {
            Ok(Ok(connection)) => Some((id, connection)),
            Ok(Err(error)) => {
                tracing::warn!(target = %id, %error, "not connected yet");
                None
            }
            Err(_) => {
                tracing::warn!(target = %id, "not connected yet: no answer within {FIRST:?}");
                None
            }
        }
    };
    let agents = futures::future::join_all(objects.iter().map(connect)).await;
    Ok(Connections(agents.into_iter().flatten().collect()))
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
    let mut known = installation(object).to_owned();
    agent.must_be(&known)?;
    if known != agent.installation() {
        // With what was read: somebody else may have remembered another by now.
        let patch = serde_json::json!({
            "metadata": { "resourceVersion": object.resource_version() },
            "status": { "installation": agent.installation() },
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

/// The target that a node's own agent serves.
pub fn of_node(node: &str) -> String {
    format!("file-{node}")
}

/// What the agent in a pod offers; nothing while it is not ready, and nothing any more once it is being deleted: a Target that a
/// person has deleted would come back while Bowline is removed, and keep its finalizer for ever.
fn offered(pod: &Pod) -> Option<Target> {
    if pod.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let status = pod.status.as_ref()?;
    let ready = status.container_statuses.iter().flatten().any(|one| one.name == CONTAINER && one.ready);
    let spec = pod.spec.as_ref()?;
    let container = spec.containers.iter().find(|one| one.name == CONTAINER)?;
    let port = container.ports.iter().flatten().find(|port| port.name.as_deref() == Some(PORT))?;
    let (node, address) = (spec.node_name.as_ref()?, status.pod_ip.as_ref().filter(|_| ready)?);
    let address = if address.contains(':') { format!("[{address}]") } else { address.clone() };
    let (name, topology) = match pod.labels().get(LABEL) {
        // The agent itself says from where.
        Some(name) => (name.clone(), BTreeMap::new()),
        None => {
            let host = (bowline_api::keys::TOPOLOGY_HOST.to_owned(), node.clone());
            (of_node(node), BTreeMap::from([host]))
        }
    };
    let address = format!("{address}:{}", port.container_port);
    let mut target = Target::new(
        &name,
        TargetSpec { kind: bowline_api::TargetKind::File, address, topology, drain: false },
    );
    target.metadata.labels =
        Some(BTreeMap::from([("app.kubernetes.io/managed-by".to_owned(), MANAGER.to_owned())]));
    Some(target)
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
        context.forget(&target).await.map(|()| Action::await_change())
    } else {
        context.connect(&target).await.map(|()| Action::requeue(LOOK))
    };
    if let Err(failure) = &kept {
        context.tell(&target, failure).await;
    }
    kept
}

fn id(target: &Target) -> Result<TargetId, TargetFailure> {
    TargetId::new(target.name_any()).map_err(|error| TargetFailure::Field(format!("metadata.name: {error}")))
}

impl Context {
    fn connections(&self) -> MutexGuard<'_, Connections> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn connect(&self, target: &Target) -> Result<(), TargetFailure> {
        let id = id(target)?;
        if !self.finalizer(target, true).await? {
            // The change comes here by itself, and with it the object as it is then.
            return Ok(());
        }
        self.catalog.drain_target(&id, target.spec.drain);
        let held = self.connections().0.get(&id).cloned();
        let held = match held.filter(|held| held.is_of(target)) {
            Some(held) if held.agent.is_as_it_was().await => Some(held),
            Some(_) | None => None,
        };
        let agent = match held {
            Some(held) => held.agent,
            None => {
                let place = Place::Tls { address: target.spec.address.clone(), files: self.tls.clone() };
                let connection = connect(&self.client, target, &id, place).await?;
                let agent = Arc::clone(&connection.agent);
                tracing::info!(target = %id, address = connection.address, "connected");
                // What did not work now is tried again by itself.
                if let Err(error) = self.catalog.add_target(Arc::clone(&agent) as Arc<dyn Provision>).await {
                    tracing::warn!(target = %id, %error, "not compared with the ledgers yet");
                }
                self.connections().0.insert(id, connection);
                self.adopter.target_came();
                agent
            }
        };
        self.show(target, &agent).await
    }

    /// Writes what is known of a target, if it is not what its object says already.
    async fn show(&self, target: &Target, agent: &AgentClient) -> Result<(), TargetFailure> {
        let (capacity, answers) = match agent.capacity().await {
            Ok(capacity) => (Some(capacity), Ok(())),
            Err(error) => (None, Err(error.to_string())),
        };
        let before = target.status.clone().unwrap_or_default();
        let shown = |bytes: fn(&bowline_target::Capacity) -> u64, before: &str| {
            capacity.as_ref().map_or_else(|| before.to_owned(), |one| bowline_api::size_of(bytes(one)))
        };
        let status = TargetStatus {
            capacity: shown(|one| one.total, &before.capacity),
            free: shown(|one| one.available, &before.free),
            version: agent.version().to_owned(),
            conditions: vec![Condition::new(
                TargetStatus::REACHABLE,
                answers.is_ok(),
                match answers {
                    Ok(()) => ("Answers", "Its agent answers.".to_owned()),
                    Err(error) => ("Silent", error),
                },
                before.conditions.iter().find(|one| one.kind == TargetStatus::REACHABLE),
                Timestamp::now(),
            )],
            ..before.clone()
        };
        if status == before {
            return Ok(());
        }
        let api: Api<Target> = Api::all(self.client.clone());
        // Of which storage it is was written when it was connected; somebody may have emptied it since.
        let patch = serde_json::json!({ "status": TargetStatus { installation: String::new(), ..status } });
        api.patch_status(&target.name_any(), &PatchParams::default(), &Patch::Merge(patch))
            .await
            .map_err(Box::new)?;
        Ok(())
    }

    async fn forget(&self, target: &Target) -> Result<(), TargetFailure> {
        let id = id(target)?;
        self.catalog.remove_target(&id).await.map_err(|error| TargetFailure::InUse(error.to_string()))?;
        self.connections().0.remove(&id);
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
            // Changed since: the change comes here by itself.
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(false),
            other => other.map(|_| false).map_err(|error| Box::new(error).into()),
        }
    }

    async fn tell(&self, target: &Target, failure: &TargetFailure) {
        tracing::warn!(target = %target.name_any(), error = %failure, "a target is not as its object says");
        let remark = Remark::warning("Connect", "TargetNotConnected", failure.to_string());
        self.speaker.say(&target.object_ref(&()), &remark).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(ready: bool, address: &str, container: &str) -> Pod {
        serde_json::from_value(serde_json::json!({
            "metadata": { "name": "bowline-node-x1" },
            "spec": { "nodeName": "worker-1", "containers": [
                { "name": "node" },
                { "name": container, "ports": [{ "name": "agent", "containerPort": 8470 }] },
            ]},
            "status": { "podIP": address, "containerStatuses": [
                { "name": "node", "ready": true, "image": "", "imageID": "", "restartCount": 0 },
                { "name": container, "ready": ready, "image": "", "imageID": "", "restartCount": 0 },
            ]},
        }))
        .unwrap_or_default()
    }

    #[test]
    fn only_an_agent_that_is_ready_offers_its_target() {
        let mut going = pod(true, "10.0.0.7", "target");
        going.metadata.deletion_timestamp = serde_json::from_str(r#""2026-01-01T00:00:00Z""#).ok();
        assert!(going.metadata.deletion_timestamp.is_some());
        let rows = [
            (going, None),
            (pod(true, "10.0.0.7", "target"), Some("10.0.0.7:8470")),
            (pod(true, "fd00::7", "target"), Some("[fd00::7]:8470")),
            (pod(false, "10.0.0.7", "target"), None),
            (pod(true, "10.0.0.7", "other"), None),
            (Pod::default(), None),
        ];
        let mut shared = pod(true, "10.0.0.8", "target");
        shared.labels_mut().insert(LABEL.to_owned(), "shared".to_owned());
        let shared = offered(&shared).map(|target| (target.name_any(), target.spec.topology));
        assert_eq!(shared, Some(("shared".to_owned(), BTreeMap::new())));
        for (pod, address) in rows {
            let target = offered(&pod);
            assert_eq!(target.as_ref().map(|one| one.spec.address.as_str()), address);
            if let Some(target) = target {
                assert_eq!(target.name_any(), "file-worker-1");
                assert_eq!(target.spec.topology["topology.bowline.storage/host"], "worker-1");
            }
        }
    }
}
