use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Sse;
use axum::response::sse::{self, KeepAlive};
use bowline_controller::Catalog;
use bowline_core::{Timestamp, VolumeId};
use futures::stream::{self, BoxStream, Stream, StreamExt};
use std::convert::Infallible;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, broadcast, watch};

use super::PageQuery;
use super::tickets::explained;
use crate::api::Api;
use crate::extract::Asked;
use crate::problem::Problem;
use crate::wire::Event;

/// So many events are looked through for what a follower that comes back has missed.
const REPLAYED: usize = 1000;

/// Server-sent events: `event` for everything that happens, with an id to go on from (`Last-Event-ID`); `status` with the
/// answer of `why` for every change, if one volume is asked for; `missed` if the follower was too slow.
#[utoipa::path(get, path = "/v1/watch", tag = "events", params(PageQuery), responses(
    (status = 200, body = Event, content_type = "text/event-stream"),
    (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(crate) async fn follow(
    State(api): State<Api>,
    headers: HeaderMap,
    Asked(query): Asked<PageQuery>,
) -> Result<Sse<impl Stream<Item = Result<sse::Event, Infallible>>>, Problem> {
    let catalog = api.catalog()?.clone();
    let permit = Arc::clone(&api.inner.followers)
        .try_acquire_owned()
        .map_err(|_| Problem::new("Overloaded", "too many callers follow what happens"))?;
    let volume = match &query.volume {
        Some(text) => Some(catalog.find_volume(text).await?),
        None => None,
    };
    let of = volume.as_ref().map(|volume| volume.id.clone());
    // Subscribed before the past is read, so that nothing falls between them.
    let coming = catalog.follow_events();
    let seen = headers.get("last-event-id").and_then(|id| id.to_str().ok()).and_then(|id| id.parse().ok());
    let past = past(&catalog, of.as_ref(), seen);
    let newest = past.last().map(|event| event.at).or(seen);
    let mut streams: Vec<BoxStream<'static, sse::Event>> = vec![
        stream::iter(past.into_iter().map(|event| told(&event))).chain(events(coming, of, newest)).boxed(),
    ];
    if let Some(volume) = volume {
        let status = catalog.engine().watch(&volume.id);
        let status = status.map_err(|error| Problem::new("Unreachable", error.to_string()))?;
        streams.push(statuses(status, volume.name).boxed());
    }
    let all = stream::select_all(streams).take_until(api.stopped());
    Ok(Sse::new(held(all, permit).map(Ok)).keep_alive(KeepAlive::default()))
}

fn past(catalog: &Catalog, of: Option<&VolumeId>, seen: Option<Timestamp>) -> Vec<Event> {
    let Some(seen) = seen else { return vec![] };
    let events = catalog.events(of, REPLAYED).into_iter().map(Event::from);
    events.filter(|event| event.at > seen).collect()
}

fn events(
    coming: broadcast::Receiver<bowline_controller::Event>,
    of: Option<VolumeId>,
    newest: Option<Timestamp>,
) -> impl Stream<Item = sse::Event> + Send + 'static {
    stream::unfold(coming, move |mut coming| {
        let of = of.clone();
        async move {
            loop {
                match coming.recv().await {
                    Ok(event) => {
                        let ours = of.is_none() || event.volume == of;
                        let is_new = newest.is_none_or(|newest| event.at > newest);
                        if ours && is_new {
                            return Some((told(&Event::from(event)), coming));
                        }
                    }
                    Err(broadcast::error::RecvError::Lagged(missed)) => {
                        let event = sse::Event::default().event("missed").data(missed.to_string());
                        return Some((event, coming));
                    }
                    Err(broadcast::error::RecvError::Closed) => return None,
                }
            }
        }
    })
}

fn told(event: &Event) -> sse::Event {
    let json = serde_json::to_string(event).unwrap_or_default();
    sse::Event::default().event("event").id(event.at.to_string()).data(json)
}

fn statuses(
    status: watch::Receiver<bowline_engine::Status>,
    name: String,
) -> impl Stream<Item = sse::Event> + Send + 'static {
    let views = stream::unfold((status, name, true), |(mut status, name, first)| async move {
        if !first && status.changed().await.is_err() {
            return None;
        }
        let view = status.borrow_and_update().view.clone();
        let event = view.map(|view| {
            let json = serde_json::to_string(&explained(&name, &view)).unwrap_or_default();
            sse::Event::default().event("status").data(json)
        });
        Some((event, (status, name, false)))
    });
    views.filter_map(std::future::ready)
}

/// Keeps the permit as long as the stream.
fn held<S: Stream>(stream: S, permit: OwnedSemaphorePermit) -> impl Stream<Item = S::Item> {
    stream.map(move |item| {
        let _held = &permit;
        item
    })
}
