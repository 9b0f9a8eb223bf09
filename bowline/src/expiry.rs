//! When certificates end: whoever shows one that has ended is heard by nobody, and until then nothing tells that it will.

use bowline_target::agent::TlsFiles;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How often it is looked: they are replaced while everything runs.
const LOOK: Duration = Duration::from_hours(1);
/// How long before their end it is said in the log, too.
const SOON: Duration = Duration::from_hours(30 * 24);

/// Counts and tells when what this process shows to others ends, from now on.
pub(crate) fn watch(files: TlsFiles, registry: &Mutex<Registry>) {
    let ends = Gauge::<i64>::default();
    registry.lock().unwrap_or_else(PoisonError::into_inner).sub_registry_with_prefix("bowline").register(
        "certificate_end_timestamp_seconds",
        "When the certificate that this process shows to agents or controllers ends; 0 if that is not valid now",
        ends.clone(),
    );
    tokio::spawn(async move {
        loop {
            let looked = files.clone();
            let now = SystemTime::now();
            let found = tokio::task::spawn_blocking(move || looked.ends(now)).await;
            let directory = files.directory().display();
            match found {
                Ok(Ok(end)) => {
                    let seconds = end.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
                    ends.set(i64::try_from(seconds).unwrap_or(i64::MAX));
                    if end < now + SOON {
                        let days = end.duration_since(now).unwrap_or_default().as_secs() / 86400;
                        tracing::warn!(%directory, days, "the certificate ends soon; put a new one in its place, that needs no restart");
                    }
                }
                Ok(Err(error)) => {
                    ends.set(0);
                    tracing::error!(%error, "nobody takes the certificate of this process");
                }
                Err(error) => tracing::error!(%error, "it was not looked when the certificate ends"),
            }
            tokio::time::sleep(LOOK).await;
        }
    });
}
