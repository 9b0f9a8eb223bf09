//! Targets elsewhere that a `bowline up` uses, agents and devices: found by their addresses, connected when they answer.
//!
//! **Guarantees.** A target is only ever the one of its name, over the storage that it had: which that is, is written down before it is told to
//! anybody, because an agent that was started over an empty directory would prove that nobody was ever let in.

use anyhow::{Context, Result};
use bowline_controller::Catalog;
use bowline_core::TargetId;
use bowline_csi::Endpoint;
use bowline_host::file::write_whole;
use bowline_target::agent::{AgentClient, ClientSettings, ExportsShown, Place, TlsFiles};
use bowline_target::{Provision, Target};
use bowline_web::wire::Finding;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::runtime::Handle;

use crate::rds::{Device, Devices};

/// How long the start waits for an agent that does not answer; it is connected later, when it does.
const FIRST: Duration = Duration::from_secs(5);
/// When a connection that did not come about is tried again.
const AGAIN: Duration = Duration::from_secs(5);
/// How long whoever asks how agents are waits for one that does not answer.
const LOOK: Duration = Duration::from_secs(5);

/// Where the agent of a target is, written `TARGET=HOST:PORT` or `TARGET=unix:///PATH`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentAt {
    /// The target.
    pub target: TargetId,
    /// Where its agent is.
    pub at: At,
}

/// Where an agent is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum At {
    /// On another machine.
    Address(String),
    /// On this one.
    Socket(PathBuf),
}

impl FromStr for AgentAt {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (target, at) =
            text.split_once('=').ok_or_else(|| format!("{text:?} is not of the form TARGET=HOST:PORT"))?;
        let target = TargetId::new(target).map_err(|error| error.to_string())?;
        if at.starts_with("unix:") || at.starts_with('/') {
            let socket: Endpoint = at.parse().map_err(|error| format!("{error}"))?;
            return Ok(Self { target, at: At::Socket(socket.path().to_owned()) });
        }
        let port = at.rsplit_once(':').filter(|(host, _)| !host.is_empty());
        if !port.is_some_and(|(_, port)| port.parse::<u16>().is_ok_and(|port| port != 0)) {
            return Err(format!("{at:?} is no address; write HOST:PORT, or unix:///PATH"));
        }
        Ok(Self { target, at: At::Address(at.to_owned()) })
    }
}

/// A target elsewhere.
#[derive(Clone)]
enum Elsewhere {
    Agent(AgentAt),
    Device(Arc<Device>),
}

impl Elsewhere {
    fn target(&self) -> &TargetId {
        match self {
            Self::Agent(agent) => &agent.target,
            Self::Device(device) => device.target(),
        }
    }
}

/// The agents that were reached. They are asked how they are when somebody wants to know, and not before.
#[derive(Clone, Default)]
pub(crate) struct Reached(Arc<Mutex<BTreeMap<TargetId, AgentClient>>>);

impl Reached {
    fn add(&self, agent: AgentClient) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.insert(agent.id().clone(), agent);
    }

    /// What they do not show to nodes. For a thread beside those of the runtime: it waits for their answers.
    pub(crate) fn findings(&self) -> Vec<Finding> {
        let all: Vec<AgentClient> =
            self.0.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect();
        Handle::current().block_on(futures::future::join_all(all.iter().map(exports)))
    }
}

/// What an agent says of the exports that it has to show to nodes.
async fn exports(agent: &AgentClient) -> Finding {
    let look = tokio::time::timeout(LOOK, agent.look()).await;
    let told = look.map_or(Ok(ExportsShown::NotTold), |look| look.exports);
    let detail = match &told {
        Ok(told) => told.to_string(),
        Err(bad) => format!("what its agent says of it cannot be understood: {bad}"),
    };
    let target = agent.id();
    Finding {
        what: format!("the exports of target {target}"),
        needed_for: format!("the nodes of volumes on {target}"),
        present: matches!(told, Ok(ExportsShown::All)),
        detail,
        // What is not told may be as it should be.
        required: matches!(told, Ok(ExportsShown::Missing { .. })),
    }
}

/// The agents and devices of a `bowline up`.
pub(crate) struct Agents {
    all: Vec<Elsewhere>,
    tls: Option<TlsFiles>,
    /// Where it is written down of which storage each of them is.
    known: PathBuf,
    reached: Reached,
}

impl Agents {
    pub(crate) fn new(agents: &[AgentAt], devices: &Devices, tls: Option<&Path>, data: &Path) -> Self {
        let agents = agents.iter().cloned().map(Elsewhere::Agent);
        let all = agents.chain(devices.all().iter().cloned().map(Elsewhere::Device)).collect();
        Self { all, tls: tls.map(TlsFiles::new), known: data.join("targets"), reached: Reached::default() }
    }

    /// Those that were reached by now, and those that will be.
    pub(crate) fn reached(&self) -> Reached {
        self.reached.clone()
    }

    /// Connects all that answer soon; returns the others.
    pub(crate) async fn connect(self) -> (Vec<Arc<dyn Provision>>, Self) {
        let answers = self.all.iter().map(async |one| {
            let answer = tokio::time::timeout(FIRST, self.reach(one)).await;
            answer.unwrap_or_else(|_| Err(anyhow::anyhow!("no answer within {FIRST:?}")))
        });
        let answers = futures::future::join_all(answers).await;
        let (mut connected, mut silent) = (vec![], vec![]);
        for (one, answer) in self.all.iter().zip(answers) {
            match answer {
                Ok(target) => connected.push(target),
                Err(error) => {
                    tracing::warn!(target = %one.target(), error = format!("{error:#}"), "not connected yet");
                    silent.push(one.clone());
                }
            }
        }
        (connected, Self { all: silent, ..self })
    }

    /// Says which are still to come.
    pub(crate) fn expect(&self, catalog: &Catalog) {
        for one in &self.all {
            catalog.expect_target(one.target());
        }
    }

    /// Connects the others, whenever they answer.
    pub(crate) async fn go_on(self, catalog: Catalog) {
        let late = self.all.iter().map(|one| async {
            let (mut told, name) = (String::new(), one.target());
            loop {
                tokio::time::sleep(AGAIN).await;
                let target = match self.reach(one).await {
                    Ok(target) => target,
                    Err(error) => {
                        let error = format!("{error:#}");
                        // The same again is no news.
                        if error != told {
                            tracing::warn!(target = %name, error, "not connected yet");
                            told = error;
                        }
                        continue;
                    }
                };
                tracing::info!(target = %name, "connected");
                // What did not work now is tried again by itself.
                if let Err(error) = catalog.add_target(target).await {
                    tracing::warn!(target = %name, %error, "not compared with the ledgers yet");
                }
                return;
            }
        });
        futures::future::join_all(late).await;
    }

    async fn reach(&self, one: &Elsewhere) -> Result<Arc<dyn Provision>> {
        let known = self.known.join(one.target().as_str());
        let was = match std::fs::read_to_string(&known) {
            Ok(was) => was.trim().to_owned(),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(error).with_context(|| format!("reading {}", known.display())),
        };
        let replaced = || {
            let file = known.display();
            format!("if the storage was replaced on purpose, and everything on it is lost, remove {file}")
        };
        let (target, is): (Arc<dyn Provision>, String) = match one {
            Elsewhere::Agent(agent) => {
                let client =
                    AgentClient::connect(self.place(agent)?, Some(&agent.target), ClientSettings::default())
                        .await?;
                client.must_be(&was).with_context(replaced)?;
                let is = client.storage().to_owned();
                self.reached.add(client.clone());
                (Arc::new(client), is)
            }
            Elsewhere::Device(device) => {
                let is = device.identity();
                if !was.is_empty() && was != is {
                    let error =
                        format!("it was the device with installation and host key {was}, and is {is} now");
                    return Err(anyhow::anyhow!(error)).with_context(replaced);
                }
                (Arc::new(device.connect().await?), is.to_owned())
            }
        };
        if was != is {
            std::fs::create_dir_all(&self.known)?;
            write_whole(&known, &self.known.join(".draft"), is.as_bytes())
                .with_context(|| format!("writing {}", known.display()))?;
        }
        Ok(target)
    }

    fn place(&self, agent: &AgentAt) -> Result<Place> {
        Ok(match (&agent.at, &self.tls) {
            (At::Socket(path), _) => Place::Unix(path.clone()),
            (At::Address(address), Some(files)) => {
                Place::Tls { address: address.clone(), files: files.clone() }
            }
            (At::Address(address), None) => anyhow::bail!("{address} needs --tls"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bowline_target::agent::{AgentServer, Listener};
    use bowline_testkit::SimTarget;
    use tokio::sync::watch;

    #[tokio::test(flavor = "multi_thread")]
    async fn what_an_agent_does_not_show_is_found() {
        let place = tempfile::tempdir().unwrap();
        let socket = place.path().join("agent.sock");
        let listener = Listener::Unix(tokio::net::UnixListener::bind(&socket).unwrap());
        let (shown, says) = watch::channel(ExportsShown::All);
        let server = AgentServer::new(Arc::new(SimTarget::new("far")), "nvmet", "1");
        tokio::spawn(server.showing(move || says.borrow().clone()).run(listener, std::future::pending()));
        let at = AgentAt { target: TargetId::new("far").unwrap(), at: At::Socket(socket) };
        let agents = Agents::new(&[at], &Devices::new(&BTreeMap::new()), None, place.path());
        let reached = agents.reached();
        assert!(reached.findings_from_a_thread().await.is_empty(), "nobody was reached yet");
        assert_eq!(agents.connect().await.0.len(), 1);
        let missing = ExportsShown::Missing { volumes: 2, why: "v (no), w (no)".to_owned() };
        for (told, present, required, words) in [
            (ExportsShown::All, true, false, "its agent shows everything that it has to show"),
            (missing, false, true, "2 volumes are missing on their nodes: v (no), w (no)"),
            (ExportsShown::NotTold, false, false, "its agent does not say whether everything is shown"),
        ] {
            shown.send_replace(told);
            let [found] = reached.findings_from_a_thread().await.try_into().unwrap();
            assert_eq!((found.present, found.required, found.detail.as_str()), (present, required, words));
            assert_eq!(found.what, "the exports of target far");
        }
    }

    impl Reached {
        async fn findings_from_a_thread(&self) -> Vec<Finding> {
            let reached = self.clone();
            tokio::task::spawn_blocking(move || reached.findings()).await.unwrap()
        }
    }

    #[test]
    fn an_agent_is_a_target_and_where_it_is() {
        let address = |text: &str| At::Address(text.to_owned());
        for (text, told) in [
            ("nvme-1=10.0.0.5:9460", Ok(address("10.0.0.5:9460"))),
            ("nvme-1=[fd00::5]:9460", Ok(address("[fd00::5]:9460"))),
            ("nvme-1=storage.example:9460", Ok(address("storage.example:9460"))),
            ("nvme-1=unix:///run/t.sock", Ok(At::Socket(PathBuf::from("/run/t.sock")))),
            ("nvme-1", Err("not of the form TARGET=HOST:PORT")),
            ("a/b=10.0.0.5:9460", Err("target id")),
            ("nvme-1=10.0.0.5", Err("is no address")),
            ("nvme-1=:9460", Err("is no address")),
            ("nvme-1=host:0", Err("is no address")),
        ] {
            match (text.parse::<AgentAt>(), told) {
                (Ok(agent), Ok(at)) => assert_eq!((agent.target.as_str(), agent.at), ("nvme-1", at)),
                (Err(error), Err(told)) => assert!(error.contains(told), "{error}"),
                (parsed, told) => panic!("{text}: {parsed:?}, not {told:?}"),
            }
        }
    }
}
