//! The certificates of a lab.

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use std::fs;
use std::path::{Path, PathBuf};

/// Signs whoever belongs to a lab. Its files are in one directory.
pub(super) struct Authority {
    directory: PathBuf,
    issuer: Issuer<'static, KeyPair>,
}

/// The files of one certificate.
pub(super) struct Identity {
    pub(super) certificate: PathBuf,
    pub(super) key: PathBuf,
}

impl Authority {
    /// A new authority, whose own certificate is `ca.crt`.
    pub(super) fn new(directory: &Path) -> Self {
        fs::create_dir_all(directory).unwrap();
        let mut params = CertificateParams::new([]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        params.distinguished_name.push(DnType::CommonName, "lab");
        let key = KeyPair::generate().unwrap();
        fs::write(directory.join("ca.crt"), params.self_signed(&key).unwrap().pem()).unwrap();
        fs::write(directory.join("ca.key"), key.serialize_pem()).unwrap();
        Self { directory: directory.to_owned(), issuer: Issuer::new(params, key) }
    }

    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// A certificate that serves under these names and shows who it is to others: the user is the common name, the group the
    /// organization.
    pub(super) fn issue(&self, file: &str, user: &str, group: Option<&str>, names: &[String]) -> Identity {
        let mut params = CertificateParams::new(names).unwrap();
        params.distinguished_name.push(DnType::CommonName, user);
        if let Some(group) = group {
            params.distinguished_name.push(DnType::OrganizationName, group);
        }
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate().unwrap();
        let identity = Identity {
            certificate: self.file(&format!("{file}.crt")),
            key: self.file(&format!("{file}.key")),
        };
        fs::write(&identity.certificate, params.signed_by(&key, &self.issuer).unwrap().pem()).unwrap();
        fs::write(&identity.key, key.serialize_pem()).unwrap();
        identity
    }

    /// A pair of keys that signs tokens: `NAME.key`, `NAME.pub`.
    pub(super) fn key_pair(&self, name: &str) -> (PathBuf, PathBuf) {
        let key = KeyPair::generate().unwrap();
        let (private, public) = (self.file(&format!("{name}.key")), self.file(&format!("{name}.pub")));
        fs::write(&private, key.serialize_pem()).unwrap();
        fs::write(&public, key.public_key_pem()).unwrap();
        (private, public)
    }
}
