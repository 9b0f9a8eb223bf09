//! The start: read everything back, compare with the targets, repair, and only then serve.

use bowline_core::{Ledger, NodeId, Observed, Plan, TargetId, Verdict, VolumeFacts, VolumeId, decide};
use bowline_store::{Kind, RecordError, Revision, Store, StoreError, record};
use bowline_target::{Target, TargetError};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::{Arc, Weak};
use tokio::task::JoinSet;

use crate::engine::{Known, Shared, lock};
use crate::link::{Link, Listed, Listings};
use crate::{Clock, Engine, Metrics, NodeReport, Settings};

/// What an engine is made of.
pub struct Parts {
    /// Where the ledgers are.
    pub store: Arc<dyn Store>,
    /// The targets, each with its own id.
    pub targets: Vec<Arc<dyn Target>>,
    /// Every volume there is.
    pub volumes: Vec<(VolumeId, VolumeFacts)>,
    /// What is known of nodes so far; more can be told later.
    pub nodes: Vec<(NodeId, NodeReport)>,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// How patient it is.
    pub settings: Settings,
    /// Where it counts.
    pub metrics: Metrics,
}

/// Why a target could not be compared with the ledgers. It is tried again.
#[derive(Debug, thiserror::Error)]
pub enum CompareError {
    /// The target did not tell whom it lets in.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// The ledgers could not be read.
    #[error(transparent)]
    Ledgers(#[from] StartError),
}

/// Why the engine cannot start. It never starts with less than everything that was stored.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The store cannot be read.
    #[error("the ledgers cannot be read: {0}")]
    Store(#[from] StoreError),
    /// One record cannot be understood.
    #[error("the ledger of volume {volume} cannot be understood: {error}")]
    Record {
        /// Which one.
        volume: String,
        /// Why.
        error: RecordError,
    },
    /// A record has a name that no volume can have.
    #[error("the store has a ledger under a name that is no volume id: {0}")]
    Name(#[from] bowline_core::IdError),
    /// Two targets with one name.
    #[error("two targets are called {0}")]
    TargetTwice(TargetId),
}

/// Reads every ledger, compares it with what its target says, starts what is unfinished, and returns when the engine
/// may serve. A target that does not answer holds up its own volumes only: they get nobody new until it does.
pub async fn start(parts: Parts) -> Result<Engine, StartError> {
    let Parts { store, targets, volumes, nodes, clock, settings, metrics } = parts;
    let mut links = BTreeMap::new();
    for target in targets {
        let link = Link::new(target.id().clone(), &settings, &metrics, clock.now());
        link.connect(Arc::clone(&target), clock.now());
        if links.insert(target.id().clone(), Arc::new(link)).is_some() {
            return Err(StartError::TargetTwice(target.id().clone()));
        }
    }
    let engine = Engine::new(store, links, clock, settings, metrics);
    let shared = &engine.shared;
    let known = volumes.into_iter().map(|(volume, facts)| (volume, Known::new(facts)));
    lock(&shared.volumes).extend(known);
    for (node, report) in nodes {
        lock(&shared.nodes).report(&node, report);
    }
    // The targets first: whatever a ledger says that was read later than the list is at least as new as it, and a
    // list that is too old only makes us ask again.
    let (listings, asked) = list_targets(shared).await;
    shared.have_no_ledger(|_, known| listings.contains_key(&known.facts.target));
    let busy = read_ledgers(shared, &listings).await?;
    for volume in &busy {
        wake_volume(shared, &listings, volume);
    }
    // Not earlier: an actor that believes its target compared must find the list ready.
    for (link, target) in asked {
        link.compared(&target);
    }
    for volume in &busy {
        shared.poke(volume);
    }
    for link in shared.links().into_iter().filter(|link| link.target().is_some()) {
        keep_comparing(shared, &link);
    }
    Ok(engine)
}

/// Compares a target now and then, as long as it is known; once is enough.
pub(crate) fn keep_comparing(shared: &Arc<Shared>, link: &Arc<Link>) {
    if link.is_to_be_kept() {
        tokio::spawn(compare_for_ever(Arc::downgrade(shared), Arc::downgrade(link)));
    }
}

type Asked = Vec<(Arc<Link>, Arc<dyn Target>)>;

async fn list_targets(shared: &Arc<Shared>) -> (BTreeMap<TargetId, Listings>, Asked) {
    let mut asking = JoinSet::new();
    for link in shared.links() {
        let now = shared.clock.now();
        asking.spawn(async move {
            let listed = link.list(now).await;
            (link, listed)
        });
    }
    let (mut listings, mut asked) = (BTreeMap::new(), Vec::new());
    while let Some(answer) = asking.join_next().await {
        match answer {
            Ok((link, Ok(listed))) => {
                listings.insert(link.id.clone(), listed.listings);
                asked.push((link, listed.asked));
            }
            Ok((link, Err(error))) => {
                tracing::warn!(target = %link.id, %error, "not heard yet: its volumes get nobody new");
            }
            Err(error) => tracing::error!(%error, "asking a target failed unexpectedly"),
        }
    }
    (listings, asked)
}

/// Reads all ledgers; returns the volumes for which there is something to do, or for which somebody waits.
async fn read_ledgers(
    shared: &Arc<Shared>,
    listings: &BTreeMap<TargetId, Listings>,
) -> Result<BTreeSet<VolumeId>, StartError> {
    let mut unread: BTreeSet<VolumeId> = listings.values().flat_map(Listings::keys).cloned().collect();
    let mut busy = BTreeSet::new();
    for_each_ledger(shared, |volume, ledger, _| {
        unread.remove(&volume);
        shared.remember(&volume, ledger.epoch());
        lock(&shared.nodes).follow(&volume, &Ledger::default(), &ledger);
        let Some(plan) = plan_with(shared, listings, &volume, &ledger) else {
            tracing::warn!(%volume, "there is a ledger of this volume, and nobody knows it; left alone");
            return;
        };
        if let Some(at) = plan.wake {
            shared.wake_idle(&volume, at);
        }
        // Those who wait are counted by its actor.
        if is_work(&plan, &ledger) || somebody_waits(&plan) {
            busy.insert(volume);
        }
    })
    .await?;
    for link in shared.links() {
        if let Some(listing) = listings.get(&link.id) {
            count_strays(shared, &link, listing, &unread);
        }
    }
    busy.extend(unread.into_iter().filter(|volume| lock(&shared.volumes).contains_key(volume)));
    Ok(busy)
}

/// Counts what a target exports of which there is neither a ledger nor anything that is known. It is left alone.
fn count_strays(shared: &Shared, link: &Link, listing: &Listings, unread: &BTreeSet<VolumeId>) {
    let volumes = lock(&shared.volumes);
    let strays =
        unread.iter().filter(|volume| listing.contains_key(*volume) && !volumes.contains_key(*volume));
    link.has_strays(&strays.cloned().collect::<Vec<_>>());
}

async fn for_each_ledger(
    shared: &Shared,
    mut visit: impl FnMut(VolumeId, Ledger, Revision),
) -> Result<(), StartError> {
    let mut after: Option<String> = None;
    loop {
        let page = shared.store.recall(Kind::Ledger, after.as_deref(), shared.settings.page).await?;
        for entry in page.entries {
            let volume = VolumeId::new(&entry.key.name)?;
            let ledger = record::decode(&entry.value)
                .map_err(|error| StartError::Record { volume: entry.key.name.clone(), error })?;
            visit(volume, ledger, entry.revision);
        }
        match page.next {
            Some(next) => after = Some(next),
            None => return Ok(()),
        }
    }
}

/// What would be decided for a volume now, given what its target says; `None` if nobody knows the volume.
fn plan_with(
    shared: &Shared,
    listings: &BTreeMap<TargetId, Listings>,
    volume: &VolumeId,
    ledger: &Ledger,
) -> Option<Plan> {
    let Known { facts, tickets, past: _, waiting: _ } = lock(&shared.volumes).get(volume).cloned()?;
    let listing = listings.get(&facts.target);
    let mut seen = Observed { tickets, ..Observed::new(facts) };
    seen.exports = listing.map(|listing| listing.get(volume).cloned().unwrap_or_default());
    lock(&shared.nodes).tell(volume, ledger, &mut seen);
    Some(decide(ledger, &seen, shared.clock.now()))
}

fn is_work(plan: &Plan, ledger: &Ledger) -> bool {
    plan.next != *ledger || !plan.effects.is_empty()
}

fn somebody_waits(plan: &Plan) -> bool {
    !plan.verdicts.values().all(Verdict::is_satisfied)
}

fn wake_volume(shared: &Arc<Shared>, listings: &BTreeMap<TargetId, Listings>, volume: &VolumeId) {
    let target = lock(&shared.volumes).get(volume).map(|known| known.facts.target.clone());
    match target.and_then(|target| listings.get(&target)) {
        Some(listing) => shared.tell_exports(volume, listing.get(volume).cloned().unwrap_or_default()),
        None => shared.poke(volume),
    }
}

/// Compares one target with the ledgers of its volumes, and hands its list to those that differ from it.
pub(crate) async fn compare(shared: &Arc<Shared>, link: &Link) -> Result<(), CompareError> {
    // A ledger that is written after this moment may be newer than the list; it is compared the next time.
    let before = shared.store.recall(Kind::Ledger, None, 1).await.map_err(StartError::from)?.revision;
    let (target, is_first) = (&link.id, !link.is_compared());
    let Listed { listings, asked } = link.list(shared.clock.now()).await?;
    let listings = BTreeMap::from([(target.clone(), listings)]);
    let mut unread: BTreeSet<VolumeId> = listings.values().flat_map(Listings::keys).cloned().collect();
    let (mut busy, mut waiting, mut recorded) = (BTreeSet::new(), BTreeSet::new(), HashSet::new());
    for_each_ledger(shared, |volume, ledger, revision| {
        unread.remove(&volume);
        if is_first {
            recorded.insert(volume.clone());
        }
        let here = lock(&shared.volumes).get(&volume).is_some_and(|known| known.facts.target == *target);
        // The first list counts for all, however new their ledgers are: one that is too old only makes us ask again.
        let counts = here && (is_first || revision <= before);
        let plan = if counts { plan_with(shared, &listings, &volume, &ledger) } else { None };
        let Some(plan) = plan else { return };
        if is_work(&plan, &ledger) {
            busy.insert(volume);
        } else if is_first && somebody_waits(&plan) {
            waiting.insert(volume);
        }
    })
    .await?;
    listings.values().for_each(|listing| count_strays(shared, link, listing, &unread));
    let is_here = |volume: &VolumeId| {
        lock(&shared.volumes).get(volume).is_some_and(|known| known.facts.target == *target)
    };
    busy.extend(unread.into_iter().filter(is_here));
    for volume in &busy {
        wake_volume(shared, &listings, volume);
    }
    if is_first {
        shared.have_no_ledger(|volume, known| known.facts.target == *target && !recorded.contains(volume));
    }
    // Not earlier: an actor that believes its target compared must find the list ready.
    link.compared(&asked);
    if is_first {
        // Whoever asked while it was not known whom the target lets in looks again; who has what was asked for need not.
        waiting.extend(shared.busy().into_iter().filter(is_here));
        waiting.extend(busy);
        for volume in &waiting {
            shared.poke(volume);
        }
    }
    Ok(())
}

/// Until it is heard first, again and again; from then on, now and then.
async fn compare_for_ever(engine: Weak<Shared>, link: Weak<Link>) {
    let mut failures = 0;
    loop {
        let (Some(shared), Some(link_now)) = (engine.upgrade(), link.upgrade()) else { return };
        let target = link_now.id.clone();
        let pause = if link_now.is_compared() {
            shared.settings.compare_every
        } else {
            shared.settings.pause(&target, failures)
        };
        drop((shared, link_now));
        tokio::time::sleep(pause).await;
        let (Some(shared), Some(link)) = (engine.upgrade(), link.upgrade()) else { return };
        match compare(&shared, &link).await {
            Ok(()) => failures = 0,
            Err(error) => {
                tracing::warn!(%target, %error, attempt = failures, "not compared");
                failures += 1;
            }
        }
    }
}
