//! Stores and targets that fail on purpose, and clocks that tests turn. For tests only.
//!
//! [`SimTarget`] is a whole target in memory; it notes every moment at which two nodes could reach a volume in modes that do not
//! admit each other. [`FaultyStore`], [`FaultyTarget`] and [`FaultyProvision`] stand in front of real ones and let a [`Fate`] decide, step by step,
//! what becomes of each call: it goes through, it is lost, its answer is lost, it takes long, or the process dies there.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a broken test shall stop at once"
)]

mod clock;
mod fate;
mod faulty;
mod faulty_provision;
mod sim;
mod storage;
mod summary;
mod wish;

pub use clock::TestClock;
pub use fate::{Fate, Luck, Step};
pub use faulty::{FaultyStore, FaultyTarget};
pub use faulty_provision::FaultyProvision;
pub use sim::SimTarget;
pub use summary::say;
pub use wish::{backup, csi, node, volume, wish};
