//! One of every verdict, for whoever shows them all.

use bowline_core::*;

/// A node.
pub(crate) fn node(name: &str) -> NodeId {
    NodeId::new(name).unwrap()
}

/// The moment since when things are so.
pub(crate) fn since() -> Timestamp {
    "2030-01-02T03:04:05.678Z".parse().unwrap()
}

/// The ticket that is in the way.
pub(crate) fn other() -> TicketId {
    TicketId::csi(&VolumeId::new("db-0").unwrap(), "bowline.storage", &node("worker-2"))
}

/// The verdict after this one, so that none can be forgotten: a new variant does not compile here until it has its place and its
/// example.
fn after(verdict: &Verdict) -> Option<Verdict> {
    use Verdict::*;
    let here = || node("worker-1");
    let there = || node("worker-2");
    let target = || TargetId::new("file").unwrap();
    let error = || "connection timed out".to_owned();
    let (kind, since) = (TicketKind::CsiAttacher, since());
    Some(match verdict {
        Satisfied { .. } => Shared { endpoint: "nfs://10.0.0.7/db-0".to_owned() },
        Shared { .. } => Granting { target: target(), node: here(), since },
        Granting { .. } => WaitingForRelease { node: there(), since },
        WaitingForRelease { .. } => Fencing { node: there(), since, why: FenceReason::NodeOutOfService },
        Fencing { .. } => StillInUse { node: there(), by: "/dev/loop3, mounted at /mnt,".to_owned(), since },
        StillInUse { .. } => TargetUnreachable { target: target(), node: there(), since, error: error() },
        TargetUnreachable { .. } => TargetRefused { target: target(), node: there(), error: error() },
        TargetRefused { .. } => TargetNotCompared { target: target(), since, error: error() },
        TargetNotCompared { .. } => HeldElsewhere { node: there(), by: other(), since },
        HeldElsewhere { .. } => Outranked { node: there(), by: other(), kind },
        Outranked { .. } => Interrupted { node: there(), by: other(), kind },
        Interrupted { .. } => IncompatibleParameters { node: there(), by: other(), clash: Clash::OtherNode },
        IncompatibleParameters { .. } => Migrating { from: there(), to: node("worker-3"), since },
        Migrating { .. } => MigrationTimedOut { from: there(), by: other(), since },
        MigrationTimedOut { .. } => NodeNotReady { node: here(), since },
        NodeNotReady { .. } => NodeOutOfService { node: here(), since },
        NodeOutOfService { .. } => NodeGone { node: here(), since },
        NodeGone { .. } => NodeFull { node: here(), limit: 16 },
        NodeFull { .. } => WaitingForShare,
        WaitingForShare => VolumeFaulted { fault: "its file is shorter than it was".to_owned() },
        VolumeFaulted { .. } => Deleting,
        Deleting => return None,
    })
}

/// Every verdict, as a ticket on `worker-1` is told.
pub(crate) fn verdicts() -> Vec<Verdict> {
    let first = Verdict::Satisfied { node: node("worker-1"), epoch: Epoch::new(7), since: since() };
    std::iter::successors(Some(first), after).collect()
}
