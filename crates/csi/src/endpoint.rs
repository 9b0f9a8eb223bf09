//! Where the socket is.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// The path of a unix socket, written `unix:///run/csi.sock` or as a plain path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint(PathBuf);

/// Why a text is not an endpoint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    /// Nothing was given.
    #[error("the endpoint is empty")]
    Empty,
    /// A scheme other than `unix`.
    #[error("the endpoint {0:?} is no unix socket; write unix:///run/csi.sock or a plain path")]
    Scheme(String),
    /// `unix://` without an absolute path: what follows would be the name of a host.
    #[error("the endpoint {0:?} has no absolute path; write unix:///run/csi.sock, with three slashes")]
    Relative(String),
    /// Longer than the address of a unix socket can be.
    #[error("the path of the socket has {bytes} bytes; Linux allows at most {max}")]
    TooLong {
        /// How many bytes it has.
        bytes: usize,
        /// How many it may have.
        max: usize,
    },
    /// A NUL, or nothing that names a file.
    #[error("the endpoint {0:?} does not name a file")]
    NoFile(String),
}

/// `sun_path` has 108 bytes with the closing NUL.
const SOCKET_BYTES: usize = 107;

impl Endpoint {
    /// The path of the socket.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Self, EndpointError> {
        if text.is_empty() {
            return Err(EndpointError::Empty);
        }
        let path = match text.strip_prefix("unix://").or_else(|| text.strip_prefix("unix:")) {
            Some(path) if path.starts_with('/') => path,
            Some(_) => return Err(EndpointError::Relative(text.to_owned())),
            None if text.contains("://") => return Err(EndpointError::Scheme(text.to_owned())),
            None => text,
        };
        if path.contains('\0') || path.ends_with('/') || Path::new(path).file_name().is_none() {
            return Err(EndpointError::NoFile(text.to_owned()));
        }
        if path.len() > SOCKET_BYTES {
            return Err(EndpointError::TooLong { bytes: path.len(), max: SOCKET_BYTES });
        }
        Ok(Self(PathBuf::from(path)))
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unix://{}", self.0.display())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_a_url_or_a_path() {
        for (text, path) in [
            ("unix:///run/csi.sock", "/run/csi.sock"),
            ("unix:/run/csi.sock", "/run/csi.sock"),
            ("/run/csi.sock", "/run/csi.sock"),
            ("csi.sock", "csi.sock"),
        ] {
            assert_eq!(text.parse::<Endpoint>().unwrap().path(), Path::new(path));
        }
        let long = format!("/{}", "x".repeat(107));
        for (text, why) in [
            ("", EndpointError::Empty),
            ("tcp://1.2.3.4:5", EndpointError::Scheme("tcp://1.2.3.4:5".to_owned())),
            ("unix://csi.sock", EndpointError::Relative("unix://csi.sock".to_owned())),
            ("unix:@abstract", EndpointError::Relative("unix:@abstract".to_owned())),
            ("/run/", EndpointError::NoFile("/run/".to_owned())),
            ("/run/..", EndpointError::NoFile("/run/..".to_owned())),
            ("/a\0b", EndpointError::NoFile("/a\0b".to_owned())),
            (&long, EndpointError::TooLong { bytes: 108, max: 107 }),
        ] {
            assert_eq!(text.parse::<Endpoint>(), Err(why));
        }
    }
}
