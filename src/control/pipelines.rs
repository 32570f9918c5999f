//! Pipelines: the lines in which engines tell of jobs, and read-outs.

mod lines;

use super::conversation::{Answers, NDJSON, queued_body};
use super::error::ControlError;
use super::request::{Access, Peer, RequestBody};
use super::requests::{self, FlushRequest};
use super::{Answer, Control, ControlResult, NodeCommands};
use crate::model::{NodeReport, Overview};
use crate::pipeline::{Caller, JobKey, Line, LineError};
use axum::Extension;
use axum::body::Body;
use axum::extract::{Query, State};
use axum::response::{IntoResponse, Response};
use lines::{BodyLines, TornLine};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::HashSet;
use std::io;
use std::sync::Arc;

/// Counts in an answer, unless the request says another number.
const COUNTS_SHOWN: usize = 1000;
/// The maximum number of counts in an answer.
const COUNTS_MAX: usize = 100_000;

/// `POST /v1/lrc`: lines of [`Line`], each answered by one.
pub(super) async fn converse(
    State(control): State<Control>,
    Extension(peer): Extension<Peer>,
    Extension(access): Extension<Access>,
    body: Body,
) -> Response {
    let (out, answer) = queued_body();
    let session = Session {
        control,
        caller: caller(peer, access),
        peer,
        attached: None,
    };
    let lines = BodyLines::new(body);
    drop(tokio::spawn(async move {
        if let Err(error) = session.serve(lines, Answers::new(out)).await {
            tracing::debug!(%error, "a client that tells of pipelines has gone");
        }
    }));
    ([("content-type", NDJSON)], answer).into_response()
}

/// `GET /v1/lrc/jobs`: the live jobs that were submitted on this node, and how many other nodes have.
pub(super) async fn jobs(
    State(control): State<Control>,
    Extension(peer): Extension<Peer>,
    Extension(access): Extension<Access>,
) -> ControlResult {
    let jobs = control.node.pipelines().jobs(shown_to(peer, access));
    let overview = control.overview().await?;
    Ok(Answer::of(
        json!({ "jobs": jobs, "nodes": nodes(&overview) }),
    ))
}

/// The query of `GET /v1/lrc/tasks`.
#[derive(Debug, Deserialize)]
pub(super) struct TasksQuery {
    tenant: Option<String>,
    job: String,
}

/// `GET /v1/lrc/tasks`: the tasks of a live job that was submitted on this node.
pub(super) async fn tasks(
    State(control): State<Control>,
    Extension(peer): Extension<Peer>,
    Extension(access): Extension<Access>,
    Query(query): Query<TasksQuery>,
) -> ControlResult {
    let own = caller(peer, access).user.to_string();
    let (tenant, job) = (query.tenant.unwrap_or(own), query.job);
    let tasks = control
        .node
        .pipelines()
        .tasks(shown_to(peer, access), &tenant, &job);
    let tasks = tasks.ok_or_else(|| {
        let error = format!("no live job {job:?} of tenant {tenant:?} was submitted on this node");
        ControlError::new(
            404,
            error,
            "copperfs lrc ls tells which are live, and where",
        )
    })?;
    Ok(Answer::of(
        json!({ "tenant": tenant, "job": job, "tasks": tasks }),
    ))
}

/// The query of `GET /v1/lrc/counts`.
#[derive(Debug, Deserialize)]
pub(super) struct CountsQuery {
    dataset: String,
    #[serde(default)]
    path: String,
    max: Option<usize>,
}

/// `GET /v1/lrc/counts`: the counts of items that jobs of this node refer to.
pub(super) async fn counts(
    State(control): State<Control>,
    Extension(peer): Extension<Peer>,
    Extension(access): Extension<Access>,
    Query(query): Query<CountsQuery>,
) -> ControlResult {
    let most = query.max.unwrap_or(COUNTS_SHOWN).min(COUNTS_MAX);
    let (node, user) = (Arc::clone(&control.node), shown_to(peer, access));
    let counting = tokio::task::spawn_blocking(move || {
        node.pipelines()
            .counts(user, &query.dataset, &query.path, most)
    });
    let counts = counting.await.unwrap_or_else(|_stopped| Ok(Vec::new()));
    let counts =
        counts.map_err(|LineError { error, advice }| ControlError::new(404, error, advice))?;
    Ok(Answer::of(json!({ "counts": counts })))
}

/// `POST /v1/lrc/flush`: evicts the items of a dataset that were declared and have no references.
pub(super) async fn flush(State(control): State<Control>, body: RequestBody) -> ControlResult {
    let FlushRequest { dataset } = requests::parse(&body.bytes)?;
    let flushed = control.node.pipelines().flush(&dataset).await;
    let (items, bytes) =
        flushed.map_err(|LineError { error, advice }| ControlError::new(409, error, advice))?;
    Ok(Answer::of(json!({ "items": items, "bytes": bytes })))
}

fn caller(peer: Peer, access: Access) -> Caller {
    Caller {
        // Over TCP the sender holds the job's secret.
        user: peer.user.unwrap_or(0),
        is_owner: access >= Access::Owner,
    }
}

/// Returns the user whose jobs a client sees. `None`: all.
fn shown_to(peer: Peer, access: Access) -> Option<u32> {
    (access == Access::Users).then(|| peer.user.unwrap_or(u32::MAX))
}

/// Returns the nodes that have live jobs.
fn nodes(all: &Overview) -> Vec<Value> {
    let view = |report: &NodeReport| {
        let jobs = report.pipelines.iter().filter(|one| one.jobs > 0);
        let name = |id| all.decision.datasets.iter().find(|one| one.id == id);
        jobs.map(|one| {
            json!({
                "node": report.name,
                "dataset": name(one.dataset).map(|dataset| dataset.name.clone()),
                "jobs": one.jobs,
                "references": one.references,
                "bytes": one.bytes,
            })
        })
        .collect::<Vec<_>>()
    };
    all.reports.iter().flat_map(view).collect()
}

/// A conversation with a client that tells of pipelines.
struct Session {
    control: Control,
    caller: Caller,
    peer: Peer,
    /// The jobs that end with the conversation.
    attached: Option<AttachedJobs>,
}

/// Ends its jobs when it is dropped.
struct AttachedJobs {
    node: Arc<dyn NodeCommands>,
    jobs: HashSet<JobKey>,
}

impl Drop for AttachedJobs {
    fn drop(&mut self) {
        let jobs: Vec<JobKey> = self.jobs.drain().collect();
        self.node.pipelines().end_all(&jobs);
    }
}

impl Session {
    async fn serve(mut self, mut lines: BodyLines, answers: Answers) -> io::Result<()> {
        let inputs_max = self.control.node.pipelines().references_max();
        loop {
            let turns = &self.control.large_bodies;
            let next = tokio::select! {
                next = lines.next(inputs_max, turns, self.peer.user) => next,
                () = answers.closed() => return Err(io::ErrorKind::BrokenPipe.into()),
            };
            let answer = match next {
                Ok(None) => return Ok(()),
                Ok(Some(line)) => match line {
                    Ok(line) => self.carry_out(line).await,
                    Err(refused) => Err(refused),
                },
                // The rest of the line cannot be told from the next one.
                Err(TornLine::Refused(refused)) => {
                    return answers.send(&refusal(&refused)).await;
                }
                Err(TornLine::Lost(error)) => return Err(error),
            };
            let answer = answer.unwrap_or_else(|refused| refusal(&refused));
            answers.send(&answer).await?;
        }
    }

    async fn carry_out(&mut self, line: Line) -> Result<Value, LineError> {
        let pipelines = self.control.node.pipelines();
        match line {
            Line::Submit(submission) => {
                let (key, accepted) = pipelines.submit(&self.caller, *submission).await?;
                if let Some(attached) = self.attached.as_mut().filter(|_| accepted.accepted) {
                    attached.jobs.insert(key);
                }
                Ok(json!(accepted))
            }
            Line::Done(event) => Ok(json!({ "accepted": pipelines.done(&self.caller, &event)? })),
            Line::TaskFail(event) => {
                Ok(json!({ "accepted": pipelines.fail(&self.caller, &event)? }))
            }
            Line::End(event) => Ok(json!({ "accepted": pipelines.end(&self.caller, &event)? })),
            Line::Attach => {
                let node = Arc::clone(&self.control.node);
                let jobs = HashSet::new();
                self.attached.get_or_insert(AttachedJobs { node, jobs });
                Ok(json!({ "accepted": true }))
            }
        }
    }
}

fn refusal(LineError { error, advice }: &LineError) -> Value {
    json!({ "error": error, "try": advice })
}
