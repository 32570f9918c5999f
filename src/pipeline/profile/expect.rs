//! Compares a run with a profile, and expects its later jobs.

use super::place::{FileKey, JobInputs, by_file, stable_name};
use super::{JobShape, Profile, ProfiledInput, Span, TO_END};
use crate::pipeline::message::{Input, PathInput, Submission, Task};
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};

/// What the caller does, in order, after it has submitted a job.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Submit an expected job.
    Submit(Box<Submission>),
    /// End an expected job.
    End {
        /// Its name.
        job: String,
    },
    /// The run differs from the profile. The jobs that were expected end before this action, and the run goes on
    /// without the profile.
    Differs(Difference),
}

/// The first difference of a run from its profile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// The job of the run.
    pub job: String,
    /// How it differs.
    why: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { job, why } = self;
        write!(
            f,
            "the run differs from its profile: job {job} {why}. Its later jobs count from their submission"
        )
    }
}

/// A run beside the profile of an earlier one.
#[derive(Debug)]
pub struct Expectations {
    profile: Profile,
    /// The names of expected jobs begin with it.
    prefix: String,
    /// The jobs of the profile by name that have not been submitted in this run.
    by_name: HashMap<String, VecDeque<usize>>,
    /// By job of the profile.
    jobs: Vec<ExpectedJob>,
    /// By file of the profile.
    files: Vec<ExpectedFile>,
    /// The files of this run, by path and whether they are recursive.
    places: HashMap<(String, bool), usize>,
    /// The jobs of this run, by id: the index of the job of the profile, if there is one.
    seen: HashMap<String, Option<usize>>,
    /// All jobs of the profile before it have been submitted.
    next: usize,
    /// The run has another shape, or it has ended.
    is_over: bool,
}

#[derive(Debug, Default)]
struct ExpectedJob {
    is_submitted: bool,
    /// The last expected job that was submitted: its attempt, and a hash of its tasks.
    sent: Option<(u64, u64)>,
    /// The expected job is live.
    is_live: bool,
}

#[derive(Debug, Default)]
struct ExpectedFile {
    /// Its path in this run.
    path: Option<String>,
    /// The ranges of the profile in this run.
    ranges: Vec<Option<Span>>,
    /// The end of the last range in the jobs so far: in the profile, and in this run.
    ends: (u64, u64),
    /// The jobs of the profile that read it.
    jobs: Vec<usize>,
}

impl Expectations {
    /// Expects the jobs of `profile`, under names that begin with `prefix`. No other run may use the same.
    #[must_use]
    pub fn new(profile: Profile, prefix: &str) -> Self {
        let mut by_name: HashMap<String, VecDeque<usize>> = HashMap::new();
        let mut files: Vec<ExpectedFile> = (profile.files.iter())
            .map(|file| ExpectedFile {
                ranges: vec![None; file.ranges.len()],
                ..ExpectedFile::default()
            })
            .collect();
        for (at, job) in profile.jobs.iter().enumerate() {
            by_name.entry(job.name.clone()).or_default().push_back(at);
            for file in &job.shape.files {
                files[*file].jobs.push(at);
            }
        }
        let jobs = profile.jobs.iter().map(|_| ExpectedJob::default());
        Self {
            jobs: jobs.collect(),
            prefix: prefix.to_owned(),
            by_name,
            files,
            places: HashMap::new(),
            seen: HashMap::new(),
            next: 0,
            is_over: false,
            profile,
        }
    }

    /// Takes a job of the run that was accepted. Returns the actions. The first attempt of a job decides whether the run
    /// has the shape of the profile. A further one only adds knowledge about files.
    pub fn submitted(&mut self, submission: &Submission) -> Vec<Action> {
        if self.is_over {
            return Vec::new();
        }
        let inputs = JobInputs::of(submission, self.profile.order);
        if let Some(at) = self.seen.get(&submission.job) {
            return at.map_or_else(Vec::new, |at| self.adapted(at, &inputs, submission));
        }
        let at = self.take(&submission.job);
        self.seen.insert(submission.job.clone(), at);
        let Some(at) = at else {
            // A profile that was cut says nothing about later jobs.
            return match self.profile.cut {
                true => Vec::new(),
                false => self.differ(submission, "is not in it".to_owned()),
            };
        };
        let files = match self.compare(self.profile.jobs[at].first(), &inputs) {
            Ok(files) => files,
            Err(why) => return self.differ(submission, why),
        };
        let changed = self.learn(at, true, &inputs, &files);
        let mut actions: Vec<Action> = (changed.into_iter())
            .filter_map(|job| self.expect(job, submission))
            .collect();
        actions.extend(self.end(at));
        actions
    }

    /// Takes a further attempt of job `at`. It may be another in each run, so it is no reason to end the rest.
    fn adapted(
        &mut self,
        at: usize,
        inputs: &JobInputs<'_>,
        submission: &Submission,
    ) -> Vec<Action> {
        let Ok(files) = self.compare(&self.profile.jobs[at].shape, inputs) else {
            return Vec::new();
        };
        let changed = self.learn(at, false, inputs, &files);
        let changed = changed.into_iter();
        changed
            .filter_map(|job| self.expect(job, submission))
            .collect()
    }

    /// The run has ended, in whatever way: the expected jobs that are left end.
    pub fn finish(&mut self) -> Vec<Action> {
        self.is_over = true;
        (0..self.jobs.len()).filter_map(|at| self.end(at)).collect()
    }

    /// The index of the job of the profile that `job` is: that of its name, else the next one.
    fn take(&mut self, job: &str) -> Option<usize> {
        let name = stable_name(job);
        let named = self.by_name.get_mut(name).and_then(VecDeque::pop_front);
        let at = named.or_else(|| {
            let left = self.jobs[self.next..]
                .iter()
                .position(|job| !job.is_submitted);
            let at = self.next + left?;
            self.next = at;
            // The first that is left is the first of its name.
            self.by_name
                .get_mut(&self.profile.jobs[at].name)?
                .pop_front();
            Some(at)
        })?;
        self.jobs[at].is_submitted = true;
        Some(at)
    }

    /// Returns the file of the profile for each file of `inputs`, or how the job differs from `job` of the profile: in
    /// its number of tasks, in the files that earlier jobs have named, or in how many tasks read a file.
    /// Which task reads which file may differ, because engines divide files among tasks by size.
    fn compare(&self, job: &JobShape, inputs: &JobInputs<'_>) -> Result<Vec<usize>, String> {
        let (tasks, expected) = (inputs.tasks.len(), job.tasks.len());
        if tasks != expected {
            return Err(format!("has {tasks} tasks instead of {expected}"));
        }
        let (files, expected) = (inputs.files.len(), job.files.len());
        if files != expected {
            return Err(format!("reads {files} files instead of {expected}"));
        }
        let mut unnamed = (job.files.iter()).filter(|file| self.files[**file].path.is_none());
        let known: HashMap<usize, usize> = (job.files.iter().copied()).zip(0..).collect();
        let counts = by_file(
            files,
            job.tasks
                .iter()
                .flatten()
                .map(|input| (input.file(), None::<()>)),
        );
        let mut found = Vec::with_capacity(files);
        for (file, (count, _)) in inputs.files.iter().zip(inputs.by_file()) {
            let FileKey { path, recursive } = *file;
            let place = self.places.get(&(path.to_owned(), recursive)).copied();
            let place = place.or_else(|| unnamed.next().copied());
            let local = place.and_then(|place| Some((place, *known.get(&place)?)));
            let Some((place, local)) = local else {
                return Err(format!("reads {path}, which it did not read"));
            };
            if self.profile.files[place].recursive != recursive {
                return Err(format!(
                    "reads {path} with other files below it, or without"
                ));
            }
            let expected = counts[local].0;
            if expected != count {
                return Err(format!(
                    "reads {path} in {count} inputs instead of {expected}"
                ));
            }
            found.push(place);
        }
        Ok(found)
    }

    /// Takes the paths, ranges and ends of files from the first or the largest attempt of job `at`. Returns the later
    /// jobs that may expect more now.
    fn learn(
        &mut self,
        at: usize,
        is_first: bool,
        inputs: &JobInputs<'_>,
        files: &[usize],
    ) -> BTreeSet<usize> {
        let job = &self.profile.jobs[at];
        let job = if is_first { job.first() } else { &job.shape };
        let known: HashMap<usize, usize> = (job.files.iter().copied()).zip(0..).collect();
        let earlier = job.tasks.iter().flatten().map(|input| match *input {
            ProfiledInput::Whole(file) => (file, None),
            ProfiledInput::Range(file, range) => {
                let span = self.profile.files[job.files[file]].ranges[range];
                (file, Some((span, range)))
            }
        });
        let earlier = by_file(job.files.len(), earlier);
        let mut changed = BTreeSet::new();
        for ((place, key), (_, spans)) in files.iter().zip(&inputs.files).zip(inputs.by_file()) {
            let file = &mut self.files[*place];
            let mut is_new = file.path.is_none();
            if is_new {
                file.path = Some(key.path.to_owned());
                self.places
                    .insert((key.path.to_owned(), key.recursive), *place);
            }
            let ranges = &earlier[known[place]].1;
            if ranges.len() == spans.len() {
                // Both are sorted, so the first range of the one run is the first of the other.
                for ((_, range), span) in ranges.iter().zip(&spans) {
                    is_new |= file.ranges[*range].is_none();
                    file.ranges[*range].get_or_insert(*span);
                }
            }
            let end = |spans: &mut dyn Iterator<Item = Span>| spans.filter_map(Span::end).max();
            let ends = (
                end(&mut ranges.iter().map(|(span, _)| *span))
                    .unwrap_or(0)
                    .max(file.ends.0),
                end(&mut spans.into_iter()).unwrap_or(0).max(file.ends.1),
            );
            is_new |= ends != file.ends;
            file.ends = ends;
            if is_new {
                changed.extend(
                    file.jobs
                        .iter()
                        .filter(|job| !self.jobs[**job].is_submitted),
                );
            }
        }
        changed
    }

    /// Submits the expected job `at` if more of it is known than was submitted. `like` is a job of the run.
    fn expect(&mut self, at: usize, like: &Submission) -> Option<Action> {
        let tasks = self.known_tasks(at);
        if tasks.is_empty() {
            return None;
        }
        let mut hasher = DefaultHasher::new();
        tasks.hash(&mut hasher);
        let hash = hasher.finish();
        let name = self.name(at);
        let job = &mut self.jobs[at];
        let attempt = match job.sent {
            Some((_, last)) if last == hash => return None,
            last => last.map_or(0, |(attempt, _)| attempt + 1),
        };
        job.sent = Some((attempt, hash));
        job.is_live = true;
        let app = like.app.as_deref().unwrap_or_default();
        let mut expected = Submission::new(app, name, attempt);
        expected.tenant.clone_from(&like.tenant);
        expected.dataset.clone_from(&like.dataset);
        expected.expires_s.clone_from(&like.expires_s);
        // No task of this name ever runs, so no read and no end of a task releases its references.
        expected.consume.clone_from(&like.consume);
        (expected.files, expected.tasks) = with_files(tasks);
        Some(Action::Submit(Box::new(expected)))
    }

    /// The tasks of job `at` with the inputs that are known in this run. Tasks without any are left out.
    fn known_tasks(&self, at: usize) -> Vec<Task> {
        let job = &self.profile.jobs[at].shape;
        let input = |input: &ProfiledInput| {
            let place = job.files[input.file()];
            let (file, profiled) = (&self.files[place], &self.profile.files[place]);
            let path = file.path.clone()?;
            let span = match *input {
                ProfiledInput::Whole(_) => None,
                ProfiledInput::Range(_, range) => {
                    Some(file.ranges[range].or_else(|| file.guess(profiled.ranges[range]))?)
                }
            };
            Some(PathInput {
                path,
                off: span.map(|span| span.0),
                len: span.map(|span| span.1).filter(|len| *len != TO_END),
                recursive: profiled.recursive,
            })
        };
        let tasks = job.tasks.iter().enumerate().map(|(id, task)| Task {
            id: id.to_string(),
            paths: task.iter().filter_map(input).collect(),
            ..Task::default()
        });
        tasks.filter(|task| !task.paths.is_empty()).collect()
    }

    fn differ(&mut self, submission: &Submission, why: String) -> Vec<Action> {
        let mut actions = self.finish();
        let job = submission.job.clone();
        actions.push(Action::Differs(Difference { job, why }));
        actions
    }

    fn end(&mut self, at: usize) -> Option<Action> {
        let was_live = std::mem::take(&mut self.jobs[at].is_live);
        was_live.then(|| Action::End { job: self.name(at) })
    }

    fn name(&self, at: usize) -> String {
        format!("{}/expected-{at}", self.prefix)
    }
}

impl ExpectedFile {
    /// A range of the profile in a file of another size, if it is in the part of the file that is known to be there. The
    /// range that ended the file ends it again.
    fn guess(&self, span: Span) -> Option<Span> {
        let (then, now) = self.ends;
        let end = match span.end() {
            _ if span.0 >= now => return None,
            None => return Some(span),
            Some(end) if end >= then => now,
            Some(end) => end.min(now),
        };
        Some(Span(span.0, end - span.0))
    }
}

/// Tasks in the short form, with a list of files, if it can say the inputs.
fn with_files(mut tasks: Vec<Task>) -> (Vec<String>, Vec<Task>) {
    let is_long = |input: &PathInput| input.recursive || input.off.is_some() != input.len.is_some();
    if tasks.iter().flat_map(|task| &task.paths).any(is_long) {
        return (Vec::new(), tasks);
    }
    let mut files: Vec<String> = Vec::new();
    let mut indexes: HashMap<String, usize> = HashMap::new();
    for task in &mut tasks {
        for PathInput { path, off, len, .. } in std::mem::take(&mut task.paths) {
            let index = *indexes.entry(path).or_insert_with_key(|path| {
                files.push(path.clone());
                files.len() - 1
            });
            task.inputs.push(match off.zip(len) {
                None => Input::Whole(index),
                Some((off, len)) => Input::Range(index, off, len),
            });
        }
    }
    (files, tasks)
}
