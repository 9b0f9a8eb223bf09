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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record;

    #[test]
    fn a_bad_field_is_named() {
        for (bytes, named) in [
            (r#"{"version":1,"record":{"epoch":-1}}"#, "epoch: "),
            (r#"{"version":1,"record":{"epoch":1,"holds":{"a":{"epoch":1,"mode":{"write":1}}}}}"#, "holds.a"),
            (r#"{"version":1,"record":{"epoch":1,"tickets":{"a":{"id":"a/b"}}}}"#, "tickets.a.id: "),
            (
                r#"{"version":1,"record":{"epoch":1,"tickets":{"a":{"id":"a","type":"x"}}}}"#,
                "tickets.a.type: ",
            ),
        ] {
            let error = record::decode::<Ledger>(bytes.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(named), "{bytes}\n{error}");
        }
    }

    #[test]
    fn a_ledger_survives_a_round_trip_and_a_newer_one_is_refused() {
        let bytes = record::encode(&Ledger::default()).unwrap();
        assert_eq!(record::decode::<Ledger>(&bytes).unwrap(), Ledger::default());
        let newer = record::decode::<Ledger>(br#"{"version":2,"record":{"epoch":1}}"#).unwrap_err();
        assert!(matches!(newer, RecordError::Newer { .. }), "{newer}");
    }
}
