//! The kinds that Bowline has in Kubernetes, and the keys it uses there.
//!
//! `spec` is the wish: written when an object is made, later by people. `status` is the record that a store keeps
//! there, field by field as [`bowline_core`] and the catalog write it, plus `recordVersion`; what is beside that is for
//! people only, and nothing is ever decided by it. An object without `recordVersion` in its status has no record.
//!
//! | kind | short | named by | record |
//! |---|---|---|---|
//! | [`Volume`] | bv | the volume's name, or a digest of it | volume |
//! | [`VolumeAttachment`] | bva | the volume's id | ledger |
//! | [`Snapshot`] | bvs | the snapshot's name, or a digest of it | snapshot |
//! | [`SnapshotGroup`] | bvg | the group's name, or a digest of it | group |
//! | [`Target`] | bvt | the target's id | – |
//!
//! `deploy/crds` has the definitions for the API server; a test keeps them current.

#![allow(clippy::duplicated_attributes, reason = "several printer columns of one type are no duplicates")]
#![allow(
    unreachable_pub,
    reason = "KubeSchema makes a copy of each type inside a function, with its visibility"
)]

mod attachment;
mod condition;
mod group;
pub mod keys;
mod people;
mod recorded;
mod schema;
mod size;
mod snapshot;
mod target;
mod volume;
mod wish;

pub use attachment::{
    AttachmentTicket, TicketStatus, VolumeAttachment, VolumeAttachmentSpec, VolumeAttachmentStatus,
};
pub use condition::{Condition, Truth};
pub use group::{SnapshotGroup, SnapshotGroupSpec, SnapshotGroupStatus};
pub use keys::{DRIVER, GROUP, VERSION};
pub use people::LedgerSummary;
pub use recorded::{HoldRecord, MigrationRecord, ModeRecord, OwnerRecord, Progress, TicketRecord};
pub use size::{SizeError, binary_units, bytes_of, size_of, unit_of};
pub use snapshot::{Snapshot, SnapshotSpec, SnapshotStatus};
pub use target::{OrphanStatus, Target, TargetKind, TargetSpec, TargetStatus};
pub use volume::{Volume, VolumeSettings, VolumeSource, VolumeSpec, VolumeStatus, VolumeUse};
pub use wish::WishError;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;

/// The definitions of all kinds, in the order in which they are best read.
pub fn definitions() -> Vec<CustomResourceDefinition> {
    vec![Volume::crd(), VolumeAttachment::crd(), Snapshot::crd(), SnapshotGroup::crd(), Target::crd()]
}
