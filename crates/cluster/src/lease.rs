//! Who leads: one `Lease` of Kubernetes, held by one process at a time.
//!
//! # Flow
//!
//! [`acquire`] waits until the lease is free (it watches, so a release is seen at once), takes it by compare-and-swap, and renews it in
//! a task of its own. It gives a [`Leadership`], which answers "may I write now?" without asking anybody, and a [`Lost`], which ends when the
//! lease is lost; the process must end then.
//!
//! # Guarantees
//!
//! - [`Leadership::may_write`] says yes only while the last successful renewal, measured from *before* its request was sent, is younger than the
//!   renew deadline. Others take the lease only when they have seen no renewal for its whole duration, which is longer. So a process that was
//!   paused refuses by itself when it wakes, before any request.
//! - A graceful end ([`Leadership::release`]) gives the lease back: the next one has it as soon as it hears of it.
//!
//! # Caveats
//!
//! - Time is measured with `std::time::Instant`: it goes on while the process is stopped (SIGSTOP), but not while the whole machine is suspended.
//!   What protects the ledger then is its compare-and-swap, and what protects the bytes is the epoch at the target.

use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::{PostParams, WatchEvent, WatchParams};
use kube::{Api, Client};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{oneshot, watch};

use crate::pause::pause;

/// Which lease, who asks for it, and how patient everybody is.
#[derive(Clone, Debug)]
pub struct LeaseSettings {
    /// Where the lease is.
    pub namespace: String,
    /// What it is called.
    pub name: String,
    /// Who asks. Two processes that run at the same time must not have the same; the name of the pod will do.
    pub identity: String,
    /// How long others wait without seeing a renewal before they take it.
    pub duration: Duration,
    /// How long the holder goes on without a renewal. Shorter than `duration`.
    pub renew_deadline: Duration,
    /// How often it is renewed.
    pub period: Duration,
}

impl LeaseSettings {
    /// The lease of that name, with the usual patience: 15 s, 10 s and 2 s.
    pub fn new(namespace: &str, name: &str, identity: &str) -> Self {
        Self {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            identity: identity.to_owned(),
            duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            period: Duration::from_secs(2),
        }
    }
}

/// Why a lease cannot even be asked for.
#[derive(Debug, thiserror::Error)]
pub enum LeaseError {
    /// The times do not go together.
    #[error(
        "the lease's times must rise: period {period:?}, renew deadline {renew_deadline:?}, duration {duration:?}"
    )]
    Times {
        /// How often it is renewed.
        period: Duration,
        /// How long the holder goes on without.
        renew_deadline: Duration,
        /// How long others wait.
        duration: Duration,
    },
    /// Nobody is called that.
    #[error("the identity of whoever asks for the lease is empty; give it the name of its pod")]
    NoIdentity,
}

/// That this process leads. A handle; clones are about the same lease.
#[derive(Clone)]
pub struct Leadership {
    held: Arc<Held>,
    release: Arc<Mutex<Option<oneshot::Sender<oneshot::Sender<()>>>>>,
}

struct Held {
    identity: String,
    renew_deadline: Duration,
    standing: Mutex<Standing>,
}

#[derive(Clone, Copy)]
enum Standing {
    /// It leads, as far as the last successful renewal, sent then, tells.
    Renewed(Instant),
    /// The lease is lost or given back. Nothing comes after this, not even the answer to a renewal that is on its way.
    Ended,
}

impl Held {
    fn age(&self) -> Option<Duration> {
        match *self.standing.lock().unwrap_or_else(PoisonError::into_inner) {
            Standing::Renewed(sent) => Some(sent.elapsed()),
            Standing::Ended => None,
        }
    }

    fn renewed(&self, sent: Instant) {
        let mut standing = self.standing.lock().unwrap_or_else(PoisonError::into_inner);
        if let Standing::Renewed(last) = &mut *standing {
            *last = sent;
        }
    }

    fn end(&self) {
        *self.standing.lock().unwrap_or_else(PoisonError::into_inner) = Standing::Ended;
    }
}

impl Leadership {
    /// Whether a write may be sent now. Asks nobody, and costs nothing: to be asked before every single write.
    pub fn may_write(&self) -> Result<(), String> {
        match self.held.age() {
            Some(age) if age < self.held.renew_deadline => Ok(()),
            Some(age) => Err(format!(
                "{} does not lead any more: its lease was last renewed {} s ago; another one leads by now",
                self.held.identity,
                age.as_secs()
            )),
            None => {
                Err(format!("{} does not lead any more: its lease is lost or given back", self.held.identity))
            }
        }
    }

    /// Gives the lease back, so that the next one need not wait for its end. Nothing may be written after this.
    pub async fn release(&self) {
        self.held.end();
        let release = self.release.lock().unwrap_or_else(PoisonError::into_inner).take();
        let (done, given_back) = oneshot::channel();
        if release.is_some_and(|release| release.send(done).is_ok()) {
            // The renewing task ends either way.
            let _ = given_back.await;
        }
    }
}

impl bowline_store::kube::Guard for Leadership {
    fn may_write(&self) -> Result<(), String> {
        Leadership::may_write(self)
    }
}

/// Ends when the lease is lost. The process must end then: another one leads, or will.
pub struct Lost {
    reason: watch::Receiver<Option<String>>,
}

impl Lost {
    /// Waits until the lease is lost, and tells why. After a release it waits for ever.
    pub async fn lost(&mut self) -> String {
        match self.reason.wait_for(Option::is_some).await {
            Ok(reason) => reason.clone().unwrap_or_default(),
            Err(_) => std::future::pending().await,
        }
    }
}

/// What was seen of somebody else's lease: it ends if nothing new is seen of it for its duration.
struct Seen {
    version: Option<String>,
    at: Instant,
}

/// Waits for the lease and takes it. Trouble with the API server is waited out.
pub async fn acquire(client: Client, settings: LeaseSettings) -> Result<(Leadership, Lost), LeaseError> {
    let LeaseSettings { period, renew_deadline, duration, .. } = settings;
    if period >= renew_deadline || renew_deadline >= duration {
        return Err(LeaseError::Times { period, renew_deadline, duration });
    }
    if settings.identity.is_empty() {
        return Err(LeaseError::NoIdentity);
    }
    let api: Api<Lease> = Api::namespaced(client, &settings.namespace);
    let mut seen = Seen { version: None, at: Instant::now() };
    let mut failures = 0;
    let (lease, sent) = loop {
        match try_to_take(&api, &settings, &mut seen).await {
            Ok(Some(taken)) => break taken,
            Ok(None) => {
                failures = 0;
                wait_for_news(&api, &settings, &mut seen).await;
            }
            Err(error) => {
                tracing::warn!(%error, lease = settings.name, attempt = failures, "the lease cannot be had yet");
                tokio::time::sleep(pause(&settings.identity, failures, settings.period)).await;
                failures += 1;
            }
        }
    };
    tracing::info!(lease = settings.name, identity = settings.identity, "leading");
    let held = Arc::new(Held {
        identity: settings.identity.clone(),
        renew_deadline: settings.renew_deadline,
        standing: Mutex::new(Standing::Renewed(sent)),
    });
    let (release, released) = oneshot::channel();
    let (tell, reason) = watch::channel(None);
    tokio::spawn(renew(api, settings, lease, Arc::clone(&held), released, tell));
    Ok((Leadership { held, release: Arc::new(Mutex::new(Some(release))) }, Lost { reason }))
}

fn spec(settings: &LeaseSettings, before: Option<&LeaseSpec>) -> LeaseSpec {
    let now = MicroTime(jiff::Timestamp::now());
    let mine = before.filter(|spec| spec.holder_identity.as_deref() == Some(&settings.identity));
    let transitions = before.map_or(0, |spec| spec.lease_transitions.unwrap_or_default());
    LeaseSpec {
        acquire_time: mine.and_then(|spec| spec.acquire_time.clone()).or_else(|| Some(now.clone())),
        holder_identity: Some(settings.identity.clone()),
        lease_duration_seconds: Some(i32::try_from(settings.duration.as_secs()).unwrap_or(i32::MAX).max(1)),
        lease_transitions: Some(if mine.is_some() {
            transitions
        } else {
            transitions + i32::from(before.is_some())
        }),
        renew_time: Some(now),
        ..before.cloned().unwrap_or_default()
    }
}

/// One try. `None`: somebody else has it.
async fn try_to_take(
    api: &Api<Lease>,
    settings: &LeaseSettings,
    seen: &mut Seen,
) -> Result<Option<(Lease, Instant)>, kube::Error> {
    let found = api.get_opt(&settings.name).await?;
    let sent = Instant::now();
    let written = match found {
        None => {
            let metadata = ObjectMeta { name: Some(settings.name.clone()), ..ObjectMeta::default() };
            let lease = Lease { metadata, spec: Some(spec(settings, None)) };
            api.create(&PostParams::default(), &lease).await
        }
        Some(mut lease) => {
            if seen.version != lease.metadata.resource_version {
                *seen = Seen { version: lease.metadata.resource_version.clone(), at: Instant::now() };
            }
            if !is_free(lease.spec.as_ref(), settings, seen) {
                return Ok(None);
            }
            lease.spec = Some(spec(settings, lease.spec.as_ref()));
            api.replace(&settings.name, &PostParams::default(), &lease).await
        }
    };
    match written {
        Ok(lease) => Ok(Some((lease, sent))),
        // Somebody was faster.
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(None),
        Err(error) => Err(error),
    }
}

fn is_free(spec: Option<&LeaseSpec>, settings: &LeaseSettings, seen: &Seen) -> bool {
    let Some(spec) = spec else { return true };
    match spec.holder_identity.as_deref() {
        None | Some("") => true,
        // An earlier process under the same name has ended: a pod has one of them at a time.
        Some(holder) if holder == settings.identity => true,
        Some(_) => seen.at.elapsed() >= duration_of(spec, settings),
    }
}

fn duration_of(spec: &LeaseSpec, settings: &LeaseSettings) -> Duration {
    let seconds = spec.lease_duration_seconds.and_then(|seconds| u64::try_from(seconds).ok());
    seconds.map_or(settings.duration, Duration::from_secs)
}

/// Returns when the lease has changed, or when it may have come to its end.
async fn wait_for_news(api: &Api<Lease>, settings: &LeaseSettings, seen: &mut Seen) {
    let left = settings.duration.saturating_sub(seen.at.elapsed()).max(Duration::from_millis(50));
    let params = WatchParams::default().fields(&format!("metadata.name={}", settings.name));
    let version = seen.version.clone().unwrap_or_else(|| "0".to_owned());
    let news = async {
        let mut events = match api.watch(&params, &version).await {
            Ok(events) => events.boxed(),
            Err(error) => {
                tracing::debug!(%error, "the lease cannot be watched");
                return tokio::time::sleep(settings.period).await;
            }
        };
        match events.try_next().await {
            Ok(Some(WatchEvent::Added(_) | WatchEvent::Modified(_) | WatchEvent::Deleted(_))) => {}
            // The watch has ended: look for oneself, but not without end.
            _ => tokio::time::sleep(settings.period).await,
        }
    };
    // Its end is not announced by anybody.
    let _ = tokio::time::timeout(left, news).await;
}

async fn renew(
    api: Api<Lease>,
    settings: LeaseSettings,
    mut lease: Lease,
    held: Arc<Held>,
    mut released: oneshot::Receiver<oneshot::Sender<()>>,
    tell: watch::Sender<Option<String>>,
) {
    loop {
        let asked = tokio::select! {
            asked = &mut released => Some(asked),
            () = tokio::time::sleep(settings.period) => None,
        };
        match asked {
            Some(Ok(done)) => {
                give_back(&api, &settings, &mut lease).await;
                let _ = done.send(());
                return;
            }
            // Nobody is left who could write: the lease runs out.
            Some(Err(_)) => return,
            None => {}
        }
        if let Err(reason) = renew_once(&api, &settings, &mut lease, &held).await {
            held.end();
            tracing::error!(lease = settings.name, reason, "the lease is lost");
            // Whoever waits for it may have ended already.
            let _ = tell.send(Some(reason));
            return;
        }
    }
}

/// Renews it now, or tells why it is lost. A request that fails is no loss before the deadline.
async fn renew_once(
    api: &Api<Lease>,
    settings: &LeaseSettings,
    lease: &mut Lease,
    held: &Held,
) -> Result<(), String> {
    let left = held.age().and_then(|age| settings.renew_deadline.checked_sub(age));
    let Some(left) = left else {
        return Err(format!("it was not renewed for {:?}", settings.renew_deadline));
    };
    lease.spec = Some(spec(settings, lease.spec.as_ref()));
    let sent = Instant::now();
    let write = async {
        let params = PostParams::default();
        match api.replace(&settings.name, &params, lease).await {
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(Err(api.get(&settings.name).await?)),
            written => written.map(Ok),
        }
    };
    match tokio::time::timeout(left, write).await {
        Ok(Ok(Ok(written))) => {
            *lease = written;
            held.renewed(sent);
            Ok(())
        }
        Ok(Ok(Err(found))) => {
            let holder =
                found.spec.as_ref().and_then(|spec| spec.holder_identity.clone()).unwrap_or_default();
            if holder != settings.identity {
                return Err(format!("{} has it now", if holder.is_empty() { "nobody" } else { &holder }));
            }
            // A renewal whose answer was lost, or somebody has edited the object: the next one goes on from there.
            *lease = found;
            Ok(())
        }
        Ok(Err(kube::Error::Api(status))) if status.code == 404 => Err("somebody has deleted it".to_owned()),
        Ok(Err(error)) => {
            tracing::warn!(%error, lease = settings.name, "not renewed; tried again");
            Ok(())
        }
        Err(_) => {
            Err(format!("the API server did not answer before {:?} were over", settings.renew_deadline))
        }
    }
}

async fn give_back(api: &Api<Lease>, settings: &LeaseSettings, lease: &mut Lease) {
    if let Some(spec) = &mut lease.spec {
        spec.holder_identity = Some(String::new());
        spec.lease_duration_seconds = Some(1);
        spec.renew_time = Some(MicroTime(jiff::Timestamp::now()));
    }
    let params = PostParams::default();
    let write = api.replace(&settings.name, &params, lease);
    match tokio::time::timeout(settings.period, write).await {
        Ok(Ok(_)) => tracing::info!(lease = settings.name, "the lease is given back"),
        Ok(Err(error)) => tracing::warn!(%error, "the lease was not given back; it runs out by itself"),
        Err(_) => tracing::warn!("the lease was not given back in time; it runs out by itself"),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed check is a panic")]
mod tests {
    use super::*;

    fn lead(renewed: Instant) -> Leadership {
        let held = Held {
            identity: "a".to_owned(),
            renew_deadline: Duration::from_secs(10),
            standing: Mutex::new(Standing::Renewed(renewed)),
        };
        Leadership { held: Arc::new(held), release: Arc::default() }
    }

    #[test]
    fn whoever_was_paused_refuses_by_itself() {
        let now = Instant::now();
        assert_eq!(lead(now).may_write(), Ok(()));
        let paused = lead(now.checked_sub(Duration::from_secs(10)).unwrap());
        assert!(paused.may_write().unwrap_err().contains("does not lead any more"));
    }

    #[test]
    fn a_renewal_that_lands_after_the_end_changes_nothing() {
        let ended = lead(Instant::now());
        ended.held.end();
        ended.held.renewed(Instant::now());
        assert!(ended.may_write().unwrap_err().contains("given back"));
    }

    #[test]
    fn a_lease_is_free_when_given_back_or_unrenewed_for_its_duration() {
        let settings = LeaseSettings::new("n", "l", "me");
        let ago = |seconds| Seen {
            version: None,
            at: Instant::now().checked_sub(Duration::from_secs(seconds)).unwrap(),
        };
        let held = |by: Option<&str>, seconds| LeaseSpec {
            holder_identity: by.map(str::to_owned),
            lease_duration_seconds: seconds,
            ..LeaseSpec::default()
        };
        for (spec, seen, free) in [
            (held(None, None), ago(0), true),
            (held(Some(""), Some(15)), ago(0), true),
            (held(Some("me"), Some(15)), ago(0), true),
            (held(Some("other"), Some(15)), ago(14), false),
            (held(Some("other"), Some(15)), ago(15), true),
            (held(Some("other"), Some(60)), ago(15), false),
            (held(Some("other"), None), ago(14), false),
            (held(Some("other"), Some(-1)), ago(14), false),
        ] {
            assert_eq!(is_free(Some(&spec), &settings, &seen), free, "{spec:?}");
        }
        assert!(is_free(None, &settings, &ago(0)));
    }

    #[test]
    fn a_change_of_holder_is_counted_and_a_renewal_is_not() {
        let mut settings = LeaseSettings::new("n", "l", "a");
        let first = spec(&settings, None);
        assert_eq!((first.lease_transitions, first.lease_duration_seconds), (Some(0), Some(15)));
        let again = spec(&settings, Some(&first));
        assert_eq!((again.lease_transitions, again.acquire_time), (Some(0), first.acquire_time.clone()));
        settings.identity = "b".to_owned();
        assert_eq!(spec(&settings, Some(&first)).lease_transitions, Some(1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_never_answered_kept_a_standby_from_leading() {
        let asked = Arc::new(Mutex::new(0));
        let server = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            let count = {
                let mut asked = asked.lock().unwrap();
                *asked += 1;
                *asked
            };
            async move {
                if count == 1 {
                    return std::future::pending().await;
                }
                let is_question = request.method().is_safe();
                let gone = r#"{"kind":"Status","status":"Failure","reason":"NotFound","code":404}"#;
                let sent = request.into_body().collect_bytes().await?.to_vec();
                let body = if is_question { gone.as_bytes().to_vec() } else { sent };
                let mut answer = http::Response::new(kube::client::Body::from(body));
                if is_question {
                    *answer.status_mut() = http::StatusCode::NOT_FOUND;
                }
                Ok::<_, kube::Error>(answer)
            }
        });
        let client = bowline_store::kube::bounded(Client::new(server, "n"));
        let (leadership, _lost) = acquire(client, LeaseSettings::new("n", "l", "me")).await.unwrap();
        assert_eq!(leadership.may_write(), Ok(()));
    }
}
