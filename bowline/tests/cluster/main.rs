//! Bowline in a real cluster: two kubelets that run pods, the image and the chart as they are shipped, the real sidecars.
//!
//! The nodes of the lab share this machine's kernel, so one directory serves both, and volumes can move between them.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed check is a panic")]

use bowline_testkit::lab::{BUSYBOX, ClusterLab, Image, NAMESPACE, Options};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

mod adoption;
mod defaults;
mod life;
mod lost;
mod nvme;
mod paused;
mod rds;
mod reasons;
mod storm;
mod tenant;
mod workloads;

/// How long anything may take: the machine is small, and everything of a cluster runs on it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(180);

/// A cluster with Bowline in it. At its end, the API server must not have refused anything to Bowline's accounts.
pub(crate) struct Cluster {
    pub(crate) lab: ClusterLab,
    /// Pods of an installation that was removed: their accounts lost their rights while they ended.
    removed: Mutex<BTreeSet<String>>,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.has_its_rights();
        }
    }
}

impl Cluster {
    /// A cluster in which nothing is installed yet. Its nodes have Bowline's images, and those of the sidecars.
    pub(crate) fn bare(options: &Options) -> Option<Self> {
        let bowline = Image::bowline(Path::new(env!("CARGO_BIN_EXE_bowline")));
        let images = [vec![bowline], Image::sidecars()].concat();
        let lab = ClusterLab::start(&Options { images, audit: true, ..options.clone() })?;
        Some(Self { lab, removed: Mutex::default() })
    }

    /// No component lacks a right that it uses.
    fn has_its_rights(&self) {
        let removed = self.removed.lock().unwrap();
        let refused = self.lab.refused().into_iter().filter(|asked| !removed.contains(&asked.pod));
        assert_eq!(refused.collect::<Vec<_>>(), [], "a component lacks a right that it uses");
    }

    /// Uninstalls Bowline. Helm removes the roles while the pods end, so what is asked from here on by those that are there now proves nothing.
    pub(crate) fn uninstall(&self) {
        self.has_its_rights();
        let path = "jsonpath={.items[*].metadata.name}";
        let pods = self.lab.kubectl(&["--namespace", NAMESPACE, "get", "pods", "-o", path]);
        self.removed.lock().unwrap().extend(pods.split_whitespace().map(str::to_owned));
        let words = ["uninstall", "bowline", "--namespace", NAMESPACE, "--wait", "--timeout", "4m"];
        self.lab.helm(&words).unwrap_or_else(|error| panic!("{error}"));
    }

    /// A cluster with one directory for both nodes, installed as a user would.
    pub(crate) fn shared() -> Option<Self> {
        Self::with(&[])
    }

    /// The same, with more values for the chart.
    pub(crate) fn with(more: &[&str]) -> Option<Self> {
        let cluster = Self::bare(&Options { snapshots: true, ..Options::default() })?;
        let directory = cluster.lab.directory().join("shared");
        std::fs::create_dir(&directory).unwrap();
        let values = [
            "sharedKernel=lab".to_owned(),
            "fileTarget.enabled=false".to_owned(),
            "sharedTargets[0].name=shared".to_owned(),
            format!("sharedTargets[0].directory={}", directory.display()),
        ];
        let values = values.iter().map(String::as_str).chain(more.iter().copied());
        let flags: Vec<&str> = values.flat_map(|value| ["--set", value]).collect();
        cluster.lab.install_chart(&flags).unwrap_or_else(|error| panic!("{error}"));
        Some(cluster)
    }

    /// Applies a claim.
    pub(crate) fn claim(&self, name: &str, more: &str) {
        self.lab.apply_text(&format!(
            "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {{ name: {name} }}\nspec:\n  \
             storageClassName: bowline-file\n  resources: {{ requests: {{ storage: 64Mi }} }}\n{more}"
        ));
    }

    /// Applies a claim of a PersistentVolume that is there already.
    pub(crate) fn claim_of(&self, name: &str, pv: &str) {
        self.lab.apply_text(&format!(
            "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {{ name: {name} }}\nspec:\n  \
             storageClassName: bowline-file\n  accessModes: [ReadWriteOnce]\n  volumeName: {pv}\n  \
             resources: {{ requests: {{ storage: 16Mi }} }}\n"
        ));
    }

    /// Applies a pod on a node that runs a script with a claim at /data.
    pub(crate) fn pod(&self, name: &str, node: &str, claim: &str, script: &str) {
        let script = serde_json::to_string(script).unwrap();
        self.lab.apply_text(&format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{ name: {name} }}\nspec:\n  \
             automountServiceAccountToken: false\n  restartPolicy: Never\n  terminationGracePeriodSeconds: 1\n  \
             nodeSelector: {{ kubernetes.io/hostname: {node} }}\n  containers:\n    - name: main\n      \
             image: {BUSYBOX}\n      imagePullPolicy: Never\n      command: [sh, -c, {script}]\n      \
             volumeMounts: [{{ name: data, mountPath: /data }}]\n  volumes:\n    - name: data\n      \
             persistentVolumeClaim: {{ claimName: {claim} }}\n"
        ));
    }

    /// Waits until a pod has ended well, and gives what it wrote.
    pub(crate) fn ended(&self, pod: &str) -> String {
        let phase = self.lab.wait_for(&format!("the end of pod {pod}"), PATIENCE, || {
            let phase = self.lab.try_kubectl(&["get", "pod", pod, "-o", "jsonpath={.status.phase}"]).ok()?;
            matches!(phase.as_str(), "Succeeded" | "Failed").then_some(phase)
        });
        let logs = self.lab.pod_logs("default", pod);
        assert_eq!(phase, "Succeeded", "{pod}: {logs}");
        logs
    }

    /// Deletes something and waits until it is gone.
    pub(crate) fn delete(&self, what: &str, name: &str) {
        self.lab.kubectl(&["delete", what, name, "--timeout=180s"]);
    }

    /// What `bowline` says, asked through the API server as admin.
    pub(crate) fn bowline(&self, words: &[&str]) -> Result<String, String> {
        match self.says(words) {
            (out, _, true) => Ok(out),
            (_, err, false) => Err(err),
        }
    }

    /// The same: what it says on stdout and on stderr, and whether it succeeded.
    pub(crate) fn says(&self, words: &[&str]) -> (String, String, bool) {
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_bowline"))
            .args(["--namespace", NAMESPACE, "--kubeconfig"])
            .arg(self.lab.kubeconfig())
            .args(words)
            .output()
            .unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        (text(output.stdout), text(output.stderr), output.status.success())
    }

    /// A field of an object.
    pub(crate) fn field(&self, words: &[&str], path: &str) -> String {
        let path = format!("jsonpath={{{path}}}");
        self.lab.kubectl(&[&["get"], words, &["-o", &path]].concat())
    }

    /// The same; nothing if it cannot be read now.
    pub(crate) fn try_field(&self, words: &[&str], path: &str) -> Option<String> {
        let path = format!("jsonpath={{{path}}}");
        self.lab.try_kubectl(&[&["get"], words, &["-o", &path]].concat()).ok()
    }

    /// The id of the volume behind a claim.
    pub(crate) fn volume_of(&self, claim: &str) -> String {
        let pv = self.field(&["pvc", claim], ".spec.volumeName");
        self.field(&["pv", &pv], ".spec.csi.volumeHandle")
    }
}
