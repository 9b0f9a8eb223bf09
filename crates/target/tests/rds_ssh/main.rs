//! The SSH link to a RouterOS device, against a real SSH server in front of a simulated one.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed check is a panic")]

mod contract;
mod cut;
mod lab;
mod login;
mod older;
mod openssh;
#[path = "../rds/rack.rs"]
mod rack;
mod sessions;
mod trouble;
