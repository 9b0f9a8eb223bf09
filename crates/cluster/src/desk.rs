//! Objects that ask for something: each is looked at by one task at a time, again when it changes, and again after a while if it could not be done.
//! What asks for nothing is not kept, so that ten thousand objects at rest cost their names.

use kube::{Api, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;

use crate::watch::{Change, follow};

/// What is done about an object; `false` if it has to be tried again later.
pub(crate) trait Clerk<K>: Send + Sync + 'static {
    /// Whether there is anything to do. Asked at every change.
    fn is_asked(&self, object: &K) -> bool;

    fn serve(&self, object: Arc<K>) -> impl Future<Output = bool> + Send;
}

struct Entry<K> {
    /// As it was last seen; `None` when it asks for nothing any more.
    object: Option<Arc<K>>,
    /// It has changed since somebody began to look at it.
    dirty: bool,
    changed: Arc<Notify>,
}

struct Desk<K, C> {
    clerk: C,
    again: Duration,
    /// Those somebody is at.
    entries: Mutex<HashMap<String, Entry<K>>>,
    tasks: Mutex<tokio::task::JoinSet<()>>,
}

/// Serves every object of a kind, until it is dropped. What could not be done is tried again after `again`.
pub(crate) async fn serve<K, C>(api: Api<K>, clerk: C, again: Duration)
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
    C: Clerk<K>,
{
    let desk = Arc::new(Desk { clerk, again, entries: Mutex::default(), tasks: Mutex::default() });
    let weak = Arc::downgrade(&desk);
    // Its tasks end with it: nobody else keeps the desk.
    follow(api, move |change| {
        let Some(desk) = weak.upgrade() else { return false };
        match change {
            Change::Present(mut object) => {
                object.meta_mut().managed_fields = None;
                let name = object.name_any();
                let asks = desk.clerk.is_asked(&object);
                desk.hear(&name, asks.then(|| Arc::new(object)));
            }
            Change::Absent(name) => desk.hear(&name, None),
            Change::Listed => {}
        }
        true
    })
    .await;
    drop(desk);
}

impl<K, C> Desk<K, C>
where
    K: Resource<DynamicType = ()> + Send + Sync + 'static,
    C: Clerk<K>,
{
    fn entries(&self) -> MutexGuard<'_, HashMap<String, Entry<K>>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hear(self: &Arc<Self>, name: &str, object: Option<Arc<K>>) {
        let mut entries = self.entries();
        match entries.get_mut(name) {
            Some(entry) => {
                (entry.object, entry.dirty) = (object, true);
                entry.changed.notify_one();
            }
            None if object.is_some() => {
                entries.insert(name.to_owned(), Entry { object, dirty: false, changed: Arc::default() });
                let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
                while tasks.try_join_next().is_some() {}
                let (desk, name) = (Arc::downgrade(self), name.to_owned());
                tasks.spawn(async move {
                    loop {
                        let Some(next) = desk.upgrade() else { return };
                        let Some(rest) = next.look(&name).await else { return };
                        drop(next);
                        if let Some((pause, changed)) = rest {
                            let _ = tokio::time::timeout(pause, changed.notified()).await;
                        }
                    }
                });
            }
            None => {}
        }
    }

    /// One look. `None`: nothing is left to do; else how long to wait, and for what, before the next one.
    async fn look(&self, name: &str) -> Option<Option<(Duration, Arc<Notify>)>> {
        let object = {
            let mut entries = self.entries();
            let entry = entries.get_mut(name)?;
            entry.dirty = false;
            match &entry.object {
                Some(object) => Arc::clone(object),
                None => {
                    entries.remove(name);
                    return None;
                }
            }
        };
        let done = self.clerk.serve(object).await;
        let mut entries = self.entries();
        let entry = entries.get_mut(name)?;
        if entry.dirty {
            return Some(None);
        }
        if done {
            entries.remove(name);
            return None;
        }
        Some(Some((self.again, Arc::clone(&entry.changed))))
    }
}
