use axum::Json;
use axum::extract::State;

use crate::api::Api;
use crate::problem::Problem;
use crate::wire::Adoption;

/// What would be adopted, what is known already, and what is refused with what to do about it. Nothing is changed.
#[utoipa::path(get, path = "/v1/adoption", tag = "adoption", responses(
    (status = 200, body = Adoption), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(crate) async fn look(State(api): State<Api>) -> Result<Json<Adoption>, Problem> {
    run(&api, true).await
}

/// Takes over what Kubernetes says is attached and Bowline does not know. Nobody is cut off; what is refused stays as it is.
#[utoipa::path(post, path = "/v1/adoption", tag = "adoption", responses(
    (status = 200, body = Adoption), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(crate) async fn adopt(State(api): State<Api>) -> Result<Json<Adoption>, Problem> {
    run(&api, false).await
}

async fn run(api: &Api, dry_run: bool) -> Result<Json<Adoption>, Problem> {
    let report = api.adopter()?.adopt(dry_run).await;
    report.map(Json).map_err(|error| Problem::new("Unreachable", error))
}
