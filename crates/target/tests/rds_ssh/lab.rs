//! A device, and links to it: over TCP, or without a network and with a clock that the test turns.

use async_trait::async_trait;
use bowline_target::rds::ssh::{Credentials, Dial, Io, SshConsole, SshSettings};
use bowline_target::rds::{Console, ConsoleError, Said};
use bowline_testkit::routeros::{Firmware, KeyPair, Login, RouterOs, SshServer};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

pub(crate) const PASSWORD: &str = "correct horse battery staple";

pub(crate) struct Lab {
    pub(crate) device: RouterOs,
    pub(crate) server: Arc<SshServer>,
    pub(crate) key: KeyPair,
    /// How often somebody has dialled.
    pub(crate) dials: Arc<AtomicUsize>,
    directory: tempfile::TempDir,
}

impl Lab {
    pub(crate) async fn new(firmware: Firmware) -> Self {
        let device = RouterOs::new(firmware);
        let key = KeyPair::new();
        let login = Login {
            user: "bowline".into(),
            password: Some(PASSWORD.into()),
            keys: vec![KeyPair::new().public, key.public.clone()],
        };
        let server = Arc::new(SshServer::start(device.clone(), login).await);
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("password"), format!("{PASSWORD}\n")).unwrap();
        std::fs::write(directory.path().join("key"), &key.private).unwrap();
        Self { device, server, key, dials: Arc::default(), directory }
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// A login with the password, to the device with its own host key.
    pub(crate) fn settings(&self) -> SshSettings {
        let host_key = self.server.host_key().fingerprint().parse().unwrap();
        SshSettings::new("bowline", Credentials::Password(self.file("password")), Some(host_key))
    }

    pub(crate) fn over_tcp(&self, settings: SshSettings) -> SshConsole {
        SshConsole::new(&self.server.address().to_string(), settings)
    }

    pub(crate) fn wired(&self, settings: SshSettings) -> SshConsole {
        let wired = Wired { server: Arc::clone(&self.server), dials: Arc::clone(&self.dials) };
        SshConsole::over(Box::new(wired), settings)
    }

    pub(crate) fn dials(&self) -> usize {
        self.dials.load(Ordering::SeqCst)
    }
}

struct Wired {
    server: Arc<SshServer>,
    dials: Arc<AtomicUsize>,
}

#[async_trait]
impl Dial for Wired {
    fn place(&self) -> &str {
        "rds.example:22"
    }

    async fn dial(&self) -> io::Result<Box<dyn Io>> {
        self.dials.fetch_add(1, Ordering::SeqCst);
        Ok(Box::new(self.server.dial()?))
    }
}

/// Makes a disk of 1 GiB.
pub(crate) fn add(slot: &str) -> String {
    format!("/disk add type=file file-path=/storage-pool/{slot}.img file-size=1G slot={slot}")
}

/// What was answered to a command that must be answered.
pub(crate) async fn said(console: &SshConsole, command: &str) -> Said {
    console.run(command).await.unwrap_or_else(|error| panic!("{command}: {error:?}"))
}

pub(crate) async fn not_sent(console: &SshConsole, command: &str) -> String {
    match console.run(command).await {
        Err(ConsoleError::NotSent { error }) => error,
        other => panic!("{command}: {other:?}"),
    }
}

pub(crate) async fn unanswered(console: &SshConsole, command: &str) -> String {
    match console.run(command).await {
        Err(ConsoleError::Unanswered { error }) => error,
        other => panic!("{command}: {other:?}"),
    }
}
