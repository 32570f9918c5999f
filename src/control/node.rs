//! Commands to a node: statistics, clearing, recording, warming.

use super::conversation::{Conversation, NDJSON, write_lines};
use super::error::ControlError;
use super::images::{Attendance, NodeImages, WantedImages};
use super::request::{Access, RequestBody};
use super::requests::{self, ClearRequest, UpgradeRequest};
use super::{Answer, Control, ControlResult, ReloadError, Reloaded};
use crate::config::reload::{Request, ShownOption};
use crate::dataset::chunk_readers::ChunkReaders;
use crate::dataset::contents::{Inserted, TooLarge};
use crate::dataset::residency::{ResidencyError, Resident};
use crate::job::Process;
use crate::pipeline::Pipelines;
use crate::record::Recorder;
use crate::takeover::successor::Fit;
use crate::takeover::upgrade::{Incarnation, UpgradeError};
use axum::Extension;
use axum::body::Body;
use axum::extract::{Query, State};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use copperfs_metrics::Snapshot;
use copperfs_overlay::{ContentHash, Failure, FailureKind, ItemPath};
use futures_util::future::BoxFuture;
use serde::Deserialize;
use serde_json::{Value, json};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

/// The media type of Prometheus' text format.
const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The operations of a node that commands use.
pub trait NodeCommands: Send + Sync + 'static {
    /// The metrics of this node.
    fn metrics(&self) -> Snapshot;

    /// The report of this node.
    fn report(&self) -> Value;

    /// The reports of all nodes: `{"nodes": […], "missing": […], "list": {…}}`. If `recent`, they may be a
    /// second old.
    fn cluster(&self, recent: bool) -> BoxFuture<'static, Value>;

    /// Drops the cached state of `path` and below, on this node or on all nodes. Returns whether any of it
    /// was cached.
    ///
    /// # Errors
    /// `NotFound` if no origin covers the path; `Unavailable`, naming the nodes that could not be reached.
    fn clear(&self, path: ItemPath, cluster: bool) -> BoxFuture<'static, Result<bool, Failure>>;

    /// Applies other options. Continues if the future is dropped.
    ///
    /// # Errors
    /// They cannot be applied: nothing has changed.
    fn reload(&self, request: Request) -> BoxFuture<'static, Result<Reloaded, ReloadError>>;

    /// The present options of this node. Waits for a reload that is in progress.
    fn options(&self) -> BoxFuture<'static, Vec<ShownOption>>;

    /// Looks up `path` for the checks before a declaration, as a reader of the mount would.
    ///
    /// # Errors
    /// `NotFound` or `NotADirectory` if nothing is there; faults.
    fn look_up(&self, path: ItemPath) -> BoxFuture<'static, Result<(), Failure>>;

    /// Which entries of the dataset with this name its homes hold.
    ///
    /// # Errors
    /// See [`ResidencyError`].
    fn resident(&self, dataset: String) -> BoxFuture<'static, Result<Resident, ResidencyError>>;

    /// Which of these hashes an item has that is resident, and that clients may have by its hash.
    fn look_up_content(&self, hashes: Vec<ContentHash>) -> BoxFuture<'static, Vec<bool>>;

    /// The items with these hashes: see [`crate::dataset::contents::Contents::get`].
    ///
    /// # Errors
    /// They are too large together.
    fn get_content(
        &self,
        hashes: Vec<ContentHash>,
    ) -> BoxFuture<'static, Result<Vec<Option<Bytes>>, TooLarge>>;

    /// Gives items to their homes: see [`crate::dataset::contents::Contents::insert`].
    fn insert_content(
        &self,
        from: Option<u32>,
        items: Vec<(ContentHash, Bytes)>,
    ) -> BoxFuture<'static, Vec<Inserted>>;

    /// Whether the user with this id may speak for a job: see [`crate::job::Readers::may_speak`]. A text that is no
    /// job's name belongs to no user.
    fn may_speak(&self, job: &str, user: u32, process: Option<Process>) -> bool;

    /// The processes on this node that read datasets by chunks.
    fn chunk_readers(&self) -> &ChunkReaders;

    /// The pipelines that were submitted on this node.
    fn pipelines(&self) -> &Pipelines;

    /// This daemon, as one of those that serve the same mounts one after another. `None` if no other daemon can take
    /// over.
    fn incarnation(&self) -> Option<Incarnation>;

    /// Replaces this daemon by that of another program, or only checks whether it could. Returns what the program says
    /// of itself. The daemon may die before the answer has arrived.
    ///
    /// # Errors
    /// See [`UpgradeError`]. Nothing has changed.
    fn upgrade(
        &self,
        program: PathBuf,
        dry_run: bool,
    ) -> BoxFuture<'static, Result<Fit, UpgradeError>>;

    /// The images over directories of the mount.
    fn images(&self) -> NodeImages;

    /// Takes note of what the attendant has mounted, and waits until something else is wanted, or for some seconds.
    fn attend(&self, attendance: Attendance) -> BoxFuture<'static, WantedImages>;

    /// The recorder of accesses on this node.
    fn recorder(&self) -> &Recorder;

    /// Drops the kernel's caches of the mount, and takes its images away while something is recorded, so that the recording
    /// sees every access.
    fn show_all_accesses(&self) -> BoxFuture<'static, ()>;

    /// Has all nodes load the files that the client names into their kernels' caches. Ends early if the
    /// client disconnects.
    fn warm(&self, conversation: Conversation) -> BoxFuture<'static, io::Result<()>>;
}

/// `GET /v1/stats`.
pub(super) async fn stats(State(control): State<Control>) -> Answer {
    Answer::of(control.node.report())
}

/// `GET /v1/cluster`.
pub(super) async fn cluster(
    State(control): State<Control>,
    Extension(access): Extension<Access>,
) -> Answer {
    // A sweep is a message to every node, so users share them.
    Answer::of(control.node.cluster(access == Access::Users).await)
}

/// `GET /metrics`.
pub(super) async fn metrics(State(control): State<Control>) -> Response {
    let text = control.node.metrics().to_prometheus();
    ([("content-type", PROMETHEUS)], text).into_response()
}

/// `POST /v1/clear`.
pub(super) async fn clear(State(control): State<Control>, body: RequestBody) -> ControlResult {
    let request: ClearRequest = requests::parse(&body.bytes)?;
    let path = ItemPath::parse(request.path.as_bytes()).map_err(|error| {
        let advice = "Write a path of the mount, such as /lus/env";
        ControlError::malformed(error.to_string(), advice)
    })?;
    let cleared = control.node.clear(path, request.cluster).await;
    let effective = cleared.map_err(|failure| {
        let (status, advice) = match failure.kind {
            FailureKind::NotFound => (404, "ls in the mount shows what is served"),
            _ => (503, "Clear again when those nodes are back"),
        };
        ControlError::new(status, failure.to_string(), advice)
    })?;
    Ok(Answer::of(json!({ "cleared": effective })))
}

/// `GET /v1/options`.
pub(super) async fn options(State(control): State<Control>) -> Answer {
    Answer::of(json!({ "options": control.node.options().await }))
}

/// `GET /v1/daemon`.
pub(super) async fn daemon(State(control): State<Control>) -> Answer {
    Answer::of(json!(control.node.incarnation()))
}

/// `POST /v1/upgrade`.
pub(super) async fn upgrade(State(control): State<Control>, body: RequestBody) -> ControlResult {
    let request: UpgradeRequest = requests::parse(&body.bytes)?;
    if !request.program.is_absolute() {
        let error = "program: not an absolute path";
        return Err(ControlError::malformed(error, "Write /path/to/copperfs"));
    }
    let upgraded = control.node.upgrade(request.program, request.dry_run).await;
    let fit = upgraded.map_err(|error| {
        let status = match error {
            UpgradeError::NoTakeover | UpgradeError::Busy => 409,
            UpgradeError::Unfit { .. } | UpgradeError::Wire { .. } => 422,
        };
        ControlError::new(status, error.to_string(), error.advice())
    })?;
    Ok(Answer::of(json!(fit)))
}

/// `POST /v1/recording`: starts a recording that lasts until it is stopped.
pub(super) async fn start_recording(State(control): State<Control>) -> ControlResult {
    control.node.recorder().start().ok_or_else(busy)?;
    control.node.show_all_accesses().await;
    Ok(Answer::of(json!({ "recording": true })).created())
}

/// The query of `DELETE /v1/recording`.
#[derive(Debug, Deserialize)]
pub(super) struct StopQuery {
    #[serde(default)]
    discard: bool,
}

/// `DELETE /v1/recording`: stops the recording. The answer is the number of its accesses, and then one access
/// per line, unless they are discarded.
pub(super) async fn stop_recording(
    State(control): State<Control>,
    Query(StopQuery { discard }): Query<StopQuery>,
) -> Result<Response, ControlError> {
    let recording = control.node.recorder().stop().ok_or_else(|| {
        let error = "nothing is being recorded on this mount";
        ControlError::new(409, error, "Start a recording with copperfs record start")
    })?;
    if discard {
        let count = recording.profile.accesses.len();
        return Ok(Answer::of(json!({ "discarded": count })).into_response());
    }
    let mut text = Vec::new();
    write_lines(&mut text, &[recording.head()])
        .and_then(|()| write_lines(&mut text, &recording.profile.accesses))
        .map_err(|error| {
            let why = format!("the recording cannot be written: {error}");
            ControlError::new(500, why, "Record again")
        })?;
    Ok(([("content-type", NDJSON)], text).into_response())
}

/// `POST /v1/record`: records while the client is connected. The recording is the answer when the client
/// ends its request; it is discarded if the client disconnects before.
pub(super) async fn record(
    State(control): State<Control>,
    body: Body,
) -> Result<Response, ControlError> {
    let id = control.node.recorder().start().ok_or_else(busy)?;
    let recording = RecordingGuard {
        node: Arc::clone(&control.node),
        id,
    };
    let (conversation, response) = Conversation::new(body);
    drop(tokio::spawn(async move {
        if let Err(error) = recording.serve(conversation).await {
            tracing::info!(%error, "a recording was discarded: its command has ended");
        }
    }));
    Ok(response)
}

/// `POST /v1/warm`.
pub(super) async fn warm(State(control): State<Control>, body: Body) -> Response {
    let (conversation, response) = Conversation::new(body);
    let warming = control.node.warm(conversation);
    drop(tokio::spawn(async move {
        if let Err(error) = warming.await {
            tracing::debug!(%error, "a client that warms has gone");
        }
    }));
    response
}

fn busy() -> ControlError {
    let error = "something is being recorded on this mount already";
    let advice = "copperfs record stop -o FILE ends that recording, copperfs record stop --discard \
                  discards it";
    ControlError::new(409, error, advice)
}

/// A recording that is stopped and discarded on drop. While a recording runs, no file is pushed, so a
/// forgotten recording would slow all later readers.
struct RecordingGuard {
    node: Arc<dyn NodeCommands>,
    id: crate::record::RecordingId,
}

impl RecordingGuard {
    async fn serve(self, conversation: Conversation) -> io::Result<()> {
        let Conversation { mut lines, answer } = conversation;
        self.node.show_all_accesses().await;
        answer.send(&json!({ "recording": true })).await?;
        // The client ends the recording with a line. A closed connection discards it.
        tokio::select! {
            line = lines.wait() => line?.ok_or(io::ErrorKind::UnexpectedEof)?,
            () = answer.closed() => return Err(io::ErrorKind::BrokenPipe.into()),
        };
        let Some(recording) = self.node.recorder().stop_own(self.id) else {
            let error = "the recording was ended meanwhile by `copperfs record stop`";
            return answer.send(&json!({ "error": error })).await;
        };
        answer.send(&recording.head()).await?;
        for some in recording.profile.accesses.chunks(1024) {
            answer.send_all(some).await?;
        }
        Ok(())
    }
}

impl Drop for RecordingGuard {
    fn drop(&mut self) {
        drop(self.node.recorder().stop_own(self.id));
    }
}
