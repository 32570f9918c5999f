//! The time that jobs take for mini-batches, from which the policy `benefit` learns how much a cache gains.

use super::error::ControlError;
use super::request::{Access, Peer, RequestBody};
use super::requests::{self, ReportRequest};
use super::{Answer, Control, ControlResult};
use crate::model::{BatchReport, Command};
use axum::Extension;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use copperfs_policy::benefit::PROBE_BATCHES;
use hyper::StatusCode;
use serde_json::json;

/// `GET /v1/jobs/{id}/mode`. A job that is not known has the cache.
pub(super) async fn mode(State(this): State<Control>, Path(job): Path<String>) -> ControlResult {
    let decision = std::sync::Arc::clone(&this.agent.watch().borrow());
    let mode = decision.job(&job).map(|job| job.mode).unwrap_or_default();
    Ok(Answer::of(
        json!({ "mode": mode, "batches": PROBE_BATCHES }),
    ))
}

/// `POST /v1/jobs/{id}/report`.
pub(super) async fn report(
    State(this): State<Control>,
    Path(job): Path<String>,
    Extension(peer): Extension<Peer>,
    Extension(access): Extension<Access>,
    body: RequestBody,
) -> Result<Response, ControlError> {
    let request: ReportRequest = requests::parse(&body.bytes)?;
    this.check_speaker(peer, access, &job)?;
    let report = BatchReport {
        job,
        dataset: request.dataset,
        mode: request.mode,
        ranks: request.ranks,
        batches: request.batches,
        seconds: request.seconds,
        hits: request.hits,
        misses: request.misses,
    };
    drop(this.agent.command(Command::ReportBatches(report)).await?);
    Ok(StatusCode::NO_CONTENT.into_response())
}
