//! `copperfs job add|list|show|end`: jobs as the allocator sees them.

use super::daemon::{Mounted, bytes, is_missing, list, number, percent, rate, span, text};
use super::dataset::{ListArgs, OneArgs};
use super::table;
use crate::control::client::ControlClient;
use crate::control::client::encoded;
use crate::model::JobSpec;
use clap::Args;
use serde_json::{Value, json};

/// Flags of `job add`.
#[derive(Debug, Args)]
pub struct AddArgs {
    /// Its name: what its readers are recognised as, such as slurm:1234
    name: String,
    /// The dataset that it reads
    #[arg(long, value_name = "NAME")]
    dataset: String,
    /// What it reads per second when data is not its bottleneck [default: estimated from its reads]
    #[arg(long, value_name = "RATE")]
    ideal_rate: Option<String>,
    /// GPUs that it uses
    #[arg(long, value_name = "N", default_value_t = 1)]
    gpus: u32,
    /// Epochs that it runs, for its expected end
    #[arg(long, value_name = "N")]
    epochs: Option<u32>,
    #[command(flatten)]
    mounted: Mounted,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Declares a job.
///
/// # Errors
/// The daemon cannot be reached, or refuses.
pub(super) fn add(args: &AddArgs) -> anyhow::Result<()> {
    let body = json!({
        "id": args.name,
        "dataset": args.dataset,
        "ideal_rate": args.ideal_rate,
        "gpus": args.gpus,
        "epochs": args.epochs,
    });
    let told = |answer: &Value| {
        format!(
            "{} on {}: remote IO {}",
            text(answer, "id"),
            text(answer, "dataset"),
            rate(answer, "remote_io_allowed", "without limit"),
        )
    };
    let path = "/v1/jobs";
    args.mounted
        .show(args.json, "POST", path, Some(&body), told)
}

/// Lists the jobs.
///
/// # Errors
/// The daemon cannot be reached.
pub(super) fn list_all(args: &ListArgs) -> anyhow::Result<()> {
    args.mounted.show(args.json, "GET", "/v1/jobs", None, jobs)
}

/// Shows one job.
///
/// # Errors
/// The daemon cannot be reached, or the job does not exist.
pub(super) fn show_one(args: &OneArgs) -> anyhow::Result<()> {
    let path = path(&args.name);
    args.mounted.show(args.json, "GET", &path, None, one)
}

/// Ends one job.
///
/// # Errors
/// The daemon cannot be reached, or the job does not exist.
pub(super) fn end(args: &OneArgs) -> anyhow::Result<()> {
    let told = |_: &Value| format!("{} has ended", args.name);
    let path = path(&args.name);
    args.mounted.show(args.json, "DELETE", &path, None, told)
}

fn path(name: &str) -> String {
    format!("/v1/jobs/{}", encoded(name))
}

/// The cluster's list of jobs. Tests implement it without a daemon.
pub(super) trait JobRegistry {
    /// Declares a job.
    ///
    /// # Errors
    /// The name is taken, the dataset is unknown, the job requests too much, or the daemon does not answer.
    async fn add(&self, job: &JobSpec) -> anyhow::Result<()>;

    /// Ends the job of that name.
    ///
    /// # Errors
    /// The daemon does not answer.
    async fn end(&self, name: &str) -> anyhow::Result<()>;
}

/// The allocator's list of jobs, through a daemon.
#[derive(Debug)]
pub(super) struct Daemon(pub(super) ControlClient);

impl JobRegistry for Daemon {
    async fn add(&self, job: &JobSpec) -> anyhow::Result<()> {
        let body = json!({
            "id": job.name,
            "dataset": job.dataset,
            "ideal_rate": job.ideal_rate,
            "gpus": job.gpus,
            "epochs": job.epochs,
        });
        self.0.ask("POST", "/v1/jobs", Some(&body)).await?;
        Ok(())
    }

    async fn end(&self, name: &str) -> anyhow::Result<()> {
        match self.0.ask("DELETE", &path(name), None).await {
            // It has been ended already.
            Err(error) if is_missing(&error) => Ok(()),
            answer => Ok(answer.map(drop)?),
        }
    }
}

/// The jobs of an answer as a table.
pub(super) fn jobs(answer: &Value) -> String {
    let head = [
        "job",
        "dataset",
        "epoch",
        "read",
        "hits",
        "reads",
        "remote IO",
        "allowed",
        "ends in",
    ];
    let mut rows = vec![head.map(String::from)];
    for job in list(answer, "jobs") {
        // Reads outside of any job are shown only if there are any.
        if text(job, "id") == "unattributed" && number(job, "total_bytes") == Some(0) {
            continue;
        }
        rows.push([
            text(job, "id"),
            text(job, "dataset"),
            epoch(job),
            percent(job, "progress"),
            percent(job, "hit_ratio"),
            rate(job, "throughput", "-"),
            rate(job, "remote_io", "-"),
            rate(job, "remote_io_allowed", "no limit"),
            span(job, "eta_s"),
        ]);
    }
    match rows.len() {
        1 => "no job reads a dataset".into(),
        _ => table(&rows),
    }
}

/// The epoch, counted from 1, and the number of epochs if it is known.
fn epoch(job: &Value) -> String {
    match (number(job, "epoch"), number(job, "epochs")) {
        (Some(epoch), Some(of)) => format!("{} of {of}", epoch + 1),
        (Some(epoch), None) => (epoch + 1).to_string(),
        (None, _) => "-".into(),
    }
}

fn one(job: &Value) -> String {
    let kind = match (job["declared"].as_bool(), job["irregular"].as_bool()) {
        (_, Some(true)) => "irregular",
        (Some(true), _) => "declared",
        _ => "seen",
    };
    let ideal = match job["ideal_rate_source"].as_str() {
        Some("estimated") => format!(
            "{}, estimated with a confidence of {}",
            rate(job, "ideal_rate", "-"),
            percent(job, "confidence")
        ),
        Some(source) => format!("{}, {source}", rate(job, "ideal_rate", "-")),
        None => "not known".into(),
    };
    let set = if job["remote_io_pinned"].is_null() {
        ""
    } else {
        " (set)"
    };
    let mut out = format!(
        "{} on {}, {kind}, {} GPUs\n\
         epoch {}: {} items, {} ({}), effective hit ratio {}\n\
         reads {}; ideal rate {ideal}\n\
         remote IO {} used, {}{set} allowed; waits for it {} of the time; {} in all\n\
         ends in {}\n",
        text(job, "id"),
        text(job, "dataset"),
        number(job, "gpus").unwrap_or(0),
        epoch(job),
        number(job, "items").unwrap_or(0),
        bytes(job, "bytes"),
        percent(job, "progress"),
        percent(job, "hit_ratio"),
        rate(job, "throughput", "-"),
        rate(job, "remote_io", "-"),
        rate(job, "remote_io_allowed", "no limit"),
        percent(job, "throttled"),
        bytes(job, "charged_bytes"),
        span(job, "eta_s"),
    );
    let mut rows = vec![["epoch", "read", "hits"].map(String::from)];
    rows.extend(list(job, "past_epochs").iter().map(|epoch| {
        let number = number(epoch, "epoch").unwrap_or(0) + 1;
        [
            number.to_string(),
            bytes(epoch, "bytes"),
            percent(epoch, "hit_ratio"),
        ]
    }));
    let mut nodes = vec![["node", "reads", "remote IO", "allowed"].map(String::from)];
    nodes.extend(list(job, "nodes").iter().map(|node| {
        [
            text(node, "node"),
            rate(node, "throughput", "-"),
            rate(node, "remote_io", "-"),
            rate(node, "remote_io_allowed", "no limit"),
        ]
    }));
    if rows.len() > 1 {
        out.push_str(&format!("\n{}", table(&rows)));
    }
    if nodes.len() > 1 {
        out.push_str(&format!("\n{}", table(&nodes)));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job() -> Value {
        json!({
            "id": "slurm:7", "dataset": "imagenet", "declared": true, "irregular": false, "gpus": 4,
            "epochs": 90, "epoch": 2, "items": 1000, "bytes": 1 << 30, "progress": 0.5,
            "hit_ratio": 0.25, "throughput": 100 << 20, "ideal_rate": 120 << 20,
            "ideal_rate_source": "estimated", "confidence": 0.9, "remote_io": 50 << 20,
            "remote_io_allowed": 60 << 20, "remote_io_pinned": null, "throttled": 0.1,
            "total_bytes": 5, "charged_bytes": 1 << 30, "eta_s": 7300,
            "past_epochs": [{"epoch": 0, "bytes": 1 << 30, "hit_ratio": 0.0}],
            "nodes": [{"node": "n0", "throughput": 1, "remote_io": 1, "remote_io_allowed": null}],
        })
    }

    #[test]
    fn a_job_shows_its_progress_and_its_rates() {
        assert_eq!(
            one(&job()),
            "slurm:7 on imagenet, declared, 4 GPUs\n\
             epoch 3 of 90: 1000 items, 1.00 GiB (50.0 %), effective hit ratio 25.0 %\n\
             reads 100 MiB/s; ideal rate 120 MiB/s, estimated with a confidence of 90.0 %\n\
             remote IO 50.0 MiB/s used, 60.0 MiB/s allowed; waits for it 10.0 % of the time; 1.00 GiB \
             in all\n\
             ends in 2 h 1 min\n\n\
             epoch      read   hits\n    1  1.00 GiB  0.0 %\n\n\
             node  reads  remote IO  allowed\nn0    1 B/s      1 B/s  no limit\n"
        );
    }

    #[test]
    fn reads_of_no_job_are_listed_where_there_are_any() {
        let none = json!({ "id": "unattributed", "total_bytes": 0 });
        assert_eq!(jobs(&json!({ "jobs": [none] })), "no job reads a dataset");
        let some = json!({ "id": "unattributed", "total_bytes": 1 });
        let text = jobs(&json!({ "jobs": [job(), some] }));
        assert_eq!(text.lines().count(), 3, "{text}");
        assert!(text.contains("3 of 90"), "{text}");
    }
}
