//! A step of a leader's start that is tried again: whoever ends because of one request that failed gives the lease away, and the next one begins
//! anew with the same API server.

use bowline_store::StoreError;
use std::fmt::Display;
use std::time::Duration;
use tokio::time::Instant;

use crate::adopt::AdoptError;
use crate::certificates::CertificateError;
use crate::pause::pause;
use crate::roll::RollError;

/// For how long. After that another one may do better.
const PATIENCE: Duration = Duration::from_mins(1);
/// How long it waits at most before the next try.
const LONGEST: Duration = Duration::from_secs(5);

/// A failure of which one can know whether it passes by itself.
pub trait Passing: Display {
    /// Whether the same thing may succeed a moment later.
    fn may_pass(&self) -> bool;
}

impl Passing for kube::Error {
    fn may_pass(&self) -> bool {
        match self {
            // 410: a list took so long that its rest is not kept any more.
            Self::Api(status) => matches!(status.code, 410 | 429 | 500..600),
            Self::Service(_) | Self::HyperError(_) => true,
            _ => false,
        }
    }
}

impl Passing for StoreError {
    fn may_pass(&self) -> bool {
        matches!(self, Self::Unavailable { .. } | Self::Conflict { .. })
    }
}

impl Passing for AdoptError {
    fn may_pass(&self) -> bool {
        match self {
            Self::Api(error) => error.may_pass(),
            Self::Store(error) => error.may_pass(),
            Self::Record(_) | Self::Ended(_) => false,
        }
    }
}

impl Passing for RollError {
    fn may_pass(&self) -> bool {
        match self {
            Self::Api(error) => error.may_pass(),
            Self::Store(error) => error.may_pass(),
            Self::Record { .. } => false,
        }
    }
}

impl Passing for CertificateError {
    fn may_pass(&self) -> bool {
        match self {
            Self::Api { error, .. } => error.may_pass(),
            Self::Unusable { .. } | Self::Make(_) => false,
        }
    }
}

/// Does it, and again from the beginning for a while if what stopped it may pass.
pub async fn persist<T, E: Passing>(what: &str, mut step: impl AsyncFnMut() -> Result<T, E>) -> Result<T, E> {
    let (begun, mut failures) = (Instant::now(), 0);
    loop {
        match step().await {
            Err(error) if error.may_pass() && begun.elapsed() < PATIENCE => {
                tracing::warn!(what, %error, failures, "not yet; tried again");
                tokio::time::sleep(pause(&what, failures, LONGEST)).await;
                failures += 1;
            }
            done => return done,
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed check is a panic")]
mod tests {
    use super::*;
    use kube::core::Status;

    fn answer(code: u16) -> kube::Error {
        kube::Error::Api(Status::failure("no", "").with_code(code).boxed())
    }

    #[tokio::test(start_paused = true)]
    async fn what_may_pass_is_tried_again_for_a_minute_and_what_may_not_ends_it_at_once() {
        for code in [410, 429, 500, 503, 504] {
            let mut tries = 0;
            let done = persist("a step", async || {
                tries += 1;
                if tries < 4 { Err(answer(code)) } else { Ok(tries) }
            });
            assert_eq!(done.await.unwrap(), 4, "{code}");
        }
        for code in [400, 401, 403, 404, 409, 422] {
            let mut tries = 0;
            let done: Result<(), _> = persist("a step", async || {
                tries += 1;
                Err(answer(code))
            })
            .await;
            assert!(done.is_err() && tries == 1, "{code}: {tries}");
        }
        let begun = Instant::now();
        let ended: Result<(), _> = persist("a step", async || Err(answer(503))).await;
        assert!(ended.is_err() && begun.elapsed() >= PATIENCE && begun.elapsed() < PATIENCE + LONGEST * 2);
    }
}
