//! `copperfs allocate`: `SiloD`'s two calls, and the allocator's decision.

use super::daemon::{bytes, rate, text};
use super::dataset::{AskArgs, datasets};
use super::job_table;
use crate::control::client::encoded;
use clap::Subcommand;
use serde_json::{Value, json};

/// What is allocated.
#[derive(Debug, Subcommand)]
pub enum AllocateCommand {
    /// Set a dataset's budget by hand, or leave it to the policy again
    #[command(after_help = "Examples:\n  \
            copperfs allocate cache imagenet 120GB\n  \
            copperfs allocate cache imagenet auto")]
    Cache {
        /// The dataset
        dataset: String,
        /// Bytes of cache over all nodes, with a unit: 120GB, 1TiB
        #[arg(value_name = "SIZE|auto", allow_hyphen_values = true)]
        size: String,
        /// The daemon, and the form of its answer
        #[command(flatten)]
        how: AskArgs,
    },
    /// Set a job's remote IO by hand, or leave it to the policy again
    #[command(after_help = "Examples:\n  \
            copperfs allocate io slurm:1234 50MB/s\n  \
            copperfs allocate io slurm:1234 auto")]
    Io {
        /// The job
        job: String,
        /// What it may read from storage, all its nodes together: 50MB/s, 1.6Gbit/s
        #[arg(value_name = "RATE|auto", allow_hyphen_values = true)]
        rate: String,
        /// The daemon, and the form of its answer
        #[command(flatten)]
        how: AskArgs,
    },
    /// Change the policy
    Policy {
        /// greedy, max-min, sjf, benefit, lru or static
        policy: String,
        /// The daemon, and the form of its answer
        #[command(flatten)]
        how: AskArgs,
    },
    /// Show what everybody gets, and what they make of it
    Show(AskArgs),
}

/// Does it.
///
/// # Errors
/// The daemon cannot be reached, or refuses.
pub fn allocate(command: &AllocateCommand) -> anyhow::Result<()> {
    let (how, path, body, told) = match command {
        AllocateCommand::Cache { dataset, size, how } => (
            how,
            format!("/v1/datasets/{}/cache", encoded(dataset)),
            json!({ "size": amount_or_null(size) }),
            format!("{dataset}: {}", told(size)),
        ),
        AllocateCommand::Io { job, rate, how } => (
            how,
            format!("/v1/jobs/{}/remote-io", encoded(job)),
            json!({ "rate": amount_or_null(rate) }),
            format!("{job}: {}", told(rate)),
        ),
        AllocateCommand::Policy { policy, how } => (
            how,
            "/v1/policy".to_owned(),
            json!({ "policy": policy }),
            format!("the policy is {policy}"),
        ),
        AllocateCommand::Show(how) => return how.show("GET", "/v1/allocation", None, all),
    };
    how.show("PUT", &path, Some(&body), |_| told)
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
