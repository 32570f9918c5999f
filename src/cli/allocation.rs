//! `copperfs allocation` and `copperfs policy`: the allocator's decision, and the rule that it follows. Budgets and rates are
//! set at their dataset or job.

use super::daemon::{bytes, rate, text};
use super::dataset::datasets;
use super::job_table;
use super::mounted::AskArgs;
use clap::Args;
use serde_json::{Value, json};

/// Flags of `policy`.
#[derive(Debug, Args)]
pub struct PolicyArgs {
    /// Change to this policy: greedy, max-min, sjf, benefit, lru or static [default: show the present one]
    policy: Option<String>,
    #[command(flatten)]
    how: AskArgs,
}

/// Shows the policy, or changes it.
///
/// # Errors
/// The daemon cannot be reached, or refuses.
pub fn policy(args: &PolicyArgs) -> anyhow::Result<()> {
    let Some(policy) = &args.policy else {
        let answer = args.how.mounted.ask("GET", "/v1/allocation", None)?;
        let policy = json!({ "policy": answer["policy"] });
        return args.how.print(&policy, |policy| text(policy, "policy"));
    };
    let body = json!({ "policy": policy });
    args.how.show("PUT", "/v1/policy", Some(&body), |_| {
        format!("the policy is {policy}")
    })
}

/// Shows the budget of every dataset and the rate of every job, and their use.
///
/// # Errors
/// The daemon cannot be reached.
pub fn allocation(how: &AskArgs) -> anyhow::Result<()> {
    how.show("GET", "/v1/allocation", None, all)
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
