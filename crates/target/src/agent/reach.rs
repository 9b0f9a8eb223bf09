//! The way to an agent: a connection that is made again when it is lost, and not too often.

use hyper_util::rt::TokioIo;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::Instant;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;
use tonic::transport::{Channel, Endpoint, Uri};

use super::client::{ClientSettings, no_answer};
use super::serve::Io;
use super::tls::TlsFiles;
use super::{AGENT_NAME, PING};

/// Where an agent is.
#[derive(Clone, Debug)]
pub enum Place {
    /// A unix socket on this machine.
    Unix(PathBuf),
    /// An address, `host:port`; both sides show certificates.
    Tls {
        /// The address.
        address: String,
        /// What to show, and whom to trust.
        files: TlsFiles,
    },
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix://{}", path.display()),
            Self::Tls { address, .. } => f.write_str(address),
        }
    }
}

/// When to try again to connect.
#[derive(Debug, Default)]
struct Tries {
    failures: u32,
    not_before: Option<Instant>,
    error: String,
}

/// A connection that comes about when it is first needed, and again whenever it is lost.
pub(crate) fn channel(place: Place, settings: &ClientSettings) -> Channel {
    let (settings, tries) = (settings.clone(), Arc::new(Mutex::new(Tries::default())));
    let connector = tower::service_fn(move |_: Uri| {
        let (place, settings, tries) = (place.clone(), settings.clone(), Arc::clone(&tries));
        async move {
            let connected = reach(&place, &settings, &tries).await;
            connected.map(TokioIo::new).map_err(std::io::Error::other)
        }
    });
    Endpoint::from_static("http://agent.bowline.storage")
        .http2_keep_alive_interval(PING)
        .keep_alive_timeout(PING)
        .keep_alive_while_idle(true)
        .connect_with_connector_lazy(connector)
}

/// Connects, or says at once why not while it is too early to try again.
async fn reach(
    place: &Place,
    settings: &ClientSettings,
    tries: &Mutex<Tries>,
) -> Result<Box<dyn Io>, String> {
    let lock = || tries.lock().unwrap_or_else(PoisonError::into_inner);
    {
        let tries = lock();
        if tries.not_before.is_some_and(|moment| Instant::now() < moment) {
            return Err(tries.error.clone());
        }
    }
    let opened = tokio::time::timeout(settings.connect, open(place)).await;
    let opened = opened.unwrap_or_else(|_| Err(no_answer(settings.connect)));
    let mut tries = lock();
    match opened {
        Ok(stream) => {
            *tries = Tries::default();
            Ok(stream)
        }
        Err(error) => {
            let pause = settings.first_pause.saturating_mul(1 << tries.failures.min(16));
            let not_before = Some(Instant::now() + pause.min(settings.longest_pause));
            *tries = Tries { failures: tries.failures + 1, not_before, error: error.clone() };
            Err(error)
        }
    }
}

async fn open(place: &Place) -> Result<Box<dyn Io>, String> {
    match place {
        Place::Unix(path) => {
            let stream = UnixStream::connect(path).await.map_err(|error| error.to_string())?;
            Ok(Box::new(stream))
        }
        Place::Tls { address, files } => {
            let files = files.clone();
            let config = tokio::task::spawn_blocking(move || files.client()).await;
            let config = config.map_err(|error| error.to_string())?.map_err(|error| error.to_string())?;
            let stream = TcpStream::connect(address).await.map_err(|error| error.to_string())?;
            let _ = stream.set_nodelay(true);
            let name = ServerName::try_from(AGENT_NAME).map_err(|error| error.to_string())?;
            let stream = TlsConnector::from(config).connect(name, stream).await;
            Ok(Box::new(stream.map_err(|error| error.to_string())?))
        }
    }
}
