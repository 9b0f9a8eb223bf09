//! The device as it is in the rack: behind SSH.

use russh::keys::ssh_key::LineEnding;
use russh::keys::ssh_key::private::RsaKeypair;
use russh::keys::{Algorithm, HashAlg, PrivateKey, PublicKey, key::safe_rng};
use russh::server::{self, Auth, ChannelOpenHandle, Msg, Session, VerifiedPublicKey};
use russh::{Channel, ChannelId, ChannelOpenFailure, MethodKind, MethodSet};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use super::wire::{Line, Meter, Wire};
use super::{Printed, RouterOs, Way};

/// Who may log in.
#[derive(Clone, Debug, Default)]
pub struct Login {
    /// The name.
    pub user: String,
    /// With this password.
    pub password: Option<String>,
    /// With one of these keys: lines as in `id_ed25519.pub`.
    pub keys: Vec<String>,
}

/// A key for people or devices, as OpenSSH writes it.
#[derive(Clone)]
pub struct KeyPair {
    /// The private half, as in `id_ed25519`.
    pub private: String,
    /// The public half, as in `id_ed25519.pub`.
    pub public: String,
}

impl KeyPair {
    /// A new one, Ed25519.
    pub fn new() -> Self {
        Self::of(&PrivateKey::random(&mut safe_rng(), Algorithm::Ed25519).unwrap())
    }

    /// A new one, RSA: that of a RouterOS device which nobody has told otherwise.
    pub fn rsa() -> Self {
        Self::of(&RsaKeypair::random(&mut safe_rng(), 2048).unwrap().into())
    }

    fn of(key: &PrivateKey) -> Self {
        let (private, public) =
            (key.to_openssh(LineEnding::LF).unwrap(), key.public_key().to_openssh().unwrap());
        Self { private: private.to_string(), public }
    }

    /// What people compare: `SHA256:…`.
    pub fn fingerprint(&self) -> String {
        PublicKey::from_openssh(&self.public).unwrap().fingerprint(HashAlg::Sha256).to_string()
    }
}

impl Default for KeyPair {
    fn default() -> Self {
        Self::new()
    }
}

/// When the connection breaks that a command came by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Breaks {
    /// Before it is carried out; it never will be.
    Before,
    /// After it was carried out, before the answer.
    After,
}

/// What becomes of the connections of a device that is switched off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sessions {
    /// They are closed, and clients notice.
    Closed,
    /// They stay, as far as clients can tell, and nothing comes any more.
    Silent,
}

/// SSH in front of a device. It ends with this value.
pub struct SshServer {
    shared: Arc<Shared>,
    address: SocketAddr,
    accepting: JoinHandle<()>,
}

struct Shared {
    device: RouterOs,
    login: Login,
    host_key: Mutex<KeyPair>,
    meter: Arc<Mutex<Meter>>,
    lines: Mutex<Vec<Weak<Line>>>,
    desk: Mutex<Desk>,
}

/// What the device counts.
#[derive(Default)]
struct Desk {
    is_off: bool,
    connections: usize,
    sessions: usize,
    most_sessions: usize,
    commands: usize,
    breaks: BTreeMap<usize, Breaks>,
}

impl SshServer {
    /// Serves on a free port of this machine, with a host key of its own.
    ///
    /// # Panics
    /// If it has none.
    pub async fn start(device: RouterOs, login: Login) -> Self {
        Self::start_at(device, login, SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap()
    }

    /// The same, where others can reach it.
    pub async fn start_at(device: RouterOs, login: Login, address: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            device,
            login,
            host_key: Mutex::new(KeyPair::new()),
            meter: Arc::default(),
            lines: Mutex::default(),
            desk: Mutex::default(),
        });
        let accepting = tokio::spawn(accept(listener, Arc::clone(&shared)));
        Ok(Self { shared, address, accepting })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The host key that it shows.
    pub fn host_key(&self) -> KeyPair {
        self.shared.host_key.lock().unwrap().clone()
    }

    /// Shows another host key from now on.
    pub fn set_host_key(&self, key: KeyPair) {
        *self.shared.host_key.lock().unwrap() = key;
    }

    /// A connection without a network: with it, a test can have a clock of its own.
    pub fn dial(&self) -> io::Result<DuplexStream> {
        if self.shared.desk.lock().unwrap().is_off {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        let (client, device) = tokio::io::duplex(64 << 10);
        self.shared.serve(device);
        Ok(client)
    }

    /// How many bytes went one way so far, over all connections.
    pub fn carried(&self, way: Way) -> u64 {
        self.shared.meter.lock().unwrap().carried(way)
    }

    /// Cuts the connection that carries the byte after the next `bytes` one way, in both ways, and no other.
    pub fn cut_after(&self, way: Way, bytes: u64) {
        self.shared.meter.lock().unwrap().cut_after(way, bytes);
    }

    /// Cuts nothing any more.
    pub fn mend(&self) {
        self.shared.meter.lock().unwrap().mend();
    }

    /// Breaks the connection at a command, counted from the next one, which is 0.
    pub fn break_at(&self, command: usize, breaks: Breaks) {
        let mut desk = self.shared.desk.lock().unwrap();
        let at = desk.commands + command;
        desk.breaks.insert(at, breaks);
    }

    /// Switches the device off: what is under way is lost, and nobody can connect.
    pub fn switch_off(&self, sessions: Sessions) {
        self.shared.desk.lock().unwrap().is_off = true;
        self.shared.device.reboot();
        for line in self.shared.lines.lock().unwrap().drain(..).filter_map(|line| line.upgrade()) {
            match sessions {
                Sessions::Closed => line.cut(),
                Sessions::Silent => line.fall_silent(),
            }
        }
    }

    /// Switches it on again.
    pub fn switch_on(&self) {
        self.shared.desk.lock().unwrap().is_off = false;
    }

    /// How many connections there ever were.
    pub fn connections(&self) -> usize {
        self.shared.desk.lock().unwrap().connections
    }

    /// How many sessions were open at once, at most.
    pub fn most_sessions(&self) -> usize {
        self.shared.desk.lock().unwrap().most_sessions
    }

    /// How many sessions are open.
    pub fn sessions(&self) -> usize {
        self.shared.desk.lock().unwrap().sessions
    }
}

impl Drop for SshServer {
    fn drop(&mut self) {
        self.accepting.abort();
        self.shared.lines.lock().unwrap().iter().filter_map(Weak::upgrade).for_each(|line| line.cut());
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        if !shared.desk.lock().unwrap().is_off {
            let _ = stream.set_nodelay(true);
            shared.serve(stream);
        }
    }
}

impl Shared {
    fn serve(self: &Arc<Self>, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
        self.desk.lock().unwrap().connections += 1;
        let line = Arc::new(Line::new(Arc::clone(&self.meter)));
        self.lines.lock().unwrap().push(Arc::downgrade(&line));
        let key = PrivateKey::from_openssh(self.host_key.lock().unwrap().private.as_bytes()).unwrap();
        let config = Arc::new(server::Config {
            keys: vec![key],
            methods: MethodSet::from([MethodKind::PublicKey, MethodKind::Password].as_slice()),
            auth_rejection_time: Duration::ZERO,
            inactivity_timeout: None,
            nodelay: true,
            ..server::Config::default()
        });
        let guest =
            Guest { shared: Arc::clone(self), line: Arc::clone(&line), open: Arc::new(Mutex::default()) };
        let handshake = self.device.firmware().latency.handshake;
        tokio::spawn(async move {
            tokio::time::sleep(handshake).await;
            if let Ok(session) = server::run_stream(config, Wire { stream, line }, guest.clone()).await {
                let _ = session.await;
            }
            let left: Vec<ChannelId> = guest.open.lock().unwrap().iter().copied().collect();
            left.into_iter().for_each(|channel| guest.leave(channel));
        });
    }

    /// Carries a command out, or breaks the connection that it came by.
    async fn carry_out(&self, command: &str, line: &Line) -> Option<Printed> {
        let breaks = {
            let mut desk = self.desk.lock().unwrap();
            let number = desk.commands;
            desk.commands += 1;
            desk.breaks.remove(&number)
        };
        if breaks == Some(Breaks::Before) {
            line.cut();
            return None;
        }
        let printed = self.device.carry_out(command).await;
        if breaks == Some(Breaks::After) {
            line.cut();
            return None;
        }
        printed
    }
}

/// One connection, and the sessions that are open in it.
#[derive(Clone)]
struct Guest {
    shared: Arc<Shared>,
    line: Arc<Line>,
    open: Arc<Mutex<BTreeSet<ChannelId>>>,
}

impl Guest {
    fn verdict(&self, user: &str, fits: bool) -> Auth {
        if user == self.shared.login.user && fits { Auth::Accept } else { Auth::reject() }
    }

    fn enter(&self, channel: ChannelId) -> bool {
        let limit = self.shared.device.firmware().sessions;
        let mut desk = self.shared.desk.lock().unwrap();
        if desk.sessions >= limit {
            return false;
        }
        desk.sessions += 1;
        desk.most_sessions = desk.most_sessions.max(desk.sessions);
        self.open.lock().unwrap().insert(channel)
    }

    /// Either side may close a session, and the library tells only of the client.
    fn leave(&self, channel: ChannelId) {
        if self.open.lock().unwrap().remove(&channel) {
            self.shared.desk.lock().unwrap().sessions -= 1;
        }
    }

    async fn answer(&self, command: &str, channel: ChannelId, client: &server::Handle) {
        let Some(printed) = self.shared.carry_out(command, &self.line).await else { return };
        // If nobody listens any more, there is nobody to tell.
        if !printed.out.is_empty() {
            let _ = client.data(channel, printed.out.into_bytes()).await;
        }
        if !printed.err.is_empty() {
            let _ = client.extended_data(channel, 1, printed.err.into_bytes()).await;
        }
        if let Some(status) = printed.status {
            let _ = client.exit_status_request(channel, status).await;
        }
        let _ = client.eof(channel).await;
        self.leave(channel);
        let _ = client.close(channel).await;
    }
}

impl server::Handler for Guest {
    type Error = russh::Error;

    async fn auth_password(&mut self, user: &str, password: &str) -> Result<Auth, Self::Error> {
        Ok(self.verdict(user, self.shared.login.password.as_deref() == Some(password)))
    }

    async fn auth_publickey(&mut self, user: &str, key: VerifiedPublicKey<'_>) -> Result<Auth, Self::Error> {
        let mut keys = self.shared.login.keys.iter().map(|line| PublicKey::from_openssh(line).unwrap());
        let fits = keys.any(|known| known.key_data() == key.public_key.key_data());
        Ok(self.verdict(user, fits))
    }

    async fn channel_open_session(
        &mut self,
        channel: Channel<Msg>,
        reply: ChannelOpenHandle,
        _: &mut Session,
    ) -> Result<(), Self::Error> {
        if self.enter(channel.id()) {
            reply.accept().await;
        } else {
            reply.reject(ChannelOpenFailure::ResourceShortage).await;
        }
        Ok(())
    }

    async fn channel_close(&mut self, channel: ChannelId, _: &mut Session) -> Result<(), Self::Error> {
        self.leave(channel);
        Ok(())
    }

    async fn exec_request(
        &mut self,
        channel: ChannelId,
        data: &[u8],
        session: &mut Session,
    ) -> Result<(), Self::Error> {
        session.channel_success(channel)?;
        let (guest, client) = (self.clone(), session.handle());
        let command = String::from_utf8_lossy(data).into_owned();
        tokio::spawn(async move { guest.answer(&command, channel, &client).await });
        Ok(())
    }

    async fn shell_request(&mut self, channel: ChannelId, session: &mut Session) -> Result<(), Self::Error> {
        session.channel_failure(channel)
    }
}
