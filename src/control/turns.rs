//! Turns of requests and answers with many bytes, which limit the memory that all clients use together.

use super::error::ControlError;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Turns at a time. A request and an answer have at most 64 MiB, so each kind holds at most 256 MiB. (An answer
/// may take twice its bytes while its items are being fetched.) Further ones wait.
pub(super) const TURNS_MAX: usize = 4;
/// Turns of one user at a time: half of all, so that no user can keep the others out, however slowly it sends or
/// reads.
pub(super) const TURNS_OF_USER_MAX: usize = 2;
/// How long a request waits for its turn. After that it is refused.
const TURN_TIMEOUT: Duration = Duration::from_secs(30);

/// The turns of one kind. Clones share them.
#[derive(Clone)]
pub(super) struct Turns {
    all: Arc<Semaphore>,
    /// The turns of each user that has or awaits one. The lock guards only the map, and is held for a look-up.
    users: Arc<Mutex<HashMap<Option<u32>, Weak<Semaphore>>>>,
}

/// A turn, which ends when it is dropped.
#[derive(Debug)]
pub(super) struct Turn {
    _of_user: OwnedSemaphorePermit,
    _of_all: OwnedSemaphorePermit,
}

impl Default for Turns {
    fn default() -> Self {
        Self {
            all: Arc::new(Semaphore::new(TURNS_MAX)),
            users: Arc::default(),
        }
    }
}

impl Turns {
    /// Waits for a turn of `user`. Clients without a user id, as over TCP, count as one user.
    ///
    /// # Errors
    /// None ends in time.
    pub(super) async fn wait(&self, user: Option<u32>) -> Result<Turn, ControlError> {
        let own = self.of_user(user);
        let waiting = async {
            // The user's own first: a request that waits for it must not hold a turn that others could have.
            let of_user = own.acquire_owned().await?;
            let of_all = Arc::clone(&self.all).acquire_owned().await?;
            Ok::<_, tokio::sync::AcquireError>(Turn {
                _of_user: of_user,
                _of_all: of_all,
            })
        };
        match tokio::time::timeout(TURN_TIMEOUT, waiting).await {
            Ok(Ok(turn)) => Ok(turn),
            _ => {
                let why = "too many large requests are being answered";
                let advice = "Read the answers to earlier requests to their ends, and try again";
                Err(ControlError::new(503, why, advice))
            }
        }
    }

    fn of_user(&self, user: Option<u32>) -> Arc<Semaphore> {
        let mut users = self.users.lock();
        // A semaphore without permits in use and without requests that wait is the same as another one.
        users.retain(|_, turns| turns.strong_count() > 0);
        if let Some(turns) = users.get(&user).and_then(Weak::upgrade) {
            return turns;
        }
        let turns = Arc::new(Semaphore::new(TURNS_OF_USER_MAX));
        users.insert(user, Arc::downgrade(&turns));
        turns
    }

    /// Returns the number of turns that are in use.
    #[cfg(test)]
    pub(super) fn in_use(&self) -> usize {
        TURNS_MAX - self.all.available_permits()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    #[tokio::test]
    async fn a_user_has_half_of_all_turns() {
        let turns = Turns::default();
        let mut held = Vec::new();
        for _ in 0..TURNS_OF_USER_MAX {
            held.push(turns.wait(Some(1)).await.unwrap());
        }
        assert!(turns.wait(Some(1)).now_or_never().is_none());
        for _ in 0..TURNS_OF_USER_MAX {
            held.push(turns.wait(Some(2)).await.unwrap());
        }
        assert!(
            turns.wait(Some(3)).now_or_never().is_none(),
            "all are taken"
        );
        assert_eq!(turns.in_use(), TURNS_MAX);
        // One of another user makes room in all, and not for this user.
        held.pop();
        assert!(turns.wait(Some(1)).now_or_never().is_none());
        drop(turns.wait(Some(3)).await.unwrap());
        held.clear();
        drop(turns.wait(Some(1)).await.unwrap());
        assert_eq!(
            turns.users.lock().len(),
            1,
            "users without turns are forgotten"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_turn_that_does_not_come_is_refused() {
        let turns = Turns::default();
        let _first = turns.wait(None).await.unwrap();
        let _second = turns.wait(None).await.unwrap();
        assert_eq!(turns.wait(None).await.unwrap_err().0.status, 503);
    }
}
