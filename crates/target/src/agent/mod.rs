//! Targets that are reached over the network.
//!
//! [`AgentServer`] serves any [`Provision`](crate::Provision) in the process where the storage is; [`AgentClient`] is that
//! target for everybody else. What the ports promise holds across the wire: the target's own answers arrive as they were given,
//! and whatever happens on the way is `Unreachable`, which proves nothing.
//!
//! **Who talks to whom.** Over TCP with TLS 1.3 only: each side shows a certificate of the same CA, and the name in it says
//! what it is ([`AGENT_NAME`], [`CONTROLLER_NAME`]). A unix socket that only its owner can open needs neither.
//! Files that change are read again for the next connection ([`TlsFiles`]).
//!
//! **Who answers.** Every call names the target it means, and the storage it is. A stranger at the same address refuses it, and
//! so does the same target over other files (its disk was not mounted), so that "shut out" is never taken from one that never
//! let anybody in.
//!
//! **What takes long.** Copies tell how far they have come, and that they live, every few seconds; other calls have a time-out.
//! Pings notice within seconds that the other side is gone.

mod client;
mod clock;
mod parse;
mod reach;
mod serve;
mod service;
mod shown;
mod tell;
mod tls;

pub use client::{AgentClient, ClientSettings, ConnectError, Look};
pub use clock::ClockError;
pub use parse::{
    Bad, Described, ExportsAfter, Grow, ItemsAfter, SnapshotName, TakeTogether, VolumeName, described, order,
    page, revocation, stored_snapshot, to_grant,
};
pub use reach::Place;
pub use serve::{AgentServer, Listener, ServeError, refuse};
pub use shown::{ExportsShown, exports_shown};
pub use tls::{TlsError, TlsFiles};

use std::time::Duration;

/// The name in the certificate of an agent.
pub const AGENT_NAME: &str = "agent.bowline.storage";
/// The name in the certificate of the controller.
pub const CONTROLLER_NAME: &str = "controller.bowline.storage";

/// The newest version of the protocol. It is raised when somebody who speaks the one before would misunderstand.
pub const PROTOCOL: u32 = 1;

/// In the metadata of every call but `Describe`: which target is meant.
const TARGET_KEY: &str = "bowline-target";
/// In the metadata of every call but `Describe`, where it is known: which storage is meant.
const INSTALLATION_KEY: &str = "bowline-installation";

/// Bytes of one message, in and out.
const MESSAGE_BYTES: usize = 4 << 20;
/// What a page may take of it.
const PAGE_BYTES: usize = MESSAGE_BYTES - (64 << 10);
/// More items than this are not told at once: each has an id of at most 128 bytes.
const ITEMS: usize = 10_000;
/// More snapshots than this are not taken together.
const CUTS: usize = 1024;
/// How often somebody who waits hears that work goes on.
const BEAT: Duration = Duration::from_millis(500);
/// How often the other side is pinged, and how long it may take to answer.
const PING: Duration = Duration::from_secs(5);

/// The messages and the service as `proto/agent.proto` states them; generated, so exempt from lints.
#[allow(missing_docs, unused_qualifications, unreachable_pub, clippy::all, reason = "generated")]
#[rustfmt::skip]
pub mod wire {
    tonic::include_proto!("bowline.target.v1");
}
