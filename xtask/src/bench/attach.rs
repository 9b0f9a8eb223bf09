//! What an attach costs, beside how many volumes there are and beside what the disk alone costs.

use anyhow::{Context, Result};
use bowline_engine::Engine;
use bowline_store::{Expected, Key, MemoryStore, RedbStore, Store};
use bowline_testkit::SimTarget;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

use super::room::{attach, detach, engine, volume};
use super::{Row, median, ratio, scratch, shown};

const SHORTLY: Duration = Duration::from_millis(20);
const SOON: Duration = Duration::from_secs(1);

pub(crate) fn rows() -> Result<Vec<Row>> {
    let runtime = Runtime::new()?;
    // As a server's calls run: on the runtime's own threads, not on one that must be woken for each answer.
    runtime.block_on(runtime.spawn(async {
        let mut rows = vec![many_volumes().await?];
        rows.extend(beside_one_commit().await?);
        rows.extend(all_at_once().await?);
        Ok(rows)
    }))?
}

/// The same work on a hundred volumes, once with no others and once among ten thousand, all of them attached.
async fn many_volumes() -> Result<Row> {
    let (few, many) = (crowd(100).await?, crowd(10_000).await?);
    let (mut with_few, mut with_many) = (Vec::new(), Vec::new());
    for round in 0..4000 {
        with_few.push(attach_and_detach(&few, round % 100).await?);
        with_many.push(attach_and_detach(&many, (round % 100) * 97).await?);
    }
    let (with_few, with_many) = (median(with_few), median(with_many));
    Ok(Row {
        what: "attach + detach, memory store, 10,000 volumes present".to_owned(),
        measured: shown(with_many),
        beside: format!("100 volumes: {}", shown(with_few)),
        ratio: Some(ratio(with_many, with_few)),
        goal: Some(1.2),
    })
}

async fn crowd(volumes: usize) -> Result<Engine> {
    let engine =
        engine(Arc::new(MemoryStore::default()), Arc::new(SimTarget::new("sim")), volumes, SOON).await?;
    for n in 0..volumes {
        attach(&engine, &volume(n)?).await?;
    }
    // Until nothing is left to be written and every actor has gone.
    tokio::time::sleep(SOON * 3).await;
    Ok(engine)
}

async fn attach_and_detach(engine: &Engine, n: usize) -> Result<Duration> {
    let volume = volume(n)?;
    timed(async {
        detach(engine, &volume).await?;
        attach(engine, &volume).await
    })
    .await
}

async fn timed(work: impl Future<Output = Result<()>>) -> Result<Duration> {
    let begin = Instant::now();
    work.await?;
    Ok(begin.elapsed())
}

/// An attach and a detach through redb, beside one bare durable commit of the same bytes to a file of the same making
/// beside it. After each turn there is time for what only confirms to be written and for the actor to go, as there is
/// between the calls of a cluster; neither is measured.
async fn beside_one_commit() -> Result<Vec<Row>> {
    let directory = scratch()?;
    let store = Arc::new(RedbStore::open(&directory.path().join("store"))?);
    let rounds = 200;
    let engine = engine(Arc::clone(&store) as _, Arc::new(SimTarget::new("sim")), rounds, SHORTLY).await?;
    let bare = bare(&directory.path().join("bare")).await?;
    let (mut attaches, mut detaches, mut commits) = (Vec::new(), Vec::new(), Vec::new());
    let mut written = Vec::new();
    for n in 0..rounds {
        let volume = volume(n)?;
        // Now before and now after, because what comes second finds the disk and the caches as the first left them.
        if n % 2 == 0 {
            commits.push(commit(&bare, volume.as_str(), &written)?);
        }
        attaches.push(timed(attach(&engine, &volume)).await?);
        tokio::time::sleep(SHORTLY * 2).await;
        written = store.get(&Key::ledger(&volume)).await?.map(|entry| entry.value).unwrap_or_default();
        if n % 2 == 1 {
            commits.push(commit(&bare, volume.as_str(), &written)?);
        }
        detaches.push(timed(detach(&engine, &volume)).await?);
        tokio::time::sleep(SHORTLY * 2).await;
    }
    let (attaches, detaches, commits) = (median(attaches), median(detaches), median(commits));
    let row = |what: &str, time| Row {
        what: format!("{what} through redb"),
        measured: shown(time),
        beside: format!("one bare commit: {}", shown(commits)),
        ratio: Some(ratio(time, commits)),
        goal: Some(1.3),
    };
    Ok(vec![row("attach", attaches), row("detach", detaches)])
}

/// A file as the store makes it, opened by redb alone. (A file that redb makes itself is sparse, and a commit that
/// must also find room for its bytes costs several times as much.)
pub(crate) async fn bare(directory: &std::path::Path) -> Result<redb::Database> {
    let store = RedbStore::open(directory)?;
    store.put(&Key::ledger(&volume(0)?), Vec::new(), Expected::Absent).await?;
    drop(store);
    let mut files = std::fs::read_dir(directory)?.filter_map(|entry| Some(entry.ok()?.path()));
    let file = files.find(|path| path.extension().is_some_and(|end| end == "redb"));
    Ok(redb::Database::open(file.context("the store has a file")?)?)
}

pub(crate) fn commit(bare: &redb::Database, key: &str, value: &[u8]) -> Result<Duration> {
    const TABLE: redb::TableDefinition<'_, &str, &[u8]> = redb::TableDefinition::new("bare");
    let begin = Instant::now();
    let transaction = bare.begin_write()?;
    transaction.open_table(TABLE)?.insert(key, value)?;
    transaction.commit()?;
    Ok(begin.elapsed())
}

/// A thousand at once share their commits.
async fn all_at_once() -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    let directory = scratch()?;
    let redb: Arc<dyn Store> = Arc::new(RedbStore::open(&directory.path().join("store"))?);
    for (name, store) in [("memory", Arc::new(MemoryStore::default()) as Arc<dyn Store>), ("redb", redb)] {
        let engine = engine(store, Arc::new(SimTarget::new("sim")), 2000, SOON).await?;
        let alone = Instant::now();
        for n in 1000..1020 {
            attach(&engine, &volume(n)?).await?;
        }
        let alone = alone.elapsed() / 20;
        let begin = Instant::now();
        let tasks: Vec<_> = (0..1000)
            .map(|n| {
                let engine = engine.clone();
                tokio::spawn(async move { attach(&engine, &volume(n)?).await })
            })
            .collect();
        for task in tasks {
            task.await??;
        }
        let all = begin.elapsed();
        rows.push(Row {
            what: format!("1,000 attaches at once, {name}"),
            measured: format!("{} ({:.0}/s)", shown(all), 1000.0 / all.as_secs_f64()),
            beside: format!("1,000 one after the other: {}", shown(alone * 1000)),
            ratio: Some(ratio(all, alone * 1000)),
            goal: None,
        });
    }
    Ok(rows)
}
