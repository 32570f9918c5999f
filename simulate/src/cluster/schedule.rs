//! The queue of jobs for GPUs.
//!
//! FIFO and SJF start jobs in an order, each with all of its GPUs (gang scheduling), and run them
//! to their end. The first job that does not fit waits, and so do all jobs after it (head-of-line
//! blocking, as in the paper). Gavel gives every job a part of the time instead. Its rounds (6
//! minutes) are short compared to epochs, so the model uses their limit: all jobs run at once, each
//! at its part of its speed, and keep their cached items.

use super::control::Control;
use super::{Scenario, Scheduler, Workload};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The queue of jobs for GPUs.
#[derive(Debug)]
pub(super) struct Queue {
    /// By score, and then by submission. Scores are not negative, so their bits have their order.
    waiting: BinaryHeap<Reverse<(u64, usize)>>,
    /// The number of submitted jobs.
    submitted: usize,
    free: u32,
    shared: bool,
}

impl Queue {
    pub(super) fn new(scenario: &Scenario) -> Self {
        Self {
            waiting: BinaryHeap::new(),
            submitted: 0,
            free: scenario.gpus,
            shared: scenario.scheduler == Scheduler::Gavel,
        }
    }

    /// Adds the jobs submitted by `now`. Returns whether there are any.
    pub(super) fn arrive(&mut self, workload: &Workload, control: &Control<'_>, now: f64) -> bool {
        let before = self.submitted;
        while let Some(job) = workload.jobs.get(self.submitted) {
            if job.submit > now {
                break;
            }
            let score = control.score(self.submitted);
            self.waiting
                .push(Reverse((score.to_bits(), self.submitted)));
            self.submitted += 1;
        }
        before != self.submitted
    }

    /// Returns the number of submitted jobs.
    pub(super) fn submitted(&self) -> usize {
        self.submitted
    }

    /// Returns the next job that starts now.
    pub(super) fn start(&mut self, workload: &Workload) -> Option<usize> {
        let &Reverse((_, job)) = self.waiting.peek()?;
        if !self.shared {
            // The first job that does not fit blocks all jobs after it.
            self.free = self.free.checked_sub(workload.jobs[job].gpus)?;
        }
        self.waiting.pop();
        Some(job)
    }

    /// Frees the GPUs of a finished job.
    pub(super) fn finish(&mut self, gpus: u32) {
        if !self.shared {
            self.free += gpus;
        }
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }
}
