//! The three answers that a process in Kubernetes owes its surroundings: `/healthz`, `/readyz` and `/metrics`.
//!
//! They are for whoever can reach the address, without a token: they tell counts and states, never names of volumes.

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use prometheus_client::registry::Registry;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::net::TcpListener;

use crate::serve::serve;
use crate::server::ListenError;

/// Whether the process is ready for work; if not, the sentence that says why.
pub type Ready = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;

/// What is answered with.
#[derive(Clone)]
pub struct Probe {
    /// What is counted.
    pub registry: Arc<Mutex<Registry>>,
    /// Whether it is ready.
    pub ready: Ready,
}

impl std::fmt::Debug for Probe {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Probe").finish_non_exhaustive()
    }
}

/// A server that has its address already; it answers once it runs.
#[derive(Debug)]
pub struct ProbeServer {
    listener: TcpListener,
}

impl ProbeServer {
    /// Listens at `address`.
    pub async fn bind(address: SocketAddr) -> Result<Self, ListenError> {
        let listener = TcpListener::bind(address).await;
        Ok(Self { listener: listener.map_err(|error| ListenError::Address { address, error })? })
    }

    /// The address, with the port that was found if 0 was asked for.
    pub fn address(&self) -> Option<SocketAddr> {
        self.listener.local_addr().ok()
    }

    /// Answers until `stop` is done.
    pub async fn run(self, probe: Probe, stop: impl Future<Output = ()> + Send + 'static) -> io::Result<()> {
        let routes = Router::new()
            .route("/healthz", get(async || "ok\n"))
            .route("/readyz", get(readyz))
            .route("/metrics", get(metrics))
            .with_state(probe);
        serve(self.listener, routes, stop).await;
        Ok(())
    }
}

async fn readyz(State(probe): State<Probe>) -> Response {
    match (probe.ready)() {
        Ok(()) => "ready\n".into_response(),
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("not ready: {why}\n")).into_response(),
    }
}

async fn metrics(State(probe): State<Probe>) -> Response {
    let mut text = String::new();
    let registry = probe.registry.lock().unwrap_or_else(PoisonError::into_inner);
    match prometheus_client::encoding::text::encode(&mut text, &registry) {
        Ok(()) => {
            let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
            ([(header::CONTENT_TYPE, kind)], text).into_response()
        }
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}
