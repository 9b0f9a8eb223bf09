//! Commands over SSH.
//!
//! **Who is there.** The device's host key is pinned ([`HostKey`]); with another, or with none pinned, nothing is sent, not even a
//! login. The password or the key is read from its file for every connection and can be printed by nobody.
//!
//! **One connection**, made when it is first needed and again when it is lost, after a pause that grows and differs from client to
//! client. Every command has a session of its own in it, as many at once as [`SshSettings::sessions`] says: a device has few.
//!
//! **What is known of a command.** Each runs in a task of its own, so whoever stops waiting for it takes no answer away from
//! others. As long as it was not handed over to be sent, its failure is [`ConsoleError::NotSent`]; from then on, everything but a
//! complete answer is [`ConsoleError::Unanswered`].
//!
//! **When it fails again and again**, a circuit breaker keeps commands from being sent for a while: five failures in a row, thirty
//! seconds. A failure is a connection that does not come about or is lost under a command, or a command without an answer in its
//! time. Then one command is tried, and the others wait for what becomes of it. [`SshConsole::state`] shows all of that.

mod breaker;
mod connection;
mod login;

pub use breaker::BreakerState;
pub use connection::LinkError;
pub use login::{Credentials, HOST_KEY_SETTING, HostKey, NoHostKey};

use async_trait::async_trait;
use russh::{Channel, ChannelMsg, ChannelOpenFailure, client};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::{Instant, timeout, timeout_at};
use tracing::{info, warn};

use super::console::{Console, ConsoleError, Said};
use breaker::Breaker;
use connection::{Connection, Unfinished, Unopened, collect};

/// How to reach a device, and how patient to be with it.
#[derive(Clone, Debug)]
pub struct SshSettings {
    /// Who logs in.
    pub user: String,
    /// With what.
    pub credentials: Credentials,
    /// The host key that the device must show. Without one, every device is refused, with a message that says what to pin.
    pub host_key: Option<HostKey>,
    /// How long a connection may take to come about, with the login.
    pub connect: Duration,
    /// How long a command may take, with the wait for a session and for a connection.
    pub command: Duration,
    /// How many commands are under way at once.
    pub sessions: usize,
    /// How many bytes a command may print.
    pub output: usize,
    /// How often a device is asked for a sign of life that says nothing by itself.
    pub keep_alive: Duration,
    /// How many of those signs may be missing.
    pub keep_alive_misses: usize,
    /// The pause after the first connection that failed; it doubles with each further one.
    pub first_pause: Duration,
    /// The longest pause between two tries to connect.
    pub longest_pause: Duration,
    /// After how many failures in a row nothing is sent for a while.
    pub failures: u32,
    /// How long nothing is sent then.
    pub rest: Duration,
}

impl SshSettings {
    /// The usual patience.
    pub fn new(user: &str, credentials: Credentials, host_key: Option<HostKey>) -> Self {
        Self {
            user: user.to_owned(),
            credentials,
            host_key,
            connect: Duration::from_secs(10),
            command: Duration::from_secs(60),
            sessions: 4,
            output: 16 << 20,
            keep_alive: Duration::from_secs(5),
            keep_alive_misses: 3,
            first_pause: Duration::from_millis(100),
            longest_pause: Duration::from_secs(5),
            failures: 5,
            rest: Duration::from_secs(30),
        }
    }
}

/// What bytes go over.
pub trait Io: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// How bytes get to a device and back.
#[async_trait]
pub trait Dial: Send + Sync + 'static {
    /// Where it leads, for messages.
    fn place(&self) -> &str;

    /// A new connection.
    async fn dial(&self) -> io::Result<Box<dyn Io>>;
}

/// `host:port`.
struct Tcp(String);

#[async_trait]
impl Dial for Tcp {
    fn place(&self) -> &str {
        &self.0
    }

    async fn dial(&self) -> io::Result<Box<dyn Io>> {
        let stream = TcpStream::connect(&self.0).await?;
        let _ = stream.set_nodelay(true);
        Ok(Box::new(stream))
    }
}

/// How the link to a device is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkState {
    /// Whether there is a connection, as far as is known.
    pub is_connected: bool,
    /// How many commands are under way.
    pub commands: usize,
    /// Whether commands are sent.
    pub breaker: BreakerState,
    /// How many failures there were in a row.
    pub failures: u32,
    /// The last failure, if nothing was answered since.
    pub error: Option<LinkError>,
}

/// A device that is reached over SSH. A handle; clones share one connection.
#[derive(Clone)]
pub struct SshConsole {
    link: Arc<Link>,
    patience: Duration,
}

struct Link {
    dial: Box<dyn Dial>,
    settings: SshSettings,
    sessions: Arc<Semaphore>,
    connection: Mutex<Option<Arc<Connection>>>,
    /// Whoever connects holds it; the others wait for what becomes of that.
    making: tokio::sync::Mutex<Making>,
    /// How many tries to connect have failed.
    attempts: AtomicU64,
    health: Mutex<Health>,
}

struct Health {
    breaker: Breaker,
    error: Option<LinkError>,
}

/// When to try again to connect.
#[derive(Default)]
struct Making {
    failures: u32,
    not_before: Option<Instant>,
}

/// A command that was handed over to be sent.
struct Session {
    channel: Channel<client::Msg>,
    connection: Arc<Connection>,
    /// The device has one more session open as long as this is there.
    _permit: OwnedSemaphorePermit,
}

impl SshConsole {
    /// The device at `host:port`. Nothing is sent before the first command.
    pub fn new(address: &str, settings: SshSettings) -> Self {
        Self::over(Box::new(Tcp(address.to_owned())), settings)
    }

    /// The device that can be reached in this way.
    pub fn over(dial: Box<dyn Dial>, settings: SshSettings) -> Self {
        let link = Link {
            dial,
            sessions: Arc::new(Semaphore::new(settings.sessions)),
            connection: Mutex::default(),
            making: tokio::sync::Mutex::default(),
            attempts: AtomicU64::new(0),
            health: Mutex::new(Health {
                breaker: Breaker::new(settings.failures, settings.rest),
                error: None,
            }),
            settings,
        };
        Self { patience: link.settings.command, link: Arc::new(link) }
    }

    /// The same device over the same connection, with another time-out for commands: copies take longer than questions.
    #[must_use]
    pub fn with_patience(&self, patience: Duration) -> Self {
        Self { link: Arc::clone(&self.link), patience }
    }

    /// How the link is.
    pub fn state(&self) -> LinkState {
        let link = &self.link;
        let is_connected = link.current().is_some();
        let health = link.health();
        LinkState {
            is_connected,
            commands: link.settings.sessions.saturating_sub(link.sessions.available_permits()),
            breaker: health.breaker.state(Instant::now()),
            failures: health.breaker.failures(),
            error: health.error.clone(),
        }
    }
}

type Answer = Result<Said, ConsoleError>;

#[async_trait]
impl Console for SshConsole {
    async fn run(&self, command: &str) -> Answer {
        let (answer, answered) = oneshot::channel();
        tokio::spawn(Arc::clone(&self.link).carry(command.to_owned(), self.patience, answer));
        let gone = || ConsoleError::Unanswered { error: "the process is ending".to_owned() };
        answered.await.unwrap_or_else(|_| Err(gone()))
    }
}

impl Link {
    async fn carry(self: Arc<Self>, command: String, patience: Duration, answer: oneshot::Sender<Answer>) {
        let deadline = Instant::now() + patience;
        if let Err(error) = self.admit() {
            let _ = answer.send(Err(ConsoleError::NotSent { error }));
            return;
        }
        match self.send(&command, deadline, patience, || !answer.is_closed()).await {
            Ok(session) => self.finish(session, deadline, patience, answer).await,
            Err(error) => {
                let _ = answer.send(Err(ConsoleError::NotSent { error }));
            }
        }
        self.health().breaker.ended(Instant::now());
    }

    fn admit(&self) -> Result<(), String> {
        let mut health = self.health();
        if health.breaker.admit(Instant::now()).is_ok() {
            return Ok(());
        }
        let error = health.error.as_ref().map(ToString::to_string).unwrap_or_default();
        let SshSettings { failures, rest, .. } = &self.settings;
        // Not how much longer, nor how often it has failed by now: whoever waits is told these words, and other ones every time would be
        // written every time. The state of the link has the numbers.
        Err(format!(
            "after {failures} failures in a row nothing is sent to {} but one command every {} s; the last failure: {error}",
            self.dial.place(),
            rest.as_secs(),
        ))
    }

    /// Hands a command over to be sent. An error means that nothing was sent.
    async fn send(
        &self,
        command: &str,
        deadline: Instant,
        patience: Duration,
        is_wanted: impl Fn() -> bool,
    ) -> Result<Session, String> {
        let (place, sessions) = (self.dial.place(), self.settings.sessions);
        let permit = timeout_at(deadline, Arc::clone(&self.sessions).acquire_owned()).await;
        let Ok(Ok(permit)) = permit else {
            return Err(format!("none of the {sessions} sessions with {place} was free for {patience:?}"));
        };
        for is_last in [false, false, true] {
            let connection = match timeout_at(deadline, self.connection(deadline)).await {
                Ok(connection) => connection.map_err(|error| error.to_string())?,
                Err(_) => return Err(format!("{place} was being connected to for {patience:?}")),
            };
            let unopened = match timeout_at(deadline, connection.send(command, &is_wanted)).await {
                Ok(Ok(channel)) => return Ok(Session { channel, connection, _permit: permit }),
                Ok(Err(unopened)) => unopened,
                Err(_) => {
                    connection.retire();
                    return Err(self.silent(patience).to_string());
                }
            };
            match unopened {
                Unopened::Refused(reason) => return Err(refused(place, &reason)),
                Unopened::Unwanted => return Err("nobody waits for it any more".to_owned()),
                // Most often the device was rebooted since the command before. Nothing was sent, so there is no harm in another
                // try; with a new connection, or with one that somebody else has made meanwhile.
                Unopened::Lost if !is_last => connection.retire(),
                Unopened::Lost => return Err(self.lost(&connection).to_string()),
            }
        }
        Err(format!("{place} closes every connection"))
    }

    /// Waits for the answer of a command that was handed over, and tells it.
    async fn finish(
        &self,
        mut session: Session,
        deadline: Instant,
        patience: Duration,
        answer: oneshot::Sender<Answer>,
    ) {
        let collected = timeout_at(deadline, collect(&mut session.channel, self.settings.output)).await;
        let (told, is_open) = match collected {
            Ok(Ok(said)) => {
                let mut health = self.health();
                health.breaker.worked();
                health.error = None;
                (Ok(said), false)
            }
            Ok(Err(Unfinished::Lost)) => (Err(self.lost(&session.connection).to_string()), false),
            Ok(Err(Unfinished::Ended(error))) => (Err(error), false),
            Ok(Err(Unfinished::Open(error))) => (Err(error), true),
            Err(_) => (Err(self.silent(patience).to_string()), true),
        };
        let _ = answer.send(told.map_err(|error| ConsoleError::Unanswered { error }));
        if is_open {
            drain(session, patience).await;
        }
    }

    fn current(&self) -> Option<Arc<Connection>> {
        let connection = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        connection.as_ref().filter(|connection| connection.is_good()).cloned()
    }

    fn health(&self) -> MutexGuard<'_, Health> {
        self.health.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn failed(&self, error: &LinkError) {
        warn!(device = self.dial.place(), %error, "the link to a device failed");
        let mut health = self.health();
        health.breaker.failed(Instant::now());
        health.error = Some(error.clone());
    }

    fn lost(&self, connection: &Connection) -> LinkError {
        connection.retire();
        let error = LinkError::Lost { place: self.dial.place().to_owned(), error: connection.why() };
        if connection.counts() {
            self.failed(&error);
        }
        error
    }

    fn silent(&self, patience: Duration) -> LinkError {
        let error = LinkError::Silent { place: self.dial.place().to_owned(), seconds: patience.as_secs() };
        self.failed(&error);
        error
    }

    /// The connection, made if there is none. Those who wait while one is made share what becomes of it.
    async fn connection(&self, deadline: Instant) -> Result<Arc<Connection>, LinkError> {
        if let Some(connection) = self.current() {
            return Ok(connection);
        }
        let attempts = self.attempts.load(Ordering::SeqCst);
        let mut making = self.making.lock().await;
        if let Some(connection) = self.current() {
            return Ok(connection);
        }
        let failed = self.health().error.clone().filter(|_| self.attempts.load(Ordering::SeqCst) != attempts);
        if let Some(error) = failed {
            return Err(error);
        }
        if let Some(not_before) = making.not_before {
            tokio::time::sleep_until(not_before.min(deadline)).await;
        }
        let until = deadline.min(Instant::now() + self.settings.connect);
        let made = timeout_at(until, self.connect()).await.unwrap_or_else(|_| {
            let error = "there was no answer in time".to_owned();
            Err(LinkError::Unreachable { place: self.dial.place().to_owned(), error })
        });
        match made {
            Ok(connection) => {
                *making = Making::default();
                let connection = Arc::new(connection);
                *self.connection.lock().unwrap_or_else(PoisonError::into_inner) =
                    Some(Arc::clone(&connection));
                info!(device = self.dial.place(), "connected");
                Ok(connection)
            }
            Err(error) => {
                let pause = self.settings.first_pause.saturating_mul(1 << making.failures.min(16));
                let pause = jittered(pause.min(self.settings.longest_pause));
                making.failures += 1;
                making.not_before = Some(Instant::now() + pause);
                self.failed(&error);
                self.attempts.fetch_add(1, Ordering::SeqCst);
                Err(error)
            }
        }
    }

    async fn connect(&self) -> Result<Connection, LinkError> {
        let place = self.dial.place();
        let unreachable =
            |error: io::Error| LinkError::Unreachable { place: place.to_owned(), error: error.to_string() };
        let credentials = self.settings.credentials.clone();
        let secret = tokio::task::spawn_blocking(move || credentials.read()).await;
        let secret = secret.unwrap_or_else(|error| Err(error.to_string()));
        let secret = secret.map_err(|error| LinkError::Credentials { error })?;
        let stream = self.dial.dial().await.map_err(unreachable)?;
        Connection::open(stream, &self.settings, secret, place).await
    }
}

/// Waits for the end of a command that was given up: the device has one session less until then. If it does not come, it is better to
/// begin anew.
async fn drain(mut session: Session, patience: Duration) {
    let ended = async { while !matches!(session.channel.wait().await, None | Some(ChannelMsg::Close)) {} };
    if timeout(patience, ended).await.is_err() {
        session.connection.retire();
    }
}

fn refused(place: &str, reason: &ChannelOpenFailure) -> String {
    match reason {
        ChannelOpenFailure::ResourceShortage => {
            format!("the device at {place} has too many sessions open already")
        }
        reason => format!("the device at {place} opens no session: {reason:?}"),
    }
}

/// Between half and all of a pause, so that many clients do not come back at once.
fn jittered(pause: Duration) -> Duration {
    let part = 512 + u32::try_from(RandomState::new().hash_one(0) % 512).unwrap_or_default();
    pause * part / 1024
}
