//! On the real kernel, as root: loop devices, filesystems and mounts. What cannot run here says `not run`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed check is a panic")]

mod doctor;
mod format;
mod lab;
mod loops;
mod mounts;
mod scenario;
