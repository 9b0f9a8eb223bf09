//! `xtask image`: Bowline as a container image.

use anyhow::{Context, Result, ensure};
use bowline_testkit::lab::Image;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Builds Bowline and packs it.
pub(crate) fn build(is_release: bool) -> Result<Image> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["build", "--locked", "--package", "bowline"]).current_dir(project()?);
    if is_release {
        cargo.arg("--release");
    }
    ensure!(cargo.status().context("cargo does not start")?.success(), "bowline cannot be built");
    // We were built into the directory that it was built into.
    let own = std::env::current_exe()?;
    let target = own.ancestors().nth(2).context("xtask is not in a target directory")?;
    let binary = target.join(if is_release { "release" } else { "debug" }).join("bowline");
    Ok(Image::bowline(&binary))
}

/// The root of the project.
pub(crate) fn project() -> Result<PathBuf> {
    Ok(Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("xtask is in no project")?.to_owned())
}
