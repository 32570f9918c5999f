//! What is declared: datasets, jobs, what was set by hand, the policy. Pure.
//!
//! Every change is checked here, with a message that says what to try. The registry is the part of a
//! [`Decision`] that people and jobs decide; it is taken up again from one.

use crate::model::{
    Command, CommandError, DatasetDecision, DatasetSpec, Decision, ErrorKind, JobDecision, JobSpec,
    OriginReaders, UNATTRIBUTED,
};
use copperfs_overlay::ItemPath;

mod error;
#[cfg(test)]
mod tests;

pub use error::RegistryError;

/// Datasets at a time. The decision names them all, and every node keeps it; more are refused.
pub const DATASETS_MAX: usize = 1024;
/// Jobs at a time, for the same reason. Seen jobs beyond it are not followed.
pub const JOBS_MAX: usize = 4096;
/// Bytes of a name: they stand in paths, tables and frames.
pub const NAME_BYTES_MAX: usize = 128;
/// The policies, by name; the first is the default.
pub const POLICIES: [&str; 6] = ["greedy", "max-min", "sjf", "benefit", "lru", "static"];

/// What there is, for the checks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Limits {
    /// Bytes of cache that the nodes that live have for datasets; `None`: not known yet, not checked.
    pub cache: Option<u64>,
    /// Bytes per second of remote IO; `None`: no limit.
    pub remote_io: Option<u64>,
    /// GPUs; `None`: not checked.
    pub gpus: Option<u32>,
}

/// A declared dataset.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Dataset {
    /// As it was declared; its budget is that set by hand.
    pub spec: DatasetSpec,
    /// What it is called on the wire.
    pub id: u64,
    /// Bytes; 0: not counted yet.
    pub size: u64,
    /// Items; 0: not counted yet.
    pub items: u64,
    /// What stops it from being read as declared.
    pub trouble: Option<String>,
}

/// A job that was declared, or seen.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Job {
    /// Its name.
    pub name: String,
    /// The dataset that it reads.
    pub dataset: Option<String>,
    /// Declared, not merely seen.
    pub declared: bool,
    /// The user that declared it, if it was not root.
    pub owner: Option<u32>,
    /// As declared, in bytes per second.
    pub ideal_rate: Option<u64>,
    /// GPUs.
    pub gpus: u32,
    /// Epochs, if known.
    pub epochs: Option<u32>,
    /// A rate set by hand, in bytes per second.
    pub pinned: Option<u64>,
    /// It breaks the pattern, as was reported.
    pub irregular: bool,
}

/// See the module.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Registry {
    /// In order of declaration.
    datasets: Vec<Dataset>,
    /// In order of appearance.
    jobs: Vec<Job>,
    policy: String,
}

impl Default for Registry {
    fn default() -> Self {
        Self::new(POLICIES[0])
    }
}

impl Registry {
    /// An empty one.
    #[must_use]
    pub fn new(policy: &str) -> Self {
        Self {
            datasets: Vec::new(),
            jobs: Vec::new(),
            policy: policy.to_owned(),
        }
    }

    /// What `decision` says of it.
    #[must_use]
    pub fn of(decision: &Decision) -> Self {
        let jobs = decision.jobs.iter();
        Self {
            datasets: decision.datasets.iter().map(Dataset::of).collect(),
            jobs: jobs
                .filter(|job| job.name != UNATTRIBUTED)
                .map(Job::of)
                .collect(),
            policy: decision.policy.clone(),
        }
    }

    /// The datasets, in order of declaration.
    #[must_use]
    pub fn datasets(&self) -> &[Dataset] {
        &self.datasets
    }

    /// The jobs, in order of appearance.
    #[must_use]
    pub fn jobs(&self) -> &[Job] {
        &self.jobs
    }

    /// The policy's name.
    #[must_use]
    pub fn policy(&self) -> &str {
        &self.policy
    }

    /// The dataset of this name.
    #[must_use]
    pub fn dataset(&self, name: &str) -> Option<&Dataset> {
        self.datasets.iter().find(|one| one.spec.name == name)
    }

    /// The job of this name.
    #[must_use]
    pub fn job(&self, name: &str) -> Option<&Job> {
        self.jobs.iter().find(|job| job.name == name)
    }

    /// Carries out `command`. One that only asks changes nothing.
    ///
    /// # Errors
    /// See [`RegistryError`]; nothing has changed then.
    pub fn apply(&mut self, command: &Command, limits: &Limits) -> Result<(), RegistryError> {
        match command {
            Command::AddDataset(spec) => self.add_dataset(spec.clone(), limits),
            Command::ReplaceDataset(spec) => self.replace_dataset(spec.clone(), limits),
            Command::RemoveDataset(name) => self.remove_dataset(name),
            Command::AddJob(spec) => self.add_job(spec.clone(), limits),
            Command::EndJob(name) => self.end_job(name),
            Command::AllocateCacheSize { dataset, size } => self.pin_budget(dataset, *size, limits),
            Command::AllocateRemoteIo { job, rate } => self.pin_rate(job, *rate, limits),
            Command::SetPolicy(name) => self.set_policy(name),
            Command::Overview => Ok(()),
        }
    }

    /// Declares a dataset.
    ///
    /// # Errors
    /// Its name is taken or makes no sense, it overlaps another, or its budget is more than there is.
    pub fn add_dataset(&mut self, spec: DatasetSpec, limits: &Limits) -> Result<(), RegistryError> {
        check_name("dataset", &spec.name, dataset_character)?;
        if let Some(twin) = self.dataset(&spec.name) {
            return Err(RegistryError::DatasetTaken {
                name: spec.name,
                path: twin.spec.path.clone(),
            });
        }
        let overlaps = |one: &&Dataset| {
            spec.path.is_within(&one.spec.path) || one.spec.path.is_within(&spec.path)
        };
        if let Some(other) = self.datasets.iter().find(overlaps) {
            return Err(RegistryError::Overlap {
                name: spec.name,
                path: spec.path,
                other: other.spec.name.clone(),
                other_path: other.spec.path.clone(),
            });
        }
        if self.datasets.len() >= DATASETS_MAX {
            return Err(RegistryError::TooManyDatasets);
        }
        self.check_budget(&spec.name, spec.budget, limits)?;
        self.datasets.push(Dataset {
            id: DatasetDecision::id_of(&spec.name, &spec.path),
            spec,
            size: 0,
            items: 0,
            trouble: None,
        });
        Ok(())
    }

    /// Declares a dataset, and replaces a dataset of the same name. Jobs that read it continue.
    ///
    /// # Errors
    /// Like [`add_dataset`](Self::add_dataset), except for a name that is taken. The earlier declaration
    /// then stays.
    pub fn replace_dataset(
        &mut self,
        spec: DatasetSpec,
        limits: &Limits,
    ) -> Result<(), RegistryError> {
        let before = self.datasets.clone();
        self.datasets.retain(|one| one.spec.name != spec.name);
        let added = self.add_dataset(spec, limits);
        if added.is_err() {
            self.datasets = before;
        }
        added
    }

    /// Takes a dataset back.
    ///
    /// # Errors
    /// There is none, or a declared job reads it.
    pub fn remove_dataset(&mut self, name: &str) -> Result<(), RegistryError> {
        if self.dataset(name).is_none() {
            return Err(self.no_dataset(name));
        }
        let reads = |job: &&Job| job.declared && job.dataset.as_deref() == Some(name);
        if let Some(job) = self.jobs.iter().find(reads) {
            return Err(RegistryError::Read {
                name: name.to_owned(),
                job: job.name.clone(),
            });
        }
        self.datasets.retain(|one| one.spec.name != name);
        for job in &mut self.jobs {
            if job.dataset.as_deref() == Some(name) {
                job.dataset = None;
            }
        }
        Ok(())
    }

    /// Declares a job; one that was only seen becomes a declared one.
    ///
    /// # Errors
    /// Its name is taken or makes no sense, its dataset is not known, or it asks for what is not there.
    pub fn add_job(&mut self, spec: JobSpec, limits: &Limits) -> Result<(), RegistryError> {
        check_name("job", &spec.name, job_character)?;
        if spec.name == UNATTRIBUTED {
            return Err(RegistryError::Reserved(spec.name));
        }
        if self.job(&spec.name).is_some_and(|job| job.declared) {
            return Err(RegistryError::JobTaken(spec.name));
        }
        if self.dataset(&spec.dataset).is_none() {
            let known = self.known_datasets();
            return Err(RegistryError::JobOnNothing {
                job: spec.name,
                dataset: spec.dataset,
                known,
            });
        }
        if spec.ideal_rate == Some(0) {
            return Err(RegistryError::IdealRateZero(spec.name));
        }
        if spec.epochs == Some(0) {
            return Err(RegistryError::EpochsZero(spec.name));
        }
        let taken: u32 = self
            .jobs
            .iter()
            .filter(|job| job.declared)
            .fold(0, |sum, job| sum.saturating_add(job.gpus));
        if let Some(total) = limits.gpus
            && taken.saturating_add(spec.gpus) > total
        {
            return Err(RegistryError::Gpus {
                job: spec.name,
                wanted: spec.gpus,
                total,
                taken,
            });
        }
        let seen = self.jobs.iter().position(|job| job.name == spec.name);
        if seen.is_none() && self.jobs.len() >= JOBS_MAX {
            return Err(RegistryError::TooManyJobs);
        }
        let declared = Job {
            dataset: Some(spec.dataset),
            declared: true,
            owner: spec.owner,
            ideal_rate: spec.ideal_rate,
            gpus: spec.gpus,
            epochs: spec.epochs,
            ..Job::seen(spec.name)
        };
        match seen.and_then(|at| self.jobs.get_mut(at)) {
            Some(job) => {
                *job = Job {
                    irregular: job.irregular,
                    pinned: job.pinned,
                    ..declared
                }
            }
            None => self.jobs.push(declared),
        }
        Ok(())
    }

    /// Ends a job.
    ///
    /// # Errors
    /// There is none.
    pub fn end_job(&mut self, name: &str) -> Result<(), RegistryError> {
        let before = self.jobs.len();
        self.jobs.retain(|job| job.name != name);
        if self.jobs.len() == before {
            return Err(self.no_job(name));
        }
        Ok(())
    }

    /// A job reads `dataset`, as nodes report; gives whether that is new. One that does not fit any
    /// more is not followed.
    pub fn saw_job(&mut self, name: &str, dataset: &str, irregular: bool) -> bool {
        let known = self.dataset(dataset).is_some();
        if let Some(job) = self.jobs.iter_mut().find(|job| job.name == name) {
            let mut news = job.irregular != irregular;
            job.irregular = irregular;
            // What was declared stands, whatever else the job reads.
            if !job.declared && known && job.dataset.as_deref() != Some(dataset) {
                job.dataset = Some(dataset.to_owned());
                news = true;
            }
            return news;
        }
        let sane = !name.is_empty() && name.len() <= NAME_BYTES_MAX;
        if !sane || !known || self.jobs.len() >= JOBS_MAX || name == UNATTRIBUTED {
            return false;
        }
        self.jobs.push(Job {
            dataset: Some(dataset.to_owned()),
            irregular,
            ..Job::seen(name.to_owned())
        });
        true
    }

    /// Jobs that were only seen, and that `live` does not name, have ended; gives whether any has.
    pub fn keep_seen(&mut self, live: impl Fn(&str) -> bool) -> bool {
        let before = self.jobs.len();
        self.jobs.retain(|job| job.declared || live(&job.name));
        self.jobs.len() != before
    }

    /// Sets a dataset's budget by hand, or leaves it to the policy again.
    ///
    /// # Errors
    /// There is no such dataset, or not so much cache.
    pub fn pin_budget(
        &mut self,
        name: &str,
        size: Option<u64>,
        limits: &Limits,
    ) -> Result<(), RegistryError> {
        if self.dataset(name).is_none() {
            return Err(self.no_dataset(name));
        }
        self.check_budget(name, size, limits)?;
        for dataset in &mut self.datasets {
            if dataset.spec.name == name {
                dataset.spec.budget = size;
            }
        }
        Ok(())
    }

    /// Sets a job's rate by hand, or leaves it to the policy again.
    ///
    /// # Errors
    /// There is no such job, or not so much remote IO.
    pub fn pin_rate(
        &mut self,
        name: &str,
        rate: Option<u64>,
        limits: &Limits,
    ) -> Result<(), RegistryError> {
        if self.job(name).is_none() {
            return Err(self.no_job(name));
        }
        if rate == Some(0) {
            return Err(RegistryError::RateZero(name.to_owned()));
        }
        let others = self.jobs.iter().filter(|job| job.name != name);
        let others = others.fold(0_u64, |sum, job| {
            sum.saturating_add(job.pinned.unwrap_or(0))
        });
        if let (Some(rate), Some(total)) = (rate, limits.remote_io)
            && rate.saturating_add(others) > total
        {
            return Err(RegistryError::RateAboveTotal {
                job: name.to_owned(),
                rate,
                total,
                others,
            });
        }
        for job in &mut self.jobs {
            if job.name == name {
                job.pinned = rate;
            }
        }
        Ok(())
    }

    /// Changes the policy.
    ///
    /// # Errors
    /// It is not known.
    pub fn set_policy(&mut self, name: &str) -> Result<(), RegistryError> {
        if !POLICIES.contains(&name) {
            return Err(RegistryError::UnknownPolicy(name.to_owned()));
        }
        name.clone_into(&mut self.policy);
        Ok(())
    }

    /// Notes what a dataset holds, or why that is not known; gives whether that is new. Counts of what
    /// is not declared any more are for nobody.
    pub fn counted(&mut self, id: u64, counted: Result<(u64, u64), String>) -> bool {
        let Some(dataset) = self.datasets.iter_mut().find(|one| one.id == id) else {
            return false;
        };
        let before = (dataset.size, dataset.items, dataset.trouble.take());
        match counted {
            Ok((size, items)) => {
                dataset.size = size;
                dataset.items = items;
                if size == 0 {
                    dataset.trouble =
                        Some(RegistryError::Empty(dataset.spec.path.clone()).to_string());
                }
            }
            Err(why) => dataset.trouble = Some(why),
        }
        before != (dataset.size, dataset.items, dataset.trouble.clone())
    }

    fn check_budget(
        &self,
        name: &str,
        size: Option<u64>,
        limits: &Limits,
    ) -> Result<(), RegistryError> {
        let Some(size) = size else {
            return Ok(());
        };
        if size == 0 {
            return Err(RegistryError::BudgetZero(name.to_owned()));
        }
        let others = self.datasets.iter().filter(|one| one.spec.name != name);
        let others = others.fold(0_u64, |sum, one| {
            sum.saturating_add(one.spec.budget.unwrap_or(0))
        });
        match limits.cache {
            Some(total) if size.saturating_add(others) > total => {
                Err(RegistryError::BudgetAboveCapacity {
                    dataset: name.to_owned(),
                    size,
                    total,
                    others,
                })
            }
            _ => Ok(()),
        }
    }

    fn known_datasets(&self) -> Vec<String> {
        let names = self.datasets.iter();
        names.map(|one| one.spec.name.clone()).collect()
    }

    fn no_dataset(&self, name: &str) -> RegistryError {
        RegistryError::NoDataset {
            name: name.to_owned(),
            known: self.known_datasets(),
        }
    }

    fn no_job(&self, name: &str) -> RegistryError {
        RegistryError::NoJob {
            name: name.to_owned(),
            known: self.jobs.iter().map(|job| job.name.clone()).collect(),
        }
    }
}

impl DatasetSpec {
    /// The declaration of `decided`.
    #[must_use]
    pub fn of(decided: &DatasetDecision) -> Self {
        Self {
            name: decided.name.clone(),
            path: decided.path.clone(),
            uri: decided.uri.clone(),
            index: decided.index.clone(),
            budget: decided.pinned,
            origin_readers: decided.origin_readers,
        }
    }
}

impl Dataset {
    fn of(decided: &DatasetDecision) -> Self {
        Self {
            spec: DatasetSpec::of(decided),
            id: decided.id,
            size: decided.size,
            items: decided.items,
            trouble: decided.trouble.clone(),
        }
    }
}

impl Job {
    fn seen(name: String) -> Self {
        Self {
            name,
            dataset: None,
            declared: false,
            owner: None,
            ideal_rate: None,
            gpus: 1,
            epochs: None,
            pinned: None,
            irregular: false,
        }
    }

    fn of(decided: &JobDecision) -> Self {
        Self {
            name: decided.name.clone(),
            dataset: decided.dataset.clone(),
            declared: decided.declared,
            owner: decided.owner,
            ideal_rate: decided.ideal_rate,
            gpus: decided.gpus,
            epochs: decided.epochs,
            pinned: decided.pinned,
            irregular: decided.irregular,
        }
    }
}

impl DatasetSpec {
    /// A dataset with nothing said but its name and place.
    #[must_use]
    pub fn new(name: impl Into<String>, path: ItemPath) -> Self {
        Self {
            name: name.into(),
            path,
            uri: None,
            index: None,
            budget: None,
            origin_readers: OriginReaders::default(),
        }
    }
}

fn dataset_character(c: char) -> bool {
    c.is_ascii_alphanumeric() || "._-".contains(c)
}

/// Schedulers' names have more in them: `slurm:77_[3]`, `k8s:space/pod`.
fn job_character(c: char) -> bool {
    c.is_ascii_alphanumeric() || "._-:@/+=,[]".contains(c)
}

fn check_name(
    what: &'static str,
    name: &str,
    allowed: impl Fn(char) -> bool,
) -> Result<(), RegistryError> {
    let starts = name.starts_with(|c: char| c.is_ascii_alphanumeric());
    if starts && name.len() <= NAME_BYTES_MAX && name.chars().all(allowed) {
        return Ok(());
    }
    Err(RegistryError::Name {
        what,
        name: name.chars().take(NAME_BYTES_MAX).collect(),
    })
}

impl From<RegistryError> for CommandError {
    fn from(error: RegistryError) -> Self {
        Self::new(error.kind(), error.to_string(), error.advice())
    }
}

impl RegistryError {
    /// What kind of refusal it is.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::NoDataset { .. } | Self::NoJob { .. } => ErrorKind::NotFound,
            Self::DatasetTaken { .. }
            | Self::JobTaken(_)
            | Self::Overlap { .. }
            | Self::Read { .. }
            | Self::TooManyDatasets
            | Self::TooManyJobs
            | Self::Gpus { .. }
            | Self::BudgetAboveCapacity { .. }
            | Self::RateAboveTotal { .. } => ErrorKind::Conflict,
            _ => ErrorKind::Invalid,
        }
    }
}
