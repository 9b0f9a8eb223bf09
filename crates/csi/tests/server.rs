//! The server on a real socket, with a real client.

#![allow(clippy::unwrap_used, reason = "a failed check is a panic")]

use bowline_csi::wire::identity_client::IdentityClient;
use bowline_csi::wire::identity_server::Identity;
use bowline_csi::wire::node_client::NodeClient;
use bowline_csi::{BindError, Ended, Endpoint, Limits, Server, wire};
use hyper_util::rt::TokioIo;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use tokio::sync::{Semaphore, oneshot};
use tokio::task::JoinHandle;
use tonic::transport::Channel;
use tonic::{Code, Request, Response, Status};

/// An identity whose `Probe` waits until it is let go.
#[derive(Clone)]
struct Plugin {
    begun: Arc<Semaphore>,
    go: Arc<Semaphore>,
}

impl Plugin {
    fn new(permits: usize) -> Self {
        Self { begun: Arc::new(Semaphore::new(0)), go: Arc::new(Semaphore::new(permits)) }
    }

    async fn has_begun(&self, calls: u32) {
        let _ = self.begun.acquire_many(calls).await.unwrap();
    }
}

#[tonic::async_trait]
impl Identity for Plugin {
    async fn get_plugin_info(
        &self,
        _: Request<wire::GetPluginInfoRequest>,
    ) -> Result<Response<wire::GetPluginInfoResponse>, Status> {
        // Larger than the limits of some tests.
        let manifest = [("filler".to_owned(), "x".repeat(100_000))].into();
        let name = "bowline.storage".to_owned();
        Ok(Response::new(wire::GetPluginInfoResponse { name, vendor_version: "1".to_owned(), manifest }))
    }

    async fn get_plugin_capabilities(
        &self,
        _: Request<wire::GetPluginCapabilitiesRequest>,
    ) -> Result<Response<wire::GetPluginCapabilitiesResponse>, Status> {
        Err(Status::unavailable("not yet"))
    }

    async fn probe(&self, _: Request<wire::ProbeRequest>) -> Result<Response<wire::ProbeResponse>, Status> {
        self.begun.add_permits(1);
        let _ = self.go.acquire().await;
        Ok(Response::new(wire::ProbeResponse { ready: Some(true) }))
    }
}

struct Running {
    directory: TempDir,
    stop: Option<oneshot::Sender<()>>,
    server: JoinHandle<Ended>,
}

impl Running {
    async fn start(plugin: Plugin, limits: Limits) -> Self {
        let directory = TempDir::new().unwrap();
        let endpoint: Endpoint = format!("unix://{}/csi.sock", directory.path().display()).parse().unwrap();
        let server = Server::bind(&endpoint, limits).await.unwrap().identity(plugin);
        let (stop, stopped) = oneshot::channel::<()>();
        let server = tokio::spawn(async move {
            let stopped = async {
                let _ = stopped.await;
            };
            server.run(stopped).await.unwrap()
        });
        Self { directory, stop: Some(stop), server }
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("csi.sock")
    }

    fn tell_to_stop(&mut self) {
        self.stop.take().unwrap().send(()).unwrap();
    }
}

async fn connect(path: &Path) -> Channel {
    let path = path.to_owned();
    let connector = tower::service_fn(move |_| {
        let path = path.clone();
        async move { Ok::<_, std::io::Error>(TokioIo::new(tokio::net::UnixStream::connect(path).await?)) }
    });
    tonic::transport::Endpoint::from_static("http://socket").connect_with_connector(connector).await.unwrap()
}

fn names_in(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[tokio::test]
async fn a_probe_is_answered_and_the_socket_is_ours_alone() {
    let mut running = Running::start(Plugin::new(1), Limits::default()).await;
    let metadata = std::fs::symlink_metadata(running.path()).unwrap();
    assert_eq!(metadata.permissions().mode() & 0o7777, 0o600);
    assert_eq!(names_in(running.directory.path()), ["csi.sock"], "nothing is left of making it");

    let channel = connect(&running.path()).await;
    let mut client = IdentityClient::new(channel.clone());
    let answer = client.probe(wire::ProbeRequest {}).await.unwrap().into_inner();
    assert_eq!(answer.ready, Some(true));
    let refused = client.get_plugin_capabilities(wire::GetPluginCapabilitiesRequest {}).await.unwrap_err();
    assert_eq!((refused.code(), refused.message()), (Code::Unavailable, "not yet"));
    let missing = NodeClient::new(channel).node_get_info(wire::NodeGetInfoRequest {}).await.unwrap_err();
    assert_eq!(missing.code(), Code::Unimplemented, "a service that was not added");

    running.tell_to_stop();
    assert_eq!(running.server.await.unwrap(), Ended::AllAnswered);
    assert_eq!(names_in(running.directory.path()), [""; 0], "the socket is gone");
}

#[tokio::test]
async fn a_message_beyond_the_limit_is_refused_and_the_server_goes_on() {
    let running =
        Running::start(Plugin::new(1), Limits { message_bytes: 64 << 10, ..Limits::default() }).await;
    let mut client = IdentityClient::new(connect(&running.path()).await);
    let answer = client.get_plugin_info(wire::GetPluginInfoRequest {}).await.unwrap_err();
    assert_eq!(answer.code(), Code::OutOfRange, "an answer is bounded too: {answer}");

    // `Probe` has no fields, so any request of another call will do to carry bytes.
    let path = "/csi.v1.Identity/Probe".parse().unwrap();
    let mut raw = tonic::client::Grpc::new(connect(&running.path()).await);
    raw.ready().await.unwrap();
    let codec = tonic_prost::ProstCodec::<wire::DeleteVolumeRequest, wire::ProbeResponse>::default();
    let large = wire::DeleteVolumeRequest { volume_id: "x".repeat(65 << 10), ..Default::default() };
    let refused = raw.unary(Request::new(large), path, codec).await.unwrap_err();
    assert_eq!(refused.code(), Code::OutOfRange, "{refused}");

    assert!(client.probe(wire::ProbeRequest {}).await.is_ok());
}

#[tokio::test]
async fn what_is_at_the_path_is_removed_only_if_it_is_a_socket_that_nobody_answers_on() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("csi.sock");
    let endpoint: Endpoint = path.to_str().unwrap().parse().unwrap();

    drop(UnixListener::bind(&path).unwrap());
    let stale = std::fs::symlink_metadata(&path).unwrap().ino();
    let server = Server::bind(&endpoint, Limits::default()).await.unwrap();
    assert_ne!(std::fs::symlink_metadata(&path).unwrap().ino(), stale, "the stale one was replaced");

    let live = Server::bind(&endpoint, Limits::default()).await.unwrap_err();
    assert!(matches!(live, BindError::Live(_)), "{live}");
    assert_eq!(names_in(directory.path()), ["csi.sock"], "a refusal leaves nothing behind");
    drop(server);
    assert!(!path.exists(), "a server that never ran removes its socket too");

    std::fs::write(&path, "precious").unwrap();
    let other = Server::bind(&endpoint, Limits::default()).await.unwrap_err();
    assert!(matches!(other, BindError::NotASocket(_)), "{other}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");

    std::fs::remove_file(&path).unwrap();
    let elsewhere = TempDir::new().unwrap();
    let dead = elsewhere.path().join("dead.sock");
    drop(UnixListener::bind(&dead).unwrap());
    std::os::unix::fs::symlink(&dead, &path).unwrap();
    let link = Server::bind(&endpoint, Limits::default()).await.unwrap_err();
    assert!(matches!(link, BindError::NotASocket(_)), "a link is not followed: {link}");

    let nowhere: Endpoint = "/nonexistent/csi.sock".parse().unwrap();
    let error = Server::bind(&nowhere, Limits::default()).await.unwrap_err();
    assert!(matches!(error, BindError::Io { .. }), "{error}");
}

#[tokio::test]
async fn a_socket_that_somebody_else_put_in_place_of_ours_stays() {
    let mut running = Running::start(Plugin::new(1), Limits::default()).await;
    std::fs::remove_file(running.path()).unwrap();
    let _theirs = UnixListener::bind(running.path()).unwrap();
    running.tell_to_stop();
    running.server.await.unwrap();
    assert_eq!(names_in(running.directory.path()), ["csi.sock"]);
}

#[tokio::test]
async fn a_running_call_gets_its_answer_after_the_server_was_told_to_stop() {
    let plugin = Plugin::new(0);
    let mut running = Running::start(plugin.clone(), Limits::default()).await;
    let mut client = IdentityClient::new(connect(&running.path()).await);
    let call = tokio::spawn(async move { client.probe(wire::ProbeRequest {}).await });
    plugin.has_begun(1).await;

    running.tell_to_stop();
    let gone = async {
        while running.path().exists() {
            tokio::task::yield_now().await;
        }
    };
    gone.await;
    assert!(!running.server.is_finished(), "it waits for the call");
    plugin.go.add_permits(1);
    assert!(call.await.unwrap().is_ok());
    assert_eq!(running.server.await.unwrap(), Ended::AllAnswered);
}

#[tokio::test]
async fn a_call_that_does_not_end_holds_up_the_stop_no_longer_than_the_grace() {
    let plugin = Plugin::new(0);
    let limits = Limits { grace: Duration::from_millis(50), ..Limits::default() };
    let mut running = Running::start(plugin.clone(), limits).await;
    let mut client = IdentityClient::new(connect(&running.path()).await);
    let call = tokio::spawn(async move { client.probe(wire::ProbeRequest {}).await });
    plugin.has_begun(1).await;
    running.tell_to_stop();
    assert_eq!(running.server.await.unwrap(), Ended::CutShort { running: 1 });
    call.abort();
}

#[tokio::test]
async fn more_calls_and_connections_than_allowed_wait_and_are_all_answered() {
    let plugin = Plugin::new(0);
    let limits = Limits { calls: 2, connections: 3, ..Limits::default() };
    let running = Running::start(plugin.clone(), limits).await;
    let mut calls = vec![];
    for _ in 0..3 {
        let channel = connect(&running.path()).await;
        for _ in 0..4 {
            let mut client = IdentityClient::new(channel.clone());
            calls.push(tokio::spawn(async move { client.probe(wire::ProbeRequest {}).await }));
        }
    }
    plugin.has_begun(2).await;
    assert_eq!(plugin.begun.available_permits(), 2, "a third call waits");
    plugin.go.add_permits(12);
    for call in calls {
        assert!(call.await.unwrap().is_ok());
    }
    // All three places are free again, now that the clients are gone.
    let mut again = IdentityClient::new(connect(&running.path()).await);
    assert!(again.probe(wire::ProbeRequest {}).await.is_ok());
}
