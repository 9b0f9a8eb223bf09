//! Messages made up by reflection: any field of the contract gets good and bad values without being named here.

use protox::prost_reflect::{
    DynamicMessage, FieldDescriptor, Kind as Type, MapKey, MessageDescriptor, Value,
};
use std::collections::HashMap;

/// Decides; when its numbers run out it takes the first choice, so that a failing case shrinks to a plain one.
pub(crate) struct Choices<'a>(std::slice::Iter<'a, u16>);

impl<'a> Choices<'a> {
    pub(crate) fn of(numbers: &'a [u16]) -> Self {
        Self(numbers.iter())
    }

    pub(crate) fn none() -> Self {
        Self([].iter())
    }

    fn below(&mut self, count: usize) -> usize {
        self.0.next().map_or(0, |number| usize::from(*number) % count)
    }

    /// One of the good values, or now and then a bad one if those are wanted too.
    fn value<T: Clone>(&mut self, kind: Kind, good: &[T], bad: &[T]) -> T {
        let goes_bad = kind == Kind::Any && !bad.is_empty() && self.below(8) == 7;
        let from = if goes_bad { bad } else { good };
        from[self.below(from.len())].clone()
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Every field is there and as it should be.
    Good,
    /// Fields may be missing or wrong. Secrets say SECRET; other wrong texts say MISPLACED.
    Any,
}

pub(crate) fn message(of: &MessageDescriptor, choices: &mut Choices<'_>, kind: Kind) -> DynamicMessage {
    let mut message = DynamicMessage::new(of.clone());
    for field in of.fields() {
        let is_chosen = match field.containing_oneof() {
            None => kind == Kind::Good || choices.below(12) != 11,
            // The last one that is set wins; beginning with any of them reaches all.
            Some(oneof) => {
                let is_first = oneof.fields().next().is_some_and(|first| first == field);
                (is_first && (kind == Kind::Good || choices.below(12) != 11)) || choices.below(2) == 1
            }
        };
        if is_chosen {
            message.set_field(&field, value(&field, choices, kind));
        }
    }
    message
}

fn value(field: &FieldDescriptor, choices: &mut Choices<'_>, kind: Kind) -> Value {
    if field.is_map() {
        return map(field.name(), choices, kind);
    }
    if field.is_list() {
        let count = choices.below(2) + 1;
        let entries = (0..count).map(|index| match field.kind() {
            Type::String if kind == Kind::Good && field.name().ends_with("_ids") => {
                Value::String(format!("id-{index}"))
            }
            _ => single(field, choices, kind),
        });
        return Value::List(entries.collect());
    }
    single(field, choices, kind)
}

fn single(field: &FieldDescriptor, choices: &mut Choices<'_>, kind: Kind) -> Value {
    match field.kind() {
        Type::Message(of) => Value::Message(message(&of, choices, kind)),
        Type::Enum(_) => {
            Value::EnumNumber(choices.value(kind, &[1, 2, 3, 4, 5, 6, 7], &[0, 8, -1, i32::MAX]))
        }
        Type::Bool => Value::Bool(choices.below(2) == 1),
        Type::Int32 => Value::I32(choices.value(kind, &[0, 7, i32::MAX], &[-1, i32::MIN])),
        Type::Int64 => {
            let good: &[i64] = match field.name() {
                "limit_bytes" => &[1 << 40, 0, i64::MAX],
                _ => &[1, 4096, 1 << 40],
            };
            Value::I64(choices.value(kind, good, &[0, 1, -1, i64::MIN, i64::MAX]))
        }
        Type::String => Value::String(text(field.name(), choices, kind)),
        other => panic!("{} is {other:?}, which nobody made up yet", field.full_name()),
    }
}

fn text(name: &str, choices: &mut Choices<'_>, kind: Kind) -> String {
    let long = |start: &str, bytes: usize| format!("{start}{}", "x".repeat(bytes));
    let good: &[&str] = match name {
        "mount_flags" => &["SECRET=1", "ro,SECRET"],
        "volume_mount_group" => &["1000", "", "0"],
        "fs_type" => &["ext4", "", "xfs"],
        "starting_token" => &["", "token", "\u{1}"],
        _ if name.ends_with("_path") => &["/var/lib/x", "/a//b/./c/", "/a b/;$(c)"],
        _ => &["pvc-1", "worker.2", "..."],
    };
    let bad = match name {
        "mount_flags" => vec![String::new(), "SECRET\0".to_owned(), long("SECRET", 5000)],
        _ if name.ends_with("_path") => vec![
            String::new(),
            "MISPLACED".to_owned(),
            "/MISPLACED/../x".to_owned(),
            "/MISPLACED\0".to_owned(),
            "/MISPLACED\nx".to_owned(),
            long("/MISPLACED", 300),
            "/MISPLACED".repeat(1000),
            "/".to_owned(),
        ],
        _ => vec![
            String::new(),
            "MISPLACED^x".to_owned(),
            "../MISPLACED".to_owned(),
            "..".to_owned(),
            "MISPLACED\0".to_owned(),
            "MISPLACED\n".to_owned(),
            "-MISPLACED; ä".to_owned(),
            long("MISPLACED", 120),
            long("MISPLACED", 300),
        ],
    };
    let good: Vec<String> = good.iter().map(ToString::to_string).collect();
    choices.value(kind, &good, &bad)
}

fn map(name: &str, choices: &mut Choices<'_>, kind: Kind) -> Value {
    let pair = |key: &str, value: String| vec![(key.to_owned(), value)];
    let (good, bad) = match name {
        "secrets" => (
            vec![pair("SECRET-key", "SECRET-value".to_owned()), vec![]],
            vec![pair("SECRET", "SECRET".repeat(1000))],
        ),
        "segments" => (
            vec![pair("topology.bowline.storage/host", "worker-1".to_owned())],
            vec![
                vec![],
                pair("MISPLACED zone", "z".to_owned()),
                pair("zone", "MISPLACED\n".to_owned()),
                pair("zone", "MISPLACED".repeat(10)),
                pair("other/zone", "z1".to_owned()),
            ],
        ),
        _ => {
            (vec![pair("key", "value".to_owned())], vec![vec![], pair("MISPLACED", "MISPLACED".repeat(1000))])
        }
    };
    let entries = choices.value(kind, &good, &bad).into_iter();
    let entries: HashMap<MapKey, Value> =
        entries.map(|(key, value)| (MapKey::String(key), Value::String(value))).collect();
    Value::Map(entries)
}
