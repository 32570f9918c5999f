//! Each question is asked once, however many callers ask it (Copper, section IV.A.1).

use dashmap::DashMap;
use dashmap::mapref::entry::Entry;
use std::fmt;
use std::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::watch;

/// The answer to a question, as soon as there is one. It is closed without an answer only if the task that asked has
/// ended.
pub(super) type Pending<V> = watch::Receiver<Option<V>>;

/// The right, and the duty, to answer a question.
#[derive(Debug)]
pub(super) struct Lead<K, V>
where
    K: Eq + Hash + Clone,
{
    flights: Arc<DashMap<K, Pending<V>>>,
    key: K,
    answer: watch::Sender<Option<V>>,
    pending: Pending<V>,
}

impl<K, V> Lead<K, V>
where
    K: Eq + Hash + Clone,
{
    /// The question.
    pub(super) fn key(&self) -> &K {
        &self.key
    }

    /// Passes the answer to all callers that wait. An answer for later callers must be cached before.
    pub(super) fn answer(self, value: V) {
        self.land();
        self.answer.send_replace(Some(value));
    }

    /// Removes the question from the list. The list may have a newer one with the same key.
    fn land(&self) {
        self.flights
            .remove_if(&self.key, |_, pending| pending.same_channel(&self.pending));
    }
}

/// A lead that is dropped without an answer frees the key. Callers that wait see the channel close.
impl<K, V> Drop for Lead<K, V>
where
    K: Eq + Hash + Clone,
{
    fn drop(&mut self) {
        if self.answer.borrow().is_none() {
            self.land();
        }
    }
}

/// The result of joining a question.
#[derive(Debug)]
pub(super) enum Joined<K, V>
where
    K: Eq + Hash + Clone,
{
    /// The caller must ask it, and then call [`Lead::answer`].
    Lead(Lead<K, V>, Pending<V>),
    /// It is in progress.
    Follow(Pending<V>),
    /// It was answered in the meantime.
    Answered(V),
}

/// The questions in progress. Bounded by the number of callers that wait.
pub(super) struct SingleFlight<K, V> {
    flights: Arc<DashMap<K, Pending<V>>>,
    coalesced: AtomicU64,
}

impl<K, V> fmt::Debug for SingleFlight<K, V>
where
    K: Eq + Hash,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SingleFlight")
            .field("under_way", &self.flights.len())
            .finish()
    }
}

impl<K, V> SingleFlight<K, V>
where
    K: Eq + Hash + Clone,
    V: Clone,
{
    pub(super) fn new() -> Self {
        Self {
            flights: Arc::new(DashMap::new()),
            coalesced: AtomicU64::new(0),
        }
    }

    /// Joins the question `key`. If it is not in progress, `look_again` is called under the key's lock, because an answer
    /// may have arrived since the caller looked.
    pub(super) fn join(&self, key: &K, look_again: impl FnOnce() -> Option<V>) -> Joined<K, V> {
        match self.flights.entry(key.clone()) {
            Entry::Occupied(entry) => {
                self.coalesced.fetch_add(1, Ordering::Relaxed);
                Joined::Follow(entry.get().clone())
            }
            Entry::Vacant(entry) => {
                if let Some(value) = look_again() {
                    return Joined::Answered(value);
                }
                let (answer, pending) = watch::channel(None);
                drop(entry.insert(pending.clone()));
                let flights = Arc::clone(&self.flights);
                let lead = Lead {
                    flights,
                    key: key.clone(),
                    answer,
                    pending: pending.clone(),
                };
                Joined::Lead(lead, pending)
            }
        }
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

/// Waits for the answer; `None` if the task that asked has ended without one.
pub(super) async fn answer_of<V: Clone>(mut pending: Pending<V>) -> Option<V> {
    let answer = pending.wait_for(Option::is_some).await.ok()?;
    answer.clone()
}
