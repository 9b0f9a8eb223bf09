//! Records of a type, with the version they were written in.
//!
//! The bytes are JSON: `{"version":2,"record":{…}}`. A record of an older version is brought up to date step
//! by step when it is read; one of a newer version is an error, because what this Bowline would leave out of
//! it when writing it back is lost to the newer one.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Kind;

/// A type that is kept in a store.
pub trait Record: Serialize + DeserializeOwned {
    /// Where its records are kept.
    const KIND: Kind;
    /// The version this type is written in. The first one is 1.
    const VERSION: u32;

    /// Turns the JSON of a record of version `from` into that of version `from + 1`. Called only with
    /// `from < VERSION`.
    ///
    /// # Errors
    ///
    /// When there is no such version, or the value is not one of it.
    fn upgrade(from: u32, value: Value) -> Result<Value, RecordError>;
}

/// Why bytes are not a record.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// A later version of Bowline wrote it.
    #[error(
        "this {kind} record has version {found}, and this Bowline knows versions up to {known}: it was written by a newer Bowline; use that one"
    )]
    Newer {
        /// The record's kind.
        kind: Kind,
        /// The version it has.
        found: u64,
        /// The latest version known here.
        known: u32,
    },
    /// The bytes are no JSON with a version and a record in it.
    #[error(
        "this is no {kind} record ({reason}): the store is damaged or was written by something else; restore an export"
    )]
    NotARecord {
        /// The kind it should have been.
        kind: Kind,
        /// What was seen.
        reason: String,
    },
    /// The record does not have the shape that its version has.
    #[error("this {kind} record says version {version} but is not one ({reason}); restore an export")]
    Shape {
        /// The record's kind.
        kind: Kind,
        /// The version it claims, or the one it was being upgraded from.
        version: u32,
        /// What was seen.
        reason: String,
    },
    /// The value cannot be written as JSON.
    #[error(
        "this {kind} cannot be written as a record ({reason}): this is a mistake in Bowline; please report it"
    )]
    Unwritable {
        /// The record's kind.
        kind: Kind,
        /// What was seen.
        reason: String,
    },
}

#[derive(Serialize)]
struct Written<'a, R> {
    version: u32,
    record: &'a R,
}

#[derive(Deserialize)]
struct Read {
    version: u64,
    #[serde(default)]
    record: Value,
}

/// The bytes of a record.
///
/// # Errors
///
/// [`RecordError::Unwritable`] when the type has no JSON form, such as a map whose keys are not strings.
pub fn encode<R: Record>(record: &R) -> Result<Vec<u8>, RecordError> {
    serde_json::to_vec(&Written { version: R::VERSION, record })
        .map_err(|error| RecordError::Unwritable { kind: R::KIND, reason: error.to_string() })
}

/// The record in these bytes, brought to the current version.
///
/// # Errors
///
/// When the bytes are no record of this kind, or a newer one than this Bowline knows.
pub fn decode<R: Record>(bytes: &[u8]) -> Result<R, RecordError> {
    let read: Read = serde_json::from_slice(bytes)
        .map_err(|error| RecordError::NotARecord { kind: R::KIND, reason: error.to_string() })?;
    let newer = || RecordError::Newer { kind: R::KIND, found: read.version, known: R::VERSION };
    let written = u32::try_from(read.version).map_err(|_| newer())?;
    if written > R::VERSION {
        return Err(newer());
    }
    let value = (written..R::VERSION).try_fold(read.record, |value, from| R::upgrade(from, value))?;
    // Its errors name the field.
    serde_path_to_error::deserialize(value).map_err(|error| RecordError::Shape {
        kind: R::KIND,
        version: written,
        reason: error.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    /// Version 1 had a `name`; 2 split it into `first` and `last`; 3 added `born`.
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Person {
        first: String,
        last: String,
        born: u16,
    }

    impl Record for Person {
        const KIND: Kind = Kind::Ledger;
        const VERSION: u32 = 3;

        fn upgrade(from: u32, mut value: Value) -> Result<Value, RecordError> {
            let shape = |reason: &str| RecordError::Shape {
                kind: Self::KIND,
                version: from,
                reason: reason.to_owned(),
            };
            match from {
                1 => {
                    let name = value["name"].as_str().ok_or_else(|| shape("no name"))?;
                    let (first, last) = name.split_once(' ').ok_or_else(|| shape("a name of one word"))?;
                    Ok(json!({ "first": first, "last": last }))
                }
                2 => {
                    value
                        .as_object_mut()
                        .ok_or_else(|| shape("no object"))?
                        .insert("born".into(), json!(1900));
                    Ok(value)
                }
                _ => Err(shape("no such version")),
            }
        }
    }

    fn ada(born: u16) -> Person {
        Person { first: "Ada".into(), last: "Lovelace".into(), born }
    }

    #[test]
    fn versions_up_to_the_current_one_are_read() {
        let rows = [
            (
                "the current version",
                r#"{"version":3,"record":{"first":"Ada","last":"Lovelace","born":1815}}"#,
                1815,
            ),
            ("one step", r#"{"version":2,"record":{"first":"Ada","last":"Lovelace"}}"#, 1900),
            ("two steps", r#"{"version":1,"record":{"name":"Ada Lovelace"}}"#, 1900),
            (
                "a field that is not known",
                r#"{"version":3,"record":{"first":"Ada","last":"Lovelace","born":1815,"x":1}}"#,
                1815,
            ),
        ];
        for (name, bytes, born) in rows {
            assert_eq!(decode::<Person>(bytes.as_bytes()).expect(name), ada(born), "{name}");
        }
    }

    #[test]
    fn what_is_not_a_record_says_why() {
        let rows = [
            ("", "this is no ledger record (EOF"),
            ("{}", "this is no ledger record (missing field `version`"),
            ("[]", "this is no ledger record"),
            (r#"{"version":"3","record":{}}"#, "this is no ledger record (invalid type: string"),
            (r#"{"version":-1,"record":{}}"#, "this is no ledger record (invalid value: integer `-1`"),
            (r#"{"version":3}"#, "says version 3 but is not one (invalid type: null"),
            (
                r#"{"version":3,"record":{"first":"Ada"}}"#,
                "says version 3 but is not one (missing field `last`",
            ),
            (r#"{"version":1,"record":{"name":"Ada"}}"#, "says version 1 but is not one (a name of one word"),
            (r#"{"version":0,"record":{}}"#, "says version 0 but is not one (no such version"),
            (r#"{"version":4,"record":[]}"#, "has version 4, and this Bowline knows versions up to 3"),
            (r#"{"version":4}"#, "written by a newer Bowline"),
            (r#"{"version":4294967299,"record":{}}"#, "has version 4294967299, and this Bowline knows"),
        ];
        for (bytes, expected) in rows {
            let sentence = decode::<Person>(bytes.as_bytes()).expect_err(bytes).to_string();
            assert!(sentence.contains(expected), "{bytes}: {sentence}");
        }
    }

    #[test]
    fn the_envelope_is_as_documented() {
        let bytes = encode(&ada(1815)).unwrap();
        let text = r#"{"version":3,"record":{"first":"Ada","last":"Lovelace","born":1815}}"#;
        assert_eq!(String::from_utf8(bytes).unwrap(), text);
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(first in ".*", last in ".*", born: u16) {
            let person = Person { first, last, born };
            prop_assert_eq!(decode::<Person>(&encode(&person).unwrap()).unwrap(), person);
        }

        #[test]
        fn random_bytes_do_not_panic(bytes: Vec<u8>) {
            let _ = decode::<Person>(&bytes);
        }

        #[test]
        fn a_record_with_bytes_changed_does_not_panic(at: prop::sample::Index, to: u8, cut: prop::sample::Index) {
            let mut bytes = encode(&ada(1815)).unwrap();
            let index = at.index(bytes.len());
            bytes[index] = to;
            bytes.truncate(cut.index(bytes.len() + 1));
            let _ = decode::<Person>(&bytes);
        }
    }
}
