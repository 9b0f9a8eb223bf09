use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use bowline_core::VolumeId;
use bowline_csi::Name;

use super::{PageQuery, WaitQuery};
use crate::api::Api;
use crate::extract::{Asked, Body, Named, wait};
use crate::problem::{Problem, Told};
use crate::wire::{Group, NewSnapshot, Snapshot, Snapshots};

/// Takes a snapshot of one volume.
#[utoipa::path(post, path = "/v1/snapshots", tag = "snapshots", request_body = NewSnapshot, responses(
    (status = 201, body = Snapshot), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(crate) async fn create(
    State(api): State<Api>,
    Body(order): Body<NewSnapshot>,
) -> Result<(StatusCode, Json<Snapshot>), Problem> {
    let catalog = api.catalog()?;
    let [volume] = order.volumes.as_slice() else {
        return Err(Problem::invalid("volumes", "a snapshot is of one volume; take a group of several"));
    };
    let name = Name::new("name", &order.name).map_err(Told::told)?;
    let volume = catalog.find_volume(volume).await?.id;
    let taken = catalog.create_snapshot(name, &volume, wait(order.wait_seconds)?).await?;
    Ok((StatusCode::CREATED, Json(taken.into())))
}

/// Snapshots, a page at a time; of one volume only if given.
#[utoipa::path(get, path = "/v1/snapshots", tag = "snapshots", params(PageQuery), responses(
    (status = 200, body = Snapshots), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(crate) async fn list(
    State(api): State<Api>,
    Asked(page): Asked<PageQuery>,
) -> Result<Json<Snapshots>, Problem> {
    let catalog = api.catalog()?;
    let of: Option<VolumeId> = match &page.volume {
        Some(text) => Some(catalog.find_volume(text).await?.id),
        None => None,
    };
    let listed = catalog.snapshots(of.as_ref(), page.after.as_deref(), page.limit()?).await?;
    Ok(Json(Snapshots { snapshots: listed.entries.into_iter().map(Into::into).collect(), next: listed.next }))
}

/// A snapshot, by its name, its id or the beginning of its id.
#[utoipa::path(get, path = "/v1/snapshots/{snapshot}", tag = "snapshots", params(("snapshot" = String, Path)),
    responses((status = 200, body = Snapshot),
    (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(crate) async fn show(State(api): State<Api>, Named(name): Named) -> Result<Json<Snapshot>, Problem> {
    Ok(Json(api.catalog()?.find_snapshot(&name).await?.into()))
}

/// Deletes a snapshot.
#[utoipa::path(delete, path = "/v1/snapshots/{snapshot}", tag = "snapshots",
    params(("snapshot" = String, Path), WaitQuery),
    responses((status = 204, description = "nothing of it is left"),
    (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(crate) async fn delete(
    State(api): State<Api>,
    Named(name): Named,
    Asked(query): Asked<WaitQuery>,
) -> Result<StatusCode, Problem> {
    let catalog = api.catalog()?;
    let snapshot = catalog.find_snapshot(&name).await?.id;
    catalog.delete_snapshot(&snapshot, wait(query.wait_seconds)?).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Takes snapshots of several volumes at one moment.
#[utoipa::path(post, path = "/v1/groups", tag = "snapshots", request_body = NewSnapshot, responses(
    (status = 201, body = Group), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(crate) async fn create_group(
    State(api): State<Api>,
    Body(order): Body<NewSnapshot>,
) -> Result<(StatusCode, Json<Group>), Problem> {
    let catalog = api.catalog()?;
    let name = Name::new("name", &order.name).map_err(Told::told)?;
    let mut volumes: Vec<VolumeId> = vec![];
    for text in &order.volumes {
        let volume = catalog.find_volume(text).await?.id;
        if volumes.contains(&volume) {
            return Err(Problem::invalid("volumes", format!("{text} is there twice")));
        }
        volumes.push(volume);
    }
    if volumes.is_empty() {
        return Err(Problem::invalid("volumes", "at least one is needed"));
    }
    let taken = catalog.create_group(name, &volumes, wait(order.wait_seconds)?).await?;
    Ok((StatusCode::CREATED, Json(taken.into())))
}

/// A group with its snapshots, by id or name.
#[utoipa::path(get, path = "/v1/groups/{group}", tag = "snapshots", params(("group" = String, Path)), responses(
    (status = 200, body = Group), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(crate) async fn show_group(State(api): State<Api>, Named(name): Named) -> Result<Json<Group>, Problem> {
    let catalog = api.catalog()?;
    let group = catalog.find_group(&name).await?.id;
    Ok(Json(catalog.group(&group).await?.into()))
}

/// Deletes a group and its snapshots.
#[utoipa::path(delete, path = "/v1/groups/{group}", tag = "snapshots", params(("group" = String, Path), WaitQuery),
    responses((status = 204, description = "nothing of it is left"),
    (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(crate) async fn delete_group(
    State(api): State<Api>,
    Named(name): Named,
    Asked(query): Asked<WaitQuery>,
) -> Result<StatusCode, Problem> {
    let catalog = api.catalog()?;
    let group = catalog.find_group(&name).await?.id;
    catalog.delete_group(&group, wait(query.wait_seconds)?).await?;
    Ok(StatusCode::NO_CONTENT)
}
