//! Profiles: the jobs of one run of a pipeline, so that the next run can expect its later jobs (LRC, section
//! III-B: recurring applications; the policy `lrc-offline`). Pure.
//!
//! A count that only knows submitted jobs is too low for a file that a later job reads too. Applications that run
//! every day have the same jobs every day, on other files. So a profile has no names of files: it numbers the files
//! of a run by their *place*, which is the job that first names a file and the position of the file among those
//! that this job names first. When the same job of the next run is submitted, its files get the same places, and
//! the inputs of the later jobs are known as far as they are files with a place.
//!
//! - [`Recorder`] makes the profile of a run from its submissions.
//! - [`Expectations`] compares a run with a profile, and says which expected jobs to submit and to end.
//!
//! Invariants of [`Expectations`]: an expected job is live only while its real job has not been submitted and the run
//! has the shape of the profile; after [`Expectations::finish`] none is live. The caller submits a real job before it
//! carries out the actions for it, so a count never drops in between.
//!
//! A range of a file has a number too, because a file of another size has other ranges. Sizes of files are not known
//! here: the end of the last range that a job has named stands for them.

mod expect;
mod place;
mod record;

#[cfg(test)]
mod tests;

pub use expect::{Action, Difference, Expectations};
pub use place::FileOrder;
pub use record::Recorder;

use serde::{Deserialize, Serialize};

/// The version of the format that this program writes, and the only one that it reads.
pub const VERSION: u64 = 1;
/// Bytes of a profile. A larger file is refused, and cannot be written: the other bounds are reached before.
pub const PROFILE_BYTES_MAX: u64 = 256 << 20;
/// Jobs of a profile. Later jobs of a run are not kept, and the next run takes them as they come.
const JOBS_MAX: usize = 100_000;
/// Inputs of all tasks, and tasks, of a profile. A job that would exceed it is not kept, and no later one.
const INPUTS_MAX: usize = 4_000_000;

/// The jobs of a run, with places instead of the names of files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Profile {
    /// The version of the format. No other kind of file has this key.
    copperfs_pipeline_profile: u64,
    /// The name of the run.
    pub app: String,
    /// The dataset that it reads.
    pub dataset: String,
    /// The order of the files that a job names first.
    pub order: FileOrder,
    /// The run was larger than a profile may be: its later jobs are missing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cut: bool,
    /// The files, in the order of their places.
    pub files: Vec<ProfiledFile>,
    /// The jobs, in the order of their submission.
    pub jobs: Vec<ProfiledJob>,
}

/// A file, without its name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProfiledFile {
    /// The index of the job that first names it.
    pub job: usize,
    /// Whether it stands for all files below a path.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub recursive: bool,
    /// The different ranges in which it is read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ranges: Vec<Span>,
}

/// A job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProfiledJob {
    /// The part of its id that the next run repeats, such as `sql-0`.
    pub name: String,
    /// Its first attempt, with which the next run begins, if a later one had more tasks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first: Option<JobShape>,
    /// Its largest attempt, which the next run expects.
    #[serde(flatten)]
    pub shape: JobShape,
}

/// The inputs of a job, with places for files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobShape {
    /// The indexes of its files in [`Profile::files`], in the order of the job.
    pub files: Vec<usize>,
    /// The inputs of each task.
    pub tasks: Vec<Vec<ProfiledInput>>,
}

/// An input of a task, by the index of its file in [`JobShape::files`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(untagged)]
pub enum ProfiledInput {
    /// The whole file, whatever its size.
    Whole(usize),
    /// A range, by its index in [`ProfiledFile::ranges`].
    Range(usize, usize),
}

/// A range of a file: the first byte, and the number of bytes. [`TO_END`] bytes reach to the end of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Span(pub u64, pub u64);

/// The length of a range that ends where its file ends.
pub const TO_END: u64 = u64::MAX;

impl Span {
    /// The end of the range, if it has one of its own.
    fn end(self) -> Option<u64> {
        (self.1 != TO_END).then(|| self.0.saturating_add(self.1))
    }
}

impl ProfiledInput {
    /// The index of its file.
    #[must_use]
    pub fn file(self) -> usize {
        match self {
            Self::Whole(file) | Self::Range(file, _) => file,
        }
    }
}

/// Why a file is no profile. Its `Display` says what to do.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    /// It is no JSON, or has another form.
    #[error(
        "it is not a profile of a pipeline, or it is damaged ({0}). Remove it, and the next run with --profile \
         writes a new one"
    )]
    Json(#[from] serde_json::Error),
    /// Another version of the program has written it.
    #[error(
        "it has version {found} of the format, and this program reads version {VERSION}. Remove it, and the next run \
         with --profile writes a new one"
    )]
    Version {
        /// The version of the file.
        found: u64,
    },
    /// An index in it leads nowhere.
    #[error(
        "it is damaged: {place} {why}. Remove it, and the next run with --profile writes a new one"
    )]
    Damaged {
        /// The entry.
        place: String,
        /// What is wrong.
        why: &'static str,
    },
    /// It is larger than a profile may be.
    #[error(
        "it has more than {max} {kind}. Remove it, and the next run with --profile writes a new one"
    )]
    TooLarge {
        /// The kind of entry.
        kind: &'static str,
        /// The most of them.
        max: u64,
    },
}

impl Profile {
    /// Reads a profile and checks it.
    ///
    /// # Errors
    /// See [`ProfileError`].
    pub fn from_json(json: &[u8]) -> Result<Self, ProfileError> {
        /// The version, of which the form of the rest depends.
        #[derive(Deserialize)]
        struct Head {
            copperfs_pipeline_profile: u64,
        }
        if json.len() as u64 > PROFILE_BYTES_MAX {
            let (kind, max) = ("bytes", PROFILE_BYTES_MAX);
            return Err(ProfileError::TooLarge { kind, max });
        }
        let Head {
            copperfs_pipeline_profile: found,
        } = serde_json::from_slice(json)?;
        if found != VERSION {
            return Err(ProfileError::Version { found });
        }
        let profile: Self = serde_json::from_slice(json)?;
        profile.check()?;
        Ok(profile)
    }

    /// The profile as a file.
    ///
    /// # Errors
    /// None: every profile has a form in JSON.
    pub fn to_json(&self) -> serde_json::Result<Vec<u8>> {
        let mut json = serde_json::to_vec(self)?;
        json.push(b'\n');
        Ok(json)
    }

    fn check(&self) -> Result<(), ProfileError> {
        let inputs = self.jobs.iter().map(ProfiledJob::weight).sum();
        for (kind, count, max) in [
            ("jobs", self.jobs.len(), JOBS_MAX),
            ("tasks and inputs", inputs, INPUTS_MAX),
        ] {
            if count > max {
                let max = max as u64;
                return Err(ProfileError::TooLarge { kind, max });
            }
        }
        let damaged = |place: String, why| Err(ProfileError::Damaged { place, why });
        for (at, job) in self.jobs.iter().enumerate() {
            for shape in job.first.iter().chain([&job.shape]) {
                if let Err(why) = self.check_shape(shape) {
                    return damaged(format!("jobs[{at}]"), why);
                }
            }
        }
        let mut named = vec![false; self.files.len()];
        for (at, job) in self.jobs.iter().enumerate() {
            for &file in job
                .first
                .iter()
                .chain([&job.shape])
                .flat_map(|shape| &shape.files)
            {
                named[file] |= self.files[file].job == at;
            }
        }
        match named.iter().position(|is_named| !is_named) {
            Some(at) => damaged(format!("files[{at}]"), "is not a file of its job"),
            None => Ok(()),
        }
    }

    fn check_shape(&self, shape: &JobShape) -> Result<(), &'static str> {
        let mut files = shape.files.clone();
        files.sort_unstable();
        if files.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err("names a file twice");
        }
        if files.iter().any(|&file| file >= self.files.len()) {
            return Err("names a file that is not there");
        }
        let is_there = |input: &ProfiledInput| {
            let Some(file) = shape.files.get(input.file()) else {
                return false;
            };
            match *input {
                ProfiledInput::Whole(_) => true,
                ProfiledInput::Range(_, range) => range < self.files[*file].ranges.len(),
            }
        };
        match shape.tasks.iter().flatten().all(is_there) {
            true => Ok(()),
            false => Err("has an input that is not there"),
        }
    }
}

impl ProfiledJob {
    /// The first attempt.
    fn first(&self) -> &JobShape {
        self.first.as_ref().unwrap_or(&self.shape)
    }

    /// Inputs and tasks: what the job takes of [`INPUTS_MAX`].
    fn weight(&self) -> usize {
        let shapes = self.first.iter().chain([&self.shape]);
        shapes.map(JobShape::weight).sum()
    }
}

impl JobShape {
    fn weight(&self) -> usize {
        self.tasks.iter().map(|task| task.len() + 1).sum()
    }
}
