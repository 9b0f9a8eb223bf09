//! `bowline up`: everything on one machine.

use crate::args::UpArgs;
use crate::config::Config;

/// Runs until it is told to stop.
pub async fn run(_args: UpArgs, _config: Config) -> anyhow::Result<()> {
    anyhow::bail!("not wired yet")
}
