//! Power that fails: of what was written since the last sync, any part may be on the disk, in any order.

use std::fs::{self, File};
use std::io;
use std::ops::Bound;
use std::sync::{Arc, Mutex};

use ::redb::backends::FileBackend;
use ::redb::{BackendError, StorageBackend};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::disk::Device;
use super::*;

/// A sector is what a disk writes as one.
const SECTOR: usize = 512;

#[derive(Debug, Clone)]
enum Step {
    Length(u64),
    Write(u64, Vec<u8>),
    Sync,
}

#[derive(Debug, Clone, Default)]
struct Recorder(Arc<Mutex<Vec<Step>>>);

impl Recorder {
    fn device(&self) -> Device {
        let recorder = self.clone();
        Arc::new(move |file: File| {
            let file = FileBackend::new(file).map_err(io::Error::other)?;
            Ok(Box::new(Recorded { file, recorder: recorder.clone() }))
        })
    }

    fn note(&self, step: Step) {
        self.0.lock().unwrap().push(step);
    }

    fn len(&self) -> usize {
        self.0.lock().unwrap().len()
    }
}

#[derive(Debug)]
struct Recorded {
    file: FileBackend,
    recorder: Recorder,
}

impl StorageBackend for Recorded {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.recorder.note(Step::Length(len));
        self.file.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.recorder.note(Step::Sync);
        self.file.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.recorder.note(Step::Write(offset, data.to_vec()));
        self.file.write(offset, data)
    }

    fn close(&self) -> io::Result<()> {
        self.file.close()
    }

    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.file.try_lock_range(start, end)
    }

    fn unlock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.file.unlock_range(start, end)
    }
}

/// The records' counts, in the order they were written, and where in the recording each was acknowledged.
struct Story {
    base: Vec<u8>,
    id: Vec<u8>,
    steps: Vec<Step>,
    acknowledged: Vec<usize>,
}

fn name(n: usize) -> Key {
    Key::new(Kind::Ledger, format!("db-{}", n % 5))
}

fn text(n: usize) -> Vec<u8> {
    format!("{n} ").repeat(1 + n * n * 7 % 9000).into_bytes()
}

#[tokio::main(flavor = "current_thread")]
async fn record() -> Story {
    let dir = tempfile::tempdir().unwrap();
    drop(RedbStore::open(dir.path()).unwrap());
    let read = |name: &str| fs::read(dir.path().join(name)).unwrap();
    let (base, id) = (read("bowline.redb"), read("bowline.id"));
    let recorder = Recorder::default();
    let store = RedbStore::open_on(dir.path(), HistoryLimits::default(), recorder.device()).unwrap();
    let mut acknowledged = Vec::new();
    for n in 0..60 {
        let current = store.get(&name(n)).await.unwrap();
        let expected = current.map_or(Expected::Absent, |entry| Expected::At(entry.revision));
        store.put(&name(n), text(n), expected).await.unwrap();
        acknowledged.push(recorder.len());
    }
    // What closing it writes is not part of the story: the power is gone.
    let steps = recorder.0.lock().unwrap().clone();
    Story { base, id, steps, acknowledged }
}

impl Story {
    /// The disk when the power fails after `cut` steps; `luck` chooses what of the last ones reached it.
    fn disk(&self, cut: usize, luck: &[u8]) -> Vec<u8> {
        let synced = self.steps[..cut].iter().rposition(|step| matches!(step, Step::Sync)).unwrap_or(0);
        let mut bytes = self.base.clone();
        let mut luck = luck.iter().cycle().copied();
        for (n, step) in self.steps[..cut].iter().enumerate() {
            match step {
                Step::Length(length) if n < synced || luck.next() > Some(127) => {
                    bytes.resize(usize::try_from(*length).unwrap(), 0);
                }
                Step::Write(offset, data) => {
                    for (sector, part) in data.chunks(SECTOR).enumerate() {
                        let at = usize::try_from(*offset).unwrap() + sector * SECTOR;
                        if n >= synced && luck.next() <= Some(127) {
                            continue;
                        }
                        bytes.resize(bytes.len().max(at + part.len()), 0);
                        bytes[at..at + part.len()].copy_from_slice(part);
                    }
                }
                Step::Length(_) | Step::Sync => {}
            }
        }
        bytes
    }

    #[tokio::main(flavor = "current_thread")]
    async fn check(&self, cut: usize, luck: &[u8]) {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("bowline.redb"), self.disk(cut, luck)).unwrap();
        fs::write(dir.path().join("bowline.id"), &self.id).unwrap();
        let store = RedbStore::open(dir.path()).unwrap_or_else(|error| panic!("cut at {cut}: {error}"));
        let found = usize::try_from(store.read(schema::revision).unwrap().number()).unwrap();
        let promised = self.acknowledged.iter().filter(|step| **step <= cut).count();
        assert!(
            found == promised || found == promised + 1,
            "cut at {cut}: {promised} promised, {found} found"
        );
        for n in found.saturating_sub(5)..found {
            let entry = store.get(&name(n)).await.unwrap().unwrap();
            assert!(entry.value == text(n), "cut at {cut}: write {n} is not whole");
        }
    }
}

#[test]
fn what_was_acknowledged_survives_a_power_failure() {
    let story = record();
    let first = story.acknowledged[0];
    let mut runner = TestRunner::new(Config { failure_persistence: None, ..Config::with_cases(150) });
    let case = (first..=story.steps.len(), prop::collection::vec(any::<u8>(), 1..40));
    runner
        .run(&case, |(cut, luck)| {
            story.check(cut, &luck);
            Ok(())
        })
        .unwrap();
    for cut in &story.acknowledged {
        story.check(*cut, &[0]);
    }
}
