use bowline_core::{Ticket, Timestamp, Verdict};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::schema;

/// Whether a condition holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Truth {
    /// It does.
    True,
    /// It does not.
    False,
    /// Nobody knows.
    Unknown,
}

impl From<bool> for Truth {
    fn from(holds: bool) -> Self {
        if holds { Self::True } else { Self::False }
    }
}

/// One thing to know about an object, for people and for `kubectl wait`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// What it is about, in CamelCase.
    #[serde(rename = "type")]
    #[schemars(length(max = 316))]
    pub kind: String,
    /// Whether it holds.
    pub status: Truth,
    /// Why, in one word in CamelCase.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 1024))]
    pub reason: String,
    /// Why, in a sentence.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 32768))]
    pub message: String,
    /// Since when the status is what it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::moment")]
    pub last_transition_time: Option<String>,
}

impl Condition {
    /// The type of the condition that says whether a ticket has what it asked for.
    pub const SATISFIED: &'static str = "Satisfied";
    /// The type of the condition that says of an attachment whether its current ticket has the volume.
    pub const ATTACHED: &'static str = "Attached";
    /// The type of the condition that says whether a volume, a snapshot or a group can be used.
    pub const READY: &'static str = "Ready";

    /// What a verdict says of a ticket. `before` is the condition that was shown until now: while the status stays the
    /// same, so does the time.
    pub fn of_verdict(
        verdict: &Verdict,
        ticket: &Ticket,
        before: Option<&Condition>,
        now: Timestamp,
    ) -> Condition {
        let said = (verdict.reason(), verdict.sentence(ticket));
        Self::new(Self::SATISFIED, verdict.is_satisfied(), said, before, now)
    }

    /// That something is so, or is not, or that nobody knows: with a reason in a word and a sentence. `before` as in [`Condition::of_verdict`].
    pub fn new(
        kind: &str,
        holds: impl Into<Truth>,
        (reason, message): (&str, String),
        before: Option<&Condition>,
        now: Timestamp,
    ) -> Condition {
        let status = holds.into();
        let kept = before
            .filter(|known| known.status == status)
            .and_then(|known| known.last_transition_time.clone());
        Condition {
            kind: kind.to_owned(),
            status,
            reason: reason.to_owned(),
            message,
            last_transition_time: Some(kept.unwrap_or_else(|| format!("{now:.0}"))),
        }
    }
}
