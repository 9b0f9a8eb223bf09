//! What a descriptor says, one fact per line, in an order that does not depend on the order in the file.

use protox::prost_reflect::{
    Cardinality, DescriptorPool, DynamicMessage, EnumDescriptor, FieldDescriptor, Kind, MessageDescriptor,
    ServiceDescriptor,
};

/// Every fact of one file of the pool.
pub(crate) fn facts(pool: &DescriptorPool, file: &str) -> Vec<String> {
    let mut facts = vec![];
    for one in pool.files().filter(|one| one.name() == file) {
        facts.push(format!(
            "file package {} {:?}{}",
            one.package_name(),
            one.syntax(),
            options(&one.options())
        ));
    }
    for extension in pool.all_extensions().filter(|one| one.parent_file().name() == file) {
        facts.push(format!(
            "extend {} {} = {} {} {:?} json {}{}",
            extension.containing_message().full_name(),
            extension.full_name(),
            extension.number(),
            type_name(&extension.kind()),
            extension.cardinality(),
            extension.json_name(),
            options(&extension.options()),
        ));
    }
    for service in pool.services().filter(|one| one.parent_file().name() == file) {
        service_facts(&mut facts, &service);
    }
    for message in pool.all_messages().filter(|one| one.parent_file().name() == file) {
        message_facts(&mut facts, &message);
    }
    for one in pool.all_enums().filter(|one| one.parent_file().name() == file) {
        enum_facts(&mut facts, &one);
    }
    facts.sort();
    facts
}

fn service_facts(facts: &mut Vec<String>, service: &ServiceDescriptor) {
    facts.push(format!("service {}{}", service.full_name(), options(&service.options())));
    for method in service.methods() {
        let streams = |streams| if streams { "stream " } else { "" };
        facts.push(format!(
            "rpc {} ({}{}) -> ({}{}){}",
            method.full_name(),
            streams(method.is_client_streaming()),
            method.input().full_name(),
            streams(method.is_server_streaming()),
            method.output().full_name(),
            options(&method.options()),
        ));
    }
}

fn message_facts(facts: &mut Vec<String>, message: &MessageDescriptor) {
    let name = message.full_name();
    facts.push(format!("message {name}{}", options(&message.options())));
    facts.extend(message.fields().map(|field| field_fact(&field)));
    for oneof in message.oneofs() {
        facts.push(format!("oneof {}{}", oneof.full_name(), options(&oneof.options())));
    }
    facts.extend(message.reserved_ranges().map(|range| format!("reserved {name} {range:?}")));
    facts.extend(message.reserved_names().map(|reserved| format!("reserved {name} {reserved}")));
    facts.extend(message.extension_ranges().map(|range| format!("extensions {name} {range:?}")));
}

fn field_fact(field: &FieldDescriptor) -> String {
    let label = match field.cardinality() {
        Cardinality::Optional => "",
        Cardinality::Required => "required ",
        Cardinality::Repeated if field.is_packed() => "repeated packed ",
        Cardinality::Repeated => "repeated ",
    };
    let oneof = field.containing_oneof().map(|oneof| format!(" oneof {}", oneof.name()));
    format!(
        "field {} = {} {label}{}{}{} json {}{}",
        field.full_name(),
        field.number(),
        type_name(&field.kind()),
        oneof.unwrap_or_default(),
        if field.supports_presence() { " presence" } else { "" },
        field.json_name(),
        options(&field.options()),
    )
}

fn enum_facts(facts: &mut Vec<String>, one: &EnumDescriptor) {
    let name = one.full_name();
    facts.push(format!("enum {name}{}", options(&one.options())));
    for value in one.values() {
        facts.push(format!("value {} = {}{}", value.full_name(), value.number(), options(&value.options())));
    }
    facts.extend(one.reserved_ranges().map(|range| format!("reserved {name} {range:?}")));
    facts.extend(one.reserved_names().map(|reserved| format!("reserved {name} {reserved}")));
}

fn type_name(kind: &Kind) -> String {
    match kind {
        Kind::Message(message) => message.full_name().to_owned(),
        Kind::Enum(one) => one.full_name().to_owned(),
        scalar => format!("{scalar:?}"),
    }
}

fn options(options: &DynamicMessage) -> String {
    let standard = options.fields().map(|(field, value)| format!(" {}={value}", field.name()));
    let own = options.extensions().map(|(extension, value)| format!(" ({})={value}", extension.full_name()));
    standard.chain(own).collect()
}
