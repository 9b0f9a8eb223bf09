//! Compares our contract, fact by fact, with the files that its owners publish as Go modules.
//!
//! It has no harness: where a module cannot be had it says `not run: …`, and nothing is counted as passed.

#![allow(clippy::print_stdout, reason = "it speaks for itself")]

#[path = "../contract/facts.rs"]
mod facts;

use facts::facts;
use protox::prost_reflect::DescriptorPool;
use std::collections::BTreeSet;
use std::error::Error;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// Our file, the module with theirs, and where in it.
const CONTRACTS: [(&str, &str, &str); 2] = [
    ("csi.proto", "github.com/container-storage-interface/spec@v1.13.0", "csi.proto"),
    ("pluginregistration.proto", "k8s.io/kubelet@v0.37.2", "pkg/apis/pluginregistration/v1/api.proto"),
];

fn main() -> ExitCode {
    let mut exit = ExitCode::SUCCESS;
    for (ours, module, theirs) in CONTRACTS {
        let said = match published(module, theirs) {
            Err(missing) => format!("not run: {ours} was not compared with {module}: {missing}"),
            Ok(path) => match compare(ours, &path) {
                Ok((count, differences)) if differences.is_empty() => {
                    format!("{ours} says what {module} says: {count} facts")
                }
                Ok((_, differences)) => {
                    exit = ExitCode::FAILURE;
                    format!("{ours} differs from {module}:\n{}", differences.join("\n"))
                }
                Err(error) => {
                    exit = ExitCode::FAILURE;
                    format!("{ours} cannot be compared with {module}: {error}")
                }
            },
        };
        println!("{said}");
        summarise(&said);
    }
    exit
}

/// The published file in the module cache, fetched if it is not there.
fn published(module: &str, file: &str) -> Result<PathBuf, String> {
    let output = Command::new("go")
        .args(["mod", "download", "-json", module])
        .env("GOFLAGS", "-mod=mod")
        // Outside of any module, so that none is changed.
        .current_dir(std::env::temp_dir())
        .output()
        .map_err(|error| format!("cannot run go: {error}"))?;
    let answer = String::from_utf8_lossy(&output.stdout);
    let told = |key: &str| {
        let value = answer.lines().find_map(|line| line.trim().strip_prefix(key)?.strip_prefix(": \""))?;
        Some(value.trim_end_matches(',').trim_end_matches('"').to_owned())
    };
    match told("\"Dir\"") {
        Some(directory) => Ok(Path::new(&directory).join(file)),
        None => Err(format!("go cannot download it: {}", told("\"Error\"").unwrap_or_default())),
    }
}

fn compare(ours: &str, theirs: &Path) -> Result<(usize, Vec<String>), Box<dyn Error>> {
    let pool = DescriptorPool::decode(bowline_csi::wire::DESCRIPTOR)?;
    let stated: BTreeSet<String> = facts(&pool, ours).into_iter().collect();

    let directory = theirs.parent().ok_or("no directory")?;
    let name = theirs.file_name().and_then(|name| name.to_str()).ok_or("no name")?;
    let mut compiler = protox::Compiler::new([directory])?;
    compiler.include_imports(true).open_file(name)?;
    let pool = DescriptorPool::decode(compiler.encode_file_descriptor_set().as_slice())?;
    let published: BTreeSet<String> = facts(&pool, name).into_iter().collect();

    if published.len() < 10 {
        return Err("the published file says next to nothing".into());
    }
    let only_ours = stated.difference(&published).map(|fact| format!("  only ours:   {fact}"));
    let only_theirs = published.difference(&stated).map(|fact| format!("  only theirs: {fact}"));
    Ok((published.len(), only_ours.chain(only_theirs).collect()))
}

/// `make test` shows at its end what was covered, and what was not.
fn summarise(line: &str) {
    let Some(path) = std::env::var_os("BOWLINE_SUMMARY") else { return };
    if let Ok(mut file) = std::fs::File::options().create(true).append(true).open(path) {
        let _ = file.write_all(format!("{line}\n").as_bytes());
    }
}
