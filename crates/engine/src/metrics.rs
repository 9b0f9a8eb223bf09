use bowline_core::{Effect, Outcome, TargetId};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct Reason {
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct EffectResult {
    effect: &'static str,
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfTarget {
    target: String,
}

impl OfTarget {
    fn new(target: &TargetId) -> Self {
        Self { target: target.to_string() }
    }
}

/// What the engine counts. No label grows with the number of volumes.
#[derive(Clone, Debug)]
pub struct Metrics {
    verdicts: Family<Reason, Counter>,
    waiting: Family<Reason, Gauge>,
    silent: Family<OfTarget, Gauge>,
    effects: Family<EffectResult, Counter>,
    store_retries: Counter,
    pub(crate) time_to_verdict: Histogram,
    pub(crate) actors: Gauge,
    pub(crate) queue: Gauge,
    strays: Family<OfTarget, Gauge>,
}

impl Metrics {
    /// Registers everything in `registry`.
    pub fn new(registry: &mut Registry) -> Self {
        // From 0.5 ms, finer than an API round trip, to 16 s, longer than a sidecar waits.
        let time_to_verdict = Histogram::new(exponential_buckets(0.0005, 2.0, 16));
        let metrics = Self {
            verdicts: Family::default(),
            waiting: Family::default(),
            silent: Family::default(),
            effects: Family::default(),
            store_retries: Counter::default(),
            time_to_verdict,
            actors: Gauge::default(),
            queue: Gauge::default(),
            strays: Family::default(),
        };
        let Self {
            verdicts,
            waiting,
            silent,
            effects,
            store_retries,
            time_to_verdict,
            actors,
            queue,
            strays,
        } = metrics.clone();
        let registry = registry.sub_registry_with_prefix("bowline_engine");
        registry.register("verdicts", "Verdicts reached on tickets, by reason", verdicts);
        registry.register("tickets_waiting", "Tickets that wait now, by what they wait for", waiting);
        registry.register(
            "target_silent",
            "1 if the target did not say whom it lets in when it was last asked, or is not connected",
            silent,
        );
        registry.register("effects", "Questions to targets, by what was asked and answered", effects);
        registry.register(
            "store_retries",
            "Writes that were rejected or whose fate was unknown",
            store_retries,
        );
        registry.register(
            "time_to_verdict_seconds",
            "From a ticket's filing to the answer its owner got",
            time_to_verdict,
        );
        registry.register("actors", "Volumes with something to do", actors);
        registry.register("queue", "Messages that wait for an actor", queue);
        registry.register("stray_exports", "Volumes that a target exports and nobody knows", strays);
        metrics
    }

    pub(crate) fn verdict(&self, reason: &'static str) {
        self.verdicts.get_or_create(&Reason { reason }).inc();
    }

    /// The tickets of one volume wait for something else than before.
    pub(crate) fn waiting(&self, before: &[&'static str], now: &[&'static str]) {
        for reason in now {
            self.waiting.get_or_create(&Reason { reason }).inc();
        }
        for reason in before {
            self.waiting.get_or_create(&Reason { reason }).dec();
        }
    }

    /// Where it is told whether a target is silent.
    pub(crate) fn silent(&self, target: &TargetId) -> Gauge {
        self.silent.get_or_create_owned(&OfTarget::new(target))
    }

    /// Where it is told how many volumes a target exports that nobody knows.
    pub(crate) fn strays(&self, target: &TargetId) -> Gauge {
        self.strays.get_or_create_owned(&OfTarget::new(target))
    }

    pub(crate) fn forget_target(&self, target: &TargetId) {
        self.strays.remove(&OfTarget::new(target));
        self.silent.remove(&OfTarget::new(target));
    }

    pub(crate) fn store_retry(&self) {
        self.store_retries.inc();
    }

    pub(crate) fn effect(&self, effect: &Effect, outcome: &Outcome) {
        let effect = match effect {
            Effect::Allow { .. } => "allow",
            Effect::Revoke { fence: false, .. } => "revoke",
            Effect::Revoke { fence: true, .. } => "fence",
        };
        let result = match outcome {
            Outcome::Allowed => "allowed",
            Outcome::Gone { .. } => "gone",
            Outcome::Refused { .. } => "refused",
            Outcome::InUse { .. } => "in_use",
            Outcome::Silent { .. } => "silent",
        };
        self.effects.get_or_create(&EffectResult { effect, result }).inc();
    }
}
