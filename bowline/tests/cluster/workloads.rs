//! The ways in which pods use volumes, each looked at from inside the pods.
//!
//! All of them run at the same time in one cluster, so nothing here may disturb another one for long.

use crate::tenant::{Seat, Tenant, claimed};
use crate::{Cluster, PATIENCE};
use bowline_testkit::lab::{NAMESPACE, not_run};

#[test]
fn pods_use_volumes_in_every_way_that_kubernetes_knows() {
    let Some(cluster) = Cluster::shared() else { return };
    cluster.together(&[
        ("stateful-set", a_stateful_set_keeps_the_volume_of_each_of_its_pods),
        ("deployment", a_rollout_moves_the_volume_of_a_deployment_that_recreates),
        ("block", a_block_device_has_the_same_bytes_on_the_other_node),
        ("ephemeral", an_ephemeral_volume_goes_with_its_pod),
        ("growth-xfs", an_xfs_grows_under_a_running_pod),
        ("growth-ext4", an_ext4_grows_under_a_running_pod),
        ("readers", two_nodes_read_one_volume_and_neither_can_write),
        ("one-pod", a_volume_for_one_pod_is_refused_to_all_others),
        ("group", a_group_of_users_gets_the_files),
        ("sub-path", containers_see_their_directory_of_a_volume_only),
        ("read-only", a_read_only_volume_cannot_be_written_even_by_root),
    ]);
    nothing_is_left(&cluster);
}

fn nothing_is_left(cluster: &Cluster) {
    let lab = &cluster.lab;
    lab.wait_for("every volume to be gone", PATIENCE, || {
        let kinds = "pv,volumeattachments.storage.k8s.io,bv,bva,bvs";
        lab.try_kubectl(&["get", kinds, "-o", "name"]).ok()?.trim().is_empty().then_some(())
    });
    let directory = lab.directory().display().to_string();
    for node in ["lab-a", "lab-b"] {
        let mounts = lab.node(node).run_well(&["cat", "/proc/self/mounts"]);
        let ours = mounts.lines().find(|line| line.contains("/bowline.storage/"));
        assert_eq!(ours, None, "still mounted on {node}");
    }
    let devices = lab.node("lab-a").run_well(&["losetup", "--list", "--noheadings", "--output", "BACK-FILE"]);
    assert!(!devices.contains(&directory), "{devices}");
}

/// Takes a node out of the scheduler's choice until dropped.
struct Cordon<'a>(&'a Tenant<'a>, String);

impl<'a> Cordon<'a> {
    fn of(tenant: &'a Tenant<'a>, node: &str) -> Self {
        tenant.kubectl(&["cordon", node]);
        Self(tenant, node.to_owned())
    }
}

impl Drop for Cordon<'_> {
    fn drop(&mut self) {
        let _ = self.0.try_kubectl(&["uncordon", &self.1]);
    }
}

fn a_stateful_set_keeps_the_volume_of_each_of_its_pods(tenant: &Tenant<'_>) {
    let seat = Seat { script: "hostname >> /data/names && sync && sleep 3600", ..Seat::default() };
    tenant.apply(&format!(
        "apiVersion: apps/v1\nkind: StatefulSet\nmetadata: {{ name: db }}\nspec:\n  serviceName: db\n  replicas: 2\n  \
         podManagementPolicy: Parallel\n  selector: {{ matchLabels: {{ app: db }} }}\n  \
         volumeClaimTemplates:\n    - metadata: {{ name: data }}\n      spec:\n        storageClassName: bowline-file\n        \
         accessModes: [ReadWriteOnce]\n        resources: {{ requests: {{ storage: 64Mi }} }}\n  \
         template:\n    metadata: {{ labels: {{ app: db }} }}\n    spec:\n{}",
        indented(&seat.spec()),
    ));
    for pod in ["db-0", "db-1"] {
        tenant.running(pod);
        assert_eq!(tenant.run(pod, "cat /data/names"), format!("{pod}\n"));
    }
    let first = tenant.field(&["pod", "db-0"], ".spec.nodeName");
    let cordon = Cordon::of(tenant, &first);
    tenant.delete("pod", "db-0");
    let second = tenant.wait(&["pod", "db-0"], ".spec.nodeName", |node| node != first);
    drop(cordon);
    tenant.running("db-0");
    assert_eq!(tenant.run("db-0", "cat /data/names"), "db-0\ndb-0\n", "{first} to {second}");
    assert_eq!(tenant.run("db-1", "cat /data/names"), "db-1\n");
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("    {line}\n")).collect()
}

fn a_rollout_moves_the_volume_of_a_deployment_that_recreates(tenant: &Tenant<'_>) {
    tenant.claim("web");
    let volume = claimed("web");
    let deployment = |node: &str| {
        let script = "echo on $NODE >> /data/seen && sync && sleep 3600";
        let container =
            "      env: [{ name: NODE, valueFrom: { fieldRef: { fieldPath: spec.nodeName } } }]\n";
        let seat = Seat { container, ..Seat::on(node, &volume, script) };
        tenant.apply(&format!(
            "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{ name: web }}\nspec:\n  replicas: 1\n  \
             strategy: {{ type: Recreate }}\n  selector: {{ matchLabels: {{ app: web }} }}\n  \
             template:\n    metadata: {{ labels: {{ app: web }} }}\n    spec:\n{}",
            indented(&seat.spec()),
        ));
        tenant.kubectl(&["rollout", "status", "deployment/web", "--timeout=180s"]);
    };
    deployment("lab-a");
    assert_eq!(tenant.kubectl(&["exec", "deployment/web", "--", "cat", "/data/seen"]), "on lab-a\n");
    deployment("lab-b");
    let seen = tenant.kubectl(&["exec", "deployment/web", "--", "cat", "/data/seen"]);
    assert_eq!(seen, "on lab-a\non lab-b\n");
}

fn a_block_device_has_the_same_bytes_on_the_other_node(tenant: &Tenant<'_>) {
    tenant.claim_with("raw", "ReadWriteOnce", "  volumeMode: Block\n");
    let volume = claimed("raw");
    let mount = "volumeDevices: [{ name: data, devicePath: /dev/raw }]";
    let write = "set -e; size=$(blockdev --getsize64 /dev/raw); head -c $size /dev/urandom > /tmp/bytes; \
                 dd if=/tmp/bytes of=/dev/raw bs=1M conv=fsync 2>/tmp/said; cmp /tmp/bytes /dev/raw; \
                 echo $size; sha256sum < /tmp/bytes";
    tenant.pod("writer", &Seat { mount, ..Seat::on("lab-a", &volume, write) });
    let written = tenant.ended("writer");
    assert_eq!(written.lines().next(), Some("67108864"), "{written}");
    tenant.delete("pod", "writer");
    let read = "blockdev --getsize64 /dev/raw && sha256sum < /dev/raw";
    tenant.pod("reader", &Seat { mount, ..Seat::on("lab-b", &volume, read) });
    assert_eq!(tenant.ended("reader"), written);
}

fn an_ephemeral_volume_goes_with_its_pod(tenant: &Tenant<'_>) {
    let volume = "ephemeral: { volumeClaimTemplate: { spec: { storageClassName: bowline-file, \
                  accessModes: [ReadWriteOnce], resources: { requests: { storage: 64Mi } } } } }";
    tenant.pod("scratch", &Seat { volume, ..Seat::default() });
    tenant.running("scratch");
    tenant.run("scratch", "echo scratch > /data/file && grep ' /data ext4 ' /proc/mounts");
    let owner = tenant.field(&["pvc", "scratch-data"], ".metadata.ownerReferences[0].name");
    assert_eq!(owner, "scratch");
    let pv = tenant.field(&["pvc", "scratch-data"], ".spec.volumeName");
    let id = tenant.field(&["pv", &pv], ".spec.csi.volumeHandle");
    assert!(tenant.kubectl(&["get", "bv", "-o", "yaml"]).contains(&id), "{id}");
    tenant.delete("pod", "scratch");
    // Nobody deletes the claim.
    tenant.cluster.lab.wait_for("the ephemeral volume to go", PATIENCE, || {
        let left = tenant.try_kubectl(&["get", "pvc,pv,bv", "-o", "yaml"]).ok()?;
        (!left.contains("scratch-data") && !left.contains(&id)).then_some(())
    });
}

fn an_xfs_grows_under_a_running_pod(tenant: &Tenant<'_>) {
    tenant.apply(
        "apiVersion: storage.k8s.io/v1\nkind: StorageClass\nmetadata: { name: xfs }\nprovisioner: bowline.storage\n\
         volumeBindingMode: WaitForFirstConsumer\nallowVolumeExpansion: true\n\
         parameters: { csi.storage.k8s.io/fstype: xfs }\n",
    );
    grows(tenant, "xfs", true);
}

fn an_ext4_grows_under_a_running_pod(tenant: &Tenant<'_>) {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let capabilities = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap().trim();
    let may_grow = u64::from_str_radix(capabilities, 16).unwrap() & (1 << 24) != 0;
    if !may_grow {
        not_run("CAP_SYS_RESOURCE, to grow ext4 under a running pod");
    }
    grows(tenant, "bowline-file", may_grow);
}

/// A claim is made larger while a pod has a file of it open. Where the kernel does not let the filesystem grow while it is mounted,
/// it does when the next pod has it.
fn grows(tenant: &Tenant<'_>, class: &str, may_grow_mounted: bool) {
    // No xfs is smaller than 300 MB.
    let size = |size: &str| {
        format!("  storageClassName: {class}\n  resources: {{ requests: {{ storage: {size} }} }}\n")
    };
    tenant.claim_of("db", "ReadWriteOnce", &size("320Mi"));
    let script = "set -e; exec 3> /data/words; echo before >&3; until [ -e /tmp/grown ]; do sleep 0.1; done; \
                  echo after >&3; exec sleep 3600";
    tenant.pod("db", &Seat { volume: &claimed("db"), script, ..Seat::default() });
    tenant.running("db");
    let sum = tenant.run("db", "head -c 20000000 /dev/urandom > /data/big && sha256sum < /data/big");
    let megabytes =
        || -> u32 { tenant.run("db", "df -m /data | tail -n 1 | awk '{print $2}'").trim().parse().unwrap() };
    assert!(megabytes() <= 320);
    let larger = r#"{"spec":{"resources":{"requests":{"storage":"640Mi"}}}}"#;
    tenant.kubectl(&["patch", "pvc", "db", "--patch", larger]);
    if may_grow_mounted {
        tenant.wait(&["pvc", "db"], ".status.capacity.storage", |size| size == "640Mi");
        assert_eq!(tenant.field(&["pod", "db"], ".status.containerStatuses[0].restartCount"), "0");
    } else {
        tenant.wait(&["pvc", "db"], ".status.conditions[*].message", |told| {
            told.contains("when the volume is next staged")
        });
        tenant.delete("pod", "db");
        tenant.pod("db", &Seat { volume: &claimed("db"), script, ..Seat::default() });
        tenant.running("db");
        tenant.wait(&["pvc", "db"], ".status.capacity.storage", |size| size == "640Mi");
    }
    assert!(megabytes() > 500);
    // There is room for what did not fit before.
    let more = "head -c 400000000 /dev/zero > /data/more && touch /tmp/grown && sha256sum < /data/big";
    assert_eq!(tenant.run("db", more), sum);
    tenant.cluster.lab.wait_for("the open file to be written", PATIENCE, || {
        tenant.shell("db", "cat /data/words").ok().filter(|words| words == "before\nafter\n")
    });
}

fn two_nodes_read_one_volume_and_neither_can_write(tenant: &Tenant<'_>) {
    tenant.claim("source");
    let volume = claimed("source");
    // The snapshot is taken while the source is in use; what is read cannot have its log replayed. Without reflinks, the agent
    // must stop the filesystem for that, and it can only where it runs itself.
    let agent = "jsonpath={.items[0].spec.nodeName}";
    let ours = "--selector=bowline.storage/target=shared";
    let agent = tenant.cluster.lab.kubectl(&["--namespace", NAMESPACE, "get", "pods", ours, "-o", agent]);
    tenant.pod("writer", &Seat::on(&agent, &volume, "echo kept > /data/file && sync && sleep 3600"));
    tenant.running("writer");
    tenant.cluster.lab.wait_for("the file", PATIENCE, || {
        tenant.shell("writer", "sync && cat /data/file").ok().filter(|text| text == "kept\n")
    });
    tenant.apply(
        "apiVersion: snapshot.storage.k8s.io/v1\nkind: VolumeSnapshot\nmetadata: { name: source }\nspec:\n  \
         volumeSnapshotClassName: bowline\n  source: { persistentVolumeClaimName: source }\n",
    );
    tenant.wait(&["volumesnapshot", "source"], ".status.readyToUse", |ready| ready == "true");
    let from = "  dataSource: { name: source, kind: VolumeSnapshot, apiGroup: snapshot.storage.k8s.io }\n";
    tenant.claim_with("many", "ReadOnlyMany", from);
    let volume = claimed("many");
    for (pod, node) in [("reader-a", "lab-a"), ("reader-b", "lab-b")] {
        // Root with every capability.
        let container = "      securityContext: { privileged: true }\n";
        tenant.pod(pod, &Seat { container, ..Seat::on(node, &volume, "sleep 3600") });
    }
    for pod in ["reader-a", "reader-b"] {
        tenant.running(pod);
    }
    for pod in ["reader-a", "reader-b"] {
        assert_eq!(tenant.run(pod, "cat /data/file"), "kept\n");
        cannot_write(tenant, pod);
    }
    // The source is written meanwhile, and nobody but its pod sees it.
    tenant.run("writer", "echo new > /data/file && sync");
    assert_eq!(tenant.run("reader-b", "cat /data/file"), "kept\n");
    for pod in ["writer", "reader-a", "reader-b"] {
        tenant.delete("pod", pod);
    }
    tenant.delete("pvc", "many");
    tenant.delete("volumesnapshot", "source");
}

/// Root in a privileged pod cannot write to /data: not to a file, not after mounting it again, not past the filesystem.
fn cannot_write(tenant: &Tenant<'_>, pod: &str) {
    let told = tenant.shell(pod, "echo no > /data/file").unwrap_err();
    assert!(told.contains("Read-only file system"), "{pod}: {told}");
    let remounted = tenant.shell(pod, "mount -o remount,rw /data");
    assert!(remounted.is_err(), "{pod}: {remounted:?}");
    let device = tenant.run(pod, "awk '$2 == \"/data\" {print $1}' /proc/mounts");
    let device = device.trim();
    let told = tenant.shell(pod, &format!("blockdev --getro {device}")).unwrap();
    assert_eq!(told.trim(), "1", "{pod}: the kernel would take writes to {device}");
}

fn a_volume_for_one_pod_is_refused_to_all_others(tenant: &Tenant<'_>) {
    tenant.claim_with("alone", "ReadWriteOncePod", "");
    let volume = claimed("alone");
    tenant.pod("first", &Seat::on("lab-a", &volume, "sleep 3600"));
    tenant.running("first");
    tenant.pod("beside", &Seat::on("lab-a", &volume, "sleep 3600"));
    tenant.pod("elsewhere", &Seat::on("lab-b", &volume, "sleep 3600"));
    for pod in ["beside", "elsewhere"] {
        // The scheduler refuses. (It has more to say while another test keeps it from a node.)
        let path = ".status.conditions[?(@.type==\"PodScheduled\")].message";
        tenant.wait(&["pod", pod], path, |told| told.contains("ReadWriteOncePod access mode already in-use"));
        let events =
            tenant.kubectl(&["get", "events", "--field-selector", &format!("involvedObject.name={pod}")]);
        assert!(events.contains("FailedScheduling"), "{events}");
    }
    // Those that the scheduler is not asked about are refused as well: by the kubelet, and by whoever attaches.
    let forced = |pod: &str, node: &str| {
        let more = format!("  nodeName: {node}\n");
        tenant.pod(pod, &Seat { node: None, more: &more, ..Seat::on(node, &volume, "sleep 3600") });
    };
    forced("forced-beside", "lab-a");
    forced("forced-elsewhere", "lab-b");
    for (pod, reason) in [("forced-beside", "FailedMount"), ("forced-elsewhere", "FailedAttachVolume")] {
        let said = tenant.cluster.lab.wait_for(&format!("{pod} to be refused"), PATIENCE, || {
            let ours = format!("involvedObject.name={pod},reason={reason}");
            let told = tenant.field(&["events", "--field-selector", &ours], ".items[*].message");
            (!told.is_empty()).then_some(told)
        });
        assert_eq!(tenant.field(&["pod", pod], ".status.phase"), "Pending", "{said}");
        tenant.delete("pod", pod);
    }
    tenant.run("first", "echo first > /data/file");
    tenant.delete("pod", "elsewhere");
    tenant.delete("pod", "first");
    tenant.running("beside");
    assert_eq!(tenant.run("beside", "cat /data/file"), "first\n");
}

fn a_group_of_users_gets_the_files(tenant: &Tenant<'_>) {
    tenant.claim("files");
    let volume = claimed("files");
    let write = "umask 077; echo root > /data/root; mkdir /data/deep; echo deep > /data/deep/file";
    tenant.pod("root", &Seat::on("lab-a", &volume, write));
    tenant.ended("root");
    tenant.delete("pod", "root");
    for (pod, node, user, group) in [("ann", "lab-b", 1000, 2000), ("bob", "lab-a", 1001, 2001)] {
        let more = format!(
            "  securityContext: {{ runAsUser: {user}, runAsGroup: 3000, runAsNonRoot: true, fsGroup: {group} }}\n"
        );
        let script = format!(
            "set -e; id -u; cat /data/root /data/deep/file; echo {pod} >> /data/root; echo mine > /data/{pod}; \
             for file in /data /data/root /data/deep /data/deep/file /data/{pod}; do stat -c '%n %u:%g' $file; done"
        );
        tenant.pod(pod, &Seat { more: &more, ..Seat::on(node, &volume, &script) });
        let said = tenant.ended(pod);
        let before = if pod == "ann" { "root\n" } else { "root\nann\n" };
        assert_eq!(
            said,
            format!(
                "{user}\n{before}deep\n/data 0:{group}\n/data/root 0:{group}\n/data/deep 0:{group}\n\
                 /data/deep/file 0:{group}\n/data/{pod} {user}:{group}\n"
            ),
            "{pod}"
        );
        tenant.delete("pod", pod);
    }
}

fn containers_see_their_directory_of_a_volume_only(tenant: &Tenant<'_>) {
    tenant.claim("tree");
    let volume = claimed("tree");
    let mount = "volumeMounts: [{ name: data, mountPath: /a, subPath: one/a }, { name: data, mountPath: /b, subPath: b }, \
                 { name: data, mountPath: /c, subPath: b, readOnly: true }]";
    // One stream: of two, it is open which line comes first.
    let write = "exec 2>&1; set -e; echo a > /a/file; echo b > /b/file; ls /a /b; cat /c/file; \
                 if echo no > /c/file; then exit 1; fi";
    tenant.pod("parts", &Seat { mount, ..Seat::on("lab-a", &volume, write) });
    let said = tenant.ended("parts");
    assert!(
        said.starts_with("/a:\nfile\n\n/b:\nfile\nb\n") && said.contains("Read-only file system"),
        "{said}"
    );
    tenant.delete("pod", "parts");
    let read = "cd /data && cat one/a/file b/file && ls one";
    tenant.pod("whole", &Seat::on("lab-b", &volume, read));
    assert_eq!(tenant.ended("whole"), "a\nb\na\n");
}

fn a_read_only_volume_cannot_be_written_even_by_root(tenant: &Tenant<'_>) {
    tenant.claim("first");
    let volume = claimed("first");
    tenant.pod("writer", &Seat::on("lab-a", &volume, "echo kept > /data/file"));
    tenant.ended("writer");
    tenant.delete("pod", "writer");
    let container = "      securityContext: { privileged: true }\n";
    // The pod says so.
    let read_only = "persistentVolumeClaim: { claimName: first, readOnly: true }";
    tenant.pod("modest", &Seat::on("lab-b", read_only, "sleep 3600"));
    tenant.running("modest");
    assert_eq!(tenant.run("modest", "cat /data/file"), "kept\n");
    let told = tenant.shell("modest", "echo no > /data/file").unwrap_err();
    assert!(told.contains("Read-only file system"), "{told}");
    tenant.delete("pod", "modest");
    // The PersistentVolume says so, written by hand for the volume that is there.
    let pv = tenant.field(&["pvc", "first"], ".spec.volumeName");
    let id = tenant.field(&["pv", &pv], ".spec.csi.volumeHandle");
    let attributes = tenant.field(&["pv", &pv], ".spec.csi.volumeAttributes");
    tenant.kubectl(&[
        "patch",
        "pv",
        &pv,
        "--patch",
        r#"{"spec":{"persistentVolumeReclaimPolicy":"Retain"}}"#,
    ]);
    // Kubernetes tells volumes apart by their handles: a pod that comes before the first attachment is gone would use that one, which may be written to.
    let attached =
        format!("jsonpath={{.items[?(@.spec.source.persistentVolumeName==\"{pv}\")].metadata.name}}");
    tenant.cluster.lab.wait_for("the first attachment to be gone", PATIENCE, || {
        let names = tenant.try_kubectl(&["get", "volumeattachments.storage.k8s.io", "-o", &attached]).ok()?;
        names.is_empty().then_some(())
    });
    tenant.delete("pvc", "first");
    tenant.delete("pv", &pv);
    tenant.apply(&format!(
        "apiVersion: v1\nkind: PersistentVolume\nmetadata:\n  name: by-hand\n  \
         annotations: {{ pv.kubernetes.io/provisioned-by: bowline.storage }}\nspec:\n  \
         storageClassName: bowline-file\n  accessModes: [ReadWriteOnce]\n  capacity: {{ storage: 64Mi }}\n  \
         persistentVolumeReclaimPolicy: Delete\n  \
         csi: {{ driver: bowline.storage, volumeHandle: {id}, readOnly: true, fsType: ext4, volumeAttributes: {attributes} }}\n"
    ));
    tenant.claim_with("second", "ReadWriteOnce", "  volumeName: by-hand\n");
    let volume = claimed("second");
    tenant.pod("reader", &Seat { container, ..Seat::on("lab-b", &volume, "sleep 3600") });
    tenant.running("reader");
    assert_eq!(tenant.run("reader", "cat /data/file"), "kept\n");
    cannot_write(tenant, "reader");
}
