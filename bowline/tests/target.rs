//! `bowline target` as a process: it waits for its certificates, serves, and ends when it is told to.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed check is a panic")]

use bowline_core::{TargetId, VolumeId};
use bowline_target::agent::{AgentClient, ClientSettings, ExportsShown, Place, TlsFiles};
use bowline_target::{NewVolume, Progress, Provision, Target};
use bowline_testkit::world::{Running, World, run, wait_until};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};

const BOWLINE: &str = env!("CARGO_BIN_EXE_bowline");

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// What is answered at a path; nothing while nobody listens.
fn get(port: u16, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer)
}

/// Makes certificates, or new ones; nothing in the environment of an agent is in the way of that.
fn init(place: &Path) {
    let made = Command::new(BOWLINE)
        .args(["target", "init"])
        .arg(place)
        .env("BOWLINE_TARGET_ID", "file-a")
        .env("BOWLINE_DIRECTORY", "/nonexistent")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&made.stderr);
    assert!(made.status.success(), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_waits_for_its_certificates_serves_and_ends() {
    let place = tempfile::tempdir().unwrap();
    let (port, http) = (free_port(), free_port());
    let path = |name: &str| place.path().join(name);
    let child = Command::new(BOWLINE)
        .args(["target", "--id", "file-a", "--topology", "zone=z1", "--host-name", "worker-1"])
        .args(["--listen", &format!("127.0.0.1:{port}"), "--http", &format!("127.0.0.1:{http}")])
        .arg("--directory")
        .arg(path("volumes"))
        .arg("--tls")
        .arg(path("made/agent"))
        .stderr(std::fs::File::create(path("log")).unwrap())
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    let mut agent = Running(child);
    let waiting = || get(http, "/readyz").filter(|answer| answer.contains("waiting for the certificates"));
    let answer = wait_until("the agent to say that it waits", waiting);
    assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
    assert!(get(http, "/healthz").unwrap().starts_with("HTTP/1.1 200"));
    init(&path("made"));
    wait_until("the agent to be ready", || get(http, "/readyz").filter(|answer| answer.contains("200 OK")));

    let address =
        || Place::Tls { address: format!("127.0.0.1:{port}"), files: TlsFiles::new(path("made/controller")) };
    let id = TargetId::new("file-a").unwrap();
    let client = AgentClient::connect(address(), Some(&id), ClientSettings::default()).await.unwrap();
    assert_eq!((client.id(), client.kind()), (&id, "file"));
    assert_eq!(client.look().await.exports, Ok(ExportsShown::All));
    let topology: Vec<_> = client.topology().into_iter().collect();
    let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    assert_eq!(topology, [pair("topology.bowline.storage/host", "worker-1"), pair("zone", "z1")]);
    let volume = VolumeId::new("v").unwrap();
    let order = NewVolume { volume: volume.clone(), name: "v".to_owned(), size: 1 << 20, source: None };
    assert_eq!(client.create(&order, &Progress::default()).await, Ok(1 << 20));
    assert!(path("volumes").join("vol-v.data").exists());
    let counted =
        || get(http, "/metrics").filter(|text| text.contains("bowline_target_capacity_bytes{of=\"total\"}"));
    wait_until("the room to be counted", counted);
    client.delete(&volume).await.unwrap();
    let before = std::fs::read(path("made/agent/tls.crt")).unwrap();
    init(&path("made"));
    assert_ne!(std::fs::read(path("made/agent/tls.crt")).unwrap(), before);
    let renewed = AgentClient::connect(address(), Some(&id), ClientSettings::default()).await.unwrap();
    assert_eq!(renewed.volume(&volume).await, Ok(None), "new certificates count without a restart");

    run("kill", ["-TERM", &agent.0.id().to_string()]);
    let status = tokio::task::spawn_blocking(move || agent.0.wait().unwrap()).await.unwrap();
    assert!(status.success(), "{status}\n{}", std::fs::read_to_string(path("log")).unwrap());
}

#[test]
fn an_address_without_certificates_is_wrong_usage_of_the_agent() {
    let output = Command::new(BOWLINE)
        .args(["target", "--id", "a", "--directory", "/nonexistent/x", "--listen", "127.0.0.1:1"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("needs --tls"), "{said}");
}

fn agent(place: &Path, directory: &str) -> Running {
    let child = Command::new(BOWLINE)
        .args(["target", "--id", "far", "--host-name", "worker-1", "--http", "off", "--listen"])
        .arg(format!("unix://{}", place.join("far.sock").display()))
        .arg("--directory")
        .arg(place.join(directory))
        .stderr(std::fs::File::create(place.join(format!("{directory}.log"))).unwrap())
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    Running(child)
}

#[test]
fn a_bowline_up_uses_a_target_elsewhere_comes_up_before_it_and_knows_its_storage_again() {
    let world = World::new(BOWLINE);
    let far = format!("far=unix://{}", world.path("far.sock").display());
    let up = || world.up(&["--target", "none", "--agent", &far]);
    let say = |arguments: &[&str]| {
        let output =
            Command::new(BOWLINE).arg("--data").arg(world.path("data")).args(arguments).output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8_lossy(&text).into_owned())
    };
    let daemon = up();
    let (made, said) = say(&["volume", "create", "db", "--size", "4Mi"]);
    assert!(!made, "there is no storage yet: {said}");
    let running = agent(&world.path(""), "first");
    wait_until("a volume on the target that came late", || {
        say(&["volume", "create", "db", "--size", "4Mi"]).0.then_some(())
    });
    assert!(say(&["volume", "show", "db"]).1.contains("far"));
    assert!(say(&["attach", "db", "worker-1"]).0);
    daemon.stop();
    drop(running);

    // Its own disk is not mounted, and the agent makes an empty directory. It would prove that nobody was ever let in.
    let running = agent(&world.path(""), "second");
    wait_until("the agent to listen", || world.path("far.sock").exists().then_some(()));
    let daemon = up();
    wait_until("the other storage to be refused", || {
        world.log("worker-1").contains("from other storage than before").then_some(())
    });
    let (detached, said) = say(&["detach", "db", "worker-1", "--wait", "1s"]);
    assert!(!detached && said.contains("far"), "{said}");
    drop(running);

    let _running = agent(&world.path(""), "first");
    wait_until("the right storage to prove it", || {
        say(&["detach", "db", "worker-1", "--wait", "1s"]).0.then_some(())
    });
    daemon.stop();
}

#[test]
fn a_machine_that_cannot_export_says_what_is_missing() {
    if Path::new("/sys/kernel/config/nvmet").exists() {
        bowline_testkit::say("not run: a_machine_that_cannot_export_says_what_is_missing (this one can)");
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let output = Command::new(BOWLINE)
        .args([
            "target",
            "--id",
            "a",
            "--http",
            "off",
            "--export",
            "nvmet",
            "--nvme-listen",
            "127.0.0.1:4420",
        ])
        .arg("--directory")
        .arg(place.path().join("volumes"))
        .arg("--listen")
        .arg(place.path().join("agent.sock"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && said.contains("the module nvmet is not loaded; modprobe nvmet"),
        "{said}"
    );
}

/// Who waits for it sits at the controller, and not beside its log.
#[tokio::test(flavor = "multi_thread")]
async fn a_machine_that_cannot_export_stays_and_tells_its_controller_what_is_missing() {
    if Path::new("/sys/kernel/config/nvmet").exists() {
        bowline_testkit::say(
            "not run: a_machine_that_cannot_export_stays_and_tells_its_controller_what_is_missing (this one can)",
        );
        return;
    }
    stays_and_tells("127.0.0.1", "the module nvmet is not loaded; modprobe nvmet").await;
}

/// The network is a reserved one, which no machine has.
#[tokio::test(flavor = "multi_thread")]
async fn a_machine_without_an_address_in_the_network_stays_and_tells_its_controller_which() {
    let missing = "--nvme-listen 240.1.2.0/24: this machine has no address in that network; it has ";
    stays_and_tells("240.1.2.0/24", missing).await;
}

async fn stays_and_tells(nvme_listen: &str, missing: &str) {
    let place = tempfile::tempdir().unwrap();
    let path = |name: &str| place.path().join(name);
    init(&path("made"));
    let (port, http) = (free_port(), free_port());
    let child = Command::new(BOWLINE)
        .args(["target", "--id", "a", "--export", "nvmet", "--nvme-listen", nvme_listen])
        .args(["--listen", &format!("127.0.0.1:{port}"), "--http", &format!("127.0.0.1:{http}")])
        .arg("--directory")
        .arg(path("volumes"))
        .arg("--tls")
        .arg(path("made/agent"))
        .stderr(std::fs::File::create(path("log")).unwrap())
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    let mut agent = Running(child);
    let told = || get(http, "/readyz").filter(|answer| answer.contains(missing));
    let answer = wait_until("the agent to say what is missing", told);
    assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
    assert!(std::fs::read_to_string(path("log")).unwrap().contains(missing));
    let at =
        Place::Tls { address: format!("127.0.0.1:{port}"), files: TlsFiles::new(path("made/controller")) };
    let error = AgentClient::connect(at, None, ClientSettings::default()).await.unwrap_err().to_string();
    assert!(error.contains("cannot serve yet") && error.contains(missing), "{error}");
    run("kill", ["-TERM", &agent.0.id().to_string()]);
    let status = tokio::task::spawn_blocking(move || agent.0.wait().unwrap()).await.unwrap();
    assert!(status.success(), "{status}\n{}", std::fs::read_to_string(path("log")).unwrap());
}
