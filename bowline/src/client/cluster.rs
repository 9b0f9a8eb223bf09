//! The way through the API server of a cluster, with the rights of whoever is in the kubeconfig.
//!
//! # Flow
//!
//! The API server's service proxy carries the call to the controller and checks the user's right on `services/proxy`. It
//! does not say who the user is, so a token goes with the call: one of the service account `bowline-edit`, for which the
//! API server checks the right on `serviceaccounts/token`, or else one of `bowline-view`. It is for Bowline alone and
//! valid for ten minutes.
//!
//! # Caveats
//!
//! - The Service leads to every controller; one that does not lead says so, and the call is sent again.
//! - Where the API server could not hand a call over, it does not say whether somebody has heard it. What only looks is sent again; an order is not, so
//!   somebody who answers is looked for before it is sent.

use bowline_web::{PATH_HEADER, Problem, TOKEN_HEADER};
use http_body_util::BodyExt;
use hyper::header::HeaderValue;
use hyper::{Method, Request, Response, StatusCode};
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::PostParams;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::Status;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{Mutex, OnceCell};

use super::way::Installation;
use super::{Answer, Call, whole};
use crate::failure::Failure;

/// For whom the tokens are.
const AUDIENCE: &str = "bowline.storage";

/// How long they are valid: as short as the API server makes them.
const TOKEN_SECONDS: i64 = 600;

/// The Service, with its scheme and port, as a right names it.
const SERVICE: &str = "https:bowline-api:api";

/// The accounts whose tokens are shown, the one with more rights first, and the role that lets people have them.
const ACCOUNTS: [(&str, &str); 2] =
    [("bowline-edit", "bowline-operator"), ("bowline-view", "bowline-viewer")];

/// How long a controller that leads is looked for: a change of leaders takes a second, or fifteen after a crash.
const LEADER: Duration = Duration::from_secs(20);

/// The controller of a cluster.
#[derive(Clone)]
pub(super) struct Cluster {
    inner: Arc<Inner>,
}

struct Inner {
    at: Installation,
    client: OnceCell<kube::Client>,
    token: Mutex<Option<HeaderValue>>,
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Cluster").field(&self.inner.at).finish()
    }
}

impl Cluster {
    pub(super) fn new(at: Installation) -> Self {
        Self { inner: Arc::new(Inner { at, client: OnceCell::new(), token: Mutex::default() }) }
    }

    pub(super) fn at(&self) -> &Installation {
        &self.inner.at
    }

    /// What it is called in messages.
    pub(super) fn name(&self) -> String {
        let at = &self.inner.at;
        let context = match &at.context {
            Some(context) => format!("the context {context}"),
            None => "the current context".to_owned(),
        };
        match &at.kubeconfig {
            Some(file) => format!("{context} of {}", file.display()),
            None => context,
        }
    }

    /// The client of the API server.
    pub(super) async fn client(&self) -> Result<&kube::Client, Failure> {
        self.inner.client.get_or_try_init(|| self.connect()).await
    }

    async fn connect(&self) -> Result<kube::Client, Failure> {
        let at = &self.inner.at;
        let unusable = |error: String| Failure::usage(format!("{} cannot be used: {error}", self.name()));
        let kubeconfig = match &at.kubeconfig {
            Some(file) => Kubeconfig::read_from(file),
            None => Kubeconfig::read(),
        };
        let kubeconfig = kubeconfig.map_err(|error| unusable(with_causes(&error)))?;
        let options = KubeConfigOptions { context: at.context.clone(), ..KubeConfigOptions::default() };
        let config = kube::Config::from_custom_kubeconfig(kubeconfig, &options).await;
        let mut config = config.map_err(|error| unusable(with_causes(&error)))?;
        // A controller that does not lead is one to ask again at once, and an order is not repeated blindly.
        config.default_retry = false;
        kube::Client::try_from(config).map_err(|error| unusable(with_causes(&error)))
    }

    /// Sends a call until a controller that leads has answered it.
    pub(super) async fn ask(&self, call: &Call<'_>) -> Result<Response<Answer>, Failure> {
        if call.method != Method::GET {
            self.answered(&Call { method: Method::GET, path: "/healthz", order: None }).await?;
        }
        self.answered(call).await
    }

    async fn answered(&self, call: &Call<'_>) -> Result<Response<Answer>, Failure> {
        let begun = Instant::now();
        let (mut pause, mut renewed) = (Duration::from_millis(20), false);
        loop {
            let token = self.token().await?;
            let answer = self.send(call, token).await?;
            let status = answer.status();
            if status.is_success() {
                return Ok(answer);
            }
            let body = whole(answer).await?;
            let failure = match self.refused(call, status, &body) {
                Refused::Answer => return Ok(again(status, body)),
                Refused::Token if !renewed => {
                    renewed = true;
                    *self.inner.token.lock().await = None;
                    continue;
                }
                Refused::Token => return Ok(again(status, body)),
                Refused::Nobody(failure) => failure,
                Refused::For(failure) => return Err(failure),
            };
            if begun.elapsed() >= LEADER {
                return Err(failure);
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(Duration::from_millis(500));
        }
    }

    async fn send(&self, call: &Call<'_>, token: HeaderValue) -> Result<Response<Answer>, Failure> {
        let place = format!("/api/v1/namespaces/{}/services/{SERVICE}/proxy", self.inner.at.namespace);
        let mut request = Request::builder()
            .method(&call.method)
            .uri(format!("{place}{}", call.path))
            .header(TOKEN_HEADER, token)
            .header("accept", "*/*");
        if call.path.contains('%') {
            request = request.header(PATH_HEADER, call.path);
        }
        if call.order.is_some() {
            request = request.header("content-type", "application/json");
        }
        let body = kube::client::Body::from(call.order.clone().unwrap_or_default());
        let request = request.body(body).map_err(|error| Failure::failed(error.to_string()))?;
        let answer = self.client().await?.send(request).await.map_err(|error| self.not_there(&error))?;
        Ok(answer.map(|body| body.map_err(Into::into).boxed_unsync()))
    }

    /// The token that is shown: made once, and again when it is over.
    async fn token(&self) -> Result<HeaderValue, Failure> {
        let mut kept = self.inner.token.lock().await;
        if let Some(token) = &*kept {
            return Ok(token.clone());
        }
        let namespace = &self.inner.at.namespace;
        let accounts = kube::Api::<ServiceAccount>::namespaced(self.client().await?.clone(), namespace);
        let spec = TokenRequestSpec {
            audiences: Some(vec![AUDIENCE.to_owned()]),
            expiration_seconds: Some(TOKEN_SECONDS),
            ..TokenRequestSpec::default()
        };
        let wish = TokenRequest { spec: Some(spec), ..TokenRequest::default() };
        for (account, role) in ACCOUNTS {
            let made = match accounts.create_token_request(account, &PostParams::default(), &wish).await {
                Ok(made) => made,
                Err(kube::Error::Api(status)) if status.code == 403 => {
                    if account == ACCOUNTS[1].0 {
                        return Err(Failure::failed(format!(
                            "{} does not let you ask Bowline: you need the right to create serviceaccounts/token of \
                             {account} in the namespace {namespace}, which the ClusterRole {role} has (the API server \
                             says: {})",
                            self.name(),
                            status.message
                        )));
                    }
                    continue;
                }
                Err(kube::Error::Api(status)) if status.code == 404 => {
                    return Err(self.not_installed(&status));
                }
                Err(error) => return Err(self.not_there(&error)),
            };
            let token = made.status.and_then(|status| status.token).unwrap_or_default();
            let mut token = HeaderValue::try_from(token)
                .map_err(|_| Failure::failed("the API server made a token that is none"))?;
            token.set_sensitive(true);
            *kept = Some(token.clone());
            return Ok(token);
        }
        Err(Failure::failed("no account to ask as"))
    }

    /// What an answer that is no success means.
    fn refused(&self, call: &Call<'_>, status: StatusCode, body: &[u8]) -> Refused {
        if let Ok(problem) = serde_json::from_slice::<Problem>(body) {
            return match problem.code.as_str() {
                "NotLeading" | "Starting" => Refused::Nobody(problem.into()),
                "Unauthorized" => Refused::Token,
                _ => Refused::Answer,
            };
        }
        let Ok(told) = serde_json::from_slice::<Status>(body) else { return Refused::Answer };
        match status {
            StatusCode::FORBIDDEN => Refused::For(self.forbidden(&call.method, &told)),
            StatusCode::NOT_FOUND => Refused::For(self.not_installed(&told)),
            // Nobody is ready, or nobody listens there any more. What may have been heard is not said again.
            StatusCode::SERVICE_UNAVAILABLE | StatusCode::BAD_GATEWAY => {
                let failure = Failure::failed(format!(
                    "no controller of Bowline answers in the namespace {} of {} (the API server says: {}); see \
                     kubectl -n {0} get pods",
                    self.inner.at.namespace,
                    self.name(),
                    told.message
                ));
                if call.method == Method::GET { Refused::Nobody(failure) } else { Refused::For(failure) }
            }
            _ => Refused::For(Failure::failed(format!("the API server says: {}", told.message))),
        }
    }

    fn forbidden(&self, method: &Method, told: &Status) -> Failure {
        let verb = match *method {
            Method::GET | Method::HEAD => "get",
            Method::POST => "create",
            Method::PUT => "update",
            Method::PATCH => "patch",
            _ => "delete",
        };
        let (may, role) =
            if verb == "get" { ("look", ACCOUNTS[1].1) } else { ("change anything", ACCOUNTS[0].1) };
        Failure::failed(format!(
            "{} does not let you {may} here: you need the right to {verb} services/proxy of {SERVICE} in the namespace \
             {}, which the ClusterRole {role} has (the API server says: {})",
            self.name(),
            self.inner.at.namespace,
            told.message
        ))
    }

    fn not_installed(&self, told: &Status) -> Failure {
        Failure::failed(format!(
            "there is no Bowline in the namespace {} of {}: say with --namespace (or BOWLINE_NAMESPACE) where it is \
             installed (the API server says: {})",
            self.inner.at.namespace,
            self.name(),
            told.message
        ))
    }

    fn not_there(&self, error: &kube::Error) -> Failure {
        match error {
            kube::Error::Api(status) if status.code == 401 => {
                Failure::failed(format!("{} does not know you: log in again", self.name()))
            }
            kube::Error::Api(status) => {
                Failure::failed(format!("the API server of {} says: {}", self.name(), status.message))
            }
            error => Failure::failed(format!(
                "the API server of {} cannot be asked: {}; to ask the bowline of this machine instead, give --data",
                self.name(),
                with_causes(error)
            )),
        }
    }
}

enum Refused {
    /// It is an answer of the controller, for the command to read.
    Answer,
    /// The token is not known (any more).
    Token,
    /// Nobody could answer; perhaps somebody can in a moment.
    Nobody(Failure),
    /// For good.
    For(Failure),
}

/// An answer that was read already.
fn again(status: StatusCode, body: hyper::body::Bytes) -> Response<Answer> {
    let body = http_body_util::Full::new(body).map_err(|never| match never {}).boxed_unsync();
    let mut answer = Response::new(body);
    *answer.status_mut() = status;
    answer
}

/// What an error says, and what is behind it.
fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(behind) = cause {
        let words = behind.to_string();
        if !text.contains(&words) {
            text.push_str(": ");
            text.push_str(&words);
        }
        cause = behind.source();
    }
    text
}
