//! Where Bowline's records live: one small compare-and-swap port, and its adapters.
//!
//! # Guarantees
//!
//! - A write that returned `Ok` is durable: it survives a crash of the process and of the machine.
//! - A write applies only if the record is still as the caller read it ([`Expected`]); two writers never
//!   both win, and a record that was deleted and made again is a different record.
//! - [`StoreError::outcome_known`] tells "certainly not written" from "may have been written".
//! - A watch shows every later change in order and once, or says [`StoreError::Compacted`].
//!
//! # Adapters
//!
//! [`MemoryStore`] forgets at exit and is for tests; [`RedbStore`] is one file on a local disk; [`KubeStore`] is the
//! status of objects in Kubernetes. All pass the same suite, `contract`.
//!
//! Records of a type are written and read through [`Record`], which carries their version.

#[cfg(feature = "contract")]
pub mod contract;
mod error;
mod history;
pub mod kube;
mod ledger;
mod memory;
mod port;
pub mod record;
pub mod redb;

pub use error::StoreError;
pub use history::HistoryLimits;
pub use kube::KubeStore;
pub use memory::MemoryStore;
pub use port::{Entry, Event, Expected, Key, Kind, Page, Revision, Store};
pub use record::{Record, RecordError};
pub use redb::RedbStore;
