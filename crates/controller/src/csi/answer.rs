//! Records in the words of the contract.

use bowline_core::{Ledger, Timestamp, VolumeId};
use bowline_csi::wire;
use bowline_csi::wire::volume_content_source::{SnapshotSource, Type, VolumeSource};
use bowline_store::{Key, record};
use std::collections::HashMap;

use super::FS;
use crate::Catalog;
use crate::failure::Failure;
use crate::record::{Snapshot, Source, Volume};

/// Bytes as the wire has them.
pub(crate) fn bytes(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

pub(crate) fn timestamp(at: Timestamp) -> prost_types::Timestamp {
    let (mut seconds, mut nanos) = (at.as_second(), at.subsec_nanosecond());
    if nanos < 0 {
        (seconds, nanos) = (seconds - 1, nanos + 1_000_000_000);
    }
    prost_types::Timestamp { seconds, nanos }
}

/// From where the volumes and snapshots of a target can be reached.
fn topologies(catalog: &Catalog, target: &bowline_core::TargetId) -> Vec<wire::Topology> {
    let segments = catalog.inner().target(target).map(|target| target.topology()).unwrap_or_default();
    if segments.is_empty() {
        return Vec::new();
    }
    vec![wire::Topology { segments: segments.into_iter().collect() }]
}

pub(crate) fn volume(catalog: &Catalog, volume: &Volume) -> wire::Volume {
    let source = volume.source.clone().map(|source| match source {
        Source::Snapshot(id) => Type::Snapshot(SnapshotSource { snapshot_id: id.into() }),
        Source::Volume(id) => Type::Volume(VolumeSource { volume_id: id.into() }),
    });
    wire::Volume {
        capacity_bytes: bytes(volume.size),
        volume_id: volume.id.to_string(),
        volume_context: volume_context(volume),
        content_source: source.map(|source| wire::VolumeContentSource { r#type: Some(source) }),
        accessible_topology: topologies(catalog, &volume.target),
    }
}

/// What the driver says about a volume when it is made, and again at every later call.
pub(crate) fn volume_context(volume: &Volume) -> HashMap<String, String> {
    let pairs = [(FS, volume.fs.name()), (bowline_target::context::TARGET, volume.target.as_str())];
    pairs.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

/// A snapshot that is ready; `None` for one that is not.
pub(crate) fn snapshot(catalog: &Catalog, snapshot: &Snapshot) -> Option<wire::Snapshot> {
    let (size, taken_at) = snapshot.taken()?;
    Some(wire::Snapshot {
        size_bytes: bytes(size),
        snapshot_id: snapshot.id.to_string(),
        source_volume_id: snapshot.volume.to_string(),
        creation_time: Some(timestamp(taken_at)),
        ready_to_use: true,
        group_snapshot_id: snapshot.group.as_ref().map(ToString::to_string).unwrap_or_default(),
        accessible_topology: topologies(catalog, &snapshot.target),
    })
}

/// The nodes that are let in to a volume, as it is stored: a grant is stored before the target is asked for it, and its
/// end too.
pub(crate) async fn published(catalog: &Catalog, volume: &VolumeId) -> Result<Vec<String>, Failure> {
    let Some(entry) = catalog.inner().shelf.store.get(&Key::ledger(volume)).await? else {
        return Ok(Vec::new());
    };
    let ledger: Ledger = record::decode(&entry.value)?;
    let open = ledger.holds().iter().filter(|(_, hold)| hold.is_open());
    Ok(open.map(|(node, _)| node.to_string()).collect())
}
