//! Datasets, jobs and budgets: what is declared, what was decided, and what nodes report of it.

use super::error::ControlError;
use super::request::{RequestBody, User};
use super::{Answer, Answered, Control, requests, views};
use crate::model::{Command, CommandError, DatasetSpec, Decision, Overview, Reply};
use axum::Extension;
use axum::extract::{Path, State};
use copperfs_overlay::FailureKind;
use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;

/// How long the answer to `dataset add` waits for the count. One from an index is there by then; a
/// long walk goes on, and `dataset show` tells how far it is.
const COUNT_PATIENCE: Duration = Duration::from_secs(3);

type This = State<Control>;
type Name = Path<String>;

/// `GET /v1/datasets`.
pub(super) async fn list(State(this): This) -> Answered {
    this.read(|all| Some(views::datasets(all))).await
}

/// `GET /v1/datasets/{name}`.
pub(super) async fn show(State(this): This, Path(name): Name) -> Answered {
    let read = this.read(|all| views::dataset(all, &name));
    read.await.map_err(|error| error.named("dataset", &name))
}

/// `POST /v1/datasets`.
pub(super) async fn add(State(this): This, body: RequestBody) -> Answered {
    this.add_dataset(&body).await
}

/// `DELETE /v1/datasets/{name}`.
pub(super) async fn remove(State(this): This, Path(name): Name) -> Answered {
    this.act(Command::RemoveDataset(name)).await
}

/// `PUT /v1/datasets/{name}/cache`: `allocateCacheSize`.
pub(super) async fn allocate_cache(
    State(this): This,
    Path(dataset): Name,
    body: RequestBody,
) -> Answered {
    let size = requests::CacheRequest::parse(&body)?.size;
    this.act(Command::AllocateCacheSize { dataset, size }).await
}

/// `GET /v1/jobs`.
pub(super) async fn list_jobs(State(this): This) -> Answered {
    this.read(|all| Some(views::jobs(all))).await
}

/// `GET /v1/jobs/{id}`.
pub(super) async fn show_job(State(this): This, Path(name): Name) -> Answered {
    let read = this.read(|all| views::job(all, &name));
    read.await.map_err(|error| error.named("job", &name))
}

/// `POST /v1/jobs`: declares a job for the user that asks. Jobs declared by root get no owner, because root
/// declares them for other users.
pub(super) async fn add_job(
    State(this): This,
    Extension(User(user)): Extension<User>,
    body: RequestBody,
) -> Answered {
    let owner = user.filter(|&uid| uid != 0);
    let spec = requests::JobRequest::parse(&body)?.into_spec(owner);
    let name = spec.name.clone();
    this.act(Command::AddJob(spec)).await?;
    let read = this.read(|all| views::job(all, &name)).await?;
    Ok(Answer {
        status: 201,
        ..read
    })
}

/// `DELETE /v1/jobs/{id}`.
pub(super) async fn end_job(State(this): This, Path(name): Name) -> Answered {
    this.act(Command::EndJob(name)).await
}

/// `PUT /v1/jobs/{id}/remote-io`: `allocateRemoteIO`.
pub(super) async fn allocate_remote_io(
    State(this): This,
    Path(job): Name,
    body: RequestBody,
) -> Answered {
    let rate = requests::RateRequest::parse(&body)?.rate;
    this.act(Command::AllocateRemoteIo { job, rate }).await
}

/// `PUT /v1/policy`.
pub(super) async fn set_policy(State(this): This, body: RequestBody) -> Answered {
    let policy = requests::PolicyRequest::parse(&body)?.policy;
    this.act(Command::SetPolicy(policy)).await
}

/// `GET /v1/allocation`: all that is decided, with what nodes report.
pub(super) async fn allocation(State(this): This) -> Answered {
    this.read(|all| Some(views::allocation(all))).await
}

/// `GET /v1/nodes`.
pub(super) async fn nodes(State(this): This) -> Answered {
    this.read(|all| Some(views::nodes(all))).await
}

impl Control {
    /// What the allocator knows.
    async fn overview(&self) -> Result<Overview, ControlError> {
        match self.agent.command(Command::Overview).await? {
            Reply::Overview(overview) => Ok(*overview),
            Reply::Done(_) => Err(CommandError::unavailable(
                "the allocator gave an answer to something else: is it another version of copperfs?",
            )
            .into()),
        }
    }

    async fn read(&self, view: impl FnOnce(&Overview) -> Option<Value>) -> Answered {
        let overview = self.overview().await?;
        view(&overview)
            .map(Answer::of)
            .ok_or_else(ControlError::not_found)
    }

    async fn act(&self, command: Command) -> Answered {
        match self.agent.command(command).await? {
            Reply::Done(serial) => {
                let serial = serial.to_string();
                Ok(Answer::of(serde_json::json!({ "serial": serial })))
            }
            Reply::Overview(_) => Ok(Answer::of(Value::Null)),
        }
    }

    /// Declares a dataset, and waits a little for its size. A dataset at a path that does not exist is
    /// refused. A dataset that turns out to be empty is withdrawn, and the declaration that it replaced is
    /// restored.
    async fn add_dataset(&self, body: &[u8]) -> Answered {
        let request = requests::DatasetRequest::parse(body)?;
        let replace = request.replace.unwrap_or(false);
        let spec = request.into_spec(&self.served)?;
        let (name, path) = (spec.name.clone(), spec.path.clone());
        let before = self.declared(&name).await?;
        // If the name is taken, that error is reported rather than one about the path.
        if replace || before.is_none() {
            self.check_place(&spec).await?;
        }
        let mut decisions = self.agent.watch();
        let declared = self.agent.command(match replace {
            true => Command::ReplaceDataset(spec),
            false => Command::AddDataset(spec),
        });
        let serial = match declared.await? {
            Reply::Done(serial) => serial,
            Reply::Overview(overview) => overview.decision.serial,
        };
        let known = |decision: &Arc<Decision>| {
            // Decisions before `serial` still describe the replaced declaration.
            let dataset = decision.dataset(&name);
            let dataset = dataset.filter(|_| decision.serial >= serial);
            dataset.is_some_and(|one| one.size > 0 || one.trouble.is_some())
        };
        let counted = tokio::time::timeout(COUNT_PATIENCE, decisions.wait_for(known)).await;
        // Not the lock of the channel is kept, but what it shows.
        let counted = counted
            .ok()
            .and_then(|counted| Some(Arc::clone(&*counted.ok()?)));
        let trouble = counted.and_then(|decision| decision.dataset(&name)?.trouble.clone());
        let empty = trouble.is_some_and(|why| why.contains(requests::EMPTY));
        if empty {
            self.act(match before {
                Some(before) => Command::ReplaceDataset(before),
                None => Command::RemoveDataset(name.clone()),
            })
            .await?;
            return Err(ControlError::empty(&name, &path));
        }
        let read = self.read(|all| views::dataset(all, &name)).await?;
        Ok(Answer {
            status: 201,
            ..read
        })
    }
}

impl Control {
    /// Checks that the path of a dataset exists. If storage does not answer, the dataset is declared
    /// anyway: it reports the trouble, and is counted later.
    async fn check_place(&self, spec: &DatasetSpec) -> Result<(), ControlError> {
        match self.names.look(spec.path.clone()).await {
            Err(failure)
                if matches!(
                    failure.kind,
                    FailureKind::NotFound | FailureKind::NotADirectory
                ) =>
            {
                Err(ControlError::nothing_there(&spec.name, &spec.path))
            }
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// The declaration of the dataset `name`, if there is one.
    async fn declared(&self, name: &str) -> Result<Option<DatasetSpec>, ControlError> {
        let overview = self.overview().await?;
        Ok(overview.decision.dataset(name).map(DatasetSpec::of))
    }
}
