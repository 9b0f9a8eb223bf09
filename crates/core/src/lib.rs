//! The heart of Bowline: one ledger per volume, and the one function that chooses who may reach its bytes.
//!
//! Everything here is pure: no clock, no I/O, no randomness, no async. The same [`decide`] runs in
//! production, in the model checker, in the property tests and behind `bowline why`.
//!
//! Start reading at [`decide`]; the words are in `ARCHITECTURE.md`.

#![warn(clippy::wildcard_enum_match_arm)]

mod choose;
mod decide;
mod epoch;
mod explain;
mod exports;
mod fs;
mod hold;
mod id;
mod ledger;
mod mode;
mod nvme;
mod observed;
mod ticket;
mod verdict;

pub use decide::{Effect, Notice, Plan, decide};
pub use epoch::Epoch;
pub use exports::{Export, Exports, NeverAgain};
pub use fs::{FsType, UnknownFsType};
pub use hold::{FenceReason, Hold, Phase};
pub use id::{GroupSnapshotId, IdError, NodeId, Slot, SnapshotId, TargetId, TicketId, VolumeId};
pub use ledger::{Ledger, LedgerError, Migration, State, SubmitError};
pub use mode::{Mode, Share};
pub use nvme::{MODEL, MODEL_OF_BLANK, NQN_PREFIX, NvmeNames, ONLY_NAMESPACE, SubsystemsOf};
pub use observed::{
    Answer, Contact, MigrationTimeout, NodeFacts, NodeState, Observed, Outcome, Room, TicketFacts,
    VolumeFacts,
};
pub use ticket::{AccessMode, Content, Frontend, Owner, ParseError, Rank, Ticket, TicketKind};
pub use verdict::{Clash, Verdict};

/// An instant, as the caller's clock tells it; this crate never asks a clock itself.
pub use jiff::Timestamp;
