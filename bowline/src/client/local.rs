//! The way over the socket in a data directory.

use http_body_util::{BodyExt, Full};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use std::io;
use std::path::PathBuf;
use tokio::net::UnixStream;

use super::{Answer, Call};
use crate::config::api_socket;
use crate::failure::Failure;

/// A `bowline up`. Every call has a connection of its own, so that one that waits holds up no other.
#[derive(Clone, Debug)]
pub(super) struct Local {
    pub(super) data: PathBuf,
}

impl Local {
    pub(super) fn socket(&self) -> PathBuf {
        api_socket(&self.data)
    }

    pub(super) async fn ask(&self, call: &Call<'_>) -> Result<Response<Answer>, Failure> {
        let stream = UnixStream::connect(self.socket()).await.map_err(|error| self.not_there(&error))?;
        let lost =
            |error: hyper::Error| Failure::failed(format!("the connection to bowline up broke: {error}"));
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(lost)?;
        tokio::spawn(async move {
            // Whoever waits for the answer hears of it.
            let _ = connection.await;
        });
        let mut request = Request::builder().method(&call.method).uri(call.path).header("host", "localhost");
        if call.order.is_some() {
            request = request.header("content-type", "application/json");
        }
        let request = request
            .body(Full::new(call.order.clone().unwrap_or_default()))
            .map_err(|error| Failure::failed(error.to_string()))?;
        let answer = sender.send_request(request).await.map_err(lost)?;
        Ok(answer.map(|body| body.map_err(Into::into).boxed_unsync()))
    }

    /// What to do when nobody answers.
    fn not_there(&self, error: &io::Error) -> Failure {
        let (socket, data) = (self.socket(), self.data.display().to_string());
        let socket = socket.display();
        Failure::failed(match error.kind() {
            io::ErrorKind::NotFound => format!(
                "no bowline runs in {data}: start one with `bowline up --data {data}`, or say with --data (or \
                 BOWLINE_DATA) where it keeps its data, or with --context which cluster to ask"
            ),
            io::ErrorKind::ConnectionRefused => format!(
                "nobody answers on {socket}: the bowline there was killed; start it again with `bowline up --data {data}`"
            ),
            io::ErrorKind::PermissionDenied => {
                format!("{socket} is for the user that runs bowline up alone: try again with sudo")
            }
            _ => format!("cannot connect to {socket}: {error}"),
        })
    }
}
