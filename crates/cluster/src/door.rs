//! The door for people: the API over TLS, for whoever shows a token that the API server knows.

use bowline_web::{Api, Certificate, ListenError, SecureServer};
use k8s_openapi::api::coordination::v1::Lease;
use kube::Client;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::review::Review;

/// How often a process that does not lead looks who does.
const LOOK: Duration = Duration::from_secs(2);

/// Why the door stays shut.
#[derive(Debug, thiserror::Error)]
pub enum DoorError {
    /// The address, or the certificate that was given.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// No certificate was given, and none can be made.
    #[error("a certificate for the API cannot be made: {0}")]
    Certificate(#[from] rcgen::Error),
}

/// Listens at `address` for people; [`SecureServer::run`] lets them in. Without a certificate it shows one of its own making:
/// the API server, through which people come, checks none.
pub async fn open(
    client: Client,
    namespace: &str,
    address: SocketAddr,
    certificate: Option<Certificate>,
) -> Result<SecureServer, DoorError> {
    let certificate = match certificate {
        Some(certificate) => certificate,
        None => own(namespace)?,
    };
    Ok(SecureServer::bind(address, certificate, Arc::new(Review::new(client, namespace))).await?)
}

fn own(namespace: &str) -> Result<Certificate, rcgen::Error> {
    let names = ["bowline-api".to_owned(), format!("bowline-api.{namespace}.svc")];
    let made = rcgen::generate_simple_self_signed(names)?;
    let (certificate, key) = (made.cert.pem().into_bytes(), made.signing_key.serialize_pem().into_bytes());
    Ok(Certificate::Pem { certificate, key })
}

/// Tells callers who leads, until this process does and its API is open. `identity` is this process's own in the lease.
pub async fn tell_leader(client: Client, namespace: &str, lease: &str, identity: &str, api: &Api) {
    let leases = kube::Api::<Lease>::namespaced(client, namespace);
    while !api.is_ready() {
        match leases.get_opt(lease).await {
            Ok(lease) => {
                let holder = lease.and_then(|lease| lease.spec).and_then(|spec| spec.holder_identity);
                api.led_by(holder.filter(|holder| !holder.is_empty() && holder != identity));
            }
            // Whoever was told last is as good a guess as any.
            Err(error) => tracing::debug!(%error, "the lease cannot be read"),
        }
        tokio::time::sleep(LOOK).await;
    }
}
