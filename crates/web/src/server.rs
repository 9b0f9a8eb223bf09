//! Where the API listens, and who is let in.

use axum::serve::Listener;
use bowline_csi::{BindError, Endpoint, OwnedSocket};
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use crate::api::Api;
use crate::certificate::CertificateError;
use crate::gate::{Entrance, guarded};
use crate::routes::router;
use crate::token::Token;

/// Connections at once, on each of the two; more wait to be accepted. More than all calls and followers together, so that
/// those who wait leave room for those they wait for.
const CONNECTIONS: usize = 1024;

/// How long running calls may take to end after the server was told to stop.
pub(crate) const GRACE: Duration = Duration::from_secs(10);

/// Why the API cannot listen.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// The socket.
    #[error(transparent)]
    Socket(#[from] BindError),
    /// An address that others can reach.
    #[error(
        "{0} can be reached from other machines, and what is said there needs TLS, which `bowline up` does not speak; \
         listen on 127.0.0.1 or [::1], or put a proxy with TLS in front"
    )]
    NeedsTls(SocketAddr),
    /// There is nothing to show to callers.
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    /// The address is taken, or not ours.
    #[error("cannot listen on {address}: {error}")]
    Address {
        /// The address.
        address: SocketAddr,
        /// What was the matter.
        error: io::Error,
    },
}

/// A server that has its places already; it answers once it runs.
pub struct Server {
    unix: UnixListener,
    socket: OwnedSocket,
    tcp: Option<(TcpListener, Token)>,
}

impl Server {
    /// Listens on a unix socket, mode 0600, on which nobody is asked for a token, and if given on an address of this very
    /// machine, on which everybody is.
    pub async fn bind(socket: &Endpoint, http: Option<(SocketAddr, Token)>) -> Result<Self, ListenError> {
        let tcp = match http {
            None => None,
            Some((address, _)) if !address.ip().is_loopback() => return Err(ListenError::NeedsTls(address)),
            Some((address, token)) => {
                let listener = TcpListener::bind(address).await;
                Some((listener.map_err(|error| ListenError::Address { address, error })?, token))
            }
        };
        let (unix, socket) = OwnedSocket::bind(socket).await?;
        Ok(Self { unix, socket, tcp })
    }

    /// The address it listens on, with the port that was found if 0 was asked for.
    pub fn address(&self) -> Option<SocketAddr> {
        self.tcp.as_ref().and_then(|(listener, _)| listener.local_addr().ok())
    }

    /// Answers until `stop` is done; then removes the socket at once, takes no new connection, and lets the running calls
    /// end within ten seconds.
    pub async fn run(self, api: Api, stop: impl Future<Output = ()>) -> io::Result<()> {
        let Self { unix, socket, tcp } = self;
        let (stopping, stopped) = watch::channel(false);
        let routes = router(api.clone());
        let local = axum::serve(Bounded::new(unix), routes.clone());
        let local = local.with_graceful_shutdown(told(stopped.clone())).into_future();
        let remote = async {
            match tcp {
                None => Ok(()),
                Some((listener, token)) => {
                    let routes = guarded(routes, Arc::new(token), Entrance::Machine);
                    let server = axum::serve(Bounded::new(listener), routes);
                    server.with_graceful_shutdown(told(stopped)).await
                }
            }
        };
        let end = async {
            stop.await;
            drop(socket);
            api.stop();
            stopping.send_replace(true);
            tokio::time::sleep(GRACE).await;
        };
        in_time(async { tokio::try_join!(local, remote).map(|_| ()) }, end).await
    }
}

/// Done when the server is told to stop.
pub(crate) async fn told(mut stopped: watch::Receiver<bool>) {
    let _ = stopped.wait_for(|stopped| *stopped).await;
}

/// Serves to its end, but not beyond `end`.
pub(crate) async fn in_time(
    serving: impl Future<Output = io::Result<()>>,
    end: impl Future<Output = ()>,
) -> io::Result<()> {
    tokio::pin!(serving, end);
    match futures::future::select(serving, end).await {
        futures::future::Either::Left((ended, _)) => ended,
        futures::future::Either::Right(_) => {
            tracing::warn!("calls that were still running end with the process");
            Ok(())
        }
    }
}

/// A listener with so many connections at once.
pub(crate) struct Bounded<L> {
    inner: L,
    places: Arc<Semaphore>,
}

impl<L> Bounded<L> {
    pub(crate) fn new(inner: L) -> Self {
        Self { inner, places: Arc::new(Semaphore::new(CONNECTIONS)) }
    }
}

impl<L: Listener> Listener for Bounded<L> {
    type Io = Placed<L::Io>;
    type Addr = L::Addr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        // The semaphore is never closed; were it, an unbounded listener would still be a listener.
        let place = Arc::clone(&self.places).acquire_owned().await.ok();
        let (io, address) = self.inner.accept().await;
        (Placed { io, _place: place }, address)
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        self.inner.local_addr()
    }
}

/// A connection that keeps its place until it is closed.
pub(crate) struct Placed<T> {
    io: T,
    _place: Option<OwnedSemaphorePermit>,
}

impl<T: AsyncRead + Unpin> AsyncRead for Placed<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buf)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Placed<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}
