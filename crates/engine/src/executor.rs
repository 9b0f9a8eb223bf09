//! The order in which things are done, and nothing else: no I/O, no clock, no tasks.
//!
//! # Flow
//! wish or observation -> [`decide`](bowline_core::decide) -> store what lets someone in or shuts someone out -> ask the target -> observe its
//! answer -> decide -> answer the caller.
//!
//! # Guarantees
//! - The target is asked to let a node in only if the *stored* ledger has that very grant, and to shut it out only if the
//!   stored ledger says so of that very grant: whoever loses a compare-and-swap stops before touching the target.
//! - A caller hears "yes" only if the stored ledger has its ticket and its grant and the target has confirmed it; it hears
//!   "detached" only if the stored ledger does not have the ticket and the target has proven that the node is out.
//! - What the target has confirmed or proven is written later and together; if it is lost, it is asked for again.
//! - A write that was rejected, or whose fate is unknown, is never repeated: the ledger is read again, the wishes that
//!   are not in it are applied to what was read, and everything is decided anew.
//! - A ledger that was lost is not taken for one that has not begun: before the target was asked whom it lets in, nobody is let in, nothing is asked
//!   of the target, and nobody hears "yes" or "detached".
//!
//! The actor drives it in production and the model checker drives the same code in the proof.

mod lost;

use bowline_core::{
    Answer, Effect, Epoch, Export, Ledger, NodeId, Notice, Observed, Outcome, Owner, Plan, SubmitError,
    Ticket, TicketId, Timestamp, Verdict,
};
use bowline_store::{Expected, Revision};
use std::collections::{BTreeMap, BTreeSet};

use lost::Lost;

/// The function that chooses. In production always [`bowline_core::decide`]; the model checker also runs wrong ones, to
/// show that it would notice.
pub type Decide = fn(&Ledger, &Observed, Timestamp) -> Plan;

/// What to do when a ticket cannot be satisfied without somebody else's doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Patience {
    /// Leave it in the queue.
    Wait,
    /// Take it back and leave nothing behind: nobody's forgotten call shall grab the volume later.
    Refuse,
}

/// Which tickets to take back.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Withdrawal {
    /// Only this ticket.
    pub ticket: Option<TicketId>,
    /// Only tickets of this node; the withdrawal is done when this node is out (or in for other tickets).
    pub node: Option<NodeId>,
    /// Cut the nodes off at once, whatever they do.
    pub force: bool,
}

/// Something that somebody asked for and that may not be durable yet.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Wish {
    Submit(Ticket, Patience),
    Withdraw(Withdrawal),
}

/// Something for the outside to do; each is reported back.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Write the ledger if the store still has what is expected; report with [`Executor::wrote`].
    Write {
        /// What must be there.
        expected: Expected,
        /// What shall be there.
        ledger: Ledger,
    },
    /// Ask the target; report with [`Executor::answered`].
    Ask(Effect),
}

/// What became of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Written {
    /// It is durable, as this revision.
    Durable(Revision),
    /// Certainly not written, or nobody knows: read again.
    ReadAgain,
}

/// What a turn asks for and tells.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Turn {
    /// To be done, in this order.
    pub actions: Vec<Action>,
    /// What happened unasked.
    pub notices: Vec<Notice>,
    /// Tickets that were refused for good and are not in the store.
    pub refused: Vec<(TicketId, Verdict)>,
}

/// How far a ticket has come, as far as its owner may be told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    /// The verdict of the moment.
    pub verdict: Verdict,
    /// Whether the ticket is in the store, so that it may be answered.
    pub durable: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Writing {
    ledger: Ledger,
    wishes: usize,
}

/// One volume's ledger on its way between the store, the target and those who ask.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Executor {
    stored: Ledger,
    revision: Option<Revision>,
    ledger: Ledger,
    seen: Observed,
    effects: Vec<Effect>,
    verdicts: BTreeMap<TicketId, Verdict>,
    wake: Option<Timestamp>,
    wishes: Vec<Wish>,
    refusing: Vec<(TicketId, Verdict)>,
    writing: Option<Writing>,
    under_way: Vec<Effect>,
    resting: Vec<Effect>,
    reading: bool,
    flush: bool,
    lost: Option<Lost>,
    /// What was durable before it was lost, until it is durable again.
    memory: Option<Ledger>,
    /// A list that told of somebody who is not on record, until that is durable: whoever reads the ledger again would not know of it.
    learned: Option<BTreeMap<Epoch, Export>>,
}

impl Executor {
    /// Begins with what the store has; `revision` is unset where it has nothing.
    pub fn new(stored: Ledger, revision: Option<Revision>, seen: Observed) -> Self {
        Self {
            ledger: stored.clone(),
            stored,
            revision,
            seen,
            effects: Vec::new(),
            verdicts: BTreeMap::new(),
            wake: None,
            wishes: Vec::new(),
            refusing: Vec::new(),
            writing: None,
            under_way: Vec::new(),
            resting: Vec::new(),
            reading: false,
            flush: false,
            lost: None,
            memory: None,
            learned: None,
        }
    }

    /// Files or renews a ticket.
    pub fn submit(&mut self, ticket: Ticket, patience: Patience, now: Timestamp) -> Result<(), SubmitError> {
        self.ledger.submit(ticket.clone(), now)?;
        self.wishes.push(Wish::Submit(ticket, patience));
        Ok(())
    }

    /// Takes tickets back. Returns the nodes that have to be out before it is done.
    pub fn withdraw(&mut self, withdrawal: Withdrawal, now: Timestamp) -> BTreeSet<NodeId> {
        let nodes = self.apply_withdrawal(&withdrawal, now);
        self.wishes.push(Wish::Withdraw(withdrawal));
        nodes
    }

    /// Changes what is known of the world.
    pub fn observe(&mut self, change: impl FnOnce(&mut Observed)) {
        change(&mut self.seen);
    }

    /// The target's answer to an effect, or the lack of one.
    pub fn answered(&mut self, effect: &Effect, outcome: Outcome) {
        self.under_way.retain(|asked| asked != effect);
        let proof = matches!(outcome, Outcome::Gone { .. });
        if !proof && !self.effects.contains(effect) {
            return; // The order was taken back meanwhile; only a proof is still worth knowing.
        }
        if !proof && outcome != Outcome::Allowed {
            self.resting.push(effect.clone());
        }
        let outcome = match (outcome, self.silent_since(effect)) {
            (Outcome::Silent { error, .. }, Some(since)) => Outcome::Silent { since, error },
            (outcome, _) => outcome,
        };
        self.seen.answers.insert(effect.node().clone(), Answer { epoch: effect.epoch(), outcome });
    }

    fn silent_since(&self, effect: &Effect) -> Option<Timestamp> {
        let answer = self.seen.answers.get(effect.node()).filter(|answer| answer.epoch == effect.epoch())?;
        match answer.outcome {
            Outcome::Silent { since, .. } => Some(since),
            Outcome::Allowed | Outcome::Gone { .. } | Outcome::Refused { .. } | Outcome::InUse { .. } => None,
        }
    }

    /// An effect that failed may be tried again.
    pub fn rested(&mut self, effect: &Effect) {
        self.resting.retain(|asked| asked != effect);
    }

    /// What became of the write under way.
    pub fn wrote(&mut self, written: Written) {
        let Some(writing) = self.writing.take() else { return };
        match written {
            Written::Durable(revision) => {
                self.stored = writing.ledger;
                self.revision = Some(revision);
                self.memory = None;
                self.wishes.drain(..writing.wishes);
            }
            // The turns stand still until the store was read: see `must_read`.
            Written::ReadAgain => self.reading = true,
        }
    }

    /// What the store has now. Wishes that are not in it are applied to it. Returns the tickets that can no longer be
    /// filed, because the store has other ones under their names.
    pub fn loaded(
        &mut self,
        stored: Ledger,
        revision: Option<Revision>,
        now: Timestamp,
    ) -> Vec<(TicketId, SubmitError)> {
        self.reading = false;
        self.writing = None;
        self.ledger = self.recalled(&stored, revision, now);
        self.stored = stored;
        self.revision = revision;
        if let Some(learned) = self.learned.take() {
            self.seen.exports.get_or_insert(learned);
        }
        let mut rejected = Vec::new();
        for wish in std::mem::take(&mut self.wishes) {
            match &wish {
                Wish::Submit(ticket, _) => {
                    if let Err(error) = self.ledger.submit(ticket.clone(), now) {
                        rejected.push((ticket.id.clone(), error));
                        continue;
                    }
                }
                Wish::Withdraw(withdrawal) => {
                    self.apply_withdrawal(withdrawal, now);
                }
            }
            self.wishes.push(wish);
        }
        rejected
    }

    /// Writes what has changed at the next turn, even if nobody waits for it.
    pub fn flush(&mut self) {
        self.flush = true;
    }

    /// Decides, and says what is to be done now.
    pub fn turn(&mut self, now: Timestamp, decide: Decide) -> Turn {
        let mut turn = Turn::default();
        if self.reading {
            return turn;
        }
        loop {
            let plan = match &self.lost {
                None => decide(&self.ledger, &self.seen, now),
                Some(lost) => decide(&self.ledger, &lost.known(&self.seen), now),
            };
            self.ledger = plan.next;
            self.effects = plan.effects;
            self.verdicts = plan.verdicts;
            self.wake = plan.wake;
            turn.notices.extend(plan.notices);
            self.learn();
            self.forget_what_no_longer_matters();
            if !self.refuse_the_impatient(now) {
                break;
            }
        }
        self.write(&mut turn.actions);
        self.ask(&mut turn.actions);
        let (out, still) = std::mem::take(&mut self.refusing)
            .into_iter()
            .partition(|(id, _)| !self.stored.tickets().contains_key(id));
        (turn.refused, self.refusing) = (out, still);
        turn
    }

    fn forget_what_no_longer_matters(&mut self) {
        let Self { seen, ledger, .. } = self;
        // What the target did is in the ledger now; to keep saying so would pass for a new answer later.
        seen.answers.retain(|_, answer| !matches!(answer.outcome, Outcome::Allowed | Outcome::Gone { .. }));
        seen.answers
            .retain(|node, answer| ledger.holds().get(node).is_some_and(|hold| hold.epoch == answer.epoch));
        for (_, facts) in seen.nodes.iter_mut().filter(|(node, _)| !ledger.holds().contains_key(*node)) {
            facts.forced = false;
        }
    }

    /// Takes back what was filed by somebody who does not want to queue and cannot be served now.
    fn refuse_the_impatient(&mut self, now: Timestamp) -> bool {
        let refused = self.wishes.iter().find_map(|wish| match wish {
            Wish::Submit(ticket, Patience::Refuse) => {
                let verdict = self.verdicts.get(&ticket.id)?;
                let filed = self.ledger.tickets().get(&ticket.id)?;
                let final_no = verdict.is_settled() && !verdict.is_satisfied();
                (final_no && !matches!(filed.owner, Owner::ObjectGone { .. }))
                    .then(|| (ticket.clone(), verdict.clone()))
            }
            Wish::Submit(_, Patience::Wait) | Wish::Withdraw(_) => None,
        });
        let Some((ticket, verdict)) = refused else { return false };
        self.withdraw(Withdrawal { ticket: Some(ticket.id.clone()), ..Withdrawal::default() }, now);
        self.refusing.push((ticket.id, verdict));
        true
    }

    fn write(&mut self, actions: &mut Vec<Action>) {
        if self.writing.is_some() {
            return;
        }
        if self.ledger == self.stored {
            self.wishes.clear();
            (self.flush, self.learned) = (false, None);
            return;
        }
        let urgent = self.ledger.lets_in_beyond(&self.stored)
            || self.ledger.shuts_out_beyond(&self.stored)
            || self.wishes.iter().any(|wish| self.waits_only_for_the_store(wish));
        if !urgent && !self.flush {
            return;
        }
        self.flush = false;
        self.writing = Some(Writing { ledger: self.ledger.clone(), wishes: self.wishes.len() });
        let expected = self.revision.map_or(Expected::Absent, Expected::At);
        actions.push(Action::Write { expected, ledger: self.ledger.clone() });
    }

    fn waits_only_for_the_store(&self, wish: &Wish) -> bool {
        match wish {
            Wish::Submit(ticket, _) => self.verdicts.get(&ticket.id).is_some_and(Verdict::is_settled),
            Wish::Withdraw(withdrawal) => {
                let concerned = |node: &NodeId| withdrawal.node.as_ref().is_none_or(|only| only == node);
                self.ledger.holds().iter().all(|(node, hold)| hold.is_open() || !concerned(node))
            }
        }
    }

    fn ask(&mut self, actions: &mut Vec<Action>) {
        if self.must_look() {
            return;
        }
        // Epochs must reach the target in their order (see `Exports`), so one grant is asked for at a time.
        let mut asking_to_allow = self.under_way.iter().any(|effect| matches!(effect, Effect::Allow { .. }));
        let mut effects = self.effects.clone();
        effects.sort_by_key(Effect::epoch);
        for effect in effects {
            if self.under_way.contains(&effect) || self.resting.contains(&effect) {
                continue;
            }
            let Some(hold) = self.ledger.holds().get(effect.node()) else { continue };
            match &effect {
                Effect::Allow { node, .. } => {
                    if asking_to_allow || !self.stored.records(node, hold) {
                        continue;
                    }
                    asking_to_allow = true;
                }
                Effect::Revoke { node, .. } => {
                    if !self.stored.closes(node, hold) {
                        continue;
                    }
                }
            }
            self.under_way.push(effect.clone());
            actions.push(Action::Ask(effect));
        }
    }

    fn apply_withdrawal(&mut self, withdrawal: &Withdrawal, now: Timestamp) -> BTreeSet<NodeId> {
        let Withdrawal { ticket, node, force } = withdrawal;
        let matching: Vec<Ticket> = self
            .ledger
            .tickets()
            .values()
            .filter(|one| ticket.as_ref().is_none_or(|id| one.id == *id))
            .filter(|one| node.as_ref().is_none_or(|only| one.node == *only))
            .cloned()
            .collect();
        let mut nodes: BTreeSet<NodeId> = matching.iter().map(|one| one.node.clone()).collect();
        nodes.extend(node.clone());
        if ticket.is_none() && node.is_none() {
            nodes.extend(self.ledger.holds().keys().cloned());
        }
        for one in matching {
            self.ledger.withdraw(&one.id, now);
        }
        if *force {
            for node in &nodes {
                self.seen.nodes.entry(node.clone()).or_default().forced = true;
            }
        }
        nodes
    }

    /// How far a ticket has come; `None` if this filing of it is not, or no longer, known.
    pub fn standing(&self, id: &TicketId, generation: u64) -> Option<Standing> {
        let known =
            |ledger: &Ledger| ledger.tickets().get(id).is_some_and(|one| one.generation == generation);
        if !known(&self.ledger) {
            return None;
        }
        let verdict = self.verdicts.get(id)?.clone();
        let recorded = match (&verdict, self.ledger.tickets().get(id)) {
            (Verdict::Satisfied { node, .. }, Some(ticket)) => {
                self.ledger.hold_serving(ticket).is_some_and(|hold| self.stored.records(node, hold))
            }
            _ => true,
        };
        Some(Standing { verdict, durable: recorded && known(&self.stored) && !self.must_look() })
    }

    /// Whether these nodes are out: the target has proven it, and that they shall be out is durable. That the hold is gone
    /// may still be unwritten; if that is lost, the target is asked again and proves it again. A node that is in for
    /// other tickets counts as out for those that were withdrawn. Where no node is named, because nobody knows the ticket any more, it may be
    /// any that is on its way out.
    pub fn is_out(&self, nodes: &BTreeSet<NodeId>) -> bool {
        let meant = |node| nodes.is_empty() || nodes.contains(node);
        let closing = self.ledger.holds().iter().any(|(node, hold)| !hold.is_open() && meant(node));
        self.wishes.is_empty() && !self.reading && !self.must_look() && !closing
    }

    /// Nothing is under way and nothing is left to do or to write.
    pub fn is_idle(&self) -> bool {
        self.ledger == self.stored
            && self.wishes.is_empty()
            && self.effects.is_empty()
            && self.under_way.is_empty()
            && self.resting.is_empty()
            && self.writing.is_none()
            && !self.reading
            && !self.must_look()
    }

    /// Whether there is something that may be written when it suits.
    pub fn has_unwritten(&self) -> bool {
        self.ledger != self.stored && self.writing.is_none() && !self.reading
    }

    /// Whether a write is under way.
    pub fn is_writing(&self) -> bool {
        self.writing.is_some()
    }

    /// Whether a ticket is being taken back because it was refused; its owner hears of it when that is durable.
    pub fn is_refusing(&self, id: &TicketId) -> bool {
        self.refusing.iter().any(|(refused, _)| refused == id)
    }

    /// Whether the store must be read before anything else can be done.
    pub fn must_read(&self) -> bool {
        self.reading
    }

    /// The ledger as it shall be.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// The ledger as it is stored.
    pub fn stored(&self) -> &Ledger {
        &self.stored
    }

    /// The revision of what is stored.
    pub fn revision(&self) -> Option<Revision> {
        self.revision
    }

    /// What is known of the world.
    pub fn seen(&self) -> &Observed {
        &self.seen
    }

    /// The verdict on every ticket.
    pub fn verdicts(&self) -> &BTreeMap<TicketId, Verdict> {
        &self.verdicts
    }

    /// When to take a turn although nothing was heard.
    pub fn wake(&self) -> Option<Timestamp> {
        self.wake
    }
}
