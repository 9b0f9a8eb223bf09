//! Who the device is, and who logs in.

use russh::keys::ssh_key::Fingerprint;
use russh::keys::{HashAlg, PrivateKey, PrivateKeyWithHashAlg, PublicKey, decode_secret_key};
use std::fmt;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

/// What the setting is called that pins a host key, in messages.
pub const HOST_KEY_SETTING: &str = "hostKey (host-key in bowline.toml)";

/// No password and no key is longer.
const SECRET_BYTES: u64 = 64 << 10;

/// The host key that a device must show, by the SHA-256 of it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct HostKey([u8; 32]);

/// A text that names no host key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a host key is written as its fingerprint (SHA256:…) or as the line of the public key (ssh-ed25519 …)"
)]
pub struct NoHostKey;

impl HostKey {
    pub(super) fn of(key: &PublicKey) -> Option<Self> {
        key.fingerprint(HashAlg::Sha256).sha256().map(Self)
    }
}

impl FromStr for HostKey {
    type Err = NoHostKey;

    fn from_str(text: &str) -> Result<Self, NoHostKey> {
        let text = text.trim();
        match text.parse() {
            Ok(Fingerprint::Sha256(bytes)) => Ok(Self(bytes)),
            _ => PublicKey::from_openssh(text).ok().as_ref().and_then(Self::of).ok_or(NoHostKey),
        }
    }
}

impl fmt::Display for HostKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Fingerprint::Sha256(self.0).fmt(f)
    }
}

impl fmt::Debug for HostKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostKey({self})")
    }
}

/// How to log in. The file is read for every connection, so that a new one counts without a restart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Credentials {
    /// The password is in this file.
    Password(PathBuf),
    /// The private key is in this file, not encrypted.
    Key(PathBuf),
}

impl fmt::Display for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Password(path) => write!(f, "the password in {}", path.display()),
            Self::Key(path) => write!(f, "the key in {}", path.display()),
        }
    }
}

/// What was in the file. It cannot be printed.
pub(super) enum Secret {
    Password(String),
    Key(Arc<PrivateKey>),
}

impl Credentials {
    /// Reads the file. What goes wrong is told without anything of what is in it.
    pub(super) fn read(&self) -> Result<Secret, String> {
        match self {
            Self::Password(path) => {
                let text = text(path)?;
                let password = text.strip_suffix('\n').unwrap_or(&text);
                let password = password.strip_suffix('\r').unwrap_or(password);
                if password.is_empty() {
                    return Err(format!("{} is empty", path.display()));
                }
                Ok(Secret::Password(password.to_owned()))
            }
            Self::Key(path) => match decode_secret_key(&text(path)?, None) {
                Ok(key) => Ok(Secret::Key(Arc::new(key))),
                Err(russh::keys::Error::KeyIsEncrypted) => Err(format!(
                    "the key in {} is encrypted, and there is no password for it",
                    path.display()
                )),
                Err(_) => Err(format!("{} has no private key that can be used", path.display())),
            },
        }
    }
}

fn text(path: &Path) -> Result<String, String> {
    let failed = |error: &dyn fmt::Display| format!("{} cannot be read: {error}", path.display());
    let file = std::fs::File::open(path).map_err(|error| failed(&error))?;
    let mut text = String::new();
    match file.take(SECRET_BYTES).read_to_string(&mut text) {
        Ok(read) if (read as u64) < SECRET_BYTES => Ok(text),
        Ok(_) => Err(failed(&"it is too long")),
        Err(error) if error.kind() == std::io::ErrorKind::InvalidData => Err(failed(&"it is not text")),
        Err(error) => Err(failed(&error)),
    }
}

/// A key, and how to sign with it.
pub(super) fn signer(key: Arc<PrivateKey>, rsa_hash: Option<HashAlg>) -> PrivateKeyWithHashAlg {
    PrivateKeyWithHashAlg::new(key, rsa_hash)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str =
        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJdD7y3aLq454yWBdwLWbieU1ebz9/cu7/QEXn9OIeZJ someone@somewhere";

    #[test]
    fn a_host_key_is_a_fingerprint_or_a_public_key() {
        let key: HostKey = LINE.parse().unwrap();
        let fingerprint = key.to_string();
        assert!(fingerprint.starts_with("SHA256:"), "{fingerprint}");
        assert_eq!(format!(" {fingerprint}\n").parse(), Ok(key));
        for wrong in ["", "SHA256:", "MD5:aa:bb", "ssh-ed25519", "ssh-ed25519 AAAA", &fingerprint[7..]] {
            assert_eq!(wrong.parse::<HostKey>(), Err(NoHostKey), "{wrong}");
        }
    }

    #[test]
    fn what_goes_wrong_with_a_secret_is_told_without_the_secret() {
        let directory = tempfile::tempdir().unwrap();
        let file = |name: &str, content: &[u8]| {
            let path = directory.path().join(name);
            std::fs::write(&path, content).unwrap();
            path
        };
        let error = |credentials: Credentials| match credentials.read() {
            Ok(_) => panic!("{credentials} can be read"),
            Err(error) => error.replace(&directory.path().display().to_string(), ""),
        };
        assert_eq!(error(Credentials::Password(file("empty", b"\n"))), "/empty is empty");
        assert_eq!(
            error(Credentials::Key(file("key", b"hunter2"))),
            "/key has no private key that can be used"
        );
        assert_eq!(
            error(Credentials::Password(file("bytes", b"\xff\xfe"))),
            "/bytes cannot be read: it is not text"
        );
        assert_eq!(
            error(Credentials::Password(file("long", &vec![b'x'; 64 << 10]))),
            "/long cannot be read: it is too long"
        );
        assert!(error(Credentials::Key("/nowhere".into())).starts_with("/nowhere cannot be read: "));
        let Ok(Secret::Password(password)) = Credentials::Password(file("good", b" hunter2 \r\n")).read()
        else {
            panic!("it is a password");
        };
        assert_eq!(password, " hunter2 ", "only the end of the line is not part of it");
    }
}
