//! Whether it pays to let the API server mark VolumeAttachments when they are made (the chart's `markAtCreation`).

use anyhow::{Result, ensure};
use bowline_testkit::lab::rendered;
use kube::api::PostParams;
use std::time::{Duration, Instant};

use super::site::{Site, attachment};
use super::{PAUSE, Row, difference, is_read, median, ratio, say, settle, shown};

/// Rounds with it and without, in turns.
const TURNS: usize = 3;
/// One by one, in each of them.
const SINGLES: usize = 20;
const PATIENCE: Duration = Duration::from_secs(60);
const POLICY: &str = "attacher-policy.yaml";

/// What was measured in one of the two ways.
#[derive(Default)]
struct Measured {
    alone: Vec<Duration>,
    at_once: Vec<Duration>,
    writes: f64,
}

/// Lets the API server mark what is made, or not, and waits until it does so.
async fn set(site: &Site, is_marking: bool) -> Result<()> {
    if is_marking {
        site.lab.apply_text(&rendered(POLICY, &["markAtCreation=true"]));
    } else {
        let kinds = "mutatingadmissionpolicies,mutatingadmissionpolicybindings";
        site.lab.kubectl(&["delete", kinds, "--ignore-not-found", "bowline-attacher"]);
    }
    let object = attachment("tried", "tried", bowline_api::DRIVER)?;
    let dry = PostParams { dry_run: true, ..PostParams::default() };
    let begun = Instant::now();
    while site.attachments().create(&dry, &object).await?.metadata.finalizers.is_some() != is_marking {
        ensure!(begun.elapsed() < PATIENCE, "the policy is not followed, or does not end");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    Ok(())
}

async fn measure(site: &Site, count: usize, into: &mut Measured) -> Result<()> {
    for n in 0..SINGLES {
        // With its creation, in which the policy is evaluated.
        into.alone.push(site.time_attaches(n..n + 1).await?);
        tokio::time::sleep(PAUSE).await;
        site.time_detach(n).await?;
        tokio::time::sleep(PAUSE).await;
    }
    settle(site).await?;
    let before = site.requests().await?;
    into.at_once.push(site.time_attaches(0..count).await?);
    let asked = difference(&before, &site.requests().await?);
    into.writes += asked.iter().filter(|(key, _)| !is_read(key)).map(|(_, count)| count).sum::<f64>();
    // At once: what only confirms is not written for what is gone again.
    site.time_detaches(0..count).await?;
    settle(site).await
}

/// One volume, and many at once, marked by the API server and by the controller.
pub(crate) async fn rows(site: &Site, count: usize) -> Result<Vec<Row>> {
    let (mut with, mut without) = (Measured::default(), Measured::default());
    // The first ones of all find nothing warm.
    site.time_attaches(0..count).await?;
    site.time_detaches(0..count).await?;
    settle(site).await?;
    for turn in 0..TURNS {
        let mut both = [(true, &mut with), (false, &mut without)];
        // Now before and now after, so that whatever one leaves to the other is shared.
        both.rotate_left(turn % 2);
        for (is_marking, into) in both {
            set(site, is_marking).await?;
            measure(site, count, into).await?;
        }
        say(&format!(
            "{count} at once, turn {}: marked by the API server {}, by the controller {}",
            turn + 1,
            shown(with.at_once[turn]),
            shown(without.at_once[turn])
        ));
    }
    let each =
        |measured: &Measured| format!(" ({:.2} writes each)", measured.writes / (TURNS * count) as f64);
    let (writes, beside) = (each(&with), each(&without));
    let row = |what: String, [time, other]: [Vec<Duration>; 2], [writes, beside]: [&str; 2]| {
        let (time, other) = (median(time), median(other));
        Row {
            what: format!("{what}, asked for → attached, marked by the API server"),
            measured: format!("{}{writes}", shown(time)),
            beside: format!("marked by the controller: {}{beside}", shown(other)),
            ratio: Some(ratio(time, other)),
            goal: None,
        }
    };
    Ok(vec![
        row("one VolumeAttachment".to_owned(), [with.alone, without.alone], [""; 2]),
        row(
            format!("{count} VolumeAttachments at once"),
            [with.at_once, without.at_once],
            [&writes, &beside],
        ),
    ])
}
