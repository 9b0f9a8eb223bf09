//! `bowline target list` and `drain`.

use bowline_web::wire::{Target, Targets};
use hyper::Method;

use super::Console;
use crate::client::{Client, path};
use crate::failure::Failure;
use crate::output::{Style, Table, Tone, cell, toned};

pub(super) async fn list(client: &Client, console: &mut Console) -> Result<(), Failure> {
    let listed: Targets = client.get("/v1/targets").await?;
    console.show(&listed, |style, _| table(&listed.targets, style))
}

pub(super) async fn drain(
    client: &Client,
    target: &str,
    off: bool,
    console: &mut Console,
) -> Result<(), Failure> {
    let place = path(&["v1", "targets", target, "drain"]);
    let changed: Target = if off {
        let body = client.delete(&place).await?;
        serde_json::from_slice(&body).map_err(|error| Failure::failed(error.to_string()))?
    } else {
        client.send(Method::PUT, &place, &serde_json::json!({})).await?.1
    };
    console.show(&changed, |_, _| {
        if off {
            format!("New volumes may be made on {target} again.\n")
        } else {
            format!(
                "Nothing new is made on {target}; what is there stays usable.\n\
                 To take that back: bowline target drain {target} --off\n"
            )
        }
    })
}

fn table(targets: &[Target], style: Style) -> String {
    let mut table = Table::new(&["NAME", "KIND", "STATE"]);
    for target in targets {
        let (word, tone) = match (target.connected, target.draining) {
            (false, true) => ("not connected, draining", Tone::Bad),
            (false, false) => ("not connected", Tone::Bad),
            (true, true) => ("draining", Tone::Waiting),
            (true, false) => ("open", Tone::Good),
        };
        table.row([
            toned(Tone::Strong, &*target.id),
            cell(target.kind.as_deref().unwrap_or("-")),
            toned(tone, word),
        ]);
    }
    table.show(style)
}
