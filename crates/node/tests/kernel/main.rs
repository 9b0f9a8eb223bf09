//! On the real kernel, as root: volumes staged and published by nodes of their own on one machine. What cannot run here
//! says `not run`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed check is a panic")]

mod crash;
mod device;
mod lab;
mod life;
mod nvme;
mod outage;
mod refuse;
mod size;
mod stale;
mod sweep;
mod target;
#[path = "../../../host/tests/nvme/tree.rs"]
#[allow(dead_code, reason = "the tests of crates/host use the rest of it")]
mod tree;
mod turns;
