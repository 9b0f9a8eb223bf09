//! What nodes do, and what is known of them.

use crate::world::*;
use bowline_core::*;

const fn not_ready(since: Timestamp) -> NodeState {
    NodeState::NotReady { since }
}

#[test]
fn a_node_that_does_not_report_keeps_what_it_has() {
    World::new()
        .file(csi("a", "n1"))
        .settle()
        .node("n1", not_ready(second(9)))
        .file(csi("b", "n2"))
        .settles("n1 held 1", "a Satisfied, b HeldElsewhere");
}

#[test]
fn a_node_that_does_not_report_is_given_nothing_new() {
    World::new()
        .node("n1", not_ready(second(9)))
        .file(csi("a", "n1"))
        .then("", "", "a NodeNotReady")
        .told("a", &Verdict::NodeNotReady { node: node("n1"), since: second(9) })
        .node("n1", NodeState::Ready)
        .then("n1 granting 1", "allow n1 1", "a Granting");
}

#[test]
fn a_node_that_does_not_report_does_not_keep_the_next_in_line_waiting() {
    World::new()
        .node("n1", not_ready(second(9)))
        .file(csi("a", "n1"))
        .file(csi("b", "n2"))
        .settles("n2 held 1", "a NodeNotReady, b Satisfied");
}

#[test]
fn a_grant_under_way_survives_that_the_node_stops_reporting() {
    World::new()
        .file(csi("a", "n1"))
        .then("n1 granting 1", "allow n1 1", "a Granting")
        .node("n1", not_ready(second(9)))
        .settles("n1 held 1", "a Satisfied");
}

/// The ticket goes; how the node is shut out depends on what is known of it.
#[test]
fn how_a_node_is_shut_out() {
    for (state, forced, reason) in [
        (NodeState::Ready, false, None),
        (not_ready(second(9)), false, Some(FenceReason::NodeSilent)),
        (NodeState::OutOfService { since: second(9) }, false, Some(FenceReason::NodeOutOfService)),
        (NodeState::Gone { since: second(9) }, false, Some(FenceReason::NodeGone)),
        (NodeState::Ready, true, Some(FenceReason::Forced)),
        (not_ready(second(9)), true, Some(FenceReason::Forced)),
    ] {
        let world = World::new().file(csi("a", "n1")).settle().file(csi("b", "n2")).at(60);
        let world = world.withdraw("a").node("n1", state);
        let world = if forced { world.force("n1") } else { world };
        match reason {
            None => world
                .then("n1 releasing 1", "revoke n1 1", "b WaitingForRelease")
                .told("b", &Verdict::WaitingForRelease { node: node("n1"), since: second(60) }),
            Some(why) => world
                .then("n1 fencing 1", "fence n1 1", "b Fencing")
                .told("b", &Verdict::Fencing { node: node("n1"), since: second(60), why }),
        };
    }
}

#[test]
fn a_node_out_of_service_or_gone_loses_the_volume_although_its_ticket_stays() {
    for (state, reason) in [
        (NodeState::OutOfService { since: second(9) }, "NodeOutOfService"),
        (NodeState::Gone { since: second(9) }, "NodeGone"),
    ] {
        World::new()
            .file(csi("a", "n1"))
            .file(csi("b", "n2"))
            .settle()
            .node("n1", state)
            .then("n1 fencing 1", "fence n1 1", &format!("a {reason}, b Fencing"))
            .settles("n2 held 2", &format!("a {reason}, b Satisfied"))
            .node("n1", NodeState::Ready)
            .settles("n2 held 2", "a HeldElsewhere, b Satisfied");
    }
}

#[test]
fn a_node_of_which_nothing_is_known_is_not_fenced() {
    World::new()
        .file(csi("a", "n1"))
        .settle()
        .node("n2", NodeState::Gone { since: second(9) })
        .then("n1 held 1", "", "a Satisfied")
        .withdraw("a")
        .then("n1 releasing 1", "revoke n1 1", "");
}

#[test]
fn a_release_becomes_a_fence_when_the_node_falls_silent_and_never_turns_back() {
    World::new()
        .file(csi("a", "n1"))
        .settle()
        .withdraw("a")
        .then("n1 releasing 1", "revoke n1 1", "")
        .node("n1", not_ready(second(9)))
        .then("n1 fencing 1", "fence n1 1", "")
        .node("n1", NodeState::Ready)
        .then("n1 fencing 1", "fence n1 1", "");
}

#[test]
fn waiting_is_counted_from_the_beginning_of_the_release() {
    let since = second(10);
    World::new()
        .file(csi("a", "n1"))
        .file(csi("b", "n2"))
        .settle()
        .at(10)
        .withdraw("a")
        .then("n1 releasing 1", "revoke n1 1", "b WaitingForRelease")
        .at(500)
        .then("n1 releasing 1", "revoke n1 1", "b WaitingForRelease")
        .told("b", &Verdict::WaitingForRelease { node: node("n1"), since });
}

#[test]
fn a_full_node_gets_nothing_more_but_keeps_what_it_has() {
    World::new()
        .file(csi("a", "n1"))
        .room("n1", 0, 16)
        .then("", "", "a NodeFull")
        .told("a", &Verdict::NodeFull { node: node("n1"), limit: 16 })
        .room("n1", 1, 16)
        .settles("n1 held 1", "a Satisfied")
        .room("n1", 0, 16)
        .settles("n1 held 1", "a Satisfied")
        .file(backup("b", "n1"))
        .settles("n1 held 1", "a Satisfied, b Satisfied");
}

#[test]
fn a_full_node_does_not_keep_the_next_in_line_waiting() {
    World::new()
        .file(csi("a", "n1"))
        .file(csi("b", "n2"))
        .room("n1", 0, 16)
        .settles("n2 held 1", "a NodeFull, b Satisfied");
}
