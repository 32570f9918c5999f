//! The HTTP+JSON API of datasets, jobs and budgets.
//!
//! `SiloD`'s two calls (Table 3: `allocateCacheSize`, `allocateRemoteIO`), the declarations that they
//! need, and read-outs. On a Unix socket beside the daemon's other files (mode 0600), and if it is asked
//! for on TCP under the cluster's mutual TLS. Any node answers: what is asked goes up to the allocator.
//! `docs/openapi.json` describes it; a test keeps it equal to [`routes`].
//!
//! It decides nothing: checks are the registry's ([`crate::budgets::registry`]).

use crate::budgets::Served;
use crate::budgets::Steward;
use crate::model::{Command, CommandError, DatasetSpec, Decision, Overview, Reply};
use copperfs_overlay::FailureKind;
use copperfs_policy::{Policy, Problem, UnknownPolicy};
use error::ApiError;
use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;

pub mod client;
mod error;
mod names;
pub mod requests;
pub mod routes;
pub mod serve;
#[cfg(test)]
mod tests;
pub mod views;

pub use names::Names;
pub use serve::ApiServer;

/// How long the answer to `dataset add` waits for the count. One from an index is there by then; a
/// long walk goes on, and `dataset show` tells how far it is.
const COUNT_PATIENCE: Duration = Duration::from_secs(3);

/// Plans that run or wait in one [`Api`], for all clients; a further one is refused (503).
const PLANS_MAX: usize = 16;

/// The API of one node. Cheap to clone.
#[derive(Clone)]
pub struct Api {
    steward: Steward,
    served: Arc<Served>,
    plans: Plans,
    names: Arc<dyn Names>,
    /// The ordinary user that sends the requests, if known. This user owns the jobs that they declare.
    user: Option<u32>,
}

/// Limits plans: one is computed at a time, on a blocking thread.
#[derive(Clone, Debug)]
struct Plans {
    /// One permit for each plan that runs or waits.
    places: Arc<Semaphore>,
    turn: Arc<Semaphore>,
}

impl Default for Plans {
    fn default() -> Self {
        Self {
            places: Arc::new(Semaphore::new(PLANS_MAX)),
            turn: Arc::new(Semaphore::new(1)),
        }
    }
}

impl std::fmt::Debug for Api {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Api")
            .field("served", &self.served)
            .finish_non_exhaustive()
    }
}

/// What is answered.
#[derive(Clone, PartialEq, Debug)]
pub struct Answer {
    /// The HTTP status.
    pub status: u16,
    /// JSON.
    pub body: Value,
}

impl Api {
    /// The API of the node with `steward`, which serves `served`; `names` looks up paths in the namespace.
    #[must_use]
    pub fn new(steward: Steward, served: Served, names: Arc<dyn Names>) -> Self {
        Self {
            steward,
            served: Arc::new(served),
            plans: Plans::default(),
            names,
            user: None,
        }
    }

    /// The API for requests of user `uid`. Jobs declared by root get no owner, because root declares them
    /// for other users.
    #[must_use]
    pub fn for_user(&self, uid: u32) -> Self {
        Self {
            user: (uid != 0).then_some(uid),
            ..self.clone()
        }
    }

    /// Answers one request. May be cancelled; a command may have been carried out then.
    pub async fn answer(&self, method: &str, path: &str, body: &[u8]) -> Answer {
        let answered = match routes::find(method, path) {
            Ok((route, name)) => self.route(route, &name, body).await,
            Err(error) => Err(error),
        };
        answered.unwrap_or_else(ApiError::into_answer)
    }

    async fn route(
        &self,
        route: routes::Route,
        name: &str,
        body: &[u8],
    ) -> Result<Answer, ApiError> {
        use routes::Route;
        let name = name.to_owned();
        match route {
            Route::Datasets => self.read(|all| Some(views::datasets(all))).await,
            Route::Dataset => {
                let read = self.read(|all| views::dataset(all, &name));
                read.await.map_err(|error| error.named("dataset", &name))
            }
            Route::AddDataset => self.add_dataset(body).await,
            Route::RemoveDataset => self.act(Command::RemoveDataset(name)).await,
            Route::AllocateCache => {
                let size = requests::CacheRequest::parse(body)?.size;
                self.act(Command::AllocateCacheSize {
                    dataset: name,
                    size,
                })
                .await
            }
            Route::Jobs => self.read(|all| Some(views::jobs(all))).await,
            Route::Job => {
                let read = self.read(|all| views::job(all, &name));
                read.await.map_err(|error| error.named("job", &name))
            }
            Route::AddJob => {
                let spec = requests::JobRequest::parse(body)?.into_spec(self.user);
                let name = spec.name.clone();
                self.act(Command::AddJob(spec)).await?;
                let read = self.read(|all| views::job(all, &name)).await?;
                Ok(Answer {
                    status: 201,
                    ..read
                })
            }
            Route::EndJob => self.act(Command::EndJob(name)).await,
            Route::AllocateIo => {
                let rate = requests::RateRequest::parse(body)?.rate;
                self.act(Command::AllocateRemoteIo { job: name, rate })
                    .await
            }
            Route::Policy => {
                let policy = requests::PolicyRequest::parse(body)?.policy;
                self.act(Command::SetPolicy(policy)).await
            }
            Route::Allocation => self.read(|all| Some(views::allocation(all))).await,
            Route::Nodes => self.read(|all| Some(views::nodes(all))).await,
            Route::Plan => self.plan(body).await,
            Route::Document => Ok(Answer::of(routes::document())),
        }
    }

    /// The outcome of a policy. It is computed on a blocking thread: a large problem takes up to a second
    /// of one core, and this node's reads must not wait for it.
    async fn plan(&self, body: &[u8]) -> Result<Answer, ApiError> {
        let busy = || {
            let why = format!("{PLANS_MAX} plans are being computed or are queued");
            ApiError::new(503, why, "Ask again in a moment, or use copperfs plan")
        };
        let place = Arc::clone(&self.plans.places).try_acquire_owned();
        let place = place.map_err(|_full| busy())?;
        // The semaphore is never closed.
        let turn = Arc::clone(&self.plans.turn).acquire_owned().await.ok();
        // Copied only now, so that waiting requests hold no second copy.
        let body = body.to_vec();
        let working = tokio::task::spawn_blocking(move || {
            let answer = plan(&body);
            // If the client disconnects, the places stay taken until the computation ends.
            drop((place, turn));
            answer
        });
        working.await.unwrap_or_else(|error| {
            let why = format!("the plan could not be computed: {error}");
            Err(ApiError::new(500, why, "Ask again"))
        })
    }

    /// What the allocator knows.
    async fn overview(&self) -> Result<Overview, ApiError> {
        match self.steward.command(Command::Overview).await? {
            Reply::Overview(overview) => Ok(*overview),
            Reply::Done(_) => Err(CommandError::unavailable(
                "the allocator gave an answer to something else: is it another version of copperfs?",
            )
            .into()),
        }
    }

    async fn read(
        &self,
        view: impl FnOnce(&Overview) -> Option<Value>,
    ) -> Result<Answer, ApiError> {
        let overview = self.overview().await?;
        view(&overview)
            .map(Answer::of)
            .ok_or_else(ApiError::not_found)
    }

    async fn act(&self, command: Command) -> Result<Answer, ApiError> {
        match self.steward.command(command).await? {
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
    async fn add_dataset(&self, body: &[u8]) -> Result<Answer, ApiError> {
        let request = requests::DatasetRequest::parse(body)?;
        let replace = request.replace.unwrap_or(false);
        let spec = request.into_spec(&self.served)?;
        let (name, path) = (spec.name.clone(), spec.path.clone());
        let before = self.declared(&name).await?;
        // If the name is taken, that error is reported rather than one about the path.
        if replace || before.is_none() {
            self.check_place(&spec).await?;
        }
        let mut decisions = self.steward.watch();
        let declared = self.steward.command(match replace {
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
            return Err(ApiError::empty(&name, &path));
        }
        let read = self.read(|all| views::dataset(all, &name)).await?;
        Ok(Answer {
            status: 201,
            ..read
        })
    }
}

impl Api {
    /// Checks that the path of a dataset exists. If storage does not answer, the dataset is declared
    /// anyway: it reports the trouble, and is counted later.
    async fn check_place(&self, spec: &DatasetSpec) -> Result<(), ApiError> {
        match self.names.look(spec.path.clone()).await {
            Err(failure)
                if matches!(
                    failure.kind,
                    FailureKind::NotFound | FailureKind::NotADirectory
                ) =>
            {
                Err(ApiError::nothing_there(&spec.name, &spec.path))
            }
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// The declaration of the dataset `name`, if there is one.
    async fn declared(&self, name: &str) -> Result<Option<DatasetSpec>, ApiError> {
        let overview = self.overview().await?;
        Ok(overview.decision.dataset(name).map(DatasetSpec::of))
    }
}

impl Answer {
    fn of(body: Value) -> Self {
        Self { status: 200, body }
    }
}

/// What a policy would give, of a problem as `copperfs plan` reads it.
fn plan(body: &[u8]) -> Result<Answer, ApiError> {
    let advice = "docs/ALLOCATOR.md tells the format, copperfs plan --help shows an example";
    let refused =
        |status, error: &dyn std::fmt::Display| ApiError::new(status, error.to_string(), advice);
    let mut value: Value = requests::object(body)?;
    let policy = match value
        .as_object_mut()
        .and_then(|object| object.remove("policy"))
    {
        Some(Value::String(name)) => name.parse().map_err(|error| {
            let error: UnknownPolicy = error;
            refused(422, &error)
        })?,
        Some(other) => return Err(refused(422, &format!("{other} is no policy"))),
        None => Policy::default(),
    };
    let problem = Problem::from_value(&value).map_err(|error| refused(422, &error))?;
    Ok(Answer::of(
        policy.allocate(&problem).to_json(&problem, policy),
    ))
}
