//! One file per command.

mod adopt;
mod attach;
mod checkup;
pub(crate) mod doctor;
mod events;
mod machine;
mod progress;
mod snapshot;
mod store;
mod target;
mod tickets;
mod volume;

use bowline_web::wire::Volume;
use jiff::Timestamp;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::PathBuf;

use crate::agent::{TargetArgs, TargetCommand};
use crate::args::{Cli, Command, Format};
use crate::client::{Client, Way, path};
use crate::failure::Failure;
use crate::output::{self, Style};
use crate::why;
use clap::CommandFactory;

/// Where a command writes.
pub(crate) struct Console {
    /// What was asked for.
    pub(crate) out: Box<dyn Write + Send>,
    /// What is said beside it.
    pub(crate) err: Box<dyn Write + Send>,
    /// Whether there are colours.
    pub(crate) style: Style,
    /// How it is shown.
    pub(crate) format: Format,
}

impl Console {
    /// Shows a value.
    fn show(
        &mut self,
        value: &impl serde::Serialize,
        show: impl FnOnce(Style, bool) -> String,
    ) -> Result<(), Failure> {
        let style = self.style;
        output::write(&mut self.out, self.format, value, |wide| show(style, wide))
    }

    /// Says something beside the answer.
    fn note(&mut self, text: &str) {
        // What cannot be said beside the answer does not spoil it.
        let _ = writeln!(self.err, "{text}");
    }
}

/// What the volumes with these ids are called, for people: programs get the ids. One that is gone has its id only.
async fn names(client: &Client, console: &Console, ids: BTreeSet<String>) -> BTreeMap<String, String> {
    let mut names = BTreeMap::new();
    if matches!(console.format, Format::Json | Format::Yaml) {
        return names;
    }
    for id in ids {
        if let Ok(volume) = client.get::<Volume>(&path(&["v1", "volumes", &id])).await {
            names.insert(id, volume.name);
        }
    }
    names
}

/// Runs a command of a user.
pub(crate) async fn run(command: Command, way: Way, console: &mut Console) -> Result<(), Failure> {
    let data = match &way {
        Way::Local(data) => Some(data.clone()),
        Way::Cluster(_) => None,
    };
    let client = Client::new(way);
    match command {
        Command::Target(TargetArgs { command: Some(TargetCommand::List), .. }) => {
            target::list(&client, console).await
        }
        Command::Target(TargetArgs { command: Some(TargetCommand::Drain { target, off }), .. }) => {
            target::drain(&client, &target, off, console).await
        }
        Command::Up(_) | Command::Controller(_) | Command::Node(_) | Command::Target(_) | Command::Lab(_) => {
            Err(Failure::failed("this is no command of a user"))
        }
        Command::Volume(command) => volume::run(&client, command, console).await,
        Command::Attach(args) => attach::attach(&client, args, console).await,
        Command::Detach(args) => attach::detach(&client, args, console).await,
        Command::Why { volume } => {
            let answer = client.get(&path(&["v1", "volumes", &volume, "why"])).await?;
            console.show(&answer, |style, _| why::show(&answer, now(), style))
        }
        Command::Tickets { volume } => tickets::run(&client, volume, console).await,
        Command::Snapshot(command) => snapshot::run(&client, command, console).await,
        Command::Peer(command) => machine::peer(&client, command, console).await,
        Command::Events(args) => events::run(&client, args, console).await,
        Command::Doctor { orphans: true } => doctor::orphans(&client, console).await,
        Command::Doctor { orphans: false } => {
            let exported = std::env::var_os("BOWLINE_DIRECTORY").map(PathBuf::from);
            doctor::run(&client, data.as_deref(), exported.as_deref(), console).await
        }
        Command::Store(command) => match data {
            Some(data) => store::run(&data, command, console).await,
            None => Err(Failure::usage(
                "a cluster keeps its records in its API server; this is for the --data of a `bowline up`",
            )),
        },
        Command::Adopt { dry_run } => adopt::run(&client, dry_run, console).await,
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "bowline", &mut script);
            Ok(console.out.write_all(&script)?)
        }
        Command::Man { directory } => {
            let written = clap_mangen::generate_to(Cli::command(), &directory);
            written.map_err(|error| {
                Failure::failed(format!(
                    "the manual pages cannot be written to {}: {error}",
                    directory.display()
                ))
            })
        }
    }
}

/// The time on this machine: it only makes "3 h ago" of what it is told.
fn now() -> Timestamp {
    let now = std::time::SystemTime::now();
    Timestamp::try_from(now).unwrap_or(Timestamp::MAX)
}
