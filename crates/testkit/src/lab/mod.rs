//! Kubernetes on one machine, from its real parts, for tests.
//!
//! [`ApiLab`] is an etcd and an API server on loopback, ready in a few seconds; tests of what talks to the API alone need no more.
//! [`ClusterLab`] has two nodes as well, each in namespaces of its own, on which pods run.
//!
//! All state of a lab is in one temporary directory. Its processes end with the lab, and with the process that started it however
//! that ends.

mod api;
mod audit;
mod authority;
mod cluster;
mod image;
mod janitor;
mod network;
mod node;
mod observer;
mod process;
mod processes;
mod programs;

pub use api::{Access, ApiLab};
pub use audit::Asked;
pub use cluster::{ClusterLab, NAMESPACE, NODE_PATIENCE, Options};
pub(crate) use image::cache;
pub use image::{BUSYBOX, Image};
pub(crate) use janitor::Janitor;
pub use node::Node;
pub use observer::{Grants, Observer, Seen, Truth};
pub(crate) use process::Place;
pub use process::Process;
pub(crate) use programs::{installed, project};
pub use programs::{rendered, tools};

use std::time::{Duration, Instant};

/// How long anything in a lab may take before the test says what it waited for.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Looks until there is something to see. The machine is slow and shared, so it is looked rarely and for long.
pub fn wait_for<T>(what: &str, patience: Duration, mut look: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(seen) = look() {
            return seen;
        }
        assert!(begun.elapsed() < patience, "waited {patience:?} for {what}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Says that the running test did not run, and why; counted by `make test` as not run.
pub fn not_run(why: &str) {
    let thread = std::thread::current();
    crate::say(&format!("not run: {} (missing: {why})", thread.name().unwrap_or("a test with a lab")));
}
