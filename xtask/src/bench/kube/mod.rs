//! What VolumeAttachments cost in Kubernetes, beside the bare API writes that an attach cannot do without.
//!
//! # Flow
//!
//! One API lab, the real controller and a real file target, each a process of its own. First with a hundred volumes, then with a thousand,
//! then with ten thousand: volumes are made, attached one by one and all at once, and the controller is started anew. A bare client does
//! its writes in turns with that, on the same API server.

mod bare;
mod board;
mod policy;
mod site;

use anyhow::{Context, Result};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::Api;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

use super::{Row, median, ratio, say, shown};
use bare::Bare;
use site::{Site, name};

/// How many attaches and detaches one by one, for a median.
const SINGLES: usize = 60;
/// How often many are attached at once, for a median.
const ROUNDS: usize = 3;
/// Those at once are over in seconds, and differ more from each other.
const STORMS: usize = 7;
const HUNDRED: usize = 100;
const THOUSAND: usize = 1000;
const TEN_THOUSAND: usize = 10_000;
/// What is left unattached for those who measure.
const SPARE: usize = 100;
/// How long what nobody waits for may take to be written.
const QUIET: Duration = Duration::from_secs(120);
/// Between two that are measured one by one, as there is between the calls of a cluster.
const PAUSE: Duration = Duration::from_millis(50);

pub(crate) fn rows() -> Result<Vec<Row>> {
    Runtime::new()?.block_on(measure())
}

/// What it is worth to let the API server mark VolumeAttachments: some three minutes.
pub(crate) fn marks() -> Result<Vec<Row>> {
    Runtime::new()?.block_on(async {
        let begun = Instant::now();
        let Some(mut site) = Site::start(super::driver::binary()?).await? else { return Ok(vec![]) };
        let count = most().min(THOUSAND);
        site.provision(count).await?;
        let rows = policy::rows(&site, count).await?;
        say(&format!("measured in {:.0} s", begun.elapsed().as_secs_f64()));
        Ok(rows)
    })
}

/// With how many volumes, at most.
fn most() -> usize {
    let most = std::env::var("BOWLINE_BENCH_VOLUMES").ok().and_then(|count| count.parse().ok());
    most.unwrap_or(TEN_THOUSAND)
}

async fn measure() -> Result<Vec<Row>> {
    let begun = Instant::now();
    let Some(mut site) = Site::start(super::driver::binary()?).await? else { return Ok(vec![]) };
    say("an API server, a controller and a target run");
    let most = most();
    site.provision(HUNDRED).await?;
    let bare = model(&site, THOUSAND.min(most)).await?;
    let mut rows = Vec::new();
    let alone = one_by_one(&site, &bare, 0).await?;
    rows.extend(alone.rows());
    rows.extend(counted(&site).await?);
    rows.extend(at_once(&site, &bare, HUNDRED).await?);
    if most >= THOUSAND {
        site.provision(THOUSAND).await?;
        rows.extend(at_once(&site, &bare, THOUSAND).await?);
        rows.extend(start_anew(&mut site, THOUSAND).await?);
    }
    if most > THOUSAND {
        site.provision(most).await?;
        let first = THOUSAND - SPARE;
        let time = site.time_attaches(first..most - SPARE).await?;
        say(&format!("{most} volumes, all but {SPARE} attached ({:.0} s)", time.as_secs_f64()));
        settle(&site).await?;
        let crowded = one_by_one(&site, &bare, most - SPARE).await?;
        rows.extend(crowded.beside(&alone, most));
        rows.extend(start_anew(&mut site, most).await?);
        // What is free is given back every half minute.
        tokio::time::sleep(Duration::from_secs(40)).await;
        rows.push(memory(&site, most)?);
    }
    say(&format!("measured in {:.0} s", begun.elapsed().as_secs_f64()));
    Ok(rows)
}

/// The bare client, with objects like those of a volume that is attached.
async fn model(site: &Site, count: usize) -> Result<Bare> {
    site.time_attach(0).await?;
    let ledgers = Api::<bowline_api::VolumeAttachment>::all(site.client.clone());
    let ledger = async || anyhow::Ok(serde_json::to_value(ledgers.get(&site.volumes[0]).await?)?);
    let holding = ledger().await?;
    let attached: VolumeAttachment = site.attachments().get(&name(0)).await?;
    site.time_detach(0).await?;
    let free = ledger().await?;
    Bare::new(&site.client, &site.board, count, [&holding, &free], &attached).await
}

/// Medians of attaches and detaches, ours and bare.
struct Alone {
    attach: Duration,
    detach: Duration,
    bare_attach: Duration,
    bare_detach: Duration,
}

async fn one_by_one(site: &Site, bare: &Bare, first: usize) -> Result<Alone> {
    let (mut attach, mut detach, mut bare_attach, mut bare_detach) = (vec![], vec![], vec![], vec![]);
    for n in 0..SINGLES {
        // Now before and now after, so that whatever one leaves to the other is shared.
        if n % 2 == 0 {
            bare_attach.push(bare.time_attach(n).await?);
            tokio::time::sleep(PAUSE).await;
        }
        attach.push(site.time_attach(first + n).await?);
        tokio::time::sleep(PAUSE).await;
        if n % 2 == 1 {
            bare_attach.push(bare.time_attach(n).await?);
            tokio::time::sleep(PAUSE).await;
        }
        bare_detach.push(bare.time_detach(n).await?);
        tokio::time::sleep(PAUSE).await;
        detach.push(site.time_detach(first + n).await?);
        tokio::time::sleep(PAUSE).await;
    }
    let (attach, detach) = (median(attach), median(detach));
    let (bare_attach, bare_detach) = (median(bare_attach), median(bare_detach));
    let alone = Alone { attach, detach, bare_attach, bare_detach };
    say(&format!(
        "one by one: attach {} (bare {}), detach {} (bare {})",
        shown(attach),
        shown(bare_attach),
        shown(detach),
        shown(bare_detach)
    ));
    Ok(alone)
}

impl Alone {
    fn rows(&self) -> Vec<Row> {
        let row = |what: &str, time, bare| Row {
            what: format!("VolumeAttachment {what}, one"),
            measured: shown(time),
            beside: format!("two bare round trips: {}", shown(bare)),
            ratio: Some(ratio(time, bare)),
            goal: Some(1.3),
        };
        vec![
            row("created → attached", self.attach, self.bare_attach),
            row("deleted → gone", self.detach, self.bare_detach),
        ]
    }

    /// Measured minutes apart, so each in the measure of the bare writes of its own time.
    fn beside(&self, few: &Self, most: usize) -> Vec<Row> {
        let row = |what: &str, (time, bare), (before, bare_before)| Row {
            what: format!("VolumeAttachment {what}, one, with {most} volumes"),
            measured: format!("{} ({:.2} of bare)", shown(time), ratio(time, bare)),
            beside: format!("with 100: {} ({:.2} of bare)", shown(before), ratio(before, bare_before)),
            ratio: Some(ratio(time, bare) / ratio(before, bare_before)),
            goal: Some(1.2),
        };
        vec![
            row("created → attached", (self.attach, self.bare_attach), (few.attach, few.bare_attach)),
            row("deleted → gone", (self.detach, self.bare_detach), (few.detach, few.bare_detach)),
        ]
    }
}

/// What the API server is asked for while one volume is attached and detached again, also by those who ask for it, and also what nobody
/// waits for.
async fn counted(site: &Site) -> Result<Vec<Row>> {
    const CYCLES: usize = 10;
    settle(site).await?;
    let before = site.requests().await?;
    for n in 0..CYCLES {
        site.time_attach(HUNDRED - 1 - n).await?;
        tokio::time::sleep(Duration::from_millis(2500)).await;
        site.time_detach(HUNDRED - 1 - n).await?;
    }
    settle(site).await?;
    let asked = difference(&before, &site.requests().await?);
    let each = |reads: bool| {
        let some = asked.iter().filter(|(key, _)| is_read(key) == reads);
        // The sum of none is less than zero.
        let count = some.clone().map(|(_, count)| count).sum::<f64>().abs() / CYCLES as f64;
        let parts = some.map(|(key, count)| format!("{:.1} {key}", count / CYCLES as f64));
        (count, parts.collect::<Vec<_>>().join(", "))
    };
    let row = |what: &str, (count, parts): (f64, String), beside: &str| {
        say(&format!("{what}: {parts}"));
        let measured = format!("{count:.1}");
        Row { what: what.to_owned(), measured, beside: beside.to_owned(), ratio: None, goal: None }
    };
    Ok(vec![
        row(
            "API writes for one attach and detach, of all who take part",
            each(false),
            "three and two on the way, two of whoever asks; the rest later",
        ),
        row("API reads for one attach and detach", each(true), "none"),
    ])
}

/// What has happened more than now and then between two counts, but for leases and metrics.
fn difference(before: &BTreeMap<String, f64>, after: &BTreeMap<String, f64>) -> Vec<(String, f64)> {
    let since = |(key, count): (&String, &f64)| {
        let more = count - before.get(key).copied().unwrap_or_default();
        let counts =
            more >= 5.0 && !key.contains("leases") && !key.starts_with("WATCH") && !key.contains("  ");
        counts.then(|| (key.clone(), more))
    };
    after.iter().filter_map(since).collect()
}

/// Many at once, from the first creation to the last that is seen attached; both sides create them, so many at a time.
async fn at_once(site: &Site, bare: &Bare, count: usize) -> Result<Vec<Row>> {
    let (mut attach, mut detach, mut bare_attach, mut bare_detach) = (vec![], vec![], vec![], vec![]);
    let mut writes = 0.0;
    for round in 0..STORMS {
        bare_attach.push(bare.time_attaches(count).await?);
        let before = site.requests().await?;
        attach.push(site.time_attaches(0..count).await?);
        let asked = difference(&before, &site.requests().await?);
        writes += asked.iter().filter(|(key, _)| !is_read(key)).map(|(_, count)| count).sum::<f64>();
        settle(site).await?;
        bare_detach.push(bare.time_detaches(count).await?);
        detach.push(site.time_detaches(0..count).await?);
        settle(site).await?;
        say(&format!(
            "{count} at once, round {}: attach {} (bare {}), detach {} (bare {})",
            round + 1,
            shown(attach[round]),
            shown(bare_attach[round]),
            shown(detach[round]),
            shown(bare_detach[round])
        ));
    }
    let goal = (count == THOUSAND).then_some(1.0 / 0.9);
    let [attach, detach, three, two] = [attach, detach, bare_attach, bare_detach].map(median);
    // The ceiling is that of the three writes for both: a detach does two, and waits for a disk besides.
    let row = |what: &str, time: Duration, beside: String| Row {
        what: format!("{count} VolumeAttachments at once, {what}"),
        measured: format!("{} ({:.0}/s)", shown(time), count as f64 / time.as_secs_f64()),
        beside: format!("with three bare writes each: {}{beside}", shown(three)),
        ratio: Some(ratio(time, three)),
        goal,
    };
    let with_two = format!("; with two: {} ({:.2})", shown(two), ratio(detach, two));
    let each = writes / (STORMS * count) as f64;
    Ok(vec![
        row("created → attached", attach, String::new()),
        Row {
            what: format!("API writes for each of {count} attaches at once, until the last is seen"),
            measured: format!("{each:.2}"),
            beside: "whoever asks, ledger, finalizer, status: 4".to_owned(),
            ratio: Some(each / 4.0),
            goal: goal.map(|_| 1.05),
        },
        row("deleted → gone", detach, with_two),
    ])
}

fn is_read(key: &str) -> bool {
    key.starts_with("GET") || key.starts_with("LIST")
}

/// Until what nobody waits for is written: it would be charged to whoever comes next.
async fn settle(site: &Site) -> Result<()> {
    let begun = Instant::now();
    let mut before = site.requests().await?;
    loop {
        tokio::time::sleep(Duration::from_millis(2500)).await;
        let now = site.requests().await?;
        let busy = difference(&before, &now).iter().any(|(key, _)| !key.starts_with("GET"));
        if !busy || begun.elapsed() > QUIET {
            return Ok(());
        }
        before = now;
    }
}

/// A controller that is started anew while all volumes but a few are attached, beside a client that lists them.
async fn start_anew(site: &mut Site, count: usize) -> Result<Vec<Row>> {
    if count == THOUSAND {
        site.time_attaches(0..count - SPARE).await?;
        settle(site).await?;
    }
    let (mut starts, mut lists) = (vec![], vec![]);
    for round in 0..ROUNDS {
        lists.push(site.time_list().await?);
        let before = site.requests().await?;
        starts.push(site.time_restart(count - 1 - round).await?);
        if round == 0 {
            let asked = difference(&before, &site.requests().await?);
            let asked: Vec<_> = asked.into_iter().map(|(key, count)| format!("{count} {key}")).collect();
            say(&format!("asked for by a restart: {}", asked.join(", ")));
        }
        lists.push(site.time_list().await?);
        site.time_detach(count - 1 - round).await?;
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    let (start, list) = (median(starts), median(lists));
    say(&format!("{count} volumes: restart to first attach {}, listing {}", shown(start), shown(list)));
    Ok(vec![Row {
        what: format!("restart of the controller to its first attach, {count} volumes"),
        measured: shown(start),
        beside: format!("listing them: {}", shown(list)),
        ratio: Some(ratio(start, list)),
        goal: Some(2.0),
    }])
}

fn memory(site: &Site, count: usize) -> Result<Row> {
    let (now, peak) = site.memory().context("the memory of the controller")?;
    Ok(Row {
        what: format!("memory (RSS) of the controller, {count} volumes attached"),
        measured: format!("{now:.0} MB; at most {peak:.0} MB"),
        beside: "goal: 100 MB".to_owned(),
        ratio: Some(now / 100.0),
        goal: Some(1.0),
    })
}
