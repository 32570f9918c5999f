//! Each question is asked once, however many callers ask it (Copper, section IV.A.1).

use copperfs_overlay::{Failure, FailureKind, ItemPath};
use dashmap::DashMap;
use dashmap::mapref::entry::Entry;
use std::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::watch;

/// The answer to a question, as soon as there is one. It is closed without an answer only if the task that asked has
/// ended.
type Pending<V> = watch::Receiver<Option<Result<V, Failure>>>;

/// The right, and the duty, to answer a question.
pub(super) struct Lead<K: Eq + Hash, V> {
    flights: Arc<DashMap<K, Pending<V>>>,
    key: K,
    answer: watch::Sender<Option<Result<V, Failure>>>,
    pending: Pending<V>,
}

impl<K: Eq + Hash, V> Lead<K, V> {
    /// The question.
    pub(super) fn key(&self) -> &K {
        &self.key
    }

    /// Passes the answer to all callers that wait. An answer for later callers must be cached before.
    pub(super) fn answer(self, answer: Result<V, Failure>) {
        self.land();
        self.answer.send_replace(Some(answer));
    }

    /// Removes the question from the list. The list may have a newer one with the same key.
    fn land(&self) {
        self.flights
            .remove_if(&self.key, |_, pending| pending.same_channel(&self.pending));
    }
}

/// A lead that is dropped without an answer frees the key. Callers that wait see the channel close.
impl<K: Eq + Hash, V> Drop for Lead<K, V> {
    fn drop(&mut self) {
        if self.answer.borrow().is_none() {
            self.land();
        }
    }
}

/// A question that was asked.
pub(super) enum Requested<V> {
    /// It was answered before, or in the meantime.
    Answered(V),
    /// It is in progress.
    Pending(Pending<V>),
}

impl<V: Clone> Requested<V> {
    /// Waits for the answer, which is about `path`.
    pub(super) async fn answer(self, path: &ItemPath) -> Result<V, Failure> {
        let mut pending = match self {
            Self::Answered(value) => return Ok(value),
            Self::Pending(pending) => pending,
        };
        match pending.wait_for(Option::is_some).await.as_deref() {
            Ok(Some(answer)) => answer.clone(),
            Ok(None) | Err(_) => Err(given_up(path)),
        }
    }
}

/// The failure of a question about `path` whose task ended without an answer.
pub(super) fn given_up(path: &ItemPath) -> Failure {
    let detail = format!("{path}: the request was given up");
    Failure::new(FailureKind::Unavailable, detail)
}

/// The questions in progress. Bounded by the number of callers that wait.
pub(super) struct SingleFlight<K, V> {
    flights: Arc<DashMap<K, Pending<V>>>,
    coalesced: AtomicU64,
}

impl<K: Eq + Hash, V> Default for SingleFlight<K, V> {
    fn default() -> Self {
        Self {
            flights: Arc::default(),
            coalesced: AtomicU64::new(0),
        }
    }
}

impl<K: Eq + Hash + Clone, V> SingleFlight<K, V> {
    /// Joins the question `key`. If it is not in progress, `look_again` is called under the key's lock, because an answer
    /// may have arrived since the caller looked. If there is none either, `begin` receives the duty to answer.
    pub(super) fn request(
        &self,
        key: &K,
        look_again: impl FnOnce() -> Option<V>,
        begin: impl FnOnce(Lead<K, V>),
    ) -> Requested<V> {
        let (answer, pending) = match self.flights.entry(key.clone()) {
            Entry::Occupied(entry) => {
                self.coalesced.fetch_add(1, Ordering::Relaxed);
                return Requested::Pending(entry.get().clone());
            }
            Entry::Vacant(entry) => {
                if let Some(value) = look_again() {
                    return Requested::Answered(value);
                }
                let (answer, pending) = watch::channel(None);
                drop(entry.insert(pending.clone()));
                (answer, pending)
            }
        };
        begin(Lead {
            flights: Arc::clone(&self.flights),
            key: key.clone(),
            answer,
            pending: pending.clone(),
        });
        Requested::Pending(pending)
    }

    /// Detaches all questions in progress: later callers ask again, and callers that wait already get their answers.
    pub(super) fn forget_all(&self) {
        self.flights.clear();
    }

    /// The number of callers that joined a question in progress.
    pub(super) fn coalesced(&self) -> u64 {
        self.coalesced.load(Ordering::Relaxed)
    }
}
