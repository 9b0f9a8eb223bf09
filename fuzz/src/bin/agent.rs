//! Requests to an agent: bytes → message → typed request. A refusal names a field and stays short.
#![no_main]

use bowline_target::agent::{
    Bad, ExportsAfter, Grow, ItemsAfter, SnapshotName, TakeTogether, VolumeName, order, revocation, to_grant,
    wire,
};
use libfuzzer_sys::fuzz_target;
use prost::Message;

fn parse<M, R>(bytes: &[u8], parse: impl Fn(M) -> Result<R, Bad>)
where
    M: Message + Default,
    R: std::fmt::Debug,
{
    let Ok(message) = M::decode(bytes) else { return };
    match parse(message) {
        Ok(request) => assert!(!format!("{request:?}").is_empty()),
        Err(error) => assert!(!error.to_string().is_empty() && error.to_string().len() < 4096),
    }
}

fuzz_target!(|input: (u8, &[u8])| {
    let (kind, bytes) = input;
    match kind % 11 {
        0 => parse(bytes, |request| to_grant(&request)),
        1 => parse(bytes, |request| revocation(&request)),
        2 => parse(bytes, order),
        3 => parse(bytes, ExportsAfter::try_from),
        4 => parse(bytes, ItemsAfter::try_from),
        5 => parse(bytes, TakeTogether::try_from),
        6 => parse::<wire::DeleteVolumeRequest, _>(bytes, VolumeName::try_from),
        7 => parse::<wire::GetVolumeRequest, _>(bytes, VolumeName::try_from),
        8 => parse::<wire::DeleteSnapshotRequest, _>(bytes, SnapshotName::try_from),
        9 => parse::<wire::GetSnapshotRequest, _>(bytes, SnapshotName::try_from),
        _ => parse(bytes, Grow::try_from),
    }
});
