//! A MikroTik device in a cluster: the chart, its Target, claims and attachments, a device that is away, and a disk of an older driver. The device is
//! simulated, behind a real SSH server that pods reach.
//!
//! The kernel here has no NVMe, so every pod waits for its node to connect; what comes after that is tested in the VM lab.

use crate::{Cluster, PATIENCE};
use bowline_testkit::lab::{NAMESPACE, Options};
use bowline_testkit::routeros::{Door, Firmware, KeyPair, Login, POOL_SIZE, RouterOs, Sessions, SshServer};
use bowline_testkit::say;
use serde_json::json;
use std::path::Path;
use std::time::Instant;

const TARGET: &str = "box";
/// What the older driver called its volume.
const OLDER: &str = "pvc-a1b2c3d4-e5f6-7890-abcd-ef1234567890";

/// A cluster, and a device beside it.
struct Scene {
    cluster: Cluster,
    device: RouterOs,
    server: SshServer,
    _runtime: tokio::runtime::Runtime,
}

#[test]
fn a_mikrotik_device_serves_claims_and_says_why_when_it_does_not() {
    if Path::new("/dev/nvme-fabrics").exists() {
        say("not run: a_mikrotik_device… (this machine has NVMe)");
        return;
    }
    let Some(scene) = Scene::start() else { return };
    let begun = Instant::now();
    scene.without_a_host_key_the_target_says_which_one_is_shown();
    scene.with_it_the_device_is_a_target();
    let told = |what: &str| say(&format!("rds: {what} after {} s", begun.elapsed().as_secs()));
    told("connected");
    scene.a_claim_lives_and_dies_on_the_device();
    told("a claim has come and gone");
    assert_eq!(scene.device.breaches(), [""; 0]);
    scene.a_disk_of_an_older_driver_is_taken_over_when_it_is_let_go();
    told("taken over");
    scene.while_it_is_away_everybody_is_told_why_and_then_it_goes_on();
    told("away and back");
}

impl Scene {
    fn start() -> Option<Self> {
        let cluster = Cluster::bare(&Options::default())?;
        let lab = &cluster.lab;
        let key = KeyPair::new();
        let device = RouterOs::new(Firmware::default());
        let login = Login { user: "bowline".to_owned(), password: None, keys: vec![key.public] };
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let server =
            runtime.block_on(SshServer::start_at(device.clone(), login, (lab.machine(), 0).into())).unwrap();
        let file = lab.directory().join("box.key");
        std::fs::write(&file, &key.private).unwrap();
        lab.kubectl(&["create", "namespace", NAMESPACE]);
        let file = format!("--from-file=key={}", file.display());
        lab.kubectl(&["-n", NAMESPACE, "create", "secret", "generic", "box-login", &file]);
        Some(Self { cluster, device, server, _runtime: runtime })
    }

    /// What docs/rds.md says, and as little beside it as will do.
    fn install(&self, host_key: Option<&str>, more: &[&str]) {
        let mut target = json!({
            "name": TARGET, "address": self.server.address().to_string(), "user": "bowline", "secret": "box-login",
            "pool": "storage-pool", "directory": "/storage-pool/bowline", "takeOver": "/storage-pool/metal-csi",
            "exports": [format!("{}:4420", self.server.address().ip())], "installation": "rack-1",
        });
        if let Some(key) = host_key {
            target["hostKey"] = json!(key);
        }
        let class = json!({ "name": "bowline-rds", "fsType": "xfs", "volumeBindingMode": "Immediate", "parameters": { "kind": "rds" } });
        let (targets, classes) = (format!("rdsTargets=[{target}]"), format!("storageClasses=[{class}]"));
        let fixed = ["--set", "fileTarget.enabled=false", "--set", "controller.replicas=1"];
        let flags = [&fixed[..], &["--set-json", &targets, "--set-json", &classes], more].concat();
        self.cluster.lab.install_chart(&flags).unwrap_or_else(|error| panic!("{error}"));
    }

    /// The Target's condition Reachable, when it is this: what it says.
    fn reachable(&self, status: &str, reason: &str) -> String {
        let condition = ".status.conditions[?(@.type==\"Reachable\")]";
        let what = format!("{TARGET} to be Reachable={status}, {reason}");
        self.cluster.lab.wait_for(&what, PATIENCE, || {
            let path = format!("{condition}.status}} {{{condition}.reason");
            let seen = self.cluster.try_field(&["bvt", TARGET], &path)?;
            let message = || self.cluster.field(&["bvt", TARGET], &format!("{condition}.message"));
            (seen == format!("{status} {reason}")).then(message)
        })
    }

    fn without_a_host_key_the_target_says_which_one_is_shown(&self) {
        // The agent is not ready without it, and nobody shall wait until it is.
        self.install(None, &["--wait=false"]);
        let told = self.reachable("False", "NotServing");
        let fingerprint = self.server.host_key().fingerprint();
        assert!(told.contains(&fingerprint) && told.contains("none is pinned"), "{told}");
        assert_eq!(
            self.device.carried_out(),
            [""; 0],
            "nothing is sent to a device that nobody has looked at"
        );
    }

    fn with_it_the_device_is_a_target(&self) {
        self.install(Some(&self.server.host_key().fingerprint()), &[]);
        self.reachable("True", "Answers");
        assert_eq!(self.cluster.field(&["bvt", TARGET], ".spec.kind"), "rds");
        let capacity = self.cluster.field(&["bvt", TARGET], ".status.capacity");
        assert_eq!(capacity, bowline_api::size_of(POOL_SIZE));
        for condition in ["Compatible", "ClockAgrees", "AcceptsVolumes", "ExportsShown"] {
            let path = format!(".status.conditions[?(@.type==\"{condition}\")].status");
            assert_eq!(self.cluster.field(&["bvt", TARGET], &path), "True", "{condition}");
        }
        // The nodes do without NVMe as long as nobody asks for it, and the agent has waited for its host key.
        let selector = "app.kubernetes.io/component in (node, rds-target)";
        let path = ".items[*].status.containerStatuses[*].restartCount";
        let restarts = self.cluster.field(&["pods", "-n", NAMESPACE, "-l", selector], path);
        assert_eq!(restarts, "0 0 0");
    }

    /// A claim that is bound at once: its volume.
    fn claim(&self, name: &str) -> String {
        self.cluster.lab.apply_text(&format!(
            "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {{ name: {name} }}\nspec:\n  \
             storageClassName: bowline-rds\n  accessModes: [ReadWriteOnce]\n  resources: {{ requests: {{ storage: 64Mi }} }}\n",
        ));
        self.cluster.lab.wait_for(&format!("claim {name} to be bound"), PATIENCE, || {
            let phase = self.cluster.try_field(&["pvc", name], ".status.phase")?;
            (phase == "Bound").then_some(())
        });
        self.cluster.volume_of(name)
    }

    /// The VolumeAttachment of a claim: whether it is attached, and why not.
    fn attachment(&self, claim: &str) -> Option<(String, String)> {
        let pv = self.cluster.try_field(&["pvc", claim], ".spec.volumeName")?;
        let one = format!(".items[?(@.spec.source.persistentVolumeName==\"{pv}\")].status");
        let path = format!("{one}.attached}}|{{{one}.attachError.message");
        let seen = self.cluster.try_field(&["volumeattachments.storage.k8s.io"], &path)?;
        let (attached, error) = seen.split_once('|')?;
        Some((attached.to_owned(), error.to_owned()))
    }

    /// Waits until the volume of a claim is attached: how the device lets that node in.
    fn attached(&self, claim: &str, volume: &str, node: &str) -> Door {
        self.cluster.lab.wait_for(&format!("the volume of {claim} to be attached"), PATIENCE, || {
            let (attached, error) = self.attachment(claim)?;
            (attached == "true" && error.is_empty()).then_some(())
        });
        let doors = self.device.doors();
        let [door] = doors.as_slice() else { panic!("not one export: {doors:?}") };
        assert_eq!(door.slot, volume);
        assert!(door.nqn.contains(&format!(":{node}:{volume}:e")), "{door:?}");
        let host = door.host.as_deref().unwrap_or_default();
        assert!(host.starts_with("nqn.2014-08.org.nvmexpress:uuid:"), "{door:?}");
        door.clone()
    }

    /// Waits until the VolumeAttachment of a claim says why it waits: all of this, and as `bowline why` does.
    fn told_why(&self, claim: &str, volume: &str, words: &[&str]) {
        let error =
            self.cluster.lab.wait_for(&format!("claim {claim} to be told {words:?}"), PATIENCE, || {
                let (attached, error) = self.attachment(claim)?;
                assert_ne!(attached, "true");
                words.iter().all(|word| error.contains(word)).then_some(error)
            });
        assert!(!error.to_lowercase().contains("not found"), "{error}");
        let why = self.cluster.bowline(&["why", volume]).unwrap();
        assert!(words.iter().all(|word| why.contains(word)), "{why}");
        say(&format!("rds: {error}"));
    }

    fn a_claim_lives_and_dies_on_the_device(&self) {
        let (cluster, device) = (&self.cluster, &self.device);
        let volume = self.claim("data");
        assert_eq!(device.slots(), [volume.as_str()]);
        let file = device.file_of(&volume).unwrap();
        assert!(file.starts_with(&format!("storage-pool/bowline/{volume}.")), "{file}");
        assert_eq!(device.files(), [(file, 64 << 20)]);
        assert_eq!(device.all_doors(), [], "nobody is let in who did not ask");

        cluster.pod("user", "lab-a", "data", "true");
        let door = self.attached("data", &volume, "lab-a");
        assert_eq!(device.all_doors(), [door]);
        let selector = "--field-selector=involvedObject.name=user,reason=FailedMount";
        let told = cluster.lab.wait_for("the pod to be told what its node lacks", PATIENCE, || {
            let events = ["get", "events", selector, "-o", "jsonpath={.items[*].message}"];
            cluster.lab.try_kubectl(&events).ok().filter(|told| told.contains("MountDevice failed"))
        });
        assert!(told.contains("the module nvme_tcp is not loaded"), "{told}");
        say(&format!("rds: {told}"));

        cluster.delete("pod", "user");
        cluster.lab.wait_for("the node to be shut out", PATIENCE, || device.doors().is_empty().then_some(()));
        cluster.delete("pvc", "data");
        self.is_gone(&volume);
        assert_eq!(device.files(), []);
    }

    /// Waits until nothing of a volume is left.
    fn is_gone(&self, volume: &str) {
        self.cluster.lab.wait_for(&format!("{volume} to be gone"), PATIENCE, || {
            let left = self.cluster.lab.try_kubectl(&["get", "pv,bv,bva", "-o", "name"]).ok()?;
            let on_device = self.device.slots().iter().any(|slot| slot == volume)
                || self.device.files().iter().any(|(name, _)| name.contains(volume));
            (!left.contains(volume) && !on_device).then_some(())
        });
    }

    /// As docs/rds.md says, from the moment at which the PersistentVolume is one of Bowline's.
    fn a_disk_of_an_older_driver_is_taken_over_when_it_is_let_go(&self) {
        let (cluster, device) = (&self.cluster, &self.device);
        let add = format!(
            "/disk add type=file file-path=/storage-pool/metal-csi/{OLDER}.img file-size=64M slot={OLDER} nvme-tcp-export=yes \
             nvme-tcp-server-port=4420 nvme-tcp-server-nqn=nqn.2000-02.com.mikrotik:{OLDER}"
        );
        assert_eq!(device.enter(&add).status, Some(0));
        let exported = device.doors();
        cluster.lab.apply_text(&format!(
            "apiVersion: v1\nkind: PersistentVolume\nmetadata:\n  name: {OLDER}\n  \
             annotations: {{ pv.kubernetes.io/provisioned-by: bowline.storage }}\nspec:\n  capacity: {{ storage: 64Mi }}\n  \
             accessModes: [ReadWriteOnce]\n  persistentVolumeReclaimPolicy: Retain\n  storageClassName: rds-nvme\n  \
             claimRef: {{ apiVersion: v1, kind: PersistentVolumeClaim, namespace: default, name: older }}\n  \
             csi: {{ driver: bowline.storage, volumeHandle: {OLDER}, fsType: ext4 }}\n"
        ));
        cluster.lab.apply_text(&format!(
            "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {{ name: older }}\nspec:\n  storageClassName: rds-nvme\n  \
             accessModes: [ReadWriteOnce]\n  volumeName: {OLDER}\n  resources: {{ requests: {{ storage: 64Mi }} }}\n"
        ));
        let said = cluster.bowline(&["adopt"]).unwrap();
        assert!(said.contains(OLDER), "{said}");
        cluster.pod("migrated", "lab-b", "older", "true");
        let let_go = format!("/disk set [find slot=\"{OLDER}\"] nvme-tcp-export=no");
        self.told_why("older", OLDER, &["is still exported as", &let_go]);
        assert_eq!(device.doors(), exported, "while it is exported it belongs to whoever uses it");
        assert_eq!(device.enter(&let_go).status, Some(0));
        self.attached("older", OLDER, "lab-b");
        cluster.delete("pod", "migrated");
        cluster.lab.kubectl(&[
            "patch",
            "pv",
            OLDER,
            "-p",
            r#"{"spec":{"persistentVolumeReclaimPolicy":"Delete"}}"#,
        ]);
        cluster.delete("pvc", "older");
        self.is_gone(OLDER);
    }

    fn while_it_is_away_everybody_is_told_why_and_then_it_goes_on(&self) {
        let (cluster, device) = (&self.cluster, &self.device);
        let volume = self.claim("later");
        self.server.switch_off(Sessions::Closed);
        let place = self.server.address().to_string();
        cluster.pod("waiting", "lab-b", "later", "true");
        self.told_why("later", &volume, &["box", "does not answer", &place]);
        let told = self.reachable("False", "Silent");
        assert!(told.contains(&place), "{told}");
        say(&format!("rds: {told}"));
        assert_eq!(cluster.field(&["pvc", "later"], ".status.phase"), "Bound");
        let shown = cluster.bowline(&["volume", "show", &volume]).unwrap();
        assert!(shown.contains(&place) && shown.contains("it is not known whether it is well"), "{shown}");

        self.server.switch_on();
        self.attached("later", &volume, "lab-b");
        self.reachable("True", "Answers");
        cluster.delete("pod", "waiting");
        cluster.delete("pvc", "later");
        self.is_gone(&volume);
        assert_eq!((device.slots(), device.files()), (vec![], vec![]));
    }
}
