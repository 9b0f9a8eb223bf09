//! Connections: never more than so many at once, and none that nobody uses.
//!
//! # Guarantees
//!
//! - Whoever connects and says nothing, or begins a request and does not go on, is let go after [`SILENCE`]; so is whoever does
//!   not take its answer after [`STALL`]. A call that is being answered may take as long as it takes.
//! - Told to stop, no connection is accepted any more, those that nobody uses are closed at once, and the others after their call.

use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use axum::serve::Listener;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, Sleep};
use tower::{Service, ServiceExt};

use crate::server::told;

/// Connections at once, on each listener; more wait to be accepted. More than all calls and followers together, so that
/// those who wait leave room for those they wait for.
const CONNECTIONS: usize = 1024;

/// How long a connection may stand without a request, or with half of one. Longer than callers keep one for later (Go: 90
/// seconds), so that it is they who close it and none of their requests meets a connection that is being closed.
const SILENCE: Duration = Duration::from_secs(120);

/// How long nothing of an answer may be taken.
const STALL: Duration = Duration::from_secs(30);

/// Answers what comes in until `stop` is done, and then what is still being answered.
pub(crate) async fn serve<L, S>(mut listener: L, answers: S, stop: impl Future<Output = ()>)
where
    L: Listener,
    S: Service<Request, Response = Response, Error = Infallible, Future: Send> + Clone + Send + 'static,
{
    let (places, stopping) = (Arc::new(Semaphore::new(CONNECTIONS)), watch::Sender::new(false));
    let mut connections = JoinSet::new();
    tokio::pin!(stop);
    loop {
        let accepted = async {
            // Never closed; were it, nobody would be let in.
            let place = Arc::clone(&places).acquire_owned().await.ok()?;
            Some((listener.accept().await.0, place))
        };
        tokio::select! {
            () = &mut stop => break,
            Some((io, place)) = accepted => {
                let answered = connection(Taken::new(io), answers.clone(), stopping.subscribe());
                connections.spawn(async move {
                    answered.await;
                    drop(place);
                });
            }
            Some(_) = connections.join_next() => {}
        }
    }
    drop(listener);
    stopping.send_replace(true);
    while connections.join_next().await.is_some() {}
}

async fn connection<T, S>(io: T, answers: S, stopping: watch::Receiver<bool>)
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    S: Service<Request, Response = Response, Error = Infallible, Future: Send> + Clone + Send + 'static,
{
    let service =
        service_fn(move |request: hyper::Request<Incoming>| answers.clone().oneshot(request.map(Body::new)));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(SILENCE)
        .serve_connection(TokioIo::new(io), service);
    tokio::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = told(stopping) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection broke off");
    }
}

/// A connection whose other side takes what it is sent, or is let go.
struct Taken<T> {
    io: T,
    /// Since when nothing was taken, and until when that may be so.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl<T> Taken<T> {
    fn new(io: T) -> Self {
        Self { io, stalled: None }
    }

    fn or_let_go<R>(&mut self, context: &mut Context<'_>, taken: Poll<io::Result<R>>) -> Poll<io::Result<R>> {
        if taken.is_ready() {
            self.stalled = None;
            return taken;
        }
        let patience = || Box::pin(tokio::time::sleep_until(Instant::now() + STALL));
        match self.stalled.get_or_insert_with(patience).as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Taken<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(context, buffer)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Taken<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let taken = Pin::new(&mut self.io).poll_write(context, bytes);
        self.or_let_go(context, taken)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let taken = Pin::new(&mut self.io).poll_flush(context);
        self.or_let_go(context, taken)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let taken = Pin::new(&mut self.io).poll_shutdown(context);
        self.or_let_go(context, taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::Router;
    use axum::routing::get;
    use std::net::SocketAddr;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};
    use tokio::sync::oneshot;

    async fn serving() -> (SocketAddr, oneshot::Sender<()>, tokio::task::JoinHandle<()>) {
        let routes = Router::new()
            .route("/", get(async || "yes"))
            .route("/slow", get(async || tokio::time::sleep(Duration::from_secs(3600)).await))
            .route("/long", get(async || "x".repeat(64 << 20)));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel();
        let served = tokio::spawn(serve(listener, routes, async {
            let _ = stopped.await;
        }));
        (address, stop, served)
    }

    /// What comes back until the server closes, and after how long.
    async fn heard(address: SocketAddr, said: &str) -> (String, Duration) {
        let began = Instant::now();
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(said.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        (String::from_utf8(answer).unwrap(), began.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_says_nothing_is_let_go_and_whoever_waits_for_an_answer_is_not() {
        let (address, _stop, _served) = serving().await;
        for (said, answers) in [
            ("", 0),
            ("GET / HT", 0),
            ("GET / HTTP/1.1\r\nhost: x\r\nx:", 0),
            ("GET / HTTP/1.1\r\nhost: x\r\n\r\n", 1),
        ] {
            let (heard, after) = heard(address, said).await;
            assert_eq!(heard.matches("200 OK").count(), answers, "{said:?}: {heard}");
            assert!(after >= SILENCE && after < SILENCE * 2, "{said:?}: let go after {after:?}");
        }
        let (heard, after) =
            heard(address, "GET /slow HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await;
        assert!(heard.contains("200 OK") && after >= Duration::from_secs(3600), "{after:?}: {heard}");
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_does_not_take_the_answer_is_let_go() {
        let (address, _stop, _served) = serving().await;
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(b"GET /long HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        stream.readable().await.unwrap();
        tokio::time::sleep(STALL * 2).await;
        let mut taken = Vec::new();
        let _ = stream.read_to_end(&mut taken).await;
        assert!(taken.len() < 64 << 20, "all of it was kept for somebody who did not take it");
    }

    #[tokio::test(start_paused = true)]
    async fn told_to_stop_it_closes_what_nobody_uses_and_answers_what_was_asked() {
        let (address, stop, served) = serving().await;
        let silent = tokio::spawn(heard(address, ""));
        let asked = tokio::spawn(heard(address, "GET /slow HTTP/1.1\r\nhost: x\r\n\r\n"));
        tokio::time::sleep(Duration::from_secs(1)).await;
        stop.send(()).unwrap();
        let (answer, after) = silent.await.unwrap();
        assert!(answer.is_empty() && after < Duration::from_secs(60), "{after:?}: {answer}");
        let (answer, _) = asked.await.unwrap();
        assert!(answer.contains("200 OK"), "{answer}");
        served.await.unwrap();
        assert!(TcpStream::connect(address).await.is_err(), "it listens still");
    }
}
