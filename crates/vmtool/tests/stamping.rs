//! The writer says what was acknowledged, and the reader finds exactly that.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed check is a panic")]

use std::path::Path;
use std::process::Command;

fn vmtool(words: &[&str]) -> (String, bool) {
    let output = Command::new(env!("CARGO_BIN_EXE_vmtool")).args(words).output().unwrap();
    (String::from_utf8(output.stdout).unwrap(), output.status.success())
}

/// What was acknowledged last of each block, up to the last that was: one thread may have made all of the writes.
fn acknowledged(out: &str) -> Vec<Option<u64>> {
    let mut last = vec![];
    for line in out.lines() {
        let words: Vec<u64> =
            line.strip_prefix("ack ").unwrap().split(' ').map(|word| word.parse().unwrap()).collect();
        let block = words[1] as usize;
        last.resize(last.len().max(block + 1), None);
        last[block] = Some(words[0]);
    }
    last
}

#[test]
fn what_is_acknowledged_is_there() {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("stamping");
    std::fs::create_dir_all(&directory).unwrap();
    for (name, options) in [("buffered", &[][..]), ("lazy", &["lazy"]), ("direct", &["direct", "threads=4"])]
    {
        let path = directory.join(name);
        let _ = std::fs::remove_file(&path);
        let path = path.to_str().unwrap();
        let (out, is_good) = vmtool(&[&["write", path, "epoch=7", "count=8", "writes=20"], options].concat());
        assert!(is_good, "{name}");
        let expected: String = acknowledged(&out)
            .iter()
            .enumerate()
            .map(|(block, sequence)| match sequence {
                Some(sequence) => format!("{block} 7 {sequence}\n"),
                None => format!("{block} blank\n"),
            })
            .collect();
        assert_eq!(vmtool(&["stamps", path]).0, expected, "{name}");
        std::fs::remove_file(path).unwrap();
    }
}

#[test]
fn an_error_is_told_with_its_number_and_ends_the_writer() {
    let (out, is_good) = vmtool(&["write", "/dev/full", "epoch=1", "writes=5"]);
    assert!(!is_good);
    assert!(out.starts_with("error 1 0 28 "), "{out}");
    let (out, is_good) = vmtool(&["write", "/dev/full", "epoch=1", "writes=3", "stubborn"]);
    assert!(is_good);
    assert_eq!(out.lines().filter(|line| line.starts_with("error ")).count(), 3, "{out}");
}
