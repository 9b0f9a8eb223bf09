//! What can be typed.

use bowline_core::{AccessMode, Content, FsType, NodeId};
use bowline_csi::Endpoint;
use bowline_web::wire::Use;
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::path::PathBuf;

use crate::agent::TargetArgs;
use crate::agents::AgentAt;
use crate::config::{Http, Ratio, TargetKind, absolute_path};
use crate::controller::ControllerArgs;
use crate::lab::LabCommand;
use crate::node::NodeArgs;
use crate::orphans::OrphanArgs;
use crate::size::Size;
use crate::span::Span;

/// Attaches volumes to nodes: never two writers, never a lost attachment, always says why.
#[derive(Clone, Debug, Parser)]
#[command(
    name = "bowline",
    version,
    max_term_width = 100,
    subcommand_required = true,
    arg_required_else_help = true,
    after_help = "Exit codes: 0 done, 1 failed, 2 wrong usage, 3 not found, 4 refused (the reason is on stderr), \
                  5 timed out while waiting.\n\n\
                  Begin with:\n  \
                  bowline up                            # in one terminal, as root\n  \
                  bowline volume create db --size 1Gi   # in another\n  \
                  bowline attach db $(hostname)\n  \
                  bowline why db"
)]
pub struct Cli {
    /// The directory in which `bowline up` keeps everything; tells the other commands which one to ask.
    #[arg(
        long,
        global = true,
        env = "BOWLINE_DATA",
        value_name = "DIR",
        default_value = "/var/lib/bowline",
        help_heading = "For every command"
    )]
    pub data: PathBuf,

    /// Ask the Bowline of a cluster: this context of the kubeconfig.
    ///
    /// A cluster is asked if --context or --kubeconfig is given, or if KUBECONFIG is set and neither --data nor BOWLINE_DATA
    /// is; otherwise the `bowline up` of --data.
    #[arg(long, global = true, value_name = "NAME", help_heading = "For every command")]
    pub context: Option<String>,

    /// Ask the Bowline of a cluster: this kubeconfig instead of $KUBECONFIG or ~/.kube/config.
    #[arg(long, global = true, value_name = "FILE", help_heading = "For every command")]
    pub kubeconfig: Option<PathBuf>,

    /// The namespace of the cluster in which Bowline is installed.
    #[arg(
        long,
        global = true,
        env = "BOWLINE_NAMESPACE",
        value_name = "NAME",
        default_value = "bowline",
        help_heading = "For every command"
    )]
    pub namespace: String,

    /// How to show what was found: tables for people, json and yaml for programs.
    #[arg(
        short,
        long,
        global = true,
        value_enum,
        default_value_t = Format::Table,
        value_name = "table|wide|json|yaml",
        hide_possible_values = true,
        help_heading = "For every command"
    )]
    pub output: Format,

    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// How something is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// A table.
    Table,
    /// A table with everything.
    Wide,
    /// JSON.
    Json,
    /// YAML.
    Yaml,
}

/// What to do.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Runs everything on this machine: a store, storage in files, CSI and the API.
    Up(UpArgs),
    /// Runs a node: beside a kubelet, or a second one on the machine of a `bowline up`.
    // In these three a chart gives flags, and whoever installs it may give one of them again: the last one counts.
    #[command(args_override_self = true)]
    Node(NodeArgs),
    /// Runs a controller in Kubernetes; of several, one leads.
    #[command(args_override_self = true)]
    Controller(ControllerArgs),
    /// Serves a directory of volumes on this machine to a controller elsewhere.
    #[command(args_override_self = true)]
    Target(TargetArgs),
    /// Makes, lists, shows, grows, changes and deletes volumes.
    #[command(subcommand)]
    Volume(VolumeCommand),
    /// Asks for a volume on a node, and waits until it is there.
    Attach(AttachArgs),
    /// Gives a volume back, and waits until the node is proven out.
    Detach(DetachArgs),
    /// Says who holds a volume, who waits, for what, since when, and what would change that.
    #[command(
        after_help = "Example:\n  bowline why db\n\ndocs/why.md lists every reason and what to do about it."
    )]
    Why {
        /// The volume: its name, its id, or the beginning of its id.
        volume: String,
    },
    /// Lists every wish, ranked, with what it is told.
    Tickets {
        /// Only of this volume.
        volume: Option<String>,
    },
    /// Takes, lists, shows and deletes snapshots.
    #[command(subcommand)]
    Snapshot(SnapshotCommand),
    /// Lists, adds and removes nodes that may ask for volumes; declares one dead, or takes that back.
    #[command(subcommand)]
    Peer(PeerCommand),
    /// Lists what happened.
    Events(EventsArgs),
    /// Checks this machine: kernel features, programs, sockets, permissions, versions, and records against storage.
    Doctor {
        /// Instead, the volumes on targets that no record knows of.
        #[arg(long)]
        orphans: bool,
    },
    /// Takes over what a cluster has attached already: PersistentVolumes and VolumeAttachments of this driver that Bowline
    /// does not know. Nobody is cut off, and nothing is guessed: where the sources disagree, it says what to do.
    ///
    /// The leader does the same when it starts. This is to see what was refused, and to run it again when that is mended.
    #[command(after_help = "Examples:\n  \
        bowline --context production adopt --dry-run\n  \
        bowline --context production adopt\n  \
        bowline --context production adopt -o wide     # what is known already, too\n\n\
        Exit code 4: something is refused. docs/kubernetes.md lists every reason and what to do about it.")]
    Adopt {
        /// Only say what would be adopted, what is known already, and what is refused. Needs the right to look only.
        #[arg(long)]
        dry_run: bool,
    },
    /// Exports and imports the records of a `bowline up` that does not run, as a file to keep elsewhere. Volumes are not in it.
    #[command(subcommand)]
    Store(StoreCommand),
    /// Simulates what is hard to come by, for people who want to try.
    #[command(subcommand)]
    Lab(LabCommand),
    /// Prints completions for a shell.
    #[command(after_help = "Example:\n  bowline completions bash > /etc/bash_completion.d/bowline")]
    Completions {
        /// Which shell.
        shell: clap_complete::Shell,
    },
    /// Writes the manual pages into a directory.
    Man {
        /// The directory; it must be there.
        directory: PathBuf,
    },
}

/// What can be done with the records of a `bowline up`.
#[derive(Clone, Debug, Subcommand)]
pub enum StoreCommand {
    /// Writes all records of --data to a file, which appears when it is whole.
    #[command(after_help = "Example:\n  systemctl stop bowline    # what is mounted stays mounted\n  \
        bowline store export /backup/bowline.jsonl\n  systemctl start bowline")]
    Export {
        /// The file.
        file: PathBuf,
    },
    /// Reads such a file into --data, whose store must be new: all of it or nothing.
    ///
    /// The next `bowline up` compares every record with what the targets really let in before anybody new is let in.
    #[command(after_help = "Example:\n  mv /var/lib/bowline/store /var/lib/bowline/store.damaged\n  \
        bowline store import /backup/bowline.jsonl")]
    Import {
        /// The file.
        file: PathBuf,
    },
}

/// What `bowline up` can be told. Also as `BOWLINE_…` and in `bowline.toml` in the data directory.
#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:\n  \
    bowline up\n  \
    bowline up --data /tmp/try --peer worker-2 --http off\n  \
    bowline up --target none --agent nvme-1=10.0.0.5:9460 --tls /etc/bowline/tls")]
pub struct UpArgs {
    /// Where CSI listens; `csi.sock` in the data directory if not given.
    #[arg(long, env = "BOWLINE_CSI", value_name = "unix://PATH")]
    pub csi: Option<Endpoint>,

    /// Where the API listens beside its socket (127.0.0.1:8460 if not given), or `off`.
    #[arg(long, env = "BOWLINE_HTTP", value_name = "ADDRESS")]
    pub http: Option<Http>,

    /// What this node is called; the name of the machine if not given.
    #[arg(long, env = "BOWLINE_NODE", value_name = "NAME")]
    pub node: Option<NodeId>,

    /// Another node that may ask for volumes; may be given several times.
    #[arg(long, env = "BOWLINE_PEER", value_name = "NAME", value_delimiter = ',')]
    pub peer: Vec<NodeId>,

    /// Where volumes are kept: `file` on this machine, or `none`, if there are only those of --agent.
    #[arg(long, env = "BOWLINE_TARGET", value_name = "KIND")]
    pub target: Option<TargetKind>,

    /// A target on another machine, and where its `bowline target` listens; may be given several times.
    #[arg(long, env = "BOWLINE_AGENT", value_name = "TARGET=HOST:PORT", value_delimiter = ',')]
    pub agent: Vec<AgentAt>,

    /// The directory with ca.crt, tls.crt and tls.key of this controller, for the agents.
    #[arg(long, env = "BOWLINE_TLS", value_name = "DIR", value_parser = absolute_path)]
    pub tls: Option<PathBuf>,

    /// How many volumes this node can have at once (128 if not given).
    #[arg(long, env = "BOWLINE_MAX_VOLUMES", value_name = "NUMBER")]
    pub max_volumes: Option<u32>,

    /// How much may be promised to volumes, as a multiple of what there is (1.0 if not given).
    #[arg(long, env = "BOWLINE_OVERCOMMIT", value_name = "RATIO")]
    pub overcommit: Option<Ratio>,

    /// How much of the disk is never given to volumes (64Mi if not given).
    #[arg(long, env = "BOWLINE_RESERVE", value_name = "SIZE")]
    pub reserve: Option<Size>,

    /// The directory below which every path of a CSI request must lie (/ if not given).
    #[arg(long, env = "BOWLINE_PATH_ROOT", value_name = "DIR", value_parser = absolute_path)]
    pub path_root: Option<PathBuf>,

    /// What becomes of orphans.
    #[command(flatten)]
    pub orphans: OrphanArgs,
}

/// What can be done with volumes.
#[derive(Clone, Debug, Subcommand)]
pub enum VolumeCommand {
    /// Makes a volume. Again with the same name is the same volume.
    #[command(after_help = "Examples:\n  \
        bowline volume create db --size 10Gi\n  \
        bowline volume create copy --from-volume db\n  \
        bowline volume create old --from-snapshot before-upgrade")]
    Create(CreateArgs),
    /// Lists volumes.
    #[command(visible_alias = "ls")]
    List,
    /// Shows a volume.
    Show {
        /// The volume: its name, its id, or the beginning of its id.
        volume: String,
    },
    /// Makes a volume larger. Whoever uses it goes on.
    #[command(after_help = "Example:\n  bowline volume grow db --size 20Gi")]
    Grow {
        /// The volume.
        volume: String,
        /// How large it shall be: 20Gi, 20G or a number of bytes.
        #[arg(long)]
        size: Size,
        /// How long to wait.
        #[arg(long, default_value = "5m", value_name = "TIME")]
        wait: Span,
    },
    /// Changes a volume's settings.
    #[command(after_help = "Example:\n  bowline volume modify db --deletion-protection on")]
    Modify(ModifyArgs),
    /// Deletes a volume for good. Refused while anybody has or wants it, or while it is protected.
    #[command(visible_alias = "rm")]
    Delete {
        /// The volume.
        volume: String,
        /// How long to wait.
        #[arg(long, default_value = "5m", value_name = "TIME")]
        wait: Span,
    },
}

/// A volume to be made.
#[derive(Clone, Debug, Args)]
pub struct CreateArgs {
    /// Its name.
    pub name: String,
    /// How large: 10Gi, 10G or a number of bytes. 1Gi, or as large as its source, if not given.
    #[arg(long)]
    pub size: Option<Size>,
    /// Its filesystem: ext4, xfs or btrfs.
    #[arg(long, value_name = "FS")]
    pub fs: Option<FsType>,
    /// Who may use it at once.
    #[arg(long, value_enum, default_value_t = AccessArg::Rwo)]
    pub access: AccessArg,
    /// It holds what this snapshot holds.
    #[arg(long, value_name = "SNAPSHOT", conflicts_with = "from_volume")]
    pub from_snapshot: Option<String>,
    /// It holds what this volume holds now.
    #[arg(long, value_name = "VOLUME")]
    pub from_volume: Option<String>,
    /// It cannot be deleted before this is turned off.
    #[arg(long)]
    pub deletion_protection: bool,
    /// What is deleted in its filesystem is given back to the storage at once.
    #[arg(long)]
    pub discard: bool,
    /// For how long two nodes may have it while it moves between them: 30s to 1h.
    #[arg(long, value_name = "TIME")]
    pub migratable: Option<Span>,
    /// How long to wait; it is made all the same beyond.
    #[arg(long, default_value = "1h", value_name = "TIME")]
    pub wait: Span,
}

/// Who may use a volume at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum AccessArg {
    /// One node reads and writes.
    Rwo,
    /// One workload on one node reads and writes.
    Rwop,
    /// Many nodes read and write: for shared volumes, which no target has yet.
    Rwx,
    /// Many nodes read.
    Rox,
    /// One node reads and writes, as a raw block device.
    Block,
}

impl From<AccessArg> for Use {
    fn from(access: AccessArg) -> Self {
        let (access, content) = match access {
            AccessArg::Rwo => (AccessMode::SingleNodeWriter, Content::Filesystem),
            AccessArg::Rwop => (AccessMode::SingleNodeSingleWriter, Content::Filesystem),
            AccessArg::Rwx => (AccessMode::MultiNodeMultiWriter, Content::Filesystem),
            AccessArg::Rox => (AccessMode::MultiNodeReaderOnly, Content::Filesystem),
            AccessArg::Block => (AccessMode::SingleNodeWriter, Content::Block),
        };
        Self { access, content }
    }
}

/// A change of settings.
#[derive(Clone, Debug, Args)]
pub struct ModifyArgs {
    /// The volume.
    pub volume: String,
    /// Whether it cannot be deleted.
    #[arg(long, value_enum, value_name = "on|off")]
    pub deletion_protection: Option<Switch>,
    /// Whether what is deleted in its filesystem is given back to the storage at once.
    #[arg(long, value_enum, value_name = "on|off")]
    pub discard: Option<Switch>,
    /// For how long two nodes may have it while it moves between them: 30s to 1h, or off.
    #[arg(long, value_name = "TIME|off", value_parser = migratable)]
    pub migratable: Option<Migratable>,
}

/// On or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Switch {
    /// On.
    On,
    /// Off.
    Off,
}

/// For how long a volume may be on two nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Migratable {
    /// Never.
    Off,
    /// So many seconds.
    Seconds(u16),
}

fn migratable(text: &str) -> Result<Migratable, String> {
    if text == "off" {
        return Ok(Migratable::Off);
    }
    let span: Span = text.parse().map_err(|error| format!("{error}, or off"))?;
    migration_seconds(span).map(Migratable::Seconds)
}

/// The seconds of a migration, within what is allowed.
pub fn migration_seconds(span: Span) -> Result<u16, String> {
    match u16::try_from(span.0) {
        Ok(seconds @ 30..=3600) => Ok(seconds),
        _ => Err("a move may take 30s to 1h".to_owned()),
    }
}

/// A volume is wanted on a node.
#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:\n  \
    bowline attach db worker-2 --for 2h --reason 'look at the logs'\n  \
    bowline attach db worker-2 --wait 10m     # in the queue until it is free\n\n\
    The ticket stays whatever is answered; give it back with: bowline detach VOLUME NODE")]
pub struct AttachArgs {
    /// The volume: its name, its id, or the beginning of its id.
    pub volume: String,
    /// The node.
    pub node: String,
    /// Keep it for so long at most; asking again begins anew.
    #[arg(long = "for", value_name = "TIME", conflicts_with = "until_removed")]
    pub stay: Option<Span>,
    /// Keep it until it is given back; so it is if nothing is said.
    #[arg(long)]
    pub until_removed: bool,
    /// Only read.
    #[arg(long)]
    pub read_only: bool,
    /// What for; others see it in `bowline why` and `bowline tickets`.
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
    /// What the ticket is called, if the node's name will not do: two tickets for one node need two names.
    #[arg(long, value_name = "NAME")]
    pub ticket: Option<String>,
    /// Wait in the queue for so long. If not given, a no of somebody else's making is told at once.
    #[arg(long, value_name = "TIME")]
    pub wait: Option<Span>,
}

/// A volume is given back.
#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:\n  \
    bowline detach db worker-2\n  \
    bowline detach db --ticket csi-4f2a9c01\n  \
    bowline detach db                         # every ticket of the volume")]
pub struct DetachArgs {
    /// The volume.
    pub volume: String,
    /// Only the tickets of this node; all of them if neither this nor --ticket is given.
    #[arg(conflicts_with = "ticket")]
    pub node: Option<String>,
    /// Only this ticket: its id, or the beginning of it.
    #[arg(long, value_name = "ID")]
    pub ticket: Option<String>,
    /// Cut the node off at once, whatever it does: what it has not written yet is lost.
    #[arg(long)]
    pub force: bool,
    /// How long to wait; the work goes on beyond.
    #[arg(long, default_value = "30s", value_name = "TIME")]
    pub wait: Span,
}

/// What can be done with snapshots.
#[derive(Clone, Debug, Subcommand)]
pub enum SnapshotCommand {
    /// Takes a snapshot of a volume; of several volumes, a group, all at one moment.
    #[command(after_help = "Examples:\n  \
        bowline snapshot create before-upgrade db\n  \
        bowline snapshot create nightly db logs    # a group")]
    Create {
        /// Its name.
        name: String,
        /// The volumes.
        #[arg(required = true)]
        volumes: Vec<String>,
        /// How long to wait.
        #[arg(long, default_value = "1h", value_name = "TIME")]
        wait: Span,
    },
    /// Lists snapshots.
    #[command(visible_alias = "ls")]
    List {
        /// Only of this volume.
        volume: Option<String>,
    },
    /// Shows a snapshot.
    Show {
        /// The snapshot: its name, its id, or the beginning of its id.
        snapshot: String,
    },
    /// Deletes a snapshot, or with --group a group and all its snapshots.
    #[command(visible_alias = "rm")]
    Delete {
        /// The snapshot or the group, by its name or id.
        snapshot: String,
        /// It is a group.
        #[arg(long)]
        group: bool,
        /// How long to wait.
        #[arg(long, default_value = "5m", value_name = "TIME")]
        wait: Span,
    },
}

/// What can be done with nodes that may ask for volumes.
#[derive(Clone, Debug, Subcommand)]
pub enum PeerCommand {
    /// Lists every node that is known.
    #[command(visible_alias = "ls")]
    List,
    /// Makes a node known, or changes its limit.
    #[command(after_help = "Example:\n  bowline peer add worker-2 --max-volumes 16")]
    Add {
        /// The node.
        node: String,
        /// How many volumes it can have at once; any number if not given.
        #[arg(long, value_name = "NUMBER")]
        max_volumes: Option<u32>,
    },
    /// Forgets a node. Refused while it has or wants a volume.
    #[command(visible_alias = "rm")]
    Remove {
        /// The node.
        node: String,
    },
    /// Declares a node out of service: it is fenced, and what it has goes to whoever is next. Only for a node that is
    /// dead or cut off: what it has not written yet is lost.
    OutOfService {
        /// The node.
        node: String,
    },
    /// Takes back that a node is out of service.
    BackInService {
        /// The node.
        node: String,
    },
}

/// What happened.
#[derive(Clone, Debug, Args)]
pub struct EventsArgs {
    /// Only to this volume.
    pub volume: Option<String>,
    /// Go on with everything that happens, until Ctrl-C.
    #[arg(long, short)]
    pub follow: bool,
    /// How many at most.
    #[arg(long, default_value_t = 100, value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub limit: u16,
}
