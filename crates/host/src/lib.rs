//! One machine's kernel: loop devices, NVMe over TCP, mounts, filesystems, and the paths that requests name.
//!
//! Everything that touches the kernel of a node is here, below injected roots ([`Roots`]), so that several nodes can
//! run on one machine. Functions block; callers run them on threads that may, one at a time per volume. A caller
//! that stops waiting stops nothing: what was begun is finished, under the caller's lock, by the thread that began
//! it.
//!
//! Start reading at [`Host`]. The order of a volume's life: [`Host::attach`], [`format::probe`], [`Host::make`],
//! [`Host::mount`], [`Host::bind`], and back.

pub mod check;
pub mod command;
pub mod device;
mod direct;
pub mod doctor;
pub mod extents;
pub mod file;
pub mod format;
pub mod freeze;
pub mod grow;
pub mod helper;
pub mod holders;
mod host;
pub mod interface;
mod ioctl;
pub mod loopdev;
pub mod mount;
pub mod mountinfo;
pub mod network;
pub mod nvme;
pub mod options;
mod owner;
pub mod path;
pub mod signature;
mod superblock;
mod tag;
pub mod usage;

pub use device::DeviceNumber;
pub use host::{Host, Roots};
pub use tag::Tag;
