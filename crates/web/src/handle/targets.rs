use axum::Json;
use axum::extract::State;
use bowline_core::TargetId;

use crate::api::Api;
use crate::extract::Named;
use crate::problem::Problem;
use crate::wire::{Target, Targets};

/// Every target that is connected or awaited.
#[utoipa::path(get, path = "/v1/targets", tag = "targets", responses(
    (status = 200, body = Targets), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(crate) async fn list(State(api): State<Api>) -> Result<Json<Targets>, Problem> {
    let targets = api.catalog()?.known_targets();
    Ok(Json(Targets { targets: targets.into_iter().map(Into::into).collect() }))
}

/// Makes nothing new on a target from now on, also after a restart. What is there stays usable.
#[utoipa::path(put, path = "/v1/targets/{target}/drain", tag = "targets", params(("target" = String, Path)),
    responses((status = 200, body = Target),
    (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(crate) async fn drain(State(api): State<Api>, Named(name): Named) -> Result<Json<Target>, Problem> {
    set(&api, &name, true).await
}

/// Takes back that a target is drained.
#[utoipa::path(delete, path = "/v1/targets/{target}/drain", tag = "targets", params(("target" = String, Path)),
    responses((status = 200, body = Target),
    (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(crate) async fn open(State(api): State<Api>, Named(name): Named) -> Result<Json<Target>, Problem> {
    set(&api, &name, false).await
}

async fn set(api: &Api, name: &str, is_draining: bool) -> Result<Json<Target>, Problem> {
    let catalog = api.catalog()?;
    let id = TargetId::new(name).map_err(|error| Problem::invalid("target", error))?;
    let find = || catalog.known_targets().into_iter().find(|known| known.id == id);
    let unknown = || {
        Problem::new(
            "UnknownTarget",
            format!("there is no target {id}: `bowline target list` says which there are"),
        )
    };
    find().ok_or_else(unknown)?;
    let drains = api.drains(&format!(
        "say it there (kubectl patch bvt {id} --type=merge -p '{{\"spec\":{{\"drain\":{is_draining}}}}}')"
    ))?;
    drains.drain(&id, is_draining).await.map_err(|error| Problem::new("Unreachable", error))?;
    find().map(|target| Json(target.into())).ok_or_else(unknown)
}
