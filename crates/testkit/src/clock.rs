use bowline_core::Timestamp;
use std::time::Duration;
use tokio::time::Instant;

/// A clock that goes with tokio's, which tests stop and turn. Begins at a fixed moment.
#[derive(Clone, Copy, Debug)]
pub struct TestClock {
    begin: Timestamp,
    since: Instant,
}

impl TestClock {
    /// A clock that shows noon now.
    pub fn new() -> Self {
        Self::at(Duration::ZERO)
    }

    /// A clock that shows noon plus this: for a process that starts later.
    pub fn at(later: Duration) -> Self {
        let noon: Timestamp = "2026-01-01T12:00:00Z".parse().unwrap();
        Self { begin: noon + later, since: Instant::now() }
    }

    /// The time now.
    pub fn now(&self) -> Timestamp {
        self.begin + self.since.elapsed()
    }
}

impl Default for TestClock {
    fn default() -> Self {
        Self::new()
    }
}
