//! What the server shows to callers over TLS: a certificate and its key, read anew when their files change.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use tokio_rustls::rustls::crypto::{CryptoProvider, aws_lc_rs};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::{ClientHello, ResolvesServerCert};
use tokio_rustls::rustls::sign::CertifiedKey;
use tokio_rustls::rustls::{self, ServerConfig};

/// More than this is neither a certificate nor a key.
const BYTES: u64 = 1 << 20;

/// Where the certificate and its key come from, as PEM.
pub enum Certificate {
    /// These very ones.
    Pem {
        /// The certificate, and those that signed it.
        certificate: Vec<u8>,
        /// Its key.
        key: Vec<u8>,
    },
    /// Two files, which are read anew when they change. A pair that does not go together is left alone: the one before stays.
    Files {
        /// The certificate, and those that signed it.
        certificate: PathBuf,
        /// Its key.
        key: PathBuf,
    },
}

/// The key is not for logs.
impl std::fmt::Debug for Certificate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Pem { .. } => f.write_str("Certificate::Pem(…)"),
            Self::Files { certificate, .. } => {
                f.debug_tuple("Certificate::Files").field(certificate).finish()
            }
        }
    }
}

/// Why there is no certificate to show.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// A file cannot be read.
    #[error("{} cannot be read: {error}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What was the matter.
        error: io::Error,
    },
    /// What was read is no certificate, or not in PEM.
    #[error("the certificate is not one in PEM: {0}")]
    NoCertificate(String),
    /// What was read is no key, or not in PEM.
    #[error("the key of the certificate is not one in PEM: {0}")]
    NoKey(String),
    /// They do not belong together, or are of a kind that TLS does not know.
    #[error("the certificate and its key cannot be used: {0}")]
    Unusable(rustls::Error),
}

/// Tells one content of two files from another.
type Stamp = [(i64, i64, u64, u64); 2];

/// The certificate that is shown now.
#[derive(Debug)]
pub(crate) struct Shown {
    source: Certificate,
    provider: Arc<CryptoProvider>,
    now: Mutex<(Arc<CertifiedKey>, Option<Stamp>)>,
}

impl Shown {
    /// Reads it.
    pub(crate) fn new(source: Certificate) -> Result<Self, CertificateError> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        // Before it is read: what changes meanwhile is read again.
        let stamp = stamp(&source);
        let key = Arc::new(read(&source, &provider)?);
        Ok(Self { source, provider, now: Mutex::new((key, stamp)) })
    }

    /// What a server with this certificate speaks.
    pub(crate) fn config(self: Arc<Self>) -> Result<Arc<ServerConfig>, CertificateError> {
        let config = ServerConfig::builder_with_provider(Arc::clone(&self.provider))
            .with_safe_default_protocol_versions()
            .map_err(CertificateError::Unusable)?;
        let mut config = config.with_no_client_auth().with_cert_resolver(self);
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }

    fn newest(&self) -> Arc<CertifiedKey> {
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        let seen = stamp(&self.source);
        if seen.is_some() && seen != now.1 {
            // Looked at once: a pair that is bad is not read, and told of, for every caller.
            now.1 = seen;
            match read(&self.source, &self.provider) {
                Ok(key) => {
                    now.0 = Arc::new(key);
                    tracing::info!("a new certificate is shown to callers");
                }
                Err(error) => tracing::warn!(%error, "the certificate stays as it was"),
            }
        }
        Arc::clone(&now.0)
    }
}

impl ResolvesServerCert for Shown {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.newest())
    }
}

/// `None`: there is nothing that could change, or it is not there now.
fn stamp(source: &Certificate) -> Option<Stamp> {
    let Certificate::Files { certificate, key } = source else { return None };
    let of = |path: &Path| {
        let file = fs::metadata(path).ok()?;
        Some((file.mtime(), file.mtime_nsec(), file.ino(), file.len()))
    };
    Some([of(certificate)?, of(key)?])
}

fn read(source: &Certificate, provider: &CryptoProvider) -> Result<CertifiedKey, CertificateError> {
    match source {
        Certificate::Pem { certificate, key } => pair(certificate, key, provider),
        Certificate::Files { certificate, key } => {
            let file = |path: &Path| {
                let read = fs::metadata(path).and_then(|file| match file.len() {
                    ..=BYTES => fs::read(path),
                    bytes => Err(io::Error::other(format!("it has {bytes} bytes"))),
                });
                read.map_err(|error| CertificateError::File { path: path.to_owned(), error })
            };
            pair(&file(certificate)?, &file(key)?, provider)
        }
    }
}

fn pair(certificate: &[u8], key: &[u8], provider: &CryptoProvider) -> Result<CertifiedKey, CertificateError> {
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(certificate).collect();
    let chain = chain.map_err(|error| CertificateError::NoCertificate(error.to_string()))?;
    if chain.is_empty() {
        return Err(CertificateError::NoCertificate("there is none in it".to_owned()));
    }
    let key =
        PrivateKeyDer::from_pem_slice(key).map_err(|error| CertificateError::NoKey(error.to_string()))?;
    CertifiedKey::from_der(chain, key, provider).map_err(CertificateError::Unusable)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made() -> (String, String) {
        let made = rcgen::generate_simple_self_signed(["bowline".to_owned()]).unwrap();
        (made.cert.pem(), made.signing_key.serialize_pem())
    }

    #[test]
    fn what_is_no_pair_is_refused_with_the_reason() {
        let ((certificate, key), (_, other)) = (made(), made());
        for (certificate, key, words) in [
            (&*certificate, &*other, "cannot be used"),
            ("", &*key, "there is none in it"),
            (
                "-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n",
                &*key,
                "the certificate is not one",
            ),
            (&*certificate, "", "the key of the certificate is not one"),
            (&*certificate, &*certificate, "the key of the certificate is not one"),
        ] {
            let (certificate, key) = (certificate.as_bytes().to_vec(), key.as_bytes().to_vec());
            let told = Shown::new(Certificate::Pem { certificate, key }).unwrap_err().to_string();
            assert!(told.contains(words), "{words}: {told}");
        }
    }

    #[test]
    fn files_that_change_are_read_again_and_a_bad_pair_changes_nothing() {
        let place = tempfile::tempdir().unwrap();
        let (crt, pem) = (place.path().join("tls.crt"), place.path().join("tls.key"));
        let write = |(certificate, key): &(String, String)| {
            fs::write(&crt, certificate).unwrap();
            fs::write(&pem, key).unwrap();
        };
        let (first, second, third) = (made(), made(), made());
        write(&first);
        let files = || Certificate::Files { certificate: crt.clone(), key: pem.clone() };
        let shown = Shown::new(files()).unwrap();
        let der = |pem: &str| CertificateDer::from_pem_slice(pem.as_bytes()).unwrap();
        let shows = |of: &(String, String)| shown.newest().cert[0] == der(&of.0);
        assert!(shows(&first));
        write(&second);
        assert!(shows(&second), "a new pair is shown");
        fs::write(&crt, &third.0).unwrap();
        assert!(shows(&second), "half of a new pair is no pair");
        fs::write(&crt, "nonsense").unwrap();
        assert!(shows(&second));
        fs::remove_file(&crt).unwrap();
        assert!(shows(&second));
        write(&third);
        assert!(shows(&third));
        fs::remove_file(&pem).unwrap();
        let told = Shown::new(files()).unwrap_err().to_string();
        assert!(told.contains("tls.key cannot be read"), "{told}");
    }
}
