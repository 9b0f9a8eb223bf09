use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use bowline_controller::Volume;
use bowline_core::{
    AccessMode, Frontend, Outcome, Owner, Phase, Ticket, TicketId, TicketKind, Timestamp, Verdict,
};
use bowline_engine::{Patience, Submitted, View, Withdrawal};
use futures::future::{Either, select};
use serde::Deserialize;
use std::time::Duration;
use tokio::time::Instant;
use utoipa::IntoParams;

use super::PageQuery;
use super::volumes::phase;
use crate::advice::{Shortened, phrase, remedy};
use crate::api::Api;
use crate::extract::{Asked, Body, Named, node, wait};
use crate::problem::Problem;
use crate::wire::{self, Attached, Hold, NewTicket, Tickets, Until, WaitFor, Why};

/// Bytes of the reason that somebody gives.
const REASON_BYTES: usize = 256;

/// The longest that a ticket may be filed for: ten years, beyond which one means "until removed".
const LONGEST_STAY: u32 = 10 * 366 * 24 * 3600;

/// Files a ticket, so that a volume be usable on a node, and waits for what becomes of it. The ticket stays, whatever is
/// answered: 200 the node is in; 202 work goes on; 409 `Refused` it waits in the queue.
#[utoipa::path(post, path = "/v1/volumes/{volume}/tickets", tag = "tickets", params(("volume" = String, Path)),
    request_body = NewTicket, responses(
    (status = 200, body = Attached), (status = 202, body = Attached),
    (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(crate) async fn attach(
    State(api): State<Api>,
    Named(name): Named,
    Body(order): Body<NewTicket>,
) -> Result<Response, Problem> {
    let catalog = api.catalog()?;
    let (time, wait_for) = (wait(order.wait_seconds)?, order.wait_for);
    let end = Instant::now() + time;
    let volume = catalog.find_volume(&name).await?;
    let ticket = parse(&volume, order, api.inner.parts.clock.now())?;
    let submitted = catalog.attach(&volume.id, ticket.clone(), Patience::Wait, time).await?;
    let submitted = match (submitted, wait_for) {
        (Submitted::Waiting(verdict), WaitFor::Attached) => {
            in_the_queue(&api, &volume, &ticket, verdict, end).await?
        }
        (submitted, _) => submitted,
    };
    answer(&ticket, submitted)
}

fn answer(ticket: &Ticket, submitted: Submitted) -> Result<Response, Problem> {
    let told = |attached, verdict: Option<Verdict>, context| Attached {
        ticket: ticket.id.clone(),
        node: ticket.node.to_string(),
        attached,
        sentence: verdict.as_ref().map(|verdict| verdict.sentence(ticket)),
        verdict,
        context,
    };
    match submitted {
        Submitted::Satisfied { verdict, context } => {
            Ok(Json(told(true, Some(verdict), context)).into_response())
        }
        Submitted::Waiting(verdict) => Err(Problem::refused(ticket, verdict, true)),
        Submitted::Refused(verdict) => Err(Problem::refused(ticket, verdict, false)),
        Submitted::StillWorking { verdict, trouble } => {
            let mut told = told(false, verdict, std::collections::BTreeMap::new());
            told.sentence = trouble.or(told.sentence);
            Ok((StatusCode::ACCEPTED, Json(told)).into_response())
        }
    }
}

/// Waits on while somebody else has it.
async fn in_the_queue(
    api: &Api,
    volume: &Volume,
    ticket: &Ticket,
    mut verdict: Verdict,
    end: Instant,
) -> Result<Submitted, Problem> {
    let catalog = api.catalog()?;
    let mut stopped = std::pin::pin!(api.stopped());
    let unreadable = |error: bowline_engine::EngineError| Problem::new("Unreachable", error.to_string());
    let mut status = catalog.engine().watch(&volume.id).map_err(unreadable)?;
    loop {
        let view = status.borrow_and_update().view.clone();
        if let Some(view) = view {
            match view.verdicts.get(&ticket.id) {
                Some(found) => verdict = found.clone(),
                None => {
                    return Err(Problem::new("UnknownTicket", format!("ticket {} was withdrawn", ticket.id)));
                }
            }
        }
        if verdict.is_satisfied() {
            // Asked once more, for what the node needs to know and for the word that it is durable.
            let left = end.saturating_duration_since(Instant::now()).max(Duration::from_secs(1));
            return Ok(catalog.attach(&volume.id, ticket.clone(), Patience::Wait, left).await?);
        }
        let changed = std::pin::pin!(status.changed());
        // A stop does not wait for those who wait: their tickets stay.
        let waited = tokio::time::timeout_at(end, select(changed, &mut stopped)).await;
        if !matches!(waited, Ok(Either::Left((Ok(()), _)))) {
            return Ok(Submitted::StillWorking { verdict: Some(verdict), trouble: None });
        }
    }
}

fn parse(volume: &Volume, order: NewTicket, now: Timestamp) -> Result<Ticket, Problem> {
    let NewTicket { node: text, name, read_only, until, reason, .. } = order;
    let node = node("node", &text)?;
    let id = TicketId::named(TicketKind::BowlineApi, name.as_deref().unwrap_or(node.as_str()))
        .map_err(|error| Problem::invalid("name", error))?;
    let reason = reason.map(|text| text.trim().to_owned()).filter(|text| !text.is_empty());
    if let Some(text) = &reason {
        if text.len() > REASON_BYTES {
            return Err(Problem::invalid(
                "reason",
                format!("has {} bytes; at most {REASON_BYTES} are allowed", text.len()),
            ));
        }
        if text.chars().any(char::is_control) {
            return Err(Problem::invalid("reason", "control characters are not allowed"));
        }
    }
    let owner = match until {
        Until::Removed => Owner::Withdrawn,
        Until::Seconds(0) => return Err(Problem::invalid("until.seconds", "must be at least 1")),
        Until::Seconds(seconds) if seconds > LONGEST_STAY => {
            return Err(Problem::invalid("until.seconds", format!("at most {LONGEST_STAY} seconds")));
        }
        Until::Seconds(seconds) => Owner::Expires { at: now + Duration::from_secs(seconds.into()) },
    };
    // Readers may be many where the volume allows it; whoever wants to write takes what it was first made for.
    let readers = volume.uses.iter().find(|one| one.access == AccessMode::MultiNodeReaderOnly);
    let chosen = readers.filter(|_| read_only).or_else(|| volume.uses.first());
    let chosen = chosen.ok_or_else(|| Problem::new("Broken", "the volume has no way to be used"))?;
    Ok(Ticket {
        id,
        kind: TicketKind::BowlineApi,
        node,
        access: chosen.access,
        content: chosen.content,
        read_only,
        frontend: Frontend::On,
        generation: 1,
        created_at: now,
        owner,
        reason,
    })
}

/// Which tickets to withdraw.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub(crate) struct DetachQuery {
    /// Only those of this node.
    node: Option<String>,
    /// Only this one, by its id or the beginning of it.
    ticket: Option<String>,
    /// Cut the nodes off at once, whatever they do.
    force: bool,
    /// How many seconds to wait until the nodes are proven out; the work goes on beyond.
    wait_seconds: Option<u32>,
}

/// Withdraws tickets, all of them if none is named, and waits until the nodes are out at the target.
#[utoipa::path(delete, path = "/v1/volumes/{volume}/tickets", tag = "tickets",
    params(("volume" = String, Path), DetachQuery),
    responses((status = 204, description = "the nodes are out, or in for other tickets only"),
    (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(crate) async fn detach(
    State(api): State<Api>,
    Named(name): Named,
    Asked(query): Asked<DetachQuery>,
) -> Result<StatusCode, Problem> {
    let catalog = api.catalog()?;
    let volume = catalog.find_volume(&name).await?;
    let ticket = match &query.ticket {
        None => None,
        Some(text) => Some(find(&*catalog.view(&volume.id).await?, &volume, text)?),
    };
    let node = query.node.as_deref().map(|text| node("node", text)).transpose()?;
    let withdrawal = Withdrawal { ticket, node, force: query.force };
    catalog.detach(&volume.id, withdrawal, wait(query.wait_seconds)?).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// A ticket by its id, or by a beginning that only one has.
fn find(view: &View, volume: &Volume, text: &str) -> Result<TicketId, Problem> {
    let ids = view.ledger.tickets().keys();
    if let Some(id) = ids.clone().find(|id| id.as_str() == text) {
        return Ok(id.clone());
    }
    let mut begins = ids.filter(|id| !text.is_empty() && id.as_str().starts_with(text));
    match (begins.next(), begins.next()) {
        (Some(id), None) => Ok(id.clone()),
        (Some(_), Some(_)) => {
            Err(Problem::invalid("ticket", format!("several tickets of {} begin so", volume.name)))
        }
        (None, _) => {
            Err(Problem::new("UnknownTicket", format!("volume {} has no ticket {text}", volume.name)))
        }
    }
}

/// Why a volume is where it is: who holds it, who waits, for what, and what would change that.
#[utoipa::path(get, path = "/v1/volumes/{volume}/why", tag = "tickets", params(("volume" = String, Path)), responses(
    (status = 200, body = Why), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(crate) async fn why(State(api): State<Api>, Named(name): Named) -> Result<Json<Why>, Problem> {
    let catalog = api.catalog()?;
    let volume = catalog.find_volume(&name).await?;
    let view = catalog.view(&volume.id).await?;
    Ok(Json(explained(&volume.name, &view)))
}

/// Every ticket, of all volumes or of one, in the order of the queues.
#[utoipa::path(get, path = "/v1/tickets", tag = "tickets", params(PageQuery), responses(
    (status = 200, body = Tickets), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(crate) async fn list(
    State(api): State<Api>,
    Asked(page): Asked<PageQuery>,
) -> Result<Json<Tickets>, Problem> {
    let catalog = api.catalog()?;
    if let Some(text) = &page.volume {
        let volume = catalog.find_volume(text).await?;
        let tickets = explained(&volume.name, &*catalog.view(&volume.id).await?).tickets;
        return Ok(Json(Tickets { tickets, next: None }));
    }
    let listed = catalog.volumes(page.after.as_deref(), page.limit()?).await?;
    let mut tickets = vec![];
    for volume in listed.entries {
        tickets.extend(explained(&volume.name, &*catalog.view(&volume.id).await?).tickets);
    }
    Ok(Json(Tickets { tickets, next: listed.next }))
}

/// What a view says, in the words of the API.
pub fn explained(name: &str, view: &View) -> Why {
    let mut ranked: Vec<&Ticket> = view.ledger.tickets().values().collect();
    ranked.sort_by_key(|ticket| ticket.rank());
    let holds = view.ledger.holds().iter().map(|(node, hold)| Hold {
        node: node.to_string(),
        phase: phase(hold.phase).to_owned(),
        epoch: hold.epoch.number(),
        since: hold.since,
        write: hold.mode.write,
        fenced_because: match hold.phase {
            Phase::Fencing { why } => Some(why.to_string()),
            Phase::Granting | Phase::Held | Phase::Releasing => None,
        },
        target_said: view.answers.get(node).filter(|_| hold.phase != Phase::Held).and_then(said),
    });
    let tickets = (1..).zip(&ranked).filter_map(|(rank, ticket)| {
        // Every ticket has a verdict once it was decided about; one that was filed this instant has none yet.
        let verdict = view.verdicts.get(&ticket.id)?;
        Some(told(name, rank, ticket, verdict, &ranked))
    });
    Why {
        id: view.volume.to_string(),
        volume: name.to_owned(),
        state: view.state.as_str().to_owned(),
        epoch: view.ledger.epoch().number(),
        holds: holds.collect(),
        tickets: tickets.collect(),
    }
}

fn told(volume: &str, rank: u32, ticket: &Ticket, verdict: &Verdict, all: &[&Ticket]) -> wire::Ticket {
    let ids: Vec<&TicketId> = all.iter().map(|ticket| &ticket.id).collect();
    let ids = Shortened(&ids);
    wire::Ticket {
        rank,
        id: ticket.id.clone(),
        short_id: ids.of(&ticket.id).to_owned(),
        volume: volume.to_owned(),
        kind: ticket.kind,
        priority: ticket.kind.priority(),
        node: ticket.node.to_string(),
        access: ticket.access,
        content: ticket.content,
        read_only: ticket.read_only,
        reason: ticket.reason.clone(),
        created_at: ticket.created_at,
        owner: ticket.owner.clone(),
        satisfied: verdict.is_satisfied(),
        verdict: verdict.clone(),
        phrase: phrase(verdict, &ids),
        sentence: verdict.sentence(ticket),
        remedy: remedy(volume, ticket, verdict, all),
    }
}

fn said(outcome: &Outcome) -> Option<String> {
    match outcome {
        Outcome::Allowed | Outcome::Gone { .. } => None,
        Outcome::Refused { error } => Some(format!("refused: {error}")),
        Outcome::InUse { by } => Some(format!("{by} still uses it")),
        Outcome::Silent { since, error } => Some(format!("no answer since {since:.0}: {error}")),
    }
}
