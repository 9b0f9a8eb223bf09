//! Following all objects of a kind, without missing that one has gone.

use futures::StreamExt;
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, watcher as watching};
use kube::{Api, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use std::collections::HashSet;
use std::fmt::Debug;

/// What a watch tells.
pub(crate) enum Change<K> {
    /// It is there, in this form; told again after every break of the watch.
    Present(K),
    /// It does not show any more. That proves nothing: whoever takes something away because of it looks first.
    Absent(String),
    /// Everything that is there has been told at least once.
    Listed,
}

/// Tells every change of the kind, until `tell` says that nobody listens any more. After a break everything is listed again, and what was missed is told then.
pub(crate) async fn follow<K>(api: Api<K>, mut tell: impl FnMut(Change<K>) -> bool)
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let config = watcher::Config::default().page_size(500);
    let mut events = Box::pin(watching(api, config).default_backoff());
    let (mut known, mut listed) = (HashSet::new(), HashSet::new());
    while let Some(event) = events.next().await {
        let goes_on = match event {
            Ok(Event::Init) => {
                listed = HashSet::new();
                true
            }
            Ok(Event::InitApply(object)) => {
                listed.insert(object.name_any());
                tell(Change::Present(object))
            }
            Ok(Event::InitDone) => {
                for gone in known.difference(&listed) {
                    tell(Change::Absent(String::clone(gone)));
                }
                known = std::mem::take(&mut listed);
                tell(Change::Listed)
            }
            Ok(Event::Apply(object)) => {
                known.insert(object.name_any());
                tell(Change::Present(object))
            }
            Ok(Event::Delete(object)) => {
                known.remove(&object.name_any());
                tell(Change::Absent(object.name_any()))
            }
            Err(error) => {
                tracing::warn!(%error, "a watch broke; it is begun anew");
                true
            }
        };
        if !goes_on {
            return;
        }
    }
}
