//! Everything that is read back from a disk: ledgers, volumes, snapshots, nodes, staging records. What is accepted is
//! written and read again unchanged.
#![no_main]

use bowline_store::{Record, record};
use libfuzzer_sys::fuzz_target;

fn round_trip<R: Record + PartialEq + std::fmt::Debug>(bytes: &[u8]) {
    if let Ok(value) = record::decode::<R>(bytes) {
        let again = record::encode(&value).expect("what was read can be written");
        assert_eq!(record::decode::<R>(&again).expect("what was written can be read"), value);
    }
}

fuzz_target!(|input: (u8, &[u8])| {
    let (kind, bytes) = input;
    match kind % 6 {
        0 => round_trip::<bowline_core::Ledger>(bytes),
        1 => round_trip::<bowline_controller::Volume>(bytes),
        2 => round_trip::<bowline_controller::Snapshot>(bytes),
        3 => round_trip::<bowline_controller::Group>(bytes),
        4 => round_trip::<bowline_controller::Node>(bytes),
        _ => {
            let _ = bowline_node::staging::decode(bytes);
        }
    }
});
