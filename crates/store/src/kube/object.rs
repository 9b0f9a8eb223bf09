//! The objects: where they are, what of them is the record, and what spec they are made with.

use bowline_api::{GROUP, VERSION, keys, size_of};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Map, Value, json};

use super::people;
use crate::{Entry, Key, Kind, Revision, StoreError};

/// The field of a status that says that there is a record in it, and of which version.
const RECORD_VERSION: &str = "recordVersion";

/// Where the object of a record is.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    pub(crate) collection: &'static str,
    pub(crate) kind: &'static str,
    pub(crate) name: String,
}

impl Place {
    /// The collection and the kind of the objects that have these records; `None` for records that no object has.
    pub(crate) fn collection(kind: Kind) -> Option<(&'static str, &'static str)> {
        match kind {
            Kind::Ledger => Some(("volumeattachments", "VolumeAttachment")),
            Kind::Volume => Some(("volumes", "Volume")),
            Kind::Snapshot => Some(("snapshots", "Snapshot")),
            Kind::Group => Some(("snapshotgroups", "SnapshotGroup")),
            // Nodes are known from the cluster itself.
            Kind::Node => None,
        }
    }

    /// `None` where no object can be: then there is no record either.
    pub(crate) fn of(key: &Key) -> Option<Place> {
        let (collection, kind) = Place::collection(key.kind)?;
        is_object_name(&key.name).then(|| Place { collection, kind, name: key.name.clone() })
    }
}

/// What Kubernetes lets an object be named. Checked before a name becomes part of a path.
fn is_object_name(name: &str) -> bool {
    let part = |part: &str| {
        let inner = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-');
        !part.is_empty() && part.bytes().all(inner) && !part.starts_with('-') && !part.ends_with('-')
    };
    name.len() <= 253 && name.split('.').all(part)
}

/// Why a record cannot be put there.
pub(crate) fn no_place(key: &Key) -> StoreError {
    let reason = match key.kind {
        Kind::Node => "nodes are known from the cluster itself and are not stored".to_owned(),
        Kind::Ledger | Kind::Volume | Kind::Snapshot | Kind::Group => {
            "an object's name has small letters, digits, dashes and dots only, 253 at most".to_owned()
        }
    };
    StoreError::Refused { key: key.clone(), reason }
}

/// What is read of an object.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Object {
    pub(crate) metadata: Metadata,
    #[serde(default)]
    pub(crate) status: Map<String, Value>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Metadata {
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) resource_version: String,
    #[serde(default)]
    pub(crate) finalizers: Vec<String>,
    #[serde(default)]
    pub(crate) deletion_timestamp: Option<String>,
}

impl Object {
    /// Whether somebody deleted it.
    pub(crate) fn is_going(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }

    /// Whether our finalizer keeps it.
    pub(crate) fn is_held(&self) -> bool {
        self.metadata.finalizers.iter().any(|name| name == keys::FINALIZER)
    }

    /// An object that is deleted and has lost our finalizer is one whose record was deleted, kept by somebody else's.
    pub(crate) fn has_record(&self) -> bool {
        self.status.contains_key(RECORD_VERSION) && (self.is_held() || !self.is_going())
    }

    pub(crate) fn other_finalizers(&self) -> Vec<String> {
        self.metadata.finalizers.iter().filter(|name| *name != keys::FINALIZER).cloned().collect()
    }

    pub(crate) fn with_ours(&self) -> Vec<String> {
        let mut all = self.other_finalizers();
        all.push(keys::FINALIZER.to_owned());
        all
    }

    pub(crate) fn revision(&self) -> Result<Revision, StoreError> {
        revision(&self.metadata.resource_version)
    }

    /// The record, if it has one.
    pub(crate) fn entry(&self, key: &Key) -> Result<Option<Entry>, StoreError> {
        if !self.has_record() {
            return Ok(None);
        }
        let record = Envelope {
            record: Record { status: &self.status, kind: key.kind },
            version: self.status.get(RECORD_VERSION),
        };
        let value = serde_json::to_vec(&record)
            .map_err(|error| StoreError::Refused { key: key.clone(), reason: error.to_string() })?;
        Ok(Some(Entry { key: key.clone(), value, revision: self.revision()? }))
    }

    /// The first field of `sent` that did not come back as it was.
    pub(crate) fn lost(&self, sent: &Map<String, Value>) -> Option<String> {
        lost_of(sent, &self.status).map(|path| format!("status{path}"))
    }
}

/// A record as the store hands it out: its fields without what people are told, and its version.
#[derive(Serialize)]
struct Envelope<'a> {
    record: Record<'a>,
    version: Option<&'a Value>,
}

struct Record<'a> {
    status: &'a Map<String, Value>,
    kind: Kind,
}

impl Serialize for Record<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let told = people::fields(self.kind);
        let is_record = |name: &str| name != RECORD_VERSION && !told.contains(&name);
        serializer.collect_map(self.status.iter().filter(|(name, _)| is_record(name)))
    }
}

/// The path to where `found` lacks something of `sent`. A path is made only where one is told.
fn lost_of(sent: &Map<String, Value>, found: &Map<String, Value>) -> Option<String> {
    sent.iter().find_map(|(name, value)| {
        let path = difference(value, found.get(name).unwrap_or(&Value::Null))?;
        Some(format!(".{name}{path}"))
    })
}

/// Where `found` lacks something of `sent`. A null and nothing are the same.
fn difference(sent: &Value, found: &Value) -> Option<String> {
    match (sent, found) {
        (Value::Object(sent), Value::Object(found)) => lost_of(sent, found),
        (Value::Array(sent), Value::Array(found)) if sent.len() == found.len() => {
            let mut pairs = sent.iter().zip(found).enumerate();
            pairs.find_map(|(n, (sent, found))| Some(format!(".{n}{}", difference(sent, found)?)))
        }
        // What is empty may come back as nothing; for a record that is the same.
        (Value::Object(sent), Value::Null) if sent.is_empty() => None,
        (sent, found) => (sent != found).then(String::new),
    }
}

pub(crate) fn revision(text: &str) -> Result<Revision, StoreError> {
    // Kubernetes promises since 1.35 that these are numbers that can be compared; before, they have always been.
    let number = text.parse().map_err(|_| StoreError::Unavailable {
        place: super::request::PLACE.to_owned(),
        reason: format!("it says resourceVersion {text:?}, which is no number"),
    })?;
    Ok(Revision::new(number))
}

fn parts(key: &Key, value: &[u8]) -> Result<(u64, Map<String, Value>), StoreError> {
    let refused = |reason: &str| StoreError::Refused { key: key.clone(), reason: reason.to_owned() };
    let Ok(Value::Object(mut envelope)) = serde_json::from_slice(value) else {
        return Err(refused("it is no record: only JSON objects can be kept in a status"));
    };
    let version = envelope.get("version").and_then(Value::as_u64);
    match (version, envelope.remove("record")) {
        (Some(version), Some(Value::Object(record))) => Ok((version, record)),
        _ => Err(refused("it is no record: it has no version, or no object with its fields")),
    }
}

/// The status that holds this record.
pub(crate) fn status_of(key: &Key, value: &[u8]) -> Result<Map<String, Value>, StoreError> {
    let (version, mut status) = parts(key, value)?;
    status.insert(RECORD_VERSION.to_owned(), version.into());
    if let Some(path) = too_large_in(&status) {
        let reason = format!("status{path} is more than Kubernetes can count");
        return Err(StoreError::Refused { key: key.clone(), reason });
    }
    Ok(status)
}

fn too_large_in(fields: &Map<String, Value>) -> Option<String> {
    fields.iter().find_map(|(name, value)| Some(format!(".{name}{}", too_large(value)?)))
}

/// Kubernetes keeps integers as 64 bits with a sign, and makes larger ones inexact.
fn too_large(value: &Value) -> Option<String> {
    match value {
        Value::Number(number) => (number.is_u64() && !number.is_i64()).then(String::new),
        Value::Object(fields) => too_large_in(fields),
        Value::Array(items) => items.iter().find_map(too_large),
        Value::Null | Value::Bool(_) | Value::String(_) => None,
    }
}

/// The wish that an object is made with when its record comes first.
pub(crate) fn spec_of(key: &Key, value: &[u8]) -> Result<Value, StoreError> {
    let (_, record) = parts(key, value)?;
    let field = |name: &str| record.get(name).cloned().unwrap_or(Value::Null);
    let mut spec = match key.kind {
        Kind::Ledger => {
            let slot = bowline_core::Slot::of_id(&key.name);
            json!({ "volume": slot.map_or_else(|| key.name.clone(), |slot| slot.as_str().to_owned()) })
        }
        Kind::Volume => json!({
            "name": field("name"),
            "size": size_of(field("size").as_u64().unwrap_or_default()),
            "fs": field("fs"),
            "uses": field("uses"),
            "source": field("source"),
            "settings": field("settings"),
            "target": field("target"),
        }),
        Kind::Snapshot => json!({ "name": field("name"), "volume": field("volume") }),
        Kind::Group => json!({ "name": field("name") }),
        Kind::Node => return Err(no_place(key)),
    };
    if let Value::Object(fields) = &mut spec {
        fields.retain(|_, value| !value.is_null());
    }
    Ok(spec)
}

/// What an object is made of.
pub(crate) fn body(place: &Place, spec: &Value) -> Value {
    json!({
        "apiVersion": format!("{GROUP}/{VERSION}"),
        "kind": place.kind,
        "metadata": { "name": place.name, "finalizers": [keys::FINALIZER] },
        "spec": spec,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_that_an_object_can_have_reach_a_path() {
        for name in ["a", "pvc-1-000000ab", "a.b", "0"] {
            assert!(is_object_name(name), "{name}");
        }
        let long = "x".repeat(254);
        for name in ["", "A", "a/b", "..", ".", "a..b", "-a", "a-", "a_b", "a b", "a?b", "a%2fb", "é", &long]
        {
            assert!(!is_object_name(name), "{name}");
        }
    }

    #[test]
    fn what_did_not_come_back_is_named() {
        let sent = json!({ "a": { "b": 1, "none": null, "c": [{ "d": 2 }] }, "empty": {} });
        let rows = [
            (json!({ "a": { "b": 1, "c": [{ "d": 2 }] }, "more": 1 }), None),
            (json!({ "a": { "c": [{ "d": 2 }] } }), Some("status.a.b")),
            (json!({ "a": { "b": 1, "c": [{}] } }), Some("status.a.c.0.d")),
            (json!({ "a": { "b": 1, "c": [] } }), Some("status.a.c")),
            (json!({ "a": { "b": 1.5, "c": [{ "d": 2 }] } }), Some("status.a.b")),
            (json!({}), Some("status.a")),
        ];
        for (found, lost) in rows {
            let found = difference(&sent, &found).map(|path| format!("status{path}"));
            assert_eq!(found.as_deref(), lost);
        }
    }

    #[test]
    fn a_number_that_kubernetes_would_bend_is_refused() {
        let key = Key::new(Kind::Ledger, "a");
        let largest = format!(r#"{{"version":1,"record":{{"epoch":{}}}}}"#, i64::MAX);
        assert!(status_of(&key, largest.as_bytes()).is_ok());
        let error = status_of(&key, br#"{"version":1,"record":{"epoch":9223372036854775808}}"#).unwrap_err();
        assert!(error.to_string().contains("status.epoch is more than"), "{error}");
        for value in ["", "[]", "{}", r#"{"version":1,"record":[]}"#, r#"{"record":{}}"#] {
            assert!(matches!(status_of(&key, value.as_bytes()), Err(StoreError::Refused { .. })), "{value}");
        }
    }
}
