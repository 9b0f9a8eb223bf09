//! `xtask lab routeros`: a simulated RouterOS device behind SSH, for people who want to try without the hardware. It runs until it is
//! interrupted.

use anyhow::{Context, Result, bail};
use bowline_testkit::routeros::{Firmware, KeyPair, Latency, Login, RouterOs, SshServer};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;

const USER: &str = "bowline";

/// Starts it, and says how to use it.
pub(crate) fn up(words: &[&str]) -> Result<()> {
    let latency = match words {
        [] => Latency::RECORDED,
        ["--fast"] => Latency::NONE,
        _ => bail!("the only flag here is --fast (it answers at once), not {}", words.join(" ")),
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(run(Firmware { latency, ..Firmware::default() }))
}

#[allow(clippy::print_stdout, reason = "that is what it is for")]
async fn run(firmware: Firmware) -> Result<()> {
    let directory = tempfile::Builder::new().prefix("bowline-routeros-").tempdir()?;
    let key = KeyPair::new();
    let (file, known) = (directory.path().join("key"), directory.path().join("known_hosts"));
    fs::write(&file, &key.private)?;
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600))?;
    let device = RouterOs::in_directory(firmware, directory.path().join("files"));
    let login = Login { user: USER.to_owned(), password: None, keys: vec![key.public] };
    let server = SshServer::start(device, login).await;
    let (address, host_key) = (server.address(), server.host_key());
    fs::write(&known, format!("[{}]:{} {}\n", address.ip(), address.port(), host_key.public))?;
    println!(
        "A simulated RouterOS device listens at {address}. It was built from what others recorded of real ones, and none was at hand.\n\n  \
         host key  {}\n  user      {USER}\n  key       {}\n\nIn another terminal:\n\n  \
         alias rds='ssh -F none -p {} -i {} -o UserKnownHostsFile={} {USER}@{}'\n  \
         rds '/disk add type=file file-path=/storage-pool/a.img file-size=1G slot=a'\n  \
         rds '/disk print detail'\n\nIts files are in {}. Ctrl-C ends it and leaves nothing behind.",
        host_key.fingerprint(),
        file.display(),
        address.port(),
        file.display(),
        known.display(),
        address.ip(),
        directory.path().join("files").display(),
    );
    tokio::signal::ctrl_c().await.context("Ctrl-C cannot be waited for")
}
