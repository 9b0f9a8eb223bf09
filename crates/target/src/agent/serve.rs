//! Where an agent listens, and whom it lets talk.

use bowline_core::Timestamp;
use futures::stream::{self, Stream};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};
use tokio_rustls::TlsAcceptor;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http;
use tonic::server::NamedService;
use tonic::transport::server::Connected;

use super::service::Service;
use super::shown::ExportsShown;
use super::tls::TlsFiles;
use super::wire::agent_server;
use super::{MESSAGE_BYTES, PING};
use crate::Provision;

/// Connections at once of callers that have shown who they are; more wait. A controller has one.
const CONNECTIONS: usize = 64;
/// Callers at once that are yet to show who they are; more wait to be accepted.
const HANDSHAKES: usize = 256;
/// Calls at once on one connection; more wait at the caller.
const STREAMS: u32 = 256;
/// Bytes of all headers of one call.
const HEADER_BYTES: u32 = 16 << 10;
/// How long it may take to show a certificate.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// How long to wait when a connection cannot be accepted, which mostly means that there are no file descriptors left.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);
/// How long running calls may take to end after the server was told to stop.
const GRACE: Duration = Duration::from_secs(10);

/// Where an agent listens. Plain TCP is not offered.
#[derive(Debug)]
pub enum Listener {
    /// A socket that only its owner can open (mode 0600): whoever made it has seen to that.
    Unix(UnixListener),
    /// An address; both sides show certificates.
    Tls {
        /// The address.
        listener: TcpListener,
        /// What to show, and whom to trust.
        files: TlsFiles,
    },
}

/// Why an agent ended by itself.
#[derive(Debug, thiserror::Error)]
#[error("the agent ended: {0}")]
pub struct ServeError(#[from] tonic::transport::Error);

/// Serves a target to whoever may ask it.
pub struct AgentServer {
    service: Service,
}

impl AgentServer {
    /// Serves `target`, which is of this `kind`, with this version of the program.
    pub fn new(target: Arc<dyn Provision>, kind: impl Into<String>, version: impl Into<String>) -> Self {
        Self { service: Service::new(target, kind.into(), version.into()) }
    }

    /// Says more about from where the target can be reached than it knows itself. What it knows itself stays.
    #[must_use]
    pub fn also_in(mut self, segments: BTreeMap<String, String>) -> Self {
        for (domain, segment) in segments {
            self.service.topology.entry(domain).or_insert(segment);
        }
        self
    }

    /// Says more about what tells its storage from any other than the installation: which device it is, where those can be exchanged.
    #[must_use]
    pub fn of_storage(mut self, storage: impl Into<String>) -> Self {
        self.service.storage = storage.into();
        self
    }

    /// Says what is not shown to nodes whenever it is asked what it is. Without this, it does not tell.
    #[must_use]
    pub fn showing(mut self, exports: impl Fn() -> ExportsShown + Send + Sync + 'static) -> Self {
        self.service.exports = Arc::new(exports);
        self
    }

    /// With another clock than the machine's.
    #[must_use]
    pub fn with_clock(mut self, clock: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        self.service.clock = Arc::new(clock);
        self
    }

    /// Says that it speaks another version of the protocol than it does: for tests of whoever must notice.
    #[must_use]
    pub fn saying_protocol(mut self, protocol: u32) -> Self {
        self.service.protocol = protocol;
        self
    }

    /// Answers until `stop` is done; then takes no new call, and lets the running ones end within ten seconds. What they
    /// began goes on as long as the process does.
    pub async fn run(self, listener: Listener, stop: impl Future<Output = ()>) -> Result<(), ServeError> {
        let service = agent_server::AgentServer::new(self.service)
            .max_decoding_message_size(MESSAGE_BYTES)
            .max_encoding_message_size(MESSAGE_BYTES);
        serve(service, listener, stop).await
    }
}

/// Answers every call of those who may ask with the sentence that is in `why` then, until `stop` is done: for an agent that cannot
/// serve yet. Nobody is let in, and nothing is proven.
pub async fn refuse(
    why: watch::Receiver<String>,
    listener: Listener,
    stop: impl Future<Output = ()>,
) -> Result<(), ServeError> {
    serve(Refusal { why }, listener, stop).await
}

/// The service while there is nothing to serve.
#[derive(Clone)]
struct Refusal {
    why: watch::Receiver<String>,
}

impl NamedService for Refusal {
    const NAME: &'static str = agent_server::SERVICE_NAME;
}

impl tower::Service<http::Request<Body>> for Refusal {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = std::future::Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: http::Request<Body>) -> Self::Future {
        let why = self.why.borrow().clone();
        std::future::ready(Ok(Status::failed_precondition(why).into_http()))
    }
}

async fn serve<S>(service: S, listener: Listener, stop: impl Future<Output = ()>) -> Result<(), ServeError>
where
    S: tower::Service<http::Request<Body>, Response = http::Response<Body>, Error = Infallible>
        + NamedService
        + Clone
        + Send
        + Sync
        + 'static,
    S::Future: Send + 'static,
{
    let (stopping, stopped) = oneshot::channel();
    let signal = async move {
        stop.await;
        let _ = stopping.send(());
    };
    let (connections, accepting) = accepted(listener);
    let serving = tonic::transport::Server::builder()
        .max_concurrent_streams(STREAMS)
        .http2_max_header_list_size(HEADER_BYTES)
        .http2_keepalive_interval(Some(PING))
        .http2_keepalive_timeout(Some(PING))
        .add_service(service)
        .serve_with_incoming_shutdown(connections, signal);
    let too_late = async move {
        match stopped.await {
            Ok(()) => tokio::time::sleep(GRACE).await,
            Err(_) => std::future::pending().await,
        }
    };
    let ended = tokio::select! {
        ended = serving => ended.map_err(ServeError),
        () = too_late => {
            tracing::warn!("stopped before every call was answered");
            Ok(())
        }
    };
    accepting.abort();
    ended
}

/// Connections whose other side has shown who it is, never more than so many at once.
fn accepted(
    listener: Listener,
) -> (impl Stream<Item = Result<Connection, Infallible>>, tokio::task::AbortHandle) {
    let (sender, receiver) = mpsc::channel(1);
    let accepting = tokio::spawn(accept(listener, sender)).abort_handle();
    let connections = stream::unfold(receiver, |mut receiver| async move {
        receiver.recv().await.map(|connection| (Ok(connection), receiver))
    });
    (connections, accepting)
}

async fn accept(listener: Listener, connections: mpsc::Sender<Connection>) {
    let (places, greeted) = (Arc::new(Semaphore::new(CONNECTIONS)), Arc::new(Semaphore::new(HANDSHAKES)));
    loop {
        let (places, connections) = (Arc::clone(&places), connections.clone());
        let accepted = match &listener {
            Listener::Unix(listener) => {
                let Ok(place) = places.acquire_owned().await else { return };
                match listener.accept().await {
                    Ok((stream, _)) => {
                        let connection = Connection { stream: Box::new(stream), _place: place };
                        // The server has ended.
                        let Ok(()) = connections.send(connection).await else { return };
                        Ok(())
                    }
                    Err(error) => Err(error),
                }
            }
            Listener::Tls { listener, files } => {
                let Ok(turn) = Arc::clone(&greeted).acquire_owned().await else { return };
                match listener.accept().await {
                    Ok((stream, peer)) => {
                        let files = files.clone();
                        // In a task of its own: whoever is slow to show a certificate holds up nobody else, and has no place
                        // that somebody with a certificate could have.
                        tokio::spawn(async move {
                            let greeted = greet(stream, &files).await;
                            drop(turn);
                            match greeted {
                                Ok(stream) => {
                                    let Ok(place) = places.acquire_owned().await else { return };
                                    let _ = connections.send(Connection { stream, _place: place }).await;
                                }
                                Err(error) => tracing::warn!(%peer, error, "not let in"),
                            }
                        });
                        Ok(())
                    }
                    Err(error) => Err(error),
                }
            }
        };
        if let Err(error) = accepted {
            tracing::warn!(%error, "cannot accept a connection");
            tokio::time::sleep(ACCEPT_AGAIN).await;
        }
    }
}

async fn greet(stream: TcpStream, files: &TlsFiles) -> Result<Box<dyn Io>, String> {
    let _ = stream.set_nodelay(true);
    let files = files.clone();
    let config = tokio::task::spawn_blocking(move || files.server()).await;
    let config = config.map_err(|error| error.to_string())?.map_err(|error| error.to_string())?;
    let greeted = tokio::time::timeout(HANDSHAKE, TlsAcceptor::from(config).accept(stream)).await;
    let greeted = greeted.map_err(|_| format!("no certificate within {HANDSHAKE:?}"))?;
    Ok(Box::new(greeted.map_err(|error| error.to_string())?))
}

/// A stream of either kind.
pub(crate) trait Io: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// A connection that has its place until it is closed.
struct Connection {
    stream: Box<dyn Io>,
    _place: OwnedSemaphorePermit,
}

impl Connected for Connection {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
