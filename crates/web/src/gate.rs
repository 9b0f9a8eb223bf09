//! Who is let in over TCP: whoever shows a token that the gate knows.

use async_trait::async_trait;
use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, Method, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use std::net::IpAddr;
use std::sync::Arc;

use crate::problem::Problem;

/// Shows the token where something on the way takes `Authorization` for itself, as the API server of Kubernetes does.
pub const TOKEN_HEADER: HeaderName = HeaderName::from_static("bowline-token");

/// Why somebody is not let in. Each is a sentence that says what is missing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The token is none that is known here, or there is none.
    #[error("{0}")]
    Unknown(String),
    /// The token is known, and does not give this right.
    #[error("{0}")]
    Forbidden(String),
    /// The token cannot be checked now.
    #[error("{0}")]
    Unchecked(String),
}

/// Says who may do what.
#[async_trait]
pub trait Gate: Send + Sync {
    /// Lets a call of this method in, or says why not. No token at all is an empty one.
    async fn admit(&self, token: &str, method: &Method) -> Result<(), Refusal>;
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Self {
        let code = match &refusal {
            Refusal::Unknown(_) => "Unauthorized",
            Refusal::Forbidden(_) => "Forbidden",
            Refusal::Unchecked(_) => "Unreachable",
        };
        Self::new(code, refusal.to_string())
    }
}

/// Where a call came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entrance {
    /// In the clear, on an address of this machine.
    Machine,
    /// With TLS, from anywhere.
    Anywhere,
}

/// The routes for whoever the gate lets in.
pub(crate) fn guarded(routes: Router, gate: Arc<dyn Gate>, entrance: Entrance) -> Router {
    routes.layer(middleware::from_fn_with_state((gate, entrance), guard))
}

async fn guard(
    State((gate, entrance)): State<(Arc<dyn Gate>, Entrance)>,
    request: Request,
    next: Next,
) -> Response {
    // A page from elsewhere whose name was made to point at this machine shows that name here.
    if entrance == Entrance::Machine && !is_this_machine(request.headers()) {
        let problem =
            Problem::new("WrongHost", "the header Host must name this machine: localhost or 127.0.0.1");
        return problem.into_response();
    }
    if matches!(request.uri().path(), "/" | "/healthz" | "/readyz") {
        return next.run(request).await;
    }
    let token = shown(request.headers(), entrance).unwrap_or_default().to_owned();
    match gate.admit(&token, request.method()).await {
        Ok(()) => next.run(request).await,
        Err(refusal) => Problem::from(refusal).into_response(),
    }
}

/// The token that a call shows.
fn shown(headers: &HeaderMap, entrance: Entrance) -> Option<&str> {
    match headers.get(TOKEN_HEADER) {
        Some(token) if entrance == Entrance::Anywhere => token.to_str().ok().map(str::trim),
        _ => bearer(headers.get(header::AUTHORIZATION)?.to_str().ok()?),
    }
}

fn bearer(header: &str) -> Option<&str> {
    let (scheme, token) = header.split_once(' ')?;
    scheme.eq_ignore_ascii_case("Bearer").then(|| token.trim())
}

fn is_this_machine(headers: &HeaderMap) -> bool {
    let mut hosts = headers.get_all(header::HOST).iter();
    let (Some(host), None) = (hosts.next(), hosts.next()) else { return false };
    let Ok(host) = host.to_str() else { return false };
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
    name.eq_ignore_ascii_case("localhost")
        || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_this_machine_are_answered() {
        for (host, ours) in [
            ("localhost", true),
            ("localhost:8460", true),
            ("LOCALHOST:1", true),
            ("127.0.0.1:8460", true),
            ("127.9.9.9", true),
            ("[::1]:8460", true),
            ("evil.example:8460", false),
            ("localhost.evil.example", false),
            ("127.0.0.1.evil.example", false),
            ("10.0.0.7:8460", false),
            ("[::2]:8460", false),
            ("", false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(header::HOST, host.parse().unwrap());
            assert_eq!(is_this_machine(&headers), ours, "{host}");
            headers.append(header::HOST, "localhost".parse().unwrap());
            assert!(!is_this_machine(&headers), "two names are none");
        }
        assert!(!is_this_machine(&HeaderMap::new()));
    }

    #[test]
    fn a_token_is_shown_in_one_of_two_headers() {
        use Entrance::{Anywhere, Machine};
        for (entrance, authorization, own, expected) in [
            (Machine, Some("Bearer a"), None, Some("a")),
            (Machine, Some("bearer  a "), None, Some("a")),
            (Machine, Some("Basic a"), None, None),
            (Machine, Some("a"), None, None),
            (Machine, Some("Bearer "), None, Some("")),
            // Only who cannot use the usual header has to use another.
            (Machine, None, Some("a"), None),
            (Machine, Some("Bearer a"), Some("b"), Some("a")),
            (Anywhere, None, Some(" a"), Some("a")),
            (Anywhere, Some("Bearer a"), None, Some("a")),
            (Anywhere, Some("Bearer a"), Some("b"), Some("b")),
            (Anywhere, None, None, None),
        ] {
            let mut headers = HeaderMap::new();
            for (name, value) in [(header::AUTHORIZATION, authorization), (TOKEN_HEADER, own)] {
                let _ = value.map(|value| headers.insert(name, value.parse().unwrap()));
            }
            assert_eq!(shown(&headers, entrance), expected, "{entrance:?} {headers:?}");
        }
    }
}
