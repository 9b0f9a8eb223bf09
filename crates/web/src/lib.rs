//! The HTTP API: everything the command line can do, on a unix socket and, with a token, on an address of this machine or,
//! with TLS, on any.
//!
//! # Flow
//!
//! [`Server::bind`] (or [`SecureServer::bind`]) takes its places → [`Server::run`] answers with what [`router`] knows → a request is parsed once, at
//! the edge → the [`Catalog`](bowline_controller::Catalog) does the work → the answer is one of [`wire`], or a [`Problem`].
//! Nothing is decided here.
//!
//! # Guarantees
//!
//! - The socket is never open to others. Whoever comes over TCP must come from this machine, name it, and show the token; or
//!   come over TLS and show a token that the [`Gate`] knows.
//! - A body is bounded, and so are connections, calls and followers, and how long a caller may say nothing. What cannot be accepted is told by the field's name.
//! - Every route is in the description at `/openapi.json`; a test keeps that.
//!
//! # Caveats
//!
//! - A call whose caller hangs up is dropped where it awaits; the catalog finishes what it began.

mod advice;
mod api;
mod certificate;
mod extract;
mod gate;
mod handle;
mod probe;
mod problem;
mod routes;
mod secure;
mod serve;
mod server;
mod token;
pub mod wire;

pub use axum::http::Method;

pub use advice::{Shortened, meaning, phrase, remedy};
pub use api::{Adopt, Api, Drains, Parts};
pub use certificate::{Certificate, CertificateError};
pub use gate::{Gate, Refusal, TOKEN_HEADER};
pub use handle::tickets::explained;
pub use probe::{Probe, ProbeServer, Ready};
pub use problem::Problem;
pub use routes::{ROUTES, description, router};
pub use secure::{PATH_HEADER, SecureServer, secured};
pub use server::{ListenError, Server};
pub use token::{Token, TokenError};
