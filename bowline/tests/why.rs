//! `bowline why`, for every verdict there is: what is shown, and the page that says what to do about it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use bowline::output::Style;
use bowline::why::show;
use bowline_core::*;
use bowline_engine::View;
use bowline_web::{explained, meaning};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

#[path = "../../crates/core/tests/verdicts/mod.rs"]
mod verdicts;

use verdicts::{node, other, since, verdicts};

fn time(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn ticket(id: TicketId, kind: TicketKind, on: &str, reason: Option<&str>) -> Ticket {
    Ticket {
        id,
        kind,
        node: node(on),
        access: AccessMode::SingleNodeWriter,
        content: Content::Filesystem,
        read_only: false,
        frontend: Frontend::On,
        generation: 1,
        created_at: since(),
        owner: Owner::Withdrawn,
        reason: reason.map(str::to_owned),
    }
}

/// How the volume stands while a ticket is told this: who holds it, and whether somebody else asks too.
fn story(verdict: &Verdict) -> (State, Option<(&'static str, Phase)>, bool) {
    use Verdict::*;
    let why = FenceReason::NodeOutOfService;
    match verdict {
        Satisfied { .. } => (State::Attached, Some(("worker-1", Phase::Held)), false),
        Granting { .. } => (State::Attaching, Some(("worker-1", Phase::Granting)), false),
        WaitingForRelease { .. } | StillInUse { .. } => {
            (State::Detaching, Some(("worker-2", Phase::Releasing)), false)
        }
        Fencing { .. } | TargetUnreachable { .. } => {
            (State::Detaching, Some(("worker-2", Phase::Fencing { why })), false)
        }
        TargetRefused { .. } => (State::Detaching, Some(("worker-2", Phase::Releasing)), false),
        Outranked { .. } => (State::Attaching, Some(("worker-2", Phase::Granting)), true),
        HeldElsewhere { .. }
        | Interrupted { .. }
        | IncompatibleParameters { .. }
        | Migrating { .. }
        | MigrationTimedOut { .. } => (State::Attached, Some(("worker-2", Phase::Held)), true),
        VolumeFaulted { .. } => (State::Faulted, None, false),
        Deleting => (State::Deleting, None, false),
        Shared { .. }
        | TargetNotCompared { .. }
        | NodeNotReady { .. }
        | NodeOutOfService { .. }
        | NodeGone { .. }
        | NodeFull { .. }
        | WaitingForShare => (State::Detached, None, false),
    }
}

fn view(verdict: &Verdict) -> View {
    let (state, hold, contested) = story(verdict);
    let mine = TicketId::new("bowline-api-worker-1").unwrap();
    let mut tickets =
        vec![ticket(mine.clone(), TicketKind::BowlineApi, "worker-1", Some("look at the logs"))];
    let mut told = BTreeMap::from([(mine, verdict.clone())]);
    if contested {
        tickets.push(ticket(other(), TicketKind::CsiAttacher, "worker-2", None));
        let verdict = match verdict {
            Verdict::Outranked { .. } => Verdict::Granting {
                target: TargetId::new("file").unwrap(),
                node: node("worker-2"),
                since: since(),
            },
            _ => Verdict::Satisfied { node: node("worker-2"), epoch: Epoch::new(7), since: since() },
        };
        told.insert(other(), verdict);
    }
    let tickets: BTreeMap<TicketId, Ticket> = tickets.into_iter().map(|one| (one.id.clone(), one)).collect();
    let mode = Mode { write: true, frontend: true, share: Share::Nobody };
    let holds: BTreeMap<NodeId, Hold> = hold
        .into_iter()
        .map(|(on, phase)| (node(on), Hold { epoch: Epoch::new(7), mode, since: since(), phase }))
        .collect();
    let ledger = serde_json::json!({ "epoch": 7, "tickets": tickets, "holds": holds });
    let said = match verdict {
        Verdict::StillInUse { by, .. } => Some(Outcome::InUse { by: by.clone() }),
        Verdict::TargetUnreachable { error, since, .. } => {
            Some(Outcome::Silent { since: *since, error: error.clone() })
        }
        Verdict::TargetRefused { error, .. } => Some(Outcome::Refused { error: error.clone() }),
        _ => None,
    };
    View {
        volume: VolumeId::new("0123456789abcdef01234567-00000001").unwrap(),
        state,
        ledger: serde_json::from_value(ledger).unwrap(),
        verdicts: told,
        answers: said.into_iter().map(|said| (node("worker-2"), said)).collect(),
        wake: None,
        lost: false,
    }
}

fn shown(verdict: &Verdict) -> String {
    show(&explained("db-0", &view(verdict)), time("2030-01-02T06:10:00Z"), Style::Plain)
}

#[test]
fn every_verdict_is_shown_like_this() {
    for verdict in verdicts() {
        insta::assert_snapshot!(verdict.reason(), shown(&verdict));
    }
}

#[test]
fn a_volume_that_nobody_wants_is_shown_like_this() {
    let mut view = view(&Verdict::Deleting);
    (view.state, view.ledger, view.verdicts) = (State::Detached, Ledger::default(), BTreeMap::new());
    let shown = show(&explained("db-0", &view), since(), Style::Plain);
    assert_eq!(shown, "db-0 is not attached: no node can reach it.\nNobody asks for it.\n");
}

#[test]
fn who_waits_is_told_what_would_change_that_and_every_command_can_be_typed() {
    use clap::Parser;
    for verdict in verdicts() {
        let why = explained("db-0", &view(&verdict));
        let mine = why.tickets.iter().find(|ticket| ticket.id.as_str() == "bowline-api-worker-1").unwrap();
        assert_eq!(mine.remedy.is_none(), verdict.is_satisfied(), "{}", verdict.reason());
        let Some(remedy) = &mine.remedy else { continue };
        assert!(remedy.commands.is_empty() != remedy.sentence.ends_with(':'), "{}", remedy.sentence);
        for command in &remedy.commands {
            let typed = command.replace("NUMBER", "16");
            let parsed = bowline::args::Cli::try_parse_from(typed.split(' '));
            assert!(parsed.is_ok(), "{command}: {}", parsed.unwrap_err());
        }
        let text = shown(&verdict);
        assert!(text.lines().count() <= 10, "{text}");
    }
}

#[test]
fn colours_change_nothing_but_the_colour() {
    for verdict in verdicts() {
        let why = explained("db-0", &view(&verdict));
        let now = time("2030-01-02T06:10:00Z");
        let mut coloured = show(&why, now, Style::Coloured);
        assert!(coloured.contains('\x1b'));
        for code in ["32", "33", "31", "1", "0"] {
            coloured = coloured.replace(&format!("\x1b[{code}m"), "");
        }
        assert_eq!(coloured, show(&why, now, Style::Plain));
    }
}

const BEGIN: &str = "<!-- written by a test: BLESS=1 cargo test -p bowline --test why -->\n";

#[test]
fn the_page_of_reasons_has_every_verdict_as_it_is_shown() {
    let mut page = String::new();
    for verdict in verdicts() {
        let (means, do_this) = meaning(&verdict);
        let settled = if verdict.is_satisfied() {
            "It has what it asked for."
        } else if verdict.is_settled() {
            "It stays so until somebody does something."
        } else {
            "The engine is at work on it."
        };
        write!(page, "\n## {}\n\n{means} {settled}\n\n**What to do.** {do_this}\n\n", verdict.reason())
            .unwrap();
        write!(page, "```\n$ bowline why db-0\n{}```\n", shown(&verdict)).unwrap();
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/why.md");
    let text = std::fs::read_to_string(&path).unwrap();
    let (head, written) = text.split_once(BEGIN).expect("the page has a place for what is written here");
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, format!("{head}{BEGIN}{page}")).unwrap();
    } else {
        assert!(written == page, "docs/why.md is out of date: BLESS=1 cargo test -p bowline --test why");
    }
}
