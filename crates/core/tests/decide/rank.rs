//! Who goes first, and who must stop for whom.

use crate::world::*;
use bowline_core::TicketKind::*;
use bowline_core::*;

#[test]
fn a_free_volume_goes_to_the_higher_priority() {
    World::new()
        .file(backup("b", "n1"))
        .file(csi("c", "n2"))
        .file(ticket(BowlineApi, "p", "n3"))
        .then("n3 granting 1", "allow n3 1", "b Outranked, c Outranked, p Granting")
        .told("c", &Verdict::Outranked { node: node("n3"), by: id("p"), kind: BowlineApi })
        .settles("n3 held 1", "b HeldElsewhere, c HeldElsewhere, p Satisfied");
}

#[test]
fn every_pair_of_kinds_is_chosen_by_priority_then_age() {
    for first in TicketKind::ALL {
        for second in TicketKind::ALL {
            let world = World::new().file(ticket(first, "old", "n1")).file(ticket(second, "new", "n2"));
            let winner = if second.priority() > first.priority() { "n2" } else { "n1" };
            let ledger = world.settle().ledger;
            let holders: Vec<_> = ledger.holds().keys().map(NodeId::as_str).collect();
            assert_eq!(holders, [winner], "{first} filed before {second}");
        }
    }
}

#[test]
fn of_one_priority_the_older_goes_first() {
    World::new().file(csi("a", "n1").created(20)).file(csi("b", "n2").created(10)).then(
        "n2 granting 1",
        "allow n2 1",
        "a Outranked, b Granting",
    );
}

#[test]
fn of_one_age_the_smaller_id_goes_first() {
    World::new().file(csi("b", "n1").created(10)).file(csi("a", "n2").created(10)).then(
        "n2 granting 1",
        "allow n2 1",
        "a Granting, b Outranked",
    );
}

#[test]
fn the_next_in_line_follows_when_the_first_goes() {
    World::new()
        .file(csi("a", "n1"))
        .file(csi("b", "n2"))
        .settles("n1 held 1", "a Satisfied, b HeldElsewhere")
        .withdraw("a")
        .then("n1 releasing 1", "revoke n1 1", "b WaitingForRelease")
        .hear("n1", 1, Outcome::Gone { highest: Epoch::new(1) })
        .then("n2 granting 2", "allow n2 2", "b Granting");
}

#[test]
fn a_ticket_that_moves_before_the_answer_leaves_no_grant_behind() {
    World::new()
        .file(csi("a", "n1"))
        .then("n1 granting 1", "allow n1 1", "a Granting")
        .withdraw("a")
        .file(csi("a", "n2").generation(2))
        .then("n1 releasing 1", "revoke n1 1", "a WaitingForRelease")
        .hear("n1", 1, Outcome::Allowed)
        .then("n1 releasing 1", "revoke n1 1", "a WaitingForRelease")
        .hear("n1", 1, Outcome::Gone { highest: Epoch::new(1) })
        .then("n2 granting 2", "allow n2 2", "a Granting");
}

#[test]
fn priority_alone_evicts_nobody() {
    for running in [CsiAttacher, BowlineApi, ShareManagerController, SalvageController] {
        for better in [BowlineApi, VolumeRestoreController, VolumeExpansionController] {
            World::new()
                .file(ticket(running, "old", "n1"))
                .settle()
                .file(ticket(better, "new", "n2"))
                .settles("n1 held 1", "new HeldElsewhere, old Satisfied")
                .told("new", &Verdict::HeldElsewhere { node: node("n1"), by: id("old"), since: second(0) });
        }
    }
}

/// Every pair of kinds on two nodes: who has the volume after the second was filed.
#[test]
fn who_stops_for_whom_is_exactly_the_list() {
    let workloads = [CsiAttacher, BowlineApi, ShareManagerController];
    for holder in TicketKind::ALL {
        for challenger in TicketKind::ALL {
            for copied in [false, true] {
                let stops = match holder {
                    SnapshotController | BackupController => workloads.contains(&challenger),
                    VolumeCloneController => copied && workloads.contains(&challenger),
                    VolumeRebuildingController => challenger.priority() > 800,
                    CsiAttacher
                    | BowlineApi
                    | ShareManagerController
                    | SalvageController
                    | VolumeRestoreController
                    | VolumeEvictionController
                    | VolumeExpansionController
                    | BimDsController => false,
                };
                let world = World::new()
                    .file(ticket(holder, "old", "n1"))
                    .settle()
                    .file(ticket(challenger, "new", "n2"))
                    .fact("old", 1, |facts| facts.copied = copied);
                let (holds, verdicts) = if stops {
                    ("n2 held 2", "new Satisfied, old HeldElsewhere")
                } else {
                    ("n1 held 1", "new HeldElsewhere, old Satisfied")
                };
                println!("{holder} has it, {challenger} comes, copied: {copied}");
                world.settles(holds, verdicts);
            }
        }
    }
}

#[test]
fn an_interrupted_job_is_told_so_and_gets_it_back_afterwards() {
    World::new()
        .file(snapshot("s", "n1"))
        .settles("n1 held 1", "s Satisfied")
        .file(csi("c", "n2"))
        .then("n1 releasing 1", "revoke n1 1", "c WaitingForRelease, s Interrupted")
        .told("s", &Verdict::Interrupted { node: node("n2"), by: id("c"), kind: CsiAttacher })
        .settles("n2 held 2", "c Satisfied, s HeldElsewhere")
        .withdraw("c")
        .settles("n1 held 3", "s Satisfied");
}

#[test]
fn what_was_copied_before_counts_only_for_that_filing() {
    World::new()
        .file(ticket(VolumeCloneController, "k", "n1").generation(2))
        .settle()
        .file(csi("c", "n2"))
        .fact("k", 1, |facts| facts.copied = true)
        .settles("n1 held 1", "c HeldElsewhere, k Satisfied")
        .fact("k", 2, |facts| facts.copied = true)
        .settles("n2 held 2", "c Satisfied, k HeldElsewhere");
}

#[test]
fn a_workload_interrupts_all_or_nobody() {
    World::new()
        .file(snapshot("s", "n1"))
        .file(ticket(VolumeRestoreController, "r", "n1").frontend(Frontend::Any))
        .settles("n1 held 1", "r Satisfied, s Satisfied")
        .file(csi("c", "n2"))
        .settles("n1 held 1", "c HeldElsewhere, r Satisfied, s Satisfied")
        .withdraw("r")
        .settles("n2 held 2", "c Satisfied, s HeldElsewhere");
}

#[test]
fn a_job_on_the_node_of_the_workload_is_not_interrupted() {
    World::new()
        .file(snapshot("s", "n1"))
        .settle()
        .file(csi("c", "n1"))
        .settles("n1 held 1", "c Satisfied, s Satisfied");
}

#[test]
fn a_workload_that_cannot_come_interrupts_nobody() {
    World::new()
        .file(snapshot("s", "n1"))
        .settle()
        .file(csi("c", "n2"))
        .node("n2", NodeState::NotReady { since: second(5) })
        .settles("n1 held 1", "c NodeNotReady, s Satisfied");
}

#[test]
fn a_snapshot_that_happened_to_fit_cost_a_restore_its_grant_for_ever() {
    let restore = ticket(VolumeRestoreController, "r", "n2").block();
    World::new()
        .file(snapshot("s", "n2").block().access(AccessMode::MultiNodeSingleWriter).read_only())
        .file(csi("c", "n1").block())
        .file(restore.access(AccessMode::MultiNodeReaderOnly))
        .then("n2 granting 1", "allow n2 1", "c Outranked, r Granting, s AttachedWithIncompatibleParameters")
        .settles("n2 held 1", "c HeldElsewhere, r Satisfied, s AttachedWithIncompatibleParameters");
}
