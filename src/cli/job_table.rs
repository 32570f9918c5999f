//! `copperfs job add|list|show|end`: jobs as the allocator sees them.

use super::daemon::{bytes, list, number, percent, rate, span, span_of, text};
use super::mounted::AskArgs;
use super::{Table, or_dash};
use crate::control::client::{ClientError, ControlClient, encoded};
use crate::model::JobSpec;
use crate::num::{saturating_sum, whole};
use clap::Args;
use copperfs_policy::amounts::{ByteSize, Whole};
use serde::Serialize;
use serde_json::{Value, json};

/// Flags of `job add`, which are the fields of its request.
#[derive(Debug, Args, Serialize)]
pub struct AddArgs {
    /// Its name: what its readers are recognised as, such as slurm:1234
    #[serde(rename = "id")]
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
    #[serde(skip)]
    how: AskArgs,
}

/// Declares a job.
///
/// # Errors
/// The daemon cannot be reached, or refuses.
pub(super) fn add(args: &AddArgs) -> anyhow::Result<()> {
    let told = |answer: &Value| {
        format!(
            "{} on {}: remote IO {}",
            text(answer, "id"),
            text(answer, "dataset"),
            rate(answer, "remote_io_allowed", "without limit"),
        )
    };
    args.how.show("POST", "/v1/jobs", Some(&json!(args)), told)
}

/// The jobs that have ended, as a path of the control plane.
pub(super) const ENDED: &str = "/v1/ended-jobs";

/// The job of that name, as a path of the control plane.
pub(super) fn path(name: &str) -> String {
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

    /// The reads of the job of that name that has ended last, as far as they are known.
    ///
    /// # Errors
    /// The daemon does not answer.
    async fn ended(&self, name: &str) -> anyhow::Result<Option<Value>>;
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
            Err(ClientError::Refused { status: 404, .. }) => Ok(()),
            answer => Ok(answer.map(drop)?),
        }
    }

    async fn ended(&self, name: &str) -> anyhow::Result<Option<Value>> {
        let jobs = self.0.ask("GET", ENDED, None).await?;
        Ok(ended_of(&jobs, name).cloned())
    }
}

/// The job `name` that has ended last, among `jobs`.
pub(super) fn ended_of<'a>(jobs: &'a Value, name: &str) -> Option<&'a Value> {
    list(jobs, "jobs").iter().find(|job| job["id"] == name)
}

/// The jobs of an answer as a table.
pub(super) fn jobs(answer: &Value) -> String {
    // Reads outside of any job are shown only if there are any.
    let is_shown =
        |job: &&Value| text(job, "id") != "unattributed" || number(job, "total_bytes") != Some(0);
    let jobs: Vec<&Value> = list(answer, "jobs").iter().filter(is_shown).collect();
    if jobs.is_empty() {
        return "no job reads a dataset".into();
    }
    Table::of(jobs)
        .column("job", |job| text(job, "id"))
        .column("dataset", |job| text(job, "dataset"))
        .column("epoch", |job| epoch(job))
        .column("read", |job| percent(job, "progress"))
        .column("hits", |job| percent(job, "hit_ratio"))
        .column("reads", |job| rate(job, "throughput", "-"))
        .column("remote IO", |job| rate(job, "remote_io", "-"))
        .column("allowed", |job| rate(job, "remote_io_allowed", "no limit"))
        .column("ends in", |job| span(job, "eta_s"))
        .text()
}

/// The epoch, counted from 0 as in the loops of training jobs, and the last one if it is known.
fn epoch(job: &Value) -> String {
    match (number(job, "epoch"), number(job, "epochs")) {
        (Some(epoch), Some(of)) => format!("{epoch} (of 0 to {})", of.saturating_sub(1)),
        (epoch, _) => or_dash(epoch),
    }
}

pub(super) fn one(job: &Value) -> String {
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
    let allowed = match number(job, "remote_io_pinned") {
        Some(set) if number(job, "remote_io_allowed") == Some(set) => {
            format!("{}/s (set)", Whole(set))
        }
        Some(_) => rate(job, "remote_io_allowed", "no limit") + " (set)",
        None => rate(job, "remote_io_allowed", "no limit"),
    };
    let mut out = format!(
        "{} on {}, {kind}, {} GPUs\n\
         epoch {}: {} items, {} ({}), effective hit ratio {}\n\
         reads {}; ideal rate {ideal}\n\
         remote IO {} used, {allowed} allowed; waits for it {} of the time; {} in all\n\
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
        percent(job, "throttled"),
        bytes(job, "charged_bytes"),
        span(job, "eta_s"),
    );
    out.push_str(&read_apart(job));
    let (past, nodes) = (list(job, "past_epochs"), list(job, "nodes"));
    if !past.is_empty() {
        out.push_str(&format!("\n{}", past_epochs(past)));
    }
    if !nodes.is_empty() {
        let nodes = Table::of(nodes)
            .column("node", |node| text(node, "node"))
            .column("reads", |node| rate(node, "throughput", "-"))
            .column("remote IO", |node| rate(node, "remote_io", "-"))
            .column("allowed", |node| {
                rate(node, "remote_io_allowed", "no limit")
            });
        out.push_str(&format!("\n{}", nodes.text()));
    }
    out
}

/// The jobs that have ended as a table.
pub(super) fn ended_jobs(answer: &Value) -> String {
    let jobs = list(answer, "jobs");
    if jobs.is_empty() {
        return "no job has ended since the allocator began".into();
    }
    Table::of(jobs)
        .column("job", |job| text(job, "id"))
        .column("dataset", |job| text(job, "dataset"))
        .column("ended", |job| format!("{} ago", seconds(job, "ago_s")))
        .column("ran", |job| seconds(job, "lasted_s"))
        .column("nodes", |job| or_dash(number(job, "nodes")))
        .column("epochs", |job| epochs_read(job))
        .column("read", |job| bytes(job, "total_bytes"))
        .column("hits", |job| percent(job, "hit_ratio"))
        .column("from storage", |job| ByteSize(from_storage(job)))
        .column("waited", |job| seconds(job, "waited_s"))
        .text()
}

/// A job that has ended: a summary, and its epochs if there are several.
pub(super) fn ended(job: &Value) -> String {
    let (nodes, read) = (number(job, "nodes"), number(job, "total_bytes"));
    let mut out = format!(
        "job {} on {} has ended after {}",
        text(job, "id"),
        text(job, "dataset"),
        seconds(job, "lasted_s"),
    );
    if read == Some(0) {
        out.push_str(": it has read nothing of it through the mount\n");
        return out;
    }
    let plural = |number: Option<u64>| if number == Some(1) { "" } else { "s" };
    out.push_str(&format!(
        ": {} read on {} node{}, {} of them from storage; hit ratio {}; waited for remote IO {}\n",
        bytes(job, "total_bytes"),
        nodes.unwrap_or(0),
        plural(nodes),
        ByteSize(from_storage(job)),
        percent(job, "hit_ratio"),
        seconds(job, "waited_s"),
    ));
    let past = list(job, "past_epochs");
    if past.len() > 1 {
        out.push_str(&past_epochs(past));
    }
    out
}

/// The number of epochs that a job has begun.
fn epochs_read(job: &Value) -> String {
    let last = list(job, "past_epochs").last();
    or_dash(last.and_then(|last| Some(number(last, "epoch")? + 1)))
}

/// Bytes that were read from storage for a job that has ended.
fn from_storage(job: &Value) -> u64 {
    let kinds = ["charged_bytes", "probe_bytes", "own_bytes"];
    saturating_sum(kinds.iter().filter_map(|kind| number(job, kind)))
}

/// The seconds at `key`: with a fraction if there are few.
fn seconds(value: &Value, key: &str) -> String {
    match value[key].as_f64() {
        Some(seconds) if seconds < 10.0 => format!("{seconds:.1} s"),
        Some(seconds) => span_of(whole(seconds)),
        None => "-".into(),
    }
}

fn past_epochs(past: &[Value]) -> String {
    Table::of(past)
        .column("epoch", |past| number(past, "epoch").unwrap_or(0))
        .column("read", |past| bytes(past, "bytes"))
        .column("hits", |past| percent(past, "hit_ratio"))
        .text()
}

/// Bytes from storage that belong to no epoch, a line for each kind.
fn read_apart(job: &Value) -> String {
    let kinds = [
        ("probe_bytes", "while it was measured without a cache"),
        ("own_bytes", "by itself, with its own credentials"),
    ];
    let read = |(key, _): &(&str, &str)| number(job, key).is_some_and(|bytes| bytes > 0);
    let kinds = kinds.into_iter().filter(read);
    kinds
        .map(|(key, how)| format!("also read from storage: {} {how}\n", bytes(job, key)))
        .collect()
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
    fn bytes_that_belong_to_no_epoch_are_shown_if_there_are_any() {
        let mut job = job();
        assert!(!one(&job).contains("also read"));
        job["probe_bytes"] = json!(3 << 20);
        let shown = one(&job);
        let line = "also read from storage: 3.00 MiB while it was measured without a cache\n";
        assert!(shown.contains(line), "{shown}");
        assert!(!shown.contains("by itself"), "{shown}");
    }

    #[test]
    fn a_job_shows_its_progress_and_its_rates() {
        assert_eq!(
            one(&job()),
            "slurm:7 on imagenet, declared, 4 GPUs\n\
             epoch 2 (of 0 to 89): 1000 items, 1.00 GiB (50.0 %), effective hit ratio 25.0 %\n\
             reads 100 MiB/s; ideal rate 120 MiB/s, estimated with a confidence of 90.0 %\n\
             remote IO 50.0 MiB/s used, 60.0 MiB/s allowed; waits for it 10.0 % of the time; 1.00 GiB \
             in all\n\
             ends in 2 h 1 min\n\n\
             epoch      read   hits\n    0  1.00 GiB  0.0 %\n\n\
             node  reads  remote IO  allowed\nn0    1 B/s      1 B/s  no limit\n"
        );
    }

    #[test]
    fn a_job_that_has_ended_is_summed_up() {
        let mut job = json!({
            "id": "run:x", "dataset": "a", "nodes": 1, "total_bytes": 3 << 20, "hit_ratio": 0.5,
            "lasted_s": 61.2, "ago_s": 4000.0, "waited_s": 0.25, "charged_bytes": 1 << 20,
            "probe_bytes": 1 << 20, "own_bytes": 0, "complete": true,
            "past_epochs": [
                {"epoch": 0, "bytes": 2 << 20, "hit_ratio": 0.0},
                {"epoch": 1, "bytes": 1 << 20, "hit_ratio": 1.0},
            ],
        });
        assert_eq!(
            ended(&job),
            "job run:x on a has ended after 61 s: 3.00 MiB read on 1 node, 2.00 MiB of them from storage; \
             hit ratio 50.0 %; waited for remote IO 0.2 s\n\
             epoch      read     hits\n    0  2.00 MiB    0.0 %\n    1  1.00 MiB  100.0 %\n"
        );
        let table = ended_jobs(&json!({ "jobs": [job] }));
        assert!(table.contains("66 min ago"), "{table}");
        job["total_bytes"] = json!(0);
        assert!(ended(&job).ends_with("it has read nothing of it through the mount\n"));
        assert!(ended_jobs(&json!({ "jobs": [] })).starts_with("no job has ended"));
    }

    #[test]
    fn reads_of_no_job_are_listed_where_there_are_any() {
        let none = json!({ "id": "unattributed", "total_bytes": 0 });
        assert_eq!(jobs(&json!({ "jobs": [none] })), "no job reads a dataset");
        let some = json!({ "id": "unattributed", "total_bytes": 1 });
        let text = jobs(&json!({ "jobs": [job(), some] }));
        assert_eq!(text.lines().count(), 3, "{text}");
        assert!(text.contains("2 (of 0 to 89)"), "{text}");
    }
}
