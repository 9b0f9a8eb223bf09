//! How long to wait before trying again.

use std::hash::{BuildHasher, Hash, RandomState};
use std::time::Duration;

const FIRST: Duration = Duration::from_millis(100);

/// The pause before try number `attempt + 1`: between half and all of a length that doubles up to `longest`. Random, so that those who failed
/// together do not come back together.
pub(crate) fn pause(what: &impl Hash, attempt: u32, longest: Duration) -> Duration {
    let full = FIRST.saturating_mul(1 << attempt.min(16)).min(longest);
    let part = 512 + u32::try_from(RandomState::new().hash_one(what) % 512).unwrap_or_default();
    full * part / 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest() {
        let longest = Duration::from_secs(30);
        for attempt in 0..40 {
            let full = (FIRST * 2_u32.pow(attempt.min(16))).min(longest);
            let pause = pause(&"x", attempt, longest);
            assert!(pause >= full / 2 && pause <= full, "{attempt}: {pause:?}");
        }
    }
}
