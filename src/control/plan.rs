//! `POST /v1/plan`: the outcome of a policy, for a problem as `copperfs plan` reads it.

use super::error::ControlError;
use super::request::RequestBody;
use super::{Answer, Answered, Control, requests};
use axum::extract::State;
use copperfs_policy::{Policy, Problem, UnknownPolicy};
use serde_json::Value;
use std::sync::Arc;
use tokio::sync::Semaphore;

/// Plans that run or wait, for all clients; a further one is refused (503).
pub(super) const PLANS_MAX: usize = 16;

/// Limits plans: one is computed at a time, on a blocking thread.
#[derive(Clone, Debug)]
pub(super) struct Plans {
    /// One permit for each plan that runs or waits.
    pub(super) places: Arc<Semaphore>,
    pub(super) turn: Arc<Semaphore>,
}

impl Default for Plans {
    fn default() -> Self {
        Self {
            places: Arc::new(Semaphore::new(PLANS_MAX)),
            turn: Arc::new(Semaphore::new(1)),
        }
    }
}

/// The outcome of a policy. It is computed on a blocking thread: a large problem takes up to a second
/// of one core, and this node's reads must not wait for it.
pub(super) async fn plan(State(this): State<Control>, body: RequestBody) -> Answered {
    let busy = || {
        let why = format!("{PLANS_MAX} plans are being computed or are queued");
        ControlError::new(503, why, "Ask again in a moment, or use copperfs plan")
    };
    let place = Arc::clone(&this.plans.places).try_acquire_owned();
    let place = place.map_err(|_full| busy())?;
    // The semaphore is never closed.
    let turn = Arc::clone(&this.plans.turn).acquire_owned().await.ok();
    let working = tokio::task::spawn_blocking(move || {
        let answer = computed(&body);
        // If the client disconnects, the places stay taken until the computation ends.
        drop((place, turn, body));
        answer
    });
    working.await.unwrap_or_else(|error| {
        let why = format!("the plan could not be computed: {error}");
        Err(ControlError::new(500, why, "Ask again"))
    })
}

/// What a policy would give, of a problem as `copperfs plan` reads it.
fn computed(body: &[u8]) -> Answered {
    let advice = "docs/ALLOCATOR.md tells the format, copperfs plan --help shows an example";
    let refused = |status, error: &dyn std::fmt::Display| {
        ControlError::new(status, error.to_string(), advice)
    };
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
