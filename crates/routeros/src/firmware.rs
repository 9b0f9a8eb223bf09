//! How one device differs from another.

use std::time::Duration;

/// What a firmware does. [`Firmware::default`] is what was recorded most often; every field that says "assumed" was not recorded
/// at all, and tests should hold with both values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Firmware {
    /// Columns of the terminal that it prints for; without a terminal, 80.
    pub width: usize,
    /// Where it breaks lines.
    pub wrap: Wrap,
    /// How far continued lines are indented.
    pub indent: usize,
    /// Whether `print` of disks begins with `Flags:` and entries have them.
    pub flags: bool,
    /// How its lines end.
    pub line_end: &'static str,
    /// What stands between groups of three digits.
    pub between_groups: &'static str,
    /// Whether errors go to the output rather than to the error stream.
    pub errors_on_stdout: bool,
    /// Whether errors begin with `failure: `.
    pub says_failure: bool,
    /// Whether commands end with an exit status.
    pub exit_status: bool,
    /// The exit status after an error; 0 is assumed of some.
    pub status_of_errors: u32,
    /// Whether it knows `nvme-tcp-server-allow-host-name`. If not, naming it is an error (assumed: that of any unknown parameter).
    pub knows_allow_list: bool,
    /// Properties that it does not print.
    pub hidden: Vec<&'static str>,
    /// Whether it prints port, NQN and allow list of a disk only while the export is on. Disks that were never exported were seen
    /// without them; what a disk prints whose export was switched off again is assumed.
    pub hides_export_when_off: bool,
    /// What becomes of `set [find …]` that finds nothing (assumed).
    pub set_of_nothing: Nothing,
    /// What becomes of `remove [find …]` that finds nothing.
    pub remove_of_nothing: Nothing,
    /// Whether the settings of a `set` take effect from the last to the first. That they take effect one after the other is assumed:
    /// it shows most of who could get in meanwhile.
    pub backwards: bool,
    /// Whether a disk is made smaller when it is told to (assumed).
    pub shrinks: bool,
    /// Whether `copy-from` takes over every property that the command does not name, the export and its allow list included, as it
    /// does in other menus of RouterOS (assumed here).
    pub copies_settings: bool,
    /// How many sessions it has open at once, over all connections.
    pub sessions: usize,
    /// How long things take.
    pub latency: Latency,
}

impl Default for Firmware {
    fn default() -> Self {
        Self {
            width: 80,
            wrap: Wrap::Properties,
            indent: 15,
            flags: true,
            line_end: "\r\n",
            between_groups: " ",
            errors_on_stdout: true,
            says_failure: true,
            exit_status: true,
            status_of_errors: 1,
            knows_allow_list: true,
            hidden: vec![],
            hides_export_when_off: false,
            set_of_nothing: Nothing::Silent,
            remove_of_nothing: Nothing::NoSuchItem,
            backwards: false,
            shrinks: false,
            copies_settings: true,
            sessions: 20,
            latency: Latency::NONE,
        }
    }
}

impl Firmware {
    /// Firmwares that differ from the default in one thing each, with a name for messages of tests.
    pub fn each() -> Vec<(&'static str, Self)> {
        let base = Self::default;
        vec![
            ("as recorded", base()),
            ("errors on stderr", Self { errors_on_stdout: false, ..base() }),
            ("errors without a prefix", Self { says_failure: false, ..base() }),
            ("no exit status", Self { exit_status: false, ..base() }),
            ("errors leave the status at 0", Self { status_of_errors: 0, ..base() }),
            ("breaks lines between words", Self { wrap: Wrap::Words, ..base() }),
            ("breaks lines anywhere", Self { wrap: Wrap::Columns, ..base() }),
            ("a narrow terminal", Self { width: 40, ..base() }),
            ("a wide terminal", Self { width: 230, indent: 6, ..base() }),
            ("no flags", Self { flags: false, ..base() }),
            ("lines end with LF", Self { line_end: "\n", ..base() }),
            ("digits not grouped", Self { between_groups: "", ..base() }),
            ("set of nothing is an error", Self { set_of_nothing: Nothing::NoSuchItem, ..base() }),
            ("remove of nothing is silent", Self { remove_of_nothing: Nothing::Silent, ..base() }),
            ("settings from the last to the first", Self { backwards: true, ..base() }),
            ("disks become smaller", Self { shrinks: true, ..base() }),
            ("hides the export while it is off", Self { hides_export_when_off: true, ..base() }),
            ("copy-from copies bytes only", Self { copies_settings: false, ..base() }),
            ("prints no size in bytes", Self { hidden: vec!["size"], ..base() }),
        ]
    }
}

/// Where lines are broken that are too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrap {
    /// Between properties; a property that does not fit into a line of its own is cut where the line ends.
    Properties,
    /// At any space, in the middle of digit groups too; what does not fit is cut.
    Words,
    /// Exactly where the line ends, whatever is there.
    Columns,
}

/// What a command says that finds nothing to change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nothing {
    /// Nothing, as if it had changed something.
    Silent,
    /// `no such item`.
    NoSuchItem,
}

/// How long things take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Latency {
    /// Until a connection is answered.
    pub handshake: Duration,
    /// `print`.
    pub print: Duration,
    /// `set` (assumed to take as long as `print`).
    pub set: Duration,
    /// `add` of an empty disk.
    pub add: Duration,
    /// What `add` and copies take longer for every GiB.
    pub add_per_gib: Duration,
    /// `remove`.
    pub remove: Duration,
}

impl Latency {
    /// Everything at once.
    pub const NONE: Self = Self {
        handshake: Duration::ZERO,
        print: Duration::ZERO,
        set: Duration::ZERO,
        add: Duration::ZERO,
        add_per_gib: Duration::ZERO,
        remove: Duration::ZERO,
    };

    /// The middle of what a real device was seen to need: `print` 50–100 ms, `add` 0.5–1 s for 1 GB and 2–5 s for 100 GB, `remove`
    /// 0.5–1 s, handshake 0.2–0.5 s.
    pub const RECORDED: Self = Self {
        handshake: Duration::from_millis(350),
        print: Duration::from_millis(75),
        set: Duration::from_millis(75),
        add: Duration::from_millis(720),
        add_per_gib: Duration::from_millis(30),
        remove: Duration::from_millis(750),
    };

    /// The same, so many times as long.
    #[must_use]
    pub fn scaled(self, factor: f64) -> Self {
        let scaled = |time: Duration| time.mul_f64(factor);
        Self {
            handshake: scaled(self.handshake),
            print: scaled(self.print),
            set: scaled(self.set),
            add: scaled(self.add),
            add_per_gib: scaled(self.add_per_gib),
            remove: scaled(self.remove),
        }
    }
}
