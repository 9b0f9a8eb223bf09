//! Making the socket, and removing it again.

use crate::endpoint::Endpoint;
use std::fs::{DirBuilder, Metadata, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use tokio::net::{UnixListener, UnixStream};

/// Why the socket cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Somebody answers there.
    #[error("{} is in use: another process answers on it", .0.display())]
    Live(PathBuf),
    /// There is something there that is no socket.
    #[error("{} exists and is not a socket; it is left alone", .0.display())]
    NotASocket(PathBuf),
    /// The filesystem refused.
    #[error("cannot {deed} {}: {error}", path.display())]
    Io {
        /// What was tried.
        deed: &'static str,
        /// With what.
        path: PathBuf,
        /// What was the matter.
        error: io::Error,
    },
}

fn io_error(deed: &'static str, path: &Path) -> impl FnOnce(io::Error) -> BindError {
    move |error| BindError::Io { deed, path: path.to_owned(), error }
}

/// A socket of ours in the filesystem; removed when dropped, unless somebody else's has taken its place.
#[derive(Debug)]
pub struct OwnedSocket {
    path: PathBuf,
    identity: (u64, u64),
}

fn identity(metadata: &Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

impl OwnedSocket {
    /// Listens at `endpoint`. Mode 0600 from the first moment on: the socket is made in a directory that only we can
    /// enter and then linked to its place, which also fails if somebody else was faster.
    pub async fn bind(endpoint: &Endpoint) -> Result<(UnixListener, Self), BindError> {
        let path = endpoint.path();
        let nursery = Nursery::new(path)?;
        // The kubelet takes every socket below its directory of plugins for a plugin, unless its name begins with a dot.
        let made = nursery.0.join(".s");
        let listener = UnixListener::bind(&made).map_err(io_error("make the socket", &made))?;
        std::fs::set_permissions(&made, Permissions::from_mode(0o600))
            .map_err(io_error("set the mode of", &made))?;
        loop {
            match std::fs::hard_link(&made, path) {
                Ok(()) => break,
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => remove_stale(path).await?,
                Err(error) => return Err(io_error("make the socket", path)(error)),
            }
        }
        let metadata = std::fs::symlink_metadata(path).map_err(io_error("look at", path))?;
        Ok((listener, Self { path: path.to_owned(), identity: identity(&metadata) }))
    }
}

impl Drop for OwnedSocket {
    fn drop(&mut self) {
        let is_ours =
            std::fs::symlink_metadata(&self.path).is_ok_and(|metadata| identity(&metadata) == self.identity);
        if is_ours && let Err(error) = std::fs::remove_file(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "the socket stays behind");
        }
    }
}

/// Removes what a process that is gone left at `path`; refuses if anything else is there.
async fn remove_stale(path: &Path) -> Result<(), BindError> {
    let metadata = match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        found => found.map_err(io_error("look at", path))?,
    };
    if !metadata.file_type().is_socket() {
        return Err(BindError::NotASocket(path.to_owned()));
    }
    match UnixStream::connect(path).await {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            tracing::info!(path = %path.display(), "removing a socket that nobody answers on");
            match std::fs::remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    Err(io_error("remove the stale socket", path)(error))
                }
                _ => Ok(()),
            }
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        // Its queue is full, so there is a process that should be taking from it.
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(BindError::Live(path.to_owned())),
        Err(error) => Err(io_error("connect to", path)(error)),
        Ok(_) => Err(BindError::Live(path.to_owned())),
    }
}

/// A directory beside the socket's place that nobody else can enter; gone when dropped.
struct Nursery(PathBuf);

impl Nursery {
    fn new(beside: &Path) -> Result<Self, BindError> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        // Short: the whole path has to fit into the address of a socket.
        let name = format!(".{:x}.{:x}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = beside.with_file_name(name);
        // Left by a process that had our number and was killed here.
        let _ = std::fs::remove_dir_all(&path);
        DirBuilder::new().mode(0o700).create(&path).map_err(io_error("make the directory", &path))?;
        Ok(Self(path))
    }
}

impl Drop for Nursery {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
