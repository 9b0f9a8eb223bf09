//! Onto the wire.

use bowline_core::{Epoch, Mode, NeverAgain, Share};
use prost::Message;

use super::{PAGE_BYTES, wire};
use crate::{
    Capacity, Cut, Grant, Item, Listing, NewVolume, Page, ProvisionError, Revocation, Source, StoredSnapshot,
    StoredVolume, TargetError,
};

pub(crate) fn mode(mode: Mode) -> wire::Mode {
    let share = match mode.share {
        Share::Nobody => wire::Share::Nobody,
        Share::Readers => wire::Share::Readers,
        Share::OneWriter => wire::Share::OneWriter,
        Share::Writers => wire::Share::Writers,
    };
    wire::Mode { write: mode.write, frontend: mode.frontend, share: share.into() }
}

pub(crate) fn allow(grant: &Grant) -> wire::AllowRequest {
    wire::AllowRequest {
        volume: grant.volume.to_string(),
        node: grant.node.to_string(),
        epoch: grant.epoch.number(),
        mode: Some(mode(grant.mode)),
        beside: grant.beside.map(Epoch::number),
    }
}

pub(crate) fn revoke(revocation: &Revocation) -> wire::RevokeRequest {
    wire::RevokeRequest {
        volume: revocation.volume.to_string(),
        node: revocation.node.to_string(),
        epoch: revocation.epoch.number(),
        fence: revocation.fence,
    }
}

pub(crate) fn create(order: &NewVolume) -> wire::CreateVolumeRequest {
    use wire::source::Of;
    let source = order.source.clone().map(|source| match source {
        Source::Snapshot(id) => Of::Snapshot(id.into()),
        Source::Volume(id) => Of::Volume(id.into()),
    });
    wire::CreateVolumeRequest {
        volume: order.volume.to_string(),
        name: order.name.clone(),
        size: order.size,
        source: source.map(|of| wire::Source { of: Some(of) }),
    }
}

pub(crate) fn cut(cut: &Cut) -> wire::Cut {
    wire::Cut { snapshot: cut.snapshot.to_string(), name: cut.name.clone(), volume: cut.volume.to_string() }
}

pub(crate) fn access_error(error: TargetError) -> wire::AccessError {
    use wire::access_error::Why;
    let why = match error {
        TargetError::NeverAgain(NeverAgain { highest }) => Why::NeverAgain(highest.number()),
        TargetError::Refused { error } => Why::Refused(error),
        TargetError::InUse { by } => Why::InUse(by),
        TargetError::Unreachable { error } => Why::Unreachable(error),
    };
    wire::AccessError { why: Some(why) }
}

pub(crate) fn storage_error(error: ProvisionError) -> wire::StorageError {
    use wire::storage_error::Why;
    let why = match error {
        ProvisionError::NoRoom { needed, available } => Why::NoRoom(wire::NoRoom { needed, available }),
        ProvisionError::Unknown { what } => Why::Unknown(what),
        ProvisionError::Different { what, difference } => {
            Why::Different(wire::Different { what, difference })
        }
        ProvisionError::InUse { by } => Why::InUse(by),
        ProvisionError::Refused { error } => Why::Refused(error),
        ProvisionError::Damaged { what, error } => Why::Damaged(wire::Damaged { what, error }),
        ProvisionError::Unreachable { error } => Why::Unreachable(error),
    };
    wire::StorageError { why: Some(why) }
}

fn listing(listing: Listing) -> wire::Listing {
    let export = |(epoch, export): (Epoch, bowline_core::Export)| wire::Export {
        epoch: epoch.number(),
        node: export.node.into(),
        mode: Some(mode(export.mode)),
    };
    wire::Listing {
        volume: listing.volume.into(),
        exports: listing.exports.into_iter().map(export).collect(),
    }
}

/// As much of a page as fits into one message; the next one begins where this ends.
pub(crate) fn page(page: Page) -> wire::ExportPage {
    let mut next = page.next.map(String::from).unwrap_or_default();
    let (mut listings, mut bytes): (Vec<wire::Listing>, usize) = (Vec::new(), 0);
    for one in page.listings.into_iter().map(listing) {
        bytes += one.encoded_len() + 8;
        if let Some(last) = listings.last().filter(|_| bytes > PAGE_BYTES) {
            next.clone_from(&last.volume);
            break;
        }
        listings.push(one);
    }
    wire::ExportPage { listings, next }
}

pub(crate) fn item(item: Item) -> wire::Item {
    let is = match item {
        Item::Volume(id) => wire::item::Is::Volume(id.into()),
        Item::Snapshot(id) => wire::item::Is::Snapshot(id.into()),
    };
    wire::Item { is: Some(is) }
}

pub(crate) fn stored_volume(stored: StoredVolume) -> wire::StoredVolume {
    wire::StoredVolume { size: stored.size, allocated: stored.allocated, fault: stored.fault }
}

pub(crate) fn stored_snapshot(stored: StoredSnapshot) -> wire::StoredSnapshot {
    wire::StoredSnapshot {
        volume: stored.volume.into(),
        size: stored.size,
        taken_at_seconds: stored.taken_at.as_second(),
        taken_at_nanos: stored.taken_at.subsec_nanosecond(),
        fault: stored.fault,
    }
}

pub(crate) fn capacity(room: Capacity) -> wire::Capacity {
    wire::Capacity { total: room.total, free: room.free, promised: room.promised, available: room.available }
}

#[cfg(test)]
mod tests {
    use super::super::parse;
    use super::*;
    use bowline_core::{Epoch, Export, NodeId, VolumeId};

    #[test]
    fn every_refusal_arrives_as_it_was_given() {
        let text = || "words".to_owned();
        for error in [
            TargetError::NeverAgain(NeverAgain { highest: Epoch::new(7) }),
            TargetError::Refused { error: text() },
            TargetError::InUse { by: String::new() },
            TargetError::Unreachable { error: text() },
        ] {
            assert_eq!(parse::access_error(access_error(error.clone())), error);
        }
        for error in [
            ProvisionError::NoRoom { needed: u64::MAX, available: 0 },
            ProvisionError::Unknown { what: text() },
            ProvisionError::Different { what: text(), difference: String::new() },
            ProvisionError::InUse { by: text() },
            ProvisionError::Refused { error: text() },
            ProvisionError::Damaged { what: text(), error: text() },
            ProvisionError::Unreachable { error: text() },
        ] {
            assert_eq!(parse::storage_error(storage_error(error.clone())), error);
        }
    }

    #[test]
    fn a_long_list_is_cut_where_the_next_page_goes_on() {
        let export = Export { node: NodeId::new("n".repeat(256)).unwrap(), mode: Mode::UNKNOWN };
        let exports: std::collections::BTreeMap<_, _> =
            (1..200).map(|epoch| (Epoch::new(epoch), export.clone())).collect();
        let id = |number: u32| VolumeId::new(format!("v{number:03}")).unwrap();
        let listings = (0..200).map(|n| Listing { volume: id(n), exports: exports.clone() }).collect();
        let told = page(Page { listings, next: None });
        assert!(told.encoded_len() <= super::super::MESSAGE_BYTES, "{}", told.encoded_len());
        let page = parse::page(told).unwrap();
        assert!(page.listings.len() > 10 && page.listings.len() < 200);
        assert_eq!(page.next.as_ref(), page.listings.last().map(|last| &last.volume));
    }
}
