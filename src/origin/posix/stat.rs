//! Attributes of many names, a few at a time, within a time limit.
//!
//! A batch starts with one worker. While it is not done, another one joins every few milliseconds up to
//! a small number: a local directory needs one thread, a parallel filesystem answers eight at once. A
//! name that hangs delays only its own worker; the others take the remaining names.

use super::Shared;
use super::attributes::attributes;
use super::calls::Call;
use super::hanging::STAT as ACTION;
use crate::origin::{StatAnswers, child_of};
use bytes::Bytes;
use copperfs_overlay::{Attributes, Failure, ItemPath};
use parking_lot::Mutex;
use rustix::fd::OwnedFd;
use rustix::fs::OFlags;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, OwnedSemaphorePermit};
use tokio::time::{Instant, timeout_at};

/// The maximum number of workers of one batch.
const WORKERS_MAX: usize = 8;

/// How long a batch runs before another worker joins it.
const WORKER_DELAY: Duration = Duration::from_millis(2);

/// An answer for each name; `None` if there was none in time.
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
        .map(|answer| answer.unwrap_or_else(|| Err(shared.timed_out(ACTION, &parent))))
        .collect())
}

/// Attributes of those `names` in the open directory `dir` that answer until `deadline`; nothing, if none can be requested
/// until then.
pub(super) async fn entries(
    shared: &Arc<Shared>,
    parent: ItemPath,
    dir: Arc<OwnedFd>,
    names: Vec<Bytes>,
    deadline: Instant,
) -> Answers {
    let batch = Arc::new(Batch::new(parent, names, Some(dir)));
    gather(shared, &batch, deadline).await.unwrap_or_default()
}

struct Batch {
    parent: ItemPath,
    names: Vec<Bytes>,
    /// Locked for an assignment, never during a system call. Taken before the lock of a call.
    state: Mutex<BatchState>,
    /// Notified when the batch is over, and when a worker ends.
    finished: Notify,
}

#[derive(Default)]
struct BatchState {
    dir: Option<Arc<OwnedFd>>,
    /// The index of the next name. None is left if the batch failed, or if the caller was cancelled or has waited long
    /// enough.
    next: usize,
    /// The current call of each worker: it opens the directory, or is about a name.
    calls: Vec<Arc<Call>>,
    answers: Answers,
    missing: usize,
    /// A failure about the directory ends the batch.
    failure: Option<Failure>,
}

impl BatchState {
    /// Records that the call of a worker has returned. Returns its place, unless the call was hanging.
    fn returned(&mut self, call: &Arc<Call>) -> Option<OwnedSemaphorePermit> {
        self.calls.retain(|other| !Arc::ptr_eq(other, call));
        call.returned()
    }
}

impl Batch {
    fn new(parent: ItemPath, names: Vec<Bytes>, dir: Option<Arc<OwnedFd>>) -> Self {
        let missing = names.len();
        Self {
            state: Mutex::new(BatchState {
                dir,
                answers: vec![None; missing],
                missing,
                ..BatchState::default()
            }),
            parent,
            names,
            finished: Notify::new(),
        }
    }

    /// The path of the name at `index`, or of the directory for an invalid name.
    fn path(&self, index: usize) -> ItemPath {
        child_of(&self.parent, &self.names[index]).unwrap_or_else(|_| self.parent.clone())
    }

    /// The body of a worker. Its first call, `opening`, opens the directory, unless it is open already.
    fn work(&self, shared: &Arc<Shared>, opening: Arc<Call>) {
        let dir = match self.directory(shared) {
            Ok(dir) => dir,
            Err(failure) => {
                let mut state = self.state.lock();
                drop(state.returned(&opening));
                state.failure = Some(failure);
                state.next = self.names.len();
                self.finished.notify_one();
                return;
            }
        };
        let mut call = opening;
        let mut answer = None;
        while let Some((index, next)) = self.next(shared, &call, answer) {
            call = next;
            answer = Some((index, self.attributes(shared, &dir, index)));
        }
    }

    /// Records that a worker's call has returned, with the answer about a name, and begins its next call.
    /// Returns `None` if the worker must end; its place is then free.
    fn next(
        &self,
        shared: &Arc<Shared>,
        call: &Arc<Call>,
        answer: Option<(usize, Result<Attributes, Failure>)>,
    ) -> Option<(usize, Arc<Call>)> {
        let mut state = self.state.lock();
        // Together with the answer: it may end the batch, and then running calls count as hanging.
        let place = state.returned(call);
        if let Some((index, answer)) = answer {
            self.answered(&mut state, index, answer);
        }
        // Checked before the worker takes the name, because its own call about it may later count as
        // hanging.
        while state.next < self.names.len() {
            let index = state.next;
            let path = self.path(index);
            if !shared.hanging.blocks(ACTION, &path) {
                break;
            }
            state.next += 1;
            self.answered(&mut state, index, Err(shared.timed_out(ACTION, &path)));
        }
        let index = state.next;
        // If its call hung, its place was released: it continues only if another place is free.
        let place = place
            .or_else(|| Arc::clone(&shared.places).try_acquire_owned().ok())
            .filter(|_| index < self.names.len());
        let Some(place) = place else {
            self.finished.notify_one();
            return None;
        };
        state.next += 1;
        let call = Call::begin(shared, ACTION, self.path(index), place);
        state.calls.push(Arc::clone(&call));
        Some((index, call))
    }

    fn answered(&self, state: &mut BatchState, index: usize, answer: Result<Attributes, Failure>) {
        state.answers[index] = Some(answer);
        state.missing -= 1;
        if state.missing == 0 {
            self.finished.notify_one();
        }
    }

    fn directory(&self, shared: &Shared) -> Result<Arc<OwnedFd>, Failure> {
        let known = self.state.lock().dir.clone();
        if let Some(dir) = known {
            return Ok(dir);
        }
        shared.root.follow(&shared.label);
        let dir = shared
            .open_at(&self.parent, OFlags::PATH | OFlags::DIRECTORY)
            .map_err(|errno| shared.failure(ACTION, &self.parent, errno))?;
        Ok(Arc::clone(self.state.lock().dir.insert(Arc::new(dir))))
    }

    fn attributes(
        &self,
        shared: &Shared,
        dir: &OwnedFd,
        index: usize,
    ) -> Result<Attributes, Failure> {
        let name = &self.names[index];
        let path = child_of(&self.parent, name)
            .map_err(|invalid| shared.failure(ACTION, &self.parent, invalid))?;
        attributes(shared, &path, dir, name).map_err(|errno| shared.failure(ACTION, &path, errno))
    }

    /// Counts the calls that began before `since` as hanging, or all running ones if it is `None`. Their
    /// workers release their places.
    fn mark_hanging(&self, since: Option<Instant>) {
        for call in &self.state.lock().calls {
            if since.is_none_or(|since| call.begun <= since) {
                call.mark_hanging();
            }
        }
    }

    /// Whether the batch is over, whether there are names that no worker has begun, and the number of workers whose call
    /// does not hang.
    fn progress(&self) -> (bool, bool, usize) {
        let state = self.state.lock();
        let is_over = state.missing == 0 || state.failure.is_some();
        let names_left = state.dir.is_some() && state.next < self.names.len();
        let running = state.calls.iter().filter(|call| !call.is_hanging());
        (is_over, names_left, running.count())
    }
}

/// Stops the workers when the caller is cancelled or has waited long enough.
struct Abandon<'a>(&'a Batch);

impl Drop for Abandon<'_> {
    fn drop(&mut self) {
        self.0.state.lock().next = self.0.names.len();
        self.0.mark_hanging(None);
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
    let abandon = Abandon(batch);
    // A single name waits without a thread while a call about it hangs.
    let subject = match batch.names.len() {
        1 => batch.path(0),
        _ => batch.parent.clone(),
    };
    let threshold = shared.hang_threshold();
    let mut place = Some(shared.admit(ACTION, &subject, deadline).await?);
    loop {
        if let Some(place) = place.take() {
            start(shared, batch, place, &subject)?;
        }
        let now = Instant::now();
        if let Some(since) = now.checked_sub(threshold) {
            batch.mark_hanging(Some(since));
        }
        let (is_over, names_left, running) = batch.progress();
        if is_over {
            break;
        }
        if names_left && running == 0 {
            // All workers hang: the remaining names need another worker, which waits for its place.
            place = shared.admit(ACTION, &batch.parent, deadline).await.ok();
            if place.is_some() {
                continue;
            }
        }
        let wants_worker = names_left && running < WORKERS_MAX;
        let until = if wants_worker {
            now + WORKER_DELAY
        } else if running > 0 {
            now + threshold
        } else {
            deadline
        };
        let until = until.min(deadline);
        let notified = timeout_at(until, batch.finished.notified()).await.is_ok();
        if !notified && until >= deadline {
            break;
        }
        if !notified && wants_worker {
            // Without a free place this batch has its share already.
            place = Arc::clone(&shared.places).try_acquire_owned().ok();
        }
    }
    drop(abandon);
    let mut state = batch.state.lock();
    if let Some(failure) = state.failure.take() {
        return Err(failure);
    }
    if state.dir.is_none() {
        return Err(shared.timed_out(ACTION, &batch.parent));
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
    let opening = Call::begin(shared, ACTION, batch.parent.clone(), place);
    batch.state.lock().calls.push(Arc::clone(&opening));
    let (working, worker) = (Arc::clone(shared), Arc::clone(batch));
    let first = Arc::clone(&opening);
    let started = (shared.threads).run(move || worker.work(&working, first));
    started.map_err(|error| {
        // The call never began, so it must not count as hanging.
        drop(batch.state.lock().returned(&opening));
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
        let shared = &origin.shared;
        let opened = shared
            .open_at(&ItemPath::root(), OFlags::PATH | OFlags::DIRECTORY)
            .unwrap();
        let names = vec![Bytes::from_static(b"file"); 2];
        let batch = Batch::new(ItemPath::root(), names, None);
        let [one, other] = [(); 2].map(|()| {
            let place = Arc::clone(&shared.places).try_acquire_owned().unwrap();
            let call = Call::begin(shared, ACTION, ItemPath::root(), place);
            batch.state.lock().calls.push(Arc::clone(&call));
            call
        });
        let (index, call) = batch.next(shared, &one, None).unwrap();
        batch.mark_hanging(None);
        assert!(batch.next(shared, &other, None).is_none(), "no second call");
        let answer = batch.attributes(shared, &opened, index);
        assert!(answer.is_ok(), "{answer:?}");
        assert!(batch.state.lock().answers[1].as_ref().unwrap().is_err());
        assert!(batch.next(shared, &call, Some((index, answer))).is_none());
        // The batch is over before its worker ends.
        batch.mark_hanging(None);
        assert_eq!(shared.hanging.count(), 0);
    }
}
