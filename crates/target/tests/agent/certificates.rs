//! Who may talk to whom.

use crate::lab::{Agent, connect, grant, until};
use bowline_target::agent::{AgentClient, ConnectError, Place, TlsFiles};
use bowline_target::{Target, TargetError};
use bowline_testkit::SimTarget;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const AGENT: &str = "agent.bowline.storage";
const CONTROLLER: &str = "controller.bowline.storage";

struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: String,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap().pem();
        Self { issuer: Issuer::new(params, key), certificate }
    }

    /// A directory with a certificate of this name, trusting this authority.
    fn issue(&self, place: &Path, called: &str, name: &str) -> PathBuf {
        let directory = place.join(called);
        std::fs::create_dir_all(&directory).unwrap();
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        std::fs::write(directory.join("ca.crt"), &self.certificate).unwrap();
        std::fs::write(directory.join("tls.crt"), certificate.pem()).unwrap();
        std::fs::write(directory.join("tls.key"), key.serialize_pem()).unwrap();
        directory
    }
}

async fn try_it(address: &str, files: &Path) -> Result<AgentClient, ConnectError> {
    connect(Place::Tls { address: address.to_owned(), files: TlsFiles::new(files) }).await
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_controller_may_ask_and_only_an_agent_may_answer() {
    let place = tempfile::tempdir().unwrap();
    let (ours, theirs) = (Authority::new(), Authority::new());
    let agent = ours.issue(place.path(), "agent", AGENT);
    let controller = ours.issue(place.path(), "controller", CONTROLLER);
    let target = Arc::new(SimTarget::new("sim"));
    let (_agent, address) = Agent::on_address(&target, &agent);
    let client = try_it(&address, &controller).await.unwrap();
    client.allow(&grant("v", "a", 1)).await.unwrap();

    let other_ca = theirs.issue(place.path(), "other-ca", CONTROLLER);
    // It trusts the agent's authority, and shows a certificate of another.
    std::fs::copy(agent.join("ca.crt"), other_ca.join("ca.crt")).unwrap();
    let stranger = ours.issue(place.path(), "stranger", "stranger.bowline.storage");
    for (files, what) in
        [(&other_ca, "another authority"), (&stranger, "another name"), (&agent, "an agent's name")]
    {
        let refused = try_it(&address, files).await;
        assert!(matches!(refused, Err(ConnectError::Unreachable { .. })), "{what}: {refused:?}");
    }

    let wrong_name = ours.issue(place.path(), "wrong-name", CONTROLLER);
    let wrong_ca = theirs.issue(place.path(), "wrong-ca", AGENT);
    std::fs::copy(agent.join("ca.crt"), wrong_ca.join("ca.crt")).unwrap();
    for (files, what) in [(&wrong_name, "NotValidForName"), (&wrong_ca, "invalid peer certificate")] {
        let (_pretender, address) = Agent::on_address(&target, files);
        let refused = try_it(&address, &controller).await.unwrap_err().to_string();
        assert!(refused.contains(what) || refused.contains("not valid for name"), "{what}: {refused}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_shows_no_certificate_is_told_nothing() {
    let place = tempfile::tempdir().unwrap();
    let ours = Authority::new();
    let agent = ours.issue(place.path(), "agent", AGENT);
    let target = Arc::new(SimTarget::new("sim"));
    let (_agent, address) = Agent::on_address(&target, &agent);
    // In the clear.
    let mut plain = tokio::net::TcpStream::connect(&address).await.unwrap();
    plain.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer).await;
    assert!(!answer.windows(4).any(|bytes| bytes == [0, 0, 0, 4]) && answer.len() < 64, "{answer:?}");
    // With TLS, and without a certificate.
    use tokio_rustls::rustls::pki_types::pem::PemObject;
    use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
    use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto::aws_lc_rs};
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(agent.join("ca.crt")).unwrap()).unwrap();
    let mut config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let stream = tokio::net::TcpStream::connect(&address).await.unwrap();
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let told = match connector.connect(ServerName::try_from(AGENT).unwrap(), stream).await {
        Err(error) => Err(error),
        Ok(mut stream) => stream.read_u8().await,
    };
    let error = told.unwrap_err().to_string();
    assert!(error.contains("CertificateRequired"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn new_certificates_count_without_a_restart() {
    let place = tempfile::tempdir().unwrap();
    let (first, second) = (Authority::new(), Authority::new());
    let agent = first.issue(place.path(), "agent", AGENT);
    let controller = first.issue(place.path(), "controller", CONTROLLER);
    let target = Arc::new(SimTarget::new("sim"));
    let (_agent, address) = Agent::on_address(&target, &agent);
    try_it(&address, &controller).await.unwrap();
    second.issue(place.path(), "agent", AGENT);
    assert!(try_it(&address, &controller).await.is_err(), "the old ones do not count any more");
    second.issue(place.path(), "controller", CONTROLLER);
    let client = try_it(&address, &controller).await.unwrap();
    std::fs::write(agent.join("tls.key"), "half written").unwrap();
    let still = try_it(&address, &controller).await;
    assert!(still.is_ok(), "while they cannot be used, the ones before do: {still:?}");
    let silent = matches!(client.allow(&grant("v", "a", 1)).await, Err(TargetError::Unreachable { .. }));
    assert!(!silent, "a connection that is there stays");
    until("nothing", || true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_who_show_no_certificate_do_not_take_the_places_of_those_who_do() {
    let place = tempfile::tempdir().unwrap();
    let ours = Authority::new();
    let controller = ours.issue(place.path(), "controller", CONTROLLER);
    let target = Arc::new(SimTarget::new("sim"));
    let (_agent, address) = Agent::on_address(&target, &ours.issue(place.path(), "agent", AGENT));
    let mut silent = Vec::new();
    for _ in 0..100 {
        silent.push(tokio::net::TcpStream::connect(&address).await.unwrap());
    }
    let client = try_it(&address, &controller).await.unwrap();
    client.allow(&grant("v", "a", 1)).await.unwrap();
}
