//! What can happen to a volume.

use bowline_core::*;
use proptest::prelude::*;
use proptest::sample::select;

use crate::volume::{at, start};

pub(crate) const NODES: [&str; 3] = ["n1", "n2", "n3"];
pub(crate) const SLOTS: usize = 6;

pub(crate) fn node(index: usize) -> NodeId {
    NodeId::new(NODES[index % NODES.len()]).unwrap()
}

pub(crate) fn ticket_id(slot: usize) -> TicketId {
    TicketId::new(format!("t{}", slot % SLOTS)).unwrap()
}

/// One thing that happens; a decision follows each.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    /// A ticket is filed; `anew` makes it a newer generation where there is one already.
    File {
        ticket: Ticket,
        anew: bool,
    },
    Withdraw {
        slot: usize,
    },
    /// The target does the n-th of what it was last asked, and its answer arrives.
    Obey {
        nth: usize,
    },
    /// It does so, and the answer is lost.
    ObeyUnheard {
        nth: usize,
    },
    /// It does not, and says so or not.
    Disobey {
        nth: usize,
        outcome: Outcome,
    },
    /// An answer of an earlier time arrives once more.
    Echo {
        nth: usize,
    },
    /// A command of an earlier time reaches the target once more.
    LateCommand {
        nth: usize,
    },
    /// The target is asked for its list.
    List,
    /// A list of an earlier time arrives.
    StaleList {
        nth: usize,
    },
    /// Somebody else has let a node in; nothing is known of the target until it is asked for its list.
    Intruder {
        node: usize,
    },
    Node {
        node: usize,
        facts: NodeFacts,
    },
    Fault(bool),
    Deleting(bool),
    Migratable(Option<u16>),
    Share(bool),
    Facts {
        slot: usize,
        owner_gone: bool,
        copied: bool,
    },
    Pass {
        seconds: i64,
    },
    /// The process ends; what need not have been written yet is lost.
    Crash,
}

pub(crate) fn anything() -> impl Strategy<Value = Event> {
    let slot = 0..SLOTS;
    let nth = 0..6usize;
    prop_oneof![
        8 => (ticket(), any::<bool>()).prop_map(|(ticket, anew)| Event::File { ticket, anew }),
        4 => slot.clone().prop_map(|slot| Event::Withdraw { slot }),
        12 => nth.clone().prop_map(|nth| Event::Obey { nth }),
        2 => nth.clone().prop_map(|nth| Event::ObeyUnheard { nth }),
        2 => (nth.clone(), disobedience()).prop_map(|(nth, outcome)| Event::Disobey { nth, outcome }),
        2 => (0..40usize).prop_map(|nth| Event::Echo { nth }),
        2 => (0..40usize).prop_map(|nth| Event::LateCommand { nth }),
        3 => Just(Event::List),
        1 => (0..40usize).prop_map(|nth| Event::StaleList { nth }),
        1 => (0..3usize).prop_map(|node| Event::Intruder { node }),
        3 => (0..3usize, node_facts()).prop_map(|(node, facts)| Event::Node { node, facts }),
        1 => prop::bool::weighted(0.3).prop_map(Event::Fault),
        1 => prop::bool::weighted(0.3).prop_map(Event::Deleting),
        2 => select(vec![None, Some(30), Some(300), Some(300)]).prop_map(Event::Migratable),
        1 => any::<bool>().prop_map(Event::Share),
        2 => (slot, prop::bool::weighted(0.3), any::<bool>())
            .prop_map(|(slot, owner_gone, copied)| Event::Facts { slot, owner_gone, copied }),
        3 => (1..400i64).prop_map(|seconds| Event::Pass { seconds }),
        2 => Just(Event::Crash),
    ]
}

pub(crate) fn disobedience() -> impl Strategy<Value = Outcome> {
    select(vec![
        Outcome::Refused { error: "no".to_owned() },
        Outcome::InUse { by: "/dev/loop3".to_owned() },
        Outcome::Silent { since: start(), error: "timed out".to_owned() },
    ])
}

pub(crate) fn node_facts() -> impl Strategy<Value = NodeFacts> {
    let since = start();
    let states = vec![
        NodeState::Ready,
        NodeState::Ready,
        NodeState::NotReady { since },
        NodeState::OutOfService { since },
        NodeState::Gone { since },
    ];
    let room = select(vec![None, None, Some(Room { free: 0, limit: 8 }), Some(Room { free: 1, limit: 8 })]);
    (select(states), room, prop::bool::weighted(0.1)).prop_map(|(state, room, forced)| NodeFacts {
        state,
        room,
        forced,
    })
}

/// Any ticket; the plain ones, and those that may migrate, more often.
pub(crate) fn ticket() -> impl Strategy<Value = Ticket> {
    let csi = TicketKind::CsiAttacher;
    let kind = prop_oneof![2 => Just(csi), 3 => select(TicketKind::ALL.to_vec())];
    let plain = AccessMode::SingleNodeWriter;
    let access = prop_oneof![2 => Just(plain), 3 => select(AccessMode::ALL.to_vec())];
    let content = select(vec![Content::Block, Content::Block, Content::Filesystem]);
    let frontend = select(vec![Frontend::On, Frontend::On, Frontend::Off, Frontend::Any]);
    let owner = prop_oneof![
        4 => Just(Owner::Withdrawn),
        2 => Just(Owner::ObjectGone { object: "Snapshot default/s".to_owned() }),
        1 => (1..2000i64).prop_map(|seconds| Owner::Expires { at: at(seconds) }),
    ];
    let what = (kind, access, content, prop::bool::weighted(0.2), frontend);
    (0..SLOTS, 0..3usize, what, 0..100i64, owner).prop_map(|(slot, on, what, age, owner)| {
        let (kind, access, content, read_only, frontend) = what;
        let (id, node, created_at) = (ticket_id(slot), node(on), at(age));
        Ticket {
            id,
            kind,
            node,
            access,
            content,
            read_only,
            frontend,
            generation: 1,
            created_at,
            owner,
            reason: None,
        }
    })
}

/// Up to six tickets with ids of their own.
pub(crate) fn tickets() -> impl Strategy<Value = Vec<Ticket>> {
    prop::collection::vec(ticket(), 0..=SLOTS).prop_map(|mut tickets| {
        for (slot, ticket) in tickets.iter_mut().enumerate() {
            ticket.id = ticket_id(slot);
        }
        tickets
    })
}
