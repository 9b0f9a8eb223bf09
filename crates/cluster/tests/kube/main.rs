//! What surrounds the engine, against a real API server: objects in, objects out. The target is simulated and watches over itself.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed check is a panic")]
#![allow(clippy::print_stdout, reason = "what was waited for is worth reading")]

mod adoption;
mod attach;
mod drivers;
mod lease;
mod marked;
mod owners;
mod people;
mod successor;
mod targets;
mod wishes;
mod world;
