//! The API over TLS: the handshake, who is let in, and what happens to connections that are no good.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed check is a panic")]

use async_trait::async_trait;
use axum::http::Method;
use bowline_engine::SystemClock;
use bowline_web::{Api, Certificate, Gate, ListenError, Parts, Refusal, SecureServer};
use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

/// Knows two tokens, one that may look and one that may change.
struct Two;

#[async_trait]
impl Gate for Two {
    async fn admit(&self, token: &str, method: &Method) -> Result<(), Refusal> {
        match token {
            "edit" => Ok(()),
            "view" if method == Method::GET => Ok(()),
            "view" => Err(Refusal::Forbidden("view may only look".to_owned())),
            "later" => Err(Refusal::Unchecked("nobody answers".to_owned())),
            _ => Err(Refusal::Unknown("show a token".to_owned())),
        }
    }
}

fn certificate() -> (String, String) {
    let made = rcgen::generate_simple_self_signed(["bowline".to_owned()]).unwrap();
    (made.cert.pem(), made.signing_key.serialize_pem())
}

struct World {
    place: tempfile::TempDir,
    address: SocketAddr,
    api: Api,
    stop: oneshot::Sender<()>,
    ended: tokio::task::JoinHandle<std::io::Result<()>>,
}

impl World {
    async fn new(pair: &(String, String)) -> Self {
        let place = tempfile::tempdir().unwrap();
        let files = Certificate::Files {
            certificate: Self::put(&place, "tls.crt", &pair.0),
            key: Self::put(&place, "tls.key", &pair.1),
        };
        let api = Api::in_cluster(Parts {
            clock: Arc::new(SystemClock),
            registry: Arc::default(),
            probe: Arc::new(Vec::new),
            version: "1.2.3",
            node: "bowline-controller-a".to_owned(),
        });
        let server = SecureServer::bind("127.0.0.1:0".parse().unwrap(), files, Arc::new(Two)).await.unwrap();
        let address = server.address().unwrap();
        let (stop, stopped) = oneshot::channel();
        let ended = tokio::spawn(server.run(api.clone(), async {
            let _ = stopped.await;
        }));
        Self { place, address, api, stop, ended }
    }

    fn put(place: &tempfile::TempDir, name: &str, text: &str) -> PathBuf {
        let path = place.path().join(name);
        fs::write(&path, text).unwrap();
        path
    }

    /// Everything that comes back, if the certificate shown is this one.
    async fn said(&self, certificate: &str, request: &str) -> Result<String, std::io::Error> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()).unwrap();
        let provider = tokio_rustls::rustls::crypto::aws_lc_rs::default_provider();
        let config = ClientConfig::builder_with_provider(Arc::new(provider))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let stream = TcpStream::connect(self.address).await?;
        let name = ServerName::try_from("bowline").unwrap();
        let mut stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await?;
        stream.write_all(request.as_bytes()).await?;
        let mut answer = vec![];
        // A server that closes without saying so has said everything before.
        let _ = stream.read_to_end(&mut answer).await;
        Ok(String::from_utf8(answer).unwrap())
    }
}

fn ask(method: &str, path: &str, headers: &str) -> String {
    let body = if method == "GET" { "" } else { "{}" };
    let length = body.len();
    format!(
        "{method} {path} HTTP/1.1\r\nHost: 10.0.0.7\r\nConnection: close\r\nContent-Type: application/json\r\n\
         Content-Length: {length}\r\n{headers}\r\n{body}"
    )
}

fn status(answer: &str) -> u16 {
    answer.split(' ').nth(1).unwrap_or_else(|| panic!("no answer: {answer:?}")).parse().unwrap()
}

#[tokio::test]
async fn whoever_comes_over_tls_shows_a_token_in_one_of_two_headers() {
    let pair = certificate();
    let world = World::new(&pair).await;
    for (method, path, headers, expected, words) in [
        ("GET", "/healthz", "", 200, "ok"),
        ("GET", "/v1/volumes", "", 401, "show a token"),
        ("GET", "/metrics", "", 401, "show a token"),
        ("GET", "/v1/volumes", "bowline-token: nonsense\r\n", 401, "show a token"),
        ("GET", "/v1/volumes", "Authorization: Basic edit\r\n", 401, "show a token"),
        ("GET", "/v1/volumes", "bowline-token: later\r\n", 503, "nobody answers"),
        ("GET", "/v1/volumes", "bowline-token: view\r\n", 503, "Starting"),
        ("GET", "/v1/volumes", "Authorization: Bearer view\r\n", 503, "Starting"),
        ("GET", "/metrics", "bowline-token: view\r\n", 200, "EOF"),
        ("PUT", "/v1/nodes/a", "bowline-token: view\r\n", 403, "view may only look"),
        ("DELETE", "/v1/nodes/a", "Authorization: Bearer view\r\n", 403, "view may only look"),
        ("PUT", "/v1/nodes/a", "bowline-token: edit\r\n", 503, "Starting"),
        // What is meant is what is guarded.
        ("GET", "/healthz", "bowline-path: /v1/volumes\r\n", 401, "show a token"),
        ("GET", "/v1/a/b", "bowline-token: view\r\nbowline-path: /v1/a%2Fb\r\n", 404, "nothing at /v1/a%2Fb"),
    ] {
        let answer = world.said(&pair.0, &ask(method, path, headers)).await.unwrap();
        assert_eq!(status(&answer), expected, "{method} {path} {headers}: {answer}");
        assert!(answer.contains(words), "{method} {path} {headers}: {answer}");
        assert!(expected < 400 || answer.contains("application/problem+json"), "{answer}");
    }
}

#[tokio::test]
async fn a_process_that_does_not_lead_says_who_does() {
    let pair = certificate();
    let world = World::new(&pair).await;
    world.api.led_by(Some("bowline-controller-b".to_owned()));
    for path in ["/v1/volumes", "/v1/doctor", "/v1/watch"] {
        let answer = world.said(&pair.0, &ask("GET", path, "bowline-token: view\r\n")).await.unwrap();
        assert_eq!(status(&answer), 503, "{path}: {answer}");
        assert!(answer.contains(r#""code":"NotLeading""#), "{path}: {answer}");
        assert!(answer.contains("bowline-controller-b leads, and this is bowline-controller-a"), "{answer}");
    }
    world.api.led_by(None);
    let answer = world.said(&pair.0, &ask("GET", "/v1/volumes", "bowline-token: view\r\n")).await.unwrap();
    assert!(answer.contains(r#""code":"Starting""#), "{answer}");
}

#[tokio::test]
async fn connections_that_are_no_good_hold_up_nobody() {
    let pair = certificate();
    let world = World::new(&pair).await;
    // More than may be in a handshake at once would wait for these; so many do not.
    let silent: Vec<TcpStream> = {
        let mut silent = vec![];
        for _ in 0..100 {
            silent.push(TcpStream::connect(world.address).await.unwrap());
        }
        silent
    };
    let mut plain = TcpStream::connect(world.address).await.unwrap();
    plain.write_all(ask("GET", "/healthz", "").as_bytes()).await.unwrap();
    let mut answer = vec![];
    let _ = plain.read_to_end(&mut answer).await;
    assert!(!String::from_utf8_lossy(&answer).contains("200 OK"), "answered without TLS");
    assert_eq!(status(&world.said(&pair.0, &ask("GET", "/healthz", "")).await.unwrap()), 200);
    drop(silent);
    world.stop.send(()).unwrap();
    world.ended.await.unwrap().unwrap();
    assert!(TcpStream::connect(world.address).await.is_err(), "it still listens");
}

#[tokio::test]
async fn a_new_certificate_is_shown_without_a_restart_and_a_bad_one_never() {
    let (first, second) = (certificate(), certificate());
    let world = World::new(&first).await;
    let health = ask("GET", "/healthz", "");
    World::put(&world.place, "tls.crt", "nonsense");
    assert_eq!(status(&world.said(&first.0, &health).await.unwrap()), 200, "the one before stays");
    World::put(&world.place, "tls.crt", &second.0);
    assert_eq!(status(&world.said(&first.0, &health).await.unwrap()), 200, "half a pair is none");
    World::put(&world.place, "tls.key", &second.1);
    assert_eq!(status(&world.said(&second.0, &health).await.unwrap()), 200);
    assert!(world.said(&first.0, &health).await.is_err(), "the old one is still shown");
}

#[tokio::test]
async fn without_a_certificate_nothing_listens() {
    let pem = Certificate::Pem { certificate: vec![], key: vec![] };
    let bound = SecureServer::bind("127.0.0.1:0".parse().unwrap(), pem, Arc::new(Two)).await;
    assert!(matches!(bound, Err(ListenError::Certificate(_))));
}
