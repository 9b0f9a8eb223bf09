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
    let mut reason = json!(summary.reason);
    for (id, status) in summary.tickets {
        let noted = noted.get(&id).filter(|noted| noted["generation"].as_u64() == status.generation);
        let mut shown = json!(status);
        if let Some(conditions) = noted.and_then(|noted| noted.get("conditions")) {
            if let Some(noted) = conditions.get(0).filter(|_| id == summary.ticket) {
                let attached = attached(status.satisfied, summary.reason, noted);
                reason = attached["reason"].clone();
                told.insert("conditions".into(), json!([attached]));
            }
            shown["conditions"] = conditions.clone();
        }
        statuses.insert(id, shown);
    }
    // A volume may be faulted or on its way out, which its ledger does not know.
    told.entry("state").or_insert_with(|| summary.state.into());
    told.insert("currentNodeID".into(), summary.nodes.into());
    told.insert("currentTicket".into(), summary.ticket.into());
    told.insert("reason".into(), reason);
    if !statuses.is_empty() {
        told.insert("attachmentTicketStatuses".into(), statuses.into());
    }
}

/// Whether the current ticket has the volume, in the words that were noted of it. A note is made beside the ledger and may be of a moment before or
/// after it: where they disagree the ledger is right, and its own word has to do.
fn attached(is_satisfied: bool, word: &str, noted: &Value) -> Value {
    let mut condition =
        json!({ "type": Condition::ATTACHED, "status": Truth::from(is_satisfied), "reason": word });
    if noted["status"] == condition["status"] {
        for field in ["reason", "message", "lastTransitionTime"] {
            if let Some(said) = noted.get(field) {
                condition[field] = said.clone();
            }
        }
    }
    condition
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

#[cfg(test)]
mod tests {
    use super::*;
    use bowline_core::Ticket;

    /// Wants the volume on the node that is called as it is.
    fn ticket(id: &str) -> Value {
        json!({
            "id": id, "type": "csi-attacher", "nodeID": id, "access": "single-node-writer", "content": "filesystem",
            "readOnly": false, "disableFrontend": "false", "generation": 2, "createdAt": "2026-01-01T12:00:00Z",
            "owner": { "until": "withdrawn" }, "reason": ""
        })
    }

    /// A ledger with these tickets, in which the first one's node is in this phase.
    fn ledger(tickets: &[&str], phase: &str) -> Vec<u8> {
        let all: Map<_, _> = tickets.iter().map(|id| ((*id).to_owned(), ticket(id))).collect();
        let mode = serde_json::from_value::<Ticket>(ticket("a")).unwrap().mode();
        let mut hold = json!({ "epoch": 1, "mode": mode, "since": "2026-01-01T12:00:01Z", "phase": phase });
        if phase == "fencing" {
            hold["why"] = json!("nodeOutOfService");
        }
        let holds = if phase.is_empty() { json!({}) } else { json!({ "a": hold }) };
        json!({ "version": 1, "record": { "epoch": 1, "tickets": all, "holds": holds } })
            .to_string()
            .into_bytes()
    }

    /// What was noted of a ticket: of which filing, whether it is satisfied, and why not.
    fn noted((id, generation, status, reason): (&str, u64, &str, &str)) -> (String, Value) {
        let condition = json!({ "type": "Satisfied", "status": status, "reason": reason, "message": "So it is.",
            "lastTransitionTime": "2026-01-01T12:00:09Z" });
        (id.to_owned(), json!({ "generation": generation, "conditions": [condition] }))
    }

    #[test]
    fn the_condition_of_a_ledger_is_what_was_noted_of_its_current_ticket_and_never_against_the_ledger() {
        let (has, full) = (("a", 2, "True", "Satisfied"), ("a", 2, "False", "NodeFull"));
        let (earlier, other) = (("a", 1, "False", "NodeFull"), ("b", 2, "False", "HeldElsewhere"));
        for (tickets, phase, notes, state, expected) in [
            (&[][..], "", &[has][..], "detached", None),
            (&["a"], "held", &[], "attached", None),
            (&["a"], "", &[earlier], "detached", None),
            (&["a"], "", &[full], "detached", Some("False/NodeFull/So it is.")),
            (&["a"], "held", &[has], "attached", Some("True/Satisfied/So it is.")),
            (&["b", "a"], "held", &[other, has], "attached", Some("True/Satisfied/So it is.")),
            (&["b", "a"], "held", &[other], "attached", None),
            // The note is of a moment before or after the ledger.
            (&["a"], "", &[has], "detached", Some("False/Waiting/")),
            (&["a"], "granting", &[has], "attaching", Some("False/Waiting/")),
            (&["a"], "releasing", &[has], "detaching", Some("False/Waiting/")),
            (&["a"], "fencing", &[has], "detaching", Some("False/Waiting/")),
            (&["a"], "held", &[full], "attached", Some("True/Satisfied/")),
        ] {
            let row = format!("{tickets:?} {phase} {notes:?}");
            let notes: Map<_, _> = notes.iter().copied().map(noted).collect();
            let fields = Map::from_iter([("attachmentTicketStatuses".to_owned(), notes.into())]);
            let mut told = told(Kind::Ledger, &ledger(tickets, phase), Some(&fields));
            assert_eq!(told["state"], state, "{row}");
            let conditions = told.remove("conditions").unwrap_or_else(|| json!([]));
            let conditions: Vec<Condition> = serde_json::from_value(conditions).unwrap();
            let shown = conditions.iter().map(|one| {
                assert_eq!((one.kind.as_str(), &told["reason"]), ("Attached", &json!(one.reason)), "{row}");
                // The time is that of the words.
                assert_eq!(one.last_transition_time.is_some(), !one.message.is_empty(), "{row}");
                format!("{:?}/{}/{}", one.status, one.reason, one.message)
            });
            assert_eq!(shown.collect::<Vec<_>>(), Vec::from_iter(expected), "{row}");
        }
    }
}
