//! The API over TLS, for whoever comes from elsewhere.

use axum::extract::Request;
use axum::http::uri::{PathAndQuery, Uri};
use axum::http::{HeaderName, HeaderValue};
use axum::response::Response;
use axum::serve::Listener;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tower::Service;
use tower::util::MapRequest;

use crate::api::Api;
use crate::certificate::{Certificate, Shown};
use crate::gate::{Entrance, Gate, guarded};
use crate::routes::router;
use crate::serve::serve;
use crate::server::{GRACE, ListenError, in_time, told};

/// The path that is meant, where something on the way writes it anew: the API server of Kubernetes makes a slash of `%2F`.
pub const PATH_HEADER: HeaderName = HeaderName::from_static("bowline-path");

/// How long a caller may take to agree on a key.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// Callers that are agreeing on a key at once; more wait to be accepted.
const HANDSHAKES: usize = 128;

/// A server that has its address and its certificate already; it answers once it runs.
pub struct SecureServer {
    listener: Handshakes,
    gate: Arc<dyn Gate>,
}

impl SecureServer {
    /// Listens at `address`, shows `certificate`, and asks everybody for a token that `gate` knows: in the header
    /// `Authorization: Bearer` or [`TOKEN_HEADER`](crate::TOKEN_HEADER).
    pub async fn bind(
        address: SocketAddr,
        certificate: Certificate,
        gate: Arc<dyn Gate>,
    ) -> Result<Self, ListenError> {
        let acceptor = TlsAcceptor::from(Arc::new(Shown::new(certificate)?).config()?);
        let tcp = TcpListener::bind(address).await;
        let tcp = tcp.map_err(|error| ListenError::Address { address, error })?;
        Ok(Self { listener: Handshakes { tcp, acceptor, running: JoinSet::new() }, gate })
    }

    /// The address, with the port that was found if 0 was asked for.
    pub fn address(&self) -> Option<SocketAddr> {
        self.listener.tcp.local_addr().ok()
    }

    /// Answers until `stop` is done; then takes no new connection, and lets the running calls end within ten seconds.
    pub async fn run(self, api: Api, stop: impl Future<Output = ()>) -> io::Result<()> {
        let (stopping, stopped) = watch::channel(false);
        let serving = serve(self.listener, secured(api.clone(), self.gate), told(stopped));
        let end = async {
            stop.await;
            api.stop();
            stopping.send_replace(true);
            tokio::time::sleep(GRACE).await;
        };
        in_time(serving, end).await;
        Ok(())
    }
}

/// What is answered to whoever comes over TLS: everything, for whom the gate lets in.
pub fn secured(
    api: Api,
    gate: Arc<dyn Gate>,
) -> impl Service<Request, Response = Response, Error = Infallible, Future: Send> + Clone + Send + 'static {
    MapRequest::new(guarded(router(api), gate, Entrance::Anywhere), with_the_path_that_is_meant as fn(_) -> _)
}

/// Before anything looks at the path, so that what is guarded is what is answered.
fn with_the_path_that_is_meant(mut request: Request) -> Request {
    let meant = request.headers().get(PATH_HEADER).map(HeaderValue::as_bytes);
    let Some(meant) = meant.filter(|meant| meant.starts_with(b"/")) else { return request };
    let query = request.uri().query().filter(|_| !meant.contains(&b'?'));
    let whole = [meant, query.map_or("", |_| "?").as_bytes(), query.unwrap_or_default().as_bytes()].concat();
    // What is no path is left alone, and is answered as what the address says.
    if let Ok(path) = PathAndQuery::from_maybe_shared(whole) {
        *request.uri_mut() = Uri::from(path);
    }
    request
}

/// Hands out connections whose two ends have agreed on a key. Who is slow at it holds up nobody.
struct Handshakes {
    tcp: TcpListener,
    acceptor: TlsAcceptor,
    running: JoinSet<Option<(TlsStream<TcpStream>, SocketAddr)>>,
}

impl Handshakes {
    fn begin(&mut self, stream: TcpStream, from: SocketAddr) {
        let acceptor = self.acceptor.clone();
        self.running.spawn(async move {
            match tokio::time::timeout(HANDSHAKE, acceptor.accept(stream)).await {
                Ok(Ok(stream)) => Some((stream, from)),
                Ok(Err(error)) => {
                    tracing::debug!(%from, %error, "no TLS");
                    None
                }
                Err(_) => {
                    tracing::debug!(%from, "TLS took too long");
                    None
                }
            }
        });
    }
}

impl Listener for Handshakes {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            tokio::select! {
                (stream, from) = Listener::accept(&mut self.tcp), if self.running.len() < HANDSHAKES => {
                    self.begin(stream, from);
                }
                Some(done) = self.running.join_next() => {
                    if let Ok(Some(connection)) = done {
                        return connection;
                    }
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        self.tcp.local_addr()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::Body;

    #[test]
    fn the_path_that_is_meant_is_the_one_in_the_header_if_there_is_one() {
        for (address, meant, expected) in [
            ("/v1/a/b?x=1", Some("/v1/a%2Fb"), "/v1/a%2Fb?x=1"),
            ("/v1/a/b", Some("/v1/a%2Fb"), "/v1/a%2Fb"),
            ("/v1/a?x=1", Some("/v1/b?y=2"), "/v1/b?y=2"),
            ("/v1/a?x=1", None, "/v1/a?x=1"),
            ("/v1/a", Some("http://elsewhere/"), "/v1/a"),
            ("/v1/a", Some("/no path"), "/v1/a"),
        ] {
            let mut request = Request::builder().uri(address);
            if let Some(meant) = meant {
                request = request.header(PATH_HEADER, meant);
            }
            let request = with_the_path_that_is_meant(request.body(Body::empty()).unwrap());
            assert_eq!(request.uri().to_string(), expected, "{address} {meant:?}");
        }
    }
}
