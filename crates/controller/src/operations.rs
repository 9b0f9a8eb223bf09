//! What is under way: one piece of work per volume, snapshot or group, which goes on when its caller has gone, and which
//! whoever asks for the same thing joins.

use bowline_core::{GroupSnapshotId, SnapshotId, VolumeId};
use bowline_csi::Name;
use bowline_store::Key;
use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::watch;

use crate::catalog::{Change, NewVolume, lock};
use crate::failure::{Failure, Why};
use crate::record::{Group, Snapshot, Volume};

/// More at once than this are told to ask again.
const AT_ONCE: usize = 1024;

/// What is said of what was begun before.
const SETTLING: &str = "being brought to an end that was begun before";

/// How long the end waits for what is under way.
const GRACE: Duration = Duration::from_secs(5);

/// What somebody asked for. Two that are equal are the same piece of work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    Create(NewVolume),
    Delete(VolumeId),
    Grow {
        volume: VolumeId,
        required: u64,
        limit: Option<u64>,
    },
    Modify(VolumeId, Change),
    Take {
        name: Name,
        volume: VolumeId,
    },
    TakeTogether {
        name: Name,
        volumes: Vec<VolumeId>,
    },
    DeleteSnapshot(SnapshotId),
    DeleteGroup(GroupSnapshotId),
    /// Nobody asked now: what was begun is brought to an end. A group and its members are settled apart.
    Settle(Key),
}

impl Order {
    fn says(&self) -> &'static str {
        match self {
            Self::Create(_) => "being made",
            Self::Delete(_) | Self::DeleteSnapshot(_) | Self::DeleteGroup(_) => "being deleted",
            Self::Grow { .. } => "growing",
            Self::Modify(..) => "being changed",
            Self::Take { .. } | Self::TakeTogether { .. } => "being taken",
            Self::Settle(_) => SETTLING,
        }
    }
}

/// What came of it.
#[derive(Clone, Debug)]
pub(crate) enum Done {
    Volume(Volume),
    Snapshot(Snapshot),
    Group(Group, Vec<Snapshot>),
    Nothing,
}

pub(crate) type Told = Result<Done, Failure>;
type News = watch::Receiver<Option<Told>>;

/// Everything that is under way.
#[derive(Default)]
pub(crate) struct Operations {
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    closed: bool,
    /// Whatever is being changed.
    changing: HashMap<Key, (Arc<Order>, News)>,
    /// Whatever is being copied from, by how many.
    copied: HashMap<Key, usize>,
}

/// What a piece of work touches.
#[derive(Clone, Debug, Default)]
pub(crate) struct Touches {
    /// What it changes; the first names it.
    pub(crate) changes: Vec<Key>,
    /// What it copies from: not to be deleted meanwhile.
    pub(crate) copies: Vec<Key>,
}

/// Whether work has begun, or may not.
enum Begun {
    Joined(News),
    New(News, watch::Sender<Option<Told>>),
    /// Something that nobody waits for comes to its end first.
    After(News),
}

impl Operations {
    /// Joins the work that is under way, or begins it in a task of its own, and waits for what comes of it.
    pub(crate) async fn perform<W, F>(
        self: &Arc<Self>,
        order: Order,
        touches: Touches,
        wait: Duration,
        work: W,
    ) -> Told
    where
        W: FnOnce() -> F,
        F: Future<Output = Told> + Send + 'static,
    {
        let order = Arc::new(order);
        let deadline = tokio::time::Instant::now() + wait;
        let news = loop {
            match self.begin(&order, &touches)? {
                Begun::Joined(news) => break news,
                Begun::New(news, tell) => {
                    let place = Place { operations: Arc::clone(self), touches };
                    let work = work();
                    tokio::spawn(async move {
                        let told = work.await;
                        // The place is free before the answer is out: whoever has it may ask for the next thing.
                        drop(place);
                        tell.send_replace(Some(told));
                    });
                    break news;
                }
                Begun::After(mut news) => {
                    // Whatever came of it, the next look tells.
                    let ended = tokio::time::timeout_at(deadline, news.wait_for(Option::is_some)).await;
                    if ended.is_err() {
                        return Err(busy(&touches, SETTLING));
                    }
                }
            }
        };
        hear(news, deadline, &order).await
    }

    fn begin(&self, order: &Arc<Order>, touches: &Touches) -> Result<Begun, Failure> {
        let mut table = lock(&self.table);
        if table.closed {
            return Err(Failure::new(Why::Unreachable, "Bowline is stopping; ask again when it is back"));
        }
        for key in &touches.changes {
            if let Some((other, news)) = table.changing.get(key) {
                return match (**other == **order, &**other) {
                    (true, _) => Ok(Begun::Joined(news.clone())),
                    (false, Order::Settle(_)) => Ok(Begun::After(news.clone())),
                    (false, other) => Err(busy(touches, other.says())),
                };
            }
            if (is_deletion(order) || matches!(**order, Order::Grow { .. })) && table.copied.contains_key(key)
            {
                return Err(busy(touches, "being copied"));
            }
        }
        let gone = |key: &Key| {
            let deleting = table.changing.get(key).map(|(order, _)| order);
            deleting.filter(|order| is_deletion(order))
        };
        if let Some(order) = touches.copies.iter().find_map(gone) {
            return Err(Failure::new(
                Why::Busy,
                format!("what it is to be copied from is {}; ask again", order.says()),
            ));
        }
        if table.changing.len() >= AT_ONCE {
            return Err(Failure::new(Why::Busy, format!("{AT_ONCE} things are under way; ask again")));
        }
        let (tell, news) = watch::channel(None);
        for key in &touches.changes {
            table.changing.insert(key.clone(), (Arc::clone(order), news.clone()));
        }
        for key in &touches.copies {
            *table.copied.entry(key.clone()).or_default() += 1;
        }
        Ok(Begun::New(news, tell))
    }

    /// Takes nothing new from now on, and gives what is under way a moment to end. What does not is completed after the
    /// next start.
    pub(crate) async fn close(&self) {
        let running: Vec<News> = {
            let mut table = lock(&self.table);
            table.closed = true;
            table.changing.values().map(|(_, news)| news.clone()).collect()
        };
        let deadline = tokio::time::Instant::now() + GRACE;
        for mut news in running {
            // Whether it ended well is its caller's business.
            let _ = tokio::time::timeout_at(deadline, news.wait_for(Option::is_some)).await;
        }
    }

    /// Whether nothing new is taken.
    pub(crate) fn is_closed(&self) -> bool {
        lock(&self.table).closed
    }
}

fn is_deletion(order: &Order) -> bool {
    matches!(order, Order::Delete(_) | Order::DeleteSnapshot(_) | Order::DeleteGroup(_))
}

/// The place of a piece of work in the table, for as long as it runs.
struct Place {
    operations: Arc<Operations>,
    touches: Touches,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut table = lock(&self.operations.table);
        for key in &self.touches.changes {
            table.changing.remove(key);
        }
        for key in &self.touches.copies {
            if let Some(count) = table.copied.get_mut(key) {
                *count -= 1;
                if *count == 0 {
                    table.copied.remove(key);
                }
            }
        }
    }
}

async fn hear(mut news: News, deadline: tokio::time::Instant, order: &Order) -> Told {
    match tokio::time::timeout_at(deadline, news.wait_for(Option::is_some)).await {
        Ok(Ok(told)) => told.clone().unwrap_or_else(|| Err(fell_over())),
        Ok(Err(_)) => Err(fell_over()),
        Err(_) => {
            let sentence = format!("it is still {}; that goes on, and asking again joins it", order.says());
            Err(Failure::new(Why::TimedOut, sentence))
        }
    }
}

fn fell_over() -> Failure {
    Failure::new(Why::Busy, "it ended unexpectedly; ask again: what was begun is completed first")
}

fn busy(touches: &Touches, what: &str) -> Failure {
    let key = touches.changes.first().map(ToString::to_string).unwrap_or_default();
    Failure::new(Why::Busy, format!("{key} is {what}; ask again when that is done"))
}
