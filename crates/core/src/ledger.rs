use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

use crate::{Epoch, Hold, NodeId, Owner, Phase, Ticket, TicketId, Timestamp, VolumeFacts};

/// Everything that decides who may reach one volume: one record, no side maps.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "Record", rename_all = "camelCase")]
pub struct Ledger {
    pub(crate) epoch: Epoch,
    pub(crate) tickets: BTreeMap<TicketId, Ticket>,
    pub(crate) holds: BTreeMap<NodeId, Hold>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) migration: Option<Migration>,
}

/// A live migration under way: the one case in which two nodes may have a volume that is meant for one.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Migration {
    /// The ticket that had the volume before.
    pub from: TicketId,
    /// Which filing of it.
    pub from_generation: u64,
    /// The ticket that shall have it afterwards.
    pub to: TicketId,
    /// Which filing of it.
    pub to_generation: u64,
    /// When the second node was let in.
    pub since: Timestamp,
}

/// Why a ticket cannot be filed. Nothing has changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// The same ticket exists and asks for something else.
    #[error(
        "ticket {id} exists already with another {field}; withdraw it first, or file it with a newer generation"
    )]
    Different {
        /// The ticket.
        id: TicketId,
        /// What differs.
        field: &'static str,
    },
    /// A newer filing of this ticket is known.
    #[error("ticket {id} has generation {known}; generation {given} is older and was superseded")]
    Superseded {
        /// The ticket.
        id: TicketId,
        /// The generation in the ledger.
        known: u64,
        /// The one that was submitted.
        given: u64,
    },
}

/// Why a stored ledger cannot be one. It is reported, never repaired by a guess.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LedgerError {
    /// A ticket under another's name.
    #[error("tickets[{key}].id is {id}; it must equal its key")]
    TicketUnderWrongKey {
        /// Where it stands.
        key: TicketId,
        /// What it says.
        id: TicketId,
    },
    /// A hold of a time that has not come.
    #[error("holds[{node}].epoch is {epoch}, above the ledger's epoch {ledger}")]
    EpochAhead {
        /// Whose hold.
        node: NodeId,
        /// Its epoch.
        epoch: Epoch,
        /// The ledger's epoch.
        ledger: Epoch,
    },
    /// Two nodes with one grant.
    #[error("holds[{node}].epoch is {epoch}, which another hold has too")]
    EpochTwice {
        /// The second of them.
        node: NodeId,
        /// Their epoch.
        epoch: Epoch,
    },
}

/// What people call the state of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// No node can reach it.
    Detached,
    /// A node is being let in.
    Attaching,
    /// At least one node is in, and none is on its way in or out.
    Attached,
    /// A node is being shut out.
    Detaching,
    /// Its data cannot be used.
    Faulted,
    /// It is about to be removed.
    Deleting,
}

impl State {
    /// The word for people and for the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Detached => "detached",
            Self::Attaching => "attaching",
            Self::Attached => "attached",
            Self::Detaching => "detaching",
            Self::Faulted => "faulted",
            Self::Deleting => "deleting",
        }
    }
}

impl Ledger {
    /// The newest epoch ever granted.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Every wish, by id.
    pub fn tickets(&self) -> &BTreeMap<TicketId, Ticket> {
        &self.tickets
    }

    /// Every node that might still reach the bytes.
    pub fn holds(&self) -> &BTreeMap<NodeId, Hold> {
        &self.holds
    }

    /// The grant that the one of this node stands beside although their modes do not go together: that of the other node of the live
    /// migration under way.
    pub fn beside(&self, node: &NodeId) -> Option<Epoch> {
        self.migration.as_ref()?;
        let mode = self.holds.get(node)?.mode;
        let other = self.holds.iter().find(|(other, hold)| *other != node && !hold.mode.admits(mode));
        other.map(|(_, hold)| hold.epoch)
    }

    /// The live migration under way, if there is one.
    pub fn migration(&self) -> Option<&Migration> {
        self.migration.as_ref()
    }

    /// Files a ticket, or renews it. The same ticket again keeps its age; a newer generation is a new ticket,
    /// and what the earlier one had is released first, so that it inherits nothing.
    pub fn submit(&mut self, ticket: Ticket, now: Timestamp) -> Result<(), SubmitError> {
        if let Some(known) = self.tickets.get_mut(&ticket.id) {
            let (id, given) = (ticket.id.clone(), ticket.generation);
            if given < known.generation {
                return Err(SubmitError::Superseded { id, known: known.generation, given });
            }
            if given == known.generation {
                if let Some(field) = difference(known, &ticket) {
                    return Err(SubmitError::Different { id, field });
                }
                // A call that joins the ticket of an object does not take it over: the object still decides.
                let by_object = |owner: &Owner| matches!(owner, Owner::ObjectGone { .. });
                if by_object(&ticket.owner) || !by_object(&known.owner) {
                    known.owner = ticket.owner;
                }
                if ticket.reason.is_some() {
                    known.reason = ticket.reason;
                }
                return Ok(());
            }
            self.withdraw(&id, now);
        }
        self.tickets.insert(ticket.id.clone(), ticket);
        Ok(())
    }

    /// Takes a ticket back, and what it had with it, unless another ticket on the same node still needs that. A
    /// ticket that is not there is no error.
    pub fn withdraw(&mut self, id: &TicketId, now: Timestamp) -> Option<Ticket> {
        let ticket = self.tickets.remove(id)?;
        self.release_unserved(now);
        Some(ticket)
    }

    /// The tickets of one node.
    pub fn tickets_on<'a>(&'a self, node: &'a NodeId) -> impl Iterator<Item = &'a Ticket> {
        self.tickets.values().filter(move |ticket| ticket.node == *node)
    }

    /// The open hold that gives this ticket what it asks for.
    pub fn hold_serving(&self, ticket: &Ticket) -> Option<&Hold> {
        self.holds.get(&ticket.node).filter(|hold| hold.is_open() && ticket.is_served_by(hold.mode))
    }

    /// Whether this ledger could give somebody reach that `stored` does not record: then it must be durable
    /// before anything is done about it. All else may be written later, because it is derived again when lost.
    pub fn lets_in_beyond(&self, stored: &Ledger) -> bool {
        self.holds.iter().any(|(node, hold)| hold.is_open() && !stored.records(node, hold))
    }

    /// Whether this ledger has this very grant: only then may the target be asked to let the node in.
    pub fn records(&self, node: &NodeId, hold: &Hold) -> bool {
        self.holds
            .get(node)
            .is_some_and(|known| known.is_open() && known.epoch == hold.epoch && known.mode == hold.mode)
    }

    /// Whether this ledger shuts somebody out of whom `stored` does not say so: that too must be durable before the
    /// target is asked. A decision that was lost may be taken otherwise the next time, and one that rests on a
    /// ledger that was overtaken must not be taken at all; a command on its way would cut off a node that is meant to be in.
    pub fn shuts_out_beyond(&self, stored: &Ledger) -> bool {
        self.holds.iter().any(|(node, hold)| !hold.is_open() && !stored.closes(node, hold))
    }

    /// Whether this ledger shuts the node out of this very grant: only then may the target be asked to.
    pub fn closes(&self, node: &NodeId, hold: &Hold) -> bool {
        self.holds.get(node).is_some_and(|known| !known.is_open() && known.epoch == hold.epoch)
    }

    /// The state, for people.
    pub fn state(&self, volume: &VolumeFacts) -> State {
        let any = |wanted: fn(&Hold) -> bool| self.holds.values().any(wanted);
        if volume.fault.is_some() {
            State::Faulted
        } else if volume.deleting {
            State::Deleting
        } else if any(|hold| !hold.is_open()) {
            State::Detaching
        } else if any(|hold| hold.phase == Phase::Granting) {
            State::Attaching
        } else if self.holds.is_empty() {
            State::Detached
        } else {
            State::Attached
        }
    }

    fn release_unserved(&mut self, now: Timestamp) {
        let served: Vec<NodeId> = self
            .tickets
            .values()
            .filter(|ticket| self.hold_serving(ticket).is_some())
            .map(|ticket| ticket.node.clone())
            .collect();
        for (node, hold) in &mut self.holds {
            if hold.is_open() && !served.contains(node) {
                *hold = hold.clone().turned(Phase::Releasing, now);
            }
        }
    }
}

fn difference(known: &Ticket, given: &Ticket) -> Option<&'static str> {
    let pairs = [
        ("type", known.kind == given.kind),
        ("node", known.node == given.node),
        ("access mode", known.access == given.access),
        ("content", known.content == given.content),
        ("read-only flag", known.read_only == given.read_only),
        ("disableFrontend", known.frontend == given.frontend),
    ];
    pairs.into_iter().find(|(_, same)| !same).map(|(field, _)| field)
}

impl Migration {
    /// Whether it is the one between these two tickets, whichever way round.
    pub(crate) fn is_between(&self, a: &Ticket, b: &Ticket) -> bool {
        (self.is_from(a) && self.is_to(b)) || (self.is_from(b) && self.is_to(a))
    }

    pub(crate) fn is_from(&self, ticket: &Ticket) -> bool {
        ticket.id == self.from && ticket.generation == self.from_generation
    }

    pub(crate) fn is_to(&self, ticket: &Ticket) -> bool {
        ticket.id == self.to && ticket.generation == self.to_generation
    }
}

/// The ledger as it is written down; read through checks.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Record {
    epoch: Epoch,
    #[serde(default)]
    tickets: BTreeMap<TicketId, Ticket>,
    #[serde(default)]
    holds: BTreeMap<NodeId, Hold>,
    #[serde(default)]
    migration: Option<Migration>,
}

impl TryFrom<Record> for Ledger {
    type Error = LedgerError;

    fn try_from(record: Record) -> Result<Self, LedgerError> {
        let Record { epoch, tickets, holds, migration } = record;
        for (key, ticket) in &tickets {
            if *key != ticket.id {
                return Err(LedgerError::TicketUnderWrongKey { key: key.clone(), id: ticket.id.clone() });
            }
        }
        for (node, hold) in &holds {
            if hold.epoch > epoch {
                return Err(LedgerError::EpochAhead { node: node.clone(), epoch: hold.epoch, ledger: epoch });
            }
            if holds.iter().any(|(other, twin)| other < node && twin.epoch == hold.epoch) {
                return Err(LedgerError::EpochTwice { node: node.clone(), epoch: hold.epoch });
            }
        }
        Ok(Self { epoch, tickets, holds, migration })
    }
}
