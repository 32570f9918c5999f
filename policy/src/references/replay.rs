//! Replays a trace of a pipeline: the exact meaning of its events, under LRC or another policy.
//!
//! A trace is a JSON object:
//!
//! ```json
//! {"cache": 3, "blocks": {"A": 1, "B": 1, "C": 1, "D": 1}, "initial_lru_to_mru": ["C", "B", "A"],
//!  "options": {"admit": "always", "decrement": "read", "attribution": "none", "floor": 0},
//!  "events": [
//!    {"ev": "submit", "tenant": "t", "job": "j", "attempt": 0, "tasks": [{"id": "d", "in": ["A"]}]},
//!    {"ev": "read", "tenant": "t", "job": "j", "task": "d", "block": "A"},
//!    {"ev": "put", "block": "D"},
//!    {"ev": "done", "tenant": "t", "job": "j", "task": "d"},
//!    {"ev": "taskfail", "tenant": "t", "job": "j", "task": "d"},
//!    {"ev": "end", "tenant": "t", "job": "j"},
//!    {"ev": "flush"}]}
//! ```
//!
//! Sizes, `cache` and `floor` are whole bytes, not negative. `cache`, `blocks` and `events` must be there,
//! and each event must have the fields that it is shown with above, except `tenant` (the empty name),
//! `attempt` (0), the `in` of a task (no block), and the `job` and the `task` of a read. A missing option
//! has the value above. Null is the same as missing where a field may be missing. Other fields are ignored.
//!
//! The meaning of the events. A job is a pair of tenant and job. A clock advances with each read and put,
//! and is the *last use* of the block; the initial blocks were used before the first event, in their order.
//!
//! - `submit` is ignored if its attempt is not above the highest of that job so far, even if the job has
//!   ended. Otherwise the job loses its old references and becomes the youngest live job, and each task
//!   holds one reference to each different block of its `in`. These blocks are *declared* for good.
//! - `read` consumes first. With a `job`, under `decrement` `read`, it is the reference of that task to the
//!   block, if the task still holds it. Without a `job`, under `attribution` `fifo` and any `decrement`, it
//!   is a reference of the oldest live job that holds one to the block, and of the first listed task in it
//!   that does. Then the block is used: it is a hit if it is resident, else a miss, and is inserted.
//! - `put` uses the block too, and inserts it if it is not resident, but consumes and counts nothing.
//! - `done` ends a task of a live job for this attempt: its references go.
//! - `taskfail`: a task of a live job that has not ended holds all its references again.
//! - `end`: all references of the job go, and it is not live.
//! - `flush` evicts the declared resident blocks with count 0, by their last use.
//!
//! A block that is larger than the cache is not inserted. Otherwise victims are chosen until it fits: the
//! resident block with the least (count, last use) each time. With a floor, undeclared resident blocks are
//! spared while those that are not victims have at most that many bytes together, unless no declared one is
//! left. Under `admit` `compare` the block that comes in is a candidate at each choice, declared or not, and
//! the floor does not spare it. If it is the least, it stays out, and none of the victims is evicted.
//!
//! Where the rules leave a choice:
//!
//! - Only `submit` looks at `attempt`. A `done` from an earlier attempt ends the task of that name in the
//!   latest one.
//! - A read with a `job` is never attributed to another job, even if it consumes nothing, because the
//!   job, or its task, is unknown or missing.
//! - The block that comes in was used last, so under `compare` it is the least only if its count is below
//!   the count of every other candidate. If only spared blocks are left, they are its rivals.
//! - A floor of 0 spares no block, not even an empty one. Empty blocks are victims like others.
//! - The initial blocks must fit and must differ. They are undeclared until a submission lists them.
//! - Every block that an event names must have a size, also in a submission that is ignored. Two tasks of
//!   one submission never have the same id, for the same reason: a trace is checked before it is run.
//! - Under `lrc-offline` all submissions are taken in their order before the first event, so the highest
//!   attempt of a job counts from the start, and at their place they do nothing. `end` does nothing.
//! - The other policies keep the same table of jobs, so `counts` and `flush` mean the same. They only put
//!   their rank in the place of the count: see [`EvictionPolicy`](super::EvictionPolicy).

mod cache;
mod event;
mod json;
mod numbers;
mod run;
mod trace;

pub use event::{Attribution, Decrement, Event, Options, Task};
pub use run::{Outcome, Replay, replay};
pub use trace::{Access, Trace, TraceBuilder, TraceError};

#[cfg(test)]
mod tests;
