//! Which device a subsystem's namespace was found at. A hint and no more: whoever takes it out proves it again.

use crate::device::DeviceNumber;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// How long a hint is worth looking at.
pub(super) const KEPT_FOR: Duration = Duration::from_secs(30);

/// How many hints are kept.
pub(super) const MOST: usize = 1000;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hint {
    pub(super) name: String,
    pub(super) number: DeviceNumber,
    pub(super) noted: Instant,
}

/// From NQN to hint.
#[derive(Debug, Default)]
pub(super) struct Cache(BTreeMap<String, Hint>);

impl Cache {
    pub(super) fn get(&self, nqn: &str, now: Instant) -> Option<Hint> {
        let is_fresh = |hint: &&Hint| now.saturating_duration_since(hint.noted) < KEPT_FOR;
        self.0.get(nqn).filter(is_fresh).cloned()
    }

    pub(super) fn put(&mut self, nqn: &str, hint: Hint) {
        if self.0.len() >= MOST && !self.0.contains_key(nqn) {
            let oldest = self.0.iter().min_by_key(|(_, hint)| hint.noted).map(|(nqn, _)| nqn.clone());
            oldest.and_then(|nqn| self.0.remove(&nqn));
        }
        self.0.insert(nqn.to_owned(), hint);
    }

    pub(super) fn forget(&mut self, nqn: &str) {
        self.0.remove(nqn);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hint_grows_old_and_the_oldest_makes_room() {
        let mut cache = Cache::default();
        let start = Instant::now();
        let hint = |after: u64| Hint {
            name: format!("nvme{after}n1"),
            number: DeviceNumber { major: 259, minor: 1 },
            noted: start + Duration::from_millis(after),
        };
        for index in 0..=MOST as u64 {
            cache.put(&format!("nqn.{index}"), hint(index));
        }
        assert_eq!(cache.0.len(), MOST);
        let soon = start + Duration::from_secs(2);
        assert_eq!(cache.get("nqn.0", soon), None, "the oldest");
        assert_eq!(cache.get("nqn.1", soon), Some(hint(1)));
        cache.put("nqn.1", hint(5));
        assert_eq!((cache.0.len(), cache.get("nqn.1", soon)), (MOST, Some(hint(5))));
        assert_eq!(cache.get("nqn.1", start + KEPT_FOR + Duration::from_millis(5)), None, "too old");
        cache.forget("nqn.1");
        assert_eq!(cache.get("nqn.1", soon), None);
    }
}
