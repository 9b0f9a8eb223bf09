//! The file target on real filesystems, as root. What cannot run here says `not run`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed check is a panic")]

mod access;
mod contract;
mod copies;
mod crash;
mod damage;
mod lab;
mod power;
mod random;
mod room;
mod snapshots;
mod watched;
