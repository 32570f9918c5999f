//! A checked trace: names are numbers, and every block has a size.

use super::event::{Event, Options, Task};
use super::numbers::Numbers;
use crate::references::Limits;
use std::collections::HashSet;

/// A trace that [`replay`](super::replay) runs.
#[derive(Debug, Clone)]
pub struct Trace {
    pub(super) cache: u64,
    pub(super) options: Options,
    /// The resident blocks at the start, the least recently used first.
    pub(super) initial: Vec<u32>,
    pub(super) events: Vec<Step>,
    /// The size in bytes of each block.
    pub(super) sizes: Vec<u64>,
    /// The name of each block.
    pub(super) blocks: Vec<String>,
}

/// An [`Event`] with numbers for names.
#[derive(Debug, Clone)]
pub(super) enum Step {
    Submit {
        job: u32,
        attempt: u64,
        tasks: Vec<(u32, Vec<u32>)>,
    },
    Read {
        /// The job, and the task if it is named.
        reader: Option<(u32, Option<u32>)>,
        block: u32,
    },
    Put {
        block: u32,
    },
    Done {
        job: u32,
        task: u32,
    },
    TaskFail {
        job: u32,
        task: u32,
    },
    End {
        job: u32,
    },
    Flush,
}

/// The read or the put of a block by an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Access {
    /// The number of the block. Numbers begin at 0.
    pub block: u32,
    /// Bytes of the block.
    pub bytes: u64,
    /// Whether it is a put.
    pub is_put: bool,
}

impl Trace {
    /// Returns the limits of the cache.
    #[must_use]
    pub fn limits(&self) -> Limits {
        Limits {
            capacity: self.cache,
            floor: self.options.floor,
            admit: self.options.admit,
        }
    }

    /// Sets the limits of the cache, to replay the same events in another one.
    ///
    /// # Errors
    /// The floor is above the cache, or the initial blocks do not fit. The trace is as before.
    pub fn set_limits(&mut self, limits: Limits) -> Result<(), TraceError> {
        let Limits {
            capacity,
            floor,
            admit,
        } = limits;
        if floor > capacity {
            let cache = capacity;
            return Err(TraceError::FloorAboveCache { floor, cache });
        }
        let mut free = capacity;
        for &block in &self.initial {
            let size = self.sizes[block as usize];
            free = (free.checked_sub(size)).ok_or_else(|| TraceError::InitialTooLarge {
                block: self.blocks[block as usize].clone(),
                cache: capacity,
            })?;
        }
        self.cache = capacity;
        self.options = Options {
            floor,
            admit,
            ..self.options
        };
        Ok(())
    }

    /// Returns the number of blocks. Their numbers are below it.
    #[must_use]
    pub fn blocks(&self) -> usize {
        self.sizes.len()
    }

    /// Returns one item for each event, in order: its access, or `None` if it has none.
    pub fn accesses(&self) -> impl Iterator<Item = Option<Access>> {
        self.events.iter().map(|step| {
            let (block, is_put) = match step {
                Step::Read { block, .. } => (*block, false),
                Step::Put { block } => (*block, true),
                _ => return None,
            };
            Some(Access {
                block,
                bytes: self.sizes[block as usize],
                is_put,
            })
        })
    }
}

/// Why a trace is invalid. Its `Display` names the entry, the reason, and the correction.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// It is not JSON, or a field is missing or has a wrong type or value.
    #[error("the trace is not valid: {0}")]
    Json(#[from] serde_json::Error),
    /// A block has two sizes.
    #[error("blocks: {block:?} is there twice. Give each block one size in bytes")]
    BlockTwice {
        /// The block.
        block: String,
    },
    /// An event names a block without a size.
    #[error("events[{event}]: block {block:?} has no size. Add it to \"blocks\" with its bytes")]
    EventWithoutSize {
        /// The index of the first such event.
        event: usize,
        /// The block.
        block: String,
    },
    /// An initial block has no size.
    #[error("initial_lru_to_mru: block {block:?} has no size. Add it to \"blocks\" with its bytes")]
    InitialWithoutSize {
        /// The block.
        block: String,
    },
    /// An initial block is listed twice, so its last use is ambiguous.
    #[error("initial_lru_to_mru: block {block:?} is there twice. List it once, at its last use")]
    InitialTwice {
        /// The block.
        block: String,
    },
    /// The initial blocks do not fit.
    #[error(
        "initial_lru_to_mru: with block {block:?} the blocks are larger than the cache of {cache} \
         bytes. List fewer, or set a larger \"cache\""
    )]
    InitialTooLarge {
        /// The first block that does not fit.
        block: String,
        /// Bytes of the cache.
        cache: u64,
    },
    /// Two tasks of a submission have the same name.
    #[error("events[{event}]: task {task:?} is listed twice. Give each task of a job its own id")]
    TaskTwice {
        /// The index of the event.
        event: usize,
        /// The task.
        task: String,
    },
    /// The floor is above the cache.
    #[error("options: the floor of {floor} bytes is above the cache of {cache}. Set at most that")]
    FloorAboveCache {
        /// Bytes of the floor.
        floor: u64,
        /// Bytes of the cache.
        cache: u64,
    },
    /// There are 2^32 names or more of one kind, or events, or references.
    #[error("more than 4294967295 {kind}. Replay a part of the trace")]
    TooMany {
        /// The kind of entry.
        kind: &'static str,
    },
}

/// Collects a trace. The order of calls does not matter, except among initial blocks and among events.
#[derive(Debug, Clone, Default)]
pub struct TraceBuilder {
    cache: u64,
    options: Options,
    blocks: Numbers<String>,
    /// By block: its size, once that is known.
    sizes: Vec<Option<u64>>,
    /// By block: the first event that names it.
    mentions: Vec<Option<usize>>,
    jobs: Numbers<(u32, u32)>,
    /// The names of tenants, jobs and tasks.
    words: Numbers<String>,
    initial: Vec<u32>,
    events: Vec<Step>,
}

impl TraceBuilder {
    /// Begins a trace for a cache of `cache` bytes.
    #[must_use]
    pub fn new(cache: u64, options: Options) -> Self {
        Self {
            cache,
            options,
            ..Self::default()
        }
    }

    /// Sets the cache and the options that were not known at the start.
    pub(super) fn set(&mut self, cache: u64, options: Options) {
        self.cache = cache;
        self.options = options;
    }

    /// Adds a block of `size` bytes.
    ///
    /// # Errors
    /// The block has a size already, or there are too many blocks.
    pub fn block(&mut self, name: &str, size: u64) -> Result<(), TraceError> {
        let block = self.block_id(name)?;
        match &mut self.sizes[block as usize] {
            Some(_) => Err(TraceError::BlockTwice { block: name.into() }),
            unset => {
                *unset = Some(size);
                Ok(())
            }
        }
    }

    /// Adds a block that is resident at the start. It was used after those added before.
    ///
    /// # Errors
    /// There are too many blocks.
    pub fn initial(&mut self, name: &str) -> Result<(), TraceError> {
        let block = self.block_id(name)?;
        self.initial.push(block);
        Ok(())
    }

    /// Adds an event after the others.
    ///
    /// # Errors
    /// A task is listed twice, or there are too many blocks, events or names.
    pub fn event(&mut self, event: &Event) -> Result<(), TraceError> {
        // Positions of events are `u32` in the ranks of `min`.
        let too_many = |_| TraceError::TooMany { kind: "events" };
        u32::try_from(self.events.len() + 1).map_err(too_many)?;
        let step = match event {
            Event::Submit {
                tenant,
                job,
                attempt,
                tasks,
            } => Step::Submit {
                job: self.job_id(tenant, job)?,
                attempt: *attempt,
                tasks: self.tasks(tasks)?,
            },
            Event::Read {
                tenant,
                job,
                task,
                block,
            } => Step::Read {
                reader: match job {
                    Some(job) => {
                        let task = task.as_deref().map(|task| self.word(task)).transpose()?;
                        Some((self.job_id(tenant, job)?, task))
                    }
                    None => None,
                },
                block: self.mention(block)?,
            },
            Event::Put { block } => Step::Put {
                block: self.mention(block)?,
            },
            Event::Done { tenant, job, task } => Step::Done {
                job: self.job_id(tenant, job)?,
                task: self.word(task)?,
            },
            Event::TaskFail { tenant, job, task } => Step::TaskFail {
                job: self.job_id(tenant, job)?,
                task: self.word(task)?,
            },
            Event::End { tenant, job } => Step::End {
                job: self.job_id(tenant, job)?,
            },
            Event::Flush => Step::Flush,
        };
        self.events.push(step);
        Ok(())
    }

    /// Checks the trace as a whole.
    ///
    /// # Errors
    /// A block of an event or an initial block has no size, the initial blocks do not fit or repeat, or
    /// the floor is above the cache.
    pub fn build(self) -> Result<Trace, TraceError> {
        let (cache, floor) = (self.cache, self.options.floor);
        if floor > cache {
            return Err(TraceError::FloorAboveCache { floor, cache });
        }
        let blocks = self.blocks.into_keys();
        let name = |block: usize| blocks[block].clone();
        let unsized_mentions = self.sizes.iter().zip(&self.mentions).zip(0_usize..);
        let unsized_mentions = unsized_mentions
            .filter_map(|((size, event), block)| size.is_none().then_some(((*event)?, block)));
        if let Some((event, block)) = unsized_mentions.min() {
            let block = name(block);
            return Err(TraceError::EventWithoutSize { event, block });
        }
        let (mut seen, mut free) = (HashSet::new(), cache);
        for block in &self.initial {
            let block = *block as usize;
            let Some(size) = self.sizes[block] else {
                return Err(TraceError::InitialWithoutSize { block: name(block) });
            };
            if !seen.insert(block) {
                return Err(TraceError::InitialTwice { block: name(block) });
            }
            let Some(rest) = free.checked_sub(size) else {
                let block = name(block);
                return Err(TraceError::InitialTooLarge { block, cache });
            };
            free = rest;
        }
        Ok(Trace {
            cache,
            options: self.options,
            initial: self.initial,
            events: self.events,
            // All blocks that are used have a size.
            sizes: self
                .sizes
                .into_iter()
                .map(Option::unwrap_or_default)
                .collect(),
            blocks,
        })
    }

    fn tasks(&mut self, tasks: &[Task]) -> Result<Vec<(u32, Vec<u32>)>, TraceError> {
        let mut seen = HashSet::new();
        let mut numbered = Vec::with_capacity(tasks.len());
        for task in tasks {
            let id = self.word(&task.id)?;
            if !seen.insert(id) {
                return Err(TraceError::TaskTwice {
                    event: self.events.len(),
                    task: task.id.clone(),
                });
            }
            let inputs = task.inputs.iter().map(|block| self.mention(block));
            numbered.push((id, inputs.collect::<Result<_, _>>()?));
        }
        Ok(numbered)
    }

    fn word(&mut self, word: &str) -> Result<u32, TraceError> {
        let too_many = TraceError::TooMany { kind: "names" };
        self.words.id(word).ok_or(too_many)
    }

    fn job_id(&mut self, tenant: &str, job: &str) -> Result<u32, TraceError> {
        let job = (self.word(tenant)?, self.word(job)?);
        let too_many = TraceError::TooMany { kind: "jobs" };
        self.jobs.id(&job).ok_or(too_many)
    }

    fn block_id(&mut self, name: &str) -> Result<u32, TraceError> {
        let too_many = TraceError::TooMany { kind: "blocks" };
        let block = self.blocks.id(name).ok_or(too_many)?;
        if block as usize == self.sizes.len() {
            self.sizes.push(None);
            self.mentions.push(None);
        }
        Ok(block)
    }

    /// Returns the number of a block that the next event names.
    fn mention(&mut self, name: &str) -> Result<u32, TraceError> {
        let block = self.block_id(name)?;
        let next = self.events.len();
        self.mentions[block as usize].get_or_insert(next);
        Ok(block)
    }
}
