//! One call after the other: parsed, carried out to its end whether anybody waits or not, told.

use bowline_core::{TargetId, Timestamp};
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tonic::{Request, Response, Status};

use super::parse::{self, Bad, ExportsAfter, Grow, ItemsAfter, SnapshotName, TakeTogether, VolumeName};
use super::shown::{self, ExportsShown};
use super::wire::{self, agent_server::Agent};
use super::{BEAT, INSTALLATION_KEY, PROTOCOL, TARGET_KEY, tell};
use crate::{Progress, Provision};

/// Calls that are carried out at once; more wait. What nobody waits for any more counts too.
const CALLS: usize = 256;

pub(crate) struct Service {
    pub(crate) target: Arc<dyn Provision>,
    pub(crate) kind: String,
    pub(crate) version: String,
    pub(crate) storage: String,
    pub(crate) topology: BTreeMap<String, String>,
    pub(crate) clock: Arc<dyn Fn() -> Timestamp + Send + Sync>,
    pub(crate) exports: Arc<dyn Fn() -> ExportsShown + Send + Sync>,
    pub(crate) protocol: u32,
    turns: Arc<Semaphore>,
}

fn bad(error: &Bad) -> Status {
    Status::invalid_argument(error.to_string())
}

impl Service {
    pub(crate) fn new(target: Arc<dyn Provision>, kind: String, version: String) -> Self {
        let (topology, storage) = (target.topology(), target.installation().to_owned());
        Self {
            target,
            storage,
            kind,
            version,
            topology,
            clock: Arc::new(Timestamp::now),
            exports: Arc::new(ExportsShown::default),
            protocol: PROTOCOL,
            turns: Arc::new(Semaphore::new(CALLS)),
        }
    }

    /// What is asked of this target over this storage, and of no other.
    fn meant<Q>(&self, request: Request<Q>) -> Result<Q, Status> {
        let named = request.metadata().get(TARGET_KEY).and_then(|named| named.to_str().ok());
        let ours: &TargetId = self.target.id();
        match named {
            Some(named) if named == ours.as_str() => {}
            Some(_) => {
                return Err(Status::failed_precondition(format!(
                    "this is target {ours}, and another is meant"
                )));
            }
            None => return Err(Status::invalid_argument(format!("metadata {TARGET_KEY} is required"))),
        }
        // Who does not say it was connected when nobody told it.
        let storage = request.metadata().get(INSTALLATION_KEY);
        if storage.is_some_and(|meant| meant.as_bytes() != self.storage.as_bytes()) {
            return Err(Status::failed_precondition(format!(
                "this is target {ours} over other storage than before; is its disk mounted, or was its device replaced?"
            )));
        }
        Ok(request.into_inner())
    }

    /// Begins work that nobody's going away stops.
    async fn begin<F>(
        &self,
        work: impl FnOnce(Arc<dyn Provision>) -> F,
    ) -> Result<JoinHandle<F::Output>, Status>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        let turn = Arc::clone(&self.turns).acquire_owned().await;
        let turn = turn.map_err(|_| Status::unavailable("the agent is stopping"))?;
        let work = work(Arc::clone(&self.target));
        Ok(tokio::spawn(async move {
            let done = work.await;
            drop(turn);
            done
        }))
    }

    async fn carry<F>(&self, work: impl FnOnce(Arc<dyn Provision>) -> F) -> Result<F::Output, Status>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        self.begin(work).await?.await.map_err(|error| ended(&error))
    }
}

fn ended(error: &tokio::task::JoinError) -> Status {
    Status::internal(format!("the work on it ended early: {error}"))
}

/// How far the work has come, again and again, and then what became of it.
fn watched<T, A>(
    work: JoinHandle<T>,
    progress: Arc<Progress>,
    so_far: impl Fn(wire::Progress) -> A + Send + 'static,
    done: impl Fn(T) -> A + Send + 'static,
) -> BoxStream<'static, Result<A, Status>>
where
    T: Send + 'static,
    A: Send + 'static,
{
    stream::unfold(Some((work, progress, so_far, done)), |state| async move {
        let (mut work, progress, so_far, done) = state?;
        match tokio::time::timeout(BEAT, &mut work).await {
            Ok(Ok(ended)) => Some((Ok(done(ended)), None)),
            Ok(Err(error)) => Some((Err(ended(&error)), None)),
            Err(_) => {
                let (copied, total) = progress.read();
                let beat = so_far(wire::Progress { done: copied, total });
                Some((Ok(beat), Some((work, progress, so_far, done))))
            }
        }
    })
    .boxed()
}

type Answer<T> = Result<Response<T>, Status>;

#[async_trait::async_trait]
impl Agent for Service {
    type CreateVolumeStream = BoxStream<'static, Result<wire::CreateVolumeResponse, Status>>;
    type TakeSnapshotsStream = BoxStream<'static, Result<wire::TakeSnapshotsResponse, Status>>;

    async fn describe(&self, _: Request<wire::DescribeRequest>) -> Answer<wire::DescribeResponse> {
        let sizes = self.target.sizes();
        Ok(Response::new(wire::DescribeResponse {
            target: self.target.id().to_string(),
            kind: self.kind.clone(),
            sizes: Some(wire::Sizes {
                minimum: sizes.minimum,
                maximum: sizes.maximum,
                multiple: sizes.multiple,
            }),
            topology: self.topology.clone().into_iter().collect(),
            version: self.version.clone(),
            installation: self.target.installation().to_owned(),
            nvme_addresses: self.target.addresses().iter().map(ToString::to_string).collect(),
            clock: Some((self.clock)().as_millisecond()),
            protocol: self.protocol,
            storage: self.storage.clone(),
            unshown: shown::tell((self.exports)()),
        }))
    }

    async fn allow(&self, request: Request<wire::AllowRequest>) -> Answer<wire::AllowResponse> {
        use wire::allow_response::Answer;
        let grant = parse::to_grant(&self.meant(request)?).map_err(|error| bad(&error))?;
        let answer = match self.carry(|target| async move { target.allow(&grant).await }).await? {
            Ok(()) => Answer::Allowed(wire::Empty {}),
            Err(error) => Answer::Error(tell::access_error(error)),
        };
        Ok(Response::new(wire::AllowResponse { answer: Some(answer) }))
    }

    async fn revoke(&self, request: Request<wire::RevokeRequest>) -> Answer<wire::RevokeResponse> {
        use wire::revoke_response::Answer;
        let revocation = parse::revocation(&self.meant(request)?).map_err(|error| bad(&error))?;
        let answer = match self.carry(|target| async move { target.revoke(&revocation).await }).await? {
            Ok(proof) => Answer::NeverAgain(proof.highest.number()),
            Err(error) => Answer::Error(tell::access_error(error)),
        };
        Ok(Response::new(wire::RevokeResponse { answer: Some(answer) }))
    }

    async fn list_exports(
        &self,
        request: Request<wire::ListExportsRequest>,
    ) -> Answer<wire::ListExportsResponse> {
        use wire::list_exports_response::Answer;
        let ExportsAfter { after, limit } = self.meant(request)?.try_into().map_err(|error| bad(&error))?;
        let listed = self.carry(|target| async move { target.exports(after.as_ref(), limit).await });
        let answer = match listed.await? {
            Ok(page) => Answer::Page(tell::page(page)),
            Err(error) => Answer::Error(tell::access_error(error)),
        };
        Ok(Response::new(wire::ListExportsResponse { answer: Some(answer) }))
    }

    async fn create_volume(
        &self,
        request: Request<wire::CreateVolumeRequest>,
    ) -> Answer<Self::CreateVolumeStream> {
        use wire::create_volume_response::Answer;
        let order = parse::order(self.meant(request)?).map_err(|error| bad(&error))?;
        let progress = Arc::new(Progress::default());
        let shared = Arc::clone(&progress);
        let work = self.begin(|target| async move { target.create(&order, &shared).await }).await?;
        let told = |answer| wire::CreateVolumeResponse { answer: Some(answer) };
        let so_far = move |so_far| told(Answer::Progress(so_far));
        let done = move |made| match made {
            Ok(size) => told(Answer::Size(size)),
            Err(error) => told(Answer::Error(tell::storage_error(error))),
        };
        Ok(Response::new(watched(work, progress, so_far, done)))
    }

    async fn delete_volume(
        &self,
        request: Request<wire::DeleteVolumeRequest>,
    ) -> Answer<wire::DeleteVolumeResponse> {
        use wire::delete_volume_response::Answer;
        let VolumeName(volume) = self.meant(request)?.try_into().map_err(|error| bad(&error))?;
        let answer = match self.carry(|target| async move { target.delete(&volume).await }).await? {
            Ok(()) => Answer::Deleted(wire::Empty {}),
            Err(error) => Answer::Error(tell::storage_error(error)),
        };
        Ok(Response::new(wire::DeleteVolumeResponse { answer: Some(answer) }))
    }

    async fn grow_volume(
        &self,
        request: Request<wire::GrowVolumeRequest>,
    ) -> Answer<wire::GrowVolumeResponse> {
        use wire::grow_volume_response::Answer;
        let Grow { volume, size } = self.meant(request)?.try_into().map_err(|error| bad(&error))?;
        let answer = match self.carry(|target| async move { target.grow(&volume, size).await }).await? {
            Ok(size) => Answer::Size(size),
            Err(error) => Answer::Error(tell::storage_error(error)),
        };
        Ok(Response::new(wire::GrowVolumeResponse { answer: Some(answer) }))
    }

    async fn get_volume(&self, request: Request<wire::GetVolumeRequest>) -> Answer<wire::GetVolumeResponse> {
        use wire::get_volume_response::Answer;
        let VolumeName(volume) = self.meant(request)?.try_into().map_err(|error| bad(&error))?;
        let answer = match self.carry(|target| async move { target.volume(&volume).await }).await? {
            Ok(Some(found)) => Answer::Found(tell::stored_volume(found)),
            Ok(None) => Answer::Absent(wire::Empty {}),
            Err(error) => Answer::Error(tell::storage_error(error)),
        };
        Ok(Response::new(wire::GetVolumeResponse { answer: Some(answer) }))
    }

    async fn take_snapshots(
        &self,
        request: Request<wire::TakeSnapshotsRequest>,
    ) -> Answer<Self::TakeSnapshotsStream> {
        use wire::take_snapshots_response::Answer;
        let TakeTogether(cuts) = self.meant(request)?.try_into().map_err(|error| bad(&error))?;
        let progress = Arc::new(Progress::default());
        let shared = Arc::clone(&progress);
        let work = self.begin(|target| async move { target.snapshot(&cuts, &shared).await }).await?;
        let told = |answer| wire::TakeSnapshotsResponse { answer: Some(answer) };
        let so_far = move |so_far| told(Answer::Progress(so_far));
        let done = move |taken: Result<Vec<_>, _>| match taken {
            Ok(taken) => {
                let snapshots = taken.into_iter().map(tell::stored_snapshot).collect();
                told(Answer::Taken(wire::StoredSnapshots { snapshots }))
            }
            Err(error) => told(Answer::Error(tell::storage_error(error))),
        };
        Ok(Response::new(watched(work, progress, so_far, done)))
    }

    async fn delete_snapshot(
        &self,
        request: Request<wire::DeleteSnapshotRequest>,
    ) -> Answer<wire::DeleteSnapshotResponse> {
        use wire::delete_snapshot_response::Answer;
        let SnapshotName(snapshot) = self.meant(request)?.try_into().map_err(|error| bad(&error))?;
        let deleted = self.carry(|target| async move { target.delete_snapshot(&snapshot).await });
        let answer = match deleted.await? {
            Ok(()) => Answer::Deleted(wire::Empty {}),
            Err(error) => Answer::Error(tell::storage_error(error)),
        };
        Ok(Response::new(wire::DeleteSnapshotResponse { answer: Some(answer) }))
    }

    async fn get_snapshot(
        &self,
        request: Request<wire::GetSnapshotRequest>,
    ) -> Answer<wire::GetSnapshotResponse> {
        use wire::get_snapshot_response::Answer;
        let SnapshotName(snapshot) = self.meant(request)?.try_into().map_err(|error| bad(&error))?;
        let found = self.carry(|target| async move { target.stored_snapshot(&snapshot).await });
        let answer = match found.await? {
            Ok(Some(found)) => Answer::Found(tell::stored_snapshot(found)),
            Ok(None) => Answer::Absent(wire::Empty {}),
            Err(error) => Answer::Error(tell::storage_error(error)),
        };
        Ok(Response::new(wire::GetSnapshotResponse { answer: Some(answer) }))
    }

    async fn get_capacity(
        &self,
        request: Request<wire::GetCapacityRequest>,
    ) -> Answer<wire::GetCapacityResponse> {
        use wire::get_capacity_response::Answer;
        self.meant(request)?;
        let answer = match self.carry(|target| async move { target.capacity().await }).await? {
            Ok(room) => Answer::Capacity(tell::capacity(room)),
            Err(error) => Answer::Error(tell::storage_error(error)),
        };
        Ok(Response::new(wire::GetCapacityResponse { answer: Some(answer) }))
    }

    async fn list_items(&self, request: Request<wire::ListItemsRequest>) -> Answer<wire::ListItemsResponse> {
        use wire::list_items_response::Answer;
        let ItemsAfter { after, limit } = self.meant(request)?.try_into().map_err(|error| bad(&error))?;
        let listed = self.carry(|target| async move { target.items(after.as_ref(), limit).await });
        let answer = match listed.await? {
            Ok(items) => Answer::Page(wire::Items { items: items.into_iter().map(tell::item).collect() }),
            Err(error) => Answer::Error(tell::storage_error(error)),
        };
        Ok(Response::new(wire::ListItemsResponse { answer: Some(answer) }))
    }
}
