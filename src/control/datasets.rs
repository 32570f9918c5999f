//! Datasets, jobs and budgets: declarations, decisions, and the nodes' reports about them.

use super::error::ControlError;
use super::request::{Peer, RequestBody};
use super::requests::{self, DatasetRequest, JobRequest, KeepRequest, PolicyRequest};
use super::{Answer, Control, ControlResult, views};
use crate::model::{
    Command, CommandError, DatasetSpec, DatasetTrouble, Decision, Overview, Reply, Serial,
};
use axum::Extension;
use axum::extract::{Path, State};
use axum::routing::{MethodRouter, get};
use copperfs_overlay::FailureKind;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

/// How long the answer to `dataset add` waits for the count. A count from an index ends within that time; a
/// long walk continues, and `dataset show` reports its progress.
const COUNT_TIMEOUT: Duration = Duration::from_secs(3);

type This = State<Control>;
type Name = Path<String>;
type View = fn(&Overview, &str) -> Option<Value>;

/// Answers with a view of the decision and of the nodes' reports.
pub(super) fn get_view(view: fn(&Overview) -> Value) -> MethodRouter<Control> {
    get(move |State(this): This| async move {
        let overview = this.overview().await?;
        ControlResult::Ok(Answer::of(view(&overview)))
    })
}

/// `GET /v1/datasets/{name}`.
pub(super) async fn show(State(this): This, Path(name): Name) -> ControlResult {
    this.show("dataset", views::dataset, &name).await
}

/// `POST /v1/datasets`.
pub(super) async fn add(State(this): This, body: RequestBody) -> ControlResult {
    this.add_dataset(requests::parse(&body.bytes)?).await
}

/// `DELETE /v1/datasets/{name}`.
pub(super) async fn remove(State(this): This, Path(name): Name) -> ControlResult {
    this.act(Command::RemoveDataset(name)).await
}

/// `PUT /v1/datasets/{name}/cache`: `allocateCacheSize`.
pub(super) async fn allocate_cache(
    State(this): This,
    Path(dataset): Name,
    body: RequestBody,
) -> ControlResult {
    let size = requests::parse_cache(&body.bytes)?;
    this.act(Command::AllocateCacheSize { dataset, size }).await
}

/// `PUT /v1/datasets/{name}/keep`.
pub(super) async fn set_keep(
    State(this): This,
    Path(dataset): Name,
    body: RequestBody,
) -> ControlResult {
    let KeepRequest { keep } = requests::parse(&body.bytes)?;
    this.act(Command::SetKeep { dataset, keep }).await
}

/// `GET /v1/jobs/{id}`.
pub(super) async fn show_job(State(this): This, Path(name): Name) -> ControlResult {
    this.show("job", views::job, &name).await
}

/// `POST /v1/jobs`: declares a job for the user that sends the request. Jobs declared by root get no owner,
/// because root declares them for other users.
pub(super) async fn add_job(
    State(this): This,
    Extension(peer): Extension<Peer>,
    body: RequestBody,
) -> ControlResult {
    let owner = peer.user.filter(|&uid| uid != 0);
    let spec = requests::parse::<JobRequest>(&body.bytes)?.into_spec(owner);
    let name = spec.name.clone();
    this.carry_out(Command::AddJob(spec)).await?;
    this.show("job", views::job, &name)
        .await
        .map(Answer::created)
}

/// `DELETE /v1/jobs/{id}`.
pub(super) async fn end_job(State(this): This, Path(name): Name) -> ControlResult {
    this.act(Command::EndJob(name)).await
}

/// `PUT /v1/jobs/{id}/remote-io`: `allocateRemoteIO`.
pub(super) async fn allocate_remote_io(
    State(this): This,
    Path(job): Name,
    body: RequestBody,
) -> ControlResult {
    let rate = requests::parse_remote_io(&body.bytes)?;
    this.act(Command::AllocateRemoteIo { job, rate }).await
}

/// `PUT /v1/policy`.
pub(super) async fn set_policy(State(this): This, body: RequestBody) -> ControlResult {
    let request: PolicyRequest = requests::parse(&body.bytes)?;
    this.act(Command::SetPolicy(request.policy)).await
}

impl Control {
    /// The decision and the reports, as the allocator has them.
    pub(super) async fn overview(&self) -> Result<Overview, ControlError> {
        match self.agent.command(Command::Overview).await? {
            Reply::Overview(overview) => Ok(*overview),
            Reply::Done(_) => Err(other_version()),
        }
    }

    /// Answers with the `view` of the dataset or job `name`.
    async fn show(&self, kind: &str, view: View, name: &str) -> ControlResult {
        let view = view(&self.overview().await?, name).map(Answer::of);
        view.ok_or_else(|| ControlError::missing(kind, name))
    }

    /// Carries out a command that changes the decision. Returns the first decision with the change.
    async fn carry_out(&self, command: Command) -> Result<Serial, ControlError> {
        match self.agent.command(command).await? {
            Reply::Done(serial) => Ok(serial),
            Reply::Overview(_) => Err(other_version()),
        }
    }

    async fn act(&self, command: Command) -> ControlResult {
        let serial = self.carry_out(command).await?;
        Ok(Answer::of(json!({ "serial": serial.to_string() })))
    }

    /// Declares a dataset, and waits a little for its size. A dataset at a path that does not exist is
    /// refused. A dataset that turns out to be empty is withdrawn, and the declaration that it replaced is
    /// restored.
    async fn add_dataset(&self, request: DatasetRequest) -> ControlResult {
        let replace = request.replace.unwrap_or(false);
        let spec = request.into_spec(&self.served)?;
        let (name, path) = (spec.name.clone(), spec.path.clone());
        let overview = self.overview().await?;
        let before = overview.decision.dataset(&name).map(DatasetSpec::of);
        // If the name is taken, that error is reported rather than one about the path. If storage does not
        // answer, the dataset is declared anyway: it reports the trouble, and is counted later.
        if (replace || before.is_none())
            && let Err(failure) = self.node.look_up(path.clone()).await
            && let FailureKind::NotFound | FailureKind::NotADirectory = failure.kind
        {
            let error = format!("there is nothing at {path}, so dataset {name:?} is not declared");
            let advice = "Check the path: ls in the mount shows what is served; newer files show after \
                          copperfs clear";
            return Err(ControlError::invalid(&error, advice));
        }
        // Subscribed before the command, so that the decision with the count is not missed.
        let mut decisions = self.agent.watch();
        let command = match replace {
            true => Command::ReplaceDataset(spec),
            false => Command::AddDataset(spec),
        };
        let serial = self.carry_out(command).await?;
        let is_counted = |decision: &Arc<Decision>| {
            // Decisions before `serial` still describe the replaced declaration.
            let dataset = decision.dataset(&name);
            let dataset = dataset.filter(|_| decision.serial >= serial);
            dataset.is_some_and(|dataset| dataset.size > 0 || dataset.trouble.is_some())
        };
        let counted = tokio::time::timeout(COUNT_TIMEOUT, decisions.wait_for(is_counted)).await;
        // The decision is cloned, so that the channel's lock is not held across an await.
        let counted = counted
            .ok()
            .and_then(|counted| Some(Arc::clone(&*counted.ok()?)));
        let trouble = counted.and_then(|decision| decision.dataset(&name)?.trouble.clone());
        if trouble == Some(DatasetTrouble::Empty) {
            let command = match before {
                Some(before) => Command::ReplaceDataset(before),
                None => Command::RemoveDataset(name.clone()),
            };
            self.carry_out(command).await?;
            let error = format!(
                "dataset {name:?} has size zero: no file with any byte lies at {path} or below it"
            );
            let advice = "Check the path: what is served there shows ls in the mount";
            return Err(ControlError::invalid(&error, advice));
        }
        let shown = self.show("dataset", views::dataset, &name).await;
        shown.map(Answer::created)
    }
}

/// The allocator answered another command than the one it was sent.
fn other_version() -> ControlError {
    CommandError::unavailable(
        "the allocator gave an answer to something else: is it another version of copperfs?",
    )
    .into()
}
