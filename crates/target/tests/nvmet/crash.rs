//! The process ends at every step of showing and of taking away. At each of them nobody but the granted host could get in; a new
//! process and the same command again complete it.

use crate::lab::{Lab, grant, names, open, revocation};
use bowline_target::{Target, TargetError};
use bowline_testkit::{SimNvmet, say};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

const DEED: &str = "BOWLINE_NVMET_DEED";
const PLACE: &str = "BOWLINE_NVMET_PLACE";

/// The process that ends. As a test of its own it does nothing.
#[test]
fn child() {
    let (Ok(deed), Ok(place)) = (std::env::var(DEED), std::env::var(PLACE)) else { return };
    let place = Path::new(&place);
    let kernel = Arc::new(SimNvmet::new(place.join("nvmet")));
    let target = open(&place.join("volumes"), kernel).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    // A step that stops for good is not waited for by whoever asked.
    let _ = runtime.block_on(async {
        if deed == "allow" {
            return target.allow(&grant("v", "a", 1)).await;
        }
        if deed == "revoke again" {
            // From then on it knows what is durable.
            target.revoke(&revocation("v", "nobody", 1)).await?;
        }
        target.revoke(&revocation("v", "a", 1)).await.map(|_| ())
    });
    println!("deed done");
    // Whoever is stopped at a point is ended from outside.
    while std::env::var_os("BOWLINE_NVMET_WAIT").is_some() {
        std::thread::park();
    }
}

fn start(deed: &str, place: &Path, points: &Path, wait: bool) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "crash::child", "--nocapture"])
        .env(DEED, deed)
        .env(PLACE, place)
        .env("BOWLINE_FAILPOINTS", points)
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    if wait {
        command.env("BOWLINE_NVMET_WAIT", "1");
    }
    command.spawn().unwrap()
}

/// A volume, and for a revocation a grant of it.
fn stage(deed: &str) -> (Lab, PathBuf, PathBuf) {
    let lab = Lab::new();
    let target = lab.with(&["v", "w"]);
    lab.allow(&target, &grant("w", "other", 5)).unwrap();
    if deed != "allow" {
        lab.allow(&target, &grant("v", "a", 1)).unwrap();
    }
    drop(target);
    let place = lab.directory.parent().unwrap().to_owned();
    let points = place.join("points");
    fs::create_dir(&points).unwrap();
    (lab, place, points)
}

fn points_of(deed: &str) -> Vec<String> {
    let (_lab, place, points) = stage(deed);
    assert!(start(deed, &place, &points, false).wait().unwrap().success());
    let log = fs::read_to_string(points.join("log")).unwrap();
    log.lines().map(str::to_owned).collect()
}

/// `is_begun`: the process before has stored or noted what it does.
fn ended_at(deed: &str, index: usize, point: &str, is_begun: bool) {
    let (lab, place, points) = stage(deed);
    fs::write(points.join("arm"), index.to_string()).unwrap();
    let mut child = start(deed, &place, &points, true);
    let until = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while !points.join("stopped").exists() {
        let ended = child.try_wait().unwrap();
        assert!(ended.is_none(), "{deed} was not stopped at {index} {point}: {ended:?}");
        assert!(std::time::Instant::now() < until, "{deed} did not come to {index} {point} within 30 s");
        std::thread::yield_now();
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let (mine, other) = (grant("v", "a", 1), grant("w", "other", 5));
    let installation = fs::read_to_string(place.join("volumes/directory.json")).unwrap();
    let admitted = lab.kernel.admitted();
    assert!(admitted.len() <= 2, "{deed} at {index} {point}: {admitted:?}");
    let target = lab.open();
    let allowed = |given: &bowline_target::Grant| {
        let names = names(&target, given);
        (names.subsystem, [names.host].into())
    };
    let (mine_is, other_is) = (allowed(&mine), allowed(&other));
    assert_eq!(admitted.get(&other_is.0), Some(&other_is.1), "{deed} at {index} {point}: {installation}");
    if let Some(hosts) = admitted.get(&mine_is.0) {
        assert!(hosts.is_subset(&mine_is.1), "{deed} at {index} {point}: {hosts:?}");
    }
    match deed {
        "allow" => {
            lab.allow(&target, &mine).unwrap();
            lab.only_these(&target, &[mine, other]);
        }
        _ => {
            if is_begun {
                // A node that reconnects at the wrong moment would not notice the second fence (Linux 6.1).
                lab.only_these(&target, std::slice::from_ref(&other));
            }
            lab.revoke(&target, &revocation("v", "a", 1)).unwrap();
            lab.only_these(&target, &[other]);
            assert!(matches!(lab.allow(&target, &mine), Err(TargetError::NeverAgain(_))));
        }
    }
    lab.revoke(&target, &revocation("v", "a", 1)).unwrap();
    lab.revoke(&target, &revocation("w", "other", 5)).unwrap();
    lab.nothing_is_left();
}

/// `begun_at` is the point from which on the next process knows of it.
fn sweep(deed: &str, begun_at: Option<&str>) {
    let points = points_of(deed);
    let steps = points.iter().filter(|point| *point == "nvmet.step.after").count();
    assert!(steps >= 6, "{deed} passes only {points:?}");
    let begun = points.iter().position(|point| Some(point.as_str()) == begun_at);
    assert_eq!(begun.is_some(), begun_at.is_some(), "{points:?}");
    for (index, point) in points.iter().enumerate() {
        ended_at(deed, index, point, begun.is_some_and(|begun| begun <= index));
    }
    say(&format!(
        "an NVMe/TCP target was ended at each of {} points of {deed}: nobody else got in",
        points.len()
    ));
}

#[test]
fn showing_survives_every_end() {
    sweep("allow", None);
}

#[test]
fn the_fence_survives_every_end() {
    sweep("revoke", Some("target.record.after"));
}

#[test]
fn a_later_fence_of_the_same_process_survives_every_end() {
    sweep("revoke again", Some("target.closing-note.after"));
}
