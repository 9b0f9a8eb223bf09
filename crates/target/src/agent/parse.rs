//! From the wire: every message is parsed once, and what is wrong is told by the name of its field.

use bowline_core::{
    Epoch, Export, IdError, Mode, NeverAgain, NodeId, Share, SnapshotId, TargetId, Timestamp, VolumeId,
};
use std::collections::BTreeMap;
use std::net::SocketAddr;

use super::{CUTS, ITEMS, wire};
use crate::{
    Capacity, Cut, Grant, Item, Listing, NewVolume, Page, ProvisionError, Revocation, Sizes, Source,
    StoredSnapshot, StoredVolume, TargetError,
};

/// Longer than any name that people give; CSI allows 128 bytes.
const NAME_BYTES: usize = 1024;
/// Longer than what any storage is told by.
const INSTALLATION_BYTES: usize = 128;
/// More addresses than any storage machine has.
const ADDRESSES: usize = 16;
/// More listings are not told at once.
const LISTINGS: usize = 10_000;

/// What is wrong with a message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Bad {
    /// A field that must be there is not.
    #[error("{0} is required")]
    Missing(&'static str),
    /// A field is no id.
    #[error("{field}: {error}")]
    Id {
        /// The field.
        field: &'static str,
        /// What is wrong with it.
        error: IdError,
    },
    /// A field has a value that it cannot have.
    #[error("{field} {must}")]
    Value {
        /// The field.
        field: &'static str,
        /// What it must be.
        must: &'static str,
    },
}

type Parsed<T> = Result<T, Bad>;

fn volume_id(field: &'static str, text: &str) -> Parsed<VolumeId> {
    VolumeId::new(text).map_err(|error| Bad::Id { field, error })
}

fn snapshot_id(field: &'static str, text: &str) -> Parsed<SnapshotId> {
    SnapshotId::new(text).map_err(|error| Bad::Id { field, error })
}

fn node_id(field: &'static str, text: &str) -> Parsed<NodeId> {
    NodeId::new(text).map_err(|error| Bad::Id { field, error })
}

fn epoch(field: &'static str, number: u64) -> Parsed<Epoch> {
    if number == 0 {
        return Err(Bad::Value { field, must: "must be above 0" });
    }
    Ok(Epoch::new(number))
}

fn name(field: &'static str, text: String) -> Parsed<String> {
    if text.len() > NAME_BYTES {
        return Err(Bad::Value { field, must: "must have at most 1024 bytes" });
    }
    Ok(text)
}

fn mode(field: &'static str, mode: Option<wire::Mode>) -> Parsed<Mode> {
    let mode = mode.ok_or(Bad::Missing(field))?;
    let share = match mode.share() {
        wire::Share::Nobody => Share::Nobody,
        wire::Share::Readers => Share::Readers,
        wire::Share::OneWriter => Share::OneWriter,
        wire::Share::Writers => Share::Writers,
        wire::Share::Unspecified => {
            return Err(Bad::Value { field, must: "must say with whom it is shared" });
        }
    };
    Ok(Mode { write: mode.write, frontend: mode.frontend, share })
}

/// Whom to let in.
pub fn to_grant(request: &wire::AllowRequest) -> Parsed<Grant> {
    Ok(Grant {
        volume: volume_id("volume", &request.volume)?,
        node: node_id("node", &request.node)?,
        epoch: epoch("epoch", request.epoch)?,
        mode: mode("mode", request.mode)?,
        beside: request.beside.map(|number| epoch("beside", number)).transpose()?,
    })
}

/// Whom to shut out.
pub fn revocation(request: &wire::RevokeRequest) -> Parsed<Revocation> {
    Ok(Revocation {
        volume: volume_id("volume", &request.volume)?,
        node: node_id("node", &request.node)?,
        epoch: epoch("epoch", request.epoch)?,
        fence: request.fence,
    })
}

/// A part of the list of exports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportsAfter {
    pub(crate) after: Option<VolumeId>,
    pub(crate) limit: usize,
}

fn limit(limit: u32, most: usize) -> Parsed<usize> {
    match usize::try_from(limit) {
        Ok(0) => Err(Bad::Value { field: "limit", must: "must be above 0" }),
        Ok(limit) => Ok(limit.min(most)),
        Err(_) => Ok(most),
    }
}

impl TryFrom<wire::ListExportsRequest> for ExportsAfter {
    type Error = Bad;

    fn try_from(request: wire::ListExportsRequest) -> Parsed<Self> {
        let after = Some(request.after).filter(|after| !after.is_empty());
        let after = after.map(|after| volume_id("after", &after)).transpose()?;
        Ok(Self { after, limit: limit(request.limit, LISTINGS)? })
    }
}

/// A part of the list of what is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ItemsAfter {
    pub(crate) after: Option<Item>,
    pub(crate) limit: usize,
}

impl TryFrom<wire::ListItemsRequest> for ItemsAfter {
    type Error = Bad;

    fn try_from(request: wire::ListItemsRequest) -> Parsed<Self> {
        let after = request.after.map(|after| item("after", after)).transpose()?;
        Ok(Self { after, limit: limit(request.limit, ITEMS)? })
    }
}

/// A volume to be made.
pub fn order(request: wire::CreateVolumeRequest) -> Parsed<NewVolume> {
    use wire::source::Of;
    let source = match request.source {
        None => None,
        Some(wire::Source { of: None }) => return Err(Bad::Missing("source.of")),
        Some(wire::Source { of: Some(Of::Snapshot(id)) }) => {
            Some(Source::Snapshot(snapshot_id("source.snapshot", &id)?))
        }
        Some(wire::Source { of: Some(Of::Volume(id)) }) => {
            Some(Source::Volume(volume_id("source.volume", &id)?))
        }
    };
    Ok(NewVolume {
        volume: volume_id("volume", &request.volume)?,
        name: name("name", request.name)?,
        size: request.size,
        source,
    })
}

/// Snapshots to be taken at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TakeTogether(pub(crate) Vec<Cut>);

impl TryFrom<wire::TakeSnapshotsRequest> for TakeTogether {
    type Error = Bad;

    fn try_from(request: wire::TakeSnapshotsRequest) -> Parsed<Self> {
        if request.cuts.len() > CUTS {
            return Err(Bad::Value { field: "cuts", must: "must have at most 1024 entries" });
        }
        let cut = |cut: wire::Cut| {
            Ok(Cut {
                snapshot: snapshot_id("cuts.snapshot", &cut.snapshot)?,
                name: name("cuts.name", cut.name)?,
                volume: volume_id("cuts.volume", &cut.volume)?,
            })
        };
        request.cuts.into_iter().map(cut).collect::<Parsed<_>>().map(Self)
    }
}

/// A request that names a volume and nothing else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeName(pub(crate) VolumeId);

impl TryFrom<wire::DeleteVolumeRequest> for VolumeName {
    type Error = Bad;

    fn try_from(request: wire::DeleteVolumeRequest) -> Parsed<Self> {
        volume_id("volume", &request.volume).map(Self)
    }
}

impl TryFrom<wire::GetVolumeRequest> for VolumeName {
    type Error = Bad;

    fn try_from(request: wire::GetVolumeRequest) -> Parsed<Self> {
        volume_id("volume", &request.volume).map(Self)
    }
}

/// A request that names a snapshot and nothing else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotName(pub(crate) SnapshotId);

impl TryFrom<wire::DeleteSnapshotRequest> for SnapshotName {
    type Error = Bad;

    fn try_from(request: wire::DeleteSnapshotRequest) -> Parsed<Self> {
        snapshot_id("snapshot", &request.snapshot).map(Self)
    }
}

impl TryFrom<wire::GetSnapshotRequest> for SnapshotName {
    type Error = Bad;

    fn try_from(request: wire::GetSnapshotRequest) -> Parsed<Self> {
        snapshot_id("snapshot", &request.snapshot).map(Self)
    }
}

/// A volume to be made larger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grow {
    pub(crate) volume: VolumeId,
    pub(crate) size: u64,
}

impl TryFrom<wire::GrowVolumeRequest> for Grow {
    type Error = Bad;

    fn try_from(request: wire::GrowVolumeRequest) -> Parsed<Self> {
        Ok(Self { volume: volume_id("volume", &request.volume)?, size: request.size })
    }
}

/// What an agent says that it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Described {
    pub(crate) target: TargetId,
    pub(crate) kind: String,
    pub(crate) sizes: Sizes,
    pub(crate) topology: BTreeMap<String, String>,
    pub(crate) version: String,
    pub(crate) installation: String,
    pub(crate) storage: String,
    pub(crate) addresses: Vec<SocketAddr>,
    pub(crate) protocol: u32,
}

/// What tells one storage from another goes into headers, records and sentences.
fn identity(field: &'static str, text: String) -> Parsed<String> {
    if text.len() > INSTALLATION_BYTES || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        let must = "must have at most 128 bytes, all of them letters, digits and signs";
        return Err(Bad::Value { field, must });
    }
    Ok(text)
}

/// Where nodes are told to connect.
fn addresses(texts: &[String]) -> Parsed<Vec<SocketAddr>> {
    let bad = Bad::Value { field: "nvme_addresses", must: "must be at most 16 addresses with ports" };
    if texts.len() > ADDRESSES {
        return Err(bad);
    }
    texts.iter().map(|text| text.parse().map_err(|_| bad.clone())).collect()
}

/// What an agent says of itself.
pub fn described(answer: wire::DescribeResponse) -> Parsed<Described> {
    let sizes = answer.sizes.ok_or(Bad::Missing("sizes"))?;
    if sizes.multiple == 0 {
        return Err(Bad::Value { field: "sizes.multiple", must: "must be above 0" });
    }
    let installation = identity("installation", answer.installation)?;
    let storage = match identity("storage", answer.storage)? {
        told if told.is_empty() => installation.clone(),
        told => told,
    };
    let addresses = addresses(&answer.nvme_addresses)?;
    if installation.is_empty() && !addresses.is_empty() {
        // The names of its exports follow from it.
        return Err(Bad::Missing("installation"));
    }
    Ok(Described {
        target: TargetId::new(&answer.target).map_err(|error| Bad::Id { field: "target", error })?,
        kind: answer.kind,
        sizes: Sizes { minimum: sizes.minimum, maximum: sizes.maximum, multiple: sizes.multiple },
        topology: answer.topology.into_iter().collect(),
        version: answer.version,
        installation,
        storage,
        addresses,
        protocol: answer.protocol.max(1),
    })
}

fn unclear(error: &Bad) -> String {
    format!("the agent's answer cannot be understood: {error}")
}

pub(crate) fn access_error(error: wire::AccessError) -> TargetError {
    use wire::access_error::Why;
    match error.why {
        Some(Why::NeverAgain(highest)) => NeverAgain { highest: Epoch::new(highest) }.into(),
        Some(Why::Refused(error)) => TargetError::Refused { error },
        Some(Why::InUse(by)) => TargetError::InUse { by },
        Some(Why::Unreachable(error)) => TargetError::Unreachable { error },
        None => access_unclear(&Bad::Missing("error.why")),
    }
}

pub(crate) fn access_unclear(error: &Bad) -> TargetError {
    TargetError::Unreachable { error: unclear(error) }
}

pub(crate) fn storage_error(error: wire::StorageError) -> ProvisionError {
    use wire::storage_error::Why;
    match error.why {
        Some(Why::NoRoom(wire::NoRoom { needed, available })) => ProvisionError::NoRoom { needed, available },
        Some(Why::Unknown(what)) => ProvisionError::Unknown { what },
        Some(Why::Different(wire::Different { what, difference })) => {
            ProvisionError::Different { what, difference }
        }
        Some(Why::InUse(by)) => ProvisionError::InUse { by },
        Some(Why::Refused(error)) => ProvisionError::Refused { error },
        Some(Why::Damaged(wire::Damaged { what, error })) => ProvisionError::Damaged { what, error },
        Some(Why::Unreachable(error)) => ProvisionError::Unreachable { error },
        None => storage_unclear(&Bad::Missing("error.why")),
    }
}

pub(crate) fn storage_unclear(error: &Bad) -> ProvisionError {
    ProvisionError::Unreachable { error: unclear(error) }
}

/// A part of the list of whom a target lets in.
pub fn page(page: wire::ExportPage) -> Parsed<Page> {
    let export = |export: wire::Export| {
        let (node, mode) = (node_id("exports.node", &export.node)?, mode("exports.mode", export.mode)?);
        Ok((Epoch::new(export.epoch), Export { node, mode }))
    };
    let listing = |listing: wire::Listing| {
        let exports = listing.exports.into_iter().map(export).collect::<Parsed<_>>()?;
        Ok(Listing { volume: volume_id("listings.volume", &listing.volume)?, exports })
    };
    let next = Some(page.next).filter(|next| !next.is_empty());
    Ok(Page {
        listings: page.listings.into_iter().map(listing).collect::<Parsed<_>>()?,
        next: next.map(|next| volume_id("next", &next)).transpose()?,
    })
}

pub(crate) fn item(field: &'static str, item: wire::Item) -> Parsed<Item> {
    match item.is.ok_or(Bad::Missing(field))? {
        wire::item::Is::Volume(id) => volume_id(field, &id).map(Item::Volume),
        wire::item::Is::Snapshot(id) => snapshot_id(field, &id).map(Item::Snapshot),
    }
}

pub(crate) fn stored_volume(stored: wire::StoredVolume) -> StoredVolume {
    StoredVolume { size: stored.size, allocated: stored.allocated, fault: stored.fault }
}

/// A snapshot as an agent tells of it.
pub fn stored_snapshot(stored: wire::StoredSnapshot) -> Parsed<StoredSnapshot> {
    let taken_at = Timestamp::new(stored.taken_at_seconds, stored.taken_at_nanos);
    Ok(StoredSnapshot {
        volume: volume_id("volume", &stored.volume)?,
        size: stored.size,
        taken_at: taken_at.map_err(|_| Bad::Value { field: "taken_at", must: "must be a moment" })?,
        fault: stored.fault,
    })
}

pub(crate) fn capacity(room: wire::Capacity) -> Capacity {
    Capacity { total: room.total, free: room.free, promised: room.promised, available: room.available }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_that_cannot_be_meant_so_is_refused_by_its_field() {
        let mode = wire::Mode { write: true, frontend: true, share: wire::Share::Nobody.into() };
        let good = wire::AllowRequest {
            volume: "v".into(),
            node: "n".into(),
            epoch: 1,
            mode: Some(mode),
            beside: None,
        };
        assert!(to_grant(&good).is_ok());
        let odd = Some(wire::Mode { share: 77, ..mode });
        for (request, told) in [
            (wire::AllowRequest { volume: String::new(), ..good.clone() }, "volume: volume id is empty"),
            (wire::AllowRequest { node: "a/b".into(), ..good.clone() }, "node: node id \"a/b\" contains"),
            (wire::AllowRequest { epoch: 0, ..good.clone() }, "epoch must be above 0"),
            (wire::AllowRequest { mode: None, ..good.clone() }, "mode is required"),
            (wire::AllowRequest { mode: odd, ..good.clone() }, "mode must say with whom it is shared"),
        ] {
            let error = to_grant(&request).unwrap_err().to_string();
            assert!(error.starts_with(told), "{error}");
        }
        let source = Some(wire::Source { of: None });
        let error = order(wire::CreateVolumeRequest { volume: "v".into(), source, ..Default::default() })
            .unwrap_err();
        assert_eq!(error.to_string(), "source.of is required");
        let error = ItemsAfter::try_from(wire::ListItemsRequest { after: None, limit: 0 }).unwrap_err();
        assert_eq!(error.to_string(), "limit must be above 0");
        let cuts = vec![wire::Cut::default(); CUTS + 1];
        let error = TakeTogether::try_from(wire::TakeSnapshotsRequest { cuts }).unwrap_err();
        assert_eq!(error.to_string(), "cuts must have at most 1024 entries");
    }

    #[test]
    fn what_tells_storage_apart_fits_in_a_header() {
        let sizes = Some(wire::Sizes { minimum: 1, maximum: 1, multiple: 1 });
        let told = |installation: &str| wire::DescribeResponse {
            target: "t".into(),
            sizes,
            installation: installation.into(),
            ..Default::default()
        };
        for good in ["", "0123456789abcdef", &"x".repeat(128)] {
            assert_eq!(described(told(good)).map(|what| what.installation), Ok(good.to_owned()));
        }
        for odd in ["a b", "a\nb", "ä", &"x".repeat(129)] {
            let error = described(told(odd)).unwrap_err().to_string();
            assert!(error.starts_with("installation must have at most 128 bytes"), "{error}");
            let storage = wire::DescribeResponse { storage: odd.into(), ..told("i") };
            let error = described(storage).unwrap_err().to_string();
            assert!(error.starts_with("storage must have at most 128 bytes"), "{error}");
        }
        assert_eq!(described(told("i")).map(|what| what.storage), Ok("i".to_owned()), "of an older agent");
    }

    #[test]
    fn addresses_of_a_fabric_are_addresses_and_have_a_storage_to_go_with() {
        let told = |installation: &str, addresses: &[&str]| wire::DescribeResponse {
            target: "t".into(),
            sizes: Some(wire::Sizes { minimum: 1, maximum: 1, multiple: 1 }),
            installation: installation.into(),
            nvme_addresses: addresses.iter().map(ToString::to_string).collect(),
            ..Default::default()
        };
        let good = described(told("i", &["10.0.0.1:4420", "[fd00::1]:4420"])).unwrap();
        assert_eq!(good.addresses.len(), 2);
        for (installation, addresses, why) in [
            ("", &["10.0.0.1:4420"][..], "installation is required"),
            ("i", &["10.0.0.1"], "nvme_addresses must be"),
            ("i", &["target:4420"], "nvme_addresses must be"),
            ("i", &["10.0.0.1:4420"; 17], "nvme_addresses must be at most 16"),
        ] {
            let error = described(told(installation, addresses)).unwrap_err().to_string();
            assert!(error.starts_with(why), "{error}");
        }
    }

    #[test]
    fn an_answer_that_says_nothing_proves_nothing() {
        let told = access_error(wire::AccessError { why: None });
        assert!(matches!(told, TargetError::Unreachable { .. }), "{told:?}");
        let told = storage_error(wire::StorageError { why: None });
        assert!(matches!(told, ProvisionError::Unreachable { .. }), "{told:?}");
    }
}
