//! What surrounds the engine in Kubernetes: lease, attacher, nodes, targets, wishes of people, what is only for people, adoption.
//!
//! # Flow
//!
//! A controller calls these in this order, and ends when the lease is lost:
//!
//! ```no_run
//! # use bowline_cluster::{LeaseSettings, Roll, adopt, lease, run};
//! # async fn controller(
//! #     client: kube::Client,
//! #     store: std::sync::Arc<dyn bowline_store::Store>,
//! #     targets: Vec<std::sync::Arc<dyn bowline_target::Provision>>,
//! #     catalog: bowline_controller::Catalog,
//! #     registry: std::sync::Arc<std::sync::Mutex<prometheus_client::registry::Registry>>,
//! # ) -> Result<(), Box<dyn std::error::Error>> {
//! let settings = LeaseSettings::new("bowline", "bowline-controller", "bowline-controller-0");
//! let (leadership, mut lost) = lease::acquire(client.clone(), settings).await?;
//! // The store asks `leadership.may_write()` before every write, and so does this client for all others.
//! let client = bowline_cluster::led::client(&client, std::sync::Arc::new(leadership.clone()));
//! adopt::adopt(&client, store.as_ref(), &targets, false).await?; // before the catalog is opened
//! let roll = Roll::call(&client, store.as_ref()).await?;
//! // let catalog = Catalog::open(… reports: roll.reports() …).await?;
//! let running = run(bowline_cluster::Parts {
//!     client,
//!     catalog: catalog.clone(),
//!     registry,
//!     roll,
//!     instance: "bowline-controller-0".to_owned(),
//!     attacher: true,
//!     notes: None,
//!     patience: std::time::Duration::from_secs(2),
//!     fence_not_ready_after: None,
//! })
//! .await?;
//! // Every node and every VolumeAttachment is known: the CSI socket may be opened. At the end:
//! drop(running);
//! catalog.close().await;
//! leadership.release().await;
//! # lost.lost().await;
//! # Ok(())
//! # }
//! ```
//!
//! # Guarantees
//!
//! - Whatever is adopted has its ticket before the engine compares the ledgers with the targets, so nothing that is attached is fenced by a first start.
//! - Before anything is decided, it is known which nodes there are.
//! - Nothing here chooses who gets a volume: VolumeAttachments become tickets, nodes become observations, and the engine decides.
//! - What a watch does not show proves nothing. Whatever is taken away because an object is gone was looked for at the API server first.

pub mod adopt;
pub mod again;
mod attacher;
pub mod certificates;
mod claims;
pub mod credentials;
mod desk;
pub mod door;
mod events;
mod fence;
mod health;
pub mod lease;
pub mod led;
mod mirror;
mod nodes;
mod packed;
mod pages;
mod pause;
mod pv;
pub mod review;
mod roll;
mod run;
pub mod taint;
pub mod targets;
mod watch;
pub mod wishes;
mod writes;

pub use attacher::{Attacher, AttacherParts, PersistentVolumes, WishError};
pub use events::{EventWriter, Speaker};
pub use fence::Fence;
pub use lease::{Leadership, LeaseError, LeaseSettings, Lost};
pub use mirror::Mirror;
pub use nodes::Nodes;
pub use pv::Pv;
pub use roll::{Roll, RollError};
pub use run::{Parts, Running, run, run_with};
pub use writes::Writes;
