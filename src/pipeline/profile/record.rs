//! Makes the profile of a run.

use super::place::{FileOrder, JobInputs, stable_name};
use super::{
    INPUTS_MAX, JOBS_MAX, JobShape, Profile, ProfiledFile, ProfiledInput, ProfiledJob, Span,
    VERSION,
};
use crate::pipeline::message::Submission;
use std::collections::HashMap;

/// Makes the profile of a run from its submissions, in their order.
#[derive(Debug)]
pub struct Recorder {
    profile: Profile,
    /// The index of each file in the profile, by path and whether it is recursive.
    places: HashMap<(String, bool), usize>,
    /// The index of each range of each file.
    ranges: Vec<HashMap<Span, usize>>,
    /// The index of each job, by its id.
    jobs: HashMap<String, usize>,
    /// Inputs and tasks so far.
    weight: usize,
}

impl Recorder {
    /// Begins the profile of a run.
    #[must_use]
    pub fn new(app: &str, dataset: &str, order: FileOrder) -> Self {
        Self {
            profile: Profile {
                copperfs_pipeline_profile: VERSION,
                app: app.to_owned(),
                dataset: dataset.to_owned(),
                order,
                cut: false,
                files: Vec::new(),
                jobs: Vec::new(),
            },
            places: HashMap::new(),
            ranges: Vec::new(),
            jobs: HashMap::new(),
            weight: 0,
        }
    }

    /// Adds a job that was accepted. Of further attempts of a job the largest counts: engines that adapt a plan find more
    /// tasks, and an attempt that only repeats the tasks that are left is smaller.
    pub fn submitted(&mut self, submission: &Submission) {
        if self.profile.cut {
            return;
        }
        let inputs = JobInputs::of(submission, self.profile.order);
        let weight = inputs.tasks.iter().map(|task| task.len() + 1).sum();
        let known = self.jobs.get(&submission.job).copied();
        if known.is_some_and(|at| self.profile.jobs[at].shape.weight() >= weight) {
            return;
        }
        if self.profile.jobs.len() >= JOBS_MAX || self.weight + weight > INPUTS_MAX {
            self.profile.cut = true;
            return;
        }
        self.weight += weight;
        let at = known.unwrap_or(self.profile.jobs.len());
        let shape = self.shape(at, &inputs);
        if let Some(at) = known {
            let job = &mut self.profile.jobs[at];
            let before = std::mem::replace(&mut job.shape, shape);
            job.first.get_or_insert(before);
        } else {
            self.jobs.insert(submission.job.clone(), at);
            let name = stable_name(&submission.job).to_owned();
            let first = None;
            self.profile.jobs.push(ProfiledJob { name, first, shape });
        }
    }

    /// The shape of job `at`. New files and ranges get the next numbers.
    fn shape(&mut self, at: usize, inputs: &JobInputs<'_>) -> JobShape {
        let files: Vec<usize> = (inputs.files.iter())
            .map(|file| self.place(at, file.path, file.recursive))
            .collect();
        for (file, (_, spans)) in files.iter().zip(inputs.by_file()) {
            let (numbers, ranges) = (
                &mut self.ranges[*file],
                &mut self.profile.files[*file].ranges,
            );
            for span in spans {
                numbers.entry(span).or_insert_with(|| {
                    ranges.push(span);
                    ranges.len() - 1
                });
            }
        }
        let input = |(file, span): &(usize, Option<Span>)| match span {
            None => ProfiledInput::Whole(*file),
            Some(span) => ProfiledInput::Range(*file, self.ranges[files[*file]][span]),
        };
        let tasks = inputs.tasks.iter();
        let tasks = tasks.map(|task| task.iter().map(input).collect()).collect();
        JobShape { files, tasks }
    }

    /// The profile of the run so far.
    #[must_use]
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    fn place(&mut self, job: usize, path: &str, recursive: bool) -> usize {
        let key = (path.to_owned(), recursive);
        *self.places.entry(key).or_insert_with(|| {
            self.profile.files.push(ProfiledFile {
                job,
                recursive,
                ranges: Vec::new(),
            });
            self.ranges.push(HashMap::new());
            self.profile.files.len() - 1
        })
    }
}
