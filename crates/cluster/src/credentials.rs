//! Certificates of the agents and of the controller, made by an authority of one's own; PEM.

use jiff::{Span, Timestamp, tz::TimeZone};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose,
};
use std::io::Write;
use std::path::Path;

/// What a controller's certificate is for.
pub const CONTROLLER: &str = "controller.bowline.storage";
/// What an agent's certificate is for.
pub const AGENT: &str = "agent.bowline.storage";

/// Why there is no certificate.
#[derive(Debug, thiserror::Error)]
pub enum CredentialError {
    /// The authority's key cannot be used.
    #[error("the key of the authority cannot be used: {0}")]
    Key(rcgen::Error),
    /// A certificate could not be made.
    #[error("a certificate could not be made: {0}")]
    Make(#[from] rcgen::Error),
}

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

/// Some days later.
pub(crate) fn days_after(now: Timestamp, days: i32) -> Timestamp {
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
pub(crate) const DAYS: i32 = 365;

/// Who makes certificates that others trust.
pub struct Authority {
    /// Its own certificate: what others trust.
    pub certificate: String,
    /// Its key. Whoever has it can be a controller.
    pub key: String,
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authority").finish_non_exhaustive()
    }
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

    /// A new one.
    pub fn make(now: Timestamp) -> Result<Self, CredentialError> {
        let key = KeyPair::generate()?;
        let certificate = Self::params(now)?.self_signed(&key)?;
        Ok(Self { certificate: certificate.pem(), key: key.serialize_pem() })
    }

    /// A certificate of this name, [`AGENT`] or [`CONTROLLER`], valid for a year.
    pub fn sign(&self, name: &str, now: Timestamp) -> Result<Credentials, CredentialError> {
        let key = KeyPair::from_pem(&self.key).map_err(CredentialError::Key)?;
        let issuer = Issuer::new(Self::params(now)?, key);
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
}
