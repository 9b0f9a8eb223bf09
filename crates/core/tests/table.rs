//! Every combination of what is wanted, who holds it and what the target says: 81 rows, each compared with an
//! expectation that is written here anew, and shown to people in `docs/attachment-table.md`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use bowline_core::*;
use std::fmt::Write;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/attachment-table.md");
const BLESS: &str = "BLESS=1 cargo test -p bowline-core --test table";
const INTRODUCTION: &str = "\
# Every combination of wish, hold and answer

What the engine does next with a volume meant for one node, for each of the 81 combinations of

- **wanted on**: the node for which a ticket asks (`-`: there is no ticket),
- **hold**: the node that might still reach the bytes, the phase it is in and the epoch of its grant (`-`: access is
  proven gone everywhere),
- **target**: what the target said to the order that the hold stands for. It `answers` with what was asked (\"the
  node is in\", or the proof that it is out), it `refuses`, or it is `silent`. A volume that is held, or held by
  nobody, has no order, so nothing is said.

and, to the right of the arrow,

- **hold next**: the hold as it is written down before anything is done,
- **asked of the target**: `allow` lets the node in, `revoke` shuts it out, `fence` shuts out a node that may be
  alive and writing,
- **told**: the reason its owner sees on the ticket,
- **state**: the word people read.

Three things can be read off: a hold goes only in a row where the target answers; no row ever has two; and on the way
from one node to another there is always a moment at which nobody has the volume.

This page is written by a test. After a change that is meant, write it again with
`BLESS=1 cargo test -p bowline-core --test table`.
";

#[derive(Clone, Copy, Debug, PartialEq)]
enum Stage {
    Granting,
    Held,
    Releasing,
    Fencing,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Says {
    Answers,
    Refuses,
    Silent,
}

type Node = &'static str;

#[derive(Clone, Copy, Debug)]
struct Case {
    wanted: Option<Node>,
    hold: Option<(Node, Stage)>,
    target: Says,
}

/// A row's right side, in words.
#[derive(Clone, Debug, PartialEq)]
struct Follows {
    hold: String,
    asked: String,
    told: &'static str,
    state: &'static str,
}

fn cases() -> Vec<Case> {
    use Stage::*;
    let mut holds = vec![None];
    for node in ["n", "m"] {
        holds.extend([Granting, Held, Releasing, Fencing].map(|stage| Some((node, stage))));
    }
    let mut cases = Vec::new();
    for wanted in [None, Some("n"), Some("m")] {
        for &hold in &holds {
            for target in [Says::Answers, Says::Refuses, Says::Silent] {
                cases.push(Case { wanted, hold, target });
            }
        }
    }
    cases
}

/// The rules once more, in as few words as there are.
fn expected(case: Case) -> Follows {
    use Says::*;
    use Stage::*;
    let row = |hold: String, asked: String, told, state| Follows { hold, asked, told, state };
    let waits = |told| match (case.wanted, case.target) {
        (None, _) => "-",
        (Some(_), Answers) => told,
        (Some(_), Refuses) => "TargetRefused",
        (Some(_), Silent) => "TargetUnreachable",
    };
    match (case.hold, case.target, case.wanted) {
        (None, _, None) | (Some((_, Releasing | Fencing)), Answers, None) => {
            row("-".into(), "-".into(), "-", "detached")
        }
        (None, _, Some(to)) | (Some((_, Releasing | Fencing)), Answers, Some(to)) => {
            row(format!("{to} granting 5"), format!("allow {to} 5"), "Granting", "attaching")
        }
        (Some((at, Held)), _, Some(to)) | (Some((at, Granting)), Answers, Some(to)) if at == to => {
            row(format!("{at} held 4"), "-".into(), "Satisfied", "attached")
        }
        (Some((at, Granting)), Refuses | Silent, Some(to)) if at == to => {
            row(format!("{at} granting 4"), format!("allow {at} 4"), waits("-"), "attaching")
        }
        (Some((at, Held)), _, wanted) => {
            let told = wanted.map_or("-", |_| "WaitingForRelease");
            row(format!("{at} releasing 4"), format!("revoke {at} 4"), told, "detaching")
        }
        (Some((at, Granting | Releasing)), _, _) => row(
            format!("{at} releasing 4"),
            format!("revoke {at} 4"),
            waits("WaitingForRelease"),
            "detaching",
        ),
        (Some((at, Fencing)), Refuses | Silent, _) => {
            row(format!("{at} fencing 4"), format!("fence {at} 4"), waits("-"), "detaching")
        }
    }
}

#[test]
fn every_combination_has_exactly_one_plan() {
    let mut page = String::from(INTRODUCTION);
    let mut section = None;
    let cases = cases();
    assert_eq!(cases.len(), 81);
    for case in cases {
        let (ledger, seen, now) = given(case);
        let plan = decide(&ledger, &seen, now);
        let follows = read(&plan, &seen);
        assert_eq!(follows, expected(case), "{case:?}");
        let open = plan.next.holds().values().filter(|hold| hold.is_open()).count();
        assert!(open <= 1 && plan.next.holds().len() <= 1, "{case:?}: {:?}", plan.next);
        ends_well(case, ledger, seen, now);
        if section != Some(case.wanted) {
            section = Some(case.wanted);
            head(&mut page, case.wanted);
        }
        line(&mut page, case, &follows);
    }
    compare(&page);
}

/// The ledger and what is seen in this case; the hold has epoch 4 in all of them.
fn given(case: Case) -> (Ledger, Observed, Timestamp) {
    let then: Timestamp = "2030-01-01T00:00:00Z".parse().unwrap();
    let now: Timestamp = "2030-01-01T00:01:00Z".parse().unwrap();
    let mut seen = Observed::new(VolumeFacts::new(TargetId::new("rack-1").unwrap()));
    let mut holds = serde_json::Map::new();
    if let Some((node, stage)) = case.hold {
        let mode = serde_json::json!({"write": true, "frontend": true, "share": "nobody"});
        let mut hold = serde_json::json!({"epoch": 4, "since": then, "mode": mode});
        hold["phase"] = word(stage).into();
        if stage == Stage::Fencing {
            hold["why"] = "nodeSilent".into();
        }
        holds.insert(node.to_owned(), hold);
        if let Some(outcome) = said(stage, case.target, then) {
            let answer = Answer { epoch: Epoch::new(4), outcome };
            seen.answers.insert(NodeId::new(node).unwrap(), answer);
        }
    }
    let record = serde_json::json!({"epoch": 4, "holds": holds});
    let mut ledger: Ledger = serde_json::from_value(record).unwrap();
    if let Some(node) = case.wanted {
        ledger.submit(ticket(node, then), then).unwrap();
    }
    (ledger, seen, now)
}

fn said(stage: Stage, target: Says, since: Timestamp) -> Option<Outcome> {
    match (stage, target) {
        (Stage::Held, _) => None,
        (Stage::Granting, Says::Answers) => Some(Outcome::Allowed),
        (Stage::Releasing | Stage::Fencing, Says::Answers) => Some(Outcome::Gone { highest: Epoch::new(4) }),
        (_, Says::Refuses) => Some(Outcome::Refused { error: "not now".to_owned() }),
        (_, Says::Silent) => Some(Outcome::Silent { since, error: "timed out".to_owned() }),
    }
}

fn ticket(node: &str, created_at: Timestamp) -> Ticket {
    Ticket {
        id: TicketId::new("t").unwrap(),
        kind: TicketKind::CsiAttacher,
        node: NodeId::new(node).unwrap(),
        access: AccessMode::SingleNodeWriter,
        content: Content::Filesystem,
        read_only: false,
        frontend: Frontend::On,
        generation: 1,
        created_at,
        owner: Owner::Withdrawn,
        reason: None,
    }
}

/// A plan, in the words of the table.
fn read(plan: &Plan, seen: &Observed) -> Follows {
    let hold = plan.next.holds().iter().map(|(node, hold)| {
        let phase = match hold.phase {
            Phase::Granting => "granting",
            Phase::Held => "held",
            Phase::Releasing => "releasing",
            Phase::Fencing { why: FenceReason::NodeSilent } => "fencing",
            Phase::Fencing { why } => panic!("why {why:?}?"),
        };
        format!("{node} {phase} {}", hold.epoch)
    });
    let asked = plan.effects.iter().map(|effect| match effect {
        Effect::Allow { node, epoch, .. } => format!("allow {node} {epoch}"),
        Effect::Revoke { node, epoch, fence: false } => format!("revoke {node} {epoch}"),
        Effect::Revoke { node, epoch, fence: true } => format!("fence {node} {epoch}"),
    });
    assert_eq!(plan.verdicts.len(), plan.next.tickets().len());
    assert_eq!((&plan.notices[..], plan.wake), (&[][..], None), "nothing in this table is news");
    Follows {
        hold: listed(hold),
        asked: listed(asked),
        told: plan.verdicts.values().next().map_or("-", Verdict::reason),
        state: plan.next.state(&seen.volume).as_str(),
    }
}

fn listed(words: impl Iterator<Item = String>) -> String {
    let words: Vec<_> = words.collect();
    if words.is_empty() { "-".to_owned() } else { words.join(", ") }
}

/// From here on the target does what it is asked: the wanted node ends up alone with the volume, and on the way
/// from one node to the other there was a moment at which nobody had it.
fn ends_well(case: Case, mut ledger: Ledger, mut seen: Observed, now: Timestamp) {
    let mut exports = Exports::default();
    for (node, hold) in ledger.holds() {
        exports.allow(node, hold.epoch, hold.mode).unwrap();
    }
    let mut was_free = exports.open().is_empty();
    if case.target == Says::Answers && matches!(case.hold, Some((_, Stage::Releasing | Stage::Fencing))) {
        exports = Exports::default();
        was_free = true;
    }
    for _ in 0..5 {
        let plan = decide(&ledger, &seen, now);
        seen.answers.clear();
        for effect in &plan.effects {
            let outcome = match effect {
                Effect::Allow { node, epoch, mode } => {
                    exports.allow(node, *epoch, *mode).unwrap();
                    Outcome::Allowed
                }
                Effect::Revoke { node, epoch, .. } => {
                    Outcome::Gone { highest: exports.revoke(node, *epoch).highest }
                }
            };
            assert!(exports.open().len() <= 1, "{case:?}: {exports:?}");
            was_free |= exports.open().is_empty();
            seen.answers.insert(effect.node().clone(), Answer { epoch: effect.epoch(), outcome });
        }
        ledger = plan.next;
    }
    let last = decide(&ledger, &seen, now);
    assert_eq!(last.effects, [], "{case:?}");
    let holders: Vec<_> = last.next.holds().keys().map(NodeId::as_str).collect();
    assert_eq!(holders, case.wanted.as_slice(), "{case:?}");
    let moved = case.hold.is_some_and(|(at, _)| Some(at) != case.wanted);
    assert!(was_free || !moved, "{case:?}: moved without ever being detached");
}

fn head(page: &mut String, wanted: Option<Node>) {
    let title = wanted.map_or("Wanted by nobody".to_owned(), |node| format!("Wanted on {node}"));
    let columns = ["wanted on", "hold", "target", "", "hold next", "asked of the target", "told", "state"];
    write!(page, "\n## {title}\n\n| {} |\n|{}\n", columns.join(" | "), "---|".repeat(8)).unwrap();
}

fn line(page: &mut String, case: Case, follows: &Follows) {
    let hold = case.hold.map_or("-".to_owned(), |(node, stage)| format!("{node} {} 4", word(stage)));
    let target = match case.target {
        Says::Answers => "answers",
        Says::Refuses => "refuses",
        Says::Silent => "silent",
    };
    let Follows { hold: next, asked, told, state } = follows;
    let wanted = case.wanted.unwrap_or("-");
    writeln!(page, "| {wanted} | {hold} | {target} | → | {next} | {asked} | {told} | {state} |").unwrap();
}

fn word(stage: Stage) -> &'static str {
    match stage {
        Stage::Granting => "granting",
        Stage::Held => "held",
        Stage::Releasing => "releasing",
        Stage::Fencing => "fencing",
    }
}

fn compare(page: &str) {
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(PAGE, page).unwrap();
    }
    let written = std::fs::read_to_string(PAGE).unwrap_or_default();
    assert!(
        written == page,
        "docs/attachment-table.md is not what the engine does; write it again with `{BLESS}`"
    );
}
