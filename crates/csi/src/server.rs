//! The server on the socket.

use crate::authority::Corrected;
use crate::calls::LogCalls;
use crate::endpoint::Endpoint;
use crate::socket::{BindError, OwnedSocket};
use crate::wire::controller_server::{Controller, ControllerServer};
use crate::wire::group_controller_server::{GroupController, GroupControllerServer};
use crate::wire::identity_server::{Identity, IdentityServer};
use crate::wire::node_server::{Node, NodeServer};
use crate::wire::registration::registration_server::{Registration, RegistrationServer};
use futures::stream::{self, Stream};
use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tonic::service::RoutesBuilder;
use tonic::transport::server::{Connected, UdsConnectInfo};
use tower::limit::GlobalConcurrencyLimitLayer;

/// How much callers may ask for at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of one message, in and out. A larger request is refused before it is decoded; a list is to be cut into
    /// pages that fit, because callers (grpc-go by default) accept no more than 4 MiB either.
    pub message_bytes: usize,
    /// Connections at once; more wait to be accepted.
    pub connections: usize,
    /// Calls at once on one connection; more wait at the caller.
    pub streams: u32,
    /// Calls at once in all; more wait.
    pub calls: usize,
    /// How long running calls may take to end after the server was told to stop.
    pub grace: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            message_bytes: 4 << 20,
            connections: 64,
            streams: 128,
            calls: 256,
            grace: Duration::from_secs(30),
        }
    }
}

/// Bytes of all headers of one call; CSI has none of its own.
const HEADER_BYTES: u32 = 16 << 10;

/// How long to wait when a connection cannot be accepted, which mostly means that there are no file descriptors left.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// How a server came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Every call that was running got its answer.
    AllAnswered,
    /// The time was over first. What was running is not cancelled; it ends with the process.
    CutShort {
        /// How many calls were still running.
        running: usize,
    },
}

/// Why a server ended by itself.
#[derive(Debug, thiserror::Error)]
#[error("the server on the socket ended: {0}")]
pub struct ServeError(#[from] tonic::transport::Error);

/// A server that has its socket already, so that a caller may connect; it answers once it runs.
///
/// # Caveats
///
/// - A call whose caller hangs up, or whose deadline is over, is dropped where it awaits. A service that must finish
///   what it began lets a task of its own do it.
/// - Two servers that find the same stale socket in the same instant can both remove it; only one of them is reachable
///   then. Keep one per data directory with a lock.
#[derive(Debug)]
pub struct Server {
    listener: UnixListener,
    socket: OwnedSocket,
    limits: Limits,
    routes: RoutesBuilder,
    /// Whether callers may come whose `:authority` is none.
    lenient: bool,
}

macro_rules! add {
    ($(#[$doc:meta])* $add:ident, $service:ident, $server:ident) => {
        $(#[$doc])*
        #[must_use]
        pub fn $add(mut self, service: impl $service) -> Self {
            let bytes = self.limits.message_bytes;
            let service =
                $server::new(service).max_decoding_message_size(bytes).max_encoding_message_size(bytes);
            self.routes.add_service(service);
            self
        }
    };
}

impl Server {
    /// Makes the socket, mode 0600. One that nobody answers on is removed first; a live one, or a file of another kind,
    /// is left alone and is an error.
    pub async fn bind(endpoint: &Endpoint, limits: Limits) -> Result<Self, BindError> {
        let (listener, socket) = OwnedSocket::bind(endpoint).await?;
        Ok(Self { listener, socket, limits, routes: RoutesBuilder::default(), lenient: false })
    }

    add! {
        /// Serves `Identity` too.
        identity, Identity, IdentityServer
    }
    add! {
        /// Serves `Controller` too.
        controller, Controller, ControllerServer
    }
    add! {
        /// Serves `GroupController` too.
        group_controller, GroupController, GroupControllerServer
    }
    add! {
        /// Serves `Node` too.
        node, Node, NodeServer
    }
    add! {
        /// Serves `Registration` too.
        registration_alone, Registration, RegistrationServer
    }

    /// Serves the kubelet's `Registration` too, as the kubelet calls it.
    #[must_use]
    pub fn registration(self, service: impl Registration) -> Self {
        Self { lenient: true, ..self.registration_alone(service) }
    }

    /// Answers until `stop` is done; then removes the socket at once, takes no new call, and lets the running ones end
    /// within the grace.
    pub async fn run(self, stop: impl Future<Output = ()>) -> Result<Ended, ServeError> {
        let Self { listener, socket, limits, routes, lenient } = self;
        let calls = Arc::new(Semaphore::new(limits.calls));
        let (stopping, stopped) = oneshot::channel();
        let signal = async move {
            stop.await;
            drop(socket);
            tracing::info!(grace = ?limits.grace, "stopping: no new calls");
            let _ = stopping.send(());
        };
        let serving = tonic::transport::Server::builder()
            .max_concurrent_streams(limits.streams)
            .http2_max_header_list_size(HEADER_BYTES)
            .layer(LogCalls)
            .layer(GlobalConcurrencyLimitLayer::with_semaphore(calls.clone()))
            .add_routes(routes.routes())
            .serve_with_incoming_shutdown(connections(listener, limits.connections, lenient), signal);
        let too_late = async move {
            // An error means that the server ended by itself, and that is told by the server.
            match stopped.await {
                Ok(()) => tokio::time::sleep(limits.grace).await,
                Err(_) => std::future::pending().await,
            }
        };
        tokio::select! {
            ended = serving => ended.map(|()| Ended::AllAnswered).map_err(ServeError),
            () = too_late => {
                let running = limits.calls.saturating_sub(calls.available_permits());
                tracing::warn!(running, "stopped before every call was answered");
                Ok(Ended::CutShort { running })
            }
        }
    }
}

/// Connections as they come, never more than `limit` at once.
fn connections(
    listener: UnixListener,
    limit: usize,
    lenient: bool,
) -> impl Stream<Item = Result<Connection, Infallible>> {
    let places = Arc::new(Semaphore::new(limit));
    stream::unfold((listener, places), move |(listener, places)| async move {
        let place = places.clone().acquire_owned().await.ok()?;
        let stream = loop {
            match listener.accept().await {
                Ok((stream, _)) => break stream,
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(ACCEPT_AGAIN).await;
                }
            }
        };
        let corrected = lenient.then(Corrected::new);
        Some((Ok(Connection { stream, corrected, _place: place }), (listener, places)))
    })
}

/// A connection that has its place until it is closed.
struct Connection {
    stream: UnixStream,
    corrected: Option<Corrected>,
    _place: OwnedSemaphorePermit,
}

impl Connected for Connection {
    type ConnectInfo = UdsConnectInfo;

    fn connect_info(&self) -> UdsConnectInfo {
        self.stream.connect_info()
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Self { stream, corrected, .. } = &mut *self;
        let Some(corrected) = corrected else { return Pin::new(stream).poll_read(context, buffer) };
        loop {
            let ready = corrected.take(buffer.remaining());
            if !ready.is_empty() {
                buffer.put_slice(&ready);
                return Poll::Ready(Ok(()));
            }
            let mut bytes = [0; 4096];
            let mut heard = ReadBuf::new(&mut bytes);
            std::task::ready!(Pin::new(&mut *stream).poll_read(context, &mut heard))?;
            if heard.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
            corrected.hear(heard.filled())?;
        }
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

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
