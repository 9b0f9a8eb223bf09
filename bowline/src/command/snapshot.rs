//! `bowline snapshot`.

use bowline_web::wire::{Group, NewSnapshot, Snapshot, Snapshots};
use hyper::Method;
use jiff::Timestamp;
use std::collections::BTreeMap;

use super::attach::interrupted;
use super::{Console, names, now};
use crate::args::SnapshotCommand;
use crate::client::{Client, path, query};
use crate::failure::Failure;
use crate::output::{Style, Table, Tone, cell, toned};
use crate::size::Size;
use crate::span::{Span, relative};

pub(super) async fn run(
    client: &Client,
    command: SnapshotCommand,
    console: &mut Console,
) -> Result<(), Failure> {
    match command {
        SnapshotCommand::Create { name, volumes, wait } => create(client, name, volumes, wait, console).await,
        SnapshotCommand::List { volume } => list(client, volume, console).await,
        SnapshotCommand::Show { snapshot } => {
            let found: Snapshot = client.get(&path(&["v1", "snapshots", &snapshot])).await?;
            let names = names_of(client, console, std::slice::from_ref(&found)).await;
            console.show(&found, |style, _| table(std::slice::from_ref(&found), &names, now(), style, true))
        }
        SnapshotCommand::Delete { snapshot, group, wait } => {
            let kind = if group { "groups" } else { "snapshots" };
            let wait = query(&[("waitSeconds", Some(wait.0.to_string()))]);
            client.delete(&format!("{}{wait}", path(&["v1", kind, &snapshot]))).await?;
            let done = serde_json::json!({ "id": snapshot, "deleted": true });
            console.show(&done, |_, _| format!("{snapshot} is deleted.\n"))
        }
    }
}

async fn create(
    client: &Client,
    name: String,
    volumes: Vec<String>,
    wait: Span,
    console: &mut Console,
) -> Result<(), Failure> {
    let order = NewSnapshot { name, volumes, wait_seconds: Some(wait.0) };
    let remains = "the snapshot is taken all the same: bowline snapshot list";
    if order.volumes.len() > 1 {
        let (_, taken): (_, Group) = tokio::select! {
            taken = client.send(Method::POST, "/v1/groups", &order) => taken?,
            _ = tokio::signal::ctrl_c() => return Err(interrupted(remains)),
        };
        let names = names_of(client, console, &taken.snapshots).await;
        return console.show(&taken, |style, _| {
            let all = table(&taken.snapshots, &names, now(), style, false);
            format!("Group {} ({}), taken at one moment:\n{all}", taken.name, taken.id)
        });
    }
    let (_, taken): (_, Snapshot) = tokio::select! {
        taken = client.send(Method::POST, "/v1/snapshots", &order) => taken?,
        _ = tokio::signal::ctrl_c() => return Err(interrupted(remains)),
    };
    let names = names_of(client, console, std::slice::from_ref(&taken)).await;
    console.show(&taken, |style, _| table(std::slice::from_ref(&taken), &names, now(), style, false))
}

async fn list(client: &Client, volume: Option<String>, console: &mut Console) -> Result<(), Failure> {
    let mut all: Vec<Snapshot> = vec![];
    let mut after = None;
    loop {
        let asked =
            query(&[("volume", volume.clone()), ("after", after), ("limit", Some("1000".to_owned()))]);
        let page: Snapshots = client.get(&format!("/v1/snapshots{asked}")).await?;
        all.extend(page.snapshots);
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    let listed = Snapshots { snapshots: all, next: None };
    let names = names_of(client, console, &listed.snapshots).await;
    console.show(&listed, |style, wide| table(&listed.snapshots, &names, now(), style, wide))
}

async fn names_of(client: &Client, console: &Console, snapshots: &[Snapshot]) -> BTreeMap<String, String> {
    names(client, console, snapshots.iter().map(|snapshot| snapshot.volume.clone()).collect()).await
}

fn table(
    snapshots: &[Snapshot],
    names: &BTreeMap<String, String>,
    now: Timestamp,
    style: Style,
    wide: bool,
) -> String {
    let mut columns = vec!["NAME", "STATE", "SIZE", "TAKEN", "VOLUME"];
    if wide {
        columns.extend(["ID", "TARGET", "GROUP"]);
    }
    let mut table = Table::new(&columns);
    for snapshot in snapshots {
        let tone = if snapshot.state.as_str() == "ready" { Tone::Good } else { Tone::Waiting };
        let mut row = vec![
            toned(Tone::Strong, &*snapshot.name),
            toned(tone, snapshot.state.as_str()),
            cell(snapshot.size.map_or_else(|| "-".to_owned(), |size| Size(size).to_string())),
            cell(snapshot.taken_at.map_or_else(|| "-".to_owned(), |at| relative(at, now))),
            cell(names.get(&snapshot.volume).unwrap_or(&snapshot.volume).as_str()),
        ];
        if wide {
            let group = snapshot.group.as_deref().unwrap_or("-");
            row.extend([cell(&*snapshot.id), cell(&*snapshot.target), cell(group)]);
        }
        table.row(row);
    }
    if table.is_empty() { "There are no snapshots.\n".to_owned() } else { table.show(style) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_snapshots_looks_like_this() {
        let snapshots: Vec<Snapshot> = serde_json::from_value(serde_json::json!([
            { "id": "0123-4", "name": "before-upgrade", "volume": "89ab-c", "target": "file",
              "createdAt": "2030-01-01T09:00:00Z", "state": "ready", "size": 10_737_418_240_u64,
              "takenAt": "2030-01-01T09:00:01Z", "group": "g-1" },
            { "id": "4567-8", "name": "now", "volume": "89ab-c", "target": "file",
              "createdAt": "2030-01-01T12:00:00Z", "state": "taking" }
        ]))
        .unwrap();
        let now = "2030-01-01T12:00:00Z".parse().unwrap();
        let names = BTreeMap::from([("89ab-c".to_owned(), "db".to_owned())]);
        insta::assert_snapshot!(table(&snapshots, &names, now, Style::Plain, false));
        insta::assert_snapshot!("wide", table(&snapshots, &names, now, Style::Plain, true));
    }
}
