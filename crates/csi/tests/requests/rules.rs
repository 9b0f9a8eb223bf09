//! The rules that an accepted request keeps, stated over the message and apart from the code that parses it.

use protox::prost_reflect::{DynamicMessage, FieldDescriptor, MapKey, ReflectMessage, Value};

/// The first rule that `message` breaks, if any.
pub(crate) fn broken(message: &DynamicMessage) -> Option<String> {
    if message.descriptor().name() == "CapacityRange" {
        let bytes = |name| message.get_field_by_name(name).and_then(|value| value.as_i64()).unwrap_or(0);
        let (required, limit) = (bytes("required_bytes"), bytes("limit_bytes"));
        if limit != 0 && limit < required {
            return Some(format!("{limit} is below {required}"));
        }
    }
    message.fields().find_map(|(field, value)| broken_by(&field, value))
}

fn broken_by(field: &FieldDescriptor, value: &Value) -> Option<String> {
    let breaks = |is_broken: bool| is_broken.then(|| format!("{}: {value}", field.full_name()));
    match value {
        Value::Message(message) => broken(message),
        Value::List(values) if field.name() == "mount_flags" => {
            let bytes: usize = values.iter().filter_map(Value::as_str).map(str::len).sum();
            breaks(bytes > 4096).or_else(|| values.iter().find_map(|value| broken_by(field, value)))
        }
        Value::List(values) => values.iter().find_map(|value| broken_by(field, value)),
        Value::Map(entries) => {
            let bytes: usize = entries
                .iter()
                .map(|(key, value)| match key {
                    MapKey::String(key) => key.len() + value.as_str().map_or(0, str::len),
                    _ => 0,
                })
                .sum();
            breaks(bytes > 4096)
        }
        Value::I32(number) => breaks(*number < 0),
        Value::I64(number) => breaks(*number < 0),
        Value::EnumNumber(number) => breaks(!(1..=7).contains(number)),
        Value::String(text) => breaks(!text_is_good(field.name(), text)),
        _ => None,
    }
}

fn text_is_good(name: &str, text: &str) -> bool {
    let is_printable = || text.chars().all(|c| c.is_ascii_graphic());
    match name {
        "name" => !text.is_empty() && text.len() <= 128 && !text.contains('\0'),
        "mount_flags" => !text.is_empty() && !text.contains(['\0', '\n']),
        "fs_type" => text.len() <= 128 && !text.contains(['/', ' ', ';']) && !text.starts_with(['-', '.']),
        "volume_mount_group" => text.is_empty() || text.bytes().all(|byte| byte.is_ascii_digit()),
        "starting_token" => text.len() <= 128,
        _ if name.ends_with("_path") => {
            let leads_up = text.split('/').any(|name| name == "..");
            text.is_empty() || (text.starts_with('/') && !leads_up && !text.contains(['\0', '\n']))
        }
        _ => {
            let max = if name == "node_id" { 256 } else { 128 };
            text.len() <= max && is_printable() && !text.contains(['^', '/']) && !matches!(text, "." | "..")
        }
    }
}
