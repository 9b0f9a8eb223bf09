//! Volumes exported over NVMe/TCP, by a simulated kernel; the loop devices under readers are real, so that needs root.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed check is a panic")]

mod busy;
mod contract;
mod crash;
mod lab;
mod order;
mod start;
mod stuck;
mod unseen;
