//! Nothing has more rights than it needs.

use serde_json::{Value, json};

use crate::render::{CASES, Chart, list, pods, text};

fn words<'a>(rule: &'a Value, key: &str) -> Vec<&'a str> {
    list(rule, &format!("/{key}")).iter().filter_map(Value::as_str).collect()
}

fn rules(documents: &[Value]) -> Vec<(&str, &str, &Value)> {
    let roles = documents.iter().filter(|document| matches!(text(document, "/kind"), "Role" | "ClusterRole"));
    roles
        .flat_map(|role| {
            let (kind, name) = (text(role, "/kind"), text(role, "/metadata/name"));
            list(role, "/rules").iter().map(move |rule| (kind, name, rule))
        })
        .collect()
}

#[test]
fn no_rule_has_a_wildcard_or_a_right_that_gives_more_rights() {
    let Some(chart) = Chart::new("RBAC") else { return };
    for (case, values) in CASES {
        let documents = chart.render(values);
        let rules = rules(&documents);
        assert!(rules.len() > 15, "{case}: {} rules only", rules.len());
        for (kind, name, rule) in rules {
            for key in ["apiGroups", "resources", "verbs"] {
                let words = words(rule, key);
                assert!(!words.is_empty(), "{case}: {name}: a rule without {key}");
                assert!(words.iter().all(|word| !word.contains('*')), "{case}: {name}: {rule}");
            }
            for verb in ["escalate", "bind", "impersonate", "deletecollection"] {
                assert!(!words(rule, "verbs").contains(&verb), "{case}: {name} may {verb}");
            }
            for resource in words(rule, "resources") {
                let forbidden = matches!(
                    resource,
                    "pods/exec" | "pods/attach" | "nodes/proxy" | "clusterroles" | "roles"
                );
                if resource == "serviceaccounts/token" {
                    // Of an account that has no right in the cluster, for people and not for processes.
                    let account = match name {
                        "bowline-viewer" => "bowline-view",
                        "bowline-operator" => "bowline-edit",
                        other => panic!("{case}: {other} has {resource}"),
                    };
                    assert_eq!(words(rule, "resourceNames"), [account], "{case}: {name}");
                    assert_eq!(words(rule, "verbs"), ["create"], "{case}: {name}");
                    let is_bound = |document: &Value| {
                        let subjects = list(document, "/subjects").iter();
                        text(document, "/roleRef/name") == name
                            || subjects.clone().any(|subject| text(subject, "/name") == account)
                    };
                    assert!(
                        !documents.iter().any(is_bound),
                        "{case}: {name} or {account} is bound to somebody"
                    );
                }
                if matches!(resource, "services/proxy" | "pods/proxy") {
                    assert_eq!(words(rule, "resourceNames"), ["https:bowline-api:api"], "{case}: {name}");
                }
                assert!(!forbidden, "{case}: {name} has {resource}");
                if resource == "secrets" {
                    let only_its_own =
                        words(rule, "resourceNames") == ["bowline-agent-tls", "bowline-controller-tls"];
                    let is_creating = words(rule, "verbs") == ["create"];
                    assert_eq!((kind, name), ("Role", "bowline-controller"), "{case}: secrets");
                    assert!(only_its_own || is_creating, "{case}: {rule}");
                }
            }
        }
    }
}

#[test]
fn a_node_may_write_events_of_volumes_and_take_its_taint_off_if_asked_to_and_else_has_no_token() {
    let Some(chart) = Chart::new("rights of the node") else { return };
    for (case, values) in CASES {
        let documents = chart.render(values);
        let (tainted, tells) = (values.contains("startupTaint"), !values.contains("events: false"));
        let bound: Vec<_> = documents
            .iter()
            .filter(|document| text(document, "/kind").ends_with("RoleBinding"))
            .filter(|document| text(document, "/subjects/0/name") != "bowline-controller")
            .map(|document| text(document, "/roleRef/name"))
            .collect();
        let expected = [("bowline-node", tainted), ("bowline-node-events", tells)];
        let expected: Vec<_> = expected.into_iter().filter(|(_, is)| *is).map(|(name, _)| name).collect();
        assert_eq!(bound, expected, "{case}");
        for (component, template) in pods(&documents) {
            let token = &template["spec"]["automountServiceAccountToken"];
            let needed = component == "controller" || (component == "node" && (tainted || tells));
            assert_eq!(token, &json!(needed), "{case}: {component}");
        }
        let own: Vec<_> = rules(&documents)
            .into_iter()
            .filter(|(_, name, _)| *name == "bowline-node-events")
            .map(|(kind, _, rule)| (kind, words(rule, "resources"), words(rule, "verbs")))
            .collect();
        let events = ("Role", vec!["events"], vec!["create", "patch"]);
        assert_eq!(own, if tells { vec![events] } else { vec![] }, "{case}");
        let own: Vec<_> =
            rules(&documents).into_iter().filter(|(_, name, _)| *name == "bowline-node").collect();
        for (_, _, rule) in own {
            assert_eq!(
                (words(rule, "resources"), words(rule, "verbs")),
                (vec!["nodes"], vec!["get", "patch"])
            );
            let policy = |kind| documents.iter().any(|document| document["kind"] == kind);
            assert!(
                policy("ValidatingAdmissionPolicy") && policy("ValidatingAdmissionPolicyBinding"),
                "{case}"
            );
        }
    }
}

/// What the profile "restricted" of the Pod Security Standards asks for.
fn breaks_restricted(template: &Value) -> Vec<String> {
    let spec = &template["spec"];
    let mut broken = vec![];
    for host in ["hostNetwork", "hostPID", "hostIPC"] {
        if spec[host] == true {
            broken.push(host.to_owned());
        }
    }
    for volume in list(spec, "/volumes") {
        let allowed =
            ["emptyDir", "secret", "configMap", "projected", "downwardAPI", "persistentVolumeClaim"];
        if !allowed.iter().any(|kind| volume.get(kind).is_some()) {
            broken.push(format!("volume {}", volume["name"]));
        }
    }
    let pod = &spec["securityContext"];
    if pod["runAsNonRoot"] != true || pod["runAsUser"] == 0 {
        broken.push("runAsNonRoot".to_owned());
    }
    if pod["seccompProfile"]["type"] != "RuntimeDefault" {
        broken.push("seccompProfile".to_owned());
    }
    for container in list(spec, "/containers").iter().chain(list(spec, "/initContainers")) {
        let context = &container["securityContext"];
        let is_restricted = context["allowPrivilegeEscalation"] == false
            && context["capabilities"] == json!({ "drop": ["ALL"] })
            && context["privileged"] != true
            && context["readOnlyRootFilesystem"] == true
            && context.get("runAsUser").is_none();
        let ports = list(container, "/ports").iter().all(|port| port.get("hostPort").is_none());
        if !is_restricted || !ports {
            broken.push(format!("container {}", container["name"]));
        }
    }
    broken
}

#[test]
fn only_pods_that_touch_the_machine_are_privileged() {
    let Some(chart) = Chart::new("pod security") else { return };
    for (case, values) in CASES {
        let documents = chart.render(values);
        let pods = pods(&documents);
        assert!(pods.len() >= 2, "{case}");
        for (component, template) in pods {
            let broken = breaks_restricted(template);
            match component {
                "controller" | "rds-target" => assert_eq!(broken, [""; 0], "{case}"),
                "node" | "target" | "nvme-target" => {
                    assert!(!broken.is_empty(), "{case}: the check of {component} sees nothing");
                    for context in list(template, "/spec/containers") {
                        assert_eq!(context["securityContext"]["readOnlyRootFilesystem"], true, "{case}");
                    }
                    // Connections and exports over NVMe/TCP are the kernel's and outlive the pod, so they belong into no network of a pod.
                    let nvme = ["nvmeTarget: { enabled: true", "nvme: { enabled: true", "rdsTargets: [{"];
                    let wanted = component != "target" && nvme.iter().any(|nvme| values.contains(nvme));
                    let spec = &template["spec"];
                    assert_eq!(spec["hostNetwork"] == true, wanted, "{case}: {component}");
                    let dns = if wanted { json!("ClusterFirstWithHostNet") } else { Value::Null };
                    assert_eq!(spec["dnsPolicy"], dns, "{case}: {component}");
                    for host in ["hostPID", "hostIPC"] {
                        assert!(spec.get(host).is_none(), "{case}: {host}");
                    }
                }
                other => panic!("{case}: what is {other:?}? say whether it is restricted"),
            }
        }
    }
}

/// What the account of the controller may do with a kind, by the roles of the controller itself and not of the sidecars beside it.
fn verbs_on(documents: &[Value], group: &str, resource: &str) -> Vec<String> {
    let rules = rules(documents).into_iter();
    let of_it = rules
        .filter(|(_, name, _)| *name == "bowline-controller")
        .filter(|(_, _, rule)| words(rule, "apiGroups").contains(&group))
        .filter(|(_, _, rule)| words(rule, "resources").contains(&resource));
    let mut verbs: Vec<String> =
        of_it.flat_map(|(_, _, rule)| words(rule, "verbs")).map(str::to_owned).collect();
    verbs.sort_unstable();
    verbs.dedup();
    verbs
}

#[test]
fn the_controller_has_no_right_that_it_does_not_use() {
    let Some(chart) = Chart::new("rights of the controller") else { return };
    let (storage, kubernetes) = ("bowline.storage", "storage.k8s.io");
    // What is given only where a value asks for it is in the rows of that value.
    let rows = [
        ("", storage, "volumes", "create delete get list patch watch"),
        ("", storage, "volumes/status", "patch update"),
        ("", storage, "targets", "create list patch watch"),
        ("", storage, "targets/status", "patch"),
        ("", kubernetes, "csinodes", "list watch"),
        ("", kubernetes, "volumeattachments", "get list patch watch"),
        ("", kubernetes, "volumeattachments/status", "patch"),
        ("attacher: sidecar", kubernetes, "volumeattachments", "list"),
        ("attacher: sidecar", kubernetes, "volumeattachments/status", ""),
        ("attacher: sidecar", "", "persistentvolumes", "list patch watch"),
        ("", "", "persistentvolumes", "get list patch watch"),
        ("", "", "persistentvolumeclaims", ""),
        ("", "", "pods", "list watch"),
        ("", "", "secrets", "create get update"),
        ("", "", "events", ""),
        ("", "events.k8s.io", "events", "create patch"),
        ("controller: { fenceNotReadyAfter: 5m }", "", "persistentvolumeclaims", "get"),
        ("controller: { fenceNotReadyAfter: 5m }", "", "pods", "delete list patch watch"),
        (
            "controller: { fenceNotReadyAfter: 5m }",
            kubernetes,
            "volumeattachments",
            "delete get list patch watch",
        ),
    ];
    for (values, group, resource, verbs) in rows {
        let has = verbs_on(&chart.render(values), group, resource);
        assert_eq!(has.join(" "), verbs, "{values:?}: {group}/{resource}");
    }
}
