//! Errors as `application/problem+json` (RFC 9457), and the one table that says which status each reason has.

use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bowline_controller::NodeError;
use bowline_core::{Ticket, TicketId, Verdict};
use bowline_csi::InvalidField;
use bowline_csi::code::Reason;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::wire::VerdictFields;

/// What a caller is told when something was not done.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Problem {
    /// Names the kind of problem; there is no page behind it.
    #[serde(rename = "type")]
    #[schema(value_type = String, example = "urn:bowline:problem:HeldElsewhere")]
    pub kind: Box<str>,
    /// The same in a few words.
    #[schema(value_type = String)]
    pub title: Box<str>,
    /// The status of the answer.
    pub status: u16,
    /// The sentence for people.
    pub detail: String,
    /// One word, for programs.
    pub code: String,
    /// Why a ticket does not have what it asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<VerdictFields>)]
    pub verdict: Option<Box<Verdict>>,
    /// The ticket that stays in the queue all the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub ticket: Option<TicketId>,
}

/// Which status each reason has, and what it is called. Those of [`bowline_csi::code::REASONS`], then our own.
const TABLE: &[(&str, u16, &str)] = &[
    ("Invalid", 400, "a field cannot be accepted"),
    ("Unsupported", 400, "this is not supported"),
    ("Mismatch", 400, "the parts do not belong together"),
    ("UnknownVolume", 404, "there is no such volume"),
    ("UnknownNode", 404, "there is no such node"),
    ("UnknownSnapshot", 404, "there is no such snapshot"),
    ("UnknownSource", 404, "there is no such source"),
    ("Different", 409, "the name is taken by something else"),
    ("DifferentMode", 409, "it is there already, in another way"),
    ("InUse", 409, "it is in use"),
    ("HeldElsewhere", 409, "another node has the volume"),
    ("NotAttachable", 409, "the volume cannot be attached now"),
    ("NotTogether", 409, "the volumes cannot be taken together"),
    ("NotReady", 409, "the node is not ready for it"),
    ("NotStaged", 409, "the volume is not staged"),
    ("NodeFull", 409, "the node has as many volumes as it can take"),
    ("UnknownToken", 410, "the list has to be begun again"),
    ("Size", 422, "no volume can have such a size"),
    ("NoRoom", 507, "there is no room"),
    ("Busy", 503, "something else is being done with it"),
    ("Unreachable", 503, "what is needed does not answer"),
    ("TimedOut", 504, "it is not done yet, and goes on"),
    ("Broken", 500, "it failed"),
    ("UnknownTarget", 404, "there is no such target"),
    ("UnknownTicket", 404, "there is no such ticket"),
    ("Refused", 409, "the ticket waits"),
    ("Unauthorized", 401, "a token is needed"),
    ("Forbidden", 403, "the token does not give this right"),
    ("FromKubernetes", 409, "this comes from Kubernetes"),
    ("NotInCluster", 409, "this is for a cluster"),
    ("WrongHost", 421, "this name is not served here"),
    ("NoSuchRoute", 404, "there is no such page"),
    ("NoSuchMethod", 405, "this page cannot be asked so"),
    ("TooLarge", 413, "the request is too large"),
    ("NotJson", 415, "the request is not JSON"),
    ("Starting", 503, "not ready yet"),
    ("NotLeading", 503, "another process leads"),
    ("Overloaded", 503, "too much is being asked at once"),
];

impl Problem {
    /// A problem of a reason in the table.
    pub(crate) fn new(code: &'static str, detail: impl Into<String>) -> Self {
        let row = TABLE.iter().find(|(name, ..)| *name == code);
        let (status, title) = row.map_or((500, "it failed"), |(_, status, title)| (*status, *title));
        Self {
            kind: format!("urn:bowline:problem:{code}").into(),
            title: title.into(),
            status,
            detail: detail.into(),
            code: code.to_owned(),
            verdict: None,
            ticket: None,
        }
    }

    /// A field that cannot be accepted.
    pub(crate) fn invalid(field: &str, why: impl std::fmt::Display) -> Self {
        Self::new("Invalid", format!("{field}: {why}"))
    }

    /// A ticket that does not have what it asked for, and stays.
    pub(crate) fn refused(ticket: &Ticket, verdict: Verdict, stays: bool) -> Self {
        let detail = verdict.sentence(ticket);
        let ticket = stays.then(|| ticket.id.clone());
        Self { verdict: Some(Box::new(verdict)), ticket, ..Self::new("Refused", detail) }
    }
}

impl<R: Reason> From<R> for Problem {
    fn from(reason: R) -> Self {
        Self::new(reason.name(), reason.to_string())
    }
}

/// Turns what is no reason of a CSI call into a problem.
pub(crate) trait Told {
    /// The problem.
    fn told(self) -> Problem;
}

impl Told for InvalidField {
    fn told(self) -> Problem {
        Problem::new("Invalid", self.to_string())
    }
}

impl Told for NodeError {
    fn told(self) -> Problem {
        let code = match &self {
            Self::Unknown(_) => "UnknownNode",
            Self::InUse { .. } => "InUse",
            Self::Store(_) => "Unreachable",
        };
        Problem::new(code, self.to_string())
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let json = HeaderValue::from_static("application/problem+json");
        let mut headers = vec![(header::CONTENT_TYPE, json)];
        let mut add = |name: HeaderName, value| headers.push((name, HeaderValue::from_static(value)));
        match status {
            StatusCode::UNAUTHORIZED => add(header::WWW_AUTHENTICATE, "Bearer"),
            StatusCode::SERVICE_UNAVAILABLE => add(header::RETRY_AFTER, "1"),
            _ => {}
        }
        let body = serde_json::to_vec(&self).unwrap_or_default();
        let mut response = (status, body).into_response();
        for (name, value) in headers {
            response.headers_mut().insert(name, value);
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bowline_csi::code::REASONS;
    use std::collections::BTreeSet;

    #[test]
    fn every_reason_of_the_csi_table_has_one_status_here() {
        let names: Vec<&str> = TABLE.iter().map(|(name, ..)| *name).collect();
        let once: BTreeSet<&str> = names.iter().copied().collect();
        assert_eq!(once.len(), names.len(), "a reason has two rows");
        for reason in REASONS {
            assert!(once.contains(reason), "{reason} has no status");
        }
        for (name, status, title) in TABLE {
            let known = StatusCode::from_u16(*status).unwrap();
            assert!(known.is_client_error() || known.is_server_error(), "{name}");
            assert!(!title.is_empty() && !title.ends_with('.'));
        }
        let table: String =
            TABLE.iter().map(|(name, status, title)| format!("{status} {name:<16} {title}\n")).collect();
        insta::assert_snapshot!(table);
    }

    #[test]
    fn work_that_may_still_land_is_never_told_as_the_callers_fault() {
        for (name, status, _) in TABLE {
            let may_land = matches!(*name, "Busy" | "Unreachable" | "TimedOut");
            assert!(!may_land || *status >= 500, "{name}");
        }
    }
}
