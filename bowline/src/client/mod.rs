//! The way to `bowline up`: HTTP over the socket in its data directory.

use bowline_web::Problem;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io;
use std::path::{Path, PathBuf};
use tokio::net::UnixStream;

use crate::config::api_socket;
use crate::failure::{Exit, Failure};

/// Bytes of one answer: a page of a thousand volumes is far below.
const ANSWER_BYTES: usize = 64 << 20;

/// A way to one `bowline up`. Every call has a connection of its own, so that one that waits holds up no other.
#[derive(Clone, Debug)]
pub struct Client {
    data: PathBuf,
}

impl Client {
    /// The way to whoever keeps everything in `data`.
    pub fn new(data: &Path) -> Self {
        Self { data: data.to_owned() }
    }

    /// The socket it uses.
    pub fn socket(&self) -> PathBuf {
        api_socket(&self.data)
    }

    /// Asks.
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Failure> {
        let (_, body) = self.call(Method::GET, path, None).await?;
        read(&body)
    }

    /// Sends an order, and reads its answer.
    pub async fn send<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        order: &impl Serialize,
    ) -> Result<(StatusCode, T), Failure> {
        let order = serde_json::to_vec(order).map_err(|error| Failure::failed(error.to_string()))?;
        let (status, body) = self.call(method, path, Some(order)).await?;
        Ok((status, read(&body)?))
    }

    /// Sends an order that has no answer but that it is done.
    pub async fn delete(&self, path: &str) -> Result<Bytes, Failure> {
        Ok(self.call(Method::DELETE, path, None).await?.1)
    }

    /// Follows what happens: the answer comes piece by piece.
    pub async fn follow(&self, path: &str) -> Result<Incoming, Failure> {
        let answer = self.ask(Method::GET, path, None).await?;
        if answer.status().is_success() {
            return Ok(answer.into_body());
        }
        let status = answer.status();
        Err(problem(status, &whole(answer).await?))
    }

    async fn call(
        &self,
        method: Method,
        path: &str,
        order: Option<Vec<u8>>,
    ) -> Result<(StatusCode, Bytes), Failure> {
        let answer = self.ask(method, path, order).await?;
        let status = answer.status();
        let body = whole(answer).await?;
        if status.is_success() { Ok((status, body)) } else { Err(problem(status, &body)) }
    }

    async fn ask(
        &self,
        method: Method,
        path: &str,
        order: Option<Vec<u8>>,
    ) -> Result<Response<Incoming>, Failure> {
        let stream = UnixStream::connect(self.socket()).await.map_err(|error| self.not_there(&error))?;
        let lost =
            |error: hyper::Error| Failure::failed(format!("the connection to bowline up broke: {error}"));
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(lost)?;
        tokio::spawn(async move {
            // Whoever waits for the answer hears of it.
            let _ = connection.await;
        });
        let mut request = Request::builder().method(method).uri(path).header("host", "localhost");
        if order.is_some() {
            request = request.header("content-type", "application/json");
        }
        let request = request
            .body(Full::new(Bytes::from(order.unwrap_or_default())))
            .map_err(|error| Failure::failed(error.to_string()))?;
        sender.send_request(request).await.map_err(lost)
    }

    /// What to do when nobody answers.
    fn not_there(&self, error: &io::Error) -> Failure {
        let (socket, data) = (self.socket(), self.data.display().to_string());
        let socket = socket.display();
        Failure::failed(match error.kind() {
            io::ErrorKind::NotFound => format!(
                "no bowline runs in {data}: start one with `bowline up --data {data}`, or say with --data (or \
                 BOWLINE_DATA) where it keeps its data"
            ),
            io::ErrorKind::ConnectionRefused => format!(
                "nobody answers on {socket}: the bowline there was killed; start it again with `bowline up --data {data}`"
            ),
            io::ErrorKind::PermissionDenied => {
                format!("{socket} is for the user that runs bowline up alone: try again with sudo")
            }
            _ => format!("cannot connect to {socket}: {error}"),
        })
    }
}

async fn whole(answer: Response<Incoming>) -> Result<Bytes, Failure> {
    let body = Limited::new(answer.into_body(), ANSWER_BYTES).collect().await;
    Ok(body
        .map_err(|error| Failure::failed(format!("the answer of bowline up broke off: {error}")))?
        .to_bytes())
}

fn read<T: DeserializeOwned>(body: &Bytes) -> Result<T, Failure> {
    serde_json::from_slice(body).map_err(|error| {
        let version = env!("CARGO_PKG_VERSION");
        Failure::failed(format!("the answer is not understood by this bowline, {version}: {error}"))
    })
}

fn problem(status: StatusCode, body: &Bytes) -> Failure {
    match serde_json::from_slice::<Problem>(body) {
        Ok(problem) => problem.into(),
        Err(_) => Failure { exit: Exit::Failed, message: format!("bowline up answered {status}") },
    }
}

/// A path with the parts between the slashes written so that nothing in them is read as more than a name.
pub fn path(parts: &[&str]) -> String {
    parts.iter().map(|part| format!("/{}", escaped(part))).collect()
}

/// What follows the `?`; what is not given is left out.
pub fn query(pairs: &[(&str, Option<String>)]) -> String {
    let given: Vec<String> = pairs
        .iter()
        .filter_map(|(name, value)| value.as_ref().map(|value| format!("{name}={}", escaped(value))))
        .collect();
    if given.is_empty() { String::new() } else { format!("?{}", given.join("&")) }
}

fn escaped(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'~');
    // Dots too: a part that is only dots would be read as a way through the tree.
    text.bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_written_so_that_they_stay_names() {
        assert_eq!(
            path(&["v1", "volumes", "a/b ?#%ä..", "why"]),
            "/v1/volumes/a%2Fb%20%3F%23%25%C3%A4%2E%2E/why"
        );
        assert_eq!(query(&[("a", None), ("b", Some("x&y".to_owned()))]), "?b=x%26y");
        assert_eq!(query(&[("a", None)]), "");
    }

    #[tokio::test]
    async fn when_nobody_is_there_one_sentence_says_what_to_do() {
        let place = tempfile::tempdir().unwrap();
        let client = Client::new(place.path());
        let told = client.get::<serde_json::Value>("/v1/volumes").await.unwrap_err();
        assert!(told.message.contains("start one with `bowline up --data "), "{}", told.message);
        assert_eq!(told.exit, Exit::Failed);
        drop(std::os::unix::net::UnixListener::bind(client.socket()).unwrap());
        let told = client.get::<serde_json::Value>("/v1/volumes").await.unwrap_err();
        assert!(told.message.contains("nobody answers on"), "{}", told.message);
    }
}
