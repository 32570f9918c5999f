//! `copperfs allocate`: `SiloD`'s two calls, and the allocator's decision.

use super::daemon::{bytes, rate, text};
use super::dataset::{ListArgs, datasets};
use super::job_table;
use crate::control::client::encoded;
use clap::{Args, Subcommand};
use serde_json::{Value, json};

/// What is allocated.
#[derive(Debug, Subcommand)]
pub enum AllocateCommand {
    /// Set a dataset's budget by hand, or leave it to the policy again
    #[command(after_help = "Examples:\n  \
            copperfs allocate cache imagenet 120GB\n  \
            copperfs allocate cache imagenet auto")]
    Cache(CacheArgs),
    /// Set a job's remote IO by hand, or leave it to the policy again
    #[command(after_help = "Examples:\n  \
            copperfs allocate io slurm:1234 50MB/s\n  \
            copperfs allocate io slurm:1234 auto")]
    Io(IoArgs),
    /// Change the policy
    Policy(PolicyArgs),
    /// Show what everybody gets, and what they make of it
    Show(ListArgs),
}

/// Flags of `allocate cache`.
#[derive(Debug, Args)]
pub struct CacheArgs {
    /// The dataset
    dataset: String,
    /// Bytes of cache over all nodes, with a unit: 120GB, 1TiB
    #[arg(value_name = "SIZE|auto", allow_hyphen_values = true)]
    size: String,
    #[command(flatten)]
    how: ListArgs,
}

/// Flags of `allocate io`.
#[derive(Debug, Args)]
pub struct IoArgs {
    /// The job
    job: String,
    /// What it may read from storage, all its nodes together: 50MB/s, 1.6Gbit/s
    #[arg(value_name = "RATE|auto", allow_hyphen_values = true)]
    rate: String,
    #[command(flatten)]
    how: ListArgs,
}

/// Flags of `allocate policy`.
#[derive(Debug, Args)]
pub struct PolicyArgs {
    /// greedy, max-min, sjf, benefit, lru or static
    policy: String,
    #[command(flatten)]
    how: ListArgs,
}

/// Does it.
///
/// # Errors
/// The daemon cannot be reached, or refuses.
pub fn allocate(command: &AllocateCommand) -> anyhow::Result<()> {
    match command {
        AllocateCommand::Cache(args) => {
            let path = format!("/v1/datasets/{}/cache", encoded(&args.dataset));
            let told = format!("{}: {}", args.dataset, told(&args.size));
            let body = json!({ "size": amount_or_null(&args.size) });
            put(&args.how, &path, &body, told)
        }
        AllocateCommand::Io(args) => {
            let path = format!("/v1/jobs/{}/remote-io", encoded(&args.job));
            let told = format!("{}: {}", args.job, told(&args.rate));
            let body = json!({ "rate": amount_or_null(&args.rate) });
            put(&args.how, &path, &body, told)
        }
        AllocateCommand::Policy(args) => {
            let body = json!({ "policy": args.policy });
            let told = format!("the policy is {}", args.policy);
            put(&args.how, "/v1/policy", &body, told)
        }
        AllocateCommand::Show(args) => {
            let path = "/v1/allocation";
            args.mounted.show(args.json, "GET", path, None, all)
        }
    }
}

fn put(how: &ListArgs, path: &str, body: &Value, told: String) -> anyhow::Result<()> {
    how.mounted
        .show(how.json, "PUT", path, Some(body), |_| told)
}

/// The JSON form of an amount. Null leaves it to the policy.
fn amount_or_null(amount: &str) -> Value {
    match amount {
        "auto" => Value::Null,
        amount => json!(amount),
    }
}

fn told(amount: &str) -> String {
    match amount {
        "auto" => "left to the policy".to_owned(),
        amount => format!("{amount}, set by hand"),
    }
}

fn all(answer: &Value) -> String {
    let (cache, io) = (&answer["cache"], &answer["remote_io"]);
    format!(
        "policy {}, decision {} by {}\n\
         cache {}: budgets {}, cached {}\n\
         remote IO {}: allowed {}, used {}\n\n{}\n{}",
        text(answer, "policy"),
        text(answer, "serial"),
        text(answer, "allocator"),
        bytes(cache, "total"),
        bytes(cache, "budgeted"),
        bytes(cache, "cached"),
        rate(io, "total", "without limit"),
        rate(io, "allowed", "all"),
        rate(io, "used", "-"),
        datasets(answer),
        job_table::jobs(answer),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auto_leaves_it_to_the_policy() {
        assert_eq!(amount_or_null("auto"), Value::Null);
        assert_eq!(amount_or_null("5GB"), json!("5GB"));
        assert_eq!(told("auto"), "left to the policy");
    }

    #[test]
    fn all_is_told_even_of_nothing() {
        let text = all(&json!({
            "policy": "greedy", "serial": "1.2", "allocator": "n0",
            "cache": {"total": 1024, "budgeted": 0, "cached": 0},
            "remote_io": {"total": null, "allowed": null, "used": 0},
            "datasets": [], "jobs": [],
        }));
        assert!(
            text.contains("remote IO without limit: allowed all, used 0 B/s"),
            "{text}"
        );
    }
}
