//! How a command ends when it was not done, and the exit code that scripts read.

use bowline_web::Problem;

/// Why a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// It failed.
    Failed,
    /// It was used wrongly.
    Usage,
    /// There is no such thing.
    NotFound,
    /// A verdict says no.
    Refused,
    /// It is not done yet.
    TimedOut,
}

impl Exit {
    /// The exit code.
    pub fn code(self) -> u8 {
        match self {
            Self::Failed => 1,
            Self::Usage => 2,
            Self::NotFound => 3,
            Self::Refused => 4,
            Self::TimedOut => 5,
        }
    }
}

/// What is said on stderr, and the exit code.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// Which code.
    pub exit: Exit,
    /// What is said; nothing if it was said already.
    pub message: String,
}

impl Failure {
    /// It failed.
    pub fn failed(message: impl Into<String>) -> Self {
        Self { exit: Exit::Failed, message: message.into() }
    }

    /// It was used wrongly.
    pub fn usage(message: impl Into<String>) -> Self {
        Self { exit: Exit::Usage, message: message.into() }
    }

    /// It is not done yet.
    pub fn timed_out(message: impl Into<String>) -> Self {
        Self { exit: Exit::TimedOut, message: message.into() }
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        // Whoever reads us has read enough: `bowline … | head` is no failure to talk about.
        let message =
            if error.kind() == std::io::ErrorKind::BrokenPipe { String::new() } else { error.to_string() };
        Self::failed(message)
    }
}

impl From<crate::config::ConfigError> for Failure {
    fn from(error: crate::config::ConfigError) -> Self {
        Self::usage(error.to_string())
    }
}

impl From<Problem> for Failure {
    fn from(problem: Problem) -> Self {
        let exit = match (problem.status, problem.code.as_str()) {
            _ if problem.verdict.is_some() => Exit::Refused,
            (_, "HeldElsewhere" | "NotAttachable" | "NodeFull") => Exit::Refused,
            (400 | 413 | 415 | 422, _) => Exit::Usage,
            (404, _) => Exit::NotFound,
            (504, _) => Exit::TimedOut,
            _ => Exit::Failed,
        };
        let mut message = problem.detail;
        if let Some(ticket) = problem.ticket {
            message.push_str(&format!("\nThe ticket {ticket} stays in the queue."));
        }
        Self { exit, message }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_problem_has_the_exit_code_that_is_promised() {
        let problem = |status, code: &str| -> Problem {
            let json = serde_json::json!({ "type": "urn:x", "title": "x", "status": status, "detail": "why", "code": code });
            serde_json::from_value(json).unwrap()
        };
        for (status, code, exit) in [
            (400, "Invalid", 2),
            (404, "UnknownVolume", 3),
            (409, "Different", 1),
            (409, "InUse", 1),
            (409, "HeldElsewhere", 4),
            (409, "NodeFull", 4),
            (422, "Size", 2),
            (503, "Busy", 1),
            (503, "Starting", 1),
            (504, "TimedOut", 5),
            (507, "NoRoom", 1),
        ] {
            assert_eq!(Failure::from(problem(status, code)).exit.code(), exit, "{code}");
        }
        let verdict = serde_json::from_str(r#"{"reason":"Deleting"}"#).unwrap();
        let ticket = bowline_core::TicketId::new("bowline-api-b").ok();
        let refused = Problem { verdict: Some(Box::new(verdict)), ticket, ..problem(409, "Refused") };
        let failure = Failure::from(refused);
        assert_eq!(failure.exit.code(), 4);
        assert_eq!(failure.message, "why\nThe ticket bowline-api-b stays in the queue.");
    }
}
