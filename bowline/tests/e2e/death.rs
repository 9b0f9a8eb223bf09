//! Deaths of the real process at a point that it passes.

use bowline_testkit::world::{PATIENCE, World};
use std::collections::BTreeMap;
use std::fs;
use std::future::Future;
use std::pin::pin;
use std::time::{Duration, Instant};

/// Where a process is to end: at the point of this name that comes after so many others of that name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Death {
    pub(crate) point: String,
    pub(crate) after: usize,
}

impl Death {
    /// Every death there is where these points are passed.
    pub(crate) fn each(passed: Vec<String>) -> Vec<Self> {
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        let death = |point: String| {
            let after = *counts.entry(point.clone()).and_modify(|count| *count += 1).or_insert(0);
            Self { point, after }
        };
        passed.into_iter().map(death).collect()
    }
}

/// How one call went.
pub(crate) struct Attempt {
    /// The points that were passed.
    pub(crate) passed: Vec<String>,
    /// Where the process has stopped. It is to be killed now.
    pub(crate) stopped: Option<String>,
}

/// Makes a call once, until it is answered or the process of a world stops at the point where it is to die.
pub(crate) async fn attempt<T>(
    world: &World,
    what: &str,
    death: Option<&Death>,
    call: impl Future<Output = T>,
) -> Attempt {
    let points = world.path("failpoints");
    let (arm, stopped, log) = (points.join("arm"), points.join("stopped"), points.join("log"));
    let before = fs::read_to_string(&log).unwrap_or_default().len();
    if let Some(Death { point, after }) = death {
        fs::write(&arm, format!("{point} {after}")).unwrap();
    }
    let (begun, mut call) = (Instant::now(), pin!(call));
    while !stopped.exists() {
        assert!(begun.elapsed() < PATIENCE, "{what} neither ends nor stops\n{}", world.log("worker-1"));
        if tokio::time::timeout(Duration::from_millis(3), &mut call).await.is_ok() {
            break;
        }
    }
    let _ = fs::remove_file(&arm);
    let at = fs::read_to_string(&stopped).ok();
    if at.is_some() {
        fs::remove_file(&stopped).unwrap();
    }
    let log = fs::read_to_string(&log).unwrap_or_default();
    Attempt { passed: log[before.min(log.len())..].lines().map(str::to_owned).collect(), stopped: at }
}
