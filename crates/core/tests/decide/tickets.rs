//! How tickets come, stay and go.

use crate::world::*;
use bowline_core::*;

fn until(seconds: i64) -> Owner {
    Owner::Expires { at: second(seconds) }
}

fn of(object: &str) -> Owner {
    Owner::ObjectGone { object: object.to_owned() }
}

#[test]
fn a_ticket_that_nobody_renews_is_forgotten_and_somebody_hears_of_it() {
    World::new()
        .file(csi("a", "n1").owner(until(60)))
        .settles("n1 held 1", "a Satisfied")
        .wakes(Some(60))
        .at(59)
        .then("n1 held 1", "", "a Satisfied")
        .at(60)
        .then("n1 releasing 1", "revoke n1 1", "")
        .noticed(&[Notice::Expired { ticket: id("a"), node: node("n1"), at: second(60) }])
        .wakes(None);
}

#[test]
fn a_renewed_ticket_stays_and_keeps_its_age() {
    World::new()
        .file(csi("a", "n1").owner(until(60)).created(1))
        .settle()
        .file(csi("a", "n1").owner(until(120)).created(50))
        .at(60)
        .then("n1 held 1", "", "a Satisfied")
        .wakes(Some(120))
        .file(csi("b", "n2").created(2))
        .withdraw("b")
        .settles("n1 held 1", "a Satisfied");
}

#[test]
fn a_ticket_whose_owner_is_gone_is_forgotten_and_somebody_hears_of_it() {
    let owner = "Snapshot default/s1".to_owned();
    World::new()
        .file(snapshot("s", "n1").owner(of(&owner)))
        .settle()
        .fact("s", 1, |facts| facts.owner_gone = true)
        .then("n1 releasing 1", "revoke n1 1", "")
        .noticed(&[Notice::OwnerGone { ticket: id("s"), node: node("n1"), owner }]);
}

#[test]
fn an_owner_gone_before_does_not_take_the_ticket_of_its_successor() {
    World::new()
        .file(snapshot("s", "n1").owner(of("Snapshot default/s1")).generation(2))
        .fact("s", 1, |facts| facts.owner_gone = true)
        .settles("n1 held 1", "s Satisfied")
        .noticed(&[]);
}

#[test]
fn an_owner_of_which_nothing_is_known_counts_as_there() {
    World::new()
        .file(snapshot("s", "n1").owner(of("Snapshot default/s1")))
        .at(1_000_000)
        .settles("n1 held 1", "s Satisfied");
}

#[test]
fn wakes_at_the_earliest_deadline() {
    World::new()
        .file(csi("a", "n1").block().owner(until(900)))
        .file(csi("b", "n2").block().owner(until(700)))
        .migratable(300)
        .settle()
        .then("n1 held 1, n2 held 2", "", "a Satisfied, b Satisfied")
        .wakes(Some(300))
        .at(300)
        .settles("n1 held 1", "a Satisfied, b MigrationTimedOut")
        .wakes(Some(700))
        .at(700)
        .settles("n1 held 1", "a Satisfied")
        .wakes(Some(900));
}

#[test]
fn a_readded_ticket_does_not_inherit_the_old_grant() {
    World::new()
        .file(csi("a", "n1"))
        .settles("n1 held 1", "a Satisfied")
        .file(csi("a", "n1").generation(2))
        .then("n1 releasing 1", "revoke n1 1", "a WaitingForRelease")
        .settles("n1 held 2", "a Satisfied");
}

#[test]
fn a_ticket_withdrawn_and_filed_again_before_any_decision_inherits_nothing() {
    World::new()
        .file(csi("a", "n1"))
        .settles("n1 held 1", "a Satisfied")
        .withdraw("a")
        .file(csi("a", "n1"))
        .then("n1 releasing 1", "revoke n1 1", "a WaitingForRelease")
        .settles("n1 held 2", "a Satisfied");
}

#[test]
fn a_readded_ticket_shares_what_another_still_needs() {
    World::new()
        .file(csi("a", "n1"))
        .file(backup("b", "n1"))
        .settle()
        .file(csi("a", "n1").generation(2))
        .settles("n1 held 1", "a Satisfied, b Satisfied");
}

#[test]
fn a_readded_ticket_on_another_node_waits_until_the_old_node_is_out() {
    World::new()
        .file(csi("a", "n1"))
        .settle()
        .file(csi("a", "n2").generation(2))
        .then("n1 releasing 1", "revoke n1 1", "a WaitingForRelease")
        .settles("n2 held 2", "a Satisfied");
}

#[test]
fn an_older_or_different_filing_is_refused_and_changes_nothing() {
    let world = World::new().file(csi("a", "n1").generation(3)).settle();
    let before = world.ledger.clone();
    let known = before.tickets()[&id("a")].clone();
    let mut ledger = before.clone();
    for (change, sentence) in [
        (
            Box::new(|t: &mut Ticket| t.generation = 2) as Box<dyn Fn(&mut Ticket)>,
            "ticket a has generation 3; generation 2 is older and was superseded",
        ),
        (Box::new(|t| t.node = node("n2")), "another node"),
        (Box::new(|t| t.kind = TicketKind::BowlineApi), "another type"),
        (Box::new(|t| t.access = AccessMode::MultiNodeReaderOnly), "another access mode"),
        (Box::new(|t| t.content = Content::Block), "another content"),
        (Box::new(|t| t.read_only = true), "another read-only flag"),
        (Box::new(|t| t.frontend = Frontend::Off), "another disableFrontend"),
    ] {
        let mut given = known.clone();
        change(&mut given);
        let error = ledger.submit(given, second(5)).unwrap_err().to_string();
        assert!(error.contains(sentence), "{error}");
        assert_eq!(ledger, before, "{error}");
    }
}

#[test]
fn the_same_ticket_again_changes_nothing() {
    World::new().file(csi("a", "n1").created(1)).settle().file(csi("a", "n1").created(1)).then(
        "n1 held 1",
        "",
        "a Satisfied",
    );
}

#[test]
fn late_unpublish_of_a_leaves_b_alone() {
    let world = World::new().file(csi("a", "n1")).settle().withdraw("a").settle().file(csi("b", "n2"));
    let mut world = world.settle();
    assert_eq!(world.ledger.withdraw(&id("a"), world.now), None);
    world.then("n2 held 2", "", "b Satisfied");
}

#[test]
fn two_tickets_on_one_node_one_removed_keeps_the_volume_there() {
    for removed in ["a", "b"] {
        let world = World::new().file(csi("a", "n1")).file(backup("b", "n1")).settle().withdraw(removed);
        let left = if removed == "a" { "b" } else { "a" };
        world.then("n1 held 1", "", &format!("{left} Satisfied")).withdraw(left).settles("", "");
    }
}

#[test]
fn removed_while_granting_is_revoked() {
    World::new()
        .file(csi("a", "n1"))
        .then("n1 granting 1", "allow n1 1", "a Granting")
        .withdraw("a")
        .then("n1 releasing 1", "revoke n1 1", "")
        .settles("", "");
}

#[test]
fn a_read_only_grant_is_given_back_before_a_writer_gets_one() {
    World::new()
        .file(backup("b", "n1").read_only())
        .settles("n1 held 1", "b Satisfied")
        .file(csi("c", "n1"))
        .then("n1 releasing 1", "revoke n1 1", "b AttachedWithIncompatibleParameters, c WaitingForRelease")
        .told("b", &Verdict::IncompatibleParameters { node: node("n1"), by: id("c"), clash: Clash::ReadOnly })
        .settles("n1 held 2", "b Satisfied, c Satisfied");
}

#[test]
fn a_writer_beside_a_reader_that_may_stay_waits() {
    World::new()
        .file(csi("a", "n1").read_only())
        .settle()
        .file(csi("b", "n1"))
        .settles("n1 held 1", "a Satisfied, b AttachedWithIncompatibleParameters")
        .told("b", &Verdict::IncompatibleParameters { node: node("n1"), by: id("a"), clash: Clash::ReadOnly })
        .withdraw("a")
        .settles("n1 held 2", "b Satisfied");
}

#[test]
fn a_faulted_volume_is_detached_from_everybody() {
    World::new()
        .file(csi("a", "n1"))
        .file(ticket(TicketKind::SalvageController, "s", "n2"))
        .settle()
        .volume(|volume| volume.fault = Some("checksum".to_owned()))
        .then("n1 releasing 1", "revoke n1 1", "a VolumeFaulted, s VolumeFaulted")
        .settles("", "a VolumeFaulted, s VolumeFaulted")
        .volume(|volume| volume.fault = None)
        .settles("n1 held 2", "a Satisfied, s HeldElsewhere");
}

#[test]
fn a_volume_being_deleted_lets_nobody_new_in_and_cuts_nobody_off() {
    World::new()
        .file(csi("a", "n1"))
        .settle()
        .volume(|volume| volume.deleting = true)
        .file(csi("b", "n2"))
        .file(backup("c", "n1"))
        .settles("n1 held 1", "a Satisfied, b Deleting, c Satisfied")
        .withdraw("a")
        .withdraw("c")
        .settles("", "b Deleting");
}

#[test]
fn the_state_people_read_follows_the_holds() {
    let deleting = |volume: &mut VolumeFacts| volume.deleting = true;
    let faulted = |volume: &mut VolumeFacts| volume.fault = Some("checksum".to_owned());
    let fresh = World::new().file(csi("a", "n1"));
    let granting = fresh.clone().then("n1 granting 1", "allow n1 1", "a Granting");
    let held = fresh.clone().settle();
    let releasing = held.clone().withdraw("a").then("n1 releasing 1", "revoke n1 1", "");
    for (world, state, word) in [
        (fresh, State::Detached, "detached"),
        (granting, State::Attaching, "attaching"),
        (held.clone(), State::Attached, "attached"),
        (releasing, State::Detaching, "detaching"),
        (held.clone().volume(deleting), State::Deleting, "deleting"),
        (held.volume(deleting).volume(faulted), State::Faulted, "faulted"),
    ] {
        assert_eq!(world.ledger.state(&world.seen.volume), state);
        assert_eq!(state.as_str(), word);
        assert_eq!(serde_json::to_value(state).unwrap(), word);
    }
}

#[test]
fn only_what_lets_somebody_in_must_be_written_first() {
    let fresh = World::new().file(csi("a", "n1"));
    let granting = fresh.clone().then("n1 granting 1", "allow n1 1", "a Granting");
    let held = granting.clone().settle();
    let releasing = held.clone().withdraw("a").then("n1 releasing 1", "revoke n1 1", "");
    let rows = [
        ("a new grant", &granting, &fresh, true),
        ("a confirmation", &held, &granting, false),
        ("a release", &releasing, &held, false),
        ("a lost release found again", &held, &releasing, true),
    ];
    for (what, next, stored, first) in rows {
        assert_eq!(next.ledger.lets_in_beyond(&stored.ledger), first, "{what}");
    }
}

#[test]
fn a_call_that_joins_the_ticket_of_an_object_does_not_take_it_over() {
    World::new()
        .file(csi("a", "n1").owner(of("VolumeAttachment csi-1")).created(1))
        .file(csi("a", "n1").owner(until(60)).created(1))
        .at(100)
        .settles("n1 held 1", "a Satisfied")
        .fact("a", 1, |facts| facts.owner_gone = true)
        .settles("", "");
}

#[test]
fn an_object_takes_over_the_ticket_of_a_call() {
    World::new()
        .file(csi("a", "n1").owner(until(60)).created(1))
        .file(csi("a", "n1").owner(of("VolumeAttachment csi-1")).created(1))
        .at(100)
        .settles("n1 held 1", "a Satisfied");
}
