//! Where the API listens, and who is let in.

use bowline_csi::{BindError, Endpoint, OwnedSocket};
use futures::FutureExt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::watch;

use crate::api::Api;
use crate::certificate::CertificateError;
use crate::gate::{Entrance, guarded};
use crate::routes::router;
use crate::serve::serve;
use crate::token::Token;

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
        let local = serve(unix, routes.clone(), told(stopped.clone()));
        let remote = async {
            if let Some((listener, token)) = tcp {
                let routes = guarded(routes, Arc::new(token), Entrance::Machine);
                serve(listener, routes, told(stopped)).await;
            }
        };
        let end = async {
            stop.await;
            drop(socket);
            api.stop();
            stopping.send_replace(true);
            tokio::time::sleep(GRACE).await;
        };
        in_time(futures::future::join(local, remote).map(|_| ()), end).await;
        Ok(())
    }
}

/// Done when the server is told to stop.
pub(crate) async fn told(mut stopped: watch::Receiver<bool>) {
    let _ = stopped.wait_for(|stopped| *stopped).await;
}

/// Serves to its end, but not beyond `end`.
pub(crate) async fn in_time(serving: impl Future<Output = ()>, end: impl Future<Output = ()>) {
    tokio::pin!(serving, end);
    if let futures::future::Either::Right(_) = futures::future::select(serving, end).await {
        tracing::warn!("calls that were still running end with the process");
    }
}
