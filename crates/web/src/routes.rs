//! Every route, once: the router, the list and the description are made from the same table.

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::{HeaderValue, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::MethodRouter;
use std::time::Duration;
use utoipa::OpenApi;
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityRequirement, SecurityScheme};

use crate::api::Api;
use crate::extract::BODY_BYTES;
use crate::handle::{adoption, machine, nodes, snapshots, targets, tickets, volumes, watch};
use crate::problem::Problem;

/// How long a call waits for its turn when too much is asked at once.
const TURN: Duration = Duration::from_secs(5);

macro_rules! routes {
    ($($path:literal => $($method:ident $module:ident $handler:ident),+;)*) => {
        /// Every route: its method, in lower case, and its path.
        pub const ROUTES: &[(&str, &str)] = &[$($((stringify!($method), $path),)+)*];

        fn table() -> Router<Api> {
            Router::new()$(.route($path, MethodRouter::new()$(.$method($module::$handler))+))*
        }

        #[derive(OpenApi)]
        #[openapi(
            info(title = "Bowline", description = "Attaches volumes to nodes, and says why."),
            paths($($($module::$handler),+),*),
        )]
        struct Description;
    };
}

routes! {
    "/" => get machine index;
    "/healthz" => get machine healthz;
    "/readyz" => get machine readyz;
    "/metrics" => get machine metrics;
    "/openapi.json" => get machine openapi;
    "/v1/volumes" => get volumes list, post volumes create;
    "/v1/volumes/{volume}" => get volumes show, patch volumes modify, delete volumes delete;
    "/v1/volumes/{volume}/grow" => post volumes grow;
    "/v1/volumes/{volume}/tickets" => post tickets attach, delete tickets detach;
    "/v1/volumes/{volume}/why" => get tickets why;
    "/v1/tickets" => get tickets list;
    "/v1/snapshots" => get snapshots list, post snapshots create;
    "/v1/snapshots/{snapshot}" => get snapshots show, delete snapshots delete;
    "/v1/groups" => post snapshots create_group;
    "/v1/groups/{group}" => get snapshots show_group, delete snapshots delete_group;
    "/v1/nodes" => get nodes list;
    "/v1/nodes/{node}" => put nodes add, delete nodes remove;
    "/v1/nodes/{node}/out-of-service" => put nodes out, delete nodes back;
    "/v1/targets" => get targets list;
    "/v1/targets/{target}/drain" => put targets drain, delete targets open;
    "/v1/events" => get machine events;
    "/v1/watch" => get watch follow;
    "/v1/capacity" => get machine capacity;
    "/v1/doctor" => get machine doctor;
    "/v1/orphans" => get machine orphans;
    "/v1/adoption" => get adoption look, post adoption adopt;
}

/// The description of the API: OpenAPI 3.1, as JSON.
pub fn description() -> serde_json::Result<String> {
    let mut description = Description::openapi();
    env!("CARGO_PKG_VERSION").clone_into(&mut description.info.version);
    // Over TCP only: whoever can open the socket needs nothing more.
    let bearer = SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer));
    description.components.get_or_insert_default().add_security_scheme("token", bearer);
    let nothing: [&str; 0] = [];
    description.security =
        Some(vec![SecurityRequirement::new("token", nothing), SecurityRequirement::default()]);
    description.to_pretty_json()
}

/// Everything that can be asked, for whoever is let in.
pub fn router(api: Api) -> Router {
    table()
        .fallback(async |request: Request| {
            Problem::new(
                "NoSuchRoute",
                format!("there is nothing at {}; / lists what there is", request.uri().path()),
            )
        })
        .method_not_allowed_fallback(async |request: Request| {
            let (method, path) = (request.method(), request.uri().path());
            Problem::new("NoSuchMethod", format!("{path} does not know {method}; / lists what there is"))
        })
        .layer(DefaultBodyLimit::max(BODY_BYTES))
        .layer(middleware::from_fn_with_state(api.clone(), bounded))
        .layer(middleware::map_response(never_guessed))
        .with_state(api)
}

/// Bounds what is worked on at once. Followers have a bound of their own: their answer has begun by then.
async fn bounded(State(api): State<Api>, request: Request, next: Next) -> Response {
    // Whoever asks whether we live gets an answer also when there is much to do.
    if matches!(request.uri().path(), "/healthz" | "/readyz") {
        return next.run(request).await;
    }
    match tokio::time::timeout(TURN, api.inner.calls.of(request.method()).acquire()).await {
        Ok(Ok(_turn)) => next.run(request).await,
        Ok(Err(_)) | Err(_) => Problem::new("Overloaded", "ask again in a moment").into_response(),
    }
}

/// A browser takes an answer for what it says it is, and keeps none.
async fn never_guessed(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;
    use std::collections::BTreeSet;

    #[test]
    fn the_description_has_every_route_and_no_other() {
        let description: Value = serde_json::from_str(&description().unwrap()).unwrap();
        assert!(description["openapi"].as_str().unwrap().starts_with("3.1"));
        let mut described = BTreeSet::new();
        for (path, methods) in description["paths"].as_object().unwrap() {
            for (method, call) in methods.as_object().unwrap() {
                described.insert((method.clone(), path.clone()));
                let responses = call["responses"].as_object().unwrap();
                let is_told = responses.contains_key("default") || !path.starts_with("/v1/");
                assert!(is_told, "{method} {path} does not say what a problem looks like");
                assert!(
                    call["summary"].as_str().or(call["description"].as_str()).is_some(),
                    "{method} {path}"
                );
            }
        }
        let routes: BTreeSet<_> =
            ROUTES.iter().map(|(method, path)| ((*method).to_owned(), (*path).to_owned())).collect();
        assert_eq!(described, routes);
    }

    #[test]
    fn everything_the_description_refers_to_is_in_it() {
        let text = description().unwrap();
        let description: Value = serde_json::from_str(&text).unwrap();
        let schemas = description["components"]["schemas"].as_object().unwrap();
        for part in text.split("\"#/components/schemas/").skip(1) {
            let name = part.split('"').next().unwrap();
            assert!(schemas.contains_key(name), "{name} is not described");
        }
        assert_eq!(description["components"]["securitySchemes"]["token"]["scheme"], "bearer");
        for name in ["Problem", "Volume", "VerdictFields", "OwnerFields", "Why", "Doctor"] {
            assert!(schemas.contains_key(name), "{name} is not described");
        }
    }
}
