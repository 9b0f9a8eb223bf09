//! What is adopted, and where it is refused to guess: one row per combination of what the sources say.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed check is a panic")]

use bowline_cluster::Pv;
use bowline_cluster::adopt::{Found, adopt, plan};
use bowline_cluster::again::persist;
use bowline_core::{Ledger, NodeId, TargetId, TicketId, Timestamp, VolumeId};
use bowline_store::MemoryStore;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::Mutex;

const ID: &str = "db-000000ab";

fn volume() -> VolumeId {
    VolumeId::new(ID).unwrap()
}

fn pv(modes: &[&str], annotations: &[(&str, &str)]) -> Pv {
    Pv {
        name: "db".to_owned(),
        handle: ID.to_owned(),
        fs_type: "xfs".to_owned(),
        access_modes: modes.iter().map(ToString::to_string).collect(),
        annotations: annotations.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect(),
        ..Pv::default()
    }
}

fn attachment(node: &str, attached: bool) -> VolumeAttachment {
    serde_json::from_value(json!({"apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment", "metadata": {"name": format!("va-{node}"), "uid": "u"},
        "spec": {"attacher": "bowline.storage", "nodeName": node, "source": {"persistentVolumeName": "db"}}, "status": {"attached": attached}}))
    .unwrap()
}

/// Targets that hold it.
fn on(targets: &[&str]) -> BTreeMap<TargetId, u64> {
    targets.iter().map(|target| (TargetId::new(*target).unwrap(), 4096)).collect()
}

/// A PersistentVolume whose volume is on the target, and nodes a and b.
fn found(pv: Pv, attachments: Vec<VolumeAttachment>) -> Found {
    let node = |name: &str| (name.to_owned(), NodeId::new(format!("id-{name}")).unwrap());
    Found {
        pvs: vec![pv],
        attachments,
        node_ids: [node("a"), node("b")].into(),
        stored: [(volume(), on(&["file"]))].into(),
        ..Found::default()
    }
}

/// Nodes that get tickets, whether the volume gets a record, and part of what is refused.
fn adopted(found: &Found) -> (Vec<String>, usize, Option<String>) {
    let adoption = plan(found, Timestamp::UNIX_EPOCH);
    let nodes = adoption.tickets.iter().map(|(_, ticket)| ticket.node.to_string()).collect();
    assert!(adoption.refused.len() <= 1, "{adoption}");
    (nodes, adoption.volumes.len(), adoption.refused.first().map(ToString::to_string))
}

#[test]
fn what_agrees_is_adopted_and_what_does_not_is_listed() {
    const RWO: &[&str] = &["ReadWriteOnce"];
    const ROX: &[&str] = &["ReadOnlyMany"];
    let ours = ("csi.bowline.storage/attached-node", "a");
    let earlier = ("csi.rds.srvlab.io/attached-node", "a");
    let (yes, no) = (true, false);
    type Row<'a> = (&'a str, Pv, Vec<VolumeAttachment>, &'a [&'a str], Option<&'a str>);
    let rows: &[Row<'_>] = &[
        ("not attached", pv(RWO, &[]), vec![], &[], None),
        ("wanted but not attached", pv(RWO, &[]), vec![attachment("a", no)], &[], None),
        ("attached", pv(RWO, &[]), vec![attachment("a", yes)], &["id-a"], None),
        ("and the annotation agrees", pv(RWO, &[ours]), vec![attachment("a", yes)], &["id-a"], None),
        ("as an earlier driver's does", pv(RWO, &[earlier]), vec![attachment("a", yes)], &["id-a"], None),
        (
            "by the driver's name for the node",
            pv(RWO, &[("csi.bowline.storage/attached-node", "id-a")]),
            vec![attachment("a", yes)],
            &["id-a"],
            None,
        ),
        ("another waits", pv(RWO, &[]), vec![attachment("a", yes), attachment("b", no)], &["id-a"], None),
        (
            "the annotation says another node",
            pv(RWO, &[ours]),
            vec![attachment("b", yes)],
            &[],
            Some("attached to a, but VolumeAttachment va-b says b"),
        ),
        (
            "an earlier driver's does",
            pv(RWO, &[earlier]),
            vec![attachment("b", yes)],
            &[],
            Some("remove the annotation attached-node from PersistentVolume db"),
        ),
        ("only the annotation", pv(RWO, &[ours]), vec![], &[], Some("no VolumeAttachment says so")),
        (
            "two writers",
            pv(RWO, &[]),
            vec![attachment("a", yes), attachment("b", yes)],
            &[],
            Some("to id-a and to id-b, and it is for one node at a time"),
        ),
        (
            "two readers",
            pv(ROX, &[]),
            vec![attachment("a", yes), attachment("b", yes)],
            &["id-a", "id-b"],
            None,
        ),
        (
            "a node nobody knows",
            pv(RWO, &[]),
            vec![attachment("c", yes)],
            &[],
            Some("the driver's name for that node"),
        ),
        ("no such access", pv(&[], &[]), vec![attachment("a", yes)], &[], Some("access modes")),
    ];
    for (name, pv, attachments, nodes, refused) in rows {
        let (got, records, why) = adopted(&found(pv.clone(), attachments.clone()));
        assert_eq!(got, *nodes, "{name}");
        assert_eq!(records, usize::from(refused.is_none()), "{name}: {why:?}");
        assert_eq!(why.is_some(), refused.is_some(), "{name}: {why:?}");
        if let (Some(why), Some(part)) = (why, refused) {
            assert!(why.contains(part), "{name}: {why}");
        }
    }
}

#[test]
fn a_record_is_what_the_target_and_the_persistent_volume_say() {
    let adoption =
        plan(&found(pv(&["ReadWriteOnce"], &[]), vec![attachment("a", true)]), Timestamp::UNIX_EPOCH);
    let record = &adoption.volumes[0];
    assert_eq!((record.name.as_str(), record.size, record.fs.name()), ("db", 4096, "xfs"));
    let (id, ticket) = &adoption.tickets[0];
    assert_eq!(ticket.id, TicketId::csi(id, "bowline.storage", &NodeId::new("id-a").unwrap()));
}

#[test]
fn a_volume_of_an_earlier_driver_keeps_its_id_when_it_has_a_persistent_volume_of_ours() {
    let id = "pvc-a1b2c3d4-e5f6-7890-abcd-ef1234567890";
    let moved = Pv { name: id.to_owned(), handle: id.to_owned(), ..pv(&["ReadWriteOnce"], &[]) };
    let id = VolumeId::new(id).unwrap();
    let mut found = found(moved, vec![]);
    found.stored = [(id.clone(), on(&["box"]))].into();
    found.earlier.push("pvc-00000000-0000-0000-0000-000000000000".to_owned());
    let adoption = plan(&found, Timestamp::UNIX_EPOCH);
    let [record] = adoption.volumes.as_slice() else { panic!("{adoption}") };
    assert_eq!((&record.id, record.name.as_str(), record.target.as_str()), (&id, id.as_str(), "box"));
    assert!(adoption.refused.is_empty(), "{adoption}");
    let [other] = adoption.earlier.as_slice() else { panic!("{adoption:?}") };
    assert!(
        other.to_string().contains("of the driver rds.csi.srvlab.io, and that cannot be changed"),
        "{other}"
    );
    // It has the place of its name, as what is made under that name would.
    found.volumes.insert(VolumeId::new(format!("{id}-000000ab")).unwrap());
    assert!(
        plan(&found, Timestamp::UNIX_EPOCH).refused[0]
            .to_string()
            .contains("was made under the same name since")
    );
}

#[test]
fn what_is_known_is_left_alone_and_what_is_unknown_is_refused() {
    let rwo = || pv(&["ReadWriteOnce"], &[("csi.bowline.storage/attached-node", "stale")]);
    let first = plan(&found(pv(&["ReadWriteOnce"], &[]), vec![attachment("a", true)]), Timestamp::UNIX_EPOCH);
    let mut ledger = Ledger::default();
    ledger.submit(first.tickets[0].1.clone(), Timestamp::UNIX_EPOCH).unwrap();
    let mut known = found(rwo(), vec![attachment("a", true)]);
    known.volumes.insert(volume());
    known.ledgers.insert(volume(), ledger);
    assert_eq!(adopted(&known), (vec![], 0, None), "the ledger is the record; the annotation is not");
    known.volumes.clear();
    assert_eq!(
        adopted(&known),
        (vec![], 1, None),
        "an adoption that was interrupted after the ledger is completed"
    );
    // A ledger that was wiped is filled again, and the record stays.
    let mut wiped = found(pv(&["ReadWriteOnce"], &[]), vec![attachment("a", true)]);
    wiped.volumes.insert(volume());
    wiped.ledgers.insert(volume(), Ledger::default());
    assert_eq!(adopted(&wiped), (vec!["id-a".to_owned()], 0, None));
    // One that is being deleted was given its ticket back, and its node was let in anew.
    let mut going = wiped.clone();
    let now = "2026-01-01T12:00:00Z".parse().unwrap();
    going.attachments[0].metadata.deletion_timestamp =
        Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(now));
    assert_eq!(adopted(&going), (vec![], 0, None));
    going.ledgers.clear();
    assert_eq!(adopted(&going).0, ["id-a"], "a ledger that was lost says nothing");
    going.volumes.clear();
    assert_eq!(adopted(&going).0, ["id-a"]);
    // What has a record is compared with its target whatever is said here: only a ticket keeps whoever is in from being shut out.
    let mut stale = found(rwo(), vec![attachment("a", true)]);
    stale.volumes.insert(volume());
    assert_eq!(adopted(&stale), (vec!["id-a".to_owned()], 0, None));
    let mut detached = found(rwo(), vec![]);
    detached.volumes.insert(volume());
    let left = plan(&detached, Timestamp::UNIX_EPOCH);
    assert!(left.is_done() && left.known == [volume()], "{left}");
    let mut copied = found(pv(&["ReadWriteOnce"], &[]), vec![attachment("a", true)]);
    copied.stored = [(volume(), on(&["file-a", "file-b"]))].into();
    let (tickets, records, why) = adopted(&copied);
    assert!(tickets.is_empty() && records == 0, "one of them was guessed: {why:?}");
    assert!(why.unwrap().contains("targets file-a and file-b both hold it"));
    let mut nowhere = found(pv(&["ReadWriteOnce"], &[]), vec![attachment("a", true)]);
    nowhere.stored.clear();
    assert!(adopted(&nowhere).2.unwrap().contains("no target holds it"));
    nowhere.silent.push("file-c does not answer".to_owned());
    assert!(adopted(&nowhere).2.unwrap().contains("file-c does not answer"));
    let mut renewed = found(pv(&["ReadWriteOnce"], &[]), vec![attachment("a", true)]);
    renewed.volumes.insert(VolumeId::new("db-000000cd").unwrap());
    let (tickets, records, why) = adopted(&renewed);
    assert!(tickets.is_empty() && records == 0, "its ledger would be nobody's");
    assert!(why.unwrap().contains("volume db-000000cd was made under the same name"));
    let foreign = Pv { handle: "vol-of-another".to_owned(), ..pv(&["ReadWriteOnce"], &[]) };
    assert!(adopted(&found(foreign, vec![])).2.unwrap().contains("no id that Bowline gives"));
    let lost =
        found(Pv { name: "other".to_owned(), ..pv(&["ReadWriteOnce"], &[]) }, vec![attachment("a", true)]);
    assert!(adopted(&lost).2.unwrap().contains("PersistentVolume db is not there"));
}

/// A server that has one PersistentVolume on the first page, fails once for each of these codes when it is asked for the second, and has one there.
fn server_that_fails(codes: &'static [u16]) -> kube::Client {
    let failures = Mutex::new(codes.iter());
    let server = tower::service_fn(move |request: http::Request<kube::client::Body>| {
        let is_second = request.uri().query().unwrap_or_default().contains("continue=");
        let volumes = request.uri().path().ends_with("/persistentvolumes");
        let failed = is_second.then(|| failures.lock().unwrap().next()).flatten();
        let pv = |name: &str| json!({"metadata": {"name": name}, "spec": {"csi": {"driver": "bowline.storage", "volumeHandle": format!("{name}-000000ab")}}});
        let body = match (failed, volumes, is_second) {
            (Some(code), ..) => {
                json!({"kind": "Status", "status": "Failure", "code": code, "message": "not now", "reason": ""})
            }
            (None, true, false) => {
                json!({"apiVersion": "v1", "kind": "List", "metadata": {"continue": "rest"}, "items": [pv("first")]})
            }
            (None, true, true) => {
                json!({"apiVersion": "v1", "kind": "List", "metadata": {}, "items": [pv("second")]})
            }
            (None, false, _) => json!({"apiVersion": "v1", "kind": "List", "metadata": {}, "items": []}),
        };
        let answer = http::Response::builder().status(failed.copied().unwrap_or(200));
        let answer = answer.body(kube::client::Body::from(body.to_string().into_bytes())).unwrap();
        async { Ok::<_, kube::Error>(answer) }
    });
    kube::Client::new(server, "default")
}

#[tokio::test(start_paused = true)]
async fn one_request_that_failed_ended_the_start_of_a_leader() {
    let client = server_that_fails(&[410, 429, 503]);
    let store = MemoryStore::default();
    let adoption = persist("adoption", async || adopt(&client, &store, &[], true).await).await.unwrap();
    let seen: Vec<&str> = adoption.refused.iter().map(|one| one.volume.as_str()).collect();
    assert_eq!(seen, ["first-000000ab", "second-000000ab"], "each once: {adoption}");
    let client = server_that_fails(&[403]);
    let refused = persist("adoption", async || adopt(&client, &store, &[], true).await).await;
    assert!(refused.unwrap_err().to_string().contains("not now"));
}
