//! What the controller is asked about snapshots, of one volume and of several together.

use crate::attributes::{Attributes, Secrets};
use crate::field::{At, InvalidField, Problem};
use crate::id::{Name, group_snapshot_id, optional_volume_id, snapshot_id, volume_id};
use crate::page::Page;
use crate::topology::TopologyRequirement;
use crate::wire;
use bowline_core::{GroupSnapshotId, SnapshotId, VolumeId};
use std::collections::BTreeSet;

/// `CreateSnapshot`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreateSnapshot {
    /// The caller's name for it.
    pub name: Name,
    /// Of which volume.
    pub source: VolumeId,
    /// Parameters of the snapshot class.
    pub parameters: Attributes,
    /// From where it has to be reachable.
    pub accessibility: TopologyRequirement,
    /// Secrets of the call.
    pub secrets: Secrets,
}

impl TryFrom<wire::CreateSnapshotRequest> for CreateSnapshot {
    type Error = InvalidField;

    fn try_from(request: wire::CreateSnapshotRequest) -> Result<Self, InvalidField> {
        Ok(Self {
            name: Name::parse(At::field("name"), request.name)?,
            source: volume_id(At::field("source_volume_id"), &request.source_volume_id)?,
            parameters: Attributes::parse(At::field("parameters"), request.parameters)?,
            accessibility: TopologyRequirement::parse(request.accessibility_requirements)?,
            secrets: Secrets::parse(request.secrets)?,
        })
    }
}

/// `DeleteSnapshot`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeleteSnapshot {
    /// Which snapshot.
    pub snapshot: SnapshotId,
    /// Secrets of the call.
    pub secrets: Secrets,
}

impl TryFrom<wire::DeleteSnapshotRequest> for DeleteSnapshot {
    type Error = InvalidField;

    fn try_from(request: wire::DeleteSnapshotRequest) -> Result<Self, InvalidField> {
        Ok(Self {
            snapshot: snapshot_id(At::field("snapshot_id"), &request.snapshot_id)?,
            secrets: Secrets::parse(request.secrets)?,
        })
    }
}

/// `ListSnapshots`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListSnapshots {
    /// Which part of the list.
    pub page: Page,
    /// Only those of this volume.
    pub source: Option<VolumeId>,
    /// Only this one.
    pub snapshot: Option<SnapshotId>,
    /// Secrets of the call.
    pub secrets: Secrets,
}

impl TryFrom<wire::ListSnapshotsRequest> for ListSnapshots {
    type Error = InvalidField;

    fn try_from(request: wire::ListSnapshotsRequest) -> Result<Self, InvalidField> {
        Ok(Self {
            page: Page::parse(request.max_entries, request.starting_token)?,
            source: optional_volume_id(At::field("source_volume_id"), &request.source_volume_id)?,
            snapshot: match request.snapshot_id.as_str() {
                "" => None,
                id => Some(snapshot_id(At::field("snapshot_id"), id)?),
            },
            secrets: Secrets::parse(request.secrets)?,
        })
    }
}

/// `GetSnapshot`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GetSnapshot {
    /// Which snapshot.
    pub snapshot: SnapshotId,
    /// Secrets of the call.
    pub secrets: Secrets,
}

impl TryFrom<wire::GetSnapshotRequest> for GetSnapshot {
    type Error = InvalidField;

    fn try_from(request: wire::GetSnapshotRequest) -> Result<Self, InvalidField> {
        Ok(Self {
            snapshot: snapshot_id(At::field("snapshot_id"), &request.snapshot_id)?,
            secrets: Secrets::parse(request.secrets)?,
        })
    }
}

/// `CreateVolumeGroupSnapshot`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreateGroupSnapshot {
    /// The caller's name for it.
    pub name: Name,
    /// Of which volumes, in the order given; at least one, each once.
    pub sources: Vec<VolumeId>,
    /// Parameters of the snapshot class.
    pub parameters: Attributes,
    /// Secrets of the call.
    pub secrets: Secrets,
}

impl TryFrom<wire::CreateVolumeGroupSnapshotRequest> for CreateGroupSnapshot {
    type Error = InvalidField;

    fn try_from(request: wire::CreateVolumeGroupSnapshotRequest) -> Result<Self, InvalidField> {
        let at = At::field("source_volume_ids");
        let sources = each_once(at, &request.source_volume_ids, volume_id)?;
        if sources.is_empty() {
            return Err(at.is(Problem::Missing));
        }
        Ok(Self {
            name: Name::parse(At::field("name"), request.name)?,
            sources,
            parameters: Attributes::parse(At::field("parameters"), request.parameters)?,
            secrets: Secrets::parse(request.secrets)?,
        })
    }
}

fn each_once<T: Clone + Ord>(
    at: At<'_>,
    values: &[String],
    parse: impl Fn(At<'_>, &str) -> Result<T, InvalidField>,
) -> Result<Vec<T>, InvalidField> {
    let mut seen = BTreeSet::new();
    let each = values.iter().enumerate().map(|(index, value)| {
        let at = at.entry(index);
        let id = parse(at, value)?;
        if seen.insert(id.clone()) { Ok(id) } else { Err(at.is(Problem::Repeated)) }
    });
    each.collect()
}

macro_rules! of_a_group {
    ($(#[$doc:meta])* $name:ident, $wire:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct $name {
            /// Which group of snapshots.
            pub group: GroupSnapshotId,
            /// The snapshots that the caller believes to be in it. CSI requires the list, but callers (csi-sanity is
            /// one) leave it out for a group that never was; so empty means "not told", not "has none".
            pub snapshots: Vec<SnapshotId>,
            /// Secrets of the call.
            pub secrets: Secrets,
        }

        impl TryFrom<wire::$wire> for $name {
            type Error = InvalidField;

            fn try_from(request: wire::$wire) -> Result<Self, InvalidField> {
                let at = At::field("snapshot_ids");
                Ok(Self {
                    group: group_snapshot_id(At::field("group_snapshot_id"), &request.group_snapshot_id)?,
                    snapshots: each_once(at, &request.snapshot_ids, snapshot_id)?,
                    secrets: Secrets::parse(request.secrets)?,
                })
            }
        }
    };
}

of_a_group! {
    /// `DeleteVolumeGroupSnapshot`.
    DeleteGroupSnapshot, DeleteVolumeGroupSnapshotRequest
}
of_a_group! {
    /// `GetVolumeGroupSnapshot`.
    GetGroupSnapshot, GetVolumeGroupSnapshotRequest
}
