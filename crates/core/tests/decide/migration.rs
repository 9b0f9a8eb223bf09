//! Live migration: the one case in which two nodes have a volume that is meant for one.

use crate::world::*;
use bowline_core::*;

fn vm(name: &str, on: &str) -> Filed {
    csi(name, on).block()
}

/// The volume is on `n1` for `a`; `b` on `n2` has just been filed.
fn about_to_move() -> World {
    World::new().migratable(300).file(vm("a", "n1")).settle().file(vm("b", "n2"))
}

fn moving() -> World {
    about_to_move().settles("n1 held 1, n2 held 2", "a Satisfied, b Satisfied")
}

#[test]
fn both_nodes_have_it_while_it_moves() {
    let world = about_to_move()
        .at(10)
        .then("n1 held 1, n2 granting 2", "allow n2 2", "a Satisfied, b Granting")
        .wakes(Some(310))
        .settles("n1 held 1, n2 held 2", "a Satisfied, b Satisfied");
    let expected =
        Migration { from: id("a"), from_generation: 1, to: id("b"), to_generation: 1, since: second(10) };
    assert_eq!(world.ledger.migration(), Some(&expected));
    let beside = |node| world.ledger.beside(&NodeId::new(node).unwrap()).map(Epoch::number);
    assert_eq!((beside("n1"), beside("n2"), beside("n3")), (Some(2), Some(1), None), "each names the other");
}

#[test]
fn confirmed_when_the_old_ticket_goes() {
    let world = moving()
        .withdraw("a")
        .then("n1 releasing 1, n2 held 2", "revoke n1 1", "b Satisfied")
        .settles("n2 held 2", "b Satisfied");
    assert_eq!(world.ledger.migration(), None);
    world.at(10_000).settles("n2 held 2", "b Satisfied");
}

#[test]
fn rolled_back_when_the_new_ticket_goes() {
    let world = moving()
        .withdraw("b")
        .then("n1 held 1, n2 releasing 2", "revoke n2 2", "a Satisfied")
        .settles("n1 held 1", "a Satisfied");
    assert_eq!(world.ledger.migration(), None);
}

#[test]
fn rolled_back_while_the_new_node_is_being_let_in() {
    about_to_move()
        .then("n1 held 1, n2 granting 2", "allow n2 2", "a Satisfied, b Granting")
        .withdraw("b")
        .settles("n1 held 1", "a Satisfied");
}

/// Found by the model: the grant of the new node was not stored yet, and would then have been stored without the
/// migration that excuses it, while the old node could still write. Nor may it be sent back: that it is held may have
/// been told and lost in a crash, and it would be cut off in the middle of its work.
#[test]
fn a_migration_stays_on_record_until_the_old_node_is_out() {
    let world = about_to_move()
        .then("n1 held 1, n2 granting 2", "allow n2 2", "a Satisfied, b Granting")
        .withdraw("a")
        .then("n1 releasing 1, n2 granting 2", "revoke n1 1, allow n2 2", "b Granting");
    assert!(world.ledger.migration().is_some());
    let world = world.settles("n2 held 2", "b Satisfied");
    assert_eq!(world.ledger.migration(), None);
}

#[test]
fn it_can_move_on_and_back() {
    moving()
        .withdraw("a")
        .settle()
        .file(vm("a", "n1").generation(2))
        .settles("n1 held 3, n2 held 2", "a Satisfied, b Satisfied")
        .withdraw("b")
        .settles("n1 held 3", "a Satisfied");
}

#[test]
fn too_slow_and_the_new_node_is_shut_out_again() {
    let timed_out = Verdict::MigrationTimedOut { from: node("n1"), by: id("a"), since: second(0) };
    moving()
        .at(299)
        .then("n1 held 1, n2 held 2", "", "a Satisfied, b Satisfied")
        .at(300)
        .then("n1 held 1, n2 releasing 2", "revoke n2 2", "a Satisfied, b MigrationTimedOut")
        .noticed(&[Notice::MigrationTimedOut { ticket: id("b"), node: node("n2") }])
        .told("b", &timed_out)
        .wakes(None)
        .settles("n1 held 1", "a Satisfied, b MigrationTimedOut")
        .at(9000)
        .settles("n1 held 1", "a Satisfied, b MigrationTimedOut")
        .noticed(&[])
        .withdraw("a")
        .settles("n2 held 3", "b Satisfied");
}

#[test]
fn too_slow_and_filed_anew_may_try_again() {
    moving()
        .at(300)
        .settle()
        .withdraw("b")
        .settle()
        .file(vm("b", "n2").generation(2))
        .settles("n1 held 1, n2 held 3", "a Satisfied, b Satisfied")
        .wakes(Some(600));
}

#[test]
fn too_slow_and_withdrawn_leaves_room_for_another_try_elsewhere() {
    moving()
        .at(300)
        .settle()
        .file(vm("c", "n3"))
        .settles("n1 held 1", "a Satisfied, b MigrationTimedOut, c HeldElsewhere")
        .withdraw("b")
        .settles("n1 held 1, n3 held 3", "a Satisfied, c Satisfied");
}

#[test]
fn the_time_out_is_the_volumes_own() {
    let world = World::new().migratable(30).file(vm("a", "n1")).settle().file(vm("b", "n2")).settle();
    world.at(30).settles("n1 held 1", "a Satisfied, b MigrationTimedOut");
}

#[test]
fn never_a_third_node() {
    moving()
        .file(vm("c", "n3"))
        .settles("n1 held 1, n2 held 2", "a Satisfied, b Satisfied, c Migrating")
        .told("c", &Verdict::Migrating { from: node("n1"), to: node("n2"), since: second(0) })
        .withdraw("a")
        .then("n1 releasing 1, n2 held 2", "revoke n1 1", "b Satisfied, c HeldElsewhere")
        .settles("n2 held 2, n3 held 3", "b Satisfied, c Satisfied");
}

#[test]
fn two_newcomers_at_once_are_not_both_let_in() {
    World::new()
        .migratable(300)
        .file(vm("a", "n1"))
        .settle()
        .file(vm("b", "n2"))
        .file(vm("c", "n3"))
        .then("n1 held 1, n2 granting 2", "allow n2 2", "a Satisfied, b Granting, c Outranked")
        .settles("n1 held 1, n2 held 2", "a Satisfied, b Satisfied, c Migrating");
}

#[test]
fn nothing_moves_before_the_old_node_has_it() {
    World::new()
        .migratable(300)
        .file(vm("a", "n1"))
        .file(vm("b", "n2"))
        .then("n1 granting 1", "allow n1 1", "a Granting, b Outranked")
        .settles("n1 held 1, n2 held 2", "a Satisfied, b Satisfied");
}

/// What may not move: the second waits, as for any volume.
#[test]
fn what_does_not_move_live() {
    use AccessMode::*;
    use TicketKind::*;
    let filesystem = |name, on| csi(name, on);
    let sole = |name, on| vm(name, on).access(SingleNodeSingleWriter);
    let api = |name, on| ticket(BowlineApi, name, on).block();
    let share = |name, on| ticket(ShareManagerController, name, on).block();
    let rows: [(&str, Filed, Filed); 6] = [
        ("filesystems", filesystem("a", "n1"), filesystem("b", "n2")),
        ("a filesystem to block", filesystem("a", "n1"), vm("b", "n2")),
        ("sole writers", sole("a", "n1"), sole("b", "n2")),
        ("from a sole writer", sole("a", "n1"), vm("b", "n2")),
        ("to a person", vm("a", "n1"), api("b", "n2")),
        ("from a share", share("a", "n1"), vm("b", "n2")),
    ];
    for (what, first, second) in rows {
        println!("{what}");
        World::new()
            .migratable(300)
            .file(first)
            .settle()
            .file(second)
            .settles("n1 held 1", "a Satisfied, b HeldElsewhere");
    }
    World::new()
        .file(vm("a", "n1"))
        .settle()
        .file(vm("b", "n2"))
        .settles("n1 held 1", "a Satisfied, b HeldElsewhere");
}

#[test]
fn a_job_on_the_old_node_waits_until_it_has_moved() {
    moving()
        .file(snapshot("s", "n1").block())
        .settles("n1 held 1, n2 held 2", "a Satisfied, b Satisfied, s Migrating")
        .withdraw("a")
        .then("n1 releasing 1, n2 held 2", "revoke n1 1", "b Satisfied, s HeldElsewhere")
        .settles("n2 held 2", "b Satisfied, s HeldElsewhere")
        .withdraw("b")
        .settles("n1 held 3", "s Satisfied");
}

#[test]
fn a_job_that_may_be_interrupted_does_not_stop_a_move_and_one_that_may_not_does() {
    World::new()
        .migratable(300)
        .file(vm("a", "n1"))
        .file(snapshot("s", "n1").block())
        .settle()
        .file(vm("b", "n2"))
        .settles("n1 held 1, n2 held 2", "a Satisfied, b Satisfied, s Migrating")
        .withdraw("b")
        .settles("n1 held 1", "a Satisfied, s Satisfied")
        .withdraw("s")
        .file(ticket(TicketKind::VolumeRestoreController, "r", "n1").block())
        .file(vm("b", "n2"))
        .settles("n1 held 1", "a Satisfied, b HeldElsewhere, r Satisfied");
}

#[test]
fn a_second_ticket_of_the_old_node_does_not_make_a_move_flap() {
    World::new()
        .migratable(300)
        .file(vm("a1", "n1"))
        .file(vm("a2", "n1"))
        .settles("n1 held 1", "a1 Satisfied, a2 Satisfied")
        .file(vm("b", "n2"))
        .settles("n1 held 1", "a1 Satisfied, a2 Satisfied, b HeldElsewhere")
        .withdraw("a1")
        .settles("n1 held 1, n2 held 2", "a2 Satisfied, b Satisfied");
}

#[test]
fn the_old_node_crashes_while_it_moves_and_the_new_one_keeps_it() {
    moving()
        .node("n1", NodeState::OutOfService { since: second(20) })
        .then("n1 fencing 1, n2 held 2", "fence n1 1", "a NodeOutOfService, b Satisfied")
        .settles("n2 held 2", "a NodeOutOfService, b Satisfied")
        .at(400)
        .settles("n2 held 2", "a NodeOutOfService, b Satisfied");
}

#[test]
fn the_old_node_crashes_after_the_time_out_and_the_new_one_gets_it() {
    moving()
        .at(300)
        .settles("n1 held 1", "a Satisfied, b MigrationTimedOut")
        .node("n1", NodeState::OutOfService { since: second(320) })
        .settles("n2 held 3", "a NodeOutOfService, b Satisfied");
}

#[test]
fn the_new_node_crashes_while_it_moves_and_the_old_one_keeps_it() {
    moving()
        .node("n2", NodeState::Gone { since: second(20) })
        .then("n1 held 1, n2 fencing 2", "fence n2 2", "a Satisfied, b NodeGone")
        .settles("n1 held 1", "a Satisfied, b NodeGone")
        .withdraw("b")
        .settles("n1 held 1", "a Satisfied");
}

#[test]
fn a_faulted_volume_does_not_move_on() {
    moving()
        .volume(|volume| volume.fault = Some("checksum".to_owned()))
        .settles("", "a VolumeFaulted, b VolumeFaulted");
}

#[test]
fn a_volume_no_longer_migratable_stays_with_the_old_node() {
    moving().volume(|volume| volume.migratable = None).then(
        "n1 held 1, n2 releasing 2",
        "revoke n2 2",
        "a Satisfied, b HeldElsewhere",
    );
}

#[test]
fn a_full_or_silent_new_node_is_not_moved_to() {
    about_to_move().room("n2", 0, 8).settles("n1 held 1", "a Satisfied, b NodeFull");
    about_to_move()
        .node("n2", NodeState::NotReady { since: second(3) })
        .settles("n1 held 1", "a Satisfied, b NodeNotReady");
}

#[test]
fn a_readded_old_ticket_comes_back_as_a_move_of_its_own() {
    moving()
        .file(vm("a", "n1").generation(2))
        .then("n1 releasing 1, n2 held 2", "revoke n1 1", "a HeldElsewhere, b Satisfied")
        .settles("n1 held 3, n2 held 2", "a Satisfied, b Satisfied");
}
