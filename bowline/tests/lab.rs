//! `bowline lab routeros`, as somebody tries it: with an SSH client that is not ours, and with Bowline.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed check is a panic")]

use bowline_testkit::world::{Running, run, wait_until};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

const BOWLINE: &str = env!("CARGO_BIN_EXE_bowline");

fn start(words: &[&str]) -> Running {
    let mut command = Command::new(BOWLINE);
    command.args(words).env_remove("KUBECONFIG").stdin(Stdio::null()).stdout(Stdio::piped());
    Running(command.spawn().unwrap())
}

/// What the device says of itself when it serves.
fn said(device: &mut Running) -> String {
    let (mut out, mut text, mut piece) = (device.0.stdout.take().unwrap(), String::new(), [0; 4096]);
    while !text.contains("Ctrl-C ends it") {
        let length = out.read(&mut piece).unwrap();
        assert!(length > 0, "it ended early: {text}");
        text += std::str::from_utf8(&piece[..length]).unwrap();
    }
    text
}

/// The words behind a word of what was said, to the end of the line.
fn after<'a>(text: &'a str, word: &str) -> &'a str {
    let line = text.lines().find_map(|line| line.trim_start().strip_prefix(word));
    line.unwrap_or_else(|| panic!("{word:?} is not in {text}")).trim()
}

fn bowline(data: &Path, words: &[&str]) -> Output {
    let mut command = Command::new(BOWLINE);
    command.arg("--data").arg(data).args(words).env_remove("KUBECONFIG").output().unwrap()
}

#[test]
fn a_device_is_tried_by_hand_and_with_bowline_and_leaves_nothing() {
    let mut device = start(&["lab", "routeros", "--fast"]);
    let text = said(&mut device);
    let ssh = after(&text, "alias rds='").trim_end_matches('\'').to_owned();
    let directory: PathBuf = Path::new(after(&text, "key ")).parent().unwrap().to_owned();
    let rds = |line: &str| {
        let words: Vec<&str> = ssh.split_whitespace().collect();
        let done = Command::new(words[0]).args(&words[1..]).arg(line).stdin(Stdio::null()).output().unwrap();
        (done.status.success(), String::from_utf8(done.stdout).unwrap())
    };
    assert!(rds("/disk add type=file file-path=/storage-pool/a.img file-size=1G slot=a").0);
    let (shown, disks) = rds("/disk print detail where slot=a");
    assert!(shown && disks.contains("file-path=/storage-pool/a.img"), "{disks}");
    assert_eq!(std::fs::metadata(directory.join("files/storage-pool/a.img")).unwrap().len(), 1 << 30);
    let (refused, why) = rds("/disk add type=file file-path=/storage-pool/../../etc/b file-size=1G slot=b");
    assert!(!refused && why.contains("invalid parameter"), "{why}");

    let data = directory.join("up");
    let up =
        ["--data", data.to_str().unwrap(), "up", "--http", "off", "--peer", "worker-1", "--peer", "worker-2"];
    let up = start(&up);
    let create = ["volume", "create", "db", "--size", "1Gi"];
    wait_until("a volume on the device", || bowline(&data, &create).status.success().then_some(()));
    assert!(bowline(&data, &["attach", "db", "worker-1"]).status.success());
    let refused = bowline(&data, &["attach", "db", "worker-2"]);
    let why = String::from_utf8(refused.stderr).unwrap();
    assert!(refused.status.code() == Some(4) && why.contains("worker-1"), "{why}");
    let (_, disks) = rds("/disk print detail where nvme-tcp-export=yes");
    assert!(disks.contains("nvme-tcp-server-allow-host-name=\"nqn."), "{disks}");
    drop(up);

    run("kill", ["-INT", &device.0.id().to_string()]);
    assert!(device.0.wait().unwrap().success());
    assert!(!directory.exists(), "{} is still there", directory.display());
}

#[test]
fn what_cannot_be_is_told_with_the_flag_that_asks_for_it() {
    let place = tempfile::tempdir().unwrap();
    let path = |name: &str| place.path().join(name).to_str().unwrap().to_owned();
    std::fs::write(path("empty"), "\n").unwrap();
    for (words, code, told) in [
        (vec!["--listen", "192.0.2.1:22"], 1, "--listen 192.0.2.1:22:"),
        (vec!["--listen", "here"], 2, "--listen"),
        (vec!["--password-file", &path("none")], 1, "--password-file"),
        (vec!["--password-file", &path("empty")], 2, "it is empty"),
        (vec!["--directory", place.path().to_str().unwrap()], 2, "it is not empty"),
        (vec!["--export", "127.0.0.1"], 2, "--directory"),
    ] {
        let done = Command::new(BOWLINE).args(["lab", "routeros"]).args(&words).output().unwrap();
        let why = String::from_utf8(done.stderr).unwrap();
        assert!(done.status.code() == Some(code) && why.contains(told), "{words:?}: {why}");
    }
}
