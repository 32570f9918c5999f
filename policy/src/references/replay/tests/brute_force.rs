//! The replay written a second time, from the words of its specification and as plainly as possible: lists
//! instead of maps, and every number computed again when it is needed. It shares with the replay only the
//! types of the input and of the result.

use super::super::{Attribution, Decrement, Event, Options, Outcome};
use crate::references::{Admit, EvictionPolicy};
use serde::Serialize;
use std::collections::BTreeMap;

/// The input document.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Document {
    pub(super) cache: u64,
    pub(super) blocks: BTreeMap<String, u64>,
    pub(super) initial_lru_to_mru: Vec<String>,
    pub(super) options: Options,
    pub(super) events: Vec<Event>,
}

struct Job {
    name: (String, String),
    attempt: u64,
    is_live: bool,
    tasks: Vec<Task>,
}

struct Task {
    id: String,
    inputs: Vec<String>,
    holds: Vec<String>,
    has_ended: bool,
}

struct World<'a> {
    document: &'a Document,
    policy: EvictionPolicy,
    /// The oldest submission first.
    jobs: Vec<Job>,
    declared: Vec<String>,
    /// Every use so far: the block at each tick of the clock.
    uses: Vec<String>,
    initial: usize,
    resident: Vec<String>,
    /// Index of the present event.
    now: usize,
    outcome: Outcome,
}

pub(super) fn brute_force(document: &Document, policy: EvictionPolicy) -> Outcome {
    let mut world = World {
        document,
        policy,
        jobs: Vec::new(),
        declared: Vec::new(),
        uses: document.initial_lru_to_mru.clone(),
        initial: document.initial_lru_to_mru.len(),
        resident: document.initial_lru_to_mru.clone(),
        now: 0,
        outcome: Outcome::default(),
    };
    let is_offline = policy == EvictionPolicy::LrcOffline;
    if is_offline {
        for event in &document.events {
            world.submit(event);
        }
    }
    for (at, event) in document.events.iter().enumerate() {
        world.now = at;
        match event {
            Event::Submit { .. } if is_offline => {}
            Event::End { .. } if is_offline => {}
            event => world.happen(event),
        }
    }
    let mut counts = BTreeMap::new();
    for block in document.blocks.keys() {
        if world.count(block) > 0 {
            counts.insert(block.clone(), world.count(block));
        }
    }
    world.resident.sort();
    Outcome {
        resident: world.resident,
        counts,
        ..world.outcome
    }
}

impl World<'_> {
    fn happen(&mut self, event: &Event) {
        match event {
            Event::Submit { .. } => self.submit(event),
            Event::Read {
                tenant,
                job,
                task,
                block,
            } => {
                self.consume(tenant, job.as_ref(), task.as_ref(), block);
                if self.resident.contains(block) {
                    self.outcome.hits += 1;
                } else {
                    self.outcome.misses += 1;
                }
                self.use_block(block);
            }
            Event::Put { block } => self.use_block(block),
            Event::Done { tenant, job, task } => {
                if let Some(task) = self.task(tenant, job, task) {
                    task.has_ended = true;
                    task.holds.clear();
                }
            }
            Event::TaskFail { tenant, job, task } => {
                if let Some(task) = self.task(tenant, job, task)
                    && !task.has_ended
                {
                    task.holds = task.inputs.clone();
                }
            }
            Event::End { tenant, job } => {
                for known in &mut self.jobs {
                    if known.name == (tenant.clone(), job.clone()) {
                        known.is_live = false;
                        known.tasks.clear();
                    }
                }
            }
            Event::Flush => {
                let mut flushed: Vec<String> = self.resident.clone();
                flushed.retain(|block| self.declared.contains(block) && self.count(block) == 0);
                flushed.sort_by_key(|block| self.last(block));
                for block in flushed {
                    self.evict(block);
                }
            }
        }
    }

    fn submit(&mut self, event: &Event) {
        let Event::Submit {
            tenant,
            job,
            attempt,
            tasks,
        } = event
        else {
            return;
        };
        let name = (tenant.clone(), job.clone());
        if let Some(at) = self.jobs.iter().position(|known| known.name == name) {
            if *attempt <= self.jobs[at].attempt {
                return;
            }
            self.jobs.remove(at);
        }
        let mut listed = Vec::new();
        for task in tasks {
            let mut inputs = Vec::new();
            for block in &task.inputs {
                if !inputs.contains(block) {
                    inputs.push(block.clone());
                }
                self.declared.push(block.clone());
            }
            listed.push(Task {
                id: task.id.clone(),
                holds: inputs.clone(),
                inputs,
                has_ended: false,
            });
        }
        self.jobs.push(Job {
            name,
            attempt: *attempt,
            is_live: true,
            tasks: listed,
        });
    }

    fn consume(
        &mut self,
        tenant: &str,
        job: Option<&String>,
        task: Option<&String>,
        block: &String,
    ) {
        let Options {
            decrement,
            attribution,
            ..
        } = self.document.options;
        if let Some(job) = job {
            if let Some(task) = task
                && decrement == Decrement::Read
                && let Some(task) = self.task(tenant, job, task)
            {
                task.holds.retain(|held| held != block);
            }
        } else if attribution == Attribution::Fifo {
            for job in &mut self.jobs {
                for task in &mut job.tasks {
                    if task.holds.contains(block) {
                        task.holds.retain(|held| held != block);
                        return;
                    }
                }
            }
        }
    }

    fn task(&mut self, tenant: &str, job: &str, task: &str) -> Option<&mut Task> {
        for known in &mut self.jobs {
            if known.is_live && known.name.0 == tenant && known.name.1 == job {
                return known.tasks.iter_mut().find(|known| known.id == task);
            }
        }
        None
    }

    fn count(&self, block: &String) -> u32 {
        let tasks = self.jobs.iter().flat_map(|job| &job.tasks);
        let holders = tasks.filter(|task| task.holds.contains(block)).count();
        u32::try_from(holders).unwrap()
    }

    fn last(&self, block: &String) -> usize {
        self.uses.iter().rposition(|used| used == block).unwrap()
    }

    fn size(&self, block: &String) -> u64 {
        self.document.blocks[block]
    }

    fn sum<'b>(&self, blocks: impl IntoIterator<Item = &'b String>) -> u64 {
        blocks.into_iter().map(|block| self.size(block)).sum()
    }

    /// The order of eviction: the least goes first.
    fn key(&self, block: &String) -> (usize, usize) {
        let rank = match self.policy {
            EvictionPolicy::Lrc | EvictionPolicy::LrcOffline => self.count(block) as usize,
            EvictionPolicy::Lfu => {
                let uses = self.uses[self.initial..].iter();
                uses.filter(|used| *used == block).count()
            }
            EvictionPolicy::Min => {
                let later = self.document.events.iter().enumerate();
                let mut later = later.filter(|(at, event)| {
                    let at_once = *at == self.now;
                    let is_use = matches!(event, Event::Read { block: used, .. }
                        | Event::Put { block: used } if used == block);
                    // The present use is over; before it, nothing is evicted.
                    is_use && !at_once && *at > self.now
                });
                match later.next() {
                    Some((at, Event::Read { .. })) => 1_000_000 - at,
                    _ => 0,
                }
            }
            _ => 0,
        };
        (rank, self.last(block))
    }

    fn use_block(&mut self, block: &String) {
        self.uses.push(block.clone());
        if !self.resident.contains(block) {
            self.insert(block);
        }
    }

    fn insert(&mut self, block: &String) {
        let Options { floor, admit, .. } = self.document.options;
        if self.size(block) > self.document.cache {
            return;
        }
        let mut left = self.resident.clone();
        let mut victims = Vec::new();
        while self.sum(&left) + self.size(block) > self.document.cache {
            let is_undeclared = |block: &&String| !self.declared.contains(*block);
            let is_spared = floor > 0 && self.sum(left.iter().filter(is_undeclared)) <= floor;
            let mut candidates = left.clone();
            if is_spared {
                candidates.retain(|block| self.declared.contains(block));
                if candidates.is_empty() {
                    candidates.clone_from(&left);
                }
            }
            if admit == Admit::Compare {
                candidates.push(block.clone());
            }
            let least = candidates.iter().min_by_key(|block| self.key(block));
            let least = least.unwrap().clone();
            if least == *block {
                return;
            }
            left.retain(|kept| *kept != least);
            victims.push(least);
        }
        for victim in victims {
            self.evict(victim);
        }
        self.resident.push(block.clone());
    }

    fn evict(&mut self, block: String) {
        self.resident.retain(|kept| *kept != block);
        self.outcome.evictions.push(block);
    }
}
