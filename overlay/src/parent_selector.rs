//! Chooses the ancestor that a node uses as its parent in one tree.
//!
//! A node uses its parent by the member list. When that ancestor is lost, falls silent or sends a corrupt
//! block, the node races its grandparent and the root, then the ancestors between them, and uses the first
//! that accepts it. A nearer ancestor takes over when it can, and the listed parent in the end. Only
//! ancestors are candidates, so no sequence of failures can close a loop. A silent ancestor may only be slow:
//! it is kept for a while if no other answers. One that has restarted is live, so it is dialed again alone at first.
//! Without any ancestor the node is *stranded* in this tree, and
//! keeps trying.
//!
//! A pure state machine: time and randomness are arguments, actions are results. The caller dials, watches
//! the connections and reports events. Each candidate has at most one dial in progress.

use copperfs_topology::mix64;
use std::time::Duration;

/// The durations that govern the choice of a parent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FailoverTimes {
    /// How long after its start a node dials only its listed parent, which may start late.
    pub start_grace: Duration,
    /// First pause after a failed dial; doubled up to `retry_max`.
    pub retry_min: Duration,
    /// Longest pause between two dials of one candidate.
    pub retry_max: Duration,
    /// Delay between dialing the grandparent and the root, and dialing the ancestors between them.
    pub stagger: Duration,
    /// How long an ancestor is barred after its first corrupt block. Each further block doubles it.
    pub corrupt_bar: Duration,
    /// How long a silent ancestor is kept while no other answers.
    pub silent_max: Duration,
    /// How long only an ancestor that has restarted is dialed. Other ancestors would have to read again what it has
    /// on its disk, and this node would return soon after.
    pub restart_hold: Duration,
}

impl Default for FailoverTimes {
    fn default() -> Self {
        Self {
            start_grace: Duration::from_secs(5),
            retry_min: Duration::from_millis(50),
            retry_max: Duration::from_secs(2),
            stagger: Duration::from_millis(500),
            corrupt_bar: Duration::from_secs(60),
            silent_max: Duration::from_secs(1),
            restart_hold: Duration::from_secs(2),
        }
    }
}

/// An ancestor that has sent this many corrupt blocks is barred for good.
const CORRUPT_BLOCKS_MAX: u32 = 3;
/// Dials that are due for the same reason are spread over this time.
const JITTER_MAX: Duration = Duration::from_millis(40);

/// An event at a candidate. Candidates are positions in the list of ancestors; 0 is the listed parent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// Time has passed.
    Tick,
    /// A dial succeeded: the candidate has accepted this node.
    Accepted(usize),
    /// A dial failed.
    Failed(usize),
    /// The connection to the candidate has ended.
    Lost(usize),
    /// The connection to the candidate has ended because its process is another one now, which has said so.
    Restarted(usize),
    /// The candidate has sent nothing for longer than allowed.
    Silent(usize),
    /// A silent candidate has sent something.
    Heard(usize),
    /// The candidate has sent a block whose hash is wrong.
    Corrupt(usize),
}

/// An order to the caller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// Begin to connect to the candidate.
    Dial(usize),
    /// Send requests to the candidate from now on.
    Use(usize),
    /// Send no further requests to the candidate. Its answers in progress may end.
    Release(usize),
    /// Close the connection to the candidate at once. Its requests are repeated elsewhere.
    Abandon(usize),
    /// No ancestor can be reached: requests go to other trees until the next [`Action::Use`].
    Strand,
}

#[derive(Clone, Debug)]
struct Candidate {
    dialing: bool,
    /// Earliest time of the next dial.
    next_dial: Duration,
    /// The pause after the next failed dial.
    pause: Duration,
    /// A dial has failed since this node last had a parent.
    failed: bool,
    corrupt_blocks: u32,
    barred_until: Duration,
}

/// The state machine; see the module.
#[derive(Clone, Debug)]
pub struct ParentSelector {
    times: FailoverTimes,
    candidates: Vec<Candidate>,
    /// Until then only the listed parent is dialed.
    grace_end: Duration,
    using: Option<usize>,
    /// Since when the candidate in use is silent.
    silent_since: Option<Duration>,
    stranded: bool,
    random: u64,
}

impl ParentSelector {
    /// A node with `ancestors` candidates (at least 1) that starts at time `now`. `seed` spreads the dials
    /// of many nodes.
    #[must_use]
    pub fn new(ancestors: usize, times: FailoverTimes, seed: u64, now: Duration) -> Self {
        let candidate = Candidate {
            dialing: false,
            next_dial: now,
            pause: times.retry_min,
            failed: false,
            corrupt_blocks: 0,
            barred_until: Duration::ZERO,
        };
        Self {
            times,
            candidates: vec![candidate; ancestors],
            grace_end: now.saturating_add(times.start_grace),
            using: None,
            silent_since: None,
            stranded: false,
            random: seed,
        }
    }

    /// The candidate in use.
    #[must_use]
    pub fn using(&self) -> Option<usize> {
        self.using
    }

    /// Whether no ancestor can be reached.
    #[must_use]
    pub fn is_stranded(&self) -> bool {
        self.stranded
    }

    /// Handles `event` at time `now`, which never goes back. Returns the actions to take, in order.
    #[must_use]
    pub fn step(&mut self, now: Duration, event: Event) -> Vec<Action> {
        let mut actions = Vec::new();
        match event {
            Event::Tick => {}
            Event::Accepted(at) => self.accepted(now, at, &mut actions),
            Event::Failed(at) => {
                if let Some(candidate) = self.candidates.get_mut(at) {
                    candidate.dialing = false;
                    candidate.failed = true;
                }
                self.pause(now, at);
            }
            Event::Lost(at) if self.using == Some(at) => self.search(now),
            Event::Restarted(at) if self.using == Some(at) => self.wait_for_restarted(now, at),
            Event::Silent(at) if self.using == Some(at) && self.silent_since.is_none() => {
                self.silent_since = Some(now);
                self.hurry(now, at);
            }
            Event::Heard(at) if self.using == Some(at) => self.silent_since = None,
            Event::Lost(_) | Event::Restarted(_) | Event::Silent(_) | Event::Heard(_) => {}
            Event::Corrupt(at) => self.corrupt(now, at, &mut actions),
        }
        self.give_up_silent(now, &mut actions);
        self.dial_due(now, &mut actions);
        self.strand_if_hopeless(now, &mut actions);
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
                match at > 0 && self.using.is_none() {
                    true => due.max(self.grace_end),
                    false => due,
                }
            });
        let strand = (self.using.is_none() && !self.stranded && now < self.grace_end)
            .then_some(self.grace_end);
        let wakes = dials.chain(strand).chain(self.silence_end());
        // A candidate that is barred for good is due at `Duration::MAX`.
        wakes.min().filter(|due| *due < Duration::MAX)
    }

    /// When the silent candidate in use is given up.
    fn silence_end(&self) -> Option<Duration> {
        let since = self.silent_since?;
        Some(since.saturating_add(self.times.silent_max))
    }

    /// Whether candidate `at` would be a better parent than the present one.
    fn is_better(&self, at: usize) -> bool {
        match self.using {
            None => true,
            // Any other candidate is better than a silent one.
            Some(using) => at < using || (self.silent_since.is_some() && at != using),
        }
    }

    fn accepted(&mut self, now: Duration, at: usize, actions: &mut Vec<Action>) {
        let Some(candidate) = self.candidates.get_mut(at) else {
            return;
        };
        candidate.dialing = false;
        candidate.pause = self.times.retry_min;
        if candidate.barred_until > now || !self.is_better(at) {
            actions.push(Action::Release(at));
            return;
        }
        let former = self.using.replace(at);
        let was_silent = self.silent_since.take().is_some();
        self.stranded = false;
        // The grace is for nodes that never had a parent.
        self.grace_end = Duration::ZERO;
        actions.push(Action::Use(at));
        if let Some(former) = former {
            self.pause(now, former);
            actions.push(match was_silent {
                true => Action::Abandon(former),
                false => Action::Release(former),
            });
        }
        // There is a parent now, so the nearer candidates are tried at leisure.
        for at in 0..self.candidates.len() {
            let later = now + self.times.retry_max / 2 + self.jitter();
            let candidate = &mut self.candidates[at];
            candidate.failed = false;
            candidate.next_dial = candidate.next_dial.max(later);
        }
    }

    /// Postpones the next dial of `at`, and doubles its pause.
    fn pause(&mut self, now: Duration, at: usize) {
        let jitter = self.jitter();
        if let Some(candidate) = self.candidates.get_mut(at) {
            candidate.next_dial = now + candidate.pause + jitter;
            candidate.pause = (candidate.pause * 2).min(self.times.retry_max);
        }
    }

    /// Stops using the present candidate, and dials all others before it.
    fn search(&mut self, now: Duration) {
        let Some(former) = self.using.take() else {
            return;
        };
        // For a silent candidate the search has begun already.
        if self.silent_since.take().is_none() {
            self.hurry(now, former);
        }
        self.candidates[former].failed = true;
        self.pause(now, former);
    }

    /// Dials the candidate in use again, and all others if that takes long.
    fn wait_for_restarted(&mut self, now: Duration, at: usize) {
        self.using = None;
        self.silent_since = None;
        self.hurry(now + self.times.restart_hold, at);
        let candidate = &mut self.candidates[at];
        candidate.failed = false;
        candidate.pause = self.times.retry_min;
        candidate.next_dial = now;
    }

    /// Gives up a candidate that has been silent for too long, although no other has answered.
    fn give_up_silent(&mut self, now: Duration, actions: &mut Vec<Action>) {
        if let Some(using) = self.using
            && self.silence_end().is_some_and(|end| end <= now)
        {
            self.search(now);
            // The others had the same time to answer. Counting them as failed strands the node now, so that
            // requests go to other trees and do not wait for the dials to time out.
            for candidate in &mut self.candidates {
                candidate.failed |= candidate.dialing;
            }
            actions.push(Action::Abandon(using));
        }
    }

    /// Makes all candidates but `former` due: the grandparent and the root at once, those between them a
    /// little later.
    fn hurry(&mut self, now: Duration, former: usize) {
        let last = self.candidates.len() - 1;
        for at in (0..self.candidates.len()).filter(|&at| at != former) {
            let between = at > 1 && at != last;
            let wait = self.times.stagger * u32::from(between);
            let jitter = self.jitter();
            let candidate = &mut self.candidates[at];
            candidate.failed = false;
            candidate.pause = self.times.retry_min;
            candidate.next_dial = now + wait + jitter;
        }
    }

    fn corrupt(&mut self, now: Duration, at: usize, actions: &mut Vec<Action>) {
        let is_only = self.candidates.len() == 1;
        let Some(candidate) = self.candidates.get_mut(at) else {
            return;
        };
        candidate.corrupt_blocks = candidate.corrupt_blocks.saturating_add(1);
        let blocks = candidate.corrupt_blocks;
        candidate.barred_until = match blocks {
            CORRUPT_BLOCKS_MAX.. => Duration::MAX,
            // An only ancestor is tried again: there is no other source.
            _ if is_only => return,
            _ => now + self.times.corrupt_bar * 2_u32.pow(blocks - 1),
        };
        if self.using == Some(at) {
            self.search(now);
            actions.push(Action::Abandon(at));
        }
    }

    fn dial_due(&mut self, now: Duration, actions: &mut Vec<Action>) {
        let in_grace = self.using.is_none() && now < self.grace_end;
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

    fn strand_if_hopeless(&mut self, now: Duration, actions: &mut Vec<Action>) {
        let mut candidates = self.candidates.iter();
        let hopeless = candidates.all(|one| one.failed || one.barred_until > now);
        if self.using.is_none() && hopeless && now >= self.grace_end && !self.stranded {
            self.stranded = true;
            actions.push(Action::Strand);
        }
    }

    /// A random duration between 0 and [`JITTER_MAX`], by splitmix64.
    fn jitter(&mut self) -> Duration {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        JITTER_MAX.mul_f64((mix64(self.random) >> 40) as f64 / f64::from(1_u32 << 24))
    }
}

#[cfg(test)]
mod tests;
