//! The parts of schemas that follow from `core`, which itself knows nothing of schemas.

use bowline_core::{AccessMode, Content, FsType, TicketKind};
use schemars::{Schema, SchemaGenerator, json_schema};
use serde::Serialize;
use serde_json::{Value, json};

/// Printable ASCII without `^`, `/` and spaces: what the ids in `core` allow.
pub(crate) const ID_PATTERN: &str = r"^[!-.0-\]_-~]+$";

/// The words that serde writes for these values.
fn words<T: Serialize>(values: impl IntoIterator<Item = T>) -> Vec<Value> {
    values.into_iter().map(|value| serde_json::to_value(value).unwrap_or(Value::Null)).collect()
}

fn one_of(words: impl Into<Value>) -> Schema {
    json_schema!({ "type": "string", "enum": words.into() })
}

pub(crate) fn ticket_type(_: &mut SchemaGenerator) -> Schema {
    one_of(words(TicketKind::ALL))
}

pub(crate) fn access(_: &mut SchemaGenerator) -> Schema {
    one_of(words(AccessMode::ALL))
}

pub(crate) fn content(_: &mut SchemaGenerator) -> Schema {
    one_of(words([Content::Block, Content::Filesystem]))
}

pub(crate) fn fs(_: &mut SchemaGenerator) -> Schema {
    one_of(words(FsType::ALL))
}

/// Kubernetes keeps integers as 64 bits with a sign; what is larger would come back as something else.
pub(crate) fn count(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "integer", "format": "int64", "minimum": 0 })
}

/// The same where the record says `null` for "none".
pub(crate) fn count_or_null(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "integer", "format": "int64", "minimum": 0, "nullable": true })
}

pub(crate) fn moment(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "format": "date-time" })
}

pub(crate) fn ticket_id(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "minLength": 1, "maxLength": 253, "pattern": ID_PATTERN })
}

pub(crate) fn node_id(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "minLength": 1, "maxLength": 256, "pattern": ID_PATTERN })
}

/// `10Gi`, `10G` or a number of bytes.
pub(crate) fn size(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "x-kubernetes-int-or-string": true,
        "anyOf": [{ "type": "integer" }, { "type": "string" }],
        "pattern": "^[0-9]{1,19}(Ki|Mi|Gi|Ti|Pi|Ei|k|M|G|T|P|E)?$",
        "maxLength": 21
    })
}

/// Conditions, one of each type.
pub(crate) fn conditions(generator: &mut SchemaGenerator) -> Schema {
    let item = generator.subschema_for::<crate::Condition>();
    json_schema!({
        "type": "array",
        "maxItems": 16,
        "items": item,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"]
    })
}

/// The wishes from outside: every ticket under its own id, each with an owner of its own in server-side apply.
pub(crate) fn attachment_tickets(generator: &mut SchemaGenerator) -> Schema {
    let ticket = generator.subschema_for::<crate::AttachmentTicket>();
    json_schema!({
        "type": "object",
        "maxProperties": 256,
        "additionalProperties": ticket,
        "x-kubernetes-map-type": "granular",
        "x-kubernetes-validations": json!([{
            "rule": "self.all(key, self[key].id == key)",
            "message": "a ticket's id must equal its key in attachmentTickets"
        }])
    })
}
