//! The jobs of a run that have not ended, so that they can be ended, or submitted again to a daemon that has lost them.
//! Pure.
//!
//! The attempts that an adapter counts and those that the daemon sees differ: each repetition adds one. So a
//! repetition replaces the job, and the adapter's next attempt replaces the repetition.

use super::message::{Event, Op, Submission};
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

/// Tasks and inputs of the live jobs that are kept, some 500 MB. Jobs beyond it are ended with the run, but are not
/// submitted again.
const WEIGHT_MAX: usize = 8_000_000;

/// The live jobs, by name.
#[derive(Debug, Default)]
pub struct LiveJobs {
    jobs: BTreeMap<String, LiveJob>,
    /// How often each job was repeated. It stays after the end of a job, because an adapter may submit it again.
    repeated: BTreeMap<String, u64>,
    weight: usize,
}

/// A job that has not ended.
#[derive(Debug, Clone)]
pub struct LiveJob {
    /// The connection that told about it last.
    connection: u64,
    /// As it was submitted last. `None`: it is too large to be kept.
    submission: Option<Arc<Submission>>,
    /// Tasks that have ended.
    done: HashSet<String>,
}

/// What a submission has replaced, for the case that the daemon refuses it.
#[derive(Debug, Default)]
pub struct Replaced(Option<LiveJob>);

impl LiveJobs {
    /// Takes a submission of `connection` before it is sent, and sets its attempt. Returns what it has replaced.
    pub fn submit(
        &mut self,
        connection: u64,
        mut submission: Submission,
    ) -> (Arc<Submission>, Replaced) {
        let job = submission.job.clone();
        submission.attempt += self.repeated.get(&job).copied().unwrap_or(0);
        let submission = Arc::new(submission);
        let replaced = self.remove(&job);
        let weight = weight(&submission);
        let is_kept = self.weight + weight <= WEIGHT_MAX;
        let live = LiveJob {
            connection,
            submission: is_kept.then(|| Arc::clone(&submission)),
            done: HashSet::new(),
        };
        self.insert(job, live);
        (submission, Replaced(replaced))
    }

    /// The daemon has not taken a submission: the job is again as it was before.
    pub fn refused(&mut self, submission: &Submission, replaced: Replaced) {
        // A later submission may have taken its place already.
        let live = self.jobs.get(&submission.job);
        let is_last = live.and_then(|live| live.submission.as_ref());
        if is_last.is_some_and(|last| last.attempt == submission.attempt) {
            self.remove(&submission.job);
            if let Replaced(Some(before)) = replaced {
                self.insert(submission.job.clone(), before);
            }
        }
    }

    /// Takes an event of `connection`.
    pub fn event(&mut self, connection: u64, event: &Event) {
        if event.op == Op::End {
            self.remove(&event.job);
        } else if let Some(live) = self.jobs.get_mut(&event.job) {
            live.connection = connection;
            // A task that fails after its end stays ended.
            if event.op == Op::Done
                && let Some(task) = &event.task
            {
                live.done.insert(task.clone());
            }
        }
    }

    /// The names of the live jobs, of one connection or of all.
    #[must_use]
    pub fn names(&self, connection: Option<u64>) -> Vec<String> {
        let jobs = self.jobs.iter();
        let of = |live: &LiveJob| connection.is_none_or(|connection| live.connection == connection);
        jobs.filter(|(_, live)| of(live))
            .map(|(job, _)| job.clone())
            .collect()
    }

    /// All live jobs again, each with its connection, a higher attempt and without the tasks that have ended, for a daemon
    /// that does not know them.
    pub fn repeat(&mut self) -> Vec<(u64, Arc<Submission>)> {
        let mut all = Vec::new();
        for (job, live) in &mut self.jobs {
            let Some(submission) = &mut live.submission else {
                continue;
            };
            let mut again = Submission::clone(submission);
            again.attempt += 1;
            *self.repeated.entry(job.clone()).or_insert(0) += 1;
            again.tasks.retain(|task| !live.done.contains(&task.id));
            for task in &mut again.tasks {
                task.after.retain(|before| !live.done.contains(before));
            }
            self.weight -= weight(submission);
            let again = Arc::new(again);
            self.weight += weight(&again);
            *submission = Arc::clone(&again);
            all.push((live.connection, again));
        }
        all
    }

    /// Returns the number of live jobs.
    #[must_use]
    pub fn len(&self) -> usize {
        self.jobs.len()
    }

    /// Returns whether no job is live.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    fn insert(&mut self, job: String, live: LiveJob) {
        self.weight += live.submission.as_ref().map_or(0, |one| weight(one));
        self.jobs.insert(job, live);
    }

    fn remove(&mut self, job: &str) -> Option<LiveJob> {
        let live = self.jobs.remove(job)?;
        self.weight -= live.submission.as_ref().map_or(0, |one| weight(one));
        Some(live)
    }
}

fn weight(submission: &Submission) -> usize {
    let inputs =
        |task: &super::message::Task| task.inputs.len() + task.paths.len() + task.after.len() + 1;
    submission.tasks.iter().map(inputs).sum::<usize>() + submission.files.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::message::Task;

    fn job(name: &str, attempt: u64, tasks: &[&str]) -> Submission {
        let mut submission = Submission::new("daily", name.into(), attempt);
        let task = |id: &&str| Task {
            id: (*id).to_owned(),
            after: vec!["a".into()],
            ..Task::default()
        };
        submission.tasks = tasks.iter().map(task).collect();
        submission
    }

    fn event(op: Op, job: &str, task: Option<&str>) -> Event {
        let task = task.map(str::to_owned);
        Event {
            op,
            task,
            ..Event::end(job)
        }
    }

    fn tasks(submission: &Submission) -> Vec<&str> {
        submission
            .tasks
            .iter()
            .map(|task| task.id.as_str())
            .collect()
    }

    #[test]
    fn a_job_is_repeated_without_its_ended_tasks_and_with_a_higher_attempt() {
        let mut live = LiveJobs::default();
        live.submit(1, job("j", 3, &["a", "b", "c"]));
        live.event(1, &event(Op::Done, "j", Some("a")));
        live.event(1, &event(Op::TaskFail, "j", Some("a")));
        live.event(1, &event(Op::TaskFail, "j", Some("b")));
        live.event(1, &event(Op::Done, "other", Some("b")));
        let again = live.repeat();
        assert_eq!((again.len(), again[0].0, again[0].1.attempt), (1, 1, 4));
        assert_eq!(tasks(&again[0].1), ["b", "c"]);
        assert!(
            again[0].1.tasks[0].after.is_empty(),
            "a task that is not there"
        );
        live.event(1, &event(Op::Done, "j", Some("b")));
        let again = live.repeat();
        assert_eq!((tasks(&again[0].1), again[0].1.attempt), (vec!["c"], 5));
        // The adapter's next attempt replaces the repetitions; its old one does not.
        let (next, _) = live.submit(1, job("j", 4, &["a"]));
        assert_eq!(next.attempt, 6);
        let (late, _) = live.submit(1, job("j", 3, &["a"]));
        assert_eq!(late.attempt, 5);
        live.event(1, &event(Op::End, "j", None));
        assert!(live.is_empty() && live.repeat().is_empty());
        let (after_its_end, _) = live.submit(1, job("j", 5, &["a"]));
        assert_eq!(after_its_end.attempt, 7);
        assert_eq!(live.weight, 2 + 1 - 1);
    }

    #[test]
    fn a_refused_submission_leaves_the_job_as_it_was() {
        let mut live = LiveJobs::default();
        let (first, replaced) = live.submit(1, job("j", 0, &["a", "b"]));
        live.refused(&first, replaced);
        assert!(live.is_empty());
        live.submit(1, job("j", 0, &["a", "b"]));
        live.event(1, &event(Op::Done, "j", Some("a")));
        let (again, replaced) = live.submit(1, job("j", 1, &["b"]));
        live.refused(&again, replaced);
        assert_eq!(tasks(&live.repeat()[0].1), ["b"]);
        // The answer to a submission comes after the next one was sent.
        let (second, replaced) = live.submit(1, job("j", 2, &["x"]));
        live.submit(1, job("j", 3, &["y"]));
        live.refused(&second, replaced);
        assert_eq!(tasks(&live.repeat()[0].1), ["y"]);
    }

    #[test]
    fn a_job_belongs_to_the_connection_that_told_about_it_last() {
        let mut live = LiveJobs::default();
        live.submit(1, job("a", 0, &["t"]));
        live.submit(1, job("b", 0, &["t"]));
        live.event(2, &event(Op::Done, "b", Some("t")));
        assert_eq!(live.names(Some(1)), ["a"]);
        assert_eq!(live.names(Some(2)), ["b"]);
        assert_eq!(live.names(None), ["a", "b"]);
        assert_eq!(live.len(), 2);
    }

    #[test]
    fn what_is_too_large_is_ended_but_not_repeated() {
        let mut live = LiveJobs::default();
        let mut large = job("large", 0, &[]);
        large.tasks = vec![Task::default(); WEIGHT_MAX + 1];
        live.submit(1, large);
        live.submit(1, job("j", 0, &["t"]));
        assert_eq!(live.names(None), ["j", "large"]);
        assert_eq!(live.repeat().len(), 1);
        live.event(1, &event(Op::End, "large", None));
        assert_eq!(live.names(None), ["j"]);
    }
}
