//! The HTTP+JSON API of datasets, jobs and budgets.
//!
//! `SiloD`'s two calls (Table 3: `allocateCacheSize`, `allocateRemoteIO`), the declarations that they
//! need, and read-outs. On a Unix socket beside the daemon's other files (mode 0600), and if it is asked
//! for on TCP under the cluster's mutual TLS. Any node answers: what is asked goes up to the allocator.
//! `docs/openapi.json` describes it; a test keeps it equal to [`routes`].
//!
//! It decides nothing: checks are the registry's ([`crate::budgets::registry`]).

use crate::allocator::{Policy, Problem, UnknownPolicy};
use crate::budgets::{Command, CommandError, DatasetSpec, Decision, Overview, Reply, Steward};
use crate::config::datasets::Served;
use copperfs_overlay::FailureKind;
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

/// Plans in work and waiting for their turn, of all clients of one [`Api`]; one more is refused (503).
const PLANS_MAX: usize = 16;

/// The API of one node. Cheap to clone.
#[derive(Clone)]
pub struct Api {
    steward: Steward,
    served: Arc<Served>,
    plans: Plans,
    names: Arc<dyn Names>,
    /// The ordinary user whose requests these are, if that is known: whose the jobs are that it declares.
    user: Option<u32>,
}

/// Plans that are worked out: one at a time, beside all else that the node does.
#[derive(Clone, Debug)]
struct Plans {
    /// One for each plan in work or waiting.
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
    /// The API of the node with `steward`, which serves `served`; `names` are those that lie there.
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

    /// The API for requests of the user `uid`. Root declares jobs for others: theirs belong to nobody.
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

    /// What a policy would give. It is worked out on a thread of its own: a large problem takes a core
    /// for as long as a second, and the reads of this node must not wait for it.
    async fn plan(&self, body: &[u8]) -> Result<Answer, ApiError> {
        let busy = || {
            let why = format!("{PLANS_MAX} plans are being worked out or wait for their turn");
            ApiError::new(503, why, "Ask again in a moment, or use copperfs plan")
        };
        let place = Arc::clone(&self.plans.places).try_acquire_owned();
        let place = place.map_err(|_full| busy())?;
        // Never closed.
        let turn = Arc::clone(&self.plans.turn).acquire_owned().await.ok();
        // Not before its turn: those that wait hold no second copy.
        let body = body.to_vec();
        let working = tokio::task::spawn_blocking(move || {
            let answer = plan(&body);
            // A client that has gone away gives up its place when the work is done, not before.
            drop((place, turn));
            answer
        });
        working.await.unwrap_or_else(|error| {
            let why = format!("the plan was not worked out: {error}");
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

    /// Declares a dataset, and waits a little for its size. Nothing is declared where nothing is, and one
    /// that turns out to be empty is taken back: the declaration that it has replaced stands again.
    async fn add_dataset(&self, body: &[u8]) -> Result<Answer, ApiError> {
        let request = requests::DatasetRequest::parse(body)?;
        let replace = request.replace.unwrap_or(false);
        let spec = request.into_spec(&self.served)?;
        let (name, path) = (spec.name.clone(), spec.path.clone());
        let before = self.declared(&name).await?;
        // A name that is taken is the more telling reason to refuse.
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
            // An earlier decision tells of the declaration that was replaced.
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
    /// Checks that something lies where a dataset is to begin. Storage that does not answer now is no
    /// reason to refuse: the dataset says what troubles it, and is counted later.
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
