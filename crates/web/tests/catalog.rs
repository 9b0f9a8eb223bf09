//! The API over a real catalog on a simulated target.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use axum::body::Body;
use axum::http::{Request, StatusCode};
use bowline_controller::{Catalog, Node};
use bowline_core::{NodeId, Timestamp};
use bowline_engine::{Clock, SystemClock};
use bowline_store::MemoryStore;
use bowline_testkit::SimTarget;
use bowline_web::{Api, Parts, router};
use futures::StreamExt;
use serde_json::{Value, json};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tower::ServiceExt;

struct World {
    api: Api,
    target: Arc<SimTarget>,
}

impl World {
    async fn new() -> Self {
        let target = Arc::new(SimTarget::new("sim"));
        let registry = Arc::new(Mutex::default());
        let added_at: Timestamp = SystemClock.now();
        let node =
            |name: &str| Node { id: NodeId::new(name).unwrap(), limit: None, out_of_service: None, added_at };
        let catalog = Catalog::open(bowline_controller::Parts {
            store: Arc::new(MemoryStore::default()),
            targets: vec![Arc::clone(&target) as _],
            nodes: ["a", "b"].map(node).to_vec(),
            reports: vec![],
            clock: Arc::new(SystemClock),
            settings: Default::default(),
            registry: Arc::clone(&registry),
        })
        .await
        .unwrap();
        let api = Api::new(Parts {
            clock: Arc::new(SystemClock),
            registry,
            probe: Arc::new(Vec::new),
            version: "1",
            node: "a".to_owned(),
        });
        api.open(catalog);
        Self { api, target }
    }

    async fn ask(&self, method: &str, path: &str, body: Option<Value>) -> (StatusCode, Value) {
        let mut request = Request::builder().method(method).uri(path);
        if body.is_some() {
            request = request.header("content-type", "application/json");
        }
        let body = body.map_or_else(Body::empty, |body| Body::from(body.to_string()));
        let answer = router(self.api.clone()).oneshot(request.body(body).unwrap()).await.unwrap();
        let status = answer.status();
        let bytes = axum::body::to_bytes(answer.into_body(), 1 << 20).await.unwrap();
        (
            status,
            serde_json::from_slice(&bytes)
                .unwrap_or(Value::String(String::from_utf8(bytes.to_vec()).unwrap())),
        )
    }

    /// Asks, and expects this status.
    async fn ok(&self, expected: u16, method: &str, path: &str, body: Option<Value>) -> Value {
        let (status, answer) = self.ask(method, path, body).await;
        assert_eq!(status.as_u16(), expected, "{method} {path}: {answer}");
        answer
    }

    async fn volume(&self, name: &str) -> Value {
        self.ok(201, "POST", "/v1/volumes", Some(json!({ "name": name, "size": 1 << 30 }))).await
    }

    async fn attach(&self, volume: &str, node: &str) -> (StatusCode, Value) {
        let order = json!({ "node": node, "reason": "to look", "waitSeconds": 5 });
        self.ask("POST", &format!("/v1/volumes/{volume}/tickets"), Some(order)).await
    }
}

#[tokio::test]
async fn a_volume_lives_from_being_made_to_being_deleted() {
    let world = World::new().await;
    let made = world.volume("db").await;
    assert_eq!(
        (&made["name"], &made["state"], &made["size"]),
        (&json!("db"), &json!("ready"), &json!(1 << 30))
    );
    assert_eq!(made["attachment"]["state"], "detached");
    assert_eq!(world.volume("db").await["id"], made["id"], "asking again is the same volume");
    let other = Some(json!({ "name": "db", "size": 2_u64 << 30, "limit": 2_u64 << 30 }));
    assert_eq!(world.ok(409, "POST", "/v1/volumes", other).await["code"], "Different");
    let grown = world.ok(200, "POST", "/v1/volumes/db/grow", Some(json!({ "size": 3_u64 << 30 }))).await;
    assert_eq!(grown["size"], 3_u64 << 30);
    let kept = world.ok(200, "PATCH", "/v1/volumes/db", Some(json!({ "deletionProtection": true }))).await;
    assert_eq!(kept["settings"]["deletionProtection"], true);
    assert_eq!(world.ok(409, "DELETE", "/v1/volumes/db", None).await["code"], "InUse");
    world.ok(200, "PATCH", "/v1/volumes/db", Some(json!({ "deletionProtection": false }))).await;
    world.ok(204, "DELETE", "/v1/volumes/db", None).await;
    let gone = world.ok(404, "GET", "/v1/volumes/db", None).await;
    assert_eq!(
        (&gone["code"], &gone["type"]),
        (&json!("UnknownVolume"), &json!("urn:bowline:problem:UnknownVolume"))
    );
    assert_eq!(world.ok(404, "DELETE", "/v1/volumes/db", None).await["code"], "UnknownVolume");
    assert!(world.target.items().is_empty(), "nothing is left");
}

#[tokio::test]
async fn the_second_node_is_refused_with_the_verdict_and_why_says_what_would_change_it() {
    let world = World::new().await;
    world.volume("db").await;
    let (status, answer) = world.attach("db", "a").await;
    assert_eq!((status.as_u16(), &answer["attached"]), (200, &json!(true)), "{answer}");
    assert_eq!(
        world.attach("db", "a").await.1["ticket"],
        answer["ticket"],
        "asking again is the same ticket"
    );
    let (status, refused) = world.attach("db", "b").await;
    assert_eq!((status.as_u16(), &refused["code"]), (409, &json!("Refused")));
    assert_eq!(refused["verdict"]["reason"], "HeldElsewhere");
    assert_eq!((&refused["verdict"]["node"], &refused["ticket"]), (&json!("a"), &json!("bowline-api-b")));
    let why = world.ok(200, "GET", "/v1/volumes/db/why", None).await;
    assert_eq!(
        (&why["state"], &why["holds"][0]["node"], &why["holds"][0]["phase"]),
        (&json!("attached"), &json!("a"), &json!("held"))
    );
    let second = &why["tickets"][1];
    assert_eq!(
        (&second["rank"], &second["node"], &second["reason"]),
        (&json!(2), &json!("b"), &json!("to look"))
    );
    assert_eq!(second["remedy"]["commands"][0], "bowline detach db --ticket bowline-api-a");
    let tickets = world.ok(200, "GET", "/v1/tickets", None).await;
    assert_eq!(tickets["tickets"].as_array().unwrap().len(), 2);
    assert_eq!(world.ok(409, "DELETE", "/v1/volumes/db", None).await["code"], "InUse");

    // What the remedy says is what helps.
    let (status, _) = world.ask("DELETE", "/v1/volumes/db/tickets?ticket=bowline-api-a", None).await;
    assert_eq!(status, StatusCode::NO_CONTENT);
    let (status, answer) = world.attach("db", "b").await;
    assert_eq!((status.as_u16(), &answer["verdict"]["node"]), (200, &json!("b")), "{answer}");
    world.ok(204, "DELETE", "/v1/volumes/db/tickets", None).await;
    assert_eq!(world.ok(200, "GET", "/v1/volumes/db/why", None).await["state"], "detached");
    assert_eq!(world.target.violations(), [""; 0]);
}

#[tokio::test]
async fn who_waits_in_the_queue_is_served_when_its_turn_comes() {
    let world = Arc::new(World::new().await);
    world.volume("db").await;
    world.attach("db", "a").await;
    let waiting = tokio::spawn({
        let world = Arc::clone(&world);
        async move {
            let order = json!({ "node": "b", "waitSeconds": 60, "waitFor": "attached" });
            world.ask("POST", "/v1/volumes/db/tickets", Some(order)).await
        }
    });
    // Its ticket is in the queue before the other one goes.
    while world.ok(200, "GET", "/v1/tickets?volume=db", None).await["tickets"].as_array().unwrap().len() < 2 {
        tokio::task::yield_now().await;
    }
    world.ok(204, "DELETE", "/v1/volumes/db/tickets?node=a", None).await;
    let (status, answer) = waiting.await.unwrap();
    assert_eq!((status.as_u16(), &answer["attached"]), (200, &json!(true)), "{answer}");
    let none = json!({ "node": "a", "waitSeconds": 0, "waitFor": "attached" });
    let (status, answer) = world.ask("POST", "/v1/volumes/db/tickets", Some(none)).await;
    assert_eq!((status.as_u16(), &answer["attached"]), (202, &json!(false)), "{answer}");
}

#[tokio::test]
async fn what_cannot_be_asked_is_told_by_its_field_or_its_name() {
    let world = World::new().await;
    world.volume("db").await;
    let ticket = |body: Value| ("POST", "/v1/volumes/db/tickets".to_owned(), Some(body));
    for ((method, path, body), status, code, words) in [
        (ticket(json!({ "node": "nobody" })), 404, "UnknownNode", "nobody is not known"),
        (ticket(json!({ "node": "a b" })), 400, "Invalid", "node: "),
        (ticket(json!({ "node": "a", "reason": "x".repeat(257) })), 400, "Invalid", "reason: has 257 bytes"),
        (ticket(json!({ "node": "a", "reason": "a\nb" })), 400, "Invalid", "reason: control"),
        (ticket(json!({ "node": "a", "until": { "seconds": 0 } })), 400, "Invalid", "until.seconds: "),
        (ticket(json!({ "node": "a", "name": "x/y" })), 400, "Invalid", "name: "),
        (("GET", "/v1/volumes?limit=0".to_owned(), None), 400, "Invalid", "limit: "),
        (("GET", "/v1/volumes/none/why".to_owned(), None), 404, "UnknownVolume", "none"),
        (
            ("DELETE", "/v1/volumes/db/tickets?ticket=x".to_owned(), None),
            404,
            "UnknownTicket",
            "has no ticket x",
        ),
        (
            ("PATCH", "/v1/volumes/db".to_owned(), Some(json!({ "migratable": 5 }))),
            400,
            "Invalid",
            "migratable: ",
        ),
        (
            ("POST", "/v1/snapshots".to_owned(), Some(json!({ "name": "s", "volumes": ["db", "db"] }))),
            400,
            "Invalid",
            "volumes: ",
        ),
        (
            ("POST", "/v1/groups".to_owned(), Some(json!({ "name": "s", "volumes": ["db", "db"] }))),
            400,
            "Invalid",
            "db is there twice",
        ),
        (("POST", "/v1/volumes".to_owned(), Some(json!({ "name": "x", "size": u64::MAX }))), 422, "Size", ""),
        (("DELETE", "/v1/nodes/nobody".to_owned(), None), 404, "UnknownNode", "nobody"),
    ] {
        let answer = world.ok(status, method, &path, body).await;
        assert_eq!(answer["code"], code, "{answer}");
        assert!(answer["detail"].as_str().unwrap().contains(words), "{words}: {answer}");
    }
}

#[tokio::test]
async fn snapshots_and_groups_are_taken_listed_and_deleted() {
    let world = World::new().await;
    for name in ["a", "b"] {
        world.volume(name).await;
    }
    let taken = world.ok(201, "POST", "/v1/snapshots", Some(json!({ "name": "s", "volumes": ["a"] }))).await;
    assert_eq!((&taken["state"], &taken["size"]), (&json!("ready"), &json!(1 << 30)));
    let group =
        world.ok(201, "POST", "/v1/groups", Some(json!({ "name": "g", "volumes": ["a", "b"] }))).await;
    assert_eq!(group["snapshots"].as_array().unwrap().len(), 2);
    let listed = world.ok(200, "GET", "/v1/snapshots?volume=a", None).await;
    assert_eq!(listed["snapshots"].as_array().unwrap().len(), 2);
    let id = group["id"].as_str().unwrap();
    assert_eq!(world.ok(200, "GET", &format!("/v1/groups/{id}"), None).await["name"], "g");
    let copy = json!({ "name": "copy", "source": { "snapshot": "s" } });
    assert_eq!(world.ok(201, "POST", "/v1/volumes", Some(copy)).await["source"]["snapshot"], taken["id"]);
    world.ok(204, "DELETE", "/v1/groups/g", None).await;
    assert_eq!(world.ok(404, "GET", &format!("/v1/groups/{id}"), None).await["status"], 404);
    world.ok(204, "DELETE", "/v1/snapshots/s", None).await;
    assert_eq!(world.ok(404, "GET", "/v1/snapshots/s", None).await["code"], "UnknownSnapshot");
}

#[tokio::test]
async fn a_dead_node_is_fenced_and_the_next_one_gets_the_volume() {
    let world = World::new().await;
    world.volume("db").await;
    world.attach("db", "a").await;
    assert_eq!(world.ok(409, "DELETE", "/v1/nodes/a", None).await["code"], "InUse");
    world.ok(200, "PUT", "/v1/nodes/a/out-of-service", Some(json!({}))).await;
    let order = json!({ "node": "b", "waitSeconds": 60, "waitFor": "attached" });
    let answer = world.ok(200, "POST", "/v1/volumes/db/tickets", Some(order)).await;
    assert_eq!(answer["attached"], true);
    let nodes = world.ok(200, "GET", "/v1/nodes", None).await;
    assert!(nodes["nodes"][0]["outOfService"].is_string(), "{nodes}");
    world.ok(200, "PUT", "/v1/nodes/a", Some(json!({ "limit": 3 }))).await;
    let nodes = world.ok(200, "GET", "/v1/nodes", None).await;
    assert!(nodes["nodes"][0]["outOfService"].is_string(), "a new limit does not bring a node back: {nodes}");
    let back = world.ok(200, "DELETE", "/v1/nodes/a/out-of-service", None).await;
    assert!(back["outOfService"].is_null() && back["limit"] == 3, "{back}");
    world.ok(200, "PUT", "/v1/nodes/c", Some(json!({}))).await;
    world.ok(204, "DELETE", "/v1/nodes/c", None).await;
    assert_eq!(world.target.violations(), [""; 0]);
}

#[tokio::test]
async fn what_happens_is_listed_and_followed_from_where_one_stopped() {
    let world = World::new().await;
    world.volume("db").await;
    world.attach("db", "a").await;
    let listed = world.ok(200, "GET", "/v1/events?volume=db", None).await;
    let events = listed["events"].as_array().unwrap().clone();
    assert!(events.iter().any(|event| event["reason"] == "Attached"), "{listed}");
    let first = events[0]["at"].as_str().unwrap();
    let request = Request::get("/v1/watch?volume=db").header("last-event-id", first);
    let answer = router(world.api.clone()).oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
    assert_eq!(answer.headers()["content-type"], "text/event-stream");
    let mut stream = answer.into_body().into_data_stream();
    let mut seen = String::new();
    let followed = async {
        while !(seen.contains("Attached") && seen.contains("event: status")) {
            seen.push_str(std::str::from_utf8(&stream.next().await.unwrap().unwrap()).unwrap());
        }
        world.ok(204, "DELETE", "/v1/volumes/db/tickets", None).await;
        while !seen.contains("Detached") {
            seen.push_str(std::str::from_utf8(&stream.next().await.unwrap().unwrap()).unwrap());
        }
        // The end of the API is the end of the stream.
        world.api.stop();
        while stream.next().await.is_some() {}
    };
    tokio::time::timeout(Duration::from_secs(20), followed)
        .await
        .expect("the stream has everything, and ends");
    assert!(seen.contains("\nid: ") && !seen.contains(&format!("id: {first}\n")), "{seen}");
    assert!(!world.api.is_ready());
}

#[tokio::test]
async fn lists_come_in_pages_and_room_and_drift_are_told() {
    let world = World::new().await;
    for name in ["a", "b", "c"] {
        world.volume(name).await;
    }
    let (mut names, mut after) = (vec![], String::new());
    loop {
        let page = world.ok(200, "GET", &format!("/v1/volumes?limit=2{after}"), None).await;
        names.extend(page["volumes"].as_array().unwrap().iter().map(|volume| volume["name"].clone()));
        let Some(next) = page["next"].as_str() else { break };
        after = format!("&after={next}");
    }
    names.sort_by_key(ToString::to_string);
    assert_eq!(names, ["a", "b", "c"]);
    let room = world.ok(200, "GET", "/v1/capacity", None).await;
    assert_eq!(room["promised"], 3_u64 << 30);
    let doctor = world.ok(200, "GET", "/v1/doctor", None).await;
    assert_eq!(doctor["drift"], json!({ "unknown": [], "missing": [] }));
    world.target.lose(&world.target.items()[0]);
    let doctor = world.ok(200, "GET", "/v1/doctor", None).await;
    assert_eq!(doctor["drift"]["missing"].as_array().unwrap().len(), 1);
    world.target.set_silent(true);
    tokio::time::pause();
    let doctor = world.ok(200, "GET", "/v1/doctor", None).await;
    assert_eq!(doctor["drift"], Value::Null, "a target that does not answer is no reason to tell nothing");
    let last = doctor["findings"].as_array().unwrap().last().unwrap();
    assert_eq!((&last["what"], &last["present"]), (&json!("records and storage, compared"), &json!(false)));
    let volume = world.ok(200, "GET", "/v1/volumes/b", None).await;
    assert_eq!(volume["name"], "b", "and neither is it for a volume");
    let fault = volume["fault"].as_str().unwrap();
    assert!(fault.starts_with("it is not known whether it is well: no answer within"), "{fault}");
    world.target.set_silent(false);
    tokio::time::resume();
    let metrics = world.ok(200, "GET", "/metrics", None).await;
    assert!(metrics.as_str().unwrap().contains("bowline_volumes 3"), "{metrics}");
    assert!(metrics.as_str().unwrap().ends_with("# EOF\n"));
}

#[tokio::test]
async fn waiting_for_a_volume_never_keeps_out_whoever_gives_it_back() {
    let world = Arc::new(World::new().await);
    world.volume("db").await;
    world.attach("db", "a").await;
    let waiting: Vec<_> = (0..300)
        .map(|number| {
            let world = Arc::clone(&world);
            let order = json!({ "node": "b", "name": format!("w{number}"), "waitSeconds": 3600, "waitFor": "attached" });
            tokio::spawn(async move { world.ask("POST", "/v1/volumes/db/tickets", Some(order)).await.0 })
        })
        .collect();
    while world.ok(200, "GET", "/v1/tickets?volume=db", None).await["tickets"].as_array().unwrap().len() < 257
    {
        tokio::task::yield_now().await;
    }
    world.ok(204, "DELETE", "/v1/volumes/db/tickets?node=a", None).await;
    for waiting in waiting {
        // Those that had to wait for their turn to ask were served, or told to ask again.
        assert!(matches!(waiting.await.unwrap().as_u16(), 200 | 503));
    }
}

#[tokio::test]
async fn a_stop_does_not_wait_for_those_who_wait() {
    let world = Arc::new(World::new().await);
    world.volume("db").await;
    world.attach("db", "a").await;
    let order = json!({ "node": "b", "waitSeconds": 3600, "waitFor": "attached" });
    let asked = {
        let world = Arc::clone(&world);
        tokio::spawn(async move { world.ask("POST", "/v1/volumes/db/tickets", Some(order)).await })
    };
    while world.ok(200, "GET", "/v1/tickets?volume=db", None).await["tickets"].as_array().unwrap().len() < 2 {
        tokio::task::yield_now().await;
    }
    world.api.stop();
    let (status, answer) =
        tokio::time::timeout(Duration::from_secs(20), asked).await.expect("it ends").unwrap();
    assert_eq!((status.as_u16(), &answer["attached"]), (202, &json!(false)), "{answer}");
}
