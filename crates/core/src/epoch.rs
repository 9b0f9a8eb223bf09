use serde::{Deserialize, Serialize};
use std::fmt;

/// A volume's fencing number. Raised and stored before any new grant, and never reused: each grant has its
/// own epoch, and the target exports the volume once per epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Epoch(u64);

impl Epoch {
    /// The epoch with this number.
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// The number itself.
    pub const fn number(self) -> u64 {
        self.0
    }

    /// The one after this. At one grant per nanosecond the numbers last for 584 years.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
