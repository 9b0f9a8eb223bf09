//! When not to try: after several failures in a row, for a while.

use std::time::Duration;
use tokio::time::Instant;

/// Whether commands are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreakerState {
    /// They are.
    Closed,
    /// They are not, for this much longer.
    Open {
        /// Until one may be tried.
        for_another: Duration,
    },
    /// One is being tried, and the others wait for what becomes of it.
    Trying,
}

/// Counts failures in a row.
#[derive(Debug)]
pub(super) struct Breaker {
    limit: u32,
    rest: Duration,
    failures: u32,
    open: Open,
}

#[derive(Debug)]
enum Open {
    No,
    Until(Instant),
    Trying,
}

impl Breaker {
    pub(super) fn new(limit: u32, rest: Duration) -> Self {
        Self { limit, rest, failures: 0, open: Open::No }
    }

    pub(super) fn failures(&self) -> u32 {
        self.failures
    }

    pub(super) fn state(&self, now: Instant) -> BreakerState {
        match self.open {
            Open::No => BreakerState::Closed,
            Open::Until(until) => BreakerState::Open { for_another: until.saturating_duration_since(now) },
            Open::Trying => BreakerState::Trying,
        }
    }

    /// Whether a command may be sent now. After the rest, one may, and the others must wait for what becomes of it.
    pub(super) fn admit(&mut self, now: Instant) -> Result<(), BreakerState> {
        match self.open {
            Open::No => Ok(()),
            Open::Until(until) if until <= now => {
                self.open = Open::Trying;
                Ok(())
            }
            Open::Until(_) | Open::Trying => Err(self.state(now)),
        }
    }

    /// The device has answered.
    pub(super) fn worked(&mut self) {
        (self.failures, self.open) = (0, Open::No);
    }

    /// It has not, or it cannot be reached.
    pub(super) fn failed(&mut self, now: Instant) {
        self.failures = self.failures.saturating_add(1);
        if self.failures >= self.limit {
            self.open = Open::Until(now + self.rest);
        }
    }

    /// A command is over. If it was the one being tried, and nothing was learnt from it, the next one is.
    pub(super) fn ended(&mut self, now: Instant) {
        if matches!(self.open, Open::Trying) {
            self.open = Open::Until(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REST: Duration = Duration::from_secs(30);

    fn broken(now: Instant) -> Breaker {
        let mut breaker = Breaker::new(5, REST);
        for _ in 0..5 {
            assert_eq!(breaker.admit(now), Ok(()));
            breaker.failed(now);
        }
        breaker
    }

    #[test]
    fn it_opens_after_five_failures_in_a_row_for_thirty_seconds() {
        let now = Instant::now();
        let mut breaker = broken(now);
        for (after, left) in [(0, 30), (29, 1)] {
            let for_another = Duration::from_secs(left);
            assert_eq!(
                breaker.admit(now + Duration::from_secs(after)),
                Err(BreakerState::Open { for_another })
            );
        }
        assert_eq!(breaker.admit(now + REST), Ok(()));
    }

    #[test]
    fn an_answer_in_between_starts_the_count_again() {
        let now = Instant::now();
        let mut breaker = Breaker::new(5, REST);
        for _ in 0..4 {
            breaker.failed(now);
        }
        breaker.worked();
        for _ in 0..4 {
            breaker.failed(now);
        }
        assert_eq!(breaker.admit(now), Ok(()));
    }

    #[test]
    fn after_the_rest_one_is_tried_and_the_others_wait() {
        let (now, later) = (Instant::now(), Instant::now() + REST);
        for worked in [true, false] {
            let mut breaker = broken(now);
            assert_eq!(breaker.admit(later), Ok(()));
            assert_eq!(breaker.admit(later), Err(BreakerState::Trying));
            if worked {
                breaker.worked();
                assert_eq!((breaker.admit(later), breaker.failures()), (Ok(()), 0));
            } else {
                breaker.failed(later);
                assert_eq!(breaker.admit(later), Err(BreakerState::Open { for_another: REST }));
            }
        }
    }

    #[test]
    fn a_try_that_teaches_nothing_leaves_it_to_the_next() {
        let now = Instant::now();
        let mut breaker = broken(now);
        assert_eq!(breaker.admit(now + REST), Ok(()));
        breaker.ended(now + REST);
        assert_eq!(breaker.admit(now + REST), Ok(()));
        breaker.worked();
        breaker.ended(now + REST);
        assert_eq!(breaker.state(now + REST), BreakerState::Closed);
    }
}
