//! On the real kernel, as root: volumes staged and published by nodes of their own on one machine. What cannot run here
//! says `not run`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed check is a panic")]

mod crash;
mod device;
mod lab;
mod life;
mod refuse;
mod size;
mod stale;
mod sweep;
mod target;
mod turns;
