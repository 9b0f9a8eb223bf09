//! One volume while there is something to do for it: drives the [`Executor`] and does what it says.

use bowline_core::{Effect, Epoch, Export, Ledger, Outcome, Ticket, TicketId, Verdict, VolumeId, decide};
use bowline_store::{Key, Revision, StoreError, record};
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};

use crate::engine::{Shared, lock};
use crate::link::Link;
use crate::stored::{ReadError, Stored, read, read_at_last};
use crate::waiters::Waiters;
use crate::{
    Action, EngineError, Executor, Patience, Status, Submitted, Turn, View, Withdrawal, Withdrawn, Written,
};

/// How often what only confirms is put off in a row, while others wait for what lets them in. If it is never written, a restart asks the target again.
const PUT_OFF: u32 = 60;

/// How an order is answered.
pub(crate) type Reply<T> = oneshot::Sender<Result<T, EngineError>>;

pub(crate) enum Message {
    Submit { ticket: Ticket, patience: Patience, reply: Reply<Submitted> },
    Withdraw { withdrawal: Withdrawal, reply: Reply<Withdrawn> },
    Remove { reply: Reply<()> },
    View { reply: Reply<Arc<View>> },
    Poke,
    Stop,
}

/// Something that was under way and has come to an end.
enum Done {
    Answered(Effect, Outcome),
    Rested(Effect),
    Wrote(Result<Revision, StoreError>),
    Read(Result<Stored, ReadError>),
    Removed(Result<(), StoreError>),
    Looked(Result<BTreeMap<Epoch, Export>, String>),
    /// What was put off is due; so many had asked for something when it was.
    WriteNow {
        asked: usize,
    },
}

pub(crate) struct Actor {
    shared: Arc<Shared>,
    volume: VolumeId,
    link: Arc<Link>,
    messages: mpsc::UnboundedReceiver<Message>,
    status: watch::Sender<Status>,
    executor: Executor,
    waiters: Waiters,
    /// What is under way. Polled by the actor itself: a task of its own for each would cost a wake-up of another thread
    /// on the way there and one on the way back, which is most of what an attach costs beside the disk.
    doing: FuturesUnordered<BoxFuture<'static, Done>>,
    failures: HashMap<Effect, u32>,
    store_failures: u32,
    followed: Ledger,
    told: Option<BTreeMap<TicketId, &'static str>>,
    reading: bool,
    looking: bool,
    looks_failed: u32,
    /// How long to wait before the target is first asked after the ledger was lost: whoever is in may want to say so first.
    look_after: Duration,
    write_is_due: bool,
    /// How often in a row what nobody waits for was put off because somebody waits for something else.
    put_off: u32,
    stopping: bool,
}

impl Actor {
    /// Reads the volume's ledger and lives until there is nothing left to do.
    pub(crate) async fn run(
        shared: Arc<Shared>,
        volume: VolumeId,
        link: Arc<Link>,
        mut messages: mpsc::UnboundedReceiver<Message>,
        status: watch::Sender<Status>,
    ) {
        let stored = match read_at_last(&shared, &volume, &status).await {
            Ok(stored) => stored,
            Err(error) => return refuse_all(&shared, &volume, &mut messages, &error).await,
        };
        let Some(known) = lock(&shared.volumes).get(&volume).cloned() else {
            return refuse_all(&shared, &volume, &mut messages, "the volume is not known any more").await;
        };
        let lacking = known.lacks(&stored);
        let (ledger, revision) = stored;
        let seen = bowline_core::Observed::new(known.facts);
        let mut executor = Executor::new(ledger.clone(), revision, seen);
        let mut look_after = Duration::ZERO;
        if let Some(past) = lacking {
            tracing::warn!(%volume, %past, "the ledger was lost; the target is asked before anything else");
            executor.lose(shared.clock.now());
            if past > Epoch::default() {
                look_after = shared.settings.refile_within;
            }
        }
        if revision.is_some() {
            shared.remember(&volume, ledger.epoch());
        }
        let actor = Self {
            executor,
            followed: ledger,
            shared,
            volume,
            link,
            messages,
            status,
            waiters: Waiters::default(),
            doing: FuturesUnordered::new(),
            failures: HashMap::new(),
            store_failures: 0,
            told: None,
            reading: false,
            looking: false,
            looks_failed: 0,
            look_after,
            write_is_due: false,
            put_off: 0,
            stopping: false,
        };
        actor.live().await;
    }

    async fn live(mut self) {
        // The index has this ledger from the start of the engine, or from an earlier actor.
        loop {
            let turn = self.turn();
            self.waiters.answer(&self.executor, &turn, &self.volume, &self.link, &self.shared.metrics);
            self.tell(turn);
            self.remove_if_asked();
            if self.may_end() && self.shared.retire(&self.volume, &mut self.messages, self.executor.wake()) {
                return;
            }
            let alarm = self.alarm();
            tokio::select! {
                message = self.messages.recv() => match message {
                    Some(message) => self.take(message),
                    None => return,
                },
                Some(done) = self.doing.next() => self.finish(done),
                () = tokio::time::sleep(alarm.unwrap_or_default()), if alarm.is_some() => {}
            }
        }
    }

    fn alarm(&self) -> Option<Duration> {
        let at = self.executor.wake()?;
        Some(Duration::try_from(at.duration_since(self.shared.clock.now())).unwrap_or_default())
    }

    fn may_end(&self) -> bool {
        if self.stopping {
            let written = !self.executor.is_writing() && !self.executor.has_unwritten();
            return written || self.store_failures > 0;
        }
        self.executor.is_idle() && self.waiters.is_empty()
    }

    fn take(&mut self, message: Message) {
        self.shared.metrics.queue.dec();
        let now = self.shared.clock.now();
        match message {
            Message::Submit { ticket, patience, reply } => {
                let (id, generation) = (ticket.id.clone(), ticket.generation);
                match self.executor.submit(ticket, patience, now) {
                    Ok(()) => self.waiters.submitted(id, generation, reply),
                    // A caller that has gone away has no use for the answer.
                    Err(error) => drop(reply.send(Err(error.into()))),
                }
            }
            Message::Withdraw { withdrawal, reply } => {
                let nodes = self.executor.withdraw(withdrawal, now);
                self.waiters.withdrawn(nodes, reply);
            }
            Message::Remove { reply } => {
                self.waiters.removed(reply);
                // What is put off, the end of the last hold say, would hold up the removal.
                self.executor.flush();
            }
            Message::View { reply } => self.waiters.viewed(reply),
            Message::Poke => {}
            Message::Stop => {
                self.stopping = true;
                self.executor.flush();
            }
        }
    }

    fn finish(&mut self, done: Done) {
        match done {
            Done::Answered(effect, outcome) => self.answered(&effect, outcome),
            Done::Rested(effect) => self.executor.rested(&effect),
            Done::Wrote(Ok(revision)) => {
                self.store_failures = 0;
                self.executor.wrote(Written::Durable(revision));
                self.shared.remember(&self.volume, self.executor.stored().epoch());
            }
            Done::Wrote(Err(error)) => {
                self.shared.metrics.store_retry();
                self.executor.wrote(Written::ReadAgain);
                if !matches!(error, StoreError::Conflict { .. }) {
                    self.in_trouble(error.to_string());
                }
            }
            Done::Read(Ok((ledger, revision))) => {
                self.reading = false;
                if revision.is_some() {
                    self.shared.remember(&self.volume, ledger.epoch());
                }
                let rejected = self.executor.loaded(ledger, revision, self.shared.clock.now());
                self.waiters.reject(rejected);
            }
            Done::Read(Err(ReadError::Store(error))) => {
                self.reading = false;
                self.in_trouble(error.to_string());
            }
            Done::Read(Err(ReadError::Unreadable(error))) => {
                self.reading = false;
                self.waiters.fail(&self.volume, &error);
                self.in_trouble(error);
            }
            Done::Looked(looked) => {
                self.looking = false;
                self.looked(looked);
            }
            Done::Removed(result) => {
                if result.is_ok() {
                    let seen = self.executor.seen().clone();
                    self.executor = Executor::new(Ledger::default(), None, seen);
                }
                self.waiters.finish_removal(result);
            }
            Done::WriteNow { asked } => {
                self.write_is_due = false;
                if self.put_off < PUT_OFF && self.shared.is_busy_since(asked) {
                    self.put_off += 1;
                } else {
                    self.put_off = 0;
                    self.executor.flush();
                }
            }
        }
    }

    fn answered(&mut self, effect: &Effect, outcome: Outcome) {
        let (volume, node, epoch) = (&self.volume, effect.node(), effect.epoch());
        self.shared.metrics.effect(effect, &outcome);
        match &outcome {
            Outcome::Allowed => tracing::info!(%volume, %node, %epoch, "let in"),
            Outcome::Gone { .. } => tracing::info!(%volume, %node, %epoch, "shut out"),
            Outcome::Refused { .. } | Outcome::InUse { .. } | Outcome::Silent { .. } => {
                tracing::warn!(%volume, %node, %epoch, ?outcome, "the target did not do it");
            }
        }
        if matches!((effect, &outcome), (Effect::Allow { .. }, Outcome::Refused { .. })) {
            // Nobody needs to listen.
            let _ = self.shared.refusals.send(volume.clone());
        }
        if matches!(outcome, Outcome::Allowed | Outcome::Gone { .. }) {
            self.failures.remove(effect);
        } else {
            let failures = self.failures.entry(effect.clone()).or_default();
            let mut pause = self.shared.settings.pause(&(volume, effect), *failures);
            if matches!(outcome, Outcome::InUse { .. }) {
                pause = pause.min(self.shared.settings.in_use_pause);
            }
            *failures += 1;
            self.after(pause, Done::Rested(effect.clone()));
        }
        self.executor.answered(effect, outcome);
    }

    fn looked(&mut self, looked: Result<BTreeMap<Epoch, Export>, String>) {
        match looked {
            Ok(exports) => {
                self.looks_failed = 0;
                self.executor.looked(exports);
            }
            Err(error) => {
                let volume = &self.volume;
                tracing::warn!(%volume, error, attempt = self.looks_failed, "the ledger was lost, and the target does not say whom it lets in");
                self.looks_failed += 1;
                self.executor.not_looked(&error);
            }
        }
    }

    fn in_trouble(&mut self, error: String) {
        let volume = &self.volume;
        tracing::warn!(%volume, error, attempt = self.store_failures, "the store failed");
        self.store_failures += 1;
        self.status.send_modify(|status| status.trouble = Some(error));
    }

    /// Decides with what is known now, and starts what follows.
    fn turn(&mut self) -> Turn {
        if let Some(known) = lock(&self.shared.volumes).get(&self.volume).cloned() {
            self.executor.observe(|seen| (seen.volume, seen.tickets) = (known.facts, known.tickets));
        }
        // In this order: a target counts as compared only when its list lies ready, and nobody is let in before it was read.
        let contact = self.link.contact();
        self.executor.observe(|seen| seen.contact = contact);
        if let Some(exports) = lock(&self.shared.lists).remove(&self.volume) {
            self.executor.observe(|seen| seen.exports = Some(exports));
        }
        let now = self.shared.clock.now();
        let (turn, waiting) = {
            // One lock from the look at the nodes' room to the taking of it; nothing here waits.
            let mut nodes = lock(&self.shared.nodes);
            let ledger = self.executor.ledger().clone();
            self.executor.observe(|seen| nodes.tell(&self.volume, &ledger, seen));
            let turn = self.executor.turn(now, decide);
            let waiting = nodes.follow(&self.volume, &self.followed, self.executor.ledger());
            (turn, waiting)
        };
        self.followed = self.executor.ledger().clone();
        for other in waiting.iter().filter(|other| **other != self.volume) {
            self.shared.poke(other);
        }
        for action in &turn.actions {
            self.start(action);
        }
        self.look_if_lost();
        self.read_or_write_later();
        turn
    }

    fn look_if_lost(&mut self) {
        if !self.executor.must_look() || std::mem::replace(&mut self.looking, true) {
            return;
        }
        let pause = match self.looks_failed {
            0 => std::mem::take(&mut self.look_after),
            failures => self.shared.settings.pause(&self.volume, failures - 1),
        };
        let (link, volume, shared) = (Arc::clone(&self.link), self.volume.clone(), Arc::clone(&self.shared));
        // Now, and not after the pause: whatever the target is asked from here on tells what the lost ledger did.
        let noticed = link.moment();
        self.start_doing(async move {
            tokio::time::sleep(pause).await;
            let looked = guarded(link.look(&volume, noticed, shared.clock.now())).await;
            Done::Looked(looked.and_then(|looked| looked.map_err(|error| error.to_string())))
        });
    }

    fn start(&mut self, action: &Action) {
        let shared = Arc::clone(&self.shared);
        let volume = self.volume.clone();
        match action.clone() {
            Action::Write { expected, ledger } => {
                self.start_doing(async move {
                    let put = async {
                        let value = record::encode(&ledger).map_err(|error| lost(error.to_string()))?;
                        shared.store.put(&Key::ledger(&volume), value, expected).await
                    };
                    Done::Wrote(guarded(put).await.unwrap_or_else(|error| Err(lost(error))))
                });
            }
            Action::Ask(effect) => {
                let link = Arc::clone(&self.link);
                let beside = self.executor.stored().beside(effect.node());
                self.start_doing(async move {
                    let answer = guarded(link.ask(&volume, &effect, beside)).await;
                    let outcome = match answer {
                        Ok(Ok(outcome)) => outcome,
                        Ok(Err(error)) => error.outcome(shared.clock.now()),
                        Err(error) => Outcome::Silent { since: shared.clock.now(), error },
                    };
                    Done::Answered(effect, outcome)
                });
            }
        }
    }

    fn read_or_write_later(&mut self) {
        if self.executor.must_read() && !self.reading {
            self.reading = true;
            let pause = match self.store_failures {
                0 => Duration::ZERO,
                failures => self.shared.settings.pause(&self.volume, failures),
            };
            let (shared, volume) = (Arc::clone(&self.shared), self.volume.clone());
            self.start_doing(async move {
                tokio::time::sleep(pause).await;
                Done::Read(read(&shared, &volume).await)
            });
        }
        if self.executor.has_unwritten() && !self.write_is_due {
            self.write_is_due = true;
            let asked = self.shared.asked();
            self.after(self.shared.settings.write_within, Done::WriteNow { asked });
        }
    }

    fn start_doing(&self, work: impl Future<Output = Done> + Send + 'static) {
        self.doing.push(work.boxed());
    }

    fn after(&mut self, pause: Duration, done: Done) {
        self.start_doing(async move {
            tokio::time::sleep(pause).await;
            done
        });
    }

    /// Publishes where the volume stands, and what happened unasked.
    fn tell(&mut self, turn: Turn) {
        for notice in turn.notices {
            tracing::warn!(volume = %self.volume, ?notice, "happened unasked");
            // Nobody needs to listen.
            let _ = self.shared.notices.send((self.volume.clone(), notice));
        }
        self.count_verdicts();
        let waiting = self.executor.verdicts().values().filter(|verdict| !verdict.is_satisfied());
        let waiting: Vec<_> = waiting.map(Verdict::reason).collect();
        if let Some(known) = lock(&self.shared.volumes).get_mut(&self.volume) {
            let tickets = self.executor.ledger().tickets();
            known
                .tickets
                .retain(|id, facts| tickets.get(id).is_some_and(|one| one.generation <= facts.generation));
            // They wait on when this actor ends, so what was counted is not kept here.
            self.shared.metrics.waiting(&known.waiting, &waiting);
            known.waiting = waiting;
        }
        let view = Arc::new(self.view());
        self.waiters.show(&view);
        let trouble = (self.store_failures > 0).then(|| self.status.borrow().trouble.clone()).flatten();
        let next = Status { view: Some(Arc::clone(&view)), trouble };
        let changed = self.status.send_if_modified(|status| {
            let changed = *status != next;
            *status = next;
            changed
        });
        if changed {
            self.shared.changes.tell(&view);
        }
    }

    /// Counts verdicts that are new. Those that were found at the beginning were counted when they were reached.
    fn count_verdicts(&mut self) {
        let verdicts = self.executor.verdicts().iter();
        let reasons: BTreeMap<_, _> =
            verdicts.map(|(ticket, verdict)| (ticket.clone(), verdict.reason())).collect();
        if let Some(told) = &self.told {
            for (_, reason) in reasons.iter().filter(|(ticket, reason)| told.get(*ticket) != Some(*reason)) {
                self.shared.metrics.verdict(reason);
            }
        }
        self.told = Some(reasons);
    }

    fn view(&self) -> View {
        let seen = self.executor.seen();
        let answers = seen.answers.iter().map(|(node, answer)| (node.clone(), answer.outcome.clone()));
        View {
            volume: self.volume.clone(),
            state: self.executor.ledger().state(&seen.volume),
            ledger: self.executor.ledger().clone(),
            verdicts: self.executor.verdicts().clone(),
            answers: answers.collect(),
            wake: self.executor.wake(),
            lost: self.executor.must_look(),
        }
    }

    fn remove_if_asked(&mut self) {
        if !self.waiters.wants_removal() {
            return;
        }
        let ledger = self.executor.ledger();
        if !ledger.holds().is_empty() || !ledger.tickets().is_empty() {
            let state = ledger.state(&self.executor.seen().volume).as_str();
            return self.waiters.refuse_removal(&self.volume, state);
        }
        if !self.executor.is_idle() {
            return self.executor.flush();
        }
        let Some(revision) = self.executor.revision() else {
            return self.waiters.finish_removal(Ok(()));
        };
        let (shared, volume) = (Arc::clone(&self.shared), self.volume.clone());
        self.waiters.removal_begins();
        self.start_doing(
            async move { Done::Removed(shared.store.delete(&Key::ledger(&volume), revision).await) },
        );
    }
}

/// A panic in an adapter must not leave a volume waiting for ever.
pub(crate) async fn guarded<T>(work: impl Future<Output = T>) -> Result<T, String> {
    AssertUnwindSafe(work).catch_unwind().await.map_err(|_| "the adapter failed unexpectedly".to_owned())
}

pub(crate) fn lost(error: String) -> StoreError {
    StoreError::Unavailable { place: "the store".to_owned(), reason: error }
}

/// Tells everybody why nothing can be done for this volume, and ends.
async fn refuse_all(
    shared: &Arc<Shared>,
    volume: &VolumeId,
    messages: &mut mpsc::UnboundedReceiver<Message>,
    error: &str,
) {
    tracing::error!(%volume, error, "the ledger cannot be read");
    let refusal = || EngineError::Unreadable { volume: volume.clone(), error: error.to_owned() };
    while !shared.retire(volume, messages, None) {
        let Some(message) = messages.recv().await else { return };
        shared.metrics.queue.dec();
        // A caller that has gone away has no use for the answer.
        match message {
            Message::Submit { reply, .. } => drop(reply.send(Err(refusal()))),
            Message::Withdraw { reply, .. } => drop(reply.send(Err(refusal()))),
            Message::Remove { reply } => drop(reply.send(Err(refusal()))),
            Message::View { reply } => drop(reply.send(Err(refusal()))),
            Message::Poke | Message::Stop => {}
        }
    }
}
