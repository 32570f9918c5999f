//! `POST /v1/plan`: the outcome of a policy, for a problem as `copperfs plan` reads it.

use super::error::ControlError;
use super::request::RequestBody;
use super::{Answer, Control, ControlResult, requests};
use axum::extract::State;
use copperfs_policy::{Policy, Problem, UnknownPolicy};
use serde_json::{Map, Value};
use std::sync::Arc;
use tokio::sync::Semaphore;

/// Plans that run or wait, for all clients; further plans are refused (503).
pub(super) const PLANS_MAX: usize = 16;

/// Limits plans: one is computed at a time, on a blocking thread.
#[derive(Clone, Debug)]
pub(super) struct Plans {
    /// One permit for each plan that runs or waits.
    pub(super) admission: Arc<Semaphore>,
    pub(super) turn: Arc<Semaphore>,
}

impl Default for Plans {
    fn default() -> Self {
        Self {
            admission: Arc::new(Semaphore::new(PLANS_MAX)),
            turn: Arc::new(Semaphore::new(1)),
        }
    }
}

/// The outcome of a policy. It is computed on a blocking thread: a large problem takes up to a second
/// of one core, and this node's reads must not wait for it.
pub(super) async fn plan(State(this): State<Control>, body: RequestBody) -> ControlResult {
    let busy = || {
        let why = format!("{PLANS_MAX} plans are being computed or are queued");
        ControlError::new(503, why, "Ask again in a moment, or use copperfs plan")
    };
    let admitted = Arc::clone(&this.plans.admission).try_acquire_owned();
    let admitted = admitted.map_err(|_full| busy())?;
    // The semaphore is never closed.
    let turn = Arc::clone(&this.plans.turn).acquire_owned().await.ok();
    let working = tokio::task::spawn_blocking(move || {
        let answer = compute(&body.bytes);
        // Both permits move into the computation, so that it counts until its end even if the client
        // disconnects.
        drop((admitted, turn, body));
        answer
    });
    working.await.unwrap_or_else(|error| {
        let why = format!("the plan could not be computed: {error}");
        Err(ControlError::new(500, why, "Ask again"))
    })
}

/// Solves a problem in the form that `copperfs plan` reads. The body may also name the policy.
fn compute(body: &[u8]) -> ControlResult {
    let advice = "docs/ALLOCATOR.md tells the format, copperfs plan --help shows an example";
    let mut object: Map<String, Value> = requests::parse(body)?;
    let policy = match object.remove("policy") {
        Some(Value::String(name)) => {
            (name.parse()).map_err(|error: UnknownPolicy| ControlError::invalid(&error, advice))?
        }
        Some(other) => {
            let error = format!("{other} is no policy");
            return Err(ControlError::invalid(&error, advice));
        }
        None => Policy::default(),
    };
    let problem = Problem::from_value(&Value::Object(object))
        .map_err(|error| ControlError::invalid(&error, advice))?;
    let outcome = policy.allocate(&problem);
    Ok(Answer::of(outcome.to_json(&problem, policy)))
}
