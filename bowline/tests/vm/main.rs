//! Bowline in machines with kernels of their own: real NVMe over TCP, real partitions, real power cuts.
//!
//! Needs QEMU and Debian's kernel package; where they cannot be had, each test says so and is counted as not run.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a failed check is a panic, and what is shown is told"
)]

mod by_hand;
mod bystander;
mod contract;
mod day;
mod deaths;
mod device;
mod fabric;
mod fence;
mod gone;
mod kernel;
mod lab;
mod many;
mod paths;
mod renumber;
mod rounds;
mod sanity;
mod stuck;
mod trees;
mod unheard;
mod upgrade;

use bowline_testkit::vm::{Kernel, Plan, Site};
use std::path::Path;

const BOWLINE: &str = env!("CARGO_BIN_EXE_bowline");

/// Bowline in the usual machines.
fn site(kernel: Kernel) -> Option<Site> {
    Site::start(Plan::usual().kernel(kernel), Path::new(BOWLINE))
}

/// Whether there is time for everything: `make test-vm`.
fn is_thorough() -> bool {
    std::env::var_os("BOWLINE_VM").is_some_and(|wanted| wanted == "all")
}
