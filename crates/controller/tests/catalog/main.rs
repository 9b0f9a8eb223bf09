//! The catalog and the CSI services on a store and a target that fail on purpose, on virtual time.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed check is a panic")]
#![allow(clippy::print_stdout, reason = "the sweeps print what they covered")]

mod attach;
mod csi;
mod faults;
mod lists;
mod open;
mod orphans;
mod random;
mod scenario;
mod snapshots;
mod sweep;
mod targets;
mod volumes;
mod world;
