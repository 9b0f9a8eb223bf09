//! Which crate may use which. `ARCHITECTURE.md` draws it; this keeps it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed check is a panic")]

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

/// Bowline's own crates, and what of each other they may use. A crate that is not here must be put on the map first.
const ARROWS: &[(&str, &[&str])] = &[
    ("bowline-core", &[]),
    ("bowline-failpoint", &[]),
    ("bowline-host", &["bowline-core", "bowline-failpoint"]),
    ("bowline-api", &["bowline-core"]),
    ("bowline-store", &["bowline-api", "bowline-core"]),
    ("bowline-csi", &["bowline-core"]),
    // The adapters of storage on this very machine use its kernel.
    ("bowline-target", &["bowline-core", "bowline-failpoint", "bowline-host"]),
    ("bowline-engine", &["bowline-core", "bowline-store", "bowline-target"]),
    (
        "bowline-controller",
        &["bowline-core", "bowline-csi", "bowline-engine", "bowline-store", "bowline-target"],
    ),
    ("bowline-node", &["bowline-core", "bowline-csi", "bowline-failpoint", "bowline-host", "bowline-target"]),
    (
        "bowline-cluster",
        &[
            "bowline-api",
            "bowline-controller",
            "bowline-core",
            "bowline-csi",
            "bowline-engine",
            "bowline-store",
            "bowline-target",
            // It checks the tokens of whoever uses the API.
            "bowline-web",
        ],
    ),
    ("bowline-web", &["bowline-controller", "bowline-core", "bowline-csi", "bowline-engine"]),
    (
        "bowline",
        &[
            "bowline-api",
            "bowline-cluster",
            "bowline-controller",
            "bowline-core",
            "bowline-csi",
            "bowline-engine",
            "bowline-failpoint",
            "bowline-host",
            "bowline-node",
            // `bowline lab`.
            "bowline-routeros",
            "bowline-store",
            "bowline-target",
            "bowline-web",
        ],
    ),
    // It answers as a console of `target` would, and exports by its way into a kernel.
    ("bowline-routeros", &["bowline-target"]),
    (
        "bowline-testkit",
        &[
            "bowline-core",
            "bowline-csi",
            "bowline-routeros",
            "bowline-store",
            "bowline-target",
            "bowline-vmtool",
        ],
    ),
    ("bowline-vmtool", &[]),
    (
        "xtask",
        &[
            "bowline-api",
            "bowline-core",
            "bowline-csi",
            "bowline-engine",
            "bowline-store",
            "bowline-target",
            "bowline-testkit",
        ],
    ),
];

/// The pure crate may use these and no others: none of them reads a clock, a file or the network.
const CORE_USES: &[&str] = &["jiff", "serde", "sha2", "thiserror"];

/// What only some crates may use, because only they have business with it.
const ONLY_IN: &[(&str, &[&str])] = &[
    ("kube", &["bowline", "bowline-api", "bowline-cluster", "bowline-store", "bowline-testkit", "xtask"]),
    ("redb", &["bowline-store", "xtask"]),
    // The one talks to devices, the other stands for one.
    ("russh", &["bowline-routeros", "bowline-target"]),
    ("rustix", &["bowline-host", "bowline-mounter"]),
    ("anyhow", &["bowline", "xtask"]),
    ("stateright", &[]),
];

/// What would make the pure crate depend on when and where it runs.
const IMPURE: &[&str] = &[
    "std::env",
    "std::fs",
    "std::io",
    "std::net",
    "std::os",
    "std::process",
    "std::thread",
    "std::time",
    "::now()",
    "async fn",
    ".await",
    "HashMap",
    "HashSet",
    "RandomState",
    "unsafe ",
];

struct Package {
    name: String,
    /// What it uses to run, and what it uses to be tested.
    uses: BTreeSet<String>,
    tests_with: BTreeSet<String>,
}

fn packages() -> Vec<Package> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version=1", "--no-deps", "--offline"])
        .current_dir(root)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    metadata["packages"]
        .as_array()
        .unwrap()
        .iter()
        .map(|package| {
            let (mut uses, mut tests_with) = (BTreeSet::new(), BTreeSet::new());
            for dependency in package["dependencies"].as_array().unwrap() {
                let is_for_tests = dependency["kind"].as_str() == Some("dev");
                if is_for_tests { &mut tests_with } else { &mut uses }.insert(text(&dependency["name"]));
            }
            Package { name: text(&package["name"]), uses, tests_with }
        })
        .collect()
}

#[test]
fn crates_use_only_what_the_map_lets_them() {
    let map: BTreeMap<&str, &[&str]> = ARROWS.iter().copied().collect();
    for package in packages() {
        let allowed = map.get(package.name.as_str());
        let allowed =
            allowed.unwrap_or_else(|| panic!("{} is not on the map: put it there first", package.name));
        for used in package.uses.iter().filter(|used| map.contains_key(used.as_str())) {
            assert!(allowed.contains(&used.as_str()), "{} may not use {used}", package.name);
        }
        let is_tool = matches!(package.name.as_str(), "xtask" | "bowline-testkit");
        assert!(
            is_tool || !package.uses.contains("bowline-testkit"),
            "{} may use the testkit only in tests",
            package.name
        );
    }
}

#[test]
fn core_is_pure() {
    let core = packages().into_iter().find(|package| package.name == "bowline-core").unwrap();
    let allowed: BTreeSet<String> = CORE_USES.iter().map(ToString::to_string).collect();
    assert_eq!(core.uses.difference(&allowed).collect::<Vec<_>>(), [""; 0], "core uses more than it may");
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/core/src");
    for entry in std::fs::read_dir(sources).unwrap() {
        let path = entry.unwrap().path();
        let source = std::fs::read_to_string(&path).unwrap();
        for (number, line) in
            source.lines().enumerate().filter(|(_, line)| !line.trim_start().starts_with("//"))
        {
            for word in IMPURE {
                assert!(!line.contains(word), "{}:{}: {word:?} is not pure", path.display(), number + 1);
            }
        }
    }
}

#[test]
fn what_only_some_may_use_is_used_only_there() {
    for package in packages() {
        for (used, allowed) in ONLY_IN {
            assert!(
                !package.uses.contains(*used) || allowed.contains(&package.name.as_str()),
                "{} may not use {used}; only {allowed:?} may",
                package.name
            );
        }
    }
    let tested_with: BTreeSet<String> =
        packages().into_iter().flat_map(|package| package.tests_with).collect();
    assert!(tested_with.contains("proptest"), "the metadata has test dependencies");
}
