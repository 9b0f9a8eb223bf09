//! The benchmarks. Everything that is compared is measured in turns in one run on one machine, and what counts is the ratio.

#![allow(clippy::print_stdout, reason = "the table is the product")]

mod attach;
mod choosing;
mod driver;
mod kube;
mod nvme;
mod rds;
mod room;
pub(crate) mod start;

use anyhow::{Context, Result};
use std::time::Duration;

/// One line of the table.
pub(crate) struct Row {
    pub(crate) what: String,
    pub(crate) measured: String,
    pub(crate) beside: String,
    pub(crate) ratio: Option<f64>,
    pub(crate) goal: Option<f64>,
}

/// A group of rows, by name.
type Group = (&'static str, fn() -> Result<Vec<Row>>);

const GROUPS: [Group; 11] = [
    ("decide", choosing::rows),
    ("attach", attach::rows),
    ("start", start::rows),
    ("driver-publish", driver::publishing),
    ("driver-stage", driver::staging),
    ("driver-copy", driver::copying),
    ("driver-list", driver::listing),
    ("kubernetes", kube::rows),
    ("kubernetes-marks", kube::marks),
    ("nvme", nvme::rows),
    ("rds", rds::rows),
];

/// Measures the groups whose name contains this; all of them, if it is empty.
pub(crate) fn run(only: &str) -> Result<()> {
    println!("{}\n", machine()?);
    let (mut rows, mut failed) = (Vec::new(), Vec::new());
    for (name, group) in GROUPS.iter().filter(|(name, _)| name.contains(only)) {
        match group() {
            Ok(found) => rows.extend(found),
            // What the others have measured took minutes.
            Err(error) => failed.push(format!("{name}: {error:#}")),
        }
    }
    println!("| what | measured | beside | ratio | goal |\n|---|---:|---:|---:|---:|");
    let mut missed = 0;
    for Row { what, measured, beside, ratio, goal } in rows {
        let shown = ratio.map(|ratio| format!("{ratio:.2}")).unwrap_or_default();
        let aim = goal.map(|goal| format!("≤ {goal:.2}")).unwrap_or_default();
        let miss = matches!((ratio, goal), (Some(ratio), Some(goal)) if ratio > goal);
        missed += usize::from(miss);
        println!(
            "| {what} | {measured} | {beside} | {shown}{} | {aim} |",
            if miss { " (missed)" } else { "" }
        );
    }
    println!(
        "\n{}",
        if missed == 0 { "every goal was met".to_owned() } else { format!("goals missed: {missed}") }
    );
    anyhow::ensure!(failed.is_empty(), "not measured: {}", failed.join("; "));
    Ok(())
}

fn machine() -> Result<String> {
    let read = |path: &str| std::fs::read_to_string(path).with_context(|| format!("reading {path}"));
    let field = |text: &str, name: &str| {
        let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_default();
        line.split_once(':').map(|(_, value)| value.trim().to_owned()).unwrap_or_default()
    };
    let cores = std::thread::available_parallelism()?;
    let cpu = field(&read("/proc/cpuinfo")?, "model name");
    let memory = field(&read("/proc/meminfo")?, "MemTotal");
    let kernel = read("/proc/sys/kernel/osrelease")?;
    Ok(format!("{cores} cores ({cpu}), {memory} memory, Linux {}", kernel.trim()))
}

/// Says how far a group has come, or what it found on the way; some take minutes.
pub(crate) fn say(what: &str) {
    use std::io::Write;
    // Nobody needs to read it.
    let _ = writeln!(std::io::stderr(), "{what}");
}

/// The one in the middle: what happened now and then to one of them does not count.
pub(crate) fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

/// The ratio in the middle of those of times that were measured one beside the other: a machine that grows slower for a while does so for both.
pub(crate) fn paired(times: &[Duration], beside: &[Duration]) -> f64 {
    let mut ratios: Vec<_> = times.iter().zip(beside).map(|(time, beside)| ratio(*time, *beside)).collect();
    ratios.sort_by(f64::total_cmp);
    ratios.get(ratios.len() / 2).copied().unwrap_or_default()
}

pub(crate) fn ratio(time: Duration, beside: Duration) -> f64 {
    time.as_secs_f64() / beside.as_secs_f64()
}

pub(crate) fn shown(time: Duration) -> String {
    let micros = time.as_secs_f64() * 1e6;
    match micros {
        m if m < 1000.0 => format!("{m:.1} µs"),
        m if m < 1_000_000.0 => format!("{:.2} ms", m / 1e3),
        m => format!("{:.2} s", m / 1e6),
    }
}

/// A directory that goes away with its owner, beside what was built: on a disk, where a system's temporary
/// directory may be memory.
pub(crate) fn scratch() -> Result<tempfile::TempDir> {
    let program = std::env::current_exe()?;
    Ok(tempfile::tempdir_in(program.parent().context("a program lies in a directory")?)?)
}
