//! The start with ten thousand attached volumes, in a process of its own so that its memory can be told.

use anyhow::{Context, Result, bail};
use bowline_core::{Ledger, Observed, TargetId, Timestamp, VolumeFacts, decide};
use bowline_store::{Expected, Key, RedbStore, Store, record};
use bowline_testkit::{SimTarget, csi, node};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

use super::room::{attach, engine, volume};
use super::{Row, ratio, scratch, shown};

const VOLUMES: usize = 10_000;

pub(crate) fn rows() -> Result<Vec<Row>> {
    let directory = scratch()?;
    let path = directory.path().join("store");
    Runtime::new()?.block_on(fill(&path))?;
    let output = Command::new(std::env::current_exe()?).arg("bench-start").arg(&path).output()?;
    if !output.status.success() {
        bail!("the start failed: {}", String::from_utf8_lossy(&output.stderr));
    }
    let numbers = String::from_utf8(output.stdout)?;
    let number = |name: &str| -> Result<f64> {
        let line = numbers.lines().find_map(|line| line.strip_prefix(name));
        Ok(line.with_context(|| format!("no {name} in {numbers:?}"))?.trim().parse()?)
    };
    let seconds = |name: &str| Ok::<_, anyhow::Error>(Duration::from_secs_f64(number(name)?));
    let (open, list, start) = (seconds("open")?, seconds("list")?, seconds("start")?);
    let memory = number("memory")? / 1024.0;
    Ok(vec![
        Row {
            what: "start with 10,000 ledgers, redb already open".to_owned(),
            measured: shown(start),
            beside: format!("reading and decoding them: {}", shown(list)),
            ratio: Some(ratio(start, list)),
            goal: None,
        },
        Row {
            what: "opening that store, with its integrity check".to_owned(),
            measured: shown(open),
            beside: String::new(),
            ratio: None,
            goal: None,
        },
        Row {
            what: "memory (peak RSS) of that start".to_owned(),
            measured: format!("{memory:.0} MB"),
            beside: "goal: 100 MB".to_owned(),
            ratio: Some(memory / 100.0),
            goal: Some(1.0),
        },
    ])
}

/// Ledgers as an engine leaves them: one ticket, one hold, confirmed.
async fn fill(path: &Path) -> Result<()> {
    let store = Arc::new(RedbStore::open(path)?);
    let value = record::encode(&attached()?)?;
    let mut writes = tokio::task::JoinSet::new();
    for n in 0..VOLUMES {
        let (store, key, value) = (Arc::clone(&store), Key::ledger(&volume(n)?), value.clone());
        writes.spawn(async move { store.put(&key, value, Expected::Absent).await });
    }
    while let Some(written) = writes.join_next().await {
        written??;
    }
    Ok(())
}

fn attached() -> Result<Ledger> {
    let now = Timestamp::UNIX_EPOCH;
    let mut seen = Observed::new(VolumeFacts::new(TargetId::new("sim")?));
    let mut ledger = Ledger::default();
    ledger.submit(csi("a"), now)?;
    ledger = decide(&ledger, &seen, now).next;
    let epoch = ledger.epoch();
    let answer = bowline_core::Answer { epoch, outcome: bowline_core::Outcome::Allowed };
    seen.answers.insert(node("a"), answer);
    Ok(decide(&ledger, &seen, now).next)
}

/// Starts on a filled store and prints what it took.
pub(crate) fn child(path: &Path) -> Result<()> {
    let runtime = Runtime::new()?;
    let begin = Instant::now();
    let store: Arc<dyn Store> = Arc::new(RedbStore::open(path)?);
    println!("open {}", begin.elapsed().as_secs_f64());
    runtime.block_on(async {
        let begin = Instant::now();
        read_all(store.as_ref()).await?;
        println!("list {}", begin.elapsed().as_secs_f64());
        let target = Arc::new(SimTarget::new("sim"));
        let hold = attached()?.holds()[&node("a")].clone();
        for n in 0..VOLUMES {
            let mut fits = Ok(());
            target.tamper(&volume(n)?, |exports| fits = exports.allow(&node("a"), hold.epoch, hold.mode));
            fits?;
        }
        let begin = Instant::now();
        let engine = engine(store, target, VOLUMES + 1, Duration::from_secs(1)).await?;
        println!("start {}", begin.elapsed().as_secs_f64());
        attach(&engine, &volume(VOLUMES)?).await
    })?;
    let status = std::fs::read_to_string("/proc/self/status")?;
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("no VmHWM")?;
    println!("memory {}", peak.trim().trim_end_matches(" kB"));
    Ok(())
}

async fn read_all(store: &dyn Store) -> Result<()> {
    let mut after: Option<String> = None;
    loop {
        let page = store.list(bowline_store::Kind::Ledger, after.as_deref(), 500).await?;
        for entry in &page.entries {
            std::hint::black_box(record::decode::<Ledger>(&entry.value)?);
        }
        match page.next {
            Some(next) => after = Some(next),
            None => return Ok(()),
        }
    }
}
