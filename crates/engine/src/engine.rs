use bowline_core::{
    Epoch, Export, NodeId, Notice, Outcome, SubmitError, TargetId, Ticket, TicketFacts, TicketId, Timestamp,
    Verdict, VolumeFacts, VolumeId,
};
use bowline_store::{Store, StoreError};
use bowline_target::Target;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{broadcast, mpsc, oneshot, watch};

use crate::actor::{Actor, Message};
use crate::changes::Told;
use crate::link::Link;
use crate::nodes::Nodes;
use crate::{
    Changes, Clock, CompareError, Metrics, NodeReport, Patience, Settings, Status, View, Withdrawal,
};

/// The engine: submit and withdraw tickets, tell it what you see, watch what becomes of it.
///
/// A handle; clones share one engine. It is made by [`start`](crate::start).
#[derive(Clone)]
pub struct Engine {
    pub(crate) shared: Arc<Shared>,
}

/// What became of a submitted ticket within the time its owner was willing to wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Submitted {
    /// The node is in: durable, and confirmed by the target.
    Satisfied {
        /// How.
        verdict: Verdict,
        /// What the node needs to know.
        context: BTreeMap<String, String>,
    },
    /// It is durably in the queue and will not move before somebody else does something.
    Waiting(Verdict),
    /// It was taken back: nothing is left of it.
    Refused(Verdict),
    /// Time is over and work goes on; the ticket stays, and a retry joins it.
    StillWorking {
        /// How far it has come, if that is known.
        verdict: Option<Verdict>,
        /// Why the store cannot be read or written, if that is the cause.
        trouble: Option<String>,
    },
}

/// What became of a withdrawal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Withdrawn {
    /// The nodes are out at the target, or in for other tickets only; durable.
    Out,
    /// Time is over and work goes on; a retry joins it.
    StillWorking {
        /// The nodes that are not proven out yet, each with what the target said last.
        nodes: BTreeMap<NodeId, Option<Outcome>>,
        /// Why the store cannot be read or written, if that is the cause.
        trouble: Option<String>,
    },
}

/// Why the engine did not take an order. Nothing has changed.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// Nobody told the engine of this volume.
    #[error("volume {0} is not known")]
    UnknownVolume(VolumeId),
    /// The volume's target is not connected, so nobody can say what the node needs to know.
    #[error("volume {volume} is on target {target}, which is not connected; it goes on when it is")]
    NotConnected {
        /// The volume.
        volume: VolumeId,
        /// Its target.
        target: TargetId,
    },
    /// The ticket does not go with the one in the ledger.
    #[error(transparent)]
    Submit(#[from] SubmitError),
    /// The volume's record cannot be read.
    #[error("the ledger of volume {volume} cannot be read: {error}")]
    Unreadable {
        /// The volume.
        volume: VolumeId,
        /// Why.
        error: String,
    },
    /// The volume is held or wanted, so it cannot be forgotten.
    #[error("volume {volume} is {state}; it can be removed when nobody holds or wants it")]
    InUse {
        /// The volume.
        volume: VolumeId,
        /// Its state.
        state: &'static str,
    },
    /// A volume is on the target, so it cannot be forgotten.
    #[error("volume {volume} is on target {target}; it can be removed when nothing is there any more")]
    TargetInUse {
        /// The target.
        target: TargetId,
        /// One of its volumes.
        volume: VolumeId,
    },
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Somebody withdrew the ticket while its owner was waiting, or its time was over.
    #[error("ticket {0} was withdrawn")]
    Withdrawn(TicketId),
    /// The engine is being stopped.
    #[error("the engine is stopping")]
    Stopping,
}

pub(crate) struct Shared {
    pub(crate) store: Arc<dyn Store>,
    targets: Mutex<BTreeMap<TargetId, Arc<Link>>>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) settings: Settings,
    pub(crate) metrics: Metrics,
    pub(crate) volumes: Mutex<HashMap<VolumeId, Known>>,
    pub(crate) nodes: Mutex<Nodes>,
    actors: Mutex<Actors>,
    pub(crate) notices: broadcast::Sender<(VolumeId, Notice)>,
    pub(crate) refusals: broadcast::Sender<VolumeId>,
    pub(crate) changes: Told,
    /// What targets said of volumes whose actors have not read it yet. Not in the mailbox, where a wish would come first.
    pub(crate) lists: Mutex<HashMap<VolumeId, BTreeMap<Epoch, Export>>>,
    /// Where its tasks run: an observation may come from any thread.
    runtime: tokio::runtime::Handle,
    asking: Asking,
}

/// Who asks for something.
#[derive(Default)]
struct Asking {
    /// How many wait for an answer now.
    now: AtomicUsize,
    /// How many have asked so far.
    ever: AtomicUsize,
}

/// Somebody who waits for an answer, as long as this lives.
pub struct Waiting<'a>(&'a Asking);

impl<'a> Waiting<'a> {
    fn new(asking: &'a Asking) -> Self {
        asking.now.fetch_add(1, Ordering::Relaxed);
        asking.ever.fetch_add(1, Ordering::Relaxed);
        Self(asking)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.now.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What was told of a volume and its tickets.
#[derive(Clone)]
pub(crate) struct Known {
    pub(crate) facts: VolumeFacts,
    pub(crate) tickets: BTreeMap<TicketId, TicketFacts>,
    /// The newest epoch that a stored ledger of it was seen with: zero if it may have had one that nobody saw, nothing if it never had one.
    pub(crate) past: Option<Epoch>,
    /// What its tickets wait for, as it is counted.
    pub(crate) waiting: Vec<&'static str>,
}

impl Known {
    /// A volume that may have a past.
    pub(crate) fn new(facts: VolumeFacts) -> Self {
        Self { facts, tickets: BTreeMap::new(), past: Some(Epoch::default()), waiting: Vec::new() }
    }
}

#[derive(Default)]
struct Actors {
    mailboxes: HashMap<VolumeId, mpsc::UnboundedSender<Message>>,
    views: HashMap<VolumeId, watch::Sender<Status>>,
    wakes: HashMap<VolumeId, tokio::task::AbortHandle>,
    stopped: bool,
    last_one_out: Option<oneshot::Sender<()>>,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No code panics while it holds one of these locks; should that ever happen, what they guard follows
    // from the ledgers and is corrected by the next turn.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Engine {
    pub(crate) fn new(
        store: Arc<dyn Store>,
        targets: BTreeMap<TargetId, Arc<Link>>,
        clock: Arc<dyn Clock>,
        settings: Settings,
        metrics: Metrics,
    ) -> Self {
        let ((notices, _), (refusals, _)) = (broadcast::channel(1024), broadcast::channel(1024));
        let shared = Shared {
            store,
            targets: Mutex::new(targets),
            clock,
            settings,
            metrics,
            volumes: Mutex::default(),
            nodes: Mutex::default(),
            actors: Mutex::default(),
            notices,
            refusals,
            changes: Told::default(),
            lists: Mutex::default(),
            runtime: tokio::runtime::Handle::current(),
            asking: Asking::default(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Files a ticket, or joins it if it is there, and waits for what becomes of it. Giving up waiting (also by
    /// dropping the future) takes nothing back.
    pub async fn submit(
        &self,
        volume: &VolumeId,
        ticket: Ticket,
        patience: Patience,
        wait: Duration,
    ) -> Result<Submitted, EngineError> {
        let id = ticket.id.clone();
        let (reply, answer) = oneshot::channel();
        let _waiting = self.waiting();
        self.shared.send(volume, Message::Submit { ticket, patience, reply })?;
        match tokio::time::timeout(wait, answer).await {
            Ok(answer) => answer.map_err(|_| EngineError::Stopping)?,
            Err(_) => {
                let Status { view, trouble } = self.shared.status(volume);
                let verdict = view.and_then(|view| view.verdicts.get(&id).cloned());
                Ok(Submitted::StillWorking { verdict, trouble })
            }
        }
    }

    /// Takes tickets back and waits until the nodes are out. Giving up waiting takes nothing back.
    pub async fn withdraw(
        &self,
        volume: &VolumeId,
        withdrawal: Withdrawal,
        wait: Duration,
    ) -> Result<Withdrawn, EngineError> {
        let (reply, answer) = oneshot::channel();
        let _waiting = self.waiting();
        self.shared.send(volume, Message::Withdraw { withdrawal, reply })?;
        match tokio::time::timeout(wait, answer).await {
            Ok(answer) => answer.map_err(|_| EngineError::Stopping)?,
            Err(_) => {
                let Status { view, trouble } = self.shared.status(volume);
                let closing = view.iter().flat_map(|view| {
                    let closing = view.ledger.holds().iter().filter(|(_, hold)| !hold.is_open());
                    closing.map(|(node, _)| (node.clone(), view.answers.get(node).cloned()))
                });
                Ok(Withdrawn::StillWorking { nodes: closing.collect(), trouble })
            }
        }
    }

    /// Somebody waits for a write that goes past the engine to where its store is, and what only confirms would be in its way: while this lives, that is put off
    /// as it is for those who wait for the engine itself.
    pub fn waiting(&self) -> Waiting<'_> {
        Waiting::new(&self.shared.asking)
    }

    /// Tells what is known of a volume; the first telling makes it known. If it has no ledger then, its target is asked whom it lets in before anybody else is.
    pub fn observe_volume(&self, volume: &VolumeId, facts: VolumeFacts) {
        self.tell_of(volume, Known::new(facts));
    }

    /// Makes a volume known that was made just now: nobody can have been let in to it, and its target need not be asked.
    pub fn observe_new_volume(&self, volume: &VolumeId, facts: VolumeFacts) {
        self.tell_of(volume, Known { past: None, ..Known::new(facts) });
    }

    fn tell_of(&self, volume: &VolumeId, told: Known) {
        let changed = match lock(&self.shared.volumes).entry(volume.clone()) {
            Entry::Vacant(place) => {
                place.insert(told);
                false
            }
            Entry::Occupied(mut known) => {
                std::mem::replace(&mut known.get_mut().facts, told.facts.clone()) != told.facts
            }
        };
        if changed {
            self.shared.poke(volume);
        }
    }

    /// Tells what is known of a node. Costs as much as the node has volumes.
    pub fn observe_node(&self, node: &NodeId, report: NodeReport) {
        let volumes = lock(&self.shared.nodes).report(node, report);
        for volume in volumes {
            self.shared.poke(&volume);
        }
    }

    /// Tells what is known of a ticket: that its owner is proven gone, or that its work is done.
    pub fn observe_ticket(
        &self,
        volume: &VolumeId,
        ticket: TicketId,
        facts: TicketFacts,
    ) -> Result<(), EngineError> {
        match lock(&self.shared.volumes).get_mut(volume) {
            Some(known) => known.tickets.insert(ticket, facts),
            None => return Err(EngineError::UnknownVolume(volume.clone())),
        };
        self.shared.send(volume, Message::Poke)
    }

    /// The volume as it stands.
    pub async fn view(&self, volume: &VolumeId) -> Result<Arc<View>, EngineError> {
        let (reply, answer) = oneshot::channel();
        self.shared.send(volume, Message::View { reply })?;
        answer.await.map_err(|_| EngineError::Stopping)?
    }

    /// Follows a volume: every change, the latest one when several came at once.
    pub fn watch(&self, volume: &VolumeId) -> Result<watch::Receiver<Status>, EngineError> {
        let receiver = {
            let mut actors = lock(&self.shared.actors);
            actors
                .views
                .entry(volume.clone())
                .or_insert_with(|| watch::channel(Status::default()).0)
                .subscribe()
        };
        self.shared.send(volume, Message::Poke)?;
        Ok(receiver)
    }

    /// Follows what happens unasked, on all volumes.
    pub fn notices(&self) -> broadcast::Receiver<(VolumeId, Notice)> {
        self.shared.notices.subscribe()
    }

    /// Follows the volumes of which a target has just refused to let a node in: something may be wrong with them.
    pub fn refusals(&self) -> broadcast::Receiver<VolumeId> {
        self.shared.refusals.subscribe()
    }

    /// Follows the changes of all volumes, for those who have an interest in many of them: one place to look instead of one per volume.
    pub fn changes(&self) -> Changes {
        self.shared.changes.follow()
    }

    /// Forgets a volume for good, record and all. Refused while anybody holds or wants it.
    pub async fn remove_volume(&self, volume: &VolumeId) -> Result<(), EngineError> {
        let (reply, answer) = oneshot::channel();
        self.shared.send(volume, Message::Remove { reply })?;
        answer.await.map_err(|_| EngineError::Stopping)??;
        lock(&self.shared.volumes).remove(volume);
        Ok(())
    }

    /// Asks a target now whom it lets in, and compares that with the ledgers: after it was away, say. It is also
    /// done by itself now and then.
    pub async fn compare(&self, target: &TargetId) -> Result<(), CompareError> {
        let Some(link) = lock(&self.shared.targets).get(target).cloned() else { return Ok(()) };
        crate::start::compare(&self.shared, &link).await
    }

    /// Connects a target while the engine runs, or connects it anew (at another address, say). It is asked whom it lets in
    /// and compared with the ledgers of its volumes as at the start; until that has worked, they get nobody new. If it does
    /// not work now, it is tried again by itself.
    pub async fn add_target(&self, target: Arc<dyn Target>) -> Result<(), CompareError> {
        let link = self.shared.link(target.id());
        link.connect(target, self.shared.clock.now());
        let compared = crate::start::compare(&self.shared, &link).await;
        crate::start::keep_comparing(&self.shared, &link);
        compared
    }

    /// A target is to be connected later: until it is, it counts as one that does not answer.
    pub fn expect_target(&self, target: &TargetId) {
        self.shared.link(target);
    }

    /// The targets that are expected, by a volume or by whoever said so, and are not connected.
    pub fn unconnected(&self) -> Vec<TargetId> {
        let links = self.shared.links();
        links.into_iter().filter(|link| link.target().is_none()).map(|link| link.id.clone()).collect()
    }

    /// Forgets a target. Refused while a volume that is known is there.
    pub fn remove_target(&self, target: &TargetId) -> Result<(), EngineError> {
        // One lock for both, so that no volume comes to be there meanwhile.
        let volumes = lock(&self.shared.volumes);
        if let Some((volume, _)) = volumes.iter().find(|(_, known)| known.facts.target == *target) {
            let (volume, target) = (volume.clone(), target.clone());
            return Err(EngineError::TargetInUse { target, volume });
        }
        lock(&self.shared.targets).remove(target);
        self.shared.metrics.forget_target(target);
        Ok(())
    }

    /// Writes what is unwritten and ends. What is under way at targets is found again at the next start.
    pub async fn stop(&self) {
        let (done, wait) = oneshot::channel();
        {
            let mut actors = lock(&self.shared.actors);
            actors.stopped = true;
            for (_, wake) in actors.wakes.drain() {
                wake.abort();
            }
            if actors.mailboxes.is_empty() {
                return;
            }
            for mailbox in actors.mailboxes.values() {
                // A closed mailbox belongs to an actor that has just ended.
                let _ = mailbox.send(Message::Stop);
            }
            actors.last_one_out = Some(done);
        }
        let _ = wait.await;
    }
}

impl Shared {
    /// The way to a target. One that is not connected has a way, too: its volumes are known, keep what they have, and wait.
    pub(crate) fn link(&self, target: &TargetId) -> Arc<Link> {
        let mut targets = lock(&self.targets);
        let make = || Arc::new(Link::new(target.clone(), &self.settings, &self.metrics, self.clock.now()));
        Arc::clone(targets.entry(target.clone()).or_insert_with(make))
    }

    /// How many have asked for something so far, on any volume.
    pub(crate) fn asked(&self) -> usize {
        self.asking.ever.load(Ordering::Relaxed)
    }

    /// Whether somebody waits for an answer, or has asked since there were so many: in a storm there are moments in which nobody waits.
    pub(crate) fn is_busy_since(&self, asked: usize) -> bool {
        self.asking.now.load(Ordering::Relaxed) > 0 || self.asked() != asked
    }

    pub(crate) fn links(&self) -> Vec<Arc<Link>> {
        lock(&self.targets).values().cloned().collect()
    }

    /// Hands a message to the volume's actor, which is made if there is none.
    pub(crate) fn send(self: &Arc<Self>, volume: &VolumeId, message: Message) -> Result<(), EngineError> {
        let target = lock(&self.volumes).get(volume).map(|known| known.facts.target.clone());
        let target = target.ok_or_else(|| EngineError::UnknownVolume(volume.clone()))?;
        let link = self.link(&target);
        let mut actors = lock(&self.actors);
        if actors.stopped {
            return Err(EngineError::Stopping);
        }
        self.metrics.queue.inc();
        let Err(mpsc::error::SendError(message)) = (match actors.mailboxes.get(volume) {
            Some(mailbox) => mailbox.send(message),
            None => Err(mpsc::error::SendError(message)),
        }) else {
            return Ok(());
        };
        if let Some(wake) = actors.wakes.remove(volume) {
            wake.abort();
        }
        let view =
            actors.views.entry(volume.clone()).or_insert_with(|| watch::channel(Status::default()).0).clone();
        let (mailbox, messages) = mpsc::unbounded_channel();
        // The receiver is alive in this very function, so this cannot fail.
        let _ = mailbox.send(message);
        actors.mailboxes.insert(volume.clone(), mailbox);
        self.metrics.actors.inc();
        self.runtime.spawn(Actor::run(Arc::clone(self), volume.clone(), link, messages, view));
        Ok(())
    }

    /// The volumes that have an actor now.
    pub(crate) fn busy(&self) -> Vec<VolumeId> {
        lock(&self.actors).mailboxes.keys().cloned().collect()
    }

    /// Makes a volume's actor look again, if the volume is known.
    pub(crate) fn poke(self: &Arc<Self>, volume: &VolumeId) {
        // A volume that is not known any more has nothing to look at.
        let _ = self.send(volume, Message::Poke);
    }

    /// Ends an actor if nobody has written to it meanwhile. One lock for both, so that no message is lost.
    pub(crate) fn retire(
        self: &Arc<Self>,
        volume: &VolumeId,
        messages: &mut mpsc::UnboundedReceiver<Message>,
        wake: Option<Timestamp>,
    ) -> bool {
        let mut actors = lock(&self.actors);
        if !messages.is_empty() {
            return false;
        }
        actors.mailboxes.remove(volume);
        self.metrics.actors.dec();
        if actors.views.get(volume).is_some_and(watch::Sender::is_closed) {
            actors.views.remove(volume);
        }
        if actors.mailboxes.is_empty()
            && let Some(done) = actors.last_one_out.take()
        {
            // Whoever asked for the end may have stopped waiting for it.
            let _ = done.send(());
        } else if let Some(at) = wake.filter(|_| !actors.stopped) {
            self.wake_at(&mut actors, volume, at);
        }
        true
    }

    fn wake_at(self: &Arc<Self>, actors: &mut Actors, volume: &VolumeId, at: Timestamp) {
        let delay = Duration::try_from(at.duration_since(self.clock.now())).unwrap_or_default();
        let (shared, sleeper) = (Arc::clone(self), volume.clone());
        let task = self.runtime.spawn(async move {
            tokio::time::sleep(delay).await;
            shared.poke(&sleeper);
        });
        if let Some(earlier) = actors.wakes.insert(volume.clone(), task.abort_handle()) {
            earlier.abort();
        }
    }

    /// Sets an alarm for a volume that has no actor.
    pub(crate) fn wake_idle(self: &Arc<Self>, volume: &VolumeId, at: Timestamp) {
        self.wake_at(&mut lock(&self.actors), volume, at);
    }

    fn status(&self, volume: &VolumeId) -> Status {
        lock(&self.actors).views.get(volume).map(|status| status.borrow().clone()).unwrap_or_default()
    }

    /// Hands the target's list to a volume.
    pub(crate) fn tell_exports(self: &Arc<Self>, volume: &VolumeId, exports: BTreeMap<Epoch, Export>) {
        lock(&self.lists).insert(volume.clone(), exports);
        if let Err(error) = self.send(volume, Message::Poke) {
            lock(&self.lists).remove(volume);
            tracing::warn!(%volume, %error, "the target's list was not compared");
        }
    }
}
