//! What goes between a controller and an agent, in both directions: bytes → message → typed value. A refusal names a field and
//! stays short.
#![no_main]

use bowline_target::agent::{
    Bad, ExportsAfter, Grow, ItemsAfter, SnapshotName, TakeTogether, VolumeName, described, exports_shown,
    order, page, revocation, stored_snapshot, to_grant, wire,
};
use libfuzzer_sys::fuzz_target;
use prost::Message;
use std::fmt::Debug;

fn parse<M: Message + Default, R: Debug>(bytes: &[u8], parse: fn(M) -> Result<R, Bad>) {
    let Ok(message) = M::decode(bytes) else { return };
    match parse(message) {
        Ok(value) => assert!(!format!("{value:?}").is_empty()),
        Err(error) => assert!(!error.to_string().is_empty() && error.to_string().len() < 4096),
    }
}

fuzz_target!(|input: (u8, &[u8])| {
    let (kind, bytes) = input;
    match kind % 15 {
        0 => parse::<wire::AllowRequest, _>(bytes, |request| to_grant(&request)),
        1 => parse::<wire::RevokeRequest, _>(bytes, |request| revocation(&request)),
        2 => parse::<wire::CreateVolumeRequest, _>(bytes, order),
        3 => parse::<wire::ListExportsRequest, ExportsAfter>(bytes, ExportsAfter::try_from),
        4 => parse::<wire::ListItemsRequest, ItemsAfter>(bytes, ItemsAfter::try_from),
        5 => parse::<wire::TakeSnapshotsRequest, TakeTogether>(bytes, TakeTogether::try_from),
        6 => parse::<wire::DeleteVolumeRequest, VolumeName>(bytes, VolumeName::try_from),
        7 => parse::<wire::GetVolumeRequest, VolumeName>(bytes, VolumeName::try_from),
        8 => parse::<wire::DeleteSnapshotRequest, SnapshotName>(bytes, SnapshotName::try_from),
        9 => parse::<wire::GetSnapshotRequest, SnapshotName>(bytes, SnapshotName::try_from),
        10 => parse::<wire::GrowVolumeRequest, Grow>(bytes, Grow::try_from),
        11 => parse::<wire::DescribeResponse, _>(bytes, described),
        12 => parse::<wire::ExportPage, _>(bytes, page),
        13 => parse::<wire::Unshown, _>(bytes, |told| exports_shown(Some(told))),
        _ => parse::<wire::StoredSnapshot, _>(bytes, stored_snapshot),
    }
});
