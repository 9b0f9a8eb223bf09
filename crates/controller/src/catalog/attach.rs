//! Letting nodes in and shutting them out: the engine decides; here it is only asked about volumes and nodes that exist.

use bowline_core::{Outcome, SubmitError, TargetId, Ticket, Verdict, VolumeId};
use bowline_csi::code::{ControllerPublishError, ControllerUnpublishError};
use bowline_engine::{EngineError, Patience, Submitted, Withdrawal, Withdrawn};
use bowline_store::{Key, record};
use std::sync::Arc;
use std::time::Duration;

use super::{Catalog, Inner, lock};
use crate::failure::{Failure, Why};
use crate::record::VolumeState;

impl Catalog {
    /// Files a ticket on a volume and waits for what becomes of it. The node must be known, the volume ready.
    pub async fn attach(
        &self,
        volume: &VolumeId,
        ticket: Ticket,
        patience: Patience,
        wait: Duration,
    ) -> Result<Submitted, ControllerPublishError> {
        let inner = &self.inner;
        let record = inner.volume(volume).await?;
        match record.state {
            VolumeState::Ready | VolumeState::Growing { .. } => {}
            VolumeState::Creating => {
                let sentence = format!("volume {volume} is being made; ask again when it is ready");
                return Err(ControllerPublishError::Busy(sentence));
            }
            VolumeState::Deleting => {
                return Err(ControllerPublishError::NotAttachable(format!(
                    "volume {volume} is being deleted"
                )));
            }
        }
        if !lock(&inner.nodes).contains_key(&ticket.node) {
            let sentence = format!("node {} is not known; add it first", ticket.node);
            return Err(ControllerPublishError::UnknownNode(sentence));
        }
        inner.look_again(&record).await;
        let wish = ticket.clone();
        let submitted = match inner.engine.submit(volume, ticket, patience, wait).await {
            Ok(submitted) => submitted,
            // It was made or deleted just now.
            Err(EngineError::UnknownVolume(_)) if inner.volume(volume).await.is_ok() => {
                return Err(ControllerPublishError::Busy(format!(
                    "volume {volume} is not ready yet; ask again"
                )));
            }
            Err(error) => return Err(refusal(&error)),
        };
        inner.tell_attach(volume, wish, &submitted);
        Ok(submitted)
    }

    /// Withdraws tickets and waits until the nodes are out at the target.
    pub async fn detach(
        &self,
        volume: &VolumeId,
        withdrawal: Withdrawal,
        wait: Duration,
    ) -> Result<(), ControllerUnpublishError> {
        let inner = &self.inner;
        let whom = match &withdrawal.node {
            Some(node) => format!("Node {node} is out"),
            None => "What was withdrawn is out".to_owned(),
        };
        match inner.engine.withdraw(volume, withdrawal, wait).await {
            Ok(Withdrawn::Out) => {
                if inner.volume(volume).await.is_ok() {
                    inner.tell(Some(volume), "Detached", format!("{whom}; the target has proven it."));
                }
                Ok(())
            }
            Ok(Withdrawn::StillWorking { nodes, trouble }) => Err(still_in(volume, &nodes, trouble)),
            Err(EngineError::UnknownVolume(_)) => inner.nobody_can_have(volume).await.map_err(Into::into),
            Err(error) => Err(trouble(&error).into()),
        }
    }
}

impl Inner {
    /// A volume that the engine does not know: nobody is let in, if it has no ledger that says otherwise, and no target has it. One that was not
    /// adopted may be let in to by its target all the same.
    async fn nobody_can_have(&self, volume: &VolumeId) -> Result<(), Failure> {
        if let Some(entry) = self.shelf.store.get(&Key::ledger(volume)).await? {
            let ledger: bowline_core::Ledger = record::decode(&entry.value)?;
            if !ledger.holds().is_empty() {
                let sentence = format!(
                    "there is no volume {volume}, but a ledger that says who holds it; restore the volume's record, or detach at the target"
                );
                return Err(Failure::new(Why::Busy, sentence));
            }
        }
        match self.volume(volume).await {
            Ok(found) if found.is_usable() => {
                let sentence =
                    format!("volume {volume} is being made known; ask again, or run `bowline adopt`");
                Err(Failure::new(Why::Busy, sentence))
            }
            // Nobody was let in yet, or nobody is any more.
            Ok(_) => Ok(()),
            Err(Failure { why: Why::Unknown, .. }) => self.no_target_has(volume).await,
            Err(failure) => Err(failure),
        }
    }

    /// Whether every target says that it does not have a volume that nobody knows: then it is gone for good.
    async fn no_target_has(&self, volume: &VolumeId) -> Result<(), Failure> {
        let silent = |target: &TargetId, error: &str| {
            let sentence = format!(
                "volume {volume} is not adopted, and target {target} does not say whether it has it ({error}); it goes on when the target answers, \
                 or when its Target is deleted"
            );
            Err(Failure::new(Why::Unreachable, sentence))
        };
        if let Some(target) = self.engine.unconnected().first() {
            return silent(target, "it is not connected");
        }
        let targets = self.connected();
        if targets.is_empty() {
            let sentence = format!(
                "volume {volume} is not adopted, and no target is connected that could say whether it has it; it goes on when there is one"
            );
            return Err(Failure::new(Why::Unreachable, sentence));
        }
        for target in targets {
            let wait = self.settings.ask_timeout;
            match tokio::time::timeout(wait, target.volume(volume)).await {
                Ok(Ok(None)) => {}
                Ok(Ok(Some(_))) => {
                    let sentence = format!(
                        "volume {volume} is not adopted, and target {} has it, so nobody here can prove who is out; `bowline adopt` takes it over, or \
                         says what is in the way; if it is not needed, delete it at the target",
                        target.id()
                    );
                    return Err(Failure::new(Why::Busy, sentence));
                }
                Ok(Err(error)) => return silent(target.id(), &error.to_string()),
                Err(_) => return silent(target.id(), &format!("no answer within {wait:?}")),
            }
        }
        Ok(())
    }

    fn tell_attach(self: &Arc<Self>, volume: &VolumeId, ticket: Ticket, submitted: &Submitted) {
        match submitted {
            Submitted::Satisfied { verdict, .. } => self.tell_verdict(volume, &ticket, verdict),
            Submitted::Refused(verdict) => self.tell(Some(volume), "Refused", verdict.sentence(&ticket)),
            Submitted::Waiting(verdict) | Submitted::StillWorking { verdict: Some(verdict), .. } => {
                self.tell_verdict(volume, &ticket, verdict);
                self.follow(volume, ticket);
            }
            Submitted::StillWorking { verdict: None, .. } => {}
        }
    }

    fn tell_verdict(&self, volume: &VolumeId, ticket: &Ticket, verdict: &Verdict) {
        let reason = if verdict.is_satisfied() {
            "Attached"
        } else if matches!(verdict, Verdict::Fencing { .. }) {
            "Fencing"
        } else {
            "Waiting"
        };
        self.tell(Some(volume), reason, verdict.sentence(ticket));
    }

    /// Tells what becomes of a ticket whose owner was told to wait, until it has what it asked for or is withdrawn.
    fn follow(self: &Arc<Self>, volume: &VolumeId, ticket: Ticket) {
        let key = (volume.clone(), ticket.id.clone());
        let Ok(mut news) = self.engine.watch(volume) else { return };
        if !lock(&self.followed).insert(key.clone()) {
            return;
        }
        let catalog = Arc::downgrade(self);
        tokio::spawn(async move {
            loop {
                let view = news.borrow_and_update().view.clone();
                let Some(inner) = catalog.upgrade() else { return };
                let verdict = view.as_ref().and_then(|view| view.verdicts.get(&ticket.id));
                if let Some(verdict) = verdict {
                    inner.tell_verdict(&key.0, &ticket, verdict);
                }
                let ended = view.is_some() && verdict.is_none_or(Verdict::is_satisfied);
                if ended {
                    lock(&inner.followed).remove(&key);
                    return;
                }
                drop(inner);
                if news.changed().await.is_err() {
                    return;
                }
            }
        });
    }
}

/// The engine could not do its work; it may have, or may later.
pub(crate) fn trouble(error: &EngineError) -> Failure {
    let why = match error {
        EngineError::UnknownVolume(_) => Why::Unknown,
        EngineError::NotConnected { .. }
        | EngineError::Unreadable { .. }
        | EngineError::Store(_)
        | EngineError::Stopping => Why::Unreachable,
        EngineError::Submit(_)
        | EngineError::InUse { .. }
        | EngineError::TargetInUse { .. }
        | EngineError::Withdrawn(_) => Why::Busy,
    };
    Failure::new(why, error.to_string())
}

/// Why a ticket was not filed.
pub(crate) fn refusal(error: &EngineError) -> ControllerPublishError {
    let sentence = error.to_string();
    match error {
        EngineError::UnknownVolume(_) => ControllerPublishError::UnknownVolume(sentence),
        EngineError::Submit(SubmitError::Different { .. }) => ControllerPublishError::DifferentMode(sentence),
        EngineError::Submit(SubmitError::Superseded { .. })
        | EngineError::InUse { .. }
        | EngineError::TargetInUse { .. }
        | EngineError::Withdrawn(_) => ControllerPublishError::Busy(sentence),
        EngineError::NotConnected { .. }
        | EngineError::Unreadable { .. }
        | EngineError::Store(_)
        | EngineError::Stopping => ControllerPublishError::Unreachable(sentence),
    }
}

fn still_in(
    volume: &VolumeId,
    nodes: &std::collections::BTreeMap<bowline_core::NodeId, Option<Outcome>>,
    trouble: Option<String>,
) -> ControllerUnpublishError {
    if let Some(trouble) = trouble {
        return ControllerUnpublishError::Unreachable(format!("volume {volume}: {trouble}"));
    }
    for (node, outcome) in nodes {
        let told = |what: &str| format!("node {node} is not proven out of volume {volume} yet: {what}");
        match outcome {
            Some(Outcome::Silent { error, .. }) => {
                return ControllerUnpublishError::Unreachable(told(&format!(
                    "the target does not answer ({error})"
                )));
            }
            Some(Outcome::Refused { error }) => {
                return ControllerUnpublishError::Unreachable(told(&format!("the target refused: {error}")));
            }
            Some(Outcome::InUse { by }) => {
                return ControllerUnpublishError::Busy(told(&format!("{by} still uses it")));
            }
            Some(Outcome::Allowed | Outcome::Gone { .. }) | None => {}
        }
    }
    let names: Vec<&str> = nodes.keys().map(bowline_core::NodeId::as_str).collect();
    ControllerUnpublishError::TimedOut(format!(
        "volume {volume} is still being taken from {}; that goes on, and asking again joins it",
        if names.is_empty() { "its nodes".to_owned() } else { names.join(", ") }
    ))
}
