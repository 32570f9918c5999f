//! Decides which user's processes may name a job. Pure.
//!
//! A process's environment is written by its user, so it can name any job, and would then use that job's
//! share of remote IO. A name in an environment is therefore believed only for processes of the job's
//! owner: the user that declared it, or else the user whose process was first seen in it. Root may name any
//! job. A cgroup is always believed, because only a scheduler puts processes there.

use super::proc::Process;
use crate::job::ENDED_AFTER;
use crate::job::name::JobName;
use lru::LruCache;
use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::time::Instant;

/// Jobs whose users are remembered: the jobs of a node, and room for some that ended. Beyond it the
/// job that was observed longest ago is forgotten, and the next user that names it owns it.
const REMEMBERED_MAX: NonZeroUsize = NonZeroUsize::new(4096).expect("not zero");

/// The administrator.
const ROOT: u32 = 0;

/// See the module.
#[derive(Debug)]
pub(super) struct Owners {
    /// The users that declared jobs.
    declared: HashMap<JobName, u32>,
    /// The users that were first observed to run jobs.
    seen: LruCache<JobName, Observed>,
}

#[derive(Debug, Clone, Copy)]
struct Observed {
    user: u32,
    /// The outermost process of the job, when last observed.
    anchor: Process,
    at: Instant,
}

impl Owners {
    pub(super) fn new() -> Self {
        Self {
            declared: HashMap::new(),
            seen: LruCache::new(REMEMBERED_MAX),
        }
    }

    /// Sets the owners of declared jobs. Returns whether they changed.
    pub(super) fn declare(&mut self, declared: HashMap<JobName, u32>) -> bool {
        std::mem::replace(&mut self.declared, declared) != self.declared
    }

    /// Returns whether a process of `user` may name `job` in its environment. `runs` tells whether
    /// a process still exists: the name of a job that has ended is free.
    pub(super) fn may_name(
        &self,
        job: &JobName,
        user: u32,
        now: Instant,
        runs: impl Fn(Process) -> bool,
    ) -> bool {
        if user == ROOT {
            return true;
        }
        if let Some(owner) = self.declared.get(job) {
            return *owner == user;
        }
        // `peek` does not renew the entry: a user without the right to a name must not keep it
        // alive.
        self.seen.peek(job).is_none_or(|seen| {
            let silent = now.saturating_duration_since(seen.at);
            seen.user == user || (silent > ENDED_AFTER && !runs(seen.anchor))
        })
    }

    /// Records that a process of `user` belongs to `job`; `surely` if a cgroup says so.
    pub(super) fn saw(
        &mut self,
        job: &JobName,
        user: u32,
        anchor: Process,
        surely: bool,
        at: Instant,
    ) {
        let known = self.seen.peek(job).map(|seen| seen.user);
        // Processes of root in a user's job, such as its prologue, do not make root the owner.
        if user == ROOT && (surely || known.is_some_and(|known| known != ROOT)) {
            return;
        }
        self.seen.put(job.clone(), Observed { user, anchor, at });
    }
}
