//! `bowline volume`.

use bowline_web::wire::{
    Attachment, Change, Grow, NewVolume, Settings, Source, Use, Volume, VolumeState, Volumes,
};
use hyper::Method;
use jiff::Timestamp;
use std::fmt::Write as _;

use super::attach::interrupted;
use super::{Console, now};
use crate::args::{CreateArgs, Migratable, ModifyArgs, Switch, VolumeCommand, migration_seconds};
use crate::client::{Client, path, query};
use crate::command::progress::Shown;
use crate::failure::{Exit, Failure};
use crate::output::{Style, Table, Tone, cell, one_line, toned};
use crate::size::Size;
use crate::span::relative;

pub(super) async fn run(
    client: &Client,
    command: VolumeCommand,
    console: &mut Console,
) -> Result<(), Failure> {
    match command {
        VolumeCommand::Create(args) => create(client, args, console).await,
        VolumeCommand::List => list(client, console).await,
        VolumeCommand::Show { volume } => {
            let found: Volume = client.get(&path(&["v1", "volumes", &volume])).await?;
            console.show(&found, |style, _| details(&found, now(), style))
        }
        VolumeCommand::Grow { volume, size, wait } => {
            let order = Grow { size: size.0, limit: None, wait_seconds: Some(wait.0) };
            let place = path(&["v1", "volumes", &volume, "grow"]);
            let (_, grown): (_, Volume) = tokio::select! {
                grown = client.send(Method::POST, &place, &order) => grown?,
                _ = tokio::signal::ctrl_c() => return Err(interrupted(&format!(
                    "it grows all the same: bowline volume show {volume}"
                ))),
            };
            console.show(&grown, |_, _| format!("{} has {} now.\n", grown.name, Size(grown.size)))
        }
        VolumeCommand::Modify(args) => modify(client, args, console).await,
        VolumeCommand::Delete { volume, wait } => {
            let wait = query(&[("waitSeconds", Some(wait.0.to_string()))]);
            let place = format!("{}{wait}", path(&["v1", "volumes", &volume]));
            tokio::select! {
                done = client.delete(&place) => done?,
                _ = tokio::signal::ctrl_c() => return Err(interrupted("it is deleted all the same")),
            };
            let done = serde_json::json!({ "volume": volume, "deleted": true });
            console.show(&done, |_, _| format!("{volume} is deleted.\n"))
        }
    }
}

async fn create(client: &Client, args: CreateArgs, console: &mut Console) -> Result<(), Failure> {
    let migratable = args.migratable.map(migration_seconds).transpose().map_err(Failure::usage)?;
    let source = match (args.from_snapshot, args.from_volume) {
        (Some(snapshot), _) => Some(Source::Snapshot(snapshot)),
        (None, Some(volume)) => Some(Source::Volume(volume)),
        (None, None) => None,
    };
    let copies = source.is_some();
    let name = args.name;
    let order = NewVolume {
        name: name.clone(),
        size: args.size.map(|size| size.0),
        limit: None,
        fs: args.fs,
        uses: vec![Use::from(args.access)],
        source,
        settings: Settings {
            migratable,
            deletion_protection: args.deletion_protection,
            discard: args.discard,
        },
        wait_seconds: Some(args.wait.0),
    };
    let made = client.send::<Volume>(Method::POST, "/v1/volumes", &order);
    tokio::pin!(made);
    let mut shown = Shown::begin(&name);
    let (_, made) = loop {
        tokio::select! {
            made = &mut made => break made,
            _ = tokio::signal::ctrl_c() => {
                shown.end();
                return Err(interrupted(&format!("it is made all the same: bowline volume show {name}")));
            }
            () = shown.wait(), if copies => {
                let found = client.get::<Volume>(&path(&["v1", "volumes", &name])).await;
                if let Some(progress) = found.ok().and_then(|volume| volume.progress) {
                    shown.tell(progress, console);
                }
            }
        }
    }
    .inspect_err(|_| shown.end())
    .map_err(|failure| match failure.exit {
        Exit::TimedOut => Failure::timed_out(format!(
            "{}\nSee how far it is with: bowline volume show {name}",
            failure.message
        )),
        _ => failure,
    })?;
    shown.end();
    console.show(&made, |_, _| {
        let (name, size, fs) = (&made.name, Size(made.size), made.fs);
        format!("{name} is ready: {size}, {fs} ({}).\n", made.id)
    })
}

async fn list(client: &Client, console: &mut Console) -> Result<(), Failure> {
    let mut all: Vec<Volume> = vec![];
    let mut after = None;
    loop {
        let asked = query(&[("after", after), ("limit", Some("1000".to_owned()))]);
        let page: Volumes = client.get(&format!("/v1/volumes{asked}")).await?;
        all.extend(page.volumes);
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    let listed = Volumes { volumes: all, next: None };
    console.show(&listed, |style, wide| table(&listed.volumes, now(), style, wide))
}

async fn modify(client: &Client, args: ModifyArgs, console: &mut Console) -> Result<(), Failure> {
    let on = |switch: Switch| switch == Switch::On;
    let change = Change {
        migratable: args.migratable.map(|migratable| match migratable {
            Migratable::Off => None,
            Migratable::Seconds(seconds) => Some(seconds),
        }),
        deletion_protection: args.deletion_protection.map(on),
        discard: args.discard.map(on),
    };
    if change == Change::default() {
        return Err(Failure::usage("say what to change: --deletion-protection, --discard or --migratable"));
    }
    let place = path(&["v1", "volumes", &args.volume]);
    let (_, changed): (_, Volume) = client.send(Method::PATCH, &place, &change).await?;
    console.show(&changed, |style, _| details(&changed, now(), style))
}

/// One word for a volume, and what it means to the reader.
fn state(volume: &Volume) -> (String, Tone) {
    let attachment = volume.attachment.as_ref().map(|attachment| attachment.state.as_str());
    match (volume.state, attachment) {
        (VolumeState::Creating | VolumeState::Deleting | VolumeState::Growing, _) => {
            (volume.state.as_str().to_owned(), Tone::Waiting)
        }
        (VolumeState::Ready, Some(word @ "faulted")) => (word.to_owned(), Tone::Bad),
        (VolumeState::Ready, Some(word @ ("attached" | "detached"))) => (word.to_owned(), Tone::Good),
        (VolumeState::Ready, Some(word)) => (word.to_owned(), Tone::Waiting),
        (VolumeState::Ready, None) => ("unknown".to_owned(), Tone::Bad),
    }
}

fn nodes(attachment: Option<&Attachment>) -> String {
    let names: Vec<&str> = attachment
        .iter()
        .flat_map(|attachment| &attachment.holders)
        .map(|holder| holder.node.as_str())
        .collect();
    if names.is_empty() { "-".to_owned() } else { names.join(",") }
}

fn uses(volume: &Volume) -> String {
    use bowline_core::{AccessMode, Content};
    let word = |one: &Use| match (one.access, one.content) {
        (AccessMode::SingleNodeWriter, Content::Filesystem) => "rwo",
        (AccessMode::SingleNodeWriter, Content::Block) => "block",
        (AccessMode::SingleNodeReaderOnly, _) => "ro",
        (AccessMode::SingleNodeSingleWriter, _) => "rwop",
        (AccessMode::SingleNodeMultiWriter, Content::Filesystem) => "rwo",
        (AccessMode::SingleNodeMultiWriter, Content::Block) => "block",
        (AccessMode::MultiNodeReaderOnly, _) => "rox",
        (AccessMode::MultiNodeSingleWriter, _) => "one-writer",
        (AccessMode::MultiNodeMultiWriter, _) => "rwx",
    };
    let mut words: Vec<&str> = volume.uses.iter().map(word).collect();
    words.dedup();
    words.join(",")
}

fn table(volumes: &[Volume], now: Timestamp, style: Style, wide: bool) -> String {
    let mut columns = vec!["NAME", "STATE", "NODE", "SIZE", "ACCESS", "AGE"];
    if wide {
        columns.extend(["FS", "TARGET", "ID"]);
    }
    let mut table = Table::new(&columns);
    for volume in volumes {
        let (word, tone) = state(volume);
        let mut row = vec![
            toned(Tone::Strong, &*volume.name),
            toned(tone, word),
            cell(nodes(volume.attachment.as_ref())),
            cell(Size(volume.size).to_string()),
            cell(uses(volume)),
            cell(relative(volume.created_at, now)),
        ];
        if wide {
            row.extend([cell(volume.fs.to_string()), cell(&*volume.target), cell(volume.id.as_str())]);
        }
        table.row(row);
    }
    if table.is_empty() {
        "There are no volumes. Make one: bowline volume create NAME --size 1Gi\n".to_owned()
    } else {
        table.show(style)
    }
}

fn details(volume: &Volume, now: Timestamp, style: Style) -> String {
    let mut out = String::new();
    let mut line = |name: &str, value: String| {
        let _ = writeln!(out, "{name:<12} {}", one_line(&value));
    };
    let (word, tone) = state(volume);
    line("name", volume.name.clone());
    line("id", volume.id.to_string());
    let growing = volume.growing_to.map(|to| format!(", growing to {}", Size(to))).unwrap_or_default();
    line("size", format!("{} ({} bytes){growing}", Size(volume.size), volume.size));
    line("filesystem", volume.fs.to_string());
    line("access", uses(volume));
    line("target", volume.target.clone());
    line("made", format!("{} ({:.0})", relative(volume.created_at, now), volume.created_at));
    match &volume.source {
        Some(Source::Snapshot(id)) => line("from", format!("snapshot {id}")),
        Some(Source::Volume(id)) => line("from", format!("volume {id}")),
        None => {}
    }
    let Settings { migratable, deletion_protection, discard } = &volume.settings;
    let mut settings = vec![];
    if let Some(seconds) = migratable {
        settings.push(format!("migratable for {seconds}s"));
    }
    if *deletion_protection {
        settings.push("protected against deletion".to_owned());
    }
    if *discard {
        settings.push("discard".to_owned());
    }
    if !settings.is_empty() {
        line("settings", settings.join(", "));
    }
    if let Some(fault) = &volume.fault {
        line("fault", fault.clone());
    }
    let holders = volume.attachment.iter().flat_map(|attachment| &attachment.holders);
    for holder in holders {
        let reading = if holder.write { "" } else { ", only for reading" };
        let since = relative(holder.since, now);
        line(
            "on node",
            format!("{} ({}, epoch {}, {since}{reading})", holder.node, holder.phase, holder.epoch),
        );
    }
    // Last, and by itself: the colour is not part of the text that is cleaned.
    let _ = writeln!(out, "{:<12} {}", "state", style.paint(tone, &word));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn volumes() -> Vec<Volume> {
        let json = serde_json::json!([
            { "id": "0123456789abcdef01234567-00000001", "name": "db", "target": "file", "size": 10_737_418_240_u64,
              "fs": "ext4", "uses": [{ "access": "single-node-writer", "content": "filesystem" }], "source": null,
              "settings": { "deletionProtection": true, "migratable": 300 }, "createdAt": "2030-01-01T09:00:00Z",
              "state": "ready", "attachment": { "state": "attached", "holders": [
                { "node": "worker-1", "phase": "held", "epoch": 7, "since": "2030-01-01T10:00:00Z", "write": true }] } },
            { "id": "0123456789abcdef01234568-00000002", "name": "copy\u{1b}[31m", "target": "file", "size": 1_610_612_736,
              "fs": "xfs", "uses": [{ "access": "multi-node-reader-only", "content": "filesystem" }],
              "source": { "volume": "0123456789abcdef01234567-00000001" }, "settings": {},
              "createdAt": "2030-01-01T11:59:00Z", "state": "creating", "attachment": null,
              "progress": { "done": 1, "total": 2 } },
            { "id": "0123456789abcdef01234569-00000003", "name": "old", "target": "file", "size": 512, "fs": "btrfs",
              "uses": [{ "access": "single-node-writer", "content": "block" }], "source": { "snapshot": "s-1" },
              "settings": { "discard": true }, "createdAt": "2029-01-01T11:59:00Z", "state": "growing",
              "growingTo": 1024, "attachment": { "state": "detached", "holders": [] }, "fault": "its file is shorter than it was" }
        ]);
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn the_table_of_volumes_looks_like_this() {
        let now = "2030-01-01T12:00:00Z".parse().unwrap();
        insta::assert_snapshot!(table(&volumes(), now, Style::Plain, false));
        insta::assert_snapshot!("wide", table(&volumes(), now, Style::Plain, true));
        assert!(table(&[], now, Style::Plain, false).contains("bowline volume create"));
    }

    #[test]
    fn a_volume_is_shown_like_this() {
        let now = "2030-01-01T12:00:00Z".parse().unwrap();
        let all: Vec<String> = volumes().iter().map(|volume| details(volume, now, Style::Plain)).collect();
        insta::assert_snapshot!(all.join("\n"));
    }
}
