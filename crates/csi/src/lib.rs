//! CSI: the wire contract, requests parsed at the edge, the table of gRPC codes, and the socket they arrive on.
//!
//! # Flow
//!
//! [`Server`] listens on a unix socket → tonic decodes a message of [`wire`] → the service turns it into a request of
//! [`controller`], [`snapshot`] or [`node`] with `try_from`, once, in its first line → it does the work → its error, if
//! any, becomes a [`tonic::Status`] through the table in [`code`].
//!
//! ```
//! use bowline_csi::code::DeleteVolumeError;
//! use bowline_csi::{controller::DeleteVolume, wire};
//!
//! fn delete(request: wire::DeleteVolumeRequest) -> Result<wire::DeleteVolumeResponse, DeleteVolumeError> {
//!     let request = DeleteVolume::try_from(request)?;
//!     Err(DeleteVolumeError::InUse(format!("{} is attached to worker-2", request.volume)))
//! }
//!
//! let status = tonic::Status::from(delete(wire::DeleteVolumeRequest::default()).unwrap_err());
//! assert_eq!((status.code(), status.message()), (tonic::Code::InvalidArgument, "volume_id is required"));
//! ```
//!
//! Calls without fields (`Probe`, the capabilities, `NodeGetInfo`) have nothing to parse.
//!
//! # Guarantees
//!
//! - A request that was accepted has every required field, no text or map beyond the limits of CSI, ids that are safe
//!   in a path and in a Kubernetes handle, absolute paths without `..`, sizes that cannot overflow, and no unknown enum
//!   value. One that was not is `InvalidArgument` with the path of the field, as the contract spells it.
//! - A secret, or a mount flag, never appears in `Debug`, `Display` or the text of an error, neither of a request here nor
//!   of its message in [`wire`].
//! - Each reason for a failure has exactly one code; a code that callers take as final is given only to reasons that
//!   leave nothing behind.
//! - The socket is never open to others, not even while it is made; a live one is never taken from its owner.
//!
//! # Assumptions
//!
//! - Whoever opens a path from a request does so without following symbolic links: a path says nothing about what is there.

mod attributes;
pub mod authority;
mod calls;
mod capability;
mod capacity;
pub mod code;
pub mod controller;
mod endpoint;
mod field;
mod id;
pub mod node;
mod page;
mod path;
mod server;
pub mod snapshot;
mod socket;
mod topology;
pub mod wire;

pub use attributes::{Attributes, Secrets};
pub use bowline_core::{GroupSnapshotId, SnapshotId};
pub use capability::{Access, FsType, Mount, MountFlags, VolumeCapability};
pub use capacity::CapacityRange;
pub use endpoint::{Endpoint, EndpointError};
pub use field::{InvalidField, Problem};
pub use id::Name;
pub use page::Page;
pub use path::AbsolutePath;
pub use server::{Ended, Limits, ServeError, Server};
pub use socket::{BindError, OwnedSocket};
pub use topology::{Topology, TopologyRequirement};
