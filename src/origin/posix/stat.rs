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

/// A call of a worker, which it has begun and not yet made.
struct Task {
    call: Arc<Call>,
    subject: Subject,
}

enum Subject {
    Directory,
    /// The index of a name in the open directory.
    Name(usize, Arc<OwnedFd>),
}

enum Outcome {
    Directory(Result<Arc<OwnedFd>, Failure>),
    Name(usize, Result<Attributes, Failure>),
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

    /// The body of a worker, which makes the calls of `task` and of the tasks after it.
    fn work(&self, shared: &Arc<Shared>, first: Task) {
        let mut task = Some(first);
        while let Some(Task { call, subject }) = task {
            call.start();
            let outcome = match subject {
                Subject::Directory => Outcome::Directory(self.open(shared)),
                Subject::Name(index, dir) => {
                    Outcome::Name(index, self.attributes(shared, &dir, index))
                }
            };
            task = self.next(shared, &call, outcome);
        }
    }

    /// The first task of a worker that has `place`: to open the directory, or a name if it is open. Returns `None` if
    /// no name is left.
    fn begin(&self, shared: &Arc<Shared>, place: OwnedSemaphorePermit) -> Option<Task> {
        let mut state = self.state.lock();
        if let Some(dir) = state.dir.clone() {
            // Not a call about the directory: while a thread starts late, it must not count as one that
            // hangs there, because it would block the names of all other workers.
            return self.assign(&mut state, shared, dir, Some(place));
        }
        let call = Call::begin(shared, ACTION, self.parent.clone(), place);
        state.calls.push(Arc::clone(&call));
        let subject = Subject::Directory;
        Some(Task { call, subject })
    }

    /// Records that a worker's `call` has returned with `outcome`, and begins its next task. Returns `None` if the
    /// worker must end; its place is then free.
    fn next(&self, shared: &Arc<Shared>, call: &Arc<Call>, outcome: Outcome) -> Option<Task> {
        let mut state = self.state.lock();
        // Together with the outcome: it may end the batch, and then running calls count as hanging.
        let place = state.returned(call);
        let dir = match outcome {
            Outcome::Directory(Ok(dir)) => Some(Arc::clone(state.dir.insert(dir))),
            Outcome::Directory(Err(failure)) => {
                state.failure = Some(failure);
                state.next = self.names.len();
                None
            }
            Outcome::Name(index, answer) => {
                self.answered(&mut state, index, answer);
                state.dir.clone()
            }
        };
        let task = dir.and_then(|dir| self.assign(&mut state, shared, dir, place));
        if task.is_none() {
            self.finished.notify_one();
        }
        task
    }

    /// Begins a call about the next name. Without a `place`, the worker gets one only if one is free.
    fn assign(
        &self,
        state: &mut BatchState,
        shared: &Arc<Shared>,
        dir: Arc<OwnedFd>,
        place: Option<OwnedSemaphorePermit>,
    ) -> Option<Task> {
        // Checked before the worker takes the name, because its own call about it may later count as
        // hanging.
        while state.next < self.names.len() {
            let index = state.next;
            let path = self.path(index);
            if !shared.hanging.blocks(ACTION, &path) {
                break;
            }
            state.next += 1;
            self.answered(state, index, Err(shared.timed_out(ACTION, &path)));
        }
        let index = state.next;
        if index == self.names.len() {
            return None;
        }
        // If its call hung, its place was released.
        let place = place.or_else(|| Arc::clone(&shared.places).try_acquire_owned().ok())?;
        state.next += 1;
        let call = Call::begin(shared, ACTION, self.path(index), place);
        state.calls.push(Arc::clone(&call));
        let subject = Subject::Name(index, dir);
        Some(Task { call, subject })
    }

    fn answered(&self, state: &mut BatchState, index: usize, answer: Result<Attributes, Failure>) {
        state.answers[index] = Some(answer);
        state.missing -= 1;
        if state.missing == 0 {
            self.finished.notify_one();
        }
    }

    fn open(&self, shared: &Shared) -> Result<Arc<OwnedFd>, Failure> {
        shared.root.follow(&shared.label);
        let opened = shared.open_at(&self.parent, OFlags::PATH | OFlags::DIRECTORY);
        let dir = opened.map_err(|errno| shared.failure(ACTION, &self.parent, errno))?;
        Ok(Arc::new(dir))
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

    /// Counts the calls that have run since `since` as hanging, or all of them if it is `None`. Their workers release
    /// their places.
    fn mark_hanging(&self, since: Option<Instant>) {
        for call in &self.state.lock().calls {
            if since.is_none_or(|since| call.has_run_since(since)) {
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

/// Starts another worker for `batch`, unless all names have one.
fn start(
    shared: &Arc<Shared>,
    batch: &Arc<Batch>,
    place: OwnedSemaphorePermit,
    subject: &ItemPath,
) -> Result<(), Failure> {
    let Some(first) = batch.begin(shared, place) else {
        return Ok(());
    };
    let call = Arc::clone(&first.call);
    let (working, worker) = (Arc::clone(shared), Arc::clone(batch));
    let started = (shared.threads).run(move || worker.work(&working, first));
    started.map_err(|error| {
        // The call was never made, so it must not count as hanging.
        drop(batch.state.lock().returned(&call));
        shared.no_thread(ACTION, subject, &error)
    })
}

#[cfg(test)]
mod tests {
    use super::super::PosixOrigin;
    use super::*;
    use crate::origin::OriginOptions;

    /// A batch about `names` in an open directory, which has three files.
    struct Opened {
        origin: PosixOrigin,
        batch: Batch,
        _dir: tempfile::TempDir,
    }

    impl Opened {
        fn new(names: &[&'static str]) -> Self {
            let dir = tempfile::tempdir().unwrap();
            for name in ["file", "other", "third"] {
                std::fs::write(dir.path().join(name), b"").unwrap();
            }
            let origin = PosixOrigin::open(dir.path(), &OriginOptions::default()).unwrap();
            let opened = (origin.shared)
                .open_at(&ItemPath::root(), OFlags::PATH | OFlags::DIRECTORY)
                .unwrap();
            let names = names.iter().map(|name| Bytes::from_static(name.as_bytes()));
            let batch = Batch::new(ItemPath::root(), names.collect(), Some(Arc::new(opened)));
            Self {
                origin,
                batch,
                _dir: dir,
            }
        }

        /// The first task of another worker.
        fn begin(&self) -> Option<Task> {
            let shared = &self.origin.shared;
            let place = Arc::clone(&shared.places).try_acquire_owned().unwrap();
            self.batch.begin(shared, place)
        }

        /// Checks that each name has attributes, and that no call counts as hanging.
        fn is_answered(&self) {
            for answer in &self.batch.state.lock().answers {
                assert!(matches!(answer, Some(Ok(_))), "{answer:?}");
            }
            // The batch is over before its workers end.
            self.batch.mark_hanging(None);
            assert_eq!(self.origin.shared.hanging.count(), 0);
        }
    }

    /// On a busy machine a worker may begin its system call long after it took the name. By then the name
    /// may count as hanging because of this worker's own call.
    #[test]
    fn a_late_call_is_not_taken_for_another_one_that_hangs() {
        let opened = Opened::new(&["file", "file"]);
        let task = opened.begin().unwrap();
        opened.batch.mark_hanging(None);
        assert!(opened.begin().is_none(), "no second call");
        let second = opened.batch.state.lock().answers[1].clone();
        assert!(second.unwrap().is_err());
        opened.batch.work(&opened.origin.shared, task);
        let first = opened.batch.state.lock().answers[0].clone();
        assert!(first.unwrap().is_ok());
        assert_eq!(opened.origin.shared.hanging.count(), 0);
    }

    /// Another batch would take it for storage that hangs in the directory.
    #[test]
    fn a_call_whose_thread_has_not_started_does_not_hang() {
        let mut opened = Opened::new(&["file"]);
        opened.batch.state.get_mut().dir = None;
        let task = opened.begin().unwrap();
        let hanging = || {
            opened.batch.mark_hanging(Some(Instant::now()));
            opened.origin.shared.hanging.count()
        };
        assert_eq!(hanging(), 0);
        task.call.start();
        assert_eq!(hanging(), 1);
        opened.batch.work(&opened.origin.shared, task);
        opened.is_answered();
    }

    /// A worker whose thread starts late delays the name that it took. The others are answered.
    #[test]
    fn a_late_thread_delays_no_other_worker() {
        let opened = Opened::new(&["file", "other", "third"]);
        let [late, other] = [(); 2].map(|()| opened.begin().unwrap());
        opened.batch.mark_hanging(None);
        opened.batch.work(&opened.origin.shared, other);
        opened.batch.work(&opened.origin.shared, late);
        opened.is_answered();
    }
}
