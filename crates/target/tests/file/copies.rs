//! Copies of snapshots that the end of the process interrupts, where blocks cannot be shared: they go on, and whatever does not fit
//! is begun anew.

use crate::lab::{EMPTY, GENEROUS, Lab, MIB, Raw, cut, lab, listed, open, order, say, snapshot, volume};
use bowline_host::file;
use bowline_target::contract::provision::Bytes;
use bowline_target::{Item, NewVolume, Progress, Provision, ProvisionError, Source};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::SystemTime;

const DIRECTORY: &str = "BOWLINE_FILE_COPY";
const POINTS: &str = "BOWLINE_FAILPOINTS";
/// Where the volume has bytes, in MiB: 16 of them, so that there is a mark after at least every 4.
const DATA: [(u64, u64); 3] = [(0, 7), (9, 14), (19, 23)];
const ALL: u64 = 16 * MIB;
const STEP: u64 = ALL / 4;
/// What else a process reads: its records, and what the kernel says.
const BESIDE: u64 = MIB;

fn wanted() -> NewVolume {
    order("new", 32 * MIB, Some(Source::Snapshot(snapshot("old"))))
}

fn bytes_read() -> u64 {
    let counters = fs::read_to_string("/proc/self/io").unwrap();
    counters.lines().find_map(|line| line.strip_prefix("rchar: ")).unwrap().parse().unwrap()
}

/// The process that ends. As a test of its own it does nothing.
#[test]
fn child() {
    let (Ok(directory), Ok(points)) = (std::env::var(DIRECTORY), std::env::var(POINTS)) else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let progress = Arc::new(Progress::default());
    let shown = progress.clone();
    std::thread::spawn(move || {
        let mut last = 0;
        while let Ok(mut told) =
            File::options().create(true).append(true).open(Path::new(&points).join("told"))
        {
            let (copied, _) = shown.read();
            if copied != last {
                writeln!(told, "{copied}").unwrap();
                last = copied;
            }
            std::thread::yield_now();
        }
    });
    let target = open(Path::new(&directory), GENEROUS).unwrap();
    let before = bytes_read();
    runtime.block_on(target.create(&wanted(), &progress)).unwrap();
    say(&format!("\nread {}", bytes_read() - before));
}

/// A directory on a filesystem that cannot share blocks, with a snapshot.
struct Stage<'a> {
    lab: &'a Lab,
    directory: PathBuf,
    points: PathBuf,
    /// What the snapshot holds.
    bytes: Vec<u8>,
}

impl<'a> Stage<'a> {
    fn set(lab: &'a Lab) -> Self {
        let directory = lab.scratch("ext4", 160).join("v");
        let target = lab.open(&directory);
        lab.create(&target, &order("a", 24 * MIB, None)).unwrap();
        let mut bytes = vec![0; 24 << 20];
        for (begin, end) in DATA {
            let begin = usize::try_from(begin * MIB).unwrap();
            let stretch = &mut bytes[begin..usize::try_from(end * MIB).unwrap()];
            for (index, word) in stretch.chunks_mut(8).enumerate() {
                word.copy_from_slice(
                    &((begin + index) as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes(),
                );
            }
            Raw(&target).write(&volume("a"), begin as u64, stretch);
        }
        lab.snapshot(&target, &[cut("old", "a")]).unwrap();
        Self { lab, directory, points: lab.path("points"), bytes }
    }

    fn start(&self, arm: Option<&str>) -> Child {
        let _ = fs::remove_dir_all(&self.points);
        fs::create_dir_all(&self.points).unwrap();
        if let Some(arm) = arm {
            fs::write(self.points.join("arm"), arm).unwrap();
        }
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "copies::child", "--nocapture"])
            .env(DIRECTORY, &self.directory)
            .env(POINTS, &self.points)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    }

    /// Asks for the copy and ends the process at a point. Says how many marks it made.
    fn interrupted(&self, arm: &str) -> u64 {
        let mut child = self.start(Some(arm));
        self.wait_for_stop(&mut child, arm);
        child.kill().unwrap();
        child.wait().unwrap();
        self.marks()
    }

    fn wait_for_stop(&self, child: &mut Child, arm: &str) {
        while !self.points.join("stopped").exists() {
            assert!(child.try_wait().unwrap().is_none(), "it was not stopped at {arm}");
            std::thread::yield_now();
        }
    }

    fn log(&self) -> Vec<String> {
        let log = fs::read_to_string(self.points.join("log")).unwrap_or_default();
        log.lines().map(str::to_owned).collect()
    }

    fn marks(&self) -> u64 {
        self.log().iter().filter(|point| *point == "target.mark.after").count() as u64
    }

    /// Asks for the copy, and says how many bytes it took to have all of it.
    fn finished(&self) -> u64 {
        let output = self.start(None).wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        let read = text.lines().find_map(|line| line.strip_prefix("read "));
        let read = read.unwrap_or_else(|| panic!("{text}")).parse().unwrap();
        self.is_whole();
        read
    }

    /// The volume is what was asked for, and nothing of how it came to be is left.
    fn is_whole(&self) {
        let made = fs::read(self.directory.join("vol-new.data")).unwrap();
        assert_eq!(made.len(), 32 << 20);
        assert!(made[..self.bytes.len()] == self.bytes, "it is not what the snapshot holds");
        assert!(made[self.bytes.len()..].iter().all(|byte| *byte == 0));
        assert!(!self.directory.join("vol-new.part").exists());
        let whole = File::open(self.directory.join("vol-new.data")).unwrap();
        // Whoever ended between the last step and this one left it; on what is whole nobody looks at it.
        let asked_twice = self.log().iter().all(|point| point != "target.rename.after");
        assert!(asked_twice || file::mark(&whole).unwrap().is_none(), "it is whole");
        assert!(file::allocated(&whole.metadata().unwrap()) < ALL + MIB, "the holes were copied");
    }

    fn delete(&self) {
        let target = self.lab.open(&self.directory);
        self.lab.runtime.block_on(target.delete(&volume("new"))).unwrap();
        drop(target);
        assert_eq!(self.left(), [""; 0]);
    }

    /// What there is of the copy.
    fn left(&self) -> Vec<String> {
        listed(&self.directory).into_iter().filter(|name| name.starts_with("vol-new.")).collect()
    }

    fn part(&self) -> PathBuf {
        self.directory.join("vol-new.part")
    }
}

#[test]
fn a_copy_that_is_ended_at_any_point_goes_on_where_it_stopped() {
    lab("copies::a_copy_that_is_ended_at_any_point_goes_on_where_it_stopped", &["mkfs.ext4"], |lab| {
        let stage = Stage::set(lab);
        let read = stage.finished();
        assert!((ALL..ALL + BESIDE).contains(&read), "{read}");
        let points = stage.log();
        assert!((3..=5).contains(&stage.marks()), "{points:?}");
        stage.delete();
        for (index, point) in points.iter().enumerate() {
            let marks = stage.interrupted(&index.to_string());
            let target = lab.open(&stage.directory);
            let capacity = lab.runtime.block_on(target.capacity()).unwrap();
            let items = lab.runtime.block_on(target.items(None, 9)).unwrap();
            let made = lab.runtime.block_on(target.volume(&volume("new"))).unwrap();
            drop(target);
            let there = !stage.left().is_empty();
            assert_eq!(there, made.is_some() || marks > 0, "{point}: {:?}", stage.left());
            assert_eq!(items.contains(&Item::Volume(volume("new"))), there, "{point}");
            let held = 24 * MIB + 17 * MIB + if there { 32 * MIB } else { 0 };
            assert!(capacity.promised.abs_diff(held) <= MIB, "{point}: {capacity:?}");
            let read = stage.finished();
            let most = if made.is_some() { 0 } else { ALL.saturating_sub(marks * STEP) };
            assert!(read <= most + BESIDE, "{point}, after {marks} marks: {read} bytes were read");
            stage.delete();
        }
        say(&format!("ended at each of {} points", points.len()));
    });
}

#[test]
fn a_copy_that_is_ended_again_and_again_arrives() {
    lab("copies::a_copy_that_is_ended_again_and_again_arrives", &["mkfs.ext4"], |lab| {
        let stage = Stage::set(lab);
        stage.finished();
        let marks = stage.marks();
        stage.delete();
        for run in 0..marks {
            assert_eq!(stage.interrupted("target.mark.after 0"), 1, "run {run}");
        }
        let read = stage.finished();
        assert!(read < BESIDE, "nothing was left to copy, and {read} bytes were read");
        stage.delete();
    });
}

#[test]
fn the_progress_of_a_copy_that_goes_on_begins_where_it_stopped() {
    lab("copies::the_progress_of_a_copy_that_goes_on_begins_where_it_stopped", &["mkfs.ext4"], |lab| {
        let stage = Stage::set(lab);
        assert_eq!(stage.interrupted("target.mark.after 1"), 2);
        let arm = "target.mark.before 0";
        let mut child = stage.start(Some(arm));
        stage.wait_for_stop(&mut child, arm);
        let told = || -> Vec<u64> {
            let told = fs::read_to_string(stage.points.join("told")).unwrap_or_default();
            told.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')?.parse().ok()).collect()
        };
        while told().last().is_none_or(|copied| *copied < 3 * STEP) {
            assert!(child.try_wait().unwrap().is_none());
            std::thread::yield_now();
        }
        child.kill().unwrap();
        child.wait().unwrap();
        let told = told();
        assert!(told[0] >= 2 * STEP, "{told:?}");
        assert!(told.iter().all(|copied| *copied <= ALL + MIB), "{told:?}");
        stage.delete();
    });
}

type Change = fn(&Stage<'_>);

/// What was done to a copy that had come half way, or to what it is made from.
const ROWS: &[(&str, Change)] = &[
    ("no mark", |stage| file::remove_mark(&File::open(stage.part()).unwrap()).unwrap()),
    ("a spoiled mark", |stage| {
        let part = File::open(stage.part()).unwrap();
        let mut mark = file::mark(&part).unwrap().unwrap();
        let middle = mark.len() / 2;
        mark[middle] ^= 1;
        file::set_mark(&part, &mark).unwrap();
    }),
    ("another label", |stage| {
        file::set_label(&File::open(stage.part()).unwrap(), "volume new of elsewhere").unwrap();
    }),
    ("a copy of the copy", |stage| {
        let (part, other) = (stage.part(), stage.directory.join("other"));
        fs::copy(&part, &other).unwrap();
        let (from, to) = (File::open(&part).unwrap(), File::open(&other).unwrap());
        file::set_mark(&to, &file::mark(&from).unwrap().unwrap()).unwrap();
        file::set_label(&to, &file::label(&from).unwrap().unwrap()).unwrap();
        fs::rename(other, part).unwrap();
    }),
    ("a copy shorter than its mark", |stage| {
        File::options().write(true).open(stage.part()).unwrap().set_len(STEP).unwrap();
    }),
    ("a snapshot that was written to", |stage| {
        let source = File::options().write(true).open(stage.directory.join("snap-old.data")).unwrap();
        source.write_all_at(&stage.bytes[..8], 0).unwrap();
        source.set_modified(SystemTime::now()).unwrap();
    }),
    ("another file in the snapshot's place", |stage| {
        let (source, other) = (stage.directory.join("snap-old.data"), stage.directory.join("other"));
        let (from, to) = (File::open(&source).unwrap(), file::create_new(&other).unwrap());
        to.set_len(24 * MIB).unwrap();
        file::copy_sparse(&from, &to, 0..24 * MIB, &mut |_, _| Ok(())).unwrap();
        to.set_modified(from.metadata().unwrap().modified().unwrap()).unwrap();
        fs::rename(other, source).unwrap();
    }),
];

#[test]
fn what_does_not_fit_is_begun_anew() {
    lab("copies::what_does_not_fit_is_begun_anew", &["mkfs.ext4"], |lab| {
        let stage = Stage::set(lab);
        for (what, change) in ROWS {
            stage.interrupted("target.mark.after 1");
            // What is begun anew must not show through anywhere.
            File::options().write(true).open(stage.part()).unwrap().write_all_at(b"foreign", 64).unwrap();
            change(&stage);
            let read = stage.finished();
            assert!((ALL..ALL + BESIDE).contains(&read), "{what}: {read}");
            stage.delete();
        }
    });
}

#[test]
fn another_order_of_the_same_volume_begins_anew() {
    lab("copies::another_order_of_the_same_volume_begins_anew", &["mkfs.ext4"], |lab| {
        let stage = Stage::set(lab);
        let target = lab.open(&stage.directory);
        lab.create(&target, &order("b", MIB, None)).unwrap();
        Raw(&target).write(&volume("b"), 0, b"b");
        lab.snapshot(&target, &[cut("other", "b")]).unwrap();
        drop(target);
        let from = |id| Some(Source::Snapshot(snapshot(id)));
        for (size, source) in
            [(28, from("old")), (32, from("other")), (32, None), (32, Some(Source::Volume(volume("b"))))]
        {
            stage.interrupted("target.mark.after 1");
            let target = lab.open(&stage.directory);
            assert!(stage.part().exists());
            lab.create(&target, &order("new", size * MIB, source.clone())).unwrap();
            let (made, mut expected) = (Raw(&target).read(&volume("new"), 0, 24 << 20), vec![0; 24 << 20]);
            match source {
                Some(source) if Some(&source) == from("old").as_ref() => expected.clone_from(&stage.bytes),
                Some(_) => expected[0] = b'b',
                None => {}
            }
            assert!(made == expected, "{size} MiB");
            assert_eq!(
                lab.runtime.block_on(target.volume(&volume("new"))).unwrap().unwrap().size,
                size * MIB
            );
            drop(target);
            stage.delete();
        }
    });
}

#[test]
fn a_copy_that_nobody_wants_any_more_leaves_nothing() {
    lab("copies::a_copy_that_nobody_wants_any_more_leaves_nothing", &["mkfs.ext4"], |lab| {
        let stage = Stage::set(lab);
        let promised = || {
            let target = lab.open(&stage.directory);
            lab.runtime.block_on(target.capacity()).unwrap().promised
        };
        let before = promised();
        stage.interrupted("target.mark.after 1");
        let names = ["vol-new.json", "vol-new.lock", "vol-new.part", "vol-new.recent"];
        assert_eq!(stage.left(), names, "an earlier Bowline knows all of these, and sweeps them");
        assert_eq!(promised(), before + 32 * MIB, "its room is its own");
        stage.delete();
        assert_eq!(promised(), before);

        // It is asked for again, and what it was made from is gone.
        stage.interrupted("target.mark.after 1");
        let target = lab.open(&stage.directory);
        lab.runtime.block_on(target.delete_snapshot(&snapshot("old"))).unwrap();
        let refused = lab.create(&target, &wanted());
        assert!(matches!(refused, Err(ProvisionError::Unknown { .. })), "{refused:?}");
        assert_eq!(stage.left(), [""; 0]);

        // It is gone before the next start.
        lab.snapshot(&target, &[cut("old", "a")]).unwrap();
        drop(target);
        stage.interrupted("target.mark.after 1");
        let target = lab.open(&stage.directory);
        lab.runtime.block_on(target.delete_snapshot(&snapshot("old"))).unwrap();
        lab.runtime.block_on(target.delete(&volume("a"))).unwrap();
        drop(target);
        assert_eq!(promised(), 0);
        assert_eq!(listed(&stage.directory), EMPTY);
    });
}
