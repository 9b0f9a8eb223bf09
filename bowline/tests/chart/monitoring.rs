//! What is for the Prometheus operator and for Grafana is put together well: kubeconform does not know these kinds.

use serde_json::Value;
use std::collections::BTreeSet;

use crate::render::{CASES, Chart, chart_directory, list, text};

const ALL: [&str; 6] = [
    "--set",
    "metrics.serviceMonitor.enabled=true",
    "--set",
    "metrics.rules.enabled=true",
    "--set",
    "metrics.dashboard.enabled=true",
];

/// Ports at which nothing is told: the API, and what agents are asked at.
const OTHERS: [&str; 2] = ["api", "agent"];

fn of_kind<'a>(documents: &'a [Value], kind: &str) -> Vec<&'a Value> {
    documents.iter().filter(|document| document["kind"] == kind).collect()
}

/// The names of the ports of a Service.
fn ports(service: &Value) -> BTreeSet<&str> {
    list(service, "/spec/ports").iter().map(|port| text(port, "/name")).collect()
}

#[test]
fn the_monitor_selects_services_and_names_their_ports() {
    let Some(chart) = Chart::new("the ServiceMonitor") else { return };
    let mut used = BTreeSet::new();
    let mut named = BTreeSet::new();
    for (case, values) in CASES {
        let documents = chart.render_with(values, &ALL);
        let [monitor] = of_kind(&documents, "ServiceMonitor")[..] else { panic!("{case}: one monitor") };
        assert!(monitor["spec"]["namespaceSelector"].is_null(), "{case}: it looks in its own namespace");
        let wanted = monitor["spec"]["selector"]["matchLabels"].as_object().expect("a selector");
        let is_selected = |service: &&Value| {
            service["metadata"]["namespace"] == monitor["metadata"]["namespace"]
                && wanted.iter().all(|(key, value)| service["metadata"]["labels"].get(key) == Some(value))
        };
        let endpoints: BTreeSet<&str> =
            list(monitor, "/spec/endpoints").iter().map(|endpoint| text(endpoint, "/port")).collect();
        let services = of_kind(&documents, "Service");
        let selected: Vec<&Value> = services.iter().copied().filter(is_selected).collect();
        assert_eq!(selected.len(), services.len(), "{case}: a Service is not looked at");
        for service in selected {
            for port in ports(service).into_iter().filter(|port| !OTHERS.contains(port)) {
                let name = text(service, "/metadata/name");
                assert!(endpoints.contains(port), "{case}: port {port} of {name} is not asked");
                used.insert(port.to_owned());
            }
        }
        named.extend(endpoints.into_iter().map(str::to_owned));
    }
    assert_eq!(named, used, "a port that no Service has, whatever the values");
}

#[test]
fn alerts_on_what_is_up_name_services_and_ports_that_there_are() {
    let Some(chart) = Chart::new("alerts on what is up") else { return };
    let documents = chart.render_with("", &ALL);
    let services = of_kind(&documents, "Service");
    let rules = rules();
    // The operator names the job after the Service, and the endpoint after its port.
    let value = |expression: &str, label: &str| {
        let rest = expression.split_once(label)?.1.trim_start_matches(['=', '~', '"']);
        Some(rest.split('"').next()?.trim_end_matches(".*").to_owned())
    };
    let mut checked = 0;
    for rule in list(&rules, "/groups/0/rules") {
        let expression = text(rule, "/expr");
        let Some(port) = value(expression, "endpoint") else { continue };
        let job = value(expression, "job").expect("a job");
        let there = services.iter().any(|service| {
            text(service, "/metadata/name").starts_with(&job) && ports(service).contains(port.as_str())
        });
        assert!(there, "{expression}: no Service {job} has a port {port}");
        checked += 1;
    }
    assert!(checked > 1, "only {checked} alerts are on what is up");
}

/// The file of rules as it is in the chart.
fn rules() -> Value {
    let text = std::fs::read_to_string(chart_directory().join("files/rules.yaml")).unwrap();
    serde_yaml_ng::from_str(&text).unwrap()
}

#[test]
fn rules_and_dashboard_come_whole_into_their_objects() {
    let Some(chart) = Chart::new("rules and dashboard") else { return };
    let documents = chart.render_with("", &ALL);
    let [rule] = of_kind(&documents, "PrometheusRule")[..] else { panic!("one PrometheusRule") };
    assert_eq!(rule["spec"], rules());
    for rule in list(&rules(), "/groups/0/rules") {
        let name = text(rule, "/alert");
        assert!(!name.is_empty() && !text(rule, "/expr").is_empty(), "{rule}");
        assert!(!text(rule, "/annotations/summary").is_empty(), "{name} does not say what is wrong");
    }
    let is_dashboard = |map: &&&Value| text(map, "/metadata/name") == "bowline-dashboard";
    let maps = of_kind(&documents, "ConfigMap");
    let map = maps.iter().find(is_dashboard).unwrap();
    let shown: Value = serde_json::from_str(map["data"]["bowline.json"].as_str().unwrap()).unwrap();
    let file = std::fs::read_to_string(chart_directory().join("files/dashboard.json")).unwrap();
    assert_eq!(shown, serde_json::from_str::<Value>(&file).unwrap());
    let without = chart.render("");
    for kind in ["ServiceMonitor", "PrometheusRule"] {
        assert!(of_kind(&without, kind).is_empty(), "{kind} is there although nobody asked for it");
    }
}
