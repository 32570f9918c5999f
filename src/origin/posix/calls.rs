//! Runs blocking calls: a limited number at a time, each with a deadline, and without delays by calls that
//! hang.
//!
//! A call takes one of `posix_concurrency` places, and a thread. It releases its place when it returns, or
//! when it takes so long that it counts as hanging ([`super::hanging`]). That time depends on how long
//! calls of this origin take on average. So storage that is slow for every call does not get more concurrent
//! calls for it, and if only a part of the storage hangs, the places serve the other parts. The more calls
//! hang already, the sooner the next one counts as hanging: a thousand calls that begin to hang at once
//! release their places within a second.

use super::Shared;
use crate::origin::failure::{Cause, STORAGE_HANGS};
use copperfs_overlay::{Failure, FailureKind, ItemPath};
use parking_lot::Mutex;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tokio::time::{Instant, timeout_at};

/// A call counts as hanging after this multiple of the average duration …
const HANG_FACTOR: u32 = 10;
/// … but not before this time, because storage may be fast and the machine busy …
const HANG_THRESHOLD_MIN: Duration = Duration::from_millis(100);
/// … and always after this time.
const HANG_THRESHOLD_MAX: Duration = Duration::from_secs(2);
/// While other calls hang, the threshold may shrink to this minimum, or to twice the average duration.
const HANG_THRESHOLD_FLOOR: Duration = Duration::from_millis(10);
/// The average moves by one in this many parts of the difference to each new call.
const AVERAGE_WEIGHT: u64 = 16;

/// A moving average of the duration of calls, in nanoseconds.
#[derive(Default)]
pub(super) struct AverageDuration(AtomicU64);

impl AverageDuration {
    fn add(&self, took: Duration) {
        let took = took.min(HANG_THRESHOLD_MAX);
        let took = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        // Not atomic as a whole: the average may miss a call that returns at the same time.
        let average = self.0.load(Ordering::Relaxed);
        let next = average - average / AVERAGE_WEIGHT + took / AVERAGE_WEIGHT;
        self.0.store(next, Ordering::Relaxed);
    }

    fn get(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::Relaxed))
    }
}

/// How long a call may take before it counts as hanging, while `hanging` calls hang and `concurrency` calls
/// may run.
fn hang_threshold(average: Duration, hanging: usize, concurrency: usize) -> Duration {
    let alone = (average * HANG_FACTOR).clamp(HANG_THRESHOLD_MIN, HANG_THRESHOLD_MAX);
    let rounds = u32::try_from(hanging / concurrency.max(1)).unwrap_or(u32::MAX);
    let floor = (average * 2).clamp(HANG_THRESHOLD_FLOOR, HANG_THRESHOLD_MAX);
    (alone / rounds.saturating_add(1)).max(floor)
}

impl Shared {
    /// How long a call that begins now may take before it counts as hanging.
    pub(super) fn hang_threshold(&self) -> Duration {
        let hanging = self.hanging.count();
        hang_threshold(self.average.get(), hanging, self.concurrency)
    }

    pub(super) fn timed_out(&self, action: &str, path: &ItemPath) -> Failure {
        self.failure(action, path, Cause::timed_out(self.hang_timeout))
    }

    pub(super) fn no_thread(&self, action: &str, path: &ItemPath, error: &io::Error) -> Failure {
        let text = format!("cannot start a thread for it: {error}");
        let cause = Cause::new(FailureKind::Unavailable, text)
            .with_hint("raise the limit of processes (ulimit -u, or pids.max of the cgroup)");
        self.failure(action, path, cause)
    }

    /// Waits, without a thread, until no call hangs on `path`, and then for a place.
    ///
    /// # Errors
    /// `Unavailable` at `deadline`, and at once if too many calls hang in the path's filesystem.
    pub(super) async fn admit(
        &self,
        action: &str,
        path: &ItemPath,
        deadline: Instant,
    ) -> Result<OwnedSemaphorePermit, Failure> {
        let admitted = async {
            loop {
                let mut returned = std::pin::pin!(self.hanging.returned.notified());
                // Registered before the check, so that no return is missed.
                returned.as_mut().enable();
                if !self.hanging.blocks(action, path) {
                    break;
                }
                returned.await;
            }
            Arc::clone(&self.places).acquire_owned().await
        };
        let Ok(Ok(place)) = timeout_at(deadline, admitted).await else {
            return Err(self.timed_out(action, path));
        };
        let Some(calls) = self.hanging.refuses(path) else {
            return Ok(place);
        };
        let text = format!("{calls} calls into this filesystem hang, and no more are started");
        let cause = Cause::new(FailureKind::Unavailable, text).with_hint(STORAGE_HANGS);
        Err(self.failure(action, path, cause))
    }

    /// Runs `work`, which makes calls about `path`, on another thread.
    pub(super) async fn run<T: Send + 'static>(
        self: Arc<Self>,
        action: &'static str,
        path: ItemPath,
        work: impl FnOnce(&Arc<Self>, &ItemPath) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        self.run_for(Duration::ZERO, action, path, work).await
    }

    /// Like [`Shared::run`], for work that may take `longer` than a single call before it counts as hanging.
    pub(super) async fn run_for<T: Send + 'static>(
        self: Arc<Self>,
        longer: Duration,
        action: &'static str,
        path: ItemPath,
        work: impl FnOnce(&Arc<Self>, &ItemPath) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        let deadline = Instant::now() + self.hang_timeout;
        let place = self.admit(action, &path, deadline).await?;
        let call = Call::begin(&self, action, path, place);
        let hangs_at = call.begun + longer + self.hang_threshold();
        // Dropped at the deadline, or when the caller is cancelled.
        let _abandon = Abandon(&call);
        let (sender, mut answer) = oneshot::channel();
        let returning = Returning(Arc::clone(&call));
        let started = self.threads.run(move || {
            let call = &returning.0;
            let result = work(&call.shared, &call.path);
            // The call has returned before its answer is seen, so that its place is free by then.
            drop(returning);
            // Fails if the caller was cancelled.
            drop(sender.send(result));
        });
        let path = &call.path;
        started.map_err(|error| self.no_thread(action, path, &error))?;
        let answered = match timeout_at(hangs_at.min(deadline), &mut answer).await {
            Ok(answered) => Ok(answered),
            Err(_elapsed) => {
                call.mark_hanging();
                timeout_at(deadline, answer).await
            }
        };
        match answered {
            Ok(Ok(result)) => result,
            Ok(Err(_panicked)) => {
                let cause = Cause::new(FailureKind::Io, "its thread has panicked");
                Err(self.failure(action, path, cause))
            }
            Err(_elapsed) => Err(self.timed_out(action, path)),
        }
    }
}

/// A call in progress.
pub(super) struct Call {
    shared: Arc<Shared>,
    action: &'static str,
    path: ItemPath,
    begun: Instant,
    /// When its thread was there, which takes long on a busy machine.
    started: OnceLock<Instant>,
    /// Locked briefly for a change of state. Taken before the lock of the hanging calls.
    state: Mutex<CallState>,
}

enum CallState {
    /// It has a place.
    Running(OwnedSemaphorePermit),
    /// It has released its place. The id is that of the table of hanging calls.
    Hanging(u64),
    Returned,
}

impl Call {
    pub(super) fn begin(
        shared: &Arc<Shared>,
        action: &'static str,
        path: ItemPath,
        place: OwnedSemaphorePermit,
    ) -> Arc<Self> {
        Arc::new(Self {
            shared: Arc::clone(shared),
            action,
            path,
            begun: Instant::now(),
            started: OnceLock::new(),
            state: Mutex::new(CallState::Running(place)),
        })
    }

    /// Called on its thread.
    pub(super) fn start(&self) {
        self.started.get_or_init(Instant::now);
    }

    /// Whether it has run since `time`.
    pub(super) fn has_run_since(&self, time: Instant) -> bool {
        self.started.get().is_some_and(|started| *started <= time)
    }

    /// Counts the call as hanging, unless it has returned.
    pub(super) fn mark_hanging(&self) {
        let mut state = self.state.lock();
        if matches!(*state, CallState::Running(_)) {
            let id = self.shared.hanging.add(self.action, &self.path, self.begun);
            *state = CallState::Hanging(id);
        }
    }

    pub(super) fn is_hanging(&self) -> bool {
        matches!(*self.state.lock(), CallState::Hanging(_))
    }

    /// Records that the call has returned. Returns its place, unless the call was hanging.
    pub(super) fn returned(&self) -> Option<OwnedSemaphorePermit> {
        let state = std::mem::replace(&mut *self.state.lock(), CallState::Returned);
        match state {
            CallState::Running(place) => Some(place),
            CallState::Hanging(id) => {
                self.shared.hanging.remove(id);
                None
            }
            CallState::Returned => None,
        }
    }
}

/// Dropped on the call's thread when the call has returned, or when it panics.
struct Returning(Arc<Call>);

impl Drop for Returning {
    fn drop(&mut self) {
        self.0.shared.average.add(self.0.begun.elapsed());
        drop(self.0.returned());
    }
}

/// Abandons a call on drop: if it has not returned, it counts as hanging.
struct Abandon<'a>(&'a Call);

impl Drop for Abandon<'_> {
    fn drop(&mut self) {
        self.0.mark_hanging();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_threshold_depends_on_the_average_and_on_hanging_calls() {
        let ms = Duration::from_millis;
        assert_eq!(hang_threshold(ms(1), 0, 16), ms(100));
        assert_eq!(hang_threshold(ms(50), 0, 16), ms(500));
        assert_eq!(hang_threshold(ms(900), 0, 16), ms(2000));
        assert_eq!(hang_threshold(ms(1), 16, 16), ms(50));
        assert_eq!(hang_threshold(ms(1), 1000, 16), ms(10));
        // If all of the storage is slow, a call of twice the usual duration does not hang.
        assert_eq!(hang_threshold(ms(200), 1000, 16), ms(400));
    }

    /// The total time after which a thousand calls that hang together have released their places.
    #[test]
    fn a_thousand_calls_that_hang_at_once_release_their_places_within_a_second() {
        let rounds = (0..1000).step_by(16);
        let all: Duration = rounds
            .map(|hanging| hang_threshold(Duration::from_millis(1), hanging, 16))
            .sum();
        assert!(all < Duration::from_secs(1), "{all:?}");
    }

    #[test]
    fn the_average_follows_the_calls() {
        let average = AverageDuration::default();
        for _ in 0..100 {
            average.add(Duration::from_millis(100));
        }
        assert!(
            (99..=100).contains(&average.get().as_millis()),
            "{:?}",
            average.get()
        );
        for _ in 0..200 {
            average.add(Duration::ZERO);
        }
        assert!(
            average.get() < Duration::from_micros(1),
            "{:?}",
            average.get()
        );
    }
}
