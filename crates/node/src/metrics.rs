//! What the node counts. No label grows with the number of volumes.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use std::time::Duration;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Call {
    rpc: &'static str,
    code: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Done {
    result: &'static str,
}

#[derive(Clone, Debug)]
pub(crate) struct Metrics {
    operations: Family<Call, Histogram, fn() -> Histogram>,
    stale: Counter,
    remounts: Family<Done, Counter>,
    resolutions: Family<Done, Counter>,
    orphans: Counter,
    resets: Counter,
}

/// From 1 ms, a bind mount, to 131 s, a mkfs of a large volume.
fn buckets() -> Histogram {
    Histogram::new(exponential_buckets(0.001, 2.0, 18))
}

impl Metrics {
    pub(crate) fn new(registry: &mut Registry) -> Self {
        let metrics = Self {
            operations: Family::new_with_constructor(buckets),
            stale: Counter::default(),
            remounts: Family::default(),
            resolutions: Family::default(),
            orphans: Counter::default(),
            resets: Counter::default(),
        };
        let Self { operations, stale, remounts, resolutions, orphans, resets } = metrics.clone();
        let registry = registry.sub_registry_with_prefix("bowline");
        registry.register(
            "node_operation_duration_seconds",
            "How long calls of the Node service took, by call and code",
            operations,
        );
        registry.register("stale_mounts_detected", "Staged volumes whose mount or device was gone", stale);
        registry.register(
            "remount_operations",
            "Attempts to mount a stale volume again, by result",
            remounts,
        );
        registry.register(
            "device_path_resolutions",
            "Looks for the device of a volume, by result",
            resolutions,
        );
        registry.register(
            "orphaned_subsystems_detected",
            "Connections to storage that had no usable device, and were taken down",
            orphans,
        );
        registry.register(
            "connection_resets",
            "Times that connections that counted as live were reset, because something waited long for their device",
            resets,
        );
        metrics
    }

    pub(crate) fn operation(&self, rpc: &'static str, code: &'static str, took: Duration) {
        self.operations.get_or_create(&Call { rpc, code }).observe(took.as_secs_f64());
    }

    pub(crate) fn stale_mount(&self) {
        self.stale.inc();
    }

    pub(crate) fn remount(&self, result: &'static str) {
        self.remounts.get_or_create(&Done { result }).inc();
    }

    pub(crate) fn orphan(&self) {
        self.orphans.inc();
    }

    pub(crate) fn reset(&self) {
        self.resets.inc();
    }

    pub(crate) fn resolution(&self, result: &'static str) {
        self.resolutions.get_or_create(&Done { result }).inc();
    }
}
