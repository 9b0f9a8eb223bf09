//! A client whose requests all end: a connection that was cut without a word holds up whatever waits for it, and the standby that should take over.

use std::time::Duration;

use http::{Request, Response};
use kube::Client;
use kube::client::Body;
use tokio::time::timeout;

/// How long an answer may take to begin.
const BEGIN: Duration = Duration::from_secs(15);
/// How long the rest of it may take, unless it is a watch, which is as long as it likes.
const REST: Duration = Duration::from_secs(60);

/// The same client, which gives up on a request that nobody answers. What became of a write is not known then.
pub fn bounded(client: Client) -> Client {
    let namespace = client.default_namespace().to_owned();
    let service = tower::service_fn(move |request| send(client.clone(), request));
    Client::new(service, namespace)
}

async fn send(client: Client, request: Request<Body>) -> Result<Response<Body>, kube::Error> {
    let is_watch =
        request.uri().query().is_some_and(|query| query.split('&').any(|part| part == "watch=true"));
    let answer = timeout(BEGIN, client.send(request)).await.map_err(|_| late(BEGIN))??;
    if is_watch && answer.status().is_success() {
        return Ok(answer);
    }
    let (head, body) = answer.into_parts();
    let body = timeout(REST, body.collect_bytes()).await.map_err(|_| late(REST))??;
    Ok(Response::from_parts(head, Body::from(body)))
}

fn late(after: Duration) -> kube::Error {
    kube::Error::Service(format!("no answer within {} s", after.as_secs()).into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::{StreamExt, stream};
    use http_body_util::StreamBody;
    use std::convert::Infallible;
    use tokio::net::TcpListener;
    use tokio::time::{Instant, sleep};

    fn asked(path: &str) -> Request<Body> {
        Request::get(path).body(Body::empty()).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_took_the_connection_and_never_answered_was_waited_for_without_end() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let silent = tokio::spawn(async move {
            let mut kept = vec![];
            loop {
                kept.push(listener.accept().await.unwrap());
            }
        });
        let config = kube::Config::new(format!("http://{address}").parse().unwrap());
        let client = super::super::client(config).unwrap();
        for path in ["/api/v1/nodes/a", "/api/v1/nodes?watch=true"] {
            let begun = Instant::now();
            let error = client.send(asked(path)).await.unwrap_err().to_string();
            assert!(error.contains("no answer within 15 s"), "{path}: {error}");
            assert!(begun.elapsed() < BEGIN * 2, "{path}: {:?}", begun.elapsed());
        }
        silent.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_may_be_silent_for_long_and_another_answer_may_not_stop_in_the_middle() {
        let server = tower::service_fn(|_: Request<Body>| async {
            let late = stream::once(async {
                sleep(Duration::from_mins(4)).await;
                Ok::<_, Infallible>(hyper::body::Frame::data("late".into()))
            });
            Ok::<_, Infallible>(Response::new(StreamBody::new(late.boxed())))
        });
        let client = bounded(Client::new(server, "default"));
        let watch = client.send(asked("/api/v1/nodes?limit=1&watch=true")).await.unwrap();
        assert_eq!(watch.into_body().collect_bytes().await.unwrap(), "late");
        let error = client.send(asked("/api/v1/nodes")).await.unwrap_err().to_string();
        assert!(error.contains("no answer within 60 s"), "{error}");
    }
}
