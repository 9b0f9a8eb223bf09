//! Bowline's one binary: `up` runs everything on one machine, `controller`, `node` and `target` run it in a cluster; the other
//! commands ask either.
//!
//! [`args`] is what can be typed, [`config`] what a long-running process is told, [`client`] the way to it, `command` one
//! file per command. What people read is made by functions from values of [`bowline_web::wire`], so that it can be tested
//! without a process.

pub mod agent;
pub mod agents;
pub mod args;
mod beside;
pub mod client;
mod command;
pub mod config;
pub mod controller;
pub mod drains;
mod expiry;
pub mod fabric;
pub mod failure;
mod identity;
mod init;
pub mod kubelet;
pub mod lab;
pub mod log;
mod measure;
mod missing;
pub mod node;
pub mod notify;
pub mod nvme;
pub mod orphans;
pub mod output;
pub mod rds;
pub mod size;
pub mod span;
#[cfg(feature = "failpoints")]
mod steps;
mod up;
pub mod why;

use clap::parser::ValueSource;
use clap::{CommandFactory, FromArgMatches};
use std::ffi::OsString;
use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::time::Duration;

use crate::agent::{TargetArgs, TargetCommand};
use crate::args::{Cli, Command, Format};
use crate::client::{Said, Way};
use crate::command::Console;
use crate::failure::Failure;
use crate::output::Style;

/// Runs what was typed. Wrong usage ends with 2 before anything is done.
pub fn run(typed: impl IntoIterator<Item = OsString>) -> ExitCode {
    let typed: Vec<OsString> = typed.into_iter().collect();
    if let Some(done) = beside::run(&typed) {
        return done;
    }
    // A name of which `clap` knows nothing, and help, which is no error, end here.
    let parsed = Cli::command().try_get_matches_from(typed);
    let parsed = parsed.and_then(|matches| {
        let cli = Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut Cli::command()))?;
        Ok((cli, matches.value_source("data")))
    });
    let (cli, data_from) = match parsed {
        Ok(parsed) => parsed,
        Err(error) => {
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
    };
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return ended(Err(Failure::failed(format!("no threads can be started: {error}")))),
    };
    let done = runtime.block_on(dispatch(cli, data_from));
    // A thread that waits for a dead disk is not waited for: whatever it does can be cut at any point.
    runtime.shutdown_timeout(AT_THE_END);
    ended(done)
}

/// How long work that nobody waits for any more may still take when the process is about to end.
const AT_THE_END: Duration = Duration::from_secs(5);

async fn dispatch(cli: Cli, data_from: Option<ValueSource>) -> Result<(), Failure> {
    match cli.command {
        Command::Up(args) => {
            log::init();
            up::run(config::Config::load(&cli.data, &args)?)
                .await
                .map_err(|error| Failure::failed(format!("{error:#}")))
        }
        Command::Node(args) => {
            log::init();
            let (kubelet, nvme) = (args.kubelet.clone(), args.nvme.settings()?);
            let config = config::Config::load_node(&cli.data, args)?;
            Box::pin(node::run(config, kubelet, nvme))
                .await
                .map_err(|error| Failure::failed(format!("{error:#}")))
        }
        Command::Controller(args) => {
            log::init();
            args.orphans.check()?;
            let args = controller::ControllerArgs { namespace: cli.namespace, ..args };
            Box::pin(controller::run(args)).await.map_err(|error| Failure::failed(format!("{error:#}")))
        }
        Command::Target(TargetArgs { command: Some(TargetCommand::Init { directory }), .. }) => {
            init::run(&directory)
        }
        Command::Target(args) if args.command.is_none() => {
            log::init();
            let config = agent::TargetConfig::load(args)?;
            Box::pin(agent::run(config)).await.map_err(|error| Failure::failed(format!("{error:#}")))
        }
        Command::Lab(command) => lab::run(command).await,
        command => {
            let way = Way::choose(Said {
                data: cli.data,
                data_typed: data_from == Some(ValueSource::CommandLine),
                data_in_environment: data_from == Some(ValueSource::EnvVariable),
                kubeconfig: cli.kubeconfig,
                context: cli.context,
                kubeconfig_in_environment: std::env::var_os("KUBECONFIG")
                    .is_some_and(|file| !file.is_empty()),
                namespace: cli.namespace,
            })?;
            ask(command, way, cli.output).await
        }
    }
}

async fn ask(command: Command, way: Way, format: Format) -> Result<(), Failure> {
    let style = Style::detect(std::io::stdout().is_terminal(), std::env::var_os("NO_COLOR").as_deref());
    let mut console =
        Console { out: Box::new(std::io::stdout()), err: Box::new(std::io::stderr()), style, format };
    command::run(command, way, &mut console).await
}

fn ended(result: Result<(), Failure>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if !failure.message.is_empty() {
                let _ = writeln!(std::io::stderr(), "bowline: {}", failure.message);
            }
            ExitCode::from(failure.exit.code())
        }
    }
}
