//! The way to whoever answers: HTTP over the socket of a `bowline up`, or through the API server of a cluster.

mod cluster;
mod local;
mod way;

pub use way::{Installation, Said, Way};

use bowline_web::Problem;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Limited};
use hyper::body::Bytes;
use hyper::{Method, Response, StatusCode};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::failure::{Exit, Failure};
use cluster::Cluster;
use local::Local;

/// Bytes of one answer: a page of a thousand volumes is far below.
const ANSWER_BYTES: usize = 64 << 20;

/// The body of an answer, which comes piece by piece.
pub type Answer = UnsyncBoxBody<Bytes, Box<dyn std::error::Error + Send + Sync>>;

/// What is asked.
struct Call<'a> {
    method: Method,
    path: &'a str,
    order: Option<Bytes>,
}

/// A way to one Bowline.
#[derive(Clone, Debug)]
pub struct Client {
    way: To,
}

#[derive(Clone, Debug)]
enum To {
    Local(Local),
    Cluster(Cluster),
}

impl Client {
    /// The way to whoever was chosen. Nothing is asked yet.
    pub fn new(way: Way) -> Self {
        Self {
            way: match way {
                Way::Local(data) => To::Local(Local { data }),
                Way::Cluster(at) => To::Cluster(Cluster::new(at)),
            },
        }
    }

    /// What the other side is called in messages.
    pub fn whom(&self) -> &'static str {
        match &self.way {
            To::Local(_) => "bowline up",
            To::Cluster(_) => "the controller",
        }
    }

    /// Whether it is a cluster: its API server, and where Bowline is installed.
    pub(crate) async fn cluster(&self) -> Option<Result<(kube::Client, Installation), Failure>> {
        match &self.way {
            To::Local(_) => None,
            To::Cluster(cluster) => {
                Some(cluster.client().await.map(|client| (client.clone(), cluster.at().clone())))
            }
        }
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
    pub async fn follow(&self, path: &str) -> Result<Answer, Failure> {
        let answer = self.ask(Method::GET, path, None).await?;
        if answer.status().is_success() {
            return Ok(answer.into_body());
        }
        let status = answer.status();
        Err(self.problem(status, &whole(answer).await?))
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
        if status.is_success() { Ok((status, body)) } else { Err(self.problem(status, &body)) }
    }

    fn problem(&self, status: StatusCode, body: &Bytes) -> Failure {
        match serde_json::from_slice::<Problem>(body) {
            Ok(problem) => problem.into(),
            Err(_) => Failure { exit: Exit::Failed, message: format!("{} answered {status}", self.whom()) },
        }
    }

    async fn ask(
        &self,
        method: Method,
        path: &str,
        order: Option<Vec<u8>>,
    ) -> Result<Response<Answer>, Failure> {
        let call = Call { method, path, order: order.map(Bytes::from) };
        match &self.way {
            To::Local(local) => local.ask(&call).await,
            To::Cluster(cluster) => cluster.ask(&call).await,
        }
    }
}

async fn whole(answer: Response<Answer>) -> Result<Bytes, Failure> {
    let body = Limited::new(answer.into_body(), ANSWER_BYTES).collect().await;
    Ok(body.map_err(|error| Failure::failed(format!("the answer broke off: {error}")))?.to_bytes())
}

fn read<T: DeserializeOwned>(body: &Bytes) -> Result<T, Failure> {
    serde_json::from_slice(body).map_err(|error| {
        let version = env!("CARGO_PKG_VERSION");
        Failure::failed(format!("the answer is not understood by this bowline, {version}: {error}"))
    })
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
        let client = Client::new(Way::Local(place.path().to_owned()));
        let told = client.get::<serde_json::Value>("/v1/volumes").await.unwrap_err();
        assert!(told.message.contains("start one with `bowline up --data "), "{}", told.message);
        assert_eq!(told.exit, Exit::Failed);
        drop(std::os::unix::net::UnixListener::bind(place.path().join("api.sock")).unwrap());
        let told = client.get::<serde_json::Value>("/v1/volumes").await.unwrap_err();
        assert!(told.message.contains("nobody answers on"), "{}", told.message);
    }
}
