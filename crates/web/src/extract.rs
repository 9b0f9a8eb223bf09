//! What a request says, parsed once; what cannot be accepted is told by the name of the field.

use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::{StatusCode, header, request::Parts};
use bowline_core::NodeId;
use serde::de::DeserializeOwned;
use std::time::Duration;

use crate::problem::Problem;

/// Bytes of the body of one request; nothing that can be asked needs more.
pub(crate) const BODY_BYTES: usize = 256 << 10;

/// How long a body may take to arrive.
const ARRIVAL: Duration = Duration::from_secs(30);

/// How long a call waits if it does not say.
const WAIT: Duration = Duration::from_secs(30);

/// How long a call may wait at most.
const LONGEST_WAIT: u32 = 24 * 3600;

/// A body of JSON.
pub(crate) struct Body<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Body<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let kind = request.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let is_json = kind.is_some_and(|kind| {
            kind.split(';').next().is_some_and(|kind| kind.trim().eq_ignore_ascii_case("application/json"))
        });
        // Also what keeps a page in a browser from sending it without being asked whether it may.
        if !is_json {
            return Err(Problem::new("NotJson", "the header Content-Type must be application/json"));
        }
        let arriving = tokio::time::timeout(ARRIVAL, axum::body::Bytes::from_request(request, state)).await;
        let late = || Problem::new("Invalid", format!("the body did not arrive within {ARRIVAL:?}"));
        let body = arriving.map_err(|_| late())?.map_err(|rejection| {
            if rejection.status() == StatusCode::PAYLOAD_TOO_LARGE {
                Problem::new("TooLarge", format!("a request has at most {BODY_BYTES} bytes"))
            } else {
                Problem::new("Invalid", "the body did not arrive")
            }
        })?;
        parse(&body).map(Self)
    }
}

/// Reads JSON; an error names the field.
pub(crate) fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, Problem> {
    let mut json = serde_json::Deserializer::from_slice(body);
    let value = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let path = error.path().to_string();
        let why = error.into_inner().to_string();
        if path == "." { Problem::invalid("the body", why) } else { Problem::invalid(&path, why) }
    })?;
    json.end().map_err(|error| Problem::invalid("the body", error))?;
    Ok(value)
}

/// What follows the `?`.
pub(crate) struct Asked<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Asked<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        match Query::from_request_parts(parts, state).await {
            Ok(Query(asked)) => Ok(Self(asked)),
            Err(rejection) => Err(Problem::new("Invalid", rejection.body_text())),
        }
    }
}

/// The name or id in the path.
pub(crate) struct Named(pub(crate) String);

impl<S: Send + Sync> FromRequestParts<S> for Named {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        match Path::from_request_parts(parts, state).await {
            Ok(Path(name)) => Ok(Self(name)),
            Err(rejection) => Err(Problem::new("Invalid", rejection.body_text())),
        }
    }
}

/// How long to wait: as asked, within bounds.
pub(crate) fn wait(seconds: Option<u32>) -> Result<Duration, Problem> {
    match seconds {
        None => Ok(WAIT),
        Some(seconds) if seconds <= LONGEST_WAIT => Ok(Duration::from_secs(seconds.into())),
        Some(_) => Err(Problem::invalid("waitSeconds", format!("at most {LONGEST_WAIT} seconds"))),
    }
}

/// A node, by the name of the field it came in.
pub(crate) fn node(field: &str, text: &str) -> Result<NodeId, Problem> {
    NodeId::new(text).map_err(|error| Problem::invalid(field, error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Change, NewTicket, NewVolume};

    #[test]
    fn what_is_wrong_with_a_body_is_told_by_the_field() {
        let volume = |text: &str| parse::<NewVolume>(text.as_bytes()).unwrap_err().detail;
        for (body, field) in [
            (r#"{"name":"a","size":-1}"#, "size: "),
            (r#"{"name":"a","size":"1Gi"}"#, "size: "),
            (r#"{"name":"a","colour":"red"}"#, "colour: unknown field"),
            (r#"{"name":"a","uses":[{"access":"x","content":"block"}]}"#, "uses[0].access: unknown variant"),
            (r#"{"name":"a","settings":{"discard":1}}"#, "settings.discard: "),
            (r#"{"size":1}"#, "the body: missing field `name`"),
            (r#"{"name":"a"} {"#, "the body: trailing"),
            ("", "the body: EOF"),
        ] {
            let told = volume(body);
            assert!(told.starts_with(field), "{body}: {told}");
        }
        let ticket = parse::<NewTicket>(br#"{"node":"a","until":{"seconds":-1}}"#).unwrap_err();
        assert!(ticket.detail.starts_with("until.seconds: "), "{}", ticket.detail);
        assert_eq!(ticket.status, 400);
    }

    #[test]
    fn null_turns_a_setting_off_and_nothing_leaves_it() {
        let change = |text: &str| parse::<Change>(text.as_bytes()).unwrap().migratable;
        assert_eq!(change("{}"), None);
        assert_eq!(change(r#"{"migratable":null}"#), Some(None));
        assert_eq!(change(r#"{"migratable":300}"#), Some(Some(300)));
    }

    #[test]
    fn nobody_waits_for_ever() {
        assert_eq!(wait(Some(0)).unwrap(), Duration::ZERO);
        assert!(wait(Some(u32::MAX)).is_err());
    }
}
