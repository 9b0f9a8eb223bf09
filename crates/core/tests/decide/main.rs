//! What `decide` does, rule by rule. Every step of a row also goes through a restart: the ledger is written,
//! read back, and decided again with nothing new, which must change nothing.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod world;

mod migration;
mod modes;
mod nodes;
mod rank;
mod target;
mod tickets;
