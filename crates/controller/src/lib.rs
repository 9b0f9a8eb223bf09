//! The catalog of volumes and snapshots, and the CSI Identity, Controller and GroupController services on it.
//!
//! # Flow
//!
//! A call of [`csi`] is parsed → asks the [`Catalog`] → which stores what is to be done (compare-and-swap), does it at the
//! target in a task of its own, stores that it is done, and answers. Who may reach a volume is asked of the engine, always.
//!
//! # Guarantees
//!
//! - Whatever was begun is completed or cleared away, by a retry, in the background, or after the next start; a record says
//!   at every moment how far it has come.
//! - A caller that hangs up stops nothing; asking the same again joins what is under way.
//! - A name is one volume's, for as long as anything of that volume is left; an id is never used again.
//! - An error that callers take as final leaves nothing behind.

mod catalog;
pub mod csi;
mod events;
mod failure;
mod metrics;
mod operations;
mod record;
mod shelf;
pub mod token;

pub use bowline_engine::Exports;
pub use catalog::{
    AdoptError, Catalog, Change, Drift, Event, FirstSeen, KnownTarget, Listed, NewVolume, NodeError,
    OpenError, Orphan, OrphanRecord, OrphanRules, Parts, TargetError,
};
pub use record::{Group, Node, Settings, Snapshot, SnapshotState, Source, Use, Volume, VolumeState};
// What the catalog answers with, for those who ask it and have no business with targets.
pub use bowline_target::{Capacity, Item};
