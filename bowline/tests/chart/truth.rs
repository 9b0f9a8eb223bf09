//! What the chart says of the process is true: it understands the flags it is given, and the metrics that are named are there.

use bowline::agent::TargetConfig;
use bowline::args::{Cli, Command as Typed};
use bowline::config::Config;
use bowline_testkit::say;
use bowline_testkit::world::World;
use clap::Parser;
use serde_json::Value;
use std::collections::BTreeSet;
use std::process::Command;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::render::{CASES, Chart, chart_directory, list, pods, text};

const BOWLINE: &str = env!("CARGO_BIN_EXE_bowline");

/// What a container of ours types, with what the kubelet says of pod and node in its place. `node_ip` is the node's address.
fn typed(container: &Value, node_ip: &str) -> Vec<String> {
    let mut words: Vec<String> = vec!["bowline".to_owned()];
    words.extend(list(container, "/args").iter().filter_map(Value::as_str).map(str::to_owned));
    for variable in list(container, "/env") {
        let value = match text(variable, "/valueFrom/fieldRef/fieldPath") {
            "spec.nodeName" => "worker-1",
            "status.hostIP" => node_ip,
            "metadata.name" => "bowline-abc",
            "metadata.namespace" => "bowline",
            _ => text(variable, "/value"),
        };
        let name = text(variable, "/name");
        for word in &mut words {
            *word = word.replace(&format!("$({name})"), value);
        }
        // First, because a flag comes before the environment, and the last of two counts.
        if let Some(flag) = name.strip_prefix("BOWLINE_") {
            words.insert(2, format!("--{}={value}", flag.to_lowercase().replace('_', "-")));
        }
    }
    words
}

/// Everything that can stop a process before it has done anything.
fn understood(words: &[String]) -> Result<(), String> {
    let told = |error: &dyn std::fmt::Display| error.to_string();
    let cli = Cli::try_parse_from(words).map_err(|error| told(&error))?;
    match cli.command {
        Typed::Node(args) => {
            args.nvme.settings().map_err(|failure| failure.message)?;
            Config::load_node(&cli.data, args).map(drop).map_err(|error| told(&error))
        }
        // Its settings are a file of the pod.
        Typed::Target(args) if args.device.is_some() => Ok(()),
        Typed::Target(args) => TargetConfig::load(args).map(drop).map_err(|error| told(&error)),
        Typed::Controller(args) => args.orphans.check().map_err(|error| told(&error)),
        other => Err(format!("{other:?} is nothing for a pod")),
    }
}

#[test]
fn a_pod_whose_flags_the_process_refused_ended_again_and_again() {
    let Some(chart) = Chart::new("flags in the chart") else { return };
    let mut checked = BTreeSet::new();
    for (case, values) in CASES {
        for (component, pod) in pods(&chart.render(values)) {
            let containers = list(pod, "/spec/containers").iter();
            for container in containers.filter(|one| !text(one, "/name").starts_with("csi-")) {
                for node_ip in ["10.0.0.5", "fd00::5"] {
                    let words = typed(container, node_ip);
                    let unknown = words.iter().find(|word| word.contains("$("));
                    assert_eq!(unknown, None, "{case}: {component}: nothing in its environment says this");
                    understood(&words)
                        .unwrap_or_else(|error| panic!("{case}: {component}: {words:?}\n{error}"));
                    checked.insert((component.to_owned(), text(container, "/name").to_owned()));
                }
            }
        }
    }
    assert_eq!(checked.len(), 6, "{checked:?}");
}

#[test]
fn a_time_that_the_process_refuses_got_past_helm() {
    let Some(chart) = Chart::new("times in the chart") else { return };
    for (mode, grace, fine) in [
        ("delete", "7d", true),
        ("delete", "1s", true),
        ("delete", "0d1s", true),
        ("delete", "1d2h3m4s", true),
        ("delete", "9999d99999h9999999m999999999s", true),
        ("report", "0s", true),
        ("off", "0s", true),
        ("delete", "0s", false),
        ("delete", "0h0m", false),
        ("report", "1h2d", false),
        ("report", "1d1d", false),
        ("report", "99999999999d", false),
        ("report", "1.5h", false),
        ("report", "30", false),
        ("off", "", false),
    ] {
        let output = chart.helm("template", &[], &format!("orphans: {{ mode: '{mode}', grace: '{grace}' }}"));
        let told = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.success(), fine, "{mode} {grace}: {told}");
        assert!(fine || told.contains("/orphans/grace"), "{told}");
        let typed =
            ["controller", "--pod-name=p", &format!("--orphans={mode}"), &format!("--orphan-grace={grace}")];
        let words: Vec<_> = ["bowline"].into_iter().chain(typed).map(str::to_owned).collect();
        let parsed = understood(&words);
        assert_eq!(parsed.is_ok(), fine, "{mode} {grace}: {parsed:?}");
    }
    for (after, fine) in [
        ("5m", true),
        ("1h30m", true),
        ("2d", true),
        ("''", true),
        ("0m", false),
        ("99999999999h", false),
        ("5", false),
    ] {
        let output = chart.helm("template", &[], &format!("controller: {{ fenceNotReadyAfter: {after} }}"));
        assert_eq!(output.status.success(), fine, "{after}: {}", String::from_utf8_lossy(&output.stderr));
        let words = ["bowline", "controller", "--pod-name=p", &format!("--fence-not-ready-after={after}")];
        let words: Vec<_> = words.map(str::to_owned).into();
        assert!(!fine || after == "''" || understood(&words).is_ok(), "{after}");
    }
}

#[test]
fn a_controller_told_to_delete_at_first_sight_did() {
    let output = Command::new(BOWLINE)
        .env_clear()
        .args(["controller", "--pod-name=p", "--orphans=delete", "--orphan-grace=0s"])
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{told}");
    assert!(told.contains("bowline: --orphan-grace cannot be used: 0s would delete volumes"), "{told}");
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
    let crates = std::fs::read_dir(chart_directory().join("../../crates")).unwrap();
    let of_crates = crates.map(|entry| entry.unwrap().path().join("src/metrics.rs"));
    for file in of_crates.chain([chart_directory().join("../../bowline/src/expiry.rs")]) {
        let Ok(source) = std::fs::read_to_string(file) else { continue };
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
    let certificates = world.path("certificates");
    assert!(
        Command::new(BOWLINE).args(["target", "init"]).arg(&certificates).output().unwrap().status.success()
    );
    let _daemon = world.up(&["--tls", certificates.join("controller").to_str().unwrap()]);
    let mut exposed = metrics(&world).await;
    let ends = |exposed: &str| {
        let end =
            exposed.lines().find_map(|line| line.strip_prefix("bowline_certificate_end_timestamp_seconds "));
        end.unwrap().parse::<u64>().unwrap() > 1_700_000_000
    };
    let until = Instant::now() + Duration::from_secs(20);
    while !ends(&exposed) {
        assert!(Instant::now() < until, "somebody would be woken for a certificate that is good for a year");
        exposed = metrics(&world).await;
    }
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
