//! Helm, and what it renders.

use bowline_testkit::say;
use serde::Deserialize;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

/// Sets of values that people have; every check is made for all of them.
pub(crate) const CASES: &[(&str, &str)] = &[
    ("default values", ""),
    ("snapshots and groups", "snapshots: { enabled: true, groups: true }\nvolumeAttributesClasses: true"),
    ("marks by the API server", "markAtCreation: true"),
    ("the upstream attacher", "attacher: sidecar\ncontroller: { fenceNotReadyAfter: 5m, replicas: 3 }"),
    (
        "a startup taint",
        "node: { startupTaint: { enabled: true }, kubeletDir: /var/lib/k0s/kubelet, dataDir: /srv/b }",
    ),
    (
        "a shared directory",
        "sharedKernel: big\nfileTarget: { enabled: false }\nsharedTargets: [{ name: shared, directory: /srv/s, nodeSelector: { a: b } }]",
    ),
    (
        "storage over NVMe/TCP",
        "nvmeTarget: { enabled: true, directory: /srv/nvme, port: 4430, extraArgs: [--reserve=1Gi] }\n\
         storageClasses: [{ name: bowline-nvme, fsType: xfs, volumeBindingMode: Immediate, parameters: { kind: nvmet } }]",
    ),
    (
        "storage over NVMe/TCP in networks of its own",
        "nvmeTarget: { enabled: true, networks: [10.1.0.0/24, 'fd00:1::/64'] }",
    ),
    (
        "agents over NVMe/TCP outside the cluster",
        "node: { nvme: { enabled: true } }\nmetrics: { hostAddress: 127.0.0.1 }\n\
         nvmeTarget: { loadModules: false }\n\
         storageClasses: [{ name: bowline-nvme, parameters: { target: nvme-1 } }]",
    ),
    (
        "a MikroTik device",
        "rdsTargets: [{ name: box, address: 10.0.0.9, user: bowline, secret: box-login, hostKey: 'SHA256:x', pool: p, directory: /p/b, takeOver: /p/older, \
         exports: ['10.0.0.9:4420'], installation: rack-1 }]\n\
         storageClasses: [{ name: bowline-rds, parameters: { kind: rds } }]",
    ),
    (
        "everything for monitoring",
        "orphans: { mode: report, grace: 3d }\nmetrics:\n  serviceMonitor: { enabled: true, labels: { release: p } }\n  rules: { enabled: true }\n  \
         dashboard: { enabled: true }\nnetworkPolicy:\n  metricsFrom:\n    - namespaceSelector: { matchLabels: { a: b } }",
    ),
    (
        "as little as possible",
        "crds: { install: false }\nfileTarget: { enabled: false }\nstorageClasses: []\nsnapshots: { enabled: false }\nnode: { events: false }\n\
         networkPolicy: { enabled: false }\ncontroller: { replicas: 1, podDisruptionBudget: { enabled: false } }",
    ),
    (
        "an image of one's own",
        "image: { repository: example.org/b, pullPolicy: Never }\nimagePullSecrets: [mine]\n\
         node: { extraArgs: [--max-volumes=7], nodeSelector: { a: b }, podAnnotations: { example.org/x: text } }",
    ),
    (
        "IPv6 only",
        "listenAddress: '::'\nrdsTargets: [{ name: box, address: '[fd00::9]', user: u, secret: s, pool: p, directory: /p, \
         exports: ['[fd00::9]:4420'], installation: i }]\nnvmeTarget: { enabled: true }",
    ),
    (
        "IPv6 in the pods, and a metrics address of one's own",
        "listenAddress: '::'\nmetrics: { hostAddress: '::1' }\nnode: { nvme: { enabled: true } }\n\
         sharedKernel: big\nfileTarget: { enabled: false }\nsharedTargets: [{ name: shared, directory: /srv/s }]",
    ),
    (
        "flags that the chart gives, given again",
        "controller: { fenceNotReadyAfter: 5m, extraArgs: [--fence-not-ready-after=1h30m] }\n\
         node: { extraArgs: [--events, --fail-io-after=30s, --shelf=more=/var/lib/bowline/more] }\n\
         fileTarget: { extraArgs: [--host-name=rack-1, --topology=row=a, --topology=room=b] }\n\
         nvmeTarget: { enabled: true, extraArgs: [--nvme-port=4431, '--nvme-listen=10.1.0.0/24'] }",
    ),
];

/// Where the chart is.
pub(crate) fn chart_directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/chart")
}

/// Where helm and kubeconform are, built if they are not.
pub(crate) fn tools() -> Result<&'static Path, &'static str> {
    static TOOLS: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let built = TOOLS.get_or_init(|| {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../lab/tools.sh");
        let output = Command::new(script).arg("helm").output().map_err(|error| error.to_string())?;
        if !output.status.success() {
            let told = String::from_utf8_lossy(&output.stderr).into_owned();
            return Err(format!("lab/tools.sh helm: {}", told.lines().last().unwrap_or_default()));
        }
        Ok(PathBuf::from(String::from_utf8_lossy(&output.stdout).trim()))
    });
    built.as_deref().map_err(String::as_str)
}

/// The chart of this tree.
pub(crate) struct Chart {
    helm: PathBuf,
}

impl Chart {
    /// With helm; `None`, and a line in the summary, where there is none.
    pub(crate) fn new(test: &str) -> Option<Self> {
        match tools() {
            Ok(tools) => Some(Self { helm: tools.join("helm") }),
            Err(missing) => {
                say(&format!("not run: {test} ({missing})"));
                None
            }
        }
    }

    pub(crate) fn helm(&self, command: &str, more: &[&str], values: &str) -> Output {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("values.yaml");
        std::fs::write(&file, values).unwrap();
        let release: &[&str] = if command == "template" { &["bowline"] } else { &[] };
        Command::new(&self.helm)
            .arg(command)
            .args(release)
            .arg(chart_directory())
            .args(["--namespace", "bowline", "--values"])
            .arg(&file)
            .args(more)
            // What a user of this machine has set up for Helm is nothing to the chart.
            .env("HELM_CONFIG_HOME", place.path())
            .env("HELM_DATA_HOME", place.path())
            .env("HELM_CACHE_HOME", place.path())
            // What it finds out about the server would go to the home directory, too.
            .env("KUBECACHEDIR", place.path())
            .output()
            .unwrap()
    }

    /// Installs, upgrades or uninstalls the release `bowline` in a cluster. It must succeed.
    pub(crate) fn release(&self, command: &str, kubeconfig: &Path, more: &[&str]) {
        let place = tempfile::tempdir().unwrap();
        let chart = chart_directory();
        let chart: &[&Path] = if command == "uninstall" { &[] } else { &[&chart] };
        let output = Command::new(&self.helm)
            .args([command, "bowline"])
            .args(chart)
            .args(["--namespace", "bowline", "--kubeconfig"])
            .arg(kubeconfig)
            .args(more)
            .env("HELM_CONFIG_HOME", place.path())
            .env("HELM_DATA_HOME", place.path())
            .env("HELM_CACHE_HOME", place.path())
            // What it finds out about the server would go to the home directory, too.
            .env("KUBECACHEDIR", place.path())
            .output()
            .unwrap();
        assert!(output.status.success(), "helm {command}: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// Every object that comes out.
    pub(crate) fn render(&self, values: &str) -> Vec<Value> {
        self.render_with(values, &[])
    }

    /// The same with more flags.
    pub(crate) fn render_with(&self, values: &str, more: &[&str]) -> Vec<Value> {
        let output = self.helm("template", more, values);
        assert!(output.status.success(), "{values}:\n{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).unwrap();
        let documents = serde_yaml_ng::Deserializer::from_str(&text);
        let documents = documents.map(|document| Value::deserialize(document).unwrap());
        documents.filter(|document| !document.is_null()).collect()
    }
}

/// What is below `path`, or nothing.
pub(crate) fn list<'a>(value: &'a Value, path: &str) -> &'a [Value] {
    value.pointer(path).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

pub(crate) fn text<'a>(value: &'a Value, path: &str) -> &'a str {
    value.pointer(path).and_then(Value::as_str).unwrap_or_default()
}

/// Every object with pods: its component and the pods' template.
pub(crate) fn pods(documents: &[Value]) -> Vec<(&str, &Value)> {
    let workloads = documents.iter().filter(|document| document.pointer("/spec/template/spec").is_some());
    workloads
        .map(|document| {
            let component = text(document, "/spec/template/metadata/labels/app.kubernetes.io~1component");
            (component, &document["spec"]["template"])
        })
        .collect()
}
