//! `bowline events`.

use bowline_web::wire::{Event, Events};
use http_body_util::BodyExt;
use jiff::Timestamp;
use std::collections::BTreeMap;
use std::io::Write;

use super::{Console, names, now};
use crate::args::{EventsArgs, Format};
use crate::client::{Client, query};
use crate::failure::Failure;
use crate::output::{Style, Table, Tone, cell, one_line, toned};
use crate::span::relative;

/// A line of the stream is never longer than this.
const LINE_BYTES: usize = 1 << 20;

pub(super) async fn run(client: &Client, args: EventsArgs, console: &mut Console) -> Result<(), Failure> {
    let asked = query(&[("volume", args.volume.clone()), ("limit", Some(args.limit.to_string()))]);
    if !args.follow {
        let listed: Events = client.get(&format!("/v1/events{asked}")).await?;
        let ids = listed.events.iter().filter_map(|event| event.volume.as_ref().map(ToString::to_string));
        let names = names(client, console, ids.collect()).await;
        return console.show(&listed, |style, wide| table(&listed.events, &names, now(), style, wide));
    }
    // The stream first, so that nothing falls between the list and what follows it.
    let place = format!("/v1/watch{}", query(&[("volume", args.volume)]));
    let mut stream = client.follow(&place).await?;
    let listed: Events = client.get(&format!("/v1/events{asked}")).await?;
    let newest = listed.events.last().map(|event| event.at);
    for event in &listed.events {
        tell(event, console)?;
    }
    let mut lines = Lines::default();
    loop {
        let frame = tokio::select! {
            frame = stream.frame() => frame,
            _ = tokio::signal::ctrl_c() => return Ok(()),
        };
        let Some(frame) = frame else {
            return Err(Failure::failed(format!("{} has stopped", client.whom())));
        };
        let frame = frame.map_err(|error| Failure::failed(format!("the stream broke off: {error}")))?;
        let Ok(data) = frame.into_data() else { continue };
        for (name, data) in lines.take(&data)? {
            match name.as_str() {
                "event" => {
                    let event: Event =
                        serde_json::from_str(&data).map_err(|error| Failure::failed(error.to_string()))?;
                    if newest.is_none_or(|newest| event.at > newest) {
                        tell(&event, console)?;
                    }
                }
                "missed" => console.note(&format!("bowline: {data} events came too fast and were missed")),
                _ => {}
            }
        }
    }
}

fn tell(event: &Event, console: &mut Console) -> Result<(), Failure> {
    let line = match console.format {
        Format::Json | Format::Yaml => {
            serde_json::to_string(event).map_err(|error| Failure::failed(error.to_string()))?
        }
        Format::Table | Format::Wide => {
            let volume = event.volume.as_ref().map_or("-", |volume| volume.as_str());
            format!("{:.0} {:<14} {volume} {}", event.at, event.reason, one_line(&event.message))
        }
    };
    writeln!(console.out, "{line}")?;
    Ok(console.out.flush()?)
}

/// Puts the pieces of a stream of server-sent events together again.
#[derive(Default)]
struct Lines {
    rest: Vec<u8>,
    name: String,
    data: String,
}

impl Lines {
    /// Takes a piece; gives every event that is whole now, as its name and its data.
    fn take(&mut self, piece: &[u8]) -> Result<Vec<(String, String)>, Failure> {
        self.rest.extend_from_slice(piece);
        let mut whole = vec![];
        while let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.rest.drain(..=end).collect();
            let line = String::from_utf8_lossy(&line);
            let line = line.trim_end_matches(['\r', '\n']);
            if line.is_empty() {
                if !self.data.is_empty() {
                    whole.push((std::mem::take(&mut self.name), std::mem::take(&mut self.data)));
                }
                self.name.clear();
            } else if let Some(name) = line.strip_prefix("event:") {
                name.trim().clone_into(&mut self.name);
            } else if let Some(data) = line.strip_prefix("data:") {
                self.data.push_str(data.strip_prefix(' ').unwrap_or(data));
            }
        }
        if self.rest.len() + self.data.len() > LINE_BYTES {
            return Err(Failure::failed("the stream of events is not one"));
        }
        Ok(whole)
    }
}

fn table(
    events: &[Event],
    names: &BTreeMap<String, String>,
    now: Timestamp,
    style: Style,
    wide: bool,
) -> String {
    let mut table = Table::new(&["AGE", "REASON", "VOLUME", "MESSAGE"]);
    for event in events {
        let age = if wide { format!("{:.0}", event.at) } else { relative(event.at, now) };
        let tone = match event.reason.as_str() {
            "Waiting" | "Fencing" => Tone::Waiting,
            _ => Tone::Good,
        };
        let volume = event.volume.as_ref().map_or("-", |volume| volume.as_str());
        let volume = names.get(volume).map_or(volume, String::as_str);
        table.row([cell(age), toned(tone, &*event.reason), cell(volume), cell(&*event.message)]);
    }
    if table.is_empty() { "Nothing happened yet.\n".to_owned() } else { table.show(style) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_in_pieces_is_the_same_stream() {
        let stream = ": keep-alive\n\nevent: event\nid: 1\ndata: {\"a\":1}\n\nevent:missed\r\ndata:3\r\n\r\n\n\ndata: x\n\n";
        let expected = [("event", "{\"a\":1}"), ("missed", "3"), ("", "x")];
        for size in 1..stream.len() {
            let mut lines = Lines::default();
            let pieces = stream.as_bytes().chunks(size).flat_map(|piece| lines.take(piece).unwrap());
            let whole: Vec<_> = pieces.collect();
            let whole: Vec<_> = whole.iter().map(|(name, data)| (name.as_str(), data.as_str())).collect();
            assert_eq!(whole, expected, "pieces of {size}");
        }
        let mut endless = Lines::default();
        assert!((0..200).any(|_| endless.take(&[b'x'; 10_000]).is_err()), "memory is bounded");
    }

    #[test]
    fn the_table_of_events_looks_like_this() {
        let events: Vec<Event> = serde_json::from_value(serde_json::json!([
            { "at": "2030-01-01T09:00:00.5Z", "volume": "0123-4", "reason": "Attached", "message": "worker-1 has it at epoch 7" },
            { "at": "2030-01-01T11:59:00Z", "reason": "Waiting", "message": "bowline-api-b waits" }
        ]))
        .unwrap();
        let now = "2030-01-01T12:00:00Z".parse().unwrap();
        insta::assert_snapshot!(table(
            &events,
            &BTreeMap::from([("0123-4".to_owned(), "db".to_owned())]),
            now,
            Style::Plain,
            false
        ));
        insta::assert_snapshot!(
            "wide",
            table(
                &events,
                &BTreeMap::from([("0123-4".to_owned(), "db".to_owned())]),
                now,
                Style::Plain,
                true
            )
        );
    }
}
