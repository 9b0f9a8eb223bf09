//! `bowline why`: who holds a volume, who waits, and what would change that.

use bowline_core::Verdict;
use bowline_web::wire::{Hold, Ticket, Why};
use jiff::Timestamp;
use std::fmt::Write;

use crate::output::{Style, Tone, one_line};
use crate::span::since;

/// The whole answer, for people.
pub fn show(why: &Why, now: Timestamp, style: Style) -> String {
    let mut out = String::new();
    let name = style.paint(Tone::Strong, &one_line(&why.volume));
    match why.holds.as_slice() {
        [] => {
            let state = match why.state.as_str() {
                // An empty ledger proves nothing before the target has said whom it lets in.
                _ if is_unsure(why) => {
                    "not attached as far as is written down; whom the target lets in is not known yet"
                }
                "faulted" => "faulted, and no node can reach it",
                "deleting" => "being deleted, and no node can reach it",
                _ => "not attached: no node can reach it",
            };
            let _ = writeln!(out, "{name} is {state}{}.", last_epoch(why));
        }
        holds => {
            for hold in holds {
                let _ = writeln!(out, "{name} {}.", held(hold, now, style));
                if let Some(said) = &hold.target_said {
                    let _ = writeln!(out, "  the target said: {}", one_line(said));
                }
            }
        }
    }
    if why.tickets.is_empty() {
        out.push_str("Nobody asks for it.\n");
    }
    out.push_str(&queue(&why.tickets, style));
    out.push_str(&remedies(&why.tickets));
    out
}

fn is_unsure(why: &Why) -> bool {
    why.tickets.iter().any(|ticket| matches!(ticket.verdict, Verdict::TargetNotCompared { .. }))
}

fn last_epoch(why: &Why) -> String {
    if why.epoch == 0 { String::new() } else { format!(" (last epoch {})", why.epoch) }
}

fn held(hold: &Hold, now: Timestamp, style: Style) -> String {
    let node = style.paint(Tone::Strong, &one_line(&hold.node));
    let reading = if hold.write { "" } else { ", only for reading" };
    let today = now.duration_since(hold.since).as_hours() < 24;
    let time = hold.since.strftime(if today { "%H:%M:%S UTC" } else { "%Y-%m-%d %H:%M:%S UTC" });
    let times = format!("epoch {}, since {time}, {}", hold.epoch, since(hold.since, now));
    match hold.phase.as_str() {
        "held" => format!("is {} to {node}{reading} ({times})", style.paint(Tone::Good, "attached")),
        "granting" => format!("is being attached to {node}{reading} ({times})"),
        "fencing" => {
            let because =
                hold.fenced_because.as_deref().map(|why| format!(" because {why}")).unwrap_or_default();
            format!(
                "is being taken from {node}{because}: it is {} ({times})",
                style.paint(Tone::Bad, "fenced")
            )
        }
        _ => format!("is being detached from {node} ({times})"),
    }
}

fn queue(tickets: &[Ticket], style: Style) -> String {
    let shown: Vec<[String; 4]> = tickets
        .iter()
        .map(|ticket| {
            [ticket.rank.to_string(), short(ticket), ticket.kind.to_string(), one_line(&ticket.node)]
        })
        .collect();
    let width = |column: usize| shown.iter().map(|row| row[column].chars().count()).max().unwrap_or_default();
    let widths = [width(0), width(1), width(2), width(3)];
    let mut out = String::new();
    for (ticket, row) in tickets.iter().zip(&shown) {
        let mut line = " ".to_owned();
        for (text, width) in row.iter().zip(widths) {
            let _ = write!(line, " {text:<width$} ");
        }
        let tone = if ticket.satisfied { Tone::Good } else { Tone::Waiting };
        let _ = write!(line, " {}", style.paint(tone, &one_line(&ticket.phrase)));
        if ticket.read_only {
            line.push_str(" (reads only)");
        }
        if let Some(reason) = &ticket.reason {
            let _ = write!(line, "  “{}”", one_line(reason));
        }
        let _ = writeln!(out, "{}", line.trim_end());
    }
    out
}

/// The beginning of an id, with an ellipsis if there is more of it.
pub(crate) fn short(ticket: &Ticket) -> String {
    let more = if ticket.short_id.len() < ticket.id.as_str().len() { "…" } else { "" };
    format!("{}{more}", ticket.short_id)
}

/// What would change it, each thing said once: several tickets often wait for the same.
fn remedies(tickets: &[Ticket]) -> String {
    let mut out = String::new();
    let mut told: Vec<&str> = vec![];
    for remedy in tickets.iter().filter_map(|ticket| ticket.remedy.as_ref()) {
        if told.contains(&remedy.sentence.as_str()) {
            continue;
        }
        told.push(&remedy.sentence);
        let _ = writeln!(out, "{}", one_line(&remedy.sentence));
        for command in &remedy.commands {
            let _ = writeln!(out, "  {}", one_line(command));
        }
    }
    out
}
