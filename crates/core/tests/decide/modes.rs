//! Who may have the volume beside whom: access modes, read-only flags, frontends, shares.

use crate::world::*;
use AccessMode::*;
use bowline_core::*;

/// Both tickets, the elder on `n1`, the younger on `n2`; `Y` where both are satisfied. Rows: the elder's access mode,
/// columns the younger's, in the order of `AccessMode::ALL` (SNW SNRO SNSW SNMW MNRO MNSW MNMW).
fn on_two_nodes(content: Content) -> [String; 7] {
    AccessMode::ALL.map(|elder| {
        let beside = |younger| {
            let world = World::new()
                .file(csi("elder", "n1").access(elder).content(content))
                .settle()
                .file(csi("younger", "n2").access(younger).content(content))
                .volume(|volume| volume.share = Some("nfs://10.0.0.1/v".to_owned()));
            let got = satisfied(world);
            assert!(got["elder"], "{elder:?} lost the volume to {younger:?}");
            if got["younger"] { 'Y' } else { '.' }
        };
        AccessMode::ALL.map(beside).into_iter().collect()
    })
}

#[test]
fn access_modes_beside_each_other_as_block() {
    let expected = [
        ".......", // single-node-writer
        ".......", // single-node-reader-only
        ".......", // single-node-single-writer
        ".......", // single-node-multi-writer
        "....Y..", // multi-node-reader-only: beside readers alone
        ".......", // multi-node-single-writer: the elder writes, and so would the younger
        "......Y", // multi-node-multi-writer
    ];
    assert_eq!(on_two_nodes(Content::Block), expected);
}

#[test]
fn access_modes_beside_each_other_as_filesystem() {
    let expected = [
        "......Y", // a filesystem for many writers is reached through its share, whoever has the volume
        "......Y", //
        "......Y", //
        "......Y", //
        "....Y.Y", //
        "......Y", //
        "YYYYYYY", //
    ];
    assert_eq!(on_two_nodes(Content::Filesystem), expected);
}

/// The same, with the younger only reading.
#[test]
fn a_read_only_flag_lets_in_whom_the_access_mode_allows() {
    let rows = [
        (SingleNodeWriter, SingleNodeWriter, false),
        (SingleNodeReaderOnly, SingleNodeReaderOnly, false),
        (MultiNodeReaderOnly, MultiNodeReaderOnly, true),
        (MultiNodeReaderOnly, MultiNodeSingleWriter, true),
        (MultiNodeReaderOnly, MultiNodeMultiWriter, true),
        (MultiNodeSingleWriter, MultiNodeSingleWriter, true),
        (MultiNodeSingleWriter, MultiNodeMultiWriter, true),
        (MultiNodeSingleWriter, MultiNodeReaderOnly, false),
        (MultiNodeMultiWriter, MultiNodeSingleWriter, true),
        (MultiNodeMultiWriter, MultiNodeMultiWriter, true),
        (MultiNodeMultiWriter, MultiNodeReaderOnly, false),
    ];
    for (elder, younger, together) in rows {
        let world = World::new()
            .file(csi("elder", "n1").block().access(elder))
            .settle()
            .file(csi("younger", "n2").block().access(younger).read_only());
        let got = satisfied(world);
        assert_eq!(got["younger"], together, "{younger:?} reading beside {elder:?}");
        assert!(got["elder"]);
    }
}

#[test]
fn one_writer_and_any_number_of_readers() {
    let mnsw = |name, on| csi(name, on).access(MultiNodeSingleWriter);
    World::new()
        .file(mnsw("r1", "n1").read_only())
        .file(mnsw("w", "n2"))
        .file(mnsw("r3", "n3").read_only())
        .settles("n1 held 1, n2 held 2, n3 held 3", "r1 Satisfied, r3 Satisfied, w Satisfied")
        .file(mnsw("w4", "n4"))
        .settles(
            "n1 held 1, n2 held 2, n3 held 3",
            "r1 Satisfied, r3 Satisfied, w Satisfied, w4 HeldElsewhere",
        )
        .told("w4", &Verdict::HeldElsewhere { node: node("n2"), by: id("w"), since: second(0) })
        .withdraw("w")
        .settles("n1 held 1, n3 held 3, n4 held 4", "r1 Satisfied, r3 Satisfied, w4 Satisfied");
}

#[test]
fn a_second_reader_waits_for_nothing_a_writer_for_all_readers() {
    World::new()
        .file(csi("r1", "n1").access(MultiNodeReaderOnly))
        .file(csi("r2", "n2").access(MultiNodeReaderOnly))
        .then("n1 granting 1, n2 granting 2", "allow n1 1, allow n2 2", "r1 Granting, r2 Granting")
        .settle()
        .file(csi("w", "n3"))
        .withdraw("r1")
        .settles("n2 held 2", "r2 Satisfied, w HeldElsewhere")
        .withdraw("r2")
        .then("n2 releasing 2", "revoke n2 2", "w WaitingForRelease")
        .settles("n3 held 3", "w Satisfied");
}

#[test]
fn one_workload_that_writes_alone() {
    let rwop = |name, on| csi(name, on).access(SingleNodeSingleWriter);
    World::new()
        .file(rwop("a", "n1"))
        .settle()
        .file(rwop("b", "n1"))
        .file(csi("c", "n1"))
        .file(rwop("d", "n2"))
        .settles(
            "n1 held 1",
            "a Satisfied, b AttachedWithIncompatibleParameters, c AttachedWithIncompatibleParameters, d HeldElsewhere",
        )
        .told(
            "b",
            &Verdict::IncompatibleParameters { node: node("n1"), by: id("a"), clash: Clash::SoleWriter },
        )
        .file(backup("e", "n1"))
        .withdraw("b")
        .withdraw("c")
        .settles("n1 held 1", "a Satisfied, d HeldElsewhere, e Satisfied");
}

#[test]
fn a_sole_writer_waits_for_a_workload_that_is_there_already() {
    World::new()
        .file(csi("a", "n1"))
        .settle()
        .file(csi("b", "n1").access(SingleNodeSingleWriter))
        .settles("n1 held 1", "a Satisfied, b AttachedWithIncompatibleParameters");
}

/// The elder's `disableFrontend`, the younger's, and whether both have the volume on one node.
#[test]
fn frontends_on_one_node() {
    use Frontend::*;
    for (elder, younger, together) in [
        (On, On, true),
        (Off, Off, true),
        (Any, Any, true),
        (On, Any, true),
        (Off, Any, true),
        (Any, On, true),
        // `any` alone is granted with a frontend: the one without must wait or have it granted anew.
        (Any, Off, false),
        (On, Off, false),
        (Off, On, false),
    ] {
        let restore = TicketKind::VolumeRestoreController;
        let world = World::new()
            .file(ticket(restore, "elder", "n1").frontend(elder))
            .settle()
            .file(ticket(TicketKind::BimDsController, "younger", "n1").frontend(younger));
        let reason = if together { "Satisfied" } else { "AttachedWithIncompatibleParameters" };
        println!("{elder:?} then {younger:?}");
        let world = world.settles("n1 held 1", &format!("elder Satisfied, younger {reason}"));
        if !together {
            let clash = Clash::Frontend;
            world.told(
                "younger",
                &Verdict::IncompatibleParameters { node: node("n1"), by: id("elder"), clash },
            );
        }
    }
}

#[test]
fn frontends_filed_together_are_granted_together() {
    use Frontend::*;
    for (first, second, together) in
        [(Any, Off, true), (Off, Any, true), (Any, On, true), (On, Off, false), (Off, On, false)]
    {
        let world =
            World::new().file(backup("a", "n1").frontend(first)).file(backup("b", "n1").frontend(second));
        let got = satisfied(world);
        assert_eq!((got["a"], got["b"]), (true, together), "{first:?} with {second:?}");
    }
}

#[test]
fn frontends_on_different_nodes_do_not_matter() {
    use Frontend::*;
    for (first, second) in [(On, Off), (Off, On), (Any, Off), (On, On)] {
        World::new()
            .file(csi("a", "n1").access(MultiNodeReaderOnly).frontend(first))
            .file(csi("b", "n2").access(MultiNodeReaderOnly).frontend(second))
            .settles("n1 held 1, n2 held 2", "a Satisfied, b Satisfied");
    }
}

#[test]
fn a_job_without_frontend_stops_for_a_workload_on_its_own_node() {
    World::new()
        .file(backup("b", "n1").frontend(Frontend::Off))
        .settle()
        .file(csi("c", "n1"))
        .then("n1 releasing 1", "revoke n1 1", "b AttachedWithIncompatibleParameters, c WaitingForRelease")
        .settles("n1 held 2", "b AttachedWithIncompatibleParameters, c Satisfied");
}

#[test]
fn two_ways_of_sharing_do_not_mix_on_one_node() {
    World::new()
        .file(csi("a", "n1").access(MultiNodeSingleWriter).read_only())
        .settle()
        .file(csi("b", "n1").access(MultiNodeReaderOnly))
        .settles("n1 held 1", "a Satisfied, b AttachedWithIncompatibleParameters")
        .told("b", &Verdict::IncompatibleParameters { node: node("n1"), by: id("a"), clash: Clash::Sharing });
}

#[test]
fn a_job_that_shares_with_nobody_does_not_join_a_shared_grant() {
    World::new()
        .file(csi("a", "n1").access(MultiNodeReaderOnly))
        .settle()
        .file(backup("b", "n1").read_only())
        .settles("n1 held 1", "a Satisfied, b AttachedWithIncompatibleParameters")
        .told("b", &Verdict::IncompatibleParameters { node: node("n1"), by: id("a"), clash: Clash::Sharing });
}

#[test]
fn a_shared_volume_is_attached_for_its_server_alone() {
    let rwx = |name, on| csi(name, on).access(MultiNodeMultiWriter);
    World::new()
        .file(rwx("c1", "n1"))
        .file(rwx("c2", "n2"))
        .then("", "", "c1 WaitingForShare, c2 WaitingForShare")
        .file(ticket(TicketKind::ShareManagerController, "s", "n3").access(MultiNodeMultiWriter))
        .settles("n3 held 1", "c1 WaitingForShare, c2 WaitingForShare, s Satisfied")
        .volume(|volume| volume.share = Some("nfs://10.0.0.1/v".to_owned()))
        .settles("n3 held 1", "c1 Shared, c2 Shared, s Satisfied")
        .told("c1", &Verdict::Shared { endpoint: "nfs://10.0.0.1/v".to_owned() })
        .withdraw("s")
        .volume(|volume| volume.share = None)
        .settles("", "c1 WaitingForShare, c2 WaitingForShare");
}

#[test]
fn a_shared_volume_for_a_person_waits_for_the_share_too() {
    World::new()
        .file(ticket(TicketKind::BowlineApi, "p", "n1").access(MultiNodeMultiWriter))
        .then("", "", "p WaitingForShare")
        .volume(|volume| volume.fault = Some("checksum".to_owned()))
        .then("", "", "p VolumeFaulted");
}

#[test]
fn a_filesystem_for_many_writers_never_has_two_servers() {
    let server = |name, on| ticket(TicketKind::ShareManagerController, name, on).access(MultiNodeMultiWriter);
    World::new()
        .file(server("s1", "n1"))
        .file(server("s2", "n2"))
        .settles("n1 held 1", "s1 Satisfied, s2 HeldElsewhere")
        .file(backup("b", "n3").access(MultiNodeMultiWriter))
        .settles("n1 held 1", "b HeldElsewhere, s1 Satisfied, s2 HeldElsewhere");
}

#[test]
fn a_ticket_on_the_node_that_has_it_is_told_what_really_keeps_it_out() {
    let rwop = |name| csi(name, "n1").access(SingleNodeSingleWriter);
    World::new()
        .file(rwop("a"))
        .settle()
        .file(rwop("b"))
        .room("n1", 0, 8)
        .volume(|volume| volume.deleting = true)
        .settles("n1 held 1", "a Satisfied, b AttachedWithIncompatibleParameters");
}

#[test]
fn a_job_that_would_do_with_anything_kept_a_workload_on_its_node_waiting_for_ever() {
    World::new()
        .file(snapshot("s1", "n1"))
        .file(snapshot("s2", "n1").frontend(Frontend::Any))
        .settles("n1 held 1", "s1 Satisfied, s2 Satisfied")
        .file(csi("c", "n1").frontend(Frontend::Off))
        .settles("n1 held 2", "c Satisfied, s1 AttachedWithIncompatibleParameters, s2 Satisfied");
}

#[test]
fn a_snapshot_that_happened_to_fit_into_a_restores_grant_took_it_away_again_and_again() {
    let restore = ticket(TicketKind::VolumeRestoreController, "r", "n1").access(MultiNodeSingleWriter);
    World::new()
        .file(snapshot("s1", "n1"))
        .file(snapshot("s2", "n1").access(MultiNodeReaderOnly))
        .file(restore)
        .file(csi("c", "n2"))
        .settles(
            "n1 held 1",
            "c HeldElsewhere, r Satisfied, s1 AttachedWithIncompatibleParameters, s2 AttachedWithIncompatibleParameters",
        );
}
