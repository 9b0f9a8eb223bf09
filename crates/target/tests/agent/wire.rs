//! Messages that no client of ours sends.

use crate::lab::{Lab, grant, order};
use bowline_target::agent::wire;
use bowline_target::agent::wire::agent_client::AgentClient;
use bowline_target::{NewVolume, Progress, Provision, ProvisionError, Target};
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint, Uri};
use tonic::{Code, Request, Status};

async fn raw(lab: &Lab) -> AgentClient<Channel> {
    let path = lab.socket.clone();
    let connector = tower::service_fn(move |_: Uri| {
        let path = path.clone();
        async move { UnixStream::connect(path).await.map(TokioIo::new) }
    });
    let channel = Endpoint::from_static("http://x").connect_with_connector(connector).await.unwrap();
    AgentClient::new(channel)
}

fn to<Q>(target: &'static str, message: Q) -> Request<Q> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("bowline-target", target.parse().unwrap());
    request
}

#[allow(clippy::needless_pass_by_value, reason = "it is made for this")]
fn told(status: Status, code: Code, words: &str) {
    assert_eq!(status.code(), code, "{status}");
    assert!(status.message().contains(words), "{status}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_request_names_its_field_and_does_nothing() {
    let lab = Lab::new().await;
    let mut raw = raw(&lab).await;
    let get = |volume: &str| wire::GetVolumeRequest { volume: volume.to_owned() };
    let nameless = raw.get_volume(get("v")).await.unwrap_err();
    told(nameless, Code::InvalidArgument, "metadata bowline-target is required");
    let other = raw.get_volume(to("other", get("v"))).await.unwrap_err();
    told(other, Code::FailedPrecondition, "this is target sim");
    told(
        raw.get_volume(to("sim", get("a/b"))).await.unwrap_err(),
        Code::InvalidArgument,
        "volume: volume id",
    );
    let allow =
        wire::AllowRequest { volume: "v".into(), node: "n".into(), epoch: 1, mode: None, beside: None };
    told(raw.allow(to("sim", allow)).await.unwrap_err(), Code::InvalidArgument, "mode is required");
    let mode = wire::Mode { write: true, frontend: true, share: wire::Share::Nobody.into() };
    let allow = wire::AllowRequest {
        volume: "v".into(),
        node: "n".into(),
        epoch: 1,
        mode: Some(mode),
        beside: Some(0),
    };
    told(raw.allow(to("sim", allow)).await.unwrap_err(), Code::InvalidArgument, "beside must be above 0");
    assert_eq!(lab.target.open(&crate::lab::volume("v")).len(), 0);
    let long = NewVolume { name: "n".repeat(2000), ..order("v", None) };
    let refused = lab.client.create(&long, &Progress::default()).await;
    assert!(
        matches!(&refused, Err(ProvisionError::Refused { error }) if error.contains("name must have")),
        "{refused:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_is_too_long_is_refused_and_the_agent_lives() {
    let lab = Lab::new().await;
    let long =
        wire::CreateVolumeRequest { volume: "v".into(), name: "n".repeat(5 << 20), ..Default::default() };
    let status = raw(&lab).await.create_volume(to("sim", long)).await.err().unwrap();
    told(status, Code::OutOfRange, "too large");
    let order = NewVolume { name: "n".repeat(5 << 20), ..order("v", None) };
    let lost = lab.client.create(&order, &Progress::default()).await;
    assert!(matches!(lost, Err(ProvisionError::Unreachable { .. })), "{lost:?}");
    assert_eq!(lab.target.items(), []);
    lab.client.allow(&grant("v", "a", 1)).await.unwrap();
}
