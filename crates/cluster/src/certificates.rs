//! Certificates of the agents and of the controller: made by the leader, kept in two Secrets of its namespace.
//!
//! **Flow.** The controller's Secret comes first and has the key of the authority; the agents' Secret follows from it, so a
//! crash between the two is completed by the next call. What is there is used; a certificate is made anew when a third of
//! its life is left, and agents and controller read it again without a restart.
//!
//! **Guarantees.** The authority's key is in the controller's Secret alone: an agent cannot make itself a controller.

use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client};
use std::collections::BTreeMap;

use crate::credentials::{AGENT, Authority, CONTROLLER, CredentialError, Credentials, DAYS, days_after};

/// The controller's Secret.
pub const CONTROLLER_SECRET: &str = "bowline-controller-tls";
/// The agents' Secret.
pub const AGENT_SECRET: &str = "bowline-agent-tls";

/// On a Secret: when its certificate is to be made anew.
const RENEW_AFTER: &str = "bowline.storage/renew-after";
const MANAGER: &str = "bowline-certificates";

/// Why there are no certificates.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// The API server.
    #[error("Secret {secret}: {error}")]
    Api {
        /// Which Secret.
        secret: &'static str,
        /// What it said.
        #[source]
        error: Box<kube::Error>,
    },
    /// What is in the Secret cannot be used.
    #[error("Secret {secret} has no usable {field}; delete it, and the leader makes a new one")]
    Unusable {
        /// Which Secret.
        secret: &'static str,
        /// Which of its fields.
        field: &'static str,
    },
    /// A certificate could not be made.
    #[error(transparent)]
    Make(CredentialError),
}

impl From<CredentialError> for CertificateError {
    fn from(error: CredentialError) -> Self {
        match error {
            CredentialError::Key(_) => Self::Unusable { secret: CONTROLLER_SECRET, field: "ca.key" },
            CredentialError::Make(_) => Self::Make(error),
        }
    }
}

/// How often it is begun again when somebody else writes a Secret meanwhile.
const ATTEMPTS: usize = 5;

/// The controller's credentials. Makes what is missing or old, for the agents too. Only the leader calls this; should
/// two do, they end up with the same authority.
pub async fn ensure(
    client: &Client,
    namespace: &str,
    now: Timestamp,
) -> Result<Credentials, CertificateError> {
    let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
    let mut attempts = 1;
    loop {
        match attempt(&secrets, now).await {
            Err(CertificateError::Api { error, .. }) if attempts < ATTEMPTS && is_conflict(&error) => {
                attempts += 1;
            }
            other => return other,
        }
    }
}

fn is_conflict(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 409)
}

async fn attempt(secrets: &Api<Secret>, now: Timestamp) -> Result<Credentials, CertificateError> {
    let held = get(secrets, CONTROLLER_SECRET).await?;
    let authority = match &held {
        Some(secret) => authority(secret)?,
        None => Authority::make(now)?,
    };
    let controller = match held {
        Some(secret) if !is_due(&secret, now) => secret,
        held => {
            let made = authority.sign(CONTROLLER, now)?;
            put(secrets, secret(&made, CONTROLLER_SECRET, Some(&authority), now), held).await?
        }
    };
    let agents = get(secrets, AGENT_SECRET).await?;
    let stale = |secret: &Secret| {
        is_due(secret, now)
            || text(secret, AGENT_SECRET, "ca.crt").ok().as_deref() != Some(&authority.certificate)
    };
    if agents.as_ref().is_none_or(stale) {
        let made = authority.sign(AGENT, now)?;
        put(secrets, secret(&made, AGENT_SECRET, None, now), agents).await?;
    }
    let field = |field| text(&controller, CONTROLLER_SECRET, field);
    Ok(Credentials { authority: field("ca.crt")?, certificate: field("tls.crt")?, key: field("tls.key")? })
}

async fn get(secrets: &Api<Secret>, name: &'static str) -> Result<Option<Secret>, CertificateError> {
    secrets
        .get_opt(name)
        .await
        .map_err(|error| CertificateError::Api { secret: name, error: Box::new(error) })
}

/// Creates it, or replaces what `held` has; a conflict if that is not what is there.
async fn put(
    secrets: &Api<Secret>,
    (name, secret): (&'static str, Secret),
    held: Option<Secret>,
) -> Result<Secret, CertificateError> {
    let parameters = PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() };
    let written = match held {
        None => secrets.create(&parameters, &secret).await,
        Some(mut held) => {
            held.metadata
                .annotations
                .get_or_insert_default()
                .extend(secret.metadata.annotations.unwrap_or_default());
            held.data = secret.data;
            secrets.replace(name, &parameters, &held).await
        }
    };
    written.map_err(|error| CertificateError::Api { secret: name, error: Box::new(error) })
}

fn text(secret: &Secret, name: &'static str, field: &'static str) -> Result<String, CertificateError> {
    let bytes = secret.data.as_ref().and_then(|data| data.get(field));
    let text = bytes.and_then(|ByteString(bytes)| String::from_utf8(bytes.clone()).ok());
    text.ok_or(CertificateError::Unusable { secret: name, field })
}

/// A Secret that does not say when is due: somebody else wrote it.
fn is_due(secret: &Secret, now: Timestamp) -> bool {
    let renew = secret.metadata.annotations.as_ref().and_then(|all| all.get(RENEW_AFTER));
    renew.and_then(|text| text.parse::<Timestamp>().ok()).is_none_or(|renew| now >= renew)
}

fn authority(secret: &Secret) -> Result<Authority, CertificateError> {
    let field = |field| text(secret, CONTROLLER_SECRET, field);
    Ok(Authority { certificate: field("ca.crt")?, key: field("ca.key")? })
}

fn secret(
    made: &Credentials,
    name: &'static str,
    authority: Option<&Authority>,
    now: Timestamp,
) -> (&'static str, Secret) {
    let mut data =
        BTreeMap::from([("ca.crt", &made.authority), ("tls.crt", &made.certificate), ("tls.key", &made.key)]);
    if let Some(authority) = authority {
        data.insert("ca.key", &authority.key);
    }
    let bytes = |(key, text): (&str, &String)| (key.to_owned(), ByteString(text.clone().into_bytes()));
    let renew = days_after(now, DAYS * 2 / 3).to_string();
    let secret = Secret {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            annotations: Some(BTreeMap::from([(RENEW_AFTER.to_owned(), renew)])),
            ..ObjectMeta::default()
        },
        data: Some(data.into_iter().map(bytes).collect()),
        type_: Some("kubernetes.io/tls".to_owned()),
        ..Secret::default()
    };
    (name, secret)
}
