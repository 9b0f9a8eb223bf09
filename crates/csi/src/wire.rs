//! The messages and services as the contract in `proto/` states them; generated, so exempt from lints.
//!
//! Nothing beyond a service's first line should touch a request of this module: it is parsed there. Responses are
//! built from these types directly. A message with secrets, or with mount flags, has a `Debug` that hides them.

/// CSI 1.13: the package `csi.v1`.
pub use csi::*;

#[allow(missing_docs, unused_qualifications, unreachable_pub, clippy::all, reason = "generated")]
#[rustfmt::skip]
mod csi {
    tonic::include_proto!("csi.v1");
    include!(concat!(env!("OUT_DIR"), "/secretive.rs"));
}

/// How a plugin introduces itself to the kubelet: the package `pluginregistration`.
#[allow(missing_docs, unused_qualifications, unreachable_pub, clippy::all, reason = "generated")]
#[rustfmt::skip]
pub mod registration {
    tonic::include_proto!("pluginregistration");
}

/// The compiled contract, as a serialised `FileDescriptorSet` with what it imports.
pub const DESCRIPTOR: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptor.bin"));
