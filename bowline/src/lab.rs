//! `bowline lab routeros`: a simulated RouterOS device behind SSH, for people who want to try without the hardware.

use bowline_routeros::{Firmware, KeyPair, Latency, Login, POOL, RouterOs, SshServer};
use bowline_target::nvmet::{Configfs, Tree as _};
use clap::{Args, Subcommand};
use std::fs;
use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::signal::unix::{SignalKind, signal};

use crate::config::absolute_path;
use crate::failure::Failure;

/// What can be tried without the hardware.
#[derive(Clone, Debug, Subcommand)]
pub enum LabCommand {
    /// Simulates a MikroTik ROSE Data Server behind a real SSH server, until it is interrupted, and says how to use it.
    ///
    /// It was built from what others recorded of such devices, and none was at hand. What it has is gone when it ends.
    Routeros(RouterosArgs),
}

/// How the simulated device is to be.
#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:\n  \
    bowline lab routeros\n  \
    bowline lab routeros --fast --listen 127.0.0.1:2222\n  \
    bowline lab routeros --directory /srv/device --export 10.0.0.9   # real NVMe/TCP, as root")]
pub struct RouterosArgs {
    /// Where SSH listens; a free port of this machine if not given.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:0", hide_default_value = true)]
    pub listen: SocketAddr,

    /// Answer at once, and not as slowly as the recorded devices.
    #[arg(long)]
    pub fast: bool,

    /// Where its files lie and what is needed to use it; must be empty or not there. If not given, a directory that is
    /// removed at the end.
    #[arg(long, value_name = "DIR", value_parser = absolute_path)]
    pub directory: Option<PathBuf>,

    /// The file with a password for the login, beside the key that is made for it.
    #[arg(long, value_name = "FILE", value_parser = absolute_path)]
    pub password_file: Option<PathBuf>,

    /// Have the kernel of this machine export the disks over NVMe/TCP, at this address of it. Needs the modules nvmet
    /// and nvmet-tcp; if not given, exports are only told of.
    #[arg(long, value_name = "IP", requires = "directory")]
    pub export: Option<IpAddr>,
}

const USER: &str = "bowline";

/// Where everything of a device is.
struct Place {
    directory: PathBuf,
    /// Removed with this, unless somebody named it.
    _scratch: Option<tempfile::TempDir>,
}

impl Place {
    fn of(args: &RouterosArgs) -> Result<Self, Failure> {
        let Some(directory) = args.directory.clone() else {
            let scratch = tempfile::Builder::new()
                .prefix("bowline-routeros-")
                .permissions(fs::Permissions::from_mode(0o700))
                .tempdir()?;
            return Ok(Self { directory: scratch.path().to_owned(), _scratch: Some(scratch) });
        };
        let wrong = |error| Failure::failed(format!("--directory {}: {error}", directory.display()));
        fs::create_dir_all(&directory).map_err(wrong)?;
        if fs::read_dir(&directory).map_err(wrong)?.next().is_some() {
            return Err(Failure::usage(format!(
                "--directory {}: it is not empty, and a device begins with nothing",
                directory.display()
            )));
        }
        Ok(Self { directory, _scratch: None })
    }

    fn at(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Only for whoever runs this: some of it is secret.
    fn write(&self, name: &str, text: &str) -> Result<PathBuf, Failure> {
        let file = self.at(name);
        let made = fs::File::options().write(true).create_new(true).mode(0o600).open(&file);
        let written = made.and_then(|mut made| made.write_all(text.as_bytes()));
        written.map_err(|error| Failure::failed(format!("{}: {error}", file.display())))?;
        Ok(file)
    }
}

/// Runs a device until it is told to end.
pub(crate) async fn run(LabCommand::Routeros(args): LabCommand) -> Result<(), Failure> {
    // First, so that whoever ends it early leaves nothing behind either.
    let (mut interrupted, mut ended) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let password = args.password_file.as_deref().map(password).transpose()?;
    let place = Place::of(&args)?;
    let latency = if args.fast { Latency::NONE } else { Latency::RECORDED };
    let device = RouterOs::in_directory(Firmware { latency, ..Firmware::default() }, place.at("files"));
    if let Some(address) = args.export {
        let kernel = Configfs::new("/sys/kernel/config/nvmet");
        kernel.list(Path::new("subsystems")).map_err(|error| {
            Failure::failed(format!(
                "--export: this kernel exports nothing ({error}); modprobe nvmet nvmet-tcp"
            ))
        })?;
        device.export_by(Arc::new(kernel), address);
    }
    let key = KeyPair::new();
    let login = Login { user: USER.to_owned(), password, keys: vec![key.public.clone()] };
    let server = SshServer::start_at(device, login, args.listen)
        .await
        .map_err(|error| Failure::failed(format!("--listen {}: {error}", args.listen)))?;
    let told = introduce(&place, &server, &key, args.export)?;
    std::io::stdout().write_all(told.as_bytes())?;
    tokio::select! {
        _ = interrupted.recv() => {}
        _ = ended.recv() => {}
    }
    Ok(())
}

fn password(file: &Path) -> Result<String, Failure> {
    let text = fs::read_to_string(file);
    let text =
        text.map_err(|error| Failure::failed(format!("--password-file {}: {error}", file.display())))?;
    match text.trim_end_matches(['\r', '\n']) {
        "" => Err(Failure::usage(format!("--password-file {}: it is empty", file.display()))),
        password => Ok(password.to_owned()),
    }
}

/// Writes down what is needed to use the device, by hand and with `bowline up`, and says how.
fn introduce(
    place: &Place,
    server: &SshServer,
    key: &KeyPair,
    export: Option<IpAddr>,
) -> Result<String, Failure> {
    let (address, host_key) = (server.address(), server.host_key());
    let key = place.write("key", &key.private)?;
    let host = format!("[{}]:{} {}\n", address.ip(), address.port(), host_key.public);
    let known = place.write("known_hosts", &host)?;
    let exports = SocketAddr::new(export.unwrap_or(address.ip()), 4420);
    let fingerprint = host_key.fingerprint();
    let table = format!(
        "target = \"none\"\n\n[rds.box]\naddress = \"{address}\"\nuser = \"{USER}\"\nkey-file = \"{}\"\nhost-key = \"{fingerprint}\"\n\
         pool = \"{POOL}\"\ndirectory = \"/{POOL}/bowline\"\nexports = [\"{exports}\"]\ninstallation = \"lab\"\n",
        key.display()
    );
    let data = place.at("up");
    fs::DirBuilder::new().mode(0o700).create(&data)?;
    place.write("up/bowline.toml", &table)?;
    let (data, port, ip) = (data.display(), address.port(), address.ip());
    let (key, known) = (key.display(), known.display());
    let disks = match export {
        Some(_) => format!("This kernel exports its disks at {exports}."),
        None => "Its exports are only told of: no node can connect to them.".to_owned(),
    };
    Ok(format!(
        "A simulated RouterOS device listens at {address}. It was built from what others recorded of real ones, and none was at hand.\n\
         {disks}\n\n\
         host key  {fingerprint}\nuser      {USER}\nkey       {key}\n\n\
         By hand, in another terminal:\n\n  \
         alias rds='ssh -F none -p {port} -i {key} -o UserKnownHostsFile={known} {USER}@{ip}'\n  \
         rds '/disk add type=file file-path=/{POOL}/a.img file-size=1G slot=a'\n  \
         rds '/disk print detail'\n\n\
         With Bowline (docs/rds.md):\n\n  \
         bowline --data {data} up --http off --peer worker-1 --peer worker-2\n  \
         bowline --data {data} volume create db --size 1Gi\n  \
         bowline --data {data} attach db worker-1\n  \
         bowline --data {data} attach db worker-2     # refused, and says why\n\n\
         Ctrl-C ends it, and its disks are gone then.\n"
    ))
}
