use bowline_core::{Ledger, Phase, State, Ticket};
use std::collections::BTreeMap;

use crate::TicketStatus;

/// What a ledger means for people, as far as the ledger alone tells.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LedgerSummary {
    /// detached, attaching, attached or detaching.
    pub state: &'static str,
    /// The nodes that have the volume, or those on their way in or out.
    pub nodes: String,
    /// The ticket that has it, or else the one that goes first.
    pub ticket: String,
    /// What became of that ticket, in a word.
    pub reason: &'static str,
    /// What became of each ticket, without the conditions that only a verdict can tell.
    pub tickets: BTreeMap<String, TicketStatus>,
}

impl LedgerSummary {
    /// What this ledger means.
    pub fn of(ledger: &Ledger) -> LedgerSummary {
        let holds = ledger.holds();
        let any = |wanted: fn(&bowline_core::Hold) -> bool| holds.values().any(wanted);
        let state = if any(|hold| !hold.is_open()) {
            State::Detaching
        } else if any(|hold| hold.phase == Phase::Granting) {
            State::Attaching
        } else if holds.is_empty() {
            State::Detached
        } else {
            State::Attached
        };
        let has = |ticket: &Ticket| ledger.hold_serving(ticket).is_some_and(|hold| hold.phase == Phase::Held);
        let mut queue: Vec<&Ticket> = ledger.tickets().values().collect();
        queue.sort_by_key(|ticket| (!has(ticket), ticket.rank()));
        let first = queue.first();
        let statuses = queue.iter().map(|ticket| {
            let status = TicketStatus {
                satisfied: has(ticket),
                generation: Some(ticket.generation),
                conditions: Vec::new(),
            };
            (ticket.id.to_string(), status)
        });
        LedgerSummary {
            state: state.as_str(),
            nodes: holds.keys().map(bowline_core::NodeId::as_str).collect::<Vec<_>>().join(","),
            ticket: first.map(|ticket| ticket.id.to_string()).unwrap_or_default(),
            reason: first.map_or("", |ticket| if has(ticket) { "Satisfied" } else { "Waiting" }),
            tickets: statuses.collect(),
        }
    }
}
