//! What an orchestrator asks a long-running process over HTTP: whether it lives, whether it is ready, and what it counts.

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use prometheus_client::registry::Registry;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::net::TcpListener;
use tokio::sync::watch;

/// What is told.
#[derive(Clone)]
pub(crate) struct Health {
    /// `Ok` when it is ready, or why it is not yet.
    pub(crate) ready: watch::Receiver<Result<(), String>>,
    /// What is counted.
    pub(crate) registry: Arc<Mutex<Registry>>,
}

/// Answers at `address` until `stop` is done. There is nothing here that others must not see.
pub(crate) async fn serve(
    address: SocketAddr,
    health: Health,
    stop: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    let listener = TcpListener::bind(address).await?;
    if let Ok(address) = listener.local_addr() {
        tracing::info!(%address, "health and metrics");
    }
    let routes = Router::new()
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .with_state(health);
    tokio::spawn(async move {
        let served = axum::serve(listener, routes).with_graceful_shutdown(stop).await;
        if let Err(error) = served {
            tracing::error!(%error, "health is not told any more");
        }
    });
    Ok(())
}

async fn readyz(State(health): State<Health>) -> Response {
    let ready = health.ready.borrow().clone();
    match ready {
        Ok(()) => "ready\n".into_response(),
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("not ready: {why}\n")).into_response(),
    }
}

async fn metrics(State(health): State<Health>) -> Response {
    let mut text = String::new();
    let encoded = {
        let registry = health.registry.lock().unwrap_or_else(PoisonError::into_inner);
        prometheus_client::encoding::text::encode(&mut text, &registry)
    };
    match encoded {
        Ok(()) => {
            let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
            ([(header::CONTENT_TYPE, kind)], text).into_response()
        }
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}
