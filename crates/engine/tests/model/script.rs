//! What happens around a volume in one scenario: who asks for it, what becomes of the nodes, how time goes.

use bowline_core::{
    AccessMode, Content, MigrationTimeout, NodeId, NodeState, Owner, TargetId, Ticket, TicketKind, Timestamp,
    VolumeFacts,
};
use bowline_engine::{Patience, Withdrawal};
pub(crate) use bowline_testkit::node;

use crate::world::Faults;

/// One bounded world to explore.
#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    /// What is in it, for the page.
    pub(crate) about: &'static str,
    pub(crate) volume: VolumeFacts,
    /// Controllers that are up at the beginning, and how many there are in all.
    pub(crate) up: usize,
    pub(crate) controllers: usize,
    /// So many of the first lines have happened, and everything has come to rest, before the exploration begins.
    pub(crate) before: usize,
    pub(crate) lines: Vec<Line>,
    pub(crate) faults: Faults,
    /// The store's promise is that a read tells what became of the reader's earlier write. Without it, a write may
    /// arrive even after its writer has read again.
    pub(crate) reads_settle_writes: bool,
}

/// One event, which may happen at any time after the lines it names.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    pub(crate) event: Event,
    pub(crate) after: Vec<usize>,
}

#[derive(Clone, Debug)]
pub(crate) enum Event {
    Submit(Ticket, Patience),
    Withdraw(Withdrawal),
    Node(NodeId, NodeState),
    Minute,
}

impl Event {
    pub(crate) fn is_request(&self) -> bool {
        matches!(self, Self::Submit(..) | Self::Withdraw(_))
    }

    /// Whether a withdrawal takes this ticket back.
    pub(crate) fn withdraws(&self, ticket: &Ticket) -> bool {
        let Self::Withdraw(Withdrawal { ticket: id, node, .. }) = self else { return false };
        id.as_ref().is_none_or(|id| *id == ticket.id) && node.as_ref().is_none_or(|node| *node == ticket.node)
    }
}

impl Line {
    pub(crate) fn after(mut self, lines: &[usize]) -> Self {
        self.after = lines.to_vec();
        self
    }
}

impl From<Event> for Line {
    fn from(event: Event) -> Self {
        Self { event, after: Vec::new() }
    }
}

pub(crate) fn volume() -> VolumeFacts {
    VolumeFacts::new(TargetId::new("t").expect("a target's name"))
}

/// A volume whose migrations time out within the second minute.
pub(crate) fn migratable() -> VolumeFacts {
    let migratable = Some(MigrationTimeout::from_seconds(60).expect("within bounds"));
    VolumeFacts { migratable, ..volume() }
}

/// A workload's ticket for one node at a time.
pub(crate) fn csi(on: &str) -> Ticket {
    ticket(TicketKind::CsiAttacher, on, AccessMode::SingleNodeWriter)
}

pub(crate) fn backup(on: &str) -> Ticket {
    ticket(TicketKind::BackupController, on, AccessMode::SingleNodeWriter)
}

pub(crate) fn reader(on: &str) -> Ticket {
    ticket(TicketKind::CsiAttacher, on, AccessMode::MultiNodeReaderOnly)
}

pub(crate) fn block(on: &str) -> Ticket {
    Ticket { content: Content::Block, ..csi(on) }
}

/// A program's ticket that it must renew within the first minute.
pub(crate) fn lease(on: &str) -> Ticket {
    let at = Timestamp::from_second(60).expect("a small number");
    Ticket {
        owner: Owner::Expires { at },
        ..ticket(TicketKind::BowlineApi, on, AccessMode::SingleNodeWriter)
    }
}

pub(crate) fn again(ticket: Ticket) -> Ticket {
    Ticket { generation: ticket.generation + 1, ..ticket }
}

fn ticket(kind: TicketKind, on: &str, access: AccessMode) -> Ticket {
    let short = match kind {
        TicketKind::BackupController => "backup",
        TicketKind::BowlineApi => "api",
        _ => "csi",
    };
    Ticket { access, ..bowline_testkit::wish(kind, &format!("{short}-{on}"), on) }
}

pub(crate) fn submit(ticket: Ticket) -> Line {
    Event::Submit(ticket, Patience::Wait).into()
}

/// Files a ticket that is taken back if it cannot be served at once.
pub(crate) fn try_to_submit(ticket: Ticket) -> Line {
    Event::Submit(ticket, Patience::Refuse).into()
}

pub(crate) fn withdraw(on: &str) -> Line {
    Event::Withdraw(Withdrawal { node: Some(node(on)), ..Withdrawal::default() }).into()
}

pub(crate) fn force(on: &str) -> Line {
    Event::Withdraw(Withdrawal { node: Some(node(on)), force: true, ..Withdrawal::default() }).into()
}

pub(crate) fn becomes(name: &str, state: NodeState) -> Line {
    Event::Node(node(name), state).into()
}

pub(crate) fn a_minute_passes() -> Line {
    Event::Minute.into()
}

pub(crate) fn withdraw_ticket(ticket: &Ticket) -> Line {
    Event::Withdraw(Withdrawal { ticket: Some(ticket.id.clone()), ..Withdrawal::default() }).into()
}
