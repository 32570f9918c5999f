//! `copperfs lrc ls`, `show`, `counts` and `flush-zero`.

use super::super::daemon::{bytes, list, number, span, text};
use super::super::mounted::AskArgs;
use super::super::{Table, or_dash};
use crate::control::client::encoded;
use clap::Args;
use copperfs_policy::amounts::ByteSize;
use serde_json::{Value, json};

/// Options of `lrc show`.
#[derive(Debug, Args)]
pub struct ShowArgs {
    /// The job's name
    job: String,
    /// The tenant that the job belongs to [default: your user id]
    #[arg(long, value_name = "NAME")]
    tenant: Option<String>,
    #[command(flatten)]
    how: AskArgs,
}

/// Options of `lrc counts`.
#[derive(Debug, Args)]
pub struct CountsArgs {
    /// The dataset
    dataset: String,
    /// Only files at this path of the dataset and below
    #[arg(default_value = "")]
    path: String,
    /// The number of items that are shown
    #[arg(long, value_name = "N", default_value_t = 1000)]
    max: u32,
    #[command(flatten)]
    how: AskArgs,
}

/// Options of `lrc flush-zero`.
#[derive(Debug, Args)]
pub struct FlushArgs {
    /// The dataset
    dataset: String,
    #[command(flatten)]
    how: AskArgs,
}

/// Lists the live jobs.
///
/// # Errors
/// The daemon cannot be reached.
pub(super) fn ls(how: &AskArgs) -> anyhow::Result<()> {
    how.show("GET", "/v1/lrc/jobs", None, jobs)
}

/// Shows the tasks of a job.
///
/// # Errors
/// The daemon cannot be reached, or there is no such job.
pub(super) fn show(args: &ShowArgs) -> anyhow::Result<()> {
    let mut path = format!("/v1/lrc/tasks?job={}", encoded(&args.job));
    if let Some(tenant) = &args.tenant {
        path.push_str(&format!("&tenant={}", encoded(tenant)));
    }
    args.how.show("GET", &path, None, tasks)
}

/// Shows the counts of items.
///
/// # Errors
/// The daemon cannot be reached.
pub(super) fn counts(args: &CountsArgs) -> anyhow::Result<()> {
    let CountsArgs {
        dataset,
        path,
        max,
        how,
    } = args;
    let (dataset, path) = (encoded(dataset), encoded(path));
    let path = format!("/v1/lrc/counts?dataset={dataset}&path={path}&max={max}");
    how.show("GET", &path, None, items)
}

/// Evicts the items without references.
///
/// # Errors
/// The daemon cannot be reached, or refuses.
pub(super) fn flush_zero(args: &FlushArgs) -> anyhow::Result<()> {
    let told = |answer: &Value| {
        let items = number(answer, "items").unwrap_or(0);
        format!("{items} items of {} have gone", bytes(answer, "bytes"))
    };
    let body = json!({ "dataset": args.dataset });
    args.how.show("POST", "/v1/lrc/flush", Some(&body), told)
}

fn jobs(answer: &Value) -> String {
    let all = list(answer, "jobs");
    let mut out = match all.is_empty() {
        true => {
            "no pipeline of this node is live: copperfs lrc run --engine ENGINE -- CMD\n".to_owned()
        }
        false => Table::of(all)
            .column("tenant", |job| text(job, "tenant"))
            .column("job", |job| text(job, "job"))
            .column("dataset", |job| text(job, "dataset"))
            .column("tasks", |job| or_dash(number(job, "tasks")))
            .column("ended", |job| or_dash(number(job, "tasks_ended")))
            .column("references", |job| or_dash(number(job, "references")))
            .column("age", |job| span(job, "age_s"))
            .column("expires in", |job| span(job, "expires_s"))
            .text(),
    };
    let nodes = list(answer, "nodes");
    if !nodes.is_empty() {
        let nodes = Table::of(nodes)
            .column("node", |node| text(node, "node"))
            .column("dataset", |node| text(node, "dataset"))
            .column("live jobs", |node| or_dash(number(node, "jobs")))
            .column("references", |node| or_dash(number(node, "references")))
            .column("refers to", |node| bytes(node, "bytes"));
        out.push_str(&format!("\n{}", nodes.text()));
    }
    out
}

fn tasks(answer: &Value) -> String {
    Table::of(list(answer, "tasks"))
        .column("task", |task| text(task, "task"))
        .column("", |task| match task["ended"].as_bool() {
            Some(true) => "ended",
            _ => "",
        })
        .column("inputs", |task| or_dash(number(task, "references")))
        .column("held", |task| or_dash(number(task, "held")))
        .text()
}

fn items(answer: &Value) -> String {
    let counts = list(answer, "counts");
    if counts.is_empty() {
        return "no live job of this node refers to it\n".into();
    }
    Table::of(counts)
        .column("count", |item| or_dash(number(item, "count")))
        .column("offset", |item| {
            or_dash(number(item, "offset").map(ByteSize))
        })
        .column("length", |item| bytes(item, "len"))
        .column("file", |item| text(item, "path"))
        .text()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_and_their_nodes_are_tables() {
        let answer = json!({
            "jobs": [{"tenant": "1000", "job": "app-1/sql-0", "dataset": "warehouse", "tasks": 12, "tasks_ended": 3,
                      "references": 40, "age_s": 75, "expires_s": 86_325}],
            "nodes": [{"node": "n1", "dataset": "warehouse", "jobs": 1, "references": 31, "bytes": 1 << 30}],
        });
        let told = jobs(&answer);
        assert!(
            told.contains("app-1/sql-0  warehouse     12      3          40"),
            "{told}"
        );
        assert!(told.contains("1.00 GiB"), "{told}");
        assert!(jobs(&json!({"jobs": [], "nodes": []})).starts_with("no pipeline"));
    }
}
