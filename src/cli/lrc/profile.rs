//! `copperfs lrc profile`: shows the profile of a pipeline.

use super::run::read_profile;
use crate::cli::{Table, print};
use crate::pipeline::profile::{Profile, ProfiledJob};
use clap::Args;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Flags of `lrc profile`.
#[derive(Debug, Args)]
pub struct ProfileArgs {
    /// The file of `lrc run --profile`
    #[arg(value_name = "FILE")]
    profile: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Jobs that `known_from` of a line names.
const SOURCES_SHOWN: usize = 4;

/// Shows it.
///
/// # Errors
/// The file cannot be read, or is no profile.
pub(super) fn profile(args: &ProfileArgs) -> anyhow::Result<()> {
    let profile = read_profile(&args.profile)?;
    print(args.json, &view(&profile), table)
}

fn view(profile: &Profile) -> Value {
    let jobs = profile.jobs.iter().enumerate();
    json!({
        "app": profile.app,
        "dataset": profile.dataset,
        "order": profile.order,
        "cut": profile.cut,
        "files": profile.files.len(),
        "jobs": jobs.map(|(at, job)| job_view(profile, at, job)).collect::<Vec<_>>(),
    })
}

/// A job. `known_from` has the jobs after whose submission its inputs are known, with the number of those inputs.
fn job_view(profile: &Profile, at: usize, job: &ProfiledJob) -> Value {
    let shape = &job.shape;
    let mut known: BTreeMap<usize, usize> = BTreeMap::new();
    for input in shape.tasks.iter().flatten() {
        let first = profile.files[shape.files[input.file()]].job;
        *known.entry(first).or_default() += 1;
    }
    // A file that a job names first is known when the job is submitted, and not before.
    let own = known.remove(&at).unwrap_or(0);
    let expected: usize = known.values().sum();
    let known_from = known.into_iter().map(
        |(job, inputs)| json!({ "index": job, "job": profile.jobs[job].name, "inputs": inputs }),
    );
    json!({
        "index": at,
        "job": job.name,
        "tasks": shape.tasks.len(),
        "files": shape.files.len(),
        "inputs": own + expected,
        "expected": expected,
        "known_from": known_from.collect::<Vec<_>>(),
    })
}

fn table(view: &Value) -> String {
    let number = |value: &Value, key: &str| value[key].as_u64().unwrap_or(0);
    let text = |value: &Value, key: &str| value[key].as_str().unwrap_or("-").to_owned();
    let jobs = view["jobs"].as_array().map_or(&[][..], Vec::as_slice);
    let total = |key| jobs.iter().map(|job| number(job, key)).sum::<u64>();
    let (inputs, expected) = (total("inputs"), total("expected"));
    let mut out = format!(
        "{} on {}: {} jobs, {} files, {inputs} inputs of tasks, of which {expected} are known before their job\n",
        text(view, "app"),
        text(view, "dataset"),
        jobs.len(),
        number(view, "files"),
    );
    if view["cut"].as_bool() == Some(true) {
        out.push_str("the run was larger than a profile may be: its later jobs are missing\n");
    }
    let known_from = |job: &&Value| {
        let sources = job["known_from"].as_array().map_or(&[][..], Vec::as_slice);
        let shown = sources
            .iter()
            .map(|source| format!("{} ({})", text(source, "job"), number(source, "inputs")));
        crate::cli::listed(&shown.collect::<Vec<_>>(), SOURCES_SHOWN)
    };
    let jobs = Table::of(jobs)
        .column("job", |job| text(job, "job"))
        .column("tasks", |job| number(job, "tasks"))
        .column("files", |job| number(job, "files"))
        .column("inputs", |job| number(job, "inputs"))
        .column("expected", |job| number(job, "expected"))
        .column("known from", known_from);
    out.push_str(&format!("\n{}", jobs.text()));
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::message::{Input, Submission, Task};
    use crate::pipeline::profile::{FileOrder, Recorder};

    #[test]
    fn each_job_shows_from_which_jobs_its_inputs_are_known() {
        let mut recorder = Recorder::new("daily", "warehouse", FileOrder::Path);
        for (at, tasks) in [
            &[&["a", "b"][..]][..],
            &[&["c"], &["a"]],
            &[&["a", "b", "c"], &["d"]],
        ]
        .into_iter()
        .enumerate()
        {
            let mut submission = Submission::new("daily", format!("app-1/sql-{at}"), 0);
            for (id, files) in tasks.iter().enumerate() {
                let first = submission.files.len();
                submission
                    .files
                    .extend(files.iter().map(ToString::to_string));
                submission.tasks.push(Task {
                    id: id.to_string(),
                    inputs: (first..submission.files.len()).map(Input::Whole).collect(),
                    ..Task::default()
                });
            }
            recorder.submitted(&submission);
        }
        let view = view(recorder.profile());
        assert_eq!(
            table(&view),
            "daily on warehouse: 3 jobs, 4 files, 8 inputs of tasks, of which 4 are known before their job\n\n\
             job    tasks  files  inputs  expected  known from\n\
             sql-0      1      2       2         0\n\
             sql-1      2      2       2         1  sql-0 (1)\n\
             sql-2      2      4       4         3  sql-0 (2), sql-1 (1)\n"
        );
        assert_eq!(
            view["jobs"][1]["known_from"],
            json!([{"index": 0, "job": "sql-0", "inputs": 1}])
        );
    }
}
