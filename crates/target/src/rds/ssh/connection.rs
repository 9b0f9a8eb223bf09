//! One connection to the device, and a session in it for every command.

use russh::client::{self, AuthResult, DisconnectReason};
use russh::keys::PublicKeyOrCertificate;
use russh::{Channel, ChannelMsg, ChannelOpenFailure};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::login::{HOST_KEY_SETTING, HostKey, Secret, signer};
use super::{Io, SshSettings};
use crate::rds::Said;

/// Why there is no connection, or no longer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    /// Nobody answers there, or not in time, or not in SSH.
    #[error("the device at {place} cannot be reached: {error}")]
    Unreachable {
        /// Where.
        place: String,
        /// What was seen.
        error: String,
    },
    /// No host key is pinned.
    #[error(
        "the device at {place} shows the host key {shown}, and none is pinned; compare it with the device's own, and set {HOST_KEY_SETTING} \
         to it"
    )]
    HostKeyUnknown {
        /// Where.
        place: String,
        /// Its fingerprint.
        shown: HostKey,
    },
    /// It shows another host key than the pinned one.
    #[error(
        "the device at {place} shows the host key {shown}, and {HOST_KEY_SETTING} is {pinned}: it is another device, or it has a new key, \
         or somebody is in between"
    )]
    HostKeyDiffers {
        /// Where.
        place: String,
        /// Its fingerprint.
        shown: HostKey,
        /// The fingerprint it should have.
        pinned: HostKey,
    },
    /// The password or the key cannot be used.
    #[error("{error}")]
    Credentials {
        /// Which file, and why.
        error: String,
    },
    /// It knows no such user, password or key.
    #[error("the device at {place} refused the login of {user} with {with}")]
    Login {
        /// Where.
        place: String,
        /// Who.
        user: String,
        /// Which file.
        with: String,
    },
    /// There was a connection, and it is gone.
    #[error("the connection to the device at {place} was lost: {error}")]
    Lost {
        /// Where.
        place: String,
        /// What was seen.
        error: String,
    },
    /// A command was not answered in time.
    #[error("the device at {place} did not answer within {seconds} s")]
    Silent {
        /// Where.
        place: String,
        /// How long it was waited for.
        seconds: u64,
    },
}

/// A connection that somebody is logged in to.
pub(super) struct Connection {
    handle: client::Handle<Pinned>,
    /// Whether no new command is sent over it.
    is_retired: AtomicBool,
    is_counted: AtomicBool,
    ended: Arc<Mutex<Option<String>>>,
}

/// Why a session was not opened. Nothing was sent.
pub(super) enum Unopened {
    Refused(ChannelOpenFailure),
    Lost,
    /// Whoever asked has gone away.
    Unwanted,
}

/// Why a session has no answer.
pub(super) enum Unfinished {
    /// The connection is gone.
    Lost,
    /// The session is over.
    Ended(String),
    /// It is not.
    Open(String),
}

impl Connection {
    /// Connects and logs in.
    pub(super) async fn open(
        stream: Box<dyn Io>,
        settings: &SshSettings,
        secret: Secret,
        place: &str,
    ) -> Result<Self, LinkError> {
        let ended = Arc::new(Mutex::new(None));
        let pinned =
            Pinned { place: place.to_owned(), host_key: settings.host_key, ended: Arc::clone(&ended) };
        let config = client::Config {
            keepalive_interval: Some(settings.keep_alive),
            keepalive_max: settings.keep_alive_misses,
            nodelay: true,
            ..client::Config::default()
        };
        let handle = client::connect_stream(Arc::new(config), stream, pinned).await;
        let handle = handle.map_err(|trouble| trouble.told(place))?;
        let mut connection = Self { handle, is_retired: false.into(), is_counted: false.into(), ended };
        connection.log_in(settings, secret, place).await?;
        Ok(connection)
    }

    async fn log_in(&mut self, settings: &SshSettings, secret: Secret, place: &str) -> Result<(), LinkError> {
        let failed = |error: russh::Error| Trouble::Ssh(error).told(place);
        let user = settings.user.as_str();
        let result = match secret {
            Secret::Password(password) => self.handle.authenticate_password(user, password).await,
            Secret::Key(key) => {
                let hash = match key.algorithm() {
                    russh::keys::Algorithm::Rsa { .. } => {
                        let best = self.handle.best_supported_rsa_hash().await.map_err(failed)?;
                        best.unwrap_or(Some(russh::keys::HashAlg::Sha256))
                    }
                    _ => None,
                };
                self.handle.authenticate_publickey(user, signer(key, hash)).await
            }
        };
        match result.map_err(failed)? {
            AuthResult::Success => Ok(()),
            // It says the same of a login that was refused, and of a connection that is gone.
            AuthResult::Failure { .. } if self.handle.is_closed() => {
                Err(LinkError::Unreachable { place: place.to_owned(), error: self.why() })
            }
            AuthResult::Failure { .. } => Err(LinkError::Login {
                place: place.to_owned(),
                user: settings.user.clone(),
                with: settings.credentials.to_string(),
            }),
        }
    }

    /// Whether commands can be sent over it, as far as is known.
    pub(super) fn is_good(&self) -> bool {
        !self.handle.is_closed() && !self.is_retired.load(Ordering::SeqCst)
    }

    /// Sends no further command over it; those under way may end.
    pub(super) fn retire(&self) {
        self.is_retired.store(true, Ordering::SeqCst);
    }

    /// Whether its end was not counted yet as a failure: many commands may be lost with one connection.
    pub(super) fn counts(&self) -> bool {
        !self.is_counted.swap(true, Ordering::SeqCst)
    }

    /// Why it ended, as far as is known.
    pub(super) fn why(&self) -> String {
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        ended.clone().unwrap_or_else(|| "it was closed".to_owned())
    }

    /// Opens a session, and hands the command over to be sent. Whatever happens before it is handed over means that nothing was
    /// sent; once it was handed over, nobody knows.
    pub(super) async fn send(
        &self,
        command: &str,
        is_wanted: impl Fn() -> bool,
    ) -> Result<Channel<client::Msg>, Unopened> {
        let channel = self.handle.channel_open_session().await.map_err(|error| match error {
            russh::Error::ChannelOpenFailure(reason) => Unopened::Refused(reason),
            _ => Unopened::Lost,
        })?;
        if !is_wanted() {
            let _ = channel.close().await;
            return Err(Unopened::Unwanted);
        }
        match channel.exec(true, command).await {
            Ok(()) => Ok(channel),
            Err(_) => Err(Unopened::Lost),
        }
    }
}

/// Everything that the device says to one command, at most so many bytes.
pub(super) async fn collect(channel: &mut Channel<client::Msg>, limit: usize) -> Result<Said, Unfinished> {
    let (mut out, mut err, mut status, mut is_whole) = (Vec::new(), Vec::new(), None, false);
    loop {
        match channel.wait().await {
            Some(ChannelMsg::Data { data }) => out.extend_from_slice(&data),
            Some(ChannelMsg::ExtendedData { data, .. }) => err.extend_from_slice(&data),
            Some(ChannelMsg::ExitStatus { exit_status }) => status = Some(exit_status),
            Some(ChannelMsg::ExitSignal { signal_name, .. }) => {
                let error = format!("the command was ended by the signal {signal_name:?}");
                return Err(Unfinished::Open(error));
            }
            Some(ChannelMsg::Failure) => {
                let _ = channel.close().await;
                return Err(Unfinished::Ended("the device refused to start the command".to_owned()));
            }
            Some(ChannelMsg::Eof) => is_whole = true,
            Some(ChannelMsg::Close) if is_whole || status.is_some() => break,
            Some(ChannelMsg::Close) => {
                let error = "the session was closed before the command ended".to_owned();
                return Err(Unfinished::Ended(error));
            }
            Some(_) => {}
            // The connection is gone; but the answer was complete.
            None if is_whole && status.is_some() => break,
            None => return Err(Unfinished::Lost),
        }
        if out.len() + err.len() > limit {
            return Err(Unfinished::Open(format!("the command printed more than {limit} bytes")));
        }
    }
    out.append(&mut err);
    Ok(Said { text: String::from_utf8_lossy(&out).into_owned(), status })
}

/// What ends a connection.
#[derive(Debug)]
pub(super) enum Trouble {
    HostKey(LinkError),
    Ssh(russh::Error),
}

impl From<russh::Error> for Trouble {
    fn from(error: russh::Error) -> Self {
        Self::Ssh(error)
    }
}

impl Trouble {
    fn told(self, place: &str) -> LinkError {
        match self {
            Self::HostKey(error) => error,
            Self::Ssh(error) => LinkError::Unreachable { place: place.to_owned(), error: seen(&error) },
        }
    }
}

fn seen(error: &russh::Error) -> String {
    match error {
        russh::Error::HUP | russh::Error::Disconnect => "the connection was closed".to_owned(),
        russh::Error::IO(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            "the connection was closed".to_owned()
        }
        russh::Error::KeepaliveTimeout => "nothing was heard of it any more".to_owned(),
        error => error.to_string(),
    }
}

/// Lets the connection come about only with the device whose host key is pinned.
pub(super) struct Pinned {
    place: String,
    host_key: Option<HostKey>,
    ended: Arc<Mutex<Option<String>>>,
}

impl client::Handler for Pinned {
    type Error = Trouble;

    async fn check_server_key(&mut self, key: &PublicKeyOrCertificate) -> Result<bool, Trouble> {
        let Some(shown) = HostKey::of(&key.public_key()) else { return Ok(false) };
        let place = self.place.clone();
        match self.host_key {
            Some(pinned) if pinned == shown => Ok(true),
            Some(pinned) => Err(Trouble::HostKey(LinkError::HostKeyDiffers { place, shown, pinned })),
            None => Err(Trouble::HostKey(LinkError::HostKeyUnknown { place, shown })),
        }
    }

    async fn disconnected(&mut self, reason: DisconnectReason<Trouble>) -> Result<(), Trouble> {
        let told = match reason {
            DisconnectReason::ReceivedDisconnect(told) => format!("the device ended it: {}", told.message),
            DisconnectReason::Error(Trouble::HostKey(error)) => error.to_string(),
            DisconnectReason::Error(Trouble::Ssh(error)) => seen(&error),
        };
        *self.ended.lock().unwrap_or_else(PoisonError::into_inner) = Some(told);
        Ok(())
    }
}
