//! The ledger as a record.

use bowline_core::{Ledger, VolumeId};
use serde_json::Value;

use crate::{Key, Kind, Record, RecordError};

impl Record for Ledger {
    const KIND: Kind = Kind::Ledger;
    const VERSION: u32 = 1;

    fn upgrade(from: u32, _: Value) -> Result<Value, RecordError> {
        Err(RecordError::Shape {
            kind: Self::KIND,
            version: from,
            reason: "there is no such version".to_owned(),
        })
    }
}

impl Key {
    /// Where the ledger of a volume is kept.
    pub fn ledger(volume: &VolumeId) -> Key {
        Key::new(Kind::Ledger, volume.as_str())
    }
}
