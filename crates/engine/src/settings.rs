use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

/// How patient the engine is.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How long a target may take to answer before it counts as silent.
    pub ask_timeout: Duration,
    /// How many questions one target is asked at once.
    pub asks_per_target: usize,
    /// How long what only confirms or takes away may stay unwritten; sixty times as long while others wait for what lets them in.
    pub write_within: Duration,
    /// The pause after the first failure; it doubles with each further one.
    pub first_pause: Duration,
    /// The longest pause.
    pub longest_pause: Duration,
    /// The longest pause while something on the node still uses the volume: it is no trouble to look again, and somebody
    /// waits for the end of it.
    pub in_use_pause: Duration,
    /// How many records are read at once at the start.
    pub page: usize,
    /// How often each target is asked whom it lets in, to find what changed behind the ledger's back.
    pub compare_every: Duration,
    /// How long those who had a volume have to say that they want it, when its ledger was lost: who does keeps it.
    pub refile_within: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            ask_timeout: Duration::from_secs(30),
            asks_per_target: 32,
            write_within: Duration::from_secs(1),
            first_pause: Duration::from_millis(100),
            longest_pause: Duration::from_secs(30),
            in_use_pause: Duration::from_secs(1),
            page: 500,
            compare_every: Duration::from_secs(300),
            refile_within: Duration::from_secs(3),
        }
    }
}

impl Settings {
    /// The pause before try number `attempt + 1` of `what`: between half and all of a length that doubles. The jitter
    /// is a hash, so that a thousand volumes on one target do not come back at the same moment, and a test run twice
    /// comes back at the same one.
    pub(crate) fn pause(&self, what: &impl Hash, attempt: u32) -> Duration {
        let full = self.first_pause.saturating_mul(1 << attempt.min(16)).min(self.longest_pause);
        let mut hasher = DefaultHasher::new();
        (what, attempt).hash(&mut hasher);
        let part = 512 + u32::try_from(hasher.finish() % 512).unwrap_or_default();
        full * part / 1024
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest_and_differ_between_volumes() {
        let settings = Settings::default();
        for attempt in 0..40 {
            let pause = settings.pause(&"volume", attempt);
            let full = (settings.first_pause * 2_u32.pow(attempt.min(16))).min(settings.longest_pause);
            assert!(pause >= full / 2 && pause <= full, "attempt {attempt}: {pause:?} of {full:?}");
        }
        let pauses: std::collections::BTreeSet<_> =
            (0..100).map(|volume| settings.pause(&volume, 3)).collect();
        assert!(pauses.len() > 50, "a hundred volumes come back at {} moments", pauses.len());
    }
}
