//! Questions of training jobs about the entries of a dataset that has a manifest.

use super::error::ControlError;
use super::request::Peer;
use super::views::{self, hex};
use super::{Answer, Control, ControlResult};
use crate::dataset::residency::ResidencyError;
use axum::Extension;
use axum::extract::{Path, Query, State};
use axum::response::{IntoResponse, Response};
use hyper::header::{CONTENT_TYPE, ETAG, IF_NONE_MATCH};
use hyper::{HeaderMap, StatusCode};
use serde::Deserialize;

/// The query of [`residency`].
#[derive(Debug, Deserialize)]
pub(super) struct ResidencyQuery {
    /// The identity of the client's manifest.
    identity: Option<String>,
}

/// `GET /v1/datasets/{name}/residency`: a bit for each entry. With `If-None-Match`, and unless anything has
/// changed, only that. Refuses if the dataset has another manifest than the client.
pub(super) async fn residency(
    State(control): State<Control>,
    Path(name): Path<String>,
    Query(ResidencyQuery { identity }): Query<ResidencyQuery>,
    Extension(peer): Extension<Peer>,
    headers: HeaderMap,
) -> Result<Response, ControlError> {
    if let Some(process) = peer.process
        && let Some(dataset) = control.agent.watch().borrow().dataset(&name)
    {
        control.node.chunk_readers().hear(dataset.id, process);
    }
    let resident = control.node.resident(name.clone()).await;
    let resident = resident.map_err(|error| refusal(&name, error))?;
    let current = hex(resident.identity);
    if identity.is_some_and(|known| known != current) {
        let error =
            format!("{name} was declared again with another manifest, of identity {current}");
        let advice = "Open the manifest with which it is declared now";
        return Err(ControlError::new(409, error, advice));
    }
    let tag = format!("\"{:016x}\"", resident.state);
    let known = headers.get(IF_NONE_MATCH);
    if known.is_some_and(|known| known.as_bytes() == tag.as_bytes()) {
        return Ok((StatusCode::NOT_MODIFIED, [(ETAG, tag)]).into_response());
    }
    let head = [
        (ETAG, tag),
        (CONTENT_TYPE, "application/octet-stream".to_owned()),
    ];
    Ok((head, resident.bits).into_response())
}

/// `GET /v1/datasets/{name}/homes`: the nodes that store items, from which each item's home follows.
pub(super) async fn homes(
    State(control): State<Control>,
    Path(name): Path<String>,
) -> ControlResult {
    let decision = std::sync::Arc::clone(&control.agent.watch().borrow());
    let homes = views::homes(&decision, &name);
    let homes = homes.ok_or_else(|| ControlError::missing("dataset", &name))?;
    Ok(Answer::of(homes))
}

fn refusal(name: &str, error: ResidencyError) -> ControlError {
    match error {
        ResidencyError::NoDataset => ControlError::missing("dataset", name),
        ResidencyError::NoManifest => {
            let advice = "Declare it with --manifest; copperfs dataset manifest makes one";
            ControlError::new(409, format!("{name}: {error}"), advice)
        }
        ResidencyError::NotLoaded => {
            let advice =
                "Try again in a moment; copperfs dataset show tells whether there is trouble";
            ControlError::new(503, format!("{name}: {error}"), advice)
        }
    }
}
