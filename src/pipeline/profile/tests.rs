//! Two runs of one pipeline, and a brute force that knows the second run in advance.

use super::*;
use crate::pipeline::message::{Input, Submission, Task};
use copperfs_policy::references::JobTable;
use proptest::prelude::*;
use std::collections::{BTreeMap, HashSet};

/// A block: a file and the index of the stripe.
type Block = (String, u64);
type Table = JobTable<String, String, Block>;
const STRIPE: u64 = 4 << 20;

/// The shape of a run: for each file the number of ranges in which it is read (0: whole), and for each job its number of
/// tasks and the files that it reads, each with the task of its first range.
#[derive(Debug, Clone)]
struct Shape {
    splits: Vec<u64>,
    jobs: Vec<(usize, Vec<(usize, usize)>)>,
}

/// A run of a shape: names and sizes of its files, and how its tasks take them.
#[derive(Debug, Clone)]
struct Run {
    shape: Shape,
    names: Vec<String>,
    sizes: Vec<u64>,
}

impl Run {
    fn new(day: u32, shape: &Shape, order: &[usize], sizes: &[u64]) -> Self {
        let name = |file: usize| format!("day={day}/part-{}", order[file]);
        Self {
            names: (0..shape.splits.len()).map(name).collect(),
            sizes: sizes.to_vec(),
            shape: shape.clone(),
        }
    }

    fn job(&self, at: usize) -> String {
        format!("app-{}/sql-{at}", self.sizes[0])
    }

    /// A job reads all ranges of each of its files.
    fn submission(&self, at: usize) -> Submission {
        let (tasks, reads) = &self.shape.jobs[at];
        let mut submission = Submission::new("daily", self.job(at), 0);
        submission.dataset = Some("warehouse".into());
        submission.tasks = (0..*tasks)
            .map(|task| Task {
                id: format!("scan/{task}"),
                ..Task::default()
            })
            .collect();
        for (file, first) in reads {
            let name = &self.names[*file];
            let index = submission.files.iter().position(|known| known == name);
            let index = index.unwrap_or_else(|| {
                submission.files.push(name.clone());
                submission.files.len() - 1
            });
            let (splits, size) = (self.shape.splits[*file], self.sizes[*file]);
            let part = size.div_ceil(splits.max(1));
            for split in 0..splits.max(1) {
                let off = split * part;
                let input = match splits {
                    0 => Input::Whole(index),
                    _ => Input::Range(index, off, part.min(size - off)),
                };
                let task = (first + usize::try_from(split).unwrap()) % tasks;
                submission.tasks[task].inputs.push(input);
            }
        }
        submission
    }

    fn size(&self, name: &str) -> u64 {
        let at = self.names.iter().position(|known| known == name);
        self.sizes[at.expect("a file of the run")]
    }

    fn blocks(&self, submission: &Submission, task: &Task) -> HashSet<Block> {
        assert!(task.paths.is_empty(), "{task:?}");
        let blocks = task.inputs.iter().flat_map(|input| {
            let (file, off, end) = match *input {
                Input::Whole(file) => (file, 0, None),
                Input::Range(file, off, len) => (file, off, Some(off + len)),
            };
            let name = &submission.files[file];
            let size = self.size(name);
            let end = end.unwrap_or(size);
            assert!(
                end <= size,
                "{name}: a range ends at {end}, and the file at {size}"
            );
            let stripes = (off / STRIPE)..end.div_ceil(STRIPE).max(off / STRIPE);
            stripes.map(|stripe| (name.clone(), stripe))
        });
        blocks.collect()
    }

    fn submit(&self, table: &mut Table, submission: &Submission) {
        let tasks = submission.tasks.iter();
        let tasks = tasks.map(|task| (task.id.clone(), self.blocks(submission, task)));
        let mut changed = Vec::new();
        let (job, attempt) = (submission.job.clone(), submission.attempt);
        table.submit(job, attempt, tasks, &mut changed).unwrap();
    }

    /// Carries out what the expectations say. Returns whether the run differs.
    fn carry_out(&self, table: &mut Table, actions: Vec<Action>) -> bool {
        let mut differs = false;
        for action in actions {
            match action {
                Action::Submit(submission) => {
                    assert!(submission.job.starts_with("daily-7/expected-"));
                    self.submit(table, &submission);
                }
                Action::End { job } => assert!(table.end(&job, &mut Vec::new()), "{job}"),
                Action::Differs(difference) => {
                    assert!(!difference.to_string().is_empty());
                    differs = true;
                }
            }
        }
        differs
    }

    fn profile(&self, order: FileOrder) -> Profile {
        let mut recorder = Recorder::new("daily", "warehouse", order);
        for at in 0..self.shape.jobs.len() {
            recorder.submitted(&self.submission(at));
        }
        recorder.profile().clone()
    }
}

fn counts(table: &Table) -> BTreeMap<Block, u32> {
    table
        .counts()
        .map(|(block, count)| (block.clone(), count))
        .collect()
}

/// The counts of a run of which everything is known about files that a submitted job has named.
fn wanted(run: &Run, submitted: &[usize], ended: &HashSet<(usize, usize)>) -> BTreeMap<Block, u32> {
    let named: HashSet<usize> = (submitted.iter())
        .flat_map(|at| run.shape.jobs[*at].1.iter().map(|(file, _)| *file))
        .collect();
    let named: HashSet<&String> = named.iter().map(|file| &run.names[*file]).collect();
    let mut counts = BTreeMap::new();
    for at in 0..run.shape.jobs.len() {
        let submission = run.submission(at);
        for (number, task) in submission.tasks.iter().enumerate() {
            if ended.contains(&(at, number)) {
                continue;
            }
            for block in run.blocks(&submission, task) {
                if named.contains(&block.0) {
                    *counts.entry(block).or_insert(0) += 1;
                }
            }
        }
    }
    counts
}

fn shapes() -> impl Strategy<Value = Shape> {
    (1_usize..7).prop_flat_map(|files| {
        let reads = prop::collection::vec((0..files, 0_usize..4), 0..6);
        let jobs = prop::collection::vec((1_usize..4, reads), 1..7);
        let splits = prop::collection::vec(0_u64..4, files);
        (splits, jobs).prop_map(|(splits, jobs)| Shape { splits, jobs })
    })
}

/// Sizes of files in which no range is empty.
fn sizes() -> impl Strategy<Value = Vec<u64>> {
    prop::collection::vec(16_u64..(24 << 20), 7)
}

fn permutation(len: usize) -> impl Strategy<Value = Vec<usize>> {
    Just((0..len).collect::<Vec<_>>()).prop_shuffle()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// Another day has other names, other sizes, and another order of concurrent jobs.
    #[test]
    fn a_run_of_the_same_shape_has_the_counts_of_a_run_that_is_known(
        shape in shapes(),
        names in permutation(7),
        (before, now) in (sizes(), sizes()),
        jobs in permutation(7),
        ends in prop::collection::vec((0_usize..7, 0_usize..4, any::<bool>()), 0..20),
    ) {
        let order: Vec<usize> = (0..7).collect();
        let profile = Run::new(1, &shape, &order, &before).profile(FileOrder::Listed);
        let json = profile.to_json().unwrap();
        prop_assert_eq!(&Profile::from_json(&json).unwrap(), &profile);
        let run = Run::new(2, &shape, &names, &now);
        let mut expectations = Expectations::new(profile, "daily-7");
        let (mut table, mut submitted, mut ended) = (Table::default(), Vec::new(), HashSet::new());
        let (mut ends, mut attempt) = (ends.into_iter(), 0);
        for at in jobs.into_iter().filter(|at| *at < shape.jobs.len()) {
            let submission = run.submission(at);
            run.submit(&mut table, &submission);
            let actions = expectations.submitted(&submission);
            prop_assert!(!run.carry_out(&mut table, actions));
            submitted.push(at);
            prop_assert_eq!(counts(&table), wanted(&run, &submitted, &ended));
            for (job, task, again) in ends.by_ref().take(4) {
                if submitted.contains(&job) && task < shape.jobs[job].0 {
                    table.done(&run.job(job), &format!("scan/{task}"), &mut Vec::new());
                    ended.insert((job, task));
                    // A further attempt of a job: its tasks run again, and nothing else changes.
                    if again {
                        attempt += 1;
                        let mut submission = run.submission(job);
                        submission.attempt = attempt;
                        run.submit(&mut table, &submission);
                        let actions = expectations.submitted(&submission);
                        prop_assert!(actions.is_empty());
                        ended.retain(|(other, _)| *other != job);
                    }
                }
            }
            prop_assert_eq!(counts(&table), wanted(&run, &submitted, &ended));
        }
        for at in 0..shape.jobs.len() {
            table.end(&run.job(at), &mut Vec::new());
        }
        let actions = expectations.finish();
        prop_assert!(actions.is_empty(), "all jobs have been submitted: {:?}", actions);
        prop_assert_eq!(counts(&table), BTreeMap::new());
    }

    /// Engines that list files by size are matched by path.
    #[test]
    fn files_are_told_by_their_paths_whatever_the_order_of_a_list(
        shape in shapes(),
        (before, now) in (sizes(), sizes()),
    ) {
        let order: Vec<usize> = (5..12).collect();
        let profile = Run::new(9, &shape, &order, &before).profile(FileOrder::Path);
        let run = Run::new(10, &shape, &order, &now);
        let mut expectations = Expectations::new(profile, "daily-7");
        let (mut table, mut submitted) = (Table::default(), Vec::new());
        for at in 0..shape.jobs.len() {
            let mut submission = run.submission(at);
            // The same job with its files in another order.
            submission.files.reverse();
            let last = submission.files.len().saturating_sub(1);
            for input in submission.tasks.iter_mut().flat_map(|task| &mut task.inputs) {
                match input {
                    Input::Whole(file) | Input::Range(file, ..) => *file = last - *file,
                }
            }
            run.submit(&mut table, &submission);
            let actions = expectations.submitted(&submission);
            prop_assert!(!run.carry_out(&mut table, actions));
            submitted.push(at);
            prop_assert_eq!(counts(&table), wanted(&run, &submitted, &HashSet::new()));
        }
    }

    /// A run of another shape: no reference is left, and no range reaches beyond its file (`Run::blocks` checks it).
    #[test]
    fn a_run_of_another_shape_leaves_no_reference(
        (shape, other) in (shapes(), shapes()),
        (before, now) in (sizes(), sizes()),
        jobs in permutation(7),
    ) {
        let order: Vec<usize> = (0..7).collect();
        let profile = Run::new(1, &shape, &order, &before).profile(FileOrder::Listed);
        let run = Run::new(2, &other, &order, &now);
        let mut expectations = Expectations::new(profile, "daily-7");
        let (mut table, mut alone, mut differed) = (Table::default(), Table::default(), false);
        for at in jobs.into_iter().filter(|at| *at < other.jobs.len()) {
            let submission = run.submission(at);
            run.submit(&mut table, &submission);
            run.submit(&mut alone, &submission);
            let actions = expectations.submitted(&submission);
            let differs = run.carry_out(&mut table, actions);
            prop_assert!(!(differs && differed), "it is told once");
            differed |= differs;
            // An expectation adds to the counts of the jobs, and takes nothing away.
            let (with, without) = (counts(&table), counts(&alone));
            prop_assert!(without.iter().all(|(block, count)| with[block] >= *count));
            prop_assert!(!differed || with == without);
        }
        let actions = expectations.finish();
        run.carry_out(&mut table, actions);
        prop_assert_eq!(counts(&table), counts(&alone));
        prop_assert!(expectations.submitted(&run.submission(0)).is_empty());
    }

    /// A damaged profile is refused, or is a profile that can be followed.
    #[test]
    fn a_damaged_profile_breaks_nothing(
        shape in shapes(),
        now in sizes(),
        (at, byte) in (any::<prop::sample::Index>(), any::<u8>()),
    ) {
        let order: Vec<usize> = (0..7).collect();
        let run = Run::new(1, &shape, &order, &now);
        let mut json = run.profile(FileOrder::Listed).to_json().unwrap();
        let at = at.index(json.len());
        json[at] = byte;
        if let Ok(profile) = Profile::from_json(&json) {
            let mut expectations = Expectations::new(profile, "daily-7");
            for at in 0..shape.jobs.len() {
                drop(expectations.submitted(&run.submission(at)));
            }
            drop(expectations.finish());
        }
    }
}

/// Job 0 reads two files, and job 1 reads the first of them again.
fn two_jobs(day: u32, size: u64) -> Run {
    let jobs = vec![(1, vec![(0, 0), (1, 0)]), (2, vec![(0, 0)])];
    let shape = Shape {
        splits: vec![1, 0],
        jobs,
    };
    Run::new(day, &shape, &[0, 1], &[size, 1])
}

#[test]
fn a_later_job_is_expected_with_todays_name_and_size() {
    let profile = two_jobs(1, 100).profile(FileOrder::Listed);
    let run = two_jobs(2, 70);
    let mut expectations = Expectations::new(profile, "daily-7");
    let actions = expectations.submitted(&run.submission(0));
    let [Action::Submit(expected)] = &actions[..] else {
        panic!("{actions:?}");
    };
    assert_eq!(
        serde_json::to_string(expected).unwrap(),
        "{\"v\":1,\"op\":\"submit\",\"app\":\"daily\",\"job\":\"daily-7/expected-1\",\"attempt\":0,\
         \"dataset\":\"warehouse\",\"files\":[\"day=2/part-0\"],\"tasks\":[{\"id\":\"0\",\"in\":[[0,0,70]]}]}"
    );
    let actions = expectations.submitted(&run.submission(1));
    assert_eq!(
        actions,
        [Action::End {
            job: "daily-7/expected-1".into()
        }]
    );
}

#[test]
fn a_difference_names_the_job_and_ends_the_rest() {
    let profile = two_jobs(1, 100).profile(FileOrder::Listed);
    let mut run = two_jobs(2, 70);
    run.shape.jobs[1].0 = 3;
    let mut expectations = Expectations::new(profile.clone(), "daily-7");
    assert_eq!(expectations.submitted(&run.submission(0)).len(), 1);
    let actions = expectations.submitted(&run.submission(1));
    let [Action::End { .. }, Action::Differs(difference)] = &actions[..] else {
        panic!("{actions:?}");
    };
    assert_eq!(
        difference.to_string(),
        "the run differs from its profile: job app-70/sql-1 has 3 tasks instead of 2. Its later jobs count \
         from their submission"
    );
    // One job more than the profile has is another shape, unless the profile was cut.
    let run = two_jobs(2, 70);
    for cut in [false, true] {
        let mut expectations = Expectations::new(
            Profile {
                cut,
                ..profile.clone()
            },
            "daily-7",
        );
        for at in [0, 1] {
            drop(expectations.submitted(&run.submission(at)));
        }
        let more = Submission::new("daily", "x/sql-2".into(), 0);
        assert_eq!(expectations.submitted(&more).is_empty(), cut);
    }
}

#[test]
fn directories_and_ranges_to_the_end_are_expected_by_path() {
    let line = |day: u32, at: u32| {
        let line = format!(
            r#"{{"v":1,"op":"submit","job":"a{day}/j{at}","tasks":[{{"id":"t","inputs":[
               {{"path":"d{day}","recursive":true}},{{"path":"f{day}","off":5}},{{"path":"f{day}","len":9}}]}}]}}"#
        );
        serde_json::from_str::<Submission>(&line).unwrap()
    };
    let mut recorder = Recorder::new("daily", "warehouse", FileOrder::Path);
    for at in 0..2 {
        recorder.submitted(&line(1, at));
    }
    let mut expectations = Expectations::new(recorder.profile().clone(), "p");
    let actions = expectations.submitted(&line(2, 0));
    let [Action::Submit(expected)] = &actions[..] else {
        panic!("{actions:?}");
    };
    let inputs: HashSet<String> = (expected.tasks[0].paths.iter())
        .map(|input| serde_json::to_string(input).unwrap())
        .collect();
    let wanted = [
        r#"{"path":"d2","recursive":true}"#,
        r#"{"path":"f2","off":5}"#,
        r#"{"path":"f2","off":0,"len":9}"#,
    ];
    assert_eq!(inputs, wanted.map(str::to_owned).into());
}

#[test]
fn a_range_that_no_job_has_read_yet_is_guessed_within_the_file() {
    let job = |at: u32, spans: &[(u64, u64)]| {
        let mut submission = Submission::new("daily", format!("a/j{at}"), 0);
        submission.files = vec!["f".into()];
        let inputs = spans.iter().map(|(off, len)| Input::Range(0, *off, *len));
        submission.tasks = vec![Task {
            id: "t".into(),
            inputs: inputs.collect(),
            ..Task::default()
        }];
        submission
    };
    let mut recorder = Recorder::new("daily", "warehouse", FileOrder::Listed);
    recorder.submitted(&job(0, &[(0, 50), (50, 50)]));
    recorder.submitted(&job(1, &[(0, 100), (10, 20), (70, 10), (150, 10)]));
    let mut expectations = Expectations::new(recorder.profile().clone(), "p");
    let actions = expectations.submitted(&job(0, &[(0, 40), (40, 33)]));
    let [Action::Submit(expected)] = &actions[..] else {
        panic!("{actions:?}");
    };
    // The first ended with the file of 100 bytes, so it ends with that of 73; the last is beyond the known part.
    let wanted = [(0, 73), (10, 20), (70, 3)];
    assert_eq!(
        expected.tasks[0].inputs,
        wanted.map(|(off, len)| Input::Range(0, off, len))
    );
}

#[test]
fn an_adapted_job_is_matched_by_its_first_plan_and_expected_by_its_last() {
    let job = |day: u32, at: u32, attempt: u64, files: &[&str]| {
        let mut submission = Submission::new("daily", format!("app-{day}/sql-{at}"), attempt);
        submission.files = files.iter().map(|file| format!("{file}{day}")).collect();
        let inputs = (0..files.len()).map(Input::Whole).collect();
        submission.tasks = vec![Task {
            id: "t".into(),
            inputs,
            ..Task::default()
        }];
        submission
    };
    let mut recorder = Recorder::new("daily", "warehouse", FileOrder::Listed);
    // The plan of sql-0 grows; then one of its inputs is left. sql-1 grows too.
    for (at, attempt, files) in [
        (0, 0, &["a"][..]),
        (0, 1, &["a", "b"]),
        (0, 2, &["b"]),
        (1, 0, &["a"]),
        (1, 1, &["b", "a"]),
    ] {
        recorder.submitted(&job(1, at, attempt, files));
    }
    let profile = recorder.profile().clone();
    assert_eq!(
        Profile::from_json(&profile.to_json().unwrap()).unwrap(),
        profile
    );
    let mut expectations = Expectations::new(profile, "p");
    let mut expected = |submission: &Submission| match &expectations.submitted(submission)[..] {
        [] => Vec::new(),
        [Action::Submit(expected)] => expected.files.clone(),
        [Action::End { job }] => vec![job.clone()],
        other => panic!("{other:?}"),
    };
    assert_eq!(expected(&job(2, 0, 0, &["a"])), ["a2"]);
    assert_eq!(expected(&job(2, 0, 1, &["a", "b"])), ["b2", "a2"]);
    assert!(expected(&job(2, 0, 2, &["x", "y", "z"])).is_empty());
    assert_eq!(expected(&job(2, 1, 0, &["a"])), ["p/expected-1"]);
}

#[test]
fn a_run_that_is_too_large_is_cut() {
    let mut recorder = Recorder::new("daily", "warehouse", FileOrder::Listed);
    let mut large = Submission::new("daily", "a/0".into(), 0);
    large.tasks = vec![Task::default(); INPUTS_MAX];
    recorder.submitted(&large);
    assert!(!recorder.profile().cut);
    recorder.submitted(&two_jobs(1, 9).submission(0));
    recorder.submitted(&Submission::new("daily", "a/1".into(), 0));
    let profile = recorder.profile();
    assert!(profile.cut);
    assert_eq!((profile.jobs.len(), profile.files.len()), (1, 0));
}

#[test]
fn a_file_that_is_no_profile_says_what_to_do() {
    let profile = two_jobs(1, 100).profile(FileOrder::Listed);
    let good: serde_json::Value = serde_json::from_slice(&profile.to_json().unwrap()).unwrap();
    let changed = |pointer: &str, value: serde_json::Value| {
        let mut json = good.clone();
        *json.pointer_mut(pointer).unwrap() = value;
        let error = Profile::from_json(json.to_string().as_bytes())
            .unwrap_err()
            .to_string();
        assert!(error.contains("Remove it, and the next run"), "{error}");
        error
    };
    let version = changed("/copperfs_pipeline_profile", 2.into());
    assert!(version.contains("version 2"), "{version}");
    for (pointer, value, wanted) in [
        ("/files/1/job", 1, "files[1] is not a file of its job"),
        ("/jobs/0/files/1", 0, "jobs[0] names a file twice"),
        (
            "/jobs/1/files/0",
            7,
            "jobs[1] names a file that is not there",
        ),
        (
            "/jobs/1/tasks/0/0",
            3,
            "jobs[1] has an input that is not there",
        ),
        (
            "/jobs/0/tasks/0/0/1",
            1,
            "jobs[0] has an input that is not there",
        ),
    ] {
        let error = changed(pointer, value.into());
        assert!(error.contains(wanted), "{error}");
    }
    for foreign in ["", "{}", "{\"copperfs_profile\":1}", "[1"] {
        let error = Profile::from_json(foreign.as_bytes())
            .unwrap_err()
            .to_string();
        assert!(
            error.starts_with("it is not a profile of a pipeline"),
            "{error}"
        );
    }
}

#[test]
fn the_profile_of_a_large_run_is_small() {
    let mut submission = Submission::new("daily", "a/0".into(), 0);
    submission.files = (0..60_000).map(|file| format!("part-{file}")).collect();
    submission.tasks = (0..100_000_usize)
        .map(|task| Task {
            id: task.to_string(),
            inputs: (0..3)
                .map(|n| Input::Range((task + n) % 60_000, 0, 1 << 20))
                .collect(),
            ..Task::default()
        })
        .collect();
    let mut recorder = Recorder::new("daily", "warehouse", FileOrder::Path);
    recorder.submitted(&submission);
    let json = recorder.profile().to_json().unwrap();
    assert!(json.len() < 10 << 20, "{} bytes", json.len());
    // A second job with the same inputs is expected in full.
    submission.job = "a/1".into();
    recorder.submitted(&submission);
    let mut expectations = Expectations::new(recorder.profile().clone(), "p");
    submission.job = "b/0".into();
    let actions = expectations.submitted(&submission);
    let [Action::Submit(expected)] = &actions[..] else {
        panic!("{} actions", actions.len());
    };
    let inputs: usize = expected.tasks.iter().map(|task| task.inputs.len()).sum();
    assert_eq!(inputs, 300_000);
}
