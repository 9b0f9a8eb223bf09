use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use bowline_controller as catalog;

use crate::api::Api;
use crate::extract::{Body, Named, node};
use crate::problem::{Problem, Told};
use crate::wire::{AddNode, Node, Nodes};

/// Every node that may ask for volumes.
#[utoipa::path(get, path = "/v1/nodes", tag = "nodes", responses(
    (status = 200, body = Nodes), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(crate) async fn list(State(api): State<Api>) -> Result<Json<Nodes>, Problem> {
    let nodes = api.catalog()?.nodes().await?;
    Ok(Json(Nodes { nodes: nodes.into_iter().map(Into::into).collect() }))
}

/// Makes a node known, or changes its limit.
#[utoipa::path(put, path = "/v1/nodes/{node}", tag = "nodes", params(("node" = String, Path)),
    request_body = AddNode, responses(
    (status = 200, body = Node), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(crate) async fn add(
    State(api): State<Api>,
    Named(name): Named,
    Body(order): Body<AddNode>,
) -> Result<Json<Node>, Problem> {
    let catalog = api.catalog()?;
    api.keeps_nodes(
        "one is known as soon as the node plugin runs on it and has registered (kubectl get csinodes)",
    )?;
    let id = node("node", &name)?;
    let known = catalog.nodes().await?.into_iter().find(|known| known.id == id);
    // A change of the limit takes nothing else back.
    let (out_of_service, added_at) = match known {
        Some(known) => (known.out_of_service, known.added_at),
        None => (None, api.inner.parts.clock.now()),
    };
    let added = catalog::Node { id, limit: order.limit, out_of_service, added_at };
    Ok(Json(catalog.add_node(added).await.map_err(Told::told)?.into()))
}

/// Forgets a node. Refused while it holds or wants a volume.
#[utoipa::path(delete, path = "/v1/nodes/{node}", tag = "nodes", params(("node" = String, Path)),
    responses((status = 204, description = "it is not known any more"),
    (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(crate) async fn remove(State(api): State<Api>, Named(name): Named) -> Result<StatusCode, Problem> {
    let catalog = api.catalog()?;
    api.keeps_nodes(&format!("one is forgotten when it is deleted there (kubectl delete node {name})"))?;
    catalog.remove_node(&node("node", &name)?).await.map_err(Told::told)?;
    Ok(StatusCode::NO_CONTENT)
}

/// Declares a node out of service: what it has is fenced and taken from it, and it gets nothing new.
#[utoipa::path(put, path = "/v1/nodes/{node}/out-of-service", tag = "nodes", params(("node" = String, Path)),
    responses((status = 200, body = Node),
    (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(crate) async fn out(State(api): State<Api>, Named(name): Named) -> Result<Json<Node>, Problem> {
    set(&api, &name, true).await
}

/// Takes back that a node is out of service.
#[utoipa::path(delete, path = "/v1/nodes/{node}/out-of-service", tag = "nodes", params(("node" = String, Path)),
    responses((status = 200, body = Node),
    (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(crate) async fn back(State(api): State<Api>, Named(name): Named) -> Result<Json<Node>, Problem> {
    set(&api, &name, false).await
}

async fn set(api: &Api, name: &str, out: bool) -> Result<Json<Node>, Problem> {
    let (catalog, node) = (api.catalog()?, node("node", name)?);
    let sign = if out { "" } else { "-" };
    api.keeps_nodes(&format!(
        "say it there (kubectl taint node {node} node.kubernetes.io/out-of-service=nodeshutdown:NoExecute{sign})"
    ))?;
    Ok(Json(catalog.set_out_of_service(&node, out).await.map_err(Told::told)?.into()))
}
