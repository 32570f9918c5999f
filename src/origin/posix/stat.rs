//! Attributes of many names, a few at a time, within a time limit.
//!
//! A batch starts with one worker. While it is not done, another one joins every few milliseconds up to
//! a small number: a local directory needs one thread, a parallel filesystem answers eight at once. A
//! name that hangs holds up its own worker only; the others take the remaining names.

use super::attributes::attributes;
use super::{STAT as ACTION, Shared};
use crate::origin::StatAnswers;
use bytes::Bytes;
use copperfs_overlay::{Attributes, Failure, FailureKind, ItemPath};
use rustix::fd::OwnedFd;
use rustix::fs::OFlags;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

/// Most workers of one batch.
const WORKERS_MAX: usize = 8;

/// How long a batch runs before another worker joins it.
const WORKER_DELAY: Duration = Duration::from_millis(2);

/// An answer for each name; `None` where none came in time.
pub(super) type Answers = Vec<Option<Result<Attributes, Failure>>>;

/// Answers [`crate::origin::Origin::stat`].
pub(super) async fn stat(
    shared: Arc<Shared>,
    parent: ItemPath,
    names: Vec<Bytes>,
) -> Result<StatAnswers, Failure> {
    let deadline = Instant::now() + shared.hang_timeout;
    let batch = Arc::new(Batch::new(parent.clone(), names, None));
    let answers = gather(&shared, &batch, deadline).await?;
    Ok(answers
        .into_iter()
        .map(|answer| answer.unwrap_or_else(|| Err(shared.too_slow(ACTION, &parent))))
        .collect())
}

/// Attributes of `names` in the open directory `dir`, as far as they come until `deadline`.
pub(super) async fn entries(
    shared: &Arc<Shared>,
    parent: ItemPath,
    dir: Arc<OwnedFd>,
    names: Vec<Bytes>,
    deadline: Instant,
) -> Answers {
    let count = names.len();
    let batch = Arc::new(Batch::new(parent, names, Some(dir)));
    let answers = gather(shared, &batch, deadline).await;
    answers.unwrap_or_else(|_| vec![None; count])
}

#[derive(Debug)]
struct Batch {
    parent: ItemPath,
    names: Vec<Bytes>,
    /// Guards the progress; held for an assignment, never for a system call.
    state: Mutex<State>,
    finished: Notify,
}

#[derive(Debug)]
struct State {
    dir: Option<Arc<OwnedFd>>,
    next: usize,
    /// What each worker is busy with.
    busy: Vec<Option<usize>>,
    answers: Answers,
    missing: usize,
    /// About the directory: ends the batch.
    failure: Option<Failure>,
    /// Nobody waits any more.
    given_up: bool,
}

impl Batch {
    fn new(parent: ItemPath, names: Vec<Bytes>, dir: Option<Arc<OwnedFd>>) -> Self {
        let missing = names.len();
        Self {
            state: Mutex::new(State {
                dir,
                next: 0,
                busy: Vec::new(),
                answers: vec![None; missing],
                missing,
                failure: None,
                given_up: false,
            }),
            parent,
            names,
            finished: Notify::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The path that name `index` stands for.
    fn path(&self, index: usize) -> ItemPath {
        self.names
            .get(index)
            .filter(|name| !name.is_empty())
            .and_then(|name| self.parent.join(name).ok())
            .unwrap_or_else(|| self.parent.clone())
    }

    /// The body of a worker: the directory, if it is not open yet, and then name by name.
    fn work(&self, shared: &Shared, worker: usize) {
        let dir = match self.directory(shared) {
            Ok(dir) => dir,
            Err(failure) => {
                let mut state = self.state();
                if state.given_up {
                    shared.release(ACTION, &self.parent);
                }
                state.failure = Some(failure);
                drop(state);
                self.finished.notify_one();
                return;
            }
        };
        let mut done = None;
        loop {
            let mut state = self.state();
            if let Some((index, answer)) = done.take() {
                state.answers[index] = Some(answer);
                state.busy[worker] = None;
                state.missing -= 1;
                if state.given_up {
                    shared.release(ACTION, &self.path(index));
                }
                if state.missing == 0 {
                    self.finished.notify_one();
                }
            }
            let index = state.next;
            if state.given_up || state.failure.is_some() || index >= self.names.len() {
                return;
            }
            state.next += 1;
            state.busy[worker] = Some(index);
            drop(state);
            done = Some((index, self.one(shared, &dir, index)));
        }
    }

    fn directory(&self, shared: &Shared) -> Result<Arc<OwnedFd>, Failure> {
        if let Some(dir) = self.state().dir.clone() {
            return Ok(dir);
        }
        shared.follow_root();
        let dir = shared
            .open_at(&self.parent, OFlags::PATH | OFlags::DIRECTORY)
            .map_err(|errno| shared.failure(ACTION, &self.parent, errno))?;
        let dir = Arc::new(dir);
        let mut state = self.state();
        if state.given_up {
            shared.release(ACTION, &self.parent);
        }
        state.dir = Some(Arc::clone(&dir));
        Ok(dir)
    }

    fn one(&self, shared: &Shared, dir: &OwnedFd, index: usize) -> Result<Attributes, Failure> {
        let name = &self.names[index];
        let path = if name.is_empty() {
            self.parent.clone()
        } else {
            // What cannot be a name does not exist.
            self.parent.join(name).map_err(|invalid| {
                let kind = if name.len() > ItemPath::NAME_BYTES_MAX {
                    FailureKind::NameTooLong
                } else {
                    FailureKind::NotFound
                };
                Failure::new(kind, format!("origin {}: {invalid}", shared.label))
            })?
        };
        if shared.hangs(ACTION, &path) {
            return Err(shared.too_slow(ACTION, &path));
        }
        attributes(shared, &path, dir, name).map_err(|errno| shared.failure(ACTION, &path, errno))
    }
}

/// Stops the workers when the asker goes away or has waited long enough.
struct GiveUp<'a> {
    shared: &'a Shared,
    batch: &'a Batch,
}

impl Drop for GiveUp<'_> {
    fn drop(&mut self) {
        let mut state = self.batch.state();
        state.given_up = true;
        if state.missing == 0 || state.failure.is_some() {
            return;
        }
        if state.dir.is_none() && !state.busy.is_empty() {
            self.shared.set_hanging(ACTION, self.batch.parent.clone());
        }
        for index in state.busy.iter().flatten() {
            self.shared.set_hanging(ACTION, self.batch.path(*index));
        }
    }
}

/// Runs workers until all names are answered or `deadline` is reached.
async fn gather(
    shared: &Arc<Shared>,
    batch: &Arc<Batch>,
    deadline: Instant,
) -> Result<Answers, Failure> {
    if batch.names.is_empty() {
        return Ok(Vec::new());
    }
    let give_up = GiveUp { shared, batch };
    // Names that hang alone are waited for without a thread.
    let first = batch.path(0);
    let subject = if batch.names.len() == 1 {
        &first
    } else {
        &batch.parent
    };
    let mut permit = Some(shared.admit(ACTION, subject, deadline).await?);
    let mut workers = 0;
    loop {
        if let Some(permit) = permit.take() {
            batch.state().busy.push(None);
            let (shared, batch, worker) = (Arc::clone(shared), Arc::clone(batch), workers);
            workers += 1;
            tokio::task::spawn_blocking(move || {
                batch.work(&shared, worker);
                drop(permit);
            });
        }
        let pause = (Instant::now() + WORKER_DELAY).min(deadline);
        let until = if workers < WORKERS_MAX {
            pause
        } else {
            deadline
        };
        if timeout_at(until, batch.finished.notified()).await.is_ok() || until >= deadline {
            break;
        }
        let state = batch.state();
        if state.dir.is_some() && state.next < batch.names.len() {
            drop(state);
            // No place free: this batch has its share already.
            permit = Arc::clone(&shared.permits).try_acquire_owned().ok();
        }
    }
    drop(give_up);
    let mut state = batch.state();
    if let Some(failure) = state.failure.take() {
        return Err(failure);
    }
    if state.dir.is_none() {
        return Err(shared.too_slow(ACTION, &batch.parent));
    }
    Ok(state.answers.clone())
}
