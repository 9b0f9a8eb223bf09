//! The API over real sockets, as far as it goes without a catalog.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use bowline_engine::SystemClock;
use bowline_web::wire::Finding;
use bowline_web::{Api, ListenError, Parts, Server, Token};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::oneshot;

fn api() -> Api {
    let finding = Finding {
        what: "the right to mount".to_owned(),
        needed_for: "mounting volumes".to_owned(),
        present: true,
        detail: "CAP_SYS_ADMIN".to_owned(),
        required: true,
    };
    Api::new(Parts {
        clock: Arc::new(SystemClock),
        registry: Arc::default(),
        probe: Arc::new(move || vec![finding.clone()]),
        version: "1.2.3",
        node: "here".to_owned(),
    })
}

/// Everything that comes back until the other side closes.
async fn said(mut stream: impl AsyncReadExt + AsyncWriteExt + Unpin, request: &str) -> String {
    // A server that refuses early may close before it has read everything.
    let _ = stream.write_all(request.as_bytes()).await;
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    String::from_utf8(answer).unwrap()
}

struct World {
    place: tempfile::TempDir,
    address: SocketAddr,
    token: String,
    stop: oneshot::Sender<()>,
    ended: tokio::task::JoinHandle<std::io::Result<()>>,
}

impl World {
    async fn new() -> Self {
        let place = tempfile::tempdir().unwrap();
        let token = Token::load(&place.path().join("token")).unwrap();
        let http = Some(("127.0.0.1:0".parse().unwrap(), token));
        let socket = place.path().join("api.sock").to_str().unwrap().parse().unwrap();
        let server = Server::bind(&socket, http).await.unwrap();
        let address = server.address().unwrap();
        let (stop, stopped) = oneshot::channel();
        let ended = tokio::spawn(server.run(api(), async {
            let _ = stopped.await;
        }));
        let token = std::fs::read_to_string(place.path().join("token")).unwrap().trim().to_owned();
        Self { place, address, token, stop, ended }
    }

    fn socket(&self) -> PathBuf {
        self.place.path().join("api.sock")
    }

    async fn local(&self, request: &str) -> String {
        said(UnixStream::connect(self.socket()).await.unwrap(), request).await
    }

    async fn remote(&self, request: &str) -> String {
        said(TcpStream::connect(self.address).await.unwrap(), request).await
    }
}

fn get(path: &str, headers: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}\r\n")
}

fn post(path: &str, kind: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\r\n{body}"
    )
}

fn status(answer: &str) -> u16 {
    answer.split(' ').nth(1).unwrap_or_else(|| panic!("no answer: {answer:?}")).parse().unwrap()
}

#[tokio::test]
async fn the_socket_is_ours_alone_and_is_gone_after_the_end() {
    let world = World::new().await;
    let mode = std::fs::metadata(world.socket()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert_eq!(status(&world.local(&get("/healthz", "")).await), 200);
    let socket = world.socket();
    world.stop.send(()).unwrap();
    world.ended.await.unwrap().unwrap();
    assert!(!socket.exists());
}

#[tokio::test]
async fn whoever_comes_over_tcp_shows_the_token_and_names_this_machine() {
    let world = World::new().await;
    let shown = format!("Authorization: Bearer {}\r\n", world.token);
    for (path, headers, expected) in [
        ("/healthz", "", 200),
        ("/", "", 200),
        ("/readyz", "", 503),
        ("/metrics", "", 401),
        ("/v1/volumes", "", 401),
        ("/v1/volumes", "Authorization: Bearer nonsense\r\n", 401),
        ("/metrics", &shown, 200),
        ("/openapi.json", &shown, 200),
        ("/v1/volumes", &shown, 503),
    ] {
        let answer = world.remote(&get(path, headers)).await;
        assert_eq!(status(&answer), expected, "{path} {headers}: {answer}");
    }
    let evil = format!("GET /metrics HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n{shown}\r\n");
    assert_eq!(status(&world.remote(&evil).await), 421);
    assert_eq!(status(&world.local(&evil).await), 200, "a page cannot reach the socket");
}

#[tokio::test]
async fn before_there_is_a_catalog_everything_is_told_to_come_again() {
    let world = World::new().await;
    for (method, path) in bowline_web::ROUTES.iter().filter(|(_, path)| path.starts_with("/v1/")) {
        let path = path.replace(['{', '}'], "");
        if path == "/v1/doctor" {
            continue; // What is wrong with the machine can be told before.
        }
        let body = match (*method, path.as_str()) {
            ("post", "/v1/volumes") => r#"{"name":"a"}"#,
            ("post", "/v1/volumes/volume/grow") => r#"{"size":1}"#,
            ("post", "/v1/volumes/volume/tickets") => r#"{"node":"a"}"#,
            ("post", _) => r#"{"name":"a","volumes":["b"]}"#,
            _ => "{}",
        };
        let asked = post(&path, "application/json", body).replacen("POST", &method.to_uppercase(), 1);
        let answer = world.local(&asked).await;
        assert_eq!(status(&answer), 503, "{method} {path}: {answer}");
        assert!(
            answer.contains("application/problem+json") && answer.contains(r#""code":"Starting""#),
            "{answer}"
        );
        assert!(answer.to_lowercase().contains("retry-after: 1"), "{answer}");
    }
    let doctor = world.local(&get("/v1/doctor", "")).await;
    assert!(doctor.contains(r#""version":"1.2.3""#) && doctor.contains("CAP_SYS_ADMIN"), "{doctor}");
}

#[tokio::test]
async fn what_cannot_be_accepted_is_a_problem_that_names_it() {
    let world = World::new().await;
    let large = format!(r#"{{"name":"{}"}}"#, "x".repeat(1 << 20));
    for (request, expected, words) in [
        (post("/v1/volumes", "text/plain", "{}"), 415, "Content-Type must be application/json"),
        (
            post("/v1/volumes", "application/json; charset=utf-8", r#"{"nmae":"a"}"#),
            400,
            "nmae: unknown field",
        ),
        (post("/v1/volumes", "application/json", &large), 413, "at most 262144 bytes"),
        (get("/v1/volumes?limit=x", ""), 400, "limit"),
        (get("/v1/volumes?colour=red", ""), 400, "colour"),
        (get("/v2/volumes", ""), 404, "there is nothing at /v2/volumes"),
        (post("/v1/tickets", "application/json", "{}"), 405, "/v1/tickets does not know POST"),
    ] {
        let answer = world.local(&request).await;
        assert_eq!(status(&answer), expected, "{answer}");
        assert!(answer.contains(words) && answer.contains("application/problem+json"), "{words}: {answer}");
    }
}

#[tokio::test]
async fn an_address_that_others_reach_is_refused_for_want_of_tls() {
    let place = tempfile::tempdir().unwrap();
    let socket = place.path().join("api.sock");
    for address in ["0.0.0.0:0", "[::]:0", "192.0.2.1:8460"] {
        let token = Token::load(&place.path().join("token")).unwrap();
        let http = Some((address.parse().unwrap(), token));
        let bound = Server::bind(&socket.to_str().unwrap().parse().unwrap(), http).await;
        let Err(error @ ListenError::NeedsTls(_)) = bound else { panic!("{address} was accepted") };
        assert!(error.to_string().contains("needs TLS"), "{error}");
        assert!(!Path::new(&socket).exists());
    }
}
