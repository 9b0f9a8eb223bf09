//! What a watcher of VolumeAttachments sees, and when: the end of every measurement, ours and the bare one's.

use anyhow::{Context, Result};
use futures::StreamExt;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client, ResourceExt};
use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// How long anything may take.
const LONG: Duration = Duration::from_secs(180);

/// What is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    Attached,
    Gone,
}

struct Expected {
    seen: Seen,
    left: HashSet<String>,
    tell: Option<oneshot::Sender<Instant>>,
}

/// Those who wait for VolumeAttachments to be seen so.
#[derive(Default)]
pub(crate) struct Board {
    expected: Mutex<Vec<Expected>>,
}

/// The moment when the last of them was seen so.
pub(crate) struct Moment(oneshot::Receiver<Instant>);

impl Moment {
    pub(crate) async fn come(self) -> Result<Instant> {
        Ok(tokio::time::timeout(LONG, self.0).await.context("it takes too long")??)
    }
}

impl Board {
    /// Begins to watch; everything that happens after this returned is seen.
    pub(crate) async fn start(client: Client) -> Result<Arc<Self>> {
        let board = Arc::new(Self::default());
        let (ready, begun) = oneshot::channel();
        let (watching, mut ready) = (Arc::clone(&board), Some(ready));
        tokio::spawn(async move {
            let mut events =
                Box::pin(watcher(Api::<VolumeAttachment>::all(client), watcher::Config::default()));
            while let Some(event) = events.next().await {
                match event {
                    Ok(Event::Apply(object) | Event::InitApply(object)) => {
                        if object.status.as_ref().is_some_and(|status| status.attached) {
                            watching.saw(&object.name_any(), Seen::Attached);
                        }
                    }
                    Ok(Event::Delete(object)) => watching.saw(&object.name_any(), Seen::Gone),
                    Ok(Event::InitDone) => drop(ready.take().map(|ready| ready.send(()))),
                    Ok(Event::Init) => {}
                    // It is begun anew, and what is missed makes the measurement fail.
                    Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
                }
            }
        });
        begun.await?;
        Ok(board)
    }

    /// To be asked for before it can happen.
    pub(crate) fn expect(&self, names: impl IntoIterator<Item = String>, seen: Seen) -> Moment {
        let (tell, told) = oneshot::channel();
        let expected = Expected { seen, left: names.into_iter().collect(), tell: Some(tell) };
        self.expected.lock().unwrap_or_else(PoisonError::into_inner).push(expected);
        Moment(told)
    }

    fn saw(&self, name: &str, seen: Seen) {
        let mut expected = self.expected.lock().unwrap_or_else(PoisonError::into_inner);
        for one in expected.iter_mut().filter(|one| one.seen == seen) {
            if one.left.remove(name)
                && one.left.is_empty()
                && let Some(tell) = one.tell.take()
            {
                // Whoever asked may have given up.
                let _ = tell.send(Instant::now());
            }
        }
        expected.retain(|one| one.tell.is_some());
    }
}

fn watcher(
    api: Api<VolumeAttachment>,
    config: watcher::Config,
) -> impl futures::Stream<Item = watcher::Result<Event<VolumeAttachment>>> {
    kube::runtime::watcher(api, config)
}
