//! Requests to the HTTP API, from anywhere: whatever the headers say, nobody without the token is let in, and whatever a body
//! says, the answer is one of the API's own.
#![no_main]

use async_trait::async_trait;
use axum::body::Body;
use axum::http::Request;
use axum::response::Response;
use bowline_engine::SystemClock;
use bowline_web::{Api, Gate, Method, PATH_HEADER, Parts, Refusal, TOKEN_HEADER, secured};
use libfuzzer_sys::fuzz_target;
use std::sync::Arc;
use tower::ServiceExt;

/// Method, route, name and query; the headers for path, token and authorization; whether the token is shown; the body.
type Asked<'a> = (u8, u8, &'a str, &'a str, Given<'a>, Given<'a>, Given<'a>, bool, &'a [u8]);
type Given<'a> = Option<&'a [u8]>;

const TOKEN: &str = "the token that nobody guesses";

struct One;

#[async_trait]
impl Gate for One {
    async fn admit(&self, token: &str, _: &Method) -> Result<(), Refusal> {
        if token == TOKEN { Ok(()) } else { Err(Refusal::Unknown("show a token".to_owned())) }
    }
}

fn api() -> Api {
    Api::in_cluster(Parts {
        clock: Arc::new(SystemClock),
        registry: Arc::default(),
        probe: Arc::new(Vec::new),
        version: "1.2.3",
        node: "a".to_owned(),
    })
}

thread_local! {
    static ANSWER: Box<dyn Fn(Request<Body>) -> Response> = {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        let (runtime, answers) = (runtime.expect("a runtime"), secured(api(), Arc::new(One)));
        Box::new(move |request| {
            runtime.block_on(answers.clone().oneshot(request)).unwrap_or_else(|never| match never {})
        })
    };
}

fuzz_target!(|asked: Asked<'_>| {
    let (method, route, name, query, meant, token, authorization, is_shown, body) = asked;
    let routes = bowline_web::ROUTES;
    let (its_own, path) = routes[usize::from(route) % routes.len()];
    let methods = [its_own, its_own, its_own, "get", "post", "delete", "patch", "put"];
    let method = methods[usize::from(method) % methods.len()].to_uppercase();
    let path = path.split('/').map(|part| if part.starts_with('{') { name } else { part });
    let path = path.collect::<Vec<_>>().join("/");
    let uri = if query.is_empty() { path } else { format!("{path}?{query}") };
    let mut request = Request::builder().method(method.as_str()).uri(uri);
    request = request.header("content-type", "application/json");
    for (name, value) in [(PATH_HEADER, meant), (TOKEN_HEADER, token)] {
        if let Some(value) = value {
            request = request.header(name, value);
        }
    }
    if let Some(value) = authorization {
        request = request.header("authorization", value);
    }
    if is_shown {
        request = request.header(TOKEN_HEADER, TOKEN);
    }
    let Ok(request) = request.body(Body::from(body.to_vec())) else { return };
    let told = request.headers().get(PATH_HEADER).is_some();
    let open = matches!(request.uri().path(), "/" | "/healthz" | "/readyz");
    // The first one counts: it may be another's.
    let let_in = request.headers().get(TOKEN_HEADER).is_some_and(|token| token == TOKEN)
        || request
            .headers()
            .get("authorization")
            .is_some_and(|token| token.as_bytes().ends_with(TOKEN.as_bytes()));
    let status = ANSWER.with(|answer| answer(request)).status().as_u16();
    assert!(status != 500, "{asked:?}");
    if !let_in && !open && !told {
        assert_eq!(status, 401, "{asked:?}");
    }
});
