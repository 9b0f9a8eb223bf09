//! Certificates: both sides show one of the same CA, and the name in it says what they are.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio_rustls::rustls::client::danger::HandshakeSignatureValid;
use tokio_rustls::rustls::crypto::{CryptoProvider, aws_lc_rs};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use tokio_rustls::rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use tokio_rustls::rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use tokio_rustls::rustls::{
    self, ClientConfig, DigitallySignedStruct, DistinguishedName, RootCertStore, ServerConfig,
    SignatureScheme,
};

/// The certificates that are trusted.
const CA: &str = "ca.crt";
/// What this side shows.
const CERTIFICATE: &str = "tls.crt";
/// Longer than anybody looks ahead.
const LONGEST: Duration = Duration::from_hours(24 * 366 * 30);
/// The key to it.
const KEY: &str = "tls.key";

/// A directory with `ca.crt`, `tls.crt` and `tls.key`. They are read for every connection, so that new ones count without
/// a restart; while they cannot be used, the ones before do.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    directory: PathBuf,
    server: Mutex<Option<Arc<ServerConfig>>>,
    client: Mutex<Option<Arc<ClientConfig>>>,
}

/// Why certificates cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("{} cannot be read: {error}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        error: String,
    },
    /// They do not go together.
    #[error("the certificates in {} cannot be used: {error}", directory.display())]
    Unusable {
        /// The directory.
        directory: PathBuf,
        /// Why.
        error: String,
    },
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}

impl TlsFiles {
    /// The files in this directory; they need not be there yet.
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        let inner = Inner { directory: directory.into(), server: Mutex::default(), client: Mutex::default() };
        Self { inner: Arc::new(inner) }
    }

    /// Where they are.
    pub fn directory(&self) -> &Path {
        &self.inner.directory
    }

    /// Whether they are all there and go together: as an agent would use them.
    pub fn check(&self) -> Result<(), TlsError> {
        self.server().map(|_| ())
    }

    /// When the other side will not take any more what this side shows. An error if it would not now. What is trusted has no end: only what is shown is
    /// looked at.
    pub fn ends(&self, now: SystemTime) -> Result<SystemTime, TlsError> {
        let (roots, chain, _) = self.read()?;
        let Some((leaf, rest)) = chain.split_first() else { return Err(self.unusable(&"there is none")) };
        let callers =
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots.clone()), provider()).build();
        let callers = callers.map_err(|error| self.unusable(&error))?;
        let agent = ParsedCertificate::try_from(leaf).map_err(|error| self.unusable(&error))?;
        let known = provider().signature_verification_algorithms.all;
        let is_taken = |at: SystemTime| {
            let at = UnixTime::since_unix_epoch(at.duration_since(UNIX_EPOCH).unwrap_or_default());
            let as_agent =
                rustls::client::verify_server_cert_signed_by_trust_anchor(&agent, &roots, rest, at, known);
            as_agent.or_else(|error| {
                // A controller's is not for those who answer.
                callers.verify_client_cert(leaf, rest, at).map(drop).map_err(|_| error)
            })
        };
        is_taken(now).map_err(|error| self.unusable(&error))?;
        // What checks certificates says whether one is good at a moment, and not until when.
        let (mut good, mut bad) = (Duration::ZERO, LONGEST);
        while bad - good > Duration::from_secs(1) {
            let middle = good + (bad - good) / 2;
            *(if is_taken(now + middle).is_ok() { &mut good } else { &mut bad }) = middle;
        }
        Ok(now + bad)
    }

    /// For an agent: whoever calls must show the certificate of a controller.
    pub(crate) fn server(&self) -> Result<Arc<ServerConfig>, TlsError> {
        self.latest(&self.inner.server, || {
            let (roots, chain, key) = self.read()?;
            let named = CallerVerifier::new(roots).map_err(|error| self.unusable(&error))?;
            let config = ServerConfig::builder_with_provider(provider())
                .with_protocol_versions(&[&rustls::version::TLS13])
                .map_err(|error| self.unusable(&error))?
                .with_client_cert_verifier(Arc::new(named))
                .with_single_cert(chain, key);
            let mut config = config.map_err(|error| self.unusable(&error))?;
            config.alpn_protocols = vec![b"h2".to_vec()];
            // A caller shows its certificate each time: one that was trusted an hour ago may not be any more.
            config.send_tls13_tickets = 0;
            Ok(config)
        })
    }

    /// For a controller: whoever answers must show the certificate of an agent.
    pub(crate) fn client(&self) -> Result<Arc<ClientConfig>, TlsError> {
        self.latest(&self.inner.client, || {
            let (roots, chain, key) = self.read()?;
            let config = ClientConfig::builder_with_provider(provider())
                .with_protocol_versions(&[&rustls::version::TLS13])
                .map_err(|error| self.unusable(&error))?
                .with_root_certificates(roots)
                .with_client_auth_cert(chain, key);
            let mut config = config.map_err(|error| self.unusable(&error))?;
            config.alpn_protocols = vec![b"h2".to_vec()];
            config.resumption = rustls::client::Resumption::disabled();
            Ok(config)
        })
    }

    fn latest<T>(
        &self,
        kept: &Mutex<Option<Arc<T>>>,
        load: impl FnOnce() -> Result<T, TlsError>,
    ) -> Result<Arc<T>, TlsError> {
        let loaded = load().map(Arc::new);
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        match (loaded, kept.as_ref()) {
            (Ok(new), _) => {
                *kept = Some(Arc::clone(&new));
                Ok(new)
            }
            // Files are not replaced all at once.
            (Err(error), Some(before)) => {
                tracing::warn!(%error, "the certificates that were read before are used");
                Ok(Arc::clone(before))
            }
            (Err(error), None) => Err(error),
        }
    }

    fn unusable(&self, error: &dyn std::fmt::Display) -> TlsError {
        TlsError::Unusable { directory: self.inner.directory.clone(), error: error.to_string() }
    }

    fn read(
        &self,
    ) -> Result<(RootCertStore, Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), TlsError> {
        let path = |name: &str| self.inner.directory.join(name);
        let failed = |path: &Path, error: &dyn std::fmt::Display| TlsError::File {
            path: path.to_owned(),
            error: error.to_string(),
        };
        let certificates = |path: PathBuf| {
            let found = CertificateDer::pem_file_iter(&path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
            let found = found.map_err(|error| failed(&path, &error))?;
            if found.is_empty() { Err(failed(&path, &"it has no certificate")) } else { Ok(found) }
        };
        let mut roots = RootCertStore::empty();
        for certificate in certificates(path(CA))? {
            roots.add(certificate).map_err(|error| failed(&path(CA), &error))?;
        }
        let chain = certificates(path(CERTIFICATE))?;
        let key = PrivateKeyDer::from_pem_file(path(KEY)).map_err(|error| failed(&path(KEY), &error))?;
        Ok((roots, chain, key))
    }
}

/// A caller's certificate is one of the CA, and has the name of the controller.
#[derive(Debug)]
struct CallerVerifier {
    of_ca: Arc<dyn ClientCertVerifier>,
    name: ServerName<'static>,
}

impl CallerVerifier {
    fn new(roots: RootCertStore) -> Result<Self, String> {
        let of_ca = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider()).build();
        let name = ServerName::try_from(super::CONTROLLER_NAME).map_err(|error| error.to_string())?;
        Ok(Self { of_ca: of_ca.map_err(|error| error.to_string())?, name })
    }
}

impl ClientCertVerifier for CallerVerifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.of_ca.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        let verified = self.of_ca.verify_client_cert(end_entity, intermediates, now)?;
        rustls::client::verify_server_name(&ParsedCertificate::try_from(end_entity)?, &self.name)?;
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.of_ca.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.of_ca.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.of_ca.supported_verify_schemes()
    }
}
