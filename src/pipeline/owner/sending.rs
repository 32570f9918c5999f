//! What an owner sends: counts to homes, and reads of local tasks to the owners of their jobs.

use super::Pipelines;
use crate::dataset::task_reads::TaskReads;
use crate::model::{
    CountBatch, DatasetDecision, Decision, PipelineMessage, PipelineReply, ReadBatch,
    TaskReads as ReadsOfTask,
};
use crate::pipeline::ledger::JobKey;
use copperfs_policy::Keep;
use copperfs_policy::references::NO_STATE;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep;

/// How long changes of counts are collected.
pub(super) const BATCH_INTERVAL: Duration = Duration::from_millis(100);
/// For how many intervals reads of tasks wait for an owner that is not known yet: 5 s.
const READS_WAIT: u32 = 50;

impl Pipelines {
    /// Sends counts to homes, and reads of local tasks to owners.
    pub(super) async fn send_all(self) {
        let reads = self.0.node.task_reads();
        let mut waiting = WaitingReads::default();
        let mut decisions = self.0.decisions.clone();
        loop {
            // A node without pipelines does not wake up for them.
            if waiting.reads.is_empty() && !self.has_work() {
                tokio::select! {
                    () = self.0.work.notified() => {}
                    () = reads.arrived() => {}
                }
            }
            sleep(BATCH_INTERVAL).await;
            let decision = Arc::clone(&decisions.borrow_and_update());
            self.follow(&decision);
            self.send_counts();
            waiting.send(&self, &reads, &decision);
        }
    }

    fn has_work(&self) -> bool {
        let state = self.0.state.lock();
        let mut ledgers = state.ledgers.values();
        !state.jobs.is_empty() || ledgers.any(|ledger| ledger.delivery.has_due())
    }

    /// Ends jobs that have expired or whose dataset is gone, and follows changes of the homes.
    pub(super) fn follow(&self, decision: &Decision) {
        let now = self.now();
        let mut guard = self.0.state.lock();
        let state = &mut *guard;
        let (mut over, mut gone): (Vec<JobKey>, Vec<u64>) = (Vec::new(), Vec::new());
        state.ledgers.retain(|id, ledger| {
            ledger.delivery.place(&decision.homes);
            over.extend(ledger.expired(now));
            let is_it = |one: &DatasetDecision| one.id == *id && one.keep == Keep::References;
            // Before the first decision nothing is known.
            let is_gone = decision.serial.term > 0 && !decision.datasets.iter().any(is_it);
            if is_gone {
                over.extend(ledger.jobs.keys().cloned());
                gone.push(*id);
            }
            !is_gone || !ledger.jobs.is_empty()
        });
        let ended = over.iter().filter(|key| state.end(key)).count();
        // The dataset may be declared again before homes have been told of the ends.
        for id in gone {
            if let Some(ledger) = state.ledgers.get_mut(&id) {
                ledger.forget_ended();
            }
        }
        drop(guard);
        if ended > 0 {
            tracing::info!(
                jobs = ended,
                "pipelines have expired, or their dataset is gone"
            );
            self.0.work.notify_one();
            self.0.node.jobs_changed();
        }
    }

    /// Sends each idle home its next batch, in tasks of their own.
    fn send_counts(&self) {
        let now = self.now();
        let mut state = self.0.state.lock();
        for (id, ledger) in &mut state.ledgers {
            for rank in ledger.delivery.idle() {
                if let Some(batch) = ledger.next(rank, now) {
                    drop(tokio::spawn(self.clone().deliver(*id, rank, batch)));
                }
            }
        }
    }

    /// Sends batches to a home until none is due.
    async fn deliver(self, id: u64, rank: u32, first: CountBatch) {
        let mut next = Some(first);
        while let Some(batch) = next.take() {
            self.0.counters.messages.increment();
            self.0.counters.counts.add(batch.counts.len() as u64);
            let message = PipelineMessage::Counts(batch.clone());
            let reply = self.0.node.send(rank, message).await;
            let state = match reply {
                Ok(PipelineReply::State(state)) => Some(state),
                Ok(_) => Some(NO_STATE),
                Err(failure) => {
                    tracing::debug!(rank, %failure, "a home cannot be told of references");
                    None
                }
            };
            let mut all = self.0.state.lock();
            if let Some(ledger) = all.ledgers.get_mut(&id) {
                ledger.delivery.answered(rank, &batch, state);
                // Only if the home asks for all, or there are more than fit into one message: later changes are
                // collected first.
                let is_urgent = state.is_some_and(|state| state != batch.to)
                    || batch.counts.len() >= crate::pipeline::delivery::COUNTS_MAX;
                next = is_urgent.then(|| ledger.next(rank, self.now())).flatten();
            }
        }
    }
}

/// Reads of local tasks that have not been sent to an owner yet.
#[derive(Default)]
struct WaitingReads {
    /// With the number of rounds for which they have waited.
    reads: BTreeMap<u64, (u32, Vec<ReadsOfTask>)>,
}

impl WaitingReads {
    /// Sends reads to the owners of pipelines on their datasets.
    fn send(&mut self, pipelines: &Pipelines, reads: &TaskReads, decision: &Decision) {
        for ((dataset, task), items) in reads.take() {
            let (_, waiting) = self.reads.entry(dataset).or_default();
            waiting.push(ReadsOfTask {
                user: task.user,
                task: task.name.to_string(),
                items: items.into_iter().collect(),
            });
        }
        let own = pipelines.0.owner.rank;
        self.reads.retain(|dataset, (rounds, waiting)| {
            let known = decision.datasets.iter().find(|one| one.id == *dataset);
            let mut owners: Vec<u32> = known.map(|one| one.owners.clone()).unwrap_or_default();
            // The decision may not know of a job that has just been submitted here.
            let has_job = pipelines.0.state.lock().ledgers.contains_key(dataset);
            if has_job && !owners.contains(&own) {
                owners.push(own);
            }
            *rounds += 1;
            if owners.is_empty() {
                return *rounds < READS_WAIT;
            }
            let batch = ReadBatch {
                dataset: *dataset,
                reads: std::mem::take(waiting),
            };
            for rank in owners {
                if rank == own {
                    pipelines.reads(&batch);
                    continue;
                }
                let message = PipelineMessage::Reads(batch.clone());
                let sent = pipelines.0.node.send(rank, message);
                drop(tokio::spawn(async move {
                    // A reference that stays costs a read at most, and goes when its task ends.
                    if let Err(failure) = sent.await {
                        tracing::debug!(rank, %failure, "an owner cannot be told of reads");
                    }
                }));
            }
            false
        });
    }
}
