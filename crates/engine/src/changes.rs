//! Every change of every volume, for those who follow many of them.
//!
//! Of each volume only the newest view waits. So whoever is slow is late and never behind: there is nothing to be missed, and nothing that was
//! missed to be looked for in ten thousand volumes at once. What waits is bounded by how many volumes there are.

use bowline_core::VolumeId;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, Weak};
use tokio::sync::watch;

use crate::View;
use crate::engine::lock;

/// The views that wait for one follower.
#[derive(Default)]
struct Waiting {
    newest: HashMap<VolumeId, Arc<View>>,
    /// Each of them once: the one that has waited longest comes first.
    order: VecDeque<VolumeId>,
}

impl Waiting {
    fn put(&mut self, view: Arc<View>) {
        let volume = view.volume.clone();
        if self.newest.insert(volume.clone(), view).is_none() {
            self.order.push_back(volume);
        }
    }

    fn take(&mut self) -> Option<Arc<View>> {
        let volume = self.order.pop_front()?;
        let view = self.newest.remove(&volume);
        if self.order.is_empty() {
            // After a storm, its room is given back.
            *self = Self::default();
        }
        view
    }
}

struct Follower {
    waiting: Weak<Mutex<Waiting>>,
    news: watch::Sender<()>,
}

/// Where changes are told. Its followers end with it.
#[derive(Default)]
pub(crate) struct Told {
    followers: Mutex<Vec<Follower>>,
}

impl Told {
    pub(crate) fn follow(&self) -> Changes {
        let (waiting, (news, heard)) = (Arc::default(), watch::channel(()));
        lock(&self.followers).push(Follower { waiting: Arc::downgrade(&waiting), news });
        Changes { waiting, news: heard }
    }

    pub(crate) fn tell(&self, view: &Arc<View>) {
        lock(&self.followers).retain(|follower| {
            let Some(waiting) = follower.waiting.upgrade() else { return false };
            lock(&waiting).put(Arc::clone(view));
            follower.news.send_replace(());
            true
        });
    }
}

/// The changes of all volumes, from when it was asked for.
pub struct Changes {
    waiting: Arc<Mutex<Waiting>>,
    news: watch::Receiver<()>,
}

impl Changes {
    /// The newest view of a volume that has changed since its last one was taken; `None` when the engine has ended.
    pub async fn next(&mut self) -> Option<Arc<View>> {
        loop {
            if let Some(view) = lock(&self.waiting).take() {
                return Some(view);
            }
            if self.news.changed().await.is_err() {
                return lock(&self.waiting).take();
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed check is a panic")]
mod tests {
    use super::*;
    use bowline_core::{Ledger, State};
    use futures::FutureExt;
    use std::collections::BTreeMap;

    fn view(volume: &str, wake: i64) -> Arc<View> {
        Arc::new(View {
            volume: VolumeId::new(volume).unwrap(),
            state: State::Detached,
            ledger: Ledger::default(),
            verdicts: BTreeMap::new(),
            answers: BTreeMap::new(),
            wake: Some(jiff::Timestamp::from_second(wake).unwrap()),
            lost: false,
        })
    }

    fn heard(changes: &mut Changes) -> Vec<(String, i64)> {
        let mut all = vec![];
        while let Some(Some(view)) = changes.next().now_or_never() {
            all.push((view.volume.as_str().to_owned(), view.wake.unwrap().as_second()));
        }
        all
    }

    #[test]
    fn of_each_volume_the_newest_waits_in_the_order_they_came() {
        let told = Told::default();
        told.tell(&view("early", 0));
        let (mut one, mut other) = (told.follow(), told.follow());
        for (volume, wake) in [("b", 1), ("a", 2), ("b", 3)] {
            told.tell(&view(volume, wake));
        }
        let newest = [("b".to_owned(), 3), ("a".to_owned(), 2)];
        assert_eq!(heard(&mut one), newest);
        assert_eq!(heard(&mut one), []);
        told.tell(&view("b", 4));
        assert_eq!(heard(&mut one), [("b".to_owned(), 4)]);
        assert_eq!(heard(&mut other), [("b".to_owned(), 4), ("a".to_owned(), 2)]);
    }

    #[test]
    fn whoever_stops_following_is_forgotten_and_followers_end_with_the_engine() {
        let told = Told::default();
        let mut stays = told.follow();
        drop(told.follow());
        told.tell(&view("a", 1));
        assert_eq!(lock(&told.followers).len(), 1);
        drop(told);
        assert!(stays.next().now_or_never().unwrap().is_some(), "what was told before counts");
        assert!(stays.next().now_or_never().unwrap().is_none());
    }
}
