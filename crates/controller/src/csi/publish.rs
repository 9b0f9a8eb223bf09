//! Letting nodes in and shutting them out. What becomes a ticket, and what a node is told, is the same for a call of CSI and for a
//! VolumeAttachment of Kubernetes: both come through [`ticket`], [`publish_context`] and [`withdrawal`].

use bowline_core::{
    Clash, Frontend, NodeId, Owner, Ticket, TicketId, TicketKind, Timestamp, Verdict, VolumeId,
};
use bowline_csi::code::{ControllerPublishError, ControllerUnpublishError};
use bowline_csi::controller::{ControllerPublish, ControllerUnpublish, ShutOut};
use bowline_csi::wire;
use bowline_engine::{Patience, Submitted, Withdrawal};
use std::collections::BTreeMap;
use std::time::Duration;

use super::volumes::suits;
use super::{ControllerService, DISCARD, DRIVER};
use crate::{Catalog, Volume};

impl ControllerService {
    pub(crate) async fn publish(
        &self,
        request: wire::ControllerPublishVolumeRequest,
        wait: Duration,
    ) -> Result<wire::ControllerPublishVolumeResponse, ControllerPublishError> {
        let request = ControllerPublish::try_from(request)?;
        let (volume, ticket) = ticket(&self.catalog, &request, Owner::Withdrawn).await?;
        let submitted = self.catalog.attach(&volume.id, ticket.clone(), Patience::Refuse, wait).await?;
        match submitted {
            Submitted::Satisfied { context, .. } => {
                let publish_context = publish_context(&volume, context).into_iter().collect();
                Ok(wire::ControllerPublishVolumeResponse { publish_context })
            }
            Submitted::Waiting(verdict) | Submitted::Refused(verdict) => Err(refused(&verdict, &ticket)),
            Submitted::StillWorking { verdict: Some(verdict), .. } => Err(unfinished(&verdict, &ticket)),
            Submitted::StillWorking { verdict: None, trouble: Some(trouble) } => {
                Err(ControllerPublishError::Unreachable(trouble))
            }
            Submitted::StillWorking { verdict: None, trouble: None } => {
                Err(ControllerPublishError::TimedOut(format!(
                    "{} is still being worked on; asking again joins it",
                    ticket.id
                )))
            }
        }
    }

    pub(crate) async fn unpublish(
        &self,
        request: wire::ControllerUnpublishVolumeRequest,
        wait: Duration,
    ) -> Result<wire::ControllerUnpublishVolumeResponse, ControllerUnpublishError> {
        let request = ControllerUnpublish::try_from(request)?;
        let withdrawal = match request.whom {
            ShutOut::EveryNode => Withdrawal::default(),
            ShutOut::Node(node) => withdrawal(&request.volume, &node),
        };
        self.catalog.detach(&request.volume, withdrawal, wait).await?;
        Ok(wire::ControllerUnpublishVolumeResponse {})
    }
}

/// The ticket that a publish asks for, and the volume it is about. The same volume and node give the same ticket, whoever asks.
pub async fn ticket(
    catalog: &Catalog,
    request: &ControllerPublish,
    owner: Owner,
) -> Result<(Volume, Ticket), ControllerPublishError> {
    let volume = catalog.inner().volume(&request.volume).await?;
    suits(&volume, &request.capability, "volume_capability")?;
    let ticket = ticket_of(request, owner, catalog.inner().clock.now());
    Ok((volume, ticket))
}

/// The ticket of a publish whose volume is known to suit.
pub fn ticket_of(request: &ControllerPublish, owner: Owner, now: Timestamp) -> Ticket {
    Ticket {
        id: TicketId::csi(&request.volume, DRIVER, &request.node),
        kind: TicketKind::CsiAttacher,
        node: request.node.clone(),
        access: request.capability.mode,
        content: request.capability.content(),
        read_only: request.read_only,
        frontend: Frontend::On,
        generation: 1,
        created_at: now,
        owner,
        reason: None,
    }
}

/// What the node is told of its grant: the target's context, and how the volume is set.
pub fn publish_context(volume: &Volume, grant: BTreeMap<String, String>) -> BTreeMap<String, String> {
    let mut context = grant;
    if volume.settings.discard {
        context.insert(DISCARD.to_owned(), "true".to_owned());
    }
    context
}

/// The end of such a ticket.
pub fn withdrawal(volume: &VolumeId, node: &NodeId) -> Withdrawal {
    Withdrawal { ticket: Some(TicketId::csi(volume, DRIVER, node)), node: Some(node.clone()), force: false }
}

/// What a caller is told of a ticket that was not satisfied and that nothing is left of.
pub fn refused(verdict: &Verdict, ticket: &Ticket) -> ControllerPublishError {
    use ControllerPublishError::*;
    let sentence = verdict.sentence(ticket);
    match verdict {
        Verdict::HeldElsewhere { .. }
        | Verdict::Outranked { .. }
        | Verdict::Interrupted { .. }
        | Verdict::Migrating { .. }
        | Verdict::MigrationTimedOut { .. } => HeldElsewhere(sentence),
        Verdict::IncompatibleParameters { node, clash, .. } => {
            let clash_here = match clash {
                Clash::OtherNode => false,
                Clash::SoleWriter | Clash::Frontend | Clash::ReadOnly | Clash::Sharing => {
                    *node == ticket.node
                }
            };
            if clash_here { DifferentMode(sentence) } else { HeldElsewhere(sentence) }
        }
        Verdict::NodeNotReady { .. }
        | Verdict::NodeOutOfService { .. }
        | Verdict::NodeGone { .. }
        | Verdict::VolumeFaulted { .. }
        | Verdict::Deleting => NotAttachable(sentence),
        Verdict::NodeFull { .. } => NodeFull(sentence),
        Verdict::TargetUnreachable { .. }
        | Verdict::TargetRefused { .. }
        | Verdict::TargetNotCompared { .. } => Unreachable(sentence),
        // On its way, or there after all: whoever asks again is told.
        Verdict::Satisfied { .. }
        | Verdict::Shared { .. }
        | Verdict::Granting { .. }
        | Verdict::WaitingForRelease { .. }
        | Verdict::Fencing { .. }
        | Verdict::StillInUse { .. }
        | Verdict::WaitingForShare => Busy(sentence),
    }
}

/// What a caller is told whose time is over while work goes on. Never a final code: the grant may still come.
fn unfinished(verdict: &Verdict, ticket: &Ticket) -> ControllerPublishError {
    let sentence = verdict.sentence(ticket);
    match verdict {
        Verdict::TargetUnreachable { .. }
        | Verdict::TargetRefused { .. }
        | Verdict::TargetNotCompared { .. } => ControllerPublishError::Unreachable(sentence),
        Verdict::Satisfied { .. }
        | Verdict::Shared { .. }
        | Verdict::Granting { .. }
        | Verdict::WaitingForRelease { .. }
        | Verdict::Fencing { .. }
        | Verdict::StillInUse { .. }
        | Verdict::HeldElsewhere { .. }
        | Verdict::Outranked { .. }
        | Verdict::Interrupted { .. }
        | Verdict::IncompatibleParameters { .. }
        | Verdict::Migrating { .. }
        | Verdict::MigrationTimedOut { .. }
        | Verdict::NodeNotReady { .. }
        | Verdict::NodeOutOfService { .. }
        | Verdict::NodeGone { .. }
        | Verdict::NodeFull { .. }
        | Verdict::WaitingForShare
        | Verdict::VolumeFaulted { .. }
        | Verdict::Deleting => ControllerPublishError::TimedOut(sentence),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bowline_core::{Epoch, FenceReason, TargetId};
    use bowline_csi::code::Reason;
    use std::fmt::Write as _;

    fn verdicts() -> Vec<Verdict> {
        let (here, there) = (NodeId::new("here").unwrap(), NodeId::new("there").unwrap());
        let (by, since) = (TicketId::new("csi-other").unwrap(), Timestamp::UNIX_EPOCH);
        let (target, kind) = (TargetId::new("file").unwrap(), TicketKind::CsiAttacher);
        let error = || "broken cable".to_owned();
        let clash = |clash, node: &NodeId| Verdict::IncompatibleParameters {
            node: node.clone(),
            by: by.clone(),
            clash,
        };
        vec![
            Verdict::Satisfied { node: here.clone(), epoch: Epoch::new(1), since },
            Verdict::Shared { endpoint: "nfs://x".to_owned() },
            Verdict::Granting { target: target.clone(), node: here.clone(), since },
            Verdict::WaitingForRelease { node: there.clone(), since },
            Verdict::Fencing { node: there.clone(), since, why: FenceReason::NodeSilent },
            Verdict::StillInUse { node: there.clone(), by: "/mnt".to_owned(), since },
            Verdict::TargetUnreachable { target: target.clone(), node: here.clone(), since, error: error() },
            Verdict::TargetRefused { target: target.clone(), node: here.clone(), error: error() },
            Verdict::TargetNotCompared { target, since, error: error() },
            Verdict::HeldElsewhere { node: there.clone(), by: by.clone(), since },
            Verdict::Outranked { node: there.clone(), by: by.clone(), kind },
            Verdict::Interrupted { node: there.clone(), by: by.clone(), kind },
            clash(Clash::OtherNode, &there),
            clash(Clash::SoleWriter, &here),
            clash(Clash::Frontend, &here),
            clash(Clash::ReadOnly, &here),
            clash(Clash::Sharing, &here),
            clash(Clash::Sharing, &there),
            Verdict::Migrating { from: there.clone(), to: here.clone(), since },
            Verdict::MigrationTimedOut { from: there, by: by.clone(), since },
            Verdict::NodeNotReady { node: here.clone(), since },
            Verdict::NodeOutOfService { node: here.clone(), since },
            Verdict::NodeGone { node: here.clone(), since },
            Verdict::NodeFull { node: here, limit: 3 },
            Verdict::WaitingForShare,
            Verdict::VolumeFaulted { fault: "no bytes".to_owned() },
            Verdict::Deleting,
        ]
    }

    #[test]
    fn every_verdict_has_its_code() {
        let ticket = bowline_testkit::csi("here");
        let mut table = String::new();
        for verdict in verdicts() {
            let (settled, going_on) = (refused(&verdict, &ticket), unfinished(&verdict, &ticket));
            assert!(!going_on.is_final(), "{verdict:?} would be forgotten while it may still land");
            assert!(verdict.is_settled() || !settled.is_final(), "{verdict:?} is not settled");
            let clash = match &verdict {
                Verdict::IncompatibleParameters { clash, node, .. } => format!("{clash:?} {node}"),
                _ => String::new(),
            };
            writeln!(
                table,
                "{:<36} {clash:<17} {:<20} {:?}",
                verdict.reason(),
                format!("{:?}", settled.code()),
                going_on.code()
            )
            .unwrap();
        }
        insta::assert_snapshot!(table);
    }
}
