//! `xtask suites`: runs the tests that `cargo test --no-run` built, and what else must hold.
//!
//! One after another, as cargo would, with the longest last: they boot machines and clusters, and their patience is for a machine that has
//! little else to do. Beside them runs a suite that waits for disks and hardly needs a processor, and, yielding to all, what is no suite: the
//! examples in the documentation, the documentation itself, the fuzz targets. (The lints come with the build: see the Makefile.) What a suite
//! prints is kept in a file, and shown if it fails. A test whose lab cannot run here returns, and its harness calls that passed; so each job has a
//! summary of its own (`BOWLINE_SUMMARY`), and whatever says there that it did not run is not counted as passed.

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{BufRead, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// The suites that come last, in this order.
const LAST: [&str; 2] = ["vm", "cluster"];

/// Processes that die and start again, and syncs: some minutes with a fifth of a processor.
const IDLE: &str = "/e2e";

/// The file in which tests say what they covered and what did not run; the one of them all is named to this process.
const SUMMARY: &str = "BOWLINE_SUMMARY";

/// How a line begins that says which test did not run.
const NOT_RUN: &str = "not run: ";

/// One thing to run.
struct Job {
    name: String,
    command: Command,
}

/// What cargo says of everything it built, as far as it matters here.
#[derive(Deserialize)]
struct Built {
    manifest_path: Option<PathBuf>,
    target: Option<Target>,
    profile: Option<Profile>,
    executable: Option<PathBuf>,
    success: Option<bool>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
}

#[derive(Deserialize)]
struct Profile {
    test: bool,
}

/// Runs the suites that cargo's messages name, and what else `make test` asks for; keeps what they print in `logs`.
pub(crate) fn run(messages: impl BufRead, logs: &Path) -> Result<()> {
    let suites = suites(messages)?;
    ensure!(
        !suites.is_empty(),
        "cargo's messages name no test: were they made by cargo test --no-run --message-format=json?"
    );
    fs::create_dir_all(logs)?;
    let count = suites.len();
    let begun = Instant::now();
    let all = std::thread::scope(|scope| {
        let lanes: Vec<_> =
            lanes(suites).into_iter().map(|lane| scope.spawn(move || run_lane(lane, logs))).collect();
        lanes.into_iter().fold(Tally::default(), |all, lane| match lane.join() {
            Ok(tally) => all.and(tally),
            Err(_) => all.and(Tally { bad: vec!["a lane".into()], ..Tally::default() }),
        })
    });
    say(&format!("{count} suites in {:.0} min", begun.elapsed().as_secs_f64() / 60.0));
    if !all.bad.is_empty() {
        bail!("failed: {}; what they printed is above, and in {}", all.bad.join(", "), logs.display());
    }
    say(&all.shown());
    Ok(())
}

/// How many tests did what, and the names of the jobs that failed.
#[derive(Debug, Default, PartialEq, Eq)]
struct Tally {
    passed: u64,
    failed: u64,
    skipped: u64,
    not_run: u64,
    bad: Vec<String>,
}

impl Tally {
    /// What a suite says of itself at its end, and in its summary of what did not run; the examples of several crates say it several times.
    fn of(printed: &str, summary: &str) -> Self {
        let lines = printed.lines().filter_map(|line| line.strip_prefix("test result: "));
        let told = lines.fold(Self::default(), |all, line| {
            let number = |word: &str| {
                let before =
                    line.split_once(word).and_then(|(before, _)| before.trim_end().rsplit(' ').next());
                before.and_then(|number| number.parse::<u64>().ok()).unwrap_or_default()
            };
            let [passed, failed, skipped] = [" passed;", " failed;", " ignored;"].map(number);
            all.and(Self { passed, failed, skipped, ..Self::default() })
        });
        // A test may say it twice, with two reasons; it is one test all the same.
        let tests = summary.lines().filter_map(|line| line.strip_prefix(NOT_RUN)?.split(" (").next());
        let not_run = u64::try_from(tests.collect::<BTreeSet<_>>().len()).unwrap_or(u64::MAX);
        Self { passed: told.passed.saturating_sub(not_run), not_run, ..told }
    }

    fn and(mut self, other: Self) -> Self {
        self.bad.extend(other.bad);
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
        self.not_run += other.not_run;
        self
    }

    fn shown(&self) -> String {
        let Self { passed, failed, skipped, not_run, bad: _ } = self;
        format!("{passed} passed, {failed} failed, {skipped} skipped, {not_run} not run")
    }
}

/// The test programs in cargo's messages, in cargo's order.
fn suites(messages: impl BufRead) -> Result<Vec<Job>> {
    let mut suites = Vec::new();
    for line in messages.lines() {
        let line = line?;
        let built: Built =
            serde_json::from_str(&line).with_context(|| format!("this is no message of cargo's: {line}"))?;
        ensure!(built.success != Some(false), "the tests could not be built");
        let Built { manifest_path: Some(manifest), target: Some(target), executable: Some(program), .. } =
            built
        else {
            continue;
        };
        if !built.profile.is_some_and(|profile| profile.test) {
            continue;
        }
        let package = manifest.parent().context("a manifest is in a directory")?;
        let mut command = Command::new(program);
        command.current_dir(package).env("CARGO_MANIFEST_DIR", package);
        let of = package.file_name().unwrap_or_default().to_string_lossy();
        suites.push(Job { name: format!("{of}/{}", target.name), command });
    }
    Ok(suites)
}

/// What runs beside what.
fn lanes(mut suites: Vec<Job>) -> Vec<Vec<Job>> {
    // Those that are not named keep cargo's order.
    suites.sort_by_key(|suite| {
        LAST.iter().position(|last| suite.name.ends_with(&format!("/{last}"))).map_or(0, |at| at + 1)
    });
    let (idle, busy) = suites.into_iter().partition(|suite| suite.name.ends_with(IDLE));
    vec![busy, idle, checks()]
}

/// What `make test` asks for beside the suites. It has time; they have deadlines.
fn checks() -> Vec<Job> {
    let gently = |program: OsString| {
        let mut command = Command::new("nice");
        command.arg(program);
        command
    };
    let cargo = |name: &str, arguments: &[&str]| {
        let mut command = gently(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        command.args(arguments).args(["--workspace", "--locked"]);
        Job { name: name.into(), command }
    };
    let mut documentation = cargo("documentation", &["doc", "--no-deps"]);
    documentation.command.env("RUSTDOCFLAGS", "-D warnings");
    let mut fuzz = Job { name: "fuzz".into(), command: gently("fuzz/run.sh".into()) };
    // It is a workspace of its own, built by a compiler that does more than to look.
    fuzz.command.env_remove("RUSTC_WORKSPACE_WRAPPER");
    vec![cargo("examples", &["test", "--doc", "--all-features"]), documentation, fuzz]
}

/// Runs one after another.
fn run_lane(lane: Vec<Job>, logs: &Path) -> Tally {
    let mut all = Tally::default();
    for mut job in lane {
        let file = |kind: &str| logs.join(format!("{}.{kind}", job.name.replace('/', "-")));
        let (log, summary) = (file("log"), file("summary"));
        let begun = Instant::now();
        let ended = run_job(&mut job.command, &log, &summary);
        let read = |file: &Path| String::from_utf8_lossy(&fs::read(file).unwrap_or_default()).into_owned();
        let (printed, summary) = (read(&log), read(&summary));
        let ended = ended.and_then(|is_good| add_to_summary(&summary).map(|()| is_good));
        let mut tally = Tally::of(&printed, &summary);
        let line = format!("{:6.1} s  {}: {}", begun.elapsed().as_secs_f64(), job.name, tally.shown());
        match ended {
            Ok(true) => say(&format!("ok     {line}")),
            Ok(false) => say(&format!("{printed}\nFAILED {line}")),
            Err(ref why) => say(&format!("FAILED {line}: {why:#}")),
        }
        if !matches!(ended, Ok(true)) {
            tally.bad.push(job.name);
        }
        all = all.and(tally);
    }
    all
}

fn run_job(command: &mut Command, log: &Path, summary: &Path) -> Result<bool> {
    let file = File::create(log).with_context(|| log.display().to_string())?;
    // Empty: what an earlier run said there is not of this one.
    File::create(summary).with_context(|| summary.display().to_string())?;
    command.env(SUMMARY, summary);
    let status = command.stdin(std::process::Stdio::null()).stdout(file.try_clone()?).stderr(file).status();
    Ok(status.with_context(|| format!("{} does not start", command.get_program().display()))?.success())
}

/// `make test` shows the summary of all at its end.
fn add_to_summary(of_job: &str) -> Result<()> {
    let Some(path) = std::env::var_os(SUMMARY) else { return Ok(()) };
    let mut all = File::options().create(true).append(true).open(path).context(SUMMARY)?;
    Ok(all.write_all(of_job.as_bytes())?)
}

#[allow(clippy::print_stdout, reason = "that is what it is for")]
fn say(line: &str) {
    println!("{line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    const SUITE: &str = r#"{"reason":"compiler-artifact","manifest_path":"/p/store/Cargo.toml","target":{"name":"kube"},"profile":{"test":true},"executable":"/t/kube-1"}"#;
    const LIBRARY: &str = r#"{"reason":"compiler-artifact","manifest_path":"/p/store/Cargo.toml","target":{"name":"store"},"profile":{"test":false},"executable":null}"#;
    const PROGRAM: &str = r#"{"reason":"compiler-artifact","manifest_path":"/p/bowline/Cargo.toml","target":{"name":"bowline"},"profile":{"test":false},"executable":"/t/bowline"}"#;
    const GOOD: &str = r#"{"reason":"build-finished","success":true}"#;
    const BAD: &str = r#"{"reason":"build-finished","success":false}"#;

    #[test]
    fn only_test_programs_are_suites() {
        let found = suites([SUITE, LIBRARY, PROGRAM, GOOD].join("\n").as_bytes()).unwrap();
        assert_eq!(found.iter().map(|job| job.name.as_str()).collect::<Vec<_>>(), ["store/kube"]);
        assert_eq!(found[0].command.get_current_dir(), Some(Path::new("/p/store")));
    }

    #[test]
    fn the_longest_come_last_and_what_only_waits_runs_beside_the_others() {
        let job = |name: &str| Job { name: name.into(), command: Command::new("true") };
        let lanes = lanes(["b/cluster", "b/cli", "b/e2e", "b/vm", "a/kube"].map(job).into());
        let names = |at: usize| lanes[at].iter().map(|job| job.name.as_str()).collect::<Vec<_>>();
        assert_eq!(names(0), ["b/cli", "a/kube", "b/vm", "b/cluster"]);
        assert_eq!(names(1), ["b/e2e"]);
    }

    #[test]
    fn a_build_that_failed_or_no_suite_at_all_is_no_success() {
        assert!(suites([SUITE, BAD].join("\n").as_bytes()).is_err());
        assert!(run(GOOD.as_bytes(), Path::new("/nowhere")).is_err());
        assert!(suites("error: no such thing".as_bytes()).is_err());
    }

    #[test]
    fn a_suite_that_fails_or_does_not_start_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let job = |name: &str, program: &str| Job { name: name.into(), command: Command::new(program) };
        let lane = vec![job("p/good", "true"), job("p/bad", "false"), job("p/none", "/nowhere/at/all")];
        assert_eq!(run_lane(lane, directory.path()).bad, ["p/bad", "p/none"]);
    }

    #[test]
    fn what_suites_say_at_their_end_is_added_up() {
        let printed = "running 3 tests\ntest result: ok. 2 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.1s\n\
                       test result: FAILED. 10 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 2s\n";
        let told = Tally::of(printed, "");
        assert_eq!(told, Tally { passed: 12, failed: 1, skipped: 1, ..Tally::default() });
        assert_eq!(told.shown(), "12 passed, 1 failed, 1 skipped, 0 not run");
        assert_eq!(Tally::of("no test at all", "model: 3 scenarios"), Tally::default());
    }

    #[test]
    fn a_test_whose_lab_is_missing_does_not_count_as_passed() {
        let summary = "not run: fence::one (missing: QEMU)\nfence: held\nnot run: fence::two (missing: QEMU)\n\
                       not run: fence::two (missing: its kernel)\n";
        let told = Tally::of("test result: ok. 5 passed; 0 failed; 0 ignored;", summary);
        assert_eq!(told.shown(), "3 passed, 0 failed, 0 skipped, 2 not run");
        // A suite without a harness has none that passed.
        assert_eq!(
            Tally::of("", "not run: csi.proto was not compared").shown(),
            "0 passed, 0 failed, 0 skipped, 1 not run"
        );
        assert_eq!(told.and(Tally { passed: 1, not_run: 1, ..Tally::default() }).not_run, 3);
    }

    #[test]
    fn each_job_has_a_summary_of_its_own() {
        let directory = tempfile::tempdir().unwrap();
        let job = |name: &str, script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            Job { name: name.into(), command }
        };
        let passed = "echo 'test result: ok. 2 passed; 0 failed; 0 ignored;'";
        let lacking = format!("{passed}; echo 'not run: a (missing: b)' >>\"$BOWLINE_SUMMARY\"");
        // What the first run said is not of the second.
        for (script, expected) in [
            (lacking.as_str(), "3 passed, 0 failed, 0 skipped, 1 not run"),
            (passed, "4 passed, 0 failed, 0 skipped, 0 not run"),
        ] {
            let told = run_lane(vec![job("p/lacking", script), job("p/all", passed)], directory.path());
            assert_eq!(told.shown(), expected);
            assert_eq!(told.bad, [""; 0]);
        }
    }
}
