//! The worlds that are explored, as a table: what happens, in which order at the least, and how much may go wrong.

use bowline_core::{NodeState, Timestamp};

use crate::script::*;
use crate::world::Faults;

const SINCE: Timestamp = Timestamp::UNIX_EPOCH;

/// Every scenario; `deep` allows one more lost answer in each.
pub(crate) fn all(deep: bool) -> Vec<Scenario> {
    let scenarios = [
        moves(),
        detaches(),
        migrations(),
        shares(),
        repeats(),
        controllers(),
        nodes_and_time(),
        weaker_worlds(),
        losses_of_the_record(),
    ];
    let mut all: Vec<Scenario> = scenarios.into_iter().flatten().collect();
    for scenario in &mut all {
        scenario.faults.losses += u8::from(deep);
    }
    all
}

fn scenario(name: &'static str, about: &'static str, lines: Vec<Line>) -> Scenario {
    let faults = faults(1, 1, 1);
    Scenario {
        name,
        about,
        volume: volume(),
        up: 1,
        controllers: 1,
        before: 0,
        lines,
        faults,
        reads_settle_writes: true,
    }
}

fn faults(crashes: u8, losses: u8, copies: u8) -> Faults {
    Faults { crashes, losses, copies, lists: 0, wipes: 0 }
}

fn moves() -> Vec<Scenario> {
    let lines = vec![submit(csi("a")), submit(csi("b")), withdraw("a")];
    vec![
        Scenario {
            before: 1,
            ..scenario("move", "a has it, b wants it, a is withdrawn; answers are lost", lines.clone())
        },
        Scenario {
            before: 1,
            faults: faults(2, 0, 2),
            ..scenario("move, repeated commands", "as move; two crashes, two commands arrive twice", lines)
        },
        scenario(
            "first come",
            "a and b ask at once, neither waits; whoever gets it is withdrawn by nobody",
            vec![try_to_submit(csi("a")), try_to_submit(csi("b"))],
        ),
    ]
}

fn detaches() -> Vec<Scenario> {
    vec![
        Scenario {
            before: 1,
            faults: faults(1, 3, 0),
            ..scenario(
                "forced detach, silent target",
                "a writes and is cut off by force while the target is silent; b wants it",
                vec![submit(csi("a")), submit(csi("b")), force("a").after(&[1])],
            )
        },
        Scenario {
            before: 2,
            faults: faults(2, 1, 1),
            ..scenario(
                "late unpublish",
                "a was withdrawn, b has it; the withdrawal of a arrives once more, b's own later",
                vec![
                    submit(csi("a")),
                    withdraw("a"),
                    submit(csi("b")),
                    withdraw("a").after(&[2]),
                    withdraw("b").after(&[3]),
                ],
            )
        },
        Scenario {
            before: 1,
            faults: faults(1, 1, 1),
            ..scenario(
                "released, then forced",
                "a is withdrawn, then cut off by force, then filed anew",
                vec![
                    submit(csi("a")),
                    withdraw("a"),
                    force("a").after(&[1]),
                    submit(again(csi("a"))).after(&[2]),
                ],
            )
        },
    ]
}

fn migrations() -> Vec<Scenario> {
    let migration = |name, about, lines, faults| Scenario {
        volume: migratable(),
        before: 1,
        faults,
        ..scenario(name, about, lines)
    };
    let (a, b, c) = (|| submit(block("a")), || submit(block("b")), || submit(block("c")));
    vec![
        migration(
            "migration confirmed",
            "a has it, b joins, a is withdrawn",
            vec![a(), b(), withdraw("a").after(&[1])],
            faults(1, 1, 0),
        ),
        migration(
            "migration rolled back",
            "a has it, b joins, b is withdrawn",
            vec![a(), b(), withdraw("b").after(&[1])],
            faults(1, 1, 0),
        ),
        migration(
            "migration timed out",
            "a has it, b joins, the time is up",
            vec![a(), b(), a_minute_passes().after(&[1]), a_minute_passes().after(&[2])],
            faults(1, 1, 0),
        ),
        migration(
            "migration and a third node",
            "a has it, b joins, c asks too; a is withdrawn",
            vec![a(), b(), c(), withdraw("a").after(&[1])],
            faults(1, 0, 0),
        ),
    ]
}

fn shares() -> Vec<Scenario> {
    vec![
        Scenario {
            before: 1,
            faults: faults(1, 0, 0),
            ..scenario(
                "three readers",
                "a, b and c read at the same time; one leaves",
                vec![
                    submit(reader("a")),
                    submit(reader("b")),
                    submit(reader("c")),
                    withdraw("b").after(&[1]),
                ],
            )
        },
        Scenario {
            before: 1,
            faults: faults(0, 1, 0),
            ..scenario(
                "readers and a writer",
                "a and b read, c wants it for itself; the readers leave",
                vec![
                    submit(reader("a")),
                    submit(reader("b")),
                    submit(csi("c")),
                    withdraw("a"),
                    withdraw("b").after(&[1]),
                ],
            )
        },
        Scenario {
            before: 1,
            ..scenario(
                "interrupted backup",
                "a backup on a gives way to a workload on b and goes on when that is gone",
                vec![submit(backup("a")), submit(csi("b")), withdraw("b").after(&[1])],
            )
        },
        Scenario {
            before: 1,
            ..scenario(
                "two tickets on one node",
                "a backup joins a workload on a, the workload leaves",
                vec![submit(csi("a")), submit(backup("a")), withdraw_ticket(&csi("a"))],
            )
        },
    ]
}

fn repeats() -> Vec<Scenario> {
    vec![
        Scenario {
            before: 1,
            ..scenario(
                "filed anew",
                "a's ticket is withdrawn and filed anew under the same name; b wants it too",
                vec![submit(csi("a")), withdraw("a"), submit(again(csi("a"))).after(&[1]), submit(csi("b"))],
            )
        },
        Scenario {
            before: 1,
            ..scenario(
                "superseded",
                "a newer filing of a's ticket arrives without a withdrawal, then it is withdrawn",
                vec![submit(csi("a")), submit(again(csi("a"))), withdraw("a").after(&[1])],
            )
        },
    ]
}

fn controllers() -> Vec<Scenario> {
    let two = |name, about, lines, faults| Scenario {
        up: 2,
        controllers: 2,
        faults,
        ..scenario(name, about, lines)
    };
    vec![
        two(
            "two controllers, both asked",
            "a and b are filed, each at either controller; both controllers are active throughout",
            vec![submit(csi("a")), submit(csi("b"))],
            faults(1, 1, 0),
        ),
        Scenario {
            before: 1,
            ..two(
                "two controllers, a move",
                "a has it; b is filed and a withdrawn, each at either controller",
                vec![submit(csi("a")), submit(csi("b")), withdraw("a")],
                faults(1, 1, 0),
            )
        },
        Scenario {
            up: 1,
            ..two(
                "a second controller starts",
                "while a is filed and withdrawn, another controller starts and serves",
                vec![submit(csi("a")), withdraw("a").after(&[0])],
                faults(0, 1, 0),
            )
        },
    ]
}

fn losses_of_the_record() -> Vec<Scenario> {
    let wiped = |name, about, lines, lists| Scenario {
        before: 1,
        faults: Faults { wipes: 1, lists, ..faults(0, 1, 1) },
        ..scenario(name, about, lines)
    };
    vec![
        wiped(
            "record removed",
            "a has it, b wants it; somebody removes the record",
            vec![submit(csi("a")), submit(csi("b"))],
            1,
        ),
        wiped(
            "record removed during a move",
            "as move; somebody removes the record",
            vec![submit(csi("a")), submit(csi("b")), withdraw("a")],
            0,
        ),
    ]
}

fn weaker_worlds() -> Vec<Scenario> {
    let lines = vec![submit(csi("a")), submit(csi("b")), withdraw("a"), submit(again(csi("a"))).after(&[2])];
    vec![
        Scenario {
            before: 1,
            faults: Faults { lists: 1, ..faults(1, 1, 0) },
            ..scenario("compared now and then", "a leaves for b and comes back; old lists arrive", lines)
        },
        Scenario {
            before: 1,
            faults: faults(1, 1, 0),
            reads_settle_writes: false,
            ..scenario(
                "writes after reads",
                "as move, on a store that lets a write arrive after its writer has read again",
                vec![submit(csi("a")), submit(csi("b")), withdraw("a")],
            )
        },
    ]
}

fn nodes_and_time() -> Vec<Scenario> {
    let gone = |state| vec![submit(csi("a")), submit(csi("b")), becomes("a", state)];
    vec![
        Scenario {
            before: 1,
            ..scenario(
                "node deleted",
                "a has it and its Node object is deleted while it may be writing; b wants it",
                gone(NodeState::Gone { since: SINCE }),
            )
        },
        Scenario {
            before: 1,
            ..scenario(
                "node out of service and back",
                "a is declared out of service, later it is ready again; b wants it",
                [
                    gone(NodeState::OutOfService { since: SINCE }),
                    vec![becomes("a", NodeState::Ready).after(&[2])],
                ]
                .concat(),
            )
        },
        Scenario {
            before: 1,
            ..scenario(
                "node not ready",
                "a does not report; it is withdrawn meanwhile and b wants it",
                [gone(NodeState::NotReady { since: SINCE }), vec![withdraw("a").after(&[2])]].concat(),
            )
        },
        scenario(
            "expired",
            "a program's ticket on a is not renewed; b waits",
            vec![submit(lease("a")), submit(csi("b")), a_minute_passes().after(&[0])],
        ),
    ]
}
