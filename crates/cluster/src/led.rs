//! A client that writes only while its process leads.
//!
//! The store asks the lease before every write. Finalizers, statuses, events and fencing do not go through the store: with this client none
//! of them needs to ask by itself, and none can forget to.

use bowline_store::kube::Guard;
use http::Request;
use kube::Client;
use kube::client::Body;
use std::sync::Arc;

/// The same client, which refuses to send whatever changes something as soon as the guard says no. Reads go through.
pub fn client(client: &Client, guard: Arc<dyn Guard>) -> Client {
    let inner = client.clone();
    let service = tower::service_fn(move |request: Request<Body>| {
        let may = if request.method().is_safe() { Ok(()) } else { guard.may_write() };
        let inner = inner.clone();
        async move {
            may.map_err(|why| kube::Error::Service(why.into()))?;
            inner.send(request).await
        }
    });
    Client::new(service, client.default_namespace())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed check is a panic")]
mod tests {
    use super::*;
    use http::{Method, Response};
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicBool, Ordering};

    struct Leads(AtomicBool);

    impl Guard for Leads {
        fn may_write(&self) -> Result<(), String> {
            if self.0.load(Ordering::Relaxed) { Ok(()) } else { Err("it does not lead any more".to_owned()) }
        }
    }

    #[tokio::test]
    async fn who_does_not_lead_reads_and_sends_no_write() {
        let sent: Arc<Mutex<Vec<Method>>> = Arc::default();
        let heard = Arc::clone(&sent);
        let server = tower::service_fn(move |request: Request<Body>| {
            heard.lock().unwrap().push(request.method().clone());
            async { Ok::<_, kube::Error>(Response::new(Body::empty())) }
        });
        let leads = Arc::new(Leads(AtomicBool::new(true)));
        let client = client(&Client::new(server, "default"), Arc::clone(&leads) as Arc<dyn Guard>);
        let ask = |method: &Method| {
            let request = Request::builder().method(method).uri("/api/v1/nodes/n").body(Body::empty());
            client.send(request.unwrap())
        };
        let writes = [Method::POST, Method::PUT, Method::PATCH, Method::DELETE];
        for method in writes.iter().chain([&Method::GET]) {
            ask(method).await.unwrap();
        }
        leads.0.store(false, Ordering::Relaxed);
        for method in &writes {
            let refused = ask(method).await.unwrap_err();
            assert!(refused.to_string().contains("it does not lead any more"), "{method}: {refused}");
        }
        ask(&Method::GET).await.unwrap();
        let sent = sent.lock().unwrap();
        assert_eq!(sent.len(), 6, "{sent:?}");
    }
}
