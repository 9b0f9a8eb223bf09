//! The CSI `Node` service: what the kubelet asks of one machine.
//!
//! **Flow.** A request is parsed by [`bowline_csi::node`] → its paths are resolved without symlinks below the
//! directories the service was given → the volume and the path are locked → the work runs on a thread that may block,
//! in a task of its own, so that a caller who hangs up stops nothing → the error, if any, becomes a code by
//! [`bowline_csi::code`].
//!
//! **Where things come from.** Devices come from the port [`Devices`]: [`FileDevices`] of targets on this machine,
//! [`NvmeDevices`] of every target whose grants say how to get there over NVMe/TCP. What was begun and what is staged is in one record per volume ([`staging`]), written before the deed. Everything else is asked
//! of the kernel each time: mounts by their device numbers, devices by their identity.
//!
//! Start reading at [`NodeService`], then `stage.rs`, `publish.rs`, `unstage.rs`.

mod answer;
mod devices;
mod event;
mod expand;
mod file;
mod health;
mod metrics;
mod node;
mod number;
mod nvme;
mod publish;
mod registration;
mod seen;
mod service;
mod stage;
pub mod staging;
mod state;
mod turn;
mod unpublish;
mod unstage;
mod used;
mod watch;

pub use devices::{Device, Devices, DevicesError, Grant, Remains};
pub use event::Told;
pub use file::FileDevices;
pub use node::{Parts, StartError, Timing};
pub use nvme::NvmeDevices;
pub use registration::{Registered, RegistrationService};
pub use service::NodeService;
