//! One line of log per call: its name, its code and how long it took. Never its message.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;
use tonic::codegen::http::{Request, Response};
use tower::{Layer, Service};

/// Wraps every service of a server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogCalls;

impl<S> Layer<S> for LogCalls {
    type Service = Logged<S>;

    fn layer(&self, inner: S) -> Logged<S> {
        Logged(inner)
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Logged<S>(S);

impl<S, Asked, Told> Service<Request<Asked>> for Logged<S>
where
    S: Service<Request<Asked>, Response = Response<Told>>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: Request<Asked>) -> Self::Future {
        // A caller can write anything there; the longest real one has 50 characters.
        let call: String = request.uri().path().chars().take(80).collect();
        let began = Instant::now();
        let answer = self.0.call(request);
        Box::pin(async move {
            let answer = answer.await;
            let ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
            // An error is told in the headers; success comes after the message, and there only.
            let code = answer.as_ref().ok().and_then(|answer| answer.headers().get("grpc-status"));
            match code.and_then(|code| code.to_str().ok()) {
                None | Some("0") => tracing::debug!(call, ms, "answered"),
                Some(code) => tracing::info!(call, ms, code, "refused"),
            }
            answer
        })
    }
}
