//! The proof: every interleaving of crashes, losses, repetitions and pauses, within bounds, over production's own `decide`
//! and production's own executor. Run it with `cargo test -p bowline-engine --test model`.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test binary: it prints its findings, and a broken model must stop it"
)]

mod calm;
mod history;
mod page;
mod property;
mod report;
mod scenarios;
mod script;
mod shell;
mod step;
mod system;
mod variants;
mod world;

use std::process::ExitCode;

fn main() -> ExitCode {
    let deep = std::env::var("BOWLINE_MODEL").is_ok_and(|value| value == "deep");
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.iter().any(|argument| argument == "--list") {
        return ExitCode::SUCCESS;
    }
    let filters: Vec<String> = arguments.into_iter().filter(|argument| !argument.starts_with('-')).collect();
    let (scenarios, wrong) = (scenarios::all(deep), variants::all());
    let sound = report::scenarios(&scenarios, &filters);
    // The mistakes are found within the small bounds; the deep run would only find them again.
    let caught = report::variants(&wrong, &scenarios::all(false), &filters);
    let is_whole = filters.is_empty() && !deep;
    let current = caught.as_ref().is_some_and(|caught| !is_whole || page::is_current(&scenarios, caught));
    if sound && current { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
