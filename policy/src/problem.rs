//! What is to be divided, among whom, and the answer.
//!
//! All amounts are `f64`: bytes, bytes per second, seconds. Jobs and datasets are told apart by
//! their position in the problem's lists; names are for people.

/// What the cluster has.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Totals {
    /// GPUs.
    pub gpus: f64,
    /// Cache, in bytes, over all nodes.
    pub cache: f64,
    /// What the storage service gives, in bytes per second, over all nodes.
    pub remote_io: f64,
}

/// A dataset: what cache is given to.
#[derive(Debug, Clone, PartialEq)]
pub struct Dataset {
    /// Its name, unique.
    pub name: String,
    /// Bytes (`d` in the paper).
    pub size: f64,
    /// Bytes of cache that somebody has set by hand (`allocateCacheSize`): the policies give it
    /// exactly that (at most its size) before they divide the rest. `None`: the policy decides.
    pub budget: Option<f64>,
}

/// A training job: what remote IO is given to.
#[derive(Debug, Clone, PartialEq)]
pub struct Job {
    /// Its name, unique.
    pub id: String,
    /// Which dataset it reads: a position in [`Problem::datasets`].
    pub dataset: usize,
    /// Bytes per second that it reads when data is not its bottleneck (`f*`).
    pub ideal_rate: f64,
    /// GPUs that it needs.
    pub gpus: f64,
    /// Bytes that it still has to read (over all epochs); `None`: not known.
    pub work: Option<f64>,
    /// Which part of what it reads next is answered from cache *now*: what was cached before its
    /// epoch began (§6, delayed effectiveness). `None`: cached bytes over size (`c/d`).
    pub hit_ratio: Option<f64>,
    /// Bytes per second of remote IO that somebody has set by hand (`allocateRemoteIO`): the job
    /// gets exactly that before the policies divide the rest. `None`: the policy decides.
    pub remote_io: Option<f64>,
}

/// A problem of allocation.
#[derive(Debug, Clone, PartialEq)]
pub struct Problem {
    /// What there is.
    pub totals: Totals,
    /// The datasets.
    pub datasets: Vec<Dataset>,
    /// The jobs that run (or, for policies that order them, wait), in order of submission.
    pub jobs: Vec<Job>,
}

/// What a dataset gets.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DatasetShare {
    /// Bytes of cache (`c`), at most its size; with `static`, the sum of what its jobs cache of it
    /// each for itself, which can be more.
    pub cache: f64,
}

/// What a job gets, and what is expected of it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct JobShare {
    /// Bytes of cached data that it can hit (`c` in Eq. 4): its dataset's share, or, where caches
    /// are private (`static`), its own part of that.
    pub cache: f64,
    /// Which part of its reads is answered from cache: the job's own `hit_ratio` if the problem
    /// gives one, else what `cache` gives in steady state. The rates below follow from it.
    pub hit_ratio: f64,
    /// Bytes per second of remote IO (`b`) that it needs and is given: never more than
    /// `ideal_rate · (1 - hit_ratio)`, except where somebody has set it by hand.
    pub remote_io: f64,
    /// Bytes per second of remote IO that enforcement holds it to: `remote_io` and its part of what
    /// nobody needs, in proportion to the ideal rates. So that nobody waits for remote IO that is
    /// free when an item was lost or an estimate is low.
    pub limit: f64,
    /// Bytes per second that it is expected to read with that (Eq. 4).
    pub throughput: f64,
    /// The policy's score, where it has one: Eq. 7 for `sjf`, the fairness ratio for `max-min`, its
    /// dataset's cache efficiency for `greedy` and `benefit`.
    pub score: Option<f64>,
    /// Its place in the policy's order, from 0.
    pub order: usize,
}

/// An answer. Its lists have the order of the problem's.
#[derive(Debug, Clone, PartialEq)]
pub struct Allocation {
    /// What each dataset gets.
    pub datasets: Vec<DatasetShare>,
    /// What each job gets.
    pub jobs: Vec<JobShare>,
    /// What the policy maximises (or, for `sjf`, minimises); each says what that is.
    pub objective: f64,
}
