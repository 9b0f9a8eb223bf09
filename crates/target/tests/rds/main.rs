//! The target on a ROSE Data Server, against a simulated device without a network, on which commands are lost, halved and late.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed check is a panic")]

mod access;
mod contract;
mod lab;
mod print;
mod rack;
mod regressions;
mod sweep;
mod together;
