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
    let all = scenarios::all(deep);
    let sound = report::scenarios(&all, &filters);
    let caught = report::variants(&variants::all(), &all, &filters);
    if sound && caught { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
