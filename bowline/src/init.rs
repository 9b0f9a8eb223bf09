//! `bowline target init`: certificates for a target and its controller.

use bowline_cluster::credentials::{AGENT, Authority, CONTROLLER, Credentials};
use jiff::Timestamp;
use std::io::Write;
use std::path::Path;

use crate::failure::Failure;

/// Makes an authority, if there is none yet, and a certificate for each side.
pub(crate) fn run(directory: &Path) -> Result<(), Failure> {
    let failed = |error: String| Failure::failed(error);
    let authority = authority(&directory.join("authority")).map_err(failed)?;
    for (place, name) in [("agent", AGENT), ("controller", CONTROLLER)] {
        let made = authority.sign(name, Timestamp::now()).map_err(|error| failed(error.to_string()))?;
        let place = directory.join(place);
        made.write(&place).map_err(|error| failed(format!("{}: {error}", place.display())))?;
    }
    let shown = directory.display();
    let told = format!(
        "{shown}/agent       for storage machines: bowline target --tls {shown}/agent\n\
         {shown}/controller  for the controller\n\
         {shown}/authority   stays here: whoever has its key can be a controller\n\
         They are good for a year. Run this again before that; new files count without a restart.\n"
    );
    std::io::stdout().write_all(told.as_bytes()).map_err(|error| failed(error.to_string()))
}

/// The authority in this directory. A key without a certificate, or the other way round, is left for people to look at.
fn authority(directory: &Path) -> Result<Authority, String> {
    let (certificate, key) = (directory.join("ca.crt"), directory.join("tls.key"));
    let read =
        |path: &Path| std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()));
    if certificate.exists() || key.exists() {
        return Ok(Authority { certificate: read(&certificate)?, key: read(&key)? });
    }
    let made = Authority::make(Timestamp::now()).map_err(|error| error.to_string())?;
    let Authority { certificate, key } = &made;
    let (authority, certificate, key) = (certificate.clone(), certificate.clone(), key.clone());
    let written = Credentials { authority, certificate, key }.write(directory);
    written.map_err(|error| format!("{}: {error}", directory.display()))?;
    Ok(made)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bowline_target::agent::TlsFiles;
    use std::os::unix::fs::PermissionsExt;
    use std::time::{Duration, SystemTime};

    #[test]
    fn again_there_are_new_certificates_under_the_same_authority() {
        let place = tempfile::tempdir().unwrap();
        let directory = place.path().join("certificates");
        let read = |name: &str| std::fs::read_to_string(directory.join(name)).unwrap();
        run(&directory).unwrap();
        let (authority, first) = (read("authority/ca.crt"), read("agent/tls.crt"));
        run(&directory).unwrap();
        assert_eq!(read("authority/ca.crt"), authority);
        assert_ne!(read("agent/tls.crt"), first);
        for side in ["agent", "controller"] {
            let files = TlsFiles::new(directory.join(side));
            files.check().unwrap();
            let now = SystemTime::now();
            let days = |at: SystemTime| at.duration_since(now).unwrap().as_secs() / 86400;
            assert!((363..=365).contains(&days(files.ends(now).unwrap())), "{side}");
            let error = files.ends(now + Duration::from_hours(366 * 24)).unwrap_err().to_string();
            assert!(error.contains("expired"), "{error}");
            assert_eq!(read(&format!("{side}/ca.crt")), authority);
            assert!(!directory.join(side).join("ca.key").exists());
        }
        let mode = std::fs::metadata(directory.join("authority/tls.key")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        std::fs::remove_file(directory.join("authority/tls.key")).unwrap();
        assert!(run(&directory).is_err(), "an authority is never replaced silently");
    }
}
