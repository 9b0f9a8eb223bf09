//! `bowline tickets`.

use bowline_web::wire::{Ticket, Tickets};
use jiff::Timestamp;

use super::{Console, now};
use crate::client::{Client, query};
use crate::failure::Failure;
use crate::output::{Style, Table, Tone, cell, toned};
use crate::span::relative;
use crate::why::short;

pub(super) async fn run(
    client: &Client,
    volume: Option<String>,
    console: &mut Console,
) -> Result<(), Failure> {
    let mut all: Vec<Ticket> = vec![];
    let mut after = None;
    loop {
        let asked = query(&[("volume", volume.clone()), ("after", after)]);
        let page: Tickets = client.get(&format!("/v1/tickets{asked}")).await?;
        all.extend(page.tickets);
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    let listed = Tickets { tickets: all, next: None };
    console.show(&listed, |style, wide| table(&listed.tickets, now(), style, wide))
}

fn table(tickets: &[Ticket], now: Timestamp, style: Style, wide: bool) -> String {
    let mut columns = vec!["VOLUME", "RANK", "TICKET", "TYPE", "NODE", "AGE", "VERDICT", "REASON"];
    if wide {
        columns.splice(6..6, ["PRIORITY", "ACCESS", "UNTIL"]);
    }
    let mut table = Table::new(&columns);
    for ticket in tickets {
        let tone = if ticket.satisfied { Tone::Good } else { Tone::Waiting };
        let id = if wide { ticket.id.to_string() } else { short(ticket) };
        let mut row = vec![
            toned(Tone::Strong, &*ticket.volume),
            cell(ticket.rank.to_string()),
            cell(id),
            cell(ticket.kind.to_string()),
            cell(&*ticket.node),
            cell(relative(ticket.created_at, now)),
            toned(tone, &*ticket.phrase),
            cell(ticket.reason.as_deref().unwrap_or("-")),
        ];
        if wide {
            let access = serde_json::to_value(ticket.access).ok();
            let access = access.as_ref().and_then(|access| access.as_str()).unwrap_or("-").to_owned();
            row.splice(6..6, [cell(ticket.priority.to_string()), cell(access), cell(until(ticket, now))]);
        }
        table.row(row);
    }
    if table.is_empty() { "Nobody asks for anything.\n".to_owned() } else { table.show(style) }
}

fn until(ticket: &Ticket, now: Timestamp) -> String {
    use bowline_core::Owner;
    match &ticket.owner {
        Owner::Withdrawn => "removed".to_owned(),
        Owner::Expires { at } => relative(*at, now),
        Owner::ObjectGone { object } => format!("{object} is gone"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tickets() -> Vec<Ticket> {
        let ticket =
            |rank, id: &str, node: &str, reason: Option<&str>, verdict: serde_json::Value, phrase: &str| {
                let satisfied = verdict["reason"] == "Satisfied";
                serde_json::from_value(serde_json::json!({
                    "rank": rank, "id": id, "shortId": id, "volume": "db", "type": "bowline-api",
                    "priority": 1000, "node": node, "access": "single-node-writer", "content": "filesystem",
                    "readOnly": false, "reason": reason, "createdAt": "2030-01-01T09:00:00Z",
                    "owner": { "until": "expires", "at": "2030-01-01T14:00:00Z" }, "satisfied": satisfied,
                    "verdict": verdict, "phrase": phrase, "sentence": "x"
                }))
                .unwrap()
            };
        let since = "2030-01-01T09:00:01Z";
        vec![
            ticket(
                1,
                "bowline-api-worker-1",
                "worker-1",
                Some("look at the logs"),
                serde_json::json!({ "reason": "Satisfied", "node": "worker-1", "epoch": 7, "since": since }),
                "satisfied",
            ),
            ticket(
                2,
                "bowline-api-b",
                "worker-2",
                None,
                serde_json::json!({ "reason": "HeldElsewhere", "node": "worker-1", "by": "bowline-api-worker-1", "since": since }),
                "waiting: held by worker-1 for bowline-api-worker-1",
            ),
        ]
    }

    #[test]
    fn the_table_of_tickets_looks_like_this() {
        let now = "2030-01-01T12:00:00Z".parse().unwrap();
        insta::assert_snapshot!(table(&tickets(), now, Style::Plain, false));
        insta::assert_snapshot!("wide", table(&tickets(), now, Style::Plain, true));
        assert_eq!(table(&[], now, Style::Plain, false), "Nobody asks for anything.\n");
    }
}
