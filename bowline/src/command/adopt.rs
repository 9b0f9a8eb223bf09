//! `bowline adopt`.

use bowline_web::wire::{AdoptedVolume, Adoption, AdoptionState};
use hyper::Method;

use super::Console;
use crate::client::Client;
use crate::failure::{Exit, Failure};
use crate::output::{Style, Table, Tone, cell, toned};

const PATH: &str = "/v1/adoption";

pub(super) async fn run(client: &Client, dry_run: bool, console: &mut Console) -> Result<(), Failure> {
    let report: Adoption = if dry_run {
        client.get(PATH).await?
    } else {
        client.send(Method::POST, PATH, &serde_json::json!({})).await?.1
    };
    console.show(&report, |style, wide| show(&report, style, wide))?;
    match count(&report, AdoptionState::Refused) {
        0 => Ok(()),
        refused => {
            let message = format!("{} refused; when that is done: bowline adopt", many(refused));
            Err(Failure { exit: Exit::Refused, message })
        }
    }
}

fn count(report: &Adoption, state: AdoptionState) -> usize {
    report.volumes.iter().filter(|one| one.state == state).count()
}

fn many(count: usize) -> String {
    if count == 1 { "1 volume is".to_owned() } else { format!("{count} volumes are") }
}

fn show(report: &Adoption, style: Style, wide: bool) -> String {
    let mut table = Table::new(&["VOLUME", "STATE", "NODE", "WHY, AND WHAT TO DO"]);
    let is_shown = |one: &&AdoptedVolume| wide || one.state != AdoptionState::Known;
    for one in report.volumes.iter().filter(is_shown) {
        let tone = match one.state {
            AdoptionState::Known | AdoptionState::Adopted => Tone::Good,
            AdoptionState::Adoptable => Tone::Waiting,
            AdoptionState::Refused => Tone::Bad,
        };
        let nodes = if one.nodes.is_empty() { "-".to_owned() } else { one.nodes.join(", ") };
        table.row([
            toned(Tone::Strong, &*one.volume),
            toned(tone, one.state.as_str()),
            cell(nodes),
            cell(one.why.as_deref().unwrap_or("-")),
        ]);
    }
    let mut text = if table.is_empty() { String::new() } else { table.show(style) };
    let is_done = report.volumes.iter().all(|one| one.state == AdoptionState::Known);
    if is_done {
        text.push_str("Nothing is left to adopt.\n");
    }
    let known = count(report, AdoptionState::Known);
    if known > 0 {
        text.push_str(&format!("{} known already.\n", many(known)));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Adoption {
        serde_json::from_value(serde_json::json!({ "dryRun": true, "volumes": [
            { "volume": "db-000000ab", "state": "adoptable", "nodes": ["worker-1"] },
            { "volume": "logs-000000cd", "state": "known" },
            { "volume": "old-000000ef", "state": "refused", "why": "its annotation says that it is attached to worker-2, but VolumeAttachment csi-1 says worker-1; …" },
            { "volume": "spare-00000012", "state": "adoptable" },
        ]}))
        .unwrap()
    }

    #[test]
    fn what_there_is_to_adopt_is_shown_like_this() {
        insta::assert_snapshot!(show(&report(), Style::Plain, false));
        insta::assert_snapshot!("wide", show(&report(), Style::Plain, true));
    }

    #[test]
    fn when_nothing_is_left_it_says_so() {
        let mut report = report();
        report.volumes.retain(|one| one.state == AdoptionState::Known);
        assert_eq!(
            show(&report, Style::Plain, false),
            "Nothing is left to adopt.\n1 volume is known already.\n"
        );
        report.volumes.clear();
        assert_eq!(show(&report, Style::Plain, false), "Nothing is left to adopt.\n");
    }
}
