//! Stores and targets that fail on purpose, and clocks that tests turn. For tests only.
//!
//! [`SimTarget`] is a whole target in memory; it notes every moment at which two nodes could reach a volume in modes that do not
//! admit each other. [`FaultyStore`], [`FaultyTarget`] and [`FaultyProvision`] stand in front of real ones and let a [`Fate`] decide, step by step,
//! what becomes of each call: it goes through, it is lost, its answer is lost, it takes long, or the process dies there.
//!
//! [`SimNvmet`] stands for a kernel that exports volumes over NVMe/TCP, [`routeros`] for a MikroTik ROSE Data Server, with [`FaultyConsole`] as a way to it on which commands are lost, halved and late. [`sweep`] lets every step of a story go wrong once. [`world`] starts, ends and restarts the real process, and [`driver`] calls it as an orchestrator would. `lab` (a feature) is a
//! Kubernetes of real parts.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a broken test shall stop at once"
)]

mod clock;
mod dice;
pub mod driver;
mod fate;
mod faulty;
mod faulty_console;
mod faulty_provision;
#[cfg(feature = "lab")]
pub mod lab;
mod nvmet;
pub mod sanity;
mod sim;
mod storage;
mod summary;
pub mod sweep;
#[cfg(feature = "lab")]
pub mod vm;
mod wish;
pub mod world;

pub use bowline_routeros as routeros;
pub use clock::TestClock;
pub use dice::Dice;
pub use fate::{Fate, Luck, Step};
pub use faulty::{FaultyStore, FaultyTarget};
pub use faulty_console::{FaultyConsole, Mishap};
pub use faulty_provision::FaultyProvision;
pub use nvmet::SimNvmet;
pub use sim::SimTarget;
pub use summary::say;
pub use wish::{backup, csi, node, volume, wish};
