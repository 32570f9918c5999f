//! Which job runs without a cache for a while, so that its benefit is measured (Quiver, section
//! 5.3). Pure; time is an argument.
//!
//! A job that begins to read is *probed*: all its look-ups miss for [`PROBE_BATCHES`] mini-batches,
//! and it reports the time that they took. Its next mini-batches have the cache again, and their
//! time is compared. A job that is within 5 % is switched off ([`Times::show_no_gain`]). Each job is
//! probed again every [`PROBE_INTERVAL`], because the load of the storage changes.
//!
//! Invariants:
//! - At most one job is probed at a time, so that a probe measures the storage and not other probes.
//! - A probe ends after [`PROBE_TIME_MAX`] whatever its job does, and the job that has waited longest
//!   for its probe is next. So every job that reports is probed after a bounded time.
//! - Between two probes a job's times with a cache change at most once, so its mode does not flicker.
//!
//! Modes travel with the allocator's decisions. A job is told a new mode a second or more later, so
//! reports of an earlier mode arrive late. Each report names its mode, and counts for that one.

use super::super::choice::Choice;
use super::super::times::{Mode, Part, Times};
use super::report::{Report, ReportError, check_name};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

/// The number of mini-batches of a probe, of each rank.
pub const PROBE_BATCHES: u64 = 100;
/// The time from the end of a probe to the next one of the same job.
pub const PROBE_INTERVAL: Duration = Duration::from_secs(600);
/// The maximum time of a probe. A job whose mini-batches take longer than 3 s is measured by fewer
/// of them.
pub const PROBE_TIME_MAX: Duration = Duration::from_secs(300);
/// The maximum number of jobs. No probe is planned for further jobs.
pub const JOBS_MAX: usize = 4096;

/// The mini-batches of each rank at the beginning of a mode whose time does not count: loaders read ahead, so the
/// first mini-batches were prefetched in the mode before.
const SETTLING_BATCHES: u64 = 20;
/// The minimum number of mini-batches that make a measurement, if a probe ends before its time.
const TIMED_BATCHES_MIN: u64 = 10;
/// A job that has been silent for longer than this is not probed: it would hold others up.
const SILENCE_MAX: Duration = PROBE_TIME_MAX;
/// A job that has been silent for longer than this is forgotten.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(3600);
/// The interval doubles with each probe that was given up in a row, at most this many times.
const DOUBLINGS_MAX: u8 = 4;

/// See the module documentation.
#[derive(Debug, Default)]
pub struct Probing {
    /// By name.
    jobs: BTreeMap<String, Watched>,
    probe: Option<Probe>,
}

/// A job.
#[derive(Debug)]
struct Watched {
    /// When its next probe is due.
    due: Duration,
    /// When it last reported or asked.
    heard: Duration,
    /// The number of its probes in a row that were given up.
    given_up: u8,
    /// The time of its last probe in seconds per mini-batch, until it is compared with mini-batches of
    /// which enough look-ups hit.
    uncached_s: Option<f64>,
    /// Its mini-batches with a cache since that probe, and what the cache held.
    cached: Window,
    choice: Choice,
    times: Option<Times>,
}

/// The running probe.
#[derive(Debug)]
struct Probe {
    job: String,
    began: Duration,
    window: Window,
}

/// Mini-batches of one mode.
#[derive(Debug, Default)]
struct Window {
    /// All of them.
    seen: u64,
    /// The number of ranks that report.
    ranks: u64,
    /// Those whose time counts.
    timed: u64,
    /// The time of these.
    seconds: f64,
    hits: u64,
    lookups: u64,
}

/// What an allocator knows of a job, for the next one. It contains no time of day, so it changes
/// only with a measurement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobState {
    /// The job's name.
    pub job: String,
    /// Its measured times.
    pub times: Option<Times>,
    /// The time of its last probe in seconds per mini-batch, if it has not been compared yet.
    pub uncached_s: Option<f64>,
    /// The number of its probes in a row that were given up.
    pub given_up: u8,
}

impl Probing {
    /// Adds a job, or notes that it still runs. Call it when a client asks for a job's mode.
    ///
    /// # Errors
    /// The name is empty or too long, or there are [`JOBS_MAX`] jobs.
    pub fn watch(&mut self, job: &str, now: Duration) -> Result<(), ReportError> {
        check_name(job)?;
        if let Some(known) = self.jobs.get_mut(job) {
            known.heard = known.heard.max(now);
            return Ok(());
        }
        if self.jobs.len() >= JOBS_MAX {
            return Err(ReportError::TooManyJobs(JOBS_MAX));
        }
        self.jobs.insert(job.to_owned(), Watched::new(now, now));
        Ok(())
    }

    /// Records a report of the dataset with which the job is planned. It may complete a measurement,
    /// and end the job's probe. Returns whether the job's mode or times have changed.
    ///
    /// # Errors
    /// The report is refused, and nothing changes.
    pub fn record(&mut self, report: &Report<'_>, now: Duration) -> Result<bool, ReportError> {
        report.check()?;
        self.watch(report.job, now)?;
        let before = (self.mode(report.job), self.times(report.job));
        match report.mode {
            Mode::Probe => self.record_probe(report, now),
            Mode::Cached => {
                if let Some(job) = self.jobs.get_mut(report.job) {
                    job.record_cached(report);
                }
            }
            // The job is compared at its next probe.
            Mode::Uncached => {}
        }
        Ok(before != (self.mode(report.job), self.times(report.job)))
    }

    /// Forgets a job that has ended. Its probe ends too.
    pub fn ended(&mut self, job: &str) {
        self.jobs.remove(job);
        self.probe = self.probe.take().filter(|probe| probe.job != job);
    }

    /// Forgets the jobs for which `runs` is false.
    pub fn retain(&mut self, runs: impl Fn(&str) -> bool) {
        self.jobs.retain(|job, _| runs(job));
        self.probe = self.probe.take().filter(|probe| runs(&probe.job));
    }

    /// Ends a probe whose time is over, and begins the next one that is due. Call it each second.
    /// Returns whether a mode has changed.
    pub fn tick(&mut self, now: Duration) -> bool {
        let probe = self.probe.as_ref();
        let over = probe.is_some_and(|probe| now.saturating_sub(probe.began) >= PROBE_TIME_MAX);
        if over {
            self.end_probe(now);
        }
        let probed = self.probe.as_ref().map(|probe| probe.job.as_str());
        self.jobs.retain(|name, job| {
            Some(name.as_str()) == probed || now.saturating_sub(job.heard) < FORGOTTEN_AFTER
        });
        let began = self.begin_probe(now);
        over || began
    }

    /// Returns how the look-ups of a job are to be answered. [`Mode::Cached`] for an unknown job.
    #[must_use]
    pub fn mode(&self, job: &str) -> Mode {
        if self.probed() == Some(job) {
            return Mode::Probe;
        }
        match self.jobs.get(job) {
            Some(known) if known.is_off() => Mode::Uncached,
            _ => Mode::Cached,
        }
    }

    /// Returns the measured times of a job. `None` until a probe and the time with a cache after it
    /// are known.
    #[must_use]
    pub fn times(&self, job: &str) -> Option<Times> {
        self.jobs.get(job)?.times
    }

    /// Returns the job that is being probed.
    #[must_use]
    pub fn probed(&self) -> Option<&str> {
        self.probe.as_ref().map(|probe| probe.job.as_str())
    }

    /// Returns the measurements of a job, for an allocator that continues. `None`: there are none.
    #[must_use]
    pub fn state_of(&self, name: &str) -> Option<JobState> {
        let job = self.jobs.get(name).filter(|job| job.is_measured())?;
        Some(JobState {
            job: name.to_owned(),
            times: job.times,
            uncached_s: job.uncached_s,
            given_up: job.given_up,
        })
    }

    /// Returns the measurements, for an allocator that continues. Jobs without any are left out. Those
    /// that were measured longest ago come first.
    #[must_use]
    pub fn state(&self) -> Vec<JobState> {
        let known = self.jobs.iter().filter(|(_, job)| job.is_measured());
        let mut known: Vec<(&String, &Watched)> = known.collect();
        known.sort_by_key(|(_, job)| job.due);
        let known = known.into_iter();
        known.filter_map(|(name, _)| self.state_of(name)).collect()
    }

    /// Continues from the measurements of an earlier allocator. A job that is known here already, and
    /// a measurement that is no sound time, is ignored. Restored jobs are probed again after
    /// [`PROBE_INTERVAL`], in the order of `state`. A probe that was under way is not restored: its job
    /// is probed again when it is due.
    pub fn restore(&mut self, state: Vec<JobState>, now: Duration) {
        let mut due = now + PROBE_INTERVAL;
        for one in state {
            let full = self.jobs.len() >= JOBS_MAX;
            if full || check_name(&one.job).is_err() || self.jobs.contains_key(&one.job) {
                continue;
            }
            let is_time = |time: &f64| time.is_finite() && *time > 0.0;
            let restored = Watched {
                given_up: one.given_up,
                uncached_s: one.uncached_s.filter(is_time),
                times: one.times.filter(Times::are_sound),
                ..Watched::new(due, now)
            };
            // A job without a sound measurement is like a new one.
            if restored.is_measured() {
                self.jobs.insert(one.job, restored);
                due += Duration::from_millis(1);
            }
        }
    }

    fn record_probe(&mut self, report: &Report<'_>, now: Duration) {
        // A report after its probe has ended came too late.
        let Some(probe) = self.probe.as_mut().filter(|probe| probe.job == report.job) else {
            return;
        };
        probe.window.add(report);
        if probe.window.is_complete() {
            self.end_probe(now);
        }
    }

    fn end_probe(&mut self, now: Duration) {
        let Some(probe) = self.probe.take() else {
            return;
        };
        if let Some(job) = self.jobs.get_mut(&probe.job) {
            job.end_probe(&probe.window, now);
        }
    }

    fn begin_probe(&mut self, now: Duration) -> bool {
        if self.probe.is_some() {
            return false;
        }
        let speaks = |job: &Watched| now.saturating_sub(job.heard) < SILENCE_MAX;
        let due = self.jobs.iter_mut();
        let due = due.filter(|(_, job)| job.due <= now && speaks(job));
        // Names break ties, by the order of the map.
        let Some((name, job)) = due.min_by_key(|(_, job)| job.due) else {
            return false;
        };
        job.compare();
        self.probe = Some(Probe {
            job: name.clone(),
            began: now,
            window: Window::default(),
        });
        true
    }
}

impl Watched {
    fn new(due: Duration, heard: Duration) -> Self {
        Self {
            due,
            heard,
            given_up: 0,
            uncached_s: None,
            cached: Window::default(),
            choice: Choice::None,
            times: None,
        }
    }

    fn is_off(&self) -> bool {
        self.times.as_ref().is_some_and(Times::show_no_gain)
    }

    fn is_measured(&self) -> bool {
        self.times.is_some() || self.uncached_s.is_some()
    }

    fn record_cached(&mut self, report: &Report<'_>) {
        if self.uncached_s.is_some() {
            if self.choice != report.choice {
                self.choice = report.choice;
                self.cached = Window::default();
            }
            self.cached.add(report);
            if self.cached.is_complete() {
                self.compare();
            }
        }
    }

    /// Ends this job's probe with the mini-batches that it has reported.
    fn end_probe(&mut self, probe: &Window, now: Duration) {
        if probe.timed < TIMED_BATCHES_MIN {
            self.given_up = self.given_up.saturating_add(1);
            let doublings = u32::from((self.given_up - 1).min(DOUBLINGS_MAX));
            self.due = now + PROBE_INTERVAL * 2_u32.pow(doublings);
            return;
        }
        self.given_up = 0;
        self.due = now + PROBE_INTERVAL;
        let uncached_s = probe.batch_s();
        match &mut self.times {
            // It has no cache now. Its own speed has not changed, but the load of the storage may have.
            Some(times) if times.show_no_gain() => times.uncached_s = uncached_s,
            _ => {}
        }
        // A job that stays off does not report times with a cache.
        self.uncached_s = (!self.is_off()).then_some(uncached_s);
        self.cached = Window::default();
    }

    /// Compares the last probe with the mini-batches since, if they are enough.
    fn compare(&mut self) {
        let Some(uncached_s) = self.uncached_s else {
            return;
        };
        if self.cached.timed >= TIMED_BATCHES_MIN {
            let times = self.times.get_or_insert_default();
            times.uncached_s = uncached_s;
            let cached = Part {
                cached_s: self.cached.batch_s(),
                hit_ratio: self.cached.hit_ratio(),
            };
            // While the cache of the job fills, its mini-batches tell nothing. Later ones do.
            if times.record(self.choice, cached) {
                self.uncached_s = None;
            }
            self.cached = Window::default();
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "a mean needs less than 53 bits")]
impl Window {
    fn add(&mut self, report: &Report<'_>) {
        self.ranks = self.ranks.max(report.ranks.into()).max(1);
        let settling = SETTLING_BATCHES * self.ranks;
        let settled = self.seen >= settling || report.batches > SETTLING_BATCHES;
        self.seen = self.seen.saturating_add(report.batches);
        if settled {
            self.timed = self.timed.saturating_add(report.batches);
            self.seconds += report.seconds;
            let lookups = report.hits.saturating_add(report.misses);
            self.hits = self.hits.saturating_add(report.hits);
            self.lookups = self.lookups.saturating_add(lookups);
        }
    }

    /// Returns whether there are enough mini-batches of every rank.
    fn is_complete(&self) -> bool {
        self.seen >= PROBE_BATCHES * self.ranks
    }

    /// Returns the mean time of a mini-batch, in seconds.
    fn batch_s(&self) -> f64 {
        self.seconds / self.timed as f64
    }

    fn hit_ratio(&self) -> f64 {
        self.hits as f64 / self.lookups.max(1) as f64
    }
}

#[cfg(test)]
mod tests;
