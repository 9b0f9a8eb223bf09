//! What people read. The reason and the JSON of a verdict are API, its sentence is what support answers with: a
//! change of any of them shows here.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use bowline_core::*;
use std::fmt::Write;

mod verdicts;

use verdicts::{node, since, verdicts};

/// The ticket that is told: `csi-mine` on `worker-1`.
fn mine() -> Ticket {
    Ticket {
        id: TicketId::new("csi-mine").unwrap(),
        kind: TicketKind::CsiAttacher,
        node: node("worker-1"),
        access: AccessMode::SingleNodeWriter,
        content: Content::Filesystem,
        read_only: false,
        frontend: Frontend::On,
        generation: 1,
        created_at: since(),
        owner: Owner::Withdrawn,
        reason: None,
    }
}

#[test]
fn every_verdict_is_said_like_this() {
    let mut page = String::new();
    for verdict in verdicts() {
        let settled = if verdict.is_settled() { "settled" } else { "under way" };
        let json = serde_json::to_string(&verdict).unwrap();
        let (reason, sentence) = (verdict.reason(), verdict.sentence(&mine()));
        write!(page, "{reason} ({settled})\n  {sentence}\n  {json}\n\n").unwrap();
    }
    insta::assert_snapshot!(page);
}

#[test]
fn every_verdict_has_a_name_of_its_own_and_survives_json() {
    let mut names = std::collections::BTreeSet::new();
    for verdict in verdicts() {
        assert!(names.insert(verdict.reason()), "{} names two", verdict.reason());
        let json = serde_json::to_value(&verdict).unwrap();
        assert_eq!(json["reason"], verdict.reason(), "one name, whoever asks");
        assert_eq!(serde_json::from_value::<Verdict>(json).unwrap(), verdict);
    }
    assert_eq!(names.len(), 22);
}

#[test]
fn every_sentence_names_the_ticket_its_node_and_whoever_is_in_the_way() {
    for verdict in verdicts() {
        let sentence = verdict.sentence(&mine());
        for word in ["csi-mine", "worker-1"] {
            assert!(sentence.contains(word), "{word} is not in: {sentence}");
        }
        let json = serde_json::to_value(&verdict).unwrap();
        for field in ["node", "by", "from", "to", "error", "fault", "endpoint", "target", "limit", "epoch"] {
            let Some(value) = json.get(field) else { continue };
            let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            assert!(sentence.contains(&value), "{field} {value} is not in: {sentence}");
        }
        assert!(sentence.ends_with('.') && !sentence.contains(".678"), "{sentence}");
    }
}

#[test]
fn every_unsatisfied_ticket_is_told_what_would_change_that() {
    let changes = ["when ", "as soon as", "End that", "asked again", "ithdraw", "Nothing else is in the way"];
    for verdict in verdicts().into_iter().filter(|verdict| !verdict.is_satisfied()) {
        let sentence = verdict.sentence(&mine());
        assert!(changes.iter().any(|words| sentence.contains(words)), "{sentence}");
    }
}

#[test]
fn every_clash_and_every_fence_is_said_like_this() {
    let clash = |clash| {
        let by = TicketId::new("csi-other").unwrap();
        Verdict::IncompatibleParameters { node: node("worker-1"), by, clash }.sentence(&mine())
    };
    let fence = |why| Verdict::Fencing { node: node("worker-2"), since: since(), why }.sentence(&mine());
    let clashes = [Clash::OtherNode, Clash::SoleWriter, Clash::Frontend, Clash::ReadOnly, Clash::Sharing];
    let fences = [
        FenceReason::NodeSilent,
        FenceReason::NodeOutOfService,
        FenceReason::NodeGone,
        FenceReason::Forced,
        FenceReason::Unrecorded,
    ];
    let all: Vec<String> = clashes.map(clash).into_iter().chain(fences.map(fence)).collect();
    insta::assert_snapshot!(all.join("\n"));
}
