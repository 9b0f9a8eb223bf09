//! `xtask lab up|down|status`: a cluster on this machine, with Bowline in it, for people to try things.
//!
//! A process in the background holds it. When that process ends, in whatever way, everything of the lab goes with it.

use crate::image;
use anyhow::{Context, Result, bail, ensure};
use bowline_testkit::lab::{ClusterLab, Image, Options};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How long a lab may take to come up: its first images are packed meanwhile.
const PATIENCE: Duration = Duration::from_secs(600);

/// Where the lab is, outside the tree.
fn directory() -> Result<PathBuf> {
    let cache = match std::env::var_os("XDG_CACHE_HOME") {
        Some(cache) => PathBuf::from(cache),
        None => PathBuf::from(std::env::var_os("HOME").context("HOME is not set")?).join(".cache"),
    };
    Ok(cache.join("bowline/bowline-cluster-dev"))
}

/// Who holds the lab, if somebody does.
fn holder(directory: &Path) -> Option<u32> {
    let pid: u32 = fs::read_to_string(directory.join("pid")).ok()?.trim().parse().ok()?;
    let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    // Another process may have its number by now.
    String::from_utf8_lossy(&line).contains("lab\0hold").then_some(pid)
}

/// Starts the lab in the background and says how to use it.
pub(crate) fn up(is_release: bool) -> Result<()> {
    let directory = directory()?;
    if holder(&directory).is_some() {
        return status();
    }
    ensure!(
        !directory.exists(),
        "{} is left from an earlier lab: make lab-down removes it",
        directory.display()
    );
    let built = image::build(is_release)?;
    fs::create_dir_all(&directory)?;
    // Beside it: a lab that does not come up takes its directory away.
    let log = directory.with_extension("log");
    let output = File::create(&log)?;
    let mut held = Command::new("setsid")
        .arg(std::env::current_exe()?)
        .args(["lab", "hold"])
        .arg(&built.archive)
        .stdin(Stdio::null())
        .stdout(output.try_clone()?)
        .stderr(output)
        .spawn()
        .context("setsid does not start")?;
    let begun = Instant::now();
    while !directory.join("installed").exists() {
        let ended = held.try_wait()?;
        if ended.is_some() || begun.elapsed() > PATIENCE {
            let said = fs::read_to_string(&log).unwrap_or_default();
            bail!("the lab did not come up ({ended:?}):\n{said}");
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    status()?;
    let trouble = fs::read_to_string(directory.join("installed"))?;
    ensure!(trouble.is_empty(), "but Bowline did not get ready in it:\n{trouble}");
    Ok(())
}

/// The process in the background.
pub(crate) fn hold(archive: &Path) -> Result<()> {
    let directory = directory()?;
    fs::write(directory.join("pid"), std::process::id().to_string())?;
    let bowline = Image { name: String::new(), archive: archive.to_owned() };
    let images = [vec![bowline], Image::sidecars()].concat();
    let options = Options {
        images,
        snapshots: true,
        directory: Some(directory.clone()),
        alone: false,
        ..Options::default()
    };
    let Some(lab) = ClusterLab::start(&options) else { bail!("this machine cannot run the lab") };
    let chart = image::project()?.join("deploy/chart");
    // A Bowline that does not get ready is no reason to take the lab away: there one can look why.
    let trouble = if chart.exists() { lab.install_chart(&[]).err() } else { None };
    if trouble.is_none() {
        // What people try names no class.
        lab.kubectl(&[
            "annotate",
            "storageclass",
            "bowline-file",
            "storageclass.kubernetes.io/is-default-class=true",
        ]);
    }
    let (draft, installed) = (directory.join("installed.new"), directory.join("installed"));
    fs::write(&draft, trouble.unwrap_or_default())?;
    fs::rename(draft, installed)?;
    loop {
        std::thread::park();
    }
}

/// Says whether the lab runs, and what to try.
#[allow(clippy::print_stdout, reason = "that is what it is for")]
pub(crate) fn status() -> Result<()> {
    let directory = directory()?;
    if holder(&directory).is_none() {
        println!("The lab does not run: make lab-up");
        return Ok(());
    }
    let kubectl = bowline_testkit::lab::tools("kubernetes").join("kubectl");
    println!(
        "The lab runs: two nodes, lab-a and lab-b, with everything in {0}.\n\n  \
         export KUBECONFIG={0}/kubeconfig PATH={1}:$PATH\n  \
         kubectl get nodes\n  \
         kubectl -n {2} get pods\n  \
         kubectl get storageclasses\n  \
         kubectl apply -f {3}\n  \
         kubectl get pods,pvc,bowline\n  \
         kubectl logs writer\n\n\
         Pods can use the image docker.io/library/busybox:lab; nothing can be pulled. make lab-down removes everything.",
        directory.display(),
        kubectl.parent().unwrap_or(&kubectl).display(),
        bowline_testkit::lab::NAMESPACE,
        image::project()?.join("lab/try.yaml").display(),
    );
    Ok(())
}

/// Ends the lab and waits until nothing is left of it.
#[allow(clippy::print_stdout, reason = "that is what it is for")]
pub(crate) fn down() -> Result<()> {
    let directory = directory()?;
    match holder(&directory) {
        Some(pid) => {
            // The kernel ends its processes with it, and its janitor removes the rest.
            ensure!(Command::new("kill").arg(pid.to_string()).status()?.success(), "kill {pid} failed");
            let begun = Instant::now();
            while directory.exists() && begun.elapsed() < Duration::from_secs(60) {
                std::thread::sleep(Duration::from_millis(100));
            }
            ensure!(!directory.exists(), "{} is not gone after a minute", directory.display());
        }
        None if directory.exists() => {
            let script = image::project()?.join("lab/clean.sh");
            ensure!(
                Command::new("sh").arg(script).arg(&directory).status()?.success(),
                "lab/clean.sh failed"
            );
            fs::remove_dir_all(&directory)?;
        }
        None => {}
    }
    let _ = fs::remove_file(directory.with_extension("log"));
    println!("No lab runs.");
    Ok(())
}
