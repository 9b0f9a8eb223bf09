//! The cluster lab itself: pods run on both nodes and reach a service, and nothing is left behind.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed check is a panic")]

use bowline_testkit::lab::{BUSYBOX, ClusterLab, Options, wait_for};
use bowline_testkit::say;
use std::collections::BTreeSet;
use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

/// What a lab could leave on this machine.
#[derive(Debug, PartialEq, Eq)]
struct Traces {
    mounts: BTreeSet<String>,
    links: BTreeSet<String>,
    routes: BTreeSet<String>,
    filters: BTreeSet<String>,
    loops: BTreeSet<String>,
    cgroups: BTreeSet<String>,
    settings: Vec<String>,
    directories: BTreeSet<String>,
}

fn lines(program: &str, arguments: &[&str], pick: impl Fn(&str) -> Option<String>) -> BTreeSet<String> {
    let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap());
    let output = Command::new(program).args(arguments).env("PATH", path).output().unwrap();
    String::from_utf8(output.stdout).unwrap().lines().filter_map(pick).collect()
}

impl Traces {
    /// Other tests run at the same time, so only what could be a cluster's is looked at: whatever bears its name or its addresses.
    fn now() -> Self {
        let ours = |line: &str| {
            (line.contains("bowlab") || line.contains("bowline-cluster-")).then(|| line.to_owned())
        };
        let addresses = |line: &str| {
            let is_ours = ["10.213.", "10.214.", "10.96.", "KUBE-"].iter().any(|part| line.contains(part));
            is_ours.then(|| line.to_owned())
        };
        let settings =
            ["vm/overcommit_memory", "kernel/panic", "kernel/panic_on_oops", "net/ipv4/ip_forward"];
        Self {
            mounts: lines("cat", &["/proc/self/mounts"], ours),
            links: lines("ip", &["-o", "link"], ours),
            routes: lines("ip", &["route"], addresses),
            filters: lines("iptables-save", &[], addresses),
            loops: lines("losetup", &["-l", "-n"], ours),
            cgroups: lines("find", &["/sys/fs/cgroup", "-type", "d"], |line| {
                ours(line).or_else(|| line.contains("/k8s.io").then(|| line.to_owned()))
            }),
            settings: settings.map(|name| fs::read_to_string(format!("/proc/sys/{name}")).unwrap()).to_vec(),
            directories: lines("ls", &[std::env::temp_dir().to_str().unwrap()], ours),
        }
    }
}

/// Processes in network namespaces other than ours, or told of a lab.
fn strangers() -> BTreeSet<String> {
    let own = fs::read_link("/proc/self/ns/net").unwrap();
    let processes = fs::read_dir("/proc").unwrap().filter_map(Result::ok).map(|entry| entry.path());
    processes
        .filter(|process| process.file_name().unwrap().to_string_lossy().parse::<u32>().is_ok())
        .filter_map(|process| {
            let line = String::from_utf8_lossy(&fs::read(process.join("cmdline")).ok()?).replace('\0', " ");
            let is_elsewhere = fs::read_link(process.join("ns/net")).is_ok_and(|theirs| theirs != own);
            (is_elsewhere || line.contains("bowline-cluster-"))
                .then(|| format!("{} {line}", process.display()))
        })
        .collect()
}

fn pod(name: &str, node: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, labels: {{app: web}}}}\nspec:\n  nodeName: {node}\n  \
         terminationGracePeriodSeconds: 1\n  containers:\n  - name: web\n    image: {BUSYBOX}\n    imagePullPolicy: Never\n    \
         securityContext: {{privileged: true}}\n    \
         volumeMounts: [{{name: kubelet, mountPath: /var/lib/kubelet, mountPropagation: Bidirectional}}]\n    \
         command: [sh, -c, 'echo started {name}; mkdir /www /var/lib/kubelet/seen; echo {name} > /www/index.html; exec httpd -f -p 8080 -h /www']\n  \
         volumes: [{{name: kubelet, hostPath: {{path: /var/lib/kubelet}}}}]\n---\n"
    )
}

const SERVICE: &str = "apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec: {clusterIP: 10.96.7.7, \
                       selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}\n";

#[test]
fn pods_run_on_both_nodes_and_nothing_is_left() {
    let (before, others) = (Traces::now(), strangers());
    let begun = Instant::now();
    let Some(mut lab) = ClusterLab::start(&Options { snapshots: true, ..Options::default() }) else { return };
    let ready = begun.elapsed();

    let begun = Instant::now();
    lab.apply_text(&format!("{}{}{SERVICE}", pod("a", "lab-a"), pod("b", "lab-b")));
    for name in ["a", "b"] {
        lab.wait_for_pod("default", name, "Running");
        lab.wait_for("what the pod said", Duration::from_secs(20), || {
            lab.pod_logs("default", name).contains(&format!("started {name}")).then_some(())
        });
    }
    let running = begun.elapsed();

    // Each pod reaches the service, and the service reaches both. (The wget of Debian's static busybox crashes.)
    let ask = r"printf 'GET / HTTP/1.0\r\n\r\n' | nc -w 2 10.96.7.7 80 | tail -n 1";
    for name in ["a", "b"] {
        let mut seen = BTreeSet::new();
        lab.wait_for(
            &format!("pod {name} to see both pods behind the service"),
            Duration::from_secs(60),
            || {
                seen.extend(
                    lab.exec("default", name, &["sh", "-c", ask]).ok().filter(|page| !page.is_empty()),
                );
                (seen.len() == 2).then_some(())
            },
        );
    }
    // The API server is a service, too, and a pod has an account there.
    let ask = "nc -w 5 $KUBERNETES_SERVICE_HOST 443 </dev/null && cat /var/run/secrets/kubernetes.io/serviceaccount/token";
    assert!(lab.exec("default", "a", &["sh", "-c", ask]).unwrap().starts_with("ey"), "a token");

    // What a pod mounts for others is seen on its node, there once, and not on this machine.
    lab.exec("default", "a", &["mount", "-t", "tmpfs", "seen", "/var/lib/kubelet/seen"])
        .unwrap_or_else(|error| panic!("{error}"));
    let mounts = lab.node("lab-a").run_well(&["cat", "/proc/self/mounts"]);
    assert_eq!(mounts.lines().filter(|line| line.starts_with("seen ")).count(), 1, "{mounts}");
    assert!(!fs::read_to_string("/proc/self/mounts").unwrap().contains("seen "));
    lab.exec("default", "a", &["umount", "/var/lib/kubelet/seen"]).unwrap();

    // A kubelet that is gone takes the node's readiness with it, not its pods.
    lab.exec("default", "b", &["sh", "-c", "echo kept > /www/mark"]).unwrap();
    lab.stop_kubelet("lab-b");
    lab.wait_for_node("lab-b", false);
    lab.start_kubelet("lab-b");
    lab.wait_for_node("lab-b", true);
    // It is the same pod: a new one would have a new root.
    lab.wait_for("the new kubelet to find the pod", Duration::from_secs(60), || {
        lab.exec("default", "b", &["cat", "/www/mark"]).ok().filter(|mark| mark == "kept\n")
    });

    // A node whose power was cut comes back with its disk, and with its pods started anew.
    fs::write(lab.node("lab-b").var_lib().join("disk"), "").unwrap();
    lab.crash_node("lab-b");
    lab.wait_for_node("lab-b", false);
    lab.restart_node("lab-b");
    lab.wait_for_node("lab-b", true);
    lab.node("lab-b").run_well(&["test", "-e", "/var/lib/disk"]);
    lab.wait_for("the pod to start anew", Duration::from_secs(60), || {
        let page = lab.exec("default", "b", &["sh", "-c", "cat /www/index.html; cat /www/mark || :"]).ok()?;
        (page == "b\n").then_some(())
    });

    // A device that nobody on the node gave back. Its file is known under a path that is gone with the node.
    lab.node("lab-b").run_well(&["truncate", "--size=1M", "/var/lib/bowlab-left"]);
    lab.node("lab-b").run_well(&["losetup", "--find", "/var/lib/bowlab-left"]);
    assert!(Traces::now().loops.iter().any(|line| line.contains("bowlab-left")));

    drop(lab);
    assert_eq!(Traces::now(), before);
    let mut left = BTreeSet::new();
    wait_for("the end of the lab's processes", Duration::from_secs(20), || {
        left = strangers().difference(&others).cloned().collect();
        left.is_empty().then_some(())
    });
    say(&format!(
        "cluster lab: two nodes ready after {:.0} s, two pods running after {:.0} s, nothing left behind",
        ready.as_secs_f64(),
        running.as_secs_f64()
    ));
}
