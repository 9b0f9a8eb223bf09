//! Keeps the page about the proof current: what it lists is written by the model itself. `BLESS=1` writes it anew.

use std::fmt::Write as _;
use std::path::PathBuf;

use crate::property::Rule;
use crate::report::Violation;
use crate::script::Scenario;
use crate::variants::Variant;

const BEGIN: &str = "<!-- Written by the model: BLESS=1 cargo test -p bowline-engine --test model -->\n";
const END: &str = "<!-- End of what the model writes. -->\n";

/// Those whose traces are worth reading on the page.
const TOLD: [&str; 3] = [
    "a time-out counts as proof",
    "a late allow is called gone during the drain",
    "absence from the list is proof",
];

/// Whether the page says what the model says.
pub(crate) fn is_current(scenarios: &[Scenario], caught: &[(&Variant, Violation)]) -> bool {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/proof.md");
    let page = std::fs::read_to_string(&path).expect("docs/proof.md can be read");
    let (before, rest) = page.split_once(BEGIN).expect("the page has the mark of the beginning");
    let (_, after) = rest.split_once(END).expect("the page has the mark of the end");
    let fresh = format!("{before}{BEGIN}{}{END}{after}", lists(scenarios, caught));
    if fresh == page {
        return true;
    }
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, fresh).expect("docs/proof.md can be written");
        println!("docs/proof.md was written anew");
        return true;
    }
    println!("docs/proof.md is out of date: run BLESS=1 cargo test -p bowline-engine --test model");
    false
}

fn lists(scenarios: &[Scenario], caught: &[(&Variant, Violation)]) -> String {
    let mut text = String::from("\n## The properties\n\n| property | what it says |\n|---|---|\n");
    for rule in Rule::ALL {
        let _ = writeln!(text, "| {} | {} |", rule.name(), rule.meaning());
    }
    text.push_str("\n## The scenarios\n\n");
    text.push_str(
        "Bounds: controllers (up at the start), crashes, lost answers, repeated commands, old lists, removed records.\n\n",
    );
    text.push_str(
        "| scenario | what happens | controllers | crashes | lost | repeated | lists | removed |\n",
    );
    text.push_str("|---|---|---|---|---|---|---|---|\n");
    for one in scenarios {
        let faults = one.faults;
        let _ = writeln!(
            text,
            "| {} | {} | {} ({}) | {} | {} | {} | {} | {} |",
            one.name,
            one.about,
            one.controllers,
            one.up,
            faults.crashes,
            faults.losses,
            faults.copies,
            faults.lists,
            faults.wipes
        );
    }
    text.push_str("\n## The wrong variants\n\n| mistake | in the scenario | caught by | after steps |\n|---|---|---|---|\n");
    for (variant, violation) in caught {
        let steps = violation.trace.len();
        let _ = writeln!(text, "| {} | {} | {} | {steps} |", variant.name, variant.scenario, violation.rule);
    }
    for (variant, violation) in caught.iter().filter(|(variant, _)| TOLD.contains(&variant.name)) {
        let _ = writeln!(text, "\n**{}**, caught by *{}*:\n", variant.name, violation.rule);
        for (number, step) in violation.trace.iter().enumerate() {
            let _ = writeln!(text, "{}. {step}", number + 1);
        }
    }
    text.push('\n');
    text
}
