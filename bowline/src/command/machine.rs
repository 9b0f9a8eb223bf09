//! `bowline peer`.

use bowline_web::wire::{AddNode, Node, Nodes};
use hyper::Method;
use jiff::Timestamp;

use super::{Console, now};
use crate::args::PeerCommand;
use crate::client::{Client, path};
use crate::failure::Failure;
use crate::output::{Style, Table, Tone, cell, toned};
use crate::span::relative;

pub(super) async fn peer(
    client: &Client,
    command: PeerCommand,
    console: &mut Console,
) -> Result<(), Failure> {
    match command {
        PeerCommand::List => {
            let listed: Nodes = client.get("/v1/nodes").await?;
            console.show(&listed, |style, _| table(&listed.nodes, now(), style))
        }
        PeerCommand::Add { node, max_volumes } => {
            let order = AddNode { limit: max_volumes };
            let (_, added): (_, Node) =
                client.send(Method::PUT, &path(&["v1", "nodes", &node]), &order).await?;
            console.show(&added, |_, _| format!("{node} may ask for volumes.\n"))
        }
        PeerCommand::Remove { node } => {
            client.delete(&path(&["v1", "nodes", &node])).await?;
            let done = serde_json::json!({ "node": node, "removed": true });
            console.show(&done, |_, _| format!("{node} is not known any more.\n"))
        }
        PeerCommand::OutOfService { node } => {
            let place = path(&["v1", "nodes", &node, "out-of-service"]);
            let (_, out): (_, Node) = client.send(Method::PUT, &place, &serde_json::json!({})).await?;
            console.show(&out, |_, _| {
                format!(
                    "{node} is out of service: it is fenced, and what it had goes to whoever is next.\n\
                     When it is well again: bowline peer back-in-service {node}\n"
                )
            })
        }
        PeerCommand::BackInService { node } => {
            let body = client.delete(&path(&["v1", "nodes", &node, "out-of-service"])).await?;
            let back: Node =
                serde_json::from_slice(&body).map_err(|error| Failure::failed(error.to_string()))?;
            console.show(&back, |_, _| format!("{node} is back in service.\n"))
        }
    }
}

fn table(nodes: &[Node], now: Timestamp, style: Style) -> String {
    let mut table = Table::new(&["NAME", "STATE", "MAX VOLUMES", "KNOWN"]);
    for node in nodes {
        let (word, tone) = match node.out_of_service {
            Some(since) => (format!("out of service ({})", relative(since, now)), Tone::Bad),
            None => ("in service".to_owned(), Tone::Good),
        };
        table.row([
            toned(Tone::Strong, &*node.id),
            toned(tone, word),
            cell(node.limit.map_or_else(|| "-".to_owned(), |limit| limit.to_string())),
            cell(relative(node.added_at, now)),
        ]);
    }
    table.show(style)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_nodes_looks_like_this() {
        let nodes: Vec<Node> = serde_json::from_value(serde_json::json!([
            { "id": "worker-1", "limit": 128, "addedAt": "2030-01-01T00:00:00Z" },
            { "id": "worker-2", "outOfService": "2030-01-01T11:58:00Z", "addedAt": "2029-12-01T00:00:00Z" }
        ]))
        .unwrap();
        insta::assert_snapshot!(table(&nodes, "2030-01-01T12:00:00Z".parse().unwrap(), Style::Plain));
    }
}
