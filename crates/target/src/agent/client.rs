//! A target somewhere else.

use async_trait::async_trait;
use bowline_core::{Epoch, NeverAgain, SnapshotId, TargetId, Timestamp, VolumeId};
use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tonic::codegen::tokio_stream::Stream;
use tonic::metadata::MetadataValue;
use tonic::transport::Channel;
use tonic::{Code, Request, Response, Status, Streaming};

use super::clock::ClockError;
use super::parse::{self, Bad, Described};
use super::reach::{Place, channel};
use super::shown::{ExportsShown, exports_shown};
use super::wire::{self, agent_client};
use super::{INSTALLATION_KEY, MESSAGE_BYTES, PROTOCOL, TARGET_KEY, tell};
use crate::{
    Capacity, Cut, Grant, Item, NewVolume, Page, Progress, Provision, ProvisionError, Revocation, Sizes,
    StoredSnapshot, StoredVolume, Target, TargetError, context,
};

/// How patient a client is.
#[derive(Clone, Debug)]
pub struct ClientSettings {
    /// How long a connection may take to come about.
    pub connect: Duration,
    /// How long a question may take, and an order to let in or shut out.
    pub short: Duration,
    /// How long deleting and growing may take.
    pub long: Duration,
    /// How long nothing may be heard of a copy that is under way; it tells that it lives every half second.
    pub silence: Duration,
    /// The pause after the first connection that failed; it doubles with each further one.
    pub first_pause: Duration,
    /// The longest pause between two tries to connect.
    pub longest_pause: Duration,
}

impl Default for ClientSettings {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(5),
            short: Duration::from_secs(25),
            long: Duration::from_secs(120),
            silence: Duration::from_secs(30),
            first_pause: Duration::from_millis(50),
            longest_pause: Duration::from_secs(5),
        }
    }
}

/// Why there is no client.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// Nobody answers, or what is shown there is not trusted.
    #[error("the agent at {place} does not answer: {error}")]
    Unreachable {
        /// Where.
        place: String,
        /// What was seen.
        error: String,
    },
    /// It is there, and says why it cannot serve yet.
    #[error("the agent at {place} cannot serve yet: {error}")]
    NotServing {
        /// Where.
        place: String,
        /// Why, in its own words.
        error: String,
    },
    /// It speaks a version of the protocol that this program does not.
    #[error(
        "the agent at {place} (version {version}) speaks version {found} of the protocol, and this program (version {}) up to {PROTOCOL}; \
         upgrade the controller",
        env!("CARGO_PKG_VERSION")
    )]
    Protocol {
        /// Where.
        place: String,
        /// The version of the agent's program.
        version: String,
        /// Which version of the protocol it speaks.
        found: u32,
    },
    /// What it says of itself makes no sense.
    #[error("the agent at {place} does not say what it is: {error}")]
    Unclear {
        /// Where.
        place: String,
        /// What is wrong.
        error: Bad,
    },
    /// It is another target.
    #[error("the agent at {place} is that of target {found}, not of {expected}")]
    Another {
        /// Where.
        place: String,
        /// Who was expected.
        expected: TargetId,
        /// Who answers.
        found: TargetId,
    },
    /// It is the target, over other storage: what it says of volumes proves nothing about the ones that were there.
    #[error(
        "the agent at {place} serves target {target} from other storage than before (it says {}, and it was {expected}); \
         is its disk mounted, its directory the right one, or was its device replaced?",
        if found.is_empty() { "nothing" } else { found }
    )]
    OtherStorage {
        /// Where.
        place: String,
        /// The target.
        target: TargetId,
        /// Of which installation it was.
        expected: String,
        /// Of which installation it is now.
        found: String,
    },
}

/// A target that an agent serves. A handle; clones share one connection, which is made again when it is lost.
#[derive(Clone)]
pub struct AgentClient {
    wire: agent_client::AgentClient<Channel>,
    place: String,
    what: Arc<Described>,
    /// From where it can be reached, besides what it says itself.
    reach: BTreeMap<String, String>,
    settings: ClientSettings,
}

/// What an agent says of itself when it is asked again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Look {
    /// Whether that is what it said when it was connected: one that was started anew may listen elsewhere, and nodes are told where.
    /// One that says nothing now is taken for what it was.
    pub as_it_was: bool,
    /// How wrong its clock is, if it told.
    pub clock: Option<ClockError>,
    /// What it says of the exports that it has to show to nodes, or what is wrong with its words.
    pub exports: Result<ExportsShown, Bad>,
}

impl fmt::Debug for AgentClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AgentClient").field("what", &self.what).finish_non_exhaustive()
    }
}

impl AgentClient {
    /// Asks who is there. From then on it is that target over that storage, and no other that may come to answer at the same
    /// place.
    pub async fn connect(
        place: Place,
        expected: Option<&TargetId>,
        settings: ClientSettings,
    ) -> Result<Self, ConnectError> {
        let shown = place.to_string();
        let unreachable = |error| ConnectError::Unreachable { place: shown.clone(), error };
        let mut wire = agent_client::AgentClient::new(channel(place, &settings))
            .max_decoding_message_size(MESSAGE_BYTES)
            .max_encoding_message_size(MESSAGE_BYTES);
        let asked = tokio::time::timeout(settings.short, wire.describe(wire::DescribeRequest {})).await;
        let answer = asked.map_err(|_| unreachable(no_answer(settings.short)))?;
        let answer = answer.map_err(|status| match status.code() {
            Code::FailedPrecondition => {
                ConnectError::NotServing { place: shown.clone(), error: words(&status) }
            }
            _ => unreachable(words(&status)),
        })?;
        let answer = answer.into_inner();
        if answer.protocol > PROTOCOL {
            let (version, found) = (answer.version, answer.protocol);
            return Err(ConnectError::Protocol { place: shown, version, found });
        }
        let what = parse::described(answer)
            .map_err(|error| ConnectError::Unclear { place: shown.clone(), error })?;
        match expected.filter(|expected| **expected != what.target) {
            Some(expected) => {
                let (expected, found) = (expected.clone(), what.target);
                Err(ConnectError::Another { place: shown, expected, found })
            }
            None => Ok(Self { wire, place: shown, what: Arc::new(what), reach: BTreeMap::new(), settings }),
        }
    }

    /// Says more about from where it can be reached than it says itself. What it says itself stays.
    #[must_use]
    pub fn also_in(mut self, segments: BTreeMap<String, String>) -> Self {
        self.reach = segments;
        self
    }

    /// Where it is.
    pub fn place(&self) -> &str {
        &self.place
    }

    /// The version of the program that serves it.
    pub fn version(&self) -> &str {
        &self.what.version
    }

    /// Asks again who is there, what the time is, and what is not shown to nodes.
    pub async fn look(&self) -> Look {
        let call = async |mut wire: agent_client::AgentClient<_>, request| wire.describe(request).await;
        let (asked, began) = (Timestamp::now(), Instant::now());
        let answer = self.call(wire::DescribeRequest {}, self.settings.short, call).await.ok();
        let took = began.elapsed();
        let clock = answer.as_ref().and_then(|answer| answer.clock);
        let exports = exports_shown(answer.as_ref().and_then(|answer| answer.unshown.clone()));
        let told = answer.and_then(|answer| parse::described(answer).ok());
        Look {
            as_it_was: told.is_none_or(|told| told == *self.what),
            clock: clock.map(|told| ClockError::measure(asked, took, told)),
            exports,
        }
    }

    /// What tells its storage from any other; empty if nothing does.
    pub fn storage(&self) -> &str {
        &self.what.storage
    }

    /// Whether it is the storage that it was when somebody last heard of this target: an agent that was started over an empty
    /// directory never let anybody in, and would prove it. Nothing was heard if it is empty.
    pub fn must_be(&self, expected: &str) -> Result<(), ConnectError> {
        let Described { storage: found, installation, .. } = &*self.what;
        // Agents told no more than their installation before they knew of devices.
        if expected.is_empty() || expected == found || expected == installation {
            return Ok(());
        }
        Err(ConnectError::OtherStorage {
            place: self.place.clone(),
            target: self.what.target.clone(),
            expected: expected.to_owned(),
            found: found.clone(),
        })
    }

    fn request<Q>(&self, message: Q) -> Request<Q> {
        let mut request = Request::new(message);
        // Ids are printable ASCII, so this cannot fail; without it the agent refuses.
        if let Ok(target) = MetadataValue::try_from(self.what.target.as_str()) {
            request.metadata_mut().insert(TARGET_KEY, target);
        }
        // So is this: it was looked at when it was heard. An agent that said nothing is asked as before.
        let storage = Some(self.what.storage.as_str()).filter(|told| !told.is_empty());
        if let Some(storage) = storage.and_then(|told| MetadataValue::try_from(told).ok()) {
            request.metadata_mut().insert(INSTALLATION_KEY, storage);
        }
        request
    }

    async fn call<Q, A, F>(
        &self,
        message: Q,
        wait: Duration,
        call: impl FnOnce(agent_client::AgentClient<Channel>, Request<Q>) -> F,
    ) -> Result<A, Lost>
    where
        F: Future<Output = Result<Response<A>, Status>>,
    {
        match tokio::time::timeout(wait, call(self.wire.clone(), self.request(message))).await {
            Ok(Ok(answer)) => Ok(answer.into_inner()),
            Ok(Err(status)) => Err(status.into()),
            Err(_) => Err(Lost::Unreachable(no_answer(wait))),
        }
    }

    /// Listens to how far something has come until `told` says what became of it.
    async fn follow<A, T>(
        &self,
        mut answers: Streaming<A>,
        progress: &Progress,
        told: impl Fn(A) -> Told<T>,
    ) -> Result<T, ProvisionError>
    where
        Streaming<A>: Stream,
    {
        let (silence, mut shown) = (self.settings.silence, 0);
        loop {
            let heard = tokio::time::timeout(silence, answers.message()).await;
            let heard = heard.map_err(|_| Lost::Unreachable(no_answer(silence)))?.map_err(Lost::from)?;
            match heard.map(&told) {
                Some(Told::Progress(wire::Progress { done, total })) => {
                    progress.expect(total);
                    progress.add(done.saturating_sub(shown));
                    shown = shown.max(done);
                }
                Some(Told::Done(done)) => return done,
                None => return Err(Lost::Unreachable("the answer broke off".to_owned()).into()),
            }
        }
    }
}

/// What is heard of something that takes long.
enum Told<T> {
    Progress(wire::Progress),
    Done(Result<T, ProvisionError>),
}

pub(crate) fn no_answer(within: Duration) -> String {
    format!("no answer within {within:?}")
}

/// Why there is no answer of the target itself.
enum Lost {
    /// The agent did not take it for an order: nothing was done.
    Refused(String),
    /// Nobody knows.
    Unreachable(String),
}

impl From<Status> for Lost {
    fn from(status: Status) -> Self {
        match status.code() {
            Code::InvalidArgument => Self::Refused(words(&status)),
            _ => Self::Unreachable(words(&status)),
        }
    }
}

impl From<Lost> for TargetError {
    fn from(lost: Lost) -> Self {
        match lost {
            Lost::Refused(error) => Self::Refused { error },
            Lost::Unreachable(error) => Self::Unreachable { error },
        }
    }
}

impl From<Lost> for ProvisionError {
    fn from(lost: Lost) -> Self {
        match lost {
            Lost::Refused(error) => Self::Refused { error },
            Lost::Unreachable(error) => Self::Unreachable { error },
        }
    }
}

/// A status in words, with what lies behind it: "transport error" alone helps nobody.
fn words(status: &Status) -> String {
    let mut words = status.message().to_owned();
    let mut cause = std::error::Error::source(status);
    while let Some(error) = cause {
        let more = error.to_string();
        if !words.contains(&more) {
            words = if words.is_empty() { more } else { format!("{words}: {more}") };
        }
        cause = error.source();
    }
    if words.is_empty() { format!("{:?}", status.code()) } else { words }
}

#[async_trait]
impl Target for AgentClient {
    fn id(&self) -> &TargetId {
        &self.what.target
    }

    async fn allow(&self, grant: &Grant) -> Result<(), TargetError> {
        use wire::allow_response::Answer;
        let call = async |mut wire: agent_client::AgentClient<_>, request| wire.allow(request).await;
        match self.call(tell::allow(grant), self.settings.short, call).await?.answer {
            Some(Answer::Allowed(_)) => Ok(()),
            Some(Answer::Error(error)) => Err(parse::access_error(error)),
            None => Err(parse::access_unclear(&Bad::Missing("answer"))),
        }
    }

    async fn revoke(&self, revocation: &Revocation) -> Result<NeverAgain, TargetError> {
        use wire::revoke_response::Answer;
        let call = async |mut wire: agent_client::AgentClient<_>, request| wire.revoke(request).await;
        match self.call(tell::revoke(revocation), self.settings.short, call).await?.answer {
            // A proof is about the epoch that was asked for, or it is none.
            Some(Answer::NeverAgain(highest)) if highest >= revocation.epoch.number() => {
                Ok(NeverAgain { highest: Epoch::new(highest) })
            }
            Some(Answer::NeverAgain(_)) => {
                let must = "must not be below the epoch that was revoked";
                Err(parse::access_unclear(&Bad::Value { field: "never_again", must }))
            }
            Some(Answer::Error(error)) => Err(parse::access_error(error)),
            None => Err(parse::access_unclear(&Bad::Missing("answer"))),
        }
    }

    async fn exports(&self, after: Option<&VolumeId>, limit: usize) -> Result<Page, TargetError> {
        use wire::list_exports_response::Answer;
        let request = wire::ListExportsRequest {
            after: after.map(ToString::to_string).unwrap_or_default(),
            limit: u32::try_from(limit.max(1)).unwrap_or(u32::MAX),
        };
        let call = async |mut wire: agent_client::AgentClient<_>, request| wire.list_exports(request).await;
        match self.call(request, self.settings.short, call).await?.answer {
            Some(Answer::Page(page)) => parse::page(page).map_err(|error| parse::access_unclear(&error)),
            Some(Answer::Error(error)) => Err(parse::access_error(error)),
            None => Err(parse::access_unclear(&Bad::Missing("answer"))),
        }
    }

    fn context(&self, grant: &Grant) -> BTreeMap<String, String> {
        let Described { target, kind, installation, addresses, .. } = &*self.what;
        context::of_grant(target, kind, installation, addresses, grant)
    }
}

fn nothing<T>() -> Result<T, ProvisionError> {
    Err(parse::storage_unclear(&Bad::Missing("answer")))
}

#[async_trait]
impl Provision for AgentClient {
    fn sizes(&self) -> Sizes {
        self.what.sizes
    }

    fn kind(&self) -> &str {
        &self.what.kind
    }

    fn topology(&self) -> BTreeMap<String, String> {
        let mut all = self.reach.clone();
        all.extend(self.what.topology.clone());
        all
    }

    fn installation(&self) -> &str {
        &self.what.installation
    }

    fn addresses(&self) -> &[SocketAddr] {
        &self.what.addresses
    }

    async fn create(&self, order: &NewVolume, progress: &Progress) -> Result<u64, ProvisionError> {
        use wire::create_volume_response::Answer;
        let call = async |mut wire: agent_client::AgentClient<_>, request| wire.create_volume(request).await;
        let answers = self.call(tell::create(order), self.settings.silence, call).await?;
        let told = |heard: wire::CreateVolumeResponse| match heard.answer {
            Some(Answer::Progress(progress)) => Told::Progress(progress),
            Some(Answer::Size(size)) => Told::Done(Ok(size)),
            Some(Answer::Error(error)) => Told::Done(Err(parse::storage_error(error))),
            None => Told::Done(nothing()),
        };
        self.follow(answers, progress, told).await
    }

    async fn delete(&self, volume: &VolumeId) -> Result<(), ProvisionError> {
        use wire::delete_volume_response::Answer;
        let request = wire::DeleteVolumeRequest { volume: volume.to_string() };
        let call = async |mut wire: agent_client::AgentClient<_>, request| wire.delete_volume(request).await;
        match self.call(request, self.settings.long, call).await?.answer {
            Some(Answer::Deleted(_)) => Ok(()),
            Some(Answer::Error(error)) => Err(parse::storage_error(error)),
            None => nothing(),
        }
    }

    async fn grow(&self, volume: &VolumeId, size: u64) -> Result<u64, ProvisionError> {
        use wire::grow_volume_response::Answer;
        let request = wire::GrowVolumeRequest { volume: volume.to_string(), size };
        let call = async |mut wire: agent_client::AgentClient<_>, request| wire.grow_volume(request).await;
        match self.call(request, self.settings.long, call).await?.answer {
            Some(Answer::Size(size)) => Ok(size),
            Some(Answer::Error(error)) => Err(parse::storage_error(error)),
            None => nothing(),
        }
    }

    async fn volume(&self, volume: &VolumeId) -> Result<Option<StoredVolume>, ProvisionError> {
        use wire::get_volume_response::Answer;
        let request = wire::GetVolumeRequest { volume: volume.to_string() };
        let call = async |mut wire: agent_client::AgentClient<_>, request| wire.get_volume(request).await;
        match self.call(request, self.settings.short, call).await?.answer {
            Some(Answer::Found(found)) => Ok(Some(parse::stored_volume(found))),
            Some(Answer::Absent(_)) => Ok(None),
            Some(Answer::Error(error)) => Err(parse::storage_error(error)),
            None => nothing(),
        }
    }

    async fn snapshot(
        &self,
        cuts: &[Cut],
        progress: &Progress,
    ) -> Result<Vec<StoredSnapshot>, ProvisionError> {
        use wire::take_snapshots_response::Answer;
        let request = wire::TakeSnapshotsRequest { cuts: cuts.iter().map(tell::cut).collect() };
        let call = async |mut wire: agent_client::AgentClient<_>, request| wire.take_snapshots(request).await;
        let answers = self.call(request, self.settings.silence, call).await?;
        let told = |heard: wire::TakeSnapshotsResponse| match heard.answer {
            Some(Answer::Progress(progress)) => Told::Progress(progress),
            Some(Answer::Taken(taken)) => {
                let taken = taken.snapshots.into_iter().map(parse::stored_snapshot).collect();
                Told::Done(Result::map_err(taken, |error| parse::storage_unclear(&error)))
            }
            Some(Answer::Error(error)) => Told::Done(Err(parse::storage_error(error))),
            None => Told::Done(nothing()),
        };
        self.follow(answers, progress, told).await
    }

    async fn delete_snapshot(&self, snapshot: &SnapshotId) -> Result<(), ProvisionError> {
        use wire::delete_snapshot_response::Answer;
        let request = wire::DeleteSnapshotRequest { snapshot: snapshot.to_string() };
        let call =
            async |mut wire: agent_client::AgentClient<_>, request| wire.delete_snapshot(request).await;
        match self.call(request, self.settings.long, call).await?.answer {
            Some(Answer::Deleted(_)) => Ok(()),
            Some(Answer::Error(error)) => Err(parse::storage_error(error)),
            None => nothing(),
        }
    }

    async fn stored_snapshot(&self, snapshot: &SnapshotId) -> Result<Option<StoredSnapshot>, ProvisionError> {
        use wire::get_snapshot_response::Answer;
        let request = wire::GetSnapshotRequest { snapshot: snapshot.to_string() };
        let call = async |mut wire: agent_client::AgentClient<_>, request| wire.get_snapshot(request).await;
        match self.call(request, self.settings.short, call).await?.answer {
            Some(Answer::Found(found)) => {
                parse::stored_snapshot(found).map(Some).map_err(|error| parse::storage_unclear(&error))
            }
            Some(Answer::Absent(_)) => Ok(None),
            Some(Answer::Error(error)) => Err(parse::storage_error(error)),
            None => nothing(),
        }
    }

    async fn capacity(&self) -> Result<Capacity, ProvisionError> {
        use wire::get_capacity_response::Answer;
        let call = async |mut wire: agent_client::AgentClient<_>, request| wire.get_capacity(request).await;
        match self.call(wire::GetCapacityRequest {}, self.settings.short, call).await?.answer {
            Some(Answer::Capacity(room)) => Ok(parse::capacity(room)),
            Some(Answer::Error(error)) => Err(parse::storage_error(error)),
            None => nothing(),
        }
    }

    async fn items(&self, after: Option<&Item>, limit: usize) -> Result<Vec<Item>, ProvisionError> {
        use wire::list_items_response::Answer;
        let request = wire::ListItemsRequest {
            after: after.cloned().map(tell::item),
            limit: u32::try_from(limit.max(1)).unwrap_or(u32::MAX),
        };
        let call = async |mut wire: agent_client::AgentClient<_>, request| wire.list_items(request).await;
        match self.call(request, self.settings.short, call).await?.answer {
            Some(Answer::Page(page)) => {
                let items = page.items.into_iter().map(|one| parse::item("items", one)).collect();
                Result::map_err(items, |error| parse::storage_unclear(&error))
            }
            Some(Answer::Error(error)) => Err(parse::storage_error(error)),
            None => nothing(),
        }
    }
}
