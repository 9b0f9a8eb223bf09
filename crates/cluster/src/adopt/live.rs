//! Adoption while the engine runs: when somebody asks for it, and when a target is connected that was not there at the start.
//!
//! # Guarantees
//!
//! - Only volumes that nobody here knows are touched. What the engine knows it has compared with its target, and its tickets are the attacher's and
//!   everybody else's to file.
//! - Whom the target lets in is asked before a volume is known, and lies ready when it is: whoever is in keeps its very grant.
//! - The attacher looks after what was adopted from then on; a VolumeAttachment that went meanwhile takes its ticket with it.

use async_trait::async_trait;
use bowline_controller::{Catalog, Exports, Volume, VolumeState};
use bowline_core::{TargetId, Ticket, Timestamp, VolumeId};
use bowline_store::Store;
use bowline_web::wire::{AdoptedVolume, Adoption as Report, AdoptionState};
use kube::Client;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::Mutex;

use super::{AdoptError, Adoption, find, plan};
use crate::Attacher;

/// What adoption needs while the engine runs.
pub struct AdopterParts {
    /// The API server.
    pub client: Client,
    /// Where the records are.
    pub store: Arc<dyn Store>,
    /// The catalog, open.
    pub catalog: Catalog,
    /// Who looks after VolumeAttachments, if it is done here.
    pub attacher: Option<Attacher>,
    /// Whether the adoption at the start has refused something.
    pub unfinished: bool,
}

/// Adopts, one at a time. A handle; clones share it.
#[derive(Clone)]
pub struct Adopter {
    inner: Arc<Inner>,
}

struct Inner {
    parts: AdopterParts,
    unfinished: AtomicBool,
    turn: Mutex<()>,
}

impl Adopter {
    /// Nothing is done before it is asked for.
    pub fn new(parts: AdopterParts) -> Self {
        let unfinished = AtomicBool::new(parts.unfinished);
        Self { inner: Arc::new(Inner { parts, unfinished, turn: Mutex::default() }) }
    }

    /// A target is connected: it may hold what no other did.
    pub fn target_came(&self) {
        if self.inner.unfinished.load(Ordering::Relaxed) {
            let inner = Arc::clone(&self.inner);
            tokio::spawn(async move {
                if let Err(error) = inner.run(false).await {
                    tracing::warn!(%error, "nothing could be adopted from the target that came");
                }
            });
        }
    }

    /// Says what there is to adopt, and adopts it unless this is only to look.
    pub async fn run(&self, dry_run: bool) -> Result<Report, AdoptError> {
        let inner = Arc::clone(&self.inner);
        // A caller that goes away takes nothing back, and leaves nothing half done.
        let work = tokio::spawn(async move { inner.run(dry_run).await });
        work.await.unwrap_or_else(|error| Err(AdoptError::Ended(error.to_string())))
    }
}

#[async_trait]
impl bowline_web::Adopt for Adopter {
    async fn adopt(&self, dry_run: bool) -> Result<Report, String> {
        self.run(dry_run).await.map_err(|error| error.to_string())
    }
}

/// A volume to be adopted, and the tickets of those who have it.
type Chosen = (Volume, Vec<Ticket>);

impl Inner {
    async fn run(&self, dry_run: bool) -> Result<Report, AdoptError> {
        let _turn = self.turn.lock().await;
        let AdopterParts { client, store, catalog, .. } = &self.parts;
        let is_usable = |one: &Volume| matches!(one.state, VolumeState::Ready | VolumeState::Growing { .. });
        // A record that the engine has not heard of is left from an earlier try, or its work is under way.
        let counts = |volume: &Volume| !is_usable(volume) || catalog.knows(&volume.id);
        let mut found = find(client, store.as_ref(), &catalog.targets(), counts).await?;
        // What was made since the records were read.
        let handles = found.pvs.iter().filter_map(|pv| VolumeId::new(&pv.handle).ok());
        let made: Vec<VolumeId> = handles.filter(|id| catalog.knows(id)).collect();
        found.volumes.extend(made);
        let Adoption { volumes, tickets, refused, earlier, mut known } = plan(&found, Timestamp::now());
        let mut report = Report { dry_run, volumes: vec![] };
        for one in refused {
            tracing::warn!(volume = one.volume, reason = one.sentence, "not adopted");
            report.volumes.push(entry(one.volume, AdoptionState::Refused, vec![], Some(one.sentence)));
        }
        let mut by_volume: BTreeMap<VolumeId, Vec<Ticket>> = BTreeMap::new();
        for (volume, ticket) in tickets {
            by_volume.entry(volume).or_default().push(ticket);
        }
        let with_tickets = |volume: Volume| {
            let tickets = by_volume.remove(&volume.id).unwrap_or_default();
            (volume, tickets)
        };
        let chosen: Vec<Chosen> = volumes.into_iter().map(with_tickets).collect();
        // What is left are tickets for volumes that are known: the attacher files them.
        known.extend(by_volume.into_keys());
        self.adopt_all(chosen, &mut report).await;
        let known = known.into_iter().map(|id| entry(id.to_string(), AdoptionState::Known, vec![], None));
        report.volumes.extend(known);
        if !dry_run {
            let left = report.volumes.iter().any(|one| one.state == AdoptionState::Refused);
            self.unfinished.store(left, Ordering::Relaxed);
        }
        // No target that comes makes these ours.
        let earlier = earlier
            .into_iter()
            .map(|one| entry(one.volume, AdoptionState::Refused, vec![], Some(one.sentence)));
        report.volumes.extend(earlier);
        report.volumes.sort_by(|a, b| a.volume.cmp(&b.volume));
        Ok(report)
    }

    async fn adopt_all(&self, chosen: Vec<Chosen>, report: &mut Report) {
        let mut lists: BTreeMap<TargetId, Result<Exports, String>> = BTreeMap::new();
        for (volume, tickets) in chosen {
            let nodes = tickets.iter().map(|ticket| ticket.node.to_string()).collect();
            let id = volume.id.to_string();
            if report.dry_run {
                report.volumes.push(entry(id, AdoptionState::Adoptable, nodes, None));
                continue;
            }
            let target = &volume.target;
            if !lists.contains_key(target) {
                let asked = self.parts.catalog.exports(target).await;
                lists.insert(target.clone(), asked.map_err(|error| silent(target, &error)));
            }
            let adopted = match lists.get(target) {
                Some(Ok(exports)) => self.adopt(&volume, &tickets, exports).await,
                Some(Err(why)) => Err(why.clone()),
                None => Err(format!("target {target} was not asked")),
            };
            report.volumes.push(match adopted {
                Ok(()) => entry(id, AdoptionState::Adopted, nodes, None),
                Err(why) => {
                    tracing::warn!(volume = id, reason = why, "not adopted");
                    entry(id, AdoptionState::Refused, nodes, Some(why))
                }
            });
        }
    }

    async fn adopt(&self, volume: &Volume, tickets: &[Ticket], exports: &Exports) -> Result<(), String> {
        let adopted = self.parts.catalog.adopt(volume, tickets, exports).await;
        adopted.map_err(|error| error.to_string())?;
        tracing::info!(volume = %volume.id, tickets = tickets.len(), "adopted");
        if let Some(attacher) = &self.parts.attacher {
            for ticket in tickets {
                attacher.look_after(&volume.id, ticket);
            }
        }
        Ok(())
    }
}

fn silent(target: &TargetId, error: &dyn std::fmt::Display) -> String {
    format!("target {target} does not say whom it lets in ({error}); adopt again when it does")
}

fn entry(volume: String, state: AdoptionState, nodes: Vec<String>, why: Option<String>) -> AdoptedVolume {
    AdoptedVolume { volume, state, nodes, why }
}
