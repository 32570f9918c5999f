//! Which jobs run.
//!
//! FIFO and SJF start jobs in an order, each with all its GPUs (gang), and let them run to their
//! end; the first that does not fit waits, and all behind it wait with it (head-of-line blocking, as
//! in the paper). Gavel gives every job a part of the time instead. Its rounds (6 minutes) are short
//! beside epochs, so the model takes their limit: all jobs run at once, each at its part of its
//! speed, and keep what they have cached.

use super::control::Control;
use super::{Scenario, Scheduler, Workload};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The queue before the GPUs.
#[derive(Debug)]
pub(super) struct Queue {
    /// By score, then by submission. Scores are not negative, so their bits have their order.
    waiting: BinaryHeap<Reverse<(u64, usize)>>,
    /// Jobs that have come, the first ones of the workload.
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

    /// Takes in what has been submitted by `now`; whether anything was.
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

    /// How many jobs have come.
    pub(super) fn submitted(&self) -> usize {
        self.submitted
    }

    /// The next job that starts now.
    pub(super) fn start(&mut self, workload: &Workload) -> Option<usize> {
        let &Reverse((_, job)) = self.waiting.peek()?;
        if !self.shared {
            self.free = self.free.checked_sub(workload.jobs[job].gpus)?;
        }
        self.waiting.pop();
        Some(job)
    }

    /// A job is done with its GPUs.
    pub(super) fn finish(&mut self, gpus: u32) {
        if !self.shared {
            self.free += gpus;
        }
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }
}
