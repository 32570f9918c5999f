//! The references of one live job as they were listed, and the references of all jobs that are held.

use super::SubmitError;
use std::collections::{BTreeSet, HashMap};
use std::fmt::Debug;
use std::hash::Hash;

/// The tasks of a live job, in the order in which they were listed.
#[derive(Debug, Clone)]
pub(super) struct LiveJob<T, B> {
    pub(super) age: u64,
    pub(super) positions: HashMap<T, u32>,
    pub(super) tasks: Vec<Task>,
    /// The different inputs of each task, one task after the other: one allocation for a job of many
    /// small tasks.
    inputs: Vec<B>,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Task {
    /// The end of its inputs in [`LiveJob::inputs`]; they begin where those of the task before end.
    pub(super) inputs_end: u32,
    pub(super) has_ended: bool,
}

/// A reference that is held. The order finds the oldest job that refers to a block, and its first task.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Reference<B> {
    pub(super) block: B,
    pub(super) age: u64,
    pub(super) task: u32,
}

/// The references that are held, and their number for each block.
#[derive(Debug, Clone)]
pub(super) struct Held<B> {
    references: BTreeSet<Reference<B>>,
    /// Without zeros.
    counts: HashMap<B, u32>,
}

impl<T: Eq + Hash + Clone + Debug, B: Ord + Clone> LiveJob<T, B> {
    pub(super) fn new<I: IntoIterator<Item = B>>(
        age: u64,
        listed: impl IntoIterator<Item = (T, I)>,
    ) -> Result<Self, SubmitError<T>> {
        let mut job = Self {
            age,
            positions: HashMap::new(),
            tasks: Vec::new(),
            inputs: Vec::new(),
        };
        for (name, inputs) in listed {
            let position = u32::try_from(job.tasks.len());
            let position = position.map_err(|_too_many| SubmitError::TooManyReferences)?;
            if job.positions.contains_key(&name) {
                return Err(SubmitError::TaskTwice { task: name });
            }
            job.positions.insert(name, position);
            let start = job.inputs.len();
            job.inputs.extend(inputs);
            job.drop_repeated_inputs(start);
            let inputs_end = u32::try_from(job.inputs.len());
            let inputs_end = inputs_end.map_err(|_too_many| SubmitError::TooManyReferences)?;
            job.tasks.push(Task {
                inputs_end,
                has_ended: false,
            });
        }
        job.inputs.shrink_to_fit();
        Ok(job)
    }

    /// Sorts the inputs from `start` on, and keeps one of each.
    fn drop_repeated_inputs(&mut self, start: usize) {
        self.inputs[start..].sort_unstable();
        let mut kept = start;
        for at in start..self.inputs.len() {
            if kept == start || self.inputs[at] != self.inputs[kept - 1] {
                self.inputs.swap(kept, at);
                kept += 1;
            }
        }
        self.inputs.truncate(kept);
    }

    /// Returns the number of references that the tasks listed.
    pub(super) fn listed(&self) -> usize {
        self.inputs.len()
    }

    /// Returns the references that all tasks listed.
    pub(super) fn all_references(&self) -> impl Iterator<Item = Reference<B>> {
        (0..self.tasks.len()).flat_map(|task| self.references(task))
    }

    /// Returns the references that a task listed.
    pub(super) fn references(&self, task: usize) -> impl Iterator<Item = Reference<B>> {
        let before = task.checked_sub(1).map(|before| self.tasks[before]);
        let start = before.map_or(0, |before| before.inputs_end as usize);
        let inputs = &self.inputs[start..self.tasks[task].inputs_end as usize];
        let age = self.age;
        // A job has fewer than 2^32 tasks.
        let task = u32::try_from(task).unwrap_or(u32::MAX);
        inputs.iter().map(move |block| Reference {
            block: block.clone(),
            age,
            task,
        })
    }
}

impl<B> Default for Held<B> {
    fn default() -> Self {
        Self {
            references: BTreeSet::new(),
            counts: HashMap::new(),
        }
    }
}

impl<B: Ord + Hash + Clone> Held<B> {
    pub(super) fn len(&self) -> usize {
        self.references.len()
    }

    pub(super) fn contains(&self, reference: &Reference<B>) -> bool {
        self.references.contains(reference)
    }

    pub(super) fn count(&self, block: &B) -> u32 {
        self.counts.get(block).copied().unwrap_or(0)
    }

    pub(super) fn counts(&self) -> impl Iterator<Item = (&B, u32)> {
        self.counts.iter().map(|(block, count)| (block, *count))
    }

    /// Returns the reference to the block of the oldest job that holds one, and of its first task.
    pub(super) fn oldest(&self, block: &B) -> Option<Reference<B>> {
        let first = Reference {
            block: block.clone(),
            age: 0,
            task: 0,
        };
        let oldest = self.references.range(first..).next()?;
        (oldest.block == *block).then(|| oldest.clone())
    }

    pub(super) fn hold(&mut self, reference: Reference<B>, changed: &mut impl Extend<B>) {
        let block = reference.block.clone();
        if self.references.insert(reference) {
            *self.counts.entry(block.clone()).or_insert(0) += 1;
            changed.extend(Some(block));
        }
    }

    /// Returns whether the reference was held.
    pub(super) fn release(
        &mut self,
        reference: &Reference<B>,
        changed: &mut impl Extend<B>,
    ) -> bool {
        if !self.references.remove(reference) {
            return false;
        }
        let block = &reference.block;
        if let Some(count) = self.counts.get_mut(block) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(block);
            }
        }
        changed.extend(Some(block.clone()));
        true
    }
}
