//! The declared datasets and jobs, manual settings, and the policy. Pure.
//!
//! Every change is checked here, with a message and advice. The registry is the part of a [`Decision`]
//! that people and jobs determine, and an allocator restores it from one.

use crate::model::{
    Command, CommandError, DatasetDecision, DatasetSpec, Decision, JobDecision, JobSpec,
    UNATTRIBUTED,
};
use copperfs_policy::Policy;

mod error;
#[cfg(test)]
mod tests;

pub use error::RegistryError;

/// The maximum number of datasets. Every decision contains all of them, and every node keeps it. Further
/// datasets are refused.
pub const DATASETS_MAX: usize = 1024;
/// The maximum number of jobs, for the same reason. Further observed jobs are ignored.
pub const JOBS_MAX: usize = 4096;
/// The maximum length of a name in bytes, because names occur in paths, tables and frames.
pub const NAME_BYTES_MAX: usize = 128;

/// The resources that changes are checked against.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Limits {
    /// Total cache of the live nodes, in bytes. `None`: not known yet, and not checked.
    pub cache: Option<u64>,
    /// Remote IO in bytes per second. `None`: no limit.
    pub remote_io: Option<u64>,
    /// GPUs. `None`: not checked.
    pub gpus: Option<u32>,
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
        Self {
            datasets: decision.datasets.clone(),
            jobs: jobs
                .filter(|job| job.name != UNATTRIBUTED)
                .cloned()
                .collect(),
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

    /// Returns the job with this name.
    #[must_use]
    pub fn job(&self, name: &str) -> Option<&JobDecision> {
        self.jobs.iter().find(|job| job.name == name)
    }

    /// Carries out `command`. [`Command::Overview`] changes nothing.
    ///
    /// # Errors
    /// See [`RegistryError`]. The registry is then unchanged.
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
    /// Its name is taken or invalid, it overlaps another dataset, or its budget exceeds the total.
    pub fn add_dataset(&mut self, spec: DatasetSpec, limits: &Limits) -> Result<(), RegistryError> {
        check_name("dataset", &spec.name, "._-")?;
        if let Some(twin) = self.dataset(&spec.name) {
            return Err(RegistryError::DatasetTaken {
                name: spec.name,
                path: twin.path.clone(),
            });
        }
        // A file must have one budget, so datasets must not contain one another.
        let overlaps = |one: &&DatasetDecision| {
            spec.path.is_within(&one.path) || one.path.is_within(&spec.path)
        };
        if let Some(other) = self.datasets.iter().find(overlaps) {
            return Err(RegistryError::Overlap {
                name: spec.name,
                path: spec.path,
                other: other.name.clone(),
                other_path: other.path.clone(),
            });
        }
        if self.datasets.len() >= DATASETS_MAX {
            return Err(RegistryError::TooManyDatasets);
        }
        self.check_budget(&spec.name, spec.budget, limits)?;
        self.datasets.push(spec.into());
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
    pub fn remove_dataset(&mut self, name: &str) -> Result<(), RegistryError> {
        if self.dataset(name).is_none() {
            return Err(self.no_dataset(name));
        }
        let reads = |job: &&JobDecision| job.declared && job.dataset.as_deref() == Some(name);
        if let Some(job) = self.jobs.iter().find(reads) {
            return Err(RegistryError::Read {
                name: name.to_owned(),
                job: job.name.clone(),
            });
        }
        self.datasets.retain(|one| one.name != name);
        for job in &mut self.jobs {
            job.dataset.take_if(|dataset| dataset == name);
        }
        Ok(())
    }

    /// Declares a job. An observed job of this name becomes a declared one.
    ///
    /// # Errors
    /// Its name is taken or invalid, its dataset is not declared, or it needs too many GPUs.
    pub fn add_job(&mut self, spec: JobSpec, limits: &Limits) -> Result<(), RegistryError> {
        // Schedulers' names have more characters: `slurm:77_[3]`, `k8s:space/pod`.
        check_name("job", &spec.name, "._-:@/+=,[]")?;
        if spec.name == UNATTRIBUTED {
            return Err(RegistryError::Reserved(spec.name));
        }
        if self.job(&spec.name).is_some_and(|job| job.declared) {
            return Err(RegistryError::JobTaken(spec.name));
        }
        if self.dataset(&spec.dataset).is_none() {
            return Err(RegistryError::JobOnNothing {
                job: spec.name,
                known: self.known_datasets(),
                dataset: spec.dataset,
            });
        }
        if spec.ideal_rate == Some(0) {
            return Err(RegistryError::IdealRateZero(spec.name));
        }
        if spec.epochs == Some(0) {
            return Err(RegistryError::EpochsZero(spec.name));
        }
        let declared = self.jobs.iter().filter(|job| job.declared);
        let taken = declared.fold(0_u32, |sum, job| sum.saturating_add(job.gpus));
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
        let observed = self.jobs.iter().position(|job| job.name == spec.name);
        let job = match observed {
            Some(at) => &mut self.jobs[at],
            None if self.jobs.len() >= JOBS_MAX => return Err(RegistryError::TooManyJobs),
            None => self.jobs.push_mut(JobDecision::observed(spec.name)),
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
    pub fn end_job(&mut self, name: &str) -> Result<(), RegistryError> {
        let Some(at) = self.jobs.iter().position(|job| job.name == name) else {
            return Err(self.no_job(name));
        };
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
    /// The dataset does not exist, or the budget exceeds the total.
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
        let dataset = self.datasets.iter_mut().find(|one| one.name == name);
        dataset.into_iter().for_each(|one| one.pinned = size);
        Ok(())
    }

    /// Sets a job's rate by hand, or returns it to the policy (`None`).
    ///
    /// # Errors
    /// The job does not exist, or the rate exceeds the total.
    pub fn pin_rate(
        &mut self,
        name: &str,
        rate: Option<u64>,
        limits: &Limits,
    ) -> Result<(), RegistryError> {
        let Some(at) = self.jobs.iter().position(|job| job.name == name) else {
            return Err(self.no_job(name));
        };
        if rate == Some(0) {
            return Err(RegistryError::RateZero(name.to_owned()));
        }
        // Without its own previous rate, which the new one replaces.
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
        self.jobs[at].pinned = rate;
        Ok(())
    }

    /// Changes the policy.
    ///
    /// # Errors
    /// There is no policy of this name.
    pub fn set_policy(&mut self, name: &str) -> Result<(), RegistryError> {
        if name.parse::<Policy>().is_err() {
            return Err(RegistryError::UnknownPolicy(name.to_owned()));
        }
        name.clone_into(&mut self.policy);
        Ok(())
    }

    /// Records the size of dataset `id` in bytes and items. Ignores a dataset that is no longer declared.
    pub fn counted(&mut self, id: u64, size: u64, items: u64) {
        if let Some(dataset) = self.datasets.iter_mut().find(|one| one.id == id) {
            dataset.size = size;
            dataset.items = items;
            let empty = || RegistryError::Empty(dataset.path.clone()).to_string();
            dataset.trouble = (size == 0).then(empty);
        }
    }

    /// Records why dataset `id` cannot be counted. An earlier size stays. Returns whether this is news.
    pub fn count_failed(&mut self, id: u64, trouble: String) -> bool {
        let Some(dataset) = self.datasets.iter_mut().find(|one| one.id == id) else {
            return false;
        };
        let trouble = Some(trouble);
        let news = dataset.trouble != trouble;
        dataset.trouble = trouble;
        news
    }

    fn check_budget(
        &self,
        name: &str,
        size: Option<u64>,
        limits: &Limits,
    ) -> Result<(), RegistryError> {
        if size == Some(0) {
            return Err(RegistryError::BudgetZero(name.to_owned()));
        }
        let others = self.datasets.iter().filter(|one| one.name != name);
        let others = others.fold(0_u64, |sum, one| {
            sum.saturating_add(one.pinned.unwrap_or(0))
        });
        match (size, limits.cache) {
            (Some(size), Some(total)) if size.saturating_add(others) > total => {
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
        names.map(|one| one.name.clone()).collect()
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

/// Checks a name: letters, digits and `punctuation`, with a letter or digit first.
fn check_name(what: &'static str, name: &str, punctuation: &str) -> Result<(), RegistryError> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || punctuation.contains(c);
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
