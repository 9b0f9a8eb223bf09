//! The record as it is written down today must be readable, and mean the same, for ever. The files under `records` are
//! frozen: a change that needs another text there breaks installations that exist.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use bowline_core::*;
use serde_json::{Value, json};

const MINIMAL: &str = include_str!("records/minimal.json");
const DETACHED: &str = include_str!("records/detached.json");
const WITHOUT_OPTIONAL_FIELDS: &str = include_str!("records/without-optional-fields.json");
const FULL: &str = include_str!("records/full.json");

fn read(text: &str) -> Ledger {
    serde_json::from_str(text).unwrap()
}

fn time(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn mode(write: bool, frontend: bool, share: Share) -> Mode {
    Mode { write, frontend, share }
}

fn ticket(id: &str, kind: TicketKind, node: &str) -> Ticket {
    Ticket {
        id: TicketId::new(id).unwrap(),
        kind,
        node: NodeId::new(node).unwrap(),
        access: AccessMode::SingleNodeWriter,
        content: Content::Filesystem,
        read_only: false,
        frontend: Frontend::On,
        generation: 1,
        created_at: time("2030-01-01T12:00:00Z"),
        owner: Owner::Withdrawn,
        reason: None,
    }
}

#[test]
fn a_record_of_which_only_the_epoch_is_written_is_a_volume_nobody_wants() {
    assert_eq!(read(MINIMAL), Ledger::default());
    let detached = read(DETACHED);
    assert_eq!(detached.epoch(), Epoch::new(41));
    assert!(detached.tickets().is_empty() && detached.holds().is_empty());
}

#[test]
fn what_is_not_written_in_a_ticket_has_its_plain_meaning() {
    let ledger = read(WITHOUT_OPTIONAL_FIELDS);
    let tickets: Vec<_> = ledger.tickets().values().cloned().collect();
    assert_eq!(tickets, [ticket("csi-4f2a", TicketKind::CsiAttacher, "worker-2")]);
    let holds: Vec<_> = ledger.holds().values().cloned().collect();
    let expected = Hold {
        epoch: Epoch::new(7),
        mode: mode(true, true, Share::Nobody),
        since: time("2030-01-01T12:04:31Z"),
        phase: Phase::Held,
    };
    assert_eq!(holds, [expected]);
    assert_eq!(ledger.migration(), None);
}

#[test]
fn the_reason_somebody_gave_is_kept_and_a_renewal_without_one_does_not_erase_it() {
    let now = time("2030-01-01T12:00:00Z");
    let told = Ticket {
        reason: Some("restore test".to_owned()),
        ..ticket("bowline-api-a", TicketKind::BowlineApi, "a")
    };
    let mut ledger = Ledger::default();
    ledger.submit(told.clone(), now).unwrap();
    ledger.submit(Ticket { reason: None, ..told.clone() }, now).unwrap();
    let json = serde_json::to_string(&ledger).unwrap();
    assert_eq!(read(&json).tickets()[&told.id], told);
    ledger.submit(Ticket { reason: Some("longer".to_owned()), ..told.clone() }, now).unwrap();
    assert_eq!(ledger.tickets()[&told.id].reason.as_deref(), Some("longer"));
}

#[test]
fn every_field_of_a_ticket_means_what_it_meant() {
    let object = |object: &str| Owner::ObjectGone { object: object.to_owned() };
    let expected = [
        Ticket {
            access: AccessMode::SingleNodeReaderOnly,
            content: Content::Block,
            read_only: true,
            frontend: Frontend::Any,
            generation: 3,
            created_at: time("2030-01-01T12:00:02.5Z"),
            owner: object("Backup default/nightly"),
            ..ticket("backup-controller-nightly", TicketKind::BackupController, "worker-2")
        },
        Ticket {
            access: AccessMode::MultiNodeSingleWriter,
            frontend: Frontend::Off,
            created_at: time("2030-01-01T12:00:03Z"),
            owner: Owner::Expires { at: time("2030-01-02T00:00:00Z") },
            ..ticket("bowline-api-ops", TicketKind::BowlineApi, "worker-4")
        },
        Ticket {
            content: Content::Block,
            owner: object("VolumeAttachment csi-4f2a"),
            ..ticket("csi-4f2a", TicketKind::CsiAttacher, "worker-2")
        },
        Ticket {
            access: AccessMode::SingleNodeMultiWriter,
            content: Content::Block,
            generation: 2,
            created_at: time("2030-01-01T12:00:01Z"),
            ..ticket("csi-9c01", TicketKind::CsiAttacher, "worker-5")
        },
    ];
    assert_eq!(read(FULL).tickets().values().cloned().collect::<Vec<_>>(), expected);
}

#[test]
fn every_field_of_a_hold_and_of_a_migration_means_what_it_meant() {
    let ledger = read(FULL);
    assert_eq!(ledger.epoch(), Epoch::new(9));
    let fencing = Phase::Fencing { why: FenceReason::NodeOutOfService };
    let rows = [
        ("worker-1", 5, mode(false, false, Share::Readers), "2030-01-01T12:01:00Z", Phase::Releasing),
        ("worker-2", 7, mode(true, true, Share::Nobody), "2030-01-01T12:04:31Z", Phase::Held),
        ("worker-3", 6, mode(true, true, Share::OneWriter), "2030-01-01T12:02:00Z", fencing),
        ("worker-5", 8, mode(true, true, Share::Writers), "2030-01-01T12:05:00Z", Phase::Granting),
    ];
    let expected = rows.map(|(node, epoch, mode, since, phase)| {
        let hold = Hold { epoch: Epoch::new(epoch), mode, since: time(since), phase };
        (NodeId::new(node).unwrap(), hold)
    });
    assert_eq!(*ledger.holds(), expected.into());
    let migration = Migration {
        from: TicketId::new("csi-4f2a").unwrap(),
        from_generation: 1,
        to: TicketId::new("csi-9c01").unwrap(),
        to_generation: 2,
        since: time("2030-01-01T12:05:00Z"),
    };
    assert_eq!(ledger.migration(), Some(&migration));
}

#[test]
fn what_is_written_today_is_written_like_this() {
    for text in [DETACHED, FULL] {
        let frozen: Value = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_value(read(text)).unwrap(), frozen);
    }
    for text in [MINIMAL, WITHOUT_OPTIONAL_FIELDS] {
        let ledger = read(text);
        assert_eq!(read(&serde_json::to_string(&ledger).unwrap()), ledger);
    }
}

#[test]
fn every_word_of_the_record_is_kept() {
    fn words<T: serde::Serialize>(values: &[T]) -> Vec<String> {
        let word = |value| serde_json::to_value(value).unwrap().as_str().unwrap().to_owned();
        values.iter().map(word).collect()
    }
    use FenceReason::*;
    use Share::*;
    assert_eq!(
        words(&AccessMode::ALL),
        [
            "single-node-writer",
            "single-node-reader-only",
            "single-node-single-writer",
            "single-node-multi-writer",
            "multi-node-reader-only",
            "multi-node-single-writer",
            "multi-node-multi-writer",
        ]
    );
    assert_eq!(words(&[Content::Block, Content::Filesystem]), ["block", "filesystem"]);
    assert_eq!(words(&[Frontend::On, Frontend::Off, Frontend::Any]), ["false", "true", "any"]);
    assert_eq!(words(&[Nobody, Readers, OneWriter, Writers]), ["nobody", "readers", "one-writer", "writers"]);
    assert_eq!(
        words(&[NodeSilent, NodeOutOfService, NodeGone, Forced, Unrecorded]),
        ["nodeSilent", "nodeOutOfService", "nodeGone", "forced", "unrecorded"]
    );
}

/// A record that is wrong in one place, and what its reader is told.
#[test]
fn a_record_that_cannot_be_one_is_refused_and_says_why() {
    let rows: [(&str, Value, &str); 19] = [
        ("/epoch", json!(-1), "invalid value: integer `-1`, expected u64"),
        ("/epoch", json!("9"), "invalid type: string \"9\", expected u64"),
        ("/epoch", json!(6), "holds[worker-2].epoch is 7, above the ledger's epoch 6"),
        ("/holds/worker-5/epoch", json!(7), "holds[worker-5].epoch is 7, which another hold has too"),
        (
            "/tickets/csi-4f2a/id",
            json!("csi-9c01"),
            "tickets[csi-4f2a].id is csi-9c01; it must equal its key",
        ),
        ("/tickets/csi-4f2a/id", json!("a/b"), "ticket id \"a/b\" contains '/'"),
        ("/tickets/csi-4f2a/nodeID", json!(""), "node id is empty"),
        ("/tickets/csi-4f2a/nodeID", json!("a^b"), "node id \"a^b\" contains '^'"),
        (
            "/tickets/csi-4f2a/type",
            json!("longhorn-ui"),
            "unknown variant `longhorn-ui`, expected one of `csi-attacher`",
        ),
        (
            "/tickets/csi-4f2a/access",
            json!("rwo"),
            "unknown variant `rwo`, expected one of `single-node-writer`",
        ),
        (
            "/tickets/csi-4f2a/disableFrontend",
            json!("yes"),
            "unknown variant `yes`, expected one of `false`, `true`, `any`",
        ),
        ("/tickets/csi-4f2a/generation", json!(-1), "invalid value: integer `-1`, expected u64"),
        (
            "/tickets/csi-4f2a/owner",
            json!({"until": "later"}),
            "unknown variant `later`, expected one of `objectGone`",
        ),
        ("/tickets/csi-4f2a/owner", json!({"until": "expires"}), "missing field `at`"),
        ("/tickets/csi-4f2a/colour", json!("red"), "unknown field `colour`"),
        ("/holds/worker-2/phase", json!("asleep"), "unknown variant `asleep`, expected one of `granting`"),
        ("/holds/worker-2/mode/colour", json!("red"), "unknown field `colour`"),
        ("/migration/colour", json!("red"), "unknown field `colour`"),
        ("/colour", json!("red"), "unknown field `colour`"),
    ];
    for (place, value, sentence) in rows {
        let mut record: Value = serde_json::from_str(FULL).unwrap();
        let (parent, field) = place.rsplit_once('/').unwrap();
        record.pointer_mut(parent).unwrap()[field] = value;
        let error = serde_json::from_str::<Ledger>(&record.to_string()).unwrap_err().to_string();
        assert!(error.contains(sentence), "{place}: {error}");
    }
}

#[test]
fn a_record_that_lacks_something_says_what() {
    for (parent, field) in [
        ("", "epoch"),
        ("/tickets/csi-4f2a", "id"),
        ("/tickets/csi-4f2a", "type"),
        ("/tickets/csi-4f2a", "nodeID"),
        ("/tickets/csi-4f2a", "access"),
        ("/tickets/csi-4f2a", "content"),
        ("/tickets/csi-4f2a", "generation"),
        ("/tickets/csi-4f2a", "createdAt"),
        ("/tickets/csi-4f2a", "owner"),
        ("/holds/worker-2", "epoch"),
        ("/holds/worker-2", "mode"),
        ("/holds/worker-2", "since"),
        ("/holds/worker-2", "phase"),
        ("/holds/worker-3", "why"),
        ("/holds/worker-2/mode", "share"),
        ("/migration", "toGeneration"),
    ] {
        let mut record: Value = serde_json::from_str(FULL).unwrap();
        record.pointer_mut(parent).unwrap().as_object_mut().unwrap().remove(field).expect("was there");
        let error = serde_json::from_str::<Ledger>(&record.to_string()).unwrap_err().to_string();
        assert!(error.contains(&format!("missing field `{field}`")), "{parent}/{field}: {error}");
    }
}
