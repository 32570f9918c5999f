//! Runs blocking calls: a limited number at a time, each with a deadline, and without delays by calls that
//! hang.
//!
//! A call takes one of `posix_concurrency` places, and a thread. It releases its place when it returns, or
//! when it takes so long that it counts as hanging ([`super::hanging`]). That time depends on how long
//! calls of this origin usually take. So storage that is slow for every call does not get more concurrent
//! calls for it, and if only a part of the storage hangs, the places serve the other parts. The more calls
//! hang already, the sooner the next one counts as hanging: a thousand calls that begin to hang at once
//! release their places within a second.

use super::Shared;
use crate::origin::failure::{STORAGE_HANGS, too_slow, worded};
use copperfs_overlay::{Failure, FailureKind, ItemPath};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tokio::time::{Instant, timeout_at};

/// A call counts as hanging when it takes this multiple of the usual time …
const USUAL_TIMES: u32 = 10;
/// … but not before this time, because storage may be fast and the machine busy …
const PATIENCE_MIN: Duration = Duration::from_millis(100);
/// … and always after this time.
const PATIENCE_MAX: Duration = Duration::from_secs(2);
/// While other calls hang, this time may shrink to this minimum, or to twice the usual time.
const PATIENCE_FLOOR: Duration = Duration::from_millis(10);
/// The usual time moves by one part in this many of the difference to each new call.
const USUAL_WEIGHT: u64 = 16;

/// A moving average of the duration of calls, in nanoseconds.
#[derive(Debug, Default)]
pub(super) struct Usual(AtomicU64);

impl Usual {
    /// Not atomic as a whole: an estimate may miss a call.
    fn add(&self, took: Duration) {
        let took = took.min(PATIENCE_MAX);
        let took = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let usual = self.0.load(Ordering::Relaxed);
        let next = usual - usual / USUAL_WEIGHT + took / USUAL_WEIGHT;
        self.0.store(next, Ordering::Relaxed);
    }

    fn get(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::Relaxed))
    }
}

/// How long a call may take before it counts as hanging. `usual` is the usual duration of calls, `hanging`
/// the number of hanging ones, and `at_a_time` the number of places.
fn patience(usual: Duration, hanging: usize, at_a_time: usize) -> Duration {
    let alone = (usual * USUAL_TIMES).clamp(PATIENCE_MIN, PATIENCE_MAX);
    let rounds = u32::try_from(hanging / at_a_time.max(1)).unwrap_or(u32::MAX);
    let floor = (usual * 2).clamp(PATIENCE_FLOOR, PATIENCE_MAX);
    (alone / rounds.saturating_add(1)).max(floor)
}

impl Shared {
    /// How long a call that begins now may take before it counts as hanging.
    pub(super) fn patience(&self) -> Duration {
        patience(self.usual.get(), self.hanging.count(), self.at_a_time)
    }

    /// The deadline of a request that begins now.
    pub(super) fn deadline(&self) -> Instant {
        Instant::now() + self.hang_timeout
    }

    pub(super) fn too_slow(&self, action: &str, path: &ItemPath) -> Failure {
        too_slow(&self.label, action, path, self.hang_timeout)
    }

    fn too_many(&self, action: &str, path: &ItemPath, calls: usize) -> Failure {
        worded(
            FailureKind::Unavailable,
            &self.label,
            action,
            path,
            &format_args!("{calls} calls into this filesystem hang, and no more are started")
                .to_string(),
            STORAGE_HANGS,
        )
    }

    pub(super) fn no_thread(
        &self,
        action: &str,
        path: &ItemPath,
        error: &std::io::Error,
    ) -> Failure {
        let hint = "raise the limit of processes (ulimit -u, or pids.max of the cgroup)";
        let kind = FailureKind::Unavailable;
        let cause = format!("cannot start a thread for it: {error}");
        worded(kind, &self.label, action, path, &cause, hint)
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
                let mut released = std::pin::pin!(self.hanging.released());
                released.as_mut().enable();
                if !self.hanging.holds(action, path) {
                    break;
                }
                released.await;
            }
            Arc::clone(&self.places).acquire_owned().await
        };
        let Ok(Ok(place)) = timeout_at(deadline, admitted).await else {
            return Err(self.too_slow(action, path));
        };
        match self.hanging.full(path) {
            Some(calls) => Err(self.too_many(action, path, calls)),
            None => Ok(place),
        }
    }

    /// Runs `call` about `path` on another thread.
    pub(super) async fn run<T: Send + 'static>(
        self: Arc<Self>,
        action: &'static str,
        path: ItemPath,
        call: impl FnOnce(&Arc<Self>, &ItemPath) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        self.run_for(Duration::ZERO, action, path, call).await
    }

    /// Like [`Shared::run`], for a call that may take `longer` than others before it counts as hanging.
    pub(super) async fn run_for<T: Send + 'static>(
        self: Arc<Self>,
        longer: Duration,
        action: &'static str,
        path: ItemPath,
        work: impl FnOnce(&Arc<Self>, &ItemPath) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        let deadline = self.deadline();
        let place = self.admit(action, &path, deadline).await?;
        let call = Arc::new(Call {
            shared: Arc::clone(&self),
            action,
            path,
            begun: Instant::now(),
            state: Mutex::new(State::Running { _place: place }),
        });
        let patience = call.begun + longer + self.patience();
        // Dropped at the deadline, or when the caller is cancelled.
        let _abandon = Abandon(&call);
        let (answer, mut answered) = oneshot::channel();
        let returning = Returning(Arc::clone(&call));
        let started = self.threads.run(move || {
            let call = &returning.0;
            let result = work(&call.shared, &call.path);
            drop(returning);
            // The caller may be gone.
            drop(answer.send(result));
        });
        let path = &call.path;
        started.map_err(|error| self.no_thread(action, path, &error))?;
        if let Ok(result) = timeout_at(patience.min(deadline), &mut answered).await {
            return result.unwrap_or_else(|_panicked| Err(self.broken(action, path)));
        }
        call.hangs();
        match timeout_at(deadline, answered).await {
            Ok(result) => result.unwrap_or_else(|_panicked| Err(self.broken(action, path))),
            Err(_elapsed) => Err(self.too_slow(action, path)),
        }
    }

    fn broken(&self, action: &str, path: &ItemPath) -> Failure {
        let cause = "its thread has panicked";
        worded(FailureKind::Io, &self.label, action, path, &cause, "")
    }
}

/// A call in progress.
struct Call {
    shared: Arc<Shared>,
    action: &'static str,
    path: ItemPath,
    begun: Instant,
    /// Locked briefly for a change of state. Taken before the lock of the hanging calls.
    state: Mutex<State>,
}

enum State {
    /// It has a place.
    Running {
        _place: OwnedSemaphorePermit,
    },
    /// It has released its place, and counts as hanging.
    Hanging(u64),
    Returned,
}

impl Call {
    /// Counts the call as hanging, unless it has returned.
    fn hangs(&self) {
        let mut state = self.state.lock();
        if matches!(*state, State::Running { .. }) {
            let id = self.shared.hanging.add(self.action, &self.path, self.begun);
            *state = State::Hanging(id);
        }
    }
}

/// Dropped on the call's thread when the call has returned.
struct Returning(Arc<Call>);

impl Drop for Returning {
    fn drop(&mut self) {
        let call = &*self.0;
        call.shared.usual.add(call.begun.elapsed());
        let state = std::mem::replace(&mut *call.state.lock(), State::Returned);
        if let State::Hanging(id) = state {
            call.shared.hanging.remove(id);
        }
    }
}

/// Abandons a call on drop: if it has not returned, it counts as hanging.
struct Abandon<'a>(&'a Call);

impl Drop for Abandon<'_> {
    fn drop(&mut self) {
        self.0.hangs();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_follows_what_is_usual_and_how_much_hangs() {
        let ms = Duration::from_millis;
        assert_eq!(patience(ms(1), 0, 16), ms(100));
        assert_eq!(patience(ms(50), 0, 16), ms(500));
        assert_eq!(patience(ms(900), 0, 16), ms(2000));
        assert_eq!(patience(ms(1), 16, 16), ms(50));
        assert_eq!(patience(ms(1), 1000, 16), ms(10));
        // If all of the storage is slow, a call of twice the usual duration does not hang.
        assert_eq!(patience(ms(200), 1000, 16), ms(400));
    }

    /// The total time after which a thousand calls that hang together have released their places.
    #[test]
    fn a_thousand_calls_that_hang_at_once_give_their_places_up_within_a_second() {
        let rounds = (0..1000).step_by(16);
        let all: Duration = rounds
            .map(|hanging| patience(Duration::from_millis(1), hanging, 16))
            .sum();
        assert!(all < Duration::from_secs(1), "{all:?}");
    }

    #[test]
    fn the_usual_time_follows_the_calls() {
        let usual = Usual::default();
        for _ in 0..100 {
            usual.add(Duration::from_millis(100));
        }
        assert!(
            (99..=100).contains(&usual.get().as_millis()),
            "{:?}",
            usual.get()
        );
        for _ in 0..200 {
            usual.add(Duration::ZERO);
        }
        assert!(usual.get() < Duration::from_micros(1), "{:?}", usual.get());
    }
}
