//! The target on a ROSE Data Server, against a small device in memory that understands the same command lines.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed check is a panic")]

mod access;
mod contract;
mod device;
mod lab;
mod print;
mod regressions;
mod sweep;
mod together;
mod words;
