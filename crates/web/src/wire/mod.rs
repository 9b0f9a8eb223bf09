//! What travels over the API, as both sides of it see it: camelCase, times as RFC 3339, sizes in bytes.

mod adoption;
mod machine;
mod node;
mod snapshot;
mod target;
mod ticket;
mod volume;

pub use adoption::{AdoptedVolume, Adoption, AdoptionState};
pub use machine::{Capacity, Doctor, Drift, Event, Events, Finding, Orphan, Orphans};
pub use node::{AddNode, Node, Nodes};
pub use snapshot::{Group, NewSnapshot, Snapshot, SnapshotState, Snapshots};
pub use target::{Target, Targets};
pub use ticket::{
    Attached, Hold, NewTicket, OwnerFields, Remedy, Ticket, Tickets, Until, VerdictFields, WaitFor, Why,
};
pub use volume::{
    Attachment, Change, Grow, Holder, NewVolume, Progress, Settings, Source, Use, Volume, VolumeState,
    Volumes,
};
