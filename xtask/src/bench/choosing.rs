//! What a decision costs.

use anyhow::Result;
use bowline_core::{
    AccessMode, Ledger, NodeId, Observed, TargetId, Ticket, TicketId, Timestamp, VolumeFacts, decide,
};
use bowline_testkit::csi;
use std::hint::black_box;
use std::time::{Duration, Instant};

use super::{Row, median, ratio, shown};

pub(crate) fn rows() -> Result<Vec<Row>> {
    cost(100); // The first one warms the processor up.
    let one = cost(1);
    let row = |tickets: usize| {
        let time = if tickets == 1 { one } else { cost(tickets) };
        Row {
            what: format!("`decide` with {tickets} ticket(s)"),
            measured: shown(time),
            beside: format!("1 ticket: {}", shown(one)),
            ratio: Some(ratio(time, one)),
            goal: None,
        }
    };
    Ok([1, 10, 100].map(row).into())
}

/// A volume that one node writes and the others wait for, asked again and again.
fn cost(tickets: usize) -> Duration {
    let now = Timestamp::UNIX_EPOCH;
    let mut seen = target_facts();
    let mut ledger = Ledger::default();
    for n in 0..tickets {
        if let Err(error) = ledger.submit(ticket(n), now) {
            unreachable!("{error}");
        }
    }
    ledger = decide(&ledger, &seen, now).next;
    seen.answers.clear();
    let round = || {
        let begin = Instant::now();
        for _ in 0..200 {
            black_box(decide(black_box(&ledger), black_box(&seen), now));
        }
        begin.elapsed() / 200
    };
    median((0..51).map(|_| round()).collect())
}

fn ticket(n: usize) -> Ticket {
    let named = |text: String| (TicketId::new(&text), NodeId::new(&text));
    match named(format!("node-{n:03}")) {
        (Ok(id), Ok(node)) => Ticket { id, node, access: AccessMode::SingleNodeWriter, ..csi("a") },
        _ => unreachable!("a number makes a good name"),
    }
}

fn target_facts() -> Observed {
    match TargetId::new("sim") {
        Ok(target) => Observed::new(VolumeFacts::new(target)),
        Err(error) => unreachable!("{error}"),
    }
}
