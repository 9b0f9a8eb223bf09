//! A process that writes is killed at any moment: what it was told is written must be there.
//!
//! The same binary is both sides. The child writes to a store and says on its standard output what was
//! acknowledged; the parent kills it, opens the store and compares.
//! `BOWLINE_CRASH_ROUNDS` sets how often, `BOWLINE_CRASH_SEED` where.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "test code")]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use bowline_store::{Expected, Key, Kind, RedbStore, Store, StoreError};
use bowline_testkit::Dice;

const CHILD: &str = "BOWLINE_CRASH_CHILD";
const WORKERS: u64 = 6;
/// Every worker writes its own records in turn, so that both sides know what can be there.
const NAMES: u64 = 4;

fn main() {
    if let Ok(dir) = std::env::var(CHILD) {
        runtime().block_on(child(Path::new(&dir)));
        return;
    }
    if std::env::args().any(|word| word == "--list") {
        // Test runners list once more for those that are ignored; there is none.
        if !std::env::args().any(|word| word == "--ignored") {
            println!("what_was_acknowledged_survives_a_kill: test");
        }
        return;
    }
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let rounds = number("BOWLINE_CRASH_ROUNDS").unwrap_or(25);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let seed = number("BOWLINE_CRASH_SEED").unwrap_or(u64::from(now.subsec_nanos()));
    println!("crash: {rounds} rounds, BOWLINE_CRASH_SEED={seed}");
    let start = Instant::now();
    let (acknowledged, unacknowledged) = runtime().block_on(parent(rounds, Dice::new(seed)));
    println!(
        "test what_was_acknowledged_survives_a_kill ... ok ({acknowledged} writes acknowledged, {unacknowledged} found \
         without acknowledgement, {:.1?})",
        start.elapsed()
    );
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

fn key(worker: u64, step: u64) -> Key {
    Key::new(Kind::Ledger, format!("worker-{worker}-{}", step % NAMES))
}

/// Says which step it is and proves that it is whole; of a size that goes from nothing to many pages.
fn value(worker: u64, step: u64) -> Vec<u8> {
    let size = Dice::new(worker << 32 | step).below(20_000);
    let mut text = format!("{worker} {step} {size} ");
    text.extend(std::iter::repeat_n(
        char::from(b'a' + u8::try_from(step % 26).unwrap()),
        usize::try_from(size).unwrap(),
    ));
    text.into_bytes()
}

fn step_of(worker: u64, bytes: &[u8]) -> u64 {
    let text = std::str::from_utf8(bytes).unwrap();
    let step = text.split(' ').nth(1).unwrap().parse().unwrap();
    assert!(bytes == value(worker, step), "a record of worker {worker} is half written: {text:.40}");
    step
}

async fn child(dir: &Path) {
    let store = std::sync::Arc::new(RedbStore::open(dir).unwrap());
    println!("open");
    let mut workers = Vec::new();
    for worker in 0..WORKERS {
        let store = std::sync::Arc::clone(&store);
        let mut step = latest(&store, worker).await.map_or(0, |(step, _)| step + 1);
        workers.push(tokio::spawn(async move {
            loop {
                let key = key(worker, step);
                let current = store.get(&key).await.unwrap().map(|entry| entry.revision);
                // Every seventh record goes away before it is made again.
                if let Some(revision) = current.filter(|_| step % 7 == 0) {
                    store.delete(&key, revision).await.unwrap();
                }
                let expected = current.filter(|_| step % 7 != 0).map_or(Expected::Absent, Expected::At);
                store.put(&key, value(worker, step), expected).await.unwrap();
                // One write to the pipe, so that lines of two workers do not mix.
                std::io::stdout().write_all(format!("{worker} {step}\n").as_bytes()).unwrap();
                step += 1;
            }
        }));
    }
    futures::future::join_all(workers).await;
}

/// The last step of a worker that the store has, and all of its records by name.
async fn latest(store: &RedbStore, worker: u64) -> Option<(u64, BTreeMap<Key, u64>)> {
    let mut steps = BTreeMap::new();
    for n in 0..NAMES {
        if let Some(entry) = store.get(&key(worker, n)).await.unwrap() {
            steps.insert(entry.key, step_of(worker, &entry.value));
        }
    }
    steps.values().max().copied().map(|last| (last, steps))
}

async fn parent(rounds: u64, mut dice: Dice) -> (u64, u64) {
    let dir = tempfile::tempdir().unwrap();
    let mut acknowledged: BTreeMap<u64, u64> = BTreeMap::new();
    let (mut count, mut extra) = (0, 0);
    for round in 0..rounds {
        let mut child = spawn(dir.path());
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let open = lines.next().map(Result::unwrap);
        assert_eq!(open.as_deref(), Some("open"), "the store did not open in round {round}");
        // Some are killed at once, some in the middle of the work; the time inside a commit is left to chance.
        let mut left = dice.below(120);
        if round == 0 {
            expect_locked(dir.path(), child.id());
            left += 50;
        }
        for line in lines.by_ref().take(usize::try_from(left).unwrap()) {
            count += note(&mut acknowledged, &line.unwrap());
        }
        for _ in 0..dice.below(200_000) {
            std::hint::spin_loop();
        }
        child.kill().unwrap();
        child.wait().unwrap();
        // What is still in the pipe was said before the kill.
        for line in lines.map_while(Result::ok) {
            count += note(&mut acknowledged, &line);
        }
        let store = RedbStore::open(dir.path()).unwrap_or_else(|error| panic!("round {round}: {error}"));
        for worker in 0..WORKERS {
            extra += compare(&store, worker, acknowledged.get(&worker).copied(), round).await;
            // What was found is there to stay.
            if let Some((last, _)) = latest(&store, worker).await {
                acknowledged.insert(worker, last);
            }
        }
    }
    assert!(count > rounds, "only {count} writes in {rounds} rounds: this run shows nothing");
    (count, extra)
}

fn note(acknowledged: &mut BTreeMap<u64, u64>, line: &str) -> u64 {
    // The kill may cut the last line.
    let Some((worker, step)) = line.split_once(' ') else { return 0 };
    acknowledged.insert(worker.parse().unwrap(), step.parse().unwrap());
    1
}

/// Everything up to the acknowledged step is there, and at most one step more: the one under way.
async fn compare(store: &RedbStore, worker: u64, acknowledged: Option<u64>, round: u64) -> u64 {
    let found = latest(store, worker).await;
    let Some(acknowledged) = acknowledged else {
        assert!(found.is_none_or(|(last, _)| last == 0), "round {round}: more than one step in flight");
        return 0;
    };
    let (last, steps) = found.unwrap_or_else(|| panic!("round {round}: worker {worker} has lost everything"));
    assert!(
        last == acknowledged || last == acknowledged + 1,
        "round {round}: worker {worker} was told {acknowledged} is written, and {last} is there"
    );
    for step in acknowledged.saturating_sub(NAMES - 1)..=acknowledged {
        let name = key(worker, step);
        // The step under way takes the place of the oldest one, and may have deleted it first.
        let replaced = step + NAMES == acknowledged + 1;
        match steps.get(&name) {
            Some(found) => {
                assert!(*found == step || (replaced && *found == acknowledged + 1), "round {round}: {name}");
            }
            None => assert!(replaced && (acknowledged + 1) % 7 == 0, "round {round}: {name} is gone"),
        }
    }
    last - acknowledged
}

fn spawn(dir: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap()).env(CHILD, dir).stdout(Stdio::piped()).spawn().unwrap()
}

fn expect_locked(dir: &Path, pid: u32) {
    match RedbStore::open(dir) {
        Err(StoreError::Locked { path, holder }) => {
            assert_eq!(path, dir.join("bowline.lock"));
            assert!(holder.starts_with(&format!("pid {pid} (crash-")), "{holder}");
            assert!(holder.contains(" on ") && holder.contains(", since 20"), "{holder}");
        }
        other => panic!("two processes have the store: {other:?}"),
    }
}
