//! How many writes the API server is asked for: it is the bottleneck of an attach, so they are counted, by what they are for.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Write {
    object: &'static str,
    what: &'static str,
}

/// Counts the writes that this crate sends. Those of the store are not among them.
#[derive(Clone, Debug, Default)]
pub struct Writes {
    sent: Family<Write, Counter>,
}

impl Writes {
    /// Registers the counter.
    pub fn new(registry: &mut Registry) -> Self {
        let writes = Self::default();
        let registry = registry.sub_registry_with_prefix("bowline");
        registry.register(
            "api_writes",
            "Writes sent to the API server, by object and purpose",
            writes.sent.clone(),
        );
        writes
    }

    pub(crate) fn count(&self, object: &'static str, what: &'static str) {
        self.sent.get_or_create(&Write { object, what }).inc();
    }

    /// How many were sent for one purpose.
    pub fn sent(&self, object: &'static str, what: &'static str) -> u64 {
        self.sent.get_or_create(&Write { object, what }).get()
    }
}
