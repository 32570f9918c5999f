//! Whose a job is: which user's processes may name it. Pure.
//!
//! An environment is written by the user whose process it is, so it can name any job, and would spend that
//! job's share of remote IO. A name in an environment is therefore believed only of the user whose job it
//! is: the one who declared it, else the one whose process was first seen to be of it. The administrator
//! may name any job. What a cgroup says needs no belief: only a scheduler puts processes there.

use super::proc::Process;
use crate::job::activity::ENDED_AFTER;
use crate::job::name::JobName;
use lru::LruCache;
use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::time::Instant;

/// Jobs whose users are remembered: as many as are kept on a node with room for those that ended. Of more,
/// the one that was seen the longest ago is forgotten, and belongs to the next user who names it.
const REMEMBERED_MAX: NonZeroUsize = NonZeroUsize::new(4096).expect("not zero");

/// The administrator.
const ROOT: u32 = 0;

/// See the module.
#[derive(Debug)]
pub(super) struct Owners {
    /// The users who declared jobs.
    declared: HashMap<JobName, u32>,
    /// The users who were first seen to run them.
    seen: LruCache<JobName, Seen>,
}

#[derive(Debug, Clone, Copy)]
struct Seen {
    user: u32,
    /// The outermost process of the job, as it was seen last.
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

    /// Jobs belong to the users in `declared` from now on; gives whether that is another list.
    pub(super) fn declare(&mut self, declared: HashMap<JobName, u32>) -> bool {
        let differs = self.declared != declared;
        self.declared = declared;
        differs
    }

    /// Whether a process of `user` may name `job` in its environment. `runs` tells whether a process is
    /// still there: the name of a job that is over is free.
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
        self.seen.peek(job).is_none_or(|seen| {
            let silent = now.saturating_duration_since(seen.at);
            seen.user == user || (silent > ENDED_AFTER && !runs(seen.anchor))
        })
    }

    /// A process of `user` is of `job`; `surely`: a cgroup says so.
    pub(super) fn saw(
        &mut self,
        job: &JobName,
        user: u32,
        anchor: Process,
        surely: bool,
        now: Instant,
    ) {
        let known = self.seen.peek(job).map(|seen| seen.user);
        // The administrator's processes in a job, its prologue say, do not make it the administrator's.
        if user == ROOT && (surely || known.is_some_and(|known| known != ROOT)) {
            return;
        }
        let seen = Seen {
            user,
            anchor,
            at: now,
        };
        self.seen.put(job.clone(), seen);
    }
}
