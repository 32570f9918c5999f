//! Which of its ancestors a node hangs from: the rules of healing, for one tree.
//!
//! A node hangs from its parent. When that is lost, falls silent or lies, the grandparent and the
//! root are raced, then those between; the first that welcomes the node is used, and a nearer one
//! takes over when it can, the parent last of all for good. Only ancestors are ever asked, so no
//! sequence of failures can close a loop. One that is silent is kept as long as nobody else answers,
//! for it may only be slow, but not for ever. When nobody is to be had the node is *stranded* in this
//! tree, and goes on trying.
//!
//! A pure state machine: time and randomness are passed in, actions come out. The caller dials,
//! watches connections and says what happened; each candidate has at most one dial in progress.

use std::time::Duration;

/// How patient a node is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Patience {
    /// For so long after its start a node asks nobody but its parent, which may start late.
    pub grace: Duration,
    /// First pause after a failed dial; doubled up to `retry_max`.
    pub retry_min: Duration,
    /// Longest pause between two dials of one candidate.
    pub retry_max: Duration,
    /// How much later than the grandparent and the root those between are asked.
    pub stagger: Duration,
    /// How long a node that lied is left alone, the first time; twice as long the next.
    pub bar: Duration,
    /// How long one that is silent is kept while nobody else answers either.
    pub doubt: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            grace: Duration::from_secs(5),
            retry_min: Duration::from_millis(50),
            retry_max: Duration::from_secs(2),
            stagger: Duration::from_millis(500),
            bar: Duration::from_secs(60),
            doubt: Duration::from_secs(1),
        }
    }
}

/// After so many wrong blocks a node is never asked again.
const LIES_MAX: u32 = 3;
/// Dials that are begun for the same reason are spread over so much time.
const JITTER: Duration = Duration::from_millis(40);

/// What happened. Candidates are positions in the list of ancestors, 0 is the parent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// Time has passed.
    Tick,
    /// A dial succeeded: the candidate has accepted this node.
    Welcomed(usize),
    /// A dial failed.
    Failed(usize),
    /// The connection to the candidate has ended.
    Lost(usize),
    /// Nothing has come from the candidate for longer than it may be silent.
    Silent(usize),
    /// Something has come from a candidate that was silent.
    Heard(usize),
    /// The candidate sent a block whose hash is wrong.
    Lied(usize),
}

/// What to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// Begin to connect to the candidate.
    Dial(usize),
    /// Send requests to the candidate from now on.
    Use(usize),
    /// The candidate is not needed any more; what it is answering may end.
    Leave(usize),
    /// Give the candidate up at once; what it was asked is to be asked elsewhere.
    Drop(usize),
    /// Nobody in this tree can be reached: requests are to go elsewhere. Ends with the next
    /// [`Action::Use`].
    Strand,
}

#[derive(Clone, Debug)]
struct Candidate {
    dialing: bool,
    /// Not dialed before.
    next_dial: Duration,
    pause: Duration,
    /// A dial has failed since this node last hung from somebody.
    failed: bool,
    lies: u32,
    barred_until: Duration,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Ascent {
    patience: Patience,
    candidates: Vec<Candidate>,
    began: Duration,
    using: Option<usize>,
    /// Since when the one in use is silent, if it is.
    suspect: Option<Duration>,
    stranded: bool,
    random: u64,
}

impl Ascent {
    /// A node that starts at time `now`, below `ancestors` candidates (at least 1). `seed` spreads
    /// the dials of many nodes.
    #[must_use]
    pub fn new(ancestors: usize, patience: Patience, seed: u64, now: Duration) -> Self {
        let candidate = Candidate {
            dialing: false,
            next_dial: now,
            pause: patience.retry_min,
            failed: false,
            lies: 0,
            barred_until: Duration::ZERO,
        };
        Self {
            patience,
            candidates: vec![candidate; ancestors],
            began: now,
            using: None,
            suspect: None,
            stranded: false,
            random: seed,
        }
    }

    /// The candidate in use.
    #[must_use]
    pub fn using(&self) -> Option<usize> {
        self.using
    }

    /// Whether nobody can be reached.
    #[must_use]
    pub fn is_stranded(&self) -> bool {
        self.stranded
    }

    /// Takes note of `event` at time `now`, which never goes back; gives what to do, in order.
    #[must_use]
    pub fn step(&mut self, now: Duration, event: Event) -> Vec<Action> {
        let mut actions = Vec::new();
        match event {
            Event::Tick => {}
            Event::Welcomed(at) => self.welcomed(now, at, &mut actions),
            Event::Failed(at) => self.failed(now, at),
            Event::Lost(at) => {
                if self.using == Some(at) {
                    self.search(now);
                }
            }
            Event::Silent(at) => {
                if self.using == Some(at) && self.suspect.is_none() {
                    self.suspect = Some(now);
                    self.hurry(now, at);
                }
            }
            Event::Heard(at) => self.suspect = self.suspect.filter(|_| self.using != Some(at)),
            Event::Lied(at) => self.lied(now, at, &mut actions),
        }
        self.doubt(now, &mut actions);
        self.dial(now, &mut actions);
        self.strand(now, &mut actions);
        actions
    }

    /// When [`Event::Tick`] is due, if ever.
    #[must_use]
    pub fn wake(&self, now: Duration) -> Option<Duration> {
        let dials = (0..self.candidates.len())
            .filter(|&at| !self.candidates[at].dialing && self.is_better(at))
            .map(|at| {
                let candidate = &self.candidates[at];
                let due = candidate.next_dial.max(candidate.barred_until);
                if at > 0 && self.using.is_none() {
                    due.max(self.grace_end())
                } else {
                    due
                }
            });
        let strand = (self.using.is_none() && !self.stranded && now < self.grace_end())
            .then(|| self.grace_end());
        let doubt = self.doubt_end();
        let wakes = dials.chain(strand).chain(doubt);
        wakes.min().filter(|due| *due < Duration::MAX)
    }

    fn grace_end(&self) -> Duration {
        self.began.saturating_add(self.patience.grace)
    }

    fn doubt_end(&self) -> Option<Duration> {
        let since = self.suspect?;
        Some(since.saturating_add(self.patience.doubt))
    }

    /// Whether this node would rather hang from `at` than as it does now.
    fn is_better(&self, at: usize) -> bool {
        match self.using {
            None => true,
            Some(using) => at < using || (self.suspect.is_some() && at != using),
        }
    }

    fn welcomed(&mut self, now: Duration, at: usize, actions: &mut Vec<Action>) {
        let Some(candidate) = self.candidates.get_mut(at) else {
            return;
        };
        candidate.dialing = false;
        candidate.pause = self.patience.retry_min;
        if candidate.barred_until > now || !self.is_better(at) {
            actions.push(Action::Leave(at));
            return;
        }
        let former = self.using.replace(at);
        let silent = self.suspect.take().is_some();
        self.stranded = false;
        // Grace is for a node that has never hung from anybody.
        self.began = Duration::ZERO;
        self.patience.grace = Duration::ZERO;
        actions.push(Action::Use(at));
        if let Some(former) = former {
            self.pause(now, former);
            actions.push(if silent {
                Action::Drop(former)
            } else {
                Action::Leave(former)
            });
        }
        let calm = self.patience.retry_max;
        for nearer in 0..self.candidates.len() {
            let later = now + calm / 2 + self.jitter();
            let candidate = &mut self.candidates[nearer];
            candidate.failed = false;
            candidate.next_dial = candidate.next_dial.max(later);
        }
    }

    fn failed(&mut self, now: Duration, at: usize) {
        if let Some(candidate) = self.candidates.get_mut(at) {
            candidate.dialing = false;
            candidate.failed = true;
        }
        self.pause(now, at);
    }

    fn pause(&mut self, now: Duration, at: usize) {
        let jitter = self.jitter();
        if let Some(candidate) = self.candidates.get_mut(at) {
            candidate.next_dial = now + candidate.pause + jitter;
            candidate.pause = (candidate.pause * 2).min(self.patience.retry_max);
        }
    }

    /// Nobody is used any more: all are asked again, the former one last.
    fn search(&mut self, now: Duration) {
        let Some(former) = self.using.take() else {
            return;
        };
        if self.suspect.take().is_none() {
            self.hurry(now, former);
        }
        self.candidates[former].failed = true;
        self.pause(now, former);
    }

    /// Gives up one that has been silent for so long that it is of no use, though nobody else is.
    fn doubt(&mut self, now: Duration, actions: &mut Vec<Action>) {
        if let Some(using) = self.using
            && self.doubt_end().is_some_and(|end| end <= now)
        {
            self.search(now);
            // The others have had as long to answer: requests are not to wait for their time-outs.
            for candidate in &mut self.candidates {
                candidate.failed |= candidate.dialing;
            }
            actions.push(Action::Drop(using));
        }
    }

    /// Everybody but `former` is to be dialed soon: the grandparent and the root at once, those
    /// between a little later.
    fn hurry(&mut self, now: Duration, former: usize) {
        let last = self.candidates.len() - 1;
        for at in (0..self.candidates.len()).filter(|&at| at != former) {
            let wait = match at {
                0 | 1 => Duration::ZERO,
                _ if at == last => Duration::ZERO,
                _ => self.patience.stagger,
            };
            let jitter = self.jitter();
            let candidate = &mut self.candidates[at];
            candidate.failed = false;
            candidate.pause = self.patience.retry_min;
            candidate.next_dial = now + wait + jitter;
        }
    }

    fn lied(&mut self, now: Duration, at: usize, actions: &mut Vec<Action>) {
        let others = self.candidates.len() > 1;
        let bar = self.patience.bar;
        let Some(candidate) = self.candidates.get_mut(at) else {
            return;
        };
        candidate.lies = candidate.lies.saturating_add(1);
        let lies = candidate.lies;
        if lies >= LIES_MAX {
            candidate.barred_until = Duration::MAX;
        } else if others {
            candidate.barred_until = now + bar * 2_u32.pow(lies - 1);
        } else {
            return;
        }
        if self.using == Some(at) {
            self.search(now);
            actions.push(Action::Drop(at));
        }
    }

    fn dial(&mut self, now: Duration, actions: &mut Vec<Action>) {
        let in_grace = self.using.is_none() && now < self.grace_end();
        for at in 0..self.candidates.len() {
            let allowed = self.is_better(at) && (at == 0 || !in_grace);
            let candidate = &mut self.candidates[at];
            let due = candidate.next_dial <= now && candidate.barred_until <= now;
            if allowed && due && !candidate.dialing {
                candidate.dialing = true;
                actions.push(Action::Dial(at));
            }
        }
    }

    fn strand(&mut self, now: Duration, actions: &mut Vec<Action>) {
        let hopeless = self
            .candidates
            .iter()
            .all(|candidate| candidate.failed || candidate.barred_until > now);
        let in_grace = now < self.grace_end();
        if self.using.is_none() && hopeless && !in_grace && !self.stranded {
            self.stranded = true;
            actions.push(Action::Strand);
        }
    }

    /// Between 0 and [`JITTER`].
    fn jitter(&mut self) -> Duration {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.random;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        JITTER.mul_f64((x >> 40) as f64 / f64::from(1_u32 << 24))
    }
}

#[cfg(test)]
mod tests;
