//! A part of a cluster that is one test's own: a namespace, so that several can use a cluster at the same time.

use crate::{Cluster, NAMESPACE, PATIENCE};
use bowline_testkit::lab::BUSYBOX;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

/// A test with a namespace of its own.
pub(crate) type Row = (&'static str, fn(&Tenant<'_>));

impl Cluster {
    /// Runs tests at the same time, each in a namespace of its name, and checks that each leaves nothing. Says how long each took.
    ///
    /// One cluster costs most of a minute, and pods mostly wait. A cluster in a static would be shared as well; but it is never
    /// dropped, and tests of this program that want a cluster of their own would wait for it for ever.
    pub(crate) fn together(&self, rows: &[Row]) {
        let row = |(name, test): &Row| {
            let begun = Instant::now();
            let tenant = Tenant::new(self, name);
            let result = catch_unwind(AssertUnwindSafe(|| {
                test(&tenant);
                tenant.leaves_nothing();
            }));
            match result {
                Ok(()) => {
                    bowline_testkit::say(&format!("cluster: {name} in {:.0?}", begun.elapsed()));
                    Ok(())
                }
                Err(_) => Err(format!("{name}, which looked like this:\n{}", tenant.look())),
            }
        };
        let failures: Vec<String> = std::thread::scope(|scope| {
            let started = rows.iter().map(|test| {
                let thread = std::thread::Builder::new().name(test.0.to_owned());
                thread.spawn_scoped(scope, move || row(test)).unwrap()
            });
            let started: Vec<_> = started.collect();
            started.into_iter().filter_map(|thread| thread.join().unwrap().err()).collect()
        });
        assert!(failures.is_empty(), "{}", failures.join("\n"));
    }
}

/// A namespace in a cluster.
pub(crate) struct Tenant<'a> {
    pub(crate) cluster: &'a Cluster,
    name: &'static str,
}

impl<'a> Tenant<'a> {
    pub(crate) fn new(cluster: &'a Cluster, name: &'static str) -> Self {
        let tenant = Self { cluster, name };
        cluster.lab.kubectl(&["create", "namespace", name]);
        // No pod is taken before.
        cluster.lab.wait_for("the service account", PATIENCE, || {
            tenant.try_kubectl(&["get", "serviceaccount", "default"]).ok()
        });
        tenant
    }

    /// `kubectl` in the namespace. It must succeed.
    pub(crate) fn kubectl(&self, words: &[&str]) -> String {
        self.try_kubectl(words).unwrap_or_else(|error| panic!("kubectl {}: {error}", words.join(" ")))
    }

    /// `kubectl` in the namespace: what it printed, or what it complained about.
    pub(crate) fn try_kubectl(&self, words: &[&str]) -> Result<String, String> {
        self.cluster.lab.try_kubectl(&[&["--namespace", self.name], words].concat())
    }

    /// Applies manifests that name no namespace.
    pub(crate) fn apply(&self, manifests: &str) {
        self.cluster.lab.apply_text_in(self.name, manifests);
    }

    /// A field of an object; nothing if it is not there.
    pub(crate) fn field(&self, words: &[&str], path: &str) -> String {
        let path = format!("jsonpath={{{path}}}");
        self.try_kubectl(&[&["get"], words, &["-o", &path]].concat()).unwrap_or_default()
    }

    /// Waits until a field of an object is as it should be.
    pub(crate) fn wait(&self, words: &[&str], path: &str, is_right: impl Fn(&str) -> bool) -> String {
        let what = format!("{path} of {} of {}", words.join(" "), self.name);
        self.cluster.lab.wait_for(&what, PATIENCE, || {
            Some(self.field(words, path)).filter(|seen| !seen.is_empty() && is_right(seen))
        })
    }

    /// Applies a claim for one node that writes.
    pub(crate) fn claim(&self, name: &str) {
        self.claim_with(name, "ReadWriteOnce", "");
    }

    /// Applies a claim; more may be said in its spec.
    pub(crate) fn claim_with(&self, name: &str, mode: &str, more: &str) {
        let size = "  storageClassName: bowline-file\n  resources: { requests: { storage: 64Mi } }\n";
        self.claim_of(name, mode, &format!("{size}{more}"));
    }

    /// Applies a claim, of which class and size are said in its spec.
    pub(crate) fn claim_of(&self, name: &str, mode: &str, spec: &str) {
        self.apply(&format!(
            "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {{ name: {name} }}\nspec:\n  accessModes: [{mode}]\n{spec}"
        ));
    }

    /// Applies a pod.
    pub(crate) fn pod(&self, name: &str, seat: &Seat<'_>) {
        self.apply(&format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{ name: {name} }}\nspec:\n  restartPolicy: Never\n{}",
            seat.spec()
        ));
    }

    /// Waits until a pod runs.
    pub(crate) fn running(&self, pod: &str) {
        self.wait(&["pod", pod], ".status.phase", |phase| {
            assert!(!matches!(phase, "Failed" | "Succeeded"), "{pod}: {}", self.logs(pod));
            phase == "Running"
        });
    }

    /// Waits until a pod has ended well, and gives what it wrote.
    pub(crate) fn ended(&self, pod: &str) -> String {
        let phase =
            self.wait(&["pod", pod], ".status.phase", |phase| matches!(phase, "Succeeded" | "Failed"));
        let logs = self.logs(pod);
        assert_eq!(phase, "Succeeded", "{pod}: {logs}");
        logs
    }

    fn logs(&self, pod: &str) -> String {
        self.cluster.lab.pod_logs(self.name, pod)
    }

    /// What a shell in a pod prints, or complains about.
    pub(crate) fn shell(&self, pod: &str, script: &str) -> Result<String, String> {
        self.cluster.lab.exec(self.name, pod, &["sh", "-c", script])
    }

    /// What a shell in a pod prints; it must succeed.
    pub(crate) fn run(&self, pod: &str, script: &str) -> String {
        self.shell(pod, script).unwrap_or_else(|error| panic!("{script} in {pod}: {error}"))
    }

    /// Deletes something and waits until it is gone.
    pub(crate) fn delete(&self, what: &str, name: &str) {
        self.kubectl(&["delete", what, name, "--timeout=180s"]);
    }

    /// Names of the PersistentVolumes of its claims.
    fn volumes(&self) -> Vec<String> {
        let ours = format!(".items[?(@.spec.claimRef.namespace==\"{}\")].metadata.name", self.name);
        self.field(&["pv"], &ours).split_whitespace().map(str::to_owned).collect()
    }

    /// What they are called, here and in Bowline. One that goes meanwhile has no handle any more.
    fn names(&self) -> Vec<String> {
        let volumes = self.volumes();
        let handles = volumes.iter().map(|pv| self.field(&["pv", pv], ".spec.csi.volumeHandle"));
        let handles: Vec<String> = handles.filter(|handle| !handle.is_empty()).collect();
        [volumes, handles].concat()
    }

    /// Deletes whatever is in the namespace, and sees all its volumes go.
    pub(crate) fn leaves_nothing(&self) {
        let lab = &self.cluster.lab;
        let names = self.names();
        lab.kubectl(&["delete", "namespace", self.name, "--timeout=180s"]);
        lab.wait_for(&format!("the volumes of {} to be gone", self.name), PATIENCE, || {
            let kinds = "pv,volumeattachments.storage.k8s.io,bv,bva";
            let left = lab.try_kubectl(&["get", kinds, "-o", "yaml"]).ok()?;
            (self.volumes().is_empty() && !names.iter().any(|name| left.contains(name))).then_some(())
        });
    }

    /// What somebody would look at who wonders why something does not work.
    fn look(&self) -> String {
        let look = |words: &[&str]| self.try_kubectl(words).unwrap_or_else(|error| error);
        let names = self.names();
        let logs = [
            "--selector=app.kubernetes.io/component=controller",
            "--all-containers",
            "--prefix",
            "--tail=-1",
        ];
        let logs = self.cluster.lab.try_kubectl(&[&["--namespace", NAMESPACE, "logs"], &logs[..]].concat());
        let logs = logs.unwrap_or_else(|error| error);
        let is_ours = |line: &&str| names.iter().any(|name| line.contains(name));
        let logs: Vec<_> = logs.lines().filter(is_ours).collect();
        [
            look(&["get", "pods,pvc", "-o", "wide"]),
            look(&["get", "events", "--sort-by=.lastTimestamp"]),
            look(&["get", "pv,volumeattachments.storage.k8s.io,bv,bva", "-o", "wide"]),
            logs.join("\n"),
        ]
        .join("\n")
    }
}

/// What a test pod does, and where.
pub(crate) struct Seat<'a> {
    /// The node, if it matters.
    pub(crate) node: Option<&'a str>,
    /// What its shell runs.
    pub(crate) script: &'a str,
    /// Where it has the volume, as YAML in braces.
    pub(crate) mount: &'a str,
    /// The source of the volume, as YAML in braces.
    pub(crate) volume: &'a str,
    /// More for the spec, each line indented by two.
    pub(crate) more: &'a str,
    /// More for the container, each line indented by six.
    pub(crate) container: &'a str,
}

impl Default for Seat<'_> {
    fn default() -> Self {
        let mount = "volumeMounts: [{ name: data, mountPath: /data }]";
        Self { node: None, script: "sleep 3600", mount, volume: "", more: "", container: "" }
    }
}

impl Seat<'_> {
    /// Runs a script on a node with a claim at /data.
    pub(crate) fn on<'a>(node: &'a str, volume: &'a str, script: &'a str) -> Seat<'a> {
        Seat { node: Some(node), script, volume, ..Seat::default() }
    }

    /// The spec of a pod, each line indented by two.
    pub(crate) fn spec(&self) -> String {
        let script = serde_json::to_string(self.script).unwrap();
        let node = self.node.map(|node| format!("  nodeSelector: {{ kubernetes.io/hostname: {node} }}\n"));
        // A claim template of a StatefulSet brings its volume itself.
        let volumes = match self.volume {
            "" => String::new(),
            volume => format!("  volumes: [{{ name: data, {volume} }}]\n"),
        };
        format!(
            "  automountServiceAccountToken: false\n  terminationGracePeriodSeconds: 1\n{}{volumes}{}  containers:\n    \
             - name: main\n      image: {BUSYBOX}\n      imagePullPolicy: Never\n      command: [sh, -c, {script}]\n      \
             {}\n{}",
            node.unwrap_or_default(),
            self.more,
            self.mount,
            self.container,
        )
    }
}

/// The source of a pod's volume: a claim.
pub(crate) fn claimed(claim: &str) -> String {
    format!("persistentVolumeClaim: {{ claimName: {claim} }}")
}
