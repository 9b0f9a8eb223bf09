//! Logs: for people on a terminal, JSON elsewhere; `RUST_LOG` chooses what.

use std::io::IsTerminal;
use tracing_subscriber::EnvFilter;

/// Begins to log to stderr. A second time changes nothing.
pub fn init() {
    let asked = std::env::var("RUST_LOG").unwrap_or_default();
    let filter = if asked.is_empty() { Ok(EnvFilter::new("info")) } else { EnvFilter::try_new(&asked) };
    let (filter, wrong) = match filter {
        Ok(filter) => (filter, None),
        Err(error) => (EnvFilter::new("info"), Some(error)),
    };
    let logs = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let terminal = std::io::stderr().is_terminal();
    let colours = terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let begun = if terminal {
        logs.with_ansi(colours).try_init()
    } else {
        logs.json().flatten_event(true).try_init()
    };
    if let (Ok(()), Some(error)) = (begun, wrong) {
        tracing::warn!(%error, "RUST_LOG cannot be read; logging at info");
    }
}
