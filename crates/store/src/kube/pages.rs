//! Listings in pages. The server's continue tokens stay in here; callers go on from a name.
//!
//! Names come in byte order, because that is the order of the server's own keys. A page that goes on where one of ours
//! ended uses the token of that one, and so shows the same moment; any other is read from the beginning and what comes
//! before the name is left out.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::object::{self, Place};
use super::request::{Api, Trouble};
use crate::{Key, Kind, Page, Revision, StoreError};

/// How many objects are asked for at once.
const CHUNK: usize = 500;
/// How many listings may be under way at once and still go on where they were.
const LISTINGS: usize = 64;
/// How old a token may be: servers forget them after five minutes.
const FRESH: Duration = Duration::from_secs(120);

/// Where listings that are under way can go on.
#[derive(Default)]
pub(crate) struct Tokens(Mutex<Vec<Token>>);

struct Token {
    kind: Kind,
    after: String,
    next: String,
    made: Instant,
}

impl Tokens {
    /// A token is used once: two listings that are at the same name may be of different moments.
    fn take(&self, kind: Kind, after: &str) -> Option<String> {
        let mut tokens = self.locked();
        tokens.retain(|token| token.made.elapsed() < FRESH);
        let found = tokens.iter().position(|token| token.kind == kind && token.after == after)?;
        Some(tokens.swap_remove(found).next)
    }

    fn keep(&self, kind: Kind, after: String, next: String) {
        let mut tokens = self.locked();
        tokens.retain(|token| token.kind != kind || token.after != after);
        if tokens.len() >= LISTINGS {
            tokens.remove(0);
        }
        tokens.push(Token { kind, after, next, made: Instant::now() });
    }

    fn locked(&self) -> MutexGuard<'_, Vec<Token>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(crate) async fn list(
    api: &Api,
    tokens: &Tokens,
    kind: Kind,
    after: Option<&str>,
    limit: usize,
) -> Result<Page, StoreError> {
    let Some((collection, _)) = Place::collection(kind) else {
        return Ok(Page { entries: Vec::new(), next: None, revision: Revision::new(0) });
    };
    let wanted = limit.clamp(1, CHUNK);
    let mut token = after.and_then(|name| tokens.take(kind, name));
    let mut scanning = after.is_some() && token.is_none();
    let (mut entries, mut revision) = (Vec::new(), None);
    loop {
        let chunk = if scanning { CHUNK } else { wanted - entries.len() };
        let chunk = u32::try_from(chunk).unwrap_or(u32::MAX);
        let list = match api.list(collection, chunk, token.as_deref()).await {
            Ok(list) => list,
            // The moment that this listing was of is no longer kept. Another moment will do, from the same name on.
            Err(Trouble::Expired) if token.is_some() => {
                (token, scanning, revision) = (None, after.is_some(), None);
                entries.clear();
                continue;
            }
            Err(trouble) => return Err(trouble.on(&Key::new(kind, ""))),
        };
        let moment = object::revision(&list.metadata.resource_version)?;
        let revision = *revision.get_or_insert(moment);
        let mut last = None;
        for object in list.items {
            if after.is_some_and(|after| object.metadata.name.as_str() <= after) {
                continue;
            }
            if entries.len() == wanted {
                // Only where it reads from the beginning, in chunks that are larger than the page.
                return Ok(Page { entries, next: last, revision });
            }
            let key = Key::new(kind, object.metadata.name.clone());
            entries.extend(object.entry(&key)?);
            last = Some(object.metadata.name);
        }
        token = list.metadata.next.filter(|next| !next.is_empty());
        let Some(next) = &token else { return Ok(Page { entries, next: None, revision }) };
        if entries.len() == wanted
            && let Some(last) = last
        {
            tokens.keep(kind, last.clone(), next.clone());
            return Ok(Page { entries, next: Some(last), revision });
        }
    }
}
