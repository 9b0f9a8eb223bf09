//! What is known of a target, in its status: for people, and for `kubectl wait`.

use bowline_api::{Condition, Target, TargetStatus, Truth, bytes_of, size_of};
use bowline_core::Timestamp;
use bowline_target::Capacity;
use bowline_target::agent::{Bad, ClockError, ExportsShown};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use std::time::Duration;

/// Nobody answers.
pub(super) const SILENT: &str = "Silent";
/// It answers in words that the controller does not know.
pub(super) const OTHER_PROTOCOL: &str = "OtherProtocol";
const NOT_REACHABLE: &str = "NotReachable";

/// How far an agent's clock may be off: certificates and the times of snapshots are read by both sides.
const TOLERANCE: Duration = Duration::from_secs(5);

/// Of how many parts of a target's room one has to come or go before that is written: what is free on the disk of a node changes all the time.
const PARTS: u64 = 1000;

/// The version of this program, and so of the controller.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// What a target that is connected has said.
pub(super) struct Heard<'a> {
    /// The version of its agent.
    pub(super) version: &'a str,
    /// The least size that a volume can have there.
    pub(super) least: u64,
    /// How wrong its clock is, if it told.
    pub(super) clock: Option<ClockError>,
    /// How much room it has, or why it does not say.
    pub(super) room: Result<Capacity, String>,
    /// What it says of the exports that it has to show to nodes, or what is wrong with its words.
    pub(super) exports: Result<ExportsShown, Bad>,
}

/// Why it holds or not, in a word and in a sentence.
type Said = (Truth, &'static str, String);

/// The status of a target that was heard of, or that is not connected for a reason, in a word and in a sentence.
pub(super) fn told(
    target: &Target,
    heard: Result<&Heard<'_>, (&'static str, String)>,
    now: Timestamp,
) -> TargetStatus {
    let mut status = target.status.clone().unwrap_or_default();
    let heard = heard.map_err(|(reason, sentence)| (reason, sentenced(sentence)));
    let rows = [
        (TargetStatus::REACHABLE, reachable(&heard)),
        (TargetStatus::COMPATIBLE, compatible(&heard)),
        (TargetStatus::CLOCK_AGREES, clock_agrees(&heard)),
        (TargetStatus::ACCEPTS_VOLUMES, accepts(target.spec.drain, &heard)),
        (TargetStatus::EXPORTS_SHOWN, exports_shown(&heard)),
    ];
    let condition = |(kind, (truth, reason, sentence)): (&str, Said)| {
        let before = status.conditions.iter().find(|one| one.kind == kind);
        Condition::new(kind, truth, (reason, sentence), before, now)
    };
    status.conditions = rows.into_iter().map(condition).collect();
    if let Ok(heard) = heard {
        heard.version.clone_into(&mut status.version);
        if let Ok(room) = heard.room {
            status.capacity = size_of(room.total);
            // Whatever else is written, it is written along.
            if target.status.as_ref() != Some(&status) || has_moved(&status.free, &room) {
                status.free = size_of(room.available);
            }
        }
    }
    status
}

/// Whether what is free is worth writing anew.
fn has_moved(shown: &str, room: &Capacity) -> bool {
    let shown = bytes_of(&IntOrString::String(shown.to_owned()));
    shown.map_or(true, |shown| shown.abs_diff(room.available) > room.total / PARTS)
}

type Seen<'a, 'b> = Result<&'a Heard<'b>, (&'static str, String)>;

fn reachable(seen: &Seen<'_, '_>) -> Said {
    match seen {
        Ok(Heard { room: Ok(_), .. }) => (Truth::True, "Answers", "Its agent answers.".to_owned()),
        Ok(Heard { room: Err(error), .. }) => (Truth::False, SILENT, sentenced(error.clone())),
        Err((reason, sentence)) => (Truth::False, reason, sentence.clone()),
    }
}

fn compatible(seen: &Seen<'_, '_>) -> Said {
    match seen {
        Ok(Heard { version, .. }) if *version == VERSION => {
            (Truth::True, "SameVersion", format!("Its agent has version {version}, as the controller."))
        }
        Ok(Heard { version, .. }) => {
            let version = if version.is_empty() { "no version" } else { version };
            let sentence =
                format!("Its agent has {version}, and the controller {VERSION}; they understand each other.");
            (Truth::True, "OtherVersion", sentence)
        }
        Err((OTHER_PROTOCOL, sentence)) => (Truth::False, OTHER_PROTOCOL, sentence.clone()),
        Err(_) => nobody_asked(),
    }
}

fn clock_agrees(seen: &Seen<'_, '_>) -> Said {
    let Ok(heard) = seen else { return nobody_asked() };
    match heard.clock {
        None => (Truth::Unknown, "NotTold", "Its agent does not say what time it is.".to_owned()),
        Some(clock) if clock.exceeds(TOLERANCE) => {
            let (reason, word) = if clock.ahead > 0 { ("Ahead", "ahead of") } else { ("Behind", "behind") };
            // Not by how much: a number that is another one at every look would be written at every look, and what is written is looked at.
            let seconds = TOLERANCE.as_secs();
            let sentence = format!(
                "Its clock is more than {seconds} s {word} the controller's; certificates and the times of snapshots cannot be trusted. Let NTP set both."
            );
            (Truth::False, reason, sentence)
        }
        Some(_) => (Truth::True, "InStep", "Its clock agrees with the controller's.".to_owned()),
    }
}

fn accepts(drain: bool, seen: &Seen<'_, '_>) -> Said {
    if drain {
        let sentence = "Nothing new is made here: spec.drain is set.".to_owned();
        return (Truth::False, "Draining", sentence);
    }
    match seen {
        Ok(Heard { room: Ok(room), least, .. }) if room.available < *least => {
            let sentence =
                format!("It is full: of {} nothing can be promised any more.", size_of(room.total));
            (Truth::False, "Full", sentence)
        }
        Ok(Heard { room: Ok(_), .. }) => (Truth::True, "HasRoom", "New volumes can be made here.".to_owned()),
        Ok(Heard { room: Err(_), .. }) | Err(_) => nobody_asked(),
    }
}

fn exports_shown(seen: &Seen<'_, '_>) -> Said {
    let Ok(Heard { room: Ok(_), exports, .. }) = seen else { return nobody_asked() };
    let (truth, reason) = match exports {
        Ok(ExportsShown::All) => (Truth::True, "AllShown"),
        Ok(ExportsShown::Missing { .. }) => (Truth::False, "Missing"),
        Ok(ExportsShown::NotTold) => (Truth::Unknown, "NotTold"),
        Err(_) => (Truth::Unknown, "Unclear"),
    };
    let sentence = match exports {
        Ok(exports) => exports.to_string(),
        Err(bad) => format!("what its agent says of it cannot be understood: {bad}"),
    };
    (truth, reason, sentenced(sentence))
}

fn nobody_asked() -> Said {
    (Truth::Unknown, NOT_REACHABLE, "Its agent could not be asked; see Reachable.".to_owned())
}

/// As people write: with a capital letter and a full stop.
fn sentenced(words: String) -> String {
    let mut letters = words.chars();
    let Some(first) = letters.next() else { return words };
    let end = if words.ends_with(['.', '?', '!']) { "" } else { "." };
    format!("{}{}{end}", first.to_uppercase(), letters.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;
    use bowline_api::{TargetKind, TargetSpec};

    const ROOM: Capacity = Capacity { total: 8 << 30, free: 4 << 30, promised: 0, available: 2 << 30 };

    fn target(drain: bool) -> Target {
        let address = "10.0.0.5:9460".to_owned();
        let spec = TargetSpec { kind: TargetKind::Nvmet, address, topology: Default::default(), drain };
        Target::new("nvme-1", spec)
    }

    /// Each condition's first letter of its status, and its reason.
    fn shown(status: &TargetStatus) -> Vec<String> {
        let one = |one: &Condition| format!("{}={:?}/{}", one.kind, one.status, one.reason);
        status.conditions.iter().map(one).collect()
    }

    fn clock(ahead: i64) -> Option<ClockError> {
        Some(ClockError { ahead, doubt: 3 })
    }

    fn heard(version: &str, clock: Option<ClockError>) -> Heard<'_> {
        Heard { version, least: 1 << 20, clock, room: Ok(ROOM), exports: Ok(ExportsShown::All) }
    }

    #[test]
    fn what_was_heard_becomes_conditions_and_numbers() {
        let good = || heard(VERSION, clock(200));
        let missing = || ExportsShown::Missing { volumes: 2, why: "v (no), w (no)".to_owned() };
        let all = ["Reachable=True/Answers", "Compatible=True/SameVersion", "ClockAgrees=True/InStep"];
        let full = Capacity { available: 1000, ..ROOM };
        let silent = || Err("no answer within 25s".to_owned());
        for (drain, heard, at, expected) in [
            (false, good(), 3, "AcceptsVolumes=True/HasRoom"),
            (true, good(), 3, "AcceptsVolumes=False/Draining"),
            (false, Heard { room: Ok(full), ..good() }, 3, "AcceptsVolumes=False/Full"),
            (false, Heard { room: silent(), ..good() }, 3, "AcceptsVolumes=Unknown/NotReachable"),
            (true, Heard { room: silent(), ..good() }, 3, "AcceptsVolumes=False/Draining"),
            (false, Heard { room: silent(), ..good() }, 0, "Reachable=False/Silent"),
            (false, Heard { version: "9.9.9", ..good() }, 1, "Compatible=True/OtherVersion"),
            (false, Heard { clock: clock(-7_000), ..good() }, 2, "ClockAgrees=False/Behind"),
            (false, Heard { clock: clock(7_000), ..good() }, 2, "ClockAgrees=False/Ahead"),
            (false, Heard { clock: clock(5_002), ..good() }, 2, "ClockAgrees=True/InStep"),
            (false, Heard { clock: None, ..good() }, 2, "ClockAgrees=Unknown/NotTold"),
            (false, good(), 4, "ExportsShown=True/AllShown"),
            (true, Heard { exports: Ok(missing()), ..good() }, 4, "ExportsShown=False/Missing"),
            (
                false,
                Heard { exports: Ok(missing()), room: silent(), ..good() },
                4,
                "ExportsShown=Unknown/NotReachable",
            ),
            (
                false,
                Heard { exports: Ok(ExportsShown::NotTold), ..good() },
                4,
                "ExportsShown=Unknown/NotTold",
            ),
            (
                false,
                Heard { exports: Err(Bad::Missing("unshown.why")), ..good() },
                4,
                "ExportsShown=Unknown/Unclear",
            ),
        ] {
            let status = told(&target(drain), Ok(&heard), Timestamp::UNIX_EPOCH);
            let shown = shown(&status);
            assert_eq!((shown.len(), shown[at].as_str()), (5, expected));
            if at == 3 && heard.room.is_ok() {
                assert_eq!(shown[..3], all);
                assert_eq!((status.capacity.as_str(), status.version.as_str()), ("8Gi", VERSION));
            }
        }
    }

    /// What is another status is written, and what is written is looked at.
    #[test]
    fn what_is_missing_is_told_in_the_same_words_at_every_look() {
        let mut known = target(false);
        let look = |known: &Target, volumes: u64, why: &str, second: i64| {
            let exports = Ok(ExportsShown::Missing { volumes, why: why.to_owned() });
            let heard = Heard { exports, ..heard(VERSION, clock(second)) };
            told(known, Ok(&heard), Timestamp::UNIX_EPOCH + Duration::from_secs(second.unsigned_abs()))
        };
        let words = |status: &TargetStatus| status.conditions[4].message.clone();
        let first = look(&known, 2, "tried again: v (no), w (no)", 1);
        assert_eq!(words(&first), "2 volumes are missing on their nodes: tried again: v (no), w (no).");
        known.status = Some(first.clone());
        assert_eq!(look(&known, 2, "tried again: v (no), w (no)", 31), first);
        let fewer = look(&known, 1, "tried again: w (no)", 61);
        assert_eq!(words(&fewer), "1 volume is missing on its nodes: tried again: w (no).");
        assert_eq!(fewer.conditions[4].last_transition_time, first.conditions[4].last_transition_time);
    }

    #[test]
    fn what_is_free_was_written_anew_for_every_byte() {
        let mut known = target(false);
        let look = |known: &Target, available: u64, version: &'static str| {
            let heard = Heard { room: Ok(Capacity { available, ..ROOM }), ..heard(version, clock(0)) };
            told(known, Ok(&heard), Timestamp::UNIX_EPOCH)
        };
        let first = look(&known, 2 << 30, VERSION);
        known.status = Some(first.clone());
        let part = ROOM.total / PARTS;
        for available in [(2 << 30) + 1, (2 << 30) - part, (2 << 30) + part] {
            assert_eq!(look(&known, available, VERSION), first, "{available}");
        }
        for available in [(2 << 30) - part - 1, (2 << 30) + part + 1, 0] {
            assert_eq!(look(&known, available, VERSION).free, size_of(available));
        }
        assert_eq!(look(&known, 42, "9.9.9").free, "42", "with what else is new");
        known.status = Some(TargetStatus { free: "much".to_owned(), ..first.clone() });
        assert_eq!(look(&known, 2 << 30, VERSION), first);
    }

    #[test]
    fn a_target_that_is_not_connected_says_why_and_keeps_its_numbers() {
        let mut known = target(false);
        let heard = heard("1", None);
        known.status = Some(told(&known, Ok(&heard), Timestamp::UNIX_EPOCH));
        let later = Timestamp::UNIX_EPOCH + Duration::from_secs(60);
        let why = ("NotServing", "the agent cannot serve yet: no modules".to_owned());
        let status = told(&known, Err(why), later);
        assert_eq!((status.free.as_str(), status.version.as_str()), ("2Gi", "1"));
        let reachable = &status.conditions[0];
        assert_eq!(reachable.message, "The agent cannot serve yet: no modules.");
        assert_eq!(reachable.last_transition_time.as_deref(), Some("1970-01-01T00:01:00Z"));
        let expected = [
            "Reachable=False/NotServing",
            "Compatible=Unknown/NotReachable",
            "ClockAgrees=Unknown/NotReachable",
            "AcceptsVolumes=Unknown/NotReachable",
            "ExportsShown=Unknown/NotReachable",
        ];
        assert_eq!(shown(&status), expected);
        let other = told(&known, Err((OTHER_PROTOCOL, "it speaks another".to_owned())), later);
        assert_eq!(shown(&other)[1], "Compatible=False/OtherProtocol");
    }
}
