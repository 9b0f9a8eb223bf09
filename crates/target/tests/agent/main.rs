//! A target behind its agent: what the ports promise holds across the wire, whoever dies, lies or comes late.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed check is a panic")]

mod certificates;
mod lab;
mod life;
mod wire;
