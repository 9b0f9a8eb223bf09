//! What a status tells people beyond the record. Nothing is ever decided by it.

use bowline_api::{Condition, LedgerSummary, Truth, size_of};
use bowline_core::Ledger;
use serde_json::{Map, Value, json};

use crate::{Kind, record};

/// The fields of a status that are not part of the record.
pub(crate) fn fields(kind: Kind) -> &'static [&'static str] {
    match kind {
        Kind::Ledger => {
            &["state", "currentNodeID", "currentTicket", "reason", "attachmentTicketStatuses", "conditions"]
        }
        Kind::Volume => &["phase", "capacity", "conditions"],
        Kind::Snapshot | Kind::Group => &["phase", "capacity", "conditions"],
        Kind::Node => &[],
    }
}

/// What follows from the record, and what was noted about it.
pub(crate) fn told(kind: Kind, value: &[u8], noted: Option<&Map<String, Value>>) -> Map<String, Value> {
    let mut told = noted.cloned().unwrap_or_default();
    match kind {
        Kind::Ledger => {
            if let Ok(ledger) = record::decode::<Ledger>(value) {
                tell_ledger(&ledger, &mut told);
            }
        }
        Kind::Volume | Kind::Snapshot | Kind::Group => tell_progress(value, &mut told),
        Kind::Node => {}
    }
    told.retain(|_, value| !matches!(value, Value::String(text) if text.is_empty()));
    told
}

fn tell_ledger(ledger: &Ledger, told: &mut Map<String, Value>) {
    let summary = LedgerSummary::of(ledger);
    let noted = told.remove("attachmentTicketStatuses").unwrap_or_default();
    let mut statuses = Map::new();
    let mut reason = summary.reason.to_owned();
    for (id, status) in summary.tickets {
        let noted = noted.get(&id).filter(|noted| noted["generation"].as_u64() == status.generation);
        let mut shown = json!(status);
        if let Some(conditions) = noted.and_then(|noted| noted.get("conditions")) {
            let said = conditions[0]["reason"].as_str().unwrap_or_default();
            if id == summary.ticket
                && conditions[0]["status"] == if status.satisfied { "True" } else { "False" }
            {
                reason = said.to_owned();
            }
            shown["conditions"] = conditions.clone();
        }
        statuses.insert(id, shown);
    }
    // A volume may be faulted or on its way out, which its ledger does not know.
    told.entry("state").or_insert_with(|| summary.state.into());
    told.insert("currentNodeID".into(), summary.nodes.into());
    told.insert("currentTicket".into(), summary.ticket.into());
    told.insert("reason".into(), reason.into());
    if !statuses.is_empty() {
        told.insert("attachmentTicketStatuses".into(), statuses.into());
    }
}

/// Whether something in this state can be used, and what people are told of that.
fn readiness(state: &str) -> Option<(bool, &'static str)> {
    match state {
        "creating" => Some((false, "It is being made.")),
        "taking" => Some((false, "It is being taken.")),
        "growing" => Some((true, "It is being made larger.")),
        "ready" => Some((true, "")),
        "deleting" => Some((false, "It is being deleted.")),
        // A later Bowline has written it.
        _ => None,
    }
}

fn tell_progress(value: &[u8], told: &mut Map<String, Value>) {
    let Ok(envelope) = serde_json::from_slice::<Value>(value) else { return };
    let record = &envelope["record"];
    let state = record["state"]["is"].as_str().unwrap_or_default();
    let mut letters = state.chars();
    let phase: String =
        letters.next().map(|first| first.to_ascii_uppercase()).into_iter().chain(letters).collect();
    if let Some((is_ready, message)) = readiness(state) {
        let mut condition =
            json!({ "type": Condition::READY, "status": Truth::from(is_ready), "reason": phase });
        if !message.is_empty() {
            condition["message"] = message.into();
        }
        // What was noted is about something that can be used otherwise.
        if is_ready {
            told.entry("conditions").or_insert_with(|| json!([condition]));
        } else {
            told.insert("conditions".into(), json!([condition]));
        }
    }
    told.insert("phase".into(), phase.into());
    if let Some(bytes) = record["size"].as_u64().or(record["state"]["size"].as_u64()) {
        told.insert("capacity".into(), size_of(bytes).into());
    }
}
