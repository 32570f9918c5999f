//! The items that tasks of pipelines have read on this node, until their owners are told. See [`crate::pipeline`].

use crate::job::Task;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use tokio::sync::Notify;

/// The maximum number of reads that wait: more than a node reads within the interval of messages. Further ones are
/// dropped, and their references stay until their tasks end.
const WAITING_MAX: usize = 1 << 16;

/// See the module.
#[derive(Debug, Default)]
pub struct TaskReads {
    waiting: Mutex<Waiting>,
    added: Notify,
}

/// The lock is held for a look-up only.
#[derive(Debug, Default)]
struct Waiting {
    reads: BTreeMap<(u64, Task), BTreeSet<u64>>,
    count: usize,
}

impl TaskReads {
    /// Records that a task has read the item with this key, of the dataset with this id.
    pub fn add(&self, dataset: u64, task: &Task, item: u64) {
        let mut waiting = self.waiting.lock();
        if waiting.count < WAITING_MAX {
            let items = waiting.reads.entry((dataset, task.clone())).or_default();
            let is_new = items.insert(item);
            waiting.count += usize::from(is_new);
        }
        drop(waiting);
        self.added.notify_one();
    }

    /// Waits until there are reads. May be cancelled.
    pub async fn arrived(&self) {
        self.added.notified().await;
    }

    /// Takes all reads that wait, by dataset and task.
    #[must_use]
    pub fn take(&self) -> BTreeMap<(u64, Task), BTreeSet<u64>> {
        std::mem::take(&mut *self.waiting.lock()).reads
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_read_is_taken_once_and_their_number_is_bounded() {
        let reads = TaskReads::default();
        let task = |name: &str| Task {
            user: 1,
            name: name.into(),
        };
        for item in [3, 3, 4] {
            reads.add(7, &task("a/1"), item);
        }
        reads.add(7, &task("a/2"), 3);
        let taken: Vec<_> = reads.take().into_iter().collect();
        assert_eq!(
            taken,
            [
                ((7, task("a/1")), BTreeSet::from([3, 4])),
                ((7, task("a/2")), BTreeSet::from([3])),
            ]
        );
        assert!(reads.take().is_empty());
        for item in 0..WAITING_MAX as u64 + 5 {
            reads.add(7, &task("a/1"), item);
        }
        assert_eq!(reads.take()[&(7, task("a/1"))].len(), WAITING_MAX);
        reads.add(7, &task("a/1"), 1);
        assert_eq!(reads.take().len(), 1, "there is room again");
    }
}
