//! What the chart says of the process is true: the flags it gives and the metrics it names are there.

use bowline_testkit::say;
use bowline_testkit::world::World;
use std::collections::BTreeSet;
use std::process::Command;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::render::{CASES, Chart, chart_directory, list, pods, text};

const BOWLINE: &str = env!("CARGO_BIN_EXE_bowline");

/// Flags that the chart gives and the process does not have yet.
const COMING: &[(&str, &str)] = &[];

fn help(command: &str) -> Option<String> {
    let output = Command::new(BOWLINE).args([command, "--help"]).output().unwrap();
    output.status.success().then(|| String::from_utf8(output.stdout).unwrap())
}

#[test]
fn every_flag_that_is_given_to_a_process_is_one_it_knows() {
    let Some(chart) = Chart::new("flags in the chart") else { return };
    let mut missing = BTreeSet::new();
    let mut checked = BTreeSet::new();
    for (case, values) in CASES {
        let documents = chart.render(values);
        for (component, pod) in pods(&documents) {
            for container in list(pod, "/spec/containers") {
                let mut args = list(container, "/args").iter().filter_map(|arg| arg.as_str());
                if text(container, "/name").starts_with("csi-") {
                    continue;
                }
                let command = args.next().unwrap();
                let Some(help) = help(command) else {
                    missing.insert(command.to_owned());
                    continue;
                };
                for arg in args {
                    let flag = arg.split('=').next().unwrap();
                    // Each flag has a line of its own in the help.
                    let known = help.lines().any(|line| {
                        let mut words = line.trim_start().split([' ', '=', ',']);
                        words.any(|word| word == flag) && line.trim_start().starts_with('-')
                    });
                    if !known && COMING.contains(&(command, flag)) {
                        missing.insert(format!("{command} {flag}"));
                        continue;
                    }
                    assert!(known, "{case}: {component}: `bowline {command}` has no {flag}");
                    checked.insert((command.to_owned(), flag.to_owned()));
                }
            }
        }
    }
    for command in missing {
        say(&format!(
            "not looked at: flags of `bowline {command}` in the chart (there is no such thing yet)"
        ));
    }
    assert!(checked.len() > 3, "{checked:?}");
}

#[test]
fn every_flag_that_is_given_to_a_sidecar_is_one_it_knows() {
    let Some(chart) = Chart::new("flags of sidecars") else { return };
    let mut checked = BTreeSet::new();
    for (case, values) in CASES {
        let documents = chart.render(values);
        let containers = pods(&documents).into_iter().flat_map(|(_, pod)| list(pod, "/spec/containers"));
        for container in containers {
            let name = text(container, "/name");
            // The upstream attacher cannot be built here; the lab has the others, in the versions of the chart.
            let Some(tool) = name.strip_prefix("csi-").filter(|name| *name != "attacher") else { continue };
            let program = bowline_testkit::lab::tools(tool).join(name);
            let args = list(container, "/args").iter().filter_map(|arg| arg.as_str());
            // Flags are read before anything is done, and with this one nothing is.
            let output = Command::new(program).args(args).arg("--version").output().unwrap();
            let told = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{case}: {name}: {told}");
            checked.insert(name.to_owned());
        }
    }
    assert_eq!(checked.len(), 3, "{checked:?}");
    say("not looked at: flags of csi-attacher in the chart (its source is in no registry that the lab uses)");
}

/// Every name that looks like one of ours.
fn named(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("bowline_")).collect()
}

/// What the sources register. What has labels is not shown before it has happened once, so the process alone does not tell.
fn registered() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for entry in std::fs::read_dir(chart_directory().join("../../crates")).unwrap() {
        let Ok(source) = std::fs::read_to_string(entry.unwrap().path().join("src/metrics.rs")) else {
            continue;
        };
        let quoted = |rest: &str| {
            rest.trim_start().strip_prefix('"').map(|rest| rest.split('"').next().unwrap().to_owned())
        };
        let prefix = source.split("sub_registry_with_prefix(").nth(1).and_then(quoted).unwrap();
        names.extend(
            source.split(".register(").skip(1).filter_map(quoted).map(|name| format!("{prefix}_{name}")),
        );
    }
    names
}

async fn metrics(world: &World) -> String {
    let mut stream = tokio::net::UnixStream::connect(world.path("data").join("api.sock")).await.unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

#[tokio::test]
async fn alerts_and_dashboard_use_only_metrics_that_the_process_has() {
    let world = World::new(BOWLINE);
    let _daemon = world.up(&[]);
    let exposed = metrics(&world).await;
    let told = registered();
    let shown = exposed.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next());
    let shown: Vec<&str> = shown.collect();
    assert!(shown.len() > 5 && shown.iter().all(|name| told.contains(*name)), "{shown:?}, but {told:?}");
    let mut used = 0;
    for file in ["rules.yaml", "dashboard.json"] {
        let text = std::fs::read_to_string(chart_directory().join("files").join(file)).unwrap();
        for name in named(&text) {
            let known = ["", "_total", "_bucket", "_count", "_sum"]
                .iter()
                .any(|ending| name.strip_suffix(ending).is_some_and(|name| told.contains(name)));
            assert!(known, "{file}: {name} is no metric; there are {told:?}");
            used += 1;
        }
    }
    assert!(used > 12, "only {used} names were found");
    // Reasons are values of a label; a verdict that was renamed would silence its alert.
    let rules = std::fs::read_to_string(chart_directory().join("files/rules.yaml")).unwrap();
    let verdicts = std::fs::read_to_string(chart_directory().join("../../docs/why.md")).unwrap();
    let labels = ["reason=\"", "reason=~\""].into_iter();
    let values =
        labels.flat_map(|label| rules.split(label).skip(1)).filter_map(|rest| rest.split('"').next());
    let reasons: Vec<_> = values.flat_map(|value| value.split('|')).collect();
    assert!(reasons.len() > 2, "{reasons:?}");
    for reason in reasons {
        assert!(verdicts.contains(reason), "{reason} is no verdict");
    }
    // A counter with labels begins at one, so the first time that something happens is no increase of it; and it does not rise while that lasts.
    for counter in rules.split("increase(").skip(1).filter_map(|rest| rest.split(['[', '{']).next()) {
        let begins = exposed.lines().any(|line| line == format!("{counter} 0"));
        assert!(begins, "an alert on the increase of {counter}, which is not there before it rises");
    }
}
