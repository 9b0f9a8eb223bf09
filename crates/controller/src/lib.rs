//! The catalog of volumes and snapshots, and the CSI Identity, Controller and GroupController services on it.

mod catalog;
mod record;

pub use catalog::{Catalog, Change, Drift, Event, Listed, NewVolume, NodeError, OpenError, Parts};
pub use record::{Group, Node, Settings, Snapshot, SnapshotState, Source, Use, Volume, VolumeState};
// What the catalog answers with, for those who ask it and have no business with targets.
pub use bowline_target::{Capacity, Item};
