//! Attributes of many names, a few at a time, within a time limit.
//!
//! A batch starts with one worker. While it is not done, another one joins every few milliseconds up to
//! a small number: a local directory needs one thread, a parallel filesystem answers eight at once. A
//! name that hangs holds up its own worker only; the others take the remaining names.

use super::Shared;
use super::attributes::attributes;
use super::hanging::STAT as ACTION;
use crate::origin::StatAnswers;
use bytes::Bytes;
use copperfs_overlay::{Attributes, Failure, FailureKind, ItemPath};
use parking_lot::Mutex;
use rustix::fd::OwnedFd;
use rustix::fs::OFlags;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, OwnedSemaphorePermit};
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
    let deadline = shared.deadline();
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
    /// Locked for an assignment, never during a system call. Taken before the lock of the hanging calls.
    state: Mutex<State>,
    finished: Notify,
}

#[derive(Debug)]
struct State {
    dir: Option<Arc<OwnedFd>>,
    next: usize,
    workers: Vec<Worker>,
    answers: Answers,
    missing: usize,
    /// About the directory: ends the batch.
    failure: Option<Failure>,
    /// Nobody waits any more.
    given_up: bool,
}

/// A thread that works for the batch.
#[derive(Debug)]
struct Worker {
    /// Its place among the calls; released when its current call hangs.
    place: Option<OwnedSemaphorePermit>,
    busy: Option<Busy>,
}

/// A running system call.
#[derive(Debug)]
struct Busy {
    /// The index of its name; `None` if it opens the directory.
    index: Option<usize>,
    begun: Instant,
    /// Its id among the hanging calls, if it hangs.
    hanging: Option<u64>,
}

impl Busy {
    fn with(index: Option<usize>) -> Self {
        Self {
            index,
            begun: Instant::now(),
            hanging: None,
        }
    }
}

impl Batch {
    fn new(parent: ItemPath, names: Vec<Bytes>, dir: Option<Arc<OwnedFd>>) -> Self {
        let missing = names.len();
        Self {
            state: Mutex::new(State {
                dir,
                next: 0,
                workers: Vec::new(),
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

    /// The path that a call is about.
    fn path(&self, index: Option<usize>) -> ItemPath {
        index
            .and_then(|index| self.names.get(index))
            .filter(|name| !name.is_empty())
            .and_then(|name| self.parent.join(name).ok())
            .unwrap_or_else(|| self.parent.clone())
    }

    /// The body of a worker: the directory, if it is not open yet, and then name by name.
    fn work(&self, shared: &Shared, worker: usize) {
        let dir = match self.directory(shared, worker) {
            Ok(dir) => dir,
            Err(failure) => {
                self.state.lock().failure = Some(failure);
                self.finished.notify_one();
                return;
            }
        };
        while let Some(index) = self.next(shared, worker) {
            let answer = self.one(shared, &dir, index);
            self.done(shared, worker, index, answer);
        }
    }

    /// The worker's call about a name has returned.
    fn done(
        &self,
        shared: &Shared,
        worker: usize,
        index: usize,
        answer: Result<Attributes, Failure>,
    ) {
        let mut state = self.state.lock();
        // Together with the answer: it may end the batch, and then calls under way count as hanging.
        returned(shared, &mut state.workers[worker]);
        self.answered(&mut state, index, answer);
    }

    fn answered(&self, state: &mut State, index: usize, answer: Result<Attributes, Failure>) {
        state.answers[index] = Some(answer);
        state.missing -= 1;
        if state.missing == 0 {
            self.finished.notify_one();
        }
    }

    /// The next name for a worker whose call has returned. Returns `None` if the worker must end; its place
    /// is then free.
    fn next(&self, shared: &Shared, worker: usize) -> Option<usize> {
        let mut state = self.state.lock();
        // Checked before the worker takes the name, because its own call about it may later count as
        // hanging.
        while !state.given_up && state.next < self.names.len() {
            let index = state.next;
            let path = self.path(Some(index));
            if !shared.hanging.holds(ACTION, &path) {
                break;
            }
            state.next += 1;
            self.answered(&mut state, index, Err(shared.too_slow(ACTION, &path)));
        }
        let index = state.next;
        let over = state.given_up || state.failure.is_some() || index >= self.names.len();
        let of = &mut state.workers[worker];
        // Its call hung, and its place was released: it continues only if another place is free.
        if !over && of.place.is_none() {
            of.place = Arc::clone(&shared.places).try_acquire_owned().ok();
        }
        if over || of.place.is_none() {
            of.place = None;
            self.finished.notify_one();
            return None;
        }
        of.busy = Some(Busy::with(Some(index)));
        state.next += 1;
        Some(index)
    }

    fn directory(&self, shared: &Shared, worker: usize) -> Result<Arc<OwnedFd>, Failure> {
        {
            let mut state = self.state.lock();
            if let Some(dir) = state.dir.clone() {
                return Ok(dir);
            }
            state.workers[worker].busy = Some(Busy::with(None));
        }
        shared.follow_root();
        let opened = shared.open_at(&self.parent, OFlags::PATH | OFlags::DIRECTORY);
        let mut state = self.state.lock();
        returned(shared, &mut state.workers[worker]);
        let dir = opened.map_err(|errno| shared.failure(ACTION, &self.parent, errno));
        match dir {
            Ok(dir) => Ok(Arc::clone(state.dir.insert(Arc::new(dir)))),
            Err(failure) => {
                state.workers[worker].place = None;
                Err(failure)
            }
        }
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
        attributes(shared, &path, dir, name).map_err(|errno| shared.failure(ACTION, &path, errno))
    }

    /// Counts the calls that began before `since` as hanging, or all running ones if it is `None`. Their
    /// workers release their places.
    fn overdue(&self, shared: &Shared, since: Option<Instant>) {
        for worker in &mut self.state.lock().workers {
            let late = |busy: &&mut Busy| since.is_none_or(|since| busy.begun <= since);
            if let Some(busy) = worker.busy.as_mut().filter(late)
                && busy.hanging.is_none()
            {
                let path = self.path(busy.index);
                busy.hanging = Some(shared.hanging.add(ACTION, &path, busy.begun));
                worker.place = None;
            }
        }
    }

    /// The progress of the batch, after [`Batch::overdue`]. `since` is `None` if no call can be late yet.
    fn stands(&self, shared: &Shared, since: Option<Instant>) -> Stands {
        if since.is_some() {
            self.overdue(shared, since);
        }
        let state = self.state.lock();
        let busy = state
            .workers
            .iter()
            .filter_map(|worker| worker.busy.as_ref());
        Stands {
            over: state.missing == 0 || state.failure.is_some(),
            names_left: state.dir.is_some() && state.next < self.names.len(),
            going_on: (state.workers.iter())
                .filter(|worker| worker.place.is_some())
                .count(),
            waits: busy.into_iter().any(|busy| busy.hanging.is_none()),
        }
    }
}

/// The progress of a batch.
struct Stands {
    over: bool,
    /// Names that no worker has begun.
    names_left: bool,
    /// Workers that have a place.
    going_on: usize,
    /// A call is running that does not hang yet.
    waits: bool,
}

/// Records that a worker's system call has returned.
fn returned(shared: &Shared, worker: &mut Worker) {
    if let Some(hanging) = worker.busy.take().and_then(|busy| busy.hanging) {
        shared.hanging.remove(hanging);
    }
}

/// Stops the workers when the asker goes away or has waited long enough.
struct GiveUp<'a> {
    shared: &'a Shared,
    batch: &'a Batch,
}

impl Drop for GiveUp<'_> {
    fn drop(&mut self) {
        self.batch.state.lock().given_up = true;
        self.batch.overdue(self.shared, None);
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
    let subject = batch.path((batch.names.len() == 1).then_some(0));
    let patience = shared.patience();
    let mut place = Some(shared.admit(ACTION, &subject, deadline).await?);
    loop {
        if let Some(place) = place.take() {
            start(shared, batch, place, &subject)?;
        }
        let now = Instant::now();
        let stands = batch.stands(shared, now.checked_sub(patience));
        if stands.over {
            break;
        }
        if stands.names_left && stands.going_on == 0 {
            // All workers hang: the remaining names need another worker, which waits for its place.
            place = shared.admit(ACTION, &batch.parent, deadline).await.ok();
            if place.is_some() {
                continue;
            }
        }
        let until = match stands {
            Stands {
                names_left,
                going_on,
                ..
            } if names_left && going_on < WORKERS_MAX => now + WORKER_DELAY,
            Stands { waits: true, .. } => now + patience,
            Stands { .. } => deadline,
        };
        let until = until.min(deadline);
        let told = timeout_at(until, batch.finished.notified()).await.is_ok();
        if !told && until >= deadline {
            break;
        }
        if !told && stands.names_left && stands.going_on < WORKERS_MAX {
            // No place free: this batch has its share already.
            place = Arc::clone(&shared.places).try_acquire_owned().ok();
        }
    }
    drop(give_up);
    let mut state = batch.state.lock();
    if let Some(failure) = state.failure.take() {
        return Err(failure);
    }
    if state.dir.is_none() {
        return Err(shared.too_slow(ACTION, &batch.parent));
    }
    Ok(state.answers.clone())
}

/// Starts another worker for `batch`.
fn start(
    shared: &Arc<Shared>,
    batch: &Arc<Batch>,
    place: OwnedSemaphorePermit,
    subject: &ItemPath,
) -> Result<(), Failure> {
    let worker = {
        let mut state = batch.state.lock();
        state.workers.push(Worker {
            place: Some(place),
            busy: None,
        });
        state.workers.len() - 1
    };
    let (working, of) = (Arc::clone(shared), Arc::clone(batch));
    let started = shared.threads.run(move || of.work(&working, worker));
    started.map_err(|error| {
        batch.state.lock().workers[worker].place = None;
        shared.no_thread(ACTION, subject, &error)
    })
}

#[cfg(test)]
mod tests {
    use super::super::PosixOrigin;
    use super::*;
    use crate::origin::OriginOptions;

    /// On a busy machine a worker may begin its system call long after it took the name. By then the name
    /// may count as hanging because of this worker's own call.
    #[test]
    fn a_late_call_is_not_taken_for_another_one_that_hangs() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("file"), b"").unwrap();
        let origin = PosixOrigin::open(dir.path(), &OriginOptions::default()).unwrap();
        let shared = &*origin.shared;
        let opened = shared
            .open_at(&ItemPath::root(), OFlags::PATH | OFlags::DIRECTORY)
            .unwrap();
        let names = vec![Bytes::from_static(b"file"); 2];
        let batch = Batch::new(ItemPath::root(), names, None);
        for _ in 0..2 {
            let place = Arc::clone(&shared.places).try_acquire_owned().unwrap();
            batch.state.lock().workers.push(Worker {
                place: Some(place),
                busy: None,
            });
        }
        let index = batch.next(shared, 0).unwrap();
        batch.overdue(shared, None);
        assert_eq!(batch.next(shared, 1), None, "another one does not ask");
        let answer = batch.one(shared, &opened, index);
        assert!(answer.is_ok(), "{answer:?}");
        assert!(batch.state.lock().answers[1].as_ref().unwrap().is_err());
        batch.done(shared, 0, index, answer);
        // The batch is over before its worker ends.
        batch.overdue(shared, None);
        assert_eq!(shared.hanging.count(), 0);
    }
}
