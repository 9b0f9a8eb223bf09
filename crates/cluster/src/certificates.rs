//! Certificates of the agents and of the controller: made by the leader, kept in two Secrets of its namespace.
//!
//! **Flow.** The controller's Secret comes first and has the key of the authority; the agents' Secret follows from it, so a
//! crash between the two is completed by the next call. What is there is used; a certificate is made anew when a third of
//! its life is left, and agents and controller read it again without a restart.
//!
//! **Guarantees.** The authority's key is in the controller's Secret alone: an agent cannot make itself a controller.

use jiff::{Span, Timestamp, tz::TimeZone};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose,
};
use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

/// What a controller's certificate is for.
pub const CONTROLLER: &str = "controller.bowline.storage";
/// What an agent's certificate is for.
pub const AGENT: &str = "agent.bowline.storage";
/// The controller's Secret.
pub const CONTROLLER_SECRET: &str = "bowline-controller-tls";
/// The agents' Secret.
pub const AGENT_SECRET: &str = "bowline-agent-tls";

/// On a Secret: when its certificate is to be made anew.
const RENEW_AFTER: &str = "bowline.storage/renew-after";
const MANAGER: &str = "bowline-certificates";

/// A certificate with its key, and the authority that the other side's must come from. PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// The authority.
    pub authority: String,
    /// The certificate.
    pub certificate: String,
    /// Its key.
    pub key: String,
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credentials").finish_non_exhaustive()
    }
}

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
    #[error("a certificate could not be made: {0}")]
    Make(#[from] rcgen::Error),
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
        Some(secret) => Authority::read(secret)?,
        None => Authority::make(now)?,
    };
    let controller = match held {
        Some(secret) if !is_due(&secret, now) => secret,
        held => {
            let made = authority.sign(CONTROLLER, now)?;
            put(secrets, made.secret(CONTROLLER_SECRET, Some(&authority), now), held).await?
        }
    };
    let agents = get(secrets, AGENT_SECRET).await?;
    let stale = |secret: &Secret| {
        is_due(secret, now)
            || text(secret, AGENT_SECRET, "ca.crt").ok().as_deref() != Some(&authority.certificate)
    };
    if agents.as_ref().is_none_or(stale) {
        let made = authority.sign(AGENT, now)?;
        put(secrets, made.secret(AGENT_SECRET, None, now), agents).await?;
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

fn days_after(now: Timestamp, days: i32) -> Timestamp {
    now.to_zoned(TimeZone::UTC).checked_add(Span::new().days(days)).map_or(now, |later| later.timestamp())
}

fn whole_day(at: Timestamp) -> (i32, u8, u8) {
    let date = at.to_zoned(TimeZone::UTC).date();
    let small = |number: i8| u8::try_from(number).unwrap_or(1);
    (i32::from(date.year()), small(date.month()), small(date.day()))
}

/// What a certificate and its authority have in common. Valid from yesterday: clocks differ.
fn params(names: Vec<String>, now: Timestamp, days: i32) -> Result<CertificateParams, rcgen::Error> {
    let mut params = CertificateParams::new(names)?;
    let ((from, month, day), (to, last_month, last_day)) =
        (whole_day(days_after(now, -1)), whole_day(days_after(now, days)));
    params.not_before = rcgen::date_time_ymd(from, month, day);
    params.not_after = rcgen::date_time_ymd(to, last_month, last_day);
    Ok(params)
}

/// How long an authority is valid.
const AUTHORITY_DAYS: i32 = 3650;
/// How long a certificate is valid.
const DAYS: i32 = 365;

struct Authority {
    certificate: String,
    key: String,
}

impl Authority {
    fn params(now: Timestamp) -> Result<CertificateParams, rcgen::Error> {
        let mut params = params(vec![], now, AUTHORITY_DAYS)?;
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, "Bowline agents and controllers");
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        Ok(params)
    }

    fn make(now: Timestamp) -> Result<Self, CertificateError> {
        let key = KeyPair::generate()?;
        let certificate = Self::params(now)?.self_signed(&key)?;
        Ok(Self { certificate: certificate.pem(), key: key.serialize_pem() })
    }

    fn read(secret: &Secret) -> Result<Self, CertificateError> {
        let field = |field| text(secret, CONTROLLER_SECRET, field);
        Ok(Self { certificate: field("ca.crt")?, key: field("ca.key")? })
    }

    fn sign(&self, name: &str, now: Timestamp) -> Result<Credentials, CertificateError> {
        let unusable = |_| CertificateError::Unusable { secret: CONTROLLER_SECRET, field: "ca.key" };
        let issuer = Issuer::new(Self::params(now)?, KeyPair::from_pem(&self.key).map_err(unusable)?);
        let mut params = params(vec![name.to_owned()], now, DAYS)?;
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        params.use_authority_key_identifier_extension = true;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = match name {
            AGENT => vec![ExtendedKeyUsagePurpose::ServerAuth],
            _ => vec![ExtendedKeyUsagePurpose::ClientAuth],
        };
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &issuer)?;
        Ok(Credentials {
            authority: self.certificate.clone(),
            certificate: certificate.pem(),
            key: key.serialize_pem(),
        })
    }
}

impl Credentials {
    /// Writes `ca.crt`, `tls.crt` and `tls.key` into a directory that only this user can look into. Each is replaced as a
    /// whole, the key first: whoever reads in between finds a pair that does not fit, and uses the one before.
    pub fn write(&self, directory: &Path) -> std::io::Result<()> {
        use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        for (name, text) in
            [("tls.key", &self.key), ("ca.crt", &self.authority), ("tls.crt", &self.certificate)]
        {
            let fresh = directory.join(format!("{name}.new"));
            let mut file = std::fs::OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(true)
                .mode(0o600)
                .open(&fresh)?;
            file.write_all(text.as_bytes())?;
            std::fs::rename(&fresh, directory.join(name))?;
        }
        Ok(())
    }

    fn secret(
        &self,
        name: &'static str,
        authority: Option<&Authority>,
        now: Timestamp,
    ) -> (&'static str, Secret) {
        let mut data = BTreeMap::from([
            ("ca.crt", &self.authority),
            ("tls.crt", &self.certificate),
            ("tls.key", &self.key),
        ]);
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
}
