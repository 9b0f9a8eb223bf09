//! Records of a type in the store: read, changed by compare-and-swap, removed.

use bowline_store::{Expected, Key, Record, Revision, Store, StoreError, record};
use std::sync::Arc;

use crate::failure::{Failure, Why};

/// How often a change is tried when others change the same record, or nobody knows what became of the write.
const TRIES: usize = 8;

/// The store, by type.
pub(crate) struct Shelf {
    pub(crate) store: Arc<dyn Store>,
}

/// What became of one write.
pub(crate) enum Put {
    /// It is durable.
    Done,
    /// The record is not as expected: read it again.
    Stale,
}

impl Shelf {
    /// A record and when it was written.
    pub(crate) async fn get<R: Record>(&self, name: &str) -> Result<Option<(R, Revision)>, Failure> {
        let Some(entry) = self.store.get(&Key::new(R::KIND, name)).await? else { return Ok(None) };
        let record = record::decode(&entry.value).map_err(|error| broken(&entry.key, &error))?;
        Ok(Some((record, entry.revision)))
    }

    /// Makes a record where there is none. `Stale` means that there is another one.
    pub(crate) async fn add<R: Record + PartialEq>(&self, name: &str, record: &R) -> Result<Put, Failure> {
        for _ in 0..TRIES {
            match self.put(name, record, Expected::Absent).await? {
                Put::Done => return Ok(Put::Done),
                // A write that was lost has left nothing there, and is no other record.
                Put::Stale if self.get::<R>(name).await?.is_some() => return Ok(Put::Stale),
                Put::Stale => {}
            }
        }
        Err(worn_out(&Key::new(R::KIND, name)))
    }

    async fn put<R: Record + PartialEq>(
        &self,
        name: &str,
        record: &R,
        expected: Expected,
    ) -> Result<Put, Failure> {
        let key = Key::new(R::KIND, name);
        match self.store.put(&key, record::encode(record)?, expected).await {
            Ok(_) => Ok(Put::Done),
            Err(StoreError::Conflict { .. }) => Ok(Put::Stale),
            Err(error) if error.outcome_known() => Err(error.into()),
            // Nobody knows; the record itself does.
            Err(_) => match self.get::<R>(name).await? {
                Some((found, _)) if found == *record => Ok(Put::Done),
                _ => Ok(Put::Stale),
            },
        }
    }

    /// Changes a record as `change` says of what is there now, which may say `None` to leave it. Tells what is there in the
    /// end; `None` if there is no record.
    pub(crate) async fn change<R: Record + PartialEq>(
        &self,
        name: &str,
        change: impl Fn(&R) -> Result<Option<R>, Failure>,
    ) -> Result<Option<R>, Failure> {
        for _ in 0..TRIES {
            let Some((record, revision)) = self.get::<R>(name).await? else { return Ok(None) };
            let Some(changed) = change(&record)?.filter(|changed| *changed != record) else {
                return Ok(Some(record));
            };
            match self.put(name, &changed, Expected::At(revision)).await? {
                Put::Done => return Ok(Some(changed)),
                Put::Stale => {}
            }
        }
        Err(worn_out(&Key::new(R::KIND, name)))
    }

    /// Removes a record if `is_it` says that it is the one.
    pub(crate) async fn remove<R: Record>(
        &self,
        name: &str,
        is_it: impl Fn(&R) -> bool,
    ) -> Result<(), Failure> {
        let key = Key::new(R::KIND, name);
        for _ in 0..TRIES {
            let Some((record, revision)) = self.get::<R>(name).await? else { return Ok(()) };
            if !is_it(&record) {
                return Ok(());
            }
            match self.store.delete(&key, revision).await {
                Ok(()) => return Ok(()),
                Err(StoreError::Conflict { .. }) => {}
                Err(error) if error.outcome_known() => return Err(error.into()),
                // Nobody knows; the next look tells.
                Err(_) => {}
            }
        }
        Err(worn_out(&key))
    }

    /// Some records in the order of their keys, from the one after `after`, and where to go on.
    pub(crate) async fn list<R: Record>(
        &self,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Records<R>, Failure> {
        decoded(self.store.list(R::KIND, after, limit).await?)
    }

    /// Calls `each` with every record, as it is or was a moment ago.
    pub(crate) async fn for_each<R: Record>(&self, mut each: impl FnMut(String, R)) -> Result<(), Failure> {
        let mut after = None;
        loop {
            let (entries, next) = decoded::<R>(self.store.recall(R::KIND, after.as_deref(), PAGE).await?)?;
            for (key, record) in entries {
                each(key, record);
            }
            match next {
                Some(next) => after = Some(next),
                None => return Ok(()),
            }
        }
    }
}

/// A page of records by their keys, and where the next one begins.
type Records<R> = (Vec<(String, R)>, Option<String>);

fn decoded<R: Record>(page: bowline_store::Page) -> Result<Records<R>, Failure> {
    let decode = |entry: bowline_store::Entry| match record::decode(&entry.value) {
        Ok(record) => Ok((entry.key.name, record)),
        Err(error) => Err(broken(&entry.key, &error)),
    };
    let entries: Result<_, Failure> = page.entries.into_iter().map(decode).collect();
    Ok((entries?, page.next))
}

/// How many records are read at once.
pub(crate) const PAGE: usize = 500;

fn broken(key: &Key, error: &bowline_store::RecordError) -> Failure {
    Failure::new(Why::Unreachable, format!("{key}: {error}"))
}

fn worn_out(key: &Key) -> Failure {
    Failure::new(Why::Unreachable, format!("{key} could not be written for now; ask again"))
}
