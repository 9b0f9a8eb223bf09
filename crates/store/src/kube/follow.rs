//! Following the changes of one kind: across the ends of connections, without a gap, or with a clear word that there
//! is one.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use kube::api::WatchEvent;
use tokio::time::timeout;

use super::object::{self, Object, Place};
use super::request::{self, Api, Events, Pause, Trouble};
use crate::{Event, Key, Kind, Revision, StoreError};

/// How long a watch may be silent. Servers send a bookmark about once a minute; a connection without one is dead.
const SILENCE: Duration = Duration::from_secs(150);

/// What a follower says.
pub(crate) enum Signal {
    /// Something changed.
    Event(Event),
    /// The server is being heard (again).
    Alive,
    /// The server is not being heard; it is asked again.
    Broken,
    /// Changes were missed, and nothing follows.
    Compacted(StoreError),
}

pub(crate) struct Follow {
    api: Arc<Api>,
    kind: Kind,
    collection: &'static str,
    /// Everything up to here was seen.
    at: Revision,
    events: Option<Events>,
    /// Objects that have no record, so that changes of theirs are none of ours.
    blank: BTreeSet<String>,
    pause: Pause,
}

impl Follow {
    pub(crate) async fn open(api: Arc<Api>, kind: Kind, from: Revision) -> Result<Follow, StoreError> {
        let collection = Place::collection(kind).map_or("", |(collection, _)| collection);
        let (blank, mut pause) = (BTreeSet::new(), Pause::new());
        let mut follow = Follow { api, kind, collection, at: from, events: None, blank, pause: Pause::new() };
        loop {
            match follow.connect().await {
                Ok(()) => return Ok(follow),
                Err(Trouble::Expired) => return Err(follow.compacted()),
                Err(Trouble::Busy(_) | Trouble::Silent(_)) if pause.take().await => {}
                Err(trouble) => return Err(trouble.on(&Key::new(kind, ""))),
            }
        }
    }

    fn compacted(&self) -> StoreError {
        StoreError::Compacted { kind: self.kind, from: self.at }
    }

    async fn connect(&mut self) -> Result<(), Trouble> {
        // A server that was restored from an older copy would let us wait for revisions that it has yet to reach, and
        // what happens until then would be missed.
        let now = self.api.list(self.collection, 1, None).await?.metadata.resource_version;
        let now = object::revision(&now).map_err(|error| Trouble::Silent(error.to_string()))?;
        if now < self.at {
            return Err(Trouble::Expired);
        }
        self.events = Some(self.api.watch(self.collection, &self.at.to_string()).await?);
        Ok(())
    }

    /// The next thing to know. Waits as long as it takes.
    pub(crate) async fn next(&mut self) -> Signal {
        loop {
            let Some(events) = &mut self.events else {
                match self.connect().await {
                    Ok(()) => return Signal::Alive,
                    Err(Trouble::Expired) => return Signal::Compacted(self.compacted()),
                    Err(trouble) => return self.broken(&trouble).await,
                }
            };
            match timeout(SILENCE, events.next()).await {
                Ok(Some(Ok(event))) => match self.take(event) {
                    Ok(Some(event)) => return Signal::Event(event),
                    Ok(None) => {}
                    Err(Trouble::Expired) => return Signal::Compacted(self.compacted()),
                    Err(trouble) => return self.broken(&trouble).await,
                },
                Ok(Some(Err(Trouble::Expired))) => return Signal::Compacted(self.compacted()),
                Ok(Some(Err(trouble))) => return self.broken(&trouble).await,
                // Servers end watches now and then. One that ends them at once is asked again more and more slowly.
                Ok(None) | Err(_) => {
                    self.events = None;
                    self.pause.wait().await;
                }
            }
        }
    }

    async fn broken(&mut self, trouble: &Trouble) -> Signal {
        tracing::warn!(kind = %self.kind, at = %self.at, ?trouble, "a watch broke; trying again");
        self.events = None;
        self.pause.wait().await;
        Signal::Broken
    }

    fn take(&mut self, event: WatchEvent<Object>) -> Result<Option<Event>, Trouble> {
        let silent = |error: StoreError| Trouble::Silent(error.to_string());
        let (object, is_new, is_gone) = match event {
            WatchEvent::Added(object) => (object, true, false),
            WatchEvent::Modified(object) => (object, false, false),
            WatchEvent::Deleted(object) => (object, false, true),
            WatchEvent::Bookmark(bookmark) => {
                self.at = object::revision(&bookmark.metadata.resource_version).map_err(silent)?;
                self.pause = Pause::new();
                return Ok(None);
            }
            WatchEvent::Error(status) => return Err(request::judge(&status, "")),
        };
        let revision = object.revision().map_err(silent)?;
        let key = Key::new(self.kind, object.metadata.name.clone());
        let entry = if is_gone { None } else { object.entry(&key).map_err(silent)? };
        self.at = revision;
        self.pause = Pause::new();
        let name = object.metadata.name;
        let Some(entry) = entry else {
            let had_none = if is_gone { self.blank.remove(&name) } else { !self.blank.insert(name) };
            return Ok((!had_none && !is_new).then_some(Event::Deleted { key, revision }));
        };
        self.blank.remove(&name);
        Ok(Some(Event::Put(entry)))
    }
}
