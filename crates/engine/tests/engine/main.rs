//! The engine with a store and a target that fail on purpose, on virtual time.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed check is a panic")]
#![allow(clippy::print_stdout, reason = "the sweeps print what they covered")]

mod adopt;
mod attach;
mod crowd;
mod fairness;
mod gauges;
mod lifecycle;
mod lost;
mod random;
mod scenario;
mod start;
mod sweep;
mod targets;
mod world;
