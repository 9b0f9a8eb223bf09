//! A step that is persisted or seen from outside has a failpoint: whatever function of `host`, `node` or the targets changes something
//! passes one, or its callers do.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed check is a panic")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Calls that change something which outlives the process.
const CHANGES: &[&str] = &[
    "fs::write(",
    "rename(",
    "fs::remove_file(",
    "fs::remove_dir(",
    "fs::create_dir",
    "DirBuilder",
    "set_len(",
    "write_all_at(",
    "unlinkat(",
    "mkdirat(",
    "mknodat(",
    "move_mount(",
    "unmount(",
    "ioctl::configure",
    "ioctl::clear",
    "ioctl::freeze",
    "ioctl::thaw",
    "ioctl::refuse_writes",
    "kernel.write(",
    "ficlone",
    "fallocate(",
    "setxattr",
    "chownat(",
    "set_permissions",
    "create_new(",
    "set_mount_attributes",
    "programs.run",
    "console.run(",
    // What has no point of its own and leaves it to its callers.
    "detached_copy(",
    "file::reflink(",
    "file::copy_sparse(",
    "file::write_whole(",
];

/// Functions that have no point of their own, and why.
const EXEMPT: &[(&str, &str)] = &[
    ("host/src/check.rs check", "a repair that is interrupted is repeated; the filesystem orders it"),
    ("host/src/check.rs check_fully", "looks, or repairs, as above"),
    ("host/src/check.rs is_whole", "looks only"),
    ("host/src/doctor.rs load_nvme_target", "loads modules: no state of ours"),
    ("host/src/file.rs reflink", "into a part, which has points: target/src/file"),
    ("host/src/file.rs copy_sparse", "the same"),
    ("host/src/file.rs punch_hole", "the same"),
    ("host/src/file.rs abilities", "files without a name"),
    ("host/src/file.rs nameless", "the same"),
    ("host/src/file.rs create_new", "its callers' step"),
    ("host/src/file.rs write_whole", "its callers' step"),
    ("host/src/file.rs remove", "its callers' step"),
    ("host/src/file.rs set_label", "its callers' step"),
    ("host/src/file.rs set_mark", "its callers' step"),
    ("host/src/format.rs erase", "settle's step"),
    ("host/src/freeze.rs freeze", "what is mounted elsewhere is frozen by the target, which has the point"),
    ("host/src/freeze.rs thaw", "the same"),
    ("host/src/freeze.rs drop", "the end of a freeze on the way out of an error"),
    ("host/src/mount.rs unmount_and_remove", "unmount's step and remove's"),
    ("host/src/mount.rs detached_copy", "nobody sees it yet"),
    ("host/src/mount.rs attach", "the step of mount and bind"),
    ("host/src/owner.rs give", "give_to_group's step"),
    ("node/src/unstage.rs take_off", "the host's step"),
    ("node/src/state.rs open", "makes its directory and clears drafts"),
    ("node/src/used.rs file", "makes it, whole or not at all"),
    ("target/src/nvmet/subsystem.rs fill", "steps of target/src/nvmet/kernel.rs"),
    ("target/src/nvmet/subsystem.rs grown", "the same"),
    ("target/src/nvmet/tree.rs apart", "a step of the process that had this one started"),
    ("target/src/nvmet/tree.rs make", "a step of target/src/nvmet/kernel.rs"),
    ("target/src/nvmet/tree.rs remove", "the same"),
    ("target/src/nvmet/tree.rs unlink", "the same"),
    ("target/src/rds/device.rs shown", "looks only"),
    ("target/src/file/directory.rs write_pressing", "gives up the spare room before a step"),
    ("target/src/file/directory.rs keep_spare", "room kept for a full disk: no state"),
    ("target/src/file/holder.rs say", "writes who holds the lock"),
    ("target/src/file/start.rs open_with", "makes its directory"),
];

fn sources(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap().map(Result::unwrap) {
        let path = entry.path();
        // Only what it is called here: the project may lie wherever somebody put it.
        if entry.file_name().to_string_lossy().contains("tests") {
            continue;
        }
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|end| end == "rs") {
            found.push(path);
        }
    }
}

/// The functions of a source, as their name and the lines of their body. By indentation: the source is formatted.
fn functions(source: &str) -> Vec<(String, Vec<&str>)> {
    let code = source.split("#[cfg(test)]").next().unwrap();
    let lines: Vec<&str> = code.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
    let mut functions = vec![];
    for (at, line) in lines.iter().enumerate() {
        let Some((before, rest)) = line.split_once("fn ") else { continue };
        if !before
            .trim()
            .split(' ')
            .all(|word| matches!(word, "" | "pub" | "async" | "const") || word.starts_with("pub("))
        {
            continue;
        }
        let indent = line.len() - line.trim_start().len();
        let name: String = rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
        let end = format!("{}}}", " ".repeat(indent));
        let body = lines[at + 1..].iter().copied().take_while(|line| *line != end).collect();
        functions.push((name, body));
    }
    functions
}

#[test]
fn every_function_that_changes_something_passes_a_point() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates");
    let mut files = vec![];
    for place in ["host/src", "node/src", "target/src/file", "target/src/nvmet", "target/src/rds"] {
        sources(&crates.join(place), &mut files);
    }
    let mut without = BTreeSet::new();
    let mut with = 0;
    for file in files {
        let source = fs::read_to_string(&file).unwrap();
        let short = file.strip_prefix(&crates).unwrap().display().to_string();
        for (name, body) in functions(&source) {
            // The system calls themselves are wrapped in one file.
            if short.ends_with("ioctl.rs")
                || !body.iter().any(|line| CHANGES.iter().any(|call| line.contains(call)))
            {
                continue;
            }
            if body.iter().any(|line| line.contains("pass(\"")) {
                with += 1;
            } else {
                without.insert(format!("{short} {name}"));
            }
        }
    }
    let exempt: BTreeSet<String> = EXEMPT.iter().map(|(function, _)| (*function).to_owned()).collect();
    assert_eq!(
        without, exempt,
        "functions that change something and pass no point (left), and those excused (right)"
    );
    assert!(with > 15, "only {with} functions with a point were found: is the test blind?");
}
