//! How much room a target has, measured now and then for those who count.

use bowline_target::{Capacity, Provision};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

const MEASURE: Duration = Duration::from_secs(15);

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Bytes {
    of: &'static str,
}

/// Where it is told.
pub(crate) struct Gauges {
    capacity: Family<Bytes, Gauge>,
}

impl Gauges {
    pub(crate) fn new(registry: &Mutex<Registry>) -> Self {
        let capacity = Family::default();
        let mut registry = registry.lock().unwrap_or_else(PoisonError::into_inner);
        let registry = registry.sub_registry_with_prefix("bowline_target");
        registry.register(
            "capacity_bytes",
            "Room in the directory, when it was last measured",
            capacity.clone(),
        );
        Self { capacity }
    }

    fn set(&self, room: &Capacity) {
        let rows = [
            ("total", room.total),
            ("free", room.free),
            ("promised", room.promised),
            ("available", room.available),
        ];
        for (of, bytes) in rows {
            self.capacity.get_or_create(&Bytes { of }).set(i64::try_from(bytes).unwrap_or(i64::MAX));
        }
    }
}

/// Measures it again and again.
pub(crate) async fn measure(target: Arc<dyn Provision>, gauges: Gauges) {
    loop {
        match target.capacity().await {
            Ok(room) => gauges.set(&room),
            Err(error) => tracing::warn!(%error, "the room cannot be measured"),
        }
        tokio::time::sleep(MEASURE).await;
    }
}
