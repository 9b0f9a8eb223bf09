//! The attacher: each `VolumeAttachment` of this driver is a ticket, for as long as it exists.
//!
//! # Flow
//!
//! A watch tells of VolumeAttachments → [`Attacher`] puts each in its book and lets one task at a time look at it (`step.rs`) → which files or withdraws
//! the ticket at the catalog and writes what became of it into the object. What changes in a ledger later is heard from the engine, what was missing
//! (a PersistentVolume, a CSINode) from its own watch. Nothing is polled.
//!
//! # Guarantees
//!
//! - Before anything is withdrawn, every VolumeAttachment was listed and every ticket in every ledger was read.
//! - A ticket is forgotten only after a look at the API server itself has shown that its object is gone, or is another one of the same name.
//! - The finalizer is on the object before `attached` is told, and goes only after the target has proven that the node is out.
//! - An attach costs three writes (ledger and finalizer at the same time, then the status), a detach two. Where the finalizer was there from the beginning
//!   (the chart's `markAtCreation`), an attach costs two.

mod book;
mod status;
mod step;
mod whose;
mod wish;

pub use wish::WishError;
pub(crate) use wish::{Source, owned_by, owner, request, source};

use bowline_controller::Catalog;
use bowline_controller::csi::DRIVER;
use bowline_core::{Hold, Ledger, NodeId, Ticket, TicketId, TicketKind, Verdict, VolumeId};
use bowline_csi::code::ListError;
use bowline_engine::Changes;
use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::{Api, Client, ResourceExt};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use tokio::sync::Semaphore;

use crate::nodes::Nodes;
use crate::pause::pause;
use crate::pv::Pvs;
use crate::watch::{Change, follow};
use crate::writes::Writes;
use book::{Book, Filed, Need, Standing};
use status::{is_attached, node_id};
use step::Next;

/// How many requests of the attacher the API server sees at once. No rate: its own priority and fairness does that better.
const AT_ONCE: usize = 64;
/// The longest pause after failures.
const LONGEST: Duration = Duration::from_secs(30);

/// What an attacher is made of.
pub struct AttacherParts {
    /// The API server.
    pub client: Client,
    /// The catalog, open.
    pub catalog: Catalog,
    /// The nodes, all of them told.
    pub nodes: Nodes,
    /// Where its writes are counted.
    pub writes: Writes,
    /// How long a grant or a proof may take before the object says what it waits for.
    pub patience: Duration,
}

/// The attacher, running. A handle; it runs until the last one is dropped.
#[derive(Clone)]
pub struct Attacher {
    inner: Arc<Inner>,
}

struct Inner {
    api: Api<VolumeAttachment>,
    pv_api: Api<PersistentVolume>,
    pvs: Arc<Pvs>,
    catalog: Catalog,
    nodes: Nodes,
    writes: Writes,
    patience: Duration,
    book: Mutex<Book>,
    /// Closed until everything is listed and read.
    open: std::sync::atomic::AtomicBool,
    requests: Semaphore,
    working: std::sync::atomic::AtomicUsize,
}

impl Attacher {
    /// Reads every ledger, lists every VolumeAttachment, and begins. Returns when all of them are known.
    pub async fn start(parts: AttacherParts, pvs: Arc<PersistentVolumes>) -> Result<Self, ListError> {
        let AttacherParts { client, catalog, nodes, writes, patience } = parts;
        let inner = Arc::new(Inner {
            api: Api::all(client.clone()),
            pv_api: Api::all(client),
            pvs: Arc::clone(&pvs.known),
            catalog,
            nodes,
            writes,
            patience,
            book: Mutex::default(),
            open: std::sync::atomic::AtomicBool::new(false),
            requests: Semaphore::new(AT_ONCE),
            working: std::sync::atomic::AtomicUsize::new(0),
        });
        // Before the ledgers are read: what changes meanwhile is heard afterwards.
        let changes = inner.catalog.engine().changes();
        inner.read_ledgers().await?;
        // Before anything is looked at: what it waits for may come while the others are begun.
        let weak = Arc::downgrade(&inner);
        pvs.on_change(move |pv| {
            if let Some(inner) = weak.upgrade() {
                inner.wake(&Need::Pv(pv.to_owned()));
            }
        });
        let weak = Arc::downgrade(&inner);
        inner.nodes.on_change(move |node| {
            if let Some(inner) = weak.upgrade() {
                inner.wake(&Need::Node(node.to_owned()));
            }
        });
        let (listed, mut all) = tokio::sync::watch::channel(false);
        let weak = Arc::downgrade(&inner);
        let watching = follow(inner.api.clone(), move |change| {
            let Some(inner) = weak.upgrade() else { return false };
            inner.hear(change, &listed);
            true
        });
        tokio::spawn(watching);
        // The sender lives in a task that never ends.
        let _ = all.wait_for(|listed| *listed).await;
        tokio::spawn(hear_engine(Arc::downgrade(&inner), changes));
        Ok(Self { inner })
    }

    /// Looks after a ticket that somebody else has put into a ledger for a VolumeAttachment: also if that has gone meanwhile.
    pub fn look_after(&self, volume: &VolumeId, ticket: &Ticket) {
        let (name, filed) = filed(volume, ticket);
        if filed.uid.is_some() {
            self.inner.book().file(&name, filed);
            self.inner.poke(&name);
        }
    }

    /// How many VolumeAttachments are being worked on now. What is only for people waits while there are any.
    pub fn working(&self) -> usize {
        self.inner.working.load(std::sync::atomic::Ordering::Relaxed)
    }
}

/// A ticket that is in a ledger, and the VolumeAttachment it is of.
fn filed(volume: &VolumeId, ticket: &Ticket) -> (String, Filed) {
    let owner = owned_by(&ticket.owner);
    let name = owner.map_or(ticket.id.as_str(), |(name, _)| name).to_owned();
    let filed = Filed {
        uid: owner.map(|(_, uid)| uid.to_owned()),
        volume: volume.clone(),
        node: ticket.node.clone(),
        ticket: ticket.id.clone(),
        generation: ticket.generation,
    };
    (name, filed)
}

/// The PersistentVolumes of this driver, watched.
pub struct PersistentVolumes {
    pub(crate) known: Arc<Pvs>,
    changed: Arc<Mutex<Vec<Changed>>>,
}

type Changed = Box<dyn Fn(&str) + Send + Sync>;

impl PersistentVolumes {
    /// Begins to watch, and returns when all of them are known.
    pub async fn start(client: Client) -> Arc<Self> {
        let pvs = Arc::new(Self { known: Arc::default(), changed: Arc::default() });
        let (listed, mut all) = tokio::sync::watch::channel(false);
        let (known, changed) = (Arc::clone(&pvs.known), Arc::downgrade(&pvs.changed));
        let watching = follow(Api::<PersistentVolume>::all(client), move |change| {
            let name = match change {
                Change::Present(object) => {
                    let name = object.name_any();
                    match crate::pv::Pv::of(&object) {
                        Some(pv) => known.insert(pv),
                        None => known.remove(&name),
                    }
                    name
                }
                Change::Absent(name) => {
                    known.remove(&name);
                    name
                }
                Change::Listed => {
                    listed.send_replace(true);
                    return true;
                }
            };
            let Some(changed) = changed.upgrade() else { return false };
            for hear in changed.lock().unwrap_or_else(PoisonError::into_inner).iter() {
                hear(&name);
            }
            true
        });
        tokio::spawn(watching);
        // The sender lives in a task that never ends.
        let _ = all.wait_for(|listed| *listed).await;
        pvs
    }

    pub(crate) fn on_change(&self, hear: impl Fn(&str) + Send + Sync + 'static) {
        self.changed.lock().unwrap_or_else(PoisonError::into_inner).push(Box::new(hear));
    }
}

impl Inner {
    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn read_ledgers(&self) -> Result<(), ListError> {
        self.catalog
            .for_each_ledger(|volume, ledger| {
                for (node, hold) in ledger.holds() {
                    self.find_detach(&volume, node, hold, &ledger);
                }
                for ticket in ledger.tickets().values().filter(|one| one.kind == TicketKind::CsiAttacher) {
                    let (name, filed) = filed(&volume, ticket);
                    let mine = filed.uid.is_some();
                    let held = ledger.hold_serving(ticket);
                    let held = held.filter(|hold| hold.phase == bowline_core::Phase::Held);
                    let mut book = self.book();
                    book.found(&name, filed, mine);
                    // Where the object says so too, nothing needs to be asked again: a restart costs no writes.
                    if let (Some(hold), Some(entry)) = (held, book.get_mut(&name)) {
                        let epoch = Some(hold.epoch.number());
                        entry.standing = Some(Standing { reason: "Satisfied", epoch, detail: None });
                    }
                }
            })
            .await
    }

    /// A detach that an earlier leader has begun: its ticket is withdrawn, its proof is not there yet, and the object may name its volume no more. It is
    /// found by the name that kube-controller-manager gives to the object.
    fn find_detach(&self, volume: &VolumeId, node: &NodeId, hold: &Hold, ledger: &Ledger) {
        let ticket = ticket_id(volume, node);
        let begun = !hold.is_open() || ledger.tickets_on(node).next().is_none();
        if !begun || ledger.tickets().contains_key(&ticket) {
            return;
        }
        let name = self.nodes.name_of(node).and_then(|name| NodeId::new(name).ok());
        let name = name.map_or_else(|| ticket.clone(), |name| ticket_id(volume, &name));
        let (volume, node) = (volume.clone(), node.clone());
        self.book().found(name.as_str(), Filed { uid: None, volume, node, ticket, generation: 0 }, false);
    }

    fn hear(self: &Arc<Self>, change: Change<VolumeAttachment>, listed: &tokio::sync::watch::Sender<bool>) {
        match change {
            Change::Present(object) => {
                if object.spec.attacher != DRIVER {
                    return;
                }
                let name = object.name_any();
                if let Some(Ok(id)) = node_id(&object).map(NodeId::new) {
                    self.nodes.learn(&object.spec.node_name, &id);
                }
                if self.book().see(&name, object) {
                    self.poke(&name);
                }
            }
            Change::Absent(name) => {
                self.book().unsee(&name);
                self.poke(&name);
            }
            Change::Listed => {
                if !self.open.swap(true, std::sync::atomic::Ordering::SeqCst) {
                    let names = self.book().names();
                    tracing::info!(attachments = names.len(), "every VolumeAttachment is known");
                    for name in names.iter().filter(|name| !self.agrees(name)) {
                        self.poke(name);
                    }
                }
                listed.send_replace(true);
            }
        }
    }

    /// Whether an object that was attached before this process began says what its ledger says.
    fn agrees(&self, name: &str) -> bool {
        let mut book = self.book();
        let Some(entry) = book.get_mut(name) else { return true };
        let (Some(object), Some(filed), Some(standing)) = (entry.object(), &entry.filed, &entry.standing)
        else {
            return false;
        };
        let metadata = object.status.as_ref().and_then(|status| status.attachment_metadata.as_ref());
        let told = metadata.and_then(|all| all.get(bowline_target::context::EPOCH));
        let agrees = is_attached(&object)
            && !status::is_going(&object)
            && status::has_finalizer(&object)
            && node_id(&object) == Some(filed.node.as_str())
            && filed.uid.as_deref() == Some(status::uid(&object))
            && told.map(String::as_str) == standing.epoch.map(|epoch| epoch.to_string()).as_deref();
        if agrees {
            entry.shown = metadata.map(status::digest);
        }
        agrees
    }

    fn wake(self: &Arc<Self>, need: &Need) {
        let names = self.book().waiting_for(need);
        for name in names {
            self.poke(&name);
        }
    }

    /// Lets somebody look at a VolumeAttachment: now, or again when whoever is at it is done.
    fn poke(self: &Arc<Self>, name: &str) {
        if !self.open.load(std::sync::atomic::Ordering::SeqCst) {
            return;
        }
        {
            let mut book = self.book();
            let Some(entry) = book.get_mut(name) else { return };
            entry.dirty = true;
            if std::mem::replace(&mut entry.busy, true) {
                if entry.resting {
                    entry.overtaken.notify_one();
                }
                return;
            }
        }
        let (inner, name) = (Arc::clone(self), name.to_owned());
        tokio::spawn(async move { inner.work(&name).await });
    }

    /// Looks until there is nothing new. One task per VolumeAttachment at a time.
    async fn work(self: Arc<Self>, name: &str) {
        self.working.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        loop {
            if let Some(entry) = self.book().get_mut(name) {
                // Whatever was told before, this look asks anew.
                (entry.dirty, entry.heard) = (false, None);
            }
            let next = self.step(name).await;
            self.compare_with_heard(name).await;
            let rest = {
                let mut book = self.book();
                let Some(entry) = book.get_mut(name) else { break };
                let rest = match next {
                    Ok(Next::Rest) => {
                        entry.failures = 0;
                        None
                    }
                    Ok(Next::Now) => {
                        entry.dirty = true;
                        None
                    }
                    Ok(Next::Later) => Some(()),
                    Err(error) => {
                        tracing::warn!(attachment = name, %error, attempt = entry.failures, "not done yet; tried again");
                        Some(())
                    }
                };
                let rest = rest.map(|()| {
                    entry.failures += 1;
                    entry.resting = true;
                    pause(&name, entry.failures - 1, LONGEST)
                });
                // What the engine told just now.
                if entry.hears_other_than_stands() {
                    (entry.dirty, entry.shown) = (true, None);
                }
                if rest.is_none() && !entry.dirty {
                    entry.busy = false;
                    book.forget_if_done(name);
                    break;
                }
                rest
            };
            if let Some(rest) = rest {
                self.rest(name, rest).await;
            }
        }
        self.working.fetch_sub(1, std::sync::atomic::Ordering::Relaxed);
    }

    /// Looks again if the engine told something else while somebody looked, and still means it. What it tells comes by another way than what it
    /// answers, so either may be the older one, and only the engine knows which.
    async fn compare_with_heard(&self, name: &str) {
        let doubtful = {
            let mut book = self.book();
            let entry = book.get_mut(name).filter(|entry| entry.hears_other_than_stands());
            entry.and_then(|entry| {
                entry.heard = None;
                Some((entry.filed.clone()?, entry.standing.clone()))
            })
        };
        let Some((filed, stood)) = doubtful else { return };
        let stands = match self.catalog.engine().view(&filed.volume).await {
            Ok(view) => view.verdicts.get(&filed.ticket).map(standing),
            Err(_) => None,
        };
        if stands != stood
            && let Some(entry) = self.book().get_mut(name)
        {
            (entry.dirty, entry.shown) = (true, None);
        }
    }

    /// Waits before another try, unless the object itself changes.
    async fn rest(&self, name: &str, pause: Duration) {
        let overtaken = {
            let mut book = self.book();
            let Some(entry) = book.get_mut(name) else { return };
            if entry.dirty {
                entry.resting = false;
                return;
            }
            Arc::clone(&entry.overtaken)
        };
        self.working.fetch_sub(1, std::sync::atomic::Ordering::Relaxed);
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = overtaken.notified() => {}
        }
        if let Some(entry) = self.book().get_mut(name) {
            entry.resting = false;
        }
        self.working.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }
}

/// What a verdict is, as far as it is news.
fn standing(verdict: &Verdict) -> Standing {
    let epoch = if let Verdict::Satisfied { epoch, .. } = verdict { Some(epoch.number()) } else { None };
    let waits = verdict.is_settled() && !verdict.is_satisfied();
    let detail = waits.then(|| {
        let mut hasher = DefaultHasher::new();
        verdict.hash(&mut hasher);
        hasher.finish()
    });
    Standing { reason: verdict.reason(), epoch, detail }
}

async fn hear_engine(attacher: Weak<Inner>, mut changes: Changes) {
    while let Some(view) = changes.next().await {
        let Some(inner) = attacher.upgrade() else { return };
        let now = |ticket: &TicketId| view.verdicts.get(ticket).map(standing);
        let names = inner.book().with_news(&view.volume, now);
        for name in names {
            inner.poke(&name);
        }
    }
}

/// Which volume a ticket of an attachment is about, for those who only have its parts.
pub(crate) fn ticket_id(volume: &VolumeId, node: &NodeId) -> TicketId {
    TicketId::csi(volume, DRIVER, node)
}
