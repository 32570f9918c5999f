//! Finds the request that kills daemons, so that it does not kill one after another.
//!
//! A successor gets all requests that the daemon before it had in hand ([`copperfs_fuse::quarantine`]), and one of them
//! may be the cause of its death. Nothing tells which, and the others are innocent: with a killed daemon all are. So
//! no request fails because it was in hand once or twice.
//! - A request that was in hand when *two* daemons died is a *suspect*, with all that ask for the same
//!   ([`Subject`]). Suspects wait, and are tried one at a time beside the other requests.
//! - A suspect that has an answer, or lives for two seconds, is acquitted.
//! - If a daemon dies during its trial, and the next one during its second trial, the suspect is convicted. For
//!   [`SENTENCE`] all that ask for the same get EIO. A second trial, because daemons may be killed from outside in quick
//!   succession, such as for memory.
//!
//! So a request kills four daemons at most. That leaves the mounts, which are given up at the sixth death within a
//! minute ([`crate::watchdog`]).
//!
//! The journal has each request that was sent again until it is answered, the present trial, and the convicted.

use crate::journal::JournalPart;
use copperfs_fuse::quarantine::{Admission, Pass, Subject};
use copperfs_fuse::{FsError, Op, Quarantine};
use copperfs_metrics::Counter;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// How long a trial lasts at most. Others wait for it, so it is short, but a request that reads from storage before it
/// kills should come so far.
const TRIAL: Duration = Duration::from_secs(2);
/// The number of trials in which a daemon dies before the suspect is convicted.
const TRIALS: u8 = 2;
/// How long the convicted get EIO, so that the daemons which died before do not count any more when the next one does.
pub const SENTENCE: Duration = Duration::from_secs(60);

/// What a request of one of the node's mounts asks for.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Suspect {
    /// The number of the mount.
    pub mount: u8,
    /// The place of the operation in [`Op::ALL`].
    op: u8,
    /// The number of the inode.
    pub ino: u64,
    name: Vec<u8>,
}

impl Suspect {
    fn new(mount: u8, subject: &Subject) -> Self {
        Self {
            mount,
            op: subject.op as u8,
            ino: subject.ino.0,
            name: subject.name.to_vec(),
        }
    }
}

impl fmt::Display for Suspect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let op = Op::ALL.get(usize::from(self.op));
        f.write_str(op.map_or("request", |op| op.name()))?;
        if self.name.is_empty() {
            return Ok(());
        }
        write!(f, " of {:?}", String::from_utf8_lossy(&self.name))
    }
}

/// What the journal says. Encoded by postcard.
#[derive(Debug, Serialize, Deserialize)]
enum SuspectRecord {
    /// The daemon after `generation` others has this request in hand, as one before it.
    InHand {
        generation: u32,
        mount: u8,
        unique: u64,
        suspect: Suspect,
    },
    /// This request has an answer.
    Answered { mount: u8, unique: u64 },
    /// The trial that goes on, in the daemon after `generation` others.
    Trial {
        generation: u32,
        suspect: Option<Suspect>,
    },
    /// A suspect of the daemon after `generation` others, and the number of daemons that have died during its trials.
    Tried {
        generation: u32,
        suspect: Suspect,
        deaths: u8,
    },
    /// The convicted get EIO until this time, in seconds since 1970.
    Convicted { suspect: Suspect, until: u64 },
    /// This daemon is about to be ended, and not by a request.
    Blameless,
}

/// About the bytes of a record.
const RECORD_BYTES: u64 = 32;

/// A request, by the mount and its number on the mount's connection.
type Request = (u8, u64);

/// The suspects that a journal tells of, while it is read.
#[derive(Debug, Default)]
pub struct RememberedSuspects {
    in_hand: HashMap<Request, (u32, Suspect)>,
    trial: Option<(u32, Suspect)>,
    tried: HashMap<Suspect, (u32, u8)>,
    convicted: HashMap<Suspect, u64>,
}

impl RememberedSuspects {
    /// Takes the next record. A record that is none is ignored: no request is suspect because of it.
    pub fn take(&mut self, record: &[u8]) {
        match postcard::from_bytes(record) {
            Ok(SuspectRecord::InHand {
                generation,
                mount,
                unique,
                suspect,
            }) => {
                self.in_hand.insert((mount, unique), (generation, suspect));
            }
            Ok(SuspectRecord::Answered { mount, unique }) => {
                self.in_hand.remove(&(mount, unique));
            }
            Ok(SuspectRecord::Trial {
                generation,
                suspect,
            }) => self.trial = suspect.map(|suspect| (generation, suspect)),
            Ok(SuspectRecord::Tried {
                generation,
                suspect,
                deaths,
            }) => {
                self.tried.insert(suspect, (generation, deaths));
            }
            Ok(SuspectRecord::Convicted { suspect, until }) => {
                self.convicted.insert(suspect, until);
            }
            Ok(SuspectRecord::Blameless) => {
                self.in_hand.clear();
                self.trial = None;
                self.tried.clear();
            }
            Err(error) => tracing::debug!(%error, "a record of no suspect"),
        }
    }
}

/// See the module. Cheap to clone.
#[derive(Clone)]
pub struct Suspects(Arc<Inner>);

struct Inner {
    journal: JournalPart,
    generation: u32,
    state: Mutex<State>,
    /// Whether there are suspects or convicted.
    is_active: AtomicBool,
    /// The place of the one trial.
    turn: Arc<Semaphore>,
    /// Requests that got EIO.
    refused: Counter,
}

#[derive(Default)]
struct State {
    /// With the numbers of daemons that have died during their trials.
    suspects: HashMap<Suspect, u8>,
    /// With the ends of their sentences.
    convicted: HashMap<Suspect, SystemTime>,
    /// Requests that were sent again to this daemon.
    in_hand: HashMap<Request, Suspect>,
    trial: Option<Trial>,
    trials: u64,
}

struct Trial {
    number: u64,
    suspect: Suspect,
    _turn: OwnedSemaphorePermit,
}

impl Suspects {
    /// Continues with what earlier daemons have left. `journal` is for this daemon's records. `generation`: the number of
    /// earlier daemons.
    #[must_use]
    pub fn new(
        journal: JournalPart,
        generation: u32,
        remembered: RememberedSuspects,
        now: SystemTime,
    ) -> Self {
        let is_last = |of: u32| of + 1 == generation;
        let mut state = State::default();
        let latest = now + SENTENCE;
        for (suspect, until) in remembered.convicted {
            // The clock may have changed.
            let until = (UNIX_EPOCH + Duration::from_secs(until)).min(latest);
            if until > now {
                state.convicted.insert(suspect, until);
            }
        }
        let trial = remembered.trial.filter(|(of, _)| is_last(*of));
        let on_trial = trial.map(|(_, suspect)| suspect);
        for (of, suspect) in remembered.in_hand.into_values() {
            if !is_last(of) {
                continue;
            }
            let before = remembered.tried.get(&suspect);
            let before = before.filter(|(of, _)| is_last(*of));
            let deaths = before.map_or(0, |(_, deaths)| *deaths);
            let deaths = deaths + u8::from(on_trial.as_ref() == Some(&suspect));
            if deaths >= TRIALS {
                state.convicted.insert(suspect, latest);
            } else {
                state.suspects.insert(suspect, deaths);
            }
        }
        for convicted in state.convicted.keys() {
            state.suspects.remove(convicted);
        }
        let inner = Inner {
            journal,
            generation,
            is_active: AtomicBool::new(!state.suspects.is_empty() || !state.convicted.is_empty()),
            state: Mutex::new(state),
            turn: Arc::new(Semaphore::new(1)),
            refused: Counter::default(),
        };
        inner.tell_judgements(&inner.state.lock());
        inner.journal.commit();
        Self(Arc::new(inner))
    }

    /// Returns the counter of requests that got EIO.
    #[must_use]
    pub fn refused(&self) -> &Counter {
        &self.0.refused
    }

    /// Returns the convicted.
    #[must_use]
    pub fn convicted(&self) -> Vec<Suspect> {
        self.0.state.lock().convicted.keys().cloned().collect()
    }

    /// Returns what decides about the requests of mount number `mount`.
    #[must_use]
    pub fn of_mount(&self, mount: u8) -> Arc<dyn Quarantine> {
        Arc::new(MountSuspects {
            inner: Arc::clone(&self.0),
            mount,
        })
    }

    /// Clears all of suspicion: this daemon is about to be ended, and not by a request.
    pub fn clear(&self) {
        let mut state = self.0.state.lock();
        state.trial = None;
        state.in_hand.clear();
        self.0.journal.put(&SuspectRecord::Blameless, 0);
        self.0.journal.commit();
    }

    /// Tells the journal of all that it knows, for its snapshot.
    pub fn tell_all(&self) {
        let state = self.0.state.lock();
        for (request, suspect) in &state.in_hand {
            self.0.tell_in_hand(*request, suspect);
        }
        let suspect = state.trial.as_ref().map(|trial| trial.suspect.clone());
        self.0.tell_trial(suspect);
        self.0.tell_judgements(&state);
    }
}

/// The suspects among the requests of one mount.
struct MountSuspects {
    inner: Arc<Inner>,
    mount: u8,
}

impl fmt::Debug for MountSuspects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MountSuspects")
            .field("mount", &self.mount)
            .finish_non_exhaustive()
    }
}

impl Quarantine for MountSuspects {
    fn is_active(&self) -> bool {
        self.inner.is_active.load(Ordering::Relaxed)
    }

    fn admit(&self, subject: Subject, resent: Option<u64>) -> Option<Admission> {
        let suspect = Suspect::new(self.mount, &subject);
        self.inner.admit(suspect, resent, SystemTime::now())
    }
}

impl Inner {
    fn admit(
        self: &Arc<Self>,
        suspect: Suspect,
        resent: Option<u64>,
        now: SystemTime,
    ) -> Option<Admission> {
        let mut state = self.state.lock();
        match state.convicted.get(&suspect) {
            Some(until) if now < *until => {
                self.refused.increment();
                return Some(Box::pin(async { Err(FsError::Io) }));
            }
            Some(_) => {
                state.convicted.remove(&suspect);
                self.update(&state);
            }
            None => {}
        }
        let in_hand = resent.map(|unique| {
            let request = (suspect.mount, unique);
            // Before it is handled: it may kill this daemon at once.
            self.tell_in_hand(request, &suspect);
            self.journal.commit();
            state.in_hand.insert(request, suspect.clone());
            InHand {
                inner: Arc::clone(self),
                request,
            }
        });
        if state.suspects.contains_key(&suspect) {
            let trying = Arc::clone(self).attempt(suspect, in_hand);
            return Some(Box::pin(trying));
        }
        let in_hand = in_hand?;
        Some(Box::pin(async { Ok(Box::new(in_hand) as Pass) }))
    }

    /// Waits until `suspect` may be handled: as the only suspect, or because it is none any more.
    async fn attempt(
        self: Arc<Self>,
        suspect: Suspect,
        in_hand: Option<InHand>,
    ) -> Result<Pass, FsError> {
        let turn = Arc::clone(&self.turn).acquire_owned().await;
        let turn = turn.map_err(|_never_closed| FsError::Io)?;
        let number = {
            let mut state = self.state.lock();
            if !state.suspects.contains_key(&suspect) {
                return Ok(Box::new(in_hand));
            }
            tracing::warn!(%suspect, ino = suspect.ino,
                "a request that two daemons had in hand when they died is tried by itself");
            self.tell_trial(Some(suspect.clone()));
            self.journal.commit();
            state.trials += 1;
            let number = state.trials;
            state.trial = Some(Trial {
                number,
                suspect,
                _turn: turn,
            });
            number
        };
        let inner = Arc::clone(&self);
        tokio::spawn(async move {
            tokio::time::sleep(TRIAL).await;
            inner.acquit(number);
        });
        // The trial ends first: afterwards no other request may be blamed for it.
        Ok(Box::new((OnTrial(self, number), in_hand)))
    }

    /// Ends trial `number`, if it goes on.
    fn acquit(&self, number: u64) {
        let mut state = self.state.lock();
        if let Some(trial) = state.trial.take_if(|trial| trial.number == number) {
            state.suspects.remove(&trial.suspect);
            self.tell_trial(None);
            self.journal.commit();
            self.update(&state);
        }
    }

    fn update(&self, state: &State) {
        let is_active = !state.suspects.is_empty() || !state.convicted.is_empty();
        self.is_active.store(is_active, Ordering::Relaxed);
    }

    fn tell_in_hand(&self, (mount, unique): Request, suspect: &Suspect) {
        let record = SuspectRecord::InHand {
            generation: self.generation,
            mount,
            unique,
            suspect: suspect.clone(),
        };
        self.journal.put(&record, RECORD_BYTES);
    }

    /// Tells the journal of the convicted, and of suspects during whose trials daemons have died.
    fn tell_judgements(&self, state: &State) {
        for (suspect, until) in &state.convicted {
            let until = until.duration_since(UNIX_EPOCH).unwrap_or_default();
            let (suspect, until) = (suspect.clone(), until.as_secs());
            let record = SuspectRecord::Convicted { suspect, until };
            self.journal.put(&record, 0);
        }
        for (suspect, &deaths) in state.suspects.iter().filter(|(_, deaths)| **deaths > 0) {
            let record = SuspectRecord::Tried {
                generation: self.generation,
                suspect: suspect.clone(),
                deaths,
            };
            self.journal.put(&record, 0);
        }
    }

    fn tell_trial(&self, suspect: Option<Suspect>) {
        let record = SuspectRecord::Trial {
            generation: self.generation,
            suspect,
        };
        self.journal.put(&record, RECORD_BYTES);
    }
}

/// A request that was sent again. Dropped when it is answered.
struct InHand {
    inner: Arc<Inner>,
    request: Request,
}

impl Drop for InHand {
    fn drop(&mut self) {
        let mut state = self.inner.state.lock();
        state.in_hand.remove(&self.request);
        let (mount, unique) = self.request;
        let record = SuspectRecord::Answered { mount, unique };
        self.inner.journal.put(&record, RECORD_BYTES);
        self.inner.journal.commit();
    }
}

/// A suspect that is handled. Dropped when it is answered.
struct OnTrial(Arc<Inner>, u64);

impl Drop for OnTrial {
    fn drop(&mut self) {
        self.0.acquit(self.1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::Journal;
    use crate::journal::killed::Killed;
    use bytes::Bytes;
    use copperfs_fuse::Ino;
    use futures_util::FutureExt;
    use proptest::prelude::*;

    const TAG: u8 = 4;

    /// A daemon after `generation` others, whose journal is in `file`.
    fn daemon_at(file: &Arc<Killed>, generation: u32, now: SystemTime) -> Suspects {
        let mut remembered = RememberedSuspects::default();
        let journal = if generation == 0 {
            Journal::create(Arc::clone(file)).unwrap()
        } else {
            Journal::adopt(Arc::clone(file), |record| remembered.take(&record[1..])).unwrap()
        };
        let part = JournalPart::new(Arc::new(journal), TAG);
        Suspects::new(part, generation, remembered, now)
    }

    fn daemon(file: &Arc<Killed>, generation: u32) -> Suspects {
        daemon_at(file, generation, SystemTime::now())
    }

    /// The journal of daemons that die one after another.
    fn journal() -> Arc<Killed> {
        Killed::after(usize::MAX)
    }

    fn read(ino: u64) -> Subject {
        Subject {
            op: Op::Read,
            ino: Ino(ino),
            name: Bytes::new(),
        }
    }

    /// The outcome of a request that is handled at once or never; `None`: it waits.
    fn ask(
        daemon: &Suspects,
        subject: Subject,
        resent: Option<u64>,
    ) -> Option<Result<Pass, FsError>> {
        match daemon.of_mount(0).admit(subject, resent) {
            None => Some(Ok(Box::new(()))),
            Some(admission) => admission.now_or_never(),
        }
    }

    /// Keeps a request in hand, as the death of its daemon does.
    fn die_with(outcome: Option<Result<Pass, FsError>>) {
        in_hand_for_ever(outcome.unwrap().unwrap());
    }

    #[expect(clippy::mem_forget, reason = "a killed daemon drops nothing")]
    fn in_hand_for_ever<T>(request: T) {
        std::mem::forget(request);
    }

    #[tokio::test]
    async fn the_fourth_death_of_a_poison_request_is_the_last() {
        let file = journal();
        let first = daemon(&file, 0);
        assert!(first.of_mount(0).admit(read(7), None).is_none(), "new");
        let second = daemon(&file, 1);
        assert!(!second.of_mount(0).is_active());
        die_with(ask(&second, read(7), Some(1)));
        let third = daemon(&file, 2);
        assert!(third.of_mount(0).is_active());
        die_with(ask(&third, read(7), Some(1)));
        // It may have been killed from outside: there is a second trial.
        let third = daemon(&file, 3);
        assert!(third.convicted().is_empty() && third.of_mount(0).is_active());
        third.tell_all();
        die_with(ask(&third, read(7), Some(1)));
        let (now, later) = (SystemTime::now(), SystemTime::now() + SENTENCE * 2);
        let fourth = daemon_at(&file, 4, now);
        assert_eq!(fourth.convicted(), [Suspect::new(0, &read(7))]);
        for resent in [Some(1), None] {
            let outcome = ask(&fourth, read(7), resent);
            assert!(matches!(outcome, Some(Err(FsError::Io))));
        }
        assert_eq!(fourth.refused().get(), 2);
        // On the other mount the same number is another inode.
        assert!(fourth.of_mount(1).admit(read(7), None).is_none());
        assert!(ask(&fourth, read(8), Some(2)).unwrap().is_ok());
        // Its successor knows, also by a snapshot, and with another clock for no longer.
        fourth.tell_all();
        for now in [now, UNIX_EPOCH + SENTENCE] {
            assert_eq!(daemon_at(&file, 5, now).convicted().len(), 1);
        }
        let last = daemon_at(&file, 5, later);
        assert!(last.convicted().is_empty() && !last.of_mount(0).is_active());
    }

    #[tokio::test]
    async fn requests_that_have_an_answer_are_no_suspects() {
        let file = journal();
        drop(daemon(&file, 0));
        let second = daemon(&file, 1);
        drop(ask(&second, read(7), Some(1)));
        die_with(ask(&second, read(8), Some(2)));
        let third = daemon(&file, 2);
        assert!(third.of_mount(0).admit(read(7), None).is_none());
        // It was in hand twice, and has its answer now.
        drop(ask(&third, read(8), Some(2)));
        assert!(!third.of_mount(0).is_active());
        assert!(daemon(&file, 3).convicted().is_empty());
    }

    #[tokio::test]
    async fn a_daemon_that_is_ended_by_another_cause_has_no_suspects() {
        let file = journal();
        drop(daemon(&file, 0));
        let second = daemon(&file, 1);
        die_with(ask(&second, read(7), Some(1)));
        let third = daemon(&file, 2);
        die_with(ask(&third, read(7), Some(1)));
        third.clear();
        assert!(!daemon(&file, 3).of_mount(0).is_active());
    }

    #[tokio::test(start_paused = true)]
    async fn suspects_are_tried_one_at_a_time() {
        let file = journal();
        drop(daemon(&file, 0));
        let second = daemon(&file, 1);
        for unique in [1, 2] {
            die_with(ask(&second, read(unique), Some(unique)));
        }
        let third = daemon(&file, 2);
        let trial = ask(&third, read(1), Some(1)).unwrap().unwrap();
        let mut same = third.of_mount(0).admit(read(1), None).unwrap();
        let mut other = third.of_mount(0).admit(read(2), Some(2)).unwrap();
        assert!((&mut same).now_or_never().is_none());
        assert!((&mut other).now_or_never().is_none());
        assert!(ask(&third, read(3), None).unwrap().is_ok(), "no suspect");
        drop(trial);
        assert!(
            same.await.is_ok(),
            "it asks for the same as an acquitted one"
        );
        // A trial ends also if there is no answer.
        let slow = other.await.unwrap();
        let mut same = third.of_mount(0).admit(read(2), None).unwrap();
        assert!((&mut same).now_or_never().is_none());
        assert!(same.await.is_ok());
        assert!(!third.of_mount(0).is_active());
        in_hand_for_ever(slow);
        assert!(daemon(&file, 3).convicted().is_empty());
    }

    proptest! {
        /// Whatever is in hand beside the poison, it alone is convicted, by its fourth death.
        #[test]
        fn only_the_poison_is_convicted(
            slow in proptest::collection::vec(0..6_u64, 1..6),
            poison in 0..6_u64,
            order in any::<u64>(),
        ) {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_time().start_paused(true).build().unwrap();
            runtime.block_on(async {
                let mut file = journal();
                drop(daemon(&file, 0));
                let mut requests: Vec<u64> = slow.iter().copied().chain([poison]).collect();
                let turn = usize::try_from(order % requests.len() as u64).unwrap();
                requests.rotate_left(turn);
                for generation in 1..=4 {
                    // Without what the timers of dead daemons write.
                    file = file.survivor();
                    let daemon = daemon(&file, generation);
                    let admitted = requests.iter().zip(1..).map(|(ino, unique)| {
                        let admission = daemon.of_mount(0).admit(read(*ino), Some(unique));
                        (*ino, admission.unwrap())
                    });
                    let mut waiting: Vec<_> = admitted.collect();
                    if generation == 4 {
                        for (ino, admission) in waiting {
                            prop_assert_eq!(admission.await.is_err(), ino == poison);
                        }
                        return Ok(());
                    }
                    // The daemon lives until the poison is handled. No other request is ever answered.
                    let mut kills = false;
                    loop {
                        waiting.retain_mut(|(ino, admission)| match admission.now_or_never() {
                            Some(pass) => {
                                in_hand_for_ever(pass.unwrap());
                                kills |= *ino == poison;
                                false
                            }
                            None => true,
                        });
                        if kills {
                            break;
                        }
                        tokio::time::sleep(TRIAL / 2).await;
                    }
                    in_hand_for_ever(waiting);
                }
                Ok(())
            })?;
        }
    }
}
