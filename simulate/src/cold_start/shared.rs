//! A resource that divides itself evenly among those who use it: a link, a core.
//!
//! Processor sharing in virtual time: while `weight` jobs are served, each of them advances at `rate /
//! weight`, so a job's end is fixed in virtual time when it starts and only the clock's pace changes.
//! Pure: the time is passed in.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// Picoseconds since the start of the simulation: 213 days fit, and rounding is far below a byte's
/// time on any link.
pub(super) type Time = u64;

/// Picoseconds in a second.
pub(super) const SECOND: f64 = 1e12;

/// `seconds` as a [`Time`], rounded up; saturates.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a conversion from f64 saturates, and times are not negative"
)]
pub(super) fn time(seconds: f64) -> Time {
    (seconds * SECOND).ceil() as Time
}

/// A [`Time`] in seconds.
#[expect(
    clippy::cast_precision_loss,
    reason = "15 digits of a time are more than a model knows"
)]
pub(super) fn seconds(time: Time) -> f64 {
    time as f64 / SECOND
}

/// The resource. `J` says whose job it is.
#[derive(Debug)]
pub(super) struct Shared<J> {
    /// Work done in a second.
    rate: f64,
    /// Work that each job in service has had since the resource was last idle.
    virtual_now: f64,
    /// When `virtual_now` was true.
    updated: Time,
    /// Jobs in service; one of the heap may stand for several alike.
    weight: u64,
    jobs: BinaryHeap<Job<J>>,
}

#[derive(Debug)]
struct Job<J> {
    end: f64,
    /// Keeps jobs that end together in the order in which they came.
    order: u64,
    weight: u32,
    job: J,
}

impl<J> PartialEq for Job<J> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<J> Eq for Job<J> {}

impl<J> PartialOrd for Job<J> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<J> Ord for Job<J> {
    /// The first to end is the greatest: the heap gives it first.
    fn cmp(&self, other: &Self) -> Ordering {
        other
            .end
            .total_cmp(&self.end)
            .then(other.order.cmp(&self.order))
    }
}

/// Jobs that differ by less in what they still need end together: rounding of sums.
const TOGETHER: f64 = 1e-6;

impl<J> Shared<J> {
    /// A resource that does `rate` units of work a second.
    pub(super) fn new(rate: f64) -> Self {
        Self {
            rate,
            virtual_now: 0.0,
            updated: 0,
            weight: 0,
            jobs: BinaryHeap::new(),
        }
    }

    /// Starts `weight` equal jobs of `work` units each, known as `job`; `order` breaks ties.
    pub(super) fn start(&mut self, now: Time, job: J, work: f64, weight: u32, order: u64) {
        self.advance(now);
        self.jobs.push(Job {
            end: self.virtual_now + work,
            order,
            weight,
            job,
        });
        self.weight += u64::from(weight);
    }

    /// When the next job ends if nothing comes in between.
    #[expect(clippy::cast_precision_loss, reason = "few jobs are in service")]
    pub(super) fn next_end(&self) -> Option<Time> {
        let first = self.jobs.peek()?;
        let left = (first.end - self.virtual_now).max(0.0) * self.weight as f64 / self.rate;
        Some(self.updated.saturating_add(time(left)))
    }

    /// Gives one job that has ended by `now`, which is not after the next end.
    pub(super) fn take_ended(&mut self, now: Time) -> Option<J> {
        if self.next_end()? <= now
            && let Some(first) = self.jobs.peek()
        {
            // Exactly there: what ends together is found together, whatever rounding says.
            self.virtual_now = self.virtual_now.max(first.end);
            self.updated = now;
        }
        let first = self.jobs.peek()?;
        if first.end > self.virtual_now + TOGETHER {
            return None;
        }
        let ended = self.jobs.pop()?;
        self.weight -= u64::from(ended.weight);
        if self.jobs.is_empty() {
            self.virtual_now = 0.0;
        }
        Some(ended.job)
    }

    #[expect(clippy::cast_precision_loss, reason = "few jobs are in service")]
    fn advance(&mut self, now: Time) {
        if self.weight > 0 {
            let elapsed = seconds(now - self.updated);
            self.virtual_now += elapsed * self.rate / self.weight as f64;
        }
        self.updated = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(shared: &mut Shared<char>) -> Vec<(char, f64)> {
        let mut ended = Vec::new();
        while let Some(at) = shared.next_end() {
            while let Some(job) = shared.take_ended(at) {
                ended.push((job, (seconds(at) * 1e6).round() / 1e6));
            }
        }
        ended
    }

    #[test]
    fn equal_jobs_end_together_and_late() {
        let mut link = Shared::new(10.0);
        link.start(0, 'a', 10.0, 1, 0);
        link.start(0, 'b', 10.0, 1, 1);
        assert_eq!(run(&mut link), [('a', 2.0), ('b', 2.0)]);
    }

    #[test]
    fn one_job_may_stand_for_several() {
        let mut link = Shared::new(10.0);
        link.start(0, 'a', 10.0, 3, 0);
        assert_eq!(run(&mut link), [('a', 3.0)]);
    }

    #[test]
    fn who_comes_later_slows_the_others_down() {
        let mut link = Shared::new(10.0);
        link.start(0, 'a', 10.0, 1, 0);
        link.start(time(0.5), 'b', 10.0, 1, 1);
        // a has 5 left at 0.5 s and shares from then on; b goes on alone.
        assert_eq!(run(&mut link), [('a', 1.5), ('b', 2.0)]);
    }

    #[test]
    fn idle_time_does_not_count() {
        let mut link = Shared::new(10.0);
        link.start(0, 'a', 10.0, 1, 0);
        assert_eq!(run(&mut link), [('a', 1.0)]);
        link.start(time(5.0), 'b', 10.0, 1, 1);
        assert_eq!(run(&mut link), [('b', 6.0)]);
    }
}
