//! Questions of training jobs about the entries of a dataset that has a manifest.

use super::Control;
use super::error::ControlError;
use crate::dataset::residency::ResidencyError;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use hyper::header::{CONTENT_TYPE, ETAG, IF_NONE_MATCH};
use hyper::{HeaderMap, StatusCode};

/// `GET /v1/datasets/{name}/residency`: a bit for each entry. With `If-None-Match`, and unless anything has
/// changed, only that.
pub(super) async fn residency(
    State(control): State<Control>,
    Path(name): Path<String>,
    headers: HeaderMap,
) -> Result<Response, ControlError> {
    let resident = control.node.resident(name.clone()).await;
    let resident = resident.map_err(|error| refusal(&name, error))?;
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
