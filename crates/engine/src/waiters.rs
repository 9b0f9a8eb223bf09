//! Those who wait for an answer about one volume, and the moment at which they may have it.

use bowline_core::{NodeId, SubmitError, TicketId, Verdict, VolumeId};
use bowline_store::StoreError;
use bowline_target::Grant;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tokio::time::Instant;

use crate::actor::Reply;
use crate::link::Link;
use crate::{EngineError, Executor, Metrics, Submitted, Turn, View, Withdrawn};

#[derive(Default)]
pub(crate) struct Waiters {
    submitted: Vec<Submission>,
    withdrawn: Vec<(BTreeSet<NodeId>, Reply<Withdrawn>)>,
    removed: Vec<Reply<()>>,
    viewed: Vec<Reply<Arc<View>>>,
    removal: bool,
}

struct Submission {
    ticket: TicketId,
    generation: u64,
    since: Instant,
    reply: Reply<Submitted>,
}

impl Waiters {
    pub(crate) fn submitted(&mut self, ticket: TicketId, generation: u64, reply: Reply<Submitted>) {
        self.submitted.push(Submission { ticket, generation, since: Instant::now(), reply });
    }

    pub(crate) fn withdrawn(&mut self, nodes: BTreeSet<NodeId>, reply: Reply<Withdrawn>) {
        self.withdrawn.push((nodes, reply));
    }

    pub(crate) fn removed(&mut self, reply: Reply<()>) {
        self.removed.push(reply);
    }

    pub(crate) fn viewed(&mut self, reply: Reply<Arc<View>>) {
        self.viewed.push(reply);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.submitted.is_empty() && self.withdrawn.is_empty() && self.removed.is_empty()
    }

    /// Answers those for whom it is time. Callers that have gone away are forgotten.
    pub(crate) fn answer(
        &mut self,
        executor: &Executor,
        turn: &Turn,
        volume: &VolumeId,
        link: &Link,
        metrics: &Metrics,
    ) {
        for one in std::mem::take(&mut self.submitted) {
            if one.reply.is_closed() {
                continue;
            }
            match answer_for(&one, executor, turn, volume, link) {
                Some(answer) => {
                    metrics.time_to_verdict.observe(one.since.elapsed().as_secs_f64());
                    // The caller may go away at the same moment.
                    let _ = one.reply.send(answer);
                }
                None => self.submitted.push(one),
            }
        }
        for (nodes, reply) in std::mem::take(&mut self.withdrawn) {
            if executor.is_out(&nodes) {
                let _ = reply.send(Ok(Withdrawn::Out));
            } else if !reply.is_closed() {
                self.withdrawn.push((nodes, reply));
            }
        }
    }

    pub(crate) fn show(&mut self, view: &Arc<View>) {
        for reply in self.viewed.drain(..) {
            let _ = reply.send(Ok(Arc::clone(view)));
        }
    }

    /// Tells those whose tickets cannot be filed any more.
    pub(crate) fn reject(&mut self, rejected: Vec<(TicketId, SubmitError)>) {
        for (ticket, error) in rejected {
            let (hit, rest) =
                std::mem::take(&mut self.submitted).into_iter().partition(|one| one.ticket == ticket);
            self.submitted = rest;
            let hit: Vec<Submission> = hit;
            for one in hit {
                let _ = one.reply.send(Err(error.clone().into()));
            }
        }
    }

    /// Tells everybody that the ledger cannot be read.
    pub(crate) fn fail(&mut self, volume: &VolumeId, error: &str) {
        let refusal = || EngineError::Unreadable { volume: volume.clone(), error: error.to_owned() };
        for one in self.submitted.drain(..) {
            let _ = one.reply.send(Err(refusal()));
        }
        for (_, reply) in self.withdrawn.drain(..) {
            let _ = reply.send(Err(refusal()));
        }
        for reply in self.removed.drain(..) {
            let _ = reply.send(Err(refusal()));
        }
    }

    pub(crate) fn wants_removal(&self) -> bool {
        !self.removed.is_empty() && !self.removal
    }

    pub(crate) fn removal_begins(&mut self) {
        self.removal = true;
    }

    pub(crate) fn refuse_removal(&mut self, volume: &VolumeId, state: &'static str) {
        for reply in self.removed.drain(..) {
            let _ = reply.send(Err(EngineError::InUse { volume: volume.clone(), state }));
        }
    }

    pub(crate) fn finish_removal(&mut self, result: Result<(), StoreError>) {
        self.removal = false;
        let mut replies = self.removed.drain(..);
        if let Some(first) = replies.next() {
            let again = result.is_ok();
            let _ = first.send(result.map_err(EngineError::from));
            for reply in replies.filter(|_| again) {
                let _ = reply.send(Ok(()));
            }
        }
    }
}

/// What the owner of a ticket may be told now; nothing while work goes on or what would be told is not durable.
fn answer_for(
    one: &Submission,
    executor: &Executor,
    turn: &Turn,
    volume: &VolumeId,
    link: &Link,
) -> Option<Result<Submitted, EngineError>> {
    if let Some((_, verdict)) = turn.refused.iter().find(|(ticket, _)| *ticket == one.ticket) {
        return Some(Ok(Submitted::Refused(verdict.clone())));
    }
    if executor.must_read() || executor.is_refusing(&one.ticket) {
        return None;
    }
    let Some(standing) = executor.standing(&one.ticket, one.generation) else {
        return Some(Err(EngineError::Withdrawn(one.ticket.clone())));
    };
    if !standing.durable || !standing.verdict.is_settled() {
        return None;
    }
    if !standing.verdict.is_satisfied() {
        return Some(Ok(Submitted::Waiting(standing.verdict)));
    }
    let Some(context) = context(&standing.verdict, executor, volume, link) else {
        let (volume, target) = (volume.clone(), link.id.clone());
        return Some(Err(EngineError::NotConnected { volume, target }));
    };
    Some(Ok(Submitted::Satisfied { verdict: standing.verdict, context }))
}

/// What the node needs to know; `None` while the target, which alone can say it, is not connected.
fn context(
    verdict: &Verdict,
    executor: &Executor,
    volume: &VolumeId,
    link: &Link,
) -> Option<BTreeMap<String, String>> {
    if let Verdict::Shared { endpoint } = verdict {
        return Some(BTreeMap::from([("share".to_owned(), endpoint.clone())]));
    }
    let Verdict::Satisfied { node, epoch, .. } = verdict else { return Some(BTreeMap::new()) };
    let Some(hold) = executor.ledger().holds().get(node) else { return Some(BTreeMap::new()) };
    let (volume, node, mode) = (volume.clone(), node.clone(), hold.mode);
    let grant = Grant { volume, node, epoch: *epoch, mode, beside: None };
    Some(link.target()?.context(&grant))
}
