//! Requests: bounded in time, repeated only where that cannot do harm, with errors that say what is known.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use bowline_api::{GROUP, VERSION};
use futures::StreamExt;
use futures::stream::BoxStream;
use kube::Client;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions, WatchEvent, WatchParams};
use kube::core::{Request, request};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use tokio::time::{Instant, sleep, timeout};

use super::Guard;
use super::object::{self, Object, Place};
use crate::{Key, StoreError};

/// How the API server is called in messages.
pub(crate) const PLACE: &str = "the Kubernetes API server";

/// How long one request may take.
const REQUEST: Duration = Duration::from_secs(10);
/// For how long a read is repeated, and a write that certainly did not happen.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long the server keeps a watch; it is asked to end it, so that connections move between servers.
const WATCH_SECONDS: u32 = 280;

/// The raw requests, and who may make them.
pub(crate) struct Api {
    client: Client,
    guard: Arc<dyn Guard>,
}

/// Why a request did not do what it was meant to.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// There is no such object.
    NotFound,
    /// There is one already.
    Exists,
    /// The object is not as expected.
    Conflict,
    /// The changes or the list asked for are no longer kept.
    Expired,
    /// The server has too much to do; it did nothing.
    Busy(String),
    /// The server will not do it; it did nothing.
    Refused(String),
    /// We may not; nothing was asked.
    NotLeader(String),
    /// Nobody knows.
    Silent(String),
}

impl Trouble {
    /// The store's error for a request about this record.
    pub(crate) fn on(self, key: &Key) -> StoreError {
        let silent = |reason| StoreError::Unavailable { place: PLACE.to_owned(), reason };
        match self {
            Trouble::NotFound | Trouble::Exists | Trouble::Conflict => {
                StoreError::Conflict { key: key.clone(), current: None }
            }
            Trouble::Refused(reason) => StoreError::Refused { key: key.clone(), reason },
            Trouble::NotLeader(reason) => StoreError::NotLeader { reason },
            Trouble::Busy(reason) | Trouble::Silent(reason) => silent(reason),
            Trouble::Expired => silent("it no longer has what was asked for".to_owned()),
        }
    }
}

#[derive(Deserialize)]
pub(crate) struct List {
    pub(crate) metadata: ListMeta,
    pub(crate) items: Vec<Object>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ListMeta {
    pub(crate) resource_version: String,
    #[serde(default, rename = "continue")]
    pub(crate) next: Option<String>,
}

pub(crate) type Events = BoxStream<'static, Result<WatchEvent<Object>, Trouble>>;

type Ready = Result<kube::client::HttpRequest, request::Error>;
