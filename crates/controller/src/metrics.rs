//! What the catalog counts. No label grows with the number of volumes.

use bowline_core::TargetId;
use bowline_target::Capacity;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Call {
    rpc: &'static str,
    code: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Bytes {
    target: String,
    of: &'static str,
}

/// What each kind of room is called.
fn rooms(capacity: &Capacity) -> [(&'static str, u64); 4] {
    [
        ("total", capacity.total),
        ("free", capacity.free),
        ("promised", capacity.promised),
        ("available", capacity.available),
    ]
}

type Durations = Family<Call, Histogram, fn() -> Histogram>;

#[derive(Clone, Debug)]
pub(crate) struct Metrics {
    operations: Durations,
    pub(crate) volumes: Gauge,
    pub(crate) snapshots: Gauge,
    capacity: Family<Bytes, Gauge>,
    pub(crate) orphans: Gauge,
    pub(crate) orphans_deleted: Counter,
}

/// From 0.5 ms, finer than a round trip, to 131 s, longer than any caller waits.
fn buckets() -> Histogram {
    Histogram::new(exponential_buckets(0.0005, 2.0, 19))
}

impl Metrics {
    pub(crate) fn new(registry: &mut Registry) -> Self {
        let metrics = Self {
            operations: Family::new_with_constructor(buckets),
            volumes: Gauge::default(),
            snapshots: Gauge::default(),
            capacity: Family::default(),
            orphans: Gauge::default(),
            orphans_deleted: Counter::default(),
        };
        let Self { operations, volumes, snapshots, capacity, orphans, orphans_deleted } = metrics.clone();
        let registry = registry.sub_registry_with_prefix("bowline");
        registry.register("operation_seconds", "How long CSI calls took, by call and code", operations);
        registry.register(
            "volumes",
            "Volumes, from the moment they were asked for until nothing is left",
            volumes,
        );
        registry.register("snapshots", "Snapshots, those in groups too", snapshots);
        registry.register(
            "capacity_bytes",
            "Room on targets for new volumes, when each was last asked",
            capacity,
        );
        registry.register(
            "orphans",
            "Volumes on targets that no record knows of, when they were last looked for",
            orphans,
        );
        registry.register(
            "orphans_deleted",
            "Volumes that no record knew of and that were deleted",
            orphans_deleted,
        );
        metrics
    }

    pub(crate) fn call(&self, rpc: &'static str, code: tonic::Code, seconds: f64) {
        self.operations.get_or_create(&Call { rpc, code: bowline_csi::code::name(code) }).observe(seconds);
    }

    pub(crate) fn room(&self, target: &TargetId, capacity: &Capacity) {
        for (of, bytes) in rooms(capacity) {
            let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
            self.capacity.get_or_create(&Bytes { target: target.to_string(), of }).set(bytes);
        }
    }

    pub(crate) fn no_room(&self, target: &TargetId) {
        for (of, _) in rooms(&Capacity::default()) {
            self.capacity.remove(&Bytes { target: target.to_string(), of });
        }
    }
}
