//! How commands reach the device, and what it says.

use async_trait::async_trait;

/// What the device printed, and how the command ended. Some devices print errors on one stream, some on the other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Said {
    /// Both streams, the output before the errors, as text; what is not UTF-8 is replaced.
    pub text: String,
    /// The exit status; `None` if the device gave none.
    pub status: Option<u32>,
}

/// Why a command has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConsoleError {
    /// It was not sent: nothing has happened.
    #[error("{error}")]
    NotSent {
        /// Why: no connection, a host key that is not the pinned one, a login that was refused, the circuit breaker.
        error: String,
    },
    /// It was sent, and nobody knows whether it was carried out or will be.
    #[error("{error}")]
    Unanswered {
        /// What was seen instead of an answer.
        error: String,
    },
}

/// One command at a time per call; each has a time-out of its own.
#[async_trait]
pub trait Console: Send + Sync + 'static {
    /// Sends one command line and waits for its end.
    async fn run(&self, command: &str) -> Result<Said, ConsoleError>;
}
