//! The declared datasets and jobs, manual settings, and the policy. Pure.
//!
//! Every change is checked here, with a message and advice. The registry is the part of a [`Decision`]
//! that people and jobs determine, and an allocator restores it from one.

use super::counter::Counted;
use crate::model::ErrorKind::{Conflict, Invalid, NotFound};
use crate::model::{
    Command, CommandError, DatasetDecision, DatasetSpec, DatasetTrouble, Decision, ErrorKind,
    JobDecision, JobSpec, Resources, UNATTRIBUTED,
};
use crate::nearest::nearest;
use crate::num::saturating_sum;
use copperfs_policy::amounts::{ByteRate, ByteSize};
use copperfs_policy::chunks::LayoutError;
use copperfs_policy::{Keep, Policy};

#[cfg(test)]
mod tests;

/// The maximum number of datasets. Every decision contains all of them, and every node keeps it. Further
/// datasets are refused.
pub const DATASETS_MAX: usize = 1024;
/// The maximum number of jobs, for the same reason. Further observed jobs are ignored.
pub const JOBS_MAX: usize = 4096;
/// The maximum length of a name in bytes, because names occur in paths, tables and frames.
pub const NAME_BYTES_MAX: usize = 128;

/// The outcome of a change: made, or refused with advice.
pub type Outcome = Result<(), CommandError>;

/// The resources that changes are checked against.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Limits {
    /// Total cache of the live nodes, in bytes. `None`: not known yet, and not checked.
    pub cache: Option<u64>,
    /// Remote IO in bytes per second. `None`: no limit.
    pub remote_io: Option<u64>,
    /// GPUs. `None`: not checked.
    pub gpus: Option<u32>,
    /// The part of the cache that all datasets together may have because pipelines refer to them, in per cent.
    pub pipelines_percent: u8,
}

impl Limits {
    /// The limits by configuration. The cache is not known yet.
    #[must_use]
    pub fn of(resources: Resources) -> Self {
        Self {
            cache: None,
            remote_io: resources.remote_io,
            gpus: resources.gpus,
            pipelines_percent: resources.pipelines_percent,
        }
    }
}

/// See the module.
#[derive(Clone, PartialEq, Debug)]
pub struct Registry {
    /// In order of declaration. The allocator sets `budget` and `homed` in its decisions only.
    datasets: Vec<DatasetDecision>,
    /// In order of appearance. The allocator sets `remote_io` and `nodes` in its decisions only.
    jobs: Vec<JobDecision>,
    policy: String,
}

impl Default for Registry {
    fn default() -> Self {
        Self::new(Policy::default().name())
    }
}

impl Registry {
    /// Creates an empty registry.
    #[must_use]
    pub fn new(policy: &str) -> Self {
        Self {
            datasets: Vec::new(),
            jobs: Vec::new(),
            policy: policy.to_owned(),
        }
    }

    /// Restores the registry from a decision.
    #[must_use]
    pub fn of(decision: &Decision) -> Self {
        let jobs = decision.jobs.iter();
        let jobs = jobs.filter(|job| job.name != UNATTRIBUTED);
        Self {
            datasets: decision.datasets.clone(),
            jobs: jobs.cloned().collect(),
            policy: decision.policy.clone(),
        }
    }

    /// Returns the datasets, in order of declaration.
    #[must_use]
    pub fn datasets(&self) -> &[DatasetDecision] {
        &self.datasets
    }

    /// Returns the jobs, in order of appearance.
    #[must_use]
    pub fn jobs(&self) -> &[JobDecision] {
        &self.jobs
    }

    /// Returns the name of the policy.
    #[must_use]
    pub fn policy(&self) -> &str {
        &self.policy
    }

    /// Returns the dataset with this name.
    #[must_use]
    pub fn dataset(&self, name: &str) -> Option<&DatasetDecision> {
        self.datasets.iter().find(|one| one.name == name)
    }

    /// Returns the dataset that a command names.
    ///
    /// # Errors
    /// There is no dataset of this name; the advice names one like it.
    pub fn named(&self, name: &str) -> Result<&DatasetDecision, CommandError> {
        self.dataset_at(name).map(|at| &self.datasets[at])
    }

    /// Returns the job with this name.
    #[must_use]
    pub fn job(&self, name: &str) -> Option<&JobDecision> {
        self.jobs.iter().find(|job| job.name == name)
    }

    /// Carries out `command`. [`Command::Overview`] and [`Command::ReportBatches`] change nothing, and
    /// [`Command::SetResources`] is checked only.
    ///
    /// # Errors
    /// The command is refused, with advice. The registry is then unchanged.
    pub fn apply(&mut self, command: &Command, limits: &Limits) -> Outcome {
        match command {
            Command::AddDataset(spec) => self.add_dataset(spec.clone(), limits),
            Command::ReplaceDataset(spec) => self.replace_dataset(spec.clone(), limits),
            Command::RemoveDataset(name) => self.remove_dataset(name),
            Command::AddJob(spec) => self.add_job(spec.clone(), limits),
            Command::EndJob(name) => self.end_job(name),
            Command::AllocateCacheSize { dataset, size } => self.pin_budget(dataset, *size, limits),
            Command::AllocateRemoteIo { job, rate } => self.pin_rate(job, *rate, limits),
            Command::SetPolicy(name) => self.set_policy(name),
            Command::SetKeep { dataset, keep } => self.set_keep(dataset, *keep),
            Command::SetResources(resources) => self.check_resources(*resources),
            Command::Overview | Command::ReportBatches(_) => Ok(()),
        }
    }

    /// Declares a dataset.
    ///
    /// # Errors
    /// Its name is taken or invalid, it overlaps another dataset, its budget exceeds the total, or it has
    /// a budget of which nothing may be kept.
    pub fn add_dataset(&mut self, spec: DatasetSpec, limits: &Limits) -> Outcome {
        let (name, path) = (&spec.name, &spec.path);
        let characters = "digits, dots, dashes and underscores";
        check_name("dataset", name, "._-", characters)?;
        if let Some(twin) = self.dataset(name) {
            let why = format!("there is a dataset {name:?} already, at {}", twin.path);
            let advice = format!(
                "Choose another name, replace it with --replace, or take it back: copperfs \
                 dataset rm {name}"
            );
            return refused(Conflict, why, advice);
        }
        // A file must have one budget, so datasets must not contain one another.
        let overlaps =
            |one: &&DatasetDecision| path.is_within(&one.path) || one.path.is_within(path);
        if let Some(twin) = self.datasets.iter().find(overlaps) {
            let (other, other_path) = (&twin.name, &twin.path);
            let why = format!(
                "dataset {name:?} at {path} overlaps {other:?} at {other_path}: a file has one budget"
            );
            let advice =
                format!("Declare parts that lie beside each other, or copperfs dataset rm {other}");
            return refused(Conflict, why, advice);
        }
        if self.datasets.len() >= DATASETS_MAX {
            let why = format!("there are {DATASETS_MAX} datasets already");
            return refused(Conflict, why, "Take one back first: copperfs dataset list");
        }
        self.check_budget(name, spec.budget, limits)?;
        let (keep, budget) = (spec.keep, spec.budget);
        let dataset = DatasetDecision::from(spec);
        check_keep(&dataset, keep, budget)?;
        self.datasets.push(dataset);
        Ok(())
    }

    /// Declares a dataset, and replaces a dataset of the same name. Jobs that read it continue.
    ///
    /// # Errors
    /// Like [`add_dataset`](Self::add_dataset), except for a name that is taken. The earlier declaration
    /// then stays.
    pub fn replace_dataset(&mut self, spec: DatasetSpec, limits: &Limits) -> Outcome {
        let before = self.datasets.clone();
        // Without the old declaration its name and path do not conflict with the new one.
        self.datasets.retain(|one| one.name != spec.name);
        let added = self.add_dataset(spec, limits);
        if added.is_err() {
            self.datasets = before;
        }
        added
    }

    /// Removes a dataset.
    ///
    /// # Errors
    /// It does not exist, or a declared job reads it.
    pub fn remove_dataset(&mut self, name: &str) -> Outcome {
        let at = self.dataset_at(name)?;
        let reads = |job: &&JobDecision| job.declared && job.dataset.as_deref() == Some(name);
        if let Some(JobDecision { name: job, .. }) = self.jobs.iter().find(reads) {
            let why = format!("job {job:?} reads dataset {name:?}");
            let advice = format!("End the job first: copperfs job end {job}");
            return refused(Conflict, why, advice);
        }
        self.datasets.remove(at);
        for job in &mut self.jobs {
            job.dataset.take_if(|dataset| dataset == name);
        }
        Ok(())
    }

    /// Declares a job. An observed job of this name becomes a declared one.
    ///
    /// # Errors
    /// Its name is taken or invalid, its dataset is not declared, or it needs too many GPUs.
    pub fn add_job(&mut self, spec: JobSpec, limits: &Limits) -> Outcome {
        let name = &spec.name;
        // Schedulers' names have more characters: `slurm:77_[3]`, `k8s:space/pod`.
        let characters = "digits and . _ - : @ / + = , [ ]";
        check_name("job", name, "._-:@/+=,[]", characters)?;
        if name == UNATTRIBUTED {
            let why = format!("{name:?} stands for reads that belong to no job");
            return refused(Invalid, why, "Choose another name");
        }
        if self.job(name).is_some_and(|job| job.declared) {
            let why = format!("there is a job {name:?} already");
            let advice = format!("Choose another name, or end it first: copperfs job end {name}");
            return refused(Conflict, why, advice);
        }
        let dataset = &spec.dataset;
        if self.dataset(dataset).is_none() {
            let why = format!("job {name:?} is on no dataset: there is none called {dataset:?}");
            return refused(Invalid, why, self.dataset_like(dataset));
        }
        if spec.ideal_rate == Some(0) {
            let why =
                format!("job {name:?} cannot have an ideal rate of zero: it would never read");
            let advice = "Leave the ideal rate out to have it estimated, or write 114MB/s, say";
            return refused(Invalid, why, advice);
        }
        if spec.epochs == Some(0) {
            let why = format!("job {name:?} cannot run zero epochs");
            return refused(Invalid, why, "Leave the epochs out if they are not known");
        }
        let declared = self.jobs.iter().filter(|job| job.declared);
        let taken = declared.fold(0_u32, |sum, job| sum.saturating_add(job.gpus));
        if let Some(total) = limits.gpus
            && taken.saturating_add(spec.gpus) > total
        {
            let wanted = spec.gpus;
            let why = format!(
                "job {name:?} wants {wanted} GPUs; the cluster has {total}, of which {taken} are taken"
            );
            return refused(Conflict, why, "End another job, or change the key gpus");
        }
        let observed = self.jobs.iter().position(|job| job.name == *name);
        let job = match observed {
            Some(at) => &mut self.jobs[at],
            None if self.jobs.len() >= JOBS_MAX => {
                let why = format!("there are {JOBS_MAX} jobs already");
                return refused(Conflict, why, "End one first: copperfs job list");
            }
            None => self.jobs.push_mut(JobDecision::observed(name)),
        };
        job.dataset = Some(spec.dataset);
        job.declared = true;
        job.owner = spec.owner;
        job.ideal_rate = spec.ideal_rate;
        job.gpus = spec.gpus;
        job.epochs = spec.epochs;
        Ok(())
    }

    /// Ends a job.
    ///
    /// # Errors
    /// It does not exist.
    pub fn end_job(&mut self, name: &str) -> Outcome {
        let at = self.job_at(name)?;
        self.jobs.remove(at);
        Ok(())
    }

    /// Records that a job reads `dataset`, as nodes report. Ignores it if there are too many jobs.
    pub fn observe_job(&mut self, name: &str, dataset: &str, irregular: bool) {
        let known = self.dataset(dataset).is_some();
        if let Some(job) = self.jobs.iter_mut().find(|job| job.name == name) {
            job.irregular = irregular;
            // A declaration stands, whatever else the job reads.
            if !job.declared && known {
                job.dataset = Some(dataset.to_owned());
            }
            return;
        }
        let valid = !name.is_empty() && name.len() <= NAME_BYTES_MAX && name != UNATTRIBUTED;
        if valid && known && self.jobs.len() < JOBS_MAX {
            self.jobs.push(JobDecision {
                dataset: Some(dataset.to_owned()),
                irregular,
                ..JobDecision::observed(name)
            });
        }
    }

    /// Removes observed jobs that are not `live`. Declared jobs stay.
    pub fn retain_observed(&mut self, live: impl Fn(&str) -> bool) {
        self.jobs.retain(|job| job.declared || live(&job.name));
    }

    /// Sets a dataset's budget by hand, or returns it to the policy (`None`).
    ///
    /// # Errors
    /// The dataset does not exist, the budget exceeds the total, or nothing may be kept of the dataset.
    pub fn pin_budget(&mut self, name: &str, size: Option<u64>, limits: &Limits) -> Outcome {
        let at = self.dataset_at(name)?;
        self.check_budget(name, size, limits)?;
        check_keep(&self.datasets[at], self.datasets[at].keep, size)?;
        self.datasets[at].pinned = size;
        Ok(())
    }

    /// Changes the rule of what a dataset's homes keep.
    ///
    /// # Errors
    /// The dataset does not exist, it cannot have chunks, or it has a budget set by hand of which nothing
    /// would be kept.
    pub fn set_keep(&mut self, name: &str, keep: Keep) -> Outcome {
        let at = self.dataset_at(name)?;
        let dataset = &mut self.datasets[at];
        check_keep(dataset, keep, dataset.pinned)?;
        dataset.keep = keep;
        // Another rule needs no chunks.
        dataset
            .trouble
            .take_if(|one| matches!(one, DatasetTrouble::Chunks(_)));
        Ok(())
    }

    /// Sets a job's rate by hand, or returns it to the policy (`None`).
    ///
    /// # Errors
    /// The job does not exist, or the rate exceeds the total.
    pub fn pin_rate(&mut self, name: &str, rate: Option<u64>, limits: &Limits) -> Outcome {
        let at = self.job_at(name)?;
        if rate == Some(0) {
            let why = format!("a rate of zero would stop job {name:?}");
            let advice =
                format!("Write auto to leave it to the policy, or copperfs job end {name}");
            return refused(Invalid, why, advice);
        }
        // Without its own previous rate, which the new one replaces.
        let others = self.jobs.iter().filter(|job| job.name != name);
        let others = saturating_sum(others.filter_map(|job| job.pinned));
        if let (Some(rate), Some(total)) = (rate, limits.remote_io)
            && rate.saturating_add(others) > total
        {
            let [rate, total, others] = [rate, total, others].map(ByteRate);
            let why = format!(
                "{rate} for job {name:?} is more than there is: remote_io is {total}, and {others} of \
                 that are set by hand for others"
            );
            return refused(Conflict, why, "Set less, or change the key remote_io");
        }
        self.jobs[at].pinned = rate;
        Ok(())
    }

    /// Checks that `resources` suffice for the rates that are set by hand.
    fn check_resources(&self, resources: Resources) -> Outcome {
        let pinned = saturating_sum(self.jobs.iter().filter_map(|job| job.pinned));
        match resources.remote_io {
            Some(total) if total < pinned => {
                let [total, pinned] = [total, pinned].map(ByteRate);
                let why = format!("remote_io cannot be {total}: {pinned} are set by hand for jobs");
                refused(
                    Conflict,
                    why,
                    "Set those rates to auto first: copperfs job set JOB --remote-io auto",
                )
            }
            _ => Ok(()),
        }
    }

    /// Changes the policy.
    ///
    /// # Errors
    /// There is no policy of this name.
    pub fn set_policy(&mut self, name: &str) -> Outcome {
        if name.parse::<Policy>().is_err() {
            let names = Policy::ALL.map(Policy::name);
            let near = nearest(name, names.into_iter());
            let near = near.map(|near| format!("Did you mean {near}? "));
            let near = near.unwrap_or_default();
            let advice = format!("{near}The policies: {}", names.join(", "));
            return refused(Invalid, format!("{name:?} is not a policy"), advice);
        }
        name.clone_into(&mut self.policy);
        Ok(())
    }

    /// Records the size of dataset `id` in bytes and items, and the identity of its manifest. Returns false if
    /// it is no longer declared.
    pub fn counted(&mut self, id: u64, counted: &Counted) -> bool {
        let Some(dataset) = self.datasets.iter_mut().find(|one| one.id == id) else {
            return false;
        };
        dataset.size = counted.bytes;
        dataset.items = counted.items;
        dataset.identity = counted.identity;
        dataset.entries = counted.entries;
        dataset.trouble = match counted.bytes {
            0 => Some(DatasetTrouble::Empty),
            _ => chunk_trouble(dataset, dataset.keep).map(DatasetTrouble::Chunks),
        };
        true
    }

    /// Records why dataset `id` cannot be counted. An earlier size stays. Returns whether this is news.
    pub fn count_failed(&mut self, id: u64, trouble: String) -> bool {
        let Some(dataset) = self.datasets.iter_mut().find(|one| one.id == id) else {
            return false;
        };
        let trouble = Some(DatasetTrouble::Uncounted(trouble));
        let news = dataset.trouble != trouble;
        dataset.trouble = trouble;
        news
    }

    fn check_budget(&self, name: &str, size: Option<u64>, limits: &Limits) -> Outcome {
        if size == Some(0) {
            let why = format!("a budget of zero for dataset {name:?}");
            let advice =
                format!("Write auto to leave it to the policy, or copperfs dataset rm {name}");
            return refused(Invalid, why, advice);
        }
        let others = self.datasets.iter().filter(|one| one.name != name);
        let others = saturating_sum(others.filter_map(|one| one.pinned));
        if let (Some(size), Some(total)) = (size, limits.cache)
            && size.saturating_add(others) > total
        {
            let [size, total, others] = [size, total, others].map(ByteSize);
            let why = format!(
                "a budget of {size} for dataset {name:?} is more than there is: the nodes that live \
                 have {total} for datasets, and {others} of that are set by hand for others (a node \
                 stores datasets if it was mounted with --data-mount)"
            );
            let advice = "Set less, or give nodes more memory or a larger disk";
            return refused(Conflict, why, advice);
        }
        Ok(())
    }

    fn dataset_at(&self, name: &str) -> Result<usize, CommandError> {
        let at = self.datasets.iter().position(|one| one.name == name);
        at.ok_or_else(|| {
            let why = format!("there is no dataset {name:?}");
            CommandError::new(NotFound, why, self.dataset_like(name))
        })
    }

    fn job_at(&self, name: &str) -> Result<usize, CommandError> {
        let at = self.jobs.iter().position(|job| job.name == name);
        at.ok_or_else(|| {
            let known: Vec<&str> = self.jobs.iter().map(|job| job.name.as_str()).collect();
            let none = "None is known: copperfs job add NAME --dataset D";
            let why = format!("there is no job {name:?}");
            CommandError::new(NotFound, why, one_like(name, &known, none))
        })
    }

    /// Advises on the name of an unknown dataset.
    fn dataset_like(&self, name: &str) -> String {
        let known: Vec<&str> = self.datasets.iter().map(|one| one.name.as_str()).collect();
        let none = "None is declared: copperfs dataset add NAME PATH";
        one_like(name, &known, none)
    }
}

fn refused(kind: ErrorKind, why: String, advice: impl Into<String>) -> Outcome {
    Err(CommandError::new(kind, why, advice))
}

/// Refuses chunks for a dataset that cannot have them, and a budget for a dataset of which nothing is kept.
fn check_keep(dataset: &DatasetDecision, keep: Keep, budget: Option<u64>) -> Outcome {
    let name = &dataset.name;
    if keep == Keep::Chunks && dataset.manifest.is_none() {
        let why = format!(
            "dataset {name:?} cannot keep chunks: they consist of the entries of a manifest, and it has none"
        );
        let advice = format!(
            "Make one with copperfs dataset manifest, and declare the dataset with it: copperfs dataset \
             add {name} {} --manifest FILE --keep chunks --replace",
            dataset.path
        );
        return refused(Invalid, why, advice);
    }
    if let Some(error) = chunk_trouble(dataset, keep) {
        let why = format!("dataset {name:?} cannot keep chunks: {error}");
        let advice = "copperfs dataset add takes --chunk-size; dataset set takes --keep uniform";
        return refused(Invalid, why, advice);
    }
    let Some(budget) = budget.filter(|_| keep == Keep::None) else {
        return Ok(());
    };
    let budget = ByteSize(budget);
    let why = format!("nothing is kept of dataset {name:?}, so a budget of {budget} has no use");
    let advice = format!(
        "Leave the budget to the policy (copperfs dataset set {name} --budget auto), or keep items of it \
         (copperfs dataset set {name} --keep uniform)"
    );
    refused(Conflict, why, advice)
}

/// Returns why a dataset cannot be kept in chunks, as far as that is known.
fn chunk_trouble(dataset: &DatasetDecision, keep: Keep) -> Option<LayoutError> {
    let error = dataset.layout().err().filter(|_| keep == Keep::Chunks)?;
    // Before it is counted it seems to have no entries.
    let is_known = dataset.entries > 0 || error == LayoutError::EmptyChunks;
    is_known.then_some(error)
}

/// Checks a name: letters, digits and `punctuation`, with a letter or digit first. `characters` describes
/// what may follow a letter.
fn check_name(kind: &str, name: &str, punctuation: &str, characters: &str) -> Outcome {
    let allowed = |c: char| c.is_ascii_alphanumeric() || punctuation.contains(c);
    let starts = name.starts_with(|c: char| c.is_ascii_alphanumeric());
    if starts && name.len() <= NAME_BYTES_MAX && name.chars().all(allowed) {
        return Ok(());
    }
    let name: String = name.chars().take(NAME_BYTES_MAX).collect();
    let why = format!("{name:?} cannot be the name of a {kind}");
    let advice =
        format!("Write up to {NAME_BYTES_MAX} letters, {characters}, a letter or digit first");
    refused(Invalid, why, advice)
}

/// The maximum number of names in an advice.
const KNOWN_SHOWN: usize = 10;

/// Advises on an unknown name: a similar one, or the first known ones; `none` if there are none.
fn one_like(name: &str, known: &[&str], none: &str) -> String {
    if known.is_empty() {
        return none.to_owned();
    }
    if let Some(near) = nearest(name, known.iter().copied()) {
        return format!("Did you mean {near}?");
    }
    let shown = known[..known.len().min(KNOWN_SHOWN)].join(", ");
    let more = known.get(KNOWN_SHOWN).map_or("", |_| ", ...");
    format!("There are: {shown}{more}")
}
