//! The parts fit together: every name that one object says is there in another.

use bowline_api::keys::NODE_ID;
use serde_json::Value;
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use crate::render::{CASES, Chart, list, pods, text};

fn is_subset(selector: &Value, labels: &Value) -> bool {
    let selector = selector.as_object().expect("a selector");
    !selector.is_empty() && selector.iter().all(|(key, value)| labels.get(key) == Some(value))
}

#[test]
fn every_object_has_one_name_and_a_namespace_where_there_are_namespaces() {
    let Some(chart) = Chart::new("names") else { return };
    for (case, values) in CASES {
        let mut seen = BTreeSet::new();
        for document in chart.render(values) {
            let (kind, name) =
                (text(&document, "/kind").to_owned(), text(&document, "/metadata/name").to_owned());
            let namespace = text(&document, "/metadata/namespace");
            let is_global = matches!(
                kind.as_str(),
                "CSIDriver"
                    | "StorageClass"
                    | "VolumeSnapshotClass"
                    | "ClusterRole"
                    | "ClusterRoleBinding"
                    | "CustomResourceDefinition"
                    | "ValidatingAdmissionPolicy"
                    | "ValidatingAdmissionPolicyBinding"
                    | "MutatingAdmissionPolicy"
                    | "MutatingAdmissionPolicyBinding"
            );
            let expected = match name.as_str() {
                _ if is_global => "",
                // Where events of what is not in a namespace are.
                "bowline-node-events" => "default",
                _ => "bowline",
            };
            assert_eq!(namespace, expected, "{case}: {kind} {name}");
            if kind != "CustomResourceDefinition" {
                assert_eq!(
                    text(&document, "/metadata/labels/app.kubernetes.io~1name"),
                    "bowline",
                    "{kind} {name}"
                );
            }
            assert!(
                !name.is_empty() && seen.insert((kind.clone(), name.clone())),
                "{case}: {kind} {name} twice"
            );
        }
    }
}

#[test]
fn selectors_find_pods_and_ports_accounts_roles_and_volumes_are_there() {
    let Some(chart) = Chart::new("wiring") else { return };
    for (case, values) in CASES {
        let documents = chart.render(values);
        let pods = pods(&documents);
        let names = |kind: &str| -> BTreeSet<&str> {
            let found = documents.iter().filter(|document| document["kind"] == kind);
            found.map(|document| text(document, "/metadata/name")).collect()
        };
        for document in &documents {
            let name = text(document, "/metadata/name");
            let selector = match text(document, "/kind") {
                "Service" => document.pointer("/spec/selector"),
                "Deployment" | "DaemonSet" | "PodDisruptionBudget" => {
                    document.pointer("/spec/selector/matchLabels")
                }
                "NetworkPolicy" => document.pointer("/spec/podSelector/matchLabels"),
                kind @ ("RoleBinding" | "ClusterRoleBinding") => {
                    let role = kind.trim_end_matches("Binding");
                    assert!(names(role).contains(text(document, "/roleRef/name")), "{case}: {name}");
                    let account = text(document, "/subjects/0/name");
                    assert!(names("ServiceAccount").contains(account), "{case}: {name}: {account}");
                    None
                }
                _ => None,
            };
            let Some(selector) = selector else { continue };
            let found: Vec<_> =
                pods.iter().filter(|(_, pod)| is_subset(selector, &pod["metadata"]["labels"])).collect();
            assert_eq!(found.len(), 1, "{case}: {name} selects {} kinds of pods", found.len());
            for port in list(document, "/spec/ports") {
                let containers = list(found[0].1, "/spec/containers").iter();
                let mut ports = containers.flat_map(|container| list(container, "/ports"));
                let there = ports.any(|there| {
                    there["name"] == port["targetPort"] && there["containerPort"] == port["port"]
                });
                assert!(there, "{case}: service {name}: {port}");
            }
        }
        for (component, pod) in &pods {
            let account = text(pod, "/spec/serviceAccountName");
            assert!(names("ServiceAccount").contains(account), "{case}: {component}: {account}");
            let volumes: BTreeSet<_> =
                list(pod, "/spec/volumes").iter().map(|volume| text(volume, "/name")).collect();
            let mut used = BTreeSet::new();
            for container in list(pod, "/spec/containers") {
                for mount in list(container, "/volumeMounts") {
                    assert!(volumes.contains(text(mount, "/name")), "{case}: {component}: {mount}");
                    used.insert(text(mount, "/name"));
                }
            }
            let unused: Vec<_> = volumes.difference(&used).filter(|name| **name != "tls").collect();
            assert!(unused.is_empty(), "{case}: {component}: {unused:?} is mounted nowhere");
        }
    }
}

#[test]
fn whoever_asks_why_was_not_let_through_while_a_sidecar_of_the_leader_crashed() {
    let Some(chart) = Chart::new("the way of people") else { return };
    for (case, values) in CASES {
        let documents = chart.render(values);
        let is_api = |one: &&Value| one["kind"] == "Service" && text(one, "/metadata/name") == "bowline-api";
        let service = documents.iter().find(is_api).unwrap();
        assert_eq!(service["spec"]["publishNotReadyAddresses"], true, "{case}");
    }
}

#[test]
fn a_node_could_not_be_drained_of_a_controller_that_was_not_ready() {
    let Some(chart) = Chart::new("the disruption budget") else { return };
    for (case, values) in CASES {
        for budget in chart.render(values).iter().filter(|one| one["kind"] == "PodDisruptionBudget") {
            assert_eq!(budget["spec"]["unhealthyPodEvictionPolicy"], "AlwaysAllow", "{case}");
        }
    }
    let default = chart.render("");
    assert!(default.iter().any(|one| one["kind"] == "PodDisruptionBudget"));
}

#[test]
fn mounts_made_on_a_node_reach_the_kubelet_and_an_agent_sees_them() {
    let Some(chart) = Chart::new("mount propagation") else { return };
    for (case, values) in CASES {
        let documents = chart.render(values);
        for (component, pod) in pods(&documents) {
            for container in list(pod, "/spec/containers") {
                let kubelet =
                    list(container, "/volumeMounts").iter().find(|mount| mount["name"] == "kubelet");
                let expected = match text(container, "/name") {
                    "node" => "Bidirectional",
                    "target" if component != "rds-target" => "HostToContainer",
                    _ => {
                        assert!(kubelet.is_none(), "{case}: {component}");
                        continue;
                    }
                };
                let kubelet = kubelet.unwrap_or_else(|| panic!("{case}: {component}"));
                assert_eq!(kubelet["mountPropagation"], expected, "{case}");
                let directory = text(kubelet, "/mountPath");
                let volumes = list(pod, "/spec/volumes").iter();
                let mut hosts = volumes.map(|volume| text(volume, "/hostPath/path"));
                assert!(
                    hosts.any(|path| path == directory),
                    "{case}: the kubelet sees other paths than the node"
                );
            }
        }
    }
}

#[test]
fn snapshots_come_with_the_api_that_they_need() {
    let Some(chart) = Chart::new("snapshots by API") else { return };
    let has = |documents: &[Value]| {
        let sidecar = pods(documents).iter().any(|(_, pod)| {
            list(pod, "/spec/containers").iter().any(|container| container["name"] == "csi-snapshotter")
        });
        let class = documents.iter().any(|document| document["kind"] == "VolumeSnapshotClass");
        assert_eq!(sidecar, class);
        sidecar
    };
    assert!(!has(&chart.render("")));
    assert!(has(&chart.render("snapshots: { enabled: true }")));
    let output = chart.helm("template", &["--api-versions", "snapshot.storage.k8s.io/v1"], "");
    assert!(String::from_utf8_lossy(&output.stdout).contains("name: csi-snapshotter"));
    let values = "snapshots: { enabled: false }";
    let output = chart.helm("template", &["--api-versions", "snapshot.storage.k8s.io/v1"], values);
    assert!(!String::from_utf8_lossy(&output.stdout).contains("name: csi-snapshotter"));
}

#[test]
fn the_api_server_marks_with_the_name_that_the_driver_gives_its_node() {
    let Some(chart) = Chart::new("the driver's name for a node") else { return };
    let is_policy = |document: &&Value| document["kind"] == "MutatingAdmissionPolicy";
    assert!(!chart.render("").iter().any(|document| is_policy(&document)), "only where it is asked for");
    let documents = chart.render("markAtCreation: true");
    let policy = documents.iter().find(is_policy).unwrap();
    let expression = text(policy, "/spec/mutations/0/applyConfiguration/expression");
    assert!(expression.contains(&format!("'{NODE_ID}': object.spec.nodeName")), "{expression}");
    let pods = pods(&documents);
    let (_, pod) = pods.iter().find(|(component, _)| *component == "node").unwrap();
    let mut containers = list(pod, "/spec/containers").iter();
    let node = containers.find(|container| container["name"] == "node").unwrap();
    let mut variables = list(node, "/env").iter();
    let name = variables.find(|variable| variable["name"] == "BOWLINE_NODE").unwrap();
    assert_eq!(text(name, "/valueFrom/fieldRef/fieldPath"), "spec.nodeName");
    // A flag comes before the environment.
    let mut args = list(node, "/args").iter().filter_map(Value::as_str);
    assert!(!args.any(|arg| arg == "--node" || arg.starts_with("--node=")));
}

#[test]
fn pods_in_the_network_of_the_host_share_no_port_and_no_policy_pretends_to_guard_them() {
    let Some(chart) = Chart::new("ports on the host") else { return };
    let mut seen = 0;
    for (case, values) in CASES {
        let documents = chart.render(values);
        let pods = pods(&documents);
        let on_host: Vec<_> = pods.iter().filter(|(_, pod)| pod["spec"]["hostNetwork"] == true).collect();
        let containers = on_host.iter().flat_map(|(_, pod)| list(pod, "/spec/containers"));
        let mut taken = BTreeSet::new();
        for container in containers {
            for port in list(container, "/ports") {
                assert!(taken.insert(port["containerPort"].as_u64()), "{case}: {port} is taken");
                seen += 1;
            }
            // The address that probes ask is one that the process answers at.
            let http = list(container, "/args").iter().filter_map(Value::as_str);
            let http = http.filter_map(|arg| arg.strip_prefix("--http=")?.rsplit_once(':')).next().unwrap();
            let asked = text(container, "/readinessProbe/httpGet/host");
            // The kubelet puts the brackets around it itself.
            let http = http.0.trim_start_matches('[').trim_end_matches(']');
            let everywhere = matches!(http, "0.0.0.0" | "::");
            assert!(everywhere && asked.is_empty() || http == asked, "{case}: {http:?} {asked:?}");
        }
        let policies = documents.iter().filter(|document| document["kind"] == "NetworkPolicy");
        for selector in policies.filter_map(|policy| policy.pointer("/spec/podSelector/matchLabels")) {
            let guarded = on_host.iter().any(|(_, pod)| is_subset(selector, &pod["metadata"]["labels"]));
            assert!(!guarded, "{case}: {selector}");
        }
    }
    assert!(seen > 4, "{seen} ports only");
}

/// What a process of ours is told to listen at, each with its flag.
fn listeners(pod: &Value) -> Vec<(&str, SocketAddr)> {
    let ours = list(pod, "/spec/containers").iter().filter(|one| !text(one, "/name").starts_with("csi-"));
    let args = ours.flat_map(|one| list(one, "/args")).filter_map(Value::as_str);
    let told = args.filter_map(|arg| arg.split_once('='));
    let told = told.filter(|(flag, _)| matches!(*flag, "--http" | "--api" | "--listen"));
    told.map(|(flag, at)| (flag, at.parse().unwrap_or_else(|error| panic!("{flag}={at}: {error}")))).collect()
}

#[test]
fn nothing_became_ready_where_pods_have_addresses_of_ipv6_only() {
    let Some(chart) = Chart::new("IPv6") else { return };
    let mut seen = BTreeSet::new();
    for (case, values) in CASES {
        let wanted: IpAddr =
            if values.contains("listenAddress: '::'") { [0; 16].into() } else { [0; 4].into() };
        for (component, pod) in pods(&chart.render(values)) {
            for (flag, at) in listeners(pod) {
                let is_only_told = flag == "--http" && pod["spec"]["hostNetwork"] == true;
                assert!(
                    at.ip() == wanted || is_only_told && at.ip().is_loopback(),
                    "{case}: {component}: {flag}={at}"
                );
                seen.insert((component.to_owned(), flag.to_owned(), at.is_ipv6()));
            }
        }
    }
    // controller: two; node: both of the agent; the three other agents: two each.
    assert_eq!(seen.len(), 2 * (2 + 2 + 3 * 2), "{seen:?}");
    for (host, at) in [
        ("::1", "[::1]:8461"),
        ("fd00:1::a:5", "[fd00:1::a:5]:8461"),
        ("1:2:3:4:5:6:7:8", "[1:2:3:4:5:6:7:8]:8461"),
        ("fe80::", "[fe80::]:8461"),
        ("10.0.0.255", "10.0.0.255:8461"),
        ("", "0.0.0.0:8461"),
    ] {
        let values = format!("node: {{ nvme: {{ enabled: true }} }}\nmetrics: {{ hostAddress: '{host}' }}");
        let documents = chart.render(&values);
        let pods = pods(&documents);
        let (_, pod) = pods.iter().find(|(component, _)| *component == "node").unwrap();
        let http = listeners(pod).into_iter().find(|(flag, _)| *flag == "--http").unwrap().1;
        assert_eq!(http, at.parse().unwrap(), "{host}");
        assert_eq!(text(&list(pod, "/spec/containers")[0], "/livenessProbe/httpGet/host"), host);
    }
}

#[test]
fn the_agent_for_nvme_sees_the_kernel_and_its_directory_and_is_told_where_it_is() {
    let Some(chart) = Chart::new("the agent for NVMe/TCP") else { return };
    let values = CASES.iter().find(|(case, _)| *case == "storage over NVMe/TCP").unwrap().1;
    let documents = chart.render(values);
    let pods = pods(&documents);
    let (_, pod) = pods.iter().find(|(component, _)| *component == "nvme-target").unwrap();
    let container = &list(pod, "/spec/containers")[0];
    let args: Vec<_> = list(container, "/args").iter().filter_map(Value::as_str).collect();
    for arg in ["--id=nvmet-$(NODE)", "--nvme-listen=$(NODE_IP)", "--nvme-port=4430", "--reserve=1Gi"] {
        assert!(args.contains(&arg), "{arg} is not in {args:?}");
    }
    let host = |name: &str| {
        let mut volumes = list(pod, "/spec/volumes").iter();
        volumes.find(|volume| volume["name"] == name).map(|volume| &volume["hostPath"]).unwrap()
    };
    for (path, name) in [("/srv/nvme", "volumes"), ("/sys/kernel", "kernel"), ("/lib/modules", "modules")] {
        let mounted = list(container, "/volumeMounts").iter().find(|mount| mount["name"] == name).unwrap();
        assert_eq!((text(mounted, "/mountPath"), text(host(name), "/path")), (path, path));
        assert_eq!(text(host(name), "/type"), "Directory", "what is not there is not made");
    }
    let selector = &pod["spec"]["nodeSelector"]["bowline.storage/nvme-target"];
    assert_eq!(selector, "true", "only on nodes that somebody chose");
    assert!(!chart.render("").iter().any(|document| text(document, "/metadata/name").contains("nvme")));
}

#[test]
fn the_agent_for_nvme_listens_at_its_node_or_in_the_networks_that_are_named_and_never_at_both() {
    let Some(chart) = Chart::new("networks for NVMe/TCP") else { return };
    for (networks, expected) in [
        ("[]", &["--nvme-listen=$(NODE_IP)"][..]),
        ("[10.1.0.0/24]", &["--nvme-listen=10.1.0.0/24"]),
        ("[10.1.0.0/24, 'fd00:1::/64']", &["--nvme-listen=10.1.0.0/24", "--nvme-listen=fd00:1::/64"]),
    ] {
        let documents = chart.render(&format!("nvmeTarget: {{ enabled: true, networks: {networks} }}"));
        let pods = pods(&documents);
        let (_, pod) = pods.iter().find(|(component, _)| *component == "nvme-target").unwrap();
        let args = list(&list(pod, "/spec/containers")[0], "/args").iter().filter_map(Value::as_str);
        let listens: Vec<_> = args.filter(|arg| arg.starts_with("--nvme-listen")).collect();
        assert_eq!(listens, expected, "{networks}");
    }
}
