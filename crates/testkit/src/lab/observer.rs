//! Somebody who looks at the target and at the kernel, and believes nobody else.
//!
//! # Flow
//! A thread reads, many times a second: which loop devices there are and which file each is on (`/sys/block/loop*/loop/backing_file`),
//! which of them each node has mounted (`mountinfo` of the node's first process), and whom the records beside the files let in. It
//! asks nothing of Bowline, and reads the records with code of its own.
//!
//! # Guarantees
//! Whatever it reports as a violation was true at one moment: a mount counts only if it was there before and after the others were
//! looked at, and the record of a volume is read after the grants that it may have closed.
//!
//! # Caveats
//! It samples: two nodes that share a volume between two looks are not seen. The devices of a kernel stay for as long as a node uses
//! them, so what it misses is short.

use super::ClusterLab;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long it rests between two looks.
const REST: Duration = Duration::from_millis(20);

/// How large one of the two places for recent grants is.
const PLACE: usize = 4096;

/// Nodes by epoch.
pub type Grants = BTreeMap<u64, String>;

/// What is true of one volume at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Truth {
    /// Whom the target lets in.
    pub let_in: Grants,
    /// Whom the target has shut out, without a proof that nothing of them is left.
    pub draining: Grants,
    /// The loop devices on its file, such as `7:3`.
    pub devices: BTreeSet<String>,
    /// The nodes that have one of them mounted.
    pub mounted: BTreeSet<String>,
}

impl Truth {
    /// Every node that the target has not proven to be out.
    pub fn reach(&self) -> BTreeSet<&str> {
        self.let_in.values().chain(self.draining.values()).map(String::as_str).collect()
    }

    /// What must never be, of a volume for one node at a time.
    fn violation(&self) -> Option<String> {
        let what = if self.reach().len() > 1 {
            "two nodes can reach it at the target"
        } else if self.mounted.len() > 1 {
            "two nodes have it mounted"
        } else if self.devices.len() > 1 {
            "two devices are on its file"
        } else {
            return None;
        };
        Some(format!("{what}: {self:?}"))
    }

    /// A node that has it mounted and is not known at the target. It takes two looks to be sure: a grant is given, used and taken
    /// back while one look lasts, if that is long.
    fn stranger(&self) -> Option<String> {
        let stranger = self.mounted.iter().find(|node| !self.reach().contains(node.as_str()));
        stranger.map(|node| format!("{node} has it mounted and is not let in: {self:?}"))
    }
}

/// What an observer has seen so far.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// How often it looked.
    pub looks: u64,
    /// The longest time between the ends of two looks.
    pub longest: Duration,
    /// Every change of every volume, and when, since the first look.
    pub changes: BTreeMap<String, Vec<(Duration, Truth)>>,
    /// What should never have been.
    pub violations: BTreeSet<String>,
    strangers: BTreeSet<String>,
}

impl Seen {
    /// How many grants there were, of all volumes.
    pub fn grants(&self) -> usize {
        let epochs = |changes: &Vec<(Duration, Truth)>| {
            let all = changes.iter().flat_map(|(_, truth)| truth.let_in.keys().copied());
            all.collect::<BTreeSet<u64>>().len()
        };
        self.changes.values().map(epochs).sum()
    }

    /// How often a volume went from one node to another.
    pub fn moves(&self) -> usize {
        let moves = |changes: &Vec<(Duration, Truth)>| {
            let mut nodes: Vec<&String> =
                changes.iter().flat_map(|(_, truth)| truth.let_in.values()).collect();
            nodes.dedup();
            nodes.len().saturating_sub(1)
        };
        self.changes.values().map(moves).sum()
    }

    /// What is true of a volume as far as is known.
    pub fn now(&self, volume: &str) -> Truth {
        let last = self.changes.get(volume).and_then(|changes| changes.last());
        last.map(|(_, truth)| truth.clone()).unwrap_or_default()
    }

    fn learn(&mut self, at: Duration, truths: BTreeMap<String, Truth>) {
        let gone: Vec<String> =
            self.changes.keys().filter(|volume| !truths.contains_key(*volume)).cloned().collect();
        let gone = gone.into_iter().map(|volume| (volume, Truth::default()));
        let mut strangers = BTreeSet::new();
        for (volume, truth) in truths.into_iter().chain(gone) {
            let at_once = truth.violation();
            let twice = truth.stranger().filter(|_| {
                strangers.insert(volume.clone());
                self.strangers.contains(&volume)
            });
            self.violations.extend(at_once.into_iter().chain(twice).map(|what| format!("{volume}: {what}")));
            let changes = self.changes.entry(volume).or_default();
            if changes.last().is_none_or(|(_, last)| *last != truth) {
                changes.push((at, truth));
            }
        }
        self.strangers = strangers;
        self.looks += 1;
    }
}

/// The observer. It looks until this goes.
pub struct Observer {
    seen: Arc<Mutex<Seen>>,
    end: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Observer {
    /// Begins to look at the volumes in a directory and at the nodes of a lab. A node that is started again later is not looked at.
    pub fn start(lab: &ClusterLab, directory: &Path) -> Self {
        let nodes = lab.nodes().iter().map(|node| (node.name().to_owned(), node.init())).collect();
        let place = Place { directory: directory.to_owned(), nodes };
        let seen: Arc<Mutex<Seen>> = Arc::default();
        let end: Arc<AtomicBool> = Arc::default();
        let (told, ended) = (Arc::clone(&seen), Arc::clone(&end));
        let begun = Instant::now();
        let look = move || {
            let mut last = Duration::ZERO;
            while !ended.load(Ordering::Relaxed) {
                let truths = place.look();
                let now = begun.elapsed();
                let mut seen = told.lock().unwrap_or_else(PoisonError::into_inner);
                seen.learn(now, truths);
                seen.longest = seen.longest.max(now.saturating_sub(last));
                drop(seen);
                last = now;
                std::thread::sleep(REST);
            }
        };
        let thread = std::thread::Builder::new().name("observer".into()).spawn(look).unwrap();
        Self { seen, end, thread: Some(thread) }
    }

    /// What it has seen so far.
    pub fn seen(&self) -> Seen {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What is true of a volume now: as seen by a look that began after this was asked.
    pub fn now(&self, volume: &str) -> Truth {
        let seen = || self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        // One may be under way.
        let enough = seen().looks + 2;
        loop {
            let now = seen();
            if now.looks >= enough || self.thread.as_ref().is_none_or(JoinHandle::is_finished) {
                return now.now(volume);
            }
            drop(now);
            std::thread::sleep(REST);
        }
    }

    /// Panics with all that should never have been.
    pub fn assert_well(&self) {
        let violations = self.seen().violations;
        assert!(violations.is_empty(), "{violations:#?}");
        assert!(self.thread.as_ref().is_some_and(|thread| !thread.is_finished()), "the observer has ended");
    }
}

impl Drop for Observer {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Where to look.
struct Place {
    directory: PathBuf,
    /// The first process of each node.
    nodes: BTreeMap<String, u32>,
}

impl Place {
    fn look(&self) -> BTreeMap<String, Truth> {
        let before = self.mounts();
        let mut truths: BTreeMap<String, Truth> = BTreeMap::new();
        for (device, volume) in self.devices() {
            truths.entry(volume).or_default().devices.insert(device);
        }
        for volume in volumes(&self.directory) {
            if let Some((let_in, draining)) = grants(&self.directory, &volume) {
                let truth = truths.entry(volume).or_default();
                (truth.let_in, truth.draining) = (let_in, draining);
            }
        }
        let after = self.mounts();
        for truth in truths.values_mut() {
            let has = |mounts: &BTreeMap<String, BTreeSet<String>>, node: &String| {
                mounts.get(node).is_some_and(|mounts| !mounts.is_disjoint(&truth.devices))
            };
            truth.mounted =
                self.nodes.keys().filter(|node| has(&before, node) && has(&after, node)).cloned().collect();
        }
        truths
    }

    /// The loop devices on files of the directory, and the volume of each.
    fn devices(&self) -> Vec<(String, String)> {
        let blocks = fs::read_dir("/sys/block").into_iter().flatten().filter_map(Result::ok);
        let device = |path: PathBuf| {
            // No device at all, or one that is on no file: there is no such file.
            let file = fs::read_to_string(path.join("loop/backing_file")).ok()?;
            let number = fs::read_to_string(path.join("dev")).ok()?;
            Some((number.trim().to_owned(), volume_of(&self.directory, file.trim())?))
        };
        blocks.filter_map(|entry| device(entry.path())).collect()
    }

    /// The numbers of the block devices that each node has mounted.
    fn mounts(&self) -> BTreeMap<String, BTreeSet<String>> {
        let mounts = |init: &u32| {
            let text = fs::read_to_string(format!("/proc/{init}/mountinfo")).unwrap_or_default();
            text.lines().filter_map(|line| line.split(' ').nth(2)).map(str::to_owned).collect()
        };
        self.nodes.iter().map(|(node, init)| (node.clone(), mounts(init))).collect()
    }
}

/// The volume whose bytes are in a file.
fn volume_of(directory: &Path, file: &str) -> Option<String> {
    let path = Path::new(file.trim_end_matches(" (deleted)"));
    if path.parent() != Some(directory) {
        return None;
    }
    Some(path.file_name()?.to_str()?.strip_prefix("vol-")?.strip_suffix(".data")?.to_owned())
}

fn volumes(directory: &Path) -> Vec<String> {
    let names = fs::read_dir(directory).into_iter().flatten().filter_map(Result::ok);
    let volume = |name: String| Some(name.strip_prefix("vol-")?.strip_suffix(".json")?.to_owned());
    names.filter_map(|entry| volume(entry.file_name().into_string().ok()?)).collect()
}

/// Whom the records of a volume let in, and whom they have shut out without a proof.
fn grants(directory: &Path, volume: &str) -> Option<(Grants, Grants)> {
    // What is written in place first: a later record says about every earlier grant whether it is still open.
    let places = settled(&directory.join(format!("vol-{volume}.recent")));
    let text = fs::read(directory.join(format!("vol-{volume}.json"))).ok()?;
    let mut record: Value = serde_json::from_slice(&text).ok()?;
    let record = record["record"].take();
    let parsed = places.chunks(PLACE).filter_map(|place| {
        let end = place.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        Some(serde_json::from_slice::<Value>(&place[..end]).ok()?["record"].take())
    });
    let places: Vec<Value> = parsed.filter(|place| place["createdAt"] == record["createdAt"]).collect();
    let count = |said: &Value| said["closings"]["count"].as_u64();
    let newer = places.iter().filter(|place| count(place).is_some() && count(place) > count(&record));
    let newest = newer.max_by_key(|place| count(place)).unwrap_or(&record);
    let highest = newest["exports"]["highest"].as_u64()?;
    let mut let_in = by_epoch(&newest["exports"]["open"]);
    for place in &places {
        let_in.extend(by_epoch(&place["open"]).into_iter().filter(|(epoch, _)| *epoch > highest));
    }
    Some((let_in, by_epoch(&newest["draining"])))
}

fn by_epoch(value: &Value) -> Grants {
    let entry =
        |(epoch, export): (&String, &Value)| Some((epoch.parse().ok()?, export["node"].as_str()?.to_owned()));
    value.as_object().into_iter().flatten().filter_map(entry).collect()
}

/// A file that is written in place, as it was between two writes.
fn settled(path: &Path) -> Vec<u8> {
    let mut last = fs::read(path).unwrap_or_default();
    loop {
        let now = fs::read(path).unwrap_or_default();
        if now == last {
            return now;
        }
        last = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECORD: &str = r#"{"crc32":"00000000","version":1,"record":{"createdAt":"t","closings":{"count":COUNT,"writer":1},"exports":
        {"highest":HIGHEST,"open":{OPEN}},"draining":{DRAINING}}}"#;

    /// What is said of a volume of which this much was closed before.
    fn record(count: u64, highest: u64, open: &str, draining: &str) -> String {
        RECORD
            .replace("COUNT", &count.to_string())
            .replace("HIGHEST", &highest.to_string())
            .replace("OPEN", open)
            .replace("DRAINING", draining)
    }

    /// A directory with one volume, written by hand.
    fn directory(record: &str, recent: [&str; 2], closings: [&str; 2]) -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("vol-v.json"), record).unwrap();
        let mut bytes = vec![0; 4 * PLACE];
        let recent = recent.map(|text| match text {
            "" => String::new(),
            text => format!(r#"{{"record":{{"createdAt":"t","open":{{{text}}}}}}}"#),
        });
        let texts = recent.iter().map(String::as_str).chain(closings);
        for (place, text) in bytes.chunks_mut(PLACE).zip(texts) {
            place[..text.len()].copy_from_slice(text.as_bytes());
        }
        fs::write(directory.path().join("vol-v.recent"), bytes).unwrap();
        directory
    }

    fn look(directory: &Path) -> Seen {
        let place = Place { directory: directory.to_owned(), nodes: BTreeMap::new() };
        let mut seen = Seen::default();
        seen.learn(Duration::ZERO, place.look());
        seen
    }

    const A: &str = r#""3":{"node":"a","mode":{}}"#;
    const B: &str = r#""4":{"node":"b","mode":{}}"#;

    #[test]
    fn two_nodes_at_the_target_are_seen_in_whichever_file_they_are() {
        for (highest, open, draining, recent, wrong) in [
            (4, format!("{A},{B}"), "", ["", ""], true),
            (4, B.to_owned(), A, ["", ""], true),
            (3, A.to_owned(), "", ["", B], true),
            (2, String::new(), "", [&*format!("{A},{B}"), A], true),
            (3, String::new(), A, [A, B], true),
            // a is closed by the record, whatever the other file says.
            (3, String::new(), "", [&*format!("{A},{B}"), A], false),
            (4, B.to_owned(), "", [A, ""], false),
            (3, String::new(), A, ["", ""], false),
            (0, String::new(), "", ["", ""], false),
        ] {
            let (said, older) = (record(2, highest, &open, draining), record(1, 0, "", ""));
            // In the record, or closed in place since: an older record or place says nothing any more.
            for (record, closings) in [
                (&said, ["", ""]),
                (&said, [&*older, ""]),
                (&older, ["", &*said]),
                (&older, [&*said, &*older]),
            ] {
                let directory = directory(record, recent, closings);
                let seen = look(directory.path());
                assert_eq!(
                    !seen.violations.is_empty(),
                    wrong,
                    "{highest} {open} {draining} {recent:?} {closings:?}: {seen:?}"
                );
            }
        }
    }

    fn set(words: &[&str]) -> BTreeSet<String> {
        words.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn what_the_kernel_shows_counts_whatever_the_target_says() {
        let a = Grants::from([(3, "a".to_owned())]);
        for (devices, mounted, wrong) in [
            (set(&["7:1"]), set(&["a"]), false),
            (set(&["7:1"]), set(&["a", "b"]), true),
            (set(&["7:1", "7:2"]), set(&["a"]), true),
            (set(&[]), set(&[]), false),
        ] {
            let truth = Truth { let_in: a.clone(), draining: Grants::new(), devices, mounted };
            let mut seen = Seen::default();
            seen.learn(Duration::ZERO, [("v".to_owned(), truth.clone())].into());
            assert_eq!(!seen.violations.is_empty(), wrong, "{truth:?}");
        }
    }

    #[test]
    fn a_node_that_has_it_mounted_and_is_not_let_in_is_seen_by_the_second_look() {
        let stranger = Truth { mounted: set(&["a"]), devices: set(&["7:1"]), ..Truth::default() };
        let mut seen = Seen::default();
        seen.learn(Duration::ZERO, [("v".to_owned(), stranger.clone())].into());
        assert!(seen.violations.is_empty());
        seen.learn(REST, [("v".to_owned(), stranger)].into());
        assert_eq!(seen.violations.len(), 1);
    }

    #[test]
    fn a_device_belongs_to_the_volume_of_its_file() {
        let place = Path::new("/lab/shared");
        for (file, volume) in [
            ("/lab/shared/vol-pvc-1.data", Some("pvc-1")),
            ("/lab/shared/vol-pvc-1.data (deleted)", Some("pvc-1")),
            ("/lab/other/vol-pvc-1.data", None),
            ("/lab/shared/disk.img", None),
        ] {
            assert_eq!(volume_of(place, file).as_deref(), volume, "{file}");
        }
    }
}
