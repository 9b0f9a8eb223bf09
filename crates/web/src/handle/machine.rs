use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use std::fmt::Write;
use std::sync::PoisonError;
use std::time::Duration;

use super::PageQuery;
use crate::api::Api;
use crate::extract::Asked;
use crate::problem::Problem;
use crate::routes::{ROUTES, description};
use crate::wire::{Capacity, Doctor, Event, Events, Finding, Orphans};

/// What happened, newest last; of one volume only if given.
#[utoipa::path(get, path = "/v1/events", tag = "events", params(PageQuery), responses(
    (status = 200, body = Events), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(crate) async fn events(
    State(api): State<Api>,
    Asked(page): Asked<PageQuery>,
) -> Result<Json<Events>, Problem> {
    let catalog = api.catalog()?;
    let of = match &page.volume {
        Some(text) => Some(catalog.find_volume(text).await?.id),
        None => None,
    };
    let events = catalog.events(of.as_ref(), page.limit()?);
    Ok(Json(Events { events: events.into_iter().map(Event::from).collect() }))
}

/// How much room there is for new volumes.
#[utoipa::path(get, path = "/v1/capacity", tag = "machine", responses(
    (status = 200, body = Capacity), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(crate) async fn capacity(State(api): State<Api>) -> Result<Json<Capacity>, Problem> {
    Ok(Json(api.catalog()?.capacity().await?.into()))
}

/// How long records are compared with storage, before the rest is told without it.
const COMPARE: Duration = Duration::from_secs(15);

/// What was found out about the machine, and where records and storage disagree.
#[utoipa::path(get, path = "/v1/doctor", tag = "machine", responses(
    (status = 200, body = Doctor), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(crate) async fn doctor(State(api): State<Api>) -> Result<Json<Doctor>, Problem> {
    let (drift, unknown) = match api.catalog() {
        // A target that does not answer is what somebody may be looking for: the rest is told all the same.
        Ok(catalog) => match tokio::time::timeout(COMPARE, catalog.drift()).await {
            Ok(Ok(drift)) => (Some(drift.into()), None),
            Ok(Err(error)) => (None, Some(error.to_string())),
            Err(_) => (None, Some(format!("a target has not answered within {COMPARE:?}"))),
        },
        // Another process has the records, and can tell more.
        Err(problem) if problem.code == "NotLeading" => return Err(problem),
        Err(_) => (None, None),
    };
    let probe = api.inner.parts.probe.clone();
    let findings = tokio::task::spawn_blocking(move || probe()).await;
    let mut findings = findings.map_err(|error| Problem::new("Broken", error.to_string()))?;
    findings.extend(unknown.map(|detail| Finding {
        what: "records and storage, compared".to_owned(),
        needed_for: "knowing that nothing is lost".to_owned(),
        present: false,
        detail,
        required: true,
    }));
    let (version, node) = (api.inner.parts.version.to_owned(), api.inner.parts.node.clone());
    Ok(Json(Doctor { version, node, findings, drift }))
}

/// Volumes on targets that no record knows of.
#[utoipa::path(get, path = "/v1/orphans", tag = "machine", responses(
    (status = 200, body = Orphans), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(crate) async fn orphans(State(api): State<Api>) -> Result<Json<Orphans>, Problem> {
    let found = api.catalog()?.orphans().await?;
    Ok(Json(Orphans { orphans: found.into_iter().map(Into::into).collect() }))
}

/// Everything that is counted, as OpenMetrics text.
#[utoipa::path(get, path = "/metrics", tag = "machine", responses(
    (status = 200, body = String, content_type = "application/openmetrics-text")))]
pub(crate) async fn metrics(State(api): State<Api>) -> Result<Response, Problem> {
    if let Ok(catalog) = api.catalog() {
        // The gauges of room are set when somebody asks; a target that does not answer leaves them as they were.
        let _ = tokio::time::timeout(Duration::from_secs(2), catalog.capacity()).await;
    }
    let mut text = String::new();
    {
        let registry = api.inner.parts.registry.lock().unwrap_or_else(PoisonError::into_inner);
        prometheus_client::encoding::text::encode(&mut text, &registry)
            .map_err(|error| Problem::new("Broken", error.to_string()))?;
    }
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    Ok(([(header::CONTENT_TYPE, kind)], text).into_response())
}

/// Whether the process runs.
#[utoipa::path(get, path = "/healthz", tag = "machine", responses((status = 200, body = String)))]
pub(crate) async fn healthz() -> &'static str {
    "ok\n"
}

/// Whether it is ready for work.
#[utoipa::path(get, path = "/readyz", tag = "machine", responses((status = 200, body = String),
    (status = 503, body = Problem, content_type = "application/problem+json")))]
pub(crate) async fn readyz(State(api): State<Api>) -> Result<&'static str, Problem> {
    if api.is_ready() { Ok("ready\n") } else { Err(Problem::new("Starting", "not ready for work")) }
}

/// This description.
#[utoipa::path(get, path = "/openapi.json", tag = "machine", responses((status = 200, body = Object)))]
pub(crate) async fn openapi() -> Response {
    match description() {
        Ok(text) => ([(header::CONTENT_TYPE, "application/json")], text).into_response(),
        Err(error) => Problem::new("Broken", error.to_string()).into_response(),
    }
}

/// What can be asked, for people.
#[utoipa::path(get, path = "/", tag = "machine", responses((status = 200, body = String)))]
pub(crate) async fn index() -> Response {
    let mut text = "Bowline\n\nThe description for programs is at /openapi.json.\n\n".to_owned();
    for (method, path) in ROUTES {
        let _ = writeln!(text, "{:<7} {path}", method.to_uppercase());
    }
    (StatusCode::OK, [(header::CONTENT_TYPE, "text/plain; charset=utf-8")], text).into_response()
}
