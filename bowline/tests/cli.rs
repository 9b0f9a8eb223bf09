//! The command line as a process, against the API over a real catalog on a simulated target.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use bowline::drains::DrainFile;
use bowline_controller::{Catalog, Node};
use bowline_core::{NodeId, VolumeId};
use bowline_engine::{Clock, SystemClock};
use bowline_host::helper::Helper;
use bowline_host::nvme::Kernel;
use bowline_store::{Expected, Key, MemoryStore, RedbStore, Store};
use bowline_testkit::SimTarget;
use bowline_web::{Api, Server};
use std::path::Path;
use std::process::{Command, Output};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::oneshot;

/// A `bowline up` without storage and without a kernel.
struct World {
    place: tempfile::TempDir,
    runtime: tokio::runtime::Runtime,
    stop: Option<oneshot::Sender<()>>,
    ended: Option<tokio::task::JoinHandle<std::io::Result<()>>>,
    target: Arc<SimTarget>,
}

impl World {
    fn new() -> Self {
        let place = tempfile::tempdir().unwrap();
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let target = Arc::new(SimTarget::new("sim"));
        let (stop, stopped) = oneshot::channel();
        let registry = Arc::new(Mutex::default());
        let node = |name: &str| Node {
            id: NodeId::new(name).unwrap(),
            limit: None,
            out_of_service: None,
            added_at: SystemClock.now(),
        };
        let parts = bowline_controller::Parts {
            store: Arc::new(MemoryStore::default()),
            targets: vec![Arc::clone(&target) as _],
            nodes: ["a", "b"].map(node).to_vec(),
            reports: vec![],
            clock: Arc::new(SystemClock),
            settings: Default::default(),
            registry: Arc::clone(&registry),
        };
        let socket = place.path().join("api.sock").to_str().unwrap().parse().unwrap();
        let api = Api::new(bowline_web::Parts {
            clock: Arc::new(SystemClock),
            registry,
            probe: Arc::new(Vec::new),
            version: env!("CARGO_PKG_VERSION"),
            node: "a".to_owned(),
        });
        let server = runtime.block_on(async {
            let catalog = Catalog::open(parts).await.unwrap();
            let drains = DrainFile::open(place.path().join("draining.json"), catalog.clone());
            api.drain_with(Arc::new(drains.unwrap()));
            api.open(catalog);
            Server::bind(&socket, None).await.unwrap()
        });
        let ended = runtime.spawn(server.run(api, async {
            let _ = stopped.await;
        }));
        Self { place, runtime, stop: Some(stop), ended: Some(ended), target }
    }

    fn run(&self, typed: &[&str]) -> Output {
        run(self.place.path(), typed)
    }

    /// Runs, and expects this exit code; gives what was said on stdout and on stderr.
    fn says(&self, code: i32, typed: &[&str]) -> (String, String) {
        said(code, typed, &self.run(typed))
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = self.stop.take().map(|stop| stop.send(()));
        if let Some(ended) = self.ended.take() {
            let _ = self.runtime.block_on(ended);
        }
    }
}

fn run(data: &Path, typed: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_bowline"))
        .args(typed)
        .env_clear()
        .env("BOWLINE_DATA", data)
        .output()
        .unwrap()
}

fn said(code: i32, typed: &[&str], output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(code), "{typed:?}\n{out}\n{err}");
    (out, err)
}

#[test]
fn a_newcomer_sees_why_the_second_node_was_refused() {
    let world = World::new();
    let (out, _) = world.says(0, &["volume", "create", "db", "--size", "1Gi"]);
    assert!(out.starts_with("db is ready: 1Gi, ext4"), "{out}");
    let (out, _) = world.says(0, &["attach", "db", "a", "--reason", "first", "--for", "2h"]);
    assert!(out.starts_with("db is attached to a for 2h (ticket bowline-api-a)"), "{out}");
    let (out, err) = world.says(4, &["attach", "db", "b"]);
    assert_eq!(out, "");
    for words in
        ["a has the volume for bowline-api-a", "stays in the queue", "bowline why db", "bowline detach db b"]
    {
        assert!(err.contains(words), "{words}: {err}");
    }
    let (out, _) = world.says(0, &["why", "db"]);
    assert!(out.starts_with("db is attached to a (epoch 1, since "), "{out}");
    for words in
        ["“first”", "waiting: held by a for bowline-api-a", "bowline detach db --ticket bowline-api-a"]
    {
        assert!(out.contains(words), "{words}: {out}");
    }
    let (_, err) = world.says(5, &["attach", "db", "b", "--wait", "1s"]);
    assert!(err.contains("The time is over and the ticket bowline-api-b stays"), "{err}");
    world.says(0, &["detach", "db", "--ticket", "bowline-api-a"]);
    let (out, _) = world.says(0, &["attach", "db", "b", "--wait", "10s"]);
    assert!(out.starts_with("db is attached to b"), "{out}");
    let (_, err) = world.says(1, &["volume", "delete", "db"]);
    assert!(err.starts_with("bowline: "), "{err}");
    world.says(0, &["detach", "db"]);
    world.says(0, &["volume", "delete", "db"]);
    assert!(world.target.items().is_empty() && world.target.violations().is_empty());
}

#[test]
fn every_command_has_its_answer_for_people_and_for_programs() {
    let world = World::new();
    world.says(0, &["volume", "create", "db", "--access", "rox"]);
    world.says(0, &["volume", "create", "logs"]);
    world.says(0, &["attach", "db", "a", "--read-only"]);
    world.says(0, &["attach", "db", "b", "--read-only"]);
    world.says(0, &["volume", "grow", "db", "--size", "2Gi"]);
    world.says(0, &["volume", "modify", "db", "--discard", "on", "--migratable", "2m"]);
    world.says(0, &["snapshot", "create", "s", "db"]);
    let (group, _) = world.says(0, &["-o", "json", "snapshot", "create", "g", "db", "logs"]);
    let group: serde_json::Value = serde_json::from_str(&group).unwrap();
    world.says(0, &["volume", "create", "copy", "--from-snapshot", "s"]);
    world.says(0, &["volume", "create", "twin", "--from-volume", "db"]);
    world.says(0, &["peer", "add", "c", "--max-volumes", "3"]);
    world.says(0, &["peer", "out-of-service", "c"]);
    let (out, _) = world.says(0, &["target", "drain", "sim"]);
    assert!(out.contains("bowline target drain sim --off"), "{out}");
    let (_, err) = world.says(1, &["volume", "create", "late"]);
    assert!(err.contains("drained"), "{err}");
    for command in [
        &["target", "list"][..],
        &["volume", "list"],
        &["volume", "show", "db"],
        &["snapshot", "list"],
        &["snapshot", "list", "db"],
        &["snapshot", "show", "s"],
        &["peer", "list"],
        &["why", "db"],
        &["tickets"],
        &["tickets", "db"],
        &["events"],
        &["events", "db"],
    ] {
        let (table, _) = world.says(0, command);
        assert!(table.lines().count() >= 2 && !table.contains('\x1b'), "{command:?}: {table}");
        world.says(0, &[&["-o", "wide"], command].concat());
        let (json, _) = world.says(0, &[&["-o", "json"], command].concat());
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        let (yaml, _) = world.says(0, &[&["-o", "yaml"], command].concat());
        let yaml: serde_json::Value = serde_yaml_ng::from_str(&yaml).unwrap();
        assert_eq!(json, yaml, "{command:?}");
    }
    let (out, _) = world.says(0, &["volume", "list"]);
    assert!(out.contains("a,b") && out.contains("2Gi"), "{out}");
    let (out, _) = world.says(0, &["target", "list"]);
    assert!(out.contains("sim") && out.contains("draining"), "{out}");
    world.says(0, &["target", "drain", "sim", "--off"]);
    world.says(0, &["volume", "create", "late"]);
    world.says(0, &["peer", "back-in-service", "c"]);
    world.says(0, &["peer", "remove", "c"]);
    world.says(0, &["snapshot", "delete", "--group", group["id"].as_str().unwrap()]);
    world.says(0, &["snapshot", "delete", "s"]);
}

#[test]
fn what_is_not_there_ends_with_3_and_what_is_typed_wrongly_with_2() {
    let world = World::new();
    for typed in [
        &["volume", "show", "none"][..],
        &["volume", "delete", "none"],
        &["why", "none"],
        &["snapshot", "show", "none"],
        &["peer", "remove", "none"],
        &["target", "drain", "none"],
        &["detach", "none"],
        &["attach", "none", "a"],
    ] {
        let (_, err) = world.says(3, typed);
        assert!(err.starts_with("bowline: ") && err.contains("none"), "{typed:?}: {err}");
    }
    for typed in [
        &[][..],
        &["volume"],
        &["volume", "create"],
        &["volume", "create", "a", "--size", "ten"],
        &["volume", "create", "a", "--size", "16Ei"],
        &["volume", "create", "a", "--fs", "ntfs"],
        &["volume", "create", "a", "--from-volume", "b", "--from-snapshot", "c"],
        &["volume", "create", "a", "--migratable", "1s"],
        &["volume", "modify", "a"],
        &["attach", "a"],
        &["attach", "a", "b", "--for", "2"],
        &["attach", "a", "b", "--for", "2h", "--until-removed"],
        &["detach", "a", "b", "--ticket", "c"],
        &["events", "--limit", "0"],
        &["-o", "xml", "events"],
        &["up", "--overcommit", "0.1"],
        &["up", "--http", "here"],
        &["nonsense"],
    ] {
        world.says(2, typed);
    }
    world.says(0, &["volume", "create", "db"]);
    // What is adopted comes from Kubernetes, and here is none.
    for typed in [&["adopt"][..], &["adopt", "--dry-run"]] {
        let (out, err) = world.says(1, typed);
        assert!(out.is_empty() && err.contains("--context or --kubeconfig"), "{err}");
    }
    let (_, err) = world.says(2, &["attach", "db", "b\nc"]);
    assert!(err.contains("node: node id"), "{err}");
}

#[test]
fn when_nobody_runs_one_sentence_says_what_to_do() {
    let place = tempfile::tempdir().unwrap();
    let (out, err) = said(1, &["volume", "list"], &run(place.path(), &["volume", "list"]));
    assert_eq!((out.as_str(), err.lines().count()), ("", 1), "{err}");
    assert!(err.contains("start one with `bowline up --data "), "{err}");
    let doctor = run(place.path(), &["doctor"]);
    let text = String::from_utf8(doctor.stdout).unwrap();
    assert!(text.contains("Linux 5.12") && text.contains("the data directory"), "{text}");
    assert!(text.contains("Linux 6.1") && !text.contains("shared blocks"), "{text}");
}

#[test]
fn doctor_looks_at_the_directory_that_an_agent_beside_it_exports() {
    let place = tempfile::tempdir().unwrap();
    let gone = place.path().join("gone");
    let doctor = Command::new(env!("CARGO_BIN_EXE_bowline"))
        .arg("doctor")
        .env_clear()
        .env("BOWLINE_DATA", place.path())
        .env("BOWLINE_DIRECTORY", &gone)
        .output();
    let text = String::from_utf8(doctor.unwrap().stdout).unwrap();
    for what in ["direct I/O", "shared blocks"] {
        let line = format!("{what} in {} (No such file or directory", gone.display());
        assert!(text.contains(&line), "{text}");
    }
}

#[test]
fn a_bad_configuration_stops_up_with_file_line_and_key() {
    let place = tempfile::tempdir().unwrap();
    std::fs::write(place.path().join("bowline.toml"), "node = \"a\"\nmax-volume = 3\n").unwrap();
    let (_, err) = said(2, &["up"], &run(place.path(), &["up"]));
    assert!(err.contains("bowline.toml:2: max-volume: unknown field"), "{err}");
}

#[test]
fn help_completions_and_manual_pages_are_there() {
    let place = tempfile::tempdir().unwrap();
    let (help, _) = said(0, &["--help"], &run(place.path(), &["--help"]));
    assert!(help.contains("bowline why db") && help.contains("Exit codes: 0 done"), "{help}");
    for shell in ["bash", "zsh", "fish"] {
        let (script, _) = said(0, &[shell], &run(place.path(), &["completions", shell]));
        assert!(script.contains("out-of-service"), "{shell}");
    }
    let pages = place.path().join("man");
    std::fs::create_dir(&pages).unwrap();
    let typed = ["man", pages.to_str().unwrap()];
    said(0, &typed, &run(place.path(), &typed));
    for page in ["bowline.1", "bowline-volume-create.1", "bowline-why.1"] {
        assert!(pages.join(page).exists(), "{page}");
    }
}

/// A command that goes on, and what it has said so far.
struct Running {
    child: std::process::Child,
    lines: std::io::Lines<std::io::BufReader<std::process::ChildStdout>>,
}

impl Running {
    fn begin(data: &Path, typed: &[&str]) -> Self {
        use std::io::BufRead;
        let mut child = Command::new(env!("CARGO_BIN_EXE_bowline"))
            .args(typed)
            .env_clear()
            .env("BOWLINE_DATA", data)
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let lines = std::io::BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    /// Ctrl-C; gives the exit code and what was said on stderr.
    fn interrupt(self) -> (Option<i32>, String) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
        let output = self.child.wait_with_output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    }
}

#[test]
fn ctrl_c_while_waiting_says_what_remains_true() {
    let world = World::new();
    world.says(0, &["volume", "create", "db"]);
    world.says(0, &["attach", "db", "a"]);
    let waiting = Running::begin(world.place.path(), &["attach", "db", "b", "--wait", "10m"]);
    while !world.says(0, &["tickets", "db"]).0.contains("bowline-api-b") {}
    let (code, err) = waiting.interrupt();
    assert_eq!(code, Some(5), "{err}");
    assert!(err.contains("the ticket stays; remove it with: bowline detach db b"), "{err}");
    assert!(world.says(0, &["tickets", "db"]).0.contains("bowline-api-b"), "it stays");
    world.says(0, &["detach", "db", "b"]);
    assert!(!world.says(0, &["tickets", "db"]).0.contains("bowline-api-b"));
}

#[test]
fn events_are_followed_from_the_past_into_the_future() {
    let world = World::new();
    world.says(0, &["volume", "create", "db"]);
    let mut following = Running::begin(world.place.path(), &["-o", "json", "events", "--follow"]);
    let first = following.lines.next().unwrap().unwrap();
    assert!(first.contains("\"reason\":\"Created\""), "{first}");
    world.says(0, &["attach", "db", "a"]);
    let event = following.lines.find(|line| line.as_ref().unwrap().contains("Attached")).unwrap().unwrap();
    let event: serde_json::Value = serde_json::from_str(&event).unwrap();
    assert!(event["at"].as_str().unwrap().ends_with('Z'), "{event}");
    let (code, err) = following.interrupt();
    assert_eq!((code, err.as_str()), (Some(0), ""));
}

/// What nodes and agents let a second process of this program do.
#[test]
fn a_write_to_the_kernel_is_made_by_a_process_of_its_own() {
    let place = tempfile::tempdir().unwrap();
    let at = |name: &str| place.path().join(name);
    let (file, text) = (at("nvme-fabrics"), "transport=tcp,nqn=a");
    let limit = Duration::from_secs(60);
    let node = Helper::new(env!("CARGO_BIN_EXE_bowline"), ["kernel-write"]);
    assert_eq!(node.write(&file, text, limit).unwrap_err().errno(), Some(2), "ENOENT");
    std::fs::write(&file, "").unwrap();
    node.write(&file, text, limit).unwrap();
    assert_eq!(std::fs::read_to_string(&file).unwrap(), text);
    std::fs::create_dir(at("namespace")).unwrap();
    let agent = Helper::new(env!("CARGO_BIN_EXE_bowline"), ["target", "apart"]);
    let remove = || agent.ask(&["remove", at("namespace").to_str().unwrap()], Some(limit)).unwrap();
    assert_eq!((remove(), remove()), ("done".to_owned(), "2".to_owned()));
}

#[test]
fn records_could_be_exported_and_imported_by_nobody() {
    let (old, new) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let file = old.path().join("export.jsonl");
    let typed = |command| vec!["store", command, file.to_str().unwrap()];
    let does = |data: &Path, code, command| said(code, &typed(command), &run(data, &typed(command)));
    let (_, err) = does(old.path(), 3, "export");
    assert!(err.contains("has no records"), "{err}");
    let (runtime, key) = (tokio::runtime::Runtime::new().unwrap(), Key::ledger(&VolumeId::new("v").unwrap()));
    let store = RedbStore::open(&old.path().join("store")).unwrap();
    runtime.block_on(store.put(&key, b"{}".to_vec(), Expected::Absent)).unwrap();
    let (_, err) = does(old.path(), 1, "export");
    assert!(err.contains("is in use by pid"), "{err}");
    drop(store);
    let (out, _) = does(old.path(), 0, "export");
    assert!(out.starts_with("1 records exported to "), "{out}");
    let (out, _) = does(new.path(), 0, "import");
    assert!(out.starts_with("1 records imported from "), "{out}");
    let (_, err) = does(new.path(), 1, "import");
    assert!(err.contains("is not new; nothing was imported"), "{err}");
    let store = RedbStore::open(&new.path().join("store")).unwrap();
    let found = runtime.block_on(store.get(&key)).unwrap().unwrap();
    assert_eq!(found.value, b"{}");
}
