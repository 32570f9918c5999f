//! A resource that is divided evenly among its users: a link or a core.
//!
//! Processor sharing in virtual time: while `weight` jobs are served, each of them advances at
//! `rate / weight`. So a job's virtual end is fixed when it starts, and only the speed of the
//! virtual clock changes. Pure: the time is passed in.

use crate::num::{as_f64, whole};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Picoseconds since the start of the simulation. 213 days fit, and rounding is far below the time
/// of one byte on any link.
pub(super) type Time = u64;

/// Picoseconds in a second.
pub(super) const SECOND: f64 = 1e12;

/// Converts `seconds` to a [`Time`], rounded up and saturating.
pub(super) fn time(seconds: f64) -> Time {
    whole((seconds * SECOND).ceil())
}

/// Converts a [`Time`] to seconds.
pub(super) fn seconds(time: Time) -> f64 {
    as_f64(time) / SECOND
}

/// The resource. `J` identifies a job.
#[derive(Debug, Default)]
pub(super) struct SharedResource<J: Ord> {
    /// Work per second.
    rate: f64,
    /// The work that each job in service has received since the resource was last idle.
    virtual_now: f64,
    /// The time at which `virtual_now` was computed.
    updated: Time,
    /// The number of jobs in service. One entry of the heap may stand for several equal jobs.
    weight: u64,
    jobs: BinaryHeap<Reverse<Job<J>>>,
    /// Identifies the valid one of its scheduled events.
    pub(super) epoch: u64,
}

/// Ordered by virtual end, and then by start.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Job<J> {
    /// The bits of the virtual end, which have its order because it is not negative.
    end: u64,
    /// Keeps jobs that end together in the order of their starts.
    order: u64,
    weight: u32,
    job: J,
}

/// Jobs whose remaining work differs by less than this end together, because sums are rounded.
const TOGETHER: f64 = 1e-6;

impl<J: Ord + Default> SharedResource<J> {
    /// Creates a resource that does `rate` units of work per second.
    pub(super) fn new(rate: f64) -> Self {
        Self {
            rate,
            ..Self::default()
        }
    }

    /// Starts `weight` equal jobs of `work` units each, identified by `job`. `order` breaks ties.
    pub(super) fn start(&mut self, now: Time, job: J, work: f64, weight: u32, order: u64) {
        self.advance(now);
        self.jobs.push(Reverse(Job {
            end: (self.virtual_now + work).to_bits(),
            order,
            weight,
            job,
        }));
        self.weight += u64::from(weight);
    }

    /// Returns when the next job ends unless another one starts before.
    pub(super) fn next_end(&self) -> Option<Time> {
        let left = (self.first_end()? - self.virtual_now).max(0.0);
        let seconds = left * as_f64(self.weight) / self.rate;
        Some(self.updated.saturating_add(time(seconds)))
    }

    /// Invalidates the scheduled event. Returns the time and epoch of the next one, if any.
    pub(super) fn reschedule(&mut self, now: Time) -> Option<(Time, u64)> {
        self.epoch += 1;
        Some((self.next_end()?.max(now), self.epoch))
    }

    /// Returns the virtual end of the job that ends first.
    fn first_end(&self) -> Option<f64> {
        let Reverse(first) = self.jobs.peek()?;
        Some(f64::from_bits(first.end))
    }

    /// Removes and returns one job that has ended by `now`, which is not after the next end.
    pub(super) fn take_ended(&mut self, now: Time) -> Option<J> {
        let first = self.first_end()?;
        if self.next_end()? <= now {
            // Exactly there, so that jobs that end together are found together despite rounding.
            self.virtual_now = self.virtual_now.max(first);
            self.updated = now;
        }
        if first > self.virtual_now + TOGETHER {
            return None;
        }
        let Reverse(ended) = self.jobs.pop()?;
        self.weight -= u64::from(ended.weight);
        if self.jobs.is_empty() {
            self.virtual_now = 0.0;
        }
        Some(ended.job)
    }

    fn advance(&mut self, now: Time) {
        if self.weight > 0 {
            let elapsed = seconds(now - self.updated);
            self.virtual_now += elapsed * self.rate / as_f64(self.weight);
        }
        self.updated = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(shared: &mut SharedResource<char>) -> Vec<(char, f64)> {
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
        let mut link = SharedResource::new(10.0);
        link.start(0, 'a', 10.0, 1, 0);
        link.start(0, 'b', 10.0, 1, 1);
        assert_eq!(run(&mut link), [('a', 2.0), ('b', 2.0)]);
    }

    #[test]
    fn one_job_may_stand_for_several() {
        let mut link = SharedResource::new(10.0);
        link.start(0, 'a', 10.0, 3, 0);
        assert_eq!(run(&mut link), [('a', 3.0)]);
    }

    #[test]
    fn a_later_job_slows_the_others_down() {
        let mut link = SharedResource::new(10.0);
        link.start(0, 'a', 10.0, 1, 0);
        link.start(time(0.5), 'b', 10.0, 1, 1);
        // a has 5 left at 0.5 s and shares from then on; b goes on alone.
        assert_eq!(run(&mut link), [('a', 1.5), ('b', 2.0)]);
    }

    #[test]
    fn idle_time_does_not_count() {
        let mut link = SharedResource::new(10.0);
        link.start(0, 'a', 10.0, 1, 0);
        assert_eq!(run(&mut link), [('a', 1.0)]);
        link.start(time(5.0), 'b', 10.0, 1, 1);
        assert_eq!(run(&mut link), [('b', 6.0)]);
    }
}
