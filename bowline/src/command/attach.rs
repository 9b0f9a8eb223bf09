//! `bowline attach` and `bowline detach`.

use bowline_web::wire::{Attached, NewTicket, Until, WaitFor};
use hyper::{Method, StatusCode};

use super::Console;
use crate::args::{AttachArgs, DetachArgs};
use crate::client::{Client, path, query};
use crate::failure::{Exit, Failure};

/// How long work that is under way is waited for if nothing is said.
const WAIT: u32 = 30;

pub(super) async fn attach(client: &Client, args: AttachArgs, console: &mut Console) -> Result<(), Failure> {
    let AttachArgs { volume, node, stay, until_removed: _, read_only, reason, ticket, wait } = args;
    let back = format!("bowline detach {volume} {node}");
    let order = NewTicket {
        node: node.clone(),
        name: ticket,
        read_only,
        until: stay.map_or(Until::Removed, |span| Until::Seconds(span.0)),
        reason,
        wait_seconds: Some(wait.map_or(WAIT, |span| span.0)),
        wait_for: if wait.is_some() { WaitFor::Attached } else { WaitFor::Verdict },
    };
    let place = path(&["v1", "volumes", &volume, "tickets"]);
    let asked = client.send::<Attached>(Method::POST, &place, &order);
    let (status, answer) = tokio::select! {
        answer = asked => answer.map_err(|failure| with_advice(failure, &volume, &back))?,
        _ = tokio::signal::ctrl_c() => return Err(interrupted(&format!(
            "the ticket stays; remove it with: {back}"
        ))),
    };
    if status == StatusCode::ACCEPTED || !answer.attached {
        let sentence = answer.sentence.unwrap_or_else(|| "It is not attached yet.".to_owned());
        return Err(Failure::timed_out(format!(
            "{sentence}\nThe time is over and the ticket {} stays; remove it with: {back}",
            answer.ticket
        )));
    }
    console.show(&answer, |_, _| {
        let until = stay.map_or_else(String::new, |span| format!(" for {}", shown(span.0)));
        format!(
            "{volume} is attached to {node}{until} (ticket {}). Give it back with: {back}\n",
            answer.ticket
        )
    })
}

fn shown(seconds: u32) -> String {
    match (seconds / 3600, seconds % 3600 / 60, seconds % 60) {
        (0, 0, s) => format!("{s}s"),
        (0, m, 0) => format!("{m}m"),
        (h, 0, 0) => format!("{h}h"),
        (h, m, 0) => format!("{h}h{m}m"),
        (h, m, s) => format!("{h}h{m}m{s}s"),
    }
}

/// What to do about a no: the ticket stays, and the whole story is one command away.
fn with_advice(failure: Failure, volume: &str, back: &str) -> Failure {
    if failure.exit != Exit::Refused {
        return failure;
    }
    let message =
        format!("{}\nSee what would change it: bowline why {volume}\nAsk no longer: {back}", failure.message);
    Failure { message, ..failure }
}

pub(super) fn interrupted(remains: &str) -> Failure {
    Failure::timed_out(format!("stopped waiting; {remains}"))
}

pub(super) async fn detach(client: &Client, args: DetachArgs, console: &mut Console) -> Result<(), Failure> {
    let DetachArgs { volume, node, ticket, force, wait } = args;
    let wish = query(&[
        ("node", node.clone()),
        ("ticket", ticket.clone()),
        ("force", force.then(|| "true".to_owned())),
        ("waitSeconds", Some(wait.0.to_string())),
    ]);
    let place = format!("{}{wish}", path(&["v1", "volumes", &volume, "tickets"]));
    tokio::select! {
        done = client.delete(&place) => done.map_err(|failure| match failure.exit {
            Exit::TimedOut => Failure::timed_out(format!(
                "{}\nThe ticket is withdrawn and the work goes on; see how far it is with: bowline why {volume}",
                failure.message
            )),
            _ => failure,
        })?,
        _ = tokio::signal::ctrl_c() => return Err(interrupted(&format!(
            "the ticket is withdrawn all the same, and the work goes on: bowline why {volume}"
        ))),
    };
    let whom = match (node, ticket) {
        (Some(node), _) => format!("{volume} is detached from {node}"),
        (None, Some(ticket)) => format!("{ticket} is withdrawn"),
        (None, None) => format!("{volume} is detached"),
    };
    let done = serde_json::json!({ "volume": volume, "detached": true });
    console.show(&done, |_, _| format!("{whom}.\n"))
}
