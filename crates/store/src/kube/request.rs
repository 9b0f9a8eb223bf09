//! Requests: bounded in time, repeated only where that cannot do harm, with errors that say what is known.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use bowline_api::{GROUP, VERSION};
use futures::StreamExt;
use futures::stream::BoxStream;
use kube::Client;
use kube::api::{
    DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions, WatchEvent, WatchParams,
};
use kube::client::Body;
use kube::core::{Request, Status, request};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, timeout};

use super::Guard;
use super::object::{self, Object, Place};
use crate::{Key, StoreError};

/// How the API server is called in messages.
pub(crate) const PLACE: &str = "the Kubernetes API server";

/// How many writes are under way at once. Each has a connection of its own, and a thousand of them would spend their time on greetings.
const WRITES: usize = 64;
/// How long one request may take.
const REQUEST: Duration = Duration::from_secs(10);
/// For how long a read is repeated, and a write that certainly did not happen.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long the server keeps a watch; it is asked to end it, so that connections move between servers.
const WATCH_SECONDS: u32 = 280;

/// The raw requests, and who may make them.
pub(crate) struct Api {
    client: Client,
    guard: Arc<dyn Guard>,
    writes: Semaphore,
}

/// Why a request did not do what it was meant to.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// There is no such object.
    NotFound,
    /// There is one already.
    Exists,
    /// The object is not as expected.
    Conflict,
    /// The changes or the list asked for are no longer kept.
    Expired,
    /// The server has too much to do; it did nothing.
    Busy(String),
    /// The server will not do it; it did nothing.
    Refused(String),
    /// We may not; nothing was asked.
    NotLeader(String),
    /// Nobody knows.
    Silent(String),
}

impl Trouble {
    /// The store's error for a request about this record.
    pub(crate) fn on(self, key: &Key) -> StoreError {
        let silent = |reason| StoreError::Unavailable { place: PLACE.to_owned(), reason };
        match self {
            Trouble::NotFound | Trouble::Exists | Trouble::Conflict => {
                StoreError::Conflict { key: key.clone(), current: None }
            }
            Trouble::Refused(reason) => StoreError::Refused { key: key.clone(), reason },
            Trouble::NotLeader(reason) => StoreError::NotLeader { reason },
            Trouble::Busy(reason) | Trouble::Silent(reason) => silent(reason),
            Trouble::Expired => silent("it no longer has what was asked for".to_owned()),
        }
    }
}

#[derive(Deserialize)]
pub(crate) struct List {
    pub(crate) metadata: ListMeta,
    pub(crate) items: Vec<Object>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ListMeta {
    pub(crate) resource_version: String,
    #[serde(default, rename = "continue")]
    pub(crate) next: Option<String>,
}

pub(crate) type Events = BoxStream<'static, Result<WatchEvent<Object>, Trouble>>;

type Ready = Result<http::Request<Vec<u8>>, request::Error>;

impl Api {
    pub(crate) fn new(client: Client, guard: Arc<dyn Guard>) -> Api {
        Api { client, guard, writes: Semaphore::new(WRITES) }
    }

    pub(crate) async fn get(&self, place: &Place) -> Result<Object, Trouble> {
        self.read(at(place.collection).get(&place.name, &Default::default()), &place.name).await
    }

    pub(crate) async fn list(
        &self,
        collection: &str,
        limit: u32,
        next: Option<&str>,
    ) -> Result<List, Trouble> {
        let mut params = ListParams::default().limit(limit);
        params.continue_token = next.map(str::to_owned);
        self.read(at(collection).list(&params), "").await
    }

    /// The changes after a revision, as long as the server likes. Not repeated: whoever follows knows where it stands.
    pub(crate) async fn watch(&self, collection: &str, from: &str) -> Result<Events, Trouble> {
        let request = at(collection).watch(&WatchParams::default().timeout(WATCH_SECONDS), from);
        let request = request.map_err(|error| Trouble::Refused(error.to_string()))?;
        let opened = within(self.client.request_events::<Object>(request)).await;
        let events = opened.map_err(|error| classify(error, ""))?;
        Ok(events.map(|event| event.map_err(|error| classify(Failed::Answered(Box::new(error)), ""))).boxed())
    }

    pub(crate) async fn create(&self, place: &Place, spec: &Value) -> Result<Object, Trouble> {
        let body = bytes(&object::body(place, spec))?;
        self.write(at(place.collection).create(&PostParams::default(), body), &place.name).await
    }

    /// The compare-and-swap. What else an object has does not count in a request of this kind.
    pub(crate) async fn put_status(
        &self,
        place: &Place,
        expected: &str,
        status: &Map<String, Value>,
    ) -> Result<Object, Trouble> {
        let body = bytes(&json!({
            "apiVersion": format!("{GROUP}/{VERSION}"),
            "kind": place.kind,
            "metadata": { "name": place.name, "resourceVersion": expected },
            "status": status,
        }))?;
        let request =
            at(place.collection).replace_subresource("status", &place.name, &PostParams::default(), body);
        self.write(request, &place.name).await
    }

    pub(crate) async fn patch_status(&self, place: &Place, patch: &Value) -> Result<Object, Trouble> {
        let patch = Patch::Merge(patch);
        let request =
            at(place.collection).patch_subresource("status", &place.name, &PatchParams::default(), &patch);
        self.write(request, &place.name).await
    }

    /// Changes the finalizers of an object that is still as it was read.
    pub(crate) async fn set_finalizers(
        &self,
        place: &Place,
        object: &Object,
        finalizers: Vec<String>,
    ) -> Result<Object, Trouble> {
        let known = &object.metadata;
        let patch = Patch::Merge(json!({ "metadata": {
            "resourceVersion": known.resource_version, "uid": known.uid, "finalizers": finalizers
        }}));
        self.write(at(place.collection).patch(&place.name, &PatchParams::default(), &patch), &place.name)
            .await
    }

    /// Deletes an object that is still at this version. Tells what is left of it, if finalizers keep it.
    pub(crate) async fn delete(&self, place: &Place, expected: &str) -> Result<Option<Object>, Trouble> {
        let preconditions = Preconditions { resource_version: Some(expected.to_owned()), uid: None };
        let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
        let answer: Value =
            self.write(at(place.collection).delete(&place.name, &params), &place.name).await?;
        if answer["kind"] == "Status" {
            return Ok(None);
        }
        serde_json::from_value(answer).map(Some).map_err(|error| Trouble::Silent(error.to_string()))
    }

    async fn read<T: DeserializeOwned>(&self, request: Ready, name: &str) -> Result<T, Trouble> {
        let request = request.map_err(|error| Trouble::Refused(error.to_string()))?;
        let mut pause = Pause::new();
        loop {
            let (trouble, asked) = match self.ask(&request).await {
                Ok(answer) => return Ok(answer),
                Err((failed, asked)) => (classify(failed, name), asked),
            };
            if !matches!(trouble, Trouble::Busy(_) | Trouble::Silent(_)) || !pause.take_after(asked).await {
                return Err(trouble);
            }
        }
    }

    async fn write<T: DeserializeOwned>(&self, request: Ready, name: &str) -> Result<T, Trouble> {
        let request = request.map_err(|error| Trouble::Refused(error.to_string()))?;
        let mut pause = Pause::new();
        loop {
            // Never closed. Whether it may write is asked after the waiting, immediately before.
            let permit = self.writes.acquire().await;
            self.guard.may_write().map_err(Trouble::NotLeader)?;
            let answered = self.ask(&request).await;
            drop(permit);
            let (trouble, asked) = match answered {
                Ok(answer) => return Ok(answer),
                Err((failed, asked)) => (classify(failed, name), asked),
            };
            if !matches!(trouble, Trouble::Busy(_)) || !pause.take_after(asked).await {
                return Err(trouble);
            }
        }
    }

    /// Sends it once. With a failure comes how long the server asks to be left alone, which the client does not tell.
    async fn ask<T: DeserializeOwned>(
        &self,
        request: &http::Request<Vec<u8>>,
    ) -> Result<T, (Failed, Option<Duration>)> {
        let mut asked = None;
        let answered = within(async {
            let answer = self.client.send(request.clone().map(Body::from)).await?;
            asked = retry_after(&answer);
            let code = answer.status();
            let body = answer.into_body().collect_bytes().await?;
            if code.is_client_error() || code.is_server_error() {
                return Err(kube::Error::Api(status_of(code, &body).boxed()));
            }
            serde_json::from_slice(&body).map_err(kube::Error::SerdeError)
        });
        answered.await.map_err(|failed| (failed, asked))
    }
}

/// What an answer says went wrong. Whoever turns requests away may not write a Status.
fn status_of(code: http::StatusCode, body: &[u8]) -> Status {
    serde_json::from_slice(body).unwrap_or_else(|_| {
        Status::failure(String::from_utf8_lossy(body).trim(), "").with_code(code.as_u16())
    })
}

/// In how many seconds the server wants to be asked again. It may also say a date; nobody does.
fn retry_after(answer: &http::Response<Body>) -> Option<Duration> {
    let seconds = answer.headers().get(http::header::RETRY_AFTER)?.to_str().ok()?;
    seconds.parse().ok().map(Duration::from_secs)
}

fn at(collection: &str) -> Request {
    Request::new(format!("/apis/{GROUP}/{VERSION}/{collection}"))
}

fn bytes(value: &Value) -> Result<Vec<u8>, Trouble> {
    serde_json::to_vec(value).map_err(|error| Trouble::Refused(error.to_string()))
}

enum Failed {
    Late,
    Answered(Box<kube::Error>),
}

async fn within<T>(request: impl Future<Output = Result<T, kube::Error>>) -> Result<T, Failed> {
    match timeout(REQUEST, request).await {
        Ok(answer) => answer.map_err(|error| Failed::Answered(Box::new(error))),
        Err(_) => Err(Failed::Late),
    }
}

/// What an error means. `name` is the object that was asked for: only a server that names it says that it is not there.
fn classify(failed: Failed, name: &str) -> Trouble {
    let error = match failed {
        Failed::Late => return Trouble::Silent(format!("no answer within {} s", REQUEST.as_secs())),
        Failed::Answered(error) => error,
    };
    match *error {
        kube::Error::Api(status) => judge(&status, name),
        kube::Error::BuildRequest(error) => Trouble::Refused(error.to_string()),
        // A connection that broke, an answer that makes no sense: the request may have been carried out.
        error => Trouble::Silent(causes(&error)),
    }
}

/// What an answer of the server means.
pub(crate) fn judge(status: &Status, name: &str) -> Trouble {
    let said = || status.message.clone();
    match status.code {
        404 => {
            let named = status.details.as_ref().is_some_and(|details| details.name == name);
            if status.reason == "NotFound" && named && !name.is_empty() {
                Trouble::NotFound
            } else {
                Trouble::Refused(format!(
                    "it does not know the kinds of {GROUP}/{VERSION} ({}): apply deploy/crds",
                    said()
                ))
            }
        }
        409 if status.reason == "AlreadyExists" => Trouble::Exists,
        409 => Trouble::Conflict,
        410 => Trouble::Expired,
        429 => Trouble::Busy(said()),
        400..500 => Trouble::Refused(said()),
        _ => Trouble::Silent(format!("{} {}", status.code, said())),
    }
}

fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let next = inner.to_string();
        if !text.contains(&next) {
            text = format!("{text}: {next}");
        }
        cause = inner.source();
    }
    text
}

/// Waiting between attempts: longer each time, never the same twice, and not for ever.
pub(crate) struct Pause {
    begun: Instant,
    length: Duration,
}

impl Pause {
    const FIRST: Duration = Duration::from_millis(100);
    const LONGEST: Duration = Duration::from_secs(5);

    pub(crate) fn new() -> Pause {
        Pause { begun: Instant::now(), length: Pause::FIRST }
    }

    /// Waits; `false` when there was waiting enough.
    pub(crate) async fn take(&mut self) -> bool {
        self.take_after(None).await
    }

    /// Waits beyond the time that the server asked for; `false` when there was waiting enough, or would be by then.
    async fn take_after(&mut self, asked: Option<Duration>) -> bool {
        let asked = asked.unwrap_or_default();
        if self.begun.elapsed() + asked > PATIENCE {
            return false;
        }
        sleep(asked).await;
        self.wait().await;
        true
    }

    /// Waits, however long it has been.
    pub(crate) async fn wait(&mut self) {
        // Between half and all of it, so that those who were turned away together do not come back together.
        let chance = (RandomState::new().build_hasher().finish() % 1000) as u32;
        sleep(self.length / 2 + self.length / 2000 * chance).await;
        self.length = (self.length * 2).min(Pause::LONGEST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_answer_is_judged_by_what_it_proves() {
        let status = |value: Value| serde_json::from_value::<Status>(value).unwrap();
        let key = Key::new(crate::Kind::Ledger, "db-0");
        let rows = [
            (
                json!({ "code": 404, "reason": "NotFound", "details": { "name": "db-0" } }),
                true,
                "does not exist",
            ),
            (json!({ "code": 404, "reason": "NotFound", "details": {} }), true, "deploy/crds"),
            (json!({ "code": 404, "message": "404 page not found", "reason": "" }), true, "deploy/crds"),
            (json!({ "code": 409, "reason": "Conflict" }), true, "read it again"),
            (json!({ "code": 409, "reason": "AlreadyExists" }), true, "read it again"),
            (
                json!({ "code": 403, "reason": "Forbidden", "message": "no" }),
                true,
                "refuses ledger/db-0 (no)",
            ),
            (json!({ "code": 413, "reason": "RequestEntityTooLarge", "message": "big" }), true, "(big)"),
            (json!({ "code": 422, "reason": "Invalid", "message": "bad" }), true, "(bad)"),
            (json!({ "code": 429, "reason": "TooManyRequests" }), false, "does not answer"),
            (json!({ "code": 500, "reason": "InternalError" }), false, "does not answer"),
            (json!({ "code": 503, "reason": "ServiceUnavailable" }), false, "does not answer"),
            (json!({ "code": 504, "reason": "Timeout" }), false, "does not answer"),
        ];
        for (answer, known, says) in rows {
            let error = judge(&status(answer.clone()), "db-0").on(&key);
            assert_eq!(error.outcome_known(), known, "{answer}: {error}");
            assert!(error.to_string().contains(says), "{answer}: {error}");
        }
    }

    struct Always;

    impl Guard for Always {
        fn may_write(&self) -> Result<(), String> {
            Ok(())
        }
    }

    /// What the server is to answer, one after another: a code, and after how many seconds it wants to be asked again.
    type Answers = &'static [(u16, Option<u64>)];

    /// The requests that came, each with the time since the one before.
    type Gaps = Arc<std::sync::Mutex<Vec<Duration>>>;

    /// A server that gives these answers.
    fn server(answers: Answers) -> (Api, Gaps) {
        let gaps: Gaps = Arc::default();
        let (heard, mut last) = (Arc::clone(&gaps), Instant::now());
        let service = tower::service_fn(move |_: http::Request<Body>| {
            let mut heard = heard.lock().unwrap();
            let (code, asked) = answers.get(heard.len()).copied().unwrap_or((200, None));
            heard.push(last.elapsed());
            last = Instant::now();
            let mut answer = http::Response::builder().status(code);
            if let Some(seconds) = asked {
                answer = answer.header("Retry-After", seconds);
            }
            let object = json!({ "metadata": { "name": "db", "uid": "u", "resourceVersion": "1" } });
            let body = if code == 200 { object.to_string() } else { "try again later".to_owned() };
            let answer = answer.body(Body::from(body.into_bytes())).unwrap();
            async { Ok::<_, kube::Error>(answer) }
        });
        (Api::new(Client::new(service, "default"), Arc::new(Always)), gaps)
    }

    fn place() -> Place {
        Place { collection: "volumeattachments", kind: "VolumeAttachment", name: "db".to_owned() }
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_has_too_much_to_do_is_asked_again_when_it_says_and_never_by_all_at_once() {
        let busy: Answers = &[(429, Some(3)), (429, None), (503, None), (503, Some(2))];
        let mut seconds = std::collections::BTreeSet::new();
        for _ in 0..8 {
            let (api, gaps) = server(busy);
            api.get(&place()).await.unwrap();
            let gaps = gaps.lock().unwrap().split_off(1);
            let least = [3050, 100, 200, 2400].map(Duration::from_millis);
            let most = [3103, 203, 403, 2803].map(Duration::from_millis);
            assert!(gaps.len() == 4 && (0..4).all(|n| least[n] <= gaps[n] && gaps[n] <= most[n]), "{gaps:?}");
            seconds.insert(gaps[2]);
        }
        assert!(seconds.len() > 1, "they all waited as long: {seconds:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_is_repeated_only_where_it_certainly_did_not_happen() {
        let (api, gaps) = server(&[(429, Some(1)), (429, Some(1))]);
        api.patch_status(&place(), &json!({})).await.unwrap();
        assert_eq!(gaps.lock().unwrap().len(), 3);
        let (api, gaps) = server(&[(503, Some(1))]);
        let trouble = api.patch_status(&place(), &json!({})).await.unwrap_err();
        assert!(matches!(&trouble, Trouble::Silent(why) if why == "503 try again later"), "{trouble:?}");
        assert_eq!(gaps.lock().unwrap().len(), 1);
        // Nobody waits longer than it would wait anyway.
        let (api, gaps) = server(&[(429, Some(3600))]);
        let trouble = api.patch_status(&place(), &json!({})).await.unwrap_err();
        assert!(matches!(&trouble, Trouble::Busy(why) if why == "try again later"), "{trouble:?}");
        assert_eq!(gaps.lock().unwrap().len(), 1);
    }
}
