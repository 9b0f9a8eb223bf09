use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use bowline_controller::{self as catalog, Catalog};
use bowline_core::{AccessMode, Content, MigrationTimeout, Phase};
use bowline_csi::Name;
use bowline_csi::code::GetVolumeError;
use bowline_engine::View;

use super::{PageQuery, WaitQuery};
use crate::api::Api;
use crate::extract::{Asked, Body, Named, wait};
use crate::problem::{Problem, Told};
use crate::wire::{
    Attachment, Change, Grow, Holder, NewVolume, Progress, Settings, Source, Volume, VolumeState, Volumes,
};

/// Makes a volume, or joins whoever is making it.
#[utoipa::path(post, path = "/v1/volumes", tag = "volumes", request_body = NewVolume, responses(
    (status = 201, body = Volume), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(crate) async fn create(
    State(api): State<Api>,
    Body(order): Body<NewVolume>,
) -> Result<(StatusCode, Json<Volume>), Problem> {
    let catalog = api.catalog()?;
    let time = wait(order.wait_seconds)?;
    let order = parse(catalog, order).await?;
    let made = catalog.create_volume(order, time).await?;
    Ok((StatusCode::CREATED, Json(described(catalog, made).await)))
}

async fn parse(catalog: &Catalog, order: NewVolume) -> Result<catalog::NewVolume, Problem> {
    let source = match order.source {
        None => None,
        Some(Source::Snapshot(text)) => {
            Some(catalog::Source::Snapshot(catalog.find_snapshot(&text).await?.id))
        }
        Some(Source::Volume(text)) => Some(catalog::Source::Volume(catalog.find_volume(&text).await?.id)),
    };
    let uses = if order.uses.is_empty() {
        vec![catalog::Use { access: AccessMode::SingleNodeWriter, content: Content::Filesystem }]
    } else {
        order.uses.into_iter().map(Into::into).collect()
    };
    let Settings { migratable, deletion_protection, discard } = order.settings;
    let migratable = migratable.map(|seconds| timeout("settings.migratable", seconds)).transpose()?;
    Ok(catalog::NewVolume {
        name: Name::new("name", &order.name).map_err(Told::told)?,
        required: order.size,
        limit: order.limit,
        fs: order.fs,
        uses,
        source,
        settings: catalog::Settings { migratable, deletion_protection, discard },
        target: None,
        kind: None,
        place: Default::default(),
    })
}

fn timeout(field: &str, seconds: u16) -> Result<MigrationTimeout, Problem> {
    MigrationTimeout::from_seconds(seconds)
        .map_err(|_| Problem::invalid(field, format!("is {seconds}; 30 to 3600 seconds are allowed")))
}

/// Volumes, a page at a time.
#[utoipa::path(get, path = "/v1/volumes", tag = "volumes", params(PageQuery), responses(
    (status = 200, body = Volumes), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(crate) async fn list(
    State(api): State<Api>,
    Asked(page): Asked<PageQuery>,
) -> Result<Json<Volumes>, Problem> {
    let catalog = api.catalog()?;
    let listed = catalog.volumes(page.after.as_deref(), page.limit()?).await?;
    let mut volumes = Vec::with_capacity(listed.entries.len());
    for volume in listed.entries {
        volumes.push(described(catalog, volume).await);
    }
    Ok(Json(Volumes { volumes, next: listed.next }))
}

/// A volume, by its name, its id or the beginning of its id, with what its target says of it.
#[utoipa::path(get, path = "/v1/volumes/{volume}", tag = "volumes", params(("volume" = String, Path)), responses(
    (status = 200, body = Volume), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(crate) async fn show(State(api): State<Api>, Named(name): Named) -> Result<Json<Volume>, Problem> {
    let catalog = api.catalog()?;
    let volume = catalog.find_volume(&name).await?;
    // What is being made or removed is not looked for on its target: it need not be there.
    let fault = match volume.state {
        catalog::VolumeState::Ready | catalog::VolumeState::Growing { .. } => {
            match catalog.volume_fault(&volume.id).await {
                // What is recorded can be told all the same.
                Err(GetVolumeError::Unreachable(error)) => {
                    Some(format!("it is not known whether it is well: {error}"))
                }
                answered => answered?,
            }
        }
        catalog::VolumeState::Creating | catalog::VolumeState::Deleting => None,
    };
    Ok(Json(Volume { fault, ..described(catalog, volume).await }))
}

/// Makes a volume larger.
#[utoipa::path(post, path = "/v1/volumes/{volume}/grow", tag = "volumes", params(("volume" = String, Path)),
    request_body = Grow, responses(
    (status = 200, body = Volume), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(crate) async fn grow(
    State(api): State<Api>,
    Named(name): Named,
    Body(order): Body<Grow>,
) -> Result<Json<Volume>, Problem> {
    let catalog = api.catalog()?;
    let volume = catalog.find_volume(&name).await?;
    let grown = catalog.grow_volume(&volume.id, order.size, order.limit, wait(order.wait_seconds)?).await?;
    Ok(Json(described(catalog, grown).await))
}

/// Changes a volume's settings.
#[utoipa::path(patch, path = "/v1/volumes/{volume}", tag = "volumes", params(("volume" = String, Path)),
    request_body = Change, responses(
    (status = 200, body = Volume), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(crate) async fn modify(
    State(api): State<Api>,
    Named(name): Named,
    Body(change): Body<Change>,
) -> Result<Json<Volume>, Problem> {
    let catalog = api.catalog()?;
    let volume = catalog.find_volume(&name).await?;
    let Change { migratable, deletion_protection, discard } = change;
    let migratable = match migratable {
        None => None,
        Some(None) => Some(None),
        Some(Some(seconds)) => Some(Some(timeout("migratable", seconds)?)),
    };
    let change = catalog::Change { migratable, deletion_protection, discard };
    Ok(Json(described(catalog, catalog.modify_volume(&volume.id, change).await?).await))
}

/// Deletes a volume for good. Refused while anybody holds or wants it, or while it is protected.
#[utoipa::path(delete, path = "/v1/volumes/{volume}", tag = "volumes", params(("volume" = String, Path), WaitQuery),
    responses((status = 204, description = "nothing of it is left"),
    (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(crate) async fn delete(
    State(api): State<Api>,
    Named(name): Named,
    Asked(query): Asked<WaitQuery>,
) -> Result<StatusCode, Problem> {
    let catalog = api.catalog()?;
    // By a name, and not "the one that is not there is deleted": a person who mistypes shall hear of it.
    let volume = catalog.find_volume(&name).await?;
    catalog.delete_volume(&volume.id, wait(query.wait_seconds)?).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// A volume with who may reach it.
async fn described(catalog: &Catalog, volume: catalog::Volume) -> Volume {
    let attachment = match catalog.view(&volume.id).await {
        Ok(view) => Some(attachment(&view)),
        Err(error) => {
            tracing::debug!(volume = %volume.id, %error, "who may reach it is not known");
            None
        }
    };
    let (state, growing_to) = match volume.state {
        catalog::VolumeState::Creating => (VolumeState::Creating, None),
        catalog::VolumeState::Ready => (VolumeState::Ready, None),
        catalog::VolumeState::Growing { to } => (VolumeState::Growing, Some(to)),
        catalog::VolumeState::Deleting => (VolumeState::Deleting, None),
    };
    Volume {
        progress: catalog.progress(&volume.id).map(|(done, total)| Progress { done, total }),
        id: volume.id,
        name: volume.name,
        target: volume.target.into(),
        size: volume.size,
        fs: volume.fs,
        uses: volume.uses.into_iter().map(Into::into).collect(),
        source: volume.source.map(Into::into),
        settings: volume.settings.into(),
        created_at: volume.created_at,
        state,
        growing_to,
        attachment,
        fault: None,
    }
}

fn attachment(view: &View) -> Attachment {
    let holders = view.ledger.holds().iter().map(|(node, hold)| Holder {
        node: node.to_string(),
        phase: phase(hold.phase).to_owned(),
        epoch: hold.epoch.number(),
        since: hold.since,
        write: hold.mode.write,
    });
    Attachment { state: view.state.as_str().to_owned(), holders: holders.collect() }
}

/// The word for a phase.
pub(crate) fn phase(phase: Phase) -> &'static str {
    match phase {
        Phase::Granting => "granting",
        Phase::Held => "held",
        Phase::Releasing => "releasing",
        Phase::Fencing { .. } => "fencing",
    }
}
