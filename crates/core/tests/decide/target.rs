//! What the target says, and what it proves.

use crate::world::*;
use bowline_core::*;

fn silent() -> Outcome {
    Outcome::Silent { since: second(7), error: "timed out".to_owned() }
}

fn refused() -> Outcome {
    Outcome::Refused { error: "no space for another subsystem".to_owned() }
}

fn in_use() -> Outcome {
    Outcome::InUse { by: "/dev/loop3".to_owned() }
}

fn gone(highest: u64) -> Outcome {
    Outcome::Gone { highest: Epoch::new(highest) }
}

#[test]
fn nothing_but_proof_ends_a_hold() {
    for (outcome, waiting) in [
        (silent(), "TargetUnreachable"),
        (refused(), "TargetRefused"),
        (in_use(), "StillInUse"),
        (Outcome::Allowed, "WaitingForRelease"),
    ] {
        World::new()
            .file(csi("a", "n1"))
            .file(csi("b", "n2"))
            .settle()
            .withdraw("a")
            .then("n1 releasing 1", "revoke n1 1", "b WaitingForRelease")
            .hear("n1", 1, outcome.clone())
            .then("n1 releasing 1", "revoke n1 1", &format!("b {waiting}"))
            .node("n1", NodeState::Gone { since: second(9) })
            .then("n1 fencing 1", "fence n1 1", "b Fencing")
            .hear("n1", 1, outcome)
            .then(
                "n1 fencing 1",
                "fence n1 1",
                &format!("b {}", waiting.replace("WaitingForRelease", "Fencing")),
            )
            .hear("n1", 1, gone(1))
            .then("n2 granting 2", "allow n2 2", "b Granting");
    }
}

#[test]
fn an_unconfirmed_grant_is_asked_again_and_says_what_the_target_said() {
    let target = TargetId::new("rack-1").unwrap();
    World::new()
        .file(csi("a", "n1"))
        .then("n1 granting 1", "allow n1 1", "a Granting")
        .hear("n1", 1, silent())
        .then("n1 granting 1", "allow n1 1", "a TargetUnreachable")
        .hear("n1", 1, refused())
        .then("n1 granting 1", "allow n1 1", "a TargetRefused")
        .told(
            "a",
            &Verdict::TargetRefused {
                target,
                node: node("n1"),
                error: "no space for another subsystem".to_owned(),
            },
        )
        .hear("n1", 1, Outcome::Allowed)
        .then("n1 held 1", "", "a Satisfied");
}

#[test]
fn an_unconfirmed_grant_that_nobody_wants_any_more_is_still_revoked() {
    World::new()
        .file(csi("a", "n1"))
        .then("n1 granting 1", "allow n1 1", "a Granting")
        .hear("n1", 1, silent())
        .withdraw("a")
        .then("n1 releasing 1", "revoke n1 1", "");
}

#[test]
fn a_late_answer_of_another_epoch_changes_nothing() {
    World::new()
        .file(csi("a", "n1"))
        .settle()
        .withdraw("a")
        .settle()
        .file(csi("a", "n1"))
        .then("n1 granting 2", "allow n1 2", "a Granting")
        .hear("n1", 1, Outcome::Allowed)
        .then("n1 granting 2", "allow n1 2", "a Granting")
        .hear("n1", 1, gone(1))
        .then("n1 granting 2", "allow n1 2", "a Granting")
        .hear("n1", 3, gone(3))
        .then("n1 granting 2", "allow n1 2", "a Granting")
        .hear("n1", 1, silent())
        .then("n1 granting 2", "allow n1 2", "a Granting")
        .hear("n1", 2, Outcome::Allowed)
        .then("n1 held 2", "", "a Satisfied")
        .hear("n1", 1, gone(1))
        .then("n1 held 2", "", "a Satisfied");
}

#[test]
fn an_answer_about_a_node_without_a_hold_changes_nothing() {
    World::new()
        .file(csi("b", "n2"))
        .settle()
        .hear("n1", 1, gone(9))
        .then("n2 held 1", "", "b Satisfied")
        .epoch(1)
        .hear("n3", 1, Outcome::Allowed)
        .then("n2 held 1", "", "b Satisfied");
}

#[test]
fn a_target_that_has_seen_a_newer_epoch_raises_the_ledgers() {
    World::new()
        .file(csi("a", "n1"))
        .then("n1 granting 1", "allow n1 1", "a Granting")
        .hear("n1", 1, gone(41))
        .then("n1 granting 42", "allow n1 42", "a Granting")
        .hear("n1", 42, gone(3))
        .then("n1 granting 43", "allow n1 43", "a Granting")
        .epoch(43);
}

#[test]
fn the_proof_that_an_open_hold_is_gone_is_believed_and_granted_anew() {
    World::new().file(csi("a", "n1")).settle().hear("n1", 1, gone(1)).then(
        "n1 granting 2",
        "allow n1 2",
        "a Granting",
    );
}

#[test]
fn nobody_is_let_in_before_the_target_was_compared() {
    let not_compared = Contact::NotCompared { since: second(0), error: "no route".to_owned() };
    let target = TargetId::new("rack-1").unwrap();
    World::new()
        .contact(not_compared)
        .file(csi("a", "n1"))
        .then("", "", "a TargetNotCompared")
        .told("a", &Verdict::TargetNotCompared { target, since: second(0), error: "no route".to_owned() })
        .epoch(0)
        .contact(Contact::Compared)
        .then("n1 granting 1", "allow n1 1", "a Granting");
}

#[test]
fn what_was_granted_before_is_asked_again_and_taken_away_while_not_compared() {
    let not_compared = || Contact::NotCompared { since: second(0), error: "no route".to_owned() };
    World::new()
        .file(csi("a", "n1"))
        .then("n1 granting 1", "allow n1 1", "a Granting")
        .contact(not_compared())
        .settles("n1 held 1", "a Satisfied")
        .withdraw("a")
        .file(csi("b", "n2"))
        .then("n1 releasing 1", "revoke n1 1", "b TargetNotCompared")
        .settles("", "b TargetNotCompared");
}

#[test]
fn whom_nobody_recorded_is_fenced_before_anybody_is_granted() {
    World::new()
        .file(csi("a", "n1"))
        .list(&[(5, "n2")])
        .at(30)
        .then("n2 fencing 5", "fence n2 5", "a Fencing")
        .noticed(&[Notice::UnrecordedExport { node: node("n2"), epoch: Epoch::new(5) }])
        .told("a", &Verdict::Fencing { node: node("n2"), since: second(30), why: FenceReason::Unrecorded })
        .hear("n2", 5, gone(5))
        .then("n1 granting 6", "allow n1 6", "a Granting");
}

#[test]
fn a_newer_unrecorded_export_of_a_holder_covers_its_hold() {
    World::new()
        .file(csi("a", "n1"))
        .settle()
        .list(&[(1, "n1"), (4, "n1")])
        .then("n1 fencing 4", "fence n1 4", "a Fencing")
        .noticed(&[Notice::UnrecordedExport { node: node("n1"), epoch: Epoch::new(4) }])
        .hear("n1", 4, gone(4))
        .then("n1 granting 5", "allow n1 5", "a Granting");
}

#[test]
fn a_missing_export_is_asked_for_again() {
    World::new()
        .file(csi("a", "n1"))
        .settle()
        .list(&[])
        .then("n1 granting 1", "allow n1 1", "a Granting")
        .noticed(&[Notice::ExportMissing { node: node("n1"), epoch: Epoch::new(1) }])
        .hear("n1", 1, gone(1))
        .then("n1 granting 2", "allow n1 2", "a Granting");
}

#[test]
fn an_export_that_is_listed_as_recorded_is_left_alone() {
    World::new()
        .file(csi("a", "n1"))
        .settle()
        .list(&[(1, "n1")])
        .then("n1 held 1", "", "a Satisfied")
        .noticed(&[]);
}

#[test]
fn that_a_closing_hold_is_not_listed_proves_nothing() {
    World::new()
        .file(csi("a", "n1"))
        .file(csi("b", "n2"))
        .settle()
        .withdraw("a")
        .then("n1 releasing 1", "revoke n1 1", "b WaitingForRelease")
        .list(&[])
        .then("n1 releasing 1", "revoke n1 1", "b WaitingForRelease")
        .noticed(&[])
        .node("n1", NodeState::Gone { since: second(9) })
        .list(&[])
        .then("n1 fencing 1", "fence n1 1", "b Fencing")
        .noticed(&[]);
}

#[test]
fn that_a_grant_under_way_is_not_listed_is_no_news() {
    World::new()
        .file(csi("a", "n1"))
        .then("n1 granting 1", "allow n1 1", "a Granting")
        .list(&[])
        .then("n1 granting 1", "allow n1 1", "a Granting")
        .noticed(&[]);
}

#[test]
fn a_lost_ledger_is_rebuilt_from_whom_the_target_lets_in() {
    World::new()
        .file(csi("a", "n1"))
        .file(csi("b", "n2"))
        .list(&[(7, "n1")])
        .then("n1 held 7", "", "a Satisfied, b HeldElsewhere")
        .noticed(&[Notice::UnrecordedExport { node: node("n1"), epoch: Epoch::new(7) }])
        .epoch(7);
}

#[test]
fn of_two_unrecorded_exports_only_one_is_believed() {
    World::new().file(csi("a", "n1")).file(csi("b", "n2")).list(&[(7, "n1"), (9, "n2")]).then(
        "n1 held 7, n2 fencing 9",
        "fence n2 9",
        "a Satisfied, b HeldElsewhere",
    );
}

#[test]
fn an_unrecorded_export_that_gives_too_little_is_fenced() {
    let reading = Mode { write: false, frontend: true, share: Share::Nobody };
    let world = World::new().file(csi("a", "n1"));
    let mut world = world.list(&[]);
    let export = Export { node: node("n1"), mode: reading };
    world.seen.exports = Some([(Epoch::new(3), export)].into());
    world.then("n1 fencing 3", "fence n1 3", "a Fencing");
}
