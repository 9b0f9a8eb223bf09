//! Pods that come and go with their volumes while leaders die and the API server is away.
//!
//! Every volume has a life: writers, one after the other on this node or that, and a reader in the end. A writer first checks that
//! the last line is the one with which the writer before it left. Somebody kills the leader's process at random moments, or
//! asks its pod to go; half way the API server stops. An [`Observer`] looks at the target and at the kernel all the time.
//!
//! `BOWLINE_STORM_PODS` (200 in `make storm`) makes it longer, `BOWLINE_SEED` makes it another one.

use crate::{Cluster, PATIENCE, paused};
use bowline_testkit::lab::{BUSYBOX, ClusterLab, NAMESPACE, Observer, Options};
use bowline_testkit::{Dice, say};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long a pod may take to run, with the leader dying every few seconds.
const COMING: Duration = Duration::from_secs(300);

/// How long the observer may not have looked. It rests for a fiftieth of a second; a writer stays for two seconds at least, and to come and to go takes more.
const BLIND: Duration = Duration::from_secs(5);

fn number(variable: &str, otherwise: u64) -> u64 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

/// A cluster with one directory for all nodes, and that directory.
pub(crate) fn installed(options: &Options, more: &[&str]) -> Option<(Cluster, PathBuf)> {
    let cluster = Cluster::bare(options)?;
    let directory = cluster.lab.directory().join("shared");
    std::fs::create_dir(&directory).unwrap();
    let place = format!("sharedTargets[0].directory={}", directory.display());
    let values = [
        "sharedKernel=lab",
        "fileTarget.enabled=false",
        "sharedTargets[0].name=shared",
        &place,
        // The first question may come before the target is there, and pods wait for the second.
        "sidecars.provisioner.capacityPollInterval=5s",
    ];
    let flags: Vec<&str> = values.iter().chain(more).flat_map(|value| ["--set", *value]).collect();
    cluster.lab.install_chart(&flags).unwrap_or_else(|error| panic!("{error}"));
    Some((cluster, directory))
}

#[test]
fn in_a_storm_of_pods_and_dying_leaders_no_volume_is_ever_on_two_nodes() {
    let begun = Instant::now();
    let Some((cluster, directory)) = installed(&Options::default(), &[]) else { return };
    say(&format!("storm: a cluster with Bowline after {} s", begun.elapsed().as_secs()));
    the_observer_sees_what_should_not_be(&cluster, &directory);
    let observer = Observer::start(&cluster.lab, &directory);
    paused::a_paused_leader_writes_nothing_when_it_wakes(&cluster, &observer);
    let before = observer.seen();
    let grants = Storm::new(&cluster, number("BOWLINE_STORM_PODS", 40), number("BOWLINE_SEED", 1)).blow();
    observer.assert_well();
    nothing_is_left(&cluster, &directory, &observer);
    let seen = observer.seen();
    // Otherwise "no violation" says little: it did not look, or at something else.
    assert!(seen.longest < BLIND, "the observer has seen nothing for {:?}", seen.longest);
    let granted = seen.grants() - before.grants();
    assert!(granted >= grants, "the observer has seen {granted} grants, and there must have been {grants}");
    assert!(seen.moves() > 0, "nothing has moved: {seen:?}");
    say(&format!(
        "storm: {} looks of the observer, the longest pause {} ms, {} grants, {} moves, no violation; {} s in all",
        seen.looks,
        seen.longest.as_millis(),
        seen.grants(),
        seen.moves(),
        begun.elapsed().as_secs()
    ));
}

/// An observer of its own is shown a volume that is mounted on a second node, behind Bowline's back.
fn the_observer_sees_what_should_not_be(cluster: &Cluster, directory: &Path) {
    let lab = &cluster.lab;
    cluster.claim("check", "  accessModes: [ReadWriteOnce]\n");
    cluster.pod("check", "lab-a", "check", "sleep 3600");
    lab.wait_for_pod("default", "check", "Running");
    let volume = cluster.volume_of("check");
    let observer = Observer::start(lab, directory);
    let truth = lab.wait_for("the observer to see the volume", PATIENCE, || {
        Some(observer.now(&volume)).filter(|truth| !truth.mounted.is_empty())
    });
    assert_eq!(truth.mounted.iter().collect::<Vec<_>>(), ["lab-a"], "{truth:?}");
    assert_eq!(truth.reach().into_iter().collect::<Vec<_>>(), ["lab-a"], "{truth:?}");
    observer.assert_well();
    let device = truth.devices.first().unwrap().replace("7:", "/dev/loop");
    let other = lab.node("lab-b");
    other.run_well(&["sh", "-c", &format!("mkdir /run/check && mount {device} /run/check")]);
    let violations = lab.wait_for("the observer to see the second mount", PATIENCE, || {
        Some(observer.seen().violations).filter(|violations| !violations.is_empty())
    });
    assert!(violations.iter().any(|what| what.contains("two nodes have it mounted")), "{violations:?}");
    other.run_well(&["umount", "/run/check"]);
    cluster.delete("pod", "check");
    cluster.delete("pvc", "check");
}

/// What the API server says of a pod.
struct Told {
    phase: String,
    uid: String,
    node: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// To be made.
    Wanted,
    /// Made, and not seen running.
    Coming(Instant),
    /// Running, until then.
    Here(Instant),
    /// The reader, and what it read is well; or there is nothing more to do.
    Read,
    Over,
}

/// The life of one volume.
struct Life {
    name: String,
    writers: u64,
    /// The number of the pod that has it, or wants it.
    at: u64,
    step: Step,
    node: &'static str,
    /// Whether the next one comes while the last one goes.
    overlaps: bool,
    /// The pod that is going.
    leaving: Option<String>,
    /// How many grants its pods need at least: one that follows another on its node may find the volume there.
    grants: usize,
}

impl Life {
    fn pod(&self) -> String {
        format!("{}-{}", self.name, self.at)
    }

    fn is_reader(&self) -> bool {
        self.at == self.writers
    }

    fn script(&self) -> String {
        let (pod, log) = (self.pod(), "/data/log");
        let before = match self.at {
            0 => format!("[ ! -e {log} ] || exit 3"),
            at => {
                let last = format!("{}-{} end", self.name, at - 1);
                format!(
                    "[ \"$(tail -n 1 {log})\" = '{last}' ] || {{ echo 'no {last}:'; tail -n 3 {log}; exit 4; }}"
                )
            }
        };
        if self.is_reader() {
            return format!("{before}; cat {log}");
        }
        format!(
            "trap 'going=1' TERM; {before}; i=0; \
             while [ -z \"$going\" ]; do echo \"{pod} $i\" >> {log} || exit 5; i=$((i+1)); sleep 0.2; done; \
             echo '{pod} end' >> {log} || exit 6"
        )
    }

    fn manifest(&self) -> String {
        let (pod, name, node) = (self.pod(), &self.name, self.node);
        let script = serde_json::to_string(&self.script()).unwrap();
        let claim = format!(
            "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {{ name: {name} }}\nspec:\n  \
             accessModes: [ReadWriteOnce]\n  storageClassName: bowline-file\n  \
             resources: {{ requests: {{ storage: 16Mi }} }}\n---\n"
        );
        let claim = if self.at == 0 { claim } else { String::new() };
        format!(
            "{claim}apiVersion: v1\nkind: Pod\nmetadata: {{ name: {pod}, labels: {{ storm: pod }} }}\nspec:\n  \
             automountServiceAccountToken: false\n  restartPolicy: Never\n  terminationGracePeriodSeconds: 30\n  \
             nodeSelector: {{ kubernetes.io/hostname: {node} }}\n  containers:\n    - name: main\n      \
             image: {BUSYBOX}\n      imagePullPolicy: Never\n      command: [sh, -c, {script}]\n      \
             volumeMounts: [{{ name: data, mountPath: /data }}]\n  volumes:\n    - name: data\n      \
             persistentVolumeClaim: {{ claimName: {name} }}\n---\n"
        )
    }

    /// Panics unless the lines are those of all writers, each from its first to its last, in their order.
    fn check(&self, lines: &str) {
        let mut expected = (0, 0);
        for line in lines.lines() {
            let (pod, rest) = line.split_once(' ').unwrap_or_default();
            assert_eq!(pod, format!("{}-{}", self.name, expected.0), "{line:?} in:\n{lines}");
            expected = if rest == "end" {
                assert!(expected.1 > 0, "{pod} has written nothing:\n{lines}");
                (expected.0 + 1, 0)
            } else {
                assert_eq!(rest, expected.1.to_string(), "{line:?} in:\n{lines}");
                (expected.0, expected.1 + 1)
            };
        }
        assert_eq!(expected, (self.writers, 0), "{lines}");
    }
}

struct Storm<'a> {
    cluster: &'a Cluster,
    dice: Dice,
    lives: Vec<Life>,
    pods: u64,
    outage: Duration,
    /// Whether the API server was away already.
    was_away: bool,
}

impl<'a> Storm<'a> {
    fn new(cluster: &'a Cluster, pods: u64, seed: u64) -> Self {
        let mut dice = Dice::new(seed);
        let volumes = (pods / 3).clamp(1, 20);
        let life = |number: u64| {
            let share = pods / volumes + u64::from(number < pods % volumes);
            let node = dice.pick(&["lab-a", "lab-b"]);
            let writers = share.saturating_sub(1).max(1);
            let name = format!("s{number}");
            Life { name, writers, at: 0, step: Step::Wanted, node, overlaps: false, leaving: None, grants: 1 }
        };
        let lives: Vec<Life> = (0..volumes).map(life).collect();
        let pods = lives.iter().map(|life| life.writers + 1).sum();
        // A minute, where there is time for it.
        let outage = Duration::from_secs(if pods < 100 { 20 } else { 60 });
        Self { cluster, dice, lives, pods, outage, was_away: false }
    }

    /// How many grants it took, at least.
    fn blow(mut self) -> usize {
        let begun = Instant::now();
        let dice = Dice::new(self.dice.below(u64::MAX));
        let (cluster, end) = (self.cluster, AtomicBool::new(false));
        let transitions =
            || cluster.field(&["lease", "bowline-controller", "-n", NAMESPACE], ".spec.leaseTransitions");
        let before = transitions();
        let [kills, switches] = std::thread::scope(|scope| {
            let chaos = scope.spawn(|| chaos(cluster, dice, &end));
            // Also if a check fails: the scope waits for the thread.
            let _end = AtTheEnd(&end);
            while self.lives.iter().any(|life| life.step != Step::Over) {
                self.tick();
                if self.is_high() {
                    self.api_server_goes();
                    self.was_away = true;
                }
                std::thread::sleep(Duration::from_millis(500));
            }
            assert!(self.was_away, "the API server was never away");
            end.store(true, Ordering::Relaxed);
            chaos.join().unwrap()
        });
        assert!(kills > 1, "the leader was killed {kills} times only");
        assert!(switches > 0, "no leader was asked to go");
        say(&format!(
            "storm: {} pods on {} volumes in {} s; {kills} leaders killed, {switches} asked to go, leases from {before} to {}; \
             the API server away for {} s",
            self.pods,
            self.lives.len(),
            begun.elapsed().as_secs(),
            transitions(),
            self.outage.as_secs()
        ));
        self.lives.iter().map(|life| life.grants).sum()
    }

    /// Looks once at all pods, and does what is next. If the API server does not answer, the next tick tries again.
    fn tick(&mut self) {
        let lab = &self.cluster.lab;
        let Some(pods) = pods(lab) else { return };
        let (mut making, mut ending, mut claims) = (vec![], vec![], vec![]);
        let is_half_way = self.is_half_way();
        for life in &mut self.lives {
            if life.leaving.as_ref().is_some_and(|leaving| !pods.contains_key(leaving)) {
                life.leaving = None;
            }
            let pod = pods.get(&life.pod());
            let phase = pod.map_or("", |pod| pod.phase.as_str());
            match life.step {
                Step::Wanted if life.leaving.is_none() || life.overlaps => making.push(life),
                Step::Coming(_) if phase == "Failed" => {
                    panic!("{}: {}", life.pod(), lab.pod_logs("default", &life.pod()))
                }
                Step::Coming(_) if phase == "Running" && !life.is_reader() => {
                    let stays = Duration::from_millis(2000 + self.dice.below(5000));
                    life.step = Step::Here(Instant::now() + stays);
                }
                Step::Coming(_) if phase == "Succeeded" => {
                    if let Ok(lines) = lab.try_kubectl(&["logs", &life.pod()]) {
                        life.check(&lines);
                        life.step = Step::Read;
                    }
                }
                Step::Coming(since) if since.elapsed() > COMING => {
                    let told = lab.kubectl(&["describe", "pod", &life.pod()]);
                    let why = self.cluster.bowline(&["why", &self.cluster.volume_of(&life.name)]);
                    panic!("{} does not come:\n{told}\n{why:?}", life.pod());
                }
                // Where pods come slowly, they are enough only if they wait for each other.
                Step::Here(until) if until <= Instant::now() && !is_half_way => ending.push(life),
                Step::Read if pod.is_some() => ending.push(life),
                Step::Read => claims.push(life),
                Step::Wanted | Step::Coming(_) | Step::Here(_) | Step::Over => {}
            }
        }
        make(lab, making);
        for life in delete(lab, "pod", ending, Life::pod) {
            if life.step == Step::Read {
                continue;
            }
            life.leaving = Some(life.pod());
            life.at += 1;
            life.step = Step::Wanted;
            let other = if life.node == "lab-a" { "lab-b" } else { "lab-a" };
            let roll = self.dice.below(4);
            // On the same node both would have it for a moment.
            life.overlaps = roll < 2;
            if roll < 3 {
                life.node = other;
                life.grants += 1;
            }
        }
        for life in delete(lab, "pvc", claims, |life| life.name.clone()) {
            life.step = Step::Over;
        }
    }

    /// Whether it is time for the API server to go, as soon as enough pods write.
    fn is_half_way(&self) -> bool {
        let made: u64 = self.lives.iter().map(|life| life.at).sum();
        !self.was_away && made * 2 >= self.pods && self.writing_lives() > 0
    }

    /// How many will still write.
    fn writing_lives(&self) -> usize {
        self.lives.iter().filter(|life| !life.is_reader()).count()
    }

    /// Half way, when there are pods that write.
    fn is_high(&self) -> bool {
        let here = self.lives.iter().filter(|life| matches!(life.step, Step::Here(_))).count();
        self.is_half_way() && here >= self.lives.len().div_ceil(4).min(self.writing_lives())
    }

    /// The API server stops for a while: whoever runs goes on writing.
    fn api_server_goes(&self) {
        let lab = &self.cluster.lab;
        let known = pods(lab).unwrap_or_default();
        let here = self.lives.iter().filter(|life| matches!(life.step, Step::Here(_)));
        let writers: Vec<&Told> = here.filter_map(|life| known.get(&life.pod())).collect();
        assert!(!writers.is_empty(), "nobody writes");
        let size = |told: &&Told| {
            let log = format!("cat /var/lib/kubelet/pods/{}/volumes/*/*/mount/log | wc -c", told.uid);
            lab.node(&told.node).run_well(&["sh", "-c", &log]).trim().parse::<u64>().unwrap()
        };
        let begun = Instant::now();
        lab.stop_api_server();
        let before: Vec<u64> = writers.iter().map(size).collect();
        while begun.elapsed() < self.outage {
            std::thread::sleep(Duration::from_millis(100));
        }
        let after: Vec<u64> = writers.iter().map(size).collect();
        lab.start_api_server();
        for (before, after) in before.iter().zip(&after) {
            assert!(
                before < after,
                "a pod stopped writing while the API server was away: {before:?} {after:?}"
            );
        }
        say(&format!("storm: {} pods wrote on without the API server", writers.len()));
    }
}

/// Raises a flag when it goes.
struct AtTheEnd<'a>(&'a AtomicBool);

impl Drop for AtTheEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// All pods of the storm, if the API server answers.
fn pods(lab: &ClusterLab) -> Option<BTreeMap<String, Told>> {
    let columns = "-o=custom-columns=:.metadata.name,:.status.phase,:.metadata.uid,:.spec.nodeName";
    let text = lab.try_kubectl(&["get", "pods", "--selector=storm", "--no-headers", columns]).ok()?;
    let told = |line: &str| {
        let mut words = line.split_whitespace().map(str::to_owned);
        let name = words.next()?;
        Some((name, Told { phase: words.next()?, uid: words.next()?, node: words.next()? }))
    };
    Some(text.lines().filter_map(told).collect())
}

fn make(lab: &ClusterLab, making: Vec<&mut Life>) {
    if making.is_empty() {
        return;
    }
    let file = lab.directory().join("storm.yaml");
    let text: String = making.iter().map(|life| life.manifest()).collect();
    std::fs::write(&file, text).unwrap();
    if lab.try_kubectl(&["apply", "--server-side", "-f", file.to_str().unwrap()]).is_ok() {
        for life in making {
            life.step = Step::Coming(Instant::now());
        }
    }
}

/// Asks for a deletion; those for whom that was heard.
fn delete<'a>(
    lab: &ClusterLab,
    what: &str,
    lives: Vec<&'a mut Life>,
    name: impl Fn(&Life) -> String,
) -> Vec<&'a mut Life> {
    if lives.is_empty() {
        return lives;
    }
    let names: Vec<String> = lives.iter().map(|life| name(life)).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let words = [&["delete", what, "--wait=false", "--ignore-not-found"], &names[..]].concat();
    if lab.try_kubectl(&words).is_ok() { lives } else { vec![] }
}

/// The pod that leads, if the API server answers.
pub(crate) fn leader(lab: &ClusterLab) -> Option<String> {
    let path = "-o=jsonpath={.spec.holderIdentity}";
    let holder = lab.try_kubectl(&["get", "lease", "bowline-controller", "-n", NAMESPACE, path]).ok()?;
    Some(holder).filter(|holder| !holder.is_empty())
}

/// Its process.
pub(crate) fn process(lab: &ClusterLab, leader: &str) -> Option<u32> {
    lab.find_process(&["controller", &format!("--pod-name={leader}")])
}

/// Ends leaders until it is told to stop: how often with SIGKILL, and how often by asking.
fn chaos(cluster: &Cluster, mut dice: Dice, end: &AtomicBool) -> [u32; 2] {
    let lab = &cluster.lab;
    let [mut kills, mut switches] = [0, 0];
    while !end.load(Ordering::Relaxed) {
        let rest = Duration::from_millis(3000 + dice.below(9000));
        let begun = Instant::now();
        while begun.elapsed() < rest && !end.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(50));
        }
        let Some(leader) = leader(lab) else { continue };
        // The first one in any case.
        if dice.below(4) == 0 || switches == 0 {
            let words = ["delete", "pod", &leader, "-n", NAMESPACE, "--wait=false"];
            switches += u32::from(lab.try_kubectl(&words).is_ok());
        } else if let Some(pid) = process(lab, &leader) {
            kills += u32::from(lab.signal(pid, "KILL"));
        }
    }
    [kills, switches]
}

fn nothing_is_left(cluster: &Cluster, directory: &Path, observer: &Observer) {
    let lab = &cluster.lab;
    lab.wait_for("every volume to be gone", PATIENCE, || {
        let kinds = "pv,pvc,volumeattachments.storage.k8s.io,bv,bva,bvs";
        let left = lab.try_kubectl(&["get", kinds, "-o", "name"]).ok()?;
        left.trim().is_empty().then_some(())
    });
    let files = || -> Vec<String> {
        let entries = std::fs::read_dir(directory).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned());
        names.filter(|name| !name.starts_with("directory.")).collect()
    };
    assert_eq!(files(), Vec::<String>::new(), "files are left");
    let seen = observer.seen();
    for volume in seen.changes.keys() {
        let truth = seen.now(volume);
        assert!(truth.devices.is_empty() && truth.mounted.is_empty(), "{volume}: {truth:?}");
    }
    for node in ["lab-a", "lab-b"] {
        let mounts = lab.node(node).run_well(&["cat", "/proc/self/mountinfo"]);
        assert!(!mounts.contains("/dev/loop"), "{node}: {mounts}");
    }
}
