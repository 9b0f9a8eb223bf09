//! What surrounds the engine in Kubernetes: lease, attacher, nodes, wishes of people, adoption.

mod attacher;
pub mod lease;
mod nodes;
mod pause;
mod pv;
mod watch;
mod writes;

pub use attacher::{Attacher, AttacherParts, FINALIZER, NODE_ID, PersistentVolumes, WishError};
pub use lease::{LeaseError, LeaseSettings, Leadership, Lost};
pub use nodes::{Nodes, OUT_OF_SERVICE};
pub use pv::Pv;
pub use writes::Writes;
